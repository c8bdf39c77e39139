//! Streams of a caller, and calls that it has left, over HTTP/1.1 by breaking connections and over
//! HTTP/2 by resetting streams.

use super::*;
use crate::support::frames::{self, ENHANCE_YOUR_CALM, Framer};
use mcp_resume::protocol::client_address::{Network, Trust};
use std::cell::Cell;
use std::str::FromStr;

/// The calls that have reached the upstream.
async fn calls(upstream: &mut Upstream) -> Vec<Call> {
    let mut calls = Vec::new();
    while !upstream.is_quiet() {
        calls.push(upstream.expect("tools/call").await);
    }
    calls
}

/// Nothing is kept any more, once the time for it has passed.
async fn is_empty(proxy: &Proxy) {
    pass(std::time::Duration::from_secs(3600)).await;
    for level in ["streams_open", "streams_attached", "calls_detached", "streams_kept", "held_bytes"] {
        let sample = format!("mcp_resume_{level}");
        let is_empty = async { while metric(proxy, &sample).await > 0.0 {} };
        within(level, is_empty).await;
    }
}

#[tokio::test]
async fn more_streams_than_a_caller_may_have_are_429() {
    let (mut upstream, proxy, session) = bounded(|c| c.limits.streams_per_principal = 5).await;
    let mut neighbour = Neighbour::moves_in(&proxy, &mut upstream).await;
    let mut running = Vec::new();
    for id in 1..=5 {
        running.push(begin(&proxy, &mut upstream, &session.post(call(id))).await);
    }
    for id in 6..60 {
        assert_refused(session.post(call(id)).send(proxy.addr).await, 429, "client").await;
        neighbour.hears().await;
    }
    assert_eq!(metric(&proxy, &rejects("too_many_streams")).await, 54.0);
    assert!(upstream.is_quiet());
    // Those that are there lack nothing.
    for (id, (sse, mut response)) in (1..).zip(running) {
        sse.finish(result(id)).await;
        response.prime().await;
        assert_eq!(response.event().await.bytes(), result(id).as_bytes());
        response.ends().await;
    }
    neighbour.moves_out().await;
}

/// Of callers without credentials and session, an address has so many streams: the one that trusted
/// proxies say it is.
#[tokio::test]
async fn clients_of_a_trusted_proxy_have_bounds_of_their_own() {
    for is_trusted in [true, false] {
        let trusted = is_trusted.then(|| Network::from_str("127.0.0.0/8").expect("a network").into());
        let (mut upstream, proxy, _) = bounded(|c| {
            c.limits.streams_per_principal = 1;
            c.listen.trusted_proxies = Trust::new(trusted);
        })
        .await;
        let from = |address: &str| Request::post(call(1)).with("X-Forwarded-For", address);
        let _first = begin(&proxy, &mut upstream, &from("10.9.9.9, 192.0.2.1")).await;
        // What stands before the nearest address that is not trusted is the client's own invention.
        assert_refused(from("10.8.8.8, 192.0.2.1, 127.0.0.7").send(proxy.addr).await, 429, "client").await;
        match is_trusted {
            true => drop(begin(&proxy, &mut upstream, &from("192.0.2.2")).await),
            false => assert_refused(from("192.0.2.2").send(proxy.addr).await, 429, "client").await,
        }
    }
}

/// Each of them would be a caller with bounds of its own.
#[tokio::test]
async fn invented_credentials_share_the_bounds_of_their_address_and_a_proven_one_has_its_own() {
    const MAY: usize = 5;
    let (mut upstream, proxy, _) = bounded(|c| c.limits.streams_per_principal = MAY).await;
    let with = |token: &str| Request::post(call(1)).with("Authorization", &format!("Bearer {token}"));
    // A server that refuses no credential has proven none: all callers are told apart by their
    // address alone.
    let pending = with("good").start(proxy.addr).await;
    upstream.expect("tools/call").await.json(200, result(1)).await;
    assert_eq!(pending.response().await.status, 200);
    let running: Vec<_> = {
        let mut running = Vec::new();
        for number in 0..MAY {
            let pending = with(&format!("invented-{number}")).start(proxy.addr).await;
            running.push((pending, upstream.expect("tools/call").await));
        }
        running
    };
    for token in ["invented-200", "good"] {
        assert_refused(with(token).send(proxy.addr).await, 429, "client").await;
    }
    // The first that is refused shows that this one judges, and whom it has accepted.
    for (pending, upstream_call) in running {
        upstream_call.status(401).await;
        assert_eq!(pending.response().await.status, 401);
    }
    let mut running = Vec::new();
    for number in 0..200 {
        let pending = with(&format!("invented-{number}")).start(proxy.addr).await;
        if number < MAY {
            running.push((pending, upstream.expect("tools/call").await));
        } else {
            assert_refused(pending.response().await, 429, "client").await;
        }
        if number % 50 == 0 {
            let pending = with("good").start(proxy.addr).await;
            upstream.expect("tools/call").await.json(200, result(1)).await;
            assert_eq!(pending.response().await.status, 200);
        }
    }
}

