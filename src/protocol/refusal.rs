//! Headers of a refusal that a client acts on, as members of the error in place of the response.
//!
//! Owned here: the names and limits of these members. Absent: the status, which is a part of the
//! failure ([`super::error::Failure::http_status`]).

use http::header::{RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderName};
use serde_json::{Value, json};

/// Limit for a member, in bytes. Real challenges have a few hundred.
const MAX_BYTES: usize = 2048;

/// Values of the headers `WWW-Authenticate` and `Retry-After` of an upstream response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RefusalHeaders {
    www_authenticate: Option<Box<str>>,
    retry_after: Option<Box<str>>,
}

impl RefusalHeaders {
    /// Reads the headers of a response. Returns `None` if it has neither.
    pub fn of(headers: &HeaderMap) -> Option<Box<Self>> {
        let (www_authenticate, retry_after) = (text_of(headers, WWW_AUTHENTICATE), text_of(headers, RETRY_AFTER));
        let has_any = www_authenticate.is_some() || retry_after.is_some();
        if has_any { Some(Box::new(Self { www_authenticate, retry_after })) } else { None }
    }

    /// Returns the members of an error's `data`.
    pub(super) fn members(&self) -> Vec<(&'static str, Value)> {
        let members = [("wwwAuthenticate", &self.www_authenticate), ("retryAfter", &self.retry_after)];
        members.into_iter().filter_map(|(name, value)| value.as_ref().map(|value| (name, json!(value)))).collect()
    }
}

/// Returns the values of a header as one list. Values that are no text are left out. The first
/// value beyond the limit is left out, and so are all after it: half a challenge would mislead.
fn text_of(headers: &HeaderMap, name: HeaderName) -> Option<Box<str>> {
    let mut list = String::new();
    for value in headers.get_all(name).iter().filter_map(|value| value.to_str().ok()) {
        let separator = if list.is_empty() { "" } else { ", " };
        if list.len() + separator.len() + value.len() > MAX_BYTES {
            break;
        }
        list.push_str(separator);
        list.push_str(value);
    }
    if list.is_empty() { None } else { Some(list.into()) }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn data_of(values: &[(HeaderName, &[u8])]) -> Value {
        let pairs = values.iter().map(|(name, value)| (name.clone(), HeaderValue::from_bytes(value).unwrap()));
        let mut headers = HeaderMap::new();
        pairs.for_each(|(name, value)| {
            headers.append(name, value);
        });
        let members = RefusalHeaders::of(&headers).map(|refusal| refusal.members()).unwrap_or_default();
        members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect::<serde_json::Map<_, _>>().into()
    }

    #[test]
    fn both_headers_are_members_and_nothing_else_is() {
        let bearer = b"Bearer realm=\"x\"".as_slice();
        let values = [(WWW_AUTHENTICATE, bearer), (RETRY_AFTER, b"7"), (http::header::SERVER, b"s")];
        assert_eq!(data_of(&values), json!({ "wwwAuthenticate": "Bearer realm=\"x\"", "retryAfter": "7" }));
        let two = [(WWW_AUTHENTICATE, bearer), (WWW_AUTHENTICATE, b"Basic")];
        assert_eq!(data_of(&two), json!({ "wwwAuthenticate": "Bearer realm=\"x\", Basic" }));
        for none in [&[][..], &[(RETRY_AFTER, b"".as_slice())], &[(RETRY_AFTER, b"\xff".as_slice())]] {
            assert_eq!(data_of(none), json!({}));
        }
    }

    #[test]
    fn a_member_has_whole_values_up_to_its_limit() {
        let (fits, long) = (vec![b'a'; MAX_BYTES], vec![b'a'; MAX_BYTES + 1]);
        assert_eq!(data_of(&[(RETRY_AFTER, &long)]), json!({}));
        for after in [&b"b"[..], &long] {
            let data = data_of(&[(RETRY_AFTER, &fits), (RETRY_AFTER, after)]);
            assert_eq!(data["retryAfter"].as_str().map(str::len), Some(MAX_BYTES));
        }
    }
}
