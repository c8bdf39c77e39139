//! How a replica is connected to: by requests, and by the questions who it is.
//!
//! What is believed and shown in TLS can change; connections that are made from then on use what is new. Absent: when the files are
//! looked at, and the system's authorities, which Pingora reads once.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use pingora_core::protocols::ALPN;
use pingora_core::protocols::tls::CaType;
use pingora_core::server::configuration::ServerConf;
use pingora_core::upstreams::peer::HttpPeer;
use pingora_core::utils::tls::{CertKey, WrappedX509, parse_x509};

use super::table::Backend;
use crate::config::{BalanceTls, KeyPair, UpstreamTls};
use crate::tls::{self, Error, Files, Side, Source};

/// An idle connection is used again for so long: less than a sidecar keeps one open.
const IDLE: Duration = Duration::from_secs(30);

/// A worker keeps so many idle connections, to all replicas together.
const IDLE_MAX: usize = 1024;

/// What the replicas are believed by, and what they are shown.
pub type ReplicaFiles = Files<BalanceTls>;

/// What all connections to replicas have in common.
pub struct Peers {
    conf: Arc<ServerConf>,
    /// `None` where there are none.
    files: Option<Arc<ReplicaFiles>>,
    name: Option<String>,
    connect_timeout: Duration,
}

impl Peers {
    /// Reads the files that TLS needs.
    ///
    /// # Errors
    /// When one cannot be read, or has nothing of what it is for.
    pub fn new(tls: &BalanceTls, connect_timeout: Duration) -> Result<Self, Error> {
        let files = if tls.paths().is_empty() { None } else { Some(Arc::new(Files::load(tls.clone())?)) };
        // Each connection is given its own; here it says that those of the system are not needed.
        let ca_file = tls.ca.as_ref().map(|path| path.to_string_lossy().into_owned());
        // Pingora takes the threads for those that share the connections; here each has its own.
        let (threads, upstream_keepalive_pool_size) = (1, IDLE_MAX);
        let conf =
            ServerConf { ca_file, threads, upstream_keepalive_pool_size, max_retries: 8, ..ServerConf::default() };
        let conf = Arc::new(conf);
        Ok(Self { conf, files, name: tls.name.clone(), connect_timeout })
    }

    /// What Pingora is to know of it.
    pub fn server_conf(&self) -> &Arc<ServerConf> {
        &self.conf
    }

    /// The files that TLS needs, if it needs any.
    pub fn files(&self) -> Option<&Arc<ReplicaFiles>> {
        self.files.as_ref()
    }

    /// The way to a replica.
    pub fn peer_for(&self, backend: &Backend) -> HttpPeer {
        let name = backend.transport.tls_name.as_ref().map(|name| self.name.clone().unwrap_or_else(|| name.clone()));
        let mut peer = HttpPeer::new(backend.address, name.is_some(), name.unwrap_or_default());
        if let Some(files) = self.files.as_ref().filter(|_| peer.is_tls()) {
            let Credentials { authorities, identity } = files.current();
            (peer.options.ca, peer.client_cert_key) = (authorities, identity);
        }
        peer.options.alpn = ALPN::H1;
        peer.options.connection_timeout = Some(self.connect_timeout);
        peer.options.total_connection_timeout = Some(self.connect_timeout * 2);
        peer.options.idle_timeout = Some(IDLE);
        peer
    }
}

/// What a connection to a replica needs of the files.
#[derive(Clone)]
pub struct Credentials {
    /// `None`: those of the system.
    authorities: Option<Arc<CaType>>,
    identity: Option<Arc<CertKey>>,
}

impl Source for BalanceTls {
    type Made = Credentials;
    const SIDE: Side = Side::Replicas;

    fn paths(&self) -> Vec<&Path> {
        let identity = self.identity.iter().flat_map(|pair| [&pair.cert, &pair.key]);
        self.ca.iter().chain(identity).map(PathBuf::as_path).collect()
    }

    fn make(&self) -> Result<Credentials, Error> {
        // Pingora takes what cannot be used for a bug.
        UpstreamTls { ca: self.ca.clone(), identity: self.identity.clone() }.make()?;
        let authorities = self.ca.as_deref().map(authorities_of).transpose()?;
        let identity = self.identity.as_ref().map(cert_key_of).transpose()?.map(Arc::new);
        Ok(Credentials { authorities, identity })
    }
}

/// Authorities, as Pingora believes them.
fn authorities_of(path: &Path) -> Result<Arc<CaType>, Error> {
    let authorities = tls::read_authorities(path)?;
    Ok(authorities.iter().map(|certificate| WrappedX509::new(certificate.to_vec(), parse_x509)).collect())
}

/// A certificate with its key, as Pingora shows it.
fn cert_key_of(pair: &KeyPair) -> Result<CertKey, Error> {
    let (chain, key) = tls::read_pair(pair)?;
    Ok(CertKey::new(chain.iter().map(|certificate| certificate.to_vec()).collect(), key.secret_der().to_vec()))
}
