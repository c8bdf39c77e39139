//! Bad input has one answer each, and nothing from the network stops the server.

use serde_json::{Value, json};

use crate::support::*;

/// Sends raw bytes on a new connection; returns everything received until its end.
async fn raw(proxy: &Proxy, bytes: &[u8]) -> Vec<u8> {
    let mut client = Client::connect(proxy.addr).await;
    // The proxy may refuse before it has read everything.
    let _ = client.try_send(bytes).await;
    let _ = client.try_half_close().await;
    client.drain().await
}

fn status_of(answer: &[u8]) -> Option<u16> {
    let text = String::from_utf8_lossy(answer);
    text.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()
}

/// Numbers that look random and are the same in every run.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    fn bytes(&mut self, longest: usize) -> Vec<u8> {
        (0..self.below(longest) + 1).map(|_| self.next() as u8).collect()
    }

    /// `bytes` with some of them changed, taken out or doubled.
    fn damage(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut damaged = bytes.to_vec();
        for _ in 0..=self.below(4) {
            let at = self.below(damaged.len());
            match self.below(4) {
                0 => damaged[at] = self.next() as u8,
                1 if damaged.len() > 1 => drop(damaged.remove(at)),
                2 => damaged.insert(at, damaged[at]),
                _ => damaged.truncate(at + 1),
            }
        }
        damaged
    }
}

#[tokio::test]
async fn a_body_over_the_limit_is_413_and_the_client_can_read_it() {
    let (mut upstream, proxy, session) = setup_with(|c| c.limits.body_bytes = 10_000).await;
    let large =
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"x":"{}"}}}}"#, "x".repeat(2_000_000));
    let request = session.post(&large);
    let client = Client::connect(proxy.addr).await;
    // More than sockets hold: an answer with a reset behind it would be lost.
    let (sent, response) = client.send_and_read(&request.bytes(proxy.addr)).await;
    let response = response.unwrap_or_else(|end| panic!("{end:?} after {sent:?}"));
    assert_eq!(response.status, 413);

    let mut chunked = session.post("").with("Transfer-Encoding", "chunked").head_bytes(proxy.addr);
    for _ in 0..20 {
        chunked.extend(format!("3e8\r\n{}\r\n", "x".repeat(1000)).bytes());
    }
    chunked.extend(b"0\r\n\r\n");
    let client = Client::connect(proxy.addr).await;
    let (_, response) = client.send_and_read(&chunked).await;
    assert_eq!(response.expect("an answer").status, 413);
    settle(&proxy, &mut upstream).await;

    // At the limit it is taken.
    let fits = session.post(call(1)).start(proxy.addr).await;
    upstream.expect("tools/call").await.json(200, result(1)).await;
    assert_eq!(fits.response().await.status, 200);
}

#[tokio::test]
async fn a_head_over_the_limit_is_431() {
    let (mut upstream, proxy, session) = setup_with(|c| c.limits.header_bytes = 8192).await;
    let request = session.post(call(1)).with("X-Large", &"x".repeat(20_000));
    let answer = raw(&proxy, &request.bytes(proxy.addr)).await;
    assert_eq!(status_of(&answer), Some(431));
    let mut many = session.post(call(1));
    for n in 0..2000 {
        many = many.and(&format!("X-{n}"), "x");
    }
    let answer = raw(&proxy, &many.bytes(proxy.addr)).await;
    assert_eq!(status_of(&answer), Some(431));
    settle(&proxy, &mut upstream).await;
}

