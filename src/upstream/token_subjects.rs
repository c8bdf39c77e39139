//! Tokens of one subject, as the upstream's responses show them.
//!
//! Owned here, for each subject: the principals whose calls the upstream accepted while they
//! claimed it. They help to find calls that the caller began with a previous token, and grant
//! nothing. Also owned, for a short while: the results of probes of a token in a session, which do
//! grant access. Of concurrent requests with one token, a single one probes at a time. Absent: the
//! probe, and the ownership of streams.

use std::time::{Duration, Instant};

use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use tokio::sync::watch;

use crate::event_log::{Principal, Subject};
use crate::eviction::evict_if_full;
use crate::protocol::headers::SessionId;

/// Validity of a probe's result.
const PROBED_FOR: Duration = Duration::from_secs(60);
/// Maximum number of remembered subjects. The subjects with the oldest acceptance are evicted
/// first: their refreshed tokens then count as tokens of other callers.
const MAX_SUBJECTS: usize = 65_536;
/// Maximum number of principals of one subject: a few clients with a few tokens each. The latest
/// are kept.
const MAX_PRINCIPALS: usize = 8;
/// Maximum number of remembered probes. The oldest are evicted first, and repeated when needed.
const MAX_PROBED: usize = 16_384;

/// A token in the session of its use: a server may accept a token in one session and not in
/// another.
pub type TokenUse = (Principal, Option<SessionId>);

/// Facts about tokens.
#[derive(Debug, Default)]
pub struct TokenSubjects {
    accepted: DashMap<Subject, Vec<(Principal, Instant)>>,
    probed: DashMap<TokenUse, (bool, Instant)>,
    /// Tokens that are being probed: at most one by each request.
    probing: DashMap<TokenUse, watch::Receiver<()>>,
}

/// Right to probe a token. Dropping it ends the probe and releases waiting requests.
pub struct ProbeGuard<'a> {
    tokens: &'a TokenSubjects,
    used: TokenUse,
    end: watch::Sender<()>,
}

impl ProbeGuard<'_> {
    /// Ends the probe without a result: waiting requests need not probe as well.
    pub fn end_inconclusive(self) {
        self.end.send_replace(());
    }
}

impl Drop for ProbeGuard<'_> {
    fn drop(&mut self) {
        self.tokens.probing.remove(&self.used);
    }
}

/// A probe of the same token by another request.
pub struct ProbeWaiter(watch::Receiver<()>);

impl ProbeWaiter {
    /// Waits for the end of the probe. Returns true if it had a result, or its client disconnected.
    pub async fn has_result(mut self) -> bool {
        self.0.changed().await.is_err()
    }
}

impl TokenSubjects {
    /// Records a 2xx for `principal`, whose token claims `subject`.
    pub fn record_accepted(&self, subject: Subject, principal: Principal, now: Instant) {
        if !self.accepted.contains_key(&subject) {
            // The last principal is the latest.
            evict_if_full(
                &self.accepted,
                MAX_SUBJECTS,
                |principals| principals.last().map_or(now, |(_, at)| *at),
                |_| {},
            );
        }
        let mut principals = self.accepted.entry(subject).or_default();
        principals.retain(|(known, _)| *known != principal);
        if principals.len() == MAX_PRINCIPALS {
            principals.remove(0);
        }
        principals.push((principal, now));
    }

    /// Returns the other principals that were accepted with this claim, the latest first.
    pub fn other_principals(&self, subject: &Subject, than: &Principal) -> Vec<Principal> {
        let Some(principals) = self.accepted.get(subject) else { return Vec::new() };
        principals.iter().rev().map(|(principal, _)| *principal).filter(|principal| principal != than).collect()
    }

    /// Records the result of a probe.
    pub fn record_probe(&self, used: TokenUse, is_genuine: bool, now: Instant) {
        if !self.probed.contains_key(&used) {
            evict_if_full(&self.probed, MAX_PROBED, |(_, at)| *at, |_| {});
        }
        self.probed.insert(used, (is_genuine, now));
    }

