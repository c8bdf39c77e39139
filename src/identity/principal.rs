//! Principals: the identity of a caller as far as a proxy knows it. A principal is a keyed hash of
//! the credential, never the credential itself.

use std::sync::Arc;

use dashmap::DashMap;
use hmac::{Hmac, KeyInit, Mac};
use http::header::{AUTHORIZATION, COOKIE};
use http::{HeaderMap, HeaderName, HeaderValue};
use serde::{Deserialize, Serialize};
use sha2::Sha256;

use mcp_resume_config::PrincipalSource;
use mcp_resume_protocol::certificate::CertificateNames;
use mcp_resume_protocol::headers::names::X_API_KEY;
use mcp_resume_protocol::jwt::Claims;

/// Number of tokens whose subjects are cached. At one more the cache is cleared.
const SUBJECTS_MAX: usize = 4096;

/// Caller that owns a stream. Equal credentials give equal principals within one process, or under
/// one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Principal {
    /// No credential: the event ID is the only key to a stream.
    Anonymous,
    /// No credential, but a query in the URL or the ID of an access key, given as a hash. It
    /// separates streams. But many callers may use one URL, and the ID is no secret, so they count
    /// as anonymous.
    AnonymousAt([u8; 16]),
    /// Hash of all credentials and of their places.
    Known([u8; 16]),
}

impl Principal {
    /// True if the caller showed no credential.
    pub fn is_anonymous(&self) -> bool {
        match self {
            Principal::Anonymous | Principal::AnonymousAt(_) => true,
            Principal::Known(_) => false,
        }
    }

    /// Returns the bytes that distinguish the principal, or `None` if it is anonymous.
    pub fn digest(&self) -> Option<&[u8; 16]> {
        match self {
            Principal::Anonymous => None,
            Principal::AnonymousAt(hash) | Principal::Known(hash) => Some(hash),
        }
    }
}

/// Credentials that a request presents.
#[derive(Clone, Copy, Debug)]
pub struct PresentedCredentials<'a> {
    /// Headers of the request.
    pub headers: &'a HeaderMap,
    /// Query of the URL without the parameter that names a stream, or `None` without a query.
    pub query: Option<&'a str>,
    /// Names in the client's certificate, or `None` without one and for the certificate of a proxy
    /// in front.
    pub certificate: Option<CertificateNames>,
}

impl PresentedCredentials<'_> {
    /// Returns the credentials with their places. An empty header is no credential; of a repeated
    /// header all values count.
    fn credentials(&self) -> impl Iterator<Item = (&'static str, &[u8])> {
        let certificate = self.certificate.as_ref().map(|names| ("certificate", names.as_bytes()));
        let authorization = header_values(self.headers, AUTHORIZATION).map(|value| ("authorization", value));
        authorization.chain(self.api_keys()).chain(certificate)
    }

    fn api_keys(&self) -> impl Iterator<Item = (&'static str, &[u8])> {
        header_values(self.headers, X_API_KEY).map(|value| ("x-api-key", value))
    }

    fn query(&self) -> Option<(&'static str, &[u8])> {
        self.query.filter(|query| !query.is_empty()).map(|query| ("query", query.as_bytes()))
    }

    /// True if the request presents more than `Authorization`, cookies included.
    pub fn has_other_credentials(&self) -> bool {
        let has_header = |name: HeaderName| header_values(self.headers, name).next().is_some();
        self.certificate.is_some() || self.query().is_some() || has_header(X_API_KEY) || has_header(COOKIE)
    }
}

/// Returns the values of a header that are not empty.
fn header_values(headers: &HeaderMap, name: HeaderName) -> impl Iterator<Item = &[u8]> {
    headers.get_all(name).into_iter().map(|value| value.as_bytes().trim_ascii()).filter(|value| !value.is_empty())
}

/// Subject that a caller's token claims, unproven: a hash of the issuer and subject of a JWT, and
/// of the client that it was issued to, if it names one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Subject([u8; 16]);

impl Subject {
    /// Returns the bytes that distinguish the subject.
    pub fn digest(self) -> [u8; 16] {
        self.0
    }
}

/// The subject that these bytes distinguish.
impl From<[u8; 16]> for Subject {
    fn from(digest: [u8; 16]) -> Self {
        Self(digest)
    }
}

