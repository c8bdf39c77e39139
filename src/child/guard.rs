//! Guard: keeps the [guard process](super::guard_process) running, and reports each group to it.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::{mpsc, oneshot};
use tracing::warn;

use super::group::Group;
use super::guard_process::{self, change};
use super::reaper::{OwnProcess, OwnProcesses};
use mcp_resume_base::clock;

/// Wait before a guard that has ended is started again.
const RESTART_AFTER: Duration = Duration::from_millis(100);

/// Handle of the guard. Clones share the guard. It ends with the last clone and the last
/// [`Guarded`].
#[derive(Clone)]
pub(super) struct Guard(mpsc::UnboundedSender<Change>);

/// A group that the guard knows, until this is dropped.
pub(super) struct Guarded {
    group: Group,
    guard: Guard,
}

enum Change {
    Add(Group, oneshot::Sender<()>),
    Remove(Group),
}

impl Guard {
    /// Starts the guard, on the caller's runtime. If the guard ends, it is started again with all
    /// groups.
    ///
    /// # Errors
    /// If no process can be started.
    pub(super) fn start(own_binary: PathBuf, own: OwnProcesses) -> io::Result<Self> {
        let (changes, receiver) = mpsc::unbounded_channel();
        let process = Process::start(&own_binary, &own)?;
        tokio::spawn(
            Keeper { own_binary, own, groups: BTreeSet::new(), waiting: HashMap::new() }.run(process, receiver),
        );
        Ok(Self(changes))
    }

    /// Resolves once the guard knows the group.
    ///
    /// # Errors
    /// If the guard has ended for good.
    pub(super) async fn add(&self, group: Group) -> io::Result<Guarded> {
        let (known, waiting) = oneshot::channel();
        // Removes the group as well if the caller stops waiting.
        let guarded = Guarded { group, guard: self.clone() };
        let gone = || io::Error::from(io::ErrorKind::BrokenPipe);
        self.0.send(Change::Add(group, known)).map_err(|_| gone())?;
        waiting.await.map_err(|_| gone())?;
        Ok(guarded)
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        let _ = self.guard.0.send(Change::Remove(self.group));
    }
}

/// One process of the guard.
struct Process {
    /// Kept so that the runtime collects it.
    _child: Child,
    _own: OwnProcess,
    stdin: ChildStdin,
    stdout: Lines<BufReader<ChildStdout>>,
}

impl Process {
    fn start(own_binary: &Path, own: &OwnProcesses) -> io::Result<Self> {
        let mut command = Command::new(own_binary);
        // In a group of its own, so that ctrl-c at a terminal reaches the proxy alone.
        command.arg(guard_process::SUBCOMMAND).env_clear().current_dir("/").process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let spawn_lock = own.lock_for_spawn();
        let mut child = command.spawn()?;
        let missing = || io::Error::from(io::ErrorKind::BrokenPipe);
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).ok_or_else(missing)?;
        let own = spawn_lock.register(pid);
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(missing());
        };
        Ok(Self { _child: child, _own: own, stdin, stdout: BufReader::new(stdout).lines() })
    }
}

/// Task that keeps a guard running.
struct Keeper {
    own_binary: PathBuf,
    own: OwnProcesses,
    /// Groups that the guard has to know.
    groups: BTreeSet<i32>,
    /// Senders for the tasks that wait until the guard knows a group.
    waiting: HashMap<i32, oneshot::Sender<()>>,
}

impl Keeper {
    async fn run(mut self, mut process: Process, mut changes: mpsc::UnboundedReceiver<Change>) {
        loop {
            match self.serve(&mut process, &mut changes).await {
                Ok(()) => return,
                Err(error) => warn!(%error, "the guard of the child processes has ended and is started again"),
            }
            process = loop {
                clock::sleep(RESTART_AFTER).await;
                match self.restart().await {
                    Ok(process) => break process,
                    Err(error) => warn!(%error, "the guard of the child processes cannot be started"),
                }
            };
        }
    }

    async fn restart(&mut self) -> io::Result<Process> {
        let mut process = Process::start(&self.own_binary, &self.own)?;
        let lines: String = self.groups.iter().map(|group| format!("+{group}\n")).collect();
        process.stdin.write_all(lines.as_bytes()).await?;
        Ok(process)
    }

    /// Writes changes to the guard until all senders are dropped.
    async fn serve(&mut self, process: &mut Process, changes: &mut mpsc::UnboundedReceiver<Change>) -> io::Result<()> {
        loop {
            tokio::select! {
                change = changes.recv() => match change {
                    None => return Ok(()),
                    Some(Change::Add(group, known)) => {
                        self.groups.insert(group.id());
                        self.waiting.insert(group.id(), known);
                        process.stdin.write_all(format!("+{}\n", group.id()).as_bytes()).await?;
                    }
                    Some(Change::Remove(group)) => {
                        self.groups.remove(&group.id());
                        self.waiting.remove(&group.id());
                        process.stdin.write_all(format!("-{}\n", group.id()).as_bytes()).await?;
                    }
                },
                line = process.stdout.next_line() => {
                    let line = line?.ok_or(io::ErrorKind::UnexpectedEof)?;
                    let known = change(&line).and_then(|(_, group)| self.waiting.remove(&i32::try_from(group).ok()?));
                    if let Some(known) = known {
                        let _ = known.send(());
                    }
                }
            }
        }
    }
}
