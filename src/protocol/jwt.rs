//! Reads the unverified `iss`, `sub`, client and `exp` of a JSON Web Token, and makes a copy with
//! an invalid signature for probing.
//!
//! Nothing is verified here, and no claim may be believed: any bearer can write any claim. Absent:
//! keys, algorithms, the present time.

use std::fmt;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::HeaderValue;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// Limit for a payload, in bytes of base64. Real ones have about a thousand.
const MAX_PAYLOAD_BYTES: usize = 16 * 1024;

/// Subject of a token, as the token claims it. A token claims nothing if one of these claims is
/// empty or duplicate, or if issuer or subject is no string. A numeric client counts by its text. A
/// client of any other type counts as absent.
#[derive(Deserialize)]
pub struct Claims {
    /// Issuer of the token.
    pub iss: String,
    /// Subject of the token.
    pub sub: String,
    /// Client of the token (RFC 9068 §2.2).
    #[serde(default, deserialize_with = "client")]
    pub client_id: Option<String>,
    /// Client in an ID token (OpenID Connect Core §2), and in access tokens that are made like one.
    #[serde(default, deserialize_with = "client")]
    pub azp: Option<String>,
}

/// Reads a client. Some issuers number theirs.
fn client<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    Ok(match Value::deserialize(deserializer)? {
        Value::String(text) => Some(text),
        Value::Number(number) => Some(number.to_string()),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    })
}

/// Masked: a subject is often a person's name.
impl fmt::Debug for Claims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Claims(..)")
    }
}

impl Claims {
    /// Reads the claims of the token in an `Authorization` of the scheme `Bearer`. Returns `None`
    /// unless it is a signed JWT that has `iss` and `sub`.
    pub fn of(authorization: &HeaderValue) -> Option<Self> {
        let claims: Self = serde_json::from_slice(&payload(authorization)?).ok()?;
        let all = [Some(&claims.iss), Some(&claims.sub), claims.client_id.as_ref(), claims.azp.as_ref()];
        let has_empty = all.iter().any(|claim| claim.is_some_and(String::is_empty));
        if has_empty { None } else { Some(claims) }
    }
}

/// Expiry of a token, as the token claims it.
#[derive(Deserialize)]
struct Expiry {
    /// Seconds since 1970, which may have a fraction (RFC 7519 §2).
    exp: f64,
}

/// Returns the expiry of the token in an `Authorization` of the scheme `Bearer`, as the time since
/// 1970. Returns `None` unless it is a signed JWT with one `exp`. A time before 1970 is returned as
/// 1970.
pub fn expires_at(authorization: &HeaderValue) -> Option<Duration> {
    let Expiry { exp } = serde_json::from_slice(&payload(authorization)?).ok()?;
    if exp <= 0.0 { Some(Duration::ZERO) } else { Some(Duration::try_from_secs_f64(exp).unwrap_or(Duration::MAX)) }
}

/// Audiences of a token, as the token claims them.
#[derive(Deserialize)]
struct Audiences {
    /// One, or an array of them (RFC 7519 §4.1.3).
    aud: Value,
}

/// Returns the audiences of the token in an `Authorization` of the scheme `Bearer`. There are none
/// unless it is a signed JWT with one `aud`.
pub fn audiences(authorization: &HeaderValue) -> Vec<String> {
    let claims = payload(authorization).and_then(|payload| serde_json::from_slice(&payload).ok());
    match claims.map(|Audiences { aud }| aud) {
        Some(Value::String(one)) => vec![one],
        Some(Value::Array(several)) => several.iter().filter_map(|one| one.as_str().map(str::to_owned)).collect(),
        Some(_) | None => Vec::new(),
    }
}

/// Returns the decoded payload of a signed token, an object. Returns `None` if it is too long or
/// not an object.
fn payload(authorization: &HeaderValue) -> Option<Vec<u8>> {
    let payload = signed(authorization)?.payload;
    if payload.len() > MAX_PAYLOAD_BYTES {
        return None;
    }
    let payload = URL_SAFE_NO_PAD.decode(payload).ok()?;
    // An array would be read as the members of a struct in their order.
    if payload.trim_ascii_start().starts_with(b"{") { Some(payload) } else { None }
}

