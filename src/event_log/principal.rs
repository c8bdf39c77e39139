//! Who a request comes from, as far as a proxy can tell: a keyed hash of the credential, never the credential.

use std::sync::Arc;

use dashmap::DashMap;
use hmac::{Hmac, KeyInit, Mac};
use http::header::{AUTHORIZATION, COOKIE};
use http::{HeaderMap, HeaderName, HeaderValue};
use serde::{Deserialize, Serialize};
use sha2::Sha256;

use crate::config::PrincipalSource;
use crate::protocol::jwt::Claims;

const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");
/// The subjects of so many tokens are remembered. One more, and all are looked for anew.
const SUBJECTS_MAX: usize = 4096;

/// The caller a stream belongs to. Equal credentials give equal principals within one process (or one key).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Principal {
    /// No credential: a stream's event ID is its only key.
    Anonymous,
    /// A hash of the credential and of where it stood.
    Known([u8; 16]),
}

/// Whom a caller's token says it speaks for: a hash of a JWT's issuer and subject. Anybody can claim any.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Subject([u8; 16]);

impl Subject {
    #[cfg(test)]
    pub(crate) fn from_hash(hash: [u8; 16]) -> Self {
        Self(hash)
    }
}

/// Tells principals apart.
#[derive(Clone)]
pub struct Principals {
    source: PrincipalSource,
    key: [u8; 32],
    /// What was found in tokens, by their principals: a token comes with every request of its caller, and decoding it costs more
    /// than all else that is done to tell who that is.
    subjects: Arc<DashMap<Principal, Subject>>,
}

impl Principals {
    /// Reads the credential from where `source` says and hashes it with `key`.
    pub fn new(source: PrincipalSource, key: [u8; 32]) -> Self {
        Self { source, key, subjects: Arc::default() }
    }

    /// Whether callers are told apart by the usual headers.
    pub fn is_auto(&self) -> bool {
        self.source == PrincipalSource::Auto
    }

    /// The principal of a request.
    pub fn of(&self, headers: &HeaderMap) -> Principal {
        match &self.source {
            PrincipalSource::Auto => {
                let credential =
                    |name: HeaderName| headers.get(&name).map(|value| self.known(name.as_str(), value.as_bytes()));
                credential(AUTHORIZATION).or_else(|| credential(X_API_KEY)).unwrap_or(Principal::Anonymous)
            }
            PrincipalSource::Header(name) => {
                headers.get(name).map_or(Principal::Anonymous, |value| self.known(name.as_str(), value.as_bytes()))
            }
            PrincipalSource::Cookie(name) => {
                cookie(headers, name).map_or(Principal::Anonymous, |value| self.known("cookie", value.as_bytes()))
            }
            PrincipalSource::None => Principal::Anonymous,
        }
    }

    /// What a query shows, which some servers take keys in.
    pub fn of_query(&self, query: Option<&str>) -> Principal {
        query.map_or(Principal::Anonymous, |query| self.known("query", query.as_bytes()))
    }

    /// The subject a request of `principal` claims, where that is the principal of an `Authorization` and that is a JWT.
    pub fn subject_of(&self, principal: &Principal, headers: &HeaderMap) -> Option<Subject> {
        if !self.is_auto() {
            return None;
        }
        let mut said = headers.get_all(AUTHORIZATION).iter();
        let (authorization, second) = (said.next()?, said.next());
        if second.is_some() {
            return None;
        }
        if let Some(known) = self.subjects.get(principal) {
            return Some(*known);
        }
        let subject = self.claimed(authorization)?;
        if self.subjects.len() >= SUBJECTS_MAX {
            self.subjects.clear();
        }
        self.subjects.insert(*principal, subject);
        Some(subject)
    }

    fn claimed(&self, authorization: &HeaderValue) -> Option<Subject> {
        let Claims { iss, sub } = Claims::of(authorization)?;
        let issuer_bytes = (iss.len() as u64).to_be_bytes();
        // No place has such a name.
        Some(Subject(self.hash(&[b"\0subject\0", &issuer_bytes, iss.as_bytes(), sub.as_bytes()])))
    }

    fn known(&self, place: &str, credential: &[u8]) -> Principal {
        Principal::Known(self.hash(&[place.as_bytes(), &[0], credential]))
    }

    fn hash(&self, parts: &[&[u8]]) -> [u8; 16] {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.key).expect("HMAC takes a key of any length");
        parts.iter().for_each(|part| mac.update(part));
        let hash: [u8; 32] = mac.finalize().into_bytes().into();
        let mut short = [0; 16];
        short.copy_from_slice(&hash[..16]);
        short
    }
}

fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let values = headers.get_all(COOKIE).into_iter().filter_map(|value: &HeaderValue| value.to_str().ok());
    values
        .flat_map(|line| line.split(';'))
        .filter_map(|pair| pair.trim().split_once('='))
        .find(|(key, _)| *key == name)
        .map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn auto_prefers_authorization_and_tells_credentials_apart() {
        let principals = Principals::new(PrincipalSource::Auto, [7; 32]);
        let a = principals.of(&headers(&[("authorization", "Bearer a"), ("x-api-key", "k")]));
        assert_eq!(a, principals.of(&headers(&[("authorization", "Bearer a")])));
        assert_ne!(a, principals.of(&headers(&[("authorization", "Bearer b")])));
        assert_ne!(a, principals.of(&headers(&[("x-api-key", "Bearer a")])));
        assert_eq!(Principal::Anonymous, principals.of(&headers(&[("cookie", "sid=1")])));
    }

    #[test]
    fn a_subject_is_what_a_jwt_claims_whatever_else_is_in_it() {
        use base64::Engine;
        let subject = |source: PrincipalSource, payloads: &[&str]| {
            let mut all = HeaderMap::new();
            for payload in payloads {
                let payload = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(payload);
                all.append(AUTHORIZATION, HeaderValue::from_str(&format!("Bearer e30.{payload}.c2ln")).unwrap());
            }
            let principals = Principals::new(source, [7; 32]);
            let found = principals.subject_of(&principals.of(&all), &all);
            assert_eq!(found, principals.subject_of(&principals.of(&all), &all), "the same each time");
            found
        };
        let of = |payload: &str| subject(PrincipalSource::Auto, &[payload]);
        let one = of(r#"{"iss":"i","sub":"u","exp":1}"#);
        assert!(one.is_some());
        assert_eq!(one, of(r#"{"exp":2,"sub":"u","iss":"i"}"#));
        for other in [
            r#"{"iss":"i","sub":"v"}"#,
            r#"{"iss":"j","sub":"u"}"#,
            r#"{"iss":"iu","sub":""}"#,
            r#"{"iss":"iu","sub":"u"}"#,
        ] {
            assert_ne!(one, of(other), "{other}");
        }
        assert_ne!(of(r#"{"iss":"ab","sub":"c"}"#), of(r#"{"iss":"a","sub":"bc"}"#));
        let same = r#"{"iss":"i","sub":"u"}"#;
        assert_eq!(subject(PrincipalSource::Auto, &[same, same]), None, "which one counts is the server's to say");
        for source in
            [PrincipalSource::None, PrincipalSource::Header(AUTHORIZATION), PrincipalSource::Cookie("c".into())]
        {
            assert_eq!(subject(source, &[same]), None);
        }
    }

    #[test]
    fn a_flood_of_tokens_costs_no_more_than_so_many_and_changes_nobodys_subject() {
        use base64::Engine;
        let principals = Principals::new(PrincipalSource::Auto, [7; 32]);
        let subject = |sub: usize, signature: usize| {
            let payload =
                base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(format!(r#"{{"iss":"i","sub":"{sub}"}}"#));
            let token = HeaderValue::from_str(&format!("Bearer e30.{payload}.c{signature}")).unwrap();
            let headers = HeaderMap::from_iter([(AUTHORIZATION, token)]);
            principals.subject_of(&principals.of(&headers), &headers)
        };
        let first: Vec<_> = (0..10).map(|sub| subject(sub, 0)).collect();
        for sub in 0..2 * SUBJECTS_MAX {
            subject(sub, 1);
            assert!(principals.subjects.len() <= SUBJECTS_MAX);
        }
        let again: Vec<_> = (0..10).map(|sub| subject(sub, 0)).collect();
        assert!(first.iter().all(Option::is_some));
        assert_eq!(first, again);
        assert_ne!(first[0], first[1]);
    }

    #[test]
    fn a_cookie_is_found_among_others() {
        let principals = Principals::new(PrincipalSource::Cookie("sid".into()), [7; 32]);
        let one = principals.of(&headers(&[("cookie", "AWSALB=x; sid=1")]));
        assert_eq!(one, principals.of(&headers(&[("cookie", "sid=1; AWSALB=y")])));
        assert_ne!(one, principals.of(&headers(&[("cookie", "sid=2")])));
    }
}
