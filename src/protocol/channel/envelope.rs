//! Headers of a modern request that repeat its body.
//!
//! Intermediaries decide by the headers, and a server on HTTP refuses a request whose body says
//! another thing ([2026-07-28, standard headers]). A server on stdio sees no headers, so the proxy
//! compares them in its place.
//!
//! [2026-07-28, standard headers]: https://modelcontextprotocol.io/specification/2026-07-28/basic/transports#standard-mcp-request-headers

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::headers::{self, names};
use crate::jsonrpc;

/// Marks of a value in base64: the text itself cannot be in a header.
const ENCODED: (&str, &str) = ("=?base64?", "?=");

/// Returns the name of the first header that does not match the body of a request with this method.
/// Compared are `MCP-Protocol-Version`, `Mcp-Method`, and `Mcp-Name` of a method with a name. An
/// absent or repeated header does not match. Returns `None` if all match.
pub fn mismatch(headers: &HeaderMap, method: &str, body: &[u8]) -> Option<HeaderName> {
    let version = jsonrpc::meta_protocol_version(body);
    if version.as_deref().is_none_or(|version| !is(headers, &names::MCP_PROTOCOL_VERSION, version)) {
        return Some(names::MCP_PROTOCOL_VERSION);
    }
    if !is(headers, &names::MCP_METHOD, method) {
        return Some(names::MCP_METHOD);
    }
    let path: &[&str] = match method {
        "tools/call" | "prompts/get" => &["params", "name"],
        "resources/read" => &["params", "uri"],
        _ => return None,
    };
    let name = jsonrpc::string_member(body, path);
    match name {
        // The server refuses a request without a name in its own words.
        Some(name) if !is(headers, &names::MCP_NAME, &name) => Some(names::MCP_NAME),
        Some(_) | None => None,
    }
}

/// Returns true if the header is present once, with this value, perhaps encoded.
pub fn is(headers: &HeaderMap, name: &HeaderName, value: &str) -> bool {
    let Some(header) = headers::only(headers, name.clone()) else { return false };
    decoded(header).is_some_and(|header| header == value)
}

/// Returns the value of a header with this text. It is encoded if a header cannot have it as it is.
/// Returns `None` for a text that cannot be encoded.
pub fn encoded(text: &str) -> Option<HeaderValue> {
    let is_plain = !text.is_empty()
        && text.trim() == text
        && text.bytes().all(|byte| byte == b'\t' || (b' '..=b'~').contains(&byte))
        && !(text.starts_with(ENCODED.0) && text.ends_with(ENCODED.1));
    let value = if is_plain {
        Cow::Borrowed(text)
    } else {
        Cow::Owned(format!("{}{}{}", ENCODED.0, STANDARD.encode(text), ENCODED.1))
    };
    HeaderValue::from_str(&value).ok()
}

/// Returns the text of a header's value, or `None` if it is encoded and malformed.
fn decoded(value: &str) -> Option<Cow<'_, str>> {
    let Some(encoded) = value.strip_prefix(ENCODED.0).and_then(|rest| rest.strip_suffix(ENCODED.1)) else {
        return Some(Cow::Borrowed(value));
    };
    Some(Cow::Owned(String::from_utf8(STANDARD.decode(encoded).ok()?).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(headers: &[(&str, &str)], method: &str, params: &str) -> Option<String> {
        let pairs =
            headers.iter().map(|(name, value)| (name.parse().expect("a name"), value.parse().expect("a value")));
        let headers: HeaderMap = pairs.fold(HeaderMap::new(), |mut map, (name, value)| {
            map.append::<HeaderName>(name, value);
            map
        });
        let meta = r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}"#;
        let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{{{meta}{params}}}}}"#);
        mismatch(&headers, method, body.as_bytes()).map(|name| name.as_str().to_owned())
    }

    #[test]
    fn headers_repeat_the_body() {
        let version = ("mcp-protocol-version", "2026-07-28");
        let list = ("mcp-method", "tools/list");
        assert_eq!(found(&[version, list], "tools/list", ""), None);
        for (headers, header) in [
            (vec![list], "mcp-protocol-version"),
            (vec![("mcp-protocol-version", "2025-11-25"), list], "mcp-protocol-version"),
            (vec![version, version, list], "mcp-protocol-version"),
            (vec![version], "mcp-method"),
            (vec![version, ("mcp-method", "tools/call")], "mcp-method"),
        ] {
            assert_eq!(found(&headers, "tools/list", "").as_deref(), Some(header), "{headers:?}");
        }
    }

    #[test]
    fn a_text_becomes_the_value_of_a_header_and_is_read_again() {
        for (text, value) in [
            ("a b", "a b"),
            ("añb", "=?base64?YcOxYg==?="),
            (" a", "=?base64?IGE=?="),
            ("", "=?base64??="),
            ("=?base64?x?=", "=?base64?PT9iYXNlNjQ/eD89?="),
            ("a\nb", "=?base64?YQpi?="),
        ] {
            let encoded = encoded(text).expect("a value");
            assert_eq!(encoded, value);
            assert_eq!(decoded(value).as_deref(), Some(text));
        }
    }

    #[test]
    fn a_name_is_plain_or_base64() {
        let call = |name| {
            let mut headers = vec![("mcp-protocol-version", "2026-07-28"), ("mcp-method", "tools/call")];
            headers.extend(name);
            found(&headers, "tools/call", r#","name":"añb""#)
        };
        assert_eq!(call(Some(("mcp-name", "=?base64?YcOxYg==?="))), None);
        for name in [None, Some(("mcp-name", "a")), Some(("mcp-name", "=?base64?YcOxYg=?="))] {
            assert_eq!(call(name).as_deref(), Some("mcp-name"), "{name:?}");
        }
        let unnamed = [("mcp-protocol-version", "2026-07-28"), ("mcp-method", "prompts/get")];
        assert_eq!(found(&unnamed, "prompts/get", ""), None, "the server's to refuse");
        let read = [unnamed[0], ("mcp-method", "resources/read"), ("mcp-name", "file:///a")];
        assert_eq!(found(&read, "resources/read", r#","uri":"file:///a""#), None);
        assert_eq!(found(&read, "resources/read", r#","uri":"file:///b""#).as_deref(), Some("mcp-name"));
    }
}
