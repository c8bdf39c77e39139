//! Reachability of the upstream's address, and the scheme that is served there.
//!
//! The requests of the probe only show that a connection broke. These connections find the reason:
//! an untrusted certificate, a missing client certificate, a URL with the wrong scheme.

use std::io;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::ServerName;

use super::facts::{Contact, printable_lines};
use crate::config::Config;
use crate::tls::{self, ClientFiles};

/// Connects as `serve` would, with TLS for an https URL. Returns the fault as an error.
pub(super) async fn reach(config: &Config) -> Result<(), Contact> {
    let limit = config.upstream.connect_timeout;
    let unreachable = |why: String| Contact::Unreachable { why };
    let late = || unreachable(format!("no connection within {} ms", limit.as_millis()));
    let tcp = tokio::time::timeout(limit, connect(config)).await.map_err(|_| late())?;
    let tcp = tcp.map_err(|error| unreachable(printable_lines(&error.to_string())))?;
    if !config.upstream.url.is_https() {
        return Ok(());
    }
    let files = ClientFiles::load(config.upstream.tls.clone())
        .map_err(|error| unreachable(printable_lines(&error.to_string())))?;
    match tokio::time::timeout(limit, handshake(config, TlsConnector::from(files.current()), tcp)).await {
        Err(_) => Err(Contact::Handshake { why: format!("no TLS handshake within {} ms", limit.as_millis()) }),
        Ok(Err(error)) if tls::is_plain(&error) => Err(Contact::OtherScheme { scheme: "http" }),
        Ok(Err(error)) => Err(Contact::Handshake { why: printable_lines(&tls::explain(&error)) }),
        Ok(Ok(_)) => Ok(()),
    }
}

/// Returns the TLS fault that broke requests before a response, or `None` if TLS is not the reason:
/// the other scheme, or a refusal after the handshake. In TLS 1.3 a server refuses a client without
/// a certificate only then.
pub(super) async fn tls_fault(config: &Config, limit: Duration) -> Option<Contact> {
    let tcp = connect(config).await.ok()?;
    if !config.upstream.url.is_https() {
        let handshake =
            tokio::time::timeout(limit, handshake(config, TlsConnector::from(tls::trusting_none().ok()?), tcp));
        let speaks_tls = handshake.await.ok()?.map_or_else(|error| tls::is_of_tls(&error), |_| true);
        return if speaks_tls { Some(Contact::OtherScheme { scheme: "https" }) } else { None };
    }
    let files = ClientFiles::load(config.upstream.tls.clone()).ok()?;
    let refusal = async {
        let mut stream = handshake(config, TlsConnector::from(files.current()), tcp).await?;
        stream.read_u8().await
    };
    let error = tokio::time::timeout(limit, refusal).await.ok()?.err()?;
    if tls::is_of_tls(&error) { Some(Contact::Handshake { why: printable_lines(&tls::explain(&error)) }) } else { None }
}

fn host(config: &Config) -> &str {
    config.upstream.url.authority().host().trim_matches(['[', ']'])
}

async fn connect(config: &Config) -> io::Result<TcpStream> {
    let url = &config.upstream.url;
    TcpStream::connect((host(config), url.authority().port_u16().unwrap_or(url.default_port()))).await
}

async fn handshake(config: &Config, connector: TlsConnector, tcp: TcpStream) -> io::Result<TlsStream<TcpStream>> {
    let name = ServerName::try_from(host(config).to_owned()).map_err(io::Error::other)?;
    connector.connect(name, tcp).await
}
