//! Question of the proxy's own, by `server/discover`: whether the server has tasks.
//!
//! Clients ask it too, and the proxy reads the answers that they get. It asks by itself only where
//! a call could become a task and no answer is known. Absent: the meaning of the answer
//! (`protocol/tasks/discovery.rs`).

use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use serde_json::{Value, json};
use tracing::{Instrument, debug};

use super::body::collect;
use super::tool_schemas::events;
use super::{Credentials, Template, Upstream, synthetic};
use crate::clock;
use crate::protocol::headers::{self, names};
use crate::protocol::jsonrpc;
use crate::protocol::tasks::Discovery;

/// Time limit of the question.
const WAIT: Duration = Duration::from_secs(5);
/// Size limit of the answer.
const ANSWER_MAX: usize = 1024 * 1024;
/// Protocol version of a modern question if the caller names none.
pub(super) const MODERN: &str = "2026-07-28";
const VERSION: &str = "io.modelcontextprotocol/protocolVersion";
const CLIENT_INFO: &str = "io.modelcontextprotocol/clientInfo";
const CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";

impl Upstream {
    /// Asks the server in a task of its own, with the credentials of `call`, unless it was asked so
    /// a few seconds ago. A 2xx shows that the server accepts these credentials, too.
    pub(super) fn discover(self: &Arc<Self>, call: &Template, credentials: Credentials) {
        if !self.observed().begin_discovery(credentials, clock::now()) {
            return;
        }
        let version = call.own_headers().get(names::MCP_PROTOCOL_VERSION).cloned();
        let version = version.and_then(|version| version.to_str().ok().map(str::to_owned));
        // As the client: a bridge has a session for each.
        let request = request_as(
            call,
            version,
            value_at(call, &["params", "_meta", CLIENT_INFO]),
            value_at(call, &["params", "_meta", CAPABILITIES]),
        );
        let upstream = self.clone();
        let ask = async move {
            let answer = tokio::time::timeout(WAIT, upstream.ask_discovery(&request, credentials)).await;
            debug!(answer = ?answer.ok().flatten(), "the server was asked for its tasks");
        };
        tokio::spawn(ask.in_current_span());
    }

    async fn ask_discovery(&self, request: &Template, credentials: Credentials) -> Option<Discovery> {
        let began = clock::now();
        let response = self.send(request, None).await.ok()?;
        self.observed().note_status(credentials, response.status(), began, clock::now());
        let is_sse = headers::is_sse(response.headers());
        let body = collect(response.into_body(), ANSWER_MAX).await.ok()?;
        let messages = if is_sse { events(&body) } else { vec![body] };
        let discovery = messages.iter().find_map(|message| Discovery::of(message))?;
        self.observed().note_discovery(discovery, clock::now());
        Some(discovery)
    }
}

fn value_at(call: &Template, path: &'static [&'static str]) -> Option<Value> {
    jsonrpc::member(call.body(), path).and_then(|value| serde_json::from_str(value).ok())
}

/// Returns the request `server/discover` with the credentials of `call`, at this revision or the
/// first of its era.
pub(super) fn discover_request(call: &Template, version: Option<String>) -> Template {
    request_as(call, version, None, None)
}

fn request_as(
    call: &Template,
    version: Option<String>,
    client: Option<Value>,
    capabilities: Option<Value>,
) -> Template {
    let client = client.unwrap_or_else(|| json!({ "name": "mcp-resume", "version": env!("CARGO_PKG_VERSION") }));
    let version = version.unwrap_or_else(|| MODERN.to_owned());
    let method = "server/discover";
    let meta = json!({
        VERSION: version,
        CLIENT_INFO: client,
        CAPABILITIES: capabilities.unwrap_or_else(|| json!({})),
    });
    let id = synthetic::own_id();
    let discover = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": { "_meta": meta } });
    let version = HeaderValue::from_str(&version).unwrap_or(HeaderValue::from_static(MODERN));
    synthetic::post(call, discover.to_string().into_bytes())
        .with(names::MCP_PROTOCOL_VERSION, version)
        .with(names::MCP_METHOD, HeaderValue::from_static(method))
}
