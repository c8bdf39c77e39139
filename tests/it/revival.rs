//! Sessions that their server has forgotten: they are opened again, and the refused request is sent
//! once more.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::*;

pub(crate) const FORGOTTEN: &str =
    r#"{"jsonrpc":"2.0","error":{"code":-32001,"message":"Session not found"},"id":null}"#;
pub(crate) const INITIALIZED: &str = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
const REVIVED: &str = r#"mcp_resume_session_revivals_total{outcome="revived"}"#;

fn capabilities() -> Value {
    json!({ "logging": {}, "tools": { "listChanged": true }, "resources": { "subscribe": true } })
}

/// Returns the response to an `initialize` of this ID.
fn opened(id: &Value, capabilities: &Value, name: &str) -> String {
    let info = json!({ "name": name, "version": "1" });
    let result = json!({ "protocolVersion": V2025_11, "capabilities": capabilities, "serverInfo": info });
    json!({ "jsonrpc": "2.0", "id": id, "result": result }).to_string()
}

/// Answers an `initialize` with the session `name`.
pub(crate) async fn answer_initialize(call: Call, name: &str) {
    assert_eq!(call.header("mcp-session-id"), None);
    assert_eq!(call.header("mcp-protocol-version"), None);
    let body = call.json_body();
    let result = opened(&body["id"], &capabilities(), "server");
    call.json_with(200, &format!("Mcp-Session-Id: {name}\r\n"), result).await;
}

/// A session that was opened and initialized by a client with these capabilities.
pub(crate) async fn with(
    client: Value,
    change: impl FnOnce(&mut mcp_resume::config::Config),
) -> (Upstream, Proxy, Session) {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |c| {
        c.admin.address = Some(([127, 0, 0, 1], 0).into());
        change(c);
    })
    .await;
    let session = open(&proxy, &mut upstream, client).await;
    (upstream, proxy, session)
}

/// Opens and initializes the session that the server names `s-1`.
pub(crate) async fn open(proxy: &Proxy, upstream: &mut Upstream, client: Value) -> Session {
    open_as(proxy, upstream, client, None).await
}

/// Does as [`open`], for a caller with this `Authorization`.
pub(crate) async fn open_as(proxy: &Proxy, upstream: &mut Upstream, client: Value, token: Option<&str>) -> Session {
    let params = json!({
        "_meta": { "progressToken": 1 }, "protocolVersion": V2025_11, "capabilities": client,
        "clientInfo": { "name": "raw", "version": "1" },
    });
    let initialize = json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params }).to_string();
    let request = Request::post(initialize);
    let request = if let Some(token) = token { request.with("Authorization", token) } else { request };
    let pending = request.start(proxy.addr).await;
    answer_initialize(upstream.expect("initialize").await, "s-1").await;
    let opened = pending.response().await;
    let name = opened.header("mcp-session-id").expect("a session");
    let session = Session::opened_elsewhere(V2025_11, name, token);
    let pending = session.post(INITIALIZED).start(proxy.addr).await;
    upstream.expect("notifications/initialized").await.status(202).await;
    assert_eq!(pending.response().await.status, 202);
    session
}

pub(crate) async fn ready() -> (Upstream, Proxy, Session) {
    with(json!({}), |_| {}).await
}

/// Refuses the next request, which is of this method and names the session `name`.
pub(crate) async fn refuse(upstream: &mut Upstream, method: &str, name: &str) {
    let call = upstream.expect(method).await;
    assert_eq!(call.header("mcp-session-id"), Some(name));
    call.json(404, FORGOTTEN).await;
}

/// Refuses the ping by which the proxy asks whether the session lives that the server names `name`.
pub(crate) async fn deny(upstream: &mut Upstream, name: &str) {
    ping_in(upstream, name).await.json(404, FORGOTTEN).await;
}

/// Answers the ping by which the proxy asks whether the session lives that the server names `name`.
pub(crate) async fn lives(upstream: &mut Upstream, name: &str) {
    let ping = ping_in(upstream, name).await;
    let pong = json!({ "jsonrpc": "2.0", "id": ping.json_body()["id"], "result": {} }).to_string();
    ping.json(200, pong).await;
}

