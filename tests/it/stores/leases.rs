//! The end of a replica that says nothing, and its awakening.

use mcp_resume::cluster::BeginError;
use mcp_resume::config::Store;
use mcp_resume::sidecar;
use std::process::Stdio;

use super::*;

#[tokio::test]
async fn the_calls_of_a_replica_that_died_end_for_those_who_wait_elsewhere() {
    let redis = Redis::start();
    let mut one = Replica::process(&redis, "one", &[]).await;
    let two = Replica::start(&redis, "two").await;
    let three = Replica::start(&redis, "three").await;
    let session = one.open(V2025_11).await;
    let (sse, response, place) = one.begin(&session.post(call(1))).await;
    sse.event(progress(1)).await;
    response.reset();
    let mut waiting = two.send(session.resume(&place.at(0))).await.sse();
    assert_eq!(waiting.event().await.bytes(), progress(1).as_bytes());
    let (_unread, response, unread) = one.begin(&session.post(call(2))).await;
    drop(response);
    one.proxy.kill().await;
    let texts = rest(&mut waiting).await;
    assert_eq!(texts.len(), 1);
    assert_owner_died(&texts[0], 1);
    for at in [&two, &three] {
        let mut back = at.send(session.resume(&place.at(0))).await.sse();
        let texts = rest(&mut back).await;
        assert_eq!((texts.len(), &texts[0]), (2, &progress(1)));
        assert_owner_died(&texts[1], 1);
        // One that no client waited for ends when it is asked for.
        let mut back = at.send(session.resume(&unread.at(0))).await.sse();
        let texts = rest(&mut back).await;
        assert_eq!(texts.len(), 1);
        assert_owner_died(&texts[0], 2);
    }
    // Both may have set about the same one; each counts those that it ended, less one whose seal
    // was answered too late.
    let adopted = async || two.metric("streams_adopted_total").await + three.metric("streams_adopted_total").await;
    until("they are counted", async || adopted().await >= 1.0).await;
    assert!(adopted().await <= 2.0, "none is counted twice");
}

#[tokio::test]
async fn a_replica_that_was_frozen_serves_no_stale_data() {
    let redis = Redis::start();
    let mut one = Replica::process(&redis, "one", &[]).await;
    let two = Replica::start(&redis, "two").await;
    let session = one.open(V2025_11).await;
    let (sse, mut response, place) = one.begin(&session.post(call(1))).await;
    sse.event(progress(1)).await;
    assert_eq!(response.event().await.bytes(), progress(1).as_bytes());
    // Silent, its owner is told by the lease alone.
    let (silent, mut quiet, second) = one.begin(&session.post(call(2))).await;
    // No client asks for this one elsewhere.
    let (unasked, mut kept, _) = one.begin(&session.post(call(4))).await;
    one.proxy.signal("STOP").await;
    let _waiting = [two.send(session.resume(&place.at(0))).await, two.send(session.resume(&second.at(0))).await];
    until("it is taken for gone", async || two.metric("streams_adopted_total").await == 2.0).await;
    sse.event(progress(2)).await;
    sse.event(result(1)).await;
    one.proxy.signal("CONT").await;
    for response in [&mut response, &mut quiet] {
        let frames = response.frames().await;
        assert!(frames.iter().all(|frame| !frame.is_event()), "{frames:?}");
        assert!(frames.last().is_some_and(|frame| frame.retry.is_some()), "{frames:?}");
    }
    sse.closed().await;
    silent.closed().await;
    assert_eq!(one.metric("streams_fenced_total").await, 2.0);
    unasked.finish(result(4)).await;
    assert_eq!(rest(&mut kept).await, [result(4)]);
    for at in [&one, &two] {
        let mut back = at.send(session.resume(&place.at(1))).await.sse();
        let texts = rest(&mut back).await;
        assert_eq!(texts.len(), 1);
        assert_owner_died(&texts[0], 1);
        let mut back = at.send(session.resume(&second.at(0))).await.sse();
        assert_owner_died(&rest(&mut back).await[0], 2);
    }
    // It serves as before.
    let (sse, mut response, place) = one.begin(&session.post(call(3))).await;
    sse.finish(result(3)).await;
    assert_eq!(rest(&mut response).await, [result(3)]);
    let mut back = two.send(session.resume(&place.at(0))).await.sse();
    assert_eq!(rest(&mut back).await, [result(3)]);
}

