//! Late heads of the server: to whom the proxy responds before, and what the client gets of them.

use std::str::FromStr;
use std::time::Duration;

use mcp_resume::protocol::client_address::{Network, Trust};
use serde_json::json;

use crate::commit::{committed, hasty};
use crate::support::jwt::{bearer, bearer_for};
use crate::support::*;

/// Time for which a late response is remembered, and credentials are trusted whose end is known.
const TEN_MINUTES: Duration = Duration::from_secs(600);
const TWO_MINUTES: Duration = Duration::from_secs(120);
const SECOND: Duration = Duration::from_secs(1);

/// Time before a commit, for tests with many. A call that was to be answered in time may be
/// answered late by them.
const AT_ONCE: Duration = Duration::from_millis(30);

async fn hastiest() -> (Upstream, Proxy, Session) {
    setup_with(|c| {
        c.delivery.commit_after = Some(AT_ONCE);
        c.sessions.revive = false;
    })
    .await
}

/// One caller in the session of a test.
#[derive(Clone)]
struct Caller<'a> {
    session: &'a Session,
    header: Option<(&'static str, String)>,
}

impl Caller<'_> {
    fn call(&self, tool: &str) -> Request {
        // Equal POSTs would be retries.
        thread_local!(static LAST: std::cell::Cell<u64> = const { std::cell::Cell::new(100) });
        LAST.set(LAST.get() + 1);
        let request = self.session.post(call_tool(LAST.get(), tool));
        match &self.header {
            Some((name, value)) => request.with(name, value),
            None => request,
        }
    }
}

