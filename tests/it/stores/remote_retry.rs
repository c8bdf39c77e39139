//! A call that a client sends again to another replica: with an `Idempotency-Key` the tool runs
//! once.

use std::time::{Duration, Instant};

use super::*;

const KEY: &str = "Idempotency-Key";

#[tokio::test]
async fn a_call_sent_again_elsewhere_comes_back_to_the_first_run() {
    let (_redis, mut one, two, session) = pair().await;
    let request = session.post(call(1)).with(KEY, "k-1");
    let (sse, mut response, place) = one.begin(&request).await;
    sse.event(progress(1)).await;
    assert_eq!(response.event().await.id(), place.at(1));
    response.reset();
    one.knows_of_readers(0).await;
    let mut again = two.send(request.clone()).await.sse();
    assert_eq!(EventId::of(again.prime().await.id()).handle, place.handle);
    assert_eq!(again.event().await.id(), place.at(1), "from the first");
    sse.finish(result(1)).await;
    assert_eq!(rest(&mut again).await, [result(1)]);
    let mut late = two.send(request.resume_from(&place.at(1))).await.sse();
    late.prime().await;
    assert_eq!(rest(&mut late).await, [result(1)]);

    let request = session.post(call(2)).with(KEY, "k");
    let pending = request.start(one.proxy.addr).await;
    one.upstream.expect("tools/call").await.json_with(200, "x-custom: 1\r\n", result(2)).await;
    assert_eq!(pending.response().await.body().await, result(2).as_bytes());
    let mut again = two.send(request.clone()).await;
    assert_eq!((again.status, again.header("x-custom")), (200, Some("1")));
    assert_eq!(again.body().await, result(2).as_bytes());
    let other = session.post(call_tool(2, "other")).with(KEY, "k");
    assert_eq!(two.send(other).await.status, 422);
    assert!(one.upstream.is_quiet() && two.upstream.is_quiet());

    // A stranger has a call of its own.
    let pending = request.with("Authorization", "Bearer other").start(two.proxy.addr).await;
    let mut two = two;
    two.upstream.expect("tools/call").await.json(200, "{\"theirs\":1}").await;
    assert_eq!(pending.response().await.body().await, b"{\"theirs\":1}");
}

#[tokio::test]
async fn a_call_without_a_key_is_joined_at_its_replica_and_runs_again_at_another() {
    let (redis, mut one, mut two, session) = pair().await;
    let request = session.post(call(1));
    let (sse, mut response, place) = one.begin(&request).await;
    sse.event(progress(1)).await;
    assert_eq!(response.event().await.id(), place.at(1));
    response.reset();
    one.knows_of_readers(0).await;
    let mut again = one.send(request.clone()).await.sse();
    assert_eq!(again.event().await.id(), place.at(1), "from the first");
    assert!(one.upstream.is_quiet());
    let pending = request.start(two.proxy.addr).await;
    two.upstream.expect("tools/call").await.json(200, result(1)).await;
    assert_eq!(pending.response().await.body().await, result(1).as_bytes());
    sse.finish(result(1)).await;
    assert_eq!(rest(&mut again).await, [result(1)]);
    assert!(one.upstream.is_quiet() && two.upstream.is_quiet());
    redis.has_claims(0).await;
}

#[tokio::test]
async fn of_two_replicas_that_get_a_call_at_once_one_runs_it() {
    let (_redis, mut one, mut two, session) = pair().await;
    for n in 1..=20 {
        let request = session.post(call(n)).with(KEY, &format!("k-{n}"));
        let (first, second) = (request.start(one.proxy.addr).await, request.start(two.proxy.addr).await);
        let run = tokio::select! {
            run = one.upstream.expect("tools/call") => run,
            run = two.upstream.expect("tools/call") => run,
        };
        run.json(200, result(n)).await;
        for pending in [first, second] {
            assert_eq!(pending.response().await.body().await, result(n).as_bytes());
        }
        assert!(one.upstream.is_quiet() && two.upstream.is_quiet(), "call {n} ran once");
    }
}

#[tokio::test]
async fn a_call_whose_replica_was_killed_is_not_run_again() {
    let redis = Redis::start();
    let mut one = Replica::process(&redis, "one", &[]).await;
    let two = Replica::start(&redis, "two").await;
    let session = one.open(V2025_11).await;
    let streamed = session.post(call(1)).with(KEY, "k-1");
    let (sse, response, _) = one.begin(&streamed).await;
    sse.event(progress(1)).await;
    response.reset();
    // Redis has the claim of this one, and no stream.
    let silent = session.post(call(2)).with("Accept", "application/json").with(KEY, "k-2");
    let pending = silent.start(one.proxy.addr).await;
    let _run = one.upstream.expect("tools/call").await;
    redis.has_claims(2).await;
    one.proxy.kill().await;
    let killed = Instant::now();
    drop(pending);
    let texts = {
        let mut again = two.send(streamed).await.sse();
        rest(&mut again).await
    };
    assert_owner_died(texts.last().expect("an end"), 1);
    let ends = async || {
        let (status, text) = two.told(silent.clone()).await;
        assert_eq!(status, 504, "{text}");
        assert_owner_died(&text, 2);
    };
    ends().await;
    assert!(killed.elapsed() < Duration::from_secs(30));
    // A process of its name knows nothing of the call.
    let _one = Replica::process(&redis, "one", &[]).await;
    ends().await;
    assert!(two.upstream.is_quiet());
}

