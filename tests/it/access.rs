//! By which names the proxy may be asked, and whose pages it answers.

use mcp_resume::config::Config;

use crate::support::*;

const REFUSED: i64 = -32600;

/// Asserts a refusal in the proxy's own words.
async fn refused(proxy: &Proxy, request: &Request) {
    let mut response = request.send(proxy.addr).await;
    assert_eq!(response.status, 403, "{request:?}");
    assert_fault(&response.json().await, serde_json::Value::Null, REFUSED, "client");
}

/// Asserts that it reaches the upstream and its answer the client.
async fn passes(proxy: &Proxy, upstream: &mut Upstream, request: &Request) {
    let pending = request.start(proxy.addr).await;
    upstream.next().await.status(204).await;
    assert_eq!(pending.response().await.status, 204, "{request:?}");
}

/// One request of each way through the proxy.
fn every_way() -> Vec<Request> {
    vec![
        Request::post(call(1)),
        Request::post(call(1)).with("Mcp-Session-Id", "s"),
        Request::post(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#).with("Mcp-Session-Id", "s"),
        Request::post("no JSON"),
        Request::get().with("Mcp-Session-Id", "s"),
        Request::get().resume_from("no id"),
        Request::new("DELETE", "/mcp").with("Mcp-Session-Id", "s"),
        Request::new("OPTIONS", "/mcp").with("Access-Control-Request-Method", "POST"),
        Request::new("GET", "/.well-known/oauth-protected-resource"),
        Request::post("{}").target("/token"),
        Request::new("GET", "/ws").with("Connection", "Upgrade").with("Upgrade", "websocket"),
    ]
}

#[tokio::test]
async fn a_name_that_is_not_ours_is_refused_on_every_way() {
    let (mut upstream, proxy, _) = setup().await;
    for request in every_way() {
        refused(&proxy, &request.with("Host", &format!("rebound.example:{}", proxy.addr.port()))).await;
    }
    settle(&proxy, &mut upstream).await;
}

#[tokio::test]
async fn a_page_that_is_not_of_this_machine_is_refused_on_every_way() {
    let (mut upstream, proxy, _) = setup().await;
    for request in every_way() {
        for origin in ["https://evil.example", "null"] {
            refused(&proxy, &request.clone().with("Origin", origin)).await;
        }
    }
    settle(&proxy, &mut upstream).await;
}

#[tokio::test]
async fn this_machines_names_and_pages_pass() {
    let (mut upstream, proxy, _) = setup().await;
    let preflight = Request::new("OPTIONS", "/mcp").with("Access-Control-Request-Method", "POST");
    for request in [preflight, Request::new("GET", "/other")] {
        for host in ["localhost", "127.0.0.1:1", "[::1]:8080"] {
            passes(&proxy, &mut upstream, &request.clone().with("Host", host)).await;
        }
        for origin in ["http://localhost:6274", "https://127.0.0.1", "http://[::1]:1"] {
            passes(&proxy, &mut upstream, &request.clone().with("Origin", origin)).await;
        }
    }
}

async fn listed(hosts: &str, origins: &str) -> (Upstream, Proxy) {
    let upstream = Upstream::start().await;
    let file = format!("[listen]\nallowed_hosts = {hosts}\nallowed_origins = {origins}");
    let flags = mcp_resume::config::Flags { upstream: Some(upstream.url()), ..Default::default() };
    let said = Config::load(Some(("test", &file)), [], flags).unwrap();
    let proxy = Proxy::start(&upstream, |c| {
        c.listen.allowed_hosts = said.listen.allowed_hosts;
        c.listen.allowed_origins = said.listen.allowed_origins;
    })
    .await;
    (upstream, proxy)
}

#[tokio::test]
async fn a_list_takes_the_place_of_what_holds_without_one() {
    let (mut upstream, proxy) = listed("['mcp.example.com']", "['https://app.example.com']").await;
    let ours = Request::new("GET", "/x").with("Host", "mcp.example.com");
    passes(&proxy, &mut upstream, &ours).await;
    passes(&proxy, &mut upstream, &ours.clone().with("Origin", "https://app.example.com")).await;
    refused(&proxy, &ours.clone().with("Origin", "https://mcp.example.com")).await;
    refused(&proxy, &ours.clone().with("Origin", "http://localhost")).await;
    refused(&proxy, &ours.with("Host", "localhost")).await;
}

#[tokio::test]
async fn a_star_allows_everything() {
    let (mut upstream, proxy) = listed("['*']", "['*']").await;
    let request = Request::new("GET", "/x").with("Host", "any.example").with("Origin", "null");
    passes(&proxy, &mut upstream, &request).await;
}

#[tokio::test]
async fn the_admin_pages_are_for_this_machines_names_as_well() {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |c| c.admin.address = Some(([127, 0, 0, 1], 0).into())).await;
    let admin = proxy.admin.unwrap();
    for path in ["/metrics", "/healthz", "/elsewhere"] {
        let page = Request::new("GET", path);
        let mut rebound = page.clone().with("Host", "rebound.example").send(admin).await;
        assert_eq!(rebound.status, 403);
        assert_fault(&rebound.json().await, serde_json::Value::Null, REFUSED, "client");
        assert_ne!(page.with("Host", "localhost:9464").send(admin).await.status, 403, "{path}");
    }
    let mut metrics = Request::new("GET", "/metrics").send(admin).await;
    let page = String::from_utf8(metrics.body().await).unwrap();
    assert!(page.contains(r#"mcp_resume_rejects_total{reason="host_refused"} 3"#), "{page}");
}

#[tokio::test]
async fn a_refusal_names_the_host_or_the_origin_and_the_key_to_set() {
    let (_upstream, proxy, _) = setup().await;
    let ask = async |name: &str, value: &str| {
        let mut response = Request::get().with(name, value).send(proxy.addr).await;
        assert_eq!(response.status, 403);
        response.json().await["error"]["message"].as_str().expect("a message").to_owned()
    };
    let host = ask("Host", "mcp.example.com:8080").await;
    let said =
        r#"this proxy does not answer requests for that host: "mcp.example.com:8080" is not in listen.allowed_hosts"#;
    assert_eq!(host, said);
    let origin = ask("Origin", "https://app.example.com").await;
    assert!(origin.ends_with(r#": "https://app.example.com" is not in listen.allowed_origins"#), "{origin}");
    let long = ask("Origin", &format!("https://{}", "x".repeat(5000))).await;
    assert!(long.len() < 300, "{long}");
}

#[tokio::test]
async fn the_listener_for_metrics_answers_nothing_that_changes_or_shows_anything_else() {
    let upstream = Upstream::start().await;
    let config = Config {
        admin: mcp_resume::config::Admin {
            metrics_address: Some(([127, 0, 0, 1], 0).into()),
            ..Config::for_upstream(&upstream.url()).unwrap().admin
        },
        ..Config::for_upstream(&upstream.url()).unwrap()
    };
    let server = mcp_resume::sidecar::Server::bind(config).await.unwrap();
    let metrics = server.addresses().metrics.unwrap();
    let running = tokio::spawn(server.run(std::future::pending()));
    for path in ["/metrics", "/livez", "/readyz"] {
        assert_eq!(Request::new("GET", path).send(metrics).await.status, 200, "{path}");
    }
    for path in ["/", "/streams", "/drain"] {
        assert_eq!(Request::new("GET", path).with("X-Drain", "1").send(metrics).await.status, 404, "{path}");
    }
    assert_eq!(Request::new("GET", "/readyz").send(metrics).await.status, 200, "no drain has begun");
    running.abort();
}
