//! How a replica is connected to.

use std::sync::Arc;
use std::time::Duration;

use pingora_core::protocols::ALPN;
use pingora_core::server::configuration::ServerConf;
use pingora_core::upstreams::peer::HttpPeer;
use pingora_core::utils::tls::CertKey;

use super::table::Entry;
use crate::config::{BalanceTls, KeyPair, UpstreamTls};
use crate::tls::{self, ClientFiles, Error};

/// An idle connection is used again for so long: less than a sidecar keeps one open.
const IDLE: Duration = Duration::from_secs(30);

/// A worker keeps so many idle connections, to all replicas together.
const IDLE_MAX: usize = 1024;

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
    pub fn new(tls: &BalanceTls, connect_timeout: Duration) -> Result<Self, Error> {
        let BalanceTls { ca, identity, name } = tls.clone();
        if ca.is_some() || identity.is_some() {
            // Pingora reads them itself, and takes what cannot be used for a bug.
            ClientFiles::load(UpstreamTls { ca: ca.clone(), identity: identity.clone() })?;
        }
        let ca_file = ca.map(|path| path.to_string_lossy().into_owned());
        let identity = identity.as_ref().map(shown).transpose()?.map(Arc::new);
        // Pingora takes the threads for those that share the connections; here each has its own.
        let (threads, upstream_keepalive_pool_size) = (1, IDLE_MAX);
        let conf =
            ServerConf { ca_file, threads, upstream_keepalive_pool_size, max_retries: 8, ..ServerConf::default() };
        let conf = Arc::new(conf);
        Ok(Self { conf, identity, name, connect_timeout })
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

/// A certificate with its key, as Pingora shows it.
fn shown(pair: &KeyPair) -> Result<CertKey, Error> {
    let (chain, key) = tls::read_pair(pair)?;
    Ok(CertKey::new(chain.iter().map(|certificate| certificate.to_vec()).collect(), key.secret_der().to_vec()))
}