/// The first reader counts as attached at the replica that runs the call for as long as nothing
/// says that it is gone.
#[tokio::test]
async fn a_call_whose_reader_sat_on_a_replica_that_died_or_froze_is_not_run_again() {
    for kills in [true, false] {
        let redis = Redis::start();
        let mut one = Replica::start(&redis, "one").await;
        let two = Replica::process(&redis, "two", &[]).await;
        let three = Replica::start(&redis, "three").await;
        let session = one.open(V2025_11).await;
        let request = session.post(call(1)).with(KEY, "k-1");
        let (sse, response, place) = one.begin(&request).await;
        sse.event(progress(1)).await;
        response.reset();
        let mut reader = two.send(session.resume(&place.at(0))).await.sse();
        assert_eq!(reader.event().await.id(), place.at(1));
        one.knows_of_readers(1).await;
        if kills {
            two.proxy.kill().await;
        } else {
            two.proxy.signal("STOP").await;
        }
        let mut again = three.send(request).await.sse();
        assert_eq!(again.event().await.id(), place.at(1), "from the first");
        sse.finish(result(1)).await;
        assert_eq!(rest(&mut again).await, [result(1)]);
        assert!(one.upstream.is_quiet() && three.upstream.is_quiet(), "the tool ran once");
    }
}

#[tokio::test]
async fn a_call_whose_client_disconnects_at_once_is_not_run_again_elsewhere() {
    let (_redis, mut one, two, session) = pair().await;
    for n in 1..=10 {
        let request = session.post(call(1)).with(KEY, &format!("k-{n}"));
        let pending = request.start(one.proxy.addr).await;
        let run = one.upstream.expect("tools/call").await;
        pending.reset();
        let again = request.start(two.proxy.addr).await;
        run.json(200, result(1)).await;
        assert_eq!(again.response().await.body().await, result(1).as_bytes());
        assert!(one.upstream.is_quiet() && two.upstream.is_quiet(), "the tool ran once");
    }
}

/// Makes a hundred calls one after another, with `respond` at the server, and returns the number of
/// scripts that Redis has run for them.
async fn scripts_of_calls(
    redis: &Redis,
    one: &mut Replica,
    session: &Session,
    first: u64,
    respond: impl AsyncFn(Call, u64),
) -> u64 {
    let mut client = Client::connect(one.proxy.addr).await;
    let mut before = 0;
    for id in first..first + 110 {
        if id == first + 10 {
            before = redis.calls_of("evalsha");
        }
        client.send(&session.post(call(id)).bytes(one.proxy.addr)).await;
        respond(one.upstream.expect("tools/call").await, id).await;
        let mut response = client.response().await;
        let text = if response.is_sse() { rest(&mut response).await.concat().into() } else { response.body().await };
        assert!(text.ends_with(result(id).as_bytes()));
        client = response.into_client();
    }
    redis.calls_of("evalsha") - before
}

/// Returns the least of some rounds of [`scripts_of_calls`], and stops at one below `enough`.
async fn fewest_scripts(
    redis: &Redis,
    one: &mut Replica,
    session: &Session,
    first: u64,
    enough: u64,
    respond: impl AsyncFn(Call, u64),
) -> u64 {
    let mut fewest = u64::MAX;
    for round in 0..5 {
        fewest = fewest.min(scripts_of_calls(redis, one, session, first + 1000 * round, &respond).await);
        if fewest < enough {
            break;
        }
    }
    fewest
}

/// A lease may be renewed meanwhile, and some calls may take long on a busy machine: the limits
/// leave room for that, and the least of some rounds counts.
#[tokio::test]
async fn calls_without_a_key_cost_the_store_little() {
    let (redis, mut one, _two, session) = pair().await;
    let plain = async |call: Call, id| call.json(200, result(id)).await;
    let scripts = fewest_scripts(&redis, &mut one, &session, 1, 20, plain).await;
    assert!(scripts < 20, "{scripts} scripts for 100 calls that are answered with JSON");
    let whole = async |call: Call, id| {
        let event = format!("data: {}\n\n", result(id));
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length:";
        call.whole(format!("{head} {}\r\n\r\n{event}", event.len())).await;
    };
    let scripts = fewest_scripts(&redis, &mut one, &session, 10_001, 250, whole).await;
    assert!((100..250).contains(&scripts), "{scripts} scripts for 100 calls that are answered with one event");
}
