//! Supervisor: watches a child, and ends it step by step.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Instant;

use tokio::process::Child;
use tokio::sync::watch;
use tracing::debug;

use super::group::Group;
use super::guard::Guarded;
use super::reaper::OwnProcess;
use super::settings::EndTimes;
use super::stderr::Stderr;
use mcp_resume_base::clock;

/// Ends a child: at [`Ending::begin`], or when it is dropped.
#[derive(Debug)]
pub struct Ending(watch::Sender<bool>);

/// The end of the first process of a child.
#[derive(Clone, Debug)]
pub struct Exit(watch::Receiver<Option<Outcome>>);

/// State of a child that has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Exit code, or `None` after a signal.
    pub code: Option<i32>,
    /// Number of the signal that ended the process.
    pub signal: Option<i32>,
}

impl Ending {
    /// Ends the child. The owner has closed its stdin already. The group gets SIGTERM and SIGKILL
    /// after the [`EndTimes`] of the settings.
    pub fn begin(&self) {
        self.0.send_replace(true);
    }
}

impl Exit {
    /// Resolves when the first process has ended. Other processes of its group may run a little
    /// longer.
    pub async fn wait(&mut self) -> Outcome {
        let ended = self.0.wait_for(Option::is_some).await;
        ended.ok().and_then(|outcome| *outcome).unwrap_or_default()
    }

    /// Returns the outcome of a process that has ended.
    pub fn outcome(&self) -> Option<Outcome> {
        *self.0.borrow()
    }

    /// Resolves when no process of the child's group is left.
    pub async fn gone(&mut self) {
        while self.0.changed().await.is_ok() {}
    }
}

/// The first process of a child.
pub(super) struct Process {
    pub(super) process: Child,
    pub(super) own: OwnProcess,
    pub(super) times: EndTimes,
}

/// Watches a child in a task of its own, until no process of its group is left.
pub(super) fn supervise(process: Process, group: Group, guarded: Guarded, stderr: Stderr) -> (Ending, Exit) {
    let (ending, begun) = watch::channel(false);
    let (exited, exit) = watch::channel(None);
    tokio::spawn(run(process, group, guarded, stderr, begun, exited));
    (Ending(ending), Exit(exit))
}

async fn run(
    Process { mut process, own, times }: Process,
    group: Group,
    guarded: Guarded,
    stderr: Stderr,
    mut begun: watch::Receiver<bool>,
    exited: watch::Sender<Option<Outcome>>,
) {
    let status = tokio::select! {
        status = process.wait() => Some(status),
        // An error means that the owner was dropped.
        () = async { let _ = begun.wait_for(|&begun| begun).await; } => None,
    };
    let (status, deadline) = match status {
        Some(status) => (status, None),
        None => end(&mut process, group, times).await,
    };
    let status = status.unwrap_or_default();
    debug!(pid = group.id(), %status, "a child has ended");
    stderr.last_words().await;
    exited.send_replace(Some(Outcome { code: status.code(), signal: status.signal() }));
    drop(own);
    // All other processes of the group end as well.
    match deadline {
        Some(deadline) => group.end_by(deadline).await,
        None => group.end(times.terminate).await,
    }
    stderr.stop();
    drop(guarded);
}

/// Ends the first process, whose stdin was closed. Returns the deadline of the other processes if
/// they were signalled as well.
async fn end(process: &mut Child, group: Group, times: EndTimes) -> (io::Result<ExitStatus>, Option<Instant>) {
    if let Ok(status) = tokio::time::timeout(times.close, process.wait()).await {
        return (status, None);
    }
    group.terminate();
    let deadline = clock::now() + times.terminate;
    if let Ok(status) = tokio::time::timeout(times.terminate, process.wait()).await {
        return (status, Some(deadline));
    }
    group.kill();
    (process.wait().await, Some(deadline))
}