#[tokio::test]
async fn a_message_that_names_a_deciding_member_twice_is_400() {
    let (mut upstream, proxy, session) = setup().await;
    for body in [
        r#"{"jsonrpc":"2.0","id":1,"method":"a","id":2}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"a","method":"b"}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"a","\u0069d":2}"#,
        r#"{"jsonrpc":"1.0","id":1,"method":"a","jsonrpc":"2.0"}"#,
        r#"{"jsonrpc":"2.0","id":1,"result":{},"result":{}}"#,
        r#"{"jsonrpc":"2.0","id":1,"error":{},"error":{}}"#,
        r#"[{"jsonrpc":"2.0","id":1,"method":"a","id":2}]"#,
    ] {
        let mut response = session.post(body).send(proxy.addr).await;
        assert_eq!(response.status, 400, "{body}");
        let message = response.json().await;
        assert!(message["error"]["code"].is_i64(), "{body}: {message}");
    }
    settle(&proxy, &mut upstream).await;
    // Below the top level a name may come twice: that is payload.
    let body = r#"{"jsonrpc":"2.0","id":1,"method":"a","params":{"id":1,"id":2}}"#;
    let pending = session.post(body).start(proxy.addr).await;
    upstream.expect("a").await.json(200, result(1)).await;
    assert_eq!(pending.response().await.status, 200);
}

