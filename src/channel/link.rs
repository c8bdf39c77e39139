//! The two byte streams of a channel, and the program at their other end.

use std::future::Future;
use std::pin::Pin;

use tokio::io::{AsyncRead, AsyncWrite};

/// Opens channels.
pub trait Open: Send + Sync + 'static {
    /// Opens one on the caller's runtime.
    fn open(&self) -> Pin<Box<dyn Future<Output = Result<Link, OpenError>> + Send>>;

    /// Returns true if a channel can probably be opened now.
    fn is_available(&self) -> bool;
}

/// A channel could not be opened. The text is for the client and the log.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct OpenError(pub String);

/// An open channel.
pub struct Link {
    /// Messages of the server.
    pub input: Box<dyn AsyncRead + Send + Unpin>,
    /// Messages for the server.
    pub output: Box<dyn AsyncWrite + Send + Unpin>,
    /// The program.
    pub program: Box<dyn Program>,
}

/// The program at the other end of a channel. Dropping it ends the program.
pub trait Program: Send + Sync {
    /// Ends the program; its input was closed before. Returns at once.
    fn end(&self);

    /// Resolves when the program has ended.
    fn ended(&self) -> Pin<Box<dyn Future<Output = ProgramEnd> + Send>>;

    /// Resolves when all that the program has started is gone as well.
    fn gone(&self) -> Pin<Box<dyn Future<Output = ()> + Send>>;
}

/// The end of a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProgramEnd {
    /// Exit code, or `None` after a signal.
    pub code: Option<i32>,
    /// Number of the signal that ended it.
    pub signal: Option<i32>,
    /// Last lines of its stderr, or empty if clients must not see them.
    pub last_lines: String,
}

impl ProgramEnd {
    /// Returns the end in words, for the log and for errors.
    pub fn describe(&self) -> String {
        let how = match (self.code, self.signal) {
            (Some(code), _) => format!("exit code {code}"),
            (None, Some(signal)) => format!("signal {signal}"),
            (None, None) => "unknown cause".to_owned(),
        };
        if self.last_lines.is_empty() { how } else { format!("{how}; its last words: {}", self.last_lines) }
    }
}
