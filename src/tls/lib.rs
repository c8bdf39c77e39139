//! TLS for the listener and for connections to the upstream: PEM files in, rustls configurations
//! out.
//!
//! This module owns the trusted authorities, certificates and keys. All of them can change while
//! they are in use. [`Files::reload`] reads them again, and keeps the old ones if the new ones
//! cannot be used. Absent: sockets, handshakes, and the task that calls it at an interval and at
//! SIGHUP ([`reload_task`]).

mod authority;
mod explain;
mod metrics;
pub mod reload_task;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::{fs, io};

use sha2::{Digest, Sha256};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::server::danger::ClientCertVerifier;
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore, ServerConfig};
use tracing::{info, warn};

use self::authority::NamingVerifier;
pub use explain::{explain, is_of_tls, is_plain, refusal};
pub use metrics::Metrics;

use mcp_resume_base::sync;
use mcp_resume_config::{FurtherRoots, KeyPair, ListenTls, UpstreamTls};

/// Protocols offered inside TLS, in order of preference.
const ALPN: [&[u8]; 2] = [HTTP2, b"http/1.1"];
/// ALPN identifier of HTTP/2.
pub const HTTP2: &[u8] = b"h2";

/// TLS could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Cause of the failure.
        source: io::Error,
    },
    /// A file lacks the item that it is configured for.
    #[error("there is no {what} in PEM form in {}{contents}", path.display())]
    Empty {
        /// The expected item.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The actual contents, as the rest of the sentence; empty if unknown.
        contents: &'static str,
    },
    /// Certificate and key do not belong together, or are of an unsupported kind.
    #[error("{} and {} cannot be used: {}", pair.cert.display(), pair.key.display(), explain::describe(source))]
    Pair {
        /// Certificate and key.
        pair: KeyPair,
        /// Cause of the failure.
        source: rustls::Error,
    },
    /// The system has no list of authorities.
    #[error("the system has no trusted certificate authorities: give a file of them (ca)")]
    NoAuthorities,
    /// The upstream's host cannot be the name in a certificate.
    #[error("no certificate can be for the host of upstream.url")]
    Name,
    /// The cryptography library lacks a required algorithm.
    #[error("TLS cannot be set up: {0}")]
    Setup(#[from] rustls::Error),
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// Creates the configuration for connections to the upstream.
fn client_config(tls: &UpstreamTls) -> Result<ClientConfig, Error> {
    let mut roots = RootCertStore::empty();
    let authorities = match (&tls.ca, &tls.further) {
        (Some(path), _) => certificates(path, &read(path)?)?,
        (None, None) => rustls_native_certs::load_native_certs().certs,
        (None, Some(further)) => [of_system(), of_further(further)].concat(),
    };
    // The system's list may hold unusable authorities; a configured file may not.
    let (added, refused) = roots.add_parsable_certificates(authorities);
    match &tls.ca {
        Some(path) if refused > 0 => {
            return Err(Error::Empty { what: "usable authority", path: path.clone(), contents: "" });
        }
        None if added == 0 => return Err(Error::NoAuthorities),
        Some(_) | None => {}
    }
    let builder = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?;
    let builder = if tls.further.is_some() {
        let verifier = WebPkiServerVerifier::builder_with_provider(roots.into(), provider()).build();
        let verifier = verifier.map_err(|_| Error::NoAuthorities)?;
        builder.dangerous().with_custom_certificate_verifier(Arc::new(NamingVerifier(verifier)))
    } else {
        builder.with_root_certificates(roots)
    };
    let mut config = match &tls.identity {
        Some(pair) => {
            let (chain, key) = parse(pair, &read(&pair.cert)?, &read(&pair.key)?)?;
            let authenticated = builder.with_client_auth_cert(chain, key);
            authenticated.map_err(|source| Error::Pair { pair: pair.clone(), source })?
        }
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = ALPN.map(Vec::from).into();
    Ok(config)
}

/// Places of the system's authorities. The library knows them too, but reads the files of
/// `SSL_CERT_FILE` and `SSL_CERT_DIR` in their place.
#[cfg(target_os = "linux")]
const OF_SYSTEM: [&str; 6] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
    "/opt/etc/ssl/certs/ca-certificates.crt",
];

/// Returns the system's authorities. The environment has no part in them. On other systems than
/// Linux, those of the environment stand in their place.
fn of_system() -> Chain {
    #[cfg(target_os = "linux")]
    if let Some(path) = OF_SYSTEM.iter().map(Path::new).find(|path| path.exists()) {
        return rustls_native_certs::load_certs_from_paths(Some(path), None).certs;
    }
    rustls_native_certs::load_native_certs().certs
}

/// Returns the authorities of these files and folders. A file that cannot be used is logged, as
/// other programs ignore it as well.
fn of_further(further: &FurtherRoots) -> Chain {
    let files = further.files.iter().map(|file| (Some(&**file), None));
    let places = files.chain(further.folders.iter().map(|folder| (None, Some(&**folder))));
    let load = |(file, folder): (Option<&Path>, Option<&Path>)| {
        let loaded = rustls_native_certs::load_certs_from_paths(file, folder);
        if loaded.certs.is_empty() {
            let path = file.or(folder).unwrap_or(Path::new("")).display();
            warn!(%path, "there is no authority in PEM form in a file or folder that was given for authorities");
        }
        loaded.certs
    };
    places.flat_map(load).collect()
}

/// Creates a client configuration that trusts no certificate. Its handshakes only show if the peer
/// speaks TLS.
///
/// # Errors
/// If TLS cannot be set up.
pub fn trusting_none() -> Result<Arc<ClientConfig>, Error> {
    let config = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?;
    Ok(Arc::new(config.with_root_certificates(RootCertStore::empty()).with_no_client_auth()))
}

/// Certificate, key and client authorities of the listener.
pub type Certificates = Files<ListenTls>;
/// Authorities and client certificate for the upstream.
pub type ClientFiles = Files<UpstreamTls>;

/// TLS material from PEM files. Reloading replaces it while it is in use; unusable files change
/// nothing.
pub struct Files<S: Source> {
    source: S,
    current: Mutex<Current<S::Material>>,
}

/// PEM files, and the TLS material that is made of them.
pub trait Source {
    /// TLS material for new connections.
    type Material: Clone;
    /// Connections that the files are for.
    const SIDE: Side;

    /// Returns the paths of all files.
    fn paths(&self) -> Vec<&Path>;

    /// Reads the files and makes the TLS material.
    ///
    /// # Errors
    /// If a file cannot be read or used.
    fn load_material(&self) -> Result<Self::Material, Error>;
}

/// Connections that TLS files are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Connections from clients.
    Listener,
    /// Connections to the MCP server.
    Upstream,
    /// Connections of a balancer to the sidecars.
    Replicas,
}

