//! A protected server under the URL that clients type (`listen.public_url`).

use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::HeaderName;
use mcp_resume::config::{Config, PrincipalSource};
use mcp_resume::protocol::access::AllowedHosts;
use mcp_resume::protocol::client_address::{Network, Trust};
use serde_json::{Value, json};

use crate::revival::{FORGOTTEN, open_as};
use crate::support::stdio::StdioServers;
use crate::support::*;

const WELL_KNOWN: &str = "/.well-known/oauth-protected-resource";
const PUBLIC: &str = "https://mcp.example/tools/mcp";
const PUBLIC_METADATA: &str = "https://mcp.example/.well-known/oauth-protected-resource/tools/mcp";

fn public(config: &mut Config) {
    config.listen.public_url = Some(Arc::new(PUBLIC.parse().unwrap()));
}

async fn published() -> (Upstream, Proxy) {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, public).await;
    (upstream, proxy)
}

fn get(path: &str) -> Request {
    Request::new("GET", path)
}

/// Sends a request that the server refuses with this challenge. Returns the client's challenges.
async fn challenged(proxy: &Proxy, upstream: &mut Upstream, request: &Request, challenge: &str) -> Vec<String> {
    let pending = request.start(proxy.addr).await;
    upstream.next().await.status_with(401, challenge).await;
    let response = pending.response().await;
    assert_eq!(response.status, 401);
    response.head.all("www-authenticate").into_iter().map(str::to_owned).collect()
}

fn bearer(url: &str) -> String {
    format!("WWW-Authenticate: Bearer error=\"invalid_token\", resource_metadata=\"{url}\", scope=\"a b\"\r\n")
}

