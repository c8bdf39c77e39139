//! Answers to a resume: the rest, nothing left, gone, not ours; takeover.

use crate::support::*;
use serde_json::Value;

/// A call whose client read the first of two events and left; the second came meanwhile.
async fn left(proxy: &Proxy, upstream: &mut Upstream, request: &Request) -> (Sse, EventId) {
    let (sse, mut response) = begin(proxy, upstream, request).await;
    sse.event(progress(1)).await;
    let place = EventId::of(response.event().await.id());
    response.reset();
    sse.event(progress(2)).await;
    (sse, place)
}

/// A call that was read to its end.
async fn finished(proxy: &Proxy, upstream: &mut Upstream, request: &Request) -> EventId {
    let (sse, mut response) = begin(proxy, upstream, request).await;
    sse.event(progress(1)).await;
    let place = EventId::of(response.event().await.id());
    sse.finish(result(request.rpc_id())).await;
    response.event().await;
    response.ends().await;
    place
}

/// A call whose client read twenty events and left; far fewer are kept.
async fn trimmed(proxy: &Proxy, upstream: &mut Upstream, request: &Request) -> (Sse, EventId) {
    let (sse, mut response) = begin(proxy, upstream, request).await;
    let place = EventId::of(response.prime().await.id());
    for n in 1..=20 {
        sse.event(progress(n)).await;
        assert_eq!(response.event().await.id(), place.at(n));
    }
    response.reset();
    (sse, place)
}

/// The answer to a cursor that is gone: one event, whose message is returned with the raw body.
async fn gone(request: Request, proxy: &Proxy) -> (Value, Vec<u8>) {
    let response = request.send(proxy.addr).await.sse();
    assert_eq!(response.header("cache-control"), Some("no-cache, no-transform"));
    let mut response = response;
    let frames = response.frames().await;
    assert_eq!(response.end(), Some(End::Complete));
    assert_eq!(frames.len(), 1, "exactly one event: {frames:?}");
    assert_eq!(EventId::of(frames[0].id()).seq, "end");
    assert_eq!(frames[0].event.as_deref(), Some("message"));
    (frames[0].json(), frames[0].raw.clone())
}

#[tokio::test]
async fn a_resume_gets_the_rest_and_follows() {
    let (mut upstream, proxy, session) = setup().await;
    let (sse, place) = left(&proxy, &mut upstream, &session.post(call(1))).await;
    let mut response = session.resume(&place.at(1)).send(proxy.addr).await.sse();
    assert_eq!(response.header("cache-control"), Some("no-cache, no-transform"));
    assert_eq!(response.header("x-accel-buffering"), Some("no"));
    response.prime().await;
    let event = response.event().await;
    assert_eq!((event.id(), event.bytes()), (place.at(2).as_str(), progress(2).as_bytes()));
    assert!(!sse.is_closed(), "the upstream has noticed nothing");
    sse.event(progress(3)).await;
    assert_eq!(response.event().await.id(), place.at(3));
    sse.finish(result(1)).await;
    let event = response.event().await;
    assert_eq!((event.id(), event.bytes()), (place.at(4).as_str(), result(1).as_bytes()));
    response.ends().await;
    assert!(upstream.is_quiet(), "a resume is not the upstream's matter");
}

#[tokio::test]
async fn a_resumed_connection_starts_with_a_fresh_name_of_the_same_cursor() {
    let (mut upstream, proxy, session) = setup().await;
    let (sse, place) = left(&proxy, &mut upstream, &session.post(call(1))).await;
    let mut names = vec![place.at(1)];
    for _ in 0..3 {
        let from = names.last().unwrap().clone();
        let mut response = session.resume(&from).send(proxy.addr).await.sse();
        let prime = response.prime().await;
        assert_eq!(prime.data, Some(vec![]), "empty data");
        assert!(prime.retry.is_some());
        let id = EventId::of(prime.id());
        assert_eq!((&id.handle, id.seq.as_str()), (&place.handle, "1"));
        assert!(id.attach.is_some(), "a part that is fresh: {id:?}");
        assert!(!names.contains(&prime.id().to_owned()), "{names:?}");
        names.push(prime.id().to_owned());
        // Every name of the cursor gives the same events.
        assert_eq!(response.event().await.id(), place.at(2));
        response.reset();
    }
    sse.finish(result(1)).await;
}

