//! The commit rule: whose status and head the client gets, and when.

use crate::support::*;

pub(crate) async fn hasty() -> (Upstream, Proxy, Session) {
    setup_with(|c| c.delivery.commit_after = Some(SOON)).await
}

/// As [`hasty`], where a refusal of the session reaches the client.
async fn hasty_without_revival() -> (Upstream, Proxy, Session) {
    setup_with(|c| {
        c.delivery.commit_after = Some(SOON);
        c.sessions.revive = false;
    })
    .await
}

/// A POST that the proxy commits to; the upstream has not answered.
pub(crate) async fn committed(proxy: &Proxy, upstream: &mut Upstream, request: &Request) -> (Call, Response, EventId) {
    let pending = request.start(proxy.addr).await;
    let call = upstream.next().await;
    let mut response = pending.response().await.sse();
    let place = EventId::of(response.prime().await.id());
    (call, response, place)
}

/// Returns once a request begun now has been committed: any begun before would have been, too.
async fn past_commit(proxy: &Proxy, upstream: &mut Upstream, session: &Session) {
    let (call, mut response, _) = committed(proxy, upstream, &session.post(call("control"))).await;
    call.json(200, result("control")).await;
    response.event().await;
    response.ends().await;
}

#[tokio::test]
async fn a_prompt_answer_keeps_its_status() {
    let (mut upstream, proxy, session) = setup_with(|c| {
        c.delivery.commit_after = Some(LIMIT);
        c.sessions.revive = false;
    })
    .await;
    for status in [200, 201, 400, 401, 403, 404, 429, 500] {
        let pending = session.post(call(status)).start(proxy.addr).await;
        upstream.next().await.json(status, result(1)).await;
        let mut response = pending.response().await;
        assert_eq!(response.status, status);
        assert_eq!(response.body().await, result(1).as_bytes());
    }
}

