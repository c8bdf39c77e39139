//! Late JSON bodies: the events of a response that the proxy has begun lose nothing that a client
//! would have read in the body.

use crate::commit::{committed, hasty};
use crate::support::*;

/// Requests in the spellings of their IDs.
const IDS: [&str; 3] = ["7", "\"seven\"", "7.5"];

fn call(id: &str, tool: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"{tool}"}}}}"#)
}

fn result(id: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"n":1e0}}}}"#)
}

fn texts(events: &[Frame]) -> Vec<Vec<u8>> {
    events.iter().map(|event| event.bytes().to_vec()).collect()
}

/// Sends a body with status 200 under this media type.
async fn respond(call: Call, media_type: &str, body: &[u8]) {
    let head = format!("HTTP/1.1 200 OK\r\ncontent-type: {media_type}\r\ncontent-length: {}\r\n\r\n", body.len());
    call.whole([head.as_bytes(), body].concat()).await;
}

#[tokio::test]
async fn an_array_is_an_event_for_each_message() {
    let (mut upstream, proxy, session) = hasty().await;
    for (number, id) in IDS.into_iter().enumerate() {
        for (is_alone, body) in
            [(true, format!("[{}]", result(id))), (false, format!("[ {} ,\r\n{}\n]", progress(1), result(id)))]
        {
            let mut expected = vec![progress(1).into_bytes(), result(id).into_bytes()];
            if is_alone {
                expected.remove(0);
            }
            // A response that is read at once, and one that is cut and resumed.
            for is_cut in [false, true] {
                let request = session.post(call(id, &format!("{number} {is_alone} {is_cut}")));
                let (upstream_call, mut response, place) = committed(&proxy, &mut upstream, &request).await;
                if is_cut {
                    response.reset();
                    respond(upstream_call, "application/json", body.as_bytes()).await;
                    response = session.resume(&place.at(0)).send(proxy.addr).await.sse();
                } else {
                    respond(upstream_call, "application/json", body.as_bytes()).await;
                }
                let (events, end) = response.events().await;
                assert_eq!((texts(&events), end), (expected.clone(), End::Complete));
                let last = place.at(expected.len() as u64);
                assert_eq!(events.last().expect("events").id(), last);
                assert_eq!(session.resume(&last).send(proxy.addr).await.status, 204);
            }
        }
    }
}

#[tokio::test]
async fn an_array_has_the_ids_of_its_requests() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |c| c.delivery.commit_after = Some(SOON)).await;
    let session = Session::open(&proxy, &mut upstream, V2025_03).await;
    let request = session.post(format!("[{},{}]", call("1", "a"), call("2", "b")));
    let (upstream_call, mut response, _) = committed(&proxy, &mut upstream, &request).await;
    upstream_call.json(200, format!("[{},{}]", result("2.0"), result("1"))).await;
    let (events, _) = response.events().await;
    assert_eq!(texts(&events), [result("2").into_bytes(), result("1").into_bytes()]);
}

#[tokio::test]
async fn an_array_in_time_passes_as_it_is_or_as_events() {
    let (mut upstream, proxy, session) = setup().await;
    let body = format!("[{}, {}]", progress(1), result("1"));
    let pending = session.post(call("1", "t")).start(proxy.addr).await;
    upstream.expect("tools/call").await.json(200, &body).await;
    assert_eq!(pending.response().await.body().await, body.as_bytes());

    let stream_only = session.post(call("1", "u")).with("Accept", "text/event-stream");
    let pending = stream_only.start(proxy.addr).await;
    upstream.expect("tools/call").await.json(200, &body).await;
    let (events, _) = pending.response().await.sse().events().await;
    assert_eq!(texts(&events), [progress(1).into_bytes(), result("1").into_bytes()]);
}

#[tokio::test]
async fn an_array_without_a_response_is_an_error() {
    let (mut upstream, proxy, session) = hasty().await;
    for (id, body) in [("1", "[]".to_owned()), ("2", format!("[{}]", result("9"))), ("3", format!("[{}]", progress(1)))]
    {
        let (upstream_call, mut response, _) = committed(&proxy, &mut upstream, &session.post(call(id, "t"))).await;
        upstream_call.json(200, body).await;
        let (events, _) = response.events().await;
        assert_eq!(events.len(), 1);
        assert_eq!(events[0].json()["error"]["data"]["error"], "upstream_garbage");
    }
}