#[tokio::test]
async fn a_replica_that_was_cut_off_from_redis_keeps_its_calls() {
    let redis = Redis::start();
    let relay = redis.relay().await;
    let mut one = Replica::with(&redis, "one", |config| {
        let Store::Redis(store) = &mut config.store else { panic!("{:?}", config.store) };
        store.url = relay.url();
    })
    .await;
    let two = Replica::start(&redis, "two").await;
    let session = one.open(V2025_11).await;
    let (sse, mut response, place) = one.begin(&session.post(call(1))).await;
    sse.event(progress(1)).await;
    assert_eq!(response.event().await.bytes(), progress(1).as_bytes());
    let (_left, cut, asked) = one.begin(&session.post(call(2))).await;
    cut.reset();
    relay.cut(true);
    let mut back = two.send(session.resume(&asked.at(0))).await.sse();
    assert_owner_died(&rest(&mut back).await[0], 2);
    sse.event(progress(2)).await;
    assert_eq!(response.event().await.bytes(), progress(2).as_bytes(), "memory stands for Redis");
    relay.cut(false);
    until("it is back", async || one.metric("store_ready").await == 1.0).await;
    sse.finish(result(1)).await;
    assert_eq!(rest(&mut response).await, [result(1)]);
    let mut back = two.send(session.resume(&place.at(0))).await.sse();
    assert_eq!(rest(&mut back).await, [progress(1), progress(2), result(1)]);
    assert_eq!(two.metric("streams_adopted_total").await, 1.0);
    until("the other one is left", async || one.metric("streams_fenced_total").await == 1.0).await;
}

#[tokio::test]
async fn two_live_replicas_of_one_name_are_refused() {
    let redis = Redis::start();
    let one = Replica::start(&redis, "one").await;
    let refused = Proxy::try_to_url(&one.upstream.url(), redis.of("one", OnUnreachable::Degrade)).await;
    assert!(matches!(refused, Err(sidecar::Error::Replica(BeginError::Taken(_)))), "{:?}", refused.err());
    // As an operator sees it.
    let mut command = command(&one.upstream);
    command.args(["--store", &redis.url()]).env("MCP_RESUME_REPLICA__NAME", "one");
    command.env("MCP_RESUME_REPLICA__LEASE_SECS", "2").stdin(Stdio::null());
    let output = within("it gives up", command.kill_on_drop(true).output()).await.expect("the binary runs");
    assert_eq!(output.status.code(), Some(1));
    let told = String::from_utf8(output.stderr).expect("text");
    assert!(told.contains("is called the same") && told.contains("replica.name"), "{told}");
    assert_eq!(one.readiness().await, (200, "ready\n".to_owned()));
}

#[tokio::test]
async fn a_dead_replica_may_return_under_its_name() {
    let redis = Redis::start();
    let mut one = Replica::process(&redis, "one", &[]).await;
    let session = one.open(V2025_11).await;
    let (_sse, response, place) = one.begin(&session.post(call(1))).await;
    drop(response);
    one.proxy.kill().await;
    let again = Replica::process(&redis, "one", &[]).await;
    let mut back = again.send(session.resume(&place.at(0))).await.sse();
    let texts = rest(&mut back).await;
    assert_eq!(texts.len(), 1);
    assert_owner_died(&texts[0], 1);
}

