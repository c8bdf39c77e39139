//! Bounds of the servers that run at once and of their starts.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Interval in which starts are counted.
const MINUTE: Duration = Duration::from_secs(60);
/// Waits after starts that failed: the first one, and the limit to which it doubles.
const FIRST_BACKOFF: Duration = Duration::from_secs(1);
const LAST_BACKOFF: Duration = Duration::from_secs(30);

/// Bounds as configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Most servers at once; at least 1.
    pub servers: usize,
    /// Most servers of one caller at once; at least 1.
    pub servers_per_caller: usize,
    /// Most starts in any minute; at least 1.
    pub starts_per_minute: usize,
}

/// A server, as far as bounds are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Occupant {
    pub(super) number: u64,
    pub(super) caller: usize,
    /// Time of the last message for it, or `None` while it has a call or is being started.
    pub(super) idle_since: Option<Instant>,
}

/// Decision on a start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// The start may begin.
    Start,
    /// The start may begin once this server was ended.
    InPlaceOf(u64),
    /// There is no room before then.
    WaitUntil(Instant),
    /// There is no room until a server ends or becomes idle.
    WaitForEnd,
}

/// Starts of the last minute, and the wait after failed ones.
#[derive(Debug, Default)]
pub(super) struct Starts {
    began: VecDeque<Instant>,
    backoff: Option<Duration>,
    not_before: Option<Instant>,
}

impl Starts {
    /// Decides on a start for `caller` beside the servers that run. A start that is admitted counts from now on.
    pub(super) fn admit(&mut self, bounds: &Bounds, servers: &[Occupant], caller: usize, now: Instant) -> Admission {
        while self.began.front().is_some_and(|&began| now.saturating_duration_since(began) >= MINUTE) {
            self.began.pop_front();
        }
        if let Some(until) = self.not_before.filter(|&until| until > now) {
            return Admission::WaitUntil(until);
        }
        if self.began.len() >= bounds.starts_per_minute
            && let Some(&first) = self.began.front()
        {
            return Admission::WaitUntil(first + MINUTE);
        }
        let of_caller = servers.iter().filter(|server| server.caller == caller);
        let longest_idle = |servers: &mut dyn Iterator<Item = &Occupant>| {
            let idle = servers.filter_map(|server| Some((server.idle_since?, server.number)));
            idle.min().map(|(_, number)| number)
        };
        let victim = if of_caller.clone().count() >= bounds.servers_per_caller {
            longest_idle(&mut of_caller.clone())
        } else if servers.len() >= bounds.servers {
            longest_idle(&mut servers.iter())
        } else {
            self.began.push_back(now);
            return Admission::Start;
        };
        let Some(victim) = victim else { return Admission::WaitForEnd };
        self.began.push_back(now);
        Admission::InPlaceOf(victim)
    }

    /// Notes the outcome of a start: after a failed one the next has to wait.
    pub(super) fn note(&mut self, has_failed: bool, now: Instant) {
        if !has_failed {
            (self.backoff, self.not_before) = (None, None);
            return;
        }
        let backoff = self.backoff.map_or(FIRST_BACKOFF, |last| (last * 2).min(LAST_BACKOFF));
        (self.backoff, self.not_before) = (Some(backoff), Some(now + backoff));
    }

    /// Returns true if the last start failed.
    pub(super) fn is_failing(&self) -> bool {
        self.backoff.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    const BOUNDS: Bounds = Bounds { servers: 3, servers_per_caller: 2, starts_per_minute: 4 };

    fn server(number: u64, caller: usize, idle_since: Option<Instant>) -> Occupant {
        Occupant { number, caller, idle_since }
    }

    #[test]
    fn the_server_that_is_idle_longest_makes_room() {
        let now = clock::now();
        let later = now + Duration::from_secs(5);
        let mut starts = Starts::default();
        let servers = [server(1, 1, Some(later)), server(2, 1, Some(now)), server(3, 2, None)];
        assert_eq!(starts.admit(&BOUNDS, &servers, 1, later), Admission::InPlaceOf(2), "the caller's own");
        assert_eq!(starts.admit(&BOUNDS, &servers, 3, later), Admission::InPlaceOf(2), "any");
        assert_eq!(starts.admit(&BOUNDS, &servers[..2], 3, later), Admission::Start);
        let busy = [server(1, 1, None), server(2, 1, None)];
        assert_eq!(starts.admit(&BOUNDS, &busy, 1, later), Admission::WaitForEnd);
    }

    #[test]
    fn starts_are_counted_by_the_minute() {
        let now = clock::now();
        let mut starts = Starts::default();
        for second in 0..4 {
            let at = now + Duration::from_secs(second);
            assert_eq!(starts.admit(&BOUNDS, &[], 1, at), Admission::Start);
        }
        let at = now + Duration::from_secs(5);
        assert_eq!(starts.admit(&BOUNDS, &[], 1, at), Admission::WaitUntil(now + MINUTE));
        assert_eq!(starts.admit(&BOUNDS, &[], 1, now + MINUTE), Admission::Start);
        assert_eq!(starts.admit(&BOUNDS, &[], 1, now + MINUTE), Admission::WaitUntil(now + Duration::from_secs(61)));
    }

    #[test]
    fn the_wait_after_failed_starts_doubles() {
        let now = clock::now();
        let mut starts = Starts::default();
        for seconds in [1, 2, 4, 8, 16, 30, 30] {
            starts.note(true, now);
            let until = now + Duration::from_secs(seconds);
            assert_eq!(starts.admit(&BOUNDS, &[], 1, now), Admission::WaitUntil(until));
        }
        starts.note(false, now);
        assert_eq!(starts.admit(&BOUNDS, &[], 1, now), Admission::Start);
    }
}
