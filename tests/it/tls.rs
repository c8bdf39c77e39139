//! TLS: certificates that change, that are not believed, that are asked for; and how HTTP/2 is
//! recognised.

use crate::support::http_versions::*;
use crate::support::pki::Pki;
use crate::support::*;
use mcp_resume::config::Config;
use mcp_resume::sidecar::Server;
use mcp_resume::tls::ReloadOutcome;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

async fn shown(proxy: &Proxy, pki: &Pki) -> Vec<u8> {
    TestClient::connect(proxy.addr, HttpVersion::Http1Tls, pki).await.certificate.expect("TLS").to_vec()
}

#[tokio::test]
async fn a_new_certificate_is_taken_without_a_restart_and_a_bad_one_is_not() {
    let pki = Pki::new();
    let mut server = TestServer::start(HttpVersion::Http1, &pki).await;
    let proxy = Proxy::to_url(&server.url(), with_versions(HttpVersion::Http1Tls, HttpVersion::Http1, &pki)).await;
    let certificates = proxy.certificates.clone().expect("TLS");
    let mut before = TestClient::connect(proxy.addr, HttpVersion::Http1Tls, &pki).await;
    assert_eq!(certificates.reload(), ReloadOutcome::Unchanged);

    pki.issue();
    assert_eq!(certificates.reload(), ReloadOutcome::Taken);
    let second = pki.certificate().to_vec();
    assert_eq!(shown(&proxy, &pki).await, second);

    // A certificate without its key, as between two writes; then no certificate at all.
    let key = fs::read(pki.pair().key).unwrap();
    pki.issue();
    let new_key = fs::read(pki.pair().key).unwrap();
    fs::write(pki.pair().key, key).unwrap();
    assert_eq!(certificates.reload(), ReloadOutcome::Refused);
    assert_eq!(certificates.reload(), ReloadOutcome::Unchanged, "a bad pair is told once");
    assert_eq!(shown(&proxy, &pki).await, second);
    fs::remove_file(pki.pair().key).unwrap();
    assert_eq!(certificates.reload(), ReloadOutcome::Refused);
    assert_eq!(shown(&proxy, &pki).await, second);
    fs::write(pki.pair().key, new_key).unwrap();
    assert_eq!(certificates.reload(), ReloadOutcome::Taken);
    assert_eq!(shown(&proxy, &pki).await, pki.certificate().to_vec());

    // Who was there before stays.
    let answer = before.send("POST", &[], call(1));
    server.next().await.json(result(1));
    assert_eq!(answer.head().await.body().await, result(1).as_bytes());
}

#[tokio::test]
async fn a_server_does_not_start_with_files_it_cannot_use() {
    let pki = Pki::new();
    let refused = |change: fn(&mut Config, &Pki)| {
        let mut config = Config::for_upstream("https://localhost:1/mcp").expect("a usable URL");
        config.upstream.tls.ca = Some(pki.ca());
        change(&mut config, &pki);
        async move { Server::bind(config).await.err().expect("an error").to_string() }
    };
    let missing = refused(|config, pki| {
        let mut pair = pki.pair();
        pair.key = pki.path().join("none.pem");
        config.listen.tls = Some(listen_tls(pair));
    });
    let missing = missing.await;
    assert!(missing.starts_with("cannot read ") && missing.contains("none.pem"), "{missing}");
    let swapped = refused(|config, pki| {
        let pair = pki.pair();
        config.listen.tls = Some(listen_tls(mcp_resume::config::KeyPair { cert: pair.key, key: pair.cert }));
    });
    let swapped = swapped.await;
    assert!(swapped.starts_with("there is no certificate in PEM form in "), "{swapped}");
    assert!(swapped.ends_with("; what it holds is a private key"), "{swapped}");
    let foreign = refused(|config, pki| {
        let other = Pki::new();
        fs::copy(other.pair().key, pki.path().join("other.pem")).unwrap();
        let mut pair = pki.pair();
        pair.key = pki.path().join("other.pem");
        config.upstream.tls.identity = Some(pair);
    });
    let foreign = foreign.await;
    assert!(foreign.contains("cert.pem and ") && foreign.contains(" cannot be used"), "{foreign}");
    assert!(foreign.ends_with("the private key does not belong to the certificate"), "{foreign}");
    let no_authority = refused(|config, pki| config.upstream.tls.ca = Some(pki.pair().key));
    let no_authority = no_authority.await;
    assert!(no_authority.starts_with("there is no certificate in PEM form in "), "{no_authority}");
}

