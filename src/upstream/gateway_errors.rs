//! Statuses of a gateway in front of the server, while the server is replaced.
//!
//! An ingress responds with 502, 503 or 504 as long as no server is behind it, for example during a
//! deploy. Clients drop a server that refuses `initialize` or a list so. Owned here: the further
//! attempts of such a request until `upstream.wait_secs` after its first. Invariants: a request
//! with effects is never sent again; a JSON-RPC body is the server's own response, and passes.
//! Absent: the signs of such a response ([`super::gateway_status`]), and servers that accept no
//! connections ([`super::wait`]).

use std::sync::Arc;
use std::time::Instant;

use http::Response;
use tracing::debug;

use super::gateway_status::{PAUSES, examine, is_gateway_status, pause_before};
use super::metrics::Metrics;
use super::server::exchange::{Exchange, Unanswered};
use super::server::request::Template;
use super::server::response_body::ResponseBody;
use super::server::sent::Sent;
use super::stack::Upstream;
use super::wait::{Waiting, withdrawn};
use crate::clock;
use crate::event_log::Stream;
use crate::protocol::effects;
use crate::protocol::error::Failure;
use crate::protocol::jsonrpc::{self, Body, Message};

/// Returns true if the response may be a gateway's, and the request can be sent again. A proof is
/// for one request.
pub(super) fn may_concern(template: &Template, response: &Response<ResponseBody>) -> bool {
    is_gateway_status(response) && !template.has_proof() && can_repeat(template.body())
}

/// Returns true for a body without effects, and for `initialize`: a session that no client knows
/// the name of ends by itself.
fn can_repeat(body: &[u8]) -> bool {
    let is_initialize =
        |message: &Message| matches!(message, Message::Request { method, .. } if method == "initialize");
    effects::are_absent(body)
        || jsonrpc::peek(body).is_ok_and(|body| matches!(&body, Body::Single(message) if is_initialize(message)))
}

/// Sends the request of a call again while the response is a gateway's. The call began at `began`.
/// Returns the last response, and true if the request was sent again.
///
/// # Errors
/// The failure of the last attempt, unless no connection was made for it.
pub(super) async fn ask_again(
    upstream: &Upstream,
    (template, stream): (&Template, &Arc<Stream>),
    metrics: &Metrics,
    began: Instant,
    mut response: Box<Response<ResponseBody>>,
) -> (Result<Box<Response<ResponseBody>>, Failure>, bool) {
    let until = began + upstream.server().http().config().wait;
    let (mut pauses, mut waiting) = (PAUSES, None);
    let sent = Sent::In(stream.clone());
    loop {
        let (examined, is_gateway) = examine(*response).await;
        response = Box::new(examined);
        let pause = pause_before(until, response.headers(), &mut pauses);
        let Some(pause) = pause.filter(|_| is_gateway) else {
            let has_waited = waiting.is_some();
            if let Some(waiting) = waiting {
                Waiting::end(waiting, !is_gateway);
            }
            return (Ok(response), has_waited);
        };
        debug!(stream.id = %stream.id(), status = response.status().as_u16(), "a gateway has no server");
        waiting.get_or_insert_with(|| Waiting::begin(stream, metrics, began));
        // Nothing of the request has run, and a call that waits can be withdrawn.
        stream.upstream().set_unsent();
        tokio::select! {
            biased;
            () = withdrawn(stream) => return (Ok(response), true),
            () = clock::sleep(pause) => {}
        }
        match upstream.exchange_in_box(template, Some(&sent)).await {
            Ok(next) if is_gateway_status(&next) => response = next,
            // The gateway itself is restarted.
            Err(Unanswered { is_unconnected: true, .. }) => {}
            exchanged => {
                if let Some(waiting) = waiting {
                    Waiting::end(waiting, true);
                }
                return (exchanged.map_err(|unanswered| unanswered.failure), true);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_with_effects_are_never_repeated() {
        let body = |method: &str| format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}"}}"#);
        for method in ["initialize", "ping", "tools/list", "resources/templates/list", "server/discover"] {
            assert!(can_repeat(body(method).as_bytes()), "{method}");
        }
        assert!(can_repeat(b""), "a GET");
        for method in ["tools/call", "acme/list", "tasks/cancel", "notifications/initialized"] {
            assert!(!can_repeat(body(method).as_bytes()), "{method}");
        }
        let batch = |first: &str, second: &str| format!("[{},{}]", body(first), body(second));
        assert!(can_repeat(batch("ping", "tools/list").as_bytes()));
        assert!(!can_repeat(batch("initialize", "tools/call").as_bytes()));
    }
}
