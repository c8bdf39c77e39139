//! MCP as the tests speak it: sessions, payloads, event IDs.

use super::client::Request;
use super::proxy::Proxy;
use super::upstream::Upstream;
use serde_json::{Value, json};

pub(crate) const V2025_03: &str = "2025-03-26";
pub(crate) const V2025_06: &str = "2025-06-18";
pub(crate) const V2025_11: &str = "2025-11-25";
pub(crate) const V2026: &str = "2026-07-28";

/// An initialized session of the legacy era.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    pub(crate) id: String,
    version: &'static str,
    authorization: Option<String>,
}

impl Session {
    pub(crate) async fn open(proxy: &Proxy, upstream: &mut Upstream, version: &'static str) -> Session {
        Session::open_as(proxy, upstream, version, "s-1", None).await
    }

    /// One whose `initialize` the proxy has not seen: it was restarted, or the client's credentials
    /// were refreshed.
    pub(crate) fn opened_elsewhere(version: &'static str, id: &str, authorization: Option<&str>) -> Session {
        Session { id: id.to_owned(), version, authorization: authorization.map(str::to_owned) }
    }

    /// With this session id from the upstream and these credentials of the client.
    pub(crate) async fn open_as(
        proxy: &Proxy,
        upstream: &mut Upstream,
        version: &'static str,
        id: &str,
        authorization: Option<&str>,
    ) -> Session {
        let session = Session::opened_elsewhere(version, id, authorization);
        let mut request = Request::post(initialize(version));
        if let Some(value) = authorization {
            request = request.with("Authorization", value);
        }
        let pending = request.start(proxy.addr).await;
        let call = upstream.expect("initialize").await;
        let answer = json!({"jsonrpc": "2.0", "id": 0, "result": {
            "protocolVersion": version,
            "capabilities": {"tools": {}, "logging": {}},
            "serverInfo": {"name": "scripted", "version": "1"}}});
        call.json_with(200, &format!("mcp-session-id: {id}\r\n"), answer.to_string()).await;
        let mut response = pending.response().await;
        assert_eq!(response.status, 200);
        assert_eq!(response.json().await, answer);
        assert_eq!(response.header("mcp-session-id"), Some(id));

        let ready = session.post(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#).start(proxy.addr).await;
        upstream.expect("notifications/initialized").await.status(202).await;
        assert_eq!(ready.response().await.status, 202);
        session
    }

    pub(crate) fn post(&self, body: impl AsRef<[u8]>) -> Request {
        self.own(Request::post(body))
    }

    /// A GET of the standalone stream, or of another with `resume_from`.
    pub(crate) fn get(&self) -> Request {
        self.own(Request::get())
    }

    pub(crate) fn resume(&self, id: &str) -> Request {
        self.get().resume_from(id)
    }

    pub(crate) fn delete(&self) -> Request {
        self.own(Request::new("DELETE", "/mcp"))
    }

    fn own(&self, request: Request) -> Request {
        let request = request.with("Mcp-Session-Id", &self.id);
        // The first revision has no such header.
        let request = match self.version {
            V2025_03 => request,
            version => request.with("MCP-Protocol-Version", version),
        };
        match &self.authorization {
            Some(value) => request.with("Authorization", value),
            None => request,
        }
    }
}

pub(crate) fn initialize(version: &str) -> String {
    json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
        "protocolVersion": version, "capabilities": {"sampling": {}},
        "clientInfo": {"name": "raw", "version": "1"}}})
    .to_string()
}

/// A legacy `tools/call` that wants progress.
pub(crate) fn call(id: impl Into<Value>) -> String {
    call_tool(id, "slow")
}

pub(crate) fn call_tool(id: impl Into<Value>, tool: &str) -> String {
    json!({"jsonrpc": "2.0", "id": id.into(), "method": "tools/call",
        "params": {"name": tool, "arguments": {}, "_meta": {"progressToken": 7}}})
    .to_string()
}

