//! Sharing of a session: whether other replicas may serve it too.
//!
//! Owned here: the state of one session, and its changes. Invariant: a call that begins while this replica is the only one is in the
//! session's list of streams before the state changes. Absent: the messages between replicas, and the claims (`recovery/claims.rs`).

use std::sync::RwLock;
use std::time::Instant;

use crate::event_log::backing::Term;
use crate::sync;

/// State of one session towards other replicas.
#[derive(Debug, Default)]
pub(super) struct Sharing(RwLock<State>);

#[derive(Clone, Copy, Debug, Default)]
enum State {
    /// The other replicas were not told that this one serves the session.
    #[default]
    Unannounced,
    /// This replica opened the session, and is the only one that serves it, in this term and until this time.
    Sole(Term, Instant),
    /// Every replica that serves the session claims each call in it.
    Shared,
}

impl Sharing {
    /// Notes that this replica is the only one in `term`, until `until`, unless another has joined.
    pub(super) fn note_sole(&self, term: Term, until: Instant) {
        let mut state = sync::write(&self.0);
        if matches!(*state, State::Unannounced) {
            *state = State::Sole(term, until);
        }
    }

    /// Calls `begin` if this replica is the only one. Another replica joins after that.
    pub(super) fn begin_as_sole<R>(&self, term: Option<Term>, now: Instant, begin: impl FnOnce() -> R) -> Option<R> {
        let state = sync::read(&self.0);
        match *state {
            State::Sole(of, until) if Some(of) == term && now < until => Some(begin()),
            State::Unannounced | State::Sole(..) | State::Shared => None,
        }
    }

    /// Returns whether the other replicas must be told before this one runs a call.
    pub(super) fn is_unannounced(&self) -> bool {
        matches!(*sync::read(&self.0), State::Unannounced)
    }

    /// Notes that the other replicas were told.
    pub(super) fn note_announced(&self) {
        *sync::write(&self.0) = State::Shared;
    }

    /// Notes that another replica joins the session. Waits for the calls that are about to begin.
    pub(super) fn share(&self) {
        let mut state = sync::write(&self.0);
        if matches!(*state, State::Sole(..)) {
            *state = State::Shared;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::clock;
    use crate::event_log::backing::lease_health::LeaseHealth;

    fn term(lease_health: &LeaseHealth) -> Term {
        Term::new(0, lease_health)
    }

    #[tokio::test(start_paused = true)]
    async fn a_replica_is_the_only_one_for_a_term_until_another_joins() {
        let lease_health = LeaseHealth::default();
        let (sharing, now) = (Sharing::default(), clock::now());
        let is_sole = |term, now| sharing.begin_as_sole(term, now, || ()).is_some();
        let first = term(&lease_health);
        assert!(sharing.is_unannounced() && !is_sole(Some(first), now));
        sharing.note_sole(first, now + Duration::from_secs(1));
        assert!(!sharing.is_unannounced() && is_sole(Some(first), now));
        assert!(!is_sole(None, now), "the store is away");
        assert!(!is_sole(Some(first), now + Duration::from_secs(1)));
        lease_health.note_acquired();
        assert!(!is_sole(Some(term(&lease_health)), now), "another replica may have joined unheard");
        sharing.share();
        sharing.note_sole(first, now + Duration::from_secs(1));
        assert!(!sharing.is_unannounced() && !is_sole(Some(first), now));
    }

    #[test]
    fn a_replica_that_another_has_told_still_tells_the_others() {
        let sharing = Sharing::default();
        sharing.share();
        assert!(sharing.is_unannounced());
        sharing.note_announced();
        assert!(!sharing.is_unannounced());
    }
}