/// The status of `/readyz`.
async fn readiness(proxy: &Proxy) -> u16 {
    Request::new("GET", "/readyz").send(proxy.admin.expect("an admin listener")).await.status
}

fn with_admin(config: &mut Config) {
    config.admin.address = Some(([127, 0, 0, 1], 0).into());
}

#[tokio::test]
async fn an_upstream_whose_certificate_is_not_believed_is_not_reached() {
    for up in [HttpVersion::Http1Tls, HttpVersion::Http2Tls] {
        let (pki, other) = (Pki::new(), Pki::new());
        let server = TestServer::start(up, &pki).await;
        let change = with_versions(HttpVersion::Http1, up, &other);
        let proxy = Proxy::to_url(&server.url(), |config| {
            change(config);
            with_admin(config);
        })
        .await;
        let mut response = Request::post(call(1)).send(proxy.addr).await;
        assert_eq!(response.status, 502);
        let message = response.json().await;
        assert_fault(&message, 1, UPSTREAM_FAILED, "upstream");
        assert_eq!(message["error"]["data"]["mayHaveRun"], false, "{message}");
        assert_eq!(readiness(&proxy).await, 503);
        assert!(server.is_quiet());
    }
}

#[tokio::test]
async fn an_upstream_in_tls_makes_the_proxy_ready() {
    for up in [HttpVersion::Http1Tls, HttpVersion::Http2Tls] {
        let pki = Pki::new();
        let server = TestServer::start(up, &pki).await;
        let change = with_versions(HttpVersion::Http1, up, &pki);
        let proxy = Proxy::to_url(&server.url(), |config| {
            change(config);
            with_admin(config);
        })
        .await;
        assert_eq!(readiness(&proxy).await, 200, "{up:?}");
    }
}

#[tokio::test]
async fn an_upstream_gets_the_client_certificate_it_asks_for() {
    for up in [HttpVersion::Http1Tls, HttpVersion::Http2Tls] {
        let pki = Pki::new();
        let mut server = TestServer::start_asking(up, &pki, true).await;
        let change = with_versions(HttpVersion::Http1, up, &pki);
        let proxy = Proxy::to_url(&server.url(), |config| {
            change(config);
            config.upstream.tls.identity = Some(pki.pair());
        })
        .await;
        let pending = Request::post(call(1)).start(proxy.addr).await;
        server.next().await.json(result(1));
        assert_eq!(pending.response().await.body().await, result(1).as_bytes());

        let proxy = Proxy::to_url(&server.url(), with_versions(HttpVersion::Http1, up, &pki)).await;
        assert_eq!(Request::post(call(1)).send(proxy.addr).await.status, 502, "{up:?}: without one");
    }
}

/// A call that goes through; its connection to the upstream stays busy as long as what is returned
/// lives.
async fn calls(id: u64, proxy: &Proxy, server: &mut TestServer) -> EventStream {
    let pending = Request::post(call(id)).start(proxy.addr).await;
    let saying = server.next().await.sse();
    saying.event(progress(1));
    assert_eq!(pending.response().await.sse().event().await.bytes(), progress(1).as_bytes());
    saying
}