#[tokio::test]
async fn of_ten_thousand_calls_that_are_left_as_many_run_as_may() {
    const MAY: usize = 200;
    let (mut upstream, proxy, session) = bounded(|c| c.limits.detached_calls_per_principal = MAY).await;
    let mut neighbour = Neighbour::moves_in(&proxy, &mut upstream).await;
    let mut left = Vec::new();
    let mut refused = 0;
    for id in 0..10_000 {
        let client = session.post(call(id)).start(proxy.addr).await;
        if left.len() < MAY {
            left.push(upstream.expect("tools/call").await);
            client.reset();
            settle(&proxy, &mut upstream).await;
        } else {
            let response = client.response().await;
            assert_eq!((response.status, response.header("retry-after")), (429, Some("1")));
            refused += 1;
            response.reset();
        }
        if id % 50 == 0 {
            neighbour.hears().await;
        }
    }
    assert_eq!(refused, 10_000 - MAY);
    assert_eq!(metric(&proxy, "mcp_resume_calls_detached").await, MAY as f64);
    assert_eq!(metric(&proxy, &rejects("too_many_detached")).await, refused as f64);
    // A client that resumes one of them is let in, and there is room for another.
    let back = session.post(call(7)).start(proxy.addr).await;
    let place = left.remove(7);
    place.json(200, result(7)).await;
    assert_eq!(back.response().await.body().await, result(7).as_bytes());
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(10_000))).await;
    sse.finish(result(10_000)).await;
    response.prime().await;
    assert_eq!(response.event().await.bytes(), result(10_000).as_bytes());
    neighbour.moves_out().await;
}

#[tokio::test]
async fn posts_that_are_reset_at_once_cost_as_many_calls_as_may_be_left() {
    const MAY: usize = 30;
    let (mut upstream, proxy, session) = bounded(|c| c.limits.detached_calls_per_principal = MAY).await;
    let mut neighbour = Neighbour::moves_in(&proxy, &mut upstream).await;
    let mut id = 0;
    while metric(&proxy, &rejects("too_many_detached")).await < 50.0 {
        // Some are reset before they are read, some after.
        for _ in 0..10 {
            id += 1;
            session.post(call(id)).start(proxy.addr).await.reset();
        }
        neighbour.hears().await;
    }
    let calls = calls(&mut upstream).await.len();
    // Ten at a time are read before the first of them is known to have left.
    assert!((MAY..=MAY + 10).contains(&calls), "{calls} calls");
    neighbour.moves_out().await;
}

#[tokio::test]
async fn streams_that_are_reset_before_they_are_handled_end_their_connection() {
    const CONNECTIONS: u64 = 20;
    const STREAMS: u64 = 2000;
    let (mut upstream, proxy, session) = bounded(|_| {}).await;
    let mut neighbour = Neighbour::moves_in(&proxy, &mut upstream).await;
    let is_over = Cell::new(false);
    let flood = async {
        for _ in 0..CONNECTIONS {
            let mut client = Framer::connect(proxy.addr).await;
            let mut bytes = Vec::new();
            for id in 0..STREAMS {
                let (opened, stream) = client.open(&session.post(call(id)));
                bytes.extend(opened);
                bytes.extend(frames::reset(stream));
            }
            // The proxy hangs up before it has read them all.
            let _ = client.send(&bytes).await;
            assert_eq!(client.ended().await, Some(ENHANCE_YOUR_CALM));
        }
        is_over.set(true);
    };
    let watch = async {
        while !is_over.get() {
            neighbour.hears().await;
        }
    };
    tokio::join!(flood, watch);
    // Where a read ends between a request and its reset, the request is looked at.
    let calls = calls(&mut upstream).await.len() as u64;
    assert!(calls <= CONNECTIONS, "{calls} calls");
    neighbour.moves_out().await;
}

