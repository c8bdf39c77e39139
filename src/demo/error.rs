//! Errors of the demo.

use std::io;
use std::time::Duration;

use crate::{config, sidecar};

/// Longest duration of the show. A slower proxy fails it.
pub(super) const SHOW_LIMIT: Duration = Duration::from_secs(15);

/// Failure of the demo.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The proxy's configuration was refused.
    #[error(transparent)]
    Config(#[from] config::Problems),
    /// The proxy could not start, or failed.
    #[error(transparent)]
    Proxy(#[from] sidecar::Error),
    /// The proxy ended before the show did.
    #[error("the proxy ended early")]
    ProxyEnded,
    /// The built-in server or the relay could not start, or stdout failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The client got no response.
    #[error("the client got no response: {0}")]
    NoResponse(#[from] hyper_util::client::legacy::Error),
    /// The client got an incomplete response to a request other than the call.
    #[error("the client got an incomplete response: {0}")]
    Incomplete(#[from] hyper::Error),
    /// The response differs from the protocol's specification.
    #[error("the response to {request} has the status {status}")]
    Unexpected {
        /// Request that was sent.
        request: String,
        /// Status of the response.
        status: hyper::StatusCode,
    },
    /// An event was lost, repeated or misplaced.
    #[error("the call did not arrive exactly once: {0}")]
    NotExactlyOnce(String),
    /// The show did not end in time.
    #[error("the show took longer than {} s", SHOW_LIMIT.as_secs())]
    TooLong,
}