/// Returns the `Authorization` header with an invalid signature, or `None` if it holds no signed
/// JWT.
pub fn corrupted(authorization: &HeaderValue) -> Option<HeaderValue> {
    let at = signed(authorization)?.signature_at;
    let mut bytes = authorization.as_bytes().to_vec();
    // The first character has six bits of the signature. The last one may be padding in part.
    bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
    HeaderValue::from_bytes(&bytes).ok()
}

struct Signed<'a> {
    payload: &'a str,
    /// Offset of the signature in the header.
    signature_at: usize,
}

/// Parses a signed token in the compact form (RFC 7515 §7.1).
fn signed(authorization: &HeaderValue) -> Option<Signed<'_>> {
    let text = authorization.to_str().ok()?;
    let (scheme, token) = text.split_once(' ')?;
    let token = token.trim();
    let mut parts = token.split('.');
    let (head, payload, signature) = (parts.next()?, parts.next()?, parts.next()?);
    let is_token = scheme.eq_ignore_ascii_case("bearer")
        && parts.next().is_none()
        && [head, payload, signature].iter().all(|part| !part.is_empty() && part.bytes().all(is_base64url));
    let signature_at = text.trim_end().len() - signature.len();
    if is_token { Some(Signed { payload, signature_at }) } else { None }
}