#[tokio::test]
async fn posts_whose_streams_are_reset_cost_as_many_calls_as_may_be_left_and_leave_nothing() {
    const MAY: usize = 30;
    let (mut upstream, proxy, session) = bounded(|c| c.limits.detached_calls_per_principal = MAY).await;
    let mut neighbour = Neighbour::moves_in(&proxy, &mut upstream).await;
    let mut client = Framer::connect(proxy.addr).await;
    let mut id = 0;
    while metric(&proxy, &rejects("too_many_detached")).await < 1000.0 {
        // On one connection, and looked at before they are reset.
        let mut opened = Vec::new();
        assert!(id < 5000, "no call is refused");
        for _ in 0..10 {
            id += 1;
            let (bytes, stream) = client.open(&session.post(call(id)));
            client.send(&bytes).await.expect("an open connection");
            opened.push(stream);
        }
        neighbour.hears().await;
        for stream in opened {
            client.send(&frames::reset(stream)).await.expect("an open connection");
        }
        neighbour.hears().await;
    }
    let calls = calls(&mut upstream).await;
    assert!((MAY..=MAY + 10).contains(&calls.len()), "{} calls", calls.len());
    assert_eq!(metric(&proxy, "mcp_resume_calls_detached").await, calls.len() as f64);
    for call in calls {
        let id = call.json_body()["id"].clone();
        call.json(200, result(id)).await;
    }
    neighbour.moves_out().await;
    is_empty(&proxy).await;
}

async fn streams(proxy: &Proxy) -> serde_json::Value {
    Request::new("GET", "/streams").send(proxy.admin.expect("an admin listener")).await.json().await
}

#[tokio::test]
async fn standalone_streams_that_were_left_are_no_calls() {
    const SESSIONS: usize = 5;
    let (mut upstream, proxy, _) = bounded(|c| {
        c.limits.detached_calls_per_principal = 2;
        c.limits.streams_per_principal = 2;
    })
    .await;
    let mut opened = Vec::new();
    for n in 0..SESSIONS {
        let session = Session::open_as(&proxy, &mut upstream, V2025_11, &format!("s-{n}"), Some("Bearer one")).await;
        let pending = session.get().start(proxy.addr).await;
        let sse = upstream.expect("GET").await.sse().await;
        let mut response = pending.response().await.sse();
        response.prime().await;
        response.reset();
        settle(&proxy, &mut upstream).await;
        let pending = session.post(call(1)).start(proxy.addr).await;
        upstream.expect("tools/call").await.json(200, result(1)).await;
        assert_eq!(pending.response().await.status, 200, "session {n}");
        opened.push(sse);
    }
    assert_eq!(metric(&proxy, "mcp_resume_calls_detached").await, 0.0);
    let list = streams(&proxy).await;
    assert_eq!((&list["open"], &list["detached"]), (&SESSIONS.into(), &0.into()), "{list}");
    // No client resumes them: each is closed, and no call has failed.
    pass(std::time::Duration::from_secs(700)).await;
    for sse in &opened {
        sse.closed().await;
    }
    settle(&proxy, &mut upstream).await;
    let outcomes =
        ["completed", "failed", "cancelled", "expired"].map(|of| format!("sealed_total{{outcome=\"{of}\"}}"));
    for counter in outcomes.iter().map(|sample| format!("streams_{sample}")) {
        assert_eq!(metric(&proxy, &format!("mcp_resume_{counter}")).await, 0.0, "{counter}");
    }
    for counter in ["streams_sealed_detached_total", "calls_abandoned_total"] {
        assert_eq!(metric(&proxy, &format!("mcp_resume_{counter}")).await, 0.0, "{counter}");
    }
    let list = streams(&proxy).await;
    let states: Vec<_> = list["streams"].as_array().expect("a list").iter().map(|stream| &stream["state"]).collect();
    assert_eq!(states, vec!["ended"; SESSIONS], "{list}");
}

#[tokio::test]
async fn a_sessions_own_stream_is_opened_however_many_calls_there_are() {
    let (mut upstream, proxy, session) = bounded(|c| {
        c.limits.detached_calls_per_principal = 1;
        c.limits.streams_per_principal = 1;
    })
    .await;
    let (sse, mut left) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    left.prime().await;
    left.reset();
    until("it was left", async || metric(&proxy, "mcp_resume_calls_detached").await == 1.0).await;
    assert_refused(session.post(call(2)).send(proxy.addr).await, 429, "client").await;
    let pending = session.get().start(proxy.addr).await;
    let own = upstream.expect("GET").await.sse().await;
    pending.response().await.sse().prime().await;
    drop((sse, own));
}

