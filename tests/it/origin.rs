//! Everything of the origin that is not an MCP exchange: other paths, redirects, CORS, where the
//! endpoint is.

use mcp_resume::config::HostHeader;
use serde_json::json;

use crate::support::*;

#[tokio::test]
async fn other_paths_are_proxied_plainly() {
    let (mut upstream, proxy, _session) = setup().await;
    let target = "/.well-known/oauth-protected-resource/mcp?x=1&y=%2F";
    let pending =
        Request::new("GET", target).with("Accept", "text/html").with("If-None-Match", "\"a\"").start(proxy.addr).await;
    let upstream_call = upstream.next().await;
    assert_eq!(upstream_call.method, "GET");
    assert_eq!(upstream_call.target, target);
    assert_eq!(upstream_call.header("accept"), Some("text/html"));
    assert_eq!(upstream_call.header("if-none-match"), Some("\"a\""));
    upstream_call.json_with(200, "etag: \"b\"\r\n", "{\"resource\": \"x\"}").await;
    let mut response = pending.response().await;
    assert_eq!(response.status, 200);
    assert_eq!(response.header("etag"), Some("\"b\""));
    assert_eq!(response.body().await, b"{\"resource\": \"x\"}");
}

#[tokio::test]
async fn a_post_elsewhere_is_not_an_mcp_call() {
    let (mut upstream, proxy, _session) = setup().await;
    let pending = Request::post("not json at all").target("/token").start(proxy.addr).await;
    let upstream_call = upstream.next().await;
    assert_eq!(upstream_call.target, "/token");
    assert_eq!(upstream_call.body, b"not json at all");
    upstream_call.status_with(418, "x-tea: 1\r\n").await;
    let response = pending.response().await;
    assert_eq!(response.status, 418);
    assert_eq!(response.header("x-tea"), Some("1"));
}

#[tokio::test]
async fn an_event_stream_elsewhere_is_neither_buffered_nor_numbered() {
    let (mut upstream, proxy, _session) = setup().await;
    let pending = Request::get().target("/sse").resume_from("theirs").start(proxy.addr).await;
    let upstream_call = upstream.next().await;
    assert_eq!(upstream_call.header("last-event-id"), Some("theirs"));
    let sse = upstream_call.sse().await;
    let mut response = pending.response().await.sse();
    sse.bytes("event: endpoint\ndata: /messages?id=1\nid: 4\n\n").await;
    let frame = response.any_frame().await.expect("at once");
    assert_eq!(frame.raw, b"event: endpoint\ndata: /messages?id=1\nid: 4\n\n");
    // A client that leaves such a stream has left it.
    response.reset();
    sse.closed().await;
}

#[tokio::test]
async fn the_query_and_a_final_slash_keep_the_endpoint() {
    let (mut upstream, proxy, session) = setup().await;
    for target in ["/mcp?api_key=k&x=%20", "/mcp/", "/mcp/?a=b"] {
        let pending = session.post(call(target)).target(target).start(proxy.addr).await;
        let upstream_call = upstream.expect("tools/call").await;
        let query = target.split_once('?').map(|(_, q)| q);
        assert_eq!(upstream_call.target.split_once('?').map(|(_, q)| q), query);
        upstream_call.sse().await.finish(result(target)).await;
        let mut response = pending.response().await.sse();
        response.prime().await;
        assert_eq!(response.event().await.bytes(), result(target).as_bytes());
    }
}

#[tokio::test]
async fn the_endpoint_is_the_path_of_the_upstream_url() {
    let mut upstream = Upstream::start().await;
    for (url, endpoint) in [
        (format!("http://{}/deep/api", upstream.addr()), "/deep/api"),
        (format!("http://{}", upstream.addr()), "/mcp"),
        (format!("http://{}/", upstream.addr()), "/"),
    ] {
        let proxy = Proxy::to_url(&url, |_| {}).await;
        let pending = modern(1).target(endpoint).start(proxy.addr).await;
        let upstream_call = upstream.next().await;
        assert_eq!(upstream_call.target, endpoint);
        upstream_call.sse().await.finish(result(1)).await;
        let mut response = pending.response().await.sse();
        response.prime().await;
    }
}

#[tokio::test]
async fn a_redirect_within_the_origin_is_followed_with_its_body() {
    let (mut upstream, proxy, session) = setup().await;
    for (status, location) in [(307, "/mcp/".to_owned()), (308, format!("http://{}/mcp/", upstream.addr()))] {
        let pending = session.post(call(status)).start(proxy.addr).await;
        upstream.expect("tools/call").await.status_with(status, &format!("location: {location}\r\n")).await;
        let again = upstream.expect("tools/call").await;
        assert_eq!(again.method, "POST");
        assert_eq!(again.target, "/mcp/");
        assert_eq!(again.body, call(status).into_bytes());
        assert_eq!(again.header("mcp-session-id"), Some("s-1"));
        again.sse().await.finish(result(status)).await;
        let mut response = pending.response().await.sse();
        assert_eq!(response.event().await.bytes(), result(status).as_bytes());
    }
}

