//! TLS on both sides: PEM files in, rustls configurations out.
//!
//! Owned here: what is believed and what is shown, both of which can change while they are in use. Absent: sockets and
//! handshakes, and when the files are looked at.

mod explain;
pub(crate) mod reload;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::{fs, io};

use sha2::{Digest, Sha256};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::server::danger::ClientCertVerifier;
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore, ServerConfig};
use tracing::{info, warn};

pub use explain::{explain, is_of_tls, is_plain};

use crate::config::{KeyPair, ListenTls, UpstreamTls};
use crate::sync;

/// What both sides of ours speak inside TLS, the better first.
const ALPN: [&[u8]; 2] = [HTTP2, b"http/1.1"];
/// HTTP/2 as the handshake calls it.
pub const HTTP2: &[u8] = b"h2";

/// Why there can be no TLS.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A file has nothing of what it is for.
    #[error("there is no {what} in PEM form in {}{instead}", path.display())]
    Empty {
        /// What was looked for.
        what: &'static str,
        /// Where.
        path: PathBuf,
        /// What is there, as the rest of the sentence; empty where that is not known.
        instead: &'static str,
    },
    /// Certificate and key do not belong together, or are of a kind that cannot be used.
    #[error("{} and {} cannot be used: {}", pair.cert.display(), pair.key.display(), explain::words(source))]
    Pair {
        /// Both.
        pair: KeyPair,
        /// Why not.
        source: rustls::Error,
    },
    /// The system has no list of authorities.
    #[error("the system has no certificate authorities to believe: give upstream.tls.ca")]
    NoAuthorities,
    /// The upstream's host cannot be the name in a certificate.
    #[error("no certificate can be for the host of upstream.url")]
    Name,
    /// The cryptography lacks what TLS needs.
    #[error("TLS cannot be set up: {0}")]
    Setup(#[from] rustls::Error),
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// How the upstream is spoken to.
fn client(tls: &UpstreamTls) -> Result<ClientConfig, Error> {
    let mut roots = RootCertStore::empty();
    let believed = match &tls.ca {
        Some(path) => certificates(path, &read(path)?)?,
        None => rustls_native_certs::load_native_certs().certs,
    };
    // The system's list may hold what nothing can be made of; one that was given may not.
    let (added, refused) = roots.add_parsable_certificates(believed);
    match &tls.ca {
        Some(path) if refused > 0 => {
            return Err(Error::Empty { what: "usable authority", path: path.clone(), instead: "" });
        }
        None if added == 0 => return Err(Error::NoAuthorities),
        Some(_) | None => {}
    }
    let believing = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots);
    let mut config = match &tls.identity {
        Some(pair) => {
            let (chain, key) = parse(pair, &read(&pair.cert)?, &read(&pair.key)?)?;
            let shown = believing.with_client_auth_cert(chain, key);
            shown.map_err(|source| Error::Pair { pair: pair.clone(), source })?
        }
        None => believing.with_no_client_auth(),
    };
    config.alpn_protocols = ALPN.map(Vec::from).into();
    Ok(config)
}

/// A client that believes no certificate at all: its handshakes only show whether the other side speaks TLS.
///
/// # Errors
/// When TLS cannot be set up.
pub fn trusting_nobody() -> Result<Arc<ClientConfig>, Error> {
    let config = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?;
    Ok(Arc::new(config.with_root_certificates(RootCertStore::empty()).with_no_client_auth()))
}

/// What the listener proves itself by.
pub type Certificates = Files<ListenTls>;
/// What the upstream is believed by, and what it is shown.
pub type ClientFiles = Files<UpstreamTls>;

/// What is made of PEM files. They are read again while they are in use; what cannot be used changes nothing.
pub struct Files<S: Source> {
    source: S,
    current: Mutex<Current<S::Made>>,
}

/// The names of files, and what they are for.
pub trait Source {
    /// What new connections get.
    type Made: Clone;
    /// Whose they are.
    const SIDE: Side;

    /// Where they are.
    fn paths(&self) -> Vec<&Path>;

    /// Reads them.
    ///
    /// # Errors
    /// When they cannot be read or used.
    fn make(&self) -> Result<Self::Made, Error>;
}

/// Which connections files are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Those of clients.
    Listener,
    /// Those to the server.
    Upstream,
    /// Those of a balancer to the sidecars.
    Replicas,
}

struct Current<M> {
    made: M,
    /// Of what was read last, good or not: each is judged once.
    seen: [u8; 32],
}

/// What reading the files again led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reload {
    /// They are as they were.
    Unchanged,
    /// New connections get what is new.
    Taken,
    /// They changed and cannot be used: the old ones stay.
    Refused,
}

impl Reload {
    /// Its word in metrics, where there is anything to say.
    pub fn outcome(self) -> Option<&'static str> {
        match self {
            Reload::Unchanged => None,
            Reload::Taken => Some("taken"),
            Reload::Refused => Some("refused"),
        }
    }
}

impl<S: Source> Files<S> {
    /// Reads them all.
    ///
    /// # Errors
    /// When they cannot be read or used.
    pub fn load(source: S) -> Result<Self, Error> {
        // Looked at before they are read: whatever is written between the two is seen the next time.
        let seen = digest(&source);
        let made = source.make()?;
        Ok(Self { current: Mutex::new(Current { made, seen }), source })
    }