/// Sends `request` on the client's connection, and reads the answer of a call that the server ends
/// at once: so many bytes of it.
async fn run(
    proxy: &Proxy,
    upstream: &mut Upstream,
    client: Option<Client>,
    request: &Request,
    id: usize,
) -> (EventId, Client) {
    let mut client = match client {
        Some(client) => client,
        None => Client::connect(proxy.addr).await,
    };
    client.send(&request.bytes(proxy.addr)).await;
    upstream.expect("tools/call").await.sse().await.finish(result(id)).await;
    let mut response = client.response().await.sse();
    let place = EventId::of(response.prime().await.id());
    assert_eq!(response.event().await.bytes(), result(id).as_bytes());
    response.ends().await;
    (place, response.into_client())
}

#[tokio::test]
async fn short_calls_whose_answers_are_proven_to_have_arrived_become_stubs() {
    const CALLS: usize = 200;
    let (mut upstream, proxy, session) = bounded(|c| {
        c.limits.streams_per_principal = 2;
        c.streams.delivered_retention = std::time::Duration::from_secs(60);
    })
    .await;
    let before = metric(&proxy, "mcp_resume_held_bytes").await;
    let (mut client, mut places) = (None, Vec::new());
    for id in 0..CALLS {
        let (place, kept) = run(&proxy, &mut upstream, client, &session.post(call(id)), id).await;
        client = Some(kept);
        places.push(place);
    }
    let a_call = (metric(&proxy, "mcp_resume_held_bytes").await - before) / CALLS as f64;
    assert!(a_call < 1100.0, "{a_call} bytes a call");
    // Each can still be asked for: by its end, and for its response.
    let mut at_end = session.resume(&places[7].at(1)).send(proxy.addr).await;
    assert_eq!((at_end.status, at_end.body().await.len()), (204, 0));
    let mut back = session.resume(&places[9].at(0)).send(proxy.addr).await.sse();
    assert_eq!(EventId::of(back.prime().await.id()).seq, "0");
    let event = back.event().await;
    assert_eq!((event.id(), event.bytes()), (places[9].at(1).as_str(), result(9).as_bytes()));
    back.ends().await;
    pass(std::time::Duration::from_secs(61)).await;
    settle(&proxy, &mut upstream).await;
    let a_call = (metric(&proxy, "mcp_resume_held_bytes").await - before) / CALLS as f64;
    assert!(a_call < 560.0, "{a_call} bytes a call");
    let mut lost = session.resume(&places[11].at(0)).send(proxy.addr).await.sse();
    assert_fault(&lost.event().await.json(), 11, GONE, "client");
    lost.ends().await;
    let mut at_end = session.resume(&places[11].at(1)).send(proxy.addr).await;
    assert_eq!((at_end.status, at_end.body().await.len()), (204, 0));
    drop(client);
    is_empty(&proxy).await;
}

#[tokio::test]
async fn a_session_that_is_opened_on_a_connection_is_its_callers_own() {
    let (mut upstream, proxy, _) =
        bounded(|c| c.streams.delivered_retention = std::time::Duration::from_secs(60)).await;
    let opening = Request::post(initialize(V2025_11)).with("Authorization", "Bearer own");
    let mut client = Client::connect(proxy.addr).await;
    client.send(&opening.bytes(proxy.addr)).await;
    upstream.expect("initialize").await.json_with(200, "mcp-session-id: s-own\r\n", result(0)).await;
    let mut response = client.response().await;
    response.body().await;
    let session = Session::opened_elsewhere(V2025_11, "s-own", Some("Bearer own"));
    let client = Some(response.into_client());
    let (place, client) = run(&proxy, &mut upstream, client, &session.post(call(1)), 1).await;
    let (_, client) = run(&proxy, &mut upstream, Some(client), &session.post(call(2)), 2).await;
    pass(std::time::Duration::from_secs(61)).await;
    settle(&proxy, &mut upstream).await;
    let mut lost = session.resume(&place.at(0)).send(proxy.addr).await.sse();
    assert_fault(&lost.event().await.json(), 1, GONE, "client");
    drop(client);
}

#[tokio::test]
async fn of_anonymous_callers_without_a_session_no_request_proves_an_arrival() {
    let (mut upstream, proxy, _) =
        bounded(|c| c.streams.delivered_retention = std::time::Duration::from_secs(60)).await;
    let (place, client) = run(&proxy, &mut upstream, None, &modern(1), 1).await;
    let (_, client) = run(&proxy, &mut upstream, Some(client), &modern(2), 2).await;
    pass(std::time::Duration::from_secs(61)).await;
    settle(&proxy, &mut upstream).await;
    let mut back = modern_resume(&place.at(0)).send(proxy.addr).await.sse();
    back.prime().await;
    assert_eq!(back.event().await.bytes(), result(1).as_bytes());
    drop(client);
}
