//! The two directions of a channel, and the server at its other end.

use std::future::Future;
use std::pin::Pin;

use bytes::Bytes;
use tokio::runtime::Handle;

use super::body::Response;
use super::variables::Variables;
use crate::protocol::channel::line::Line;
use crate::protocol::error::ErrorCode;
use crate::protocol::headers::{Era, Lines};

/// A future that a link returns.
pub type LinkFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Opens channels.
pub trait Open: Send + Sync + 'static {
    /// Opens a channel on the caller's runtime.
    ///
    /// `head` has the headers of the request that begins the session, for a server that takes
    /// headers. `variables` are those of the caller, for a server that is a process. `worker` is
    /// the runtime of that request. The two directions of a channel use it, unless they need
    /// another one.
    fn open(
        &self,
        head: Option<&Lines>,
        variables: &Variables,
        worker: &Handle,
    ) -> LinkFuture<'static, Result<Link, OpenError>>;

    /// Returns true if a channel can probably be opened now.
    fn is_available(&self) -> bool;

    /// Returns the era of the server, or `None` if discovery has to find it.
    fn era(&self) -> Option<Era> {
        None
    }

    /// Returns true if the server takes the headers of requests.
    fn takes_headers(&self) -> bool {
        false
    }
}

/// A channel could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The channel could not be opened, for a reason that the client and the log may show.
    #[error("{}: {detail}", code.message())]
    Failed {
        /// Error for the client.
        code: ErrorCode,
        /// Text after the message of the error, or empty.
        detail: String,
    },
    /// The server has refused with a response for the client, which may demand credentials.
    #[error("the server has refused the session")]
    Refused(Box<Response>),
}

impl OpenError {
    /// Creates the failure of a program that could not be started.
    pub fn of_program(detail: impl ToString) -> Self {
        Self::Failed { code: ErrorCode::ServerFailed, detail: detail.to_string() }
    }
}

/// An open channel.
pub struct Link {
    /// Messages of the server.
    pub input: Box<dyn Input>,
    /// Messages for the server. Dropping it ends the server's input.
    pub output: Box<dyn Output>,
    /// Runtime of both directions, which wakes their tasks.
    pub runtime: Handle,
    /// The server.
    pub program: Box<dyn Program>,
}

/// Messages of a server.
pub trait Input: Send {
    /// Returns the next message, or the point where a message is dropped; `None` at the end of the
    /// channel. A partial message is held in `memory`, and dropped if that has no room.
    ///
    /// Dropping the future leaves the channel in an unknown state.
    fn next<'a>(&'a mut self, memory: &'a mut dyn Memory) -> LinkFuture<'a, Option<Line>>;
}

/// Memory for a partial message.
pub trait Memory: Send {
    /// Holds the part of a message that has arrived so far. A shorter part belongs to the next
    /// message.
    ///
    /// # Errors
    /// If there is no room: the error of the call that waits for the message.
    fn hold(&mut self, partial: &[u8]) -> Result<(), ErrorCode>;
}

/// Messages for a server, one after the other.
pub trait Output: Send {
    /// Writes a message without a line end. `head` has the headers of its request, for a server
    /// that takes headers. Calls `on_begin` when the server may have received the first byte, and
    /// never earlier. Until then nothing of the message has run.
    ///
    /// Dropping the future leaves the channel in an unknown state.
    fn write<'a>(
        &'a mut self,
        message: Bytes,
        head: Option<&'a Lines>,
        on_begin: &'a mut (dyn FnMut() + Send),
    ) -> LinkFuture<'a, Result<(), WriteError>>;
}

/// A message was not written.
#[derive(Debug)]
pub enum WriteError {
    /// The channel accepts no more messages.
    Lost,
    /// The server has refused this message with a response. Further messages are possible.
    Refused(Box<Response>),
}

/// The server at the other end of a channel. Dropping it ends the server.
pub trait Program: Send + Sync {
    /// Ends the program, whose input is already closed. Returns at once.
    fn end(&self);

    /// Resolves when the program has ended.
    fn ended(&self) -> LinkFuture<'static, ProgramEnd>;

    /// Resolves when no process that the program has started is left.
    fn gone(&self) -> LinkFuture<'static, ()>;

    /// Returns the stderr of a program so far, as far as it may be shown.
    fn stderr(&self) -> ShownStderr {
        ShownStderr::default()
    }

    /// Returns the error of the calls that were pending when the channel was lost.
    fn lost_code(&self) -> ErrorCode {
        ErrorCode::ServerEnded
    }
}

/// Lines of a program's stderr that explain a failed start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShownStderr {
    /// Lines for the log.
    pub for_log: Vec<String>,
    /// Lines for clients.
    pub for_client: Vec<String>,
}

impl ShownStderr {
    /// Returns the lines for the log as one text, or `None` without a line.
    pub(super) fn log_text(&self) -> Option<String> {
        if self.for_log.is_empty() { None } else { Some(self.for_log.join(" | ")) }
    }
}

/// The end of a program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProgramEnd {
    /// Exit code, or `None` after a signal.
    pub code: Option<i32>,
    /// Number of the signal that ended it.
    pub signal: Option<i32>,
}

impl ProgramEnd {
    /// Describes the end, for the log and for errors, without text of the program.
    pub fn describe(&self) -> String {
        match (self.code, self.signal) {
            (Some(code), _) => format!("exit code {code}"),
            (None, Some(signal)) => format!("signal {signal}"),
            (None, None) => "its output has ended".to_owned(),
        }
    }
}