/// Returns the ping by which the proxy asks whether the session lives that the server names `name`.
pub(crate) async fn ping_in(upstream: &mut Upstream, name: &str) -> Call {
    let ping = upstream.expect("ping").await;
    let headers = ["mcp-session-id", "mcp-protocol-version", "accept", "last-event-id"].map(|name| ping.header(name));
    assert_eq!(headers, [Some(name), Some(V2025_11), Some("application/json, text/event-stream"), None]);
    ping
}

/// Refuses the next request, as [`refuse`] does, and the ping after it: the session is dead.
pub(crate) async fn forget(upstream: &mut Upstream, method: &str, name: &str) {
    refuse(upstream, method, name).await;
    deny(upstream, name).await;
}

/// Takes part in a handshake that gives the session `name`.
pub(crate) async fn open_again(upstream: &mut Upstream, name: &str) {
    let call = upstream.expect("initialize").await;
    let params = &call.json_body()["params"];
    assert_eq!(params["clientInfo"]["name"], "raw");
    assert_eq!(params.get("_meta"), None);
    answer_initialize(call, name).await;
    complete(upstream, name).await;
}

pub(crate) async fn complete(upstream: &mut Upstream, name: &str) {
    let call = upstream.expect("notifications/initialized").await;
    assert_eq!(call.header("mcp-session-id"), Some(name));
    assert_eq!(call.header("mcp-protocol-version"), Some(V2025_11));
    call.status(202).await;
}

/// Answers the next request, a tool call with this ID in the session `name`.
pub(crate) async fn answer(upstream: &mut Upstream, id: u64, name: &str) {
    let call = upstream.expect("tools/call").await;
    assert_eq!((call.header("mcp-session-id"), &call.json_body()["id"]), (Some(name), &json!(id)));
    call.json_with(200, &format!("Mcp-Session-Id: {name}\r\n"), result(id)).await;
}

