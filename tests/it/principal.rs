//! A stream belongs to who opened it.

use crate::support::pki::Pki;
use crate::support::*;
use http::HeaderName;
use mcp_resume::config::{HostHeader, ListenTls, PrincipalSource};
use mcp_resume::protocol::client_address::{Network, Trust};
use std::str::FromStr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

async fn setup_of(source: PrincipalSource) -> (Upstream, Proxy) {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |c| c.auth.principal = source).await;
    (upstream, proxy)
}

/// A finished call of this caller; its place is before the response.
async fn finished(proxy: &Proxy, upstream: &mut Upstream, request: &Request) -> EventId {
    let (sse, mut response) = begin(proxy, upstream, request).await;
    let place = EventId::of(response.prime().await.id());
    sse.finish(result(1)).await;
    response.event().await;
    response.ends().await;
    place
}

/// Returns true if a caller with these headers can read the stream.
async fn reads(proxy: &Proxy, place: &EventId, headers: &[(&str, &str)]) -> bool {
    let mut request = modern_resume(&place.at(0));
    for (name, value) in headers {
        request = request.with(name, value);
    }
    let mut response = request.send(proxy.addr).await.sse();
    let (events, _) = response.events().await;
    assert_eq!(events.len(), 1);
    let message = events[0].json();
    match message["error"]["code"].as_i64() {
        None => true,
        Some(code) => {
            assert_eq!(code, GONE);
            false
        }
    }
}

/// Each request has a signature of its own.
#[tokio::test]
async fn a_caller_with_signed_requests_has_an_access_key() {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |config| {
        config.auth.principal = PrincipalSource::SigV4;
        config.upstream.host = HostHeader::Client;
    })
    .await;
    let mut upstream = upstream;
    let signed = |key: &str, signature: &str| {
        format!(
            "AWS4-HMAC-SHA256 Credential={key}/20261128/eu-west-1/lambda/aws4_request, SignedHeaders=host, Signature={signature}"
        )
    };
    let place = finished(&proxy, &mut upstream, &modern(1).with("Authorization", &signed("AKID", "a"))).await;
    assert!(reads(&proxy, &place, &[("Authorization", &signed("AKID", "b"))]).await);
    assert!(!reads(&proxy, &place, &[("Authorization", &signed("OTHER", "a"))]).await);
    assert!(!reads(&proxy, &place, &[]).await);
}

#[tokio::test]
async fn it_is_the_authorization_unless_said_otherwise() {
    let (mut upstream, proxy) = setup_of(PrincipalSource::Auto).await;
    let mine = ("Authorization", "Bearer mine");
    let place = finished(&proxy, &mut upstream, &modern(1).with(mine.0, mine.1)).await;
    assert!(reads(&proxy, &place, &[mine]).await);
    assert!(reads(&proxy, &place, &[mine, ("Cookie", "lb=2"), ("X-API-Key", "")]).await);
    assert!(!reads(&proxy, &place, &[mine, ("X-API-Key", "any")]).await);
    assert!(!reads(&proxy, &place, &[("Authorization", "Bearer other")]).await);
    assert!(!reads(&proxy, &place, &[("X-API-Key", "Bearer mine")]).await);
    assert!(!reads(&proxy, &place, &[]).await);
}

#[tokio::test]
async fn an_api_key_names_a_caller_too() {
    let (mut upstream, proxy) = setup_of(PrincipalSource::Auto).await;
    let mine = ("X-API-Key", "mine");
    let place = finished(&proxy, &mut upstream, &modern(1).with(mine.0, mine.1)).await;
    assert!(reads(&proxy, &place, &[mine]).await);
    assert!(!reads(&proxy, &place, &[("X-API-Key", "other")]).await);
    assert!(!reads(&proxy, &place, &[("Authorization", "mine")]).await);
    assert!(!reads(&proxy, &place, &[]).await);
}

