//! Cookies of a balancer behind the proxy, kept for a session.

use mcp_resume::config::{Config, DiskStore, Fsync, Store};

use crate::stores::disk::Dir;
use crate::support::*;

fn sticky(config: &mut Config) {
    config.upstream.session_cookies.names = vec!["AWSALB*".parse().unwrap(), "S".parse().unwrap()];
}

/// Opens a session whose response sets these cookies. Returns the session, and the cookies that its
/// client got.
async fn open(
    proxy: &Proxy,
    upstream: &mut Upstream,
    name: &'static str,
    cookies: &str,
    token: &str,
) -> (Request, Vec<String>) {
    let opening = Request::post(initialize(V2025_11)).with("Authorization", token);
    let pending = opening.start(proxy.addr).await;
    let call = upstream.expect("initialize").await;
    assert_eq!(call.header("cookie"), None);
    let result = format!(
        r#"{{"jsonrpc":"2.0","id":{},"result":{{"protocolVersion":"{V2025_11}","capabilities":{{}},"serverInfo":{{"name":"s","version":"1"}}}}}}"#,
        call.json_body()["id"]
    );
    call.json_with(200, &format!("Mcp-Session-Id: {name}\r\n{cookies}"), result).await;
    let response = pending.response().await;
    assert_eq!(response.status, 200);
    let set = response.head.all("set-cookie").into_iter().map(str::to_owned).collect();
    let request = Request::post(self::call(1))
        .with("Authorization", token)
        .with("Mcp-Session-Id", name)
        .with("MCP-Protocol-Version", V2025_11);
    (request, set)
}

/// Sends a request, and returns the cookies that the server got.
async fn cookies_of(proxy: &Proxy, upstream: &mut Upstream, request: &Request, set: &str) -> Option<String> {
    let pending = request.start(proxy.addr).await;
    let call = upstream.next().await;
    let cookie = call.header("cookie").map(str::to_owned);
    call.json_with(200, set, result(1)).await;
    let response = pending.response().await;
    assert_eq!((response.status, response.header("set-cookie")), (200, None));
    cookie
}

#[tokio::test]
async fn a_session_keeps_the_cookies_of_its_balancer() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, sticky).await;
    let cookies = "Set-Cookie: AWSALB=a; Path=/\r\nSet-Cookie: login=x\r\nSet-Cookie: S=1; HttpOnly\r\n";
    let (request, set) = open(&proxy, &mut upstream, "one", cookies, "Bearer t").await;
    assert_eq!(set, ["login=x"], "others reach the client");
    assert_eq!(cookies_of(&proxy, &mut upstream, &request, "").await.as_deref(), Some("AWSALB=a; S=1"));
    // A response may change them, and an own cookie of the client wins.
    let with_own = request.clone().with_body(call(2)).with("Cookie", "S=9; a=b");
    let sent = cookies_of(&proxy, &mut upstream, &with_own, "Set-Cookie: S=2\r\n").await;
    assert_eq!(sent.as_deref(), Some("S=9; a=b; AWSALB=a"));
    let sent = cookies_of(&proxy, &mut upstream, &request.clone().with_body(call(3)), "").await;
    assert_eq!(sent.as_deref(), Some("AWSALB=a; S=2"));
    // The server gets one line in any case.
    let two_lines = request.clone().with_body(call(4)).with("Cookie", "a=b").and("Cookie", "c=d");
    let sent = cookies_of(&proxy, &mut upstream, &two_lines, "").await;
    assert_eq!(sent.as_deref(), Some("a=b; c=d; AWSALB=a; S=2"));
    // The GET stream and the end of the session go to the same server.
    let get = request.clone().method("GET").with_body("").with("Accept", "text/event-stream");
    let pending = get.start(proxy.addr).await;
    let stream = upstream.next().await;
    assert_eq!((stream.method.as_str(), stream.header("cookie")), ("GET", Some("AWSALB=a; S=2")));
    stream.status(405).await;
    pending.response().await;
}

#[tokio::test]
async fn another_session_and_another_caller_have_no_part_in_them() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, sticky).await;
    let (_, _) = open(&proxy, &mut upstream, "one", "Set-Cookie: S=1\r\n", "Bearer t").await;
    let (two, _) = open(&proxy, &mut upstream, "two", "", "Bearer t").await;
    assert_eq!(cookies_of(&proxy, &mut upstream, &two, "").await, None);
    let stranger = two.clone().with("Mcp-Session-Id", "one").with("Authorization", "Bearer other");
    assert_eq!(cookies_of(&proxy, &mut upstream, &stranger, "").await, None);
}

#[tokio::test]
async fn without_the_key_cookies_pass() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |_| {}).await;
    let (request, set) = open(&proxy, &mut upstream, "one", "Set-Cookie: S=1\r\n", "Bearer t").await;
    assert_eq!(set, ["S=1"]);
    assert_eq!(cookies_of(&proxy, &mut upstream, &request, "").await, None);
}

/// Starts a proxy with sticky cookies and a store in `dir`.
async fn with_store(upstream: &Upstream, dir: &Dir) -> Proxy {
    let store = DiskStore { path: dir.0.clone(), fsync: Fsync::Interval, max_bytes: 1 << 30 };
    Proxy::start(upstream, |config| {
        sticky(config);
        config.store = Store::Disk(store);
    })
    .await
}

#[tokio::test]
async fn a_store_has_the_cookies_of_the_session() {
    let dir = Dir::new("session-cookies");
    let mut upstream = Upstream::start().await;
    let proxy = with_store(&upstream, &dir).await;
    let (request, _) = open(&proxy, &mut upstream, "one", "Set-Cookie: S=1\r\n", "Bearer t").await;
    let sent = cookies_of(&proxy, &mut upstream, &request, "").await;
    assert_eq!(sent.as_deref(), Some("S=1"));
    proxy.stop().await;

    let proxy = with_store(&upstream, &dir).await;
    let stranger = request.clone().with_body(call(2)).with("Authorization", "Bearer other");
    assert_eq!(cookies_of(&proxy, &mut upstream, &stranger, "").await, None);
    let sent = cookies_of(&proxy, &mut upstream, &request.clone().with_body(call(3)), "Set-Cookie: S=2\r\n").await;
    assert_eq!(sent.as_deref(), Some("S=1"));
    proxy.stop().await;

    let proxy = with_store(&upstream, &dir).await;
    let sent =
        cookies_of(&proxy, &mut upstream, &request.clone().with_body(call(4)), "Set-Cookie: S=; Max-Age=0\r\n").await;
    assert_eq!(sent.as_deref(), Some("S=2"));
    proxy.stop().await;

    let proxy = with_store(&upstream, &dir).await;
    assert_eq!(cookies_of(&proxy, &mut upstream, &request.clone().with_body(call(5)), "").await, None);
}
