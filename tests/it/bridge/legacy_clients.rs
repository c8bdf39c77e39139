//! Clients of the revisions with sessions in front of a server of 2026-07-28 alone.

use super::*;

const ENVELOPE: &str = "io.modelcontextprotocol/";

pub(super) async fn stage() -> (Upstream, Proxy) {
    stage_with(|bridge| bridge.modern_clients = ModernClients::Never).await
}

/// A client's session, and the requests in it.
pub(super) struct Legacy {
    pub(super) id: String,
    pub(super) version: &'static str,
    /// The subscription at the server, of a session whose client has begun.
    pub(super) lists: Option<Sse>,
}

impl Legacy {
    pub(super) fn post(&self, body: &Value) -> Request {
        Request::post(body.to_string()).with("Mcp-Session-Id", &self.id).with("MCP-Protocol-Version", self.version)
    }

    pub(super) fn request(&self, id: impl Into<Value>, method: &str, params: Value) -> Request {
        self.post(&json!({"jsonrpc": "2.0", "id": id.into(), "method": method, "params": params}))
    }

    pub(super) fn call(&self, id: impl Into<Value>) -> Request {
        self.request(id, "tools/call", json!({"name": "slow", "arguments": {"a": 1}, "_meta": {"progressToken": 7}}))
    }

    pub(super) fn get(&self) -> Request {
        Request::get().with("Mcp-Session-Id", &self.id).with("MCP-Protocol-Version", self.version)
    }
}

fn client_capabilities() -> Value {
    json!({"elicitation": {"form": {}, "url": {}}, "roots": {"listChanged": true}, "tasks": {}})
}

pub(super) fn initialize_by(version: &str) -> Request {
    let params = json!({"protocolVersion": version, "capabilities": client_capabilities(), "clientInfo": {"name": "raw", "version": "1"}});
    Request::post(json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}).to_string())
}

