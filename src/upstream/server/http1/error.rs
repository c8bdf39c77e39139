//! Errors of the HTTP/1.1 client.

use std::io;

use crate::body::BoxError;
use crate::protocol::http1;

/// Error of a request without a response.
#[derive(Debug, thiserror::Error)]
pub(in crate::upstream::server) enum Error {
    #[error("there is no connection to the upstream")]
    Connect(#[source] BoxError),
    /// The server chose HTTP/2 for a new connection. Nothing was sent on it.
    #[error("the upstream speaks HTTP/2")]
    Http2,
    /// No byte of the request had left.
    #[error("the connection broke before the request")]
    Unsent(#[source] io::Error),
    #[error("the connection broke before the response")]
    Broken(#[source] io::Error),
    #[error(transparent)]
    Malformed(#[from] http1::Error),
}