#[tokio::test]
async fn a_challenge_names_the_metadata_at_the_public_url() {
    let (mut upstream, proxy) = published().await;
    let expected = [format!("Bearer error=\"invalid_token\", resource_metadata=\"{PUBLIC_METADATA}\", scope=\"a b\"")];
    let own = upstream.addr();
    let session = |request: Request| request.with("Mcp-Session-Id", "s").with("Authorization", "Bearer t");
    for request in [
        Request::post(initialize(V2025_11)),
        Request::post(call(1)),
        session(Request::post(call(1))),
        session(Request::get()),
        session(Request::new("DELETE", "/mcp")),
        Request::post(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#),
        Request::new("OPTIONS", "/mcp"),
    ] {
        for url in [
            format!("http://{own}{WELL_KNOWN}/mcp"),
            format!("http://localhost:{}{WELL_KNOWN}/mcp", own.port()),
            format!("{WELL_KNOWN}/mcp"),
            // A server takes the scheme from X-Forwarded-Proto, and the host from Host.
            format!("https://{own}{WELL_KNOWN}/mcp"),
            format!("http://0.0.0.0:{}{WELL_KNOWN}/mcp", own.port()),
        ] {
            assert_eq!(challenged(&proxy, &mut upstream, &request, &bearer(&url)).await, expected, "{url}");
        }
    }
}

/// Clients find the parameter by its name alone.
#[tokio::test]
async fn a_challenge_without_commas_names_the_public_url_as_well() {
    let (mut upstream, proxy) = published().await;
    let own = format!("http://{}{WELL_KNOWN}", upstream.addr());
    for (sent, expected) in [
        (r#"Bearer resource_metadata="OWN" scope="a""#, r#"Bearer resource_metadata="PUBLIC" scope="a""#),
        (r#"Bearer resource_metadata="OWN"; scope="a""#, r#"Bearer resource_metadata="PUBLIC"; scope="a""#),
        (
            r#"Bearer realm="x", resource_metadata="OWN" error="y""#,
            r#"Bearer realm="x", resource_metadata="PUBLIC" error="y""#,
        ),
        (r#"Bearer resource_metadata=OWN scope="a""#, r#"Bearer resource_metadata="PUBLIC" scope="a""#),
    ] {
        let sent = format!("WWW-Authenticate: {}\r\n", sent.replace("OWN", &own));
        let challenges = challenged(&proxy, &mut upstream, &Request::post(call(1)), &sent).await;
        assert_eq!(challenges, [expected.replace("PUBLIC", PUBLIC_METADATA)]);
    }
}

#[tokio::test]
async fn a_challenge_of_another_origin_and_of_other_paths_passes() {
    let (mut upstream, proxy) = published().await;
    for url in [
        "https://elsewhere.example/.well-known/oauth-protected-resource",
        "https://mcp.example/.well-known/oauth-protected-resource/mcp",
        "http://localhost:1/.well-known/oauth-protected-resource",
    ] {
        let sent = bearer(url);
        let expected = [sent.trim().strip_prefix("WWW-Authenticate: ").unwrap().to_owned()];
        assert_eq!(challenged(&proxy, &mut upstream, &Request::post(call(1)), &sent).await, expected);
    }
    let two =
        "WWW-Authenticate: Basic realm=\"x\"\r\nWWW-Authenticate: DPoP algs=\"ES256\", resource_metadata=\"/m\"\r\n";
    let expected =
        ["Basic realm=\"x\"".to_owned(), format!("DPoP algs=\"ES256\", resource_metadata=\"{PUBLIC_METADATA}\"")];
    assert_eq!(challenged(&proxy, &mut upstream, &Request::post(call(1)), two).await, expected);
    let own = bearer(&format!("{WELL_KNOWN}/mcp"));
    let expected = [own.trim().strip_prefix("WWW-Authenticate: ").unwrap().to_owned()];
    assert_eq!(challenged(&proxy, &mut upstream, &get("/other"), &own).await, expected);
}

#[tokio::test]
async fn without_a_public_url_nothing_is_changed() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |_| {}).await;
    let sent = bearer(&format!("http://{}{WELL_KNOWN}", upstream.addr()));
    let expected = [sent.trim().strip_prefix("WWW-Authenticate: ").unwrap().to_owned()];
    assert_eq!(challenged(&proxy, &mut upstream, &Request::post(call(1)), &sent).await, expected);
    let pending = get(&format!("{WELL_KNOWN}/mcp")).start(proxy.addr).await;
    let document = json!({"resource": format!("http://{}/mcp", upstream.addr())}).to_string();
    upstream.next().await.json_with(200, "ETag: \"1\"\r\n", &document).await;
    let mut response = pending.response().await;
    assert_eq!(response.header("etag"), Some("\"1\""));
    assert_eq!(response.body().await, document.as_bytes());
}

/// The response to a committed call that the server refuses late has the challenge in its data.
#[tokio::test]
async fn a_late_challenge_names_the_public_url_as_well() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |config| {
        public(config);
        config.delivery.commit_after = Some(Duration::from_millis(1));
    })
    .await;
    let first = Request::post(call(1)).start(proxy.addr).await;
    upstream.next().await.json(200, result(1)).await;
    assert_eq!(first.response().await.status, 200);
    let pending = Request::post(call(2)).start(proxy.addr).await;
    let late = upstream.next().await;
    let mut response = pending.response().await.sse();
    late.status_with(401, &bearer(&format!("{WELL_KNOWN}/mcp"))).await;
    let error = response.event().await.json();
    let text = error.to_string();
    assert!(text.contains(PUBLIC_METADATA) && text.contains("401"), "{text}");
}

/// Requests the metadata at `path`. The server has `documents` at its paths, and 404 elsewhere.
async fn metadata(
    proxy: &Proxy,
    upstream: &mut Upstream,
    request: &Request,
    documents: &[(&str, &str)],
) -> (Response, Vec<String>) {
    let mut pending = std::pin::pin!(async { request.start(proxy.addr).await.response().await });
    let mut asked = Vec::new();
    loop {
        tokio::select! {
            response = &mut pending => return (response, asked),
            call = upstream.next() => {
                assert_eq!((call.method.as_str(), call.header("if-none-match")), ("GET", None));
                assert_eq!(call.header("accept-encoding"), Some("identity"));
                asked.push(call.target.clone());
                match documents.iter().find(|(path, _)| *path == call.target) {
                    Some((_, document)) => {
                        let headers = "ETag: \"1\"\r\nDigest: x\r\nAccess-Control-Allow-Origin: *\r\n";
                        call.json_with(200, headers, document).await;
                    }
                    None => call.status(404).await,
                }
            }
        }
    }
}

