//! A client's request that concerns something at another replica: handed over, answered there, and the answer brought back.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::oneshot;
use tracing::debug;

use super::cut_off;
use crate::event_log::{EventLog, Fingerprint, Run};
use crate::protocol::cluster::{Handed, Known, Message};
use crate::protocol::ids::{Owner, Seq, StreamId};
use crate::store::{Error, Shared};
use crate::sync;

/// A request nobody took for so long is of no use any more.
const KEPT: Duration = Duration::from_secs(60);

/// State of a replica that does not live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absence {
    /// Its lease has lapsed, and no replica has taken it for gone yet.
    Lapsed,
    /// It was taken for gone a while ago, and may only be cut off from the store: with what it runs.
    CutOff,
    /// It does not come back.
    Gone,
}

/// Requests and questions that wait for their answer.
pub struct Requests {
    shared: Arc<dyn Shared>,
    log: Arc<EventLog>,
    next: AtomicU64,
    handed: Asked<Option<Handed>>,
    places: Asked<Option<Seq>>,
    calls: Asked<Known>,
}

/// What waits for one kind of answer, by number.
struct Asked<T>(Mutex<HashMap<u64, oneshot::Sender<T>>>);

/// Forgets a request whose asker has left.
struct Waiting<'a, T> {
    asked: &'a Asked<T>,
    number: u64,
}

impl<T> Asked<T> {
    fn wait(&self, number: u64) -> (Waiting<'_, T>, oneshot::Receiver<T>) {
        let (reply, replied) = oneshot::channel();
        self.lock().insert(number, reply);
        (Waiting { asked: self, number }, replied)
    }

    fn take(&self, number: u64, reply: T) {
        if let Some(waiting) = self.lock().remove(&number) {
            // Whoever asked may have left.
            let _ = waiting.send(reply);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, oneshot::Sender<T>>> {
        sync::lock(&self.0)
    }
}

impl<T> Drop for Waiting<'_, T> {
    fn drop(&mut self) {
        self.asked.lock().remove(&self.number);
    }
}

impl Requests {
    pub(super) fn new(shared: Arc<dyn Shared>, log: Arc<EventLog>) -> Self {
        // A process that was here before may have asked as well.
        let first = u64::from_be_bytes(crate::random::bytes());
        let (handed, places, calls) = (Asked(Mutex::default()), Asked(Mutex::default()), Asked(Mutex::default()));
        Self { shared, log, next: AtomicU64::new(first), handed, places, calls }
    }

    /// The living replicas but this one that have to do with `group`.
    ///
    /// # Errors
    /// When the store cannot be asked, or has only just lost what it knew of them.
    pub async fn others(&self, group: &[u8]) -> Result<Vec<Owner>, Error> {
        let mut members = self.shared.members(group).wait().await?;
        members.retain(|owner| *owner != self.shared.owner());
        if members.is_empty() {
            return self.unless_young(members);
        }
        let living = self.shared.living().wait().await?;
        members.retain(|owner| living.contains(owner));
        Ok(members)
    }

    /// Hands `request` to another replica and waits for its answer; `None` where it concerns nothing there.
    ///
    /// # Errors
    /// When it could not be handed over. Waiting has no end of its own: whoever gives up has handed it over all the same.
    pub async fn ask(&self, to: Owner, request: Handed) -> Result<Option<Handed>, Error> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (_waiting, replied) = self.handed.wait(number);
        let sending = {
            // Nothing of the request is kept here while its answer is awaited.
            let message = Message::Request { from: self.shared.owner(), number, request };
            self.shared.send(to, &message.encode(), KEPT)
        };
        sending.wait().await?;
        Ok(replied.await.unwrap_or_default())
    }

    /// Whether `owner` was heard of within its lease.
    ///
    /// # Errors
    /// When the store cannot be asked, or has only just lost what it knew of the replica.
    pub async fn lives(&self, owner: Owner) -> Result<bool, Error> {
        match self.shared.living().wait().await?.contains(&owner) {
            true => Ok(true),
            false => self.unless_young(false),
        }
    }

    /// That the store knows nothing says something only where it had the time to be told.
    fn unless_young<T>(&self, nothing: T) -> Result<T, Error> {
        match self.log.has_young_contents() {
            true => Err(Error::Unavailable("it has lost what it held, and is being told again".to_owned())),
            false => Ok(nothing),
        }
    }

    /// How far `stream` is at `owner`, whatever the store has of it; `None` where it is not there, or that replica is gone.
    ///
    /// # Errors
    /// When it could not be asked. Waiting has no end of its own.
    pub async fn place_at(&self, owner: Owner, stream: StreamId) -> Result<Option<Seq>, Error> {
        if !self.lives(owner).await? {
            // Where the store was away for longer than a lease, that has lapsed and says nothing. And one that was taken for gone may
            // live all the same, cut off from the store, with what it has begun since.
            let has_lapsed = self.shared.lapsed().wait().await?.contains(&owner);
            return match has_lapsed || self.shared.get(&cut_off(owner)).wait().await?.is_some() {
                true => Err(Error::Unavailable("its owner may come back".into())),
                false => Ok(None),
            };
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (_waiting, replied) = self.places.wait(number);
        let message = Message::Where { from: self.shared.owner(), number, stream };
        self.shared.send(owner, &message.encode(), KEPT).wait().await?;
        Ok(replied.await.unwrap_or_default())
    }

    /// Returns what the replica that claimed a call knows of it, which was sent again here; `None` where that replica does not live.
    ///
    /// # Errors
    /// When it could not be asked. Waiting has no end of its own.
    pub async fn known_at(
        &self,
        run: Run,
        call: &Fingerprint,
        body: Option<&Fingerprint>,
    ) -> Result<Option<Known>, Error> {
        let owner = run.owner;
        if !self.lives(owner).await? {
            return Ok(None);
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (_waiting, replied) = self.calls.wait(number);
        let (call, body) = (call.to_wire(), body.map(Fingerprint::to_wire));
        let message = Message::Repeated { from: self.shared.owner(), number, call, run: Some(run.stream), body };
        self.shared.send(owner, &message.encode(), KEPT).wait().await?;
        Ok(replied.await.ok())
    }

    /// Returns what is known of `owner`, which does not live or knows nothing of what it was asked.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn absence(&self, owner: Owner) -> Result<Absence, Error> {
        if !self.shared.lapsed().wait().await?.contains(&owner) {
            return Ok(Absence::Gone);
        }
        match self.shared.get(&cut_off(owner)).wait().await? {
            Some(_) => Ok(Absence::CutOff),
            None => Ok(Absence::Lapsed),
        }
    }

    pub(super) fn take_known(&self, number: u64, known: Known) {
        self.calls.take(number, known);
    }

    pub(super) fn take_reply(&self, number: u64, reply: Option<Handed>) {
        self.handed.take(number, reply);
    }

    pub(super) fn take_place(&self, number: u64, upto: Option<Seq>) {
        self.places.take(number, upto);
    }
}

/// Brings an answer back.
pub(super) async fn answer(shared: &dyn Shared, to: Owner, answer: Message) {
    if let Err(error) = shared.send(to, &answer.encode(), KEPT).wait().await {
        debug!(%error, "the answer to another replica's request could not be brought there");
    }
}
