//! Bytes: of a stream, of a caller, of the process.

use super::*;
use std::sync::Arc;
use tokio::task::JoinSet;

const KIB: usize = 1024;

fn small_streams(c: &mut Config) {
    c.streams.max_event_bytes = 64 * KIB;
    c.streams.max_bytes = 256 * KIB;
}

fn small_share(c: &mut Config) {
    small_streams(c);
    c.streams.max_bytes_per_principal = 256 * KIB;
}

/// A call whose client knows where it begins, and has left.
async fn left(proxy: &Proxy, upstream: &mut Upstream, session: &Session) -> (Sse, EventId) {
    let (sse, mut response) = begin(proxy, upstream, &session.post(call(1))).await;
    let place = EventId::of(response.prime().await.id());
    response.reset();
    settle(proxy, upstream).await;
    (sse, place)
}

/// More events than sockets and bounds hold: they are written to the end only because the proxy
/// closes the call, and all the while the neighbour hears its own.
async fn flood_until_closed(sse: &Sse, many: usize, neighbour: &mut Neighbour) {
    let flood = async {
        for n in 1..=many {
            sse.event(sized(n, 10_000)).await;
        }
    };
    let watch = async {
        while !sse.is_closed() {
            neighbour.hears().await;
        }
    };
    tokio::join!(flood, watch);
}

#[tokio::test]
async fn a_slow_reader_gets_everything_and_delays_no_other() {
    let (mut upstream, proxy, session) = bounded(small_streams).await;
    let mut neighbour = Neighbour::moves_in(&proxy, &mut upstream).await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    let many = 800;
    let flood = async {
        for n in 1..=many {
            sse.event(sized(n, 10_000)).await;
        }
        sse.finish(result(1)).await;
    };
    let read = async {
        for n in 1..=many {
            neighbour.hears().await;
            assert!(response.event().await.bytes() == sized(n, 10_000).as_bytes(), "{n}");
        }
        assert_eq!(response.event().await.bytes(), result(1).as_bytes());
        response.ends().await;
    };
    tokio::join!(flood, read);
    neighbour.moves_out().await;
}

#[tokio::test]
async fn a_client_that_reads_nothing_has_its_call_failed_and_can_read_that_later() {
    let (mut upstream, proxy, session) = bounded(|c| {
        small_streams(c);
        c.streams.full_wait = LATER;
    })
    .await;
    let mut neighbour = Neighbour::moves_in(&proxy, &mut upstream).await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    let place = EventId::of(response.prime().await.id());
    flood_until_closed(&sse, 10_000, &mut neighbour).await;
    assert!(metric(&proxy, "mcp_resume_upstream_pauses_total").await > 0.0);
    // What lies in the sockets is read by the way, and then the rest of what was kept.
    let mut last = 0;
    while let Some(frame) = response.frame().await {
        if frame.json().get("error").is_some() {
            assert_fault(&frame.json(), 1, BOUND, "client");
            break;
        }
        last += 1;
        assert_eq!(frame.id(), place.at(last));
    }
    assert!(last > 20, "{last}");
    response.ends().await;
    neighbour.moves_out().await;
}

#[tokio::test]
async fn a_full_stream_with_a_reader_continues_and_trims_read_events() {
    let (mut upstream, proxy, session) = bounded(small_share).await;
    let mut neighbour = Neighbour::moves_in(&proxy, &mut upstream).await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    let place = EventId::of(response.prime().await.id());
    let many = 1000;
    let flood = async {
        for n in 1..=many {
            sse.event(sized(n, 10_000)).await;
        }
    };
    let read = async {
        for n in 1..=many {
            let event = response.event().await;
            assert_eq!(event.id(), place.at(n));
            assert!(event.bytes() == sized(n, 10_000).as_bytes());
            if n % 10 == 0 {
                neighbour.hears().await;
            }
        }
    };
    tokio::join!(flood, read);
    assert!(metric(&proxy, "mcp_resume_trimmed_events_total").await > 900.0);
    assert!(metric(&proxy, "mcp_resume_held_bytes").await < 600_000.0);
    // A cursor before what is kept: the error, and nothing else.
    let mut lost = session.resume(&place.at(1)).send(proxy.addr).await.sse();
    assert_fault(&lost.event().await.json(), 1, GONE, "client");
    lost.ends().await;
    sse.finish(result(1)).await;
    assert_eq!(response.event().await.bytes(), result(1).as_bytes());
    response.ends().await;
    neighbour.moves_out().await;
}