fn document(resource: &str) -> String {
    json!({"resource": resource, "authorization_servers": ["http://127.0.0.1:7/as"], "signed_metadata": "x"})
        .to_string()
}

#[tokio::test]
async fn the_metadata_is_found_and_names_the_public_url() {
    let (mut upstream, proxy) = published().await;
    let named = document(&format!("http://{}/mcp", upstream.addr()));
    let at_path = format!("{WELL_KNOWN}/mcp");
    let root = WELL_KNOWN.to_owned();
    let at_public = format!("{WELL_KNOWN}/tools/mcp");
    let expected = json!({"resource": PUBLIC, "authorization_servers": ["http://127.0.0.1:7/as"]});
    for asked_for in [WELL_KNOWN.to_owned(), format!("{WELL_KNOWN}/tools/mcp"), format!("{WELL_KNOWN}/mcp")] {
        let request = get(&asked_for).with("If-None-Match", "\"1\"").with("Accept-Encoding", "gzip");
        for (documents, tries) in [
            (vec![(at_path.as_str(), named.as_str())], vec![at_path.clone()]),
            (vec![(root.as_str(), named.as_str())], vec![at_path.clone(), at_public.clone(), root.clone()]),
            (
                vec![(at_path.as_str(), "\"a page of an app\""), (root.as_str(), named.as_str())],
                vec![at_path.clone(), at_public.clone(), root.clone()],
            ),
        ] {
            let (mut response, asked) = metadata(&proxy, &mut upstream, &request, &documents).await;
            assert_eq!((response.status, asked), (200, tries), "{asked_for}");
            assert_eq!((response.header("etag"), response.header("digest")), (None, None));
            assert_eq!(response.header("access-control-allow-origin"), Some("*"));
            assert_eq!(response.json().await, expected);
        }
    }
    // The place that a challenge names comes first.
    challenged(&proxy, &mut upstream, &Request::post(call(1)), &bearer("/oauth/me?a=b")).await;
    let documents = [("/oauth/me?a=b", named.as_str())];
    let (mut response, asked) = metadata(&proxy, &mut upstream, &get(WELL_KNOWN), &documents).await;
    assert_eq!((response.json().await, asked), (expected, vec!["/oauth/me?a=b".to_owned()]));
    let (mut response, _) =
        metadata(&proxy, &mut upstream, &get(WELL_KNOWN).method("HEAD").with("Connection", "close"), &documents).await;
    assert!(response.header("content-length").is_some_and(|length| length != "0"));
    // The reader of the tests expects a body of the declared length.
    assert_eq!(response.try_body().await.0, b"");
}

#[tokio::test]
async fn a_resource_of_another_name_stays_and_other_names_of_the_server_do_not() {
    let (mut upstream, proxy) = published().await;
    let at_path = format!("{WELL_KNOWN}/mcp");
    for (resource, expected) in [
        ("http://localhost:3000/mcp", PUBLIC),
        ("http://10.1.2.3/mcp", PUBLIC),
        ("http://[fd00::7]:80/mcp", PUBLIC),
        ("https://mcp.example/mcp", PUBLIC),
        ("https://MCP.example:443", PUBLIC),
        ("https://other.example/mcp", "https://other.example/mcp"),
        ("http://mcp.example/tools/mcp", PUBLIC),
        ("https://mcp.example:8443/tools/mcp", "https://mcp.example:8443/tools/mcp"),
        ("https://mcp.example/tools/mcp/", "https://mcp.example/tools/mcp/"),
        ("https://203.0.113.9/mcp", "https://203.0.113.9/mcp"),
    ] {
        let named = document(resource);
        let (mut response, _) =
            metadata(&proxy, &mut upstream, &get(WELL_KNOWN), &[(at_path.as_str(), named.as_str())]).await;
        let said = response.json().await;
        assert_eq!(said["resource"], expected, "{resource}");
        assert_eq!(said.get("signed_metadata").is_none(), expected != resource);
    }
}

