//! The promise to join a request that is sent again: the header `Mcp-Resume`, repetitions with
//! their epoch, and calls of 2026-07-28 that are held and cancelled by their key.

use std::time::Duration;

use mcp_resume::config::Config;
use mcp_resume::protocol::client_names::ClientNames;

use crate::retry::runs_anew;
use crate::support::*;

const CANCELLED: &str = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#;

fn known(request: Request) -> Request {
    request.with("Authorization", "Bearer b")
}

fn keyed(request: Request) -> Request {
    request.with("Idempotency-Key", "k-1")
}

/// The promise of the proxy for a caller with credentials: its epoch and its seconds.
async fn promised(proxy: &Proxy, upstream: &mut Upstream) -> (String, u64) {
    let pending = known(modern_method(9, "tools/list")).start(proxy.addr).await;
    upstream.expect("tools/list").await.json(200, result(9)).await;
    let response = pending.response().await;
    let text = response.header("mcp-resume").expect("a promise").to_owned();
    let (epoch, hold) = text.strip_prefix("1; epoch=").and_then(|rest| rest.split_once("; hold=")).expect("its parts");
    (epoch.to_owned(), hold.parse().expect("seconds"))
}

#[tokio::test]
async fn callers_that_are_distinct_get_the_promise() {
    let (mut upstream, proxy, session) = setup_with(|c| c.streams.max_wait = Some(Duration::from_secs(90))).await;
    let (epoch, hold) = promised(&proxy, &mut upstream).await;
    assert_eq!(hold, 90);
    let expected = format!("1; epoch={epoch}; hold=90");
    // A session without credentials.
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    assert_eq!(response.header("mcp-resume"), Some(&*expected));
    sse.finish(result(1)).await;
    response.events().await;
    // The opening of one.
    let pending = Request::post(initialize(V2025_11)).start(proxy.addr).await;
    upstream.expect("initialize").await.json_with(200, "mcp-session-id: s-9\r\n", result(0)).await;
    assert_eq!(pending.response().await.header("mcp-resume"), Some(&*expected));
    // A caller like any other: the server's own promise does not hold here.
    let pending = modern(2).start(proxy.addr).await;
    upstream.expect("tools/call").await.json_with(200, "mcp-resume: 1; epoch=x; hold=5\r\n", result(2)).await;
    assert_eq!(pending.response().await.header("mcp-resume"), None);
    // Other paths are not the endpoint.
    let pending = known(Request::new("GET", "/other")).start(proxy.addr).await;
    upstream.next().await.status(204).await;
    assert_eq!(pending.response().await.header("mcp-resume"), None);
}

#[tokio::test]
async fn the_shortest_wait_of_a_tool_is_promised() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |c| {
        c.tools.entry("slow".to_owned()).or_default().max_wait = Some(Some(Duration::from_secs(7)));
        c.tools.entry("other".to_owned()).or_default().max_wait = Some(None);
    })
    .await;
    assert_eq!(promised(&proxy, &mut upstream).await.1, 7);
}

#[tokio::test]
async fn a_repetition_of_the_same_epoch_joins_its_call() {
    let (mut upstream, proxy, session) = setup().await;
    let (epoch, _) = promised(&proxy, &mut upstream).await;
    for request in [session.post(call(1)), known(modern(1))] {
        let request = keyed(request);
        let pending = request.clone().with("Mcp-Resume-Hold", "60").start(proxy.addr).await;
        let call = upstream.expect("tools/call").await;
        for name in ["mcp-resume-hold", "mcp-resume-epoch"] {
            assert_eq!(call.header(name), None, "{name} is for the proxy");
        }
        assert_eq!(call.header("idempotency-key"), Some("k-1"));
        pending.reset();
        settle(&proxy, &mut upstream).await;
        let again = request.with("Mcp-Resume-Epoch", &epoch).start(proxy.addr).await;
        let sse = call.sse().await;
        sse.finish(result(1)).await;
        let mut response = again.response().await.sse();
        let (events, _) = response.events().await;
        assert!(events.iter().any(|event| event.is_event() && event.bytes() == result(1).as_bytes()));
        assert!(upstream.is_quiet());
    }
}

