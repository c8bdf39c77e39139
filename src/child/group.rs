//! The process group of a child, and the signals to it.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};

use mcp_resume_base::clock;

/// Time between SIGTERM and SIGKILL.
pub(super) const TERMINATE_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval between checks of the group in that time.
const INTERVAL: Duration = Duration::from_millis(20);

/// A group, named by its first process. The system gives this number to no other process while the
/// group exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Group(Pid);

impl Group {
    /// Returns the group of its first process. `None` for an invalid process number, and for 1: a
    /// signal to that group reaches all processes.
    pub(super) fn of(process: u32) -> Option<Self> {
        let pid = Pid::from_raw(i32::try_from(process).ok()?)?;
        if pid.is_init() { None } else { Some(Self(pid)) }
    }

    pub(super) fn id(self) -> i32 {
        self.0.as_raw_nonzero().get()
    }

    /// Returns false once the group has no process. A dead process counts until its parent has
    /// collected it.
    pub(super) fn exists(self) -> bool {
        test_kill_process_group(self.0).is_ok()
    }

    pub(super) fn terminate(self) {
        // An error means that the group has ended or belongs to another user. Neither can be
        // changed.
        let _ = kill_process_group(self.0, Signal::TERM);
    }

    pub(super) fn kill(self) {
        let _ = kill_process_group(self.0, Signal::KILL);
    }

    /// Ends all processes of the group with SIGTERM. Sends SIGKILL to the group if a process is
    /// left after `timeout`.
    pub(super) async fn end(self, timeout: Duration) {
        if self.exists() {
            self.terminate();
            self.end_by(clock::now() + timeout).await;
        }
    }

    /// Sends SIGKILL to the group if a process is left at `deadline`.
    pub(super) async fn end_by(self, deadline: Instant) {
        while self.exists() {
            if clock::now() >= deadline {
                self.kill();
                return;
            }
            clock::sleep(INTERVAL).await;
        }
    }

    /// Ends the processes of all `groups` as [`Group::end`] does after [`TERMINATE_TIMEOUT`],
    /// without a runtime.
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