#[tokio::test]
async fn a_page_of_the_server_under_another_scheme_is_one_of_the_proxy() {
    let (mut upstream, proxy) = published().await;
    let own = upstream.addr();
    for (location, expected) in [
        (format!("https://{own}/login?a=b"), "/login?a=b"),
        (format!("http://localhost:{}/login", own.port()), "/login"),
        ("http://mcp.example/login".to_owned(), "/login"),
        ("https://mcp.example/login".to_owned(), "https://mcp.example/login"),
        ("https://login.example/a".to_owned(), "https://login.example/a"),
    ] {
        let pending = get("/page").start(proxy.addr).await;
        upstream.next().await.status_with(302, &format!("Location: {location}\r\n")).await;
        assert_eq!(pending.response().await.header("location"), Some(expected));
    }
}

/// Routers of servers add or remove a slash, under the name that the proxy gave them.
#[tokio::test]
async fn a_slash_under_the_public_name_is_followed() {
    let (mut upstream, proxy) = published().await;
    for location in ["https://mcp.example/tools/mcp/", "http://mcp.example/mcp/", "mcp/"] {
        let pending = Request::post(call(1)).start(proxy.addr).await;
        upstream.expect("tools/call").await.status_with(307, &format!("Location: {location}\r\n")).await;
        let again = upstream.expect("tools/call").await;
        assert_eq!(again.target, "/mcp/", "{location}");
        again.json(200, result(1)).await;
        assert_eq!(pending.response().await.status, 200);
    }
    // A server that asks for the public name itself would ask again.
    let pending = Request::post(call(2)).start(proxy.addr).await;
    upstream.expect("tools/call").await.status_with(307, &format!("Location: {PUBLIC}\r\n")).await;
    let mut response = pending.response().await;
    assert_eq!(
        (response.status, &response.json().await["error"]["data"]["origin"]),
        (502, &json!("https://mcp.example"))
    );
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn a_place_that_is_silent_delays_the_metadata_and_no_more() {
    let (mut upstream, proxy) = published().await;
    let named = document(&format!("http://{}/mcp", upstream.addr()));
    let pending = get(WELL_KNOWN).start(proxy.addr).await;
    let silent = upstream.next().await;
    pass(Duration::from_secs(5)).await;
    upstream.next().await.json(200, &named).await;
    assert_eq!(pending.response().await.json().await["resource"], PUBLIC);
    drop(silent);
    // A server that is silent does not have "no metadata".
    let pending = get(WELL_KNOWN).start(proxy.addr).await;
    let mut silent = Vec::new();
    upstream.next().await.status(404).await;
    for _ in 0..2 {
        silent.push(upstream.next().await);
        pass(Duration::from_secs(5)).await;
    }
    assert_eq!(pending.response().await.status, 504);
}

#[tokio::test]
async fn a_request_for_the_metadata_waits_for_the_server() {
    const WAIT: Duration = Duration::from_millis(300);
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |config| {
        public(config);
        config.upstream.wait = WAIT;
    })
    .await;
    let named = document(&format!("http://{}/mcp", upstream.addr()));
    upstream.refuse().await;
    let began = Instant::now();
    assert_eq!(get(WELL_KNOWN).send(proxy.addr).await.status, 502);
    assert!(began.elapsed() >= WAIT, "{:?}", began.elapsed());
    upstream.listen_again().await;
    let pending = get(WELL_KNOWN).start(proxy.addr).await;
    upstream.next().await.json(200, &named).await;
    assert_eq!(pending.response().await.json().await["resource"], PUBLIC);
}