impl Session {
    fn caller(&self, header: Option<(&'static str, &str)>) -> Caller<'_> {
        Caller { session: self, header: header.map(|(name, value)| (name, value.to_owned())) }
    }
}

/// The server accepts a call in time.
async fn accept(proxy: &Proxy, upstream: &mut Upstream, caller: &Caller<'_>) {
    let pending = caller.call("accepted").start(proxy.addr).await;
    upstream.expect("tools/call").await.json(200, "{}").await;
    assert_eq!(pending.response().await.status, 200);
}

/// The proxy begins the response, before the server sends a result.
async fn commits(proxy: &Proxy, upstream: &mut Upstream, request: &Request) {
    let (call, mut response, _) = committed(proxy, upstream, request).await;
    let id = call.json_body()["id"].clone();
    call.json(200, result(id)).await;
    response.event().await;
    response.ends().await;
}

/// The proxy leaves the response to the server, however late: a call that began later was committed
/// to.
async fn waits(proxy: &Proxy, upstream: &mut Upstream, session: &Session, request: &Request, status: u16) {
    let pending = request.start(proxy.addr).await;
    let call = upstream.expect("tools/call").await;
    let control = session.caller(Some(("Authorization", "Bearer control")));
    accept(proxy, upstream, &control).await;
    commits(proxy, upstream, &control.call("control")).await;
    match status {
        200 => call.json(200, "{\"own\":1}").await,
        _ => call.status(status).await,
    }
    let response = pending.response().await;
    assert_eq!((response.status, response.is_sse()), (status, false));
}

#[tokio::test]
async fn only_a_client_that_names_event_streams_gets_a_head_of_the_proxys_own() {
    let (mut upstream, proxy, session) = hastiest().await;
    let caller = session.caller(None);
    for accept in ["*/*", "text/*, application/json", "application/json, text/event-stream;q=0", "application/json"] {
        waits(&proxy, &mut upstream, &session, &caller.call("t").with("Accept", accept), 200).await;
        waits(&proxy, &mut upstream, &session, &modern(accept).with("Accept", accept), 200).await;
    }
    for accept in ["application/json, text/event-stream", "*/*, text/event-stream", "text/event-stream;q=0.5"] {
        commits(&proxy, &mut upstream, &caller.call("t").with("Accept", accept)).await;
        commits(&proxy, &mut upstream, &modern(accept).with("Accept", accept)).await;
    }
}

#[tokio::test]
async fn the_trust_in_credentials_ends_with_the_time_since_the_server_accepted_them() {
    let (mut upstream, proxy, session) = hastiest().await;
    let (jwt, endless) = (bearer_for("u", 86_400), bearer("u", 1));
    for (header, lasts) in [
        (None, TEN_MINUTES),
        (Some(("Authorization", jwt.as_str())), TEN_MINUTES),
        (Some(("Authorization", endless.as_str())), TWO_MINUTES),
        (Some(("Authorization", "Bearer opaque")), TWO_MINUTES),
        (Some(("Authorization", "Basic dXNlcjpwYXNz")), TWO_MINUTES),
        (Some(("X-Api-Key", "key")), TWO_MINUTES),
        (Some(("Cookie", "sid=1")), TWO_MINUTES),
    ] {
        let caller = session.caller(header);
        accept(&proxy, &mut upstream, &caller).await;
        pass(lasts - 5 * SECOND).await;
        commits(&proxy, &mut upstream, &caller.call("t")).await;
        pass(lasts + SECOND).await;
        waits(&proxy, &mut upstream, &session, &caller.call("t"), 401).await;
    }
}

#[tokio::test]
async fn a_token_is_not_trusted_within_half_a_minute_of_its_expiry() {
    let (mut upstream, proxy, session) = hasty().await;
    let token = bearer_for("u", 100);
    let caller = session.caller(Some(("Authorization", &token)));
    accept(&proxy, &mut upstream, &caller).await;
    pass(60 * SECOND).await;
    commits(&proxy, &mut upstream, &caller.call("t")).await;
    pass(15 * SECOND).await;
    waits(&proxy, &mut upstream, &session, &caller.call("t"), 401).await;
}

#[tokio::test]
async fn a_call_from_before_a_refusal_does_not_restore_the_trust() {
    let (mut upstream, proxy, session) = hasty().await;
    let caller = session.caller(Some(("Authorization", "Bearer a")));
    accept(&proxy, &mut upstream, &caller).await;
    let (before, mut first, _) = committed(&proxy, &mut upstream, &caller.call("first")).await;
    let (refused, mut second, _) = committed(&proxy, &mut upstream, &caller.call("second")).await;
    refused.status(401).await;
    second.event().await;
    before.json(200, "{}").await;
    first.event().await;
    waits(&proxy, &mut upstream, &session, &caller.call("third"), 401).await;
}

#[tokio::test]
async fn a_late_status_is_waited_for_the_next_time_for_its_caller_and_tool() {
    let (mut upstream, proxy, session) = hastiest().await;
    let other = session.caller(Some(("Authorization", "Bearer other")));
    for status in [202, 204, 302, 401, 403, 404, 429] {
        let credential = format!("Bearer {status}");
        let caller = session.caller(Some(("Authorization", &credential)));
        for caller in [&caller, &other] {
            accept(&proxy, &mut upstream, caller).await;
        }
        let tool = format!("tool {status}");
        let (call, mut response, _) = committed(&proxy, &mut upstream, &caller.call(&tool)).await;
        call.status_with(status, "location: /login\r\n").await;
        response.events().await;
        // A refusal ends the trust in the credentials too.
        accept(&proxy, &mut upstream, &caller).await;
        waits(&proxy, &mut upstream, &session, &caller.call(&tool), status).await;
        accept(&proxy, &mut upstream, &caller).await;
        commits(&proxy, &mut upstream, &caller.call("another tool")).await;
        commits(&proxy, &mut upstream, &other.call(&tool)).await;
        pass(TEN_MINUTES + SECOND).await;
        accept(&proxy, &mut upstream, &caller).await;
        commits(&proxy, &mut upstream, &caller.call(&tool)).await;
    }
}

#[tokio::test]
async fn other_late_statuses_are_not_waited_for() {
    let (mut upstream, proxy, session) = hasty().await;
    let caller = session.caller(None);
    for status in [200, 400, 500] {
        let (call, mut response, _) = committed(&proxy, &mut upstream, &caller.call("t")).await;
        call.json(status, "{}").await;
        response.events().await;
    }
    commits(&proxy, &mut upstream, &caller.call("t")).await;
}

#[tokio::test]
async fn callers_without_credentials_are_told_apart_by_their_address() {
    let (mut upstream, proxy, session) = setup_with(|c| {
        c.delivery.commit_after = Some(SOON);
        let network = Network::from_str("127.0.0.1").expect("an address");
        c.listen.trusted_proxies = Trust::new(Some(network.into()));
    })
    .await;
    let of = |address| session.caller(Some(("X-Forwarded-For", address)));
    let (call, mut response, _) = committed(&proxy, &mut upstream, &of("192.0.2.1").call("t")).await;
    call.status(429).await;
    response.event().await;
    waits(&proxy, &mut upstream, &session, &of("192.0.2.1").call("t"), 429).await;
    commits(&proxy, &mut upstream, &of("192.0.2.2").call("t")).await;
}

/// A result of so many bytes and some.
fn large(id: &serde_json::Value, bytes: usize) -> String {
    json!({"jsonrpc": "2.0", "id": id, "result": {"text": "x".repeat(bytes)}}).to_string()
}

#[tokio::test]
async fn a_large_json_is_waited_for_the_next_time() {
    let (mut upstream, proxy, session) = hasty().await;
    let caller = session.caller(None);
    for (tool, bytes, is_learnt) in [("small", 500_000, false), ("large", 600_000, true)] {
        let (call, mut response, _) = committed(&proxy, &mut upstream, &caller.call(tool)).await;
        let body = large(&call.json_body()["id"], bytes);
        let (event, ()) = tokio::join!(response.event(), call.json(200, &body));
        assert!(event.bytes() == body.as_bytes());
        match is_learnt {
            true => waits(&proxy, &mut upstream, &session, &caller.call(tool), 200).await,
            false => commits(&proxy, &mut upstream, &caller.call(tool)).await,
        }
    }
}

#[tokio::test]
async fn a_large_json_that_came_in_time_is_waited_for_if_its_head_named_its_length() {
    let (mut upstream, proxy, session) = setup_with(|c| c.delivery.commit_after = Some(LIMIT)).await;
    let caller = session.caller(None);
    for (tool, bytes, is_learnt) in [("small", 500_000, false), ("large", 600_000, true)] {
        let pending = caller.call(tool).start(proxy.addr).await;
        let call = upstream.expect("tools/call").await;
        let body = large(&call.json_body()["id"], bytes);
        let passed = async { pending.response().await.body().await };
        let (passed, ()) = tokio::join!(passed, call.json(200, &body));
        assert!(passed == body.as_bytes());

        let pending = caller.call(tool).start(proxy.addr).await;
        let call = upstream.expect("tools/call").await;
        let control = caller.call("control").start(proxy.addr).await;
        let control_call = upstream.expect("tools/call").await;
        pass(LIMIT + SECOND).await;
        assert!(control.response().await.is_sse(), "it was committed to");
        control_call.json(200, "{}").await;
        call.json(200, "{}").await;
        assert_eq!(pending.response().await.is_sse(), !is_learnt, "{tool}");
    }
}

#[tokio::test]
async fn an_event_over_the_limit_is_waited_for_the_next_time() {
    let (mut upstream, proxy, session) = setup_with(|c| {
        c.delivery.commit_after = Some(SOON);
        c.streams.max_event_bytes = 10_000;
    })
    .await;
    let caller = session.caller(None);
    let (call, mut response, _) = committed(&proxy, &mut upstream, &caller.call("t")).await;
    call.json(200, "x".repeat(20_000)).await;
    assert_eq!(response.event().await.json()["error"]["data"]["httpStatus"], 200);
    waits(&proxy, &mut upstream, &session, &caller.call("t"), 200).await;
}

/// Opens the session's standalone stream.
async fn listen(proxy: &Proxy, upstream: &mut Upstream, session: &Session) -> (Sse, Response) {
    let pending = session.get().start(proxy.addr).await;
    let sse = upstream.expect("GET").await.sse().await;
    let mut response = pending.response().await.sse();
    response.prime().await;
    (sse, response)
}

#[tokio::test]
async fn a_request_that_was_accepted_late_ends_with_its_response_on_the_sessions_stream() {
    let (mut upstream, proxy, session) = hasty().await;
    let (sse, mut own) = listen(&proxy, &mut upstream, &session).await;
    for (id, status) in [(1, 202), (2, 204)] {
        let request = session.post(call_tool(id, &format!("tool {status}")));
        let (call, response, place) = committed(&proxy, &mut upstream, &request).await;
        call.status(status).await;
        settle(&proxy, &mut upstream).await;
        // A response to another request ends nothing.
        sse.event(result(100 + id)).await;
        assert_eq!(own.event().await.json()["id"], 100 + id);
        let mut response = match status {
            202 => response,
            // A cut does not end the wait.
            _ => {
                response.reset();
                session.resume(&place.at(0)).send(proxy.addr).await.sse()
            }
        };
        sse.event(result(id)).await;
        assert_eq!(own.event().await.json()["id"], id);
        let (events, end) = response.events().await;
        assert_eq!((events.iter().filter(|event| event.is_event()).count(), end), (0, End::Complete), "{status}");
        assert_eq!(session.resume(&place.at(0)).send(proxy.addr).await.status, 204);
    }
    assert!(upstream.is_quiet(), "nothing is cancelled");
}

#[tokio::test]
async fn a_request_whose_response_came_before_it_was_accepted_ends_at_once() {
    for spelled in ["1", "\"1\"", "1.0"] {
        let (mut upstream, proxy, session) = hasty().await;
        let (sse, mut own) = listen(&proxy, &mut upstream, &session).await;
        let (call, mut response, _) = committed(&proxy, &mut upstream, &session.post(call(1))).await;
        sse.event(format!(r#"{{"jsonrpc":"2.0","id":{spelled},"result":{{}}}}"#)).await;
        own.event().await;
        call.status(202).await;
        let (events, end) = response.events().await;
        assert_eq!((events.len(), end), (0, End::Complete), "{spelled}");
    }
}

#[tokio::test]
async fn a_request_that_was_accepted_late_without_a_session_stream_ends_at_once() {
    let (mut upstream, proxy, session) = hasty().await;
    for request in [session.post(call(1)), modern(2)] {
        let (call, mut response, _) = committed(&proxy, &mut upstream, &request).await;
        call.status(202).await;
        let (events, end) = response.events().await;
        assert_eq!((events.len(), end), (0, End::Complete));
        pass(TEN_MINUTES).await;
        accept(&proxy, &mut upstream, &session.caller(None)).await;
    }
    assert!(upstream.is_quiet(), "nothing is cancelled");
}

#[tokio::test]
async fn a_request_that_was_accepted_late_waits_for_a_limited_time() {
    let (mut upstream, proxy, session) = setup_with(|c| {
        c.delivery.commit_after = Some(SOON);
        c.streams.max_wait = Some(TEN_MINUTES);
        c.streams.call_timeout = Some(30 * SECOND);
    })
    .await;
    let (_sse, _own) = listen(&proxy, &mut upstream, &session).await;
    let (call, mut response, _) = committed(&proxy, &mut upstream, &session.post(call(1))).await;
    call.status(202).await;
    settle(&proxy, &mut upstream).await;
    // The time limit of calls does not count any more.
    pass(TEN_MINUTES - 5 * SECOND).await;
    tokio::select! {
        biased;
        _ = response.events() => panic!("it has ended"),
        () = settle(&proxy, &mut upstream) => {}
    }
    pass(6 * SECOND).await;
    let (events, end) = response.events().await;
    assert_eq!((events.iter().filter(|event| event.is_event()).count(), end), (0, End::Complete));
    assert!(upstream.is_quiet(), "nothing is cancelled");
}

#[tokio::test]
async fn the_error_for_a_late_refusal_has_what_a_client_needs_of_its_head() {
    let (mut upstream, proxy, session) = hasty().await;
    let caller = session.caller(Some(("Authorization", "Bearer a")));
    let long = "x".repeat(5000);
    for (status, extra, members) in [
        (429, "retry-after: 7\r\n".to_owned(), json!({"retryAfter": "7"})),
        (429, format!("retry-after: {long}\r\n"), json!({})),
        (
            401,
            "www-authenticate: Bearer realm=\"x\"\r\nwww-authenticate: Basic\r\n".to_owned(),
            json!({"wwwAuthenticate": "Bearer realm=\"x\", Basic"}),
        ),
    ] {
        accept(&proxy, &mut upstream, &caller).await;
        let tool = format!("{status} {}", extra.len());
        let (call, mut response, _) = committed(&proxy, &mut upstream, &caller.call(&tool)).await;
        call.status_with(status, &extra).await;
        let error = response.event().await.json()["error"].clone();
        let mut expected =
            json!({"error": "upstream_status", "fault": "upstream", "mayHaveRun": true, "httpStatus": status});
        for (name, value) in members.as_object().expect("members") {
            expected[name] = value.clone();
        }
        for (name, value) in expected.as_object().expect("members") {
            assert_eq!(&error["data"][name], value, "{error}");
        }
        for name in ["wwwAuthenticate", "retryAfter"] {
            assert_eq!(error["data"].get(name), expected.get(name), "{error}");
        }
    }
    // The next request meets the refusal itself.
    waits(&proxy, &mut upstream, &session, &caller.call("t"), 401).await;
}
