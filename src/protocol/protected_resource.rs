//! Metadata of a protected resource ([RFC 9728]): where it is, and what names the resource.
//!
//! A server behind a proxy names itself by an address that its clients do not know. These functions
//! replace that name: in a challenge the URL of the metadata, in the metadata the resource. All
//! else in a challenge passes byte for byte. All functions are pure. Absent: the requests for the
//! metadata, and the metadata of authorization servers, which nothing here touches.
//!
//! [RFC 9728]: https://www.rfc-editor.org/rfc/rfc9728

use std::borrow::Cow;
use std::net::IpAddr;
use std::ops::Range;

use http::header::{CONTENT_LENGTH, ETAG, LAST_MODIFIED};
use http::{HeaderMap, HeaderName, HeaderValue, Uri};
use serde_json::{Map, Value};

/// Path of the metadata of a resource at the root, and the beginning of all others.
pub const WELL_KNOWN: &str = "/.well-known/oauth-protected-resource";
/// Size limit of metadata that is read.
pub const MAX_DOCUMENT: usize = 64 * 1024;

/// Parameter of a challenge with the URL of the metadata (RFC 9728 §5.1).
const PARAMETER: &str = "resource_metadata";
/// Schemes whose challenges have that parameter (RFC 6750, RFC 9449).
const SCHEMES: [&str; 2] = ["Bearer", "DPoP"];
/// Headers that describe the bytes of a document. A changed document has others.
const OF_BYTES: [HeaderName; 6] = [
    CONTENT_LENGTH,
    ETAG,
    LAST_MODIFIED,
    HeaderName::from_static("digest"),
    HeaderName::from_static("content-digest"),
    HeaderName::from_static("repr-digest"),
];
/// Header of the same kind that is no longer in use (RFC 7231, appendix B).
const CONTENT_MD5: HeaderName = HeaderName::from_static("content-md5");

/// Returns the path of the metadata of a resource at `path` (RFC 9728 §3.1).
pub fn metadata_path(path: &str) -> String {
    format!("{WELL_KNOWN}{}", if path == "/" { "" } else { path })
}

/// Replaces the URLs of metadata in a challenge, a value of `WWW-Authenticate`. `replacement` gets
/// each URL and returns the new one, or `None` if it stays. Returns `None` if all stay.
///
/// Clients search for the parameter by its name, in any text: servers leave out commas, and write
/// texts without escaping them. So each place where a client can find it counts.
pub fn rewrite_challenge(
    challenge: &HeaderValue,
    mut replacement: impl FnMut(&str) -> Option<String>,
) -> Option<HeaderValue> {
    let bytes = challenge.as_bytes();
    let mut rewritten = Vec::new();
    let mut copied = 0;
    for Parameter { value, at, is_text } in parameters(bytes) {
        let Some(url) = replacement(&value) else { continue };
        rewritten.extend_from_slice(&bytes[copied..at.start]);
        let url = if is_text { url } else { format!("\"{url}\"") };
        rewritten.extend_from_slice(url.as_bytes());
        copied = at.end;
    }
    if copied == 0 {
        return None;
    }
    rewritten.extend_from_slice(&bytes[copied..]);
    HeaderValue::from_bytes(&rewritten).ok()
}

/// A parameter with the URL of metadata.
struct Parameter<'a> {
    value: Cow<'a, str>,
    /// Place of the value in the header, with its quotes.
    at: Range<usize>,
    /// True for a value without quotes within a quoted text, which quotes would end.
    is_text: bool,
}

