//! An upstream that fails: an honest JSON-RPC error for every request, at once.

use crate::client_responses::{answer, question};
use crate::support::*;
use std::time::{Duration, Instant};

/// Time within which a client must learn of the death.
const PROMPT: Duration = Duration::from_secs(1);

/// Reads what is left: events, then exactly one error for request `id`, then the end.
async fn fails_with(response: &mut Response, id: u64, code: i64) -> Vec<Frame> {
    let since = Instant::now();
    let (mut events, end) = response.events().await;
    assert_eq!(end, End::Complete);
    let last = events.pop().expect("an error");
    let message = last.json();
    assert_fault(&message, id, code, "upstream");
    assert_eq!(message["error"]["data"]["mayHaveRun"], true, "{message}");
    assert_eq!(last.event.as_deref(), Some("message"));
    assert!(since.elapsed() < PROMPT, "took {:?}", since.elapsed());
    events
}

#[tokio::test]
async fn a_refused_upstream_connection_is_an_error_status() {
    let (mut upstream, proxy, session) = setup_with(|c| c.upstream.wait = Duration::ZERO).await;
    upstream.refuse().await;
    let mut response = session.post(call(1)).send(proxy.addr).await;
    assert!(matches!(response.status, 502..=504), "{}", response.status);
    let message = response.json().await;
    assert_fault(&message, 1, UPSTREAM_FAILED, "upstream");
    assert_eq!(message["error"]["data"]["mayHaveRun"], false);
    upstream.listen_again().await;
    let pending = session.post(call(1)).start(proxy.addr).await;
    upstream.expect("tools/call").await.json(200, result(1)).await;
    assert_eq!(pending.response().await.status, 200);
}

#[tokio::test]
async fn an_upstream_that_dies_before_its_head_is_502_and_not_asked_again() {
    let (mut upstream, proxy, session) = setup().await;
    for (id, hard) in [("x", true), ("y", false)] {
        let pending = session.post(call(id)).start(proxy.addr).await;
        let upstream_call = upstream.expect("tools/call").await;
        if hard {
            upstream_call.reset().await;
        } else {
            upstream_call.fin().await;
        }
        let mut response = pending.response().await;
        assert_eq!(response.status, 502);
        let message = response.json().await;
        assert_fault(&message, id, UPSTREAM_FAILED, "upstream");
        assert_eq!(message["error"]["data"]["mayHaveRun"], true);
        settle(&proxy, &mut upstream).await;
    }
}

#[tokio::test]
async fn a_request_that_dies_on_a_reused_connection_is_not_sent_again() {
    let (mut upstream, proxy, session) = setup().await;
    let before = upstream.connections();
    let pending = session.post(call(1)).start(proxy.addr).await;
    let upstream_call = upstream.expect("tools/call").await;
    assert_eq!(upstream.connections(), before, "the connection is pooled");
    upstream_call.reset().await;
    assert_eq!(pending.response().await.status, 502);
    settle(&proxy, &mut upstream).await;
}

#[tokio::test]
async fn an_upstream_response_that_is_not_http_is_502() {
    let (mut upstream, proxy, session) = setup().await;
    for (id, garbage) in [
        "SSH-2.0-OpenSSH_9.2\r\n\r\n",
        "\0\0\0\0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nbad header line\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
    ]
    .into_iter()
    .enumerate()
    {
        let pending = session.post(call(id)).start(proxy.addr).await;
        let upstream_call = upstream.expect("tools/call").await;
        upstream_call.write(garbage).await;
        upstream_call.fin().await;
        let mut response = pending.response().await;
        assert_eq!(response.status, 502, "{garbage:?}");
        assert_fault(&response.json().await, id, UPSTREAM_FAILED, "upstream");
    }
}

/// Neither the endpoint nor another path passes what two readers could take apart differently.
#[tokio::test]
async fn a_length_said_in_two_ways_is_502_on_every_path() {
    let (mut upstream, proxy, session) = setup().await;
    for (id, garbage) in [
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 2\r\n\r\n5\r\n{   }\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\n{}",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: identity\r\n\r\n{}",
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}",
        "HTTP/1.1 204 No Content\r\ncontent-length: 2\r\n\r\n{}",
    ]
    .into_iter()
    .enumerate()
    {
        for request in [session.post(call(id)), session.get().target("/other"), Request::post("x").target("/other")] {
            let pending = request.start(proxy.addr).await;
            let upstream_call = upstream.next().await;
            upstream_call.write(garbage).await;
            upstream_call.fin().await;
            assert_eq!(pending.response().await.status, 502, "{:?} {garbage:?}", request.line());
        }
    }
}