#[tokio::test]
async fn a_full_unread_stream_keeps_all_it_has_and_fails() {
    let (mut upstream, proxy, session) = bounded(|c| {
        small_share(c);
        c.streams.full_wait = LATER;
    })
    .await;
    let mut neighbour = Neighbour::moves_in(&proxy, &mut upstream).await;
    let (sse, place) = left(&proxy, &mut upstream, &session).await;
    flood_until_closed(&sse, 3000, &mut neighbour).await;
    let mut back = session.resume(&place.at(0)).send(proxy.addr).await.sse();
    let (events, end) = back.events().await;
    assert_eq!(end, End::Complete);
    let (error, kept) = events.split_last().expect("events");
    assert_fault(&error.json(), 1, BOUND, "client");
    assert!(kept.len() >= 20, "{} events", kept.len());
    for (n, event) in (1..).zip(kept) {
        assert!(event.bytes() == sized(n, 10_000).as_bytes(), "{n}");
        assert_eq!(event.id(), place.at(n));
    }
    neighbour.moves_out().await;
}

#[tokio::test]
async fn a_caller_over_its_share_is_429_until_it_has_read_what_is_kept_for_it() {
    let (mut upstream, proxy, session) = bounded(|c| {
        small_share(c);
        c.streams.full_wait = LATER;
    })
    .await;
    let mut neighbour = Neighbour::moves_in(&proxy, &mut upstream).await;
    let (sse, place) = left(&proxy, &mut upstream, &session).await;
    flood_until_closed(&sse, 3000, &mut neighbour).await;
    for id in 2..20 {
        assert_refused(session.post(call(id)).send(proxy.addr).await, 429, "client").await;
        neighbour.hears().await;
    }
    assert_eq!(metric(&proxy, &rejects("share_full")).await, 18.0);
    assert!(upstream.is_quiet());
    // A resume and a retry need no room.
    let mut back = session.resume(&place.at(0)).send(proxy.addr).await.sse();
    assert_eq!(back.events().await.1, End::Complete);
    // A later call on the connection proves that it has arrived.
    let before = metric(&proxy, "mcp_resume_held_bytes").await;
    let mut client = back.into_client();
    client.send(&session.post(call(20)).bytes(proxy.addr)).await;
    upstream.expect("tools/call").await.json(200, result(20)).await;
    assert_eq!(client.response().await.status, 200);
    let after = metric(&proxy, "mcp_resume_held_bytes").await;
    assert!(after < before - 200_000.0, "{before} bytes, then {after}: little of it is left");
    neighbour.moves_out().await;
}

#[tokio::test]
async fn a_full_process_refuses_only_callers_that_hold_much() {
    let (mut upstream, proxy, session) = bounded(|c| {
        small_streams(c);
        // What is read in one piece may go beyond the process's part, but not beyond the caller's.
        c.streams.max_bytes_per_principal = 1024 * KIB;
        c.streams.max_bytes_total = 256 * KIB;
        c.streams.full_wait = LIMIT * 6;
    })
    .await;
    let mut neighbour = Neighbour::moves_in(&proxy, &mut upstream).await;
    let (sse, _) = left(&proxy, &mut upstream, &session).await;
    let flood = async {
        for n in 1..=10_000 {
            sse.event(sized(n, 10_000)).await;
        }
        panic!("100 MB went somewhere");
    };
    let watch = async {
        while metric(&proxy, "mcp_resume_upstream_pauses_total").await == 0.0 {
            neighbour.hears().await;
        }
        assert_refused(session.post(call(2)).send(proxy.addr).await, 503, "proxy").await;
        neighbour.hears().await;
        let pending = neighbour.session.post(call(2)).start(proxy.addr).await;
        upstream.expect("tools/call").await.json(200, result(2)).await;
        assert_eq!(pending.response().await.status, 200);
    };
    tokio::select! {
        () = flood => {}
        () = watch => {}
    }
    assert_eq!(metric(&proxy, &rejects("proxy_full")).await, 1.0);
    neighbour.moves_out().await;
}

