//! The wire form of the stream URL, [SEP-1335]: a `Link` with a target on the endpoint that names
//! one stream.
//!
//! The target is a reference relative to the request's own, `?<its own query>&mcp-stream=<handle>`.
//! So it stays valid behind proxies that end TLS or rewrite paths. It grants the same access as an
//! event ID, so the parameter is removed from a request before other code sees it. Absent: the
//! existence of the stream, and the caller's right to it.
//!
//! [SEP-1335]: https://github.com/modelcontextprotocol/modelcontextprotocol/issues/1335

use std::fmt::Write;

use bytes::Bytes;
use http::header::{Entry, LINK, REFERRER_POLICY};
use http::{HeaderMap, HeaderValue, Uri};

use super::ids::{EventId, Handle};

/// The parameter that names the stream.
const PARAMETER: &str = "mcp-stream";
/// The relation of the link.
const RELATION: &str = "stream";

/// The value of the parameter.
#[derive(Clone, Debug)]
pub enum Named {
    /// This stream, from its first event on; not yet verified.
    Stream(EventId),
    /// A value of another format, or several streams.
    Malformed,
}

/// Removes the parameter from a request's target and returns its value, or `None` if it is absent.
pub fn take(target: &mut Uri) -> Option<Named> {
    let query = target.query()?;
    if !query.contains(PARAMETER) {
        return None;
    }
    let (named, others): (Vec<&str>, Vec<&str>) = query.split('&').partition(|parameter| value_of(parameter).is_some());
    let named = match named.as_slice() {
        [] => return None,
        [only] => value_of(only).and_then(EventId::of_handle).map_or(Named::Malformed, Named::Stream),
        [_, _, ..] => Named::Malformed,
    };
    let rest = match others.as_slice() {
        [] => target.path().to_owned(),
        others => format!("{}?{}", target.path(), others.join("&")),
    };
    let mut parts = target.clone().into_parts();
    parts.path_and_query = rest.parse().ok();
    *target = Uri::from_parts(parts).unwrap_or_else(|_| Uri::from_static("/"));
    Some(named)
}

/// Returns the target with this handle's stream, for [`take`].
pub fn with(target: &Uri, handle: &str) -> String {
    match target.query() {
        Some(query) => format!("{}?{query}&{PARAMETER}={handle}", target.path()),
        None => format!("{}?{PARAMETER}={handle}", target.path()),
    }
}

/// Returns the stream that a request's target names, or `None` if it names no stream, several, or
/// an unreadable one.
pub fn named(target: &Uri) -> Option<EventId> {
    match take(&mut target.clone())? {
        Named::Stream(id) => Some(id),
        Named::Malformed => None,
    }
}

/// Adds the link to the stream to the response head of a request with this query (without the
/// parameter). A link of this relation is replaced, and others stay. The referrer policy keeps
/// pages from disclosing the URL.
pub fn put(headers: &mut HeaderMap, query: Option<&str>, handle: &Handle) {
    let Ok(link) = HeaderValue::from_maybe_shared(Bytes::from(link_to(query, handle))) else { return };
    // Few responses have other links.
    let lines: Vec<HeaderValue> = match headers.entry(LINK) {
        Entry::Vacant(absent) => {
            absent.insert(link);
            Vec::new()
        }
        Entry::Occupied(mut present) => {
            let lines = present.iter().cloned().collect();
            present.insert(link);
            lines
        }
    };
    for line in &lines {
        let kept: Vec<&[u8]> = split(line.as_bytes(), b',').filter(|link| !is_stream(link)).collect();
        if let Ok(kept) = HeaderValue::from_bytes(&kept.join(&b", "[..]))
            && !kept.is_empty()
        {
            headers.append(LINK, kept);
        }
    }
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
}

/// Returns the link to the stream, for a request with this query.
fn link_to(query: Option<&str>, handle: &Handle) -> String {
    /// Characters of the link beside the query and the handle.
    const MORE: usize = "<?&=>; rel=\"\"".len() + PARAMETER.len() + RELATION.len();
    let query = query.filter(|query| !query.is_empty());
    let mut link = String::with_capacity(MORE + query.map_or(0, str::len) + handle.as_str().len());
    link.push_str("<?");
    if let Some(query) = query {
        push_escaped(&mut link, query);
        link.push('&');
    }
    // No character of a handle needs an escape.
    for piece in [PARAMETER, "=", handle.as_str(), ">; rel=\"", RELATION, "\""] {
        link.push_str(piece);
    }
    link
}

fn value_of(parameter: &str) -> Option<&str> {
    let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
    if name == PARAMETER { Some(value) } else { None }
}

/// Adds a query. Bytes that queries hold in practice, but a link target between angle brackets must
/// not, are escaped.
fn push_escaped(link: &mut String, query: &str) {
    for byte in query.bytes() {
        match byte {
            b'<' | b'>' | b'"' | ..=0x20 | 0x7f.. => {
                write!(link, "%{byte:02X}").expect("a String grows as it is written to");
            }
            _ => link.push(char::from(byte)),
        }
    }
}

/// Returns true if a link ([RFC 8288 §3]) has this relation, alone or among others. The first `rel`
/// counts.
///
/// [RFC 8288 §3]: https://www.rfc-editor.org/rfc/rfc8288#section-3
fn is_stream(link: &[u8]) -> bool {
    let relations = split(link, b';').skip(1).find_map(|parameter| {
        let at = parameter.iter().position(|byte| *byte == b'=')?;
        let is_rel = parameter[..at].trim_ascii().eq_ignore_ascii_case(b"rel");
        if is_rel { Some(parameter[at + 1..].trim_ascii()) } else { None }
    });
    let unquoted = relations.unwrap_or_default();
    let unquoted = unquoted.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\"")).unwrap_or(unquoted);
    unquoted.split(u8::is_ascii_whitespace).any(|relation| relation.eq_ignore_ascii_case(RELATION.as_bytes()))
}

