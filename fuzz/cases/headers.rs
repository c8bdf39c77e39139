//! Forwarded headers in both directions. Input: the lines of a head, `name: value`; lines that no
//! head can hold are skipped.
//!
//! The meaning of a header does not depend on the notation of its list. Forwarding keeps all
//! headers but the named ones. Forwarding twice equals forwarding once.

use http::Method;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use mcp_resume::config::PrincipalSource;
use mcp_resume::event_log::{PresentedCredentials, Principals};
use mcp_resume::protocol::classify::{self, Route};
use mcp_resume::protocol::headers::{
    Era, Line, Lines, ProtocolVersion, ResponseFacts, SessionId, accept, cors_of, end_to_end, expose_ours, is_json,
    is_sse, names, names_sse, remove_hop_by_hop, sse_downstream, to_endpoint, to_upstream, unpinned,
};
use mcp_resume::protocol::ids::EventId;

/// Runs one input.
pub(crate) fn run(bytes: &[u8]) {
    let head = head(bytes);
    reads_accept(&head);
    reads_names(&head);
    goes_up(&head);
    comes_down(&head);
    exposes(&head);
    assert_eq!(unpinned(&head), head);
    assert!(!(is_sse(&head) && is_json(&head)));
}

fn head(bytes: &[u8]) -> HeaderMap {
    let lines = bytes.split(|&byte| byte == b'\n').filter_map(|line| {
        let colon = line.iter().position(|&byte| byte == b':')?;
        let name = HeaderName::from_bytes(&line[..colon]).ok()?;
        Some((name, HeaderValue::from_bytes(line[colon + 1..].trim_ascii()).ok()?))
    });
    // hyper accepts no more.
    let mut head = HeaderMap::new();
    for (name, value) in lines.take(100) {
        head.append(name, value);
    }
    head
}

/// The elements of a list that can be read as text.
fn elements(head: &HeaderMap, name: &HeaderName) -> Vec<String> {
    let lines = head.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    let all = lines.flat_map(|line| line.split(',')).map(|element| element.trim().to_owned());
    all.filter(|element| !element.is_empty()).collect()
}

fn reads_accept(head: &HeaderMap) {
    let listed = elements(head, &header::ACCEPT);
    let said = accept(head);
    if listed.is_empty() {
        assert!(said.json && said.sse && !names_sse(head));
        return;
    }
    let with = |value: String| {
        let mut head = HeaderMap::new();
        head.insert(header::ACCEPT, HeaderValue::try_from(value).unwrap());
        head
    };
    for same in [with(listed.join(",")), with(listed.join(" ,\t,").to_ascii_uppercase())] {
        assert_eq!((accept(&same), names_sse(&same)), (said, names_sse(head)));
    }
    let named = with(format!("{}, text/event-stream;q=0.001", listed.join(",")));
    assert!(accept(&named).sse && names_sse(&named), "the last of equals decides");
    let refused = with("*/*, application/json;q=0, text/*;q=0".into());
    assert!(!accept(&refused).json && !accept(&refused).sse);
}

fn reads_names(head: &HeaderMap) {
    let only = |name| {
        let mut values = head.get_all(name).iter();
        values.next().filter(|_| values.next().is_none())
    };
    if let Some(session) = SessionId::from_headers(head) {
        let lines = head.get_all(names::MCP_SESSION_ID).iter();
        let mut named = lines.flat_map(|line| line.to_str().unwrap_or_default().split(", ").map(str::trim));
        assert!(named.all(|value| value == session.as_str()), "a repeated value alone");
        assert!((1..=1024).contains(&session.as_str().len()));
        assert_eq!(SessionId::parse(session.as_str()), Some(session.clone()));
        assert_eq!(format!("{session:?}"), "SessionId(..)");
    }
    let version = ProtocolVersion::from_headers(head);
    if let Some(version) = &version {
        let text = version.as_str();
        assert_eq!(Some(text.as_bytes()), only(names::MCP_PROTOCOL_VERSION).map(HeaderValue::as_bytes));
        assert!((1..=64).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic()));
        assert!(
            version.era() == Era::Modern || version.is_at_least("2024-11-05") && !version.is_at_least("2026-01-01")
        );
        assert!(!version.is_at_least("2026-07-28") || version.is_at_least("2025-11-25"));
    }
    match classify::head(&Method::GET, head) {
        Route::Resume(id) => {
            let said = &head[names::LAST_EVENT_ID];
            assert_eq!(EventId::parse(said.as_bytes()).map(|id| id.cursor()), Some(id.cursor()));
        }
        Route::Refuse(_) => assert!(EventId::parse(head[names::LAST_EVENT_ID].as_bytes()).is_none()),
        Route::Standalone => assert!(names_sse(head) && version.is_none_or(|version| version.era() == Era::Legacy)),
        Route::Forward => assert!(!head.contains_key(names::LAST_EVENT_ID)),
        route => panic!("{route:?}"),
    }
    // The order of cookies and the separators between them do not identify the caller.
    let principals = Principals::new(PrincipalSource::Cookie("sid".into()), [7; 32]);
    let mut with_more = head.clone();
    with_more.append(header::COOKIE, HeaderValue::from_static("; =; other=1"));
    let of = |headers| principals.of(&PresentedCredentials { headers, query: None, certificate: None });
    assert_eq!(of(&with_more), of(head));
}

