use http::header;

use super::*;

fn map(lines: &[(&str, &str)]) -> HeaderMap {
    let parse = |(name, value): &(&str, &str)| -> (HeaderName, HeaderValue) {
        (name.parse().unwrap(), HeaderValue::from_bytes(value.as_bytes()).unwrap())
    };
    lines.iter().map(parse).collect()
}

/// Lines sorted by name, to compare whole heads.
fn lines(headers: &HeaderMap) -> Vec<(&str, &str)> {
    let mut all: Vec<_> = headers.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
    all.sort_unstable();
    all
}

fn version(text: &str) -> ProtocolVersion {
    ProtocolVersion::parse(text).unwrap()
}

#[test]
fn the_four_known_old_revisions_are_legacy_and_everything_else_is_modern() {
    for text in ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"] {
        assert_eq!(version(text).era(), Era::Legacy, "{text}");
    }
    for text in ["2026-07-28", "2027-01-01", "2025-06-19", "draft", "2025-11-25x"] {
        assert_eq!(version(text).era(), Era::Modern, "{text}");
    }
    assert_eq!(ProtocolVersion::DEFAULT, version("2025-03-26"));
}

#[test]
fn only_dates_are_at_least_a_date() {
    for (text, expected) in [
        ("2025-06-18", false),
        ("2025-11-25", true),
        ("2026-07-28", true),
        ("draft", false),
        ("9999", false),
        ("2026-07-28x", false),
        ("2026/07/28", false),
    ] {
        assert_eq!(version(text).is_at_least("2025-11-25"), expected, "{text}");
    }
}

#[test]
fn versions_and_session_ids_are_bounded_visible_ascii() {
    for bad in ["", "a b", "a\n", "é", &"1".repeat(65)] {
        assert_eq!(ProtocolVersion::parse(bad), None, "{bad:?}");
    }
    assert!(SessionId::parse(&"s".repeat(1024)).is_some());
    for bad in ["", "a b", "\u{7f}", &"s".repeat(1025)] {
        assert_eq!(SessionId::parse(bad), None, "{bad:?}");
    }
}

#[test]
fn a_header_that_is_there_twice_names_nothing() {
    let one = map(&[("mcp-session-id", "s1"), ("mcp-protocol-version", "2025-06-18")]);
    assert_eq!(SessionId::from_headers(&one), SessionId::parse("s1"));
    assert_eq!(ProtocolVersion::from_headers(&one), Some(version("2025-06-18")));
    let two = map(&[
        ("mcp-session-id", "s1"),
        ("mcp-session-id", "s2"),
        ("mcp-protocol-version", "2025-06-18"),
        ("mcp-protocol-version", "2025-06-18"),
    ]);
    assert_eq!(SessionId::from_headers(&two), None);
    assert_eq!(ProtocolVersion::from_headers(&two), None);
}

#[test]
fn accept_is_read_by_the_most_specific_range() {
    for (value, json, sse, names_sse) in [
        ("", true, true, false),
        ("*/*", true, true, false),
        ("application/json, text/event-stream", true, true, true),
        ("application/json, Text/Event-Stream", true, true, true),
        ("Application/JSON", true, false, false),
        ("text/event-stream;q=0.5", false, true, true),
        ("text/*", false, true, false),
        ("application/*;q=0.1, text/html", true, false, false),
        ("text/html", false, false, false),
        ("text/event-stream;q=0, */*", true, false, false),
        ("*/*, text/event-stream", true, true, true),
        ("*/*;q=0, text/event-stream", false, true, true),
        ("text/*;q=0.0, text/event-stream ; q = 1", false, true, true),
        ("application/json;charset=utf-8;Q=0.000, text/event-stream", false, true, true),
    ] {
        let headers = map(&[("accept", value)]);
        assert_eq!(accept(&headers), Accept { json, sse, names_sse }, "{value:?}");
        assert_eq!(super::names_sse(&headers), names_sse, "{value:?}");
    }
    assert_eq!(accept(&HeaderMap::new()), Accept { json: true, sse: true, names_sse: false });
    let two_lines = map(&[("accept", "application/json"), ("accept", "text/event-stream")]);
    assert_eq!(accept(&two_lines), Accept { json: true, sse: true, names_sse: true });
}

