//! A call of Redis, and what can become of it.

use std::sync::Arc;

use ::redis::{Cmd, ErrorKind, RedisError, ServerError, Value};
use tokio::sync::oneshot;

use super::append::Append;
use super::keys::Order;
use super::scripts;
use crate::store::Error;
use crate::store::completion::{Complete, Queue, deliver};

/// A call, and the receiver of its replies.
pub(super) struct Call {
    pub(super) work: Work,
    /// Number of replies.
    pub(super) count: usize,
    /// Calls of the same order take effect as they were made.
    pub(super) order: Order,
    tell: oneshot::Sender<Answer>,
    /// Completions of the caller's runtime.
    queue: Arc<Queue<Told>>,
    /// Called first with the reply, even if the caller has gone.
    note: Option<Note>,
}

/// Work of a call.
pub(super) enum Work {
    /// Commands, in this order.
    Steps(Vec<Cmd>),
    /// An append, by script or plain. A silent one has no replies.
    Append(Append),
}

/// The answers to the steps of a call.
pub(super) type Answer = Result<Vec<Value>, Failure>;

/// A reply on its way to the caller.
pub(super) struct Told {
    tell: oneshot::Sender<Answer>,
    answer: Answer,
}

impl Complete for Told {
    fn complete(self) {
        // Who does not wait any more does not need to know.
        let _ = self.tell.send(self.answer);
    }
}

/// Callback for a reply, run before the caller is woken.
pub(super) type Note = Box<dyn FnOnce(&Answer) + Send>;

/// Why a call failed.
#[derive(Clone, Debug)]
pub(super) enum Failure {
    /// No answer came, or one that says that this server cannot be written now: another connection may help.
    Lost(Arc<str>),
    /// Redis has no memory for it.
    Full(Arc<str>),
    /// Redis does not know the script.
    Unknown,
    /// Redis refused it, and will again.
    Refused(Arc<str>),
}

/// The server that says so is not, or not yet, the one to write to.
const UNREADY: [&str; 13] = [
    "READONLY",
    "LOADING",
    "MASTERDOWN",
    "CLUSTERDOWN",
    "TRYAGAIN",
    "MOVED",
    "ASK",
    "MISCONF",
    "NOREPLICAS",
    "BUSY",
    "UNBLOCKED",
    "NOAUTH",
    "WRONGPASS",
];

impl Call {
    /// To be answered by way of `queue`.
    pub(super) fn new(
        work: Work,
        order: Order,
        note: Option<Note>,
        queue: Arc<Queue<Told>>,
    ) -> (Self, oneshot::Receiver<Answer>) {
        let (tell, answer) = oneshot::channel();
        let count = match &work {
            Work::Steps(steps) => steps.len(),
            Work::Append(_) => 1,
        };
        (Self { work, count, order, tell, queue, note }, answer)
    }

    /// The answer and where it goes, to be delivered together with others.
    pub(super) fn answered(self, answer: Answer) -> (Arc<Queue<Told>>, Told) {
        if let Some(note) = self.note {
            note(&answer);
        }
        (self.queue, Told { tell: self.tell, answer })
    }

    /// Hands out the answer.
    pub(super) fn answer(self, answer: Answer) {
        deliver([self.answered(answer)]);
    }
}

impl Failure {
    /// Without an answer.
    pub(super) fn lost(why: &str) -> Self {
        Self::Lost(why.into())
    }

    pub(super) fn of(error: &RedisError) -> Self {
        match error.kind() {
            ErrorKind::Server(_) | ErrorKind::Extension => Self::told(error.code().unwrap_or_default(), error.detail()),
            ErrorKind::UnexpectedReturnType | ErrorKind::InvalidClientConfig | ErrorKind::Client => {
                Self::Refused(error.to_string().into())
            }
            _ => Self::Lost(error.to_string().into()),
        }
    }

    fn of_server(error: &ServerError) -> Self {
        Self::told(error.code(), error.details())
    }

    /// Before Redis 7 what a command in a script was refused for stands in the text of a general error.
    fn told(code: &str, detail: Option<&str>) -> Self {
        let detail = detail.unwrap_or_default();
        let says = |name: &str| {
            code == name || (code == "ERR" && detail.split_once(name).is_some_and(|(before, _)| before.ends_with('-')))
        };
        let text = || format!("{code} {detail}").into();
        if says("OOM") {
            Self::Full(text())
        } else if code == "NOSCRIPT" {
            Self::Unknown
        } else if UNREADY.iter().any(|name| says(name)) {
            Self::Lost(text())
        } else {
            Self::Refused(text())
        }
    }

    /// Returns true if the connection can be used no more.
    pub(super) fn breaks(&self) -> bool {
        matches!(self, Self::Lost(_))
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Lost(why) | Self::Full(why) | Self::Refused(why) => f.write_str(why),
            Self::Unknown => f.write_str("a script is not known"),
        }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Full(why) => Self::Full(why.to_string()),
            failure => Self::Unavailable(failure.to_string()),
        }
    }
}

/// The first failure among the answers, if there is one.
pub(super) fn settle(values: Vec<Value>) -> Answer {
    let failed = values.iter().find_map(|value| if let Value::ServerError(error) = value { Some(error) } else { None });
    match failed {
        Some(error) => Err(Failure::of_server(error)),
        None => Ok(values),
    }
}

/// Sends one command and waits; with the text of its script where Redis does not know that.
pub(super) async fn ask(connection: &mut impl ::redis::aio::ConnectionLike, cmd: &Cmd) -> Result<Value, Failure> {
    let send = async |connection: &mut _, cmd: &Cmd| {
        let value = ::redis::aio::ConnectionLike::req_packed_command(connection, cmd).await;
        let value = value.map_err(|error| Failure::of(&error))?;
        settle(vec![value]).map(|mut values| values.pop().unwrap_or_default())
    };
    match send(connection, cmd).await {
        Err(Failure::Unknown) => match scripts::in_full(cmd) {
            Some(full) => send(connection, &full).await,
            None => Err(Failure::Unknown),
        },
        result => result,
    }
}

/// A command with these arguments.
pub(super) fn cmd(args: &[&[u8]]) -> Cmd {
    let mut cmd = Cmd::new();
    for arg in args {
        cmd.arg(*arg);
    }
    cmd
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_redis_says_is_understood_in_every_version() {
        let told = |code: &str, detail: &str| Failure::told(code, Some(detail));
        assert!(matches!(told("OOM", "command not allowed when used memory > 'maxmemory'."), Failure::Full(_)));
        let old = "Error running script (call to f_12): @user_script:5: @user_script: 5: -OOM command not allowed when";
        assert!(matches!(told("ERR", old), Failure::Full(_)));
        assert!(matches!(told("READONLY", "You can't write against a read only replica."), Failure::Lost(_)));
        let old = "Error running script (call to f_12): @user_script:5: @user_script: 5: -READONLY You can't write";
        assert!(matches!(told("ERR", old), Failure::Lost(_)));
        assert!(matches!(told("NOSCRIPT", "No matching script."), Failure::Unknown));
        assert!(matches!(told("WRONGTYPE", "Operation against a key"), Failure::Refused(_)));
        assert!(matches!(told("ERR", "the OOM is not at fault"), Failure::Refused(_)));
    }
}
