//! Pings: those of the server that the proxy answers, and its own in quiet sessions.

use crate::support::*;
use std::time::Duration;

fn ping(id: u64) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"ping"}}"#)
}

fn pong(id: u64) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#)
}

/// The proxy's answer to a ping, which the upstream takes.
async fn answered(upstream: &mut Upstream, id: u64) {
    let answer = upstream.expect("response").await;
    assert_eq!(answer.body, pong(id).into_bytes());
    assert_eq!(answer.header("mcp-session-id"), Some("s-1"));
    assert_eq!(answer.header("content-type"), Some("application/json"));
    assert_eq!(answer.header("accept"), Some("application/json, text/event-stream"));
    answer.status(202).await;
}

/// The session's own stream.
async fn listen(proxy: &Proxy, upstream: &mut Upstream, session: &Session) -> (Sse, Response) {
    begin(proxy, upstream, &session.get()).await
}

#[tokio::test]
async fn a_ping_while_the_client_is_away_is_answered_and_not_logged() {
    let (mut upstream, proxy, session) = setup().await;
    let (own, mut listening) = listen(&proxy, &mut upstream, &session).await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    let (own_place, place) = (EventId::of(listening.prime().await.id()), EventId::of(response.prime().await.id()));
    listening.reset();
    response.reset();
    settle(&proxy, &mut upstream).await;
    for id in 0..3 {
        own.event(ping(id)).await;
        answered(&mut upstream, id).await;
        sse.event(ping(10 + id)).await;
        answered(&mut upstream, 10 + id).await;
    }
    sse.finish(result(1)).await;
    own.event(progress(1)).await;
    let mut back = session.resume(&place.at(0)).send(proxy.addr).await.sse();
    let event = back.event().await;
    assert_eq!((event.id(), event.bytes()), (place.at(1).as_str(), result(1).as_bytes()));
    let mut back = session.resume(&own_place.at(0)).send(proxy.addr).await.sse();
    let event = back.event().await;
    assert_eq!((event.id(), event.bytes()), (own_place.at(1).as_str(), progress(1).as_bytes()));
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn a_reader_that_leaves_a_ping_unanswered_is_answered_for_and_its_own_answer_dropped() {
    let (mut upstream, proxy, session) = setup().await;
    let (sse, mut response) = listen(&proxy, &mut upstream, &session).await;
    let place = EventId::of(response.prime().await.id());
    sse.event(ping(1)).await;
    assert_eq!(response.event().await.bytes(), ping(1).as_bytes());
    pass(Duration::from_millis(900)).await;
    settle(&proxy, &mut upstream).await;
    assert!(upstream.is_quiet(), "the reader has a second");
    answered(&mut upstream, 1).await;
    assert_eq!(session.post(pong(1)).send(proxy.addr).await.status, 202);
    settle(&proxy, &mut upstream).await;
    // One that the reader answers in time is its own to answer.
    sse.event(ping(2)).await;
    response.event().await;
    let pending = session.post(pong(2)).start(proxy.addr).await;
    answered(&mut upstream, 2).await;
    assert_eq!(pending.response().await.status, 202);
    pass(Duration::from_secs(2)).await;
    settle(&proxy, &mut upstream).await;
    // Neither is asked again.
    sse.event(progress(3)).await;
    response.event().await;
    let mut back = session.resume(&place.at(0)).send(proxy.addr).await.sse();
    assert_eq!(back.event().await.bytes(), progress(3).as_bytes());
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn a_ping_whose_reader_leaves_is_answered_then_and_not_replayed() {
    let (mut upstream, proxy, session) = setup().await;
    let (sse, mut response) = listen(&proxy, &mut upstream, &session).await;
    let place = EventId::of(response.prime().await.id());
    tokio::time::pause();
    sse.event(ping(1)).await;
    response.event().await;
    response.reset();
    answered(&mut upstream, 1).await;
    tokio::time::resume();
    sse.event(progress(2)).await;
    let mut back = session.resume(&place.at(0)).send(proxy.addr).await.sse();
    let event = back.event().await;
    assert_eq!((event.id(), event.bytes()), (place.at(2).as_str(), progress(2).as_bytes()));
}

#[tokio::test]
async fn a_ping_to_a_client_that_takes_json_alone_is_answered_and_not_refused() {
    let (mut upstream, proxy, session) = setup().await;
    let pending = session.post(call(1)).with("Accept", "application/json").start(proxy.addr).await;
    let sse = upstream.expect("tools/call").await.sse().await;
    sse.event(ping(1)).await;
    answered(&mut upstream, 1).await;
    sse.event(r#"{"jsonrpc":"2.0","id":2,"method":"roots/list"}"#).await;
    let refusal = upstream.expect("response").await;
    assert_eq!(refusal.json_body()["error"]["code"], -32601);
    // An answer to a ping does not wait for the refusal's status.
    sse.event(ping(3)).await;
    answered(&mut upstream, 3).await;
    refusal.status(202).await;
    sse.finish(result(1)).await;
    assert_eq!(pending.response().await.status, 200);
}

#[tokio::test]
async fn an_answer_does_not_wait_behind_answers_that_are_held() {
    let (mut upstream, proxy, session) = setup_with(|c| c.delivery.commit_after = Some(SOON)).await;
    let (own, listening) = listen(&proxy, &mut upstream, &session).await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    sse.event(r#"{"jsonrpc":"2.0","id":"q","method":"roots/list"}"#).await;
    response.event().await;
    listening.reset();
    settle(&proxy, &mut upstream).await;
    let pending = session.post(r#"{"jsonrpc":"2.0","id":"q","result":{"roots":[]}}"#).start(proxy.addr).await;
    let slow = upstream.expect("response").await;
    assert_eq!(pending.response().await.status, 202, "it is held");
    own.event(ping(1)).await;
    answered(&mut upstream, 1).await;
    slow.status(202).await;
}

#[tokio::test]
async fn after_a_refusal_of_its_credentials_no_answer_is_sent_before_the_next_request() {
    for status in [401, 403] {
        let (mut upstream, proxy, session) = setup().await;
        let (sse, response) = begin(&proxy, &mut upstream, &session.get().with("X-Trial", "old")).await;
        response.reset();
        settle(&proxy, &mut upstream).await;
        sse.event(ping(1)).await;
        let answer = upstream.expect("response").await;
        assert_eq!(answer.header("x-trial"), Some("old"));
        answer.status(status).await;
        settle(&proxy, &mut upstream).await;
        sse.event(ping(2)).await;
        settle(&proxy, &mut upstream).await;
        settle(&proxy, &mut upstream).await;
        assert!(upstream.is_quiet(), "{status}");
        // Another session's request is none of this one's.
        let other = Session::opened_elsewhere(V2025_11, "s-2", None);
        let pending = other.post(r#"{"jsonrpc":"2.0","method":"notifications/n"}"#).start(proxy.addr).await;
        upstream.expect("notifications/n").await.status(202).await;
        pending.response().await;
        sse.event(ping(3)).await;
        settle(&proxy, &mut upstream).await;
        settle(&proxy, &mut upstream).await;
        assert!(upstream.is_quiet(), "{status}");
        let notification = session.post(r#"{"jsonrpc":"2.0","method":"notifications/n"}"#).with("X-Trial", "new");
        let pending = notification.start(proxy.addr).await;
        upstream.expect("notifications/n").await.status(202).await;
        pending.response().await;
        for id in 4..6 {
            sse.event(ping(id)).await;
            let answer = upstream.expect("response").await;
            assert_eq!((answer.header("x-trial"), &answer.body), (Some("new"), &pong(id).into_bytes()));
            answer.status(202).await;
        }
    }
}

#[tokio::test]
async fn the_stream_of_a_server_that_pings_is_opened_again_at_once() {
    let (mut upstream, proxy, session) = setup().await;
    let (sse, response) = listen(&proxy, &mut upstream, &session).await;
    response.reset();
    settle(&proxy, &mut upstream).await;
    sse.event(ping(1)).await;
    answered(&mut upstream, 1).await;
    pass(Duration::from_secs(3)).await;
    // No time passes.
    tokio::time::pause();
    let began = tokio::time::Instant::now();
    sse.reset().await;
    let again = upstream.expect("GET").await;
    assert!(began.elapsed() < Duration::from_millis(100), "{:?}", began.elapsed());
    tokio::time::resume();
    let sse = again.sse().await;
    sse.event(ping(2)).await;
    answered(&mut upstream, 2).await;
}

#[tokio::test]
async fn a_client_that_stays_away_for_too_long_is_answered_for_no_more() {
    let (mut upstream, proxy, session) = setup_with(|c| c.streams.max_wait = Some(Duration::from_secs(60))).await;
    let (sse, response) = listen(&proxy, &mut upstream, &session).await;
    response.reset();
    settle(&proxy, &mut upstream).await;
    sse.event(ping(1)).await;
    answered(&mut upstream, 1).await;
    pass(Duration::from_secs(61)).await;
    sse.closed().await;
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn pings_are_left_to_the_client_where_that_is_configured_and_at_2026_07_28() {
    let never = |c: &mut mcp_resume::config::Config| c.upstream.answer_pings = mcp_resume::config::AnswerPings::Never;
    let (mut upstream, proxy, session) = setup_with(never).await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    let place = EventId::of(response.prime().await.id());
    response.reset();
    settle(&proxy, &mut upstream).await;
    sse.event(ping(1)).await;
    let mut back = session.resume(&place.at(0)).send(proxy.addr).await.sse();
    assert_eq!(back.event().await.bytes(), ping(1).as_bytes());
    pass(Duration::from_secs(2)).await;
    settle(&proxy, &mut upstream).await;
    assert!(upstream.is_quiet());

    let (sse, mut response) = begin(&proxy, &mut upstream, &modern(2)).await;
    sse.event(ping(1)).await;
    assert_eq!(response.event().await.bytes(), ping(1).as_bytes());
    pass(Duration::from_secs(2)).await;
    settle(&proxy, &mut upstream).await;
    assert!(upstream.is_quiet());
}

/// The modern era has no pings where they are answered either.
#[tokio::test]
async fn a_ping_of_the_modern_era_is_an_event_like_any_other() {
    let (mut upstream, proxy, _) = setup().await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &modern(2)).await;
    sse.event(ping(1)).await;
    assert_eq!(response.event().await.bytes(), ping(1).as_bytes());
    pass(Duration::from_secs(2)).await;
    settle(&proxy, &mut upstream).await;
    assert!(upstream.is_quiet());
}

/// A ping of the proxy's own, which the upstream answers.
async fn kept_alive(upstream: &mut Upstream) -> String {
    let ping = upstream.expect("ping").await;
    let body = ping.json_body();
    let id = body["id"].as_str().expect("a text").to_owned();
    assert_eq!(ping.body, format!(r#"{{"jsonrpc":"2.0","id":"{id}","method":"ping"}}"#).into_bytes());
    assert!(id.starts_with("mcp-resume-"), "{id}");
    assert_eq!(ping.header("mcp-session-id"), Some("s-1"));
    assert_eq!(ping.header("x-of"), Some("call"));
    ping.json(200, format!(r#"{{"jsonrpc":"2.0","id":"{id}","result":{{}}}}"#)).await;
    id
}

#[tokio::test]
async fn a_quiet_session_in_which_a_call_runs_is_kept_alive() {
    let (mut upstream, proxy, session) = setup_with(|c| c.upstream.keepalive = Some(Duration::from_secs(120))).await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1)).with("X-Of", "call")).await;
    response.prime().await;
    pass(Duration::from_secs(100)).await;
    settle(&proxy, &mut upstream).await;
    assert!(upstream.is_quiet());
    // A message from the server counts, and one to it.
    sse.event(progress(1)).await;
    response.event().await;
    pass(Duration::from_secs(100)).await;
    settle(&proxy, &mut upstream).await;
    let pending = session.post(r#"{"jsonrpc":"2.0","method":"notifications/n"}"#).start(proxy.addr).await;
    upstream.expect("notifications/n").await.status(202).await;
    pending.response().await;
    pass(Duration::from_secs(100)).await;
    settle(&proxy, &mut upstream).await;
    assert!(upstream.is_quiet());
    pass(Duration::from_secs(30)).await;
    let first = kept_alive(&mut upstream).await;
    // So does the ping itself. The client's comings and goings do not.
    response.reset();
    pass(Duration::from_secs(100)).await;
    settle(&proxy, &mut upstream).await;
    assert!(upstream.is_quiet());
    pass(Duration::from_secs(30)).await;
    assert_ne!(kept_alive(&mut upstream).await, first);
    sse.finish(result(1)).await;
    settle(&proxy, &mut upstream).await;
    pass(Duration::from_secs(500)).await;
    settle(&proxy, &mut upstream).await;
    assert!(upstream.is_quiet(), "no call runs");
}

#[tokio::test]
async fn one_ping_is_sent_for_all_calls_of_a_session_and_none_where_it_is_off() {
    let (mut upstream, proxy, session) = setup_with(|c| c.upstream.keepalive = Some(Duration::from_secs(120))).await;
    let request = |id: u64| session.post(call(id)).with("X-Of", "call");
    let _first = begin(&proxy, &mut upstream, &request(1)).await;
    let _second = begin(&proxy, &mut upstream, &request(2)).await;
    pass(Duration::from_secs(130)).await;
    kept_alive(&mut upstream).await;
    settle(&proxy, &mut upstream).await;
    assert!(upstream.is_quiet());

    let (mut upstream, proxy, session) = setup().await;
    let _call = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    pass(Duration::from_secs(500)).await;
    settle(&proxy, &mut upstream).await;
    assert!(upstream.is_quiet());
}
