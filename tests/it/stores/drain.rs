//! The end of a replica that is asked to end: its clients go to another one.

use std::time::Duration;

use super::*;

const DRAIN_RETRY: u64 = 3210;

fn drains(config: &mut Config) {
    config.delivery.drain_retry = Duration::from_millis(DRAIN_RETRY);
}

async fn begin_drain(replica: &Replica) -> Client {
    let admin = replica.proxy.admin.expect("an admin listener");
    let draining = Request::new("GET", "/drain").with("X-Drain", "1").start(admin).await;
    until("it drains", async || replica.readiness().await == (503, "draining\n".to_owned())).await;
    draining
}

/// The response ends and says when to come back.
async fn is_sent_away(response: &mut Response) {
    let frames = response.frames().await;
    assert_eq!(response.end(), Some(End::Complete));
    assert!(frames.iter().all(|frame| !frame.is_event()), "{frames:?}");
    assert_eq!(frames.last().and_then(|frame| frame.retry), Some(DRAIN_RETRY), "{frames:?}");
}

#[tokio::test]
async fn clients_that_come_back_are_sent_away_and_read_on_elsewhere() {
    let (_redis, mut one, two, session) = pair_with(drains).await;
    let (sse, mut response, place) = one.begin(&session.post(call(1))).await;
    let draining = begin_drain(&one).await;
    is_sent_away(&mut response).await;
    // The call goes on.
    sse.event(progress(1)).await;
    let mut back = two.send(session.resume(&place.at(0))).await.sse();
    assert_eq!(back.event().await.bytes(), progress(1).as_bytes());
    let refused = one.send(session.post(call(2))).await;
    assert_eq!(refused.status, 503);
    sse.finish(result(1)).await;
    assert_eq!(rest(&mut back).await, [result(1)]);
    let mut drained = draining.response().await;
    assert_eq!((drained.status, drained.body().await), (200, b"drained\n".to_vec()));
    one.proxy.stop().await;
    let mut back = two.send(session.resume(&place.at(0))).await.sse();
    assert_eq!(rest(&mut back).await, [progress(1), result(1)]);
}

/// A session that no replica has opened: one that joins it registers itself first.
#[tokio::test]
async fn a_replica_that_drains_joins_no_session_for_a_call_that_it_refuses() {
    let (redis, mut one, mut two, session) = pair_with(drains).await;
    let is_joined = |id: &str| redis.lasts(&format!("*group:*{id}")).is_some();
    let pending = session.post(call(1)).with("Mcp-Session-Id", "unknown-1").start(two.proxy.addr).await;
    two.upstream.expect("tools/call").await.json(200, result(1)).await;
    assert_eq!(pending.response().await.status, 200);
    assert!(is_joined("unknown-1"));
    let (_sse, _response, _) = one.begin(&session.post(call(2))).await;
    let _draining = begin_drain(&one).await;
    let refused = one.send(session.post(call(1)).with("Mcp-Session-Id", "unknown-2")).await;
    assert_eq!(refused.status, 503);
    assert!(!is_joined("unknown-2"));
}

#[tokio::test]
async fn clients_that_are_not_known_to_come_back_stay() {
    let (_redis, mut one, two, _) = pair_with(drains).await;
    let session = Session::open_as(&one.proxy, &mut one.upstream, V2025_06, "s-old", None).await;
    let (sse, mut response, _) = one.begin(&session.post(call(1))).await;
    let draining = begin_drain(&one).await;
    sse.event(progress(1)).await;
    assert_eq!(response.event().await.bytes(), progress(1).as_bytes());
    sse.finish(result(1)).await;
    assert_eq!(rest(&mut response).await, [result(1)]);
    assert_eq!(draining.response().await.status, 200);
    assert!(two.upstream.is_quiet());
}

#[tokio::test]
async fn a_client_that_came_back_before_is_closed_on_in_any_http_version() {
    let (_redis, mut one, two, _) = pair_with(drains).await;
    let session = Session::open_as(&one.proxy, &mut one.upstream, V2025_06, "s-old", None).await;
    let (sse, response, place) = one.begin(&session.post(call(1))).await;
    response.reset();
    let mut back = one.send(session.resume(&place.at(0))).await.sse();
    back.prime().await;
    begin_drain(&one).await;
    is_sent_away(&mut back).await;
    let mut back = two.send(session.resume(&place.at(0))).await.sse();
    sse.finish(result(1)).await;
    assert_eq!(rest(&mut back).await, [result(1)]);
}

#[tokio::test]
async fn a_process_that_is_asked_to_end_loses_nothing() {
    let redis = Redis::start();
    let retry = DRAIN_RETRY.to_string();
    let mut one = Replica::process(&redis, "one", &[("MCP_RESUME_DELIVERY__DRAIN_RETRY_MS", &retry)]).await;
    let two = Replica::start(&redis, "two").await;
    let session = one.open(V2025_11).await;
    let (sse, mut response, place) = one.begin(&session.post(call(1))).await;
    sse.event(progress(1)).await;
    response.event().await;
    let stopped = one.proxy.ask_to_stop();
    is_sent_away(&mut response).await;
    let mut back = two.send(session.resume(&place.at(1))).await.sse();
    back.prime().await;
    sse.event(progress(2)).await;
    assert_eq!(back.event().await.bytes(), progress(2).as_bytes());
    sse.finish(result(1)).await;
    assert_eq!(rest(&mut back).await, [result(1)]);
    stopped.await;
    // Its name is free at once.
    let again = within("no process is waited for", Replica::process(&redis, "one", &[])).await;
    let mut back = again.send(session.resume(&place.at(0))).await.sse();
    assert_eq!(rest(&mut back).await, [progress(1), progress(2), result(1)]);
}

#[tokio::test]
async fn a_call_that_outlasts_the_drain_ends_with_an_error_that_is_read_elsewhere() {
    let (_redis, mut one, two, session) = pair_with(|config| {
        drains(config);
        config.replica.drain_timeout = LATER;
    })
    .await;
    let (sse, response, place) = one.begin(&session.post(call(1))).await;
    response.reset();
    let mut back = two.send(session.resume(&place.at(0))).await.sse();
    back.prime().await;
    one.proxy.stop().await;
    sse.closed().await;
    let draining = |texts: &[String]| {
        let message: Value = serde_json::from_str(&texts[0]).expect("JSON");
        assert_fault(&message, 1, ABANDONED, "proxy");
        assert_eq!(message["error"]["message"], after_a_run("the proxy is shutting down"));
        assert_eq!((texts.len(), &message["error"]["data"]["mayHaveRun"]), (1, &true.into()));
    };
    draining(&rest(&mut back).await);
    let mut late = two.send(session.resume(&place.at(0))).await.sse();
    draining(&rest(&mut late).await);
    assert_eq!(two.metric("streams_adopted_total").await, 0.0);
}
