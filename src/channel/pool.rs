//! Bounds of the servers that run at once, and of their starts.
//!
//! Absent: the bounds of sessions without a process of their own (`upstream/bridge/sessions.rs`).
//! They open at once and at any rate, so they need no queue of starts.

use std::time::{Duration, Instant};

use crate::event_log::QuotaKey;

/// Period of `upstream.starts_per_minute`.
const MINUTE: Duration = Duration::from_secs(60);
/// First and longest back-off after failed starts. The back-off doubles in between.
const FIRST_BACKOFF: Duration = Duration::from_secs(1);
const LAST_BACKOFF: Duration = Duration::from_secs(30);

/// Configured bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Most servers at once; at least 1.
    pub servers: usize,
    /// Most servers of one caller at once; at least 1.
    pub servers_per_caller: usize,
    /// Starts per minute, and the burst after a minute without a start; at least 1. `None` for no
    /// limit.
    pub starts_per_minute: Option<usize>,
    /// Most starts at the same time, after the first; at least 1.
    pub starts_at_once: usize,
    /// Longest time that the first start of the program runs alone.
    pub first_alone: Duration,
    /// Apply `servers_per_caller` to callers known only by their address. False on a listener for
    /// this machine alone, where all such callers are one person.
    pub bounds_addresses: bool,
    /// Allow ending an unused server to make room. False if its session could not be opened again.
    pub may_replace: bool,
}

/// A server, as the bounds see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Occupant {
    /// Number of the server, or `None` while it has no process.
    pub(super) number: Option<u64>,
    pub(super) caller: Option<QuotaKey>,
    /// Time of the last message for the server, or of the last `initialize` that wanted it. `None`
    /// while it has a call, or while it starts for a waiting client.
    pub(super) unused_since: Option<Instant>,
}

/// Decision on a start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// The start may begin.
    Start,
    /// The start may begin in place of this server, which the caller must end.
    InPlaceOf(u64),
    /// No room before this time, because of this bound.
    WaitUntil(Instant, Bound),
    /// No room until any of the running starts ends.
    WaitForStart,
    /// No room until a server of the caller ends or becomes idle.
    WaitForOwn,
    /// No room until any server ends or becomes idle.
    WaitForEnd,
}

/// A bound that a start waits for until a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bound {
    /// `upstream.starts_per_minute`.
    Rate,
    /// The pause after failed starts.
    Backoff,
    /// The first start of the program, which runs alone.
    FirstStart,
}

impl Admission {
    /// Returns the bound that a start waits for, in words for the log.
    pub(super) fn bound(self) -> &'static str {
        match self {
            Self::WaitUntil(_, Bound::Rate) => "upstream.starts_per_minute",
            Self::WaitUntil(_, Bound::Backoff) => "the pause after a failed start",
            Self::WaitUntil(_, Bound::FirstStart) => "the first start of the program, which runs alone",
            Self::WaitForStart => "the number of starts at the same time",
            Self::WaitForOwn => "upstream.max_children_per_principal",
            Self::WaitForEnd => "upstream.max_children",
            Self::Start | Self::InPlaceOf(_) => "earlier starts",
        }
    }
}

/// Shortest time without use before a server may be ended to make room. A client that has just
/// opened its session will use it soon.
const SETTLED: Duration = Duration::from_secs(2);

/// The rate of starts, and the back-off after failed starts.
#[derive(Clone, Debug, Default)]
pub(super) struct StartRate {
    /// Instant when the whole burst is available again.
    free_at: Option<Instant>,
    backoff: Option<Duration>,
    not_before: Option<Instant>,
}

impl StartRate {
    /// Decides on a start for `caller` beside the running servers. An admitted start counts at
    /// once.
    pub(super) fn admit(
        &mut self,
        bounds: &Bounds,
        servers: &[Occupant],
        caller: Option<&QuotaKey>,
        now: Instant,
    ) -> Admission {
        let victim = match () {
            () if is_at_own_limit(bounds, servers, caller) => match longest_unused(own(servers, caller), bounds, now) {
                Some(victim) => Some(victim),
                None => return Admission::WaitForOwn,
            },
            () if servers.len() >= bounds.servers => match longest_unused(servers.iter(), bounds, now) {
                Some(victim) => Some(victim),
                None => return Admission::WaitForEnd,
            },
            () => None,
        };
        if let Some(until) = self.not_before.filter(|&until| until > now) {
            return Admission::WaitUntil(until, Bound::Backoff);
        }
        let admitted = victim.map_or(Admission::Start, Admission::InPlaceOf);
        let Some(per_minute) = bounds.starts_per_minute else { return admitted };
        let interval = MINUTE / u32::try_from(per_minute).unwrap_or(u32::MAX);
        let free_at = self.free_at.map_or(now, |free_at| free_at.max(now)) + interval;
        // The burst is the number of starts per minute.
        if let Some(until) = free_at.checked_sub(MINUTE).filter(|&until| until > now) {
            return Admission::WaitUntil(until, Bound::Rate);
        }
        self.free_at = Some(free_at);
        admitted
    }

