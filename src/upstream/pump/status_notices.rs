//! Status notifications of a task of 2025-11-25: the state that the client knows, and the time of
//! the next notification.

use std::time::{Duration, Instant};

use crate::clock;
use crate::event_log::Stream;
use crate::protocol::tasks::{Status, TaskView};

/// Minimum time between two status notifications.
const INTERVAL: Duration = Duration::from_secs(1);

/// Status notifications of a task.
pub(super) struct StatusNotices {
    /// State that the client knows. Initially the state in the task handle.
    known: (Status, Option<String>),
    /// Earliest time of the next notification.
    next: Instant,
    /// True if a change waits until `next`.
    pub(super) is_due: bool,
}

impl StatusNotices {
    /// Creates the notifications of a new task.
    pub(super) fn new() -> Self {
        Self { known: (Status::Working, None), next: clock::now() + INTERVAL, is_due: false }
    }

    /// Returns the time of the next action: a waiting notification, or server requests that move to
    /// the standalone stream.
    pub(super) fn wakes_at(&self, task: &Stream) -> Option<Instant> {
        let notice = self.is_due.then_some(self.next);
        notice.into_iter().chain(self.requests_move_at(task)).min()
    }

    /// Returns the time at which the requests of the task go to the standalone stream, if that is
    /// yet to come.
    fn requests_move_at(&self, task: &Stream) -> Option<Instant> {
        task.as_legacy_task()?.requests_move_at().filter(|at| *at > clock::now())
    }

    /// Returns true if the client must be notified of this state now, and records the notification.
    /// A state that is not final waits until [`INTERVAL`] after the last notification.
    pub(super) fn record_notice(&mut self, view: &TaskView) -> bool {
        let TaskView { status, text, .. } = view;
        if self.known.0 == *status && self.known.1 == *text {
            return false;
        }
        let now = clock::now();
        self.is_due = now < self.next && status.is_open();
        if !self.is_due {
            self.next = now + INTERVAL;
            self.known = (*status, text.clone());
        }
        !self.is_due
    }
}