/// A replica that is cut off from Redis continues its calls. Other replicas cannot tell it from a
/// dead one, and find the responses once it is connected again.
#[tokio::test]
async fn calls_of_a_replica_that_is_cut_off_from_redis_do_not_run_again() {
    let redis = Redis::start();
    let relay = redis.relay().await;
    let mut one = Replica::with(&redis, "one", |config| {
        let Store::Redis(store) = &mut config.store else { panic!("{:?}", config.store) };
        store.url = relay.url();
    })
    .await;
    let two = Replica::start(&redis, "two").await;
    let session = one.open(V2025_11).await;
    let (_left, response, asked) = one.begin(&session.post(call(1))).await;
    response.reset();
    // Of this one there is no stream.
    let silent = session.post(call(2)).with("Accept", "application/json").with("Idempotency-Key", "k");
    let pending = silent.start(one.proxy.addr).await;
    let run = one.upstream.expect("tools/call").await;
    redis.has_claims(1).await;
    relay.cut(true);
    until("it is seen", async || one.metric("store_ready").await == 0.0).await;
    let (sse, mut response, begun) = one.begin(&session.post(call(3))).await;
    sse.event(progress(3)).await;
    assert_eq!(response.event().await.bytes(), progress(3).as_bytes());
    // This tells that it is taken for gone.
    let mut back = two.send(session.resume(&asked.at(0))).await.sse();
    assert_owner_died(&rest(&mut back).await[0], 1);
    super::outage::try_again(&two.proxy, session.resume(&begun.at(0))).await;
    let (status, text) = two.told(silent.clone()).await;
    assert_eq!(status, 504, "{text}");
    assert_owner_died(&text, 2);

    relay.cut(false);
    until("it is back", async || one.metric("store_ready").await == 1.0).await;
    until("it is heard of", async || two.send(session.resume(&begun.at(0))).await.status == 200).await;
    let mut back = two.send(session.resume(&begun.at(0))).await.sse();
    sse.finish(result(3)).await;
    assert_eq!(rest(&mut back).await, [progress(3), result(3)]);
    let again = silent.start(two.proxy.addr).await;
    run.json(200, result(2)).await;
    for pending in [pending, again] {
        assert_eq!(pending.response().await.body().await, result(2).as_bytes());
    }
    assert!(two.upstream.is_quiet());
}

#[tokio::test]
async fn the_gap_that_a_death_leaves_in_a_standalone_stream_is_reported_at_another_replica() {
    let redis = Redis::start();
    let mut one = Replica::process(&redis, "one", &[]).await;
    let mut two = Replica::start(&redis, "two").await;
    let session = one.open(V2025_11).await;
    let pending = session.get().start(one.proxy.addr).await;
    let sse = one.upstream.expect("GET").await.sse().await;
    let mut response = pending.response().await.sse();
    let place = EventId::of(response.prime().await.id());
    sse.event(progress(1)).await;
    assert_eq!(response.event().await.id(), place.at(1));
    one.proxy.kill().await;
    drop(sse);
    let waiting = session.resume(&place.at(1)).start(two.proxy.addr).await;
    // Its end tells that the replica which adopted the stream has read that end from the store as
    // well.
    let (events, _) = waiting.response().await.sse().events().await;
    assert_eq!(events, [], "the stream ends without further events");
    assert_eq!(two.metric("streams_adopted_total").await, 1.0);

    let pending = session.resume(&place.at(1)).start(two.proxy.addr).await;
    let sse = two.upstream.expect("GET").await.sse().await;
    let mut back = pending.response().await.sse();
    let mut frames = vec![back.any_frame().await.expect("a beginning")];
    sse.event(progress(2)).await;
    while frames.last().is_none_or(|frame: &Frame| frame.bytes() != progress(2).as_bytes()) {
        frames.push(back.any_frame().await.expect("more"));
    }
    assert!(frames.iter().any(|frame| !frame.comments.is_empty()), "a comment: {frames:?}");
    let warnings: Vec<_> = frames.iter().filter(|frame| frame.is_event() && frame.id.is_none()).collect();
    assert_eq!(warnings.len(), 1, "the server declared logging: {frames:?}");
    assert_eq!(warnings[0].json()["method"], "notifications/message");
    assert_eq!(two.metric("gaps_total").await, 1.0);
}