/// Derives principals and subjects from requests.
#[derive(Clone)]
pub struct Principals {
    source: PrincipalSource,
    /// HMAC that has taken the key already. This saves the work for every hash.
    keyed: Hmac<Sha256>,
    /// Headers that are credentials with any source.
    variables: Arc<[HeaderName]>,
    /// Subjects found in tokens, by principal. A token comes with every request of its caller, and
    /// decoding it costs more than all other steps here.
    subjects: Arc<DashMap<Principal, Subject>>,
}

impl Principals {
    /// Creates a resolver that reads the credential from `source` and hashes it with `key`.
    pub fn new(source: PrincipalSource, key: [u8; 32]) -> Self {
        let keyed = Hmac::new_from_slice(&key).expect("HMAC takes a key of any length");
        Self { source, keyed, variables: Arc::default(), subjects: Arc::default() }
    }

    /// Returns a resolver for which these headers are credentials too: they become variables of the
    /// caller's process. A caller without them is another caller.
    pub fn with_variables(self, headers: impl IntoIterator<Item = HeaderName>) -> Self {
        Self { variables: headers.into_iter().collect(), ..self }
    }

    /// Returns true if further headers than the usual ones are credentials.
    pub fn has_variables(&self) -> bool {
        !self.variables.is_empty()
    }

    /// True if the usual headers identify callers.
    pub fn is_auto(&self) -> bool {
        self.source == PrincipalSource::Auto
    }

    /// True if a header that only the operator can set identifies callers.
    pub fn are_named(&self) -> bool {
        matches!(self.source, PrincipalSource::Header(_))
    }

    /// Returns the principal of a request.
    pub fn of(&self, presented: &PresentedCredentials<'_>) -> Principal {
        let principal = self.without_variables(presented);
        if self.variables(presented.headers).next().is_none() {
            return principal;
        }
        let kind = if principal.is_anonymous() { "anonymous" } else { "known" };
        let own = (kind, principal.digest().map_or(&[][..], |digest| &digest[..]));
        Principal::Known(self.hash([own].into_iter().chain(self.variables(presented.headers))))
    }

    /// Returns the principal of a request without the headers that become variables. Such a caller
    /// cannot have more quotas by other values.
    pub fn without_variables(&self, presented: &PresentedCredentials<'_>) -> Principal {
        match &self.source {
            PrincipalSource::Auto => match (presented.credentials().next(), presented.query()) {
                (Some(_), query) => Principal::Known(self.hash(presented.credentials().chain(query))),
                (None, Some(query)) => Principal::AnonymousAt(self.hash([query])),
                (None, None) => Principal::Anonymous,
            },
            PrincipalSource::Header(name) => {
                self.known(header_values(presented.headers, name.clone()).map(|value| (name.as_str(), value)))
            }
            PrincipalSource::Cookie(name) => {
                self.known(cookies(presented.headers, name).map(|value| ("cookie", value)))
            }
            // The ID of a key is no secret, so nothing but the signature proves the caller.
            PrincipalSource::SigV4 => {
                let keys: Vec<_> = header_values(presented.headers, AUTHORIZATION).filter_map(access_key).collect();
                if keys.is_empty() {
                    return Principal::Anonymous;
                }
                Principal::AnonymousAt(self.hash(keys.into_iter().map(|key| ("key", key))))
            }
            PrincipalSource::None => Principal::Anonymous,
        }
    }

    /// Returns the subject that a request of `principal` claims, if its only `Authorization` is a
    /// JWT. All other credentials are part of the subject: only the token may change.
    pub fn subject_of(&self, principal: &Principal, presented: &PresentedCredentials<'_>) -> Option<Subject> {
        if !self.is_auto() {
            return None;
        }
        let mut values = presented.headers.get_all(AUTHORIZATION).iter();
        let (authorization, second) = (values.next()?, values.next());
        if second.is_some() {
            return None;
        }
        if let Some(known) = self.subjects.get(principal) {
            return Some(*known);
        }
        let subject = self.claimed(authorization, presented)?;
        if self.subjects.len() >= SUBJECTS_MAX {
            self.subjects.clear();
        }
        self.subjects.insert(*principal, subject);
        Some(subject)
    }

