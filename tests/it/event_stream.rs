//! Undisturbed exchanges, seen from both sides.

use crate::support::*;
use mcp_resume::protocol::client::{Network, Trust};
use std::str::FromStr;

const ODD_JSON: &str = "{ \"result\":{\"b\":1.0,\"a\":\"\\u00e9\"},\n \"id\":1, \"jsonrpc\":\"2.0\" }";

#[tokio::test]
async fn a_json_answer_passes_unchanged() {
    let (mut upstream, proxy, session) = setup().await;
    let pending = session.post(call(1)).start(proxy.addr).await;
    let upstream_call = upstream.expect("tools/call").await;
    assert_eq!(upstream_call.body, call(1).into_bytes());
    upstream_call
        .json_with(200, "x-custom: kept\r\nset-cookie: a=1\r\nset-cookie: b=2\r\netag: \"e\"\r\n", ODD_JSON)
        .await;
    let mut response = pending.response().await;
    assert_eq!(response.status, 200);
    assert_eq!(response.header("content-type"), Some("application/json"));
    assert_eq!(response.header("x-custom"), Some("kept"));
    assert_eq!(response.header("etag"), Some("\"e\""));
    assert_eq!(response.head.all("set-cookie"), ["a=1", "b=2"]);
    assert_eq!(response.body().await, ODD_JSON.as_bytes());
}

