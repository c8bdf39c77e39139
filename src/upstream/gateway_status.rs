//! Responses of a gateway in front of the server, while no server is behind it.
//!
//! Owned here: the signs of such a response, the pause before the next attempt, and the attempts of
//! the proxy's own `initialize`. Absent: the attempts of clients' requests
//! ([`super::gateway_errors`]).

use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{HeaderMap, Response, StatusCode};

use super::server::body::begun;
use super::server::exchange::{Exchange, Exchanged};
use super::server::request::Template;
use super::server::response_body::ResponseBody;
use crate::backoff::Backoff;
use crate::clock;
use crate::protocol::headers;
use crate::protocol::jsonrpc;

/// Pauses before further attempts, if the response names no time.
pub(super) const PAUSES: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(4));
/// Shortest pause that a response can name.
const SHORTEST: Duration = Duration::from_millis(100);
/// Size limit of a body that can be a JSON-RPC error, in bytes. A larger body in JSON passes.
const BODY_MAX: usize = 64 * 1024;
/// Longest wait for such a body.
const BODY_WAIT: Duration = Duration::from_secs(1);

/// Returns true for a status of a gateway without a server.
pub(super) fn is_gateway_status(response: &Response<ResponseBody>) -> bool {
    let statuses = [StatusCode::BAD_GATEWAY, StatusCode::SERVICE_UNAVAILABLE, StatusCode::GATEWAY_TIMEOUT];
    statuses.contains(&response.status()) && !headers::is_sse(response.headers())
}

/// Sends an `initialize` of the proxy's own. Sends it again while the response is a gateway's, for
/// `wait` at most. A session that the server has opened for an earlier one ends by itself.
///
/// # Errors
/// As [`Exchange::exchange`], and without a further attempt.
pub(super) async fn initialize(server: &impl Exchange, template: &Template, wait: Duration) -> Exchanged {
    let (until, mut pauses) = (clock::now() + wait, PAUSES);
    loop {
        let response = server.exchange(template, None).await?;
        if !is_gateway_status(&response) || template.has_proof() {
            return Ok(response);
        }
        let (response, is_gateway) = examine(response).await;
        let pause = pause_of(response.headers()).unwrap_or_else(|| pauses.next_pause());
        if !is_gateway || clock::now() + pause > until {
            return Ok(response);
        }
        clock::sleep(pause).await;
    }
}

/// Reads a response far enough to know whether it is a gateway's. The returned response has its
/// whole body.
pub(super) async fn examine(response: Response<ResponseBody>) -> (Response<ResponseBody>, bool) {
    if !headers::is_read_as_json(response.headers()) {
        return (response, true);
    }
    let (response, body) = begun(response, BODY_MAX, BODY_WAIT).await;
    let is_gateway = body.is_some_and(|body| jsonrpc::peek_any(&body).is_err());
    (response, is_gateway)
}

/// Returns the seconds of `Retry-After`.
pub(super) fn pause_of(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse::<u32>().ok()?;
    Some(Duration::from_secs(u64::from(seconds)).max(SHORTEST))
}