#[tokio::test]
async fn a_redirect_to_another_origin_is_not_followed() {
    let (mut upstream, proxy, session) = setup().await;
    let other = Upstream::start().await;
    let pending = session.post(call(1)).with("Authorization", "Bearer t").start(proxy.addr).await;
    upstream.expect("tools/call").await.status_with(307, &format!("location: {}\r\n", other.url())).await;
    let mut response = pending.response().await;
    assert_eq!((response.status, response.header("location")), (502, None));
    let error = response.json().await;
    let data = json!({"error": "upstream_redirect", "fault": "upstream", "mayHaveRun": false,
        "origin": format!("http://{}", other.addr())});
    assert_eq!((&error["id"], &error["error"]["data"]), (&json!(1), &data));
    assert!(!error["error"]["message"].as_str().unwrap().contains("127.0.0.1"));
    assert_eq!(other.connections(), 0);
}

/// A client would follow such a redirect around the proxy, at each of these statuses.
#[tokio::test]
async fn a_call_is_led_to_no_other_origin() {
    let (mut upstream, proxy, session) = setup().await;
    let (port, mut id) = (upstream.addr().port(), 1);
    for status in [301, 302, 303, 307, 308] {
        for (location, origin) in [
            ("https://login.example/a?next=secret".to_owned(), "https://login.example".to_owned()),
            (format!("http://localhost:{port}/mcp"), format!("http://localhost:{port}")),
            ("http://127.0.0.1:1/mcp/".to_owned(), "http://127.0.0.1:1".to_owned()),
            (format!("https://127.0.0.1:{port}/mcp"), format!("https://127.0.0.1:{port}")),
        ] {
            id += 1;
            for request in [session.post(call(id)), session.get()] {
                let pending = request.start(proxy.addr).await;
                upstream.next().await.status_with(status, &format!("location: {location}\r\n")).await;
                let mut response = pending.response().await;
                let error = response.json().await;
                assert_eq!(
                    (response.status, &error["error"]["data"]["origin"]),
                    (502, &json!(origin)),
                    "{status} {location}"
                );
            }
        }
    }
    // Not a call: a browser may be led anywhere.
    let page = Request::new("GET", "/mcp").start(proxy.addr).await;
    upstream.next().await.status_with(302, "location: https://docs.example/\r\n").await;
    assert_eq!(page.response().await.header("location"), Some("https://docs.example/"));
    assert!(upstream.is_quiet());
}

/// Servers behind a proxy that ends TLS name another scheme, or the host that the client named.
/// Some write a relative reference.
#[tokio::test]
async fn a_slash_at_the_end_is_followed_on_the_own_connection() {
    let (mut upstream, proxy, session) = setup().await;
    let (port, mut id) = (upstream.addr().port(), 1);
    for status in [307, 308] {
        for location in [
            format!("https://127.0.0.1:{port}/mcp/"),
            "https://127.0.0.1/mcp/".to_owned(),
            "http://127.0.0.1/mcp/?a=b".to_owned(),
            format!("http://localhost:{port}/mcp/"),
            "mcp/".to_owned(),
        ] {
            id += 1;
            let pending = session.post(call(id)).with("Authorization", "Bearer t").start(proxy.addr).await;
            upstream.expect("tools/call").await.status_with(status, &format!("location: {location}\r\n")).await;
            let again = upstream.expect("tools/call").await;
            assert!(again.target.starts_with("/mcp/"), "{location}: {}", again.target);
            assert_eq!(again.header("authorization"), Some("Bearer t"));
            again.json(200, result(id)).await;
            assert_eq!(pending.response().await.status, 200);
        }
    }
    let (mut upstream, proxy, session) = setup_with(|config| config.upstream.host = HostHeader::Client).await;
    let pending = session.post(call(1)).with("Host", "localhost:1").start(proxy.addr).await;
    let location = "location: https://localhost:1/mcp/\r\n";
    upstream.expect("tools/call").await.status_with(307, location).await;
    let again = upstream.expect("tools/call").await;
    assert_eq!((again.target.as_str(), again.header("host")), ("/mcp/", Some("localhost:1")));
    again.json(200, result(1)).await;
    assert_eq!(pending.response().await.status, 200);
}