struct Current<M> {
    material: M,
    /// Digest of the last files read, valid or not: each version is tried once.
    digest: [u8; 32],
}

/// Outcome of a reload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReloadOutcome {
    /// The files have not changed.
    Unchanged,
    /// New connections use the changed files.
    Taken,
    /// The changed files cannot be used: the old material stays.
    Refused,
}

impl ReloadOutcome {
    /// Returns the label in metrics, or `None` if nothing changed.
    pub fn label(self) -> Option<&'static str> {
        match self {
            ReloadOutcome::Unchanged => None,
            ReloadOutcome::Taken => Some("taken"),
            ReloadOutcome::Refused => Some("refused"),
        }
    }
}

impl<S: Source> Files<S> {
    /// Reads all files.
    ///
    /// # Errors
    /// If a file cannot be read or used.
    pub fn load(source: S) -> Result<Self, Error> {
        // Digested before they are read: a change between the two is seen at the next reload.
        let digest = digest_of(&source);
        let material = source.load_material()?;
        Ok(Self { current: Mutex::new(Current { material, digest }), source })
    }

    /// Returns the TLS material for a new connection.
    pub fn current(&self) -> S::Material {
        self.lock().material.clone()
    }

    /// Reads all files again, and logs a change. Blocks while reading.
    pub fn reload(&self) -> ReloadOutcome {
        let digest = digest_of(&self.source);
        if std::mem::replace(&mut self.lock().digest, digest) == digest {
            return ReloadOutcome::Unchanged;
        }
        let of = S::SIDE.as_str();
        match self.source.load_material() {
            Ok(material) => {
                self.lock().material = material;
                info!(of, "certificates have changed");
                ReloadOutcome::Taken
            }
            Err(error) => {
                warn!(of, %error, "new certificates cannot be used, the old ones stay");
                ReloadOutcome::Refused
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Current<S::Material>> {
        sync::lock(&self.current)
    }
}

impl Side {
    /// Returns the label in logs and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Side::Listener => "listener",
            Side::Upstream => "upstream",
            Side::Replicas => "replicas",
        }
    }
}

/// Returns an error for each file of `source` that cannot be read.
pub fn unreadable(source: &impl Source) -> Vec<Error> {
    source.paths().into_iter().filter_map(|path| read(path).err()).collect()
}

/// Digests the contents of all files, or the errors in reading them.
fn digest_of(source: &impl Source) -> [u8; 32] {
    let mut digest = Sha256::new();
    for path in source.paths() {
        match read(path) {
            Ok(bytes) => digest.update(Sha256::digest(bytes)),
            Err(error) => digest.update(Sha256::digest(error.to_string())),
        }
    }
    digest.finalize().into()
}

impl Source for ListenTls {
    type Material = TlsAcceptor;
    const SIDE: Side = Side::Listener;

