//! The first event of a response: its form follows the client's revision.

use crate::support::*;

/// `User-Agent` of clients that use Go's own HTTP client.
const GO: &str = "Go-http-client/1.1";

/// Type of an event that has an ID and no data.
type Form = Option<&'static str>;
const UNTYPED: Form = None;
const TYPED: Form = Some("prime");

async fn start() -> (Upstream, Proxy) {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |_| {}).await;
    (upstream, proxy)
}

/// Asserts that the next frame is a priming event of this form, and returns its ID.
async fn primed(response: &mut Response, form: Form, what: &str) -> EventId {
    let frame = response.any_frame().await.unwrap_or_else(|| panic!("{what}: nothing came"));
    assert!(!frame.is_comment() && frame.bytes().is_empty(), "{what}: {frame:?}");
    assert_eq!(frame.event.as_deref(), form, "{what}: {frame:?}");
    assert_eq!(frame.retry, Some(1000), "{what}: {frame:?}");
    EventId::of(frame.id())
}

/// Asserts that the response begins with a comment.
async fn not_primed(response: &mut Response, what: &str) {
    let frame = response.any_frame().await.unwrap_or_else(|| panic!("{what}: nothing came"));
    assert!(frame.is_comment(), "{what}: {frame:?}");
}

#[tokio::test]
async fn the_form_follows_the_revision() {
    let (mut upstream, proxy) = start().await;
    let mut requests = Vec::new();
    for (n, (version, form)) in [(V2025_03, TYPED), (V2025_06, TYPED), (V2025_11, UNTYPED)].into_iter().enumerate() {
        let session = Session::open_as(&proxy, &mut upstream, version, &format!("s-{n}"), None).await;
        let request = session.post(call(1));
        requests.push(("its session's revision", request.clone().without("MCP-Protocol-Version"), form));
        // A header that names another revision than the session's changes nothing.
        let other = if form == UNTYPED { V2025_06 } else { V2025_11 };
        let other = session.post(call(2)).without("MCP-Protocol-Version").with("MCP-Protocol-Version", other);
        requests.push(("another revision in the header", other, form));
    }
    let outside = Request::post(call(1));
    requests.push(("no revision", outside.clone(), TYPED));
    for (version, form) in [("2024-11-05", TYPED), (V2025_03, TYPED), (V2025_06, TYPED), (V2025_11, UNTYPED)] {
        requests.push(("the header's revision", outside.clone().with("MCP-Protocol-Version", version), form));
    }
    requests.push(("a later revision", modern(1), UNTYPED));
    for (what, request, form) in requests {
        let (sse, mut response) = begin(&proxy, &mut upstream, &request).await;
        let first = primed(&mut response, form, what).await;
        assert_eq!(first.seq, "0", "{what}");
        let id = serde_json::from_slice::<serde_json::Value>(request.body()).unwrap()["id"].clone();
        sse.finish(result(id)).await;
        assert_eq!(response.event().await.id(), first.at(1), "{what}");
    }
}

#[tokio::test]
async fn a_resumed_response_and_a_get_stream_begin_alike() {
    let (mut upstream, proxy) = start().await;
    for (n, (version, form)) in [(V2025_06, TYPED), (V2025_11, UNTYPED)].into_iter().enumerate() {
        let session = Session::open_as(&proxy, &mut upstream, version, &format!("s-{n}"), None).await;
        let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
        let place = primed(&mut response, form, "a call").await;
        response.reset();
        let mut resumed = session.resume(&place.at(0)).send(proxy.addr).await.sse();
        let again = primed(&mut resumed, form, "a resumed call").await;
        assert_eq!((again.seq.as_str(), again.attach.is_some()), ("0", true));
        sse.finish(result(1)).await;
        resumed.events().await;

        let pending = session.get().start(proxy.addr).await;
        let sse = upstream.expect("GET").await.sse().await;
        let mut response = pending.response().await.sse();
        let place = primed(&mut response, form, "a GET stream").await;
        response.reset();
        let mut resumed = session.resume(&place.at(0)).send(proxy.addr).await.sse();
        primed(&mut resumed, form, "a resumed GET stream").await;
        drop(sse);
    }
}