#[tokio::test]
async fn interim_answers_without_end_are_502_on_every_path() {
    let (mut upstream, proxy, session) = setup().await;
    for is_endpoint in [true, false] {
        for (interim, expected) in [(16, 200), (17, 502)] {
            let request = if is_endpoint { session.post(call(interim)) } else { session.get().target("/other") };
            let pending = request.start(proxy.addr).await;
            let upstream_call = upstream.next().await;
            upstream_call.write("HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n".repeat(interim)).await;
            match expected {
                200 => upstream_call.json(200, result(1)).await,
                _ => upstream_call.closed().await,
            }
            assert_eq!(pending.response().await.status, expected, "{:?} {interim}", request.line());
        }
    }
}

/// The connection stays open: the malformed head alone shows that no end will come.
#[tokio::test]
async fn a_head_with_lone_line_feeds_is_502_at_once() {
    let (mut upstream, proxy, session) = setup().await;
    for (id, garbage) in ["HTTP/1.1 200 OK\ncontent-length: 2\n\n{}", "HTTP/1.1 200 OK\r\ncontent-length: 2\n\n", "\n"]
        .into_iter()
        .enumerate()
    {
        let pending = session.post(call(id)).start(proxy.addr).await;
        let upstream_call = upstream.expect("tools/call").await;
        upstream_call.write(garbage).await;
        let mut response = pending.response().await;
        assert_eq!(response.status, 502, "{garbage:?}");
        assert_fault(&response.json().await, id, UPSTREAM_FAILED, "upstream");
        upstream_call.closed().await;
    }
}

#[tokio::test]
async fn a_stream_that_breaks_ends_with_an_error() {
    let (mut upstream, proxy, session) = setup().await;
    for (id, how) in [(1, "reset"), (2, "fin"), (3, "end")] {
        let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(id))).await;
        let place = EventId::of(response.prime().await.id());
        sse.event(progress(1)).await;
        assert_eq!(response.event().await.id(), place.at(1));
        match how {
            "reset" => sse.reset().await,
            "fin" => sse.fin().await,
            _ => sse.end().await,
        }
        assert_eq!(fails_with(&mut response, id, UPSTREAM_FAILED).await, vec![], "{how}");
        let last = response.last_id().unwrap().to_owned();
        assert_eq!(last, place.at(2), "the error has a number");
        assert_eq!(session.resume(&last).send(proxy.addr).await.status, 204);
        settle(&proxy, &mut upstream).await;
    }
}

#[tokio::test]
async fn a_stream_that_ends_with_its_head_ends_with_an_error() {
    let (mut upstream, proxy, session) = setup().await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    sse.end().await;
    fails_with(&mut response, 1, UPSTREAM_FAILED).await;
}

#[tokio::test]
async fn half_an_event_is_not_an_event() {
    let (mut upstream, proxy, session) = setup().await;
    for (id, half) in [
        (1, format!("event: message\ndata: {}", result(1))),
        (2, format!("event: message\ndata: {}\n", result(2))),
        (3, "event: mess".to_owned()),
    ] {
        let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(id))).await;
        sse.event(progress(1)).await;
        sse.bytes(&half).await;
        response.event().await;
        sse.end().await;
        let events = fails_with(&mut response, id, UPSTREAM_FAILED).await;
        assert_eq!(events, vec![], "{half:?}");
    }
}