    /// Records the outcome of a start. A failed start delays the next one.
    pub(super) fn record_outcome(&mut self, has_failed: bool, now: Instant) {
        if !has_failed {
            (self.backoff, self.not_before) = (None, None);
            return;
        }
        // Concurrent starts fail together, and count as one failure.
        if self.not_before.is_some_and(|until| until > now) {
            return;
        }
        let backoff = self.backoff.map_or(FIRST_BACKOFF, |last| (last * 2).min(LAST_BACKOFF));
        (self.backoff, self.not_before) = (Some(backoff), Some(now + backoff));
    }

    /// Returns true if the last start failed, for a minute. A balancer sends nothing meanwhile, and
    /// must try again after that.
    pub(super) fn is_failing(&self, now: Instant) -> bool {
        self.not_before.is_some_and(|until| now.saturating_duration_since(until) < MINUTE)
    }
}

/// Returns true if a start for `caller` must wait until a server of that caller ends or becomes
/// idle.
pub(super) fn must_wait_for_own(
    bounds: &Bounds,
    servers: &[Occupant],
    caller: Option<&QuotaKey>,
    now: Instant,
) -> bool {
    is_at_own_limit(bounds, servers, caller) && longest_unused(own(servers, caller), bounds, now).is_none()
}

fn is_at_own_limit(bounds: &Bounds, servers: &[Occupant], caller: Option<&QuotaKey>) -> bool {
    let has_own_bound = caller.is_some_and(|caller| bounds.bounds_addresses || !is_address(caller));
    has_own_bound && own(servers, caller).count() >= bounds.servers_per_caller
}

fn own<'a>(servers: &'a [Occupant], caller: Option<&'a QuotaKey>) -> impl Iterator<Item = &'a Occupant> {
    servers.iter().filter(move |server| server.caller.as_ref() == caller)
}

fn is_address(caller: &QuotaKey) -> bool {
    match caller {
        QuotaKey::Peer(_) => true,
        QuotaKey::Known(_) | QuotaKey::Session(_) => false,
    }
}

