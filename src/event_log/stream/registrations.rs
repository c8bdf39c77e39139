//! By what the POST that began a stream is known when it comes again, here and at other replicas.

use std::time::Instant;

use crate::event_log::backing::claim::ClaimGuard;
use crate::event_log::retry_index::Registration;
use crate::event_log::stream::Stream;
use crate::event_log::stream::response_head::Head;
use crate::sync;
use std::time::Duration;

/// How long a POST that looks like a retry waits for the first call's client to be gone.
const DETACH_WAIT: Duration = Duration::from_millis(200);

impl Stream {
    /// Returns whether a POST of the same fingerprint is a retry. An idempotency key makes it one for as long as the stream lives; the
    /// same request id and body do so until the answer was delivered, whether or not the first call's client is still attached: a
    /// connection that is half open counts as attached, and a request id is used once in a session. A call that ended before its bytes
    /// went upstream is none to come back to.
    pub fn may_return(&self, keyed: bool) -> bool {
        let has_arrived = self.has_arrived();
        self.look(|machine| {
            let never_ran = machine.is_sealed() && !self.is_sent();
            !machine.is_cancelled() && !never_ran && (keyed || !has_arrived)
        })
    }

    /// Waits a moment for the first call's client to leave. A retry is often faster than the end of the connection it replaces, and a
    /// takeover before the response head makes the proxy commit.
    pub async fn wait_for_detach(&self) {
        if !self.look(|machine| machine.is_delivered()) {
            // A connection that is half open stays: it is taken over.
            let _ = tokio::time::timeout(DETACH_WAIT, self.detached()).await;
        }
    }

    /// Keeps an entry of the index of retries for as long as the stream lives.
    pub fn keep_registration(&self, registration: Registration<Stream>) {
        let mut entries = sync::lock(&self.registrations);
        // Most streams have one.
        entries.reserve_exact(1);
        entries.push(registration);
    }

    /// No retry finds it any more.
    pub fn forget_retries(&self) {
        let entries = std::mem::take(&mut *sync::lock(&self.registrations));
        drop(entries);
    }

    /// Whether a retry can still find it.
    pub fn has_retries(&self) -> bool {
        !sync::lock(&self.registrations).is_empty()
    }

    /// Gives up an answer that still comes from the upstream and that no connection waits for: the upstream is not to wait either.
    pub fn drop_unread_answer(&self) {
        let inner = self.lock();
        if let Head::Plain(plain) = &inner.head
            && !inner.machine.reader().is_attached()
        {
            drop(plain.take_passing());
        }
    }

    /// Returns whether the store has a record by which a retry can find it elsewhere.
    pub(in crate::event_log) fn has_claim(&self) -> bool {
        let entries = sync::lock(&self.registrations);
        entries.iter().any(|entry| entry.hold().is_some())
    }

    /// Other replicas go on finding it, where they are to.
    pub(in crate::event_log) fn extend_claims(&self, now: Instant) {
        let entries = sync::lock(&self.registrations);
        entries.iter().filter_map(Registration::hold).for_each(|hold| hold.extend_if_due(now));
    }

    /// The same where the store has lost what told of it.
    pub(in crate::event_log) fn rewrite_claims(&self) {
        let entries = sync::lock(&self.registrations);
        entries.iter().filter_map(Registration::hold).for_each(ClaimGuard::rewrite);
    }

    /// They stay there when it goes here.
    pub(in crate::event_log) fn leave_claims(&self) {
        let entries = sync::lock(&self.registrations);
        entries.iter().filter_map(Registration::hold).for_each(ClaimGuard::leave);
    }
}
