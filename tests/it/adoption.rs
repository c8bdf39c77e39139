//! Clients of 2026-07-28 that send a call again under another ID: the tool runs once.

use std::time::Duration;

use mcp_resume::config::Config;
use mcp_resume::protocol::client_names::ClientNames;
use serde_json::{Value, json};

use crate::support::*;

const NAME: &str = "again";

/// A call by a listed client, with the names of this try.
struct Try {
    id: Value,
    token: Option<Value>,
    trace: &'static str,
}

fn first() -> Try {
    Try { id: json!(1), token: Some(json!(7)), trace: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01" }
}

fn second() -> Try {
    Try {
        id: json!("two"),
        token: Some(json!("t-2")),
        trace: "00-1af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    }
}

impl Try {
    fn body(&self) -> Value {
        let mut meta = json!({
            "io.modelcontextprotocol/protocolVersion": V2026,
            "io.modelcontextprotocol/clientInfo": {"name": NAME, "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {},
            "traceparent": self.trace});
        if let Some(token) = &self.token {
            meta["progressToken"] = token.clone();
        }
        json!({"jsonrpc": "2.0", "id": self.id, "method": "tools/call",
            "params": {"name": "slow", "arguments": {"a": [1, 2]}, "_meta": meta}})
    }

    fn request(&self) -> Request {
        as_caller(&self.body())
    }
}

fn as_caller(body: &Value) -> Request {
    modern(1).with_body(body.to_string()).with("Authorization", "Bearer t")
}

async fn start(change: impl FnOnce(&mut Config)) -> (Upstream, Proxy) {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |config| {
        config.delivery.adopt_for = ClientNames::of(&["ag*"]);
        change(config);
    })
    .await;
    (upstream, proxy)
}

fn outcome(id: &Value, run: u64) -> String {
    json!({"jsonrpc": "2.0", "id": id, "result": {"run": run}}).to_string()
}

fn progress_of(token: &Value, n: u64) -> String {
    json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": token, "progress": n}})
        .to_string()
}

/// A call whose connection broke before its head; the proxy has seen the break.
async fn broken(proxy: &Proxy, upstream: &mut Upstream, request: &Request) -> Call {
    let client = request.start(proxy.addr).await;
    let call = upstream.next().await;
    client.reset();
    settle(proxy, upstream).await;
    call
}

async fn runs(proxy: &Proxy, upstream: &mut Upstream, request: &Request, what: &str) {
    let pending = request.start(proxy.addr).await;
    let call = upstream.next().await;
    let id = call.json_body()["id"].clone();
    call.json(200, outcome(&id, 77)).await;
    assert_eq!(
        pending.response().await.json().await,
        json!({"jsonrpc": "2.0", "id": id, "result": {"run": 77}}),
        "{what}"
    );
}

#[tokio::test]
async fn a_call_that_was_cut_before_its_head_goes_on_under_the_next_id() {
    for as_events in [false, true] {
        let (mut upstream, proxy) = start(|_| {}).await;
        let call = broken(&proxy, &mut upstream, &first().request()).await;
        let pending = second().request().start(proxy.addr).await;
        settle(&proxy, &mut upstream).await;
        if as_events {
            let sse = call.sse().await;
            sse.event(progress_of(&json!(7), 1)).await;
            sse.finish(outcome(&json!(1), 5)).await;
        } else {
            call.json(200, outcome(&json!(1), 5)).await;
        }
        let mut response = pending.response().await.sse();
        if as_events {
            assert_eq!(response.event().await.json()["params"], json!({"progressToken": "t-2", "progress": 1}));
        }
        assert_eq!(response.event().await.json().to_string(), outcome(&json!("two"), 5));
        response.ends().await;
        assert!(upstream.is_quiet());
    }
}

#[tokio::test]
async fn a_call_that_was_cut_behind_its_head_goes_on_under_each_next_id() {
    let (mut upstream, proxy) = start(|_| {}).await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &first().request()).await;
    sse.event(progress_of(&json!(7), 1)).await;
    assert_eq!(response.event().await.json()["params"]["progressToken"], 7);
    response.reset();
    settle(&proxy, &mut upstream).await;

    let mut response = second().request().send(proxy.addr).await.sse();
    assert_eq!(response.event().await.json()["params"]["progressToken"], "t-2");
    response.reset();
    settle(&proxy, &mut upstream).await;

    // The third try wants no progress.
    let third = Try { id: json!(3), token: None, ..second() };
    let mut response = third.request().send(proxy.addr).await.sse();
    sse.event(progress_of(&json!(7), 2)).await;
    sse.finish(outcome(&json!(1), 5)).await;
    let message = response.event().await;
    assert_eq!(message.json().to_string(), outcome(&json!(3), 5));
    response.ends().await;
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn a_client_resumes_the_call_under_its_own_id() {
    let (mut upstream, proxy) = start(|_| {}).await;
    let call = broken(&proxy, &mut upstream, &first().request()).await;
    let pending = second().request().start(proxy.addr).await;
    settle(&proxy, &mut upstream).await;
    let sse = call.sse().await;
    sse.event(progress_of(&json!(7), 1)).await;
    let mut response = pending.response().await.sse();
    let place = response.event().await.id().to_owned();
    response.reset();
    settle(&proxy, &mut upstream).await;
    sse.finish(outcome(&json!(1), 5)).await;
    let resume = modern_resume(&place).with("Authorization", "Bearer t");
    let mut response = resume.send(proxy.addr).await.sse();
    assert_eq!(response.event().await.json().to_string(), outcome(&json!("two"), 5));
    response.ends().await;
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn a_response_that_came_in_the_meantime_has_the_next_id() {
    for as_events in [false, true] {
        let (mut upstream, proxy) = start(|_| {}).await;
        let call = broken(&proxy, &mut upstream, &first().request()).await;
        if as_events {
            call.sse().await.finish(outcome(&json!(1), 5)).await;
        } else {
            call.json(200, outcome(&json!(1), 5)).await;
        }
        settle(&proxy, &mut upstream).await;
        let mut response = second().request().send(proxy.addr).await;
        let message = if response.is_sse() {
            let (events, end) = response.events().await;
            assert_eq!((events.len(), end), (1, End::Complete));
            events[0].json()
        } else {
            response.json().await
        };
        assert_eq!(message.to_string(), outcome(&json!("two"), 5));
        assert!(upstream.is_quiet());
        runs(&proxy, &mut upstream, &Try { id: json!(3), ..second() }.request(), "behind it").await;
    }
}

#[tokio::test]
async fn a_client_of_json_alone_gets_the_result_under_its_id() {
    let (mut upstream, proxy) = start(|_| {}).await;
    let json_alone = |request: Request| request.with("Accept", "application/json");
    let call = broken(&proxy, &mut upstream, &json_alone(first().request())).await;
    let pending = json_alone(second().request()).start(proxy.addr).await;
    settle(&proxy, &mut upstream).await;
    call.json(200, outcome(&json!(1), 5)).await;
    assert_eq!(pending.response().await.json().await.to_string(), outcome(&json!("two"), 5));
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn another_call_runs() {
    let changed = |path: &str, value: Value| {
        let mut body = second().body();
        *body.pointer_mut(path).expect("a member") = value;
        as_caller(&body)
    };
    let mut meta = second().body();
    meta["params"]["_meta"]["x"] = json!(1);
    let others = [
        ("other arguments", changed("/params/arguments/a/0", json!(2))),
        ("another tool", changed("/params/name", json!("other")).with("Mcp-Name", "other")),
        ("more of _meta", as_caller(&meta)),
        ("another client", changed("/params/_meta/io.modelcontextprotocol~1clientInfo/name", json!("b"))),
        ("another version", changed("/params/_meta/io.modelcontextprotocol~1clientInfo/version", json!("2"))),
        ("another caller", second().request().with("Authorization", "Bearer u")),
        ("no caller", second().request().without("Authorization")),
        ("a key", second().request().with("Idempotency-Key", "k")),
    ];
    for (what, other) in others {
        let (mut upstream, proxy) = start(|_| {}).await;
        let _call = broken(&proxy, &mut upstream, &first().request()).await;
        runs(&proxy, &mut upstream, &other, what).await;
    }
}

#[tokio::test]
async fn a_call_that_is_attached_cancelled_or_not_listed_is_not_adopted() {
    // Equal calls at once.
    let (mut upstream, proxy) = start(|_| {}).await;
    let pending = first().request().start(proxy.addr).await;
    let call = upstream.next().await;
    runs(&proxy, &mut upstream, &second().request(), "attached").await;
    call.json(200, outcome(&json!(1), 1)).await;
    pending.response().await.json().await;
    runs(&proxy, &mut upstream, &second().request(), "complete").await;

    // Without credentials, and by default.
    let anonymous = |request: Request| request.without("Authorization");
    let _call = broken(&proxy, &mut upstream, &anonymous(first().request())).await;
    runs(&proxy, &mut upstream, &anonymous(second().request()), "anonymous").await;
    let (mut upstream, proxy) = start(|c| c.delivery.adopt_for = ClientNames::of(&[])).await;
    let _call = broken(&proxy, &mut upstream, &first().request()).await;
    runs(&proxy, &mut upstream, &second().request(), "not listed").await;

    // Behind the grace, the server has been told.
    let (mut upstream, proxy) = start(|c| c.streams.modern_grace = Some(Duration::from_millis(300))).await;
    let call = broken(&proxy, &mut upstream, &first().request()).await;
    call.closed().await;
    settle(&proxy, &mut upstream).await;
    runs(&proxy, &mut upstream, &second().request(), "given up").await;
}
