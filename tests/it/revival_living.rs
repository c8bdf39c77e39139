//! Sessions that live although a response looks like their refusal: no tool runs twice, and none of
//! them is opened again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;

use crate::revival::*;
use crate::support::*;

const HTML: &str = "<!DOCTYPE html><html><body><pre>Cannot GET /mcp</pre></body></html>";
const NOT_FOUND: &str = r#"{"detail":"Not Found"}"#;
const NO_VISITOR: &str = r#"{"detail":"no visitor"}"#;

fn list(id: &str) -> String {
    json!({ "jsonrpc": "2.0", "id": id, "method": "tools/list" }).to_string()
}

/// Calls a tool, which the server answers in the session `name`.
async fn has_called(upstream: &mut Upstream, proxy: &Proxy, session: &Session, (id, name): (u64, &str)) {
    let pending = session.post(call(id)).start(proxy.addr).await;
    answer(upstream, id, name).await;
    assert_eq!(pending.response().await.status, 200);
}

/// Refuses requests of these methods in unknown words, one after the other.
async fn refuse_unknown(upstream: &mut Upstream, methods: &[&str]) {
    for method in methods {
        upstream.expect(method).await.json(404, NO_VISITOR).await;
    }
}

/// State of a server with sessions that counts what it does.
struct Counting {
    /// Living sessions.
    living: Vec<String>,
    opened: usize,
    /// Requests that ran, by their ID.
    ran: HashMap<String, usize>,
    has_ping: bool,
    /// Refusal of an unknown session.
    refusal: (u16, String),
    /// Response to the requests of the test in a living session.
    response: (u16, String),
}

/// Answers all requests by the state.
async fn serve(mut upstream: Upstream, state: Arc<Mutex<Counting>>) {
    while let Some(call) = upstream.try_next().await {
        let method = call.rpc_method();
        if method == "initialize" {
            let name = {
                let mut state = state.lock().unwrap();
                state.opened += 1;
                let name = format!("s-{}", state.opened);
                state.living.push(name.clone());
                name
            };
            answer_initialize(call, &name).await;
            continue;
        }
        let (status, body) = {
            let mut state = state.lock().unwrap();
            let session = call.header("mcp-session-id").unwrap_or_default().to_owned();
            let id = if method == "GET" { "GET".to_owned() } else { call.json_body()["id"].to_string() };
            let is_own = id.contains("mcp-resume");
            if !state.living.contains(&session) {
                state.refusal.clone()
            } else if method.starts_with("notifications/") {
                (202, String::new())
            } else if method == "ping" && !state.has_ping {
                // As everything that the server does not have.
                let is_of_session = state.response.1.to_lowercase().contains("session");
                if is_of_session { (404, NOT_FOUND.to_owned()) } else { state.response.clone() }
            } else if is_own || id == "90" {
                (200, result(call.json_body()["id"].clone()))
            } else {
                *state.ran.entry(id).or_default() += 1;
                state.response.clone()
            }
        };
        call.json(status, body).await;
    }
}

/// For each refusal of a dead session, each response that may look like one, and each kind of
/// request.
#[tokio::test]
async fn no_tool_runs_twice_no_living_session_is_opened_again_and_dead_ones_are() {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |config| config.limits.sessions = 10_000).await;
    let state = Arc::new(Mutex::new(Counting {
        living: Vec::new(),
        opened: 0,
        ran: HashMap::new(),
        has_ping: true,
        refusal: (404, FORGOTTEN.to_owned()),
        response: (200, String::new()),
    }));
    tokio::spawn(serve(upstream, state.clone()));
    let long = format!("<html>{}</html>", "x".repeat(10_000));
    let own = r#"{"jsonrpc":"2.0","id":"case","error":{"code":-32002,"message":"no order 12"}}"#;
    let bodies = ["", NOT_FOUND, NO_VISITOR, HTML, &long, FORGOTTEN, "Session not found", "No valid session ID", own];
    for status in [404, 400, 403, 405, 410, 500] {
        for body in bodies {
            for request in ["tools/call", "tools/list", "acme/write", "GET"] {
                for (is_living, has_ping) in [(true, true), (true, false), (false, true)] {
                    let case = format!("{status} {body:.60} {request} living: {is_living} ping: {has_ping}");
                    check_case(&proxy, &state, (status, body), request, (is_living, has_ping), &case).await;
                }
            }
        }
    }
}