#[tokio::test]
async fn error_statuses_pass_unchanged() {
    let (mut upstream, proxy, session) = setup().await;
    for status in [400, 401, 403, 404, 406, 421, 429, 500, 503] {
        let pending = session.post(call(status)).start(proxy.addr).await;
        upstream
            .expect("tools/call")
            .await
            .json_with(status, "www-authenticate: Bearer x\r\nretry-after: 3\r\n", ODD_JSON)
            .await;
        let mut response = pending.response().await;
        assert_eq!(response.status, status);
        assert_eq!(response.header("www-authenticate"), Some("Bearer x"));
        assert_eq!(response.header("retry-after"), Some("3"));
        assert_eq!(response.body().await, ODD_JSON.as_bytes(), "{status}");
    }
}

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
             etag: \"x\"\r\naccept-ranges: bytes\r\ncontent-range: bytes 0-1/2\r\n\
             cache-control: public\r\nx-custom: kept\r\n\r\n{body}",
            body.len()
        ))
        .await;
    let mut response = pending.response().await.sse();
    assert_eq!(response.header("cache-control"), Some("no-cache, no-transform"));
    assert_eq!(response.header("x-accel-buffering"), Some("no"));
    assert_eq!(response.header("x-custom"), Some("kept"));
    for gone in ["content-length", "etag", "accept-ranges", "content-range"] {
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
    response.prime().await;
    assert_eq!(response.event().await.bytes(), answer.as_bytes());
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
async fn the_upstream_sees_the_headers_it_needs_and_no_others_of_ours() {
    let (mut upstream, proxy, session) = setup().await;
    let request = session
        .post(call(1))
        .with("Accept", "application/json")
        .with("Accept-Encoding", "gzip, br")
        .with("Authorization", "Bearer t")
        .with("Cookie", "c=1")
        .with("X-Custom", "kept")
        .with("Origin", &format!("http://{}", proxy.addr))
        .with("Last-Event-ID", "theirs");
    let pending = request.start(proxy.addr).await;
    let call = upstream.next().await;
    assert!(call.head.lists("accept", "application/json"));
    assert!(call.head.lists("accept", "text/event-stream"));
    assert_eq!(call.header("accept-encoding"), Some("identity"));
    assert_eq!(call.header("last-event-id"), None);
    assert_eq!(call.header("authorization"), Some("Bearer t"));
    assert_eq!(call.header("cookie"), Some("c=1"));
    assert_eq!(call.header("x-custom"), Some("kept"));
    assert_eq!(call.header("mcp-session-id"), Some("s-1"));
    assert_eq!(call.header("mcp-protocol-version"), Some(V2025_11));
    assert_eq!(call.header("content-type"), Some("application/json"));
    assert_eq!(call.header("host"), Some(upstream.addr().to_string().as_str()));
    call.json(200, result(1)).await;
    assert_eq!(pending.response().await.status, 200);
}

#[tokio::test]
async fn forwarding_headers_are_those_of_trusted_proxies_and_the_proxys_own() {
    const OTHERS: [&str; 8] = [
        "X-Forwarded",
        "X-Forwarded-Port",
        "X-Forwarded-Prefix",
        "X-Forwarded-User",
        "X-FORWARDED-SSL",
        "X_Forwarded_For",
        "X-Real-IP",
        "x_real_ip",
    ];
    for is_trusted in [false, true] {
        let mut upstream = Upstream::start().await;
        let trusted = is_trusted.then(|| Network::from_str("127.0.0.1").expect("an address").into());
        let proxy = Proxy::start(&upstream, |c| c.listen.trusted_proxies = Trust::new(trusted)).await;
        let claims = Request::post(call(1))
            .with("X-Forwarded-For", "192.0.2.9")
            .and("x-forwarded-for", "")
            .and("x-forwarded-for", "192.0.2.8");
        let claims = claims
            .with("Forwarded", "for=192.0.2.9")
            .with("X-Forwarded-Proto", "https")
            .with("X-Forwarded-Host", "theirs");
        // A client could not take out of a request what a proxy before this one has put there.
        let claims = claims.with("Connection", "x-forwarded-for, X-Real-IP, x-custom").with("X-Custom", "1");
        let claims = OTHERS.iter().fold(claims, |claims, name| claims.with(name, "a").and(name, "b"));
        // On any path.
        for request in [claims.clone(), claims.target("/elsewhere")] {
            let pending = request.start(proxy.addr).await;
            let upstream_call = upstream.next().await;
            let all = |name: &str| upstream_call.head.all(name).join("; ");
            let (own_host, own_for) =
                (proxy.addr.to_string(), format!("for=127.0.0.1;proto=http;host=\"{}\"", proxy.addr));
            if is_trusted {
                assert_eq!(all("x-forwarded-for"), "192.0.2.9, , 192.0.2.8, 127.0.0.1");
                assert_eq!(all("forwarded"), format!("for=192.0.2.9, {own_for}"));
                assert_eq!((all("x-forwarded-host").as_str(), all("x-forwarded-proto").as_str()), ("theirs", "https"));
            } else {
                assert_eq!(all("x-forwarded-for"), "127.0.0.1");
                assert_eq!(all("forwarded"), own_for);
                assert_eq!((all("x-forwarded-host"), all("x-forwarded-proto").as_str()), (own_host, "http"));
            }
            for name in OTHERS {
                assert_eq!(all(name), if is_trusted { "a; b" } else { "" }, "{name}");
            }
            assert_eq!(upstream_call.header("x-custom"), None);
            upstream_call.json(200, result(1)).await;
            pending.response().await;
        }
    }
}

/// W3C trace context, on the call and on what the proxy sends in its name.
#[tokio::test]
async fn the_trace_goes_on_upstream() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |c| c.streams.max_wait = Some(SOON)).await;
    let session = Session::open(&proxy, &mut upstream, V2025_11).await;
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let request = session.post(call(1)).with("traceparent", trace).with("tracestate", "vendor=1");
    let pending = request.start(proxy.addr).await;
    let upstream_call = upstream.expect("tools/call").await;
    assert_eq!(
        (upstream_call.header("traceparent"), upstream_call.header("tracestate")),
        (Some(trace), Some("vendor=1"))
    );
    let _running = upstream_call.sse().await;
    let mut response = pending.response().await.sse();
    response.prime().await;
    response.reset();
    let abandoned = upstream.expect("notifications/cancelled").await;
    assert_eq!(abandoned.header("traceparent"), Some(trace));
    abandoned.status(202).await;
}

