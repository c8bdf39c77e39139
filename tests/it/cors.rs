//! Pages before servers on stdio and HTTP+SSE: the proxy permits those of `listen.allowed_origins`.

use mcp_resume::config::{Config, Flags};
use serde_json::json;

use crate::support::stdio::StdioServers;
use crate::support::*;

const PAGE: &str = "https://app.example";

fn pages(config: &mut Config) {
    let file = format!("[listen]\nallowed_origins = ['{PAGE}']\n[upstream]\nurl = 'http://localhost'");
    config.listen.allowed_origins =
        Config::load(Some(("test", &file)), [], Flags::default()).expect("a configuration").listen.allowed_origins;
}

fn preflight(target: &str) -> Request {
    Request::new("OPTIONS", target)
        .with("Origin", PAGE)
        .with("Access-Control-Request-Method", "POST")
        .with("Access-Control-Request-Headers", "content-type, mcp-session-id, x-github-token")
}

/// Asserts that the page may read the response.
#[track_caller]
fn assert_readable(response: &Response) {
    assert_eq!(response.head.all("access-control-allow-origin"), [PAGE], "{:?}", response.head);
    assert!(response.head.lists("vary", "Origin"), "{:?}", response.head);
    for name in ["Mcp-Session-Id", "WWW-Authenticate", "Link"] {
        assert!(response.head.lists("access-control-expose-headers", name), "{name}: {:?}", response.head);
    }
    assert_eq!(response.header("access-control-allow-credentials"), None);
}

#[track_caller]
fn assert_hidden(response: &Response) {
    let is_cors = |(name, _): &&(String, String)| name.to_ascii_lowercase().starts_with("access-control-");
    assert_eq!(response.head.headers.iter().find(is_cors), None);
}

/// A proxy before a program, and one before a server on HTTP+SSE.
async fn kinds(servers: &StdioServers, upstream: &Upstream) -> [Proxy; 2] {
    let url = format!("http://{}/sse", upstream.addr());
    let sse = Proxy::to_url(&url, |config| {
        let flags = Flags { upstream_sse: Some(url.clone()), ..Flags::default() };
        config.upstream = Config::load(None, [], flags).expect("a configuration").upstream;
        pages(config);
    });
    [servers.proxy_with(pages).await, sse.await]
}

#[tokio::test]
async fn a_preflight_is_answered_on_every_path() {
    let (servers, upstream) = (StdioServers::start().await, Upstream::start().await);
    for proxy in Box::pin(kinds(&servers, &upstream)).await {
        for target in ["/mcp", "/mcp/?key=k", "/.well-known/oauth-protected-resource"] {
            let mut response = preflight(target).send(proxy.addr).await;
            assert_eq!((response.status, response.body().await), (204, vec![]), "{target}");
            assert_readable(&response);
            for method in ["GET", "POST", "DELETE"] {
                assert!(response.head.lists("access-control-allow-methods", method), "{:?}", response.head);
            }
            for name in ["content-type", "mcp-session-id", "x-github-token", "Last-Event-ID"] {
                assert!(response.head.lists("access-control-allow-headers", name), "{:?}", response.head);
            }
            assert_eq!(response.header("access-control-max-age"), Some("7200"));
            assert!(response.head.lists("vary", "Access-Control-Request-Headers"), "{:?}", response.head);
        }
        // Not a preflight: the method is none of the server's.
        let plain = Request::new("OPTIONS", "/mcp").with("Origin", PAGE).send(proxy.addr).await;
        assert_eq!(plain.status, 405);
        assert_readable(&plain);
    }
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn other_pages_and_programs_get_no_permission() {
    let (servers, upstream) = (StdioServers::start().await, Upstream::start().await);
    for proxy in Box::pin(kinds(&servers, &upstream)).await {
        for request in [preflight("/mcp"), Request::post(initialize(V2025_11)), Request::new("GET", "/other")] {
            let refused = request.clone().with("Origin", "https://evil.example").send(proxy.addr).await;
            assert_eq!(refused.status, 403);
            assert_hidden(&refused);
            let rebound = request.with("Origin", PAGE).with("Host", "rebound.example").send(proxy.addr).await;
            assert_eq!(rebound.status, 403);
            assert_hidden(&rebound);
        }
        let program = preflight("/mcp").without("Origin").send(proxy.addr).await;
        assert_eq!(program.status, 405);
        assert_hidden(&program);
        assert_hidden(&Request::new("GET", "/other").send(proxy.addr).await);
    }
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn a_page_reads_each_response_of_a_program() {
    let servers = StdioServers::start().await;
    let proxy = servers.proxy_with(pages).await;
    let page = |request: Request| request.with("Origin", PAGE);
    let pending = page(Request::post(initialize(V2025_11))).start(proxy.addr).await;
    let mut server = servers.next().await;
    server.answer_initialize(0).await;
    let opened = pending.response().await;
    assert_eq!(opened.status, 200);
    assert_readable(&opened);
    let session = Session::opened_elsewhere(V2025_11, opened.header("mcp-session-id").expect("a session"), None);
    let ready = page(session.post(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#));
    let ready = ready.send(proxy.addr).await;
    assert_eq!(ready.status, 202);
    assert_readable(&ready);

    server.expect("notifications/initialized").await;
    let pending = page(session.post(call(1))).start(proxy.addr).await;
    let id = server.expect("tools/call").await["id"].clone();
    let mut response = pending.response().await.sse();
    assert_readable(&response);
    let place = EventId::of(response.prime().await.id());
    response.reset();
    server.say(json!({"jsonrpc": "2.0", "id": id, "result": {"content": []}})).await;
    let mut resumed = page(session.resume(&place.at(0))).send(proxy.addr).await.sse();
    assert_readable(&resumed);
    resumed.event().await;
    let stream = page(session.get()).send(proxy.addr).await;
    assert_readable(&stream);

    let elsewhere = Session::opened_elsewhere(V2025_11, "unknown", None);
    for (request, status) in [
        (elsewhere.post(call(1)), 404),
        (session.post("no JSON"), 400),
        (Request::new("GET", "/.well-known/oauth-protected-resource"), 404),
        (Request::new("GET", "/.well-known/mcp-resume"), 200),
        (Request::new("PUT", "/mcp"), 405),
        (Request::post("a").with("Content-Type", "text/plain"), 415),
        (session.delete(), 200),
    ] {
        let what = format!("{request:?}");
        let response = page(request).send(proxy.addr).await;
        assert_eq!(response.status, status, "{what}");
        assert_readable(&response);
    }
}

/// The head of an early response and a task need no CORS headers of such a server.
#[tokio::test]
async fn a_response_to_a_page_may_begin_before_the_program_responds() {
    let servers = StdioServers::start().await;
    let proxy = servers
        .proxy_with(|config| {
            pages(config);
            config.delivery.commit_after = Some(SOON);
        })
        .await;
    let (mut server, session) = servers.open(&proxy).await;
    // A client of Python's gets a head with the first message alone.
    let request = session.post(call(1)).with("Origin", PAGE).with("User-Agent", "python-httpx/0.28");
    let pending = request.start(proxy.addr).await;
    let id = server.expect("tools/call").await["id"].clone();
    let mut response = pending.response().await.sse();
    assert_readable(&response);
    server.say(json!({"jsonrpc": "2.0", "id": id, "result": {"content": []}})).await;
    response.event().await;
}