/// `//other` names a host, and for browsers `/\other` does.
#[tokio::test]
async fn a_redirect_that_names_a_host_without_a_scheme_is_not_taken_for_a_path() {
    let (mut upstream, proxy, session) = setup().await;
    for (id, location) in
        (10..).zip(["//other.example/mcp", "//other.example", "/\\other.example/mcp", "//127.0.0.1:1/mcp"])
    {
        let pending = session.post(call(id)).start(proxy.addr).await;
        upstream.expect("tools/call").await.status_with(307, &format!("location: {location}\r\n")).await;
        let response = pending.response().await;
        assert_eq!((response.status, response.header("location")), (502, None), "{location}");
        settle(&proxy, &mut upstream).await;
    }
    // The same form may name the upstream itself.
    let pending = session.post(call(2)).start(proxy.addr).await;
    let location = format!("location: //{}//mcp\r\n", upstream.addr());
    upstream.expect("tools/call").await.status_with(307, &location).await;
    let again = upstream.expect("tools/call").await;
    assert_eq!(again.target, "//mcp");
    again.json(200, result(2)).await;
    assert_eq!(pending.response().await.status, 200);
}

#[tokio::test]
async fn a_path_that_looks_like_a_host_stays_a_path() {
    let (mut upstream, proxy, _session) = setup().await;
    for (path, received) in [
        ("//evil.example/a?b=c", "/.//evil.example/a?b=c"),
        ("/\\evil.example", "/./\\evil.example"),
        ("///evil.example", "/.///evil.example"),
        ("/a//b", "/a//b"),
    ] {
        for origin in [format!("http://{}", upstream.addr()), format!("HTTP://{}", upstream.addr())] {
            let pending = Request::new("GET", "/page").start(proxy.addr).await;
            upstream.next().await.status_with(302, &format!("location: {origin}{path}\r\n")).await;
            assert_eq!(pending.response().await.header("location"), Some(received));
        }
    }
}

/// Without its slash a reference would lead to a place beside the page that it came with.
#[tokio::test]
async fn a_location_of_the_upstream_without_a_path_names_its_root() {
    let (mut upstream, proxy, session) = setup().await;
    for (rest, received) in [
        ("", "/"),
        ("?x=1", "/?x=1"),
        ("/?x=1", "/?x=1"),
        ("#f", "/#f"),
        ("?x=1#f?", "/?x=1#f?"),
        ("/a#f", "/a#f"),
        ("//evil.example#f", "/.//evil.example#f"),
    ] {
        for scheme in ["http:", ""] {
            let pending = Request::new("GET", "/deep/page").start(proxy.addr).await;
            let location = format!("location: {scheme}//{}{rest}\r\n", upstream.addr());
            upstream.next().await.status_with(302, &location).await;
            assert_eq!(pending.response().await.header("location"), Some(received), "{location:?}");
        }
    }
    let pending = Request::new("GET", "/page").start(proxy.addr).await;
    upstream.next().await.status_with(302, "location: ?x=1#f\r\n").await;
    assert_eq!(pending.response().await.header("location"), Some("?x=1#f"), "what is relative to a page stays so");
    let pending = session.post(call(1)).start(proxy.addr).await;
    let location = format!("location: http://{}?x=1#f\r\n", upstream.addr());
    upstream.expect("tools/call").await.status_with(307, &location).await;
    let again = upstream.expect("tools/call").await;
    assert_eq!(again.target, "/?x=1");
    again.json(200, result(1)).await;
    assert_eq!(pending.response().await.status, 200);
}

#[tokio::test]
async fn one_length_reaches_the_client_on_any_path() {
    let (mut upstream, proxy, session) = setup().await;
    let answers = [
        ("content-length: 2\r\nContent-Length: 2\r\n", 200),
        ("content-length: 2\r\ncontent-length: 3\r\n", 502),
        ("content-length: 2, 2\r\n", 502),
        ("content-length: +2\r\n", 502),
    ];
    for (id, (lengths, status)) in answers.into_iter().enumerate() {
        for request in [Request::new("GET", "/page"), session.post(call(id)), session.delete()] {
            let pending = request.start(proxy.addr).await;
            let answer = format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n{lengths}\r\n{{}}");
            upstream.next().await.whole(answer).await;
            let response = pending.response().await;
            assert_eq!(response.status, status, "{lengths:?} {:?}", request.line());
            assert_eq!(response.head.all("content-length").len(), 1, "{lengths:?}");
        }
    }
}