    /// For one connection.
    pub fn current(&self) -> S::Made {
        self.lock().made.clone()
    }

    /// Reads them all again. Blocks while it reads; says in the log what changed.
    pub fn reload(&self) -> Reload {
        let seen = digest(&self.source);
        if std::mem::replace(&mut self.lock().seen, seen) == seen {
            return Reload::Unchanged;
        }
        let of = S::SIDE.as_str();
        match self.source.make() {
            Ok(made) => {
                self.lock().made = made;
                info!(of, "certificates have changed");
                Reload::Taken
            }
            Err(error) => {
                warn!(of, %error, "new certificates cannot be used, the old ones stay");
                Reload::Refused
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Current<S::Made>> {
        sync::lock(&self.current)
    }
}

impl Side {
    /// Its word in logs and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Side::Listener => "listener",
            Side::Upstream => "upstream",
            Side::Replicas => "replicas",
        }
    }
}

/// The files of `source` that cannot be read, each with its reason.
pub fn unreadable(source: &impl Source) -> Vec<Error> {
    source.paths().into_iter().filter_map(|path| read(path).err()).collect()
}

/// What makes files the same as others.
fn digest(source: &impl Source) -> [u8; 32] {
    let mut seen = Sha256::new();
    for path in source.paths() {
        match read(path) {
            Ok(bytes) => seen.update(Sha256::digest(bytes)),
            Err(error) => seen.update(Sha256::digest(error.to_string())),
        }
    }
    seen.finalize().into()
}

impl Source for ListenTls {
    type Made = TlsAcceptor;
    const SIDE: Side = Side::Listener;

    fn paths(&self) -> Vec<&Path> {
        let KeyPair { cert, key } = &self.identity;
        [cert, key].into_iter().chain(&self.client_ca).map(PathBuf::as_path).collect()
    }

    fn make(&self) -> Result<TlsAcceptor, Error> {
        acceptor(self)
    }
}

/// The system's authorities are in files that are not looked at: they are read again with the others.
impl Source for UpstreamTls {
    type Made = Arc<ClientConfig>;
    const SIDE: Side = Side::Upstream;

    fn paths(&self) -> Vec<&Path> {
        let identity = self.identity.iter().flat_map(|pair| [&pair.cert, &pair.key]);
        self.ca.iter().chain(identity).map(PathBuf::as_path).collect()
    }

    fn make(&self) -> Result<Arc<ClientConfig>, Error> {
        client(self).map(Arc::new)
    }
}

fn acceptor(tls: &ListenTls) -> Result<TlsAcceptor, Error> {
    let pair = &tls.identity;
    let (chain, key) = parse(pair, &read(&pair.cert)?, &read(&pair.key)?)?;
    let shown = ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?;
    let shown = match &tls.client_ca {
        Some(path) => shown.with_client_cert_verifier(clients(path)?),
        None => shown.with_no_client_auth(),
    };
    let shown = shown.with_single_cert(chain, key);
    let mut config = shown.map_err(|source| Error::Pair { pair: pair.clone(), source })?;
    config.alpn_protocols = ALPN.map(Vec::from).into();
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Which clients are let in.
fn clients(path: &Path) -> Result<Arc<dyn ClientCertVerifier>, Error> {
    let unusable = || Error::Empty { what: "usable authority", path: path.to_owned(), instead: "" };
    let mut roots = RootCertStore::empty();
    let (_, refused) = roots.add_parsable_certificates(certificates(path, &read(path)?)?);
    if refused > 0 {
        return Err(unusable());
    }
    WebPkiClientVerifier::builder_with_provider(roots.into(), provider()).build().map_err(|_| unusable())
}

type Chain = Vec<CertificateDer<'static>>;

/// What is believed, in the order of the file.
///
/// # Errors
/// When the file cannot be read, or has none.
#[cfg(feature = "balancer")]
pub(crate) fn read_authorities(path: &Path) -> Result<Chain, Error> {
    certificates(path, &read(path)?)
}

/// The certificate, with those of the authorities in between, and its key.
///
/// # Errors
/// When a file cannot be read, or has nothing of what it is for.
#[cfg(feature = "balancer")]
pub(crate) fn read_pair(pair: &KeyPair) -> Result<(Chain, PrivateKeyDer<'static>), Error> {
    parse(pair, &read(&pair.cert)?, &read(&pair.key)?)
}

fn parse(pair: &KeyPair, cert: &[u8], key: &[u8]) -> Result<(Chain, PrivateKeyDer<'static>), Error> {
    let chain = certificates(&pair.cert, cert)?;
    // The parser's own error quotes the line, which may be of the key.
    let no_key = |_| Error::Empty { what: "private key", path: pair.key.clone(), instead: explain::instead(key) };
    Ok((chain, PrivateKeyDer::from_pem_slice(key).map_err(no_key)?))
}

fn certificates(path: &Path, pem: &[u8]) -> Result<Chain, Error> {
    let found: Result<Chain, _> = CertificateDer::pem_slice_iter(pem).collect();
    let found = found.ok().filter(|found| !found.is_empty());
    let empty = || Error::Empty { what: "certificate", path: path.to_owned(), instead: explain::instead(pem) };
    found.ok_or_else(empty)
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    fs::read(path).map_err(|source| Error::Read { path: path.to_owned(), source })
}