#[tokio::test]
async fn a_document_that_cannot_be_read_passes() {
    let (mut upstream, proxy) = published().await;
    let large = json!({"resource": format!("http://{}/mcp", upstream.addr()), "pad": "x".repeat(70_000)}).to_string();
    for (coding, document) in [("Content-Encoding: gzip\r\n", "\u{1f}"), ("", large.as_str())] {
        let pending = get(WELL_KNOWN).start(proxy.addr).await;
        upstream.next().await.json_with(200, coding, document).await;
        for _ in 0..2 {
            upstream.next().await.status(404).await;
        }
        let mut response = pending.response().await;
        assert_eq!((response.status, response.body().await), (200, document.as_bytes().to_vec()));
    }
}

#[tokio::test]
async fn a_server_without_metadata_has_none_at_the_proxy() {
    let (mut upstream, proxy) = published().await;
    let (response, asked) = metadata(&proxy, &mut upstream, &get(WELL_KNOWN), &[]).await;
    assert_eq!((response.status, asked.len()), (404, 3));
    // Other paths and methods pass as they are.
    for request in [get(&format!("{WELL_KNOWN}/other")), get("/.well-known/oauth-authorization-server")] {
        let pending = request.start(proxy.addr).await;
        let call = upstream.next().await;
        assert_eq!(call.target, request.line().1);
        call.json_with(200, "ETag: \"1\"\r\n", document(&format!("http://{}/mcp", upstream.addr()))).await;
        let mut response = pending.response().await;
        assert_eq!(response.header("etag"), Some("\"1\""));
        assert_eq!(response.json().await["signed_metadata"], "x");
    }
}

/// The body of such a request would be the next request of its connection.
#[tokio::test]
async fn a_request_for_the_metadata_has_no_body_and_no_credential_at_the_server() {
    let (mut upstream, proxy) = published().await;
    let request = get(WELL_KNOWN)
        .with("Content-Type", "text/plain")
        .with("Authorization", "Bearer t")
        .with("Cookie", "a=b")
        .with("Expect", "100-continue")
        .with_body("x".repeat(100));
    for request in [request.clone(), request.method("HEAD")] {
        let client = request.start(proxy.addr).await;
        let call = upstream.next().await;
        assert_eq!((call.method.as_str(), call.body.len()), ("GET", 0));
        for name in ["content-length", "transfer-encoding", "content-type", "expect", "authorization", "cookie"] {
            assert_eq!(call.header(name), None, "{name}");
        }
        call.json(200, document("http://127.0.0.1/mcp")).await;
        drop(client);
    }
    // The connection serves the next request as it is.
    let pending = get("/other").start(proxy.addr).await;
    let call = upstream.next().await;
    assert_eq!(call.target, "/other");
    call.status(404).await;
    assert_eq!(pending.response().await.status, 404);
}

#[tokio::test]
async fn what_clients_find_at_the_server_they_find_at_the_proxy() {
    let (mut upstream, proxy) = published().await;
    let own = document(&format!("http://{}/mcp", upstream.addr()));
    // A redirect within the origins of the server leads to the document.
    for location in [
        format!("{WELL_KNOWN}/mcp/"),
        format!("http://{}/meta.json", upstream.addr()),
        format!("https://{}/meta.json", upstream.addr()),
        "https://mcp.example/meta.json".to_owned(),
    ] {
        let pending = get(WELL_KNOWN).start(proxy.addr).await;
        upstream.next().await.status_with(307, &format!("Location: {location}\r\n")).await;
        let call = upstream.next().await;
        assert!(location.ends_with(&call.target), "{location} {}", call.target);
        call.json(200, &own).await;
        assert_eq!(pending.response().await.json().await["resource"], PUBLIC);
    }
    // A server that is away does not have "no metadata".
    let pending = get(WELL_KNOWN).start(proxy.addr).await;
    upstream.next().await.status_with(503, "Retry-After: 7\r\n").await;
    for _ in 0..2 {
        upstream.next().await.status(404).await;
    }
    let response = pending.response().await;
    assert_eq!((response.status, response.header("retry-after")), (503, Some("7")));
    // A page in a browser asks first.
    let preflight = Request::new("OPTIONS", WELL_KNOWN)
        .with("Origin", &format!("http://{}", proxy.addr))
        .with("Access-Control-Request-Method", "GET");
    let pending = preflight.start(proxy.addr).await;
    let call = upstream.next().await;
    assert_eq!((call.method.as_str(), call.header("access-control-request-method")), ("OPTIONS", Some("GET")));
    call.status_with(204, "Access-Control-Allow-Origin: *\r\n").await;
    let response = pending.response().await;
    assert_eq!((response.status, response.header("access-control-allow-origin")), (204, Some("*")));
}

