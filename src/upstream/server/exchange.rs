//! The interface between a layer of the upstream and the layer below it.

use std::sync::Arc;

use http::Response;

use super::request::Template;
use super::response_body::ResponseBody;
use crate::event_log::Stream;
use crate::protocol::error::Failure;

/// A request without a response.
#[derive(Debug)]
pub(in crate::upstream) struct Unanswered {
    pub(in crate::upstream) failure: Failure,
    /// True if no connection to the server was made, or no byte of the request was accepted. A
    /// failed TLS handshake does not count: a restart of the server does not repair it.
    pub(in crate::upstream) is_unconnected: bool,
}

impl From<Failure> for Unanswered {
    fn from(failure: Failure) -> Self {
        Self { failure, is_unconnected: false }
    }
}

/// Result of a request: the response head with its body, or the reason for its absence.
pub(in crate::upstream) type Exchanged = Result<Response<ResponseBody>, Unanswered>;

/// A layer of the upstream, or the server itself.
pub(in crate::upstream) trait Exchange: Sync {
    /// Sends a request to the endpoint and waits for the response head. A request whose bytes were
    /// written is never sent again. Does not wait for a server that accepts no connections. The
    /// stream `sent` of the request records that bytes of it may have left.
    fn exchange(&self, template: &Template, sent: Option<&Arc<Stream>>) -> impl Future<Output = Exchanged> + Send;
}
