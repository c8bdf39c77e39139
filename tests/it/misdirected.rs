//! Requests that name another replica, as a balancer sends them and as clients do. Nothing is
//! shared.

use serde_json::json;

use crate::client_responses::answer;
use crate::dialects::{ask, open, refused};
use crate::support::*;

/// The owners that replicas of these names are.
pub(crate) const ONE: &str = "7692c3ad";
pub(crate) const TWO: &str = "3fc4ccfe";
const MARK: &str = "Mcp-Resume-Owner";
const INITIALIZED: &str = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;

pub(crate) fn marked(request: Request) -> Request {
    request.with(MARK, "anything")
}

/// 421, and who is there instead.
pub(crate) async fn misdirected(proxy: &Proxy, request: Request, here: &str) {
    let mut response = marked(request.clone()).send(proxy.addr).await;
    assert_eq!((response.status, response.header(MARK)), (421, Some(here)), "{request:?}");
    assert_eq!(response.json().await["error"]["code"], -32600, "{request:?}");
}

async fn start(name: &str) -> (Upstream, Proxy) {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |config| config.replica.name = Some(name.to_owned())).await;
    (upstream, proxy)
}

/// Everything by which a client may come back to a call at `proxy`: its event ID, its URL with a
/// GET and a POST, its token.
async fn ways_back(proxy: &Proxy, upstream: &mut Upstream) -> (Session, [Request; 4]) {
    let (session, _) = open(proxy, upstream, json!({ "resumableRequests": {} }), Some("s")).await;
    let (sse, mut response) = begin(proxy, upstream, &session.post(call(7))).await;
    let place = EventId::of(response.prime().await.id());
    let token = response.event().await.json()["params"]["resumeToken"].clone();
    let url = format!("/mcp?mcp-stream={}", place.handle);
    sse.finish(result(7)).await;
    let resume = session.post(ask(json!(7), "requests/resume", json!({ "resumeToken": token })));
    let by_url = (session.get().target(&url), session.post(answer("q")).target(&url));
    let ways = [session.resume(&place.at(1)), by_url.0, by_url.1, resume];
    (session, ways)
}

#[tokio::test]
async fn a_marked_request_for_anothers_stream_is_misdirected() {
    let (mut upstream, one) = start("one").await;
    let (untouched, two) = start("two").await;
    let (session, ways) = ways_back(&one, &mut upstream).await;
    for request in ways.clone() {
        misdirected(&two, request.clone(), TWO).await;
        misdirected(&two, request.with("Mcp-Session-Id", &format!("{TWO}~s")), TWO).await;
    }
    assert_eq!(untouched.connections(), 0);
    // At the right place the mark changes nothing, and the first of what names an owner is what
    // counts.
    let [resume, by_url, _, by_token] = ways;
    for request in [resume, by_url, by_token] {
        let foreign = request.clone().with("Mcp-Session-Id", &format!("{TWO}~s"));
        for request in [request, foreign] {
            assert_eq!(marked(request).send(one.addr).await.sse().header(MARK), None);
        }
    }
    drop(session);
}

#[tokio::test]
async fn every_marked_request_in_anothers_session_is_misdirected() {
    let (untouched, two) = start("two").await;
    let session = Session::opened_elsewhere(V2025_11, &format!("{ONE}~s"), None);
    let put = session.get().method("PUT").with_body("x");
    let other = session.post("x").with("Content-Type", "text/plain");
    for request in [
        session.post(call(1)),
        session.post(answer("q")),
        session.post(INITIALIZED),
        session.get(),
        session.delete(),
        session.get().with("Accept", "text/html"),
        put,
        other,
    ] {
        misdirected(&two, request, TWO).await;
    }
    assert_eq!(untouched.connections(), 0);
}

#[tokio::test]
async fn without_a_mark_the_answer_is_the_honest_one() {
    let (mut upstream, one) = start("one").await;
    let (mut other, two) = start("two").await;
    let (session, [resume, by_url, with_answers, by_token]) = ways_back(&one, &mut upstream).await;
    for request in [resume, by_url, with_answers] {
        let mut lost = request.send(two.addr).await.sse();
        assert_eq!(lost.header(MARK), None);
        assert_fault(&lost.event().await.json(), 7, GONE, "client");
    }
    let mut lost = by_token.send(two.addr).await;
    assert_eq!((lost.status, lost.json().await), (200, refused(json!(7))));
    assert!(other.is_quiet());
    // Such a name may be a server's own.
    let named = session.post(call(1)).with("Mcp-Session-Id", &format!("{ONE}~s"));
    let pending = named.start(two.addr).await;
    let call = other.expect("tools/call").await;
    assert_eq!(call.header("mcp-session-id"), Some(format!("{ONE}~s").as_str()));
    call.json(404, "{}").await;
    assert_eq!(pending.response().await.status, 404);
}

#[tokio::test]
async fn neither_mark_passes() {
    let (mut upstream, proxy) = start("one").await;
    let (session, _) = open(&proxy, &mut upstream, json!({}), Some("s")).await;
    let own = Session::opened_elsewhere(V2025_11, &format!("{ONE}~s"), None);
    let put = session.get().method("PUT").with_body("x");
    let streamed = session.post("x").with("Content-Type", "text/plain");
    for request in [
        session.post(call(1)),
        own.post(call(2)),
        session.post(INITIALIZED),
        session.get(),
        session.delete(),
        put,
        streamed,
        Request::new("GET", "/health"),
    ] {
        let pending = marked(request.clone()).start(proxy.addr).await;
        let call = upstream.next().await;
        assert_eq!(call.header(MARK), None, "{request:?}");
        // A server's own 421 is one, and says nothing in our name.
        call.json_with(421, &format!("mcp-resume-owner: {TWO}\r\nx-custom: 1\r\n"), "{}").await;
        let response = pending.response().await;
        assert_eq!((response.status, response.header("x-custom")), (421, Some("1")), "{request:?}");
        assert_eq!(response.header(MARK), None, "{request:?}");
    }
    for (id, status) in [(4, 502), (5, 503), (6, 504)] {
        let pending = marked(session.post(call(id))).start(proxy.addr).await;
        upstream.next().await.json_with(status, &format!("mcp-resume-owner: {TWO}\r\n"), "{}").await;
        let response = pending.response().await;
        assert_eq!((response.status, response.header(MARK)), (status, None));
    }
    // Nor with the head of a stream.
    let pending = marked(session.post(call(3))).start(proxy.addr).await;
    let sse = upstream.next().await.sse_with(&format!("mcp-resume-owner: {TWO}\r\n")).await;
    assert_eq!(pending.response().await.sse().header(MARK), None);
    sse.finish(result(3)).await;
}

/// By that a balancer tells it from a server's own, which counts against its sidecar.
#[tokio::test]
async fn a_504_that_is_no_fault_of_the_server_says_so() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |config| {
        config.replica.name = Some("one".to_owned());
        config.streams.call_timeout = Some(LATER);
    })
    .await;
    let (session, _) = open(&proxy, &mut upstream, json!({}), Some("s")).await;
    for (request, mark) in [(marked(session.post(call(1))), Some("call")), (session.post(call(2)), None)] {
        let pending = request.start(proxy.addr).await;
        let call = upstream.expect("tools/call").await;
        let response = pending.response().await;
        assert_eq!((response.status, response.header("Mcp-Resume-Failure"), response.header(MARK)), (504, mark, None));
        call.closed().await;
        upstream.expect("notifications/cancelled").await.status(202).await;
    }
}