/// Returns the parameters as clients find them. Only a challenge of a scheme that has such a
/// parameter is searched, or one without a scheme.
fn parameters(bytes: &[u8]) -> Vec<Parameter<'_>> {
    let has = |text: &str| (0..bytes.len()).any(|at| begins_with(&bytes[at..], text));
    let mut found = Vec::new();
    if !SCHEMES.iter().any(|scheme| has(scheme)) && !begins_with(bytes, PARAMETER) {
        return found;
    }
    let (mut at, mut is_quoted) = (0, false);
    while at < bytes.len() {
        let is_begin = at == 0 || !bytes[at - 1].is_ascii_alphanumeric() && !matches!(bytes[at - 1], b'_' | b'-');
        let Some(begin) = value_behind_name(bytes, at).filter(|_| is_begin) else {
            is_quoted ^= bytes[at] == b'"';
            // An escaped quote ends no text.
            at += if is_quoted && bytes[at] == b'\\' { 2 } else { 1 };
            continue;
        };
        let rest = &bytes[begin..];
        let (value, length) = match rest.strip_prefix(b"\"") {
            // No URL has a quote, so the next one ends it.
            Some(quoted) => {
                let end = quoted.iter().position(|byte| *byte == b'"').unwrap_or(quoted.len());
                (&quoted[..end], (end + 2).min(rest.len()))
            }
            None => {
                let is_end = |byte: &u8| byte.is_ascii_whitespace() || matches!(byte, b',' | b'"');
                let value = &rest[..rest.iter().position(is_end).unwrap_or(rest.len())];
                let value = value.strip_suffix(b";").unwrap_or(value);
                (value, value.len())
            }
        };
        if let Ok(value) = std::str::from_utf8(value)
            && !value.is_empty()
        {
            let is_text = is_quoted && !rest.starts_with(b"\"");
            found.push(Parameter { value: without_escapes(value), at: begin..begin + length, is_text });
        }
        at = begin + length;
    }
    found
}

/// Returns the place of the value, if the name of the parameter is at `at`.
fn value_behind_name(bytes: &[u8], at: usize) -> Option<usize> {
    let skip_spaces = |at: usize| {
        let spaces = bytes[at..].iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
        at + spaces
    };
    if !begins_with(&bytes[at..], PARAMETER) {
        return None;
    }
    let equals = skip_spaces(at + PARAMETER.len());
    if bytes.get(equals) == Some(&b'=') { Some(skip_spaces(equals + 1)) } else { None }
}

/// Returns true if the bytes begin with this text, in any case.
fn begins_with(bytes: &[u8], text: &str) -> bool {
    bytes.get(..text.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(text.as_bytes()))
}

/// Returns the text of a value without its escapes.
fn without_escapes(value: &str) -> Cow<'_, str> {
    if !value.contains('\\') {
        return value.into();
    }
    let (mut text, mut is_escaped) = (String::new(), false);
    for character in value.chars() {
        is_escaped = character == '\\' && !is_escaped;
        if !is_escaped {
            text.push(character);
        }
    }
    text.into()
}

/// A document of a server at a place of such metadata.
#[derive(Debug, PartialEq, Eq)]
pub enum Document {
    /// The resource has the public name now.
    Renamed(Vec<u8>),
    /// The resource has the name of another server.
    Foreign(String),
    /// Something else, or metadata without a resource.
    Other,
}

/// Gives the resource in a document the name `public`, if `is_own` says so of its present name. A
/// signed copy of the metadata is left out, since its name stays the old one.
pub fn rename_resource(document: &[u8], public: &str, is_own: impl FnOnce(&Uri) -> bool) -> Document {
    let Ok(mut members) = serde_json::from_slice::<Map<String, Value>>(document) else { return Document::Other };
    let Some(Value::String(resource)) = members.get("resource") else { return Document::Other };
    if !resource.parse::<Uri>().is_ok_and(|resource| is_own(&resource)) {
        return Document::Foreign(resource.clone());
    }
    members.insert("resource".to_owned(), public.into());
    members.remove("signed_metadata");
    serde_json::to_vec(&members).map_or(Document::Other, Document::Renamed)
}

/// Describes the changed bytes of a document: its length, and nothing about the former bytes.
pub fn describe_changed(headers: &mut HeaderMap, length: usize) {
    for name in OF_BYTES {
        headers.remove(name);
    }
    headers.remove(CONTENT_MD5);
    headers.insert(CONTENT_LENGTH, length.into());
}

