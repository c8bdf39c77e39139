//! Number of programs that start at the same time.
//!
//! The first start of a program may install it: `npx` with a cold cache does, and twelve of them at
//! once would spoil each other's work. It therefore runs alone until it has responded, for a
//! bounded time. After it, a bounded number of starts run at once: a machine that starts too
//! many completes none in time. Absent: the rate of starts, and the number of servers (`pool`).

use std::collections::BTreeMap;
use std::time::Instant;

use super::pool::{Admission, Bound, Bounds};

/// Starts that run, without a response of their program yet.
#[derive(Debug, Default)]
pub(super) struct StartGate {
    /// Time of the beginning of each start, by its number.
    running: BTreeMap<u64, Instant>,
    /// True once the program has responded to any start.
    has_responded: bool,
}

impl StartGate {
    /// Returns the reason to wait with a further start, or `None` if it may begin.
    pub(super) fn wait(&self, bounds: &Bounds, now: Instant) -> Option<Admission> {
        let alone_until = self.running.values().min().map(|began| *began + bounds.first_alone);
        match alone_until.filter(|until| !self.has_responded && *until > now) {
            Some(until) => Some(Admission::WaitUntil(until, Bound::FirstStart)),
            None if self.running.len() >= bounds.starts_at_once => Some(Admission::WaitForStart),
            None => None,
        }
    }

    /// Records the beginning of a start.
    pub(super) fn begin(&mut self, number: u64, now: Instant) {
        self.running.insert(number, now);
    }

    /// Records that the program has responded to another request than a start's.
    pub(super) fn record_response(&mut self) {
        self.has_responded = true;
    }

    /// Records the end of a start: the response of its program, or its failure. Has no effect on a
    /// start that has ended.
    pub(super) fn end(&mut self, number: u64, has_responded: bool) {
        self.running.remove(&number);
        self.has_responded |= has_responded;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::clock;

    const ALONE: Duration = Duration::from_secs(10);

    fn bounds(starts_at_once: usize) -> Bounds {
        Bounds {
            servers: 64,
            servers_per_caller: 64,
            starts_per_minute: None,
            starts_at_once,
            first_alone: ALONE,
            bounds_addresses: false,
            may_replace: true,
        }
    }

    #[test]
    fn the_first_start_runs_alone_until_it_has_responded() {
        let now = clock::now();
        let mut gate = StartGate::default();
        assert_eq!(gate.wait(&bounds(4), now), None);
        gate.begin(1, now);
        let later = now + Duration::from_secs(3);
        assert_eq!(gate.wait(&bounds(4), later), Some(Admission::WaitUntil(now + ALONE, Bound::FirstStart)));
        gate.end(1, true);
        for number in 2..6 {
            assert_eq!(gate.wait(&bounds(4), later), None);
            gate.begin(number, later);
        }
        assert_eq!(gate.wait(&bounds(4), later), Some(Admission::WaitForStart));
        gate.end(3, false);
        assert_eq!(gate.wait(&bounds(4), later), None);
    }

    #[test]
    fn a_first_start_without_a_response_delays_others_for_a_while_alone() {
        let now = clock::now();
        let mut gate = StartGate::default();
        gate.begin(1, now);
        assert_eq!(gate.wait(&bounds(2), now + ALONE), None);
        gate.begin(2, now + ALONE);
        assert_eq!(gate.wait(&bounds(2), now + ALONE), Some(Admission::WaitForStart));
    }

    #[test]
    fn a_failed_first_start_is_followed_by_another_first_one() {
        let now = clock::now();
        let mut gate = StartGate::default();
        gate.begin(1, now);
        gate.end(1, false);
        assert_eq!(gate.wait(&bounds(4), now), None);
        gate.begin(2, now);
        assert_eq!(gate.wait(&bounds(4), now), Some(Admission::WaitUntil(now + ALONE, Bound::FirstStart)));
    }
}
