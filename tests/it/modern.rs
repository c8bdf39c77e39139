//! 2026-07-28: a client that leaves has cancelled, unless it comes back.

use crate::support::*;
use std::time::Duration;

async fn modern_stage(grace: Option<Duration>) -> (Upstream, Proxy) {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |c| c.streams.modern_grace = grace).await;
    (upstream, proxy)
}

#[tokio::test]
async fn a_modern_exchange_gains_ids_and_nothing_else() {
    let (mut upstream, proxy) = modern_stage(None).await;
    let request = modern(1);
    let pending = request.start(proxy.addr).await;
    let upstream_call = upstream.expect("tools/call").await;
    assert_eq!(upstream_call.header("mcp-protocol-version"), Some(V2026));
    assert_eq!(upstream_call.header("mcp-method"), Some("tools/call"));
    assert_eq!(upstream_call.header("mcp-name"), Some("slow"));
    assert_eq!(upstream_call.header("mcp-session-id"), None);
    let sent = request.bytes(proxy.addr);
    assert!(sent.ends_with(&upstream_call.body), "the body is unchanged");
    let sse = upstream_call.sse().await;
    let mut response = pending.response().await.sse();
    assert_eq!(response.header("mcp-session-id"), None);
    let prime = response.prime().await;
    assert_eq!(prime.retry, Some(1000));
    let place = EventId::of(prime.id());
    for (n, payload) in [(1, progress(1)), (2, "{\"x\" : [1 ,2]}".to_owned())] {
        sse.event(&payload).await;
        let event = response.event().await;
        assert_eq!(event.id(), place.at(n));
        assert_eq!(event.event.as_deref(), Some("message"));
        assert_eq!(event.bytes(), payload.as_bytes());
    }
    sse.finish(result(1)).await;
    assert_eq!(response.event().await.bytes(), result(1).as_bytes());
    response.ends().await;
}

#[tokio::test]
async fn a_client_that_comes_back_gets_the_rest_of_an_undisturbed_call() {
    let (mut upstream, proxy) = modern_stage(None).await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &modern(1)).await;
    let place = EventId::of(response.prime().await.id());
    response.reset();
    sse.event(progress(1)).await;
    let mut back = modern_resume(&place.at(0)).send(proxy.addr).await.sse();
    back.prime().await;
    assert_eq!(back.event().await.id(), place.at(1));
    assert!(!sse.is_closed());
    sse.finish(result(1)).await;
    assert_eq!(back.event().await.bytes(), result(1).as_bytes());
    back.ends().await;
    assert!(upstream.is_quiet(), "the upstream has noticed nothing");
}

#[tokio::test]
async fn a_client_that_stays_away_has_cancelled() {
    let (mut upstream, proxy) = modern_stage(Some(SOON)).await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &modern(6)).await;
    let place = EventId::of(response.prime().await.id());
    response.reset();
    sse.closed().await;
    let mut late = modern_resume(&place.at(0)).send(proxy.addr).await.sse();
    let (events, end) = late.events().await;
    assert_eq!((events.len(), end), (1, End::Complete));
    let message = events[0].json();
    assert_eq!(message["id"], 6, "{message}");
    assert_eq!(message["error"]["code"], ABANDONED, "{message}");
    let again = modern_resume(events[0].id()).send(proxy.addr).await;
    assert_eq!(again.status, 204);
    settle(&proxy, &mut upstream).await;
}

#[tokio::test]
async fn the_grace_starts_anew_with_each_return() {
    let (mut upstream, proxy) = modern_stage(Some(LATER)).await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &modern(1)).await;
    let place = EventId::of(response.prime().await.id());
    for _ in 0..3 {
        response.reset();
        response = modern_resume(&place.at(0)).send(proxy.addr).await.sse();
        response.prime().await;
    }
    // Attached, no timer runs. A stream left at this moment outlives its grace elsewhere.
    let (control, control_response) = begin(&proxy, &mut upstream, &modern(2)).await;
    control_response.reset();
    control.closed().await;
    assert!(!sse.is_closed());
    sse.finish(result(1)).await;
    assert_eq!(response.event().await.bytes(), result(1).as_bytes());
}

#[tokio::test]
async fn without_a_grace_leaving_cancels_at_once() {
    let (mut upstream, proxy) = modern_stage(Some(Duration::ZERO)).await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &modern(1)).await;
    response.prime().await;
    response.reset();
    sse.closed().await;
}

#[tokio::test]
async fn a_client_without_any_id_has_cancelled_at_once() {
    let (mut upstream, proxy) = modern_stage(Some(LIMIT * 6)).await;
    let client = modern(1).start(proxy.addr).await;
    let upstream_call = upstream.next().await;
    client.reset();
    upstream_call.closed().await;
    settle(&proxy, &mut upstream).await;
}