#[tokio::test]
async fn events_count_while_they_arrive_and_a_full_share_takes_them_one_by_one() {
    const CALLS: usize = 12;
    const EVENT: usize = 900 * KIB;
    const SHARE: usize = 4096 * KIB;
    let (mut upstream, proxy, session) = bounded(|c| {
        c.streams.max_event_bytes = 1024 * KIB;
        c.streams.max_bytes = 2048 * KIB;
        c.streams.max_bytes_per_principal = SHARE;
    })
    .await;
    let mut neighbour = Neighbour::moves_in(&proxy, &mut upstream).await;
    let text: Arc<str> = "x".repeat(EVENT).into();
    let (go, may_end) = tokio::sync::watch::channel(false);
    let mut begun = Vec::new();
    for id in 0..CALLS {
        begun.push((id, begin(&proxy, &mut upstream, &session.post(call(id))).await));
    }
    let mut calls = JoinSet::new();
    for (id, (sse, mut response)) in begun {
        let (text, mut may_end) = (text.clone(), may_end.clone());
        let serve = async move {
            // All of the event but its end: nothing has come whole.
            sse.bytes(format!("data: {text}")).await;
            may_end.wait_for(|may| *may).await.expect("a sender");
            sse.bytes("\n\n").await;
            sse.finish(result(id)).await;
        };
        let read = async move {
            assert!(response.event().await.bytes().len() == EVENT, "{id}");
            assert_eq!(response.event().await.bytes(), result(id).as_bytes());
            response.ends().await;
        };
        calls.spawn(async move { tokio::join!(serve, read) });
    }
    let held = "mcp_resume_held_bytes";
    within("the share is full", async { while metric(&proxy, held).await < 0.95 * SHARE as f64 {} }).await;
    // Beyond it: one event, and of every other call what one look at its connection brings.
    let most = (SHARE + EVENT * 2 + CALLS * 192 * KIB) as f64;
    for _ in 0..20 {
        neighbour.hears().await;
        let held = metric(&proxy, held).await;
        assert!(held <= most, "{held} bytes");
    }
    // Every call gets its event and its end.
    go.send(true).expect("calls that wait");
    while let Some(ended) = calls.join_next().await {
        ended.expect("no panic");
    }
    neighbour.moves_out().await;
}

#[tokio::test]
async fn responses_that_are_read_before_they_pass_wait_for_quota() {
    const CALLS: usize = 12;
    const ANSWER: usize = 900 * KIB;
    const SHARE: usize = 4096 * KIB;
    let (mut upstream, proxy, _session) = bounded(|c| {
        c.streams.max_event_bytes = 1024 * KIB;
        c.streams.max_bytes = 2048 * KIB;
        c.streams.max_bytes_per_principal = SHARE;
    })
    .await;
    let mut neighbour = Neighbour::moves_in(&proxy, &mut upstream).await;
    let text = "x".repeat(ANSWER);
    let result = format!(r#"{{"protocolVersion":"2025-11-25","capabilities":{{}},"instructions":"{text}"}}"#);
    let body: Arc<str> = format!(r#"{{"jsonrpc":"2.0","id":0,"result":{result}}}"#).into();
    let (go, may_end) = tokio::sync::watch::channel(false);
    let mut begun = Vec::new();
    for n in 0..CALLS {
        let pending = Request::post(initialize("2025-11-25")).start(proxy.addr).await;
        begun.push((n, pending, upstream.expect("initialize").await));
    }
    let mut calls = JoinSet::new();
    for (n, pending, call) in begun {
        let (body, mut may_end) = (body.clone(), may_end.clone());
        let serve = {
            let body = body.clone();
            async move {
                let head = format!(
                    "Content-Type: application/json\r\nMcp-Session-Id: s-{n}\r\nContent-Length: {}",
                    body.len()
                );
                let (most, end) = body.split_at(body.len() - 1);
                call.write(format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n{most}")).await;
                may_end.wait_for(|may| *may).await.expect("a sender");
                call.write(end).await;
            }
        };
        let mut may_begin = go.subscribe();
        let read = async move {
            may_begin.wait_for(|may| *may).await.expect("a sender");
            assert!(pending.response().await.body().await == body.as_bytes(), "{n}");
        };
        calls.spawn(async move { tokio::join!(serve, read) });
    }
    let held = async || metric(&proxy, "mcp_resume_held_bytes").await;
    within("the share is full", async { while held().await < 0.95 * SHARE as f64 {} }).await;
    // As of events that arrive.
    let most = (SHARE + ANSWER * 2 + CALLS * 192 * KIB) as f64;
    for _ in 0..20 {
        neighbour.hears().await;
        let held = held().await;
        assert!(held <= most, "{held} bytes");
    }
    go.send(true).expect("calls that wait");
    while let Some(ended) = calls.join_next().await {
        ended.expect("no panic");
    }
    neighbour.moves_out().await;
}