/// Many share one `Authorization`, of a gateway for instance.
#[tokio::test]
async fn an_api_key_beside_a_shared_authorization_distinguishes_callers() {
    let (mut upstream, proxy) = setup_of(PrincipalSource::Auto).await;
    let (shared, mine) = (("Authorization", "Bearer shared"), ("X-API-Key", "mine"));
    let request = modern(1).with(shared.0, shared.1).with(mine.0, mine.1);
    let place = finished(&proxy, &mut upstream, &request).await;
    assert!(reads(&proxy, &place, &[mine, shared]).await);
    for others in [&[shared, ("X-API-Key", "other")][..], &[shared], &[mine]] {
        assert!(!reads(&proxy, &place, others).await, "{others:?}");
    }
}

#[tokio::test]
async fn a_key_in_the_query_is_a_part_of_it() {
    let (mut upstream, proxy) = setup_of(PrincipalSource::Auto).await;
    let session = Session::opened_elsewhere(V2025_11, "s-1", None);
    let pending = session.get().target("/mcp?key=mine").start(proxy.addr).await;
    let sse = upstream.expect("GET").await.sse().await;
    let mut response = pending.response().await.sse();
    let place = EventId::of(response.prime().await.id());
    sse.event(progress(1)).await;
    response.event().await;
    response.reset();
    // A caller with the session's name and no key, or with any other key, is the server's to judge.
    for target in ["/mcp", "/mcp?", "/mcp?key=theirs", "/mcp?key=mine&", "/mcp?key=mine&key=mine"] {
        for request in [session.get().target(target), session.resume(&place.at(0)).target(target)] {
            let pending = request.start(proxy.addr).await;
            upstream.expect("GET").await.status(401).await;
            assert_eq!(pending.response().await.status, 401, "{target}");
        }
    }
    let mut back = session.resume(&place.at(0)).target("/mcp?key=mine").send(proxy.addr).await.sse();
    assert_eq!(back.event().await.id(), place.at(1));
    assert!(upstream.is_quiet());
}

/// A client with a certificate for `name` asks; what begins the answer, as far as it goes up to
/// `until`.
pub(crate) async fn asked_with_certificate(
    proxy: &Proxy,
    pki: &Pki,
    name: &str,
    request: &Request,
    until: &str,
) -> String {
    let connector = TlsConnector::from(pki.client_named(name));
    let io = TcpStream::connect(proxy.addr).await.expect("a connection");
    let mut io = connector.connect(ServerName::try_from("localhost").expect("a name"), io).await.expect("a handshake");
    io.write_all(&request.bytes(proxy.addr)).await.expect("it is written");
    let mut answer = Vec::new();
    while !String::from_utf8_lossy(&answer).contains(until) {
        assert_ne!(within("an answer", io.read_buf(&mut answer)).await.expect("bytes"), 0, "{answer:?}");
    }
    String::from_utf8(answer).expect("text")
}

#[tokio::test]
async fn the_names_in_a_clients_certificate_are_a_part_of_it_unless_a_proxy_in_front_shows_it() {
    for is_trusted in [false, true] {
        let (mut upstream, pki) = (Upstream::start().await, Pki::new());
        let trusted = is_trusted.then(|| Network::from_str("127.0.0.1").expect("an address").into());
        let proxy = Proxy::start(&upstream, |c| {
            c.listen.tls = Some(ListenTls { identity: pki.pair(), client_ca: Some(pki.ca()) });
            c.listen.trusted_proxies = Trust::new(trusted);
        })
        .await;
        let request = modern(1);
        let (answer, ()) = tokio::join!(asked_with_certificate(&proxy, &pki, "a", &request, "done"), async {
            upstream.next().await.sse().await.finish(result(1)).await;
        });
        let id = answer.lines().find_map(|line| line.strip_prefix("id: ")).expect("an id");
        let resume = modern_resume(&EventId::of(id).at(0));
        // Each has a certificate of its own, so that this one is renewed.
        assert!(asked_with_certificate(&proxy, &pki, "a", &resume, "\n\n").await.contains("HTTP/1.1 200"));
        assert!(asked_with_certificate(&proxy, &pki, "a", &resume, "done").await.contains("done"));
        let theirs = asked_with_certificate(&proxy, &pki, "b", &resume, if is_trusted { "done" } else { "error" });
        assert_eq!(theirs.await.contains("done"), is_trusted);
    }
}

