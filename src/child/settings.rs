//! Settings of a child, and the reasons why none could be started.

use std::io;
use std::path::PathBuf;

/// A program with its arguments and its surroundings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Name or path of the program, and its arguments. Never empty.
    pub command: Vec<String>,
    /// Variables of the program, beside those that every child gets.
    pub env: Vec<(String, String)>,
    /// Names of further variables of the proxy's own environment that the program gets.
    pub inherit_env: Vec<String>,
    /// Working directory, or `None` for the proxy's.
    pub cwd: Option<PathBuf>,
}

/// A child could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// No such program, or one that may not be run.
    #[error("the program {0} was not found")]
    NotFound(String),
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