#[tokio::test]
async fn a_forgotten_session_is_opened_again_and_the_call_is_sent_once_more() {
    let (mut upstream, proxy, session) = ready().await;
    let pending = session.post(call(1)).with("Idempotency-Key", "k").start(proxy.addr).await;
    forget(&mut upstream, "tools/call", "s-1").await;
    open_again(&mut upstream, "s-2").await;
    answer(&mut upstream, 1, "s-2").await;
    let mut response = pending.response().await;
    assert_eq!((response.status, response.header("mcp-session-id")), (200, Some("s-1")));
    assert_eq!(response.body().await, result(1).as_bytes());
    // Later requests go to the new session at once.
    let pending = session.post(call(2)).start(proxy.addr).await;
    answer(&mut upstream, 2, "s-2").await;
    assert_eq!(pending.response().await.header("mcp-session-id"), Some("s-1"));
    assert_eq!(metric(&proxy, REVIVED).await, 1.0);
    // And once more.
    let pending = session.post(call(3)).start(proxy.addr).await;
    forget(&mut upstream, "tools/call", "s-2").await;
    open_again(&mut upstream, "s-3").await;
    answer(&mut upstream, 3, "s-3").await;
    assert_eq!(pending.response().await.status, 200);
    let pending = session.delete().start(proxy.addr).await;
    let call = upstream.expect("DELETE").await;
    assert_eq!(call.header("mcp-session-id"), Some("s-3"));
    call.status(200).await;
    assert_eq!(pending.response().await.status, 200);
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn an_event_stream_follows_a_revival() {
    let (mut upstream, proxy, session) = ready().await;
    let pending = session.post(call(1)).start(proxy.addr).await;
    forget(&mut upstream, "tools/call", "s-1").await;
    open_again(&mut upstream, "s-2").await;
    let sse = upstream.expect("tools/call").await.sse().await;
    let mut response = pending.response().await.sse();
    response.prime().await;
    sse.event(progress(1)).await;
    assert_eq!(response.event().await.bytes(), progress(1).as_bytes());
    sse.finish(result(1)).await;
    assert_eq!(response.event().await.bytes(), result(1).as_bytes());
    response.ends().await;
}

#[tokio::test]
async fn a_refusal_that_may_come_from_a_tool_passes() {
    let (mut upstream, proxy, session) = ready().await;
    let own = r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"Resource not found"}}"#;
    let strangers = [
        (404, own),
        (400, r#"{"jsonrpc":"2.0","error":{"code":-32000,"message":"Too many open sessions"},"id":null}"#),
        (503, FORGOTTEN),
        (200, r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32600,"message":"Session not found"}}"#),
    ];
    for (status, body) in strangers {
        let pending = session.post(call(1)).start(proxy.addr).await;
        upstream.expect("tools/call").await.json(status, body).await;
        if status == 404 {
            lives(&mut upstream, "s-1").await;
        }
        let mut response = pending.response().await;
        assert_eq!(response.status, status);
        assert_eq!(response.body().await, body.as_bytes());
    }
    let long = format!("{}{FORGOTTEN}", " ".repeat(5000));
    let pending = session.post(call(2)).start(proxy.addr).await;
    upstream.expect("tools/call").await.json(404, &long).await;
    lives(&mut upstream, "s-1").await;
    assert_eq!(pending.response().await.body().await, long.as_bytes());
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn requests_that_are_refused_together_share_one_handshake() {
    let (mut upstream, proxy, session) = ready().await;
    let first = session.post(call(1)).start(proxy.addr).await;
    let second = session.post(call(2)).start(proxy.addr).await;
    let (one, two) = (upstream.expect("tools/call").await, upstream.expect("tools/call").await);
    one.json(404, FORGOTTEN).await;
    let ping = ping_in(&mut upstream, "s-1").await;
    two.json(404, FORGOTTEN).await;
    settle(&proxy, &mut upstream).await;
    ping.json(404, FORGOTTEN).await;
    answer_initialize(upstream.expect("initialize").await, "s-2").await;
    complete(&mut upstream, "s-2").await;
    for _ in 0..2 {
        let call = upstream.expect("tools/call").await;
        assert_eq!(call.header("mcp-session-id"), Some("s-2"));
        let id = call.json_body()["id"].as_u64().unwrap();
        call.json(200, result(id)).await;
    }
    assert_eq!(first.response().await.body().await, result(1).as_bytes());
    assert_eq!(second.response().await.body().await, result(2).as_bytes());
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn a_late_refusal_of_the_old_name_needs_no_handshake() {
    let (mut upstream, proxy, session) = ready().await;
    let slow = session.post(call(1)).start(proxy.addr).await;
    let late = upstream.expect("tools/call").await;
    let fast = session.post(call(2)).start(proxy.addr).await;
    forget(&mut upstream, "tools/call", "s-1").await;
    open_again(&mut upstream, "s-2").await;
    answer(&mut upstream, 2, "s-2").await;
    assert_eq!(fast.response().await.status, 200);
    late.json(404, FORGOTTEN).await;
    answer(&mut upstream, 1, "s-2").await;
    assert_eq!(slow.response().await.body().await, result(1).as_bytes());
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn a_notification_revives_nothing_and_is_dropped() {
    let (mut upstream, proxy, session) = ready().await;
    let changed = r#"{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}"#;
    let pending = session.post(changed).start(proxy.addr).await;
    refuse(&mut upstream, "notifications/roots/list_changed", "s-1").await;
    assert_eq!(pending.response().await.status, 202);
    // In a session that cannot be opened again the refusal passes.
    let unknown = Session::opened_elsewhere(V2025_11, "other", None);
    let pending = unknown.post(changed).start(proxy.addr).await;
    refuse(&mut upstream, "notifications/roots/list_changed", "other").await;
    assert_eq!(pending.response().await.status, 404);
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn log_level_and_subscriptions_are_set_again() {
    let (mut upstream, proxy, session) = ready().await;
    let set =
        |method: &str, params: Value| json!({ "jsonrpc": "2.0", "id": method, "method": method, "params": params });
    for (method, params) in [
        ("logging/setLevel", json!({ "level": "debug" })),
        ("resources/subscribe", json!({ "uri": "file:///a" })),
        ("resources/subscribe", json!({ "uri": "file:///b" })),
        ("resources/unsubscribe", json!({ "uri": "file:///a" })),
    ] {
        let pending = session.post(set(method, params).to_string()).start(proxy.addr).await;
        upstream
            .expect(method)
            .await
            .json(200, json!({ "jsonrpc": "2.0", "id": method, "result": {} }).to_string())
            .await;
        assert_eq!(pending.response().await.status, 200);
    }
    let pending = session.post(call(1)).start(proxy.addr).await;
    forget(&mut upstream, "tools/call", "s-1").await;
    open_again(&mut upstream, "s-2").await;
    for (method, member, value) in [("logging/setLevel", "level", "debug"), ("resources/subscribe", "uri", "file:///b")]
    {
        let call = upstream.expect(method).await;
        assert_eq!(call.header("mcp-session-id"), Some("s-2"));
        let body = call.json_body();
        assert_eq!(body["params"][member], value);
        call.json(200, json!({ "jsonrpc": "2.0", "id": body["id"], "result": {} }).to_string()).await;
    }
    answer(&mut upstream, 1, "s-2").await;
    assert_eq!(pending.response().await.status, 200);
}

/// Opens the session's standalone stream.
pub(crate) async fn listen(upstream: &mut Upstream, proxy: &Proxy, session: &Session) -> (Sse, Response) {
    let pending = session.get().start(proxy.addr).await;
    let sse = upstream.expect("GET").await.sse().await;
    let mut response = pending.response().await.sse();
    response.prime().await;
    (sse, response)
}

/// Breaks the standalone stream of a session that the server then refuses, and opens the session
/// again with a call, to the stream's GET. Returns the call and the new stream of the server.
pub(crate) async fn begin_while_listening(
    upstream: &mut Upstream,
    proxy: &Proxy,
    session: &Session,
    sse: Sse,
) -> (Client, Sse) {
    sse.reset().await;
    pass(Duration::from_secs(2)).await;
    refuse(upstream, "GET", "s-1").await;
    let pending = session.post(call(1)).start(proxy.addr).await;
    forget(upstream, "tools/call", "s-1").await;
    answer_initialize(upstream.expect("initialize").await, "s-2").await;
    (pending, upstream.expect("GET").await.sse().await)
}

#[tokio::test]
async fn the_standalone_stream_stays_open_and_tells_of_the_revival() {
    let (mut upstream, proxy, session) = with(json!({ "roots": {} }), |_| {}).await;
    let (sse, mut response) = listen(&mut upstream, &proxy, &session).await;
    sse.reset().await;
    // The proxy opens the stream again by itself. The server has restarted, and refuses it.
    pass(Duration::from_secs(2)).await;
    refuse(&mut upstream, "GET", "s-1").await;
    settle(&proxy, &mut upstream).await;
    pass(Duration::from_secs(30)).await;
    settle(&proxy, &mut upstream).await;
    let pending = session.post(call(1)).start(proxy.addr).await;
    forget(&mut upstream, "tools/call", "s-1").await;
    answer_initialize(upstream.expect("initialize").await, "s-2").await;
    // The server can ask before the handshake is complete.
    let get = upstream.expect("GET").await;
    assert_eq!((get.header("mcp-session-id"), get.header("last-event-id")), (Some("s-2"), None));
    let sse = get.sse().await;
    complete(&mut upstream, "s-2").await;
    let question = r#"{"jsonrpc":"2.0","id":0,"method":"roots/list"}"#;
    sse.event(question).await;
    assert_eq!(response.event().await.bytes(), question.as_bytes());
    let roots = r#"{"jsonrpc":"2.0","id":0,"result":{"roots":[]}}"#;
    let answering = session.post(roots).start(proxy.addr).await;
    let answered = upstream.next().await;
    assert_eq!((answered.header("mcp-session-id"), &answered.json_body()["id"]), (Some("s-2"), &json!(0)));
    answered.status(202).await;
    assert_eq!(answering.response().await.status, 202);
    answer(&mut upstream, 1, "s-2").await;
    assert_eq!(pending.response().await.body().await, result(1).as_bytes());
    // The client has read no list.
    let warning = response.event().await;
    assert_eq!(EventId::of(warning.id()).seq, "2");
    let warning = warning.json();
    assert_eq!((&warning["method"], &warning["params"]["level"]), (&json!("notifications/message"), &json!("warning")));
    assert!(upstream.is_quiet());
}

/// The open stream is that of the new session, and shows nothing of the old one.
#[tokio::test]
async fn a_call_during_the_handshake_waits_for_it_although_the_standalone_stream_is_open_again() {
    let (mut upstream, proxy, session) = ready().await;
    let (sse, _response) = listen(&mut upstream, &proxy, &session).await;
    sse.reset().await;
    pass(Duration::from_secs(2)).await;
    refuse(&mut upstream, "GET", "s-1").await;
    let first = session.post(call(1)).start(proxy.addr).await;
    forget(&mut upstream, "tools/call", "s-1").await;
    answer_initialize(upstream.expect("initialize").await, "s-2").await;
    let _sse = upstream.expect("GET").await.sse().await;
    let initialized = upstream.expect("notifications/initialized").await;
    let second = session.post(call(2)).start(proxy.addr).await;
    refuse(&mut upstream, "tools/call", "s-1").await;
    settle(&proxy, &mut upstream).await;
    initialized.status(202).await;
    for _ in 0..2 {
        let call = upstream.expect("tools/call").await;
        assert_eq!(call.header("mcp-session-id"), Some("s-2"));
        let id = call.json_body()["id"].as_u64().expect("a number");
        call.json(200, result(id)).await;
    }
    assert_eq!(first.response().await.body().await, result(1).as_bytes());
    assert_eq!(second.response().await.body().await, result(2).as_bytes());
    assert!(upstream.is_quiet());
}

/// A server that refuses the end of the handshake has opened a session that no client will use.
#[tokio::test]
async fn a_handshake_that_fails_late_ends_its_session_and_gives_the_stream_back() {
    let (mut upstream, proxy, session) = ready().await;
    let (sse, mut response) = listen(&mut upstream, &proxy, &session).await;
    let (pending, sse) = begin_while_listening(&mut upstream, &proxy, &session, sse).await;
    upstream.expect("notifications/initialized").await.status(500).await;
    let end = upstream.expect("DELETE").await;
    assert_eq!(end.header("mcp-session-id"), Some("s-2"));
    end.status(200).await;
    assert_eq!(pending.response().await.body().await, FORGOTTEN.as_bytes());
    sse.closed().await;
    // The next call opens the session, and the client's stream goes on.
    let pending = session.post(call(2)).start(proxy.addr).await;
    forget(&mut upstream, "tools/call", "s-1").await;
    answer_initialize(upstream.expect("initialize").await, "s-3").await;
    let get = upstream.expect("GET").await;
    assert_eq!(get.header("mcp-session-id"), Some("s-3"));
    let _sse = get.sse().await;
    complete(&mut upstream, "s-3").await;
    answer(&mut upstream, 2, "s-3").await;
    assert_eq!(pending.response().await.status, 200);
    assert_eq!(response.event().await.json()["method"], "notifications/message");
}

/// Without a call the stream is tried once a minute, in the session that it had: the server may
/// know that session again.
#[tokio::test]
async fn a_stream_whose_handshake_failed_late_is_tried_once_a_minute_in_its_old_session() {
    let (mut upstream, proxy, session) = ready().await;
    let (sse, mut response) = listen(&mut upstream, &proxy, &session).await;
    let (pending, sse) = begin_while_listening(&mut upstream, &proxy, &session, sse).await;
    upstream.expect("notifications/initialized").await.status(500).await;
    upstream.expect("DELETE").await.status(200).await;
    assert_eq!(pending.response().await.body().await, FORGOTTEN.as_bytes());
    sse.closed().await;
    for _ in 0..2 {
        settle(&proxy, &mut upstream).await;
        pass(Duration::from_secs(59)).await;
        settle(&proxy, &mut upstream).await;
        assert!(upstream.is_quiet(), "sooner than after a minute");
        pass(Duration::from_secs(1)).await;
        refuse(&mut upstream, "GET", "s-1").await;
    }
    settle(&proxy, &mut upstream).await;
    pass(Duration::from_secs(60)).await;
    let get = upstream.expect("GET").await;
    assert_eq!((get.header("mcp-session-id"), get.header("last-event-id")), (Some("s-1"), None));
    get.sse().await.event(&progress(1)).await;
    assert_eq!(response.event().await.bytes(), progress(1).as_bytes());
}

#[tokio::test]
async fn a_get_opens_its_session_again() {
    let (mut upstream, proxy, session) = ready().await;
    let pending = session.get().start(proxy.addr).await;
    forget(&mut upstream, "GET", "s-1").await;
    open_again(&mut upstream, "s-2").await;
    let get = upstream.expect("GET").await;
    assert_eq!(get.header("mcp-session-id"), Some("s-2"));
    let sse = get.sse().await;
    let mut response = pending.response().await.sse();
    response.prime().await;
    sse.event(progress(1)).await;
    assert_eq!(response.event().await.bytes(), progress(1).as_bytes());
}

/// The stream is open here and silent, because the server has forgotten the session.
#[tokio::test]
async fn a_get_that_joins_a_silent_stream_opens_the_session_again() {
    let (mut upstream, proxy, session) = ready().await;
    let (sse, mut response) = listen(&mut upstream, &proxy, &session).await;
    // Without an event the stream would not be opened while its client is away.
    sse.event(progress(0)).await;
    response.event().await;
    response.reset();
    sse.reset().await;
    pass(Duration::from_secs(2)).await;
    refuse(&mut upstream, "GET", "s-1").await;
    settle(&proxy, &mut upstream).await;
    let mut back = session.get().send(proxy.addr).await.sse();
    back.prime().await;
    deny(&mut upstream, "s-1").await;
    answer_initialize(upstream.expect("initialize").await, "s-2").await;
    let get = upstream.expect("GET").await;
    assert_eq!(get.header("mcp-session-id"), Some("s-2"));
    let sse = get.sse().await;
    complete(&mut upstream, "s-2").await;
    assert_eq!(back.event().await.json()["method"], "notifications/message");
    sse.event(progress(1)).await;
    assert_eq!(back.event().await.bytes(), progress(1).as_bytes());
}

#[tokio::test]
async fn a_refusal_of_a_living_session_passes() {
    let (mut upstream, proxy, session) = ready().await;
    let (_sse, _response) = listen(&mut upstream, &proxy, &session).await;
    let pending = session.post(call(1)).start(proxy.addr).await;
    forget(&mut upstream, "tools/call", "s-1").await;
    let mut response = pending.response().await;
    assert_eq!(response.status, 404);
    assert_eq!(response.body().await, FORGOTTEN.as_bytes());
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn a_server_with_fewer_capabilities_gets_its_session_back() {
    let (mut upstream, proxy, session) = ready().await;
    let pending = session.post(call(1)).start(proxy.addr).await;
    upstream.expect("tools/call").await.json(400, "No valid session ID provided").await;
    ping_in(&mut upstream, "s-1").await.json(400, "No valid session ID provided").await;
    let opening = upstream.expect("initialize").await;
    let body = opening.json_body();
    let poorer = opened(&body["id"], &json!({ "tools": { "listChanged": true } }), "server");
    opening.json_with(200, "Mcp-Session-Id: s-2\r\n", poorer).await;
    let end = upstream.expect("DELETE").await;
    assert_eq!(end.header("mcp-session-id"), Some("s-2"));
    end.status(200).await;
    assert_eq!(pending.response().await.status, 404, "the client opens a session of its own");
    // The session is over for good.
    let pending = session.post(call(2)).start(proxy.addr).await;
    refuse(&mut upstream, "tools/call", "s-1").await;
    assert_eq!(pending.response().await.status, 404);
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn a_401_in_the_handshake_passes_with_its_headers() {
    let (mut upstream, proxy, session) = ready().await;
    let pending = session.post(call(1)).start(proxy.addr).await;
    forget(&mut upstream, "tools/call", "s-1").await;
    upstream.expect("initialize").await.status_with(401, "WWW-Authenticate: Bearer x\r\n").await;
    let response = pending.response().await;
    assert_eq!((response.status, response.header("www-authenticate")), (401, Some("Bearer x")));
    // The next request tries again.
    let pending = session.post(call(2)).start(proxy.addr).await;
    forget(&mut upstream, "tools/call", "s-1").await;
    open_again(&mut upstream, "s-2").await;
    answer(&mut upstream, 2, "s-2").await;
    assert_eq!(pending.response().await.status, 200);
}

#[tokio::test]
async fn a_server_that_dies_in_the_handshake_gets_another() {
    let (mut upstream, proxy, session) = ready().await;
    let pending = session.post(call(1)).start(proxy.addr).await;
    forget(&mut upstream, "tools/call", "s-1").await;
    upstream.expect("initialize").await.reset().await;
    open_again(&mut upstream, "s-2").await;
    answer(&mut upstream, 1, "s-2").await;
    assert_eq!(pending.response().await.body().await, result(1).as_bytes());
}

#[tokio::test]
async fn the_refusal_passes_after_three_attempts_in_a_minute() {
    let (mut upstream, proxy, session) = ready().await;
    for id in 0..3 {
        let pending = session.post(call(id)).start(proxy.addr).await;
        forget(&mut upstream, "tools/call", "s-1").await;
        upstream.expect("initialize").await.status(500).await;
        assert_eq!(pending.response().await.status, 404);
    }
    let pending = session.post(call(3)).start(proxy.addr).await;
    forget(&mut upstream, "tools/call", "s-1").await;
    assert_eq!(pending.response().await.body().await, FORGOTTEN.as_bytes());
    assert!(upstream.is_quiet());
    let of = |outcome: &str| format!(r#"mcp_resume_session_revivals_total{{outcome="{outcome}"}}"#);
    assert_eq!(metric(&proxy, &of("failed")).await, 3.0);
    assert_eq!(metric(&proxy, &of("limited")).await, 1.0);
}

#[tokio::test]
async fn the_end_of_a_forgotten_session_is_its_end() {
    let (mut upstream, proxy, session) = ready().await;
    let pending = session.delete().start(proxy.addr).await;
    refuse(&mut upstream, "DELETE", "s-1").await;
    assert_eq!(pending.response().await.status, 200);
    let pending = session.post(call(1)).start(proxy.addr).await;
    refuse(&mut upstream, "tools/call", "s-1").await;
    assert_eq!(pending.response().await.status, 404);
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn a_session_that_is_ended_during_its_revival_stays_ended() {
    let (mut upstream, proxy, session) = ready().await;
    let pending = session.post(call(1)).start(proxy.addr).await;
    forget(&mut upstream, "tools/call", "s-1").await;
    let opening = upstream.expect("initialize").await;
    let ending = session.delete().start(proxy.addr).await;
    refuse(&mut upstream, "DELETE", "s-1").await;
    assert_eq!(ending.response().await.status, 200);
    // As each call of a session that ends.
    refuse(&mut upstream, "notifications/cancelled", "s-1").await;
    assert_eq!(pending.response().await.status, 504);
    answer_initialize(opening, "s-2").await;
    let end = upstream.expect("DELETE").await;
    assert_eq!(end.header("mcp-session-id"), Some("s-2"));
    end.status(200).await;
    let pending = session.post(call(2)).start(proxy.addr).await;
    refuse(&mut upstream, "tools/call", "s-1").await;
    assert_eq!(pending.response().await.status, 404);
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn a_handshake_goes_on_without_the_client_that_caused_it() {
    let (mut upstream, proxy, session) = ready().await;
    let pending = session.post(call(1)).start(proxy.addr).await;
    forget(&mut upstream, "tools/call", "s-1").await;
    let opening = upstream.expect("initialize").await;
    pending.reset();
    settle(&proxy, &mut upstream).await;
    answer_initialize(opening, "s-2").await;
    complete(&mut upstream, "s-2").await;
    // A legacy call goes on without its client.
    answer(&mut upstream, 1, "s-2").await;
}

#[tokio::test]
async fn a_call_that_is_cancelled_during_the_handshake_is_not_sent_again() {
    let (mut upstream, proxy, session) = ready().await;
    let _pending = session.post(call(1)).start(proxy.addr).await;
    forget(&mut upstream, "tools/call", "s-1").await;
    let opening = upstream.expect("initialize").await;
    let cancelling = session.post(crate::cancel::cancelled(1)).start(proxy.addr).await;
    refuse(&mut upstream, "notifications/cancelled", "s-1").await;
    assert_eq!(cancelling.response().await.status, 202);
    answer_initialize(opening, "s-2").await;
    complete(&mut upstream, "s-2").await;
    settle(&proxy, &mut upstream).await;
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn another_caller_opens_nothing() {
    let (mut upstream, proxy, session) = ready().await;
    let pending = session.post(call(1)).with("Authorization", "Bearer other").start(proxy.addr).await;
    refuse(&mut upstream, "tools/call", "s-1").await;
    assert_eq!(pending.response().await.status, 404);
    // The server accepts it, in the session.
    let pending = session.post(call(2)).with("Authorization", "Bearer other").start(proxy.addr).await;
    answer(&mut upstream, 2, "s-1").await;
    assert_eq!(pending.response().await.status, 200);
    let pending = session.post(call(3)).with("Authorization", "Bearer other").start(proxy.addr).await;
    forget(&mut upstream, "tools/call", "s-1").await;
    open_again(&mut upstream, "s-2").await;
    answer(&mut upstream, 3, "s-2").await;
    assert_eq!(pending.response().await.status, 200);
}

#[tokio::test]
async fn sessions_are_left_to_their_clients_if_configured() {
    let (mut upstream, proxy, session) = with(json!({}), |c| c.sessions.revive = false).await;
    let pending = session.post(call(1)).start(proxy.addr).await;
    refuse(&mut upstream, "tools/call", "s-1").await;
    assert_eq!(pending.response().await.body().await, FORGOTTEN.as_bytes());
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn a_configured_refusal_is_one() {
    let (mut upstream, proxy, session) =
        with(json!({}), |c| c.sessions.refusals = vec!["410 gone away".parse().unwrap()]).await;
    let pending = session.post(call(1)).start(proxy.addr).await;
    upstream.expect("tools/call").await.json(410, "The session has Gone Away").await;
    ping_in(&mut upstream, "s-1").await.json(410, "The session has Gone Away").await;
    open_again(&mut upstream, "s-2").await;
    answer(&mut upstream, 1, "s-2").await;
    assert_eq!(pending.response().await.status, 200);
}

/// The response was begun by the proxy, so the client stays with one event stream.
#[tokio::test]
async fn a_committed_call_is_sent_once_more() {
    let (mut upstream, proxy, session) = with(json!({}), |c| c.delivery.commit_after = Some(SOON)).await;
    let mut response = session.post(call(1)).send(proxy.addr).await.sse();
    response.prime().await;
    forget(&mut upstream, "tools/call", "s-1").await;
    open_again(&mut upstream, "s-2").await;
    answer(&mut upstream, 1, "s-2").await;
    assert_eq!(response.event().await.bytes(), result(1).as_bytes());
    response.ends().await;
}

/// As after the restart of a server with many sessions.
#[tokio::test]
async fn many_sessions_are_opened_again_a_few_at_a_time() {
    const SESSIONS: usize = 40;
    const AT_ONCE: usize = 32;
    let (mut upstream, proxy, _) = ready().await;
    let mut sessions = Vec::new();
    for number in 0..SESSIONS {
        let id = format!("old-{number}");
        sessions.push(Session::open_as(&proxy, &mut upstream, V2025_11, &id, None).await);
    }
    let mut pending = Vec::new();
    for (number, session) in sessions.iter().enumerate() {
        pending.push(session.post(call(number)).start(proxy.addr).await);
    }
    let mut opening = Vec::new();
    // Each session is asked whether it lives.
    for _ in 0..2 * SESSIONS + AT_ONCE {
        let call = upstream.next().await;
        match call.rpc_method().as_str() {
            "initialize" => opening.push(call),
            _ => call.json(404, FORGOTTEN).await,
        }
    }
    assert_eq!(opening.len(), AT_ONCE);
    settle(&proxy, &mut upstream).await;
    assert!(upstream.is_quiet());
    let (mut opened, mut answered) = (0, 0);
    while answered < SESSIONS {
        if let Some(call) = opening.pop() {
            let body = call.json_body();
            let info = json!({ "name": "scripted", "version": "1" });
            let result = json!({ "protocolVersion": V2025_11, "capabilities": { "tools": {}, "logging": {} }, "serverInfo": info });
            let result = json!({ "jsonrpc": "2.0", "id": body["id"], "result": result }).to_string();
            call.json_with(200, &format!("Mcp-Session-Id: new-{opened}\r\n"), result).await;
            opened += 1;
            continue;
        }
        let call = upstream.next().await;
        match call.rpc_method().as_str() {
            "initialize" => opening.push(call),
            "notifications/initialized" => call.status(202).await,
            _ => {
                assert!(call.header("mcp-session-id").is_some_and(|name| name.starts_with("new-")));
                let id = call.json_body()["id"].as_u64().expect("a number");
                call.json(200, result(id)).await;
                answered += 1;
            }
        }
    }
    for (number, pending) in pending.into_iter().enumerate() {
        let mut response = pending.response().await;
        assert_eq!(response.header("mcp-session-id"), None);
        assert_eq!(response.body().await, result(number).as_bytes());
    }
    assert_eq!(opened, SESSIONS);
}
