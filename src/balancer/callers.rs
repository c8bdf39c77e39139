//! Callers of requests of 2026-07-28, which name no session.
//!
//! Some sidecars keep a session at their server for each caller, or have a server of their own. The
//! requests of one caller then belong together, and go to one sidecar. The caller is found as the
//! sidecars find it ([`Principals`]), without a certificate. Nothing is verified here. Absent: the
//! choice of the sidecar ([`super::selection`]).

use http::Method;
use pingora_http::RequestHeader;

use mcp_resume_config::PrincipalSource;
use mcp_resume_identity::{PresentedCredentials, Principal, Principals};
use mcp_resume_protocol::headers::{Era, ProtocolVersion};
use mcp_resume_protocol::jsonrpc;

/// Key of the hashes. All balancers have the same one, so that they decide alike; no hash leaves
/// the process.
const KEY: [u8; 32] = [0; 32];

/// Finds callers.
pub struct Callers(Principals);

impl Callers {
    /// Creates a finder that reads the credential from `source`.
    pub fn new(source: PrincipalSource) -> Self {
        Self(Principals::new(source, KEY))
    }

    /// Returns a digest of the caller of a POST of 2026-07-28. Returns `None` for another request,
    /// and for a request without credentials. A refreshed JWT has the same digest. `body` may be
    /// incomplete.
    pub(super) fn of(&self, head: &RequestHeader, body: &[u8]) -> Option<[u8; 16]> {
        if head.method != Method::POST || !is_modern(head, body) {
            return None;
        }
        let presented = PresentedCredentials { headers: &head.headers, query: head.uri.query(), certificate: None };
        let principal = self.0.of(&presented);
        let Principal::Known(digest) = principal else { return None };
        Some(self.0.subject_of(&principal, &presented).map_or(digest, |subject| subject.digest()))
    }
}

/// Returns true for a request of a revision without sessions, by its header or its `_meta`.
fn is_modern(head: &RequestHeader, body: &[u8]) -> bool {
    let by_body = || ProtocolVersion::parse(&jsonrpc::meta_protocol_version(body)?);
    ProtocolVersion::from_headers(&head.headers).or_else(by_body).is_some_and(|version| version.era() == Era::Modern)
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;

    use super::*;

    fn head(headers: &[(&'static str, &str)]) -> RequestHeader {
        let mut head = RequestHeader::build(Method::POST, b"/mcp", None).unwrap();
        for (name, value) in headers {
            head.append_header(*name, *value).unwrap();
        }
        head
    }

    #[test]
    fn a_caller_is_known_by_its_credentials() {
        let callers = Callers::new(PrincipalSource::Auto);
        let modern = ("mcp-protocol-version", "2026-07-28");
        let of = |headers: &[(&'static str, &str)]| callers.of(&head(headers), b"");
        let one = of(&[modern, ("authorization", "Bearer one")]);
        assert!(one.is_some());
        assert_eq!(of(&[modern, ("authorization", "Bearer one"), ("x-custom", "1")]), one);
        for other in [[modern, ("authorization", "Bearer two")], [modern, ("x-api-key", "Bearer one")]] {
            assert!(of(&other).is_some_and(|digest| Some(digest) != one), "{other:?}");
        }
        for none in [vec![modern], vec![modern, ("cookie", "a=1")], vec![("authorization", "Bearer one")]] {
            assert_eq!(of(&none), None, "{none:?}");
        }
        let legacy = [("mcp-protocol-version", "2025-11-25"), ("authorization", "Bearer one")];
        assert_eq!(of(&legacy), None);
        let meta = br#"{"jsonrpc":"2.0","id":1,"method":"a","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}"#;
        assert_eq!(callers.of(&head(&[("authorization", "Bearer one")]), meta), one);
        assert_eq!(callers.of(&head(&[("authorization", "Bearer one")]), b"{}"), None);
    }

    #[test]
    fn a_refreshed_token_is_of_the_same_caller() {
        let callers = Callers::new(PrincipalSource::Auto);
        let token = |claims: &str, signature: &str| {
            let part = |text: &str| URL_SAFE_NO_PAD.encode(text);
            format!("Bearer {}.{}.{signature}", part(r#"{"alg":"RS256"}"#), part(claims))
        };
        let of =
            |token: &str| callers.of(&head(&[("mcp-protocol-version", "2026-07-28"), ("authorization", token)]), b"");
        let first = of(&token(r#"{"iss":"i","sub":"s","exp":1}"#, "AAAA"));
        assert!(first.is_some());
        assert_eq!(of(&token(r#"{"iss":"i","sub":"s","exp":2}"#, "BBBB")), first);
        assert_ne!(of(&token(r#"{"iss":"i","sub":"t","exp":1}"#, "AAAA")), first);
    }

    #[test]
    fn a_configured_credential_counts_alone() {
        let callers = Callers::new(PrincipalSource::Cookie("sid".to_owned()));
        let of = |cookie: &str, token: &str| {
            let headers = [("mcp-protocol-version", "2026-07-28"), ("cookie", cookie), ("authorization", token)];
            callers.of(&head(&headers), b"")
        };
        assert!(of("sid=1; a=2", "x").is_some());
        assert_eq!(of("sid=1; a=2", "x"), of("sid=1", "y"));
        assert_ne!(of("sid=1", "x"), of("sid=2", "x"));
    }
}