pub(super) fn discovered(id: &Value) -> String {
    let capabilities = json!({"tools": {"listChanged": true}, "resources": {"subscribe": true}, "logging": {},
        "extensions": {"io.modelcontextprotocol/tasks": {}}});
    let result = json!({"resultType": "complete", "supportedVersions": [V2026], "capabilities": capabilities, "ttlMs": 0,
        "cacheScope": "public", "instructions": "i", "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "s", "version": "1"}}});
    json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string()
}

pub(super) const REFUSAL: &str = r#"{"jsonrpc":"2.0","id":0,"error":{"code":-32022,"message":"Unsupported protocol version","data":{"supported":["2026-07-28"]}}}"#;

/// Questions for the server's capabilities after its first refusal: for its transport, for its era,
/// and for the session.
pub(super) const FIRST: usize = 3;

/// Refuses an `initialize`, and answers as many questions for the server's capabilities.
pub(super) async fn refuses(upstream: &mut Upstream, questions: usize) {
    upstream.expect("initialize").await.json(400, REFUSAL).await;
    for _ in 0..questions {
        let discover = upstream.expect("server/discover").await;
        assert_eq!(
            (discover.header("mcp-method"), discover.header("mcp-protocol-version")),
            (Some("server/discover"), Some(V2026))
        );
        let id = discover.json_body()["id"].clone();
        discover.json(200, discovered(&id)).await;
    }
}

async fn opened_at(upstream: &mut Upstream, proxy: &Proxy, version: &'static str) -> Legacy {
    let pending = initialize_by(version).start(proxy.addr).await;
    refuses(upstream, FIRST).await;
    let mut response = pending.response().await;
    let id = response.header("mcp-session-id").expect("a session").to_owned();
    assert_eq!(response.json().await["result"]["protocolVersion"], version);
    let mut session = Legacy { id, version, lists: None };
    let told = session.post(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).send(proxy.addr).await;
    assert_eq!(told.status, 202);
    let (lists, filter) = listens(upstream).await;
    assert_eq!(filter, json!({"toolsListChanged": true}));
    session.lists = Some(lists);
    session
}

pub(super) async fn opened(upstream: &mut Upstream, proxy: &Proxy) -> Legacy {
    opened_at(upstream, proxy, V2025_11).await
}

/// Answers a request of the proxy with this result under its ID.
pub(super) async fn answers(call: Call, result: Value) {
    let id = call.json_body()["id"].clone();
    call.json(200, json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string()).await;
}

pub(super) fn requires(id: &Value, questions: Value, state: &str) -> String {
    let result = json!({"resultType": "input_required", "inputRequests": questions, "requestState": state});
    json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string()
}

pub(super) fn form() -> Value {
    json!({"method": "elicitation/create", "params": {"mode": "form", "message": "ok?", "requestedSchema": {}}})
}

/// Has the server require the answer to one form for a call. Returns the call's stream, and the
/// question.
pub(super) async fn asked(upstream: &mut Upstream, pending: Client) -> (Response, Value) {
    let call = upstream.expect("tools/call").await;
    let id = call.json_body()["id"].clone();
    call.json(200, requires(&id, json!({"a": form()}), "s")).await;
    let mut response = pending.response().await.sse();
    response.prime().await;
    let asked = response.event().await.json();
    assert_eq!(asked["method"], "elicitation/create");
    (response, asked)
}

#[tokio::test]
async fn the_discovery_is_the_answer_to_the_handshake() {
    let (mut upstream, proxy) = stage().await;
    let pending = initialize_by("2025-06-18").start(proxy.addr).await;
    refuses(&mut upstream, FIRST).await;
    let mut response = pending.response().await;
    assert_eq!(response.status, 200);
    let capabilities = json!({"tools": {"listChanged": true}, "resources": {"subscribe": true}, "logging": {}});
    let result = json!({"protocolVersion": "2025-06-18", "capabilities": capabilities, "serverInfo": {"name": "s", "version": "1"}, "instructions": "i"});
    assert!(response.header("mcp-session-id").is_some_and(|id| id.len() > 32));
    assert_eq!(response.json().await, json!({"jsonrpc": "2.0", "id": 0, "result": result}));
    // The era is known for the next one.
    let pending = initialize_by("2024-11-05").start(proxy.addr).await;
    refuses(&mut upstream, 1).await;
    assert_eq!(pending.response().await.json().await["result"]["protocolVersion"], V2025_11);
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn other_refusals_of_the_handshake_pass() {
    let (mut upstream, proxy) = stage().await;
    for (status, questions) in [(401, 0), (403, 0), (408, 0), (429, 0), (503, 0), (400, 1)] {
        let pending = initialize_by(V2025_11).start(proxy.addr).await;
        upstream.expect("initialize").await.json_with(status, "x-a: b\r\n", REFUSAL).await;
        for _ in 0..questions {
            // The server is of the client's era, and on this transport, and has refused the client
            // for another reason.
            for asked in ["server/discover", "GET", "server/discover"] {
                upstream.expect(asked).await.json(404, "{}").await;
            }
        }
        let mut response = pending.response().await;
        assert_eq!((response.status, response.header("x-a")), (status, Some("b")));
        assert_eq!(response.body().await, REFUSAL.as_bytes());
        assert!(upstream.is_quiet());
    }
}

#[tokio::test]
async fn a_call_is_one_of_the_later_revision_and_its_messages_are_the_clients() {
    let (mut upstream, proxy) = stage().await;
    let session = opened(&mut upstream, &proxy).await;
    let pending = session.call(5).start(proxy.addr).await;
    let call = upstream.expect("tools/call").await;
    assert_eq!((call.header("mcp-protocol-version"), call.header("mcp-session-id")), (Some(V2026), None));
    assert_eq!((call.header("mcp-method"), call.header("mcp-name")), (Some("tools/call"), Some("slow")));
    let sent = call.json_body();
    let meta = json!({"progressToken": 7, format!("{ENVELOPE}protocolVersion"): V2026,
        format!("{ENVELOPE}clientInfo"): {"name": "raw", "version": "1"},
        format!("{ENVELOPE}clientCapabilities"): {"elicitation": {"form": {}, "url": {}}, "roots": {}}});
    assert_eq!(sent["params"], json!({"name": "slow", "arguments": {"a": 1}, "_meta": meta}));
    let sse = call.sse().await;
    let mut response = pending.response().await.sse();
    response.prime().await;
    sse.event(progress_under(&json!(7))).await;
    assert_eq!(response.event().await.json()["params"], json!({"progressToken": 7, "progress": 1}));
    let result = json!({"resultType": "complete", "content": [], "structuredContent": [1]});
    sse.finish(json!({"jsonrpc": "2.0", "id": sent["id"], "result": result}).to_string()).await;
    let told = json!({"content": [{"type": "text", "text": "[1]"}], "structuredContent": {"result": [1]}});
    assert_eq!(response.event().await.json(), json!({"jsonrpc": "2.0", "id": 5, "result": told}));
    response.ends().await;
    // A name that is no text of a header is encoded.
    let pending = session.request(6, "resources/read", json!({"uri": "a:ñ"})).start(proxy.addr).await;
    let read = upstream.expect("resources/read").await;
    assert_eq!(read.header("mcp-name"), Some("=?base64?YTrDsQ==?="));
    answers(read, json!({"resultType": "complete", "contents": [], "ttlMs": 5, "cacheScope": "public"})).await;
    assert_eq!(pending.response().await.json().await["result"], json!({"contents": []}));
}

#[tokio::test]
async fn input_is_asked_for_on_the_stream_and_the_call_is_sent_again() {
    let (mut upstream, proxy) = stage().await;
    let session = opened(&mut upstream, &proxy).await;
    let pending = session.call(5).with("X-Note", "old").start(proxy.addr).await;
    let call = upstream.expect("tools/call").await;
    let first = call.json_body();
    let page = json!({"method": "elicitation/create", "params": {"mode": "url", "url": "https://x.example/", "message": "sign in"}});
    call.json(200, requires(&first["id"], json!({"a": form(), "b": page, "c": {"method": "roots/list"}}), "s-1")).await;
    let mut response = pending.response().await.sse();
    response.prime().await;
    let mut ids = std::collections::HashMap::new();
    for _ in 0..3 {
        let asked = response.event().await.json();
        let kind = asked["params"]["mode"].as_str().unwrap_or("roots").to_owned();
        if kind == "url" {
            assert!(asked["params"]["elicitationId"].is_string(), "{asked}");
        }
        ids.insert(kind, asked["id"].clone());
    }
    for (kind, result) in
        [("roots", json!({"roots": []})), ("url", json!({"action": "accept"})), ("form", json!({"action": "decline"}))]
    {
        let answer = session.post(&json!({"jsonrpc": "2.0", "id": ids[kind], "result": result}));
        assert_eq!(answer.with("X-Note", "new").send(proxy.addr).await.status, 202);
    }
    let again = upstream.expect("tools/call").await;
    assert_eq!((again.header("x-note"), again.header("mcp-name")), (Some("new"), Some("slow")));
    let second = again.json_body();
    assert_ne!(second["id"], first["id"]);
    let expected = json!({"a": {"action": "decline"}, "b": {"action": "accept"}, "c": {"roots": []}});
    assert_eq!((&second["params"]["inputResponses"], &second["params"]["requestState"]), (&expected, &json!("s-1")));
    assert_eq!(second["params"]["arguments"], json!({"a": 1}));
    let sse = again.sse().await;
    // The next round has its own answers alone.
    sse.finish(requires(&second["id"], json!({"a": form()}), "s-2")).await;
    let asked = response.event().await.json();
    let answer = session.post(&json!({"jsonrpc": "2.0", "id": asked["id"], "result": {"action": "accept"}}));
    assert_eq!(answer.send(proxy.addr).await.status, 202);
    let third = upstream.expect("tools/call").await;
    let params = third.json_body()["params"].clone();
    assert_eq!(
        (&params["inputResponses"], &params["requestState"]),
        (&json!({"a": {"action": "accept"}}), &json!("s-2"))
    );
    answers(third, json!({"resultType": "complete", "content": []})).await;
    assert_eq!(response.event().await.json(), json!({"jsonrpc": "2.0", "id": 5, "result": {"content": []}}));
    response.ends().await;
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn a_call_without_its_answers_fails_in_words() {
    let (mut upstream, proxy) = stage().await;
    let session = opened(&mut upstream, &proxy).await;
    let failed = |text: &str| json!({"content": [{"type": "text", "text": text}], "isError": true});
    // A question that the client has not declared.
    let pending = session.call(5).start(proxy.addr).await;
    let call = upstream.expect("tools/call").await;
    let id = call.json_body()["id"].clone();
    call.json(200, requires(&id, json!({"a": {"method": "sampling/createMessage", "params": {}}}), "s")).await;
    let mut response = pending.response().await.sse();
    response.prime().await;
    let told = response.event().await.json();
    assert_eq!(
        told["result"],
        failed("the server asks by sampling/createMessage: the client has not declared this capability")
    );
    // An error in the place of an answer.
    let pending = session.call(6).start(proxy.addr).await;
    let (mut response, asked) = asked(&mut upstream, pending).await;
    let error = json!({"code": -1, "message": "the user is away"});
    let answer = session.post(&json!({"jsonrpc": "2.0", "id": asked["id"], "error": error}));
    assert_eq!(answer.send(proxy.addr).await.status, 202);
    assert_eq!(response.event().await.json()["result"], failed("the user is away"));
    // Another method than that of a tool.
    let pending = session.request(7, "prompts/get", json!({"name": "p"})).start(proxy.addr).await;
    let call = upstream.expect("prompts/get").await;
    let id = call.json_body()["id"].clone();
    call.json(200, requires(&id, json!({"a": {"method": "sampling/createMessage", "params": {}}}), "s")).await;
    let mut response = pending.response().await.sse();
    response.prime().await;
    assert_eq!(response.event().await.json()["error"]["code"], -32603);
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn a_call_that_only_waits_is_sent_again_after_a_while() {
    let (mut upstream, proxy) = stage().await;
    let session = opened(&mut upstream, &proxy).await;
    let pending = session.call(5).start(proxy.addr).await;
    for round in 0..10 {
        let call = upstream.expect("tools/call").await;
        let body = call.json_body();
        assert_eq!(body["params"].get("inputResponses"), None);
        assert_eq!(body["params"].get("requestState").is_some(), round > 0);
        let waits = json!({"resultType": "input_required", "requestState": "s"});
        call.json(200, json!({"jsonrpc": "2.0", "id": body["id"], "result": waits}).to_string()).await;
        settle(&proxy, &mut upstream).await;
        assert!(upstream.is_quiet(), "round {round}");
        pass(Duration::from_secs(5)).await;
    }
    let last = upstream.expect("tools/call").await;
    let id = last.json_body()["id"].clone();
    last.json(
        200,
        json!({"jsonrpc": "2.0", "id": id, "result": {"resultType": "input_required", "requestState": "s"}})
            .to_string(),
    )
    .await;
    let mut response = pending.response().await.sse();
    response.prime().await;
    assert_eq!(response.event().await.json()["result"]["isError"], true);
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn lists_can_be_read_and_arguments_are_repeated_in_headers() {
    let (mut upstream, proxy) = stage().await;
    let session = opened(&mut upstream, &proxy).await;
    let schema = |name: &str| json!({"type": "object", "properties": {"a": {"type": "integer", "x-mcp-header": name}, "b": true}});
    let tools = json!([{"name": "slow", "inputSchema": schema("A"), "outputSchema": {"anyOf": [{"type": "object"}]}},
        {"name": "bad", "inputSchema": schema("a b")}]);
    // The headers are not known: the server says so, and has not run the call.
    let pending = session.call(5).start(proxy.addr).await;
    let call = upstream.expect("tools/call").await;
    assert_eq!(call.header("mcp-param-a"), None);
    let id = call.json_body()["id"].clone();
    call.json(
        400,
        json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32020, "message": "Header mismatch"}}).to_string(),
    )
    .await;
    answers(upstream.expect("tools/list").await, json!({"resultType": "complete", "tools": tools})).await;
    let again = upstream.expect("tools/call").await;
    assert_eq!(again.header("mcp-param-a"), Some("1"));
    // The client knows the tool's results as objects around the server's.
    answers(again, json!({"resultType": "complete", "content": [], "structuredContent": {"x": 1}})).await;
    let told = pending.response().await.json().await;
    assert_eq!(told["result"]["structuredContent"], json!({"result": {"x": 1}}));
    let pending = session.request(6, "tools/list", json!({})).start(proxy.addr).await;
    answers(
        upstream.expect("tools/list").await,
        json!({"resultType": "complete", "tools": tools, "ttlMs": 1, "cacheScope": "public"}),
    )
    .await;
    let listed = pending.response().await.json().await["result"].clone();
    let output =
        json!({"type": "object", "properties": {"result": {"anyOf": [{"type": "object"}]}}, "required": ["result"]});
    let input = json!({"type": "object", "properties": {"a": {"type": "integer", "x-mcp-header": "A"}, "b": {}}});
    assert_eq!(listed, json!({"tools": [{"name": "slow", "inputSchema": input, "outputSchema": output}]}));
    // A mismatch that stays is an internal error to the client.
    let pending = session.call(7).start(proxy.addr).await;
    let call = upstream.expect("tools/call").await;
    let id = call.json_body()["id"].clone();
    let mismatch =
        json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32020, "message": "Header mismatch"}}).to_string();
    call.json(400, mismatch).await;
    answers(upstream.expect("tools/list").await, json!({"resultType": "complete", "tools": tools})).await;
    let call = upstream.expect("tools/call").await;
    let id = call.json_body()["id"].clone();
    call.json(
        400,
        json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32020, "message": "Header mismatch"}}).to_string(),
    )
    .await;
    let mut response = pending.response().await;
    assert_eq!((response.status, &response.json().await["error"]["code"]), (200, &json!(-32603)));
}

