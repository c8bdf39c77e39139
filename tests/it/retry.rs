//! Retried POSTs: the tool runs once.

use crate::support::*;

/// A call whose client read one event and left; the proxy knows that it left.
pub(crate) async fn left(proxy: &Proxy, upstream: &mut Upstream, request: &Request) -> (Sse, EventId) {
    let (sse, mut response) = begin(proxy, upstream, request).await;
    sse.event(progress(1)).await;
    let place = EventId::of(response.event().await.id());
    response.reset();
    settle(proxy, upstream).await;
    (sse, place)
}

/// Asserts that this request is a call of its own.
pub(crate) async fn runs_anew(proxy: &Proxy, upstream: &mut Upstream, request: &Request, what: &str) {
    let pending = request.start(proxy.addr).await;
    let body = upstream.expect("tools/call").await;
    body.json(200, "{\"new\":1}").await;
    let mut response = pending.response().await;
    assert_eq!(response.status, 200, "{what}");
    assert_eq!(response.body().await, b"{\"new\":1}", "{what}");
}

#[tokio::test]
async fn a_retry_takes_over_the_running_call() {
    let (mut upstream, proxy, session) = setup().await;
    let request = session.post(call(1));
    let (sse, place) = left(&proxy, &mut upstream, &request).await;
    let mut response = request.send(proxy.addr).await.sse();
    assert_eq!(EventId::of(response.prime().await.id()).handle, place.handle);
    assert_eq!(response.event().await.id(), place.at(1), "from the first");
    sse.finish(result(1)).await;
    assert_eq!(response.event().await.bytes(), result(1).as_bytes());
    response.ends().await;
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn a_retry_goes_on_after_its_last_event_id() {
    let (mut upstream, proxy, session) = setup().await;
    let request = session.post(call(1));
    let (sse, place) = left(&proxy, &mut upstream, &request).await;
    sse.finish(result(1)).await;
    let again = request.clone().resume_from(&place.at(1));
    let mut response = again.send(proxy.addr).await.sse();
    assert_eq!(EventId::of(response.prime().await.id()).seq, "1");
    assert_eq!(response.event().await.bytes(), result(1).as_bytes());
    response.ends().await;
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn a_retry_before_any_word_of_the_upstream_waits_for_it() {
    let (mut upstream, proxy, session) = setup().await;
    let request = session.post(call(1));
    let client = request.start(proxy.addr).await;
    let upstream_call = upstream.expect("tools/call").await;
    client.reset();
    settle(&proxy, &mut upstream).await;
    let pending = request.start(proxy.addr).await;
    settle(&proxy, &mut upstream).await;
    upstream_call.json(200, result(1)).await;
    let mut response = pending.response().await;
    assert_eq!(response.status, 200);
    if response.is_sse() {
        assert_eq!(response.event().await.bytes(), result(1).as_bytes());
    } else {
        assert_eq!(response.body().await, result(1).as_bytes());
    }
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn a_json_answer_cut_on_its_way_is_given_again() {
    let (mut upstream, proxy, session) = setup().await;
    let pending = session.post(call(9)).start(proxy.addr).await;
    upstream.next().await.json(200, result(9)).await;
    let whole = pending.response().await;
    let bytes = whole.read() + 10;
    drop(whole);
    for cut in [1, bytes / 2, bytes - 20] {
        let request = session.post(call(cut as u64));
        let client = request.start(proxy.addr).await.stop_after(cut);
        upstream.expect("tools/call").await.json_with(200, "x-custom: 1\r\n", result(cut as u64)).await;
        match client.try_response().await {
            Ok(mut response) => {
                response.try_body().await;
                response.reset();
            }
            Err(end) => assert_eq!(end, End::Cut),
        }
        settle(&proxy, &mut upstream).await;
        let mut response = request.send(proxy.addr).await;
        assert_eq!(response.status, 200);
        assert_eq!(response.header("content-type"), Some("application/json"));
        assert_eq!(response.body().await, result(cut as u64).as_bytes());
        assert!(upstream.is_quiet(), "cut at {cut}");
    }
}

#[tokio::test]
async fn a_delivered_call_is_not_given_again() {
    let (mut upstream, proxy, session) = setup().await;
    for (id, sse) in [(1, true), (2, false)] {
        let request = session.post(call(id));
        let pending = request.start(proxy.addr).await;
        let upstream_call = upstream.expect("tools/call").await;
        if sse {
            upstream_call.sse().await.finish(result(id)).await;
        } else {
            upstream_call.json(200, result(id)).await;
        }
        let mut response = pending.response().await;
        response.body().await;
        // The connection carries a further request: the answer has arrived.
        let mut client = response.into_client();
        client.send(&request.bytes(proxy.addr)).await;
        upstream.expect("tools/call").await.json(200, "{}").await;
        let mut second = client.response().await;
        assert_eq!(second.body().await, b"{}");
    }
}

#[tokio::test]
async fn a_retry_takes_over_a_running_call_whose_first_connection_is_still_open() {
    let (mut upstream, proxy, session) = setup().await;
    let request = session.post(call(1));
    let (sse, mut first) = begin(&proxy, &mut upstream, &request).await;
    sse.event(progress(1)).await;
    let place = EventId::of(first.event().await.id());
    let mut second = request.send(proxy.addr).await.sse();
    assert_eq!(second.event().await.id(), place.at(1), "from the first");
    let (events, end) = first.events().await;
    assert_eq!((events.len(), end), (0, End::Complete), "the older connection ends without an answer");
    sse.finish(result(1)).await;
    assert_eq!(second.event().await.bytes(), result(1).as_bytes());
    second.ends().await;

    // An answer that was written to a connection, and not delivered yet, is the answer to the retry
    // as well.
    let request = session.post(call(2));
    let pending = request.start(proxy.addr).await;
    upstream.expect("tools/call").await.json(200, result(2)).await;
    let mut first = pending.response().await;
    assert_eq!(first.body().await, result(2).as_bytes());
    let mut second = request.send(proxy.addr).await;
    assert_eq!(second.body().await, result(2).as_bytes());
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn another_request_is_no_retry() {
    let (mut upstream, proxy, session) = setup().await;
    let other = Session::open_as(&proxy, &mut upstream, V2025_11, "s-2", None).await;
    let (sse, _) = left(&proxy, &mut upstream, &session.post(call(1))).await;
    let stranger = session.post(call(1)).with("Authorization", "Bearer x");
    for (what, request) in [
        ("another id", session.post(call(2))),
        ("an id of another type", session.post(call("1"))),
        ("another body", session.post(call_tool(1, "other"))),
        ("another session", other.post(call(1))),
        ("another principal", stranger),
        ("no session", session.post(call(1)).without("Mcp-Session-Id")),
    ] {
        runs_anew(&proxy, &mut upstream, &request, what).await;
    }
    let mut response = session.post(call(1)).send(proxy.addr).await.sse();
    sse.finish(result(1)).await;
    let (events, _) = response.events().await;
    assert_eq!(events.len(), 2, "the first call is still there");
}

#[tokio::test]
async fn an_idempotency_key_finds_a_delivered_call() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |_| {}).await;
    let request = modern(1).with("Authorization", "Bearer a").with("Idempotency-Key", "k-1");
    let (sse, mut response) = begin(&proxy, &mut upstream, &request).await;
    sse.finish(result(1)).await;
    response.events().await;
    for _ in 0..2 {
        let mut again = request.send(proxy.addr).await.sse();
        again.prime().await;
        assert_eq!(again.event().await.bytes(), result(1).as_bytes());
        again.ends().await;
    }
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn an_idempotency_key_finds_a_json_answer() {
    let (mut upstream, proxy, session) = setup().await;
    let request = session.post(call(1)).with("Idempotency-Key", "k-1");
    let pending = request.start(proxy.addr).await;
    upstream.next().await.json(200, result(1)).await;
    assert_eq!(pending.response().await.body().await, result(1).as_bytes());
    let mut again = request.send(proxy.addr).await;
    assert_eq!(again.status, 200);
    assert_eq!(again.body().await, result(1).as_bytes());
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn an_idempotency_key_takes_over_from_an_attached_client() {
    let (mut upstream, proxy, session) = setup().await;
    let request = session.post(call(1)).with("Idempotency-Key", "k-1");
    // The first has no head yet: it gets an empty stream.
    let headless = request.start(proxy.addr).await;
    let upstream_call = upstream.expect("tools/call").await;
    let second = request.start(proxy.addr).await;
    let mut first = headless.response().await.sse();
    first.prime().await;
    first.ends().await;
    let sse = upstream_call.sse().await;
    let mut second = second.response().await.sse();
    sse.event(progress(1)).await;
    assert_eq!(second.event().await.bytes(), progress(1).as_bytes());
    let mut third = request.send(proxy.addr).await.sse();
    second.ends().await;
    assert_eq!(third.event().await.bytes(), progress(1).as_bytes());
    sse.finish(result(1)).await;
    assert_eq!(third.event().await.bytes(), result(1).as_bytes());
    third.ends().await;
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn a_key_used_for_another_body_is_422() {
    let (mut upstream, proxy, session) = setup().await;
    let request = session.post(call(1)).with("Idempotency-Key", "k-1");
    let (sse, mut response) = begin(&proxy, &mut upstream, &request).await;
    let other = session.post(call_tool(1, "other")).with("Idempotency-Key", "k-1");
    let mut refused = other.send(proxy.addr).await;
    assert_eq!(refused.status, 422);
    let message = refused.json().await;
    assert_eq!(message["id"], 1, "{message}");
    assert!(message["error"]["code"].is_i64(), "{message}");
    sse.finish(result(1)).await;
    assert_eq!(response.event().await.bytes(), result(1).as_bytes());
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn a_key_belongs_to_its_principal() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |_| {}).await;
    let keyed = modern(1).with("Idempotency-Key", "k-1");
    let mine = keyed.clone().with("Authorization", "Bearer a");
    let (sse, mut response) = begin(&proxy, &mut upstream, &mine).await;
    sse.finish(result(1)).await;
    response.events().await;
    let theirs = keyed.clone().with("Authorization", "Bearer b");
    runs_anew(&proxy, &mut upstream, &theirs, "another principal").await;
    for _ in 0..2 {
        runs_anew(&proxy, &mut upstream, &keyed, "anonymous without session").await;
    }
}

#[tokio::test]
async fn an_initialize_is_never_a_retry() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |_| {}).await;
    let request = Request::post(initialize(V2025_11)).with("Idempotency-Key", "k");
    let client = request.start(proxy.addr).await;
    let first = upstream.expect("initialize").await;
    client.reset();
    settle(&proxy, &mut upstream).await;
    let pending = request.start(proxy.addr).await;
    upstream.expect("initialize").await.json(200, "{}").await;
    assert_eq!(pending.response().await.body().await, b"{}");
    drop(first);
}

#[tokio::test]
async fn a_batch_matches_as_a_whole() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |_| {}).await;
    let session = Session::open(&proxy, &mut upstream, V2025_03).await;
    let request = session.post(format!("[{},{}]", call(1), call(2)));
    let (sse, place) = left(&proxy, &mut upstream, &request).await;
    runs_anew(&proxy, &mut upstream, &session.post(call(1)), "a part").await;
    let mut response = request.send(proxy.addr).await.sse();
    assert_eq!(EventId::of(response.prime().await.id()).handle, place.handle);
    sse.event(result(2)).await;
    sse.finish(result(1)).await;
    assert_eq!(response.events().await.0.len(), 3);
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn a_failure_that_may_have_come_after_the_tool_ran_is_an_answer_like_any() {
    let (mut upstream, proxy, session) = setup().await;
    for (id, status) in [(1, 500), (2, 502), (3, 504)] {
        let body = format!("{{\"failed\":{status}}}");
        let request = session.post(call(id)).with("Idempotency-Key", &format!("k-{id}"));
        let pending = request.start(proxy.addr).await;
        upstream.expect("tools/call").await.json(status, &body).await;
        for mut response in [pending.response().await, request.send(proxy.addr).await] {
            assert_eq!((response.status, response.body().await), (status, body.clone().into_bytes()));
        }
        // Without a key it is kept until it was delivered.
        let request = session.post(call(id + 10));
        let client = request.start(proxy.addr).await;
        let upstream_call = upstream.expect("tools/call").await;
        client.reset();
        settle(&proxy, &mut upstream).await;
        upstream_call.json(status, &body).await;
        settle(&proxy, &mut upstream).await;
        let mut response = request.send(proxy.addr).await;
        assert_eq!((response.status, response.body().await), (status, body.into_bytes()));
        assert!(upstream.is_quiet(), "{status}: the tool ran once");
    }
}

#[tokio::test]
async fn a_refusal_after_which_nothing_ran_is_no_answer_to_keep() {
    let (mut upstream, proxy, session) = setup_with(|c| c.sessions.revive = false).await;
    for (id, status) in [(1, 400), (2, 401), (3, 404), (4, 429), (5, 503)] {
        let request = session.post(call(id)).with("Idempotency-Key", &format!("k-{id}"));
        let pending = request.start(proxy.addr).await;
        upstream.expect("tools/call").await.json(status, "{}").await;
        assert_eq!(pending.response().await.status, status);
        runs_anew(&proxy, &mut upstream, &request, &status.to_string()).await;
    }
}

#[tokio::test]
async fn an_answer_too_large_to_keep_is_no_answer_to_a_retry() {
    let (mut upstream, proxy, session) = setup().await;
    let large = format!("{{\"large\":\"{}\"}}", "x".repeat(65 * 1024));
    for (id, has_key) in [(1, false), (2, true)] {
        let request = session.post(call(id));
        let request = if has_key { request.with("Idempotency-Key", "k") } else { request };
        let pending = request.start(proxy.addr).await;
        upstream.expect("tools/call").await.json(200, &large).await;
        assert_eq!(pending.response().await.body().await, large.as_bytes());
        if has_key {
            assert_fault(&request.send(proxy.addr).await.json().await, id, GONE, "client");
            assert!(upstream.is_quiet(), "a key never runs the tool again");
        } else {
            runs_anew(&proxy, &mut upstream, &request, "over 64 KiB").await;
        }
    }
}
