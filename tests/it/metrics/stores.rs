//! Stores, and replicas that share one.

use super::Meter;
use crate::stores::Replica;
use crate::support::*;

pub(super) async fn a_store_that_is_gone_and_comes_back(ready: &Meter) {
    let mut redis = Redis::start();
    let one = Replica::start(&redis, "one").await;
    assert_eq!(ready.read(&one.proxy).await, 1.0);
    redis.kill();
    until("it is seen", async || ready.read(&one.proxy).await == 0.0).await;
    redis.begin_again();
    until("it is seen", async || ready.read(&one.proxy).await == 1.0).await;
}

pub(super) async fn an_event_that_the_store_takes(seconds: &Meter) {
    let redis = Redis::start();
    let mut one = Replica::start(&redis, "one").await;
    let (sse, mut response, _) = one.begin(&modern(1)).await;
    let before = seconds.count(&one.proxy).await;
    sse.event(progress(1)).await;
    response.event().await;
    assert!(seconds.count(&one.proxy).await > before);
}

pub(super) async fn an_event_that_the_store_cannot_take(failures: &Meter) {
    let mut redis = Redis::start();
    let mut one = Replica::start(&redis, "one").await;
    let (sse, mut response, _) = one.begin(&modern(1)).await;
    assert_eq!(failures.of(&one.proxy, "reason=unreachable").await, 0.0);
    redis.kill();
    sse.event(progress(1)).await;
    response.event().await;
    assert!(failures.of(&one.proxy, "reason=unreachable").await >= 1.0);
}

pub(super) async fn a_call_of_a_replica_that_died(adopted: &Meter) {
    let redis = Redis::start();
    let mut one = Replica::process(&redis, "one", &[]).await;
    let two = Replica::start(&redis, "two").await;
    let (_sse, _response, place) = one.begin(&modern(1)).await;
    assert_eq!(adopted.read(&two.proxy).await, 0.0);
    let _waiting = two.send(modern_resume(&place.at(0))).await;
    one.proxy.kill().await;
    until("it is ended", async || adopted.read(&two.proxy).await == 1.0).await;
}

pub(super) async fn a_call_of_a_replica_that_was_frozen(fenced: &Meter) {
    let redis = Redis::start();
    let mut one = Replica::process(&redis, "one", &[]).await;
    let two = Replica::start(&redis, "two").await;
    let (_sse, _response, place) = one.begin(&modern(1)).await;
    assert_eq!(fenced.read(&one.proxy).await, 0.0);
    one.proxy.signal("STOP").await;
    let _waiting = two.send(modern_resume(&place.at(0))).await;
    until("it is ended", async || metric(&two.proxy, "mcp_resume_streams_adopted_total").await == 1.0).await;
    one.proxy.signal("CONT").await;
    until("it finds out", async || fenced.read(&one.proxy).await == 1.0).await;
}

pub(super) async fn a_client_of_another_replica(restored: &Meter) {
    let redis = Redis::start();
    let mut one = Replica::start(&redis, "one").await;
    let two = Replica::start(&redis, "two").await;
    let (_sse, _response, place) = one.begin(&modern(1)).await;
    assert_eq!(restored.read(&two.proxy).await, 0.0);
    two.send(modern_resume(&place.at(0))).await.sse().prime().await;
    assert_eq!(restored.read(&two.proxy).await, 1.0);
    assert_eq!(restored.read(&one.proxy).await, 0.0);
}
