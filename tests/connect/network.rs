//! The way to the server: proxies, certificates, redirects to https.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use super::host::*;
use super::process::Process;
use super::support::pki::Pki;
use super::support::*;

/// Begins to accept TLS in front of `server`, and returns the address.
async fn tls_before(server: SocketAddr, pki: &Pki) -> SocketAddr {
    serve_tls(TcpListener::bind("127.0.0.1:0").await.unwrap(), server, pki)
}

fn serve_tls(listener: TcpListener, server: SocketAddr, pki: &Pki) -> SocketAddr {
    let address = listener.local_addr().unwrap();
    let acceptor = TlsAcceptor::from(pki.server(&["http/1.1"], false));
    tokio::spawn(async move {
        while let Ok((tcp, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let mut tls = acceptor.accept(tcp).await.ok()?;
                let mut behind = TcpStream::connect(server).await.ok()?;
                copy_bidirectional(&mut tls, &mut behind).await.ok()
            });
        }
    });
    address
}

/// A proxy that answers each `CONNECT` with `answer`, and tunnels to `server` if that is a success.
struct Proxy {
    address: SocketAddr,
    heads: Arc<Mutex<Vec<String>>>,
}

impl Proxy {
    async fn start(server: SocketAddr, answer: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, heads) = (listener.local_addr().unwrap(), Arc::<Mutex<Vec<String>>>::default());
        let seen = heads.clone();
        tokio::spawn(async move {
            while let Ok((mut tcp, _)) = listener.accept().await {
                let seen = seen.clone();
                tokio::spawn(async move {
                    let mut head = Vec::new();
                    while !head.ends_with(b"\r\n\r\n") {
                        if tcp.read_buf(&mut head).await.ok()? == 0 {
                            break;
                        }
                    }
                    seen.lock().unwrap().push(String::from_utf8_lossy(&head).into_owned());
                    tcp.write_all(format!("HTTP/1.1 {answer}\r\nContent-Length: 0\r\n\r\n").as_bytes()).await.ok()?;
                    if !answer.starts_with('2') {
                        return None;
                    }
                    let mut behind = TcpStream::connect(server).await.ok()?;
                    copy_bidirectional(&mut tcp, &mut behind).await.ok()
                });
            }
        });
        Self { address, heads }
    }

    fn url(&self) -> String {
        format!("http://us%65r:secret@{}", self.address)
    }

    fn heads(&self) -> Vec<String> {
        self.heads.lock().unwrap().clone()
    }
}

/// Opens a session of the process before `upstream`, at the place `target`.
async fn open(host: &mut Process, upstream: &mut Upstream, target: &str) {
    host.say(&initialize(V2025_11)).await;
    let call = upstream.expect("initialize").await;
    assert_eq!(call.target, target);
    call.json(200, handshake(V2025_11)).await;
    assert_eq!(host.hear().await["result"]["serverInfo"]["name"], "scripted");
}

#[tokio::test]
async fn a_server_on_this_machine_is_reached_without_the_proxy() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(upstream.addr(), "200 OK").await;
    let url = proxy.url();
    let variables = ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy"].map(|name| (name, &*url));
    for host in ["127.0.0.1", "localhost", "a.localhost"] {
        let server = format!("http://{host}:{}/mcp", upstream.addr().port());
        let mut host = Process::start(&[&server], &variables);
        open(&mut host, &mut upstream, "/mcp").await;
        assert_eq!(host.end().await, Some(0));
    }
    assert_eq!(proxy.heads(), Vec::<String>::new());
}

#[tokio::test]
async fn a_server_on_http_is_reached_through_the_proxy_in_absolute_form() {
    // The scripted server is the proxy.
    let mut upstream = Upstream::start().await;
    let proxy = format!("http://user:secret@{}", upstream.addr());
    let url = "http://far.example:8080/mcp?a=b";
    let mut host = Process::start(&[url, "--allow-http"], &[("http_proxy", &proxy), ("NO_PROXY", "other.example")]);
    host.say(&initialize(V2025_11)).await;
    let call = upstream.expect("initialize").await;
    assert_eq!((&*call.method, &*call.target), ("POST", url));
    assert_eq!(call.header("host"), Some("far.example:8080"));
    assert_eq!(call.header("proxy-authorization"), Some("Basic dXNlcjpzZWNyZXQ="));
    call.json(200, handshake(V2025_11)).await;
    assert_eq!(host.hear().await["result"]["serverInfo"]["name"], "scripted");
}

#[tokio::test]
async fn a_server_on_https_is_reached_through_a_tunnel() {
    let (mut upstream, pki) = (Upstream::start().await, Pki::new());
    pki.issue_for(&["far.example"]);
    let server = tls_before(upstream.addr(), &pki).await;
    let proxy = Proxy::start(server, "200 Connection established").await;
    let (proxy_url, ca) = (proxy.url(), pki.ca());
    let arguments = ["https://far.example/mcp", "--ca-file", ca.to_str().unwrap(), "--header", "X-Key: mine"];
    let mut host = Process::start(&arguments, &[("ALL_PROXY", &proxy_url)]);
    host.say(&initialize(V2025_11)).await;
    let call = upstream.expect("initialize").await;
    assert_eq!((call.header("x-key"), call.header("proxy-authorization")), (Some("mine"), None));
    call.json(200, handshake(V2025_11)).await;
    assert_eq!(host.hear().await["result"]["serverInfo"]["name"], "scripted");
    let expected = "CONNECT far.example:443 HTTP/1.1\r\nHost: far.example:443\r\nProxy-Authorization: Basic dXNlcjpzZWNyZXQ=\r\n\r\n";
    assert_eq!(proxy.heads(), [expected]);
}