#[tokio::test]
async fn a_response_that_ends_early_names_its_retry_in_the_same_form() {
    let (mut upstream, proxy) = start().await;
    for (n, (version, form)) in [(V2025_06, TYPED), (V2025_11, UNTYPED)].into_iter().enumerate() {
        let session = Session::open_as(&proxy, &mut upstream, version, &format!("s-{n}"), None).await;
        let (sse, mut older) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
        let place = primed(&mut older, form, "a call").await;
        let mut newer = session.resume(&place.at(0)).send(proxy.addr).await.sse();
        newer.prime().await;
        let last_words = older.frames().await;
        let [word] = last_words.as_slice() else { panic!("{last_words:?}") };
        assert!(word.bytes().is_empty() && word.id.is_none() && word.retry.is_some(), "{word:?}");
        assert_eq!(word.event.as_deref(), form, "{version}");
        sse.finish(result(1)).await;
        newer.events().await;
    }
}

#[tokio::test]
async fn the_opening_of_a_session_is_not_primed() {
    let (mut upstream, proxy) = start().await;
    for version in [V2025_03, V2025_06, V2025_11] {
        let (sse, mut response) = begin(&proxy, &mut upstream, &Request::post(initialize(version))).await;
        not_primed(&mut response, version).await;
        let opened = serde_json::json!({"jsonrpc": "2.0", "id": 0, "result": {"protocolVersion": version,
            "capabilities": {}, "serverInfo": {"name": "scripted", "version": "1"}}});
        sse.finish(opened.to_string()).await;
        let event = response.event().await;
        assert_eq!(EventId::of(event.id()).seq, "1", "{version}");
        response.ends().await;
    }
    let (sse, mut response) = begin(&proxy, &mut upstream, &modern_method(1, "server/discover")).await;
    not_primed(&mut response, "server/discover").await;
    sse.finish(result(1)).await;
    response.event().await;
}

#[tokio::test]
async fn a_client_in_go_gets_its_first_id_with_its_first_event() {
    let (mut upstream, proxy) = start().await;
    let session = Session::open(&proxy, &mut upstream, V2025_06).await;
    let of_go = |request: Request| request.with("User-Agent", GO);
    let (sse, mut response) = begin(&proxy, &mut upstream, &of_go(session.post(call(1)))).await;
    not_primed(&mut response, "a call").await;
    sse.event(progress(1)).await;
    let place = EventId::of(response.event().await.id());
    assert_eq!(place.seq, "1");
    let mut resumed = of_go(session.resume(&place.at(1))).send(proxy.addr).await.sse();
    not_primed(&mut resumed, "a resumed call").await;
    // A `retry` alone is an event for some of these clients.
    assert_eq!(response.frames().await, [], "the older connection ends without a further block");
    sse.finish(result(1)).await;
    assert_eq!(resumed.event().await.id(), place.at(2));

    let pending = of_go(session.get()).start(proxy.addr).await;
    let sse = upstream.expect("GET").await.sse().await;
    let mut response = pending.response().await.sse();
    not_primed(&mut response, "a GET stream").await;
    drop(sse);

    // Its later revisions take the event that they specify, and other programs the one with a type.
    let later = Session::open_as(&proxy, &mut upstream, V2025_11, "s-2", None).await;
    for (what, request, form) in [
        ("a later revision", later.post(call(1)).with("User-Agent", GO), UNTYPED),
        ("another program", session.post(call(2)).with("User-Agent", "node"), TYPED),
        ("a name that holds it", session.post(call(3)).with("User-Agent", "my Go-http-client"), TYPED),
    ] {
        let (sse, mut response) = begin(&proxy, &mut upstream, &request).await;
        primed(&mut response, form, what).await;
        drop(sse);
    }
}
