//! The name of the authority that a certificate chain leads to, for the text of a refusal.
//!
//! Owned here: the verifier that adds the name to the error of an unknown authority, and the few
//! fields of a certificate that this reads. Invariants: any bytes are accepted, and a name is
//! printable and short, because a peer chose it. Absent: the verification, which is the library's.

use std::fmt;
use std::sync::Arc;

use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{CertificateError, DigitallySignedStruct, Error, OtherError, SignatureScheme};

/// Longest name, in characters.
const NAME_MAX: usize = 64;
/// Most certificates of a chain.
const CHAIN_MAX: usize = 16;

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OBJECT_ID: u8 = 0x06;
/// Tag of the version of a certificate, which is optional.
const VERSION: u8 = 0xa0;
const BMP_STRING: u8 = 0x1e;
/// Parts of a name, the most telling first: common name, organisation, unit.
const PARTS: [&[u8]; 3] = [&[0x55, 0x04, 0x03], &[0x55, 0x04, 0x0a], &[0x55, 0x04, 0x0b]];

/// The authority at the end of a chain is not trusted.
#[derive(Debug)]
pub(super) struct UnknownAuthority {
    name: String,
    /// True if another authority of that name is trusted.
    has_namesake: bool,
}

impl fmt::Display for UnknownAuthority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = if self.has_namesake {
            "the certificate is not signed by the authority of that name that is trusted here"
        } else {
            "the certificate is signed by an authority that is not trusted here"
        };
        write!(f, "{text}: {}", self.name)
    }
}

impl std::error::Error for UnknownAuthority {}

/// Verifier whose error names an unknown authority.
#[derive(Debug)]
pub(super) struct NamingVerifier(pub(super) Arc<WebPkiServerVerifier>);

impl ServerCertVerifier for NamingVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verified = self.0.verify_server_cert(end_entity, intermediates, name, ocsp, now);
        verified.map_err(|error| {
            let has_namesake = match error {
                Error::InvalidCertificate(CertificateError::UnknownIssuer) => false,
                Error::InvalidCertificate(CertificateError::BadSignature) => true,
                error => return error,
            };
            authority(end_entity, intermediates).map_or(error, |name| {
                let unknown = OtherError(Arc::new(UnknownAuthority { name, has_namesake }));
                Error::InvalidCertificate(CertificateError::Other(unknown))
            })
        })
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

/// Returns the name of the authority that the last certificate of the chain names.
fn authority(end_entity: &[u8], intermediates: &[CertificateDer<'_>]) -> Option<String> {
    let mut last = names(end_entity)?;
    for _ in 0..CHAIN_MAX {
        let signer = intermediates.iter().filter_map(|der| names(der)).find(|it| it.subject == last.issuer);
        match signer {
            Some(signer) if signer.issuer != last.issuer => last = signer,
            Some(_) | None => break,
        }
    }
    readable(last.issuer)
}

/// Names in a certificate, as it has them.
struct Names<'a> {
    issuer: &'a [u8],
    subject: &'a [u8],
}

fn names(certificate: &[u8]) -> Option<Names<'_>> {
    let (mut fields, _) = of_tag(of_tag(certificate, SEQUENCE)?.0, SEQUENCE)?;
    if let Some((_, rest)) = of_tag(fields, VERSION) {
        fields = rest;
    }
    // Serial number and algorithm.
    let (_, _, fields) = value(fields)?;
    let (_, _, fields) = value(fields)?;
    let (issuer, fields) = of_tag(fields, SEQUENCE)?;
    // Validity.
    let (_, _, fields) = value(fields)?;
    let (subject, _) = of_tag(fields, SEQUENCE)?;
    Some(Names { issuer, subject })
}

/// Returns the text of a name for people.
fn readable(name: &[u8]) -> Option<String> {
    let text = PARTS.iter().find_map(|part| text_of(name, part))?;
    let is_printable = |c: char| c.is_alphanumeric() || c.is_ascii_graphic() || c == ' ';
    let text: String = text.trim().chars().take(NAME_MAX).map(|c| if is_printable(c) { c } else { '?' }).collect();
    Some(text).filter(|text| !text.is_empty())
}

/// Returns the last value of a part of a name.
fn text_of(mut name: &[u8], part: &[u8]) -> Option<String> {
    let mut found = None;
    while let Some((set, rest)) = of_tag(name, SET) {
        name = rest;
        let Some((pair, _)) = of_tag(set, SEQUENCE) else { continue };
        let Some((id, pair)) = of_tag(pair, OBJECT_ID) else { continue };
        if id == part
            && let Some((tag, text, _)) = value(pair)
        {
            found = Some(if tag == BMP_STRING { of_utf16(text) } else { String::from_utf8_lossy(text).into_owned() });
        }
    }
    found
}