/// Returns true for an address of a private network, of this machine or of its link.
pub fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => {
            let is_shared = address.octets()[0] == 100 && address.octets()[1] & 0xc0 == 64;
            address.is_private()
                || address.is_loopback()
                || address.is_link_local()
                || is_shared
                || address.is_unspecified()
        }
        IpAddr::V6(address) => match address.to_ipv4_mapped() {
            Some(mapped) => is_private(mapped.into()),
            None => {
                address.is_loopback()
                    || address.is_unique_local()
                    || address.is_unicast_link_local()
                    || address.is_unspecified()
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rewritten(challenge: &str) -> Option<String> {
        let replace = |url: &str| url.starts_with("http://s").then(|| "https://p/m".to_owned());
        let value = rewrite_challenge(&HeaderValue::from_str(challenge).unwrap(), replace)?;
        Some(value.to_str().unwrap().to_owned())
    }

    #[test]
    fn the_url_of_the_metadata_is_replaced_and_all_else_passes() {
        for (challenge, expected) in [
            (r#"Bearer resource_metadata="http://s/m""#, r#"Bearer resource_metadata="https://p/m""#),
            (
                r#"Bearer error="invalid_token", error_description="a, \"b\" = c",resource_metadata = "http://s/m" , scope="a b""#,
                r#"Bearer error="invalid_token", error_description="a, \"b\" = c",resource_metadata = "https://p/m" , scope="a b""#,
            ),
            (
                r#"DPoP algs="ES256", Resource_Metadata=http://s/m"#,
                r#"DPoP algs="ES256", Resource_Metadata="https://p/m""#,
            ),
            (
                r#"Negotiate a2b=, bearer realm=x, resource_metadata="http:\/\/s/m", Basic realm="resource_metadata=x""#,
                r#"Negotiate a2b=, bearer realm=x, resource_metadata="https://p/m", Basic realm="resource_metadata=x""#,
            ),
            (
                r#"Bearer resource_metadata="http://s/1", DPoP resource_metadata="http://s/2""#,
                r#"Bearer resource_metadata="https://p/m", DPoP resource_metadata="https://p/m""#,
            ),
            (r#"  Bearer   resource_metadata="http://s/m"  "#, r#"  Bearer   resource_metadata="https://p/m"  "#),
            (r#"Bearer resource_metadata="http://s/m"#, r#"Bearer resource_metadata="https://p/m""#),
            (
                r#"Bearer resource_metadata="http://s/m\", error="y""#,
                r#"Bearer resource_metadata="https://p/m", error="y""#,
            ),
        ] {
            assert_eq!(rewritten(challenge).as_deref(), Some(expected), "{challenge}");
        }
    }

    /// Clients read these by the name of the parameter alone.
    #[test]
    fn a_malformed_challenge_is_read_as_clients_read_it() {
        let new = "\"https://p/m\"";
        for (challenge, expected) in [
            (
                r#"Bearer error_description="claims "aud, exp" missing", resource_metadata="http://s/m""#,
                r#"Bearer error_description="claims "aud, exp" missing", resource_metadata=NEW"#,
            ),
            (
                r#"Bearer error_description="{"a":1,"b":"c, d"}", resource_metadata="http://s/m", scope="x""#,
                r#"Bearer error_description="{"a":1,"b":"c, d"}", resource_metadata=NEW, scope="x""#,
            ),
            (
                r#"Bearer error_description="odd, resource_metadata="http://s/m""#,
                r#"Bearer error_description="odd, resource_metadata=NEW"#,
            ),
            (r#"Bearer error="x" resource_metadata="http://s/m""#, r#"Bearer error="x" resource_metadata=NEW"#),
            (r#"Bearer error="é", resource_metadata="http://s/m""#, r#"Bearer error="é", resource_metadata=NEW"#),
            (
                r#"Bearer realm="a, resource_metadata=http://s/m, b""#,
                r#"Bearer realm="a, resource_metadata=https://p/m, b""#,
            ),
            (
                r#"Bearer realm="a \" resource_metadata=http://s/m", resource_metadata="http://s/m""#,
                r#"Bearer realm="a \" resource_metadata=https://p/m", resource_metadata=NEW"#,
            ),
            (r#"Bearer resource_metadata="http://s/m" scope="a""#, r#"Bearer resource_metadata=NEW scope="a""#),
            (r#"Bearer resource_metadata="http://s/m"; scope="a""#, r#"Bearer resource_metadata=NEW; scope="a""#),
            (
                r#"Bearer realm="x", resource_metadata="http://s/m" error="y""#,
                r#"Bearer realm="x", resource_metadata=NEW error="y""#,
            ),
            (r#"Bearer resource_metadata=http://s/m scope="a""#, r#"Bearer resource_metadata=NEW scope="a""#),
            (r#"Bearer resource_metadata=http://s/m; scope="a""#, r#"Bearer resource_metadata=NEW; scope="a""#),
            (
                r#"Bearer error="x" resource_metadata="http://s/1", DPoP resource_metadata="http://s/2""#,
                r#"Bearer error="x" resource_metadata=NEW, DPoP resource_metadata=NEW"#,
            ),
            (r#"resource_metadata="http://s/m""#, "resource_metadata=NEW"),
            (r#"Bearer realm="x\", resource_metadata="http://s/m""#, r#"Bearer realm="x\", resource_metadata=NEW"#),
        ] {
            let replace = |url: &str| url.starts_with("http://s").then(|| "https://p/m".to_owned());
            let value = HeaderValue::from_bytes(challenge.as_bytes()).unwrap();
            let rewritten = rewrite_challenge(&value, replace).unwrap_or_else(|| panic!("{challenge}"));
            assert_eq!(rewritten.as_bytes(), expected.replace("NEW", new).as_bytes(), "{challenge}");
        }
    }

    #[test]
    fn a_challenge_without_a_url_of_the_server_stays() {
        for challenge in [
            "",
            "Bearer",
            "Bearer ,,",
            r#"Bearer realm="http://s/m""#,
            r#"Bearer resource_metadata="https://other/m""#,
            r#"Basic resource_metadata="http://s/m""#,
            r#"Bearer x_resource_metadata="http://s/m""#,
            "Bearer resource_metadata",
            "Bearer resource_metadata=",
        ] {
            assert_eq!(rewritten(challenge), None, "{challenge}");
        }
    }

    #[test]
    fn the_resource_alone_is_renamed() {
        let rename =
            |document: &str| rename_resource(document.as_bytes(), "https://p/mcp", |uri| uri.host() == Some("s"));
        let document =
            r#"{"resource":"http://s:1/mcp","authorization_servers":["http://s/as"],"signed_metadata":"x","n":1e3}"#;
        let Document::Renamed(renamed) = rename(document) else { panic!("{:?}", rename(document)) };
        let expected =
            serde_json::json!({"resource": "https://p/mcp", "authorization_servers": ["http://s/as"], "n": 1e3});
        assert_eq!(serde_json::from_slice::<Value>(&renamed).unwrap(), expected);
        assert_eq!(rename(r#"{"resource":"https://o/mcp"}"#), Document::Foreign("https://o/mcp".to_owned()));
        for other in ["", "[]", "{}", r#"{"resource":7}"#, r#"[{"resource":"http://s"}]"#] {
            assert_eq!(rename(other), Document::Other, "{other}");
        }
    }

    #[test]
    fn paths_of_metadata_have_the_path_of_the_resource_behind_them() {
        for (path, expected) in [("/", ""), ("/mcp", "/mcp"), ("/a/b", "/a/b")] {
            assert_eq!(metadata_path(path), format!("{WELL_KNOWN}{expected}"));
        }
    }

    #[test]
    fn private_addresses_are_those_of_no_public_network() {
        for (address, expected) in [
            ("127.0.0.1", true),
            ("10.1.2.3", true),
            ("172.31.0.1", true),
            ("172.32.0.1", false),
            ("192.168.1.1", true),
            ("169.254.169.254", true),
            ("100.64.0.1", true),
            ("100.128.0.1", false),
            ("0.0.0.0", true),
            ("8.8.8.8", false),
            ("::1", true),
            ("fd00::1", true),
            ("fe80::1", true),
            ("::ffff:10.0.0.1", true),
            ("2001:4860:4860::8888", false),
        ] {
            assert_eq!(is_private(address.parse().unwrap()), expected, "{address}");
        }
    }
}
