//! Undisturbed event streams: ids, priming, and events as the server sent them.

use crate::support::*;

#[tokio::test]
async fn an_event_stream_is_numbered_and_primed() {
    let (mut upstream, proxy, session) = setup().await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    let prime = response.prime().await;
    let place = EventId::of(prime.id());
    assert_eq!(place.at(0), prime.id(), "the place before the first event");
    assert_eq!(prime.retry, Some(1000));
    assert_eq!(prime.data, Some(vec![]), "empty data");

    for n in 1..=3 {
        sse.event(progress(n)).await;
        let event = response.event().await;
        assert_eq!(event.id(), place.at(n));
        assert_eq!(event.event.as_deref(), Some("message"));
        assert_eq!(event.bytes(), progress(n).as_bytes());
    }
    sse.finish(result(1)).await;
    let event = response.event().await;
    assert_eq!(event.id(), place.at(4));
    assert_eq!(event.bytes(), result(1).as_bytes());
    response.ends().await;
}

#[tokio::test]
async fn the_first_id_comes_in_one_write_with_the_head() {
    let (mut upstream, proxy, session) = setup().await;
    let pending = session.post(call(1)).start(proxy.addr).await;
    let sse = upstream.next().await.sse().await;
    let mut response = pending.response().await.sse();
    response.prime().await;
    assert_eq!(response.reads().len(), 1, "{:?}", response.reads());
    sse.finish(result(1)).await;
}

#[tokio::test]
async fn the_head_of_a_stream_forbids_buffering_and_claims_no_length() {
    let (mut upstream, proxy, session) = setup().await;
    let pending = session.post(call(1)).start(proxy.addr).await;
    // What a server sends when everything is ready at once.
    let body = format!("event: message\ndata: {}\n\n", result(1));
    upstream
        .next()
        .await
        .whole(format!(
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {}\r\n\
             etag: \"x\"\r\ncontent-digest: sha-256=:AA==:\r\naccept-ranges: bytes\r\ncontent-range: bytes 0-1/2\r\n\
             cache-control: public\r\nx-custom: kept\r\n\r\n{body}",
            body.len()
        ))
        .await;
    let mut response = pending.response().await.sse();
    assert_eq!(response.header("cache-control"), Some("no-cache, no-transform"));
    assert_eq!(response.header("x-accel-buffering"), Some("no"));
    assert_eq!(response.header("x-custom"), Some("kept"));
    for gone in ["content-length", "etag", "content-digest", "accept-ranges", "content-range"] {
        assert_eq!(response.header(gone), None, "{gone}");
    }
    response.prime().await;
    assert_eq!(response.event().await.bytes(), result(1).as_bytes());
    response.ends().await;
}

#[tokio::test]
async fn an_initialize_answered_as_a_stream_is_numbered_too() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |_| {}).await;
    let pending = Request::post(initialize(V2025_11)).start(proxy.addr).await;
    let answer = r#"{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"s","version":"1"}}}"#;
    upstream.expect("initialize").await.sse_with("mcp-session-id: abc\r\n").await.finish(answer).await;
    let mut response = pending.response().await.sse();
    assert_eq!(response.header("mcp-session-id"), Some("abc"));
    let event = response.event().await;
    assert_eq!((EventId::of(event.id()).seq.as_str(), event.bytes()), ("1", answer.as_bytes()));
    response.ends().await;
}

