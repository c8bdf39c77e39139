//! The names that identify a client certificate: subject and `subjectAltName`. A renewed
//! certificate has the same names, so it is the same client.
//!
//! The certificate is parsed as DER ([X.690], [RFC 5280 §4.1]) as far as these two fields, which
//! are compared as bytes. Absent: verification, which the TLS handshake does, and any meaning of
//! the names.
//!
//! [X.690]: https://www.itu.int/rec/T-REC-X.690
//! [RFC 5280 §4.1]: https://www.rfc-editor.org/rfc/rfc5280#section-4.1

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

const SEQUENCE: u8 = 0x30;
const OBJECT_IDENTIFIER: u8 = 0x06;
const OCTET_STRING: u8 = 0x04;
const VERSION: u8 = 0xA0;
const EXTENSIONS: u8 = 0xA3;
/// `id-ce-subjectAltName`, 2.5.29.17.
const SUBJECT_ALT_NAME: &[u8] = &[0x55, 0x1D, 0x11];

/// A hash of the names in a certificate. Equal for certificates with the same names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CertificateNames([u8; 32]);

impl CertificateNames {
    /// Returns the hash for a certificate in DER. A certificate without names, or an unreadable
    /// one, is hashed as a whole.
    pub fn of(der: &[u8]) -> Self {
        let mut hash = Sha256::new();
        match names(der) {
            Some((subject, alternatives)) if !(subject.is_empty() && alternatives.is_none()) => {
                hash.update(b"names\0");
                hash.update((subject.len() as u64).to_be_bytes());
                hash.update(subject);
                hash.update(alternatives.unwrap_or_default());
            }
            Some(_) | None => {
                hash.update(b"certificate\0");
                hash.update(der);
            }
        }
        Self(hash.finalize().into())
    }

    /// Returns the bytes of the hash.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Returns the contents of the subject and of the extension with alternative names, or `None` if
/// the certificate cannot be parsed.
fn names(der: &[u8]) -> Option<(&[u8], Option<&[u8]>)> {
    let (certificate, _) = expect(SEQUENCE, der)?;
    let (to_be_signed, _) = expect(SEQUENCE, certificate)?;
    let rest = expect(VERSION, to_be_signed).map_or(to_be_signed, |(_, rest)| rest);
    // Serial number, algorithm, issuer, validity.
    let rest = (0..4).try_fold(rest, |rest, _| Some(element(rest)?.2))?;
    let (subject, mut rest) = expect(SEQUENCE, rest)?;
    while let Some((tag, content, behind)) = element(rest) {
        if tag == EXTENSIONS {
            return Some((subject, alternative_names(expect(SEQUENCE, content)?.0)?));
        }
        rest = behind;
    }
    if rest.is_empty() { Some((subject, None)) } else { None }
}

/// Returns the contents of the extension with alternative names, or `Some(None)` without one.
fn alternative_names(mut extensions: &[u8]) -> Option<Option<&[u8]>> {
    while !extensions.is_empty() {
        let (extension, behind) = expect(SEQUENCE, extensions)?;
        let (id, mut value) = expect(OBJECT_IDENTIFIER, extension)?;
        if id == SUBJECT_ALT_NAME {
            // A flag that marks it as critical may precede it.
            while let Some((tag, content, behind)) = element(value) {
                if tag == OCTET_STRING {
                    return Some(Some(content));
                }
                value = behind;
            }
            return None;
        }
        extensions = behind;
    }
    Some(None)
}

/// Returns the content of the first element, which must have this tag, and the bytes behind it.
fn expect(tag: u8, der: &[u8]) -> Option<(&[u8], &[u8])> {
    let (found, content, behind) = element(der)?;
    if found == tag { Some((content, behind)) } else { None }
}

/// Returns the tag of the first element, its content, and the bytes behind it. No certificate has
/// tags of more than one byte.
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    const LONG_TAG: u8 = 0x1F;
    const LONG_LENGTH: u8 = 0x80;
    let (&tag, rest) = der.split_first()?;
    let (&length, rest) = rest.split_first()?;
    if tag & LONG_TAG == LONG_TAG {
        return None;
    }
    let (length, rest) = match length {
        short if short < LONG_LENGTH => (usize::from(short), rest),
        long => {
            let (bytes, rest) = rest.split_at_checked(usize::from(long & !LONG_LENGTH))?;
            if bytes.is_empty() || bytes.len() > size_of::<u32>() {
                return None;
            }
            let length = bytes.iter().fold(0u64, |length, byte| length << 8 | u64::from(*byte));
            (usize::try_from(length).ok()?, rest)
        }
    };
    let (content, behind) = rest.split_at_checked(length)?;
    Some((tag, content, behind))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType};

    use super::*;

    /// A certificate of its own key.
    fn certificate(subject: Option<&str>, alternatives: &[SanType]) -> Vec<u8> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        if let Some(subject) = subject {
            params.distinguished_name.push(DnType::CommonName, subject);
        }
        params.subject_alt_names = alternatives.to_vec();
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec()
    }

    fn mail(address: &str) -> SanType {
        SanType::Rfc822Name(address.try_into().unwrap())
    }

    #[test]
    fn a_renewed_certificate_has_the_same_names_and_any_other_name_counts() {
        let all = [
            certificate(Some("a"), &[]),
            certificate(Some("b"), &[]),
            certificate(None, &[mail("a@example.com")]),
            certificate(None, &[mail("b@example.com")]),
            certificate(Some("a"), &[mail("a@example.com")]),
            certificate(Some("a"), &[SanType::IpAddress([127, 0, 0, 1].into())]),
            certificate(Some("a"), &[SanType::DnsName("a".try_into().unwrap())]),
            certificate(Some("a"), &[SanType::URI("a".try_into().unwrap())]),
            certificate(Some(&"a".repeat(300)), &[]),
        ];
        for (at, one) in all.iter().enumerate() {
            assert!(names(one).is_some(), "{at} is read");
            for (other_at, other) in all.iter().enumerate() {
                assert_eq!(CertificateNames::of(one) == CertificateNames::of(other), at == other_at, "{at} {other_at}");
            }
        }
        assert_eq!(CertificateNames::of(&certificate(Some("a"), &[])), CertificateNames::of(&all[0]), "renewed");
        let renewed = certificate(Some("a"), &[mail("a@example.com")]);
        assert_eq!(CertificateNames::of(&renewed), CertificateNames::of(&all[4]), "renewed");
    }

    #[test]
    fn certificates_without_a_name_are_told_apart_all_the_same() {
        let (one, other) = (certificate(None, &[]), certificate(None, &[]));
        assert_eq!(names(&one), Some((&[][..], None)));
        assert_eq!(CertificateNames::of(&one), CertificateNames::of(&one));
        assert_ne!(CertificateNames::of(&one), CertificateNames::of(&other));
    }

    #[test]
    fn a_certificate_cut_short_has_no_names() {
        let whole = certificate(Some("a"), &[mail("a@example.com")]);
        for length in 0..whole.len() {
            assert_eq!(names(&whole[..length]), None, "{length}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = CertificateNames::of(&bytes);
        }

        #[test]
        fn no_changed_byte_panics(at in 0..400usize, byte: u8) {
            let mut changed = certificate(Some("a"), &[mail("a@example.com")]);
            let at = at % changed.len();
            changed[at] = byte;
            let _ = CertificateNames::of(&changed);
        }
    }
}
