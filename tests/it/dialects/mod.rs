//! The resumption proposals, each by its document, on one stream log.

mod requests;
mod streams;
mod together;
pub(crate) mod tokens;
pub(crate) mod url;

use serde_json::{Value, json};

use crate::support::*;

/// A session whose client declared these capabilities; with them the `initialize` that the upstream
/// saw.
pub(crate) async fn open(
    proxy: &Proxy,
    upstream: &mut Upstream,
    capabilities: Value,
    id: Option<&str>,
) -> (Session, Value) {
    let body = json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": capabilities, "clientInfo": { "name": "c", "version": "1" },
    } });
    let pending = Request::post(body.to_string()).start(proxy.addr).await;
    let call = upstream.expect("initialize").await;
    let seen = call.json_body();
    let answer = json!({ "jsonrpc": "2.0", "id": 0, "result": {
        "protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": { "name": "s", "version": "1" },
    } });
    let named = id.map(|id| format!("mcp-session-id: {id}\r\n")).unwrap_or_default();
    call.json_with(200, &named, answer.to_string()).await;
    let mut response = pending.response().await;
    let named = response.header("mcp-session-id").map(str::to_owned);
    response.json().await;
    let named = named.expect("a session");
    (Session::opened_elsewhere("2025-11-25", &named, None), seen)
}

/// A request of a dialect.
pub(crate) fn ask(id: Value, method: &str, params: Value) -> String {
    json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }).to_string()
}

/// Every token that opens nothing gets these bytes.
pub(crate) fn refused(id: Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "error": {
        "code": -32602, "message": "the resume token opens nothing here",
        "data": { "error": "token_refused", "fault": "client", "mayHaveRun": false },
    } })
}