/// Returns the server that is unused for longest, if any server may be ended.
fn longest_unused<'a>(servers: impl Iterator<Item = &'a Occupant>, bounds: &Bounds, now: Instant) -> Option<u64> {
    let unused = servers.filter_map(|server| Some((server.unused_since?, server.number?)));
    let settled = unused.filter(|(since, _)| now.saturating_duration_since(*since) >= SETTLED);
    if bounds.may_replace { settled.min().map(|(_, number)| number) } else { None }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;
    use crate::clock;

    const BOUNDS: Bounds = Bounds {
        servers: 3,
        servers_per_caller: 2,
        starts_per_minute: Some(4),
        starts_at_once: 4,
        first_alone: Duration::from_secs(10),
        bounds_addresses: true,
        may_replace: true,
    };

    fn caller(n: u8) -> QuotaKey {
        QuotaKey::Known([n; 16])
    }

    fn server(number: u64, of: u8, unused_since: Option<Instant>) -> Occupant {
        Occupant { number: Some(number), caller: Some(caller(of)), unused_since }
    }

    #[test]
    fn the_server_that_is_idle_longest_makes_room() {
        let now = clock::now();
        let later = now + Duration::from_secs(5);
        let mut rate = StartRate::default();
        let servers = [server(1, 1, Some(later)), server(2, 1, Some(now)), server(3, 2, None)];
        assert_eq!(rate.admit(&BOUNDS, &servers, Some(&caller(1)), later), Admission::InPlaceOf(2), "its own");
        assert_eq!(rate.admit(&BOUNDS, &servers, Some(&caller(3)), later), Admission::InPlaceOf(2), "any");
        assert_eq!(rate.admit(&BOUNDS, &servers[..2], Some(&caller(3)), later), Admission::Start);
        let busy = [server(1, 1, None), server(2, 1, None), server(3, 2, None)];
        assert_eq!(rate.admit(&BOUNDS, &busy, Some(&caller(1)), later), Admission::WaitForOwn);
        assert_eq!(rate.admit(&BOUNDS, &busy, Some(&caller(3)), later), Admission::WaitForEnd);
    }

    #[test]
    fn a_server_that_was_just_used_makes_no_room() {
        let now = clock::now();
        let servers = [server(1, 1, Some(now)), server(2, 1, None)];
        let mut rate = StartRate::default();
        let mut admit = |after| rate.admit(&BOUNDS, &servers, Some(&caller(1)), now + after);
        assert_eq!(admit(SETTLED - Duration::from_millis(1)), Admission::WaitForOwn);
        assert_eq!(admit(SETTLED), Admission::InPlaceOf(1));
    }

    #[test]
    fn no_server_is_ended_whose_session_cannot_be_opened_again() {
        let now = clock::now();
        let bounds = Bounds { may_replace: false, ..BOUNDS };
        let servers = [server(1, 1, Some(now)), server(2, 1, Some(now)), server(3, 2, Some(now))];
        let mut rate = StartRate::default();
        assert_eq!(rate.admit(&bounds, &servers, Some(&caller(1)), now), Admission::WaitForOwn);
        assert_eq!(rate.admit(&bounds, &servers, Some(&caller(3)), now), Admission::WaitForEnd);
    }

    #[test]
    fn callers_at_an_address_share_a_bound_unless_the_listener_is_local() {
        let now = clock::now();
        let here = QuotaKey::Peer(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let busy = |number| Occupant { number: Some(number), caller: Some(here.clone()), unused_since: None };
        let local = Bounds { bounds_addresses: false, ..BOUNDS };
        let mut rate = StartRate::default();
        assert_eq!(rate.admit(&BOUNDS, &[busy(1), busy(2)], Some(&here), now), Admission::WaitForOwn);
        assert_eq!(rate.admit(&local, &[busy(1), busy(2)], Some(&here), now), Admission::Start);
        assert_eq!(rate.admit(&local, &[busy(1), busy(2), busy(3)], Some(&here), now), Admission::WaitForEnd);
    }

    #[test]
    fn starts_have_a_rate_and_a_burst() {
        let now = clock::now();
        let mut rate = StartRate::default();
        let mut admit = |at| rate.admit(&BOUNDS, &[], Some(&caller(1)), at);
        for second in 0..4 {
            assert_eq!(admit(now + Duration::from_secs(second)), Admission::Start);
        }
        let at = |seconds| now + Duration::from_secs(seconds);
        assert_eq!(admit(at(5)), Admission::WaitUntil(at(15), Bound::Rate));
        assert_eq!(admit(at(15)), Admission::Start);
        assert_eq!(admit(at(15)), Admission::WaitUntil(at(30), Bound::Rate));
        for _ in 0..4 {
            assert_eq!(admit(at(90)), Admission::Start);
        }
        assert_eq!(admit(at(90)), Admission::WaitUntil(at(105), Bound::Rate));
    }

    #[test]
    fn starts_without_a_rate_begin_at_once() {
        let now = clock::now();
        let bounds = Bounds { starts_per_minute: None, ..BOUNDS };
        let mut rate = StartRate::default();
        for _ in 0..100 {
            assert_eq!(rate.admit(&bounds, &[], Some(&caller(1)), now), Admission::Start);
        }
    }

    #[test]
    fn the_wait_after_failed_starts_doubles() {
        let mut now = clock::now();
        let mut rate = StartRate::default();
        assert!(!rate.is_failing(now));
        for seconds in [1, 2, 4, 8, 16, 30, 30] {
            rate.record_outcome(true, now);
            rate.record_outcome(true, now);
            let until = now + Duration::from_secs(seconds);
            assert_eq!(
                rate.admit(&BOUNDS, &[], None, now),
                Admission::WaitUntil(until, Bound::Backoff),
                "once for two at once"
            );
            assert!(rate.is_failing(until) && !rate.is_failing(until + MINUTE));
            now = until;
        }
        rate.record_outcome(false, now);
        assert_eq!(rate.admit(&BOUNDS, &[], None, now), Admission::Start);
        assert!(!rate.is_failing(now));
    }
}
