//! The process group of a child, and the signals to it.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};

use crate::clock;

/// Time between SIGTERM and SIGKILL.
pub(super) const TERMINATE_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval at which the group is looked for between both.
const INTERVAL: Duration = Duration::from_millis(20);

/// A group, named by the process that began it. The system gives the number to no other process
/// while the group has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Group(Pid);

impl Group {
    /// Returns the group that the process began. `None` for a number that no process has, and for
    /// 1: a signal to that group reaches all.
    pub(super) fn of(process: u32) -> Option<Self> {
        let pid = Pid::from_raw(i32::try_from(process).ok()?)?;
        if pid.is_init() { None } else { Some(Self(pid)) }
    }

    pub(super) fn id(self) -> i32 {
        self.0.as_raw_nonzero().get()
    }

    /// Returns false once no process is in the group, a dead one that its parent has not collected
    /// included.
    pub(super) fn exists(self) -> bool {
        test_kill_process_group(self.0).is_ok()
    }

    pub(super) fn terminate(self) {
        // An error means that the group is gone, or is another user's: there is nothing to do about
        // either.
        let _ = kill_process_group(self.0, Signal::TERM);
    }

    pub(super) fn kill(self) {
        let _ = kill_process_group(self.0, Signal::KILL);
    }

    /// Ends all processes of the group with SIGTERM, and with SIGKILL those that are there after
    /// [`TERMINATE_TIMEOUT`].
    pub(super) async fn end(self) {
        if self.exists() {
            self.terminate();
            self.end_by(clock::now() + TERMINATE_TIMEOUT).await;
        }
    }

    /// Ends all processes of the group with SIGKILL that are there after `deadline`.
    pub(super) async fn end_by(self, deadline: Instant) {
        while self.exists() {
            if clock::now() >= deadline {
                self.kill();
                return;
            }
            clock::sleep(INTERVAL).await;
        }
    }

    /// Ends the processes of all `groups` as [`Group::end`] does, without a runtime.
    pub(super) fn end_all(groups: &[Self]) {
        groups.iter().for_each(|group| group.terminate());
        let rounds = TERMINATE_TIMEOUT.as_millis() / INTERVAL.as_millis();
        for _ in 0..rounds {
            if !groups.iter().any(|group| group.exists()) {
                return;
            }
            std::thread::sleep(INTERVAL);
        }
        groups.iter().for_each(|group| group.kill());
    }
}
