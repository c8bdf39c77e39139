//! Long calls: a longer `retry`, and clients that count the connections that broke.

use std::time::Duration;

use mcp_resume::config::Config;
use mcp_resume::protocol::client_names::ClientNames;

use crate::support::*;

const LATER: Option<u64> = Some(5000);
const PYTHON: &str = "python-httpx/0.28.1";

/// A proxy whose calls are long after this time, before a session of `version`.
async fn with_long_calls(after: Duration, version: &'static str) -> (Upstream, Proxy, Session) {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |c| {
        c.delivery.retry_long_after = after;
        c.delivery.heartbeat = SOON;
    })
    .await;
    let session = Session::open(&proxy, &mut upstream, version).await;
    (upstream, proxy, session)
}

/// Reads frames up to the first with a `retry`.
async fn next_retry(response: &mut Response) -> Frame {
    loop {
        let frame = response.any_frame().await.expect("a frame with a `retry`");
        if frame.retry.is_some() {
            return frame;
        }
    }
}

#[tokio::test]
async fn a_comment_of_a_long_call_carries_a_longer_retry_once() {
    for (version, form) in [(V2025_06, Some("prime")), (V2025_11, None)] {
        let (mut upstream, proxy, session) = with_long_calls(Duration::from_secs(1), version).await;
        let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
        assert_eq!(response.prime().await.retry, Some(1000), "{version}");
        let frame = next_retry(&mut response).await;
        assert_eq!((frame.retry, frame.event.as_deref(), &frame.id), (LATER, form, &None), "{version}: {frame:?}");
        assert!(frame.bytes().is_empty(), "{version}: {frame:?}");
        assert_eq!(frame.data.is_some(), form.is_some(), "{version}: no data in an untyped block: {frame:?}");
        // Further comments, and events, carry none.
        while !response.any_frame().await.expect("a comment").is_comment() {}
        sse.event(progress(1)).await;
        assert_eq!(response.event().await.retry, None, "{version}");
        sse.finish(result(1)).await;
        assert_eq!(response.event().await.retry, None, "{version}");
        response.ends().await;
    }
}

#[tokio::test]
async fn an_event_of_a_long_call_carries_a_longer_retry() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |c| c.delivery.retry_long_after = Duration::ZERO).await;
    let session = Session::open(&proxy, &mut upstream, V2025_11).await;
    let go = session.post(call(1)).with("User-Agent", "Go-http-client/1.1").without("MCP-Protocol-Version");
    let old = Session::open_as(&proxy, &mut upstream, V2025_06, "s-2", None).await;
    let old = old.post(call(1)).with("User-Agent", "Go-http-client/1.1");
    for (request, is_primed) in [(go, true), (old, false)] {
        let (sse, mut response) = begin(&proxy, &mut upstream, &request).await;
        sse.event(progress(1)).await;
        let frame = next_retry(&mut response).await;
        assert_eq!(frame.retry, LATER, "{frame:?}");
        // A client of the later revision has it at the beginning already.
        assert_eq!(frame.is_event(), !is_primed, "{frame:?}");
        sse.finish(result(1)).await;
        response.event().await;
    }
}

#[tokio::test]
async fn a_resumed_long_call_begins_with_the_longer_retry() {
    let (mut upstream, proxy, session) = with_long_calls(Duration::ZERO, V2025_11).await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    let place = EventId::of(response.prime().await.id());
    response.reset();
    let mut resumed = session.resume(&place.at(0)).send(proxy.addr).await.sse();
    assert_eq!(resumed.prime().await.retry, LATER);
    sse.finish(result(1)).await;
    resumed.events().await;
}

#[tokio::test]
async fn a_get_stream_keeps_its_retry() {
    let (mut upstream, proxy, session) = with_long_calls(Duration::ZERO, V2025_11).await;
    let pending = session.get().start(proxy.addr).await;
    let sse = upstream.expect("GET").await.sse().await;
    let mut response = pending.response().await.sse();
    assert_eq!(response.prime().await.retry, Some(1000));
    for _ in 0..3 {
        let frame = response.any_frame().await.expect("a comment");
        assert!(frame.is_comment(), "{frame:?}");
    }
    drop(sse);
}

#[tokio::test]
async fn a_retry_that_does_not_grow_is_written_once() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |c| {
        c.delivery.retry_long_after = Duration::ZERO;
        c.delivery.retry_long = c.delivery.retry;
        c.delivery.heartbeat = SOON;
    })
    .await;
    let session = Session::open(&proxy, &mut upstream, V2025_11).await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    assert_eq!(response.prime().await.retry, Some(1000));
    for _ in 0..2 {
        assert!(response.any_frame().await.expect("a comment").is_comment());
    }
    sse.finish(result(1)).await;
    response.event().await;
}

/// Reads a response to its end, in order and without a response to the call. Returns its last ID.
async fn ended_once(response: &mut Response, events: usize) -> String {
    let frames = response.frames().await;
    assert_eq!(response.end(), Some(End::Complete), "an end in order");
    assert_eq!(frames.last().and_then(|frame| frame.retry), Some(100), "{frames:?}");
    assert_eq!(frames.iter().filter(|frame| frame.is_event()).count(), events, "{frames:?}");
    response.last_id().expect("an ID").to_owned()
}