#[tokio::test]
async fn names_and_payloads_are_not_rewritten() {
    let (mut upstream, proxy, session) = setup().await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    // What is sent, the name and the payload that must arrive.
    let cases: &[(&[u8], Option<&str>, &[u8])] = &[
        (b"event: odd name\ndata: {\"a\" : 1}\n\n", Some("odd name"), b"{\"a\" : 1}"),
        (b"data: no name\n\n", None, b"no name"),
        (b"data:no space\n\n", None, b"no space"),
        (b"data:  two spaces \n\n", None, b" two spaces "),
        (b"data: one\ndata:\ndata: three\n\n", None, b"one\n\nthree"),
        (b"data: crlf\r\ndata: lines\r\n\r\n", None, b"crlf\nlines"),
        (b"data: cr\rdata: only\r\r", None, b"cr\nonly"),
        (b"data: \xff\xfe\xc3(\n\n", None, b"\xff\xfe\xc3("),
        (b"data: {not json\n\n", None, b"{not json"),
        (b"data: \xf0\x9f\x8e\x89\n\n", None, "🎉".as_bytes()),
        (b"unknown: x\ndata: y\n\n", None, b"y"),
    ];
    let mut seq = 0;
    for (sent, name, payload) in cases {
        sse.bytes(sent).await;
        // A lone CR at the end of a chunk may be half of a CRLF: this settles it.
        sse.bytes(":\n\n").await;
        let event = response.event().await;
        seq += 1;
        assert_eq!(event.bytes(), *payload);
        assert_eq!(event.event.as_deref(), *name);
        assert_eq!(EventId::of(event.id()).seq, seq.to_string());
    }
    sse.finish(result(1)).await;
    response.event().await;
    response.ends().await;
}

#[tokio::test]
async fn upstream_ids_are_replaced_and_its_empty_events_consumed() {
    let (mut upstream, proxy, session) = setup().await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    let place = EventId::of(response.prime().await.id());
    sse.bytes("id: up-0\nretry: 77\ndata:\n\n: comment\n\nid: up-1\ndata\n\nretry: 88\n\nevent: x\n\n").await;
    sse.bytes(format!("id: up-2\nretry: 99\nevent: message\ndata: {}\n\n", progress(1))).await;
    let frame = response.frame().await.expect("the event");
    assert_eq!(frame.bytes(), progress(1).as_bytes(), "nothing before it");
    assert_eq!(frame.id(), place.at(1));
    assert_eq!(frame.retry, None, "an upstream's retry is not the client's");
    assert_eq!(frame.comments, Vec::<String>::new());
    sse.event_id("up-3", result(1)).await;
    sse.end().await;
    assert_eq!(response.event().await.id(), place.at(2));
    response.ends().await;
}

#[tokio::test]
async fn an_event_in_pieces_is_one_event() {
    let (mut upstream, proxy, session) = setup().await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    response.prime().await;
    for byte in format!("event: message\r\ndata: {}\r\n\r\n", progress(1)).bytes() {
        sse.bytes([byte]).await;
    }
    assert_eq!(response.event().await.bytes(), progress(1).as_bytes());
    sse.finish(result(1)).await;
    response.event().await;
    response.ends().await;
}

#[tokio::test]
async fn many_events_in_one_piece_stay_many() {
    let (mut upstream, proxy, session) = setup().await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    let place = EventId::of(response.prime().await.id());
    let burst: String = (1..=2000).map(|n| format!("event: message\ndata: {}\n\n", progress(n))).collect();
    sse.bytes(burst).await;
    for n in 1..=2000 {
        let event = response.event().await;
        assert_eq!(event.id(), place.at(n));
        assert_eq!(event.bytes(), progress(n).as_bytes());
    }
    sse.finish(result(1)).await;
    response.event().await;
    response.ends().await;
}