/// The server has its document where its own name leads.
#[tokio::test]
async fn a_server_that_knows_its_public_url_keeps_its_document_there() {
    let (mut upstream, proxy) = published().await;
    let (at_public, own) = (format!("{WELL_KNOWN}/tools/mcp"), document(PUBLIC));
    let (mut response, asked) = metadata(&proxy, &mut upstream, &get(&at_public), &[(&at_public, &own)]).await;
    assert_eq!((response.status, asked.last()), (200, Some(&at_public)));
    assert_eq!(response.json().await, serde_json::from_str::<Value>(&own).unwrap(), "nothing is changed");
    challenged(&proxy, &mut upstream, &Request::post(call(1)), &bearer(PUBLIC_METADATA)).await;
    let (_, asked) = metadata(&proxy, &mut upstream, &get(&at_public), &[(&at_public, &own)]).await;
    assert_eq!(asked, [at_public.as_str()]);
}

#[tokio::test]
async fn the_server_gets_the_public_host_and_no_other() {
    for (is_trusted, is_malformed) in [(false, false), (true, false), (true, true)] {
        let mut upstream = Upstream::start().await;
        let trusted = is_trusted.then(|| Network::from_str("127.0.0.1").expect("an address").into());
        let proxy = Proxy::start(&upstream, |config| {
            public(config);
            config.listen.trusted_proxies = Trust::new(trusted);
            config.listen.allowed_hosts = AllowedHosts::Any;
        })
        .await;
        let request = Request::post(call(1))
            .with("Host", "mcp.example")
            .with("X-Forwarded-For", "192.0.2.9")
            .with("Forwarded", "for=192.0.2.9;host=evil;Proto=http, for=\"a;b\"; by=x")
            .with("X-Forwarded-Proto", "http")
            .with("X-Forwarded-Host", "evil")
            .with("X_Forwarded_Host", "evil")
            .with("X-Forwarded-Port", "81");
        let request = if is_malformed { request.with("Forwarded", "for=\"unclosed;host=evil") } else { request };
        let pending = request.start(proxy.addr).await;
        let call = upstream.next().await;
        let of_public = "proto=https;host=\"mcp.example\"";
        let own = format!("for=127.0.0.1;{of_public}");
        let (list, addresses) = match is_trusted {
            true if is_malformed => (own, "192.0.2.9, 127.0.0.1"),
            true => (format!("for=192.0.2.9;{of_public}, for=\"a;b\";by=x;{of_public}, {own}"), "192.0.2.9, 127.0.0.1"),
            false => (own, "127.0.0.1"),
        };
        assert_eq!(call.header("forwarded"), Some(list.as_str()));
        assert_eq!(call.header("x-forwarded-for"), Some(addresses));
        assert_eq!(call.head.all("x-forwarded-host"), ["mcp.example"]);
        assert_eq!(call.head.all("x-forwarded-proto"), ["https"]);
        assert_eq!(call.head.all("x-forwarded-port"), ["443"]);
        assert_eq!(call.header("x_forwarded_host"), None);
        call.json(200, result(1)).await;
        assert_eq!(pending.response().await.status, 200);
    }
}

