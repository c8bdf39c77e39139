//! Retries of a stream's call: the comparison with a repeated POST, and the entries of the retry
//! index and the claims, by which the POST finds the stream.

use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use crate::clock;
use crate::event_log::backing::fingerprint::Fingerprint;
use crate::event_log::retry_index::Registration;
use crate::event_log::stream::delivery::Delivery;
use crate::event_log::stream::response_head::Head;
use crate::event_log::stream::state::Shared;
use crate::event_log::stream::{Stream, UpstreamCall};
use crate::protocol::request_ids::IdUse;
use crate::protocol::stream::{Machine, Phase};
use crate::sync;

/// Time that a likely retry waits for the first call's client to leave.
const DETACH_WAIT: Duration = Duration::from_millis(200);
/// Time that a likely retry waits for the connection that was given the whole response to break.
const BREAK_WAIT: Duration = Duration::from_millis(20);

/// Relation of a POST to the stream's call, which has the same fingerprint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryMatch {
    /// The POST is a retry of the call.
    Retry,
    /// The POST has the call's `Idempotency-Key` and another body.
    OtherBody,
    /// The POST is a new call: the stream's can no longer be retried.
    NewCall,
}

/// Retries of one stream's call.
pub struct Retries<'a> {
    pub(super) shared: &'a Shared,
    pub(super) upstream: &'a UpstreamCall,
    pub(super) body_fingerprint: Option<&'a Fingerprint>,
    pub(super) registrations: &'a Mutex<Vec<Registration<Stream>>>,
}

impl Stream {
    /// Returns the retries of the call.
    pub fn retries(&self) -> Retries<'_> {
        Retries {
            shared: &self.shared,
            upstream: &self.upstream,
            body_fingerprint: self.body_fingerprint.as_deref(),
            registrations: &self.registrations,
        }
    }
}

impl Retries<'_> {
    /// Returns the fingerprint of the POST body, if a retry may name the call by a key.
    pub fn body_fingerprint(&self) -> Option<Fingerprint> {
        self.body_fingerprint.copied()
    }

    /// Compares a POST of the same fingerprint with the call. `body` is the fingerprint of its
    /// body, if it has an `Idempotency-Key`. Without one, `id_use` decides: the use of request IDs
    /// in the session.
    pub fn compare(&self, body: Option<Fingerprint>, id_use: IdUse) -> RetryMatch {
        let may_lack_response = match (body, id_use) {
            (Some(_), _) => true,
            (None, IdUse::Unique) => !Delivery(self.shared).has_arrived(),
            (None, IdUse::Free) => self.shared.with_machine(|machine| machine.was_cut(clock::now())),
        };
        if may_lack_response { self.compare_again(body) } else { RetryMatch::NewCall }
    }

    /// Compares a POST, which [`Self::compare`] has taken for a retry when it arrived, after a
    /// wait. The response may have been delivered to the first client since.
    ///
    /// With an idempotency key a call can be retried for the life of the stream. With the same
    /// request id and body it can be retried until the response was delivered, even while the first
    /// client is attached: a half-open connection counts as attached, and a session uses a request
    /// id once. Where IDs are free, it can be retried only after its client's connection was lost.
    /// A call that ended before it was sent upstream cannot be retried.
    pub fn compare_again(&self, body: Option<Fingerprint>) -> RetryMatch {
        let is_lost = self.shared.with_machine(|machine| {
            machine.lifecycle().is_cancelled() || (machine.lifecycle().is_sealed() && !self.upstream.is_sent())
        });
        if is_lost {
            RetryMatch::NewCall
        } else if self.body_fingerprint == body.as_ref() {
            RetryMatch::Retry
        } else {
            RetryMatch::OtherBody
        }
    }

    /// Waits a moment for the first call's client to leave. A retry is often faster than the end of
    /// the connection it replaces, and a takeover before the response head makes the proxy commit.
    pub async fn wait_for_detach(&self) {
        if !self.shared.with_machine(|machine| machine.reader().is_delivered()) {
            // A half-open connection stays, and is taken over.
            let detached = self.shared.wait_until(|inner| !inner.machine.reader().is_attached());
            let _ = tokio::time::timeout(DETACH_WAIT, detached).await;
        }
    }

    /// Waits a moment for the connection of one of these calls to end, where IDs are free: only
    /// then the same POST is a retry. A connection that was given the whole response is nearly
    /// always in use still, so that its end is waited for far less long.
    pub async fn wait_for_cut(calls: &[Arc<Stream>]) {
        let any = |wants: fn(&Machine) -> bool| {
            poll_fn(move |cx| {
                let mut is_wanted = false;
                for call in calls {
                    let mut inner = call.shared.lock();
                    if inner.machine.was_cut(clock::now()) {
                        return Poll::Ready(());
                    }
                    if wants(&inner.machine) {
                        is_wanted = true;
                        inner.watch(cx);
                    }
                }
                if is_wanted { Poll::Pending } else { Poll::Ready(()) }
            })
        };
        let _ = tokio::time::timeout(DETACH_WAIT, any(|machine| machine.reader().is_attached())).await;
        let _ = tokio::time::timeout(BREAK_WAIT, any(|machine| machine.reader().is_settling())).await;
    }

    /// Keeps an entry of the retry index for the life of the stream.
    pub fn register(&self, registration: Registration<Stream>) {
        let mut entries = sync::lock(self.registrations);
        // Most streams have one.
        entries.reserve_exact(1);
        entries.push(registration);
    }

    /// Returns the fingerprint by which a retry without a key finds the stream, if one does. `None`
    /// where request IDs are free.
    pub(in crate::event_log) fn unkeyed_call(&self) -> Option<Fingerprint> {
        if self.body_fingerprint.is_some() {
            return None;
        }
        let entries = sync::lock(self.registrations);
        entries.first().filter(|entry| !entry.has_free_id()).map(Registration::call)
    }

    /// Removes the stream from the retry index.
    pub fn forget(&self) {
        let entries = std::mem::take(&mut *sync::lock(self.registrations));
        // Each removes itself from the index, without the lock.
        drop(entries);
    }

    /// Returns true if a retry can still find the stream.
    pub fn may_come(&self) -> bool {
        !sync::lock(self.registrations).is_empty()
    }

    /// Drops a response that is still arriving and has no connection, so that the upstream need not
    /// wait.
    pub fn drop_unread_response(&self) {
        let inner = self.shared.lock();
        if let Head::Plain(plain) = &inner.head
            && !inner.machine.reader().is_attached()
        {
            // To drop the body ends the upstream response.
            drop(plain.take_passthrough());
        }
    }

    /// Returns true if the response passed through and a retry may still fetch it: no client took
    /// it, or it has a key.
    pub fn has_unclaimed_response(&self) -> bool {
        self.may_come()
            && self.shared.with_machine(|machine| {
                let unclaimed = !machine.reader().is_attached() && !machine.reader().is_delivered();
                let has_passed = machine.lifecycle().phase() == Phase::Passed;
                has_passed && (unclaimed || machine.policy().has_idempotency_key)
            })
    }

    /// Returns true if the store has a claim by which a retry at another replica finds the stream.
    pub(in crate::event_log) fn has_claim(&self) -> bool {
        let entries = sync::lock(self.registrations);
        entries.iter().any(|entry| entry.claim().is_some())
    }

    /// Leaves the claims in the store when this process drops the stream.
    pub(in crate::event_log) fn leave_claims(&self) {
        let entries = sync::lock(self.registrations);
        for claim in entries.iter().filter_map(Registration::claim) {
            claim.leave();
        }
    }
}
