//! TLS errors in the words of an operator: the fault of a certificate, and the remedy.
//!
//! The library names its variants; an operator knows files, names and dates. Absent: the file or
//! peer concerned, which the caller adds.

use std::io;

use tokio_rustls::rustls::{AlertDescription, CertificateError, Error, InvalidMessage, OtherError};

use super::authority::UnknownAuthority;

/// Describes the error of a failed handshake, or of a read after it.
pub fn explain(error: &io::Error) -> String {
    match of_tls(error) {
        Some(error) => describe(error),
        None if error.kind() == io::ErrorKind::UnexpectedEof => {
            "the connection was closed during the TLS handshake".to_owned()
        }
        None => error.to_string(),
    }
}

/// Returns true if the error shows a peer that does not speak TLS at all.
pub fn is_plain(error: &io::Error) -> bool {
    matches!(of_tls(error), Some(Error::InvalidMessage(InvalidMessage::InvalidContentType)))
}

/// Returns true if the error shows a peer that speaks TLS: it was refused for its certificate or
/// parameters, or sent an alert.
pub fn is_of_tls(error: &io::Error) -> bool {
    matches!(of_tls(error), Some(Error::InvalidCertificate(_) | Error::AlertReceived(_) | Error::PeerIncompatible(_)))
}

/// Describes the error of a handshake that comes again at each attempt: a certificate or a
/// parameter is refused, or the peer does not speak TLS. Returns `None` for any other. Of the
/// peer's bytes the text has the name of an unknown authority alone.
pub fn refusal(error: &io::Error) -> Option<String> {
    let refused = of_tls(error)?;
    let is_final = match refused {
        Error::AlertReceived(alert) => {
            !matches!(alert, AlertDescription::InternalError | AlertDescription::UserCanceled)
        }
        _ => is_of_tls(error) || is_plain(error),
    };
    let is_of_other_name =
        matches!(refused, Error::InvalidCertificate(CertificateError::NotValidForNameContext { .. }));
    let text = || {
        if is_of_other_name { certificate(&CertificateError::NotValidForName) } else { describe(refused) }
    };
    is_final.then(text)
}

fn of_tls(error: &io::Error) -> Option<&Error> {
    error.get_ref()?.downcast_ref()
}

/// Describes an error as the predicate of a sentence, or as a sentence of its own.
pub(super) fn describe(error: &Error) -> String {
    match error {
        Error::InconsistentKeys(_) => "the private key does not belong to the certificate".to_owned(),
        Error::InvalidCertificate(error) => certificate(error),
        Error::InvalidMessage(InvalidMessage::InvalidContentType) => {
            "the other side does not speak TLS on this port".to_owned()
        }
        Error::AlertReceived(alert) => self::alert(*alert),
        Error::General(text) if text.starts_with("failed to parse private key") => {
            "the private key is of a kind that is not supported: RSA, ECDSA (P-256, P-384) and Ed25519 are".to_owned()
        }
        Error::NoApplicationProtocol => "the other side speaks neither HTTP/1.1 nor HTTP/2".to_owned(),
        Error::PeerIncompatible(_) => {
            "the other side speaks neither TLS 1.3 nor TLS 1.2 as it is spoken here".to_owned()
        }
        error => error.to_string(),
    }
}

fn certificate(error: &CertificateError) -> String {
    match error {
        CertificateError::UnknownIssuer => {
            "the certificate is signed by an authority that is not trusted here".to_owned()
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => "the certificate has expired".to_owned(),
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "the certificate is not valid yet: is the clock of this machine right?".to_owned()
        }
        CertificateError::NotValidForName => "the certificate is for another name".to_owned(),
        CertificateError::NotValidForNameContext { expected, presented } => {
            let expected = expected.to_str();
            match presented.as_slice() {
                [] => {
                    format!("the certificate has no name that is compared (subjectAltName), and should have {expected}")
                }
                names => format!("the certificate is for {}, not for {expected}", names.join(", ")),
            }
        }
        CertificateError::BadEncoding => "the certificate is damaged, or not an X.509 certificate".to_owned(),
        CertificateError::BadSignature => {
            "the certificate is not signed by the authority of that name that is trusted here".to_owned()
        }
        CertificateError::Revoked => "the certificate was revoked".to_owned(),
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "the certificate is for another purpose (extendedKeyUsage)".to_owned()
        }
        CertificateError::Other(OtherError(error)) if error.is::<UnknownAuthority>() => error.to_string(),
        CertificateError::Other(error) if error.to_string().contains("CaUsedAsEndEntity") => {
            "the certificate is one of an authority (CA:TRUE), which cannot stand for a server or a client".to_owned()
        }
        CertificateError::Other(error) if error.to_string().contains("UnsupportedCertVersion") => {
            "the certificate is not of X.509 version 3".to_owned()
        }
        error => format!("the certificate cannot be used: {error}"),
    }
}

