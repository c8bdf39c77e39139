//! Settings of a child, and the errors of its start.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use super::group::TERMINATE_TIMEOUT;

/// A program with its arguments and its environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Name or path of the program, and its arguments. Never empty.
    pub command: Vec<String>,
    /// Configured variables of the program, in addition to the variables of every child.
    pub env: Vec<(String, String)>,
    /// Names of further variables that the program gets from the proxy's environment.
    pub inherit_env: Vec<String>,
    /// Working directory, or `None` for the proxy's.
    pub cwd: Option<PathBuf>,
    /// Times of its end.
    pub end: EndTimes,
}

/// Times of a child's end. Its stdin is closed first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndTimes {
    /// Time from the end of stdin to SIGTERM. Servers complete their calls in that time.
    pub close: Duration,
    /// Time from SIGTERM to SIGKILL.
    pub terminate: Duration,
}

impl Default for EndTimes {
    fn default() -> Self {
        Self { close: Duration::from_secs(5), terminate: TERMINATE_TIMEOUT }
    }
}

/// A child could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The program does not exist in any of the folders of `PATH`, or at its path.
    #[error("the program {0} was not found")]
    NotFound(String),
    /// The path leads to a file or folder that may not be executed.
    #[error("the file {0} is not an executable program (chmod +x makes a script one)")]
    NotExecutable(String),
    /// The working directory cannot be used.
    #[error("the working directory cannot be used: {0}")]
    Directory(#[source] io::Error),
    /// The system started no process.
    #[error("no process could be started: {0}")]
    Process(#[source] io::Error),
    /// The guard does not work, so the child could be left behind.
    #[error("the guard of the processes does not work: {0}")]
    Guard(#[source] io::Error),
}
