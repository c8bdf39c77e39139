//! Users of a channel, its end, and the beginning of a call on it.

use std::time::Instant;

use tokio::sync::oneshot;

use crate::channel::body::{Events, Response as HttpResponse};
use crate::protocol::channel::ids::IdInUse;
use crate::protocol::error::ErrorCode;

/// Users of a channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(in crate::channel) enum Users {
    /// One session.
    #[default]
    Session,
    /// Sessions of one caller with equal parameters. The server sees request IDs of the proxy.
    Sessions,
    /// One principal, without sessions. Request IDs as for [`Users::Sessions`].
    Principal,
    /// Callers without credentials and without sessions. Request IDs as for [`Users::Sessions`]. A
    /// message that names no call may be for any of these callers, so none gets it.
    Anonymous,
}

/// Reason for the end of a channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::channel) enum End {
    /// The session was ended on purpose.
    Closed,
    /// The server has ended, closed its output, or accepts no more messages.
    Lost,
}

/// Use of a channel.
#[derive(Clone, Copy, Debug)]
pub(in crate::channel) struct Activity {
    /// True while a call runs.
    pub(in crate::channel) is_busy: bool,
    /// Time of the last message for the server, or of the last end of a call.
    pub(in crate::channel) last_use: Option<Instant>,
}

/// The channel did not take a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(in crate::channel) enum Refused {
    #[error("the channel has ended")]
    Ended,
    #[error("too much waits to be written")]
    Full,
    #[error(transparent)]
    IdInUse(#[from] IdInUse),
    #[error("the session has a GET already")]
    Listening,
    #[error("the message has two ids")]
    TwoIds,
}

impl Refused {
    /// Returns the error for the client.
    pub(in crate::channel) fn code(self) -> ErrorCode {
        match self {
            Self::Ended => ErrorCode::SessionUnknown,
            Self::Full => ErrorCode::ChannelFull,
            Self::IdInUse(_) => ErrorCode::IdInUse,
            Self::Listening | Self::TwoIds => ErrorCode::BadRequest,
        }
    }
}

/// A call whose request waits to be written.
pub(in crate::channel) struct PendingCall {
    pub(in crate::channel) events: Events,
    pub(super) begun: oneshot::Receiver<Begun>,
}

/// The beginning of a call.
pub(in crate::channel) enum Begun {
    /// The server may have received part of the request.
    Written,
    /// The server has refused the request.
    Refused(Box<HttpResponse>),
    /// The channel ended before.
    Ended,
}

impl PendingCall {
    /// Waits for the beginning of the call.
    pub(in crate::channel) async fn begun(&mut self) -> Begun {
        (&mut self.begun).await.unwrap_or(Begun::Ended)
    }
}