    fn paths(&self) -> Vec<&Path> {
        let KeyPair { cert, key } = &self.identity;
        [cert, key].into_iter().chain(&self.client_ca).map(PathBuf::as_path).collect()
    }

    fn load_material(&self) -> Result<TlsAcceptor, Error> {
        acceptor(self)
    }
}

/// The system's authorities have no path here: they are read again along with the other files.
impl Source for UpstreamTls {
    type Material = Arc<ClientConfig>;
    const SIDE: Side = Side::Upstream;

    fn paths(&self) -> Vec<&Path> {
        let identity = self.identity.iter().flat_map(|pair| [&pair.cert, &pair.key]);
        let further = self.further.iter().flat_map(|further| &further.files);
        self.ca.iter().chain(further).chain(identity).map(PathBuf::as_path).collect()
    }

    fn load_material(&self) -> Result<Arc<ClientConfig>, Error> {
        client_config(self).map(Arc::new)
    }
}

fn acceptor(tls: &ListenTls) -> Result<TlsAcceptor, Error> {
    let pair = &tls.identity;
    let (chain, key) = parse(pair, &read(&pair.cert)?, &read(&pair.key)?)?;
    let builder = ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?;
    let builder = match &tls.client_ca {
        Some(path) => builder.with_client_cert_verifier(client_verifier(path)?),
        None => builder.with_no_client_auth(),
    };
    let config = builder.with_single_cert(chain, key);
    let mut config = config.map_err(|source| Error::Pair { pair: pair.clone(), source })?;
    config.alpn_protocols = ALPN.map(Vec::from).into();
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Creates the verifier of client certificates.
fn client_verifier(path: &Path) -> Result<Arc<dyn ClientCertVerifier>, Error> {
    let unusable = || Error::Empty { what: "usable authority", path: path.to_owned(), contents: "" };
    let mut roots = RootCertStore::empty();
    let (_, refused) = roots.add_parsable_certificates(certificates(path, &read(path)?)?);
    if refused > 0 {
        return Err(unusable());
    }
    WebPkiClientVerifier::builder_with_provider(roots.into(), provider()).build().map_err(|_| unusable())
}

/// A certificate with its intermediate authorities, or several authorities.
pub type Chain = Vec<CertificateDer<'static>>;

/// Reads authorities, in the order of the file.
///
/// # Errors
/// If the file cannot be read, or holds none.
pub fn read_authorities(path: &Path) -> Result<Chain, Error> {
    certificates(path, &read(path)?)
}

/// Reads a certificate with its intermediate authorities, and its key.
///
/// # Errors
/// If a file cannot be read, or lacks its item.
pub fn read_pair(pair: &KeyPair) -> Result<(Chain, PrivateKeyDer<'static>), Error> {
    parse(pair, &read(&pair.cert)?, &read(&pair.key)?)
}

fn parse(pair: &KeyPair, cert: &[u8], key: &[u8]) -> Result<(Chain, PrivateKeyDer<'static>), Error> {
    let chain = certificates(&pair.cert, cert)?;
    // The parser's own error quotes the line, which may be part of the key.
    let no_key =
        |_| Error::Empty { what: "private key", path: pair.key.clone(), contents: explain::describe_contents(key) };
    Ok((chain, PrivateKeyDer::from_pem_slice(key).map_err(no_key)?))
}

fn certificates(path: &Path, pem: &[u8]) -> Result<Chain, Error> {
    let found: Result<Chain, _> = CertificateDer::pem_slice_iter(pem).collect();
    let found = found.ok().filter(|found| !found.is_empty());
    let empty =
        || Error::Empty { what: "certificate", path: path.to_owned(), contents: explain::describe_contents(pem) };
    found.ok_or_else(empty)
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    fs::read(path).map_err(|source| Error::Read { path: path.to_owned(), source })
}