#[tokio::test]
async fn a_client_that_counts_breaks_begins_anew_after_each() {
    let (mut upstream, proxy, session) = setup().await;
    let of_python = |request: Request| request.with("User-Agent", PYTHON);
    let (sse, mut response) = begin(&proxy, &mut upstream, &of_python(session.post(call(1)))).await;
    let mut last = response.prime().await.id().to_owned();
    for n in 1..=5 {
        response.reset();
        if n % 2 == 0 {
            sse.event(progress(n)).await;
        }
        // The response ends behind the missed events, or at once without any.
        let mut resumed = of_python(session.resume(&last)).send(proxy.addr).await.sse();
        last = ended_once(&mut resumed, usize::from(n % 2 == 0)).await;
        // The response before this one ended in order: this one stays open.
        response = of_python(session.resume(&last)).send(proxy.addr).await.sse();
        sse.event(progress(10 + n)).await;
        last = response.event().await.id().to_owned();
    }
    sse.finish(result(1)).await;
    assert_eq!(response.event().await.bytes(), result(1).as_bytes());
    response.ends().await;
}

#[tokio::test]
async fn a_client_with_a_name_of_the_list_begins_anew_after_each_break() {
    for (names, is_named) in [(&["ra*"][..], true), (&["other"], false)] {
        let named = |config: &mut Config| config.delivery.graceful_for = ClientNames::of(names);
        let (mut upstream, proxy, session) = setup_with(named).await;
        let legacy = (session.post(call(1)), session.resume(""));
        for (post, resume) in [legacy, (modern(1), modern_resume(""))] {
            let (sse, mut response) = begin(&proxy, &mut upstream, &post).await;
            let place = EventId::of(response.prime().await.id());
            response.reset();
            settle(&proxy, &mut upstream).await;
            let resume = resume.without("Last-Event-ID").resume_from(&place.at(0));
            let mut resumed = resume.send(proxy.addr).await.sse();
            if is_named {
                ended_once(&mut resumed, 0).await;
                resumed = resume.send(proxy.addr).await.sse();
            }
            sse.finish(result(1)).await;
            assert_eq!(resumed.event().await.bytes(), result(1).as_bytes(), "{names:?}");
        }
    }
}

#[tokio::test]
async fn a_complete_response_and_other_clients_are_not_ended() {
    let (mut upstream, proxy, session) = setup().await;
    let of_python = |request: Request| request.with("User-Agent", PYTHON);
    let (sse, mut response) = begin(&proxy, &mut upstream, &of_python(session.post(call(1)))).await;
    let place = EventId::of(response.prime().await.id());
    response.reset();
    sse.event(progress(1)).await;
    sse.finish(result(1)).await;
    let mut resumed = of_python(session.resume(&place.at(0))).send(proxy.addr).await.sse();
    let (events, _) = resumed.events().await;
    assert_eq!(events.len(), 2, "all of it");

    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(2))).await;
    let place = EventId::of(response.prime().await.id());
    response.reset();
    sse.event(progress(1)).await;
    let mut resumed = session.resume(&place.at(0)).send(proxy.addr).await.sse();
    resumed.event().await;
    sse.finish(result(2)).await;
    assert_eq!(resumed.event().await.bytes(), result(2).as_bytes());
}

#[tokio::test]
async fn a_get_stream_of_such_a_client_ends_once_as_well() {
    let (mut upstream, proxy, session) = setup().await;
    let of_python = |request: Request| request.with("User-Agent", PYTHON);
    let pending = of_python(session.get()).start(proxy.addr).await;
    let sse = upstream.expect("GET").await.sse().await;
    let mut response = pending.response().await.sse();
    let first = response.prime().await.id().to_owned();
    response.reset();
    let mut resumed = of_python(session.resume(&first)).send(proxy.addr).await.sse();
    let last = ended_once(&mut resumed, 0).await;
    let mut resumed = of_python(session.resume(&last)).send(proxy.addr).await.sse();
    resumed.prime().await;
    sse.event(progress(1)).await;
    assert_eq!(resumed.event().await.bytes(), progress(1).as_bytes());
}

#[tokio::test]
async fn a_large_event_of_a_long_call_carries_a_longer_retry() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |c| c.delivery.retry_long_after = Duration::ZERO).await;
    let session = Session::open(&proxy, &mut upstream, V2025_06).await;
    let request = session.post(call(1)).with("User-Agent", "Go-http-client/1.1");
    let (sse, mut response) = begin(&proxy, &mut upstream, &request).await;
    // In pieces, and more than one reads at a time.
    let large = format!(r#"{{"jsonrpc":"2.0","method":"n","params":"{}"}}"#, "x".repeat(300_000));
    for _ in 0..2 {
        sse.event(&large).await;
    }
    let first = response.event().await;
    assert_eq!((first.retry, first.bytes()), (LATER, large.as_bytes()));
    let second = response.event().await;
    assert_eq!((second.retry, second.bytes()), (None, large.as_bytes()));
    sse.finish(result(1)).await;
    response.event().await;
}