#[tokio::test]
async fn errors_are_read_by_the_client_and_refusals_of_the_caller_pass() {
    let (mut upstream, proxy) = stage().await;
    let session = opened(&mut upstream, &proxy).await;
    let cases =
        [(404, -32601, -32601), (400, -32602, -32602), (400, -32021, -32021), (400, -32022, -32603), (200, -5, -5)];
    for (id, (status, code, told)) in (10_u64..).zip(cases) {
        let pending = session.request(id, "x/y", json!({})).start(proxy.addr).await;
        let call = upstream.expect("x/y").await;
        let own = call.json_body()["id"].clone();
        call.json(status, json!({"jsonrpc": "2.0", "id": own, "error": {"code": code, "message": "m"}}).to_string())
            .await;
        let mut response = pending.response().await;
        let error = json!({"jsonrpc": "2.0", "id": id, "error": {"code": told, "message": "m"}});
        assert_eq!((response.status, response.json().await), (200, error), "{code}");
    }
    let pending = session.request(5, "x/y", json!({})).start(proxy.addr).await;
    upstream.expect("x/y").await.status_with(401, "www-authenticate: Bearer\r\n").await;
    let response = pending.response().await;
    assert_eq!((response.status, response.header("www-authenticate")), (401, Some("Bearer")));
}