#[test]
fn a_content_type_is_its_essence() {
    for (value, json, sse) in [
        ("application/json", true, false),
        ("Application/Json ; charset=utf-8", true, false),
        ("text/event-stream;charset=utf-8", false, true),
        ("application/json-patch+json", false, false),
        ("text/plain; application/json", false, false),
    ] {
        let headers = map(&[("content-type", value)]);
        assert_eq!((is_json(&headers), is_sse(&headers)), (json, sse), "{value:?}");
    }
    assert!(!is_json(&HeaderMap::new()) && !is_sse(&HeaderMap::new()));
}

#[test]
fn hop_by_hop_headers_and_those_named_by_connection_are_removed() {
    let mut headers = map(&[
        ("connection", "close, X-One"),
        ("connection", "x-two, not a name"),
        ("x-one", "1"),
        ("x-two", "2"),
        ("x-three", "3"),
        ("keep-alive", "timeout=5"),
        ("proxy-connection", "keep-alive"),
        ("proxy-authorization", "Basic eA=="),
        ("proxy-authenticate", "Basic"),
        ("te", "trailers"),
        ("trailer", "x"),
        ("transfer-encoding", "chunked"),
        ("upgrade", "websocket"),
        ("authorization", "Bearer x"),
    ]);
    remove_hop_by_hop(&mut headers);
    assert_eq!(lines(&headers), [("authorization", "Bearer x"), ("x-three", "3")]);
}

#[test]
fn a_call_upstream_asks_for_both_types_uncompressed_and_keeps_the_rest() {
    let headers = map(&[
        ("host", "proxy.example"),
        ("accept", "text/event-stream"),
        ("accept-encoding", "gzip"),
        ("content-length", "12"),
        ("content-type", "application/json"),
        ("expect", "100-continue"),
        ("last-event-id", "x.1"),
        ("connection", "keep-alive"),
        ("mcp-session-id", "s"),
        ("idempotency-key", "k"),
        ("x-custom", "a"),
        ("x-custom", "b"),
    ]);
    let headers = to_upstream(&headers).map(|(name, value)| (name.clone(), value.clone())).collect();
    let expected = [
        ("accept", "application/json, text/event-stream"),
        ("accept-encoding", "identity"),
        ("content-type", "application/json"),
        ("idempotency-key", "k"),
        ("mcp-session-id", "s"),
        ("x-custom", "a"),
        ("x-custom", "b"),
    ];
    assert_eq!(lines(&headers), expected);
}

/// A signature may cover them.
#[test]
fn types_and_codings_that_serve_reach_the_server_as_they_are() {
    const BOTH: &str = "application/json, text/event-stream";
    for (sent, expected) in [
        (vec![("accept", "text/event-stream, application/json")], ["text/event-stream, application/json", "identity"]),
        (
            vec![("accept", "application/json;q=0.9,text/event-stream, */*")],
            ["application/json;q=0.9,text/event-stream, */*", "identity"],
        ),
        (vec![("accept", "application/json;q=0, text/event-stream")], [BOTH, "identity"]),
        (vec![("accept", "application/json")], [BOTH, "identity"]),
        (vec![("accept", "*/*")], [BOTH, "identity"]),
        (vec![], [BOTH, "identity"]),
        (vec![("accept-encoding", "identity;q=1.0, *;q=0")], [BOTH, "identity;q=1.0, *;q=0"]),
        (vec![("accept-encoding", "gzip, identity")], [BOTH, "identity"]),
        (vec![("accept-encoding", "*;q=0")], [BOTH, "identity"]),
        (vec![("accept-encoding", "")], [BOTH, "identity"]),
    ] {
        let headers = map(&sent);
        let got: HeaderMap = to_upstream(&headers).map(|(name, value)| (name.clone(), value.clone())).collect();
        let values: Vec<_> = ["accept", "accept-encoding"].iter().flat_map(|name| got.get_all(*name)).collect();
        assert_eq!(values, expected, "{sent:?}");
    }
}

#[test]
fn a_session_header_that_repeats_one_value_is_that_value() {
    for (lines, expected) in [
        (&["abc"][..], Some("abc")),
        (&["abc, abc"], Some("abc")),
        (&["abc", "abc"], Some("abc")),
        (&["abc, abc", "abc"], Some("abc")),
        (&["abc,abc"], Some("abc,abc")),
        (&["abc, abd"], None),
        (&["abc", "abd"], None),
        (&["abc, "], None),
        (&["a b"], None),
        (&[""], None),
        (&[], None),
    ] {
        let lines: Vec<_> = lines.iter().map(|line| ("mcp-session-id", *line)).collect();
        let mut headers = map(&lines);
        let facts = RequestFacts::of(&headers);
        let id = SessionId::from_headers(&headers);
        assert_eq!((id.as_ref().map(SessionId::as_str), &facts.session), (expected, &id), "{lines:?}");
        let repeats = expected.is_some() && (lines.len() > 1 || lines[0].1.contains(' '));
        assert_eq!(facts.has(Present::RepeatedSession), repeats, "{lines:?}");
        unite_session(&mut headers);
        assert_eq!(
            headers.get_all("mcp-session-id").iter().count(),
            if repeats { 1 } else { lines.len() },
            "{lines:?}"
        );
    }
}