#[tokio::test]
async fn of_an_anonymous_stream_the_event_id_is_the_only_key() {
    let (mut upstream, proxy) = setup_of(PrincipalSource::Auto).await;
    let place = finished(&proxy, &mut upstream, &modern(1)).await;
    assert!(reads(&proxy, &place, &[]).await);
    assert!(reads(&proxy, &place, &[("Cookie", "a=1")]).await);
    assert!(!reads(&proxy, &place, &[("Authorization", "Bearer x")]).await);
}

#[tokio::test]
async fn it_can_be_a_header_that_outlives_a_token() {
    let (mut upstream, proxy) = setup_of(PrincipalSource::Header(HeaderName::from_static("x-user"))).await;
    let request = modern(1).with("X-User", "u").with("Authorization", "Bearer 1");
    let place = finished(&proxy, &mut upstream, &request).await;
    assert!(reads(&proxy, &place, &[("X-User", "u"), ("Authorization", "Bearer 2")]).await);
    assert!(!reads(&proxy, &place, &[("X-User", "v"), ("Authorization", "Bearer 1")]).await);
    assert!(!reads(&proxy, &place, &[("Authorization", "Bearer 1")]).await);
}

#[tokio::test]
async fn it_can_be_a_cookie() {
    let (mut upstream, proxy) = setup_of(PrincipalSource::Cookie("sid".to_owned())).await;
    let request = modern(1).with("Cookie", "lb=1; sid=abc; x=y");
    let place = finished(&proxy, &mut upstream, &request).await;
    assert!(reads(&proxy, &place, &[("Cookie", "sid=abc")]).await);
    assert!(reads(&proxy, &place, &[("Cookie", "lb=2; sid=abc")]).await);
    assert!(!reads(&proxy, &place, &[("Cookie", "sid=abcd")]).await);
    assert!(!reads(&proxy, &place, &[("Cookie", "xsid=abc")]).await);
    assert!(!reads(&proxy, &place, &[]).await);
}

#[tokio::test]
async fn the_principal_can_be_none() {
    let (mut upstream, proxy) = setup_of(PrincipalSource::None).await;
    let request = modern(1).with("Authorization", "Bearer 1");
    let place = finished(&proxy, &mut upstream, &request).await;
    assert!(reads(&proxy, &place, &[("Authorization", "Bearer 2")]).await);
    assert!(reads(&proxy, &place, &[]).await);
}

/// The server judges an `X-API-Key` too, under every principal source. Its judgement of one key
/// says nothing of another.
#[tokio::test]
async fn acceptance_is_of_all_that_a_caller_shows() {
    for source in [PrincipalSource::Auto, PrincipalSource::Header(HeaderName::from_static("x-user"))] {
        let mut upstream = Upstream::start().await;
        let proxy = Proxy::start(&upstream, |c| {
            c.auth.principal = source;
            c.delivery.commit_after = Some(SOON);
        })
        .await;
        let shown = |id: u64, key: &str| {
            modern(id).with("X-User", "u").with("Authorization", "Bearer t").with("X-API-Key", key)
        };
        let pending = shown(1, "good").start(proxy.addr).await;
        upstream.expect("tools/call").await.json(200, result(1)).await;
        assert_eq!(pending.response().await.status, 200);
        // The control: with what was accepted the proxy begins the response.
        let pending = shown(2, "good").start(proxy.addr).await;
        let silent = upstream.expect("tools/call").await;
        pending.response().await.sse().prime().await;
        let pending = shown(3, "bad").start(proxy.addr).await;
        let judged = upstream.expect("tools/call").await;
        pass(std::time::Duration::from_secs(1)).await;
        settle(&proxy, &mut upstream).await;
        judged.status(401).await;
        assert_eq!(pending.response().await.status, 401);
        drop(silent);
    }
}
