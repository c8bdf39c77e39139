//! The proxy's own `server/discover`, which shows whether the server has tasks.
//!
//! Clients send it too, and the proxy reads the responses that they get. It sends its own request
//! only where a call could become a task and no response is known. Absent: the meaning of the
//! response (`protocol/tasks/discovery.rs`).

use std::sync::Arc;
use std::time::Duration;

use tracing::{Instrument, debug};

use super::observed::Credentials;
use super::server::request::Template;
use super::server::sse_reader::messages;
use super::server::synthetic::discover_request_as;
use super::stack::Upstream;
use crate::clock;
use crate::protocol::era::{CAPABILITIES, CLIENT_INFO};
use crate::protocol::headers::names;
use crate::protocol::jsonrpc;
use crate::protocol::tasks::Discovery;

/// Time limit of the request.
const WAIT: Duration = Duration::from_secs(5);
/// Size limit of the response.
const RESPONSE_MAX: usize = 1024 * 1024;

/// Sends the request in a separate task, with the credentials of `call`, unless it was sent with
/// them a few seconds ago. A 2xx also shows that the server accepts these credentials.
pub(super) fn discover(upstream: &Arc<Upstream>, call: &Template, credentials: Credentials) {
    if !upstream.observed().begin_discovery(credentials, clock::now()) {
        return;
    }
    let version = call.own_headers().get(names::MCP_PROTOCOL_VERSION).cloned();
    let version = version.and_then(|version| version.to_str().ok().map(str::to_owned));
    // In the client's name: a bridge has a session for each client.
    let client = jsonrpc::parsed_member(call.body(), &["params", "_meta", CLIENT_INFO]);
    let capabilities = jsonrpc::parsed_member(call.body(), &["params", "_meta", CAPABILITIES]);
    let request = discover_request_as(call, version, client, capabilities);
    let upstream = upstream.clone();
    let discovery = async move {
        let outcome = tokio::time::timeout(WAIT, send_and_record(&upstream, &request, credentials)).await;
        debug!(answer = ?outcome.ok().flatten(), "the server was asked for its tasks");
    };
    tokio::spawn(discovery.in_current_span());
}

async fn send_and_record(upstream: &Upstream, request: &Template, credentials: Credentials) -> Option<Discovery> {
    let began = clock::now();
    let response = upstream.send(request).await.ok()?;
    upstream.observed().record_status(credentials, response.status(), began, clock::now());
    let messages = messages(response, RESPONSE_MAX).await?;
    let discovery = messages.iter().find_map(|message| Discovery::of(message))?;
    upstream.observed().record_discovery(discovery, clock::now());
    Some(discovery)
}