#[tokio::test]
async fn a_large_event_passes_whole() {
    let (mut upstream, proxy, session) = setup().await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    let text = "x".repeat(3 * 1024 * 1024);
    let large = format!(r#"{{"jsonrpc":"2.0","id":1,"result":{{"t":"{text}"}}}}"#);
    let (event, ()) = tokio::join!(response.event(), sse.finish(&large));
    assert!(event.bytes() == large.as_bytes(), "3 MiB come through");
    response.ends().await;
}

#[tokio::test]
async fn two_streams_do_not_mix() {
    let (mut upstream, proxy, session) = setup().await;
    let (one, mut first) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    let (two, mut second) = begin(&proxy, &mut upstream, &session.post(call(2))).await;
    let first_place = EventId::of(first.prime().await.id());
    let second_place = EventId::of(second.prime().await.id());
    assert_ne!(first_place.handle, second_place.handle);
    two.finish(result(2)).await;
    let event = second.event().await;
    assert_eq!((event.id(), event.bytes()), (second_place.at(1).as_str(), result(2).as_bytes()));
    second.ends().await;
    one.finish(result(1)).await;
    let event = first.event().await;
    assert_eq!((event.id(), event.bytes()), (first_place.at(1).as_str(), result(1).as_bytes()));
    first.ends().await;
}

#[tokio::test]
async fn a_silent_stream_gets_comments() {
    let (mut upstream, proxy, session) = setup_with(|c| c.delivery.heartbeat = SOON).await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    response.prime().await;
    for _ in 0..2 {
        let frame = response.any_frame().await.expect("a heartbeat");
        assert!(frame.is_comment(), "{frame:?}");
    }
    sse.finish(result(1)).await;
    response.event().await;
    response.ends().await;
}

#[tokio::test]
async fn older_clients_are_not_primed_where_that_is_restricted() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |c| {
        c.delivery.prime = mcp_resume::config::Prime::Since20251125;
    })
    .await;
    let old = Session::open(&proxy, &mut upstream, V2025_06).await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &old.post(call(1))).await;
    let first = response.any_frame().await.expect("a comment at once");
    assert!(first.is_comment(), "{first:?}");
    sse.finish(result(1)).await;
    let event = response.frame().await.expect("the response");
    assert_eq!(event.bytes(), result(1).as_bytes());
    assert_eq!(EventId::of(event.id()).seq, "1", "real events have ids");
    response.ends().await;

    let new = Session::open_as(&proxy, &mut upstream, V2025_11, "s-2", None).await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &new.post(call(1))).await;
    response.prime().await;
    sse.finish(result(1)).await;
    response.events().await;
}

#[tokio::test]
async fn a_response_is_recognised_however_it_is_written() {
    let (mut upstream, proxy, session) = setup().await;
    for (n, (id, written)) in [
        (serde_json::json!(1), "data: {\"result\":{\"id\":5},\"jsonrpc\":\"2.0\",\"id\":1}\n\n"),
        (
            serde_json::json!(2),
            "data: {\ndata:   \"jsonrpc\" : \"2.0\",\ndata:   \"id\" : 2,\ndata:   \"result\" : {}\ndata: }\n\n",
        ),
        (serde_json::json!("\u{e9}"), "data: {\"jsonrpc\":\"2.0\",\"id\":\"\\u00e9\",\"result\":{}}\n\n"),
        (serde_json::json!("a/b"), "data: {\"jsonrpc\":\"2.0\",\"id\":\"a\\/b\",\"result\":{}}\n\n"),
        (serde_json::json!(3), "data: {\"jsonrpc\":\"2.0\",\"\\u0069d\":3,\"result\":{}}\n\n"),
        (
            serde_json::json!(4),
            "event: odd\ndata:{\"error\":{\"code\":1,\"message\":\"\"},\"jsonrpc\":\"2.0\",\"id\":4}\n\n",
        ),
        (serde_json::json!(6), "data: \ndata: {\"jsonrpc\":\"2.0\",\"id\":6,\"result\":{\"method\":\"x\"}}\n\n"),
    ]
    .into_iter()
    .enumerate()
    {
        let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(id))).await;
        sse.bytes(written).await;
        // The break comes after the answer: it is no failure.
        sse.reset().await;
        response.event().await;
        response.ends().await;
        settle(&proxy, &mut upstream).await;
        assert!(upstream.is_quiet(), "{n}");
    }
}

#[tokio::test]
async fn a_servers_request_of_the_same_id_is_not_the_response() {
    let (mut upstream, proxy, session) = setup().await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    sse.event(r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#).await;
    response.event().await;
    let pending = session.post(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#).start(proxy.addr).await;
    upstream.expect("response").await.status(202).await;
    assert_eq!(pending.response().await.status, 202);
    sse.event(progress(1)).await;
    assert_eq!(response.event().await.bytes(), progress(1).as_bytes());
    sse.reset().await;
    assert_fault(&response.event().await.json(), 1, UPSTREAM_FAILED, "upstream");
    response.ends().await;
}
