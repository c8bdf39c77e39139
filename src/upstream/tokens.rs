//! Which tokens speak for one subject, as far as the upstream's answers tell.
//!
//! Owned here: by subject, the principals whose calls the upstream accepted while they claimed it, which is where to look for
//! what a refreshed token's caller began with an older one; and for a short while, what a probe showed of a token. The first
//! is a hint and grants nothing; the second does. Of many requests with one token, one asks at a time. Absent: the probe, and
//! whose a stream is.

use std::time::{Duration, Instant};

use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use tokio::sync::watch;

use crate::event_log::{Principal, Subject};

/// What a probe showed of a token is believed for so long.
const SHOWN: Duration = Duration::from_secs(60);
/// When room is needed, a subject whose tokens were accepted no later than this ago makes it.
const RECENT: Duration = Duration::from_secs(3600);
/// Subjects beyond this are not remembered: their refreshed tokens are other callers'.
const MAX_SUBJECTS: usize = 65_536;
/// Of one subject, so many principals, the latest: a few clients with a few tokens each.
const MAX_PRINCIPALS: usize = 8;
/// Probes beyond this are not remembered, and made again.
const MAX_SHOWN: usize = 16_384;

/// What is known of tokens.
#[derive(Debug, Default)]
pub struct Tokens {
    accepted: DashMap<Subject, Vec<(Principal, Instant)>>,
    shown: DashMap<Principal, (bool, Instant)>,
    /// The tokens that the upstream is being asked about: as many as there are requests at most.
    asking: DashMap<Principal, watch::Receiver<()>>,
}

/// A question about a token that is under way. Dropped, it is over, and those who wait for it go on.
pub struct Asking<'a> {
    tokens: &'a Tokens,
    principal: Principal,
    over: watch::Sender<()>,
}

impl Asking<'_> {
    /// There was no answer that says anything: whoever waits need not ask as well.
    pub fn end_unanswered(self) {
        self.over.send_replace(());
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.tokens.asking.remove(&self.principal);
    }
}

/// Another request's question about the same token.
pub struct Waiting(watch::Receiver<()>);

impl Waiting {
    /// Waits until it is over; whether it was answered, or given up by a client that left.
    pub async fn is_answered(mut self) -> bool {
        self.0.changed().await.is_err()
    }
}

impl Tokens {
    /// The upstream answered 2xx to `principal`, whose token claims `subject`.
    pub fn note_accepted(&self, subject: Subject, principal: Principal, now: Instant) {
        if self.accepted.len() >= MAX_SUBJECTS && !self.accepted.contains_key(&subject) {
            let is_recent = |at: Instant| now.saturating_duration_since(at) < RECENT;
            self.accepted.retain(|_, principals| principals.iter().any(|(_, at)| is_recent(*at)));
            if self.accepted.len() >= MAX_SUBJECTS {
                return;
            }
        }
        let mut principals = self.accepted.entry(subject).or_default();
        principals.retain(|(known, _)| *known != principal);
        if principals.len() == MAX_PRINCIPALS {
            principals.remove(0);
        }
        principals.push((principal, now));
    }

    /// The other principals that were accepted under this claim, the latest first.
    pub fn others(&self, subject: &Subject, than: &Principal) -> Vec<Principal> {
        let Some(principals) = self.accepted.get(subject) else { return Vec::new() };
        principals.iter().rev().map(|(principal, _)| *principal).filter(|principal| principal != than).collect()
    }

    /// A probe showed whether the token of `principal` is what it claims to be.
    pub fn note_shown(&self, principal: Principal, is_genuine: bool, now: Instant) {
        if self.shown.len() >= MAX_SHOWN {
            self.shown.retain(|_, (_, at)| now.saturating_duration_since(*at) < SHOWN);
        }
        if self.shown.len() < MAX_SHOWN {
            self.shown.insert(principal, (is_genuine, now));
        }
    }

    /// What one showed lately.
    pub fn shown(&self, principal: &Principal, now: Instant) -> Option<bool> {
        let shown = self.shown.get(principal)?;
        let (is_genuine, at) = *shown;
        (now.saturating_duration_since(at) < SHOWN).then_some(is_genuine)
    }

    /// The turn to ask about the token of `principal`, unless somebody is at it.
    pub fn ask(&self, principal: Principal) -> Result<Asking<'_>, Waiting> {
        match self.asking.entry(principal) {
            Entry::Occupied(theirs) => Err(Waiting(theirs.get().clone())),
            Entry::Vacant(vacant) => {
                let (over, waiting) = watch::channel(());
                vacant.insert(waiting);
                Ok(Asking { tokens: self, principal, over })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    fn principal(number: u8) -> Principal {
        Principal::Known([number; 16])
    }

    #[test]
    fn the_others_of_a_subject_are_the_latest_few() {
        let tokens = Tokens::default();
        let now = clock::now();
        let (one, two) = (Subject::from_hash([1; 16]), Subject::from_hash([2; 16]));
        for number in 0..=MAX_PRINCIPALS as u8 {
            tokens.note_accepted(one, principal(number), now);
        }
        tokens.note_accepted(one, principal(1), now);
        tokens.note_accepted(two, principal(100), now);
        let expected: Vec<_> = [1, 8, 7, 6, 5, 4, 3].map(principal).into();
        assert_eq!(tokens.others(&one, &principal(2)), expected, "0 went for 8, 1 came again");
        assert_eq!(tokens.others(&two, &principal(100)), []);
    }

    #[test]
    fn subjects_are_bounded_and_old_ones_make_room() {
        let tokens = Tokens::default();
        let now = clock::now();
        let subject = |number: usize| Subject::from_hash((number as u128).to_be_bytes());
        for number in 0..MAX_SUBJECTS {
            tokens.note_accepted(subject(number), principal(1), now);
        }
        let late = subject(MAX_SUBJECTS);
        tokens.note_accepted(late, principal(1), now);
        assert_eq!((tokens.accepted.len(), tokens.others(&late, &principal(2)).len()), (MAX_SUBJECTS, 0));
        tokens.note_accepted(subject(0), principal(1), now + RECENT);
        tokens.note_accepted(late, principal(1), now + RECENT);
        assert_eq!(tokens.accepted.len(), 2);
    }

    #[test]
    fn a_probe_is_believed_for_a_while() {
        let tokens = Tokens::default();
        let now = clock::now();
        tokens.note_shown(principal(1), true, now);
        tokens.note_shown(principal(2), false, now);
        let just_before = now + SHOWN - Duration::from_nanos(1);
        assert_eq!(tokens.shown(&principal(1), just_before), Some(true));
        assert_eq!(tokens.shown(&principal(2), just_before), Some(false));
        assert_eq!(tokens.shown(&principal(1), now + SHOWN), None);
        assert_eq!(tokens.shown(&principal(3), now), None);
    }

    #[test]
    fn probes_are_bounded_and_old_ones_make_room() {
        let tokens = Tokens::default();
        let now = clock::now();
        let number = |number: usize| Principal::Known((number as u128).to_be_bytes());
        (0..=MAX_SHOWN).for_each(|at| tokens.note_shown(number(at), true, now));
        assert_eq!((tokens.shown.len(), tokens.shown(&number(MAX_SHOWN), now)), (MAX_SHOWN, None));
        tokens.note_shown(number(MAX_SHOWN), true, now + SHOWN);
        assert_eq!(tokens.shown.len(), 1);
    }
}
