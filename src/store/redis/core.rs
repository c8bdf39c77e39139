//! State shared by the store and its tasks.

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use ::redis::{Cmd, Value};
use tokio::sync::{Notify, mpsc, watch};

use super::append::Append;
use super::command::{Call, Note, Told, Work, cmd};
use super::failure::Failure;
use super::generation::{self, hex};
use super::keys::{Names, Order, order};
use crate::protocol::ids::{Owner, StoreEpoch};
use crate::random;
use crate::store::change_subscriptions::Followers;
use crate::store::completion::Completions;
use crate::store::{Error, Keys, Pending, StoreHealth};

/// Calls that wait to be sent. One that finds no place fails: Redis is far behind.
const WAITING: usize = 16 * 1024;

/// State shared by the store and its tasks.
pub(super) struct Core {
    pub(super) owner: Owner,
    pub(super) names: Names,
    /// Tells this process from another one with the same owner.
    pub(super) incarnation: String,
    pub(super) followers: Followers,
    /// There may be messages.
    pub(super) mail: Notify,
    /// The connection or the contents are new: followers must be registered again and woken.
    pub(super) rejoin: Notify,
    /// Notified when a call finds signs of a new generation: the next probe is due at once.
    pub(super) doubt: Notify,
    /// Count of such events, for the event log: recent writes may be lost.
    pub(super) regained: watch::Sender<u64>,
    /// The first of the messages that came last, and how many they were, as Redis says it.
    pub(super) taken: Mutex<(Vec<u8>, Vec<u8>)>,
    /// Numbers the messages that are sent.
    pub(super) sent: AtomicU64,
    keys: Keys,
    epoch: AtomicU32,
    standing: AtomicU8,
    queue: mpsc::Sender<Call>,
    completions: Completions<Told>,
}

impl Core {
    /// With the other end of the queue.
    pub(super) fn new(owner: Owner, names: Names, keys: Keys) -> (Self, mpsc::Receiver<Call>) {
        let (queue, calls) = mpsc::channel(WAITING);
        let core = Self {
            owner,
            names,
            incarnation: hex(&random::bytes::<8>()),
            followers: Followers::default(),
            mail: Notify::new(),
            rejoin: Notify::new(),
            doubt: Notify::new(),
            regained: watch::Sender::new(0),
            taken: Mutex::default(),
            sent: AtomicU64::new(0),
            epoch: AtomicU32::new(keys.epoch.0),
            keys,
            standing: AtomicU8::new(StoreHealth::Ready as u8),
            queue,
            completions: Completions::default(),
        };
        (core, calls)
    }

    pub(super) fn health(&self) -> StoreHealth {
        match self.standing.load(Ordering::Relaxed) {
            at if at == StoreHealth::Ready as u8 => StoreHealth::Ready,
            at if at == StoreHealth::Full as u8 => StoreHealth::Full,
            _ => StoreHealth::Unreachable,
        }
    }

    pub(super) fn stand(&self, standing: StoreHealth) {
        self.standing.store(standing as u8, Ordering::Relaxed);
    }

    pub(super) fn epoch(&self) -> StoreEpoch {
        StoreEpoch(self.epoch.load(Ordering::Relaxed))
    }

    /// The connection is a new one, or the contents are.
    pub(super) fn regain(&self) {
        self.regained.send_modify(|times| *times += 1);
        self.rejoin.notify_one();
    }

    /// The contents are others than before.
    pub(super) fn set_epoch(&self, epoch: StoreEpoch) {
        self.epoch.store(epoch.0, Ordering::Relaxed);
    }

    /// The keys, which stay what they were when the contents are lost, and the epoch of now.
    pub(super) fn keys(&self) -> Keys {
        Keys { epoch: self.epoch(), ..self.keys.clone() }
    }

    /// Makes a call; it is on its way when this returns. `read` makes a result of the answers.
    pub(super) fn call<T: Send + 'static>(
        &self,
        order: impl Into<Order>,
        steps: Vec<Cmd>,
        read: impl FnOnce(Vec<Value>) -> Result<T, Error> + Send + 'static,
    ) -> Pending<Result<T, Error>> {
        self.make(Work::Steps(steps), order.into(), None, read)
    }

    /// Makes a call whose reply goes to `note` too, even if the caller has gone.
    pub(super) fn call_and_note<T: Send + 'static>(
        &self,
        order: impl Into<Order>,
        steps: Vec<Cmd>,
        note: Note,
        read: impl FnOnce(Vec<Value>) -> Result<T, Error> + Send + 'static,
    ) -> Pending<Result<T, Error>> {
        self.make(Work::Steps(steps), order.into(), Some(note), read)
    }

    /// Makes a call that may find nothing. Returns an error if it finds nothing because the contents are lost, before a
    /// probe has noticed.
    pub(super) fn look<T: Send + 'static>(
        self: &Arc<Self>,
        order: impl Into<Order>,
        step: Cmd,
        read: impl FnOnce(Vec<Value>) -> Result<T, Error> + Send + 'static,
        is_nothing: impl FnOnce(&T) -> bool + Send + 'static,
    ) -> Pending<Result<T, Error>> {
        let (core, epoch) = (self.clone(), self.epoch());
        let looking = self.call(order, vec![step], read);
        Pending::Later(Box::pin(async move {
            let found = looking.wait().await?;
            if is_nothing(&found) {
                core.confirm(epoch).await?;
            }
            Ok(found)
        }))
    }

    /// Checks that the generation in Redis is that of `epoch`.
    async fn confirm(&self, epoch: StoreEpoch) -> Result<(), Error> {
        let name = self.names.contents();
        let asked = self.call(order(&name), vec![cmd(&[b"GET", name.as_bytes()])], move |answers| {
            Ok(answers.last().is_some_and(|record| generation::is_of(record, epoch)))
        });
        if asked.wait().await? {
            return Ok(());
        }
        self.doubt.notify_one();
        Err(Error::Unavailable("it has lost what it held".to_owned()))
    }

    /// Makes an append, in the way that is cheapest.
    pub(super) fn append<T: Send + 'static>(
        &self,
        append: Append,
        read: impl FnOnce(Vec<Value>) -> Result<T, Error> + Send + 'static,
    ) -> Pending<Result<T, Error>> {
        let order = append.stream().into();
        self.make(Work::Append(append), order, None, read)
    }

    fn make<T: Send + 'static>(
        &self,
        work: Work,
        order: Order,
        note: Option<Note>,
        read: impl FnOnce(Vec<Value>) -> Result<T, Error> + Send + 'static,
    ) -> Pending<Result<T, Error>> {
        let (call, answer) = Call::new(work, order, note, self.completions.here());
        if self.queue.try_send(call).is_err() {
            return Pending::Ready(Err(Error::Unavailable("too many calls are waiting".to_owned())));
        }
        Pending::Later(Box::pin(async move {
            let lost = || Failure::lost("the connection was lost before the reply came");
            let answers = answer.await.unwrap_or_else(|_| Err(lost()))?;
            read(answers)
        }))
    }
}

/// Returns the error for a reply in an unknown form: the key holds data of another program.
pub(super) fn odd() -> Error {
    Error::Unavailable("Redis sent an invalid reply".to_owned())
}
