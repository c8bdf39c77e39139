//! TLS on both sides of a balancer, with a real sidecar behind it.

use mcp_resume::app::Server;
use mcp_resume::balancer::Balancer;
use mcp_resume::config::{Balancing, Config, Flags, ListenTls};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

use super::pki::Pki;
use super::support::{self, get};

/// What the balancer in front of a sidecar that lets in whoever has a certificate of `pki` answers to a resume of its stream.
async fn resumed(pki: &Pki, shows: Option<&Pki>) -> String {
    let mut config = Config::for_upstream("http://127.0.0.1:9/mcp").unwrap();
    config.replica.name = Some("one".to_owned());
    config.listen.tls = Some(ListenTls { identity: pki.pair(), client_ca: Some(pki.ca()) });
    let sidecar = Server::bind(config).await.unwrap();
    let replica = format!("https://localhost:{}", sidecar.local_addr().port());
    tokio::spawn(sidecar.run(std::future::pending()));

    let path = |path: std::path::PathBuf| path.to_str().unwrap().to_owned();
    let mut settings = vec![
        ("LISTEN__TLS__CERT", path(pki.pair().cert)),
        ("LISTEN__TLS__KEY", path(pki.pair().key)),
        ("BALANCE__TLS__CA", path(pki.ca())),
    ];
    if let Some(shows) = shows {
        settings.push(("BALANCE__TLS__CERT", path(shows.pair().cert)));
        settings.push(("BALANCE__TLS__KEY", path(shows.pair().key)));
    }
    let env = settings.into_iter().map(|(key, value)| (format!("MCP_RESUME_{key}"), value));
    let listen = Some("127.0.0.1:0".to_owned());
    let flags = Flags { listen, admin: Some(String::new()), ..Flags::default() };
    let balancer = Balancer::bind(Balancing::load(None, env, flags, &[replica]).unwrap()).await.unwrap();
    let address = balancer.local_addr();
    tokio::spawn(balancer.run(1, std::future::pending()));

    let io = TcpStream::connect(address).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let mut io = TlsConnector::from(pki.client(&["http/1.1"])).connect(name, io).await.unwrap();
    let id = support::event_id(mcp_resume::protocol::ids::Owner::from_name("one"));
    io.write_all(get("/mcp", &format!("Last-Event-ID: {id}\r\n")).as_bytes()).await.unwrap();
    support::read(&mut io).await.expect("an answer")
}

#[tokio::test]
async fn a_sidecar_that_asks_for_certificates_lets_its_balancer_in_and_nobody_else() {
    let (pki, other) = (Pki::new(), Pki::new());
    let seen = resumed(&pki, Some(&pki)).await;
    assert!(seen.contains(".end"), "the sidecar's own word on a stream that is gone: {seen}");
    for shows in [None, Some(&other)] {
        let seen = resumed(&pki, shows).await;
        assert!(seen.starts_with("HTTP/1.1 503") && seen.contains("no replica"), "{seen}");
    }
}
