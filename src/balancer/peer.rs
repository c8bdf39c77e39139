//! Connection settings for backends, for requests and health checks alike.
//!
//! The authorities and the client certificate may change; new connections use the new ones. Absent:
//! the schedule of reloads, and the system's authorities, which Pingora reads once.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use pingora_core::protocols::ALPN;
use pingora_core::protocols::tls::CaType;
use pingora_core::server::configuration::ServerConf;
use pingora_core::upstreams::peer::HttpPeer;
use pingora_core::utils::tls::{CertKey, WrappedX509, parse_x509};

use super::table::Backend;
use mcp_resume_config::{BalanceTls, KeyPair, UpstreamTls};
use mcp_resume_tls::{self as tls, Error, Files, Side, Source};

/// Longest time that an idle connection is kept for reuse; shorter than a sidecar keeps it open.
const IDLE: Duration = Duration::from_secs(30);

/// Most idle connections of one worker, to all replicas together.
const IDLE_MAX: usize = 1024;

/// Authorities and client certificate for connections to replicas.
pub type ReplicaFiles = Files<ReplicaTls>;

/// The TLS settings, as the source of the files.
#[derive(Clone)]
pub struct ReplicaTls(BalanceTls);

/// Settings that all connections to replicas share.
pub struct Peers {
    conf: Arc<ServerConf>,
    /// TLS files, or `None` if none are configured.
    files: Option<Arc<ReplicaFiles>>,
    name: Option<String>,
    connect_timeout: Duration,
}

impl Peers {
    /// Loads the TLS files.
    ///
    /// # Errors
    /// If a file cannot be read or used.
    pub fn new(tls: &BalanceTls, connect_timeout: Duration) -> Result<Self, Error> {
        let source = ReplicaTls(tls.clone());
        let files = if source.paths().is_empty() { None } else { Some(Arc::new(Files::load(source)?)) };
        // Each connection gets its own authorities; this setting only keeps Pingora from loading
        // the system's.
        let ca_file = tls.ca.as_ref().map(|path| path.to_string_lossy().into_owned());
        // Pingora divides the pool by the number of threads that share it; here each thread has its
        // own.
        let (threads, upstream_keepalive_pool_size) = (1, IDLE_MAX);
        let conf =
            ServerConf { ca_file, threads, upstream_keepalive_pool_size, max_retries: 8, ..ServerConf::default() };
        let conf = Arc::new(conf);
        Ok(Self { conf, files, name: tls.name.clone(), connect_timeout })
    }

    /// Returns Pingora's server configuration.
    pub fn server_conf(&self) -> &Arc<ServerConf> {
        &self.conf
    }

    /// Returns the TLS files, or `None` if none are configured.
    pub fn files(&self) -> Option<&Arc<ReplicaFiles>> {
        self.files.as_ref()
    }

    /// Returns the connection settings for a backend.
    pub fn peer_for(&self, backend: &Backend) -> HttpPeer {
        let name = backend.transport.tls_name.as_ref().map(|name| self.name.clone().unwrap_or_else(|| name.clone()));
        let mut peer = HttpPeer::new(backend.address, name.is_some(), name.unwrap_or_default());
        if let Some(files) = &self.files
            && peer.is_tls()
        {
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

/// TLS material for a connection to a replica.
#[derive(Clone)]
pub struct Credentials {
    /// Trusted authorities, or `None` for the authorities of the system.
    authorities: Option<Arc<CaType>>,
    identity: Option<Arc<CertKey>>,
}

impl Source for ReplicaTls {
    type Material = Credentials;
    const SIDE: Side = Side::Replicas;

    fn paths(&self) -> Vec<&Path> {
        let identity = self.0.identity.iter().flat_map(|pair| [&pair.cert, &pair.key]);
        self.0.ca.iter().chain(identity).map(PathBuf::as_path).collect()
    }

    fn load_material(&self) -> Result<Credentials, Error> {
        // Pingora panics on files that it cannot use, so they are checked first.
        let Self(tls) = self;
        UpstreamTls { ca: tls.ca.clone(), identity: tls.identity.clone(), ..UpstreamTls::default() }.load_material()?;
        let authorities = tls.ca.as_deref().map(authorities_of).transpose()?;
        let identity = tls.identity.as_ref().map(cert_key_of).transpose()?.map(Arc::new);
        Ok(Credentials { authorities, identity })
    }
}

/// Reads authorities in Pingora's form.
fn authorities_of(path: &Path) -> Result<Arc<CaType>, Error> {
    let authorities = tls::read_authorities(path)?;
    Ok(authorities.iter().map(|certificate| WrappedX509::new(certificate.to_vec(), parse_x509)).collect())
}

/// Reads a certificate with its key in Pingora's form.
fn cert_key_of(pair: &KeyPair) -> Result<CertKey, Error> {
    let (chain, key) = tls::read_pair(pair)?;
    Ok(CertKey::new(chain.iter().map(|certificate| certificate.to_vec()).collect(), key.secret_der().to_vec()))
}