#[tokio::test]
async fn broken_chunk_framing_fails_the_call() {
    let (mut upstream, proxy, session) = setup().await;
    let pending = session.post(call(1)).start(proxy.addr).await;
    let upstream_call = upstream.next().await;
    upstream_call
        .write("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        .await;
    let mut response = pending.response().await.sse();
    response.prime().await;
    upstream_call.write("zz\r\nnot a chunk\r\n").await;
    fails_with(&mut response, 1, UPSTREAM_FAILED).await;
    upstream_call.closed().await;
}

#[tokio::test]
async fn an_event_over_the_limit_fails_the_call() {
    let (mut upstream, proxy, session) = setup_with(|c| c.streams.max_event_bytes = 1024).await;
    for (id, end) in [(1, "\n\n"), (2, "")] {
        let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(id))).await;
        sse.event(progress(1)).await;
        response.event().await;
        sse.bytes(format!("data: {}{end}", "x".repeat(4096))).await;
        let (events, complete) = response.events().await;
        assert_eq!((events.len(), complete), (1, End::Complete));
        let message = events[0].json();
        assert_fault(&message, id, UPSTREAM_FAILED, "upstream");
        assert_eq!(message["error"]["data"]["mayHaveRun"], true);
        sse.closed().await;
    }
}

#[tokio::test]
async fn a_compressed_stream_is_an_upstream_failure() {
    let (mut upstream, proxy, session) = setup().await;
    let pending = session.post(call(1)).start(proxy.addr).await;
    let sse = upstream.next().await.sse_with("content-encoding: gzip\r\n").await;
    let mut response = pending.response().await;
    assert_eq!(response.status, 502);
    assert_fault(&response.json().await, 1, UPSTREAM_FAILED, "upstream");
    sse.closed().await;
}

#[tokio::test]
async fn another_content_type_passes_when_it_is_prompt() {
    let (mut upstream, proxy, session) = setup().await;
    let pending = session.post(call(1)).start(proxy.addr).await;
    upstream.next().await.whole("HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 5\r\n\r\n<htm>").await;
    let mut response = pending.response().await;
    assert_eq!(response.status, 200);
    assert_eq!(response.header("content-type"), Some("text/html"));
    assert_eq!(response.body().await, b"<htm>");
}

#[tokio::test]
async fn a_json_answer_cut_short_is_never_passed_as_whole() {
    let (mut upstream, proxy, session) = setup().await;
    let pending = session.post(call(1)).start(proxy.addr).await;
    let upstream_call = upstream.next().await;
    upstream_call
        .write("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{\"jsonrpc\"")
        .await;
    upstream_call.fin().await;
    let Ok(mut response) = pending.try_response().await else {
        return;
    };
    if response.status == 200 {
        assert_ne!(response.try_body().await.1, End::Complete);
    } else {
        assert_eq!(response.status, 502);
        assert_fault(&response.json().await, 1, UPSTREAM_FAILED, "upstream");
    }
}

#[tokio::test]
async fn an_unwatched_death_is_reported_on_resume() {
    let (mut upstream, proxy, session) = setup().await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    let place = EventId::of(response.prime().await.id());
    response.reset();
    sse.event(progress(1)).await;
    sse.reset().await;
    let mut back = session.resume(&place.at(0)).send(proxy.addr).await.sse();
    let events = fails_with(&mut back, 1, UPSTREAM_FAILED).await;
    assert_eq!(events.len(), 1);
    assert_eq!(events[0].bytes(), progress(1).as_bytes());
}

#[tokio::test]
async fn a_response_to_another_request_does_not_end_the_stream() {
    let (mut upstream, proxy, session) = setup().await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    for other in [result(2), result("one")] {
        sse.event(&other).await;
        assert_eq!(response.event().await.bytes(), other.as_bytes());
    }
    sse.end().await;
    fails_with(&mut response, 1, UPSTREAM_FAILED).await;
}

#[tokio::test]
async fn an_upstreams_own_error_is_the_response() {
    let (mut upstream, proxy, session) = setup().await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    let error = r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"none"}}"#;
    sse.event(error).await;
    sse.reset().await;
    assert_eq!(response.event().await.bytes(), error.as_bytes());
    response.ends().await;
}

#[tokio::test]
async fn an_initialize_whose_stream_breaks_ends_with_an_error() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |_| {}).await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &Request::post(initialize(V2025_11))).await;
    sse.reset().await;
    fails_with(&mut response, 0, UPSTREAM_FAILED).await;
}

#[tokio::test]
async fn a_modern_stream_that_breaks_ends_with_an_error() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |_| {}).await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &modern(8)).await;
    sse.event(progress(1)).await;
    response.event().await;
    sse.reset().await;
    fails_with(&mut response, 8, UPSTREAM_FAILED).await;
}

