//! Requests to other replicas and their replies, as messages through the store.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::oneshot;
use tracing::debug;

use super::lease::cut_off_key;
use crate::event_log::{ClaimRecord, EventLog, Fingerprint};
use crate::protocol::cluster::{HttpMessage, Message, RepeatedCall};
use crate::protocol::headers::SessionId;
use crate::protocol::ids::{Owner, Seq, StreamId};
use crate::store::{Coordination, Error};
use crate::sync;

/// Lifetime of a message in the store that its replica has not received.
const MESSAGE_TTL: Duration = Duration::from_secs(60);

/// State of a replica that does not live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absence {
    /// The lease has expired, and no replica has noted that yet.
    Expired,
    /// The expiry was noted. The replica may be alive and cut off from the store, and its calls may
    /// still run.
    CutOff,
    /// The replica does not return.
    Gone,
}

/// Requests to other replicas, and the tasks that wait for the replies.
pub struct Requests {
    coordination: Arc<dyn Coordination>,
    log: Arc<EventLog>,
    next_number: AtomicU64,
    forwarded: PendingReplies<Option<HttpMessage>>,
    positions: PendingReplies<Option<Seq>>,
    calls: PendingReplies<RepeatedCall>,
}

/// Requests that wait for one kind of reply, by number.
struct PendingReplies<T>(Mutex<HashMap<u64, oneshot::Sender<T>>>);

/// Removes a pending request when its caller is dropped.
struct Guard<'a, T> {
    pending: &'a PendingReplies<T>,
    number: u64,
}

impl<T> Default for PendingReplies<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> PendingReplies<T> {
    fn register(&self, number: u64) -> (Guard<'_, T>, oneshot::Receiver<T>) {
        let (reply, replied) = oneshot::channel();
        self.lock().insert(number, reply);
        (Guard { pending: self, number }, replied)
    }