/// Splits `text` at separators outside `<…>` and quoted strings, into trimmed, non-empty parts.
fn split(text: &[u8], separator: u8) -> impl Iterator<Item = &[u8]> {
    let (mut in_target, mut in_quotes, mut is_escaped) = (false, false, false);
    let separates = move |byte: &u8| {
        match *byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if in_quotes => is_escaped = true,
            b'"' if !in_target => in_quotes = !in_quotes,
            b'<' if !in_quotes => in_target = true,
            b'>' if !in_quotes => in_target = false,
            _ => return *byte == separator && !in_target && !in_quotes,
        }
        false
    };
    text.split(separates).map(<[u8]>::trim_ascii).filter(|part| !part.is_empty())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ids::{Keyring, Owner, StoreEpoch, StreamId, StreamKind};

    fn handle() -> Handle {
        let keys = Keyring::new([7; 32], vec![]);
        Handle::mint(
            &keys,
            StreamKind::Standalone,
            Owner(1),
            StoreEpoch(1),
            StreamId::from_bytes([1; 12]),
            [].iter(),
            false,
        )
    }

    fn links(lines: &[&str], query: Option<&str>) -> Vec<String> {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(LINK, line.parse().unwrap());
        }
        put(&mut headers, query, &handle());
        assert_eq!(headers[REFERRER_POLICY], "no-referrer");
        headers.get_all(LINK).iter().map(|link| link.to_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn a_link_can_be_taken_again() {
        for query in [None, Some(""), Some("a=1&b"), Some("a=\u{e9}")] {
            let links = links(&[], query);
            let target = links[0].strip_prefix('<').and_then(|link| link.strip_suffix(">; rel=\"stream\"")).unwrap();
            let mut uri: Uri = format!("/mcp{target}").parse().unwrap();
            let Some(Named::Stream(id)) = take(&mut uri) else { panic!("{uri}") };
            assert_eq!(id.handle_text(), handle().as_str());
            let own = query.filter(|query| !query.is_empty()).map(|query| {
                let mut escaped = String::new();
                push_escaped(&mut escaped, query);
                escaped
            });
            assert_eq!((uri.path(), uri.query()), ("/mcp", own.as_deref()));
            let mut again: Uri = with(&uri, handle().as_str()).parse().unwrap();
            assert!(matches!(take(&mut again), Some(Named::Stream(id)) if id.handle_text() == handle().as_str()));
            assert_eq!(again, uri);
        }
    }

    #[test]
    fn other_parameters_stay_and_the_stream_is_removed_even_if_malformed() {
        let handle = handle();
        let of = |query: &str| {
            let mut uri: Uri = format!("http://h/mcp?{query}").parse().unwrap();
            let named = take(&mut uri);
            let is_stream = named.as_ref().map(|named| matches!(named, Named::Stream(_)));
            (is_stream, uri.to_string())
        };
        let text = handle.as_str();
        assert_eq!(of(&format!("a=1&mcp-stream={text}&b=2")), (Some(true), "http://h/mcp?a=1&b=2".into()));
        assert_eq!(of("mcp-stream=short&a"), (Some(false), "http://h/mcp?a".into()));
        assert_eq!(of("mcp-stream"), (Some(false), "http://h/mcp".into()));
        assert_eq!(of(&format!("mcp-stream={text}&mcp-stream={text}")), (Some(false), "http://h/mcp".into()));
        assert_eq!(of("xmcp-stream=1&mcp-streams=2"), (None, "http://h/mcp?xmcp-stream=1&mcp-streams=2".into()));
    }

    #[test]
    fn a_link_of_the_server_with_this_relation_is_replaced_and_others_stay() {
        let ours = format!("<?mcp-stream={}>; rel=\"stream\"", handle().as_str());
        let lines = [
            r#"</a,b>; rel=next; title="x, rel=stream", </theirs>; REL=Stream"#,
            r#"<s>; rel="prev stream""#,
            r#"<k>; anchor="rel=stream"; rel="stream-like""#,
        ];
        let kept = [
            ours.as_str(),
            r#"</a,b>; rel=next; title="x, rel=stream""#,
            r#"<k>; anchor="rel=stream"; rel="stream-like""#,
        ];
        assert_eq!(links(&lines, None), kept);
    }

    proptest! {
        #[test]
        fn exactly_one_link_leads_to_a_stream(lines in prop::collection::vec(r#"[<>";,=\\ a]{0,12}(; ?rel="?stream"?)?"#, 0..4)) {
            let mut headers = HeaderMap::new();
            for line in &lines {
                headers.append(LINK, line.trim().parse().unwrap());
            }
            put(&mut headers, None, &handle());
            let all: Vec<_> = headers.get_all(LINK).iter().flat_map(|line| split(line.as_bytes(), b',')).collect();
            prop_assert_eq!(all.iter().filter(|link| is_stream(link)).count(), 1, "{:?}", headers);
        }

        #[test]
        fn any_target_is_taken_once(query in "[mcp=&?%/a-]{0,20}(&?mcp-stream=[A-Za-z0-9_-]{40,80}){0,2}") {
            let mut target: Uri = format!("/mcp?{query}").parse().unwrap();
            take(&mut target);
            prop_assert_eq!(target.path(), "/mcp");
            prop_assert!(take(&mut target).is_none());
        }
    }
}