#[test]
fn an_sse_answer_loses_what_describes_the_upstreams_bytes() {
    let mut headers = map(&[
        ("content-type", "text/event-stream"),
        ("content-length", "99"),
        ("etag", "\"x\""),
        ("last-modified", "Sat, 21 Nov 2026 00:00:00 GMT"),
        ("accept-ranges", "bytes"),
        ("content-range", "bytes 0-1/2"),
        ("content-digest", "sha-256=:AA==:"),
        ("repr-digest", "sha-256=:AA==:"),
        ("digest", "sha-256=AA=="),
        ("content-md5", "AA=="),
        ("content-encoding", "Identity"),
        ("cache-control", "max-age=60"),
        ("connection", "keep-alive"),
        ("mcp-session-id", "s"),
        ("set-cookie", "a=1"),
        ("set-cookie", "b=2"),
    ]);
    let facts = ResponseFacts::of(&headers);
    remove_hop_by_hop(&mut headers);
    sse_downstream(&mut headers, &facts);
    let expected = [
        ("cache-control", "no-cache, no-transform"),
        ("content-type", "text/event-stream"),
        ("mcp-session-id", "s"),
        ("set-cookie", "a=1"),
        ("set-cookie", "b=2"),
        ("x-accel-buffering", "no"),
    ];
    assert_eq!(lines(&headers), expected);
}

#[test]
fn a_compressed_sse_answer_stays_recognisable() {
    let mut headers = map(&[("content-encoding", "gzip")]);
    let facts = ResponseFacts::of(&headers);
    sse_downstream(&mut headers, &facts);
    assert_eq!(headers[header::CONTENT_ENCODING], "gzip");
}

#[test]
fn cors_headers_are_picked_out_with_every_line() {
    let headers = map(&[
        ("access-control-allow-origin", "https://a.example"),
        ("access-control-allow-credentials", "true"),
        ("vary", "Origin"),
        ("vary", "Accept"),
        ("content-type", "application/json"),
    ]);
    let expected = [
        ("access-control-allow-credentials", "true"),
        ("access-control-allow-origin", "https://a.example"),
        ("vary", "Accept"),
        ("vary", "Origin"),
    ];
    assert_eq!(lines(&cors_of(&headers)), expected);
}

#[test]
fn what_we_add_is_exposed_where_cors_is_spoken() {
    let mut silent = map(&[("access-control-expose-headers", "X")]);
    expose_ours(&mut silent);
    assert_eq!(lines(&silent), [("access-control-expose-headers", "X")]);

    let mut answer = map(&[
        ("access-control-allow-origin", "*"),
        ("access-control-expose-headers", "X-A, mcp-session-id"),
        ("access-control-expose-headers", "X-B"),
    ]);
    expose_ours(&mut answer);
    let expected = [
        ("access-control-allow-origin", "*"),
        ("access-control-expose-headers", "X-A, mcp-session-id, X-B, Link, WWW-Authenticate"),
    ];
    assert_eq!(lines(&answer), expected);
}

#[test]
fn a_preflight_allows_what_clients_send_us() {
    let mut preflight = map(&[
        ("access-control-allow-origin", "*"),
        ("access-control-allow-headers", "Content-Type"),
        ("access-control-expose-headers", "*"),
    ]);
    expose_ours(&mut preflight);
    let expected = [
        ("access-control-allow-headers", "Content-Type, Last-Event-ID, Idempotency-Key"),
        ("access-control-allow-origin", "*"),
        ("access-control-expose-headers", "*"),
    ];
    assert_eq!(lines(&preflight), expected);
}