    fn take(&self, number: u64, reply: T) {
        if let Some(caller) = self.lock().remove(&number) {
            // The caller may be gone.
            let _ = caller.send(reply);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, oneshot::Sender<T>>> {
        sync::lock(&self.0)
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        self.pending.lock().remove(&self.number);
    }
}

impl Requests {
    pub(super) fn new(coordination: Arc<dyn Coordination>, log: Arc<EventLog>) -> Self {
        // Random, so that replies to an earlier process of this name match no request of this one.
        let first = u64::from_be_bytes(crate::random::bytes());
        Self {
            coordination,
            log,
            next_number: AtomicU64::new(first),
            forwarded: PendingReplies::default(),
            positions: PendingReplies::default(),
            calls: PendingReplies::default(),
        }
    }

    /// Returns the other live replicas that are registered for a session.
    ///
    /// # Errors
    /// If the store fails, or has only just lost its contents.
    pub async fn others(&self, session: &SessionId) -> Result<Vec<Owner>, Error> {
        let mut members = self.members(session).await?;
        if members.is_empty() {
            return Ok(members);
        }
        let living = self.coordination.live_replicas().wait().await?;
        members.retain(|owner| living.contains(owner));
        Ok(members)
    }

    /// Returns the other replicas that are registered for a session, dead ones included.
    ///
    /// # Errors
    /// As for [`Self::others`].
    pub async fn members(&self, session: &SessionId) -> Result<Vec<Owner>, Error> {
        let mut members = self.log.stored_sessions().members(session).await?;
        members.retain(|owner| *owner != self.coordination.owner());
        if members.is_empty() { self.unless_recovering(members) } else { Ok(members) }
    }

    /// Forwards `request` to another replica and waits for the reply, without a timeout. Returns
    /// `None` if the request concerns nothing there. A caller that stops waiting does not take the
    /// request back.
    ///
    /// # Errors
    /// If the request could not be forwarded, or the store may have lost it or its reply.
    pub async fn ask(&self, to: Owner, request: HttpMessage) -> Result<Option<HttpMessage>, Error> {
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        let (_guard, replied) = self.forwarded.register(number);
        let sending = {
            // The request is dropped here, before the wait for the reply.
            let message = Message::Request { from: self.coordination.owner(), number, request };
            self.coordination.send(to, &message.encode(), MESSAGE_TTL)
        };
        let mut losses = self.coordination.possible_losses();
        losses.mark_unchanged();
        sending.wait().await?;
        tokio::select! {
            biased;
            reply = replied => Ok(reply.unwrap_or_default()),
            // The request or its reply may be lost: a client is not to wait for them.
            Ok(()) = losses.changed() => Err(Error::Unavailable("it was lost while another replica was asked".to_owned())),
        }
    }

    /// Returns true if `owner` holds a lease.
    ///
    /// # Errors
    /// If the store fails, or has only just lost its contents.
    pub async fn lives(&self, owner: Owner) -> Result<bool, Error> {
        if self.coordination.live_replicas().wait().await?.contains(&owner) {
            return Ok(true);
        }
        self.unless_recovering(false)
    }

    /// Returns `nothing`, unless the store is recovering from a loss: a missing entry proves
    /// nothing then.
    fn unless_recovering<T>(&self, nothing: T) -> Result<T, Error> {
        if self.log.resync().is_store_recovering() {
            return Err(Error::Unavailable("it has lost its contents, and is being rewritten".to_owned()));
        }
        Ok(nothing)
    }

    /// Returns the last position of `stream` at `owner`, which may be ahead of the store. Waits for
    /// the reply without a timeout. Returns `None` if the replica does not have the stream, or is
    /// gone.
    ///
    /// # Errors
    /// If the request could not be sent to the replica.
    pub async fn position_at(&self, owner: Owner, stream: StreamId) -> Result<Option<Seq>, Error> {
        if !self.lives(owner).await? {
            // After an outage of the store longer than a lease, an expired lease proves nothing. A
            // replica without access to the store may also live, and may have begun further
            // streams.
            let may_return = self.coordination.expired_leases().wait().await?.contains(&owner)
                || self.coordination.get(&cut_off_key(owner)).wait().await?.is_some();
            if may_return {
                return Err(Error::Unavailable("its owner may return".into()));
            }
            return Ok(None);
        }
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        let (_guard, replied) = self.positions.register(number);
        let message = Message::Where { from: self.coordination.owner(), number, stream };
        self.coordination.send(owner, &message.encode(), MESSAGE_TTL).wait().await?;
        Ok(replied.await.unwrap_or_default())
    }

    /// Returns the state of a call at the replica that claimed it, for a retry with this body.
    /// Waits for the reply without a timeout. Returns `None` if that replica does not live.
    ///
    /// # Errors
    /// If the store fails, or has only just lost its contents.
    pub async fn known_at(
        &self,
        run: ClaimRecord,
        call: &Fingerprint,
        body: &Fingerprint,
    ) -> Result<Option<RepeatedCall>, Error> {
        if !self.lives(run.owner).await? {
            return Ok(None);
        }
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        let (_guard, replied) = self.calls.register(number);
        let message = Message::Repeated {
            from: self.coordination.owner(),
            number,
            call: call.to_wire(),
            run: Some(run.stream),
            body: Some(body.to_wire()),
        };
        self.coordination.send(run.owner, &message.encode(), MESSAGE_TTL).wait().await?;
        Ok(replied.await.ok())
    }

    /// Returns the state of an `owner` that does not live, or does not know its claimed call.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn absence(&self, owner: Owner) -> Result<Absence, Error> {
        if !self.coordination.expired_leases().wait().await?.contains(&owner) {
            return Ok(Absence::Gone);
        }
        // A full store may refuse the record of the expiry, which this replica has noted too.
        let is_noted = self.log.leases().has_noted_expiry(owner)
            || self.coordination.get(&cut_off_key(owner)).wait().await?.is_some();
        Ok(if is_noted { Absence::CutOff } else { Absence::Expired })
    }

    pub(super) fn take_known(&self, number: u64, known: RepeatedCall) {
        self.calls.take(number, known);
    }

    pub(super) fn take_reply(&self, number: u64, reply: Option<HttpMessage>) {
        self.forwarded.take(number, reply);
    }

    pub(super) fn take_position(&self, number: u64, upto: Option<Seq>) {
        self.positions.take(number, upto);
    }
}

/// Sends a reply.
pub(super) async fn reply(coordination: &dyn Coordination, to: Owner, reply: Message) {
    if let Err(error) = coordination.send(to, &reply.encode(), MESSAGE_TTL).wait().await {
        debug!(%error, "the reply to another replica's request could not be delivered");
    }
}
