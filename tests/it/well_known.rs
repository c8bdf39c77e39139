//! Status that a sidecar reports to a balancer on its data listener.

use mcp_resume::config::{Bridge, DiskStore, Fsync, ModernClients, Store};
use mcp_resume::protocol::access::AllowedHosts;
use serde_json::{Value, json};

use crate::stores::disk::Dir;
use crate::support::http_versions::{HttpVersion, TestClient};
use crate::support::pki::Pki;
use crate::support::stdio::StdioServers;
use crate::support::*;

const PATH: &str = "/.well-known/mcp-resume";

fn ask() -> Request {
    Request::new("GET", PATH)
}

async fn said(proxy: &Proxy) -> Value {
    let mut response = ask().send(proxy.addr).await;
    assert_eq!(response.status, 200);
    response.json().await
}

/// Checks the form of random values, and takes them out.
fn fixed(mut said: Value) -> Value {
    let mut take = |place: &str, digits: usize| {
        let value = said.pointer_mut(place).expect(place).take();
        let text = value.as_str().expect("text");
        let is_digit = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
        assert!(text.len() == digits && text.chars().all(is_digit), "{place}: {text}");
    };
    take("/instance", 16);
    take("/store/epoch", 8);
    said
}

#[tokio::test]
async fn a_sidecar_says_who_it_is_and_how_it_stands() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |config| config.replica.name = Some("one".to_owned())).await;
    let mut response = ask().send(proxy.addr).await;
    assert_eq!(response.status, 200);
    assert_eq!(response.header("content-type"), Some("application/json"));
    assert_eq!(response.header("cache-control"), Some("no-store"));
    // The first bytes of the SHA-256 of "one".
    let expected = json!({
        "service": "mcp-resume", "owner": "7692c3ad", "instance": null, "ready": true, "draining": false,
        "store": { "kind": "memory", "shared": false, "epoch": null }, "bridge": false, "openStreams": 0,
    });
    assert_eq!(fixed(response.json().await), expected);

    let session = Session::open(&proxy, &mut upstream, V2025_11).await;
    let (sse, response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    assert_eq!(said(&proxy).await["openStreams"], 1);
    sse.finish(result(1)).await;
    drop(response);
    until("the call is over", async || said(&proxy).await["openStreams"] == 0).await;
    assert!(upstream.is_quiet(), "nothing of it goes upstream");
}

#[tokio::test]
async fn each_process_is_an_instance_of_its_own_and_its_memory_has_its_own_epoch() {
    let upstream = Upstream::start().await;
    let one = Proxy::start(&upstream, |config| config.replica.name = Some("one".to_owned())).await;
    let again = Proxy::start(&upstream, |config| config.replica.name = Some("one".to_owned())).await;
    let (first, second) = (said(&one).await, said(&again).await);
    assert_eq!(first["owner"], second["owner"]);
    assert_ne!(first["instance"], second["instance"]);
    assert_ne!(first["store"]["epoch"], second["store"]["epoch"]);
    assert_eq!(first["instance"], said(&one).await["instance"], "it stays as it is");
}

#[tokio::test]
async fn stores_are_distinguished_and_keep_their_epoch() {
    let upstream = Upstream::start().await;
    let dir = Dir::new("well-known");
    let disk = || DiskStore { path: dir.0.clone(), fsync: Fsync::Interval, max_bytes: 1 << 30 };
    let proxy = Proxy::start(&upstream, |config| config.store = Store::Disk(disk())).await;
    let first = said(&proxy).await["store"].clone();
    assert_eq!((&first["kind"], &first["shared"]), (&json!("disk"), &json!(false)));
    proxy.stop().await;
    let proxy = Proxy::start(&upstream, |config| config.store = Store::Disk(disk())).await;
    assert_eq!(said(&proxy).await["store"], first);

    let redis = Redis::start();
    let of_redis = |name: &str| redis.of(name, mcp_resume::config::OnUnreachable::Degrade);
    let one = Proxy::start(&upstream, of_redis("one")).await;
    let two = Proxy::start(&upstream, of_redis("two")).await;
    let (first, second) = (said(&one).await, said(&two).await);
    assert_eq!((&first["store"]["kind"], &first["store"]["shared"]), (&json!("redis"), &json!(true)));
    assert_eq!(first["store"], second["store"], "they share it");
    assert_ne!(first["owner"], second["owner"]);
}

