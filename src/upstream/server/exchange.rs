//! The interface between a layer of the upstream and the layer below it.

use http::Response;

use super::request::Template;
use super::response_body::ResponseBody;
use super::sent::Sent;
use super::strangers::WayRefused;
use crate::protocol::error::Failure;

/// A request without a response.
#[derive(Debug)]
pub(in crate::upstream) struct Unanswered {
    pub(in crate::upstream) failure: Failure,
    /// True if no connection to the server was made, or no byte of the request was accepted. A
    /// failed TLS handshake does not count: a restart of the server does not repair it.
    pub(in crate::upstream) is_unconnected: bool,
    /// Cause of a failure that comes again at each attempt, if the caller is to be told.
    pub(in crate::upstream) refused: Option<Box<WayRefused>>,
}

impl From<Failure> for Unanswered {
    fn from(failure: Failure) -> Self {
        Self { failure, is_unconnected: false, refused: None }
    }
}

/// Result of a request: the response head with its body, or the reason for its absence.
pub(in crate::upstream) type Exchanged = Result<Response<ResponseBody>, Unanswered>;

/// As [`Exchanged`], with the response in a box: it passes through the layers as a pointer.
pub(in crate::upstream) type ExchangedInBox = Result<Box<Response<ResponseBody>>, Unanswered>;

/// A layer of the upstream, or the server itself.
pub(in crate::upstream) trait Exchange: Sync {
    /// Sends a request to the endpoint and waits for the response head. A request whose bytes were
    /// written is never sent again. Does not wait for a server that accepts no connections. `sent`
    /// records that bytes of the request may have left.
    fn exchange_in_box(&self, template: &Template, sent: Option<&Sent>) -> impl Future<Output = ExchangedInBox> + Send;

    /// As [`Self::exchange_in_box`], for a caller that takes the response apart.
    fn exchange(&self, template: &Template, sent: Option<&Sent>) -> impl Future<Output = Exchanged> + Send {
        async move { self.exchange_in_box(template, sent).await.map(|response| *response) }
    }
}