#[tokio::test]
async fn a_repetition_of_another_epoch_runs_nothing() {
    let (mut upstream, proxy, session) = setup().await;
    let (epoch, _) = promised(&proxy, &mut upstream).await;
    let other = if epoch == "00000000" { "00000001" } else { "00000000" };
    for (request, epoch, what) in [
        (keyed(session.post(call(1))), other, "in a session"),
        (keyed(known(modern(1))), other, "by a credential"),
        (keyed(modern(1)), &*epoch, "of a caller like any other"),
        (known(modern(1)), &*epoch, "without its key"),
        (keyed(known(modern(1))), "", "an empty epoch"),
    ] {
        let mut response = request.with("Mcp-Resume-Epoch", epoch).send(proxy.addr).await;
        assert_eq!(response.status, 412, "{what}");
        let body = response.body().await;
        let error: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
        assert_eq!(error["id"], 1, "{what}: {error}");
        assert_eq!(error["error"]["data"]["error"], "owner_died", "{what}: {error}");
        assert_eq!(error["error"]["data"]["mayHaveRun"], true, "{what}: {error}");
    }
    assert!(upstream.is_quiet());
    // A first request of the same key is a new call.
    runs_anew(&proxy, &mut upstream, &keyed(known(modern(1))), "without an epoch").await;
}

#[tokio::test]
async fn a_held_call_outlives_its_connection() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |c| {
        c.streams.modern_grace = Some(SOON);
        c.streams.max_wait = Some(LATER);
    })
    .await;
    // More than the proxy's own limit is that limit. Without a key or a credential it is the grace.
    for (request, is_held) in
        [(keyed(known(modern(1))), true), (known(modern(2)), false), (modern(3).with("Idempotency-Key", "k-3"), false)]
    {
        let request = request.with("Mcp-Resume-Hold", "100000");
        let (sse, mut response) = begin(&proxy, &mut upstream, &request).await;
        response.prime().await;
        let left = std::time::Instant::now();
        response.reset();
        sse.closed().await;
        assert_eq!(left.elapsed() >= LATER - SOON, is_held);
    }
}

#[tokio::test]
async fn a_held_call_is_cancelled_by_its_key() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |_| {}).await;
    let cancel = |authorization: &str, key: &str| {
        let request = Request::post(CANCELLED).with("MCP-Protocol-Version", V2026);
        request.with("Authorization", authorization).with("Idempotency-Key", key)
    };
    let request = keyed(known(modern(1))).with("Mcp-Resume-Hold", "60");
    let (sse, mut response) = begin(&proxy, &mut upstream, &request).await;
    response.prime().await;
    response.reset();
    // Another caller's key, and an unknown one, end nothing.
    for (authorization, key) in [("Bearer c", "k-1"), ("Bearer b", "k-2")] {
        assert_eq!(cancel(authorization, key).send(proxy.addr).await.status, 202);
    }
    settle(&proxy, &mut upstream).await;
    assert!(!sse.is_closed());
    assert_eq!(cancel("Bearer b", "k-1").send(proxy.addr).await.status, 202);
    sse.closed().await;
    assert!(upstream.is_quiet(), "nothing is forwarded");
}

#[tokio::test]
async fn rules_by_name_are_not_for_a_client_that_repairs_its_connections() {
    let named = |c: &mut Config| c.delivery.graceful_for = ClientNames::of(&["raw"]);
    let (mut upstream, proxy, session) = setup_with(named).await;
    for (post, resume) in [(session.post(call(1)), session.resume("")), (known(modern(1)), known(modern_resume("")))] {
        let request = keyed(post).with("Mcp-Resume-Hold", "60");
        let (sse, mut response) = begin(&proxy, &mut upstream, &request).await;
        let place = EventId::of(response.prime().await.id());
        response.reset();
        settle(&proxy, &mut upstream).await;
        let resume = resume.without("Last-Event-ID").resume_from(&place.at(0));
        let mut resumed = resume.send(proxy.addr).await.sse();
        sse.finish(result(1)).await;
        assert_eq!(resumed.event().await.bytes(), result(1).as_bytes());
    }
}
