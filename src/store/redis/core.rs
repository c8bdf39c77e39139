//! State shared by the store and its tasks.

use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use ::redis::{Cmd, Value};
use tokio::sync::{Notify, mpsc, watch};

use super::append::Append;
use super::command::{Call, Completion, Note, Work, cmd};
use super::failure::Failure;
use super::generation::{self, hex};
use super::keys::{Names, Order, order};
use crate::change_subscriptions::ChangeSubscriptions;
use crate::completion::Completions;
use crate::{Error, Keys, Pending, StoreHealth};
use mcp_resume_base::random;
use mcp_resume_protocol::ids::{Owner, StoreEpoch};

/// Maximum calls that wait to be sent. Further calls fail: Redis is far behind.
const WAITING: usize = 16 * 1024;

/// State shared by the store and its tasks.
pub(super) struct Core {
    pub(super) owner: Owner,
    pub(super) names: Names,
    /// Distinguishes this process from another one with the same owner.
    pub(super) incarnation: String,
    pub(super) subscriptions: ChangeSubscriptions,
    /// Notified when there may be messages.
    pub(super) mail: Notify,
    /// Notified when the connection or the contents are new: subscribers must be registered again
    /// and woken.
    pub(super) resubscribe: Notify,
    /// Notified when a call finds signs of a new generation: the next probe is due at once.
    pub(super) probe_now: Notify,
    /// Count of new connections and new contents, for the event log: recent writes may be lost.
    pub(super) possible_losses: watch::Sender<u64>,
    /// Number of the first message of the last delivery, and the number of messages in it, as Redis
    /// encodes them.
    pub(super) taken: Mutex<(Vec<u8>, Vec<u8>)>,
    /// Number of the last message that was queued. Locked until the message is queued.
    pub(super) sent: Mutex<u64>,
    keys: Keys,
    epoch: AtomicU32,
    health: AtomicU8,
    queue: mpsc::Sender<Call>,
    completions: Completions<Completion>,
}

impl Core {
    /// Creates the state, with the receiver of the calls.
    pub(super) fn new(owner: Owner, names: Names, keys: Keys) -> (Self, mpsc::Receiver<Call>) {
        let (queue, calls) = mpsc::channel(WAITING);
        let core = Self {
            owner,
            names,
            incarnation: hex(&random::bytes::<8>()),
            subscriptions: ChangeSubscriptions::default(),
            mail: Notify::new(),
            resubscribe: Notify::new(),
            probe_now: Notify::new(),
            possible_losses: watch::Sender::new(0),
            taken: Mutex::default(),
            sent: Mutex::new(0),
            epoch: AtomicU32::new(keys.epoch.0),
            keys,
            health: AtomicU8::new(StoreHealth::Ready as u8),
            queue,
            completions: Completions::default(),
        };
        (core, calls)
    }

    pub(super) fn health(&self) -> StoreHealth {
        match self.health.load(Ordering::Relaxed) {
            at if at == StoreHealth::Ready as u8 => StoreHealth::Ready,
            at if at == StoreHealth::Full as u8 => StoreHealth::Full,
            _ => StoreHealth::Unreachable,
        }
    }

    pub(super) fn set_health(&self, health: StoreHealth) {
        self.health.store(health as u8, Ordering::Relaxed);
    }

    pub(super) fn epoch(&self) -> StoreEpoch {
        StoreEpoch(self.epoch.load(Ordering::Relaxed))
    }

    /// Notes that the connection or the contents are new.
    pub(super) fn note_possible_loss(&self) {
        self.possible_losses.send_modify(|times| *times += 1);
        self.resubscribe.notify_one();
    }

    /// Notes that Redis has other contents, with this epoch.
    pub(super) fn set_epoch(&self, epoch: StoreEpoch) {
        self.epoch.store(epoch.0, Ordering::Relaxed);
    }

    /// Returns the keys, which survive a loss of the contents, with the present epoch.
    pub(super) fn keys(&self) -> Keys {
        Keys { epoch: self.epoch(), ..self.keys.clone() }
    }

    /// Makes a call; it is queued when this returns. `read` decodes the replies.
    pub(super) fn call<T: Send + 'static>(
        &self,
        order: impl Into<Order>,
        steps: Vec<Cmd>,
        read: impl FnOnce(Vec<Value>) -> Result<T, Error> + Send + 'static,
    ) -> Pending<Result<T, Error>> {
        self.submit(Work::Steps(steps), order.into(), None, read)
    }

    /// Makes a call whose reply goes to `note` too, even if the caller has gone.
    pub(super) fn call_and_note<T: Send + 'static>(
        &self,
        order: impl Into<Order>,
        steps: Vec<Cmd>,
        note: Note,
        read: impl FnOnce(Vec<Value>) -> Result<T, Error> + Send + 'static,
    ) -> Pending<Result<T, Error>> {
        self.submit(Work::Steps(steps), order.into(), Some(note), read)
    }

    /// Makes a call that may find nothing. Returns an error if it finds nothing because the
    /// contents are lost, before a probe has noticed.
    pub(super) fn query<T: Send + 'static>(
        self: &Arc<Self>,
        order: impl Into<Order>,
        step: Cmd,
        read: impl FnOnce(Vec<Value>) -> Result<T, Error> + Send + 'static,
        is_nothing: impl FnOnce(&T) -> bool + Send + 'static,
    ) -> Pending<Result<T, Error>> {
        let (core, epoch) = (self.clone(), self.epoch());
        let querying = self.call(order, vec![step], read);
        Pending::Later(Box::pin(async move {
            let found = querying.wait().await?;
            if is_nothing(&found) {
                core.confirm(epoch).await?;
            }
            Ok(found)
        }))
    }

    /// Checks that the contents of Redis have the generation of `epoch`.
    async fn confirm(&self, epoch: StoreEpoch) -> Result<(), Error> {
        let name = self.names.contents();
        let asked = self.call(order(&name), vec![cmd(&[b"GET", name.as_bytes()])], move |answers| {
            Ok(answers.last().is_some_and(|record| generation::is_of(record, epoch)))
        });
        if asked.wait().await? {
            return Ok(());
        }
        self.probe_now.notify_one();
        Err(Error::Unavailable("it has lost its contents".to_owned()))
    }

    /// Makes an append, plain if that is permitted.
    pub(super) fn append<T: Send + 'static>(
        &self,
        append: Append,
        read: impl FnOnce(Vec<Value>) -> Result<T, Error> + Send + 'static,
    ) -> Pending<Result<T, Error>> {
        let order = append.stream().into();
        self.submit(Work::Append(append), order, None, read)
    }

    fn submit<T: Send + 'static>(
        &self,
        work: Work,
        order: Order,
        note: Option<Note>,
        read: impl FnOnce(Vec<Value>) -> Result<T, Error> + Send + 'static,
    ) -> Pending<Result<T, Error>> {
        let (call, replies) = Call::new(work, order, note, self.completions.here());
        if self.queue.try_send(call).is_err() {
            return Pending::Ready(Err(Error::Unavailable("too many calls are waiting".to_owned())));
        }
        Pending::Later(Box::pin(async move {
            let lost = || Failure::lost("the connection was lost before the reply came");
            read(replies.await.unwrap_or_else(|_| Err(lost()))?)
        }))
    }
}
