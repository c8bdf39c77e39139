//! Sharing of a session: whether other replicas may serve it too.
//!
//! Owned here: the state of one session, and its changes. Invariant: a call that begins while this
//! replica is the only one is in the session's list of streams before the state changes. Absent:
//! the messages between replicas, and the claims (`recovery/claims.rs`).

use std::sync::RwLock;
use std::time::Instant;

use crate::event_log::backing::Term;
use crate::sync;

/// State of one session towards other replicas.
#[derive(Debug, Default)]
pub(super) struct Sharing(RwLock<State>);

/// Message to the other replicas that serve a session, that this one does, while it is under way.
#[derive(Clone, Copy, Debug)]
pub struct Announcement {
    /// Term in which it began, or `None` if this replica may have been declared dead: it is
    /// repeated then.
    pub(super) term: Option<Term>,
    /// Time until which replicas that begin to serve the session find this one.
    pub(super) until: Instant,
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    /// Term in whose lease, and time until which, all other replicas that serve the session know
    /// that this one does, and those that begin to serve it find that out. A loss in the store
    /// changes nothing: this replica registers again before another can be the only one.
    announced: Option<(Term, Instant)>,
    sole: Sole,
}

/// Knowledge of whether this replica is the only one that serves the session.
#[derive(Clone, Copy, Debug, Default)]
enum Sole {
    /// Not known.
    #[default]
    Unknown,
    /// This replica opened the session, and is the only one in the term in which it is announced.
    Yes,
    /// Another replica may serve the session too.
    Never,
}

impl State {
    fn is_announced(&self, term: Option<Term>, now: Instant) -> bool {
        let is_of_lease = |of: Term| term.is_some_and(|term| of.has_lease_of(term));
        self.announced.is_some_and(|(of, until)| is_of_lease(of) && now < until)
    }
}

impl Sharing {
    /// Notes that this replica is the only one in `term`, until `until`, unless another has joined.
    pub(super) fn note_sole(&self, term: Term, until: Instant) {
        let mut state = sync::write(&self.0);
        if matches!(*state, State { announced: None, sole: Sole::Unknown }) {
            // It is told of each other replica that joins.
            *state = State { announced: Some((term, until)), sole: Sole::Yes };
        }
    }

    /// Calls `begin` if this replica is the only one. Another replica joins after that.
    pub(super) fn begin_as_sole<R>(&self, term: Option<Term>, now: Instant, begin: impl FnOnce() -> R) -> Option<R> {
        let state = sync::read(&self.0);
        match (state.sole, state.announced) {
            (Sole::Yes, Some((of, until))) if Some(of) == term && now < until => Some(begin()),
            (Sole::Unknown | Sole::Yes | Sole::Never, Some(_) | None) => None,
        }
    }

    /// Returns whether the other replicas know, in the lease of `term`, that this one serves the
    /// session. If not, they must be told before it runs a call.
    pub(super) fn is_announced(&self, term: Option<Term>, now: Instant) -> bool {
        sync::read(&self.0).is_announced(term, now)
    }

    /// Notes that the other replicas were told, and that those which begin to serve the session
    /// find this one.
    pub(super) fn note_announced(&self, announcement: Announcement) {
        let Announcement { term, until } = announcement;
        *sync::write(&self.0) = State { announced: term.map(|term| (term, until)), sole: Sole::Never };
    }

    /// Notes that another replica joins the session, or that its record goes. Waits for the calls
    /// that are about to begin; from then on this replica is never the only one.
    pub(super) fn share(&self) {
        sync::write(&self.0).sole = Sole::Never;
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
        let later = now + Duration::from_secs(1);
        let is_sole = |term, now| sharing.begin_as_sole(term, now, || ()).is_some();
        let first = Some(term(&lease_health));
        assert!(!sharing.is_announced(first, now) && !is_sole(first, now));
        sharing.note_sole(term(&lease_health), later);
        assert!(sharing.is_announced(first, now) && is_sole(first, now));
        assert!(!is_sole(None, now), "the store is away");
        assert!(!is_sole(first, later) && !sharing.is_announced(first, later));
        let after_loss = Some(Term::new(1, &lease_health));
        assert!(!is_sole(after_loss, now) && sharing.is_announced(after_loss, now));
        lease_health.note_acquired();
        let second = Some(term(&lease_health));
        assert!(!is_sole(second, now), "another replica may have joined unheard");
        assert!(!sharing.is_announced(second, now), "the others may have forgotten this one");
        sharing.share();
        sharing.note_sole(term(&lease_health), later);
        assert!(sharing.is_announced(first, now) && !is_sole(first, now) && !is_sole(second, now));
    }

    #[test]
    fn a_replica_that_another_has_told_still_tells_the_others() {
        let (sharing, term, now) = (Sharing::default(), term(&LeaseHealth::default()), clock::now());
        sharing.share();
        assert!(!sharing.is_announced(Some(term), now));
        let until = now + Duration::from_secs(1);
        sharing.note_sole(term, until);
        let is_sole = sharing.begin_as_sole(Some(term), now, || ()).is_some();
        assert!(
            !sharing.is_announced(Some(term), now) && !is_sole,
            "the members were read before the other replica was one"
        );
        sharing.note_announced(Announcement { term: None, until });
        assert!(!sharing.is_announced(Some(term), now) && !sharing.is_announced(None, now), "it had no lease");
        sharing.note_announced(Announcement { term: Some(term), until });
        assert!(sharing.is_announced(Some(term), now) && !sharing.is_announced(Some(term), until));
    }
}