const OF_ONE_CONNECTION: [&str; 10] = [
    "connection",
    "keep-alive",
    "mcp-resume-owner",
    "proxy-connection",
    "proxy-authenticate",
    "proxy-authorization",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// A client cannot hide its identifying headers by naming them in `Connection`.
fn says_who(name: &HeaderName) -> bool {
    let told_by_proxies = name.as_str().replace('_', "-");
    matches!(name.as_str(), "authorization" | "cookie" | "x-api-key")
        || matches!(&*told_by_proxies, "forwarded" | "x-forwarded" | "x-real-ip")
        || told_by_proxies.starts_with("x-forwarded-")
}

/// The head without `gone` and without connection-specific headers.
fn rest(head: &HeaderMap, gone: &[&str]) -> HeaderMap {
    let named = elements(head, &header::CONNECTION);
    let mut rest = HeaderMap::new();
    for (name, value) in head {
        let is_gone = OF_ONE_CONNECTION.contains(&name.as_str())
            || gone.contains(&name.as_str())
            || named.iter().any(|named| named.eq_ignore_ascii_case(name.as_str())) && !says_who(name);
        if !is_gone {
            rest.append(name, value.clone());
        }
    }
    rest
}

fn collected<'a>(lines: impl Iterator<Item = Line<'a>>) -> HeaderMap {
    lines.map(|(name, value)| (name.clone(), value.clone())).collect()
}

fn goes_up(head: &HeaderMap) {
    let up = collected(to_upstream(head));
    let replaced = ["accept", "accept-encoding", "content-length", "expect", "host", "last-event-id"];
    let mut expected = rest(head, &replaced);
    for (name, usual) in [("accept", "application/json, text/event-stream"), ("accept-encoding", "identity")] {
        let of_client = rest(head, &[]);
        if up.get(name).is_some_and(|value| value == usual) && up.get_all(name).iter().count() == 1 {
            expected.insert(name, HeaderValue::from_static(usual));
        } else {
            assert!(up.contains_key(name), "{name}");
            for value in of_client.get_all(name) {
                expected.append(name, value.clone());
            }
        }
    }
    assert!(accept(&up).json && accept(&up).sse && names_sse(&up));
    assert_eq!(up, expected);
    assert_eq!(collected(to_upstream(&up)), up);
    assert_eq!(Lines::from(&up).to_map(), up);
    assert_eq!(collected(end_to_end(head)), rest(head, &["host"]));
    let dropped = ["host", "content-length", "expect", "last-event-id"];
    assert_eq!(collected(to_endpoint(head)), rest(head, &dropped));

    let mut passed = head.clone();
    remove_hop_by_hop(&mut passed);
    assert_eq!(passed, rest(head, &[]));
}

fn comes_down(head: &HeaderMap) {
    let facts = ResponseFacts::of(head);
    let mut down = head.clone();
    remove_hop_by_hop(&mut down);
    sse_downstream(&mut down, &facts);
    let mut gone = vec!["content-length", "etag", "last-modified", "accept-ranges", "content-range"];
    let codings = elements(&rest(head, &[]), &header::CONTENT_ENCODING);
    if codings.iter().all(|coding| coding.eq_ignore_ascii_case("identity")) {
        gone.push("content-encoding");
    }
    let mut expected = rest(head, &gone);
    expected.insert("cache-control", HeaderValue::from_static("no-cache, no-transform"));
    expected.insert("x-accel-buffering", HeaderValue::from_static("no"));
    assert_eq!(down, expected);
    let once = down.clone();
    sse_downstream(&mut down, &facts);
    assert_eq!(down, once);
}

fn exposes(head: &HeaderMap) {
    let cors = cors_of(head);
    assert!(cors.keys().all(|name| name.as_str().starts_with("access-control-") || name == header::VARY));
    assert!(cors.keys().all(|name| cors.get_all(name) == head.get_all(name)));

    let mut exposed = head.clone();
    expose_ours(&mut exposed);
    let lists = [
        (header::ACCESS_CONTROL_EXPOSE_HEADERS, &["Mcp-Session-Id", "Link", "WWW-Authenticate"][..]),
        (header::ACCESS_CONTROL_ALLOW_HEADERS, &["Last-Event-ID", "Idempotency-Key"]),
    ];
    for (name, ours) in &lists {
        let (before, after) = (elements(head, name), elements(&exposed, name));
        assert_eq!(after[..before.len()], before);
        let is_preflight_only = *name == header::ACCESS_CONTROL_ALLOW_HEADERS;
        let is_readable = head.get_all(name).iter().all(|value| value.to_str().is_ok());
        if head.contains_key(header::ACCESS_CONTROL_ALLOW_ORIGIN)
            && (!is_preflight_only || head.contains_key(name))
            && is_readable
            && !before.iter().any(|element| element == "*")
        {
            assert!(ours.iter().all(|our| after.iter().any(|there| there.eq_ignore_ascii_case(our))));
        } else {
            assert_eq!(exposed.get_all(name), head.get_all(name));
        }
    }
    let others = |head: &HeaderMap| {
        let mut head = head.clone();
        lists.iter().for_each(|(name, _)| drop(head.remove(name)));
        head
    };
    assert_eq!(others(&exposed), others(head));
    let once = exposed.clone();
    expose_ours(&mut exposed);
    assert_eq!(exposed, once);
}
