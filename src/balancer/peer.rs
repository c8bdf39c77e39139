//! How a replica is connected to.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pingora_core::protocols::ALPN;
use pingora_core::server::configuration::ServerConf;
use pingora_core::upstreams::peer::HttpPeer;
use pingora_core::utils::tls::CertKey;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::table::Entry;
use crate::config::{BalanceTls, KeyPair};

/// An idle connection is used again for so long: less than a sidecar keeps one open.
const IDLE: Duration = Duration::from_secs(30);

/// Why the sidecars cannot be spoken to in TLS.
#[derive(Debug, thiserror::Error)]
#[error("balance.tls: {}: {problem}", path.display())]
pub struct Error {
    /// Of which file.
    path: PathBuf,
    /// What is wrong with it.
    problem: String,
}

/// What all connections to replicas have in common.
pub struct Peers {
    conf: Arc<ServerConf>,
    identity: Option<Arc<CertKey>>,
    name: Option<String>,
    connect_timeout: Duration,
}

impl Peers {
    /// Reads the files that TLS needs.
    ///
    /// # Errors
    /// When one cannot be read, or has nothing of what it is for.
    pub fn new(tls: &BalanceTls, connect_timeout: Duration, threads: usize) -> Result<Self, Error> {
        let identity = tls.identity.as_ref().map(identity).transpose()?.map(Arc::new);
        if let Some(path) = &tls.ca {
            certificates(path)?;
        }
        let ca_file = tls.ca.as_ref().map(|path| path.to_string_lossy().into_owned());
        let conf = Arc::new(ServerConf { ca_file, threads, max_retries: 8, ..ServerConf::default() });
        Ok(Self { conf, identity, name: tls.name.clone(), connect_timeout })
    }

    /// What Pingora is to know of it.
    pub fn server_conf(&self) -> &Arc<ServerConf> {
        &self.conf
    }

    /// The way to a replica.
    pub fn to(&self, entry: &Entry) -> HttpPeer {
        let name = entry.way.tls.as_ref().map(|name| self.name.clone().unwrap_or_else(|| name.clone()));
        let mut peer = HttpPeer::new(entry.address, name.is_some(), name.unwrap_or_default());
        peer.client_cert_key = self.identity.clone().filter(|_| peer.is_tls());
        peer.options.alpn = ALPN::H1;
        peer.options.connection_timeout = Some(self.connect_timeout);
        peer.options.total_connection_timeout = Some(self.connect_timeout * 2);
        peer.options.idle_timeout = Some(IDLE);
        peer
    }
}

fn identity(pair: &KeyPair) -> Result<CertKey, Error> {
    let chain = certificates(&pair.cert)?.into_iter().map(|certificate| certificate.to_vec()).collect();
    let failed = |problem: String| Error { path: pair.key.clone(), problem };
    let key = fs::read(&pair.key).map_err(|error| failed(error.to_string()))?;
    // The parser's own error quotes the line, which may be of the key.
    let key = PrivateKeyDer::from_pem_slice(&key).map_err(|_| failed("no private key in it".to_owned()))?;
    Ok(CertKey::new(chain, key.secret_der().to_vec()))
}

fn certificates(path: &PathBuf) -> Result<Vec<CertificateDer<'static>>, Error> {
    let failed = |problem: String| Error { path: path.clone(), problem };
    let text = fs::read(path).map_err(|error| failed(error.to_string()))?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(failed("no certificate in it".to_owned())),
        Err(error) => Err(failed(error.to_string())),
    }
}