/// A proxy in front may keep the path of the public URL.
#[tokio::test]
async fn a_request_for_the_public_path_is_one_for_the_endpoint() {
    let (mut upstream, proxy) = published().await;
    for (target, at_server) in
        [("/tools/mcp", "/mcp"), ("/tools/mcp/", "/mcp"), ("/tools/mcp?a=b", "/mcp?a=b"), ("/mcp", "/mcp")]
    {
        let pending = Request::post(call(1)).target(target).start(proxy.addr).await;
        let call = upstream.expect("tools/call").await;
        assert_eq!(call.target, at_server);
        let stream = call.sse().await;
        let mut response = pending.response().await.sse();
        stream.event(progress(1)).await;
        let id = response.event().await.id.expect("an ID of the proxy");
        response.reset();
        stream.finish(result(1)).await;
        let mut resumed = Request::get().target(target).resume_from(&id).send(proxy.addr).await.sse();
        assert_eq!(resumed.event().await.bytes(), result(1).as_bytes(), "{target}");
    }
    let pending = Request::post(call(1)).target("/tools/other").start(proxy.addr).await;
    upstream.next().await.status(404).await;
    assert_eq!(pending.response().await.status, 404);
}

#[tokio::test]
async fn a_server_on_stdio_has_metadata_of_the_operator_alone() {
    let servers = StdioServers::start().await;
    let without = servers.proxy_with(public).await;
    for method in ["GET", "HEAD"] {
        for path in [WELL_KNOWN.to_owned(), format!("{WELL_KNOWN}/tools/mcp"), format!("{WELL_KNOWN}/mcp")] {
            let response = get(&path).method(method).with("Connection", "close").send(without.addr).await;
            assert_eq!(response.status, 404, "{method} {path}");
        }
    }
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("resource-metadata.json");
    std::fs::write(
        &file,
        json!({"authorization_servers": ["https://as.example"], "scopes_supported": ["a"]}).to_string(),
    )
    .unwrap();
    let with = servers
        .proxy_with(|config| {
            public(config);
            config.listen.resource_metadata = Some(file);
            config.listen.trusted_proxies = Trust::new([Network::from_str("127.0.0.1").unwrap().into()]);
            config.auth.principal = PrincipalSource::Header(HeaderName::from_static("x-user"));
        })
        .await;
    let mut response = get(&format!("{WELL_KNOWN}/tools/mcp")).send(with.addr).await;
    let expected: Value =
        json!({"resource": PUBLIC, "authorization_servers": ["https://as.example"], "scopes_supported": ["a"]});
    assert_eq!((response.status, response.json().await), (200, expected));
    assert_eq!(get("/.well-known/openid-configuration").send(with.addr).await.status, 404);
}

const PROOF: &str = "a.proof.for-one-request";

fn proved(request: Request) -> Request {
    request.with("Authorization", "DPoP token").with("DPoP", PROOF)
}