#[tokio::test]
async fn a_key_is_as_good_as_an_id() {
    let (mut upstream, proxy) = modern_stage(Some(LIMIT * 6)).await;
    let request = modern(1).with("Authorization", "Bearer a").with("Idempotency-Key", "k");
    let client = request.start(proxy.addr).await;
    let upstream_call = upstream.next().await;
    client.reset();
    settle(&proxy, &mut upstream).await;
    assert!(!upstream_call.is_closed());
    let pending = request.start(proxy.addr).await;
    settle(&proxy, &mut upstream).await;
    let sse = upstream_call.sse().await;
    sse.finish(result(1)).await;
    let mut response = pending.response().await.sse();
    assert_eq!(response.event().await.bytes(), result(1).as_bytes());
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn every_way_to_leave_is_noticed() {
    let (mut upstream, proxy) = modern_stage(Some(Duration::ZERO)).await;
    for how in ["fin", "reset", "half close", "byte and reset"] {
        let (sse, mut response) = begin(&proxy, &mut upstream, &modern(1)).await;
        response.prime().await;
        let mut held = None;
        if how.starts_with("byte") {
            response.send(b"G").await;
        }
        match how {
            "fin" => response.fin(),
            "half close" => {
                response.half_close().await;
                held = Some(response);
            }
            _ => response.reset(),
        }
        within(how, sse.closed()).await;
        drop(held);
    }
}

#[tokio::test]
async fn a_pipelined_byte_does_not_hide_the_end_of_the_connection() {
    let (mut upstream, proxy) = modern_stage(Some(Duration::ZERO)).await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &modern(1)).await;
    response.prime().await;
    response.send(b"G").await;
    response.fin();
    sse.closed().await;
}

#[tokio::test]
async fn a_version_of_the_future_is_modern() {
    let (mut upstream, proxy) = modern_stage(Some(Duration::ZERO)).await;
    let request = Request::post(call(1)).with("MCP-Protocol-Version", "2031-01-01");
    let (sse, mut response) = begin(&proxy, &mut upstream, &request).await;
    response.prime().await;
    response.reset();
    sse.closed().await;
}

#[tokio::test]
async fn no_version_at_all_is_the_first_one() {
    let (mut upstream, proxy) = modern_stage(Some(Duration::ZERO)).await;
    let (legacy, mut response) = begin(&proxy, &mut upstream, &Request::post(call(1))).await;
    let place = EventId::of(response.prime().await.id());
    response.reset();
    let (control, mut control_response) = begin(&proxy, &mut upstream, &modern(2)).await;
    control_response.prime().await;
    control_response.reset();
    control.closed().await;
    assert!(!legacy.is_closed(), "a client that left has not cancelled");
    legacy.finish(result(1)).await;
    let mut back = Request::get().resume_from(&place.at(0)).send(proxy.addr).await.sse();
    assert_eq!(back.event().await.bytes(), result(1).as_bytes());
}

#[tokio::test]
async fn a_stream_keeps_the_era_of_its_post() {
    let (mut upstream, proxy) = modern_stage(Some(SOON)).await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &modern(1)).await;
    let place = EventId::of(response.prime().await.id());
    let mut back =
        Request::get().with("MCP-Protocol-Version", V2025_11).resume_from(&place.at(0)).send(proxy.addr).await.sse();
    back.prime().await;
    back.reset();
    sse.closed().await;
}

#[tokio::test]
async fn a_modern_get_without_a_cursor_is_forwarded() {
    let (mut upstream, proxy) = modern_stage(None).await;
    let pending = Request::get().with("MCP-Protocol-Version", V2026).start(proxy.addr).await;
    let upstream_call = upstream.expect("GET").await;
    assert_eq!(upstream_call.target, "/mcp");
    upstream_call.json_with(405, "allow: POST\r\n", "{\"no\":1}").await;
    let mut response = pending.response().await;
    assert_eq!(response.status, 405);
    assert_eq!(response.header("allow"), Some("POST"));
    assert_eq!(response.body().await, b"{\"no\":1}");
}

#[tokio::test]
async fn a_version_the_header_and_the_body_disagree_on_is_for_the_server_to_refuse() {
    let (mut upstream, proxy) = modern_stage(None).await;
    for version in [V2025_11, "2027-01-01"] {
        let pending = modern(1).with("MCP-Protocol-Version", version).start(proxy.addr).await;
        let upstream_call = upstream.expect("tools/call").await;
        assert_eq!(upstream_call.header("mcp-protocol-version"), Some(version));
        let refusal = r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32020,"message":"header mismatch"}}"#;
        upstream_call.json(400, refusal).await;
        let mut response = pending.response().await;
        assert_eq!(response.status, 400);
        assert_eq!(response.body().await, refusal.as_bytes());
    }
}