    /// Returns the result of a recent probe.
    pub fn probed(&self, used: &TokenUse, now: Instant) -> Option<bool> {
        let probed = self.probed.get(used)?;
        let (is_genuine, at) = *probed;
        if now.saturating_duration_since(at) < PROBED_FOR { Some(is_genuine) } else { None }
    }

    /// Begins a probe of a token, or returns a waiter for the probe in flight.
    pub fn begin_probe(&self, used: TokenUse) -> Result<ProbeGuard<'_>, ProbeWaiter> {
        match self.probing.entry(used.clone()) {
            Entry::Occupied(theirs) => Err(ProbeWaiter(theirs.get().clone())),
            Entry::Vacant(vacant) => {
                let (end, waiting) = watch::channel(());
                vacant.insert(waiting);
                Ok(ProbeGuard { tokens: self, used, end })
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
    fn a_subject_keeps_its_latest_principals() {
        let tokens = TokenSubjects::default();
        let now = clock::now();
        let (one, two) = (Subject::from([1; 16]), Subject::from([2; 16]));
        for number in 0..=MAX_PRINCIPALS as u8 {
            tokens.record_accepted(one, principal(number), now);
        }
        tokens.record_accepted(one, principal(1), now);
        tokens.record_accepted(two, principal(100), now);
        let expected: Vec<_> = [1, 8, 7, 6, 5, 4, 3].map(principal).into();
        assert_eq!(tokens.other_principals(&one, &principal(2)), expected, "0 went for 8, 1 came again");
        assert_eq!(tokens.other_principals(&two, &principal(100)), []);
    }

    #[test]
    fn subjects_are_bounded_and_the_oldest_are_evicted() {
        let tokens = TokenSubjects::default();
        let start = clock::now();
        let subject = |number: usize| Subject::from((number as u128).to_be_bytes());
        for number in 0..MAX_SUBJECTS {
            tokens.record_accepted(subject(number), principal(1), start + Duration::from_micros(number as u64));
        }
        let later = start + Duration::from_secs(1);
        tokens.record_accepted(subject(0), principal(1), later);
        let late = subject(MAX_SUBJECTS);
        tokens.record_accepted(late, principal(1), later);
        assert!(tokens.accepted.len() < MAX_SUBJECTS);
        let is_known = |subject: Subject| !tokens.other_principals(&subject, &principal(2)).is_empty();
        assert!(is_known(late) && is_known(subject(0)) && is_known(subject(MAX_SUBJECTS - 1)));
        assert!(!is_known(subject(1)), "the oldest");
    }

    /// Returns the token with this number, without a session.
    fn used(number: usize) -> TokenUse {
        (Principal::Known((number as u128).to_be_bytes()), None)
    }

    #[test]
    fn a_probe_is_valid_for_a_while_and_in_its_session() {
        let tokens = TokenSubjects::default();
        let now = clock::now();
        tokens.record_probe(used(1), true, now);
        tokens.record_probe(used(2), false, now);
        let just_before = now + PROBED_FOR - Duration::from_nanos(1);
        assert_eq!(tokens.probed(&used(1), just_before), Some(true));
        assert_eq!(tokens.probed(&used(2), just_before), Some(false));
        assert_eq!(tokens.probed(&used(1), now + PROBED_FOR), None);
        assert_eq!(tokens.probed(&used(3), now), None);
        assert_eq!(tokens.probed(&(used(1).0, SessionId::parse("s")), now), None, "a server may decide by the session");
    }

    #[test]
    fn probes_are_bounded_and_the_oldest_are_evicted() {
        let tokens = TokenSubjects::default();
        let start = clock::now();
        let at = |number: usize| start + Duration::from_micros(number as u64);
        for number in 0..=MAX_PROBED {
            tokens.record_probe(used(number), true, at(number));
        }
        assert!(tokens.probed.len() <= MAX_PROBED);
        assert_eq!(tokens.probed(&used(MAX_PROBED), at(MAX_PROBED)), Some(true), "the last one is remembered");
        assert_eq!(tokens.probed(&used(0), at(MAX_PROBED)), None, "the first one made room");
    }
}