#[tokio::test]
async fn hop_by_hop_headers_stop_here() {
    let (mut upstream, proxy, session) = setup().await;
    let pending = session
        .post(call(1))
        .with("Connection", "keep-alive, X-Hop")
        .with("X-Hop", "1")
        .with("Keep-Alive", "timeout=77")
        .with("Proxy-Connection", "keep-alive")
        .start(proxy.addr)
        .await;
    let upstream_call = upstream.next().await;
    for name in ["x-hop", "keep-alive", "proxy-connection", "upgrade"] {
        assert_eq!(upstream_call.header(name), None, "{name}");
    }
    upstream_call.json_with(200, "connection: X-Back\r\nx-back: 1\r\nkeep-alive: timeout=9\r\n", result(1)).await;
    let response = pending.response().await;
    for name in ["x-back", "keep-alive"] {
        assert_eq!(response.header(name), None, "{name}");
    }
}

#[tokio::test]
async fn notifications_pass_with_the_upstreams_status() {
    let (mut upstream, proxy, session) = setup().await;
    for status in [202, 400, 404] {
        let pending = session.post(r#"{"jsonrpc":"2.0","method":"notifications/x"}"#).start(proxy.addr).await;
        upstream.expect("notifications/x").await.status_with(status, "x-custom: 1\r\n").await;
        let response = pending.response().await;
        assert_eq!(response.status, status);
        assert_eq!(response.header("x-custom"), Some("1"));
    }
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
async fn a_downstream_connection_is_reused() {
    let (mut upstream, proxy, session) = setup().await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    sse.finish(result(1)).await;
    response.events().await;
    let mut client = response.into_client();
    client.send(&session.post(call(2)).bytes(proxy.addr)).await;
    upstream.expect("tools/call").await.json(200, result(2)).await;
    let mut second = client.response().await;
    assert_eq!(second.body().await, result(2).as_bytes());
}

#[tokio::test]
async fn what_follows_the_response_at_once_is_delivered_with_it() {
    let (mut upstream, proxy, session) = setup().await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    sse.event(result(1)).await;
    assert_eq!(response.event().await.bytes(), result(1).as_bytes());
    // Late words of a server are logged until it ends or the linger is over.
    sse.finish(progress(9)).await;
    assert_eq!(response.event().await.bytes(), progress(9).as_bytes());
    response.ends().await;
}

#[tokio::test]
async fn an_upstream_that_does_not_end_after_its_response_is_closed_after_the_linger() {
    let (mut upstream, proxy, session) = setup_with(|c| c.streams.linger = SOON).await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    sse.event(result(1)).await;
    response.event().await;
    response.ends().await;
    sse.closed().await;
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
async fn a_client_that_waits_for_leave_to_send_its_body_gets_it() {
    let (mut upstream, proxy, session) = setup().await;
    let mut client = Client::connect(proxy.addr).await;
    let request = session.post(call(1)).with("Expect", "100-continue");
    let bytes = request.bytes(proxy.addr);
    let body = bytes.len() - call(1).len();
    client.send(&bytes[..body]).await;
    let (leave, mut client) = client.interim().await;
    assert_eq!(leave, "HTTP/1.1 100 Continue");
    client.send(&bytes[body..]).await;
    let upstream_call = upstream.expect("tools/call").await;
    assert_eq!(upstream_call.header("expect"), None, "it was answered here");
    upstream_call.json(200, result(1)).await;
    assert_eq!(client.response().await.status, 200);
}

#[tokio::test]
async fn a_client_that_wants_the_connection_closed_has_it_closed() {
    let (mut upstream, proxy, session) = setup().await;
    let request = session.post(call(1)).with("Connection", "close");
    let (sse, mut response) = begin(&proxy, &mut upstream, &request).await;
    sse.finish(result(1)).await;
    assert_eq!(response.event().await.bytes(), result(1).as_bytes());
    response.ends().await;
    assert_eq!(response.into_client().drain().await, b"");
}

#[tokio::test]
async fn interim_answers_of_the_upstream_are_not_its_answer() {
    let (mut upstream, proxy, session) = setup().await;
    let pending = session.post(call(1)).start(proxy.addr).await;
    let upstream_call = upstream.next().await;
    upstream_call.write("HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n").await;
    upstream_call.json(200, result(1)).await;
    let mut response = pending.response().await;
    assert_eq!(response.status, 200);
    assert_eq!(response.body().await, result(1).as_bytes());
}

#[tokio::test]
async fn a_large_json_answer_passes_unchanged() {
    let (mut upstream, proxy, session) = setup().await;
    let large = format!(r#"{{"jsonrpc":"2.0","id":1,"result":{{"t":"{}"}}}}"#, "x".repeat(2_000_000));
    let pending = session.post(call(1)).start(proxy.addr).await;
    let upstream_call = upstream.next().await;
    let (mut response, ()) = tokio::join!(pending.response(), async {
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
        upstream_call.write(head).await;
        for piece in large.as_bytes().chunks(70_000) {
            upstream_call.write(format!("{:x}\r\n", piece.len())).await;
            upstream_call.write(piece).await;
            upstream_call.write("\r\n").await;
        }
        upstream_call.whole("0\r\n\r\n").await;
    });
    assert_eq!(response.status, 200);
    assert!(response.body().await == large.as_bytes(), "2 MB come through");
}

#[tokio::test]
async fn a_compressed_json_answer_passes_unchanged() {
    let (mut upstream, proxy, session) = setup().await;
    let pending = session.post(call(1)).start(proxy.addr).await;
    let body = b"\x1f\x8b\x08\0 not really";
    let mut answer = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-encoding: gzip\r\ncontent-length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    answer.extend_from_slice(body);
    upstream.next().await.whole(answer).await;
    let mut response = pending.response().await;
    assert_eq!(response.header("content-encoding"), Some("gzip"));
    assert_eq!(response.body().await, body);
}

#[tokio::test]
async fn a_body_sent_in_chunks_arrives_whole() {
    let (mut upstream, proxy, session) = setup().await;
    let mut client = Client::connect(proxy.addr).await;
    client.send(&session.post("").with("Transfer-Encoding", "chunked").head_bytes(proxy.addr)).await;
    for piece in call(1).as_bytes().chunks(7) {
        client.send(format!("{:x}\r\n{}\r\n", piece.len(), String::from_utf8_lossy(piece)).as_bytes()).await;
    }
    client.send(b"0\r\n\r\n").await;
    let upstream_call = upstream.expect("tools/call").await;
    assert_eq!(upstream_call.body, call(1).into_bytes());
    upstream_call.json(200, result(1)).await;
    assert_eq!(client.response().await.status, 200);
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

#[tokio::test]
async fn a_stream_that_ends_with_its_connection_is_one() {
    let (mut upstream, proxy, session) = setup().await;
    let pending = session.post(call(1)).start(proxy.addr).await;
    let upstream_call = upstream.next().await;
    upstream_call.write("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n\r\n").await;
    let mut response = pending.response().await.sse();
    response.prime().await;
    upstream_call.write(format!("\u{feff}data: {}\n\n", progress(1))).await;
    assert_eq!(response.event().await.bytes(), progress(1).as_bytes(), "a byte order mark is no name");
    upstream_call.write(format!("data: {}\n\n", result(1))).await;
    upstream_call.fin().await;
    assert_eq!(response.event().await.bytes(), result(1).as_bytes());
    response.ends().await;
}

#[tokio::test]
async fn an_upstream_connection_is_reused_after_a_stream() {
    let (mut upstream, proxy, session) = setup().await;
    let before = upstream.connections();
    for id in 0..3 {
        let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(id))).await;
        sse.finish(result(id)).await;
        response.event().await;
        response.ends().await;
    }
    assert_eq!(upstream.connections(), before);
}

#[tokio::test]
async fn a_json_answer_that_does_not_end_has_its_time_too() {
    let (mut upstream, proxy, session) = setup_with(|c| c.streams.call_timeout = Some(LATER)).await;
    let pending = session.post(call(1)).start(proxy.addr).await;
    let upstream_call = upstream.next().await;
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100000\r\n\r\n";
    upstream_call.write(format!("{head}{}", "x".repeat(70_000))).await;
    let (body, end) = pending.response().await.try_body().await;
    assert_eq!((body.len(), end), (70_000, End::Broken), "a client sees that it is incomplete");
    upstream_call.closed().await;
}
