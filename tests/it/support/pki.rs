//! Certificates made for one test, in a directory that goes with it.

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, IsCa, KeyPair};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};

/// An authority, and a certificate of its own for this machine.
pub(crate) struct Pki {
    dir: PathBuf,
    authority: CertifiedIssuer<'static, KeyPair>,
}

impl Pki {
    pub(crate) fn new() -> Pki {
        Pki::named("rcgen self signed cert")
    }

    /// Creates an authority of this name.
    pub(crate) fn named(name: &str) -> Pki {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let number = MADE.fetch_add(1, Ordering::SeqCst);
        let dir = std::env::temp_dir().join(format!("mcp-resume-{}-{number}", std::process::id()));
        fs::create_dir_all(&dir).expect("a directory");
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        let authority =
            CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("an authority");
        let pki = Pki { dir, authority };
        fs::write(pki.ca(), pki.authority.pem()).expect("a file");
        pki.issue();
        pki
    }

    /// The authority's certificate.
    pub(crate) fn ca(&self) -> PathBuf {
        self.dir.join("ca.pem")
    }

    /// The files of the certificate that was issued last.
    pub(crate) fn pair(&self) -> mcp_resume::config::KeyPair {
        mcp_resume::config::KeyPair { cert: self.dir.join("cert.pem"), key: self.dir.join("key.pem") }
    }

    /// Puts another certificate into the same files.
    pub(crate) fn issue(&self) {
        self.issue_for(&["localhost", "127.0.0.1"]);
    }

    /// Puts a certificate for these names into the same files.
    pub(crate) fn issue_for(&self, names: &[&str]) {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(names).expect("good names");
        let cert = params.signed_by(&key, &self.authority).expect("a certificate");
        let pair = self.pair();
        fs::write(pair.cert, cert.pem()).expect("a file");
        fs::write(pair.key, key.serialize_pem()).expect("a file");
    }

    /// Returns the certificate in the file.
    pub(crate) fn certificate(&self) -> CertificateDer<'static> {
        CertificateDer::from_pem_file(self.pair().cert).expect("a certificate")
    }

    fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(self.ca()).expect("a certificate")).expect("an authority");
        roots
    }

    /// A client that believes the authority and offers `alpn`.
    pub(crate) fn client(&self, alpn: &[&str]) -> Arc<ClientConfig> {
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let builder = builder.with_safe_default_protocol_versions().expect("versions");
        let mut config = builder.with_root_certificates(self.roots()).with_no_client_auth();
        config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        Arc::new(config)
    }

    /// A client with a certificate of its own for `name`, another each time.
    pub(crate) fn client_named(&self, name: &str) -> Arc<ClientConfig> {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(vec![format!("{name}.example.com")]).expect("a good name");
        params.distinguished_name.push(DnType::CommonName, name);
        let certificate = params.signed_by(&key, &self.authority).expect("a certificate").der().clone();
        let key = PrivateKeyDer::try_from(key.serialize_der()).expect("a key");
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let builder = builder.with_safe_default_protocol_versions().expect("versions");
        let config = builder.with_root_certificates(self.roots()).with_client_auth_cert(vec![certificate], key);
        Arc::new(config.expect("a pair"))
    }

    /// A server with the certificate, that wants one of the authority's from its clients where
    /// `asks` says so.
    pub(crate) fn server(&self, alpn: &[&str], asks: bool) -> Arc<ServerConfig> {
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone());
        let builder = builder.with_safe_default_protocol_versions().expect("versions");
        let builder = if asks {
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(self.roots()), provider).build();
            builder.with_client_cert_verifier(verifier.expect("a verifier"))
        } else {
            builder.with_no_client_auth()
        };
        let key = PrivateKeyDer::from_pem_file(self.pair().key).expect("a key");
        let mut config = builder.with_single_cert(vec![self.certificate()], key).expect("a pair");
        config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        Arc::new(config)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.dir
    }
}

impl Drop for Pki {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}
