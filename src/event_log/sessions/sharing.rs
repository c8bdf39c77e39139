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
struct State {
    /// Time until which all other replicas that serve the session know that this one does, and those that begin to serve it find that out.
    announced_until: Option<Instant>,
    sole: Sole,
}

/// Knowledge of whether this replica is the only one that serves the session.
#[derive(Clone, Copy, Debug, Default)]
enum Sole {
    /// Not known.
    #[default]
    Unknown,
    /// This replica opened the session, and is the only one in this term and until this time.
    Until(Term, Instant),
    /// Another replica may serve the session too.
    Never,
}

impl Sharing {
    /// Notes that this replica is the only one in `term`, until `until`, unless another has joined.
    pub(super) fn note_sole(&self, term: Term, until: Instant) {
        let mut state = sync::write(&self.0);
        if matches!(*state, State { announced_until: None, sole: Sole::Unknown }) {
            state.sole = Sole::Until(term, until);
        }
    }

    /// Calls `begin` if this replica is the only one. Another replica joins after that.
    pub(super) fn begin_as_sole<R>(&self, term: Option<Term>, now: Instant, begin: impl FnOnce() -> R) -> Option<R> {
        let state = sync::read(&self.0);
        match state.sole {
            Sole::Until(of, until) if Some(of) == term && now < until => Some(begin()),
            Sole::Unknown | Sole::Until(..) | Sole::Never => None,
        }
    }

    /// Returns whether the other replicas must be told before this one runs a call.
    pub(super) fn is_unannounced(&self, now: Instant) -> bool {
        let state = sync::read(&self.0);
        state.announced_until.is_none_or(|until| until <= now) && !matches!(state.sole, Sole::Until(..))
    }

    /// Notes that the other replicas were told, and that those which begin to serve the session find this one until `until`.
    pub(super) fn note_announced(&self, until: Instant) {
        *sync::write(&self.0) = State { announced_until: Some(until), sole: Sole::Never };
    }

    /// Notes that another replica joins the session, or that its record goes. Waits for the calls that are about to begin; from then on
    /// this replica is never the only one.
    pub(super) fn share(&self) {
        let mut state = sync::write(&self.0);
        // A replica that was the only one is told of each that joins.
        if let Sole::Until(_, until) = state.sole {
            state.announced_until = Some(until);
        }
        state.sole = Sole::Never;
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
        assert!(sharing.is_unannounced(now) && !is_sole(Some(first), now));
        sharing.note_sole(first, now + Duration::from_secs(1));
        assert!(!sharing.is_unannounced(now) && is_sole(Some(first), now));
        assert!(!is_sole(None, now), "the store is away");
        assert!(!is_sole(Some(first), now + Duration::from_secs(1)));
        lease_health.note_acquired();
        assert!(!is_sole(Some(term(&lease_health)), now), "another replica may have joined unheard");
        sharing.share();
        sharing.note_sole(first, now + Duration::from_secs(1));
        assert!(!sharing.is_unannounced(now) && !is_sole(Some(first), now));
    }

    #[test]
    fn a_replica_that_another_has_told_still_tells_the_others() {
        let (sharing, term, now) = (Sharing::default(), term(&LeaseHealth::default()), clock::now());
        sharing.share();
        assert!(sharing.is_unannounced(now));
        let until = now + Duration::from_secs(1);
        sharing.note_sole(term, until);
        let is_sole = sharing.begin_as_sole(Some(term), now, || ()).is_some();
        assert!(sharing.is_unannounced(now) && !is_sole, "the members were read before the other replica was one");
        sharing.note_announced(until);
        assert!(!sharing.is_unannounced(now) && sharing.is_unannounced(until));
    }
}