#[tokio::test]
async fn a_subscription_streams_through() {
    let (mut upstream, proxy) = modern_stage(None).await;
    let request = modern_method("sub", "subscriptions/listen");
    let (sse, mut response) = begin(&proxy, &mut upstream, &request).await;
    let place = EventId::of(response.prime().await.id());
    let acknowledged = r#"{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{}}"#;
    let changed = r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#;
    sse.event(acknowledged).await;
    assert_eq!(response.event().await.bytes(), acknowledged.as_bytes());
    response.reset();
    sse.event(changed).await;
    let mut back = modern_resume(&place.at(1)).send(proxy.addr).await.sse();
    let event = back.event().await;
    assert_eq!((event.id(), event.bytes()), (place.at(2).as_str(), changed.as_bytes()));
    sse.finish(result("sub")).await;
    assert_eq!(back.event().await.bytes(), result("sub").as_bytes());
    back.ends().await;
}

#[tokio::test]
async fn the_grace_follows_the_announced_retry_time() {
    let upstream = Upstream::start().await;
    let mut upstream = upstream;
    let proxy = Proxy::start(&upstream, |c| c.delivery.retry = SOON).await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &modern(1)).await;
    let place = EventId::of(response.prime().await.id());
    response.reset();
    settle(&proxy, &mut upstream).await;
    assert!(!sse.is_closed());
    let mut back = modern_resume(&place.at(0)).send(proxy.addr).await.sse();
    back.prime().await;
    back.reset();
    // 2 x 100 ms + 1 s.
    sse.closed().await;
}

#[tokio::test]
async fn a_json_only_client_that_leaves_has_cancelled_at_once() {
    let (mut upstream, proxy) = modern_stage(Some(LIMIT * 6)).await;
    let client = modern(1).with("Accept", "application/json").start(proxy.addr).await;
    let sse = upstream.next().await.sse().await;
    sse.event(progress(1)).await;
    client.reset();
    // It has no id to come back with.
    sse.closed().await;
}

#[tokio::test]
async fn the_id_of_an_event_is_one_to_come_back_with() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |c| {
        c.delivery.prime = mcp_resume::config::Prime::Since20251125;
        c.streams.modern_grace = Some(LIMIT * 6);
        c.admin.address = Some(([127, 0, 0, 1], 0).into());
    })
    .await;
    // A revision that is no date is modern, and its clients are not primed where that is
    // restricted.
    let request = Request::post(call(1)).with("MCP-Protocol-Version", "DRAFT-2027-v1");
    let (sse, mut response) = begin(&proxy, &mut upstream, &request).await;
    sse.event(progress(1)).await;
    let first = response.frame().await.expect("an event");
    assert!(first.is_event(), "not primed: {first:?}");
    let place = EventId::of(first.id());
    response.reset();
    let disconnects = "mcp_resume_disconnects_total{can_resume=\"yes\"}";
    until("the reset is noticed", async || metric(&proxy, disconnects).await == 1.0).await;
    sse.finish(result(1)).await;
    let mut back = modern_resume(&place.at(1)).send(proxy.addr).await.sse();
    assert_eq!(back.event().await.bytes(), result(1).as_bytes());
}

#[tokio::test]
async fn a_get_is_judged_by_its_header_alone() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |_| {}).await;
    let plain = Request::get().with("Mcp-Session-Id", "s-1");
    // What cannot be read is unknown, and what is unknown is modern: passed on each time.
    for (what, request) in [
        ("twice", plain.clone().with("MCP-Protocol-Version", V2025_11).and("MCP-Protocol-Version", V2025_11)),
        ("no text", plain.clone().with("MCP-Protocol-Version", "2025\u{e9}11")),
        ("empty", plain.clone().with("MCP-Protocol-Version", "")),
    ] {
        for _ in 0..2 {
            let pending = request.start(proxy.addr).await;
            upstream.expect("GET").await.json(405, "{}").await;
            assert_eq!(pending.response().await.status, 405, "{what}");
        }
    }
    // A session of a later revision whose GET names none has a stream of its own.
    let session = Session::open(&proxy, &mut upstream, V2026).await;
    let request = session.get().without("MCP-Protocol-Version");
    let pending = request.start(proxy.addr).await;
    let sse = upstream.expect("GET").await.sse().await;
    let mut response = pending.response().await.sse();
    response.prime().await;
    sse.event(progress(1)).await;
    response.event().await;
}
