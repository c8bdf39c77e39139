//! A pause between two lines of the log about the same fault, which each call may meet.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::{clock, sync};

/// The pause, and the time of the last line.
#[derive(Debug)]
pub(super) struct LogPause {
    pause: Duration,
    last: Mutex<Option<Instant>>,
}

impl LogPause {
    /// Creates a pause. The first line comes at once.
    pub(super) const fn new(pause: Duration) -> Self {
        Self { pause, last: Mutex::new(None) }
    }

    /// Returns true if the log may have a line now, and begins the pause after it.
    pub(super) fn may_log(&self) -> bool {
        let (now, mut last) = (clock::now(), sync::lock(&self.last));
        let may_log = last.is_none_or(|last| now.saturating_duration_since(last) >= self.pause);
        if may_log {
            *last = Some(now);
        }
        may_log
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_line_comes_at_once_and_the_next_after_the_pause() {
        let pause = LogPause::new(Duration::from_secs(10));
        let mut lines = Vec::new();
        for second in 0..=20 {
            if pause.may_log() {
                lines.push(second);
            }
            assert!(!pause.may_log(), "two lines at a time");
            clock::sleep(Duration::from_secs(1)).await;
        }
        assert_eq!(lines, [0, 10, 20]);
    }
}