#[tokio::test]
async fn a_stream_that_comes_late_is_resumable_before_it_says_a_word() {
    let (mut upstream, proxy, session) = hasty().await;
    let (upstream_call, response, place) = committed(&proxy, &mut upstream, &session.post(call(1))).await;
    assert_eq!(place.seq, "0");
    assert_eq!(response.header("cache-control"), Some("no-cache, no-transform"));
    response.reset();
    let mut back = session.resume(&place.at(0)).send(proxy.addr).await.sse();
    assert_eq!(EventId::of(back.prime().await.id()).handle, place.handle);
    let sse = upstream_call.sse().await;
    sse.event(progress(1)).await;
    let event = back.event().await;
    assert_eq!((event.id(), event.bytes()), (place.at(1).as_str(), progress(1).as_bytes()));
    sse.finish(result(1)).await;
    assert_eq!(back.event().await.id(), place.at(2));
    back.ends().await;
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn a_json_answer_that_comes_late_becomes_an_event() {
    let (mut upstream, proxy, session) = hasty().await;
    for (id, status, body) in [
        (1, 200, result(1)),
        (2, 200, "{\n  \"jsonrpc\": \"2.0\",\n  \"id\": 2,\n  \"result\": {}\n}".to_owned()),
        (3, 400, r#"{"jsonrpc":"2.0","id":3,"error":{"code":-32602,"message":"no"}}"#.to_owned()),
        (4, 500, r#"{"jsonrpc":"2.0","id":4,"error":{"code":-32603,"message":"oh"}}"#.to_owned()),
    ] {
        let (upstream_call, mut response, place) = committed(&proxy, &mut upstream, &session.post(call(id))).await;
        upstream_call.json(status, &body).await;
        let event = response.event().await;
        assert_eq!(event.id(), place.at(1));
        assert_eq!(event.event.as_deref(), Some("message"));
        let expected: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!(event.json(), expected);
        if !body.contains('\n') {
            assert_eq!(event.bytes(), body.as_bytes());
        }
        response.ends().await;
        assert_eq!(session.resume(event.id()).send(proxy.addr).await.status, 204);
    }
}

/// The way servers say that they do not know a session: the error names no request.
#[tokio::test]
async fn a_late_error_without_an_id_is_the_requests_own() {
    let (mut upstream, proxy, session) = hasty_without_revival().await;
    let (upstream_call, mut response, _) = committed(&proxy, &mut upstream, &session.post(call("x"))).await;
    let unknown = r#"{"jsonrpc":"2.0","error":{"code":-32001,"message":"Session not found"},"id":null}"#;
    upstream_call.json(404, unknown).await;
    let message = response.event().await.json();
    assert_eq!(message["id"], "x");
    assert_eq!(message["error"]["message"], "Session not found");
    response.ends().await;
}

#[tokio::test]
async fn any_other_late_answer_becomes_an_honest_error() {
    let (mut upstream, proxy, session) = hasty_without_revival().await;
    let html = "HTTP/1.1 502 Bad\r\ncontent-type: text/html\r\ncontent-length: 4\r\n\r\nhtml";
    let text = "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 4\r\n\r\ntext";
    let not_rpc = "HTTP/1.1 404 X\r\ncontent-type: application/json\r\ncontent-length: 13\r\n\r\n{\"error\":\"x\"}";
    let moved = "HTTP/1.1 302 X\r\nlocation: /login\r\ncontent-length: 0\r\n\r\n";
    for (status, answer) in
        [(502, html), (200, text), (404, not_rpc), (302, moved), (401, "HTTP/1.1 401 X\r\ncontent-length: 0\r\n\r\n")]
    {
        let request = session.post(call_tool(status, &format!("tool {status}")));
        let (upstream_call, mut response, _) = committed(&proxy, &mut upstream, &request).await;
        upstream_call.whole(answer).await;
        let (events, end) = response.events().await;
        assert_eq!((events.len(), end), (1, End::Complete), "{status}");
        let message = events[0].json();
        assert_fault(&message, status, UPSTREAM_FAILED, "upstream");
        assert_eq!(message["error"]["data"]["httpStatus"], status);
    }
}

/// No client can follow it any more, and it would lead away from the proxy.
#[tokio::test]
async fn a_late_redirect_to_another_origin_is_an_error_with_that_origin() {
    let (mut upstream, proxy, session) = hasty_without_revival().await;
    let (upstream_call, mut response, _) = committed(&proxy, &mut upstream, &session.post(call(1))).await;
    upstream_call.status_with(302, "location: https://login.example/a?b=secret\r\n").await;
    let message = response.event().await.json();
    let data = &message["error"]["data"];
    assert_eq!((&data["error"], &data["origin"]), (&"upstream_redirect".into(), &"https://login.example".into()));
    assert!(!message.to_string().contains("secret"));
    response.ends().await;
}

/// A client that was told so late needs the next refusal as clients understand it: as a status.
#[tokio::test]
async fn credentials_are_unknown_once_they_were_refused() {
    let (mut upstream, proxy, session) = hasty().await;
    let mine = |id: String| session.post(call(id));
    let control = |id: String| session.post(call(id)).with("Authorization", "Bearer known");
    for status in [401, 403] {
        for request in [mine(format!("m{status}")), control(format!("c{status}"))] {
            let pending = request.start(proxy.addr).await;
            upstream.expect("tools/call").await.json(200, "{}").await;
            assert_eq!(pending.response().await.status, 200);
        }
        let late = session.post(call_tool(format!("late{status}"), &format!("late {status}")));
        let (upstream_call, mut response, _) = committed(&proxy, &mut upstream, &late).await;
        upstream_call.status(status).await;
        let message = response.event().await.json();
        assert_fault(&message, format!("late{status}"), UPSTREAM_FAILED, "upstream");

        let pending = mine(format!("again{status}")).start(proxy.addr).await;
        let upstream_call = upstream.expect("tools/call").await;
        // A commit to credentials that are known still: one begun before would have been made, too.
        let request = control(format!("control{status}"));
        let (control_call, mut response, _) = committed(&proxy, &mut upstream, &request).await;
        control_call.json(200, result(format!("control{status}"))).await;
        response.event().await;
        upstream_call.status(status).await;
        assert_eq!(pending.response().await.status, status);
    }
}

#[tokio::test]
async fn a_late_401_reaches_a_client_whose_credentials_are_new() {
    let (mut upstream, proxy, session) = hasty().await;
    let pending = session.post(call(1)).with("Authorization", "Bearer new").start(proxy.addr).await;
    let upstream_call = upstream.expect("tools/call").await;
    past_commit(&proxy, &mut upstream, &session).await;
    upstream_call.json_with(401, "www-authenticate: Bearer realm=\"x\"\r\n", "{}").await;
    let response = pending.response().await;
    assert_eq!(response.status, 401);
    assert_eq!(response.header("www-authenticate"), Some("Bearer realm=\"x\""));
}

#[tokio::test]
async fn credentials_are_known_once_they_were_answered_2xx() {
    let (mut upstream, proxy, session) = hasty().await;
    let request = session.post(call(1)).with("Authorization", "Bearer new");
    let pending = request.start(proxy.addr).await;
    upstream.next().await.json(200, result(1)).await;
    assert_eq!(pending.response().await.body().await, result(1).as_bytes());
    let request = session.post(call(2)).with("Authorization", "Bearer new");
    let (upstream_call, mut response, _) = committed(&proxy, &mut upstream, &request).await;
    upstream_call.json(200, result(2)).await;
    assert_eq!(response.event().await.bytes(), result(2).as_bytes());
}

#[tokio::test]
async fn nothing_is_committed_that_opens_a_session_or_carries_no_request() {
    let (mut upstream, proxy, session) = hasty().await;
    let initialize = Request::post(initialize(V2025_11)).start(proxy.addr).await;
    let initialize_call = upstream.expect("initialize").await;
    let discover = modern_method(1, "server/discover").start(proxy.addr).await;
    let discover_call = upstream.expect("server/discover").await;
    past_commit(&proxy, &mut upstream, &session).await;
    initialize_call.json(403, "{}").await;
    assert_eq!(initialize.response().await.status, 403);
    discover_call.json(404, "{}").await;
    assert_eq!(discover.response().await.status, 404);
}

#[tokio::test]
async fn a_client_that_does_not_accept_a_stream_is_not_committed_to() {
    let (mut upstream, proxy, session) = hasty_without_revival().await;
    let pending = session.post(call(1)).with("Accept", "application/json").start(proxy.addr).await;
    let upstream_call = upstream.next().await;
    past_commit(&proxy, &mut upstream, &session).await;
    upstream_call.json(404, "{\"a\": 1}").await;
    let mut response = pending.response().await;
    assert_eq!(response.status, 404);
    assert_eq!(response.body().await, b"{\"a\": 1}");
}

#[tokio::test]
async fn a_browser_is_committed_to_only_when_the_upstreams_cors_headers_are_known() {
    let (mut upstream, proxy, session) = hasty().await;
    let origin = format!("http://{}", proxy.addr);
    let request = session.post(call(1)).with("Origin", &origin);
    let pending = request.start(proxy.addr).await;
    let upstream_call = upstream.next().await;
    past_commit(&proxy, &mut upstream, &session).await;
    upstream_call.json_with(200, &format!("access-control-allow-origin: {origin}\r\n"), result(1)).await;
    assert_eq!(pending.response().await.body().await, result(1).as_bytes());
    let request = session.post(call(2)).with("Origin", &origin);
    let (upstream_call, mut response, _) = committed(&proxy, &mut upstream, &request).await;
    assert_eq!(response.header("access-control-allow-origin"), Some(origin.as_str()));
    upstream_call.json(200, result(2)).await;
    response.event().await;
}

#[tokio::test]
async fn a_json_only_client_gets_the_response_alone() {
    let (mut upstream, proxy, session) = setup().await;
    let pending = session.post(call(1)).with("Accept", "application/json").start(proxy.addr).await;
    let sse = upstream.next().await.sse().await;
    sse.event(progress(1)).await;
    sse.event(r#"{"jsonrpc":"2.0","id":"q","method":"roots/list"}"#).await;
    let answer = upstream.expect("response").await;
    let body = answer.json_body();
    assert_eq!(body["id"], "q");
    assert!(body["error"]["code"].is_i64(), "{body}");
    assert_eq!(answer.header("mcp-session-id"), Some("s-1"));
    answer.status(202).await;
    sse.finish(result(1)).await;
    let mut response = pending.response().await;
    assert_eq!(response.status, 200);
    assert_eq!(response.header("content-type"), Some("application/json"));
    assert_eq!(response.body().await, result(1).as_bytes());
}

#[tokio::test]
async fn a_stream_only_client_gets_a_json_answer_as_an_event() {
    let (mut upstream, proxy, session) = setup().await;
    let pending = session.post(call(1)).with("Accept", "text/event-stream").start(proxy.addr).await;
    upstream.next().await.json(200, result(1)).await;
    let mut response = pending.response().await.sse();
    let place = EventId::of(response.prime().await.id());
    let event = response.event().await;
    assert_eq!((event.id(), event.bytes()), (place.at(1).as_str(), result(1).as_bytes()));
    response.ends().await;
}

#[tokio::test]
async fn a_death_of_the_upstream_after_the_commit_is_an_error_event() {
    let (mut upstream, proxy, session) = hasty().await;
    let (upstream_call, mut response, _) = committed(&proxy, &mut upstream, &session.post(call(3))).await;
    upstream_call.reset().await;
    let (events, end) = response.events().await;
    assert_eq!((events.len(), end), (1, End::Complete));
    assert_fault(&events[0].json(), 3, UPSTREAM_FAILED, "upstream");
    assert_eq!(events[0].json()["error"]["data"]["mayHaveRun"], true);
    settle(&proxy, &mut upstream).await;
}

#[tokio::test]
async fn a_late_answer_to_a_client_that_left_is_kept() {
    let (mut upstream, proxy, session) = hasty().await;
    let (upstream_call, response, place) = committed(&proxy, &mut upstream, &session.post(call(1))).await;
    response.reset();
    settle(&proxy, &mut upstream).await;
    upstream_call.json(200, result(1)).await;
    let mut back = session.resume(&place.at(0)).send(proxy.addr).await.sse();
    assert_eq!(back.event().await.bytes(), result(1).as_bytes());
    back.ends().await;
}

#[tokio::test]
async fn an_upstream_over_its_header_timeout_is_504() {
    let (mut upstream, proxy, session) = setup_with(|c| c.upstream.header_timeout = Some(LATER)).await;
    let pending = session.post(call(1)).start(proxy.addr).await;
    let upstream_call = upstream.next().await;
    let mut response = pending.response().await;
    assert_eq!(response.status, 504);
    let message = response.json().await;
    assert_fault(&message, 1, UPSTREAM_FAILED, "upstream");
    assert_eq!(message["error"]["data"]["mayHaveRun"], true);
    upstream_call.closed().await;
}

#[tokio::test]
async fn a_json_only_client_gets_a_failure_as_json() {
    let (mut upstream, proxy, session) = setup().await;
    for (id, whole) in [(1, true), (2, false)] {
        let pending = session.post(call(id)).with("Accept", "application/json").start(proxy.addr).await;
        let sse = upstream.next().await.sse().await;
        sse.event(progress(1)).await;
        if whole {
            sse.end().await;
        } else {
            sse.reset().await;
        }
        let mut response = pending.response().await;
        assert_eq!(response.header("content-type"), Some("application/json"));
        let message = response.json().await;
        assert_fault(&message, id, UPSTREAM_FAILED, "upstream");
        assert_eq!(message["error"]["data"]["mayHaveRun"], true);
    }
}

#[tokio::test]
async fn accepting_anything_is_accepting_a_stream() {
    let (mut upstream, proxy, session) = setup().await;
    for (id, accept) in
        ["*/*", "text/*, application/json", "application/json;q=0.1, text/event-stream;q=0.9"].into_iter().enumerate()
    {
        let request = session.post(call(id)).with("Accept", accept);
        let (sse, mut response) = begin(&proxy, &mut upstream, &request).await;
        sse.finish(result(id)).await;
        assert_eq!(response.event().await.bytes(), result(id).as_bytes(), "{accept}");
    }
}

#[tokio::test]
async fn a_weight_of_zero_is_not_accepting() {
    let (mut upstream, proxy, session) = setup().await;
    let request = session.post(call(1)).with("Accept", "application/json, text/event-stream;q=0");
    let pending = request.start(proxy.addr).await;
    upstream.next().await.sse().await.finish(result(1)).await;
    let mut response = pending.response().await;
    assert_eq!(response.header("content-type"), Some("application/json"));
    assert_eq!(response.body().await, result(1).as_bytes());
}

#[tokio::test]
async fn a_large_late_json_answer_is_one_event() {
    let (mut upstream, proxy, session) = hasty().await;
    let (upstream_call, mut response, place) = committed(&proxy, &mut upstream, &session.post(call(1))).await;
    let large = format!(r#"{{"jsonrpc":"2.0","id":1,"result":{{"t":"{}"}}}}"#, "x".repeat(500_000));
    let (event, ()) = tokio::join!(response.event(), upstream_call.json(200, &large));
    assert_eq!(event.id(), place.at(1));
    assert!(event.bytes() == large.as_bytes());
    response.ends().await;
}

#[tokio::test]
async fn a_json_answer_whose_body_is_slow_arrives_whole() {
    let (mut upstream, proxy, session) = hasty().await;
    let pending = session.post(call(1)).start(proxy.addr).await;
    let upstream_call = upstream.next().await;
    let body = result(1);
    let (first, rest) = body.split_at(20);
    let head = format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n", body.len());
    upstream_call.write(format!("{head}{first}")).await;
    past_commit(&proxy, &mut upstream, &session).await;
    upstream_call.whole(rest).await;
    let mut response = pending.response().await;
    assert_eq!(response.status, 200);
    // Whether its head was awaited or committed to before: it is the same message.
    if response.is_sse() {
        assert_eq!(response.event().await.bytes(), body.as_bytes());
        response.ends().await;
    } else {
        assert_eq!(response.body().await, body.as_bytes());
    }
}

#[tokio::test]
async fn a_json_only_client_that_left_finds_its_answer_by_asking_again() {
    let (mut upstream, proxy, session) = setup().await;
    let request = session.post(call(1)).with("Accept", "application/json");
    request.start(proxy.addr).await.reset();
    let sse = upstream.next().await.sse().await;
    settle(&proxy, &mut upstream).await;
    sse.finish(result(1)).await;
    let mut response = request.send(proxy.addr).await;
    assert_eq!(response.header("content-type"), Some("application/json"));
    assert_eq!(response.body().await, result(1).as_bytes());
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn a_key_in_the_query_is_a_credential() {
    let (mut upstream, proxy, session) = hasty().await;
    let mut called = Vec::new();
    for (id, key) in [(1, "good"), (2, "bad")] {
        let request = session.post(call(id)).target(&format!("/mcp?api_key={key}"));
        called.push((request.start(proxy.addr).await, upstream.expect("tools/call").await));
    }
    past_commit(&proxy, &mut upstream, &session).await;
    for ((pending, upstream_call), status) in called.into_iter().zip([200, 401]) {
        upstream_call.json(status, "{}").await;
        assert_eq!(pending.response().await.status, status, "answered late, not committed to");
    }
    let known = session.post(call(3)).target("/mcp?api_key=good");
    let (upstream_call, mut response, _) = committed(&proxy, &mut upstream, &known).await;
    upstream_call.json(200, result(3)).await;
    response.event().await;
}
