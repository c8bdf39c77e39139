//! The proxy's own `server/discover`, which shows whether the server has tasks.
//!
//! Clients ask it too, and the proxy reads the answers that they get. It asks by itself only where
//! a call could become a task and no answer is known. Absent: the meaning of the answer
//! (`protocol/tasks/discovery.rs`).

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tracing::{Instrument, debug};

use super::observed::Credentials;
use super::server::request::Template;
use super::server::sse_reader::messages;
use super::server::synthetic::{CAPABILITIES, CLIENT_INFO, discover_request_as};
use super::stack::Upstream;
use crate::clock;
use crate::protocol::headers::names;
use crate::protocol::jsonrpc;
use crate::protocol::tasks::Discovery;

/// Time limit of the question.
const WAIT: Duration = Duration::from_secs(5);
/// Size limit of the answer.
const ANSWER_MAX: usize = 1024 * 1024;

/// Sends the request in a task of its own, with the credentials of `call`, unless that was done a
/// few seconds ago. A 2xx shows that the server accepts these credentials, too.
pub(super) fn discover(upstream: &Arc<Upstream>, call: &Template, credentials: Credentials) {
    if !upstream.observed().begin_discovery(credentials, clock::now()) {
        return;
    }
    let version = call.own_headers().get(names::MCP_PROTOCOL_VERSION).cloned();
    let version = version.and_then(|version| version.to_str().ok().map(str::to_owned));
    // As the client: a bridge has a session for each.
    let request = discover_request_as(
        call,
        version,
        value_at(call, &["params", "_meta", CLIENT_INFO]),
        value_at(call, &["params", "_meta", CAPABILITIES]),
    );
    let upstream = upstream.clone();
    let asking = async move {
        let answer = tokio::time::timeout(WAIT, ask(&upstream, &request, credentials)).await;
        debug!(answer = ?answer.ok().flatten(), "the server was asked for its tasks");
    };
    tokio::spawn(asking.in_current_span());
}

async fn ask(upstream: &Upstream, request: &Template, credentials: Credentials) -> Option<Discovery> {
    let began = clock::now();
    let response = upstream.send(request, None).await.ok()?;
    upstream.observed().note_status(credentials, response.status(), began, clock::now());
    let messages = messages(response, ANSWER_MAX).await?;
    let discovery = messages.iter().find_map(|message| Discovery::of(message))?;
    upstream.observed().note_discovery(discovery, clock::now());
    Some(discovery)
}

fn value_at(call: &Template, path: &'static [&'static str]) -> Option<Value> {
    jsonrpc::member(call.body(), path).and_then(|value| serde_json::from_str(value).ok())
}
