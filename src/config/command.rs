//! The server on stdio: its command, its environment, and the bounds of its processes.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use super::ClientVariable;

/// A server on stdio, and the bounds of its processes.
#[derive(Clone, PartialEq, Eq)]
pub struct Command {
    /// Program and arguments; never empty.
    pub line: Vec<String>,
    /// Variables of its environment.
    pub env: Vec<(String, String)>,
    /// Variables of the proxy's environment that it gets as well.
    pub inherit_env: Vec<String>,
    /// Variables that it gets from headers of its client.
    pub env_from_headers: Vec<ClientVariable>,
    /// Working directory, or `None` for the proxy's.
    pub cwd: Option<PathBuf>,
    /// Longest time without a call; a session's process is then ended. `None` for no limit.
    pub idle: Option<Duration>,
    /// True if all sessions of a caller with equal parameters have one process.
    pub shared: bool,
    /// Most processes at once.
    pub max_children: usize,
    /// Most processes of one caller at once.
    pub max_children_per_principal: usize,
    /// Most starts in any minute, or `None` for the default of the listener.
    pub starts_per_minute: Option<usize>,
    /// Longest time from `initialize` to its response.
    pub start: Duration,
    /// True if clients see the last lines of stderr in errors.
    pub stderr_to_client: bool,
    /// The binary that guards and launches processes, or `None` for the running one. Without a key.
    pub own_binary: Option<PathBuf>,
    /// True if the lines for clients are the last three alone, in their order. Without a key.
    pub last_lines_to_client: bool,
    /// Time from the end of stdin to SIGTERM, and from there to SIGKILL, or `None` for the
    /// defaults. Without a key.
    pub end: Option<(Duration, Duration)>,
    /// True if the server that was asked for its revisions serves the first session. Without a key.
    pub keeps_asked: bool,
    /// True if the process collects processes that its children leave behind. Without a key.
    pub adopts_orphans: bool,
}

/// Masked: arguments and variables may hold keys.
impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Command").field("name", &self.name()).finish_non_exhaustive()
    }
}

impl Command {
    /// Returns the program's name without its folder and its arguments, for the log.
    pub fn name(&self) -> &str {
        let program = self.line.first().map_or("", String::as_str);
        program.rsplit('/').next().unwrap_or(program)
    }
}

/// A text that is no variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be NAME=VALUE")]
pub struct InvalidVariable;

/// A variable of an environment.
pub(super) struct Variable(pub(super) String, pub(super) String);

impl std::str::FromStr for Variable {
    type Err = InvalidVariable;

    fn from_str(text: &str) -> Result<Self, InvalidVariable> {
        let (name, value) = text.split_once('=').ok_or(InvalidVariable)?;
        let is_valid = !name.is_empty() && !name.contains('\0') && !value.contains('\0');
        if is_valid { Ok(Self(name.to_owned(), value.to_owned())) } else { Err(InvalidVariable) }
    }
}