/// Sends one request in a new session. A living session gives it this response; a dead one has this
/// refusal.
async fn check_case(
    proxy: &Proxy,
    state: &Mutex<Counting>,
    (status, body): (u16, &str),
    request: &str,
    (is_living, has_ping): (bool, bool),
    case: &str,
) {
    let name = Request::post(initialize(V2025_11)).send(proxy.addr).await;
    let session = Session::opened_elsewhere(V2025_11, name.header("mcp-session-id").expect("a session"), None);
    assert_eq!(session.post(INITIALIZED).send(proxy.addr).await.status, 202);
    assert_eq!(session.post(call(90)).send(proxy.addr).await.status, 200);
    let before = {
        let mut state = state.lock().unwrap();
        state.ran.clear();
        state.has_ping = has_ping;
        if !is_living {
            state.living.clear();
        }
        let success = (200, result("case"));
        state.refusal = if is_living { (404, FORGOTTEN.to_owned()) } else { (status, body.to_owned()) };
        state.response = if is_living { (status, body.to_owned()) } else { success };
        state.opened
    };
    let sent = match request {
        "GET" => session.get(),
        "tools/call" => session.post(call("case")),
        method => session.post(json!({ "jsonrpc": "2.0", "id": "case", "method": method }).to_string()),
    };
    let mut response = sent.send(proxy.addr).await;
    let got = response.status;
    response.body().await;
    let state = state.lock().unwrap();
    let (opened, ran) = (state.opened - before, state.ran.values().sum::<usize>());
    if is_living {
        assert_eq!((opened, ran, got), (0, 1, status), "{case}");
        return;
    }
    let words = body.to_lowercase();
    let is_known = match status {
        404 => words.contains("session not found") || words.contains("no valid session id"),
        400 => words.contains("no valid session id"),
        _ => false,
    };
    let is_recognised = is_known || status == 404 && body.len() <= 4096;
    let is_repeated = is_known || is_recognised && matches!(request, "tools/list" | "GET");
    assert_eq!((opened, ran), (usize::from(is_recognised), usize::from(is_repeated)), "{case}");
    assert_eq!(got, if is_repeated { 200 } else { status }, "{case}");
}

/// As of a server with `app.post('/mcp')` alone.
#[tokio::test]
async fn a_get_without_a_route_opens_no_session_again_and_is_not_repeated() {
    let long = format!("<html>{}</html>", "x".repeat(100_000));
    for body in [HTML, NOT_FOUND, "", &long] {
        let (mut upstream, proxy, session) = ready().await;
        has_called(&mut upstream, &proxy, &session, (90, "s-1")).await;
        let pending = session.get().start(proxy.addr).await;
        upstream.expect("GET").await.json(404, body).await;
        lives(&mut upstream, "s-1").await;
        let mut response = pending.response().await;
        assert_eq!((response.status, response.body().await.as_slice()), (404, body.as_bytes()));
        // Its next GET is answered by the proxy, and its session goes on.
        assert_eq!(session.get().send(proxy.addr).await.status, 404);
        has_called(&mut upstream, &proxy, &session, (91, "s-1")).await;
        assert!(upstream.is_quiet());
        // A new server may have such a stream.
        let pending = session.post(call(1)).start(proxy.addr).await;
        forget(&mut upstream, "tools/call", "s-1").await;
        open_again(&mut upstream, "s-2").await;
        answer(&mut upstream, 1, "s-2").await;
        assert_eq!(pending.response().await.status, 200);
        let pending = session.get().start(proxy.addr).await;
        let _sse = upstream.expect("GET").await.sse().await;
        pending.response().await.sse().prime().await;
    }
}

#[tokio::test]
async fn a_get_that_is_refused_in_known_words_opens_no_living_session_again() {
    let (mut upstream, proxy, session) = ready().await;
    let pending = session.get().start(proxy.addr).await;
    refuse(&mut upstream, "GET", "s-1").await;
    lives(&mut upstream, "s-1").await;
    assert_eq!(pending.response().await.status, 404);
    assert!(upstream.is_quiet());
}