#[tokio::test]
async fn three_redirects_are_followed_and_no_more() {
    let (mut upstream, proxy, session) = setup().await;
    let pending = session.post(call(1)).start(proxy.addr).await;
    for n in 0..4 {
        upstream.expect("tools/call").await.status_with(307, &format!("location: /mcp/{n}\r\n")).await;
    }
    let response = pending.response().await;
    assert!(!(200..300).contains(&response.status), "{}", response.status);
    settle(&proxy, &mut upstream).await;
}

#[tokio::test]
async fn a_location_of_the_upstream_becomes_one_of_ours() {
    let (mut upstream, proxy, _session) = setup().await;
    let elsewhere = "https://login.example/authorize?x=1".to_owned();
    for (sent, received) in [
        (format!("http://{}/login?a=b", upstream.addr()), format!("http://{}/login?a=b", proxy.addr)),
        (elsewhere.clone(), elsewhere),
        ("/relative".to_owned(), "/relative".to_owned()),
    ] {
        let pending = Request::new("GET", "/page").start(proxy.addr).await;
        upstream.next().await.status_with(302, &format!("location: {sent}\r\n")).await;
        let response = pending.response().await;
        assert_eq!(response.status, 302);
        let got = response.header("location").expect("a location");
        // A reference without origin names ours just as well.
        let same = got == received || received.ends_with(got) && got.starts_with('/');
        assert!(same, "{sent} became {got}");
    }
}

#[tokio::test]
async fn an_upgrade_is_refused() {
    let (mut upstream, proxy, _session) = setup().await;
    for target in ["/mcp", "/ws"] {
        let response = Request::new("GET", target)
            .with("Connection", "Upgrade")
            .with("Upgrade", "websocket")
            .with("Sec-WebSocket-Version", "13")
            .with("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==")
            .send(proxy.addr)
            .await;
        assert!((400..600).contains(&response.status), "{target}: {}", response.status);
    }
    // The first thing that reaches the upstream is this.
    settle(&proxy, &mut upstream).await;
}

#[tokio::test]
async fn cors_passes_and_what_resuming_needs_is_added() {
    let (mut upstream, proxy, session) = setup().await;
    let origin = format!("http://{}", proxy.addr);
    let pending = Request::new("OPTIONS", "/mcp")
        .with("Origin", &origin)
        .with("Access-Control-Request-Method", "POST")
        .with("Access-Control-Request-Headers", "last-event-id")
        .start(proxy.addr)
        .await;
    upstream
        .expect("OPTIONS")
        .await
        .status_with(
            204,
            &format!("access-control-allow-origin: {origin}\r\naccess-control-allow-headers: content-type\r\n"),
        )
        .await;
    let preflight = pending.response().await;
    assert_eq!(preflight.header("access-control-allow-origin"), Some(origin.as_str()));
    for name in ["content-type", "last-event-id", "idempotency-key"] {
        assert!(preflight.head.lists("access-control-allow-headers", name), "{name}: {:?}", preflight.head);
    }

    let pending = session.post(call(1)).with("Origin", &origin).start(proxy.addr).await;
    let sse = upstream
        .expect("tools/call")
        .await
        .sse_with(&format!("access-control-allow-origin: {origin}\r\naccess-control-expose-headers: x-mine\r\n"))
        .await;
    let mut response = pending.response().await.sse();
    for name in ["x-mine", "mcp-session-id", "link", "www-authenticate"] {
        assert!(response.head.lists("access-control-expose-headers", name), "{name}: {:?}", response.head);
    }
    let id = response.prime().await.id().to_owned();
    response.reset();

    // A head that is ours alone repeats the upstream's CORS headers.
    let resumed = session.resume(&id).with("Origin", &origin).send(proxy.addr).await.sse();
    assert_eq!(resumed.header("access-control-allow-origin"), Some(origin.as_str()));
    sse.finish(result(1)).await;
}