#[tokio::test]
async fn a_call_outlives_the_refusals_of_its_upstream() {
    let (mut upstream, proxy, session) = setup_with(|c| c.upstream.wait = Duration::ZERO).await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    upstream.refuse().await;
    let refused = session.post(call(2)).send(proxy.addr).await;
    assert!(matches!(refused.status, 502..=504));
    sse.finish(result(1)).await;
    assert_eq!(response.event().await.bytes(), result(1).as_bytes());
    response.ends().await;
}

#[tokio::test]
async fn each_failure_shows_once_in_the_metrics_whenever_it_came() {
    let (mut upstream, proxy, session) = setup_with(|c| {
        c.admin.address = Some(([127, 0, 0, 1], 0).into());
        c.streams.max_event_bytes = 1024;
    })
    .await;
    let counted = |reason: &'static str| {
        let sample = format!("mcp_resume_upstream_failures_total{{reason=\"{reason}\"}}");
        let proxy = &proxy;
        async move { metric(proxy, &sample).await }
    };

    // Before the head, in a JSON answer, and in a stream.
    let pending = session.post(call(1)).start(proxy.addr).await;
    upstream.next().await.reset().await;
    assert_eq!(pending.response().await.status, 502);
    assert_eq!(counted("upstream_broke").await, 1.0);

    let pending = session.post(call(2)).start(proxy.addr).await;
    let half = upstream.next().await;
    half.write("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{").await;
    half.reset().await;
    assert_eq!(pending.response().await.status, 502);
    assert_eq!(counted("upstream_broke").await, 2.0);

    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(3))).await;
    sse.reset().await;
    fails_with(&mut response, 3, UPSTREAM_FAILED).await;
    assert_eq!(counted("upstream_broke").await, 3.0);

    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(4))).await;
    sse.event("x".repeat(5000)).await;
    fails_with(&mut response, 4, UPSTREAM_FAILED).await;
    assert_eq!(counted("event_too_large").await, 1.0);
    assert_eq!(counted("upstream_broke").await, 3.0);

    // One whose resumption at the server fails, by refusal or for want of a connection, fails once.
    for (id, refuses) in [(5, true), (6, false)] {
        let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(id))).await;
        sse.bytes("id: u1\nretry: 1\ndata:\n\n").await;
        if refuses {
            sse.end().await;
            upstream.expect("GET").await.status(404).await;
        } else {
            upstream.refuse().await;
            sse.end().await;
        }
        fails_with(&mut response, id, UPSTREAM_FAILED).await;
    }
    assert_eq!(counted("upstream_status").await, 1.0);
    assert_eq!((counted("upstream_broke").await, counted("unreachable").await), (4.0, 0.0));
}

/// A client that may have to get new credentials cannot wait for long.
#[tokio::test]
async fn an_answer_that_may_be_refused_waits_twenty_seconds_for_a_server_that_refuses_connections() {
    let (mut upstream, proxy, session) = setup().await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    sse.event(question("q")).await;
    response.event().await;
    // Its credentials end in mid-call.
    let pending = session.post(call(2)).start(proxy.addr).await;
    upstream.expect("tools/call").await.status(401).await;
    assert_eq!(pending.response().await.status, 401);
    upstream.refuse().await;
    let pending = session.post(answer("q")).start(proxy.addr).await;
    let mut answered = std::pin::pin!(pending.response());
    // Each failed request stands behind what came before it.
    let goes_round = async || _ = Request::new("GET", "/page").send(proxy.addr).await.status;
    goes_round().await;
    pass(Duration::from_secs(15)).await;
    tokio::select! {
        biased;
        _ = &mut answered => panic!("it was given up before its time"),
        () = goes_round() => {}
    }
    pass(Duration::from_secs(6)).await;
    let mut answered = answered.await;
    assert_eq!(answered.status, 502);
    assert_eq!(answered.json().await["error"]["data"]["mayHaveRun"], false);
    upstream.listen_again().await;
    let pending = session.post(answer("q")).start(proxy.addr).await;
    upstream.expect("response").await.status(202).await;
    assert_eq!(pending.response().await.status, 202);
    sse.finish(result(1)).await;
}