#[tokio::test]
async fn an_upstream_is_believed_by_and_shown_what_is_in_the_files_now() {
    let (pki, files) = (Pki::new(), Pki::new());
    let mut server = TestServer::start_asking(HttpVersion::Http1Tls, &pki, true).await;
    let change = with_versions(HttpVersion::Http1, HttpVersion::Http1Tls, &files);
    let proxy = Proxy::to_url(&server.url(), |config| {
        change(config);
        config.upstream.tls.identity = Some(files.pair());
    })
    .await;
    let in_use = proxy.upstream_files.clone().expect("TLS");
    let copy = |from: PathBuf, to: PathBuf| {
        fs::copy(from, to).expect("a copy");
    };
    let fails = || async { Request::post(call(9)).send(proxy.addr).await.status == 502 };
    assert_eq!(in_use.reload(), ReloadOutcome::Unchanged);
    assert!(fails().await, "the server is not believed");

    copy(pki.ca(), files.ca());
    assert_eq!(in_use.reload(), ReloadOutcome::Taken);
    assert!(fails().await, "the proxy is not believed");

    // As between two writes: the certificate is there and the key is another's.
    copy(pki.pair().cert, files.pair().cert);
    assert_eq!(in_use.reload(), ReloadOutcome::Refused);
    assert_eq!(in_use.reload(), ReloadOutcome::Unchanged, "a bad pair is told once");
    copy(pki.pair().key, files.pair().key);
    assert_eq!(in_use.reload(), ReloadOutcome::Taken);
    let first = calls(1, &proxy, &mut server).await;

    // What cannot be used changes nothing for connections yet to be made.
    fs::write(files.ca(), "no authority").expect("a file");
    assert_eq!(in_use.reload(), ReloadOutcome::Refused);
    let second = calls(2, &proxy, &mut server).await;
    fs::remove_file(files.pair().key).expect("a file");
    assert_eq!(in_use.reload(), ReloadOutcome::Refused);
    let third = calls(3, &proxy, &mut server).await;

    // Another valid authority is used at once; existing connections stay.
    let other = Pki::new();
    copy(other.ca(), files.ca());
    copy(other.pair().cert, files.pair().cert);
    copy(other.pair().key, files.pair().key);
    assert_eq!(in_use.reload(), ReloadOutcome::Taken);
    assert!(fails().await, "the server is believed no longer");
    for (saying, id) in [first, second, third].into_iter().zip(1..) {
        saying.finish(result(id));
    }
}

/// One that an upstream answers at once.
async fn asks(proxy: &Proxy, server: &mut TestServer) -> http::Version {
    let pending = Request::post(call(1)).start(proxy.addr).await;
    let asked = server.next().await;
    let version = asked.head.version;
    asked.json(result(1));
    assert_eq!(pending.response().await.body().await, result(1).as_bytes());
    version
}

#[tokio::test]
async fn calls_one_after_the_other_share_a_connection_to_the_upstream() {
    for up in HttpVersion::ALL {
        let pki = Pki::new();
        let mut server = TestServer::start(up, &pki).await;
        let proxy = Proxy::to_url(&server.url(), with_versions(HttpVersion::Http1, up, &pki)).await;
        asks(&proxy, &mut server).await;
        let before = server.accepted();
        for _ in 0..3 {
            asks(&proxy, &mut server).await;
        }
        assert_eq!(server.accepted(), before, "{up:?}");
        // In TLS the first call finds out what is http_versions.
        assert_eq!(before, if up == HttpVersion::Http2Tls { 2 } else { 1 }, "{up:?}");
    }
}

#[tokio::test]
async fn an_upstream_may_change_the_version_it_agrees_on() {
    let pki = Pki::new();
    let mut server = TestServer::start(HttpVersion::Http1Tls, &pki).await;
    let proxy = Proxy::to_url(&server.url(), with_versions(HttpVersion::Http1, HttpVersion::Http1Tls, &pki)).await;
    for (turn, version) in [
        (HttpVersion::Http1Tls, http::Version::HTTP_11),
        (HttpVersion::Http2Tls, http::Version::HTTP_2),
        (HttpVersion::Http1Tls, http::Version::HTTP_11),
    ] {
        server.switch_to(turn);
        for _ in 0..2 {
            assert_eq!(asks(&proxy, &mut server).await, version, "{turn:?}");
        }
        // A change of the file ends the existing connections.
        let broken = Request::post(call(1)).start(proxy.addr).await;
        server.next().await.reset();
        assert_eq!(broken.response().await.status, 502);
    }
}