#[tokio::test]
async fn the_head_of_a_resumed_stream_comes_with_its_first_id() {
    let (mut upstream, proxy, session) = setup().await;
    let (sse, place) = left(&proxy, &mut upstream, &session.post(call(1))).await;
    let mut response = session.resume(&place.at(1)).send(proxy.addr).await.sse();
    response.prime().await;
    assert_eq!(response.reads().len(), 1);
    sse.finish(result(1)).await;
}

#[tokio::test]
async fn a_resume_from_the_beginning_gets_everything() {
    let (mut upstream, proxy, session) = setup().await;
    let place = finished(&proxy, &mut upstream, &session.post(call(1))).await;
    let mut response = session.resume(&place.at(0)).send(proxy.addr).await.sse();
    let (events, end) = response.events().await;
    assert_eq!(end, End::Complete);
    let ids: Vec<&str> = events.iter().map(Frame::id).collect();
    assert_eq!(ids, [place.at(1), place.at(2)]);
}

#[tokio::test]
async fn nothing_left_of_a_sealed_stream_is_204() {
    let (mut upstream, proxy, session) = setup().await;
    let place = finished(&proxy, &mut upstream, &session.post(call(1))).await;
    for from in [place.at(2), format!("{}.2.abcd", place.handle)] {
        let mut response = session.resume(&from).send(proxy.addr).await;
        assert_eq!(response.status, 204, "{from}");
        assert_eq!(response.body().await, b"");
    }
}

#[tokio::test]
async fn the_tail_of_a_running_stream_follows() {
    let (mut upstream, proxy, session) = setup().await;
    let (sse, place) = left(&proxy, &mut upstream, &session.post(call(1))).await;
    // The second event has been logged once a reader sees it.
    let mut first = session.resume(&place.at(1)).send(proxy.addr).await.sse();
    first.event().await;
    let mut response = session.resume(&place.at(2)).send(proxy.addr).await.sse();
    assert_eq!(EventId::of(response.prime().await.id()).seq, "2");
    sse.finish(result(1)).await;
    assert_eq!(response.event().await.id(), place.at(3));
    response.ends().await;
}

#[tokio::test]
async fn a_stale_cursor_gives_the_same_events_again() {
    let (mut upstream, proxy, session) = setup().await;
    let place = finished(&proxy, &mut upstream, &session.post(call(1))).await;
    let mut answers = Vec::new();
    for _ in 0..3 {
        let mut response = session.resume(&place.at(0)).send(proxy.addr).await.sse();
        answers.push(response.events().await);
        // The connection carries another request: the first answer has arrived.
        let mut client = response.into_client();
        client.send(&session.resume(&place.at(2)).bytes(proxy.addr)).await;
        assert_eq!(client.response().await.status, 204);
    }
    assert_eq!(answers[0].0.len(), 2);
    assert_eq!(answers[0], answers[1]);
    assert_eq!(answers[1], answers[2]);
}

#[tokio::test]
async fn a_call_that_finished_without_its_client_can_be_fetched() {
    let (mut upstream, proxy, session) = setup().await;
    let (sse, place) = left(&proxy, &mut upstream, &session.post(call(1))).await;
    sse.finish(result(1)).await;
    settle(&proxy, &mut upstream).await;
    let mut response = session.resume(&place.at(1)).send(proxy.addr).await.sse();
    let (events, end) = response.events().await;
    assert_eq!(end, End::Complete);
    let payloads: Vec<&[u8]> = events.iter().map(Frame::bytes).collect();
    assert_eq!(payloads, [progress(2).as_bytes(), result(1).as_bytes()]);
}

