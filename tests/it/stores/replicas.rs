//! A stream of one replica, for a client that comes back to another one.

use std::sync::Arc;
use std::time::Duration;

use mcp_resume::config::{Config, ResumeTokens};
use serde_json::{Value, json};

use super::*;
use crate::beats::{beat, with_beats};
use crate::dialects::{ask, open, refused, tokens};

#[tokio::test]
async fn a_live_stream_is_resumed_elsewhere_by_its_event_id() {
    let (_redis, mut one, two, session) = pair().await;
    let (sse, mut response, place) = one.begin(&session.post(call(1))).await;
    sse.event(progress(1)).await;
    assert_eq!(response.event().await.id(), place.at(1));
    response.reset();
    let mut back = two.send(session.resume(&place.at(1))).await.sse();
    back.prime().await;
    sse.event(progress(2)).await;
    let event = back.event().await;
    assert_eq!((event.id(), event.bytes()), (place.at(2).as_str(), progress(2).as_bytes()));
    sse.finish(result(1)).await;
    assert_eq!(rest(&mut back).await, [result(1)]);
    assert!(one.upstream.is_quiet() && two.upstream.is_quiet());
}

#[tokio::test]
async fn progress_of_the_proxy_is_written_elsewhere_as_well() {
    let (_redis, mut one, two, session) = pair_with(|config| {
        with_beats(config);
        config.delivery.progress.as_mut().unwrap().after = SOON;
    })
    .await;
    let (sse, response, place) = one.begin(&session.post(call(1))).await;
    response.reset();
    let mut back = two.send(session.resume(&place.at(0))).await.sse();
    back.prime().await;
    for progress in ["0", "0.000001"] {
        assert_eq!(beat(&mut back).await.0, format!(r#""progressToken":7,"progress":{progress}"#));
    }
    sse.event(progress(5)).await;
    while back.event().await.bytes() != progress(5).as_bytes() {}
    assert_eq!(beat(&mut back).await.0, r#""progressToken":7,"progress":5.000001"#);
    sse.finish(result(1)).await;
    while back.event().await.bytes() != result(1).as_bytes() {}
    back.ends().await;
}

#[tokio::test]
async fn a_finished_stream_is_resumed_elsewhere_by_its_event_id() {
    let (_redis, mut one, two, session) = pair().await;
    let (sse, mut response, place) = one.begin(&session.post(call(1))).await;
    sse.event(progress(1)).await;
    sse.finish(result(1)).await;
    response.events().await;
    let mut back = two.send(session.resume(&place.at(0))).await.sse();
    back.prime().await;
    assert_eq!(rest(&mut back).await, [progress(1), result(1)]);
    assert_eq!(two.send(session.resume(&place.at(2))).await.status, 204, "there is nothing behind the result");
}

#[tokio::test]
async fn a_stream_is_resumed_elsewhere_by_its_url_live_and_finished() {
    let (_redis, mut one, two, session) = pair().await;
    let (sse, mut response, place) = one.begin(&session.post(call(1))).await;
    sse.event(progress(1)).await;
    response.event().await;
    response.reset();
    let mut back = two.send(session.get().target(&url_of(&place))).await.sse();
    assert_eq!(back.event().await.id(), place.at(1));
    sse.finish(result(1)).await;
    assert_eq!(rest(&mut back).await, [result(1)]);
    let mut again = two.send(session.get().target(&url_of(&place)).resume_from(&place.at(1))).await.sse();
    assert_eq!(rest(&mut again).await, [result(1)]);
}

#[tokio::test]
async fn a_resumable_request_is_asked_about_and_resumed_elsewhere_live_and_finished() {
    let redis = Redis::start();
    let mut one = Replica::start(&redis, "one").await;
    let two = Replica::start(&redis, "two").await;
    let declared = json!({ "resumableRequests": {} });
    let (session, _) = open(&one.proxy, &mut one.upstream, declared, Some("s")).await;
    let (sse, mut response, place) = one.begin(&session.post(call(7))).await;
    let policy = response.event().await.json();
    let token = &policy["params"]["resumeToken"];
    response.reset();
    let status = async || {
        let params = json!({ "requestId": 7, "resumeToken": token });
        two.send(session.post(ask(json!("st"), "requests/getStatus", params))).await.json().await["result"].clone()
    };
    assert_eq!(status().await["status"], "processing");
    let resume = session.post(ask(json!(7), "requests/resume", json!({ "resumeToken": token })));
    let mut back = two.send(resume.clone().resume_from(&place.at(1))).await.sse();
    back.prime().await;
    sse.event(progress(1)).await;
    assert_eq!(back.event().await.bytes(), progress(1).as_bytes());
    sse.finish(result(7)).await;
    assert_eq!(rest(&mut back).await, [result(7)]);
    assert_eq!(status().await["status"], "completed");
    let mut again = two.send(resume.resume_from(&place.at(2))).await.sse();
    assert_eq!(rest(&mut again).await, [result(7)]);
}

#[tokio::test]
async fn a_resumable_stream_is_polled_and_resumed_elsewhere_live_and_finished() {
    let redis = Redis::start();
    let mut one = Replica::start(&redis, "one").await;
    let two = Replica::start(&redis, "two").await;
    let (session, _) = open(&one.proxy, &mut one.upstream, json!({ "streams": {} }), Some("s")).await;
    let (sse, mut response, place) = one.begin(&session.post(call(7))).await;
    let created = response.event().await.json()["params"].clone();
    response.reset();
    let named = json!({ "streamId": created["streamId"], "resumeToken": created["resumeToken"] });
    let poll = async || {
        two.send(session.post(ask(json!(8), "stream/poll", named.clone()))).await.json().await["result"].clone()
    };
    let status = poll().await;
    assert_eq!((&status["status"], &status["streamId"]), (&json!("live"), &created["streamId"]));
    let resume = session.post(ask(json!("r"), "stream/resume", named.clone())).resume_from(&place.at(1));
    let mut back = two.send(resume.clone()).await.sse();
    back.prime().await;
    sse.finish(result(7)).await;
    let resumed = json!({ "jsonrpc": "2.0", "id": "r", "result": {} });
    let texts = rest(&mut back).await;
    assert_eq!((texts.len(), &texts[0]), (3, &result(7)));
    assert!(texts[1].contains("notifications/stream/end"));
    assert_eq!(serde_json::from_str::<Value>(&texts[2]).unwrap(), resumed);
    assert_ne!(poll().await["status"], "live");
    let mut again = two.send(resume).await.sse();
    assert_eq!(rest(&mut again).await.len(), 3);
}

fn sliced(config: &mut Config) {
    let tools = ["slow"].map(str::to_owned).into();
    let tokens = ResumeTokens { slice: SOON, tools, methods: Default::default() };
    config.dialects.resume_tokens = Some(Arc::new(tokens));
}

#[tokio::test]
async fn a_call_in_slices_goes_on_elsewhere_by_its_token_to_the_result_and_runs_once() {
    let (_redis, mut one, two, session) = pair_with(sliced).await;
    tokens::list(&one.proxy, &mut one.upstream, &session).await;
    let (sse, mut response, _) = one.begin(&session.post(call(7))).await;
    let token = tokens::interim_token(&response.event().await.json(), json!(7), "content");
    response.ends().await;
    let mut second = two.send(session.post(tokens::again(json!(8), json!(80), &token))).await.sse();
    let interim = second.event().await.json();
    assert_eq!((&interim["id"], &interim["result"]["nextResumeToken"]), (&json!(8), &json!(token)));
    second.ends().await;
    sse.finish(result(7)).await;
    until("the result comes", async || {
        let again = session.post(tokens::again(json!("c"), json!("x"), &token));
        rest(&mut two.send(again).await.sse()).await == [result("c")]
    })
    .await;
    assert!(one.upstream.is_quiet() && two.upstream.is_quiet());
}

#[tokio::test]
async fn the_newest_reader_takes_over_at_any_replica_and_no_event_comes_twice() {
    let (redis, mut one, two, session) = pair().await;
    let three = Replica::start(&redis, "three").await;
    let (sse, mut response, place) = one.begin(&session.post(call(1))).await;
    sse.event(progress(1)).await;
    response.event().await;
    let mut seen = 1;
    // From the owner to another replica, from there to a third one, and back to the owner.
    for at in [&two, &three, &one] {
        let mut newer = at.send(session.resume(&place.at(seen))).await.sse();
        newer.prime().await;
        let frames = response.frames().await;
        assert_eq!(response.end(), Some(End::Complete));
        assert!(frames.iter().all(|frame| !frame.is_event()), "{frames:?}");
        assert!(frames.last().is_some_and(|frame| frame.retry.is_some()), "{frames:?}");
        seen += 1;
        sse.event(progress(seen)).await;
        let event = newer.event().await;
        assert_eq!((event.id(), event.bytes()), (place.at(seen).as_str(), progress(seen).as_bytes()));
        response = newer;
    }
    sse.finish(result(1)).await;
    assert_eq!(rest(&mut response).await, [result(1)]);
}

/// Calls whose client is away are given up after this long; what is compared with it takes a small
/// part of it.
const AWAY: Duration = Duration::from_secs(3);

#[tokio::test]
async fn a_call_counts_as_attached_while_a_client_reads_it_at_another_replica() {
    let (_redis, mut one, two, session) = pair_with(|config| config.streams.max_wait = Some(AWAY)).await;
    let (read, response, place) = one.begin(&session.post(call(1))).await;
    response.reset();
    let mut back = two.send(session.resume(&place.at(0))).await.sse();
    back.prime().await;
    one.knows_of_readers(1).await;
    // An abandoned call tells when the time is over.
    let (left, response, _) = one.begin(&session.post(call(2))).await;
    response.reset();
    left.closed().await;
    assert!(!read.is_closed());
    read.finish(result(1)).await;
    assert_eq!(rest(&mut back).await, [result(1)]);
}

#[tokio::test]
async fn a_reader_that_leaves_another_replica_is_missed() {
    let (_redis, mut one, two, session) = pair_with(|config| config.streams.max_wait = Some(LATER)).await;
    let (read, response, place) = one.begin(&session.post(call(1))).await;
    let mut back = two.send(session.resume(&place.at(0))).await.sse();
    back.prime().await;
    drop(response);
    back.reset();
    read.closed().await;
    let mut late = two.send(session.resume(&place.at(0))).await.sse();
    let message: Value = serde_json::from_str(&rest(&mut late).await[0]).unwrap();
    assert_fault(&message, 1, ABANDONED, "client");
}

#[tokio::test]
async fn a_client_that_asks_another_replica_has_not_left() {
    let declared = json!({ "streams": {}, "resumableRequests": {} });
    for asks_for_status in [true, false] {
        let redis = Redis::start();
        let away = |config: &mut Config| config.streams.max_wait = Some(AWAY);
        let mut one = Replica::with(&redis, "one", away).await;
        let two = Replica::with(&redis, "two", away).await;
        let (session, _) = open(&one.proxy, &mut one.upstream, declared.clone(), Some("s")).await;
        let (asked, mut response, _) = one.begin(&session.post(call(1))).await;
        let token = response.event().await.json()["params"]["resumeToken"].clone();
        let stream = response.event().await.json()["params"]["streamId"].clone();
        response.reset();
        let request = if asks_for_status {
            let params = json!({ "requestId": 1, "resumeToken": token });
            session.post(ask(json!("a"), "requests/getStatus", params))
        } else {
            session.post(ask(json!("a"), "stream/poll", json!({ "streamId": stream, "resumeToken": token })))
        };
        let (left, response, _) = one.begin(&session.post(call(2))).await;
        response.reset();
        // Left later, and given up earlier.
        until("the other call is given up", async || {
            assert!(two.send(request.clone()).await.json().await["result"].is_object());
            left.is_closed()
        })
        .await;
        assert!(!asked.is_closed());
        // Who asks no more has left.
        asked.closed().await;
    }
}

#[tokio::test]
async fn a_modern_client_comes_back_elsewhere_within_the_grace_and_its_server_notices_nothing() {
    let (_redis, mut one, two, _) = pair_with(|config| config.streams.modern_grace = Some(AWAY)).await;
    let (sse, response, place) = one.begin(&modern(1)).await;
    response.reset();
    let mut back = two.send(modern_resume(&place.at(0))).await.sse();
    back.prime().await;
    one.knows_of_readers(1).await;
    let (left, response, _) = one.begin(&modern(2)).await;
    response.reset();
    left.closed().await;
    assert!(!sse.is_closed() && one.upstream.is_quiet() && two.upstream.is_quiet());
    sse.finish(result(1)).await;
    assert_eq!(rest(&mut back).await, [result(1)]);
}

#[tokio::test]
async fn a_stranger_at_another_replica_opens_nothing() {
    let redis = Redis::start();
    let mut one = Replica::start(&redis, "one").await;
    let two = Replica::start(&redis, "two").await;
    let declared = json!({ "streams": {}, "resumableRequests": {} });
    let (session, _) = open(&one.proxy, &mut one.upstream, declared, Some("s")).await;
    let (sse, mut response, place) = one.begin(&session.post(call(1))).await;
    let token = response.event().await.json()["params"]["resumeToken"].clone();
    let stream = response.event().await.json()["params"]["streamId"].clone();
    let strange = |request: Request| request.with("Authorization", "Bearer other");
    for is_over in [false, true] {
        for request in [session.resume(&place.at(0)), session.get().target(&url_of(&place))] {
            let (status, text) = two.told(strange(request)).await;
            assert_eq!(status, 200);
            assert_lost(&text);
            // As if it had never been: but for its own name.
            let forged = place.forged();
            let unknown = two.told(strange(session.resume(&forged.at(0)))).await;
            assert_eq!(unknown, (200, text.replace(&place.handle, &forged.handle)));
        }
        let asked = [
            ("requests/resume", json!({ "resumeToken": token })),
            ("requests/getStatus", json!({ "requestId": 1, "resumeToken": token })),
            ("stream/resume", json!({ "streamId": stream, "resumeToken": token })),
            ("stream/poll", json!({ "streamId": stream, "resumeToken": token })),
        ];
        for (method, params) in asked {
            let mut answer = two.send(strange(session.post(ask(json!(1), method, params)))).await;
            assert_eq!(answer.json().await, refused(json!(1)), "{method}");
        }
        if !is_over {
            sse.event(result(1)).await;
            assert_eq!(response.event().await.bytes(), result(1).as_bytes());
        }
    }
    let mut mine = two.send(session.resume(&place.at(2))).await.sse();
    assert_eq!(mine.event().await.bytes(), result(1).as_bytes());
}

#[tokio::test]
async fn a_call_of_another_replica_is_not_counted_as_detached_here() {
    let (_redis, mut one, two, session) = pair().await;
    let (_sse, response, place) = one.begin(&session.post(call(1))).await;
    let mut back = two.send(session.resume(&place.at(0))).await.sse();
    back.prime().await;
    drop(response);
    back.reset();
    until("no connection reads it", async || one.metric("calls_detached").await == 1.0).await;
    assert_eq!(two.metric("calls_detached").await, 0.0);
}
