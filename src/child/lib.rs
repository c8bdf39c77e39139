//! Programs that the proxy starts: servers on stdio.
//!
//! A child is a group of processes that begins with one program: `npx` starts a shell, and the
//! shell starts the server. Owned here: start, environment, stderr and end of a child. Invariant:
//! no process of the group outlives the proxy, even after SIGKILL of the proxy. Two helpers of this
//! binary ensure it. The [guard](guard) gets the number of each group before its program begins,
//! and ends all groups once the proxy has ended. The [launcher](launch) is the first process of a
//! group. It becomes the program when the guard knows the group. Processes that leave the group
//! (`setsid`) are out of reach. Absent: the lines on stdin and stdout, restarts, limits.
//!
//! No shell takes part. Arguments may hold secrets, so no log line has them.

mod environment;
mod excerpt;
mod group;
mod guard;
mod guard_process;
mod launch;
mod program;
mod reaper;
mod settings;
mod stderr;
mod supervisor;

use std::io;
use std::path::PathBuf;
use std::process::{ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::process::{ChildStdin, ChildStdout, Command};
use tracing::debug;

pub use excerpt::Excerpt;
use group::Group;
use guard::Guard;
use program::Program;
use reaper::OwnProcesses;
pub use settings::{EndTimes, Settings, StartError};
use stderr::Stderr;
pub use supervisor::{Ending, Exit, Outcome};

use mcp_resume_base::descriptors;

/// Time limit for the guard's confirmation of a group.
const GUARD_TIMEOUT: Duration = Duration::from_secs(5);

/// Starts children of one program. Clones share the guard.
#[derive(Clone)]
pub struct Launcher {
    settings: Arc<Settings>,
    guard: Guard,
    own: OwnProcesses,
    /// This binary, which is also the guard and the first process of each child.
    own_binary: PathBuf,
}

/// A running child. Dropping it ends the child.
pub struct Child {
    /// Takes the messages for the program.
    pub stdin: ChildStdin,
    /// Has the messages of the program.
    pub stdout: ChildStdout,
    /// Ends the child.
    pub ending: Ending,
    /// Resolves when the first process of the child has ended.
    pub exit: Exit,
    /// Shows its stderr.
    pub stderr: Excerpt,
}

impl Launcher {
    /// Creates a launcher and starts its guard. `own_binary` is the path of `mcp-resume` itself,
    /// [`own_binary`] in that process.
    ///
    /// # Errors
    /// If the guard cannot be started.
    pub fn new(settings: Settings, own_binary: PathBuf) -> io::Result<Self> {
        let own = OwnProcesses::default();
        let guard = Guard::start(own_binary.clone(), own.clone())?;
        Ok(Self { settings: Arc::new(settings), guard, own, own_binary })
    }

    /// Makes this process the parent of all processes that its children leave behind, and collects
    /// them when they end. For the main program alone. Has an effect on Linux only.
    pub fn adopt_orphans(&self) {
        #[cfg(target_os = "linux")]
        self.own.collect_others();
    }

    /// Returns the program's name without its folder, for the log.
    pub fn name(&self) -> &str {
        program::name(&self.settings.command[0])
    }

    /// Returns true if the program is found now.
    pub fn is_found(&self) -> bool {
        Program::find(&self.settings).is_ok()
    }

    /// Starts a child on the caller's runtime, with further `variables` in its environment. If the
    /// returned future is dropped, the child ends at once.
    ///
    /// # Errors
    /// If the program is not found, or no process can be started. A program that cannot be executed
    /// exits at once with 126 or 127, as in a shell.
    pub async fn start(&self, variables: &[(String, String)]) -> Result<Child, StartError> {
        let mut settings = Arc::clone(&self.settings);
        if !variables.is_empty() {
            Arc::make_mut(&mut settings).env.extend_from_slice(variables);
        }
        let program = Program::find(&settings)?;
        let limit = descriptors::before_raise().map(|limit| limit.to_string());
        let mut command = Command::new(&self.own_binary);
        command
            .arg(launch::SUBCOMMAND)
            .arg(limit.unwrap_or_else(|| launch::UNLIMITED.to_owned()))
            .arg(program.path)
            .args(&self.settings.command[1..])
            .env_clear()
            .envs(program.environment)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        if let Some(cwd) = &self.settings.cwd {
            command.current_dir(cwd);
        }
        let spawn_lock = self.own.lock_for_spawn();
        let mut process = command.spawn().map_err(StartError::Process)?;
        let missing = || StartError::Process(io::ErrorKind::BrokenPipe.into());
        let group = process.id().and_then(Group::of).ok_or_else(missing)?;
        let own = spawn_lock.register(group.id());
        let (stdin, stdout, stderr) = (process.stdin.take(), process.stdout.take(), process.stderr.take());
        let (mut stdin, stdout, stderr) =
            (stdin.ok_or_else(missing)?, stdout.ok_or_else(missing)?, stderr.ok_or_else(missing)?);
        // Until this byte the process is still the launcher, and ends with its stdin.
        let known = tokio::time::timeout(GUARD_TIMEOUT, self.guard.add(group)).await;
        let guarded = known.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())).map_err(StartError::Guard)?;
        stdin.write_all(launch::GO).await.map_err(StartError::Process)?;
        debug!(program = self.name(), pid = group.id(), "a child was started");
        let stderr = Stderr::read(stderr, self.name().to_owned(), group.id());
        let excerpt = Excerpt::new(stderr.clone(), &settings);
        let (ending, exit) =
            supervisor::supervise(supervisor::Process { process, own, times: settings.end }, group, guarded, stderr);
        Ok(Child { stdin, stdout, ending, exit, stderr: excerpt })
    }
}

/// Runs the guard or the launcher, if the command line names it. Must be called first in the
/// process.
pub fn run_helper() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    match arguments.next()?.to_str()? {
        guard_process::SUBCOMMAND => Some(guard_process::run()),
        launch::SUBCOMMAND => Some(launch::run(&arguments.collect::<Vec<_>>())),
        _ => None,
    }
}

/// Returns the path of the running binary. The path stays valid if the file is replaced meanwhile.
pub fn own_binary() -> io::Result<PathBuf> {
    if cfg!(target_os = "linux") { Ok("/proc/self/exe".into()) } else { std::env::current_exe() }
}