#[tokio::test]
async fn every_kind_of_lost_cursor_gets_the_error_of_its_request() {
    let (mut upstream, proxy, session) = setup_with(|c| c.streams.max_events = 4).await;
    let place = finished(&proxy, &mut upstream, &session.post(call("seven"))).await;
    let (_long, trimmed) = trimmed(&proxy, &mut upstream, &session.post(call_tool("seven", "long"))).await;
    let stranger = session.resume(&place.at(1)).with("Authorization", "Bearer x");
    let elsewhere = session.resume(&place.at(1)).with("Mcp-Session-Id", "s-2");
    let beyond = session.resume(&place.at(3));
    let forged = place.forged();
    let mut answers = Vec::new();
    for (name, request, handle) in [
        ("foreign principal", stranger, &place.handle),
        ("foreign session", elsewhere, &place.handle),
        ("beyond the tail", beyond, &place.handle),
        ("bad MAC", session.resume(&forged.at(1)), &forged.handle),
        ("trimmed away", session.resume(&trimmed.at(1)), &trimmed.handle),
    ] {
        let (message, raw) = gone(request, &proxy).await;
        assert_fault_named(name, &message);
        let raw = String::from_utf8(raw).unwrap();
        assert!(raw.contains(&format!("{handle}.end")), "{name}: {raw}");
        answers.push(raw.replace(handle.as_str(), "HANDLE"));
    }
    answers.dedup();
    assert_eq!(answers.len(), 1, "the same bytes in every case");
}

#[track_caller]
fn assert_fault_named(name: &str, message: &Value) {
    assert_eq!(message["id"], "seven", "{name}: {message}");
    assert_eq!(message["error"]["code"], GONE, "{name}: {message}");
    let fault = message["error"]["data"]["fault"].as_str();
    assert!(matches!(fault, Some("upstream" | "proxy" | "client")), "{name}: {message}");
    assert!(message["error"]["data"]["mayHaveRun"].is_boolean(), "{name}: {message}");
}

#[tokio::test]
async fn a_handle_of_another_process_is_lost_the_same_way() {
    let (mut upstream, proxy, session) = setup().await;
    let other = Proxy::start(&upstream, |_| {}).await;
    let place = finished(&proxy, &mut upstream, &session.post(call(41))).await;
    let (message, _) = gone(session.resume(&place.at(1)), &other).await;
    assert_eq!(message["id"], 41);
    assert_eq!(message["error"]["code"], GONE);
}

#[tokio::test]
async fn the_error_has_the_requests_id_with_its_type() {
    let (mut upstream, proxy, session) = setup().await;
    let long = "x".repeat(100);
    let ids = [
        serde_json::json!(0),
        serde_json::json!(-5),
        serde_json::json!(9_007_199_254_740_991_i64),
        serde_json::json!("0"),
        serde_json::json!("é \"quoted\" \\ \n"),
        serde_json::json!("x".repeat(60)),
    ];
    for id in ids {
        let place = finished(&proxy, &mut upstream, &session.post(call(id.clone()))).await;
        let (message, _) = gone(session.resume(&place.forged().at(1)), &proxy).await;
        assert_eq!(message["id"], id);
    }
    let place = finished(&proxy, &mut upstream, &session.post(call(long))).await;
    let (message, _) = gone(session.resume(&place.forged().at(1)), &proxy).await;
    assert_eq!(message["id"], Value::Null, "longer ids are left out");
}

#[tokio::test]
async fn an_expired_stream_is_lost_and_the_loss_has_an_end() {
    let (mut upstream, proxy, session) = setup_with(|c| {
        c.streams.max_wait = Some(SOON);
        c.streams.retention = SOON;
    })
    .await;
    let place = finished(&proxy, &mut upstream, &session.post(call(1))).await;
    // Each resume starts the retention anew, so the pauses must outgrow it.
    let mut pause = SOON;
    loop {
        tokio::time::sleep(pause).await;
        let response = session.resume(&place.at(2)).send(proxy.addr).await;
        if response.status == 200 {
            break;
        }
        assert_eq!(response.status, 204);
        pause *= 2;
        assert!(pause < LIMIT, "never expired");
    }
    let (message, raw) = gone(session.resume(&place.at(1)), &proxy).await;
    assert_eq!(message["id"], 1);
    assert_eq!(message["error"]["code"], GONE);
    let forged = place.forged();
    let (_, never_was) = gone(session.resume(&forged.at(1)), &proxy).await;
    let raw = String::from_utf8(raw).unwrap();
    assert_eq!(raw.replace(&place.handle, &forged.handle).into_bytes(), never_was, "the same bytes");

    for _ in 0..2 {
        let mut end = session.resume(&place.at("end")).send(proxy.addr).await;
        assert_eq!(end.status, 204, "a client that was told comes back no more");
        assert_eq!(end.body().await, b"");
    }
}