fn alert(alert: AlertDescription) -> String {
    match alert {
        AlertDescription::CertificateRequired => "the other side wants a client certificate (cert and key)".to_owned(),
        AlertDescription::BadCertificate
        | AlertDescription::UnsupportedCertificate
        | AlertDescription::CertificateRevoked
        | AlertDescription::CertificateExpired
        | AlertDescription::CertificateUnknown
        | AlertDescription::UnknownCA
        | AlertDescription::AccessDenied => {
            format!("the other side does not accept our certificate, or wants one that was not given ({alert:?})")
        }
        AlertDescription::UnrecognisedName => "the other side has no certificate for that host".to_owned(),
        AlertDescription::NoApplicationProtocol => "the other side speaks neither HTTP/1.1 nor HTTP/2".to_owned(),
        AlertDescription::ProtocolVersion => "the other side speaks neither TLS 1.3 nor TLS 1.2".to_owned(),
        alert => format!("the other side ended the handshake ({alert:?})"),
    }
}

/// Describes the contents of a file that lacks the expected item, as the rest of a sentence.
/// Returns an empty text if they are unknown.
pub(super) fn describe_contents(pem: &[u8]) -> &'static str {
    let has = |label: &[u8]| pem.windows(label.len()).any(|piece| piece == label);
    if pem.is_empty() {
        "; it is empty"
    } else if has(b"BEGIN ENCRYPTED PRIVATE KEY") || has(b"Proc-Type: 4,ENCRYPTED") {
        "; the private key in it has a password, and must be without one (openssl pkey -in FILE -out FILE)"
    } else if has(b"PRIVATE KEY") {
        "; what it holds is a private key"
    } else if has(b"BEGIN CERTIFICATE REQUEST") || has(b"BEGIN NEW CERTIFICATE REQUEST") {
        "; what it holds is a request for a certificate, which an authority has yet to sign"
    } else if has(b"BEGIN CERTIFICATE") {
        "; what it holds is a certificate"
    } else if pem.starts_with(&[0x30]) {
        "; it seems to be in DER form (openssl x509 -inform DER and openssl pkey -inform DER turn it into PEM)"
    } else {
        ""
    }
}

#[cfg(test)]
mod tests {
    use tokio_rustls::rustls::pki_types::ServerName;

    use super::*;

    #[test]
    fn errors_of_the_library_are_described() {
        let name = ServerName::try_from("mcp.example.com").unwrap();
        let for_name = CertificateError::NotValidForNameContext {
            expected: name.clone(),
            presented: vec!["a.example".to_owned(), "b.example".to_owned()],
        };
        let nameless = CertificateError::NotValidForNameContext { expected: name, presented: Vec::new() };
        for (error, expected) in [
            (Error::InvalidCertificate(CertificateError::UnknownIssuer), "an authority that is not trusted here"),
            (Error::InvalidCertificate(for_name), "is for a.example, b.example, not for mcp.example.com"),
            (Error::InvalidCertificate(nameless), "should have mcp.example.com"),
            (Error::InvalidMessage(InvalidMessage::InvalidContentType), "does not speak TLS on this port"),
            (Error::AlertReceived(AlertDescription::CertificateRequired), "wants a client certificate"),
            (Error::AlertReceived(AlertDescription::UnknownCA), "does not accept our certificate"),
            (
                Error::General("failed to parse private key as RSA, ECDSA, or EdDSA".into()),
                "a kind that is not supported",
            ),
        ] {
            let text = describe(&error);
            assert!(text.contains(expected), "{text}");
            assert_eq!(explain(&io::Error::new(io::ErrorKind::InvalidData, error)), text);
        }
        assert_eq!(explain(&io::Error::other("broken")), "broken");
    }

    #[test]
    fn a_refusal_that_comes_again_is_told_without_the_peers_names() {
        let of = |error| refusal(&io::Error::new(io::ErrorKind::InvalidData, error));
        let for_name = CertificateError::NotValidForNameContext {
            expected: ServerName::try_from("mcp.example.com").unwrap(),
            presented: vec!["a.example".to_owned()],
        };
        assert_eq!(of(Error::InvalidCertificate(for_name)).as_deref(), Some("the certificate is for another name"));
        assert!(of(Error::AlertReceived(AlertDescription::CertificateRequired)).is_some());
        assert!(of(Error::InvalidMessage(InvalidMessage::InvalidContentType)).is_some());
        assert_eq!(of(Error::AlertReceived(AlertDescription::InternalError)), None);
        assert_eq!(refusal(&io::Error::from(io::ErrorKind::ConnectionReset)), None);
    }

    #[test]
    fn the_contents_of_a_file_are_described() {
        for (pem, expected) in [
            (&b""[..], "is empty"),
            (b"-----BEGIN ENCRYPTED PRIVATE KEY-----", "has a password"),
            (b"-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n", "has a password"),
            (b"-----BEGIN EC PRIVATE KEY-----", "a private key"),
            (b"-----BEGIN CERTIFICATE-----", "a certificate"),
            (b"-----BEGIN CERTIFICATE REQUEST-----", "a request for a certificate"),
            (b"\x30\x82\x01", "in DER form"),
        ] {
            assert!(describe_contents(pem).contains(expected), "{expected}");
        }
        assert_eq!(describe_contents(b"ssh-ed25519 AAAA"), "");
    }
}