#[tokio::test]
async fn a_proxy_that_refuses_is_the_answer_to_initialize() {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(upstream.addr(), "407 Proxy Authentication Required").await;
    let mut host = Process::start(&["https://far.example/mcp"], &[("HTTPS_PROXY", &proxy.url())]);
    let answer = host.initialize().await;
    assert!(error_of(&answer).contains("407"), "{answer}");
    assert_eq!(answer["error"]["data"]["mayHaveRun"], false);
    assert!(!answer.to_string().contains("secret"));
    assert_eq!(upstream.connections(), 0);
}

#[tokio::test]
async fn a_variable_that_names_no_usable_proxy_is_the_answer_to_initialize() {
    let mut host = Process::start(&["https://far.example/mcp"], &[("HTTPS_PROXY", "socks5://secret:1080")]);
    let answer = host.initialize().await;
    assert!(error_of(&answer).contains("HTTPS_PROXY") && !error_of(&answer).contains("secret"), "{answer}");
    assert_eq!(host.end().await, Some(2));
}

#[tokio::test]
async fn authorities_of_the_environment_and_of_the_option_are_trusted() {
    let (mut upstream, pki, other) = (Upstream::start().await, Pki::new(), Pki::new());
    let server = tls_before(upstream.addr(), &pki).await;
    let url = format!("https://localhost:{}/mcp", server.port());
    let (ca, other) = (pki.ca(), other.ca());
    let (ca, other, folder) = (ca.to_str().unwrap(), other.to_str().unwrap(), pki.path().to_str().unwrap());
    let of_file = ["--ca-file", ca];
    for (arguments, variables) in [
        (&[][..], &[("SSL_CERT_FILE", ca)][..]),
        (&[], &[("SSL_CERT_DIR", folder)]),
        (&[], &[("NODE_EXTRA_CA_CERTS", ca)]),
        (&[], &[("SSL_CERT_FILE", other), ("NODE_EXTRA_CA_CERTS", ca)]),
        (&of_file, &[("SSL_CERT_FILE", other)]),
    ] {
        let mut host = Process::start(&[&[&*url], arguments].concat(), variables);
        open(&mut host, &mut upstream, "/mcp").await;
    }
}

#[tokio::test]
async fn a_certificate_that_is_not_trusted_is_the_answer_to_initialize() {
    for (of_server, trusted, end) in [
        ("Example Root", "Other Root", "an authority that is not trusted here: Example Root"),
        ("Example Root", "Example Root", "the authority of that name that is trusted here: Example Root"),
    ] {
        let (upstream, pki, other) = (Upstream::start().await, Pki::named(of_server), Pki::named(trusted));
        let server = tls_before(upstream.addr(), &pki).await;
        let (url, other) = (format!("https://localhost:{}/mcp", server.port()), other.ca());
        let mut host = Process::start(&[&url], &[("SSL_CERT_FILE", other.to_str().unwrap())]);
        let began = std::time::Instant::now();
        let answer = host.initialize().await;
        assert!(began.elapsed() < std::time::Duration::from_secs(3));
        assert_eq!(answer["error"]["data"]["error"], "way_refused", "{answer}");
        assert!(error_of(&answer).ends_with(end), "{answer}");
        host.say(&initialized()).await;
        host.say(&call(1)).await;
        assert_eq!(host.hear().await["error"]["data"]["error"], "way_refused");
        assert!(upstream.is_quiet());
    }
}

#[tokio::test]
async fn a_file_of_authorities_that_cannot_be_used_is_the_answer_to_initialize() {
    let pki = Pki::new();
    let key = pki.pair().key;
    for path in ["/no/such/secret.pem", key.to_str().unwrap()] {
        let mut host = Process::start(&["https://far.example/mcp", "--ca-file", path], &[]);
        let answer = host.initialize().await;
        assert!(error_of(&answer).contains("--ca-file") && !error_of(&answer).contains(path), "{answer}");
        assert_eq!(host.end().await, Some(2));
    }
}

#[tokio::test]
async fn the_https_form_gets_all_requests_behind_a_redirect() {
    // Ports of the schemes: not every machine gives them.
    let (Ok(plain), Ok(secure)) = (TcpListener::bind("127.0.0.1:80").await, TcpListener::bind("127.0.0.1:443").await)
    else {
        return;
    };
    let (mut upstream, pki) = (Upstream::start().await, Pki::new());
    serve_tls(secure, upstream.addr(), &pki);
    let options = mcp_resume::connect::Options {
        headers: vec!["Authorization: Bearer mine".to_owned()],
        ca_file: Some(pki.ca()),
        ..options("http://localhost/mcp")
    };
    let mut host = Host::start(options);
    host.say(&initialize(V2025_11)).await;
    let (mut tcp, _) = within("a connection", plain.accept()).await.unwrap();
    let mut head = vec![0; 4096];
    assert!(tcp.read(&mut head).await.unwrap() > 0);
    let place = "Location: https://localhost/mcp\r\nContent-Length: 0\r\nConnection: close\r\n";
    tcp.write_all(format!("HTTP/1.1 308 X\r\n{place}\r\n").as_bytes()).await.unwrap();
    let call = upstream.expect("initialize").await;
    assert_eq!(call.header("authorization"), Some("Bearer mine"));
    call.json(200, handshake(V2025_11)).await;
    host.hear().await;
    host.say(&initialized()).await;
    let next = upstream.expect("notifications/initialized").await;
    assert_eq!(next.header("authorization"), Some("Bearer mine"));
    next.status(202).await;
}