#[tokio::test]
async fn the_end_of_an_unknown_stream_is_204() {
    let (mut upstream, proxy, session) = setup().await;
    let place = finished(&proxy, &mut upstream, &session.post(call(1))).await;
    let end = session.resume(&place.forged().at("end")).send(proxy.addr).await;
    assert_eq!(end.status, 204);
}

#[tokio::test]
async fn what_is_not_an_event_id_of_ours_is_400() {
    let (mut upstream, proxy, session) = setup().await;
    for id in ["1", "stream_1764000000000_abcdef", "6f1c2f4e-2b1d-4a57-9a41-0d9f3a1b2c3d", "a b.c d", "????.1", "...."]
    {
        let mut response = session.resume(id).send(proxy.addr).await;
        assert_eq!(response.status, 400, "{id}");
        let message = response.json().await;
        assert_eq!(message["jsonrpc"], "2.0", "{id}: {message}");
        assert!(message["error"]["code"].is_i64(), "{id}: {message}");
        assert_eq!(message["id"], Value::Null, "{id}: {message}");
    }
    settle(&proxy, &mut upstream).await;
}

#[tokio::test]
async fn a_newer_connection_takes_over_and_the_older_ends_gracefully() {
    let (mut upstream, proxy, session) = setup().await;
    let (sse, mut older) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    sse.event(progress(1)).await;
    let place = EventId::of(older.event().await.id());
    let mut newer = session.resume(&place.at(1)).send(proxy.addr).await.sse();
    newer.prime().await;
    older.ends().await;
    sse.finish(result(1)).await;
    assert_eq!(newer.event().await.bytes(), result(1).as_bytes());
    newer.ends().await;
}

#[tokio::test]
async fn retry_doubles_with_each_takeover() {
    let (mut upstream, proxy, session) = setup().await;
    let (sse, mut older) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    let place = EventId::of(older.prime().await.id());
    let mut told = Vec::new();
    for _ in 0..4 {
        let mut newer = session.resume(&place.at(0)).send(proxy.addr).await.sse();
        newer.prime().await;
        let last_words = older.frames().await;
        told.push(last_words.iter().filter_map(|f| f.retry).next_back());
        older = newer;
    }
    assert_eq!(told, [Some(2000), Some(4000), Some(8000), Some(16000)]);
    sse.finish(result(1)).await;
}

#[tokio::test]
async fn takeovers_in_mid_stream_lose_and_repeat_nothing() {
    let (mut upstream, proxy, session) = setup().await;
    let (sse, mut reader) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    let place = EventId::of(reader.prime().await.id());
    let mut seen = Vec::new();
    for n in 1..=50 {
        // The event and the takeover race; exactly one connection gets it, once.
        sse.event(progress(n)).await;
        let from = reader.last_id().unwrap().to_owned();
        let mut newer = session.resume(&from).send(proxy.addr).await.sse();
        let (late, end) = reader.events().await;
        assert_eq!(end, End::Complete);
        newer.prime().await;
        if late.is_empty() {
            seen.push(newer.event().await);
        } else {
            // Written to the older one and never confirmed: the newer one asked from before it.
            let again = newer.event().await;
            assert_eq!(late, std::slice::from_ref(&again));
            seen.push(again);
        }
        reader = newer;
    }
    let ids: Vec<String> = seen.iter().map(|f| f.id().to_owned()).collect();
    let all: Vec<String> = (1..=50).map(|n| place.at(n)).collect();
    assert_eq!(ids, all);
    sse.finish(result(1)).await;
}