#[tokio::test]
async fn a_body_that_only_clients_read_is_an_event() {
    let (mut upstream, proxy, session) = hasty().await;
    let plain = br#"{"jsonrpc":"2.0","id":7,"result":{}}"#;
    for (number, (media_type, body, expected)) in [
        ("application/json-rpc", &plain[..], &plain[..]),
        ("Application/JSON; charset=utf-8", plain, plain),
        (
            "application/json",
            b"{\"jsonrpc\":\"2.0\",\"id\":7,\r\n\"result\":{\"x\":NaN}}",
            b"{\"jsonrpc\":\"2.0\",\"id\":7,\n\"result\":{\"x\":NaN}}",
        ),
        ("application/json", b"\xef\xbb\xbf{\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{}}", plain),
        (
            "application/json",
            b"\xef\xbb\xbf\r{\"id\":7,\n\"result\":\"\xff\"}\n",
            b"\n{\"id\":7,\n\"result\":\"\xff\"}\n",
        ),
        ("application/json-rpc", br#"{"id":7,"id":7,"result":{}}"#, br#"{"id":7,"id":7,"result":{}}"#),
        ("application/json", br#"{"id":"7","result":{"x":.5,}}"#, br#"{"id":"7","result":{"x":.5,}}"#),
    ]
    .into_iter()
    .enumerate()
    {
        for is_cut in [false, true] {
            let request = session.post(call("7", &format!("{number} {is_cut}")));
            let (upstream_call, mut response, place) = committed(&proxy, &mut upstream, &request).await;
            respond(upstream_call, media_type, body).await;
            if is_cut {
                response.reset();
                response = session.resume(&place.at(0)).send(proxy.addr).await.sse();
            }
            let (events, end) = response.events().await;
            assert_eq!((texts(&events), end), (vec![expected.to_vec()], End::Complete), "{number}");
            assert_eq!(session.resume(&place.at(1)).send(proxy.addr).await.status, 204);
        }
    }
}

#[tokio::test]
async fn a_body_that_no_client_reads_is_an_error() {
    let (mut upstream, proxy, session) = hasty().await;
    for (number, (status, body)) in [
        (200, "<html>"),
        (200, r#"{"id":8,"result":{"x":.5}}"#),
        (200, r#"{"id":7,"method":"ping","x":.5}"#),
        (200, ""),
        (500, r#"{"id":7,"result":{"x":.5}}"#),
        // Text behind the response.
        (200, r#"{"jsonrpc":"2.0","id":7,"result":{}}<br>Warning: x"#),
        (200, r#"{"jsonrpc":"2.0","id":7,"result":{"x":NaN}} x"#),
        (200, r#"{"jsonrpc":"2.0","id":7,"result":{}}{"jsonrpc":"2.0","id":7,"result":{}}"#),
        (200, "\u{feff}{\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{}}]"),
        // A response that is cut off, in its own text or behind an escape.
        (200, r#"{"jsonrpc":"2.0","id":7,"result":{"x":1}"#),
        (200, r#"{"jsonrpc":"2.0","id":7,"result":{"text":"a"#),
        (200, r#"{"jsonrpc":"2.0","id":7,"result":{"text":"a}}\"#),
        (200, r#"[{"jsonrpc":"2.0","id":7,"result":{}}"#),
    ]
    .into_iter()
    .enumerate()
    {
        let request = session.post(call("7", &number.to_string()));
        let (upstream_call, mut response, _) = committed(&proxy, &mut upstream, &request).await;
        upstream_call.json(status, body).await;
        let error = response.event().await.json();
        assert_fault(&error, 7, UPSTREAM_FAILED, "upstream");
        assert_eq!(error["error"]["data"]["httpStatus"], status);
        let code = if status == 200 { "upstream_garbage" } else { "upstream_status" };
        assert_eq!(error["error"]["data"]["error"], code, "{number}");
        response.ends().await;
    }
}

#[tokio::test]
async fn line_ends_of_unicode_are_escapes_in_events_of_the_proxy_alone() {
    let (mut upstream, proxy, session) = hasty().await;
    let raw = |id: &str| format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":\"a\u{2028}\u{2029}\u{85}\u{e9}\"}}");
    let escaped = |id: &str| format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":\"a\\u2028\\u2029\\u0085\u{e9}\"}}");
    for (id, body) in [("1", raw("1")), ("2", format!("[{}]", raw("2")))] {
        let (upstream_call, mut response, _) = committed(&proxy, &mut upstream, &session.post(call(id, "t"))).await;
        upstream_call.json(200, body).await;
        assert_eq!(response.event().await.bytes(), escaped(id).as_bytes());
        response.ends().await;
    }
    let (upstream_call, mut response, _) = committed(&proxy, &mut upstream, &session.post(call("3", "t"))).await;
    upstream_call.sse().await.finish(raw("3")).await;
    assert_eq!(response.event().await.bytes(), raw("3").as_bytes());
    // A body that passes stays as it is.
    let pending = session.post(call("4", "t")).start(proxy.addr).await;
    upstream.expect("tools/call").await.json(200, raw("4")).await;
    assert_eq!(pending.response().await.body().await, raw("4").as_bytes());
}
