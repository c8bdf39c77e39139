//! Failures of calls to Redis, as its replies and its connections report them.

use std::sync::Arc;

use ::redis::{ErrorKind, RedisError, ServerError, Value};

use crate::Error;

/// Replies to the steps of a call, or their first failure.
pub(super) type Replies = Result<Vec<Value>, Failure>;

/// Failure of a call.
#[derive(Clone, Debug)]
pub(super) enum Failure {
    /// No reply came, or an error because this server takes no writes now. Another connection may
    /// help.
    Lost(Arc<str>),
    /// Redis has no memory for the data.
    Full(Arc<str>),
    /// Redis does not know the script.
    UnknownScript,
    /// Redis refused the call, and will refuse it again.
    Refused(Arc<str>),
}

/// Error codes of a server that cannot take the call now: it is not the master, is busy or loading,
/// or refuses the login. Another connection may reach a server that can.
const UNAVAILABLE_CODES: [&str; 13] = [
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

impl Failure {
    /// Returns the failure of a call without a reply.
    pub(super) fn lost(why: &str) -> Self {
        Self::Lost(why.into())
    }

    pub(super) fn of(error: &RedisError) -> Self {
        match error.kind() {
            ErrorKind::Server(_) | ErrorKind::Extension => {
                Self::of_reply(error.code().unwrap_or_default(), error.detail())
            }
            ErrorKind::UnexpectedReturnType | ErrorKind::InvalidClientConfig | ErrorKind::Client => {
                Self::Refused(error.to_string().into())
            }
            _ => Self::Lost(error.to_string().into()),
        }
    }

    fn of_server(error: &ServerError) -> Self {
        Self::of_reply(error.code(), error.details())
    }

    /// Returns the failure for an error reply. Before Redis 7, the code of a command refused within
    /// a script appears only in the text of a general `ERR`.
    fn of_reply(code: &str, detail: Option<&str>) -> Self {
        let detail = detail.unwrap_or_default();
        let says = |name: &str| {
            code == name || (code == "ERR" && detail.split_once(name).is_some_and(|(before, _)| before.ends_with('-')))
        };
        let text = || format!("{code} {detail}").into();
        if says("OOM") {
            Self::Full(text())
        } else if code == "NOSCRIPT" {
            Self::UnknownScript
        } else if UNAVAILABLE_CODES.iter().any(|name| says(name)) {
            Self::Lost(text())
        } else {
            Self::Refused(text())
        }
    }

    /// Returns true if the connection can no longer be used.
    pub(super) fn breaks_connection(&self) -> bool {
        matches!(self, Self::Lost(_))
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Lost(why) | Self::Full(why) | Self::Refused(why) => f.write_str(why),
            Self::UnknownScript => f.write_str("a script is not known"),
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

/// Returns the replies, or the first failure among them.
pub(super) fn check_replies(values: Vec<Value>) -> Replies {
    let failed = values.iter().find_map(|value| if let Value::ServerError(error) = value { Some(error) } else { None });
    match failed {
        Some(error) => Err(Failure::of_server(error)),
        None => Ok(values),
    }
}

/// Returns the error for a reply in an unknown form: the key holds data of another program.
pub(super) fn unexpected_reply() -> Error {
    Error::Unavailable("Redis sent an invalid reply".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_replies_are_recognised_in_every_version() {
        let of = |code: &str, detail: &str| Failure::of_reply(code, Some(detail));
        assert!(matches!(of("OOM", "command not allowed when used memory > 'maxmemory'."), Failure::Full(_)));
        let old = "Error running script (call to f_12): @user_script:5: @user_script: 5: -OOM command not allowed when";
        assert!(matches!(of("ERR", old), Failure::Full(_)));
        assert!(matches!(of("READONLY", "You can't write against a read only replica."), Failure::Lost(_)));
        let old = "Error running script (call to f_12): @user_script:5: @user_script: 5: -READONLY You can't write";
        assert!(matches!(of("ERR", old), Failure::Lost(_)));
        assert!(matches!(of("NOSCRIPT", "No matching script."), Failure::UnknownScript));
        assert!(matches!(of("WRONGTYPE", "Operation against a key"), Failure::Refused(_)));
        assert!(matches!(of("ERR", "the OOM is not at fault"), Failure::Refused(_)));
    }
}