#[tokio::test]
async fn a_hopeless_resume_does_not_disturb_the_reader() {
    let (mut upstream, proxy, session) = setup().await;
    let (sse, mut reader) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    let place = EventId::of(reader.prime().await.id());
    gone(session.resume(&place.at(5)), &proxy).await;
    gone(session.resume(&place.at(0)).with("Authorization", "Bearer x"), &proxy).await;
    sse.finish(result(1)).await;
    assert_eq!(reader.event().await.bytes(), result(1).as_bytes());
    reader.ends().await;
}

#[tokio::test]
async fn a_client_that_stays_away_too_long_has_its_call_cancelled() {
    let (mut upstream, proxy, session) = setup_with(|c| c.streams.max_wait = Some(LATER)).await;
    let (sse, place) = left(&proxy, &mut upstream, &session.post(call(5))).await;
    let cancelled = upstream.expect("notifications/cancelled").await;
    assert_eq!(cancelled.json_body()["params"]["requestId"], 5);
    assert_eq!(cancelled.header("mcp-session-id"), Some("s-1"));
    cancelled.status(202).await;
    sse.closed().await;
    let mut response = session.resume(&place.at(1)).send(proxy.addr).await.sse();
    let (events, end) = response.events().await;
    assert_eq!(end, End::Complete);
    assert_eq!(events[0].bytes(), progress(2).as_bytes());
    assert_fault(&events[1].json(), 5, ABANDONED, "client");
    assert_eq!(events.len(), 2);
    let last = session.resume(events[1].id()).send(proxy.addr).await;
    assert_eq!(last.status, 204);
}

#[tokio::test]
async fn a_client_that_comes_back_has_its_whole_time_again() {
    let (mut upstream, proxy, session) = setup_with(|c| c.streams.max_wait = Some(LATER)).await;
    let (sse, place) = left(&proxy, &mut upstream, &session.post(call(1))).await;
    let (_control, _) = left(&proxy, &mut upstream, &session.post(call(2))).await;
    let mut response = session.resume(&place.at(1)).send(proxy.addr).await.sse();
    response.prime().await;
    // It left before the second and would have been the first to be given up.
    let cancelled = upstream.expect("notifications/cancelled").await;
    assert_eq!(cancelled.json_body()["params"]["requestId"], 2);
    cancelled.status(202).await;
    assert!(!sse.is_closed());
    let leaves = std::time::Instant::now();
    response.reset();
    let cancelled = upstream.expect("notifications/cancelled").await;
    assert_eq!(cancelled.json_body()["params"]["requestId"], 1);
    assert!(leaves.elapsed() >= LATER, "a shorter time than the first");
    cancelled.status(202).await;
    sse.closed().await;
}

#[tokio::test]
async fn an_abandoned_initialize_is_not_cancelled() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |c| c.streams.max_wait = Some(SOON)).await;
    let (sse, response) = begin(&proxy, &mut upstream, &Request::post(initialize(V2025_11))).await;
    response.reset();
    sse.closed().await;
    settle(&proxy, &mut upstream).await;
}

#[tokio::test]
async fn a_call_over_its_time_fails() {
    let (mut upstream, proxy, session) = setup_with(|c| c.streams.call_timeout = Some(LATER)).await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    let (events, end) = response.events().await;
    assert_eq!((events.len(), end), (1, End::Complete));
    let message = events[0].json();
    assert_eq!(message["id"], 1);
    assert_eq!(message["error"]["code"], ABANDONED);
    assert_eq!(message["error"]["data"]["mayHaveRun"], true);
    sse.closed().await;
}

