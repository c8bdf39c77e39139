//! TLS on both sides of a balancer, with a real sidecar behind it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use mcp_resume::balancer::Balancer;
use mcp_resume::config::{Balancing, Config, Flags, KeyPair, ListenTls};
use mcp_resume::protocol::ids::Owner;
use mcp_resume::sidecar::Server;
use mcp_resume::tls::ReloadOutcome;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::ServerName;

use super::pki::Pki;
use super::support::{self, Running, get};

/// Starts a sidecar that accepts every client certificate of `pki`; returns its URL.
async fn sidecar(pki: &Pki) -> String {
    let mut config = Config::for_upstream("http://127.0.0.1:9/mcp").unwrap();
    config.replica.name = Some("one".to_owned());
    config.listen.tls = Some(ListenTls { identity: pki.pair(), client_ca: Some(pki.ca()) });
    let sidecar = Server::bind(config).await.unwrap();
    let url = format!("https://localhost:{}", sidecar.local_addr().port());
    tokio::spawn(sidecar.run(std::future::pending()));
    url
}

/// A balancer before it that proves itself by the one pair, believes `ca`, and shows the other
/// pair.
async fn balancer(replica: String, proves: KeyPair, ca: PathBuf, shows: Option<KeyPair>) -> Balancer {
    let mut settings =
        vec![("LISTEN__TLS__CERT", proves.cert), ("LISTEN__TLS__KEY", proves.key), ("BALANCE__TLS__CA", ca)];
    if let Some(shows) = shows {
        settings.extend([("BALANCE__TLS__CERT", shows.cert), ("BALANCE__TLS__KEY", shows.key)]);
    }
    settings.push(("BALANCE__HEALTH_MS", "50".into()));
    // A handshake takes longer than a second on a machine that other builds use.
    settings.push(("BALANCE__HEALTH_TIMEOUT_MS", "30000".into()));
    let env =
        settings.into_iter().map(|(key, value)| (format!("MCP_RESUME_{key}"), value.to_str().unwrap().to_owned()));
    let address = Some("127.0.0.1:0".to_owned());
    let flags = Flags { listen: address.clone(), admin: address, ..Flags::default() };
    Balancer::bind(Balancing::load(None, env, flags, &[replica]).unwrap()).await.unwrap()
}

fn run(balancer: Balancer) -> Running {
    let running = Running { address: balancer.local_addr(), admin: balancer.admin_addr().unwrap() };
    tokio::spawn(balancer.run(1, std::future::pending()));
    running
}

async fn connect(balancer: &Running, pki: &Pki) -> TlsStream<TcpStream> {
    let io = TcpStream::connect(balancer.address).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    TlsConnector::from(pki.client(&["http/1.1"])).connect(name, io).await.unwrap()
}

/// Resumes a stream of the sidecar's through the balancer; returns the response.
async fn resumed(balancer: &Running, pki: &Pki) -> String {
    let mut io = connect(balancer, pki).await;
    let id = support::event_id(Owner::from_name("one"));
    io.write_all(get("/mcp", &format!("Last-Event-ID: {id}\r\n")).as_bytes()).await.unwrap();
    support::read(&mut io).await.expect("an answer")
}

/// That the sidecar is met: its own word on a stream that is gone.
fn assert_met(seen: &str) {
    assert!(seen.contains(".end"), "{seen}");
}

fn assert_unmet(seen: &str) {
    assert!(seen.starts_with("HTTP/1.1 503") && seen.contains("no replica"), "{seen}");
}

#[tokio::test]
async fn a_sidecar_that_asks_for_certificates_admits_only_its_balancer() {
    let (pki, other) = (Pki::new(), Pki::new());
    let ask = async |shows: Option<&Pki>| {
        let balancer = balancer(sidecar(&pki).await, pki.pair(), pki.ca(), shows.map(Pki::pair)).await;
        resumed(&run(balancer), &pki).await
    };
    assert_met(&ask(Some(&pki)).await);
    assert_unmet(&ask(None).await);
    assert_unmet(&ask(Some(&other)).await);
}

/// Puts what is in one file into another.
fn put(from: &Path, to: &Path) {
    fs::copy(from, to).unwrap();
}

#[tokio::test]
async fn a_new_identity_and_new_authorities_are_used_without_a_restart() {
    let (pki, files) = (Pki::new(), Pki::new());
    let balancer = balancer(sidecar(&pki).await, pki.pair(), files.ca(), Some(files.pair())).await;
    let known = balancer.replica_files().unwrap().clone();
    let running = run(balancer);
    assert_unmet(&resumed(&running, &pki).await);
    assert_eq!(known.reload(), ReloadOutcome::Unchanged);

    put(&pki.ca(), &files.ca());
    assert_eq!(known.reload(), ReloadOutcome::Taken);
    assert_unmet(&resumed(&running, &pki).await);
    // As between two writes: a certificate without its key.
    put(&pki.pair().cert, &files.pair().cert);
    assert_eq!(known.reload(), ReloadOutcome::Refused);
    assert_unmet(&resumed(&running, &pki).await);
    put(&pki.pair().key, &files.pair().key);
    assert_eq!(known.reload(), ReloadOutcome::Taken);
    // A request that names the sidecar has it looked for at once.
    assert_met(&resumed(&running, &pki).await);

    fs::write(files.ca(), "none").unwrap();
    assert_eq!(known.reload(), ReloadOutcome::Refused);
    assert_met(&resumed(&running, &pki).await);
}

#[tokio::test]
async fn certificate_files_of_both_sides_are_reloaded() {
    let (pki, own) = (Pki::new(), Pki::new());
    let balancer = balancer(sidecar(&pki).await, own.pair(), pki.ca(), Some(pki.pair())).await;
    let running = run(balancer);
    let shown = async || {
        let io = connect(&running, &own).await;
        io.get_ref().1.peer_certificates().unwrap()[0].clone()
    };
    assert_eq!(shown().await, own.certificate());
    own.issue();
    fs::remove_file(pki.pair().key).unwrap();
    for (of, outcome) in [("listener", "taken"), ("replicas", "refused")] {
        let name = format!("certificate_reloads_total{{of=\"{of}\",outcome=\"{outcome}\"}}");
        while running.metric(&name).await == 0 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    assert_eq!(shown().await, own.certificate());
    assert_met(&resumed(&running, &own).await);
}