#[tokio::test]
async fn a_page_can_read_the_proxys_own_answers_before_any_call_of_its_was_answered() {
    let mut upstream = Upstream::start().await;
    let old = Proxy::start(&upstream, |_| {}).await;
    let (_sse, mut response) = begin(&old, &mut upstream, &Request::post(call(1))).await;
    let id = response.prime().await.id().to_owned();
    response.reset();
    let proxy = Proxy::start(&upstream, |_| {}).await;
    let origin = format!("http://{}", proxy.addr);
    let allowed = format!("access-control-allow-origin: {origin}\r\n");

    // Another path has rules of its own.
    let pending = Request::new("GET", "/asset").with("Origin", &origin).start(proxy.addr).await;
    upstream.expect("GET").await.json_with(200, "access-control-allow-origin: *\r\n", "{}").await;
    assert_eq!(pending.response().await.header("access-control-allow-origin"), Some("*"));
    let lost = Request::get().with("Origin", &origin).resume_from(&id);
    assert_eq!(lost.send(proxy.addr).await.sse().header("access-control-allow-origin"), None);

    let pending = Request::new("OPTIONS", "/mcp")
        .with("Origin", &origin)
        .with("Access-Control-Request-Method", "GET")
        .with("Access-Control-Request-Headers", "last-event-id")
        .start(proxy.addr)
        .await;
    upstream.expect("OPTIONS").await.status_with(204, &allowed).await;
    pending.response().await;
    let mut response = lost.send(proxy.addr).await.sse();
    assert_eq!(response.header("access-control-allow-origin"), Some(origin.as_str()));
    assert_fault(&response.event().await.json(), 1, GONE, "client");
    let at_end = format!("{}.end", EventId::of(&id).handle);
    for (request, status) in [
        (Request::get().resume_from(&at_end), 204),
        (Request::get().resume_from("no id"), 400),
        (Request::post("{"), 400),
    ] {
        let response = request.with("Origin", &origin).send(proxy.addr).await;
        assert_eq!(response.status, status);
        assert_eq!(response.header("access-control-allow-origin"), Some(origin.as_str()), "{status}");
    }
}

#[tokio::test]
async fn a_forwarded_answer_teaches_the_cors_headers_too() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |_| {}).await;
    let teaching = [
        Request::post(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#),
        Request::new("DELETE", "/mcp"),
        Request::new("PUT", "/mcp").with_body("x"),
    ];
    for (nth, request) in teaching.into_iter().enumerate() {
        let origin = format!("http://localhost:{nth}1");
        let request = request.with("Origin", &origin);
        let pending = request.start(proxy.addr).await;
        upstream.next().await.status_with(202, &format!("access-control-allow-origin: {origin}\r\n")).await;
        assert_eq!(pending.response().await.status, 202);
        let refused = Request::post("{").with("Origin", &origin).send(proxy.addr).await;
        assert_eq!(refused.header("access-control-allow-origin"), Some(origin.as_str()), "{nth}");
    }
}

#[tokio::test]
async fn cors_headers_are_not_invented() {
    let (mut upstream, proxy, session) = setup().await;
    let pending = session.post(call(1)).start(proxy.addr).await;
    upstream.next().await.json(200, result(1)).await;
    let response = pending.response().await;
    let cors = response.head.headers.iter().find(|(name, _)| name.to_ascii_lowercase().starts_with("access-control-"));
    assert_eq!(cors, None);
}

#[tokio::test]
async fn the_host_the_upstream_sees_can_be_chosen() {
    use mcp_resume::config::HostHeader;
    let mut upstream = Upstream::start().await;
    let name = http::HeaderValue::from_static("mcp.internal:8443");
    for (host, seen) in [
        (HostHeader::Upstream, Some(upstream.addr().to_string())),
        (HostHeader::Client, None),
        (HostHeader::Name(name), Some("mcp.internal:8443".to_owned())),
    ] {
        let proxy = Proxy::start(&upstream, |c| c.upstream.host = host).await;
        let seen = seen.unwrap_or_else(|| proxy.addr.to_string());
        let pending = modern(1).start(proxy.addr).await;
        let upstream_call = upstream.next().await;
        assert_eq!(upstream_call.header("host"), Some(seen.as_str()));
        upstream_call.json(200, result(1)).await;
        pending.response().await;
    }
}

#[tokio::test]
async fn answers_without_a_body_do_not_hang() {
    let (mut upstream, proxy, _session) = setup().await;
    for (method, answer, status) in [
        ("HEAD", "HTTP/1.1 200 OK\r\ncontent-length: 1234\r\netag: \"x\"\r\n\r\n", 200),
        ("GET", "HTTP/1.1 304 X\r\netag: \"x\"\r\n\r\n", 304),
        ("GET", "HTTP/1.1 204 X\r\netag: \"x\"\r\n\r\n", 204),
    ] {
        let mut client = Client::connect(proxy.addr).await;
        client.send(&Request::new(method, "/asset").bytes(proxy.addr)).await;
        upstream.expect(method).await.whole(answer).await;
        let (response, client) = client.head_only().await;
        assert_eq!(response.first.split(' ').nth(1), Some(status.to_string().as_str()));
        assert_eq!(response.get("etag"), Some("\"x\""));
        // Nothing of a body follows: the next answer starts right after the head.
        let mut client = client;
        client.send(&Request::new("GET", "/next").bytes(proxy.addr)).await;
        upstream.expect("GET").await.json(200, "{}").await;
        assert_eq!(client.response().await.body().await, b"{}");
    }
}