/// The server has restarted, and refuses the session in words of its own.
#[tokio::test]
async fn a_session_that_is_dead_in_unknown_words_is_opened_and_a_call_is_not_repeated() {
    let (mut upstream, proxy, session) = ready().await;
    has_called(&mut upstream, &proxy, &session, (90, "s-1")).await;
    let pending = session.post(call(1)).start(proxy.addr).await;
    refuse_unknown(&mut upstream, &["tools/call", "ping", "tools/list"]).await;
    open_again(&mut upstream, "s-2").await;
    let mut response = pending.response().await;
    assert_eq!((response.status, response.body().await.as_slice()), (404, NO_VISITOR.as_bytes()));
    has_called(&mut upstream, &proxy, &session, (91, "s-2")).await;
    // A list has no effect.
    let pending = session.post(list("l")).start(proxy.addr).await;
    refuse_unknown(&mut upstream, &["tools/list", "ping", "tools/list"]).await;
    open_again(&mut upstream, "s-3").await;
    let again = upstream.expect("tools/list").await;
    assert_eq!(again.header("mcp-session-id"), Some("s-3"));
    again.json(200, result("l")).await;
    assert_eq!(pending.response().await.status, 200);
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn a_server_that_has_never_answered_in_a_session_does_not_lose_it_by_unknown_words() {
    let (mut upstream, proxy, session) = ready().await;
    let pending = session.post(call(1)).start(proxy.addr).await;
    refuse_unknown(&mut upstream, &["tools/call", "ping", "tools/list"]).await;
    assert_eq!(pending.response().await.status, 404);
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn without_a_verdict_known_words_decide_unless_the_server_is_busy() {
    let list = |id: u64| json!({"jsonrpc": "2.0", "id": id, "method": "tools/list"}).to_string();
    for (is_known, has_effects) in [(true, true), (true, false), (false, true), (false, false)] {
        for answered in ["503", "reset", "nothing"] {
            let (mut upstream, proxy, session) = ready().await;
            has_called(&mut upstream, &proxy, &session, (90, "s-1")).await;
            let (method, body) = if has_effects { ("tools/call", call(1)) } else { ("tools/list", list(1)) };
            let pending = session.post(body).start(proxy.addr).await;
            let refusal = if is_known { FORGOTTEN } else { NO_VISITOR };
            upstream.expect(method).await.json(404, refusal).await;
            let ping = ping_in(&mut upstream, "s-1").await;
            let mut silent = None;
            match answered {
                "503" => ping.status(503).await,
                "reset" => ping.reset().await,
                _ => {
                    silent = Some(ping);
                    pass(Duration::from_millis(1500)).await;
                }
            }
            let is_revived = is_known && answered != "nothing";
            if is_revived {
                open_again(&mut upstream, "s-2").await;
                let again = upstream.expect(method).await;
                assert_eq!(again.header("mcp-session-id"), Some("s-2"));
                again.json(200, result(1)).await;
            }
            let status = pending.response().await.status;
            assert_eq!(status, if is_revived { 200 } else { 404 }, "{is_known} {has_effects} {answered}");
            assert!(upstream.is_quiet());
            drop(silent);
        }
    }
}

#[tokio::test]
async fn requests_that_are_refused_together_in_a_living_session_share_one_ping() {
    let (mut upstream, proxy, session) = ready().await;
    let first = session.post(call(1)).start(proxy.addr).await;
    let second = session.post(call(2)).start(proxy.addr).await;
    let (one, two) = (upstream.expect("tools/call").await, upstream.expect("tools/call").await);
    one.json(404, NO_VISITOR).await;
    let ping = ping_in(&mut upstream, "s-1").await;
    two.json(404, FORGOTTEN).await;
    settle(&proxy, &mut upstream).await;
    ping.json(200, "{}").await;
    for pending in [first, second] {
        assert_eq!(pending.response().await.status, 404);
    }
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn the_ping_has_the_credentials_of_the_refused_request() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |_| {}).await;
    let session = open_as(&proxy, &mut upstream, json!({}), Some("Bearer a")).await;
    let pending = session.post(call(1)).with("X-Tenant", "t").start(proxy.addr).await;
    refuse(&mut upstream, "tools/call", "s-1").await;
    let ping = ping_in(&mut upstream, "s-1").await;
    assert_eq!((ping.header("authorization"), ping.header("x-tenant")), (Some("Bearer a"), Some("t")));
    let sse = ping.sse().await;
    assert_eq!(pending.response().await.status, 404);
    sse.end().await;
}

/// As of `@mastra/mcp`.
#[tokio::test]
async fn known_words_of_a_400_count_under_the_requests_own_id() {
    let (mut upstream, proxy, session) = ready().await;
    let pending = session.post(call(1)).start(proxy.addr).await;
    for method in ["tools/call", "ping"] {
        let refused = upstream.expect(method).await;
        let error = json!({ "code": -32000, "message": "Bad Request: No valid session ID provided" });
        let body = json!({ "jsonrpc": "2.0", "id": refused.json_body()["id"], "error": error });
        refused.json(400, body.to_string()).await;
    }
    open_again(&mut upstream, "s-2").await;
    answer(&mut upstream, 1, "s-2").await;
    assert_eq!(pending.response().await.status, 200);
}

#[tokio::test]
async fn a_configured_refusal_may_have_any_status() {
    let gone = r#"{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":"No login"}}"#;
    for status in [200, 403, 500] {
        let pattern = format!("{status} no login").parse().expect("a refusal");
        let (mut upstream, proxy, session) = with(json!({}), |c| c.sessions.refusals = vec![pattern]).await;
        let own = json!({ "jsonrpc": "2.0", "id": 3, "error": { "code": 1, "message": "No login" } }).to_string();
        let pending = session.post(call(1)).start(proxy.addr).await;
        upstream.expect("tools/call").await.json(status, gone).await;
        ping_in(&mut upstream, "s-1").await.json(status, gone).await;
        open_again(&mut upstream, "s-2").await;
        answer(&mut upstream, 1, "s-2").await;
        assert_eq!(pending.response().await.status, 200);
        if status == 200 {
            // That is the response of a tool.
            let pending = session.post(call(3)).start(proxy.addr).await;
            upstream.expect("tools/call").await.json(status, &own).await;
            assert_eq!(pending.response().await.body().await, own.as_bytes());
            let pending = session.post(call(2)).start(proxy.addr).await;
            let sse = upstream.expect("tools/call").await.sse().await;
            let mut response = pending.response().await.sse();
            response.prime().await;
            sse.finish(result(2)).await;
            assert_eq!(response.event().await.bytes(), result(2).as_bytes());
        }
        assert!(upstream.is_quiet());
    }
}
