//! Sessions whose names say whose they are, at replicas that share a store.

use serde_json::json;

use super::outage::try_again;
use super::*;
use crate::cancel::cancelled;
use crate::client_responses::{answer, question};
use crate::dialects::open;
use crate::issued_sessions::{INITIALIZED, gone};
use crate::misdirected::{TWO, marked, misdirected};

/// Two replicas, and a session of the first one's server, which calls it `s`.
async fn wrapping() -> (Redis, Replica, Replica, Session) {
    let redis = Redis::start();
    let mut one = Replica::with(&redis, "one", |config| config.replica.wrap_sessions = true).await;
    let two = Replica::with(&redis, "two", |config| config.replica.wrap_sessions = true).await;
    let (session, _) = open(&one.proxy, &mut one.upstream, json!({}), Some("s")).await;
    (redis, one, two, session)
}

async fn in_its_own(replica: &mut Replica, rpc: &str) -> Call {
    let call = replica.upstream.expect(rpc).await;
    assert_eq!(call.header("mcp-session-id"), Some("s"), "{rpc}");
    call
}

#[tokio::test]
async fn streams_are_served_anywhere_and_what_only_the_server_can_do_is_not() {
    let (_redis, mut one, two, session) = wrapping().await;
    let (sse, response, place) = one.begin(&session.post(call(1))).await;
    response.reset();
    let mut back = two.send(marked(session.resume(&place.at(0)))).await.sse();
    sse.event(progress(1)).await;
    assert_eq!(back.event().await.bytes(), progress(1).as_bytes());
    for (request, id) in [
        (session.post(call(7)), json!(7)),
        (session.get(), Value::Null),
        (session.get().method("PUT").with_body("x"), Value::Null),
    ] {
        gone(&two.proxy, request.clone(), id).await;
        misdirected(&two.proxy, request, TWO).await;
    }
    sse.finish(result(1)).await;
    assert_eq!(rest(&mut back).await, [result(1)]);
    let mut by_url = two.send(marked(session.get().target(&url_of(&place)))).await.sse();
    assert_eq!(rest(&mut by_url).await, [progress(1), result(1)]);
    assert!(two.upstream.is_quiet());
    assert_eq!(two.upstream.connections(), 0);
}

#[tokio::test]
async fn a_call_that_is_sent_again_to_another_replica_is_found_by_its_key() {
    let (_redis, mut one, two, session) = wrapping().await;
    let request = session.post(call(1)).with("Idempotency-Key", "k");
    let (sse, response, _) = one.begin(&request).await;
    response.reset();
    // Without the key it is a call in the session of another replica.
    let refused = two.send(session.post(call(1))).await;
    assert_eq!(refused.status, 404);
    let pending = request.start(two.proxy.addr).await;
    let mut again = pending.response().await.sse();
    sse.finish(result(1)).await;
    assert_eq!(rest(&mut again).await, [result(1)]);
    assert!(one.upstream.is_quiet());
    assert_eq!(two.upstream.connections(), 0);
}

#[tokio::test]
async fn responses_cancels_and_the_end_are_forwarded_to_the_replica_of_the_session() {
    let (_redis, mut one, two, session) = wrapping().await;
    let (sse, mut response, _) = one.begin(&session.post(call(1))).await;
    sse.event(question("q")).await;
    response.event().await;
    for (request, rpc) in [
        (session.post(answer("q")), "response"),
        (marked(session.post(INITIALIZED)), "notifications/initialized"),
        (session.post(cancelled(1)), "notifications/cancelled"),
        (marked(session.delete()), "DELETE"),
    ] {
        let pending = request.start(two.proxy.addr).await;
        in_its_own(&mut one, rpc).await.status(202).await;
        assert_eq!(pending.response().await.status, 202, "{rpc}");
    }
    sse.closed().await;
    assert_eq!(two.upstream.connections(), 0);
}

#[tokio::test]
async fn no_other_server_gets_requests_of_a_session_whose_replica_is_gone() {
    let (_redis, mut one, two, session) = wrapping().await;
    let (sse, mut response, place) = one.begin(&session.post(call(1))).await;
    sse.finish(result(1)).await;
    assert_eq!(rest(&mut response).await, [result(1)]);
    one.proxy.stop().await;
    for request in [session.post(answer("q")), session.post(INITIALIZED), session.delete()] {
        gone(&two.proxy, request.clone(), Value::Null).await;
        misdirected(&two.proxy, request, TWO).await;
    }
    let mut back = two.send(session.resume(&place.at(0))).await.sse();
    assert_eq!(rest(&mut back).await, [result(1)]);
    assert_eq!(two.upstream.connections(), 0);
}

/// The name shows that the session is not of the local server, and no replica says yet that its own
/// is gone.
#[tokio::test]
async fn a_request_that_cannot_be_forwarded_is_refused_for_a_retry() {
    let (mut redis, mut one, two, session) = wrapping().await;
    redis.kill();
    until("it is seen", async || two.metric("store_ready").await == 0.0).await;
    for request in [session.post(answer("q")), session.post(cancelled(1)), session.delete()] {
        try_again(&two.proxy, request).await;
    }
    redis.begin_again();
    for replica in [&one, &two] {
        until("it is back", async || replica.metric("store_ready").await == 1.0).await;
    }
    // It has not been forgotten.
    let pending = session.delete().start(two.proxy.addr).await;
    in_its_own(&mut one, "DELETE").await.status(202).await;
    assert_eq!(pending.response().await.status, 202);
    // Looks whether the server is there are connections as well.
    assert!(two.upstream.is_quiet());
}