#[tokio::test]
async fn the_end_of_a_connection_to_the_upstream_is_announced() {
    let pki = Pki::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("https://localhost:{}/mcp", listener.local_addr().expect("an address").port());
    let change = with_versions(HttpVersion::Http1, HttpVersion::Http1Tls, &pki);
    let proxy = Proxy::to_url(&url, |config| {
        change(config);
        config.upstream.pool_idle = Duration::ZERO;
    })
    .await;
    let pending = Request::post(call(1)).start(proxy.addr).await;
    let (tcp, _) = listener.accept().await.expect("a connection");
    let acceptor = TlsAcceptor::from(pki.server(&["http/1.1"], false));
    let mut tls = within("the handshake", acceptor.accept(tcp)).await.expect("TLS");
    let mut seen = Vec::new();
    while !seen.ends_with(call(1).as_bytes()) {
        assert_ne!(within("the request", tls.read_buf(&mut seen)).await.expect("bytes"), 0);
    }
    let answer = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{}",
        result(1).len(),
        result(1)
    );
    tls.write_all(answer.as_bytes()).await.expect("an open connection");
    tls.flush().await.expect("an open connection");
    assert_eq!(pending.response().await.body().await, result(1).as_bytes());
    let end = within("the end", tls.read_buf(&mut Vec::new())).await;
    assert_eq!(end.expect("an end that was announced"), 0);
}

/// HTTP/2 client preface and an empty SETTINGS frame.
const HELLO: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// The server's own SETTINGS frame comes first of all.
fn is_http2(answer: &[u8]) -> bool {
    answer.len() >= 9 && answer[3] == 4 && answer[5..9] == [0; 4]
}

#[tokio::test]
async fn a_preface_is_recognised_byte_by_byte_and_cut_anywhere() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |_| {}).await;
    for at in 1..HELLO.len() {
        let mut client = Client::connect(proxy.addr).await;
        client.send(&HELLO[..at]).await;
        settle(&proxy, &mut upstream).await;
        client.send(&HELLO[at..]).await;
        assert!(is_http2(&client.bytes(9).await), "cut at {at}");
    }
    let mut client = Client::connect(proxy.addr).await;
    for byte in HELLO {
        client.send(&[*byte]).await;
        settle(&proxy, &mut upstream).await;
    }
    assert!(is_http2(&client.bytes(9).await), "byte by byte");
}

#[tokio::test]
async fn a_request_that_begins_like_the_preface_is_answered_as_http1() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |_| {}).await;
    let request = Request::new("PROPFIND", "/files").bytes(proxy.addr);
    for at in 1..12 {
        let mut client = Client::connect(proxy.addr).await;
        client.send(&request[..at]).await;
        settle(&proxy, &mut upstream).await;
        client.send(&request[at..]).await;
        let call = upstream.next().await;
        assert_eq!((call.method.as_str(), call.target.as_str()), ("PROPFIND", "/files"));
        call.status(204).await;
        assert_eq!(client.response().await.status, 204, "cut at {at}");
    }
}

#[tokio::test]
async fn an_http2_client_gets_goaway_at_a_shutdown_and_its_responses_end() {
    for down in [HttpVersion::Http2, HttpVersion::Http2Tls] {
        let pki = Pki::new();
        let mut server = TestServer::start(HttpVersion::Http1, &pki).await;
        let proxy = Proxy::to_url(&server.url(), with_versions(down, HttpVersion::Http1, &pki)).await;
        let mut client = TestClient::connect(proxy.addr, down, &pki).await;
        let answer = client.send("POST", &[], call(1));
        let saying = server.next().await.sse();
        let mut heard = answer.head().await;
        heard.prime().await;
        let stopping = proxy.ask_to_stop();
        saying.finish(result(1));
        assert_eq!(heard.events().await, [result(1).into_bytes()]);
        client.closed().await;
        stopping.await;
    }
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused_on_its_stream_alone() {
    let pki = Pki::new();
    let mut server = TestServer::start(HttpVersion::Http1, &pki).await;
    let proxy = Proxy::to_url(&server.url(), |config| config.limits.body_bytes = 1000).await;
    let mut client = TestClient::connect(proxy.addr, HttpVersion::Http2, &pki).await;
    let refused = client.send("POST", &[], " ".repeat(2000)).head().await;
    assert_eq!(refused.head.status, 413);
    assert!(!refused.head.headers.contains_key("connection"));
    let answer = client.send("POST", &[], call(1));
    server.next().await.json(result(1));
    assert_eq!(answer.head().await.body().await, result(1).as_bytes());
}