#[tokio::test]
async fn what_belongs_to_a_session_is_answered_by_the_proxy() {
    let (mut upstream, proxy) = stage().await;
    let session = opened(&mut upstream, &proxy).await;
    assert_eq!(session.request(1, "ping", json!({})).send(proxy.addr).await.json().await["result"], json!({}));
    let level = session.request(2, "logging/setLevel", json!({"level": "warning"})).send(proxy.addr).await.json().await;
    assert_eq!(level["result"], json!({}));
    for method in ["tasks/get", "tasks/list"] {
        let refused = session.request(3, method, json!({"taskId": "x"})).send(proxy.addr).await.json().await;
        assert!(refused["error"]["code"] == -32601 || refused["error"]["code"] == -32602, "{refused}");
    }
    let changed =
        session.post(&json!({"jsonrpc": "2.0", "method": "notifications/roots/list_changed"})).send(proxy.addr).await;
    assert_eq!(changed.status, 202);
    assert!(upstream.is_quiet());
    let pending = session.request(4, "tools/list", json!({})).start(proxy.addr).await;
    let list = upstream.expect("tools/list").await;
    assert_eq!(list.json_body()["params"]["_meta"][format!("{ENVELOPE}logLevel")], "warning");
    answers(list, json!({"tools": []})).await;
    pending.response().await.json().await;
    let end = session.get().method("DELETE").send(proxy.addr).await;
    assert_eq!(end.status, 200);
    assert_eq!(session.request(5, "ping", json!({})).send(proxy.addr).await.status, 404);
    assert!(upstream.is_quiet());
}