#[test]
fn lines_are_the_headers_they_were_made_of() {
    let headers = map(&[("a", "1"), ("b", ""), ("a", " x: y "), ("host", "h:1"), ("origin", "https://a.example")]);
    let lines = Lines::from(&headers);
    assert_eq!(lines.as_bytes(), b"a: 1\r\na:  x: y \r\nb: \r\nhost: h:1\r\norigin: https://a.example\r\n");
    assert_eq!(lines.to_map(), headers);
    assert!(lines.contains(&header::HOST) && !lines.contains(&header::ACCEPT));
    assert_eq!(Lines::default().to_map(), HeaderMap::new());
}

#[test]
fn a_value_in_pieces_is_one_line_or_none() {
    let name = HeaderName::from_static("forwarded");
    let mut lines = Lines::default();
    lines.push_pieces(&name, ["for=a", ", ", "for=b"].map(str::as_bytes));
    for end in ["\r", "\n", "\0"] {
        lines.push_pieces(&name, ["for=a", end, "x: y"].map(str::as_bytes));
    }
    assert_eq!(lines.as_bytes(), b"forwarded: for=a, for=b\r\n");
}

#[test]
fn the_facts_of_a_request_are_those_that_each_search_finds() {
    let lines = [
        ("accept", "application/json, text/event-stream"),
        ("accept", "text/*;q=0.5"),
        ("accept", ""),
        ("content-type", "application/json; charset=utf-8"),
        ("content-type", "text/plain"),
        ("mcp-protocol-version", "2025-11-25"),
        ("mcp-protocol-version", "2026-07-28"),
        ("mcp-session-id", "a"),
        ("mcp-session-id", "a b"),
        ("authorization", "Bearer a"),
        ("x-api-key", "k"),
        ("content-length", "3"),
        ("idempotency-key", "k"),
        ("origin", "null"),
        ("traceparent", "00"),
        ("upgrade", "websocket"),
        ("mcp-resume-owner", "00000001"),
        ("mcp-resume-home", "00000001"),
        ("x-other", "x"),
    ];
    let presences = [
        (Present::Credential, &["authorization", "x-api-key"][..]),
        (Present::ContentLength, &["content-length"]),
        (Present::IdempotencyKey, &["idempotency-key"]),
        (Present::Origin, &["origin"]),
        (Present::Trace, &["traceparent"]),
        (Present::Upgrade, &["upgrade"]),
        (Present::Balancer, &["mcp-resume-owner", "mcp-resume-home"]),
    ];
    // No line, each line alone, and each two of them.
    let pairs = (0..=lines.len()).flat_map(|one| (0..=lines.len()).map(move |other| [one, other]));
    for chosen in pairs {
        let mut headers = HeaderMap::new();
        for (name, value) in chosen.into_iter().filter_map(|at| lines.get(at)) {
            headers.append(*name, HeaderValue::from_static(value));
        }
        let facts = RequestFacts::of(&headers);
        assert_eq!(facts.accept, accept(&headers), "{headers:?}");
        assert_eq!(facts.is_json, is_json(&headers), "{headers:?}");
        assert_eq!(facts.version, ProtocolVersion::from_headers(&headers), "{headers:?}");
        assert_eq!(facts.session, SessionId::from_headers(&headers), "{headers:?}");
        assert_eq!(
            facts.size,
            headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum::<usize>()
        );
        for (presence, names) in presences {
            assert_eq!(facts.has(presence), names.iter().any(|name| headers.contains_key(*name)), "{headers:?}");
        }
    }
}

#[test]
fn the_facts_of_a_response_are_those_that_each_search_finds() {
    let lines = [
        ("content-type", "application/json"),
        ("content-type", "application/json-rpc"),
        ("content-type", "Text/Event-Stream; charset=utf-8"),
        ("location", "/"),
        ("access-control-allow-origin", "*"),
        ("connection", "close"),
        ("keep-alive", "timeout=5"),
        ("x-other", "x"),
    ];
    for (one, other) in lines.iter().flat_map(|one| lines.iter().map(move |other| (one, other))) {
        let mut headers = HeaderMap::new();
        for (name, value) in [one, other] {
            headers.append(*name, HeaderValue::from_static(value));
        }
        let facts = ResponseFacts::of(&headers);
        let expected = (is_read_as_json(&headers), is_sse(&headers));
        assert_eq!((facts.is_read_as_json, facts.is_sse), expected, "{headers:?}");
        assert_eq!(facts.has_location, headers.contains_key("location"));
        assert_eq!(facts.has_cors, headers.contains_key("access-control-allow-origin"));
        let mut kept = headers.clone();
        remove_hop_by_hop(&mut kept);
        assert_eq!(facts.has_hop_by_hop, kept != headers, "{headers:?}");
    }
}