/// A proof is for one request, so the server decides about each.
#[tokio::test]
async fn a_request_with_a_proof_has_the_servers_own_head_and_is_sent_once() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |config| {
        config.delivery.commit_after = Some(Duration::from_millis(1));
        config.upstream.wait = Duration::from_secs(30);
    })
    .await;
    let session = open_as(&proxy, &mut upstream, json!({}), Some("DPoP token")).await;
    let nonce = "DPoP-Nonce: n\r\nWWW-Authenticate: DPoP error=\"use_dpop_nonce\"\r\n";
    let control = session.post(call(1)).start(proxy.addr).await;
    let of_control = upstream.next().await;
    // Without a proof the same caller gets an early head.
    let control = control.response().await.sse();
    let pending = proved(session.post(call(2))).start(proxy.addr).await;
    let refused = upstream.next().await;
    assert_eq!(refused.header("dpop"), Some(PROOF));
    pass(Duration::from_secs(1)).await;
    refused.status_with(401, nonce).await;
    let response = pending.response().await;
    assert_eq!((response.status, response.header("dpop-nonce")), (401, Some("n")));
    drop((of_control, control));

    let list = r#"{"jsonrpc":"2.0","id":3,"method":"tools/list"}"#;
    let pending = proved(session.post(list)).start(proxy.addr).await;
    upstream.expect("tools/list").await.status(503).await;
    assert_eq!(pending.response().await.status, 503);

    let pending = proved(session.post(list)).start(proxy.addr).await;
    upstream.expect("tools/list").await.json(404, FORGOTTEN).await;
    assert_eq!(pending.response().await.status, 404);

    // Nothing asks the server for its revision, since that request would have no proof.
    for status in [400, 404] {
        let pending = proved(Request::post(initialize(V2025_11))).start(proxy.addr).await;
        upstream.expect("initialize").await.json(status, "{}").await;
        assert_eq!(pending.response().await.status, status);
    }
    assert!(upstream.is_quiet());
}

/// A client would follow with the same proof.
#[tokio::test]
async fn a_redirect_within_the_server_is_followed_with_the_proof() {
    let (mut upstream, proxy) = published().await;
    let pending = proved(Request::post(call(1))).start(proxy.addr).await;
    for target in ["/mcp", "/mcp/"] {
        let call = upstream.expect("tools/call").await;
        assert_eq!((call.target.as_str(), call.header("dpop")), (target, Some(PROOF)));
        match target {
            "/mcp" => call.status_with(307, "Location: /mcp/\r\n").await,
            _ => call.json(200, result(1)).await,
        }
    }
    assert_eq!(pending.response().await.status, 200);
}

/// OAuth clients of Python's SDKs send nothing else until they have the head.
#[tokio::test]
async fn the_head_of_a_silent_get_comes_for_a_caller_with_accepted_credentials() {
    for (has_token, late_status) in [(true, None), (true, Some(405)), (false, None)] {
        let mut upstream = Upstream::start().await;
        let proxy = Proxy::start(&upstream, |_| {}).await;
        let token = has_token.then_some("Bearer token");
        let session = open_as(&proxy, &mut upstream, json!({}), token).await;
        let get = token.map_or(session.get(), |token| session.get().with("Authorization", token));
        let pending = get.start(proxy.addr).await;
        let at_server = upstream.expect("GET").await;
        if !has_token {
            pass(Duration::from_secs(5)).await;
            at_server.status(405).await;
            assert_eq!(pending.response().await.status, 405);
            continue;
        }
        let mut response = pending.response().await.sse();
        response.prime().await;
        let Some(status) = late_status else {
            let stream = at_server.sse().await;
            let notice = r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#;
            stream.event(notice).await;
            assert_eq!(response.event().await.bytes(), notice.as_bytes());
            continue;
        };
        // A server without such a stream says so late: the client's stays, and is silent.
        at_server.status(status).await;
        pass(Duration::from_secs(5)).await;
        assert_eq!(response.end(), None);
    }
}

/// A client that comes back for a refused stream would come back for ever.
#[tokio::test]
async fn after_a_late_refusal_of_a_get_the_next_one_has_the_servers_own_head() {
    for status in [400, 401, 409, 500] {
        let mut upstream = Upstream::start().await;
        let proxy = Proxy::start(&upstream, |config| config.sessions.revive = false).await;
        let session = open_as(&proxy, &mut upstream, json!({}), Some("Bearer token")).await;
        let get = session.get().with("Authorization", "Bearer token");
        let pending = get.start(proxy.addr).await;
        let late = upstream.expect("GET").await;
        let mut response = pending.response().await.sse();
        response.prime().await;
        late.status(status).await;
        response.ends().await;
        let pending = get.start(proxy.addr).await;
        let late = upstream.expect("GET").await;
        pass(Duration::from_secs(5)).await;
        late.status(status).await;
        assert_eq!(pending.response().await.status, status);
    }
}