/// Acknowledges the subscription that the proxy makes: the stream, and the filter.
pub(super) async fn listens(upstream: &mut Upstream) -> (Sse, Value) {
    let listen = upstream.expect("subscriptions/listen").await;
    assert_eq!((listen.header("mcp-method"), listen.header("mcp-session-id")), (Some("subscriptions/listen"), None));
    let body = listen.json_body();
    let filter = body["params"]["notifications"].clone();
    let sse = listen.sse().await;
    let meta = json!({"io.modelcontextprotocol/subscriptionId": body["id"]});
    let params = json!({"notifications": filter, "_meta": meta});
    sse.event(
        json!({"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged", "params": params}).to_string(),
    )
    .await;
    (sse, filter)
}

#[tokio::test]
async fn changes_come_on_the_sessions_own_stream() {
    let (mut upstream, proxy) = stage().await;
    let mut session = opened(&mut upstream, &proxy).await;
    let lists = session.lists.take().expect("a subscription");
    // What comes before the client asks for the stream waits for it.
    let meta = json!({"_meta": {"io.modelcontextprotocol/subscriptionId": "x"}});
    lists
        .event(json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed", "params": meta}).to_string())
        .await;
    settle(&proxy, &mut upstream).await;
    let pending = session.get().start(proxy.addr).await;
    let mut own = pending.response().await.sse();
    own.prime().await;
    assert_eq!(own.event().await.json(), json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}));
    let pending = session.request(1, "resources/subscribe", json!({"uri": "a:1"})).start(proxy.addr).await;
    let (all, filter) = listens(&mut upstream).await;
    assert_eq!(filter, json!({"toolsListChanged": true, "resourceSubscriptions": ["a:1"]}));
    assert_eq!(pending.response().await.json().await["result"], json!({}));
    // The subscription before ends once the new one is there.
    lists.closed().await;
    let mut params = meta.clone();
    params["uri"] = json!("a:1");
    all.event(json!({"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": params}).to_string())
        .await;
    assert_eq!(
        own.event().await.json(),
        json!({"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": {"uri": "a:1"}})
    );
    let pending = session.request(2, "resources/unsubscribe", json!({"uri": "a:1"})).start(proxy.addr).await;
    let (left, filter) = listens(&mut upstream).await;
    assert_eq!(filter, json!({"toolsListChanged": true}));
    assert_eq!(pending.response().await.json().await["result"], json!({}));
    // A subscription that is lost is made anew.
    left.fin().await;
    pass(Duration::from_secs(2)).await;
    let (anew, _) = listens(&mut upstream).await;
    anew.event(json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed", "params": meta}).to_string())
        .await;
    assert_eq!(own.event().await.json()["method"], "notifications/tools/list_changed");
    assert_eq!(session.get().method("DELETE").send(proxy.addr).await.status, 200);
    anew.closed().await;
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn a_client_that_asks_for_no_stream_has_no_subscription_for_long() {
    let (mut upstream, proxy) = stage().await;
    let mut session = opened(&mut upstream, &proxy).await;
    let lists = session.lists.take().expect("a subscription");
    settle(&proxy, &mut upstream).await;
    pass(Duration::from_secs(10)).await;
    lists.closed().await;
    // A stream of later has one again.
    let pending = session.get().start(proxy.addr).await;
    let (_lists, filter) = listens(&mut upstream).await;
    assert_eq!(filter, json!({"toolsListChanged": true}));
    pending.response().await.sse().prime().await;
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn a_call_that_is_cancelled_is_closed_at_the_server() {
    let (mut upstream, proxy) = stage().await;
    let session = opened(&mut upstream, &proxy).await;
    let pending = session.call(5).start(proxy.addr).await;
    let sse = upstream.expect("tools/call").await.sse().await;
    let mut response = pending.response().await.sse();
    response.prime().await;
    let cancel =
        session.post(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 5}}));
    assert_eq!(cancel.send(proxy.addr).await.status, 202);
    sse.closed().await;
    response.ends().await;
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn a_client_that_leaves_and_comes_back_gets_its_call() {
    let (mut upstream, proxy) = stage().await;
    let session = opened(&mut upstream, &proxy).await;
    let pending = session.call(5).start(proxy.addr).await;
    let call = upstream.expect("tools/call").await;
    let id = call.json_body()["id"].clone();
    let sse = call.sse().await;
    let mut response = pending.response().await.sse();
    let prime = response.prime().await;
    response.reset();
    pass(Duration::from_secs(60)).await;
    sse.finish(json!({"jsonrpc": "2.0", "id": id, "result": {"resultType": "complete", "content": []}}).to_string())
        .await;
    let mut resumed = session.get().resume_from(prime.id()).send(proxy.addr).await;
    assert_eq!(resumed.event().await.json(), json!({"jsonrpc": "2.0", "id": 5, "result": {"content": []}}));
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn a_session_that_was_idle_is_opened_again_by_its_next_request() {
    let (mut upstream, proxy) = stage_with(|bridge| {
        bridge.modern_clients = ModernClients::Never;
        bridge.idle = Duration::from_secs(60);
    })
    .await;
    let session = opened(&mut upstream, &proxy).await;
    session.request(1, "logging/setLevel", json!({"level": "error"})).send(proxy.addr).await.json().await;
    pass(Duration::from_secs(61)).await;
    settle(&proxy, &mut upstream).await;
    let pending = session.call(5).start(proxy.addr).await;
    refuses(&mut upstream, 1).await;
    let _lists = listens(&mut upstream).await;
    let call = upstream.expect("tools/call").await;
    assert_eq!(call.json_body()["params"]["_meta"][format!("{ENVELOPE}logLevel")], "error");
    answers(call, json!({"resultType": "complete", "content": []})).await;
    assert_eq!(pending.response().await.json().await["id"], 5);
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn a_batch_is_one_request_each_and_one_stream() {
    let (mut upstream, proxy) = stage().await;
    let session = opened_at(&mut upstream, &proxy, "2025-03-26").await;
    let request = |id: u64, method: &str| json!({"jsonrpc": "2.0", "id": id, "method": method, "params": {}});
    let link = json!({"type": "resource_link", "uri": "a:1", "name": "n"});
    let batch =
        json!([request(1, "ping"), {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "slow"}}]);
    let pending = session.post(&batch).start(proxy.addr).await;
    let call = upstream.expect("tools/call").await;
    answers(call, json!({"resultType": "complete", "content": [link], "structuredContent": {}})).await;
    let mut response = pending.response().await.sse();
    let mut told = Vec::new();
    response.prime().await;
    for _ in 0..2 {
        told.push(response.event().await.json());
    }
    told.sort_by_key(|message| message["id"].as_u64());
    assert_eq!(told[0], json!({"jsonrpc": "2.0", "id": 1, "result": {}}));
    assert_eq!(told[1], json!({"jsonrpc": "2.0", "id": 2, "result": {"content": [{"type": "text", "text": "a:1"}]}}));
    let later = opened_again(&mut upstream, &proxy).await;
    let refused = later.post(&batch).send(proxy.addr).await;
    assert_eq!(refused.status, 400);
    assert!(upstream.is_quiet());
}

/// Opens a further session at the newest revision.
pub(super) async fn opened_again(upstream: &mut Upstream, proxy: &Proxy) -> Legacy {
    let pending = initialize_by(V2025_11).start(proxy.addr).await;
    refuses(upstream, 1).await;
    let response = pending.response().await;
    Legacy { id: response.header("mcp-session-id").expect("a session").to_owned(), version: V2025_11, lists: None }
}

#[tokio::test]
async fn a_session_is_its_callers_alone() {
    let (mut upstream, proxy) = stage().await;
    let pending = initialize_by(V2025_11).with("Authorization", "Bearer one").start(proxy.addr).await;
    refuses(&mut upstream, FIRST).await;
    let id = pending.response().await.header("mcp-session-id").expect("a session").to_owned();
    let session = Legacy { id, version: V2025_11, lists: None };
    let of = |token: &str, id: u64| session.request(id, "ping", json!({})).with("Authorization", token);
    assert_eq!(of("Bearer one", 1).send(proxy.addr).await.status, 200);
    assert_eq!(of("Bearer two", 2).send(proxy.addr).await.status, 404);
    assert_eq!(of("Bearer one", 3).send(proxy.addr).await.status, 200);
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn a_caller_with_credentials_answers_cancels_and_ends_in_its_session() {
    let (mut upstream, proxy) = stage().await;
    let token = "Bearer one";
    let pending = initialize_by(V2025_11).with("Authorization", token).start(proxy.addr).await;
    refuses(&mut upstream, FIRST).await;
    let id = pending.response().await.header("mcp-session-id").expect("a session").to_owned();
    let session = Legacy { id, version: V2025_11, lists: None };
    let told = session.post(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
    assert_eq!(told.with("Authorization", token).send(proxy.addr).await.status, 202);
    let (lists, _) = listens(&mut upstream).await;
    let pending = session.call(5).with("Authorization", token).start(proxy.addr).await;
    let (_response, asked) = asked(&mut upstream, pending).await;
    let answer = session.post(&json!({"jsonrpc": "2.0", "id": asked["id"], "result": {"action": "accept"}}));
    assert_eq!(answer.with("Authorization", token).send(proxy.addr).await.status, 202);
    let again = upstream.expect("tools/call").await;
    assert_eq!(again.json_body()["params"]["inputResponses"], json!({"a": {"action": "accept"}}));
    let sse = again.sse().await;
    let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 5}});
    assert_eq!(session.post(&cancel).with("Authorization", token).send(proxy.addr).await.status, 202);
    sse.closed().await;
    let end = session.get().method("DELETE").with("Authorization", token);
    assert_eq!(end.send(proxy.addr).await.status, 200);
    lists.closed().await;
    let gone = session.request(6, "ping", json!({})).with("Authorization", token).start(proxy.addr).await;
    assert_eq!(gone.response().await.status, 404);
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn a_response_that_only_lenient_parsers_read_is_translated() {
    let lenient =
        |id: &Value| format!("\u{feff}{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{{\"content\":[],\"x\":[NaN,1]}}}}");
    let (mut upstream, proxy) = stage().await;
    let session = opened(&mut upstream, &proxy).await;
    let pending = session.call(1).start(proxy.addr).await;
    let called = upstream.expect("tools/call").await;
    let id = called.json_body()["id"].clone();
    called.json(200, lenient(&id)).await;
    let whole = pending.response().await.json().await;
    let pending = session.call(2).start(proxy.addr).await;
    let called = upstream.expect("tools/call").await;
    let id = called.json_body()["id"].clone();
    called.sse().await.finish(lenient(&id)).await;
    let mut response = pending.response().await.sse();
    response.prime().await;
    for (message, id) in [(whole, 1), (response.event().await.json(), 2)] {
        assert_eq!((&message["id"], &message["result"]["x"]), (&json!(id), &json!([null, 1])));
    }
}

#[tokio::test]
async fn an_error_of_the_client_beside_a_result_that_is_null_is_an_error() {
    let (mut upstream, proxy) = stage().await;
    let session = opened(&mut upstream, &proxy).await;
    let pending = session.call(1).start(proxy.addr).await;
    let (mut response, question) = asked(&mut upstream, pending).await;
    let refused = json!({"jsonrpc": "2.0", "id": question["id"], "result": null, "error": {"code": -1, "message": "no form here"}});
    assert_eq!(session.post(&refused).send(proxy.addr).await.status, 202);
    let ended = response.event().await.json();
    assert_eq!((&ended["id"], &ended["result"]["isError"]), (&json!(1), &json!(true)), "{ended}");
    assert!(ended.to_string().contains("no form here"), "{ended}");
}
