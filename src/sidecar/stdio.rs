//! Servers on stdio: the channels of a sidecar are the pipes of processes.

use std::io;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::unix::pipe;
use tokio::process::{ChildStdin, ChildStdout};
use tokio::runtime::Handle;

use super::{Error, Metrics};
use crate::channel::pipe::{PipeReader, PipeWriter};
use crate::channel::{
    self, Bounds, Channels, Link, LinkFuture, Open, OpenError, Program, ProgramEnd, Sharing, ShownStderr, Variables,
};
use crate::child::{self, Child, EndTimes, Ending, Excerpt, Exit, Launcher};
use crate::config::{AnswerPings, Command, Config};
use crate::protocol::headers::Lines;

/// Retention of a session whose client gave up before it was open, if idle servers are never ended.
const KEEP: Duration = Duration::from_secs(300);

/// Starts in any minute, unless the listener is for this machine alone.
const STARTS_PER_MINUTE: usize = 30;
/// Starts at the same time for each core.
const STARTS_PER_CORE: usize = 4;
/// Longest time that the first start of a program runs alone.
const FIRST_ALONE: Duration = Duration::from_secs(10);

/// Opens a channel by starting the program.
struct Stdio {
    launcher: Launcher,
    stderr: StderrRules,
    /// Largest message of a server, in bytes.
    message_bytes: usize,
}

/// A process at the end of a channel.
struct Process {
    ending: Ending,
    exit: Exit,
    stderr: Excerpt,
    rules: StderrRules,
}

/// Places that show the stderr of a program whose start fails.
#[derive(Clone, Copy)]
struct StderrRules {
    to_log: bool,
    to_client: bool,
    /// True if clients see the last lines alone.
    only_last: bool,
}

/// Returns the channels of a sidecar, and starts the guard of their processes.
pub(super) fn channels(config: &Config, command: &Command, metrics: &Metrics) -> Result<Arc<Channels>, Error> {
    let own_binary = match &command.own_binary {
        Some(path) => path.clone(),
        None => child::own_binary().map_err(Error::Children)?,
    };
    let settings = child::Settings {
        command: command.line.clone(),
        env: command.env.clone(),
        inherit_env: command.inherit_env.clone(),
        cwd: command.cwd.clone(),
        end: command.end.map_or_else(EndTimes::default, |(close, terminate)| EndTimes { close, terminate }),
    };
    let launcher = Launcher::new(settings, own_binary).map_err(Error::Children)?;
    if command.adopts_orphans {
        launcher.adopt_orphans();
    }
    // All that reaches an address for this machine alone is taken for one person.
    let is_loopback = config.listen.address.ip().is_loopback();
    let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let settings = channel::Settings {
        message_bytes: config.streams.max_event_bytes,
        unclaimed_bytes: config.streams.max_bytes_per_principal,
        outgoing_bytes: config.streams.max_bytes,
        batch: config.limits.batch,
        // Without revival the end of a server is the end of its session.
        idle: command.idle.filter(|_| config.sessions.revive),
        start: command.start,
        keep: command.idle.unwrap_or(KEEP),
        bounds: Some(Bounds {
            servers: command.max_children,
            servers_per_caller: command.max_children_per_principal,
            starts_per_minute: command.starts_per_minute.or((!is_loopback).then_some(STARTS_PER_MINUTE)),
            starts_at_once: STARTS_PER_CORE * cores,
            first_alone: FIRST_ALONE,
            bounds_addresses: !is_loopback,
            may_replace: config.sessions.revive,
        }),
        sharing: match command.shared {
            true if is_loopback => Sharing::All,
            true => Sharing::Known,
            false => Sharing::Off,
        },
        answers_pings: config.upstream.answer_pings == AnswerPings::Absent,
        keeps_asked: command.keeps_asked,
    };
    let stderr = StderrRules {
        to_log: config.log.stderr_on_failure,
        to_client: command.stderr_to_client,
        only_last: command.last_lines_to_client,
    };
    let stdio = Stdio { launcher, stderr, message_bytes: config.streams.max_event_bytes };
    Ok(Channels::new(Box::new(stdio), settings, metrics.channel.clone()))
}

impl Open for Stdio {
    fn open(
        &self,
        _: Option<&Lines>,
        variables: &Variables,
        worker: &Handle,
    ) -> LinkFuture<'static, Result<Link, OpenError>> {
        let (launcher, rules, message_bytes) = (self.launcher.clone(), self.stderr, self.message_bytes);
        let (runtime, variables) = (worker.clone(), variables.clone());
        Box::pin(async move {
            let child = launcher.start(variables.as_slice()).await.map_err(OpenError::of_program)?;
            let Child { stdin, stdout, ending, exit, stderr } = child;
            let (output, input) = move_to(&runtime, stdin, stdout).map_err(OpenError::of_program)?;
            Ok(Link {
                input: Box::new(PipeReader::new(input, message_bytes)),
                output: Box::new(PipeWriter::new(output)),
                runtime,
                program: Box::new(Process { ending, exit, stderr, rules }),
            })
        })
    }

    fn is_available(&self) -> bool {
        self.launcher.is_found()
    }
}

/// Moves the pipes of a child to another runtime, which wakes the tasks that use them.
fn move_to(runtime: &Handle, stdin: ChildStdin, stdout: ChildStdout) -> io::Result<(pipe::Sender, pipe::Receiver)> {
    let (stdin, stdout) = (stdin.into_owned_fd()?, stdout.into_owned_fd()?);
    let _entered = runtime.enter();
    Ok((pipe::Sender::from_owned_fd(stdin)?, pipe::Receiver::from_owned_fd(stdout)?))
}

impl Program for Process {
    fn end(&self) {
        self.ending.begin();
    }

    fn ended(&self) -> LinkFuture<'static, ProgramEnd> {
        let mut exit = self.exit.clone();
        Box::pin(async move {
            let outcome = exit.wait().await;
            ProgramEnd { code: outcome.code, signal: outcome.signal }
        })
    }

    fn stderr(&self) -> ShownStderr {
        let StderrRules { to_log, to_client, only_last } = self.rules;
        let for_client = match (to_client, only_last) {
            (false, _) => Vec::new(),
            (true, false) => self.stderr.lines(),
            (true, true) => self.stderr.last_lines(),
        };
        ShownStderr { for_log: if to_log { self.stderr.lines() } else { Vec::new() }, for_client }
    }

    fn gone(&self) -> LinkFuture<'static, ()> {
        let mut exit = self.exit.clone();
        Box::pin(async move { exit.gone().await })
    }
}