/// The answers that the documentation promises; nothing of these reaches the upstream.
#[tokio::test]
async fn each_class_of_bad_request_has_its_answer() {
    let (mut upstream, proxy, session) = setup_with(|c| c.limits.body_bytes = 10_000).await;
    let long = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{}"}}"#, "x".repeat(20_000));
    let upgrade = session.get().with("Connection", "Upgrade").with("Upgrade", "websocket");
    for (class, request, status, code) in [
        ("no body", session.post(""), 400, -32700),
        ("not JSON", session.post("hello"), 400, -32700),
        ("half a message", session.post(r#"{"jsonrpc":"2.0","id":1,"#), 400, -32700),
        ("two messages", session.post(format!("{}{}", call(1), call(2))), 400, -32700),
        ("a method not UTF-8", session.post(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"\xff\"}"), 400, -32600),
        ("JSON that is no message", session.post("null"), 400, -32600),
        ("neither method nor answer", session.post("{}"), 400, -32600),
        ("an empty batch", session.post("[]"), 400, -32600),
        ("a batch of no messages", session.post("[1, 2]"), 400, -32600),
        ("an id that is an object", session.post(r#"{"jsonrpc":"2.0","id":{},"method":"x"}"#), 400, -32600),
        ("an id that is null", session.post(r#"{"jsonrpc":"2.0","id":null,"method":"x"}"#), 400, -32600),
        ("no version of JSON-RPC", session.post(r#"{"id":1,"method":"x"}"#), 400, -32600),
        ("a name twice", session.post(r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"x"}"#), 400, -32600),
        ("too long", session.post(long), 413, -32013),
        ("a cursor of another server", session.resume("42"), 400, -32600),
        ("an upgrade", upgrade, 501, -32600),
        ("neither JSON nor SSE accepted", session.post(call(1)).with("Accept", "text/html"), 406, -32600),
    ] {
        let pending = request.start(proxy.addr).await;
        let mut response = tokio::select! {
            response = pending.response() => response,
            call = upstream.next() => panic!("{class}: forwarded as {}", call.rpc_method()),
        };
        assert_eq!(response.status, status, "{class}");
        assert_eq!(response.header("content-type"), Some("application/json"), "{class}");
        let message = response.json().await;
        assert_eq!(message["error"]["code"], code, "{class}: {message}");
        assert_eq!(message["error"]["data"]["fault"], "client", "{class}: {message}");
        assert_eq!(message["error"]["data"]["mayHaveRun"], false, "{class}: {message}");
    }
    settle(&proxy, &mut upstream).await;
}

/// A client finds the error by its ID, and its author the fault by its text.
#[tokio::test]
async fn a_refused_body_gets_its_id_back_and_the_name_of_the_wrong_member() {
    let (mut upstream, proxy, session) = setup().await;
    for (body, id, text) in [
        (r#"{"id":7,"method":"tools/list"}"#, json!(7), "`jsonrpc` is missing"),
        (r#"{"jsonrpc":"2.0","id":"a","method":7}"#, json!("a"), "`method` is no string"),
        (r#"{"jsonrpc":"2.0","id":null,"method":"tools/list"}"#, Value::Null, "`id` is null"),
        (
            r#"[{"jsonrpc":"2.0","id":1,"method":"a"},{"id":2}]"#,
            Value::Null,
            "message 2 of the array: `jsonrpc` is missing",
        ),
    ] {
        let mut response = session.post(body).send(proxy.addr).await;
        let message = response.json().await;
        let expected = format!("the request is not valid here: {text}");
        assert_eq!((response.status, &message["id"], &message["error"]["message"]), (400, &id, &json!(expected)));
        assert_eq!(message["error"]["data"]["error"], "bad_request");
    }
    settle(&proxy, &mut upstream).await;
}

#[tokio::test]
async fn a_byte_order_mark_before_a_body_is_skipped() {
    let (mut upstream, proxy, session) = setup().await;
    let pending = session.post(format!("\u{feff}{}", call(1))).start(proxy.addr).await;
    let sent = upstream.expect("tools/call").await;
    assert_eq!(sent.body, call(1).as_bytes());
    sent.json(200, result(1)).await;
    assert_eq!(pending.response().await.status, 200);
}

/// Servers in Python read them.
#[tokio::test]
async fn numbers_that_are_none_reach_a_server_on_http() {
    let (mut upstream, proxy, session) = setup().await;
    for number in ["NaN", "Infinity", "-Infinity"] {
        let body = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"a","arguments":{{"x":{number}}}}}}}"#
        );
        let pending = session.post(&body).start(proxy.addr).await;
        let sent = upstream.next().await;
        assert_eq!(sent.body, body.as_bytes());
        sent.json(200, result(1)).await;
        let mut response = pending.response().await;
        assert_eq!((response.status, response.json().await["id"].clone()), (200, json!(1)));
    }
    for body in [
        r#"{"jsonrpc":"2.0","id":1,"method":NaN}"#,
        r#"{"id":NaN}"#,
        "NaN",
        r#"{"jsonrpc":"2.0","id":1,"method":"a","params":nan}"#,
    ] {
        assert_eq!(session.post(body).send(proxy.addr).await.status, 400, "{body}");
    }
    settle(&proxy, &mut upstream).await;
}

#[tokio::test]
async fn a_notification_with_an_id_of_null_reaches_a_server_on_http() {
    let (mut upstream, proxy, session) = setup().await;
    let body = r#"{"jsonrpc":"2.0","method":"notifications/roots/list_changed","id":null}"#;
    let pending = session.post(body).start(proxy.addr).await;
    let sent = upstream.next().await;
    assert_eq!(sent.body, body.as_bytes());
    sent.status(202).await;
    assert_eq!(pending.response().await.status, 202);
}

#[tokio::test]
async fn a_session_header_that_repeats_its_value_is_that_value() {
    let (mut upstream, proxy, session) = setup().await;
    let id = session.id.clone();
    let joined = session.post(call(1)).with("Mcp-Session-Id", &format!("{id}, {id}"));
    let twice = session.post(call(2)).and("Mcp-Session-Id", &id);
    for request in [joined, twice] {
        let pending = request.start(proxy.addr).await;
        let sent = upstream.expect("tools/call").await;
        assert_eq!(sent.head.all("mcp-session-id"), [id.as_str()]);
        sent.json(200, result(1)).await;
        assert_eq!(pending.response().await.status, 200);
    }
    // Two sessions are no session: the server judges.
    let pending = session.post(call(3)).and("Mcp-Session-Id", "other").start(proxy.addr).await;
    let sent = upstream.next().await;
    assert_eq!(sent.head.all("mcp-session-id").len(), 2);
    sent.status(400).await;
    assert_eq!(pending.response().await.status, 400);
}

#[tokio::test]
async fn another_upgrade_passes_without_the_offer() {
    let (mut upstream, proxy, session) = setup().await;
    let offer = session.post(call(1)).with("Connection", "Upgrade, HTTP2-Settings").with("Upgrade", "h2c");
    let pending = offer.with("HTTP2-Settings", "AAMAAABkAAQAAP__").start(proxy.addr).await;
    let upstream_call = upstream.expect("tools/call").await;
    for gone in ["upgrade", "http2-settings"] {
        assert_eq!(upstream_call.header(gone), None);
    }
    assert!(!upstream_call.head.lists("connection", "upgrade"));
    upstream_call.json(200, result(1)).await;
    assert_eq!(pending.response().await.body().await, result(1).as_bytes());
}

#[tokio::test]
async fn a_body_of_another_type_is_the_servers_to_refuse() {
    let (mut upstream, proxy, session) = setup().await;
    for request in [
        session.post(call(1)).with("Content-Type", "text/plain"),
        session.post("a=b").with("Content-Type", "application/x-www-form-urlencoded"),
        session.post(call(1)).without("Content-Type"),
    ] {
        let pending = request.start(proxy.addr).await;
        let upstream_call = upstream.next().await;
        assert_eq!((upstream_call.method.as_str(), upstream_call.target.as_str()), ("POST", "/mcp"));
        upstream_call.json(415, "{\"no\":1}").await;
        let mut response = pending.response().await;
        assert_eq!(response.status, 415);
        assert_eq!(response.body().await, b"{\"no\":1}");
    }
}

#[tokio::test]
async fn a_request_that_is_not_http_is_refused() {
    let (mut upstream, proxy, _session) = setup().await;
    let host = proxy.addr;
    for bytes in [
        "\r\n\r\n\r\n\0\0\0".to_owned(),
        "hello\r\n\r\n".to_owned(),
        format!("POST /mcp HTTP/1.1\r\nHost: {host}\r\nContent-Length: x\r\n\r\n"),
        format!("POST /mcp HTTP/1.1\r\nHost: {host}\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab"),
        format!("GET /mcp HTTP/1.1\r\nHost: {host}\r\nbad header\r\n\r\n"),
        format!("GET /mcp HTTP/1.1\r\nHost: {host}\r\nX: \0\r\n\r\n"),
        format!("GET /mcp HTTP/9.9\r\nHost: {host}\r\n\r\n"),
        format!("POST /mcp HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"),
        format!("POST /mcp HTTP/1.1\r\nHost: {host}\r\nContent-Length: 10\r\n\r\nshort"),
    ] {
        let answer = raw(&proxy, bytes.as_bytes()).await;
        if let Some(status) = status_of(&answer) {
            assert!((400..600).contains(&status), "{bytes:?}: {status}");
        } else {
            assert_eq!(answer, b"", "{bytes:?}: an answer or none");
        }
        settle(&proxy, &mut upstream).await;
    }
}

#[tokio::test]
async fn bytes_that_are_no_request_have_their_status() {
    let (mut upstream, proxy, session) = setup().await;
    let host = proxy.addr;
    let mut many = session.post(call(1));
    for n in 0..150 {
        many = many.and(&format!("X-{n}"), "x");
    }
    let many = String::from_utf8(many.bytes(host)).expect("text");
    for (class, bytes, status) in [
        ("other bytes", "\u{16}\u{3}\u{1}\u{2}\0\u{1}\r\n\r\n".to_owned(), 400),
        ("an unknown version", format!("GET /mcp HTTP/9.9\r\nHost: {host}\r\n\r\n"), 400),
        ("no number", format!("POST /mcp HTTP/1.1\r\nHost: {host}\r\nContent-Length: x\r\n\r\n"), 400),
        ("no header", format!("GET /mcp HTTP/1.1\r\nHost: {host}\r\nbad header\r\n\r\n"), 400),
        (
            "a bad chunk",
            format!(
                "POST /mcp HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"
            ),
            400,
        ),
        ("many headers", many, 431),
        ("CONNECT", "CONNECT 127.0.0.1:9 HTTP/1.1\r\nHost: 127.0.0.1:9\r\n\r\n".to_owned(), 501),
    ] {
        let mut client = Client::connect(host).await;
        // Nothing is half closed here: the answer must not need it.
        let _ = client.try_send(bytes.as_bytes()).await;
        assert_eq!(client.response().await.status, status, "{class}");
    }
    settle(&proxy, &mut upstream).await;
}

#[tokio::test]
async fn a_request_for_another_host_goes_to_the_upstream_or_nowhere() {
    let (mut upstream, proxy, _session) = setup().await;
    let other = Upstream::start().await;
    for bytes in [
        format!("CONNECT {} HTTP/1.1\r\nHost: {}\r\n\r\n", other.addr(), other.addr()),
        format!("GET http://{}/x HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", other.addr(), proxy.addr),
        format!("OPTIONS * HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", proxy.addr),
    ] {
        let mut client = Client::connect(proxy.addr).await;
        client.send(bytes.as_bytes()).await;
        let answered = client.try_response();
        tokio::pin!(answered);
        let response = tokio::select! {
            response = &mut answered => response,
            call = upstream.next() => {
                call.status(404).await;
                answered.await
            }
        };
        if let Ok(response) = response {
            assert!((400..600).contains(&response.status), "{bytes:?}");
        }
        assert_eq!(other.connections(), 0, "{bytes:?}");
    }
}

#[tokio::test]
async fn other_methods_on_the_endpoint_are_the_servers_to_refuse() {
    let (mut upstream, proxy, session) = setup().await;
    for method in ["PUT", "PATCH", "OPTIONS", "FOO"] {
        let request = Request::new(method, "/mcp").with("Mcp-Session-Id", &session.id);
        let pending = request.start(proxy.addr).await;
        let upstream_call = upstream.expect(method).await;
        upstream_call.json_with(405, "allow: GET, POST\r\n", "{\"no\":1}").await;
        let mut response = pending.response().await;
        assert_eq!(response.status, 405, "{method}");
        assert_eq!(response.body().await, b"{\"no\":1}");
    }
}

#[tokio::test]
async fn requests_sent_together_are_answered_in_order() {
    let (mut upstream, proxy, session) = setup().await;
    let mut bytes = session.post(call(1)).bytes(proxy.addr);
    bytes.extend(session.post(call(2)).bytes(proxy.addr));
    let mut client = Client::connect(proxy.addr).await;
    client.send(&bytes).await;
    upstream.expect("tools/call").await.json(200, result(1)).await;
    let mut first = client.response().await;
    assert_eq!(first.body().await, result(1).as_bytes());
    upstream.expect("tools/call").await.json(200, result(2)).await;
    let mut second = first.into_client().response().await;
    assert_eq!(second.body().await, result(2).as_bytes());
}

#[tokio::test]
async fn a_request_whose_body_never_came_never_reaches_the_upstream() {
    let (mut upstream, proxy, session) = setup().await;
    let whole = session.post(call(1)).bytes(proxy.addr);
    for cut in [1, 20, whole.len() / 2, whole.len() - 1] {
        let mut client = Client::connect(proxy.addr).await;
        client.send(&whole[..cut]).await;
        client.reset();
        settle(&proxy, &mut upstream).await;
    }
}

#[tokio::test]
async fn forged_cursors_of_every_shape_are_answered() {
    let (mut upstream, proxy, session) = setup().await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    let real = EventId::of(response.prime().await.id());
    let mut noise = Noise(0x5eed);
    for round in 0..300 {
        let damaged = noise.damage(real.at(0).as_bytes());
        let id: String = damaged.iter().map(|b| char::from((*b).clamp(b'!', b'~'))).collect();
        if id.starts_with(&real.handle) {
            // The real one, at some place of it.
            continue;
        }
        let response = session.resume(&id).send(proxy.addr).await;
        assert!(matches!(response.status, 200 | 204 | 400), "{round} {id}: {}", response.status);
        let mut response = response;
        if response.status == 200 {
            let (events, end) = response.events().await;
            assert_eq!((events.len(), end), (1, End::Complete), "{id}");
            assert_eq!(events[0].json()["error"]["code"], GONE, "{id}");
        }
    }
    sse.finish(result(1)).await;
    assert_eq!(response.event().await.bytes(), result(1).as_bytes());
}

#[tokio::test]
async fn random_bytes_on_the_socket_do_not_stop_the_server() {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |_| {}).await;
    upstream.answer_all();
    let mut noise = Noise(0xbad1);
    for _ in 0..200 {
        raw(&proxy, &noise.bytes(2000)).await;
    }
    alive(&proxy).await;
}

#[tokio::test]
async fn damaged_requests_do_not_stop_the_server() {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |_| {}).await;
    upstream.answer_all();
    let mut noise = Noise(0xbad2);
    let whole = [
        Request::post(call(1)).bytes(proxy.addr),
        modern(1).bytes(proxy.addr),
        Request::post(initialize(V2025_11)).bytes(proxy.addr),
        Request::get().resume_from("AAAA.1").bytes(proxy.addr),
    ];
    for round in 0..400 {
        raw(&proxy, &noise.damage(&whole[round % whole.len()])).await;
    }
    alive(&proxy).await;
}

#[tokio::test]
async fn damaged_bodies_do_not_stop_the_server() {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |_| {}).await;
    upstream.answer_all();
    let mut noise = Noise(0xbad3);
    let mut bodies: Vec<Vec<u8>> = (0..100).map(|_| noise.bytes(500)).collect();
    for whole in [
        call(1),
        initialize(V2025_11),
        format!("[{},{}]", call(1), call(2)),
        r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#.into(),
        r#"{"jsonrpc":"2.0","id":1,"result":{}}"#.into(),
    ] {
        bodies.extend((0..60).map(|_| noise.damage(whole.as_bytes())));
    }
    bodies.push("[".repeat(200_000).into_bytes());
    bodies.push("{\"a\":".repeat(100_000).into_bytes());
    bodies.push(format!("[{}]", vec![call(1); 5000].join(",")).into_bytes());
    bodies.push(Vec::new());
    bodies.push(b"[]".to_vec());
    bodies.push(b"null".to_vec());
    bodies.push("\u{feff}{}".into());
    for body in bodies {
        let request = Request::post(&body).with("Mcp-Session-Id", "s");
        let response = request.send(proxy.addr).await;
        assert!(
            (200..500).contains(&response.status),
            "{}: {}",
            String::from_utf8_lossy(&body[..body.len().min(200)]),
            response.status
        );
    }
    alive(&proxy).await;
}

#[tokio::test]
async fn a_call_ends_with_a_response_for_any_upstream_stream() {
    let (mut upstream, proxy, session) = setup().await;
    let mut noise = Noise(0xbad4);
    let wire = format!(": c\n\nevent: message\ndata: {}\n\nretry: 5\ndata: {}\r\n\r\n", progress(1), result(1000));
    for round in 0..200 {
        // No line of it is an id: then its end would be one on purpose.
        let bytes = match round % 2 {
            0 => noise.bytes(500),
            _ => noise.damage(wire.replace("1000", &(1000 + round).to_string()).as_bytes()),
        };
        let id = 1000 + round;
        let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(id))).await;
        sse.bytes(&bytes).await;
        sse.end().await;
        let (events, end) = response.events().await;
        assert_eq!(end, End::Complete);
        let answered = events.iter().any(|event| {
            let message: serde_json::Value =
                serde_json::from_str(&String::from_utf8_lossy(event.bytes())).unwrap_or_default();
            message["id"] == id && (message.get("result").is_some() || message["error"]["code"] == UPSTREAM_FAILED)
        });
        let text: Vec<_> = events.iter().map(|e| String::from_utf8_lossy(&e.raw).into_owned()).collect();
        assert!(answered, "{round}: {text:?}");
    }
    settle(&proxy, &mut upstream).await;
}

async fn alive(proxy: &Proxy) {
    let response = Request::new("GET", "/alive").send(proxy.addr).await;
    assert_eq!(response.status, 404, "what the upstream says to everything");
}

#[tokio::test]
async fn a_call_that_accepts_nothing_is_refused_under_its_id() {
    let (mut upstream, proxy, session) = setup().await;
    let mut response = session.post(call("mine")).with("Accept", "text/html").send(proxy.addr).await;
    assert_eq!(response.status, 406);
    assert_fault(&response.json().await, "mine", -32600, "client");
    let batch = format!("[{},{}]", call(1), call(2));
    let mut response = session.post(batch).with("Accept", "text/html").send(proxy.addr).await;
    let errors = response.json().await;
    for (error, id) in errors.as_array().expect("an array").iter().zip([1, 2]) {
        assert_fault(error, id, -32600, "client");
    }
    settle(&proxy, &mut upstream).await;
}
