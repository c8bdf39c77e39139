//! Registration of this replica for a session. By it the other replicas find the calls of the
//! session here.
//!
//! Owned here: the lifetimes of registrations, and the knowledge of their state in the store. A
//! registration belongs to a session and not to a record. Sessions that a replica has opened are
//! registered apart from the others, so no record of an unknown session shortens a registration.
//! Invariant: a registration counts only in the term of its write. After that, other replicas or
//! the store may have lost it. Absent: the requests to the store (`replicas/sessions.rs`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::clock;
use crate::event_log::backing::Term;
use crate::event_log::sessions::Sessions;
use crate::event_log::sessions::session::{Registration, Session};
use crate::protocol::headers::SessionId;

/// Lifetime of the record of a session in the store, and of the registration of a replica for a
/// session that a replica has opened. A client without a record is served as if its `initialize`
/// had not passed here.
pub(in crate::event_log) const REGISTRATION: Duration = Duration::from_secs(24 * 3600);
/// Lifetime of a registration for a session without a known opener. An invented session costs the
/// store a small record for this time.
const REGISTRATION_UNOPENED: Duration = Duration::from_secs(600);

impl Session {
    /// Returns whether this replica is registered for the session, so that other replicas find it
    /// by the session.
    pub(in crate::event_log) fn is_registered(&self) -> bool {
        self.is_home || self.lock().registration.is_some()
    }

    /// Returns the lifetime of a registration of this replica for the session. Any client can
    /// invent an unopened session.
    pub(in crate::event_log) fn registration_time(&self) -> Duration {
        if self.opened.is_some() { REGISTRATION } else { REGISTRATION_UNOPENED }
    }

    /// Returns whether this replica is to register itself, now or again, for a session that it did
    /// not open. Notes the beginning of the registration.
    pub fn begin_registration(&self) -> bool {
        if self.is_home {
            return false;
        }
        let (now, lifetime) = (clock::now(), self.registration_time());
        let mut state = self.lock();
        let is_due = state.registration.is_none_or(|registration| registration.until <= now + lifetime / 2);
        if is_due {
            state.registration = Some(Registration { until: now + lifetime, term: None });
        }
        is_due
    }

    /// Returns whether the store is known to have this replica's registration in the present
    /// `term`, for half of its lifetime at least.
    fn has_registration(&self, term: Term) -> bool {
        let later = clock::now() + self.registration_time() / 2;
        let is_valid = |known: Registration| known.term == Some(term) && known.until > later;
        self.lock().registration.is_some_and(is_valid)
    }

    /// Notes that the store has this replica's registration, which was written after `began`, in
    /// `term`.
    pub(in crate::event_log) fn note_registered(&self, term: Option<Term>, began: Instant) {
        let until = began + self.registration_time();
        self.lock().registration = Some(Registration { until, term });
    }
}

impl Sessions {
    /// Returns the sessions with a registration of this replica.
    pub(in crate::event_log) fn registered(&self) -> Vec<(SessionId, Arc<Session>)> {
        let registered = self.sessions.iter().filter(|entry| entry.is_registered());
        registered.map(|entry| (entry.key().0.clone(), entry.value().clone())).collect()
    }

    /// Returns whether `session` is still the record of its session.
    pub(in crate::event_log) fn has(&self, id: &SessionId, session: &Arc<Session>) -> bool {
        self.sessions.get(&(id.clone(), session.principal)).is_some_and(|entry| Arc::ptr_eq(entry.value(), session))
    }

    /// Notes that all registrations of this replica are to be renewed at once, because it has
    /// acquired a lease. The other replicas may have forgotten them. Several notes before the
    /// renewal begins count as one.
    pub fn note_renewal_due(&self) {
        self.renewal_due.notify_one();
    }

    /// Returns once the registrations are to be renewed at once. For one waiter.
    pub(in crate::event_log) async fn renewal_due(&self) {
        self.renewal_due.notified().await;
    }

    /// Returns the sessions whose registration of this replica must be written in `term`: again, or
    /// after a failed write.
    pub(in crate::event_log) fn due_registrations(&self, term: Term) -> Vec<(SessionId, Arc<Session>)> {
        let mut due = self.registered();
        due.retain(|(_, session)| !session.has_registration(term));
        due
    }
}