/// A modern request: the version in `_meta` and in the header, no session.
pub(crate) fn modern(id: impl Into<Value>) -> Request {
    modern_method(id, "tools/call")
}

pub(crate) fn modern_method(id: impl Into<Value>, method: &str) -> Request {
    let body = json!({"jsonrpc": "2.0", "id": id.into(), "method": method, "params": {
        "name": "slow", "arguments": {}, "_meta": {
            "io.modelcontextprotocol/protocolVersion": V2026,
            "io.modelcontextprotocol/clientInfo": {"name": "raw", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {}}}});
    Request::post(body.to_string())
        .with("MCP-Protocol-Version", V2026)
        .with("Mcp-Method", method)
        .with("Mcp-Name", "slow")
}

/// A modern client coming back.
pub(crate) fn modern_resume(id: &str) -> Request {
    Request::get().with("MCP-Protocol-Version", V2026).resume_from(id)
}

pub(crate) fn progress(n: u64) -> String {
    format!(r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":7,"progress":{n}}}}}"#)
}

pub(crate) fn result(id: impl Into<Value>) -> String {
    json!({"jsonrpc": "2.0", "id": id.into(),
        "result": {"content": [{"type": "text", "text": "done"}]}})
    .to_string()
}

/// The three parts an event ID can have.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct EventId {
    pub(crate) handle: String,
    pub(crate) seq: String,
    pub(crate) attach: Option<String>,
}

impl EventId {
    pub(crate) fn of(text: &str) -> EventId {
        let parts: Vec<&str> = text.split('.').collect();
        assert!(matches!(parts.len(), 2 | 3), "not an event ID: {text}");
        EventId { handle: parts[0].to_owned(), seq: parts[1].to_owned(), attach: parts.get(2).map(|s| (*s).to_owned()) }
    }

    /// Returns the event ID of another event in the stream.
    pub(crate) fn at(&self, seq: impl ToString) -> String {
        format!("{}.{}", self.handle, seq.to_string())
    }

    /// Returns a well-formed event ID with an invalid signature.
    pub(crate) fn forged(&self) -> EventId {
        let mut handle = self.handle.clone().into_bytes();
        // Not the last character: it may carry padding bits alone.
        let at = handle.len() - 3;
        handle[at] = if handle[at] == b'A' { b'B' } else { b'A' };
        EventId { handle: String::from_utf8(handle).expect("ASCII stays ASCII"), ..self.clone() }
    }
}

/// Asserts an error of the proxy's own for this request.
#[track_caller]
pub(crate) fn assert_fault(message: &Value, id: impl Into<Value>, code: i64, fault: &str) {
    assert_eq!(message["jsonrpc"], "2.0", "{message}");
    assert_eq!(message["id"], id.into(), "{message}");
    assert_eq!(message["error"]["code"], code, "{message}");
    let data = &message["error"]["data"];
    assert_eq!(data["fault"], fault, "{message}");
    assert!(data["error"].is_string(), "{message}");
    let text = message["error"]["message"].as_str().expect("a text");
    let says_so = [MAY_HAVE_RUN, MAY_HAVE_BEEN_CARRIED_OUT].iter().any(|end| text.ends_with(end));
    assert_eq!(data["mayHaveRun"], says_so, "{message}");
    assert!(message.get("result").is_none(), "{message}");
}

/// The end of the text of an error whose tool may have run, or whose other request may have.
pub(crate) const MAY_HAVE_RUN: &str = "; the tool may have run: check whether it did before you call it again";
pub(crate) const MAY_HAVE_BEEN_CARRIED_OUT: &str = "; the request may have been carried out";

/// The text of an error of the proxy whose tool may have run.
pub(crate) fn after_a_run(text: &str) -> String {
    format!("{text}{MAY_HAVE_RUN}")
}

pub(crate) const UPSTREAM_FAILED: i64 = -32010;
pub(crate) const ABANDONED: i64 = -32011;
pub(crate) const GONE: i64 = -32012;
pub(crate) const BOUND: i64 = -32013;