fn of_utf16(text: &[u8]) -> String {
    let units: Vec<u16> = text.as_chunks::<2>().0.iter().map(|pair| u16::from_be_bytes(*pair)).collect();
    String::from_utf16_lossy(&units)
}

/// Returns the contents of the first value, if it has this tag, and the bytes behind it.
fn of_tag(der: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (found, contents, rest) = value(der)?;
    if found == tag { Some((contents, rest)) } else { None }
}

/// Returns tag and contents of the first value in DER, and the bytes behind it.
fn value(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = der.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..0x80 => (usize::from(first), rest),
        // One to three bytes: more than any certificate has.
        0x81..=0x83 => {
            let (bytes, rest) = rest.split_at_checked(usize::from(first - 0x80))?;
            (bytes.iter().fold(0, |length, &byte| length << 8 | usize::from(byte)), rest)
        }
        0x80 | 0x84.. => return None,
    };
    let (contents, rest) = rest.split_at_checked(length)?;
    Some((tag, contents, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Encodes a value.
    fn encoded(tag: u8, contents: &[u8]) -> Vec<u8> {
        let length = u16::try_from(contents.len()).expect("short").to_be_bytes();
        [&[tag, 0x82], &length[..], contents].concat()
    }

    fn name(parts: &[(&[u8], u8, &[u8])]) -> Vec<u8> {
        let of_part = |(id, tag, text): &(&[u8], u8, &[u8])| {
            encoded(SET, &encoded(SEQUENCE, &[encoded(OBJECT_ID, id), encoded(*tag, text)].concat()))
        };
        encoded(SEQUENCE, &parts.iter().flat_map(of_part).collect::<Vec<_>>())
    }

    fn common(text: &str) -> Vec<u8> {
        name(&[(PARTS[1], 0x13, b"Org"), (PARTS[0], 0x0c, text.as_bytes())])
    }

    fn certificate(issuer: &[u8], subject: &[u8]) -> CertificateDer<'static> {
        let version = encoded(VERSION, &[2, 1, 2]);
        let fields = [version, vec![2, 1, 1], encoded(SEQUENCE, &[]), issuer.to_vec(), encoded(SEQUENCE, &[])].concat();
        let fields = encoded(SEQUENCE, &[fields, subject.to_vec()].concat());
        CertificateDer::from(encoded(SEQUENCE, &fields))
    }

    #[test]
    fn the_authority_at_the_end_of_the_chain_is_named() {
        let (root, middle, leaf) = (common("Root"), common("Middle"), common("leaf"));
        let end = certificate(&middle, &leaf);
        assert_eq!(authority(&end, &[]).as_deref(), Some("Middle"));
        let between = certificate(&root, &middle);
        assert_eq!(authority(&end, std::slice::from_ref(&between)).as_deref(), Some("Root"));
        let own = certificate(&root, &root);
        assert_eq!(authority(&end, &[own.clone(), between.clone()]).as_deref(), Some("Root"));
        // Certificates that sign each other.
        assert!(authority(&end, &[certificate(&leaf, &middle), certificate(&middle, &leaf)]).is_some());
    }

    #[test]
    fn a_name_is_printable_and_short() {
        let of = |issuer: &[u8]| authority(&certificate(issuer, &common("leaf")), &[]);
        assert_eq!(of(&common(&"x".repeat(100))).as_deref(), Some(&*"x".repeat(64)));
        assert_eq!(of(&common("a\n\u{202e}b\u{1b}")).as_deref(), Some("a??b?"));
        assert_eq!(of(&name(&[(PARTS[1], 0x13, b"Org")])).as_deref(), Some("Org"));
        assert_eq!(of(&name(&[(PARTS[0], BMP_STRING, &[0, b'A', 0, b'B'])])).as_deref(), Some("AB"));
        assert_eq!(of(&name(&[])), None);
    }

    #[test]
    fn any_bytes_are_accepted() {
        let whole = certificate(&common("Root"), &common("leaf"));
        for end in 0..whole.len() {
            let _ = authority(&whole[..end], &[]);
            let mut changed = whole.to_vec();
            changed[end] ^= 0xff;
            let _ = authority(&changed, std::slice::from_ref(&whole));
        }
    }
}
