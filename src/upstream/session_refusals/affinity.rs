//! Signs that the server distinguishes callers, or is a group without sticky sessions.
//!
//! Such a server refuses living sessions, and soon refuses a session again that was opened again.
//! Owned here: the count of these signs, and the single warning of the process. Absent: the
//! refusals themselves (`mod.rs`).

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tracing::warn;

/// Number of refusals of living sessions, or of revivals of one session within a minute, before the
/// warning.
const SIGNS: usize = 3;

/// Count of the signs.
#[derive(Debug, Default)]
pub(in crate::upstream) struct AffinitySigns {
    refusals: AtomicUsize,
    has_warned: AtomicBool,
}

impl AffinitySigns {
    /// Records the refusal of a living session.
    pub(in crate::upstream) fn record_living_refused(&self) {
        let refusals = self.refusals.fetch_add(1, Ordering::Relaxed) + 1;
        if self.is_due(refusals) {
            warn!(
                "the server has refused requests in sessions whose streams are open: it tells callers apart, or its balancer does not keep sessions"
            );
        }
    }

    /// Records a revival. `in_last_minute` counts the session's revivals within the last minute,
    /// including this one.
    pub(in crate::upstream) fn record_revival(&self, in_last_minute: usize) {
        if self.is_due(in_last_minute) {
            warn!(
                "a session was opened again three times within a minute: the server forgets its sessions, or its balancer does not keep them"
            );
        }
    }

    /// Returns true once, when there are enough signs.
    fn is_due(&self, signs: usize) -> bool {
        signs >= SIGNS && !self.has_warned.swap(true, Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn has_warned(signs: &AffinitySigns) -> bool {
        signs.has_warned.load(Ordering::Relaxed)
    }

    #[test]
    fn the_third_refusal_of_a_living_session_warns_and_no_later_one() {
        let signs = AffinitySigns::default();
        signs.record_living_refused();
        signs.record_living_refused();
        assert!(!has_warned(&signs));
        signs.record_living_refused();
        assert!(has_warned(&signs) && !signs.is_due(SIGNS + 1));
    }

    #[test]
    fn the_third_revival_of_a_session_in_a_minute_warns() {
        let signs = AffinitySigns::default();
        signs.record_revival(1);
        signs.record_revival(2);
        assert!(!has_warned(&signs));
        signs.record_revival(3);
        assert!(has_warned(&signs));
    }
}