#[tokio::test]
async fn one_tool_can_have_a_time_of_its_own() {
    let (mut upstream, proxy, session) = setup_with(|c| {
        let tool = mcp_resume::config::Tool { call_timeout: Some(Some(LATER)), ..Default::default() };
        c.tools.insert("hasty".to_owned(), tool);
    })
    .await;
    let (slow, mut slow_response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    let (hasty, mut hasty_response) = begin(&proxy, &mut upstream, &session.post(call_tool(2, "hasty"))).await;
    let (events, _) = hasty_response.events().await;
    assert_eq!(events[0].json()["error"]["code"], ABANDONED);
    hasty.closed().await;
    slow.finish(result(1)).await;
    assert_eq!(slow_response.event().await.bytes(), result(1).as_bytes());
}

#[tokio::test]
async fn a_cursor_trimmed_away_is_told_so() {
    let (mut upstream, proxy, session) = setup_with(|c| c.streams.max_events = 4).await;
    let (sse, place) = trimmed(&proxy, &mut upstream, &session.post(call(1))).await;
    let (message, _) = gone(session.resume(&place.at(1)), &proxy).await;
    assert_eq!(message["error"]["code"], GONE);
    let mut back = session.resume(&place.at(20)).send(proxy.addr).await.sse();
    sse.finish(result(1)).await;
    assert_eq!(back.event().await.bytes(), result(1).as_bytes());
}

#[tokio::test]
async fn a_full_unread_stream_fails_after_a_while() {
    let (mut upstream, proxy, session) = setup_with(|c| {
        c.streams.max_events = 4;
        c.streams.full_wait = SOON;
    })
    .await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    let place = EventId::of(response.prime().await.id());
    response.reset();
    settle(&proxy, &mut upstream).await;
    for n in 1..=10 {
        sse.event(progress(n)).await;
    }
    sse.closed().await;
    let mut back = session.resume(&place.at(0)).send(proxy.addr).await.sse();
    let (events, end) = back.events().await;
    assert_eq!(end, End::Complete);
    let last = events.last().expect("an error").json();
    assert_eq!(last["id"], 1, "{last}");
    assert_eq!(last["error"]["code"], BOUND, "{last}");
    for (n, event) in events[..events.len() - 1].iter().enumerate() {
        assert_eq!(event.bytes(), progress(n as u64 + 1).as_bytes());
    }
}

#[tokio::test]
async fn the_cancel_of_an_abandoned_call_carries_its_callers_credentials() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |c| c.streams.max_wait = Some(SOON)).await;
    let session = Session::open_as(&proxy, &mut upstream, V2025_11, "s-9", Some("Bearer mine")).await;
    let request = session.post(call(1)).target("/mcp?key=k");
    let (sse, response) = begin(&proxy, &mut upstream, &request).await;
    response.reset();
    let cancelled = upstream.expect("notifications/cancelled").await;
    assert_eq!(cancelled.target, "/mcp?key=k");
    assert_eq!(cancelled.header("authorization"), Some("Bearer mine"));
    assert_eq!(cancelled.header("mcp-session-id"), Some("s-9"));
    assert_eq!(cancelled.header("mcp-protocol-version"), Some(V2025_11));
    cancelled.status(202).await;
    sse.closed().await;
}

#[tokio::test]
async fn one_tool_can_be_waited_for_longer() {
    let (mut upstream, proxy, session) = setup_with(|c| {
        c.streams.max_wait = Some(SOON);
        let tool = mcp_resume::config::Tool { max_wait: Some(None), ..Default::default() };
        c.tools.insert("patient".to_owned(), tool);
    })
    .await;
    let (patient, mut response) = begin(&proxy, &mut upstream, &session.post(call_tool(1, "patient"))).await;
    let place = EventId::of(response.prime().await.id());
    response.reset();
    let (slow, response) = begin(&proxy, &mut upstream, &session.post(call(2))).await;
    response.reset();
    let cancelled = upstream.expect("notifications/cancelled").await;
    assert_eq!(cancelled.json_body()["params"]["requestId"], 2);
    cancelled.status(202).await;
    slow.closed().await;
    assert!(!patient.is_closed());
    patient.finish(result(1)).await;
    let mut back = session.resume(&place.at(0)).send(proxy.addr).await.sse();
    assert_eq!(back.event().await.bytes(), result(1).as_bytes());
}

#[tokio::test]
async fn a_resume_that_takes_no_stream_is_406_and_disturbs_no_reader() {
    let (mut upstream, proxy, session) = setup().await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    let place = EventId::of(response.prime().await.id());
    let request = session.resume(&place.at(0)).with("Accept", "application/json");
    assert_eq!(request.send(proxy.addr).await.status, 406);
    sse.finish(result(1)).await;
    assert_eq!(response.event().await.bytes(), result(1).as_bytes());
    response.ends().await;
}