/// By that a balancer keeps the requests of each caller together, which name no session.
#[tokio::test]
async fn a_sidecar_that_keeps_callers_says_so() {
    let upstream = Upstream::start().await;
    for (modern_clients, keeps) in [(ModernClients::Always, true), (ModernClients::Auto, false)] {
        let bridge = Bridge { modern_clients, legacy_clients: false, idle: LATER, sessions_per_principal: 8 };
        let proxy = Proxy::start(&upstream, |config| config.bridge = Some(bridge)).await;
        assert_eq!(said(&proxy).await["bridge"], keeps, "{modern_clients:?}");
    }
    let on_stdio = StdioServers::start().await.proxy(|_| {}).await;
    assert_eq!(said(&on_stdio).await["bridge"], true);
}

#[tokio::test]
async fn it_is_as_ready_as_readyz_says() {
    let mut upstream = Upstream::start().await;
    upstream.refuse().await;
    let proxy = Proxy::start(&upstream, |c| c.admin.address = Some(([127, 0, 0, 1], 0).into())).await;
    let readyz = async || Request::new("GET", "/readyz").send(proxy.admin.unwrap()).await.status;
    assert_eq!((readyz().await, said(&proxy).await["ready"].clone()), (503, json!(false)));
    upstream.listen_again().await;
    // The server is tried once a second.
    until("it is ready", async || readyz().await == 200).await;
    assert_eq!(said(&proxy).await["ready"], true);

    // A call that runs holds the drain up.
    let session = Session::open(&proxy, &mut upstream, V2025_11).await;
    let (sse, _response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    let drain = Request::new("GET", "/drain").with("X-Drain", "1").start(proxy.admin.unwrap()).await;
    until("it drains", async || readyz().await == 503).await;
    let standing = said(&proxy).await;
    assert_eq!((&standing["ready"], &standing["draining"]), (&json!(false), &json!(true)));
    sse.finish(result(1)).await;
    drop(drain);
}

#[tokio::test]
async fn it_is_asked_by_any_host_from_allowed_origins_by_get_and_head_alone() {
    let upstream = Upstream::start().await;
    let of_name = |config: &mut mcp_resume::config::Config| {
        config.listen.allowed_hosts = AllowedHosts::Listed(vec!["mcp.example.com".parse().unwrap()]);
    };
    let proxy = Proxy::start(&upstream, of_name).await;
    assert_eq!(ask().with("Host", "10.1.2.3:8080").send(proxy.addr).await.status, 200);
    assert_eq!(ask().with("Origin", "https://evil.example").send(proxy.addr).await.status, 403);
    let (head, client) =
        Request::new("HEAD", PATH).with("Connection", "close").start(proxy.addr).await.head_only().await;
    assert_eq!((head.first.as_str(), head.get("content-type")), ("HTTP/1.1 200 OK", Some("application/json")));
    assert!(head.get("content-length").is_some_and(|length| length.parse::<usize>().unwrap() > 100));
    assert_eq!(client.drain().await, b"", "no body");
    for method in ["POST", "PUT", "DELETE", "OPTIONS"] {
        let refused = Request::new(method, PATH).send(proxy.addr).await;
        assert_eq!((refused.status, refused.header("allow")), (405, Some("GET, HEAD")), "{method}");
    }
    assert!(upstream.is_quiet(), "nothing of it goes upstream, but for connections that show that it is there");
}

#[tokio::test]
async fn it_is_served_over_http2_as_well() {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |_| {}).await;
    let mut client = TestClient::connect(proxy.addr, HttpVersion::Http2, &Pki::new()).await;
    let heard = client.send_to(PATH, "GET", &[], "").head().await;
    assert_eq!(heard.head.status, 200);
    let told: Value = serde_json::from_slice(&heard.body().await).unwrap();
    assert_eq!(told["service"], "mcp-resume");
    let heard = client.send_to(PATH, "HEAD", &[], "").head().await;
    assert_eq!(heard.head.status, 200);
    assert_eq!(heard.body().await, b"");
}