    fn claimed(&self, authorization: &HeaderValue, presented: &PresentedCredentials<'_>) -> Option<Subject> {
        let Claims { iss, sub, client_id, azp } = Claims::of(authorization)?;
        // No header has such a name. A user's other clients are other callers: a server may keep
        // their sessions apart.
        let claims = [("\0issuer", Some(&iss)), ("\0subject", Some(&sub)), ("\0client", client_id.as_ref())];
        let claims = claims.into_iter().chain([("\0party", azp.as_ref())]);
        let claims = claims.filter_map(|(place, claim)| Some((place, claim?.as_bytes())));
        let certificate = presented.certificate.as_ref().map(|names| ("certificate", names.as_bytes()));
        let others = presented.api_keys().chain(certificate).chain(presented.query());
        Some(Subject(self.hash(claims.chain(others).chain(self.variables(presented.headers)))))
    }

    /// Returns the values of the headers that become variables, each behind its name.
    fn variables<'a>(&'a self, headers: &'a HeaderMap) -> impl Iterator<Item = (&'static str, &'a [u8])> {
        self.variables.iter().flat_map(move |name| {
            // No header has such a name.
            header_values(headers, name.clone())
                .flat_map(|value| [("\0variable", name.as_str().as_bytes()), ("\0value", value)])
        })
    }

    /// Returns the principal with these credentials.
    fn known<'p, 'v>(&self, mut credentials: impl Iterator<Item = (&'p str, &'v [u8])>) -> Principal {
        match credentials.next() {
            Some(first) => Principal::Known(self.hash([first].into_iter().chain(credentials))),
            None => Principal::Anonymous,
        }
    }

    fn hash<'p, 'v>(&self, parts: impl IntoIterator<Item = (&'p str, &'v [u8])>) -> [u8; 16] {
        let mut mac = self.keyed.clone();
        for (place, value) in parts {
            for part in [place.as_bytes(), value] {
                mac.update(&(part.len() as u64).to_be_bytes());
                mac.update(part);
            }
        }
        let hash: [u8; 32] = mac.finalize().into_bytes().into();
        let mut short = [0; 16];
        short.copy_from_slice(&hash[..16]);
        short
    }
}

/// Returns the ID of the access key in an `Authorization` that [AWS Signature Version 4] has made.
/// The ID identifies the caller, and is no secret.
///
/// [AWS Signature Version 4]: https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html
fn access_key(authorization: &[u8]) -> Option<&[u8]> {
    let rest = authorization.strip_prefix(b"AWS4-")?;
    let parameters = &rest[rest.iter().position(|byte| *byte == b' ')?..];
    let scope =
        parameters.split(|byte| *byte == b',').find_map(|part| part.trim_ascii().strip_prefix(b"Credential="))?;
    let id = &scope[..scope.iter().position(|byte| *byte == b'/')?];
    Some(id).filter(|id| !id.is_empty())
}

