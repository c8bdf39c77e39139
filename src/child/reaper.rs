//! Processes that a child has left behind: the system makes them children of the proxy, which
//! collects them when they end.
//!
//! In a container the proxy is often process 1, and becomes their parent in any case. Elsewhere it
//! requests that (`PR_SET_CHILD_SUBREAPER`), because process 1 may collect none. Only the binary
//! does so: a library must not collect the children of its program. Only Linux has both. Invariant:
//! a process started here is collected by its handle, never by this module.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard};

use mcp_resume_base::sync;

/// Processes that the proxy has started itself. Clones share the set.
#[derive(Clone, Debug, Default)]
pub(super) struct OwnProcesses(Arc<Mutex<HashSet<i32>>>);

/// A process of the proxy's own, until this is dropped.
#[derive(Debug)]
pub(super) struct OwnProcess {
    pid: i32,
    own: OwnProcesses,
}

/// The right to start a process. While it is held no process is collected, so that a new process is
/// not taken for an orphan.
pub(super) struct SpawnLock<'a> {
    processes: MutexGuard<'a, HashSet<i32>>,
    own: &'a OwnProcesses,
}

impl OwnProcesses {
    pub(super) fn lock_for_spawn(&self) -> SpawnLock<'_> {
        SpawnLock { processes: sync::lock(&self.0), own: self }
    }
}

impl SpawnLock<'_> {
    /// Registers the new process.
    pub(super) fn register(mut self, pid: i32) -> OwnProcess {
        self.processes.insert(pid);
        OwnProcess { pid, own: self.own.clone() }
    }
}

impl Drop for OwnProcess {
    fn drop(&mut self) {
        sync::lock(&self.own.0).remove(&self.pid);
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use std::{fs, io};

    use rustix::process::{Pid, WaitOptions, getpid, set_child_subreaper, waitpid};
    use tokio::signal::unix::{Signal, SignalKind, signal};
    use tracing::{debug, warn};

    use crate::reaper::OwnProcesses;
    use mcp_resume_base::sync;

    impl OwnProcesses {
        /// Starts a task on the caller's runtime that collects processes of others.
        pub(crate) fn collect_others(&self) {
            let begun = set_child_subreaper(Some(getpid())).map_err(io::Error::from);
            match begun.and_then(|()| signal(SignalKind::child())) {
                Ok(ended) => drop(tokio::spawn(self.clone().collect(ended))),
                Err(error) => warn!(%error, "processes that outlive their parents are not collected"),
            }
        }

        async fn collect(self, mut ended: Signal) {
            while ended.recv().await.is_some() {
                if let Err(error) = self.collect_ended() {
                    warn!(%error, "processes that outlive their parents are not collected");
                    return;
                }
            }
        }

        fn collect_ended(&self) -> io::Result<()> {
            let own = sync::lock(&self.0);
            for pid in children()?.into_iter().filter(|pid| !own.contains(pid)) {
                if let Some(pid) = Pid::from_raw(pid)
                    && let Ok(Some((_, status))) = waitpid(Some(pid), WaitOptions::NOHANG)
                {
                    debug!(pid = pid.as_raw_nonzero().get(), ?status, "a process without a parent has ended");
                }
            }
            Ok(())
        }
    }

    /// Returns the children of this process, including ended ones.
    fn children() -> io::Result<Vec<i32>> {
        let mut found = Vec::new();
        for thread in fs::read_dir("/proc/self/task")? {
            // A thread may end meanwhile.
            let Ok(children) = fs::read_to_string(thread?.path().join("children")) else { continue };
            found.extend(children.split_whitespace().filter_map(|pid| pid.parse::<i32>().ok()));
        }
        Ok(found)
    }
}
