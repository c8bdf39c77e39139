//! Exponential back-off.
//!
//! Owned here: the sequence of pauses between attempts. Absent: time and randomness, which callers
//! bring.

use std::time::Duration;

/// The pauses between attempts. Each is twice as long as the one before it, up to a maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    next: Duration,
    max: Duration,
}

impl Backoff {
    /// Creates the sequence that begins with `first` and grows to `max`.
    pub const fn new(first: Duration, max: Duration) -> Self {
        Self { next: first, max }
    }

    /// Returns the pause before the next attempt.
    pub fn next_pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = pause.saturating_mul(2).min(self.max);
        pause
    }

    /// Returns the pause before the next attempt, cut to between half and all of it by a uniformly
    /// `random` number.
    pub fn next_pause_with_jitter(&mut self, random: u16) -> Duration {
        self.next_pause().mul_f64(0.5 + f64::from(random) / f64::from(u16::MAX) / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Duration = Duration::from_millis(100);
    const MAX: Duration = Duration::from_millis(500);

    #[test]
    fn pauses_double_up_to_the_maximum() {
        let mut backoff = Backoff::new(FIRST, MAX);
        let pauses: [_; 5] = std::array::from_fn(|_| backoff.next_pause().as_millis());
        assert_eq!(pauses, [100, 200, 400, 500, 500]);
    }

    #[test]
    fn jitter_leaves_at_least_half_of_a_pause() {
        let mut backoff = Backoff::new(FIRST, FIRST);
        assert_eq!(backoff.next_pause_with_jitter(0), FIRST / 2);
        assert_eq!(backoff.next_pause_with_jitter(u16::MAX), FIRST);
    }

    #[test]
    fn the_longest_pause_does_not_overflow() {
        let mut backoff = Backoff::new(Duration::MAX, Duration::MAX);
        assert_eq!(backoff.next_pause(), Duration::MAX);
        assert_eq!(backoff.next_pause(), Duration::MAX);
    }
}