/// Returns the values of all cookies with this name: the server decides which of several counts.
fn cookies<'a>(headers: &'a HeaderMap, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
    let pairs =
        header_values(headers, COOKIE).flat_map(|line| line.split(|byte| *byte == b';')).map(<[u8]>::trim_ascii);
    pairs
        .filter_map(move |pair| pair.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
        .filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).collect()
    }

    /// Headers alone.
    fn shown(headers: &HeaderMap) -> PresentedCredentials<'_> {
        PresentedCredentials { headers, query: None, certificate: None }
    }

    #[test]
    fn every_credential_counts_and_none_is_taken_for_another() {
        let principals = Principals::new(PrincipalSource::Auto, [7; 32]);
        let names = [None, Some(CertificateNames::of(b"a")), Some(CertificateNames::of(b"b"))];
        let mut seen = Vec::new();
        for pairs in [
            &[][..],
            &[("authorization", "a")],
            &[("authorization", "b")],
            &[("authorization", "ab")],
            &[("authorization", "a"), ("authorization", "b")],
            &[("authorization", "b"), ("authorization", "a")],
            &[("authorization", "a, b")],
            &[("x-api-key", "a")],
            &[("authorization", "a"), ("x-api-key", "a")],
            &[("authorization", "a"), ("x-api-key", "b")],
        ] {
            let headers = headers(pairs);
            for query in [None, Some("a"), Some("key=a"), Some("key=b")] {
                for certificate in names {
                    let principal = principals.of(&PresentedCredentials { headers: &headers, query, certificate });
                    assert_eq!(principal.is_anonymous(), pairs.is_empty() && certificate.is_none());
                    assert_eq!(principal == Principal::Anonymous, principal.is_anonymous() && query.is_none());
                    assert!(!seen.contains(&principal), "{pairs:?} {query:?} {certificate:?}");
                    seen.push(principal);
                }
            }
        }
    }

    #[test]
    fn what_is_empty_shows_nothing_and_bytes_beyond_ascii_count() {
        let principals = Principals::new(PrincipalSource::Auto, [7; 32]);
        let empty = headers(&[("authorization", ""), ("x-api-key", " "), ("cookie", "sid=1")]);
        assert_eq!(principals.of(&PresentedCredentials { query: Some(""), ..shown(&empty) }), Principal::Anonymous);
        let odd = |byte: u8| HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_bytes(&[b'a', byte]).unwrap())]);
        assert_ne!(principals.of(&shown(&odd(0xE9))), principals.of(&shown(&odd(0xEA))));
        assert!(!principals.of(&shown(&odd(0xE9))).is_anonymous());
    }

    #[test]
    fn a_subject_is_claimed_along_with_everything_else_that_is_shown() {
        use base64::Engine;
        let payload = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(r#"{"iss":"i","sub":"u"}"#);
        let principals = Principals::new(PrincipalSource::Auto, [7; 32]);
        let subject = |signature: &str, key: Option<&'static str>, query, certificate| {
            let token = HeaderValue::from_str(&format!("Bearer e30.{payload}.{signature}")).unwrap();
            let mut headers = HeaderMap::from_iter([(AUTHORIZATION, token)]);
            headers.extend(key.map(|key| (X_API_KEY, HeaderValue::from_static(key))));
            let shown = PresentedCredentials { headers: &headers, query, certificate };
            principals.subject_of(&principals.of(&shown), &shown).unwrap()
        };
        let names = Some(CertificateNames::of(b"a"));
        assert_eq!(subject("a", Some("k"), Some("q"), names), subject("b", Some("k"), Some("q"), names));
        let alone = subject("a", None, None, None);
        for (key, query, certificate) in [(Some("k"), None, None), (None, Some("q"), None), (None, None, names)] {
            assert_ne!(alone, subject("b", key, query, certificate));
        }
        let principals = principals.clone().with_variables([HeaderName::from_static("x-token")]);
        let with = |token: &'static str| {
            let jwt = HeaderValue::from_str(&format!("Bearer e30.{payload}.a")).unwrap();
            let name = HeaderName::from_static("x-token");
            let headers = HeaderMap::from_iter([(AUTHORIZATION, jwt), (name, HeaderValue::from_static(token))]);
            principals.subject_of(&principals.of(&shown(&headers)), &shown(&headers)).unwrap()
        };
        assert!(with("one") == with("one") && with("one") != with("two"), "a refresh changes no variable");
    }

    #[test]
    fn a_subject_is_the_claim_of_a_jwt_with_any_other_contents() {
        use base64::Engine;
        let subject = |source: PrincipalSource, payloads: &[&str]| {
            let mut all = HeaderMap::new();
            for payload in payloads {
                let payload = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(payload);
                all.append(AUTHORIZATION, HeaderValue::from_str(&format!("Bearer e30.{payload}.c2ln")).unwrap());
            }
            let principals = Principals::new(source, [7; 32]);
            let found = principals.subject_of(&principals.of(&shown(&all)), &shown(&all));
            assert_eq!(found, principals.subject_of(&principals.of(&shown(&all)), &shown(&all)), "the same each time");
            found
        };
        let of = |payload: &str| subject(PrincipalSource::Auto, &[payload]);
        let one = of(r#"{"iss":"i","sub":"u","exp":1}"#);
        assert!(one.is_some());
        assert_eq!(one, of(r#"{"exp":2,"sub":"u","iss":"i"}"#));
        for other in [
            r#"{"iss":"i","sub":"v"}"#,
            r#"{"iss":"j","sub":"u"}"#,
            r#"{"iss":"i","sub":"u","client_id":"c"}"#,
            r#"{"iss":"i","sub":"u","azp":"c"}"#,
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
    fn a_flood_of_tokens_has_a_bounded_cost_and_changes_no_subject() {
        use base64::Engine;
        let principals = Principals::new(PrincipalSource::Auto, [7; 32]);
        let subject = |sub: usize, signature: usize| {
            let payload =
                base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(format!(r#"{{"iss":"i","sub":"{sub}"}}"#));
            let token = HeaderValue::from_str(&format!("Bearer e30.{payload}.c{signature}")).unwrap();
            let headers = HeaderMap::from_iter([(AUTHORIZATION, token)]);
            principals.subject_of(&principals.of(&shown(&headers)), &shown(&headers))
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
    fn a_signed_request_is_of_its_access_key() {
        let principals = Principals::new(PrincipalSource::SigV4, [7; 32]);
        let of = |authorization: &str| {
            let value = HeaderValue::from_str(authorization).unwrap();
            principals.of(&shown(&HeaderMap::from_iter([(AUTHORIZATION, value)])))
        };
        let signed = |rest: &str| format!("AWS4-HMAC-SHA256 {rest}");
        let one =
            of(&signed("Credential=AKID/20261128/eu-west-1/lambda/aws4_request, SignedHeaders=host, Signature=a"));
        assert!(one.is_anonymous(), "its key of a retry counts in a session alone");
        assert_ne!(one, Principal::Anonymous);
        for same in [
            signed(
                "Credential=AKID/20261129/eu-west-1/lambda/aws4_request, SignedHeaders=host;x-amz-date, Signature=b",
            ),
            signed("SignedHeaders=host,Credential=AKID/20261129/us-east-1/x/aws4_request,Signature=c"),
            "AWS4-ECDSA-P256-SHA256 Credential=AKID/20261128/lambda/aws4_request, Signature=d".to_owned(),
        ] {
            assert_eq!(of(&same), one, "{same}");
        }
        assert_ne!(of(&signed("Credential=OTHER/20261128/eu-west-1/lambda/aws4_request, Signature=a")), one);
        for other in [
            "Bearer AKID/x",
            "AWS4-HMAC-SHA256",
            &signed("Credential=/a"),
            &signed("Credential=AKID"),
            &signed("Signature=a"),
        ] {
            assert_eq!(of(other), Principal::Anonymous, "{other}");
        }
    }

    #[test]
    fn headers_that_become_variables_count_with_every_source() {
        let plain = headers(&[]);
        let one = headers(&[("x-token", "one")]);
        let two = headers(&[("x-token", "two")]);
        let other = headers(&[("x-other", "one")]);
        let empty = headers(&[("x-token", " ")]);
        let repeated = headers(&[("x-token", "one"), ("x-token", "one")]);
        let own = ["x-token", "x-other"].map(HeaderName::from_static);
        for source in [
            PrincipalSource::Auto,
            PrincipalSource::None,
            PrincipalSource::Header(AUTHORIZATION),
            PrincipalSource::Cookie("c".into()),
        ] {
            let principals = Principals::new(source, [7; 32]).with_variables(own.clone());
            let of = |headers| principals.of(&shown(headers));
            assert_eq!((of(&plain), of(&empty)), (Principal::Anonymous, Principal::Anonymous));
            let found = [&one, &two, &other, &repeated].map(of);
            for (index, principal) in found.iter().enumerate() {
                assert!(!principal.is_anonymous() && !found[..index].contains(principal), "{index}");
            }
            let mut user = one.clone();
            user.insert(AUTHORIZATION, HeaderValue::from_static("a"));
            user.insert(COOKIE, HeaderValue::from_static("c=a"));
            let has_user = principals.source != PrincipalSource::None;
            assert_eq!(of(&user) != of(&one), has_user, "the usual credentials count as well");
            assert_eq!(principals.without_variables(&shown(&user)).is_anonymous(), !has_user);
        }
    }

    #[test]
    fn a_cookie_is_found_among_others() {
        let principals = Principals::new(PrincipalSource::Cookie("sid".into()), [7; 32]);
        let of = |cookie: &[u8]| {
            let headers = HeaderMap::from_iter([(COOKIE, HeaderValue::from_bytes(cookie).unwrap())]);
            principals.of(&shown(&headers))
        };
        let one = of(b"AWSALB=x; sid=1");
        assert_eq!(one, of(b"sid=1; AWSALB=y"));
        assert_eq!(one, of(b"name=\xE9;sid=1"), "another cookie may hold anything");
        assert_ne!(one, of(b"sid=2"));
        assert_ne!(one, of(b"sid=2; sid=1"));
        assert_ne!(one, of(b"sid=1; sid=2"));
        assert_eq!(of(b"xsid=1; sid; sid=; SID=1"), Principal::Anonymous);
    }
}