fn is_base64url(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bearer(payload: &str) -> HeaderValue {
        let (head, payload) = (URL_SAFE_NO_PAD.encode(r#"{"alg":"RS256"}"#), URL_SAFE_NO_PAD.encode(payload));
        HeaderValue::from_str(&format!("Bearer {head}.{payload}.c2lnbmF0dXJl")).unwrap()
    }

    fn names(authorization: &HeaderValue) -> Option<(String, String)> {
        Claims::of(authorization).map(|claims| (claims.iss, claims.sub))
    }

    #[test]
    fn issuer_and_subject_are_read() {
        let claims = names(&bearer(r#"{"exp":1,"sub":"u","aud":["a"],"iss":"https://i"}"#));
        assert_eq!(claims, Some(("https://i".to_owned(), "u".to_owned())));
        let lower = HeaderValue::from_str(&bearer(r#"{"iss":"i","sub":"u"}"#).to_str().unwrap().to_lowercase());
        assert!(Claims::of(&lower.unwrap()).is_none(), "base64 has two cases");
    }

    #[test]
    fn the_client_is_read() {
        let claims = Claims::of(&bearer(r#"{"iss":"i","sub":"u","client_id":"c","azp":"a"}"#)).unwrap();
        assert_eq!((claims.client_id.as_deref(), claims.azp.as_deref()), (Some("c"), Some("a")));
    }

    #[test]
    fn a_client_that_is_no_string_leaves_the_subject() {
        for (client, text) in [("17", Some("17")), (r#"["c"]"#, None), ("{}", None), ("true", None), ("null", None)] {
            let payload = format!(r#"{{"iss":"i","sub":"u","client_id":{client},"azp":{client}}}"#);
            let claims = Claims::of(&bearer(&payload)).expect("a subject");
            assert_eq!((claims.iss.as_str(), claims.sub.as_str()), ("i", "u"));
            assert_eq!((claims.client_id.as_deref(), claims.azp.as_deref()), (text, text), "{client}");
        }
    }

    #[test]
    fn what_claims_nothing_clear_claims_nothing() {
        for payload in [
            r#"{"iss":"i"}"#,
            r#"{"sub":"u"}"#,
            r#"{"iss":"","sub":"u"}"#,
            r#"{"iss":"i","sub":""}"#,
            r#"{"iss":"i","sub":1}"#,
            r#"{"iss":["i"],"sub":"u"}"#,
            r#"{"iss":"i","sub":"u","sub":"v"}"#,
            r#"{"iss":"i","sub":"u","\u0073ub":"v"}"#,
            r#"{"iss":"i","sub":"u","client_id":""}"#,
            r#"{"iss":"i","sub":"u","azp":"a","azp":1}"#,
            r#"{"iss":"i","sub":"u"} x"#,
            r#"[{"iss":"i","sub":"u"}]"#,
            "",
        ] {
            assert_eq!(names(&bearer(payload)), None, "{payload}");
        }
        let long = format!(r#"{{"iss":"i","sub":"u","x":"{}"}}"#, "x".repeat(MAX_PAYLOAD_BYTES));
        assert_eq!(names(&bearer(&long)), None);
        let whole = bearer(r#"{"iss":"i","sub":"u"}"#);
        let whole = whole.to_str().unwrap();
        let token = whole.strip_prefix("Bearer ").unwrap();
        let unsigned = format!("Bearer {}", &token[..=token.rfind('.').unwrap()]);
        for bad in
            [token, &format!("Basic {token}"), &format!("{whole}.x"), &unsigned, "Bearer a.b", "Bearer", "Bearer  ", ""]
        {
            let value = HeaderValue::from_str(bad).unwrap();
            assert!(Claims::of(&value).is_none() && corrupted(&value).is_none(), "{bad}");
        }
    }

    #[test]
    fn the_expiry_is_the_only_number_that_a_signed_token_names_so() {
        for (payload, seconds) in [
            (r#"{"exp":1700000000}"#, Some(1_700_000_000.0)),
            (r#"{"iss":"i","sub":"u","exp":1700000000.5,"x":{"exp":1}}"#, Some(1_700_000_000.5)),
            (r#"{"exp":1.7e9}"#, Some(1_700_000_000.0)),
            (r#"{"exp":0}"#, Some(0.0)),
            (r#"{"exp":-5}"#, Some(0.0)),
            (r#"{"exp":1e300}"#, Some(Duration::MAX.as_secs_f64())),
            (r#"{"iss":"i"}"#, None),
            (r#"{"exp":"1700000000"}"#, None),
            (r#"{"exp":null}"#, None),
            (r#"{"exp":1,"exp":2}"#, None),
            ("[1]", None),
            ("", None),
        ] {
            assert_eq!(expires_at(&bearer(payload)).map(|at| at.as_secs_f64()), seconds, "{payload}");
        }
        for opaque in ["Bearer abc", "Bearer a.b", "Basic dXNlcg==", ""] {
            assert_eq!(expires_at(&HeaderValue::from_static(opaque)), None, "{opaque}");
        }
    }

    #[test]
    fn a_corrupted_token_differs_in_its_signature_alone() {
        for signature in ["c2ln", "A", "AAAA"] {
            let good = HeaderValue::from_str(&format!("bearer aa.bb.{signature}")).unwrap();
            let bad = corrupted(&good).unwrap();
            let (good, bad) = (good.to_str().unwrap(), bad.to_str().unwrap());
            assert_eq!(bad.len(), good.len());
            let different: Vec<_> = (0..good.len()).filter(|&at| good.as_bytes()[at] != bad.as_bytes()[at]).collect();
            assert_eq!(different, [good.len() - signature.len()]);
        }
    }

    #[test]
    fn claims_are_not_shown() {
        let claims = Claims::of(&bearer(r#"{"iss":"i","sub":"hunter2"}"#)).unwrap();
        assert!(!format!("{claims:?}").contains("hunter2"));
    }

    proptest! {
        #[test]
        fn any_header_can_be_looked_at(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(value) = HeaderValue::from_bytes(&bytes) {
                let _ = (Claims::of(&value), expires_at(&value));
                prop_assert!(corrupted(&value).is_none_or(|other| other != value && other.len() == value.len()));
            }
        }

        #[test]
        fn any_three_parts_can_be_corrupted(token in " ?[A-Za-z0-9_-]{1,20}[.][A-Za-z0-9_-]{1,20}[.][A-Za-z0-9_-]{1,20} ?") {
            let value = HeaderValue::from_str(&format!("Bearer {token}")).unwrap();
            let bad = corrupted(&value).unwrap();
            let dot = value.as_bytes().iter().rposition(|&byte| byte == b'.').unwrap();
            prop_assert_eq!(&value.as_bytes()[..=dot], &bad.as_bytes()[..=dot]);
            prop_assert_ne!(&value.as_bytes()[dot + 1], &bad.as_bytes()[dot + 1]);
        }
    }
}
