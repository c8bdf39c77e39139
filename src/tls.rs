//! TLS on both sides: PEM files in, rustls configurations out.
//!
//! Owned here: what is believed, what is shown, and the listener's certificate, which can change while it serves. Absent:
//! sockets and handshakes.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{fs, io};

use sha2::{Digest, Sha256};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore, ServerConfig};
use tracing::{info, warn};

use crate::config::{KeyPair, UpstreamTls};

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
    #[error("there is no {what} in PEM form in {}", path.display())]
    Empty {
        /// What was looked for.
        what: &'static str,
        /// Where.
        path: PathBuf,
    },
    /// Certificate and key do not belong together, or are of a kind that cannot be used.
    #[error("{} and {} cannot be used: {source}", pair.cert.display(), pair.key.display())]
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
///
/// # Errors
/// When a file cannot be read or used, or the system believes nobody.
pub fn client(tls: &UpstreamTls) -> Result<ClientConfig, Error> {
    let mut roots = RootCertStore::empty();
    let believed = match &tls.ca {
        Some(path) => certificates(path, &read(path)?)?,
        None => rustls_native_certs::load_native_certs().certs,
    };
    // The system's list may hold what nothing can be made of; one that was given may not.
    let (added, refused) = roots.add_parsable_certificates(believed);
    match &tls.ca {
        Some(path) if refused > 0 => return Err(Error::Empty { what: "usable authority", path: path.clone() }),
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

/// The listener's certificate. Read again while it serves; a pair that cannot be used changes nothing.
pub struct Certificates {
    pair: KeyPair,
    current: Mutex<Current>,
}

struct Current {
    acceptor: TlsAcceptor,
    /// Of what was read last, good or not: each is judged once.
    seen: [u8; 32],
}

/// What reading the files again led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reload {
    /// They are as they were.
    Unchanged,
    /// New connections get the new certificate.
    Taken,
    /// They changed and cannot be used: the old certificate stays.
    Refused,
}

impl Certificates {
    /// Reads both files.
    ///
    /// # Errors
    /// When they cannot be read or used.
    pub fn load(pair: KeyPair) -> Result<Self, Error> {
        let (seen, acceptor) = read_acceptor(&pair);
        Ok(Self { current: Mutex::new(Current { acceptor: acceptor?, seen }), pair })
    }

    /// For one connection.
    pub fn acceptor(&self) -> TlsAcceptor {
        self.lock().acceptor.clone()
    }

    /// Reads both files again. Blocks while it reads; says in the log what changed.
    pub fn reload(&self) -> Reload {
        let (seen, acceptor) = read_acceptor(&self.pair);
        let mut current = self.lock();
        if std::mem::replace(&mut current.seen, seen) == seen {
            return Reload::Unchanged;
        }
        match acceptor {
            Ok(acceptor) => {
                current.acceptor = acceptor;
                info!("the listener's certificate has changed");
                Reload::Taken
            }
            Err(error) => {
                warn!(%error, "the listener's new certificate cannot be used, the old one stays");
                Reload::Refused
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What makes a pair the same as another, and what becomes of it.
fn read_acceptor(pair: &KeyPair) -> ([u8; 32], Result<TlsAcceptor, Error>) {
    let mut seen = Sha256::new();
    let mut take = |path: &PathBuf| {
        let bytes = read(path);
        match &bytes {
            Ok(bytes) => seen.update(Sha256::digest(bytes)),
            Err(error) => seen.update(Sha256::digest(error.to_string())),
        }
        bytes
    };
    let (cert, key) = (take(&pair.cert), take(&pair.key));
    let acceptor = cert.and_then(|cert| acceptor(pair, &cert, &key?));
    (seen.finalize().into(), acceptor)
}

fn acceptor(pair: &KeyPair, cert: &[u8], key: &[u8]) -> Result<TlsAcceptor, Error> {
    let (chain, key) = parse(pair, cert, key)?;
    let shown = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key);
    let mut config = shown.map_err(|source| Error::Pair { pair: pair.clone(), source })?;
    config.alpn_protocols = ALPN.map(Vec::from).into();
    Ok(TlsAcceptor::from(Arc::new(config)))
}

type Chain = Vec<CertificateDer<'static>>;

fn parse(pair: &KeyPair, cert: &[u8], key: &[u8]) -> Result<(Chain, PrivateKeyDer<'static>), Error> {
    let chain = certificates(&pair.cert, cert)?;
    // The parser's own error quotes the line, which may be of the key.
    let no_key = |_| Error::Empty { what: "private key", path: pair.key.clone() };
    Ok((chain, PrivateKeyDer::from_pem_slice(key).map_err(no_key)?))
}

fn certificates(path: &Path, pem: &[u8]) -> Result<Chain, Error> {
    let found: Result<Chain, _> = CertificateDer::pem_slice_iter(pem).collect();
    let found = found.ok().filter(|found| !found.is_empty());
    found.ok_or_else(|| Error::Empty { what: "certificate", path: path.to_owned() })
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    fs::read(path).map_err(|source| Error::Read { path: path.to_owned(), source })
}
