//! Calls with an `Idempotency-Key` after the process that ran them has died: the tool runs once in
//! every case.

use super::disk::Dir;
use super::*;

const KEY: &str = "Idempotency-Key";

/// Asserts the response to a retried POST whose first process died while the call ran.
async fn assert_died(proxy: &Proxy, request: &Request, id: u64) {
    let (status, text) = told(proxy, request.clone()).await;
    assert_eq!(status, 504);
    assert_owner_died(&text, id);
}

#[tokio::test]
async fn a_key_finds_its_answer_after_a_restart_on_the_same_disk() {
    for kills in [true, false] {
        let dir = Dir::new(if kills { "keyed-killed" } else { "keyed-stopped" });
        let mut upstream = Upstream::start().await;
        let proxy = dir.open(&upstream).await;
        let session = Session::open(&proxy, &mut upstream, V2025_11).await;
        let keyed = |id: u64| session.post(call(id)).with(KEY, &format!("k-{id}"));

        let pending = keyed(1).start(proxy.addr).await;
        upstream.expect("tools/call").await.json_with(200, "x-custom: 1\r\n", result(1)).await;
        assert_eq!(pending.response().await.body().await, result(1).as_bytes());
        let (sse, mut response) = begin(&proxy, &mut upstream, &keyed(2)).await;
        sse.event(progress(2)).await;
        sse.finish(result(2)).await;
        response.events().await;
        let large = format!("{{\"large\":\"{}\"}}", "x".repeat(65 * 1024));
        let pending = keyed(3).start(proxy.addr).await;
        upstream.expect("tools/call").await.json(200, &large).await;
        assert_eq!(pending.response().await.body().await, large.as_bytes());
        let pending = keyed(4).start(proxy.addr).await;
        upstream.expect("tools/call").await.json(500, "{\"failed\":4}").await;
        assert_eq!(pending.response().await.status, 500);
        // What did not run leaves nothing behind.
        let pending = keyed(5).start(proxy.addr).await;
        upstream.expect("tools/call").await.json(429, "{}").await;
        assert_eq!(pending.response().await.status, 429);
        let running = keyed(6).start(proxy.addr).await;
        let _call = upstream.expect("tools/call").await;
        if kills {
            proxy.kill().await;
        } else {
            proxy.stop().await;
        }
        drop(running);

        let proxy = dir.open(&upstream).await;
        for _ in 0..2 {
            let mut again = keyed(1).send(proxy.addr).await;
            assert_eq!((again.status, again.header("x-custom")), (200, Some("1")));
            assert_eq!(again.body().await, result(1).as_bytes());
            let mut again = keyed(2).send(proxy.addr).await.sse();
            assert_eq!(rest(&mut again).await, [progress(2), result(2)]);
            let mut again = keyed(3).send(proxy.addr).await;
            assert_fault(&again.json().await, 3, GONE, "client");
            let mut again = keyed(4).send(proxy.addr).await;
            assert_eq!((again.status, again.body().await), (500, b"{\"failed\":4}".to_vec()));
            if kills {
                assert_died(&proxy, &keyed(6), 6).await;
            } else {
                let message = keyed(6).send(proxy.addr).await.json().await;
                assert_eq!(message["error"]["data"]["mayHaveRun"], true, "{message}");
            }
        }
        for id in 1..=3 {
            let other = session.post(call_tool(id, "other")).with(KEY, &format!("k-{id}"));
            assert_eq!(other.send(proxy.addr).await.status, 422, "another body under key {id}");
        }
        assert!(upstream.is_quiet(), "the tools ran once");
        let pending = keyed(5).start(proxy.addr).await;
        upstream.expect("tools/call").await.json(200, result(5)).await;
        assert_eq!(pending.response().await.body().await, result(5).as_bytes());
    }
}

#[tokio::test]
async fn a_key_finds_its_answer_elsewhere_after_its_replica_died() {
    let redis = Redis::start();
    let mut one = Replica::process(&redis, "one", &[]).await;
    let two = Replica::start(&redis, "two").await;
    let session = one.open(V2025_11).await;
    let keyed = |id: u64| session.post(call(id)).with(KEY, &format!("k-{id}"));
    let pending = keyed(1).start(one.proxy.addr).await;
    one.upstream.expect("tools/call").await.json_with(200, "x-custom: 1\r\n", result(1)).await;
    assert_eq!(pending.response().await.body().await, result(1).as_bytes());
    let (sse, mut response, _) = one.begin(&keyed(2)).await;
    sse.finish(result(2)).await;
    response.events().await;
    let large = format!("{{\"large\":\"{}\"}}", "x".repeat(65 * 1024));
    let pending = keyed(3).start(one.proxy.addr).await;
    one.upstream.expect("tools/call").await.json(200, &large).await;
    assert_eq!(pending.response().await.body().await, large.as_bytes());
    one.proxy.kill().await;
    for _ in 0..2 {
        let mut again = two.send(keyed(1)).await;
        assert_eq!((again.status, again.header("x-custom")), (200, Some("1")));
        assert_eq!(again.body().await, result(1).as_bytes());
        let mut again = two.send(keyed(2)).await.sse();
        assert_eq!(rest(&mut again).await, [result(2)]);
        assert_fault(&two.send(keyed(3)).await.json().await, 3, GONE, "client");
    }
    let other = session.post(call_tool(1, "other")).with(KEY, "k-1");
    assert_eq!(two.send(other).await.status, 422);
    assert!(two.upstream.is_quiet());
}

/// The session of `u` with its token of this number.
fn as_token(serial: u32) -> Session {
    Session::opened_elsewhere(V2025_11, "s-1", Some(&bearer("u", serial)))
}

fn keyed_by(session: &Session, id: u64) -> Request {
    session.post(call(id)).with(KEY, &format!("k-{id}"))
}

#[tokio::test]
async fn a_key_finds_its_answer_with_another_token_after_a_restart_on_the_same_disk() {
    let dir = Dir::new("keyed-refreshed");
    let mut upstream = Upstream::start().await;
    let proxy = dir.open(&upstream).await;
    let old = Session::open_as(&proxy, &mut upstream, V2025_11, "s-1", Some(&bearer("u", 1))).await;
    let pending = keyed_by(&old, 1).start(proxy.addr).await;
    upstream.expect("tools/call").await.json_with(200, "x-custom: 1\r\n", result(1)).await;
    assert_eq!(pending.response().await.body().await, result(1).as_bytes());
    let (sse, mut response) = begin(&proxy, &mut upstream, &keyed_by(&old, 2)).await;
    sse.finish(result(2)).await;
    response.events().await;
    // A call that did not run leaves no record by which it could be found.
    let pending = keyed_by(&old, 3).start(proxy.addr).await;
    upstream.expect("tools/call").await.json(429, "{}").await;
    assert_eq!(pending.response().await.status, 429);
    let running = keyed_by(&old, 4).start(proxy.addr).await;
    let _call = upstream.expect("tools/call").await;
    proxy.kill().await;
    drop(running);

    let proxy = dir.open(&upstream).await;
    let new = as_token(2);
    // The server refuses the token: the caller learns nothing, and nothing is changed.
    let pending = keyed_by(&new, 1).start(proxy.addr).await;
    upstream.question().await.json(401, "{\"no\":1}").await;
    let mut refused = pending.response().await;
    assert_eq!((refused.status, refused.body().await), (401, b"{\"no\":1}".to_vec()));
    let pending = keyed_by(&new, 1).start(proxy.addr).await;
    upstream.judge(&bearer("u", 2), Judge::Verifies).await;
    let mut again = pending.response().await;
    assert_eq!((again.status, again.header("x-custom")), (200, Some("1")));
    assert_eq!(again.body().await, result(1).as_bytes());
    for _ in 0..2 {
        let mut again = keyed_by(&new, 2).send(proxy.addr).await.sse();
        assert_eq!(rest(&mut again).await, [result(2)]);
        assert_died(&proxy, &keyed_by(&new, 4), 4).await;
    }
    let other = new.post(call_tool(1, "other")).with(KEY, "k-1");
    assert_eq!(other.send(proxy.addr).await.status, 422);
    assert!(upstream.is_quiet(), "the tools ran once");
    let pending = keyed_by(&new, 3).start(proxy.addr).await;
    upstream.expect("tools/call").await.json(200, result(3)).await;
    assert_eq!(pending.response().await.body().await, result(3).as_bytes());
    // A third one finds what the second one began, and others begin their own.
    let pending = keyed_by(&as_token(3), 3).start(proxy.addr).await;
    upstream.judge(&bearer("u", 3), Judge::Verifies).await;
    assert_eq!(pending.response().await.body().await, result(3).as_bytes());
    for stranger in [Some(bearer("v", 2)), Some("Bearer opaque".to_owned())] {
        let stranger = Session::opened_elsewhere(V2025_11, "s-1", stranger.as_deref());
        let pending = keyed_by(&stranger, 1).start(proxy.addr).await;
        upstream.expect("tools/call").await.json(200, "{\"theirs\":1}").await;
        assert_eq!(pending.response().await.body().await, b"{\"theirs\":1}");
    }
}

#[tokio::test]
async fn a_key_finds_its_call_elsewhere_with_another_token() {
    let redis = Redis::start();
    let (mut one, mut two) = (Replica::process(&redis, "one", &[]).await, Replica::start(&redis, "two").await);
    let old = Session::open_as(&one.proxy, &mut one.upstream, V2025_11, "s-1", Some(&bearer("u", 1))).await;
    let (sse, mut response, place) = one.begin(&keyed_by(&old, 1)).await;
    sse.event(progress(1)).await;
    assert_eq!(response.event().await.id(), place.at(1));
    // It runs, and its client comes back with another token.
    let pending = keyed_by(&as_token(2), 1).start(two.proxy.addr).await;
    two.upstream.judge(&bearer("u", 2), Judge::Verifies).await;
    let mut again = pending.response().await.sse();
    assert_eq!(EventId::of(again.prime().await.id()).handle, place.handle);
    assert_eq!(again.event().await.id(), place.at(1));
    sse.finish(result(1)).await;
    assert_eq!(rest(&mut again).await, [result(1)]);
    let pending = keyed_by(&old, 2).start(one.proxy.addr).await;
    one.upstream.expect("tools/call").await.json(200, result(2)).await;
    assert_eq!(pending.response().await.body().await, result(2).as_bytes());
    assert_eq!(two.send(keyed_by(&as_token(2), 2)).await.body().await, result(2).as_bytes());
    let running = keyed_by(&old, 3).start(one.proxy.addr).await;
    let _run = one.upstream.expect("tools/call").await;
    // A server that takes any token proves nothing: the caller has a call of its own.
    let mut three = Replica::start(&redis, "three").await;
    let pending = keyed_by(&as_token(3), 2).start(three.proxy.addr).await;
    three.upstream.judge(&bearer("u", 3), Judge::Accepts).await;
    three.upstream.expect("tools/call").await.json(200, "{\"own\":1}").await;
    assert_eq!(pending.response().await.body().await, b"{\"own\":1}");

    one.proxy.kill().await;
    drop(running);
    let new = as_token(2);
    let _one = Replica::process(&redis, "one", &[]).await;
    for _ in 0..2 {
        assert_eq!(two.send(keyed_by(&new, 2)).await.body().await, result(2).as_bytes());
        let mut again = two.send(keyed_by(&new, 1)).await.sse();
        assert_eq!(rest(&mut again).await, [progress(1), result(1)]);
        assert_died(&two.proxy, &keyed_by(&new, 3), 3).await;
    }
    assert!(two.upstream.is_quiet(), "the tools ran once");
}

/// Any name can be written into a forged token.
#[tokio::test]
async fn a_key_that_a_forged_token_has_used_is_its_owners_all_the_same() {
    let redis = Redis::start();
    let (mut one, mut two) = (Replica::start(&redis, "one").await, Replica::start(&redis, "two").await);
    Session::open_as(&one.proxy, &mut one.upstream, V2025_11, "s-1", Some(&bearer("u", 1))).await;
    let forged = as_token(9).post(call_tool(1, "forged")).with(KEY, "k-1").start(two.proxy.addr).await;
    let thief = two.upstream.expect("tools/call").await;
    // The server has not yet said what it thinks of that.
    let pending = keyed_by(&as_token(1), 1).start(one.proxy.addr).await;
    one.upstream.judge(&bearer("u", 1), Judge::Verifies).await;
    one.upstream.expect("tools/call").await.json(200, result(1)).await;
    assert_eq!(pending.response().await.body().await, result(1).as_bytes());
    thief.status(401).await;
    assert_eq!(forged.response().await.status, 401);
    // Nor does it get what is there now.
    let forged = keyed_by(&as_token(9), 1).start(two.proxy.addr).await;
    two.upstream.question().await.status(401).await;
    assert_eq!(forged.response().await.status, 401);
    let pending = keyed_by(&as_token(2), 1).start(two.proxy.addr).await;
    two.upstream.judge(&bearer("u", 2), Judge::Verifies).await;
    assert_eq!(pending.response().await.body().await, result(1).as_bytes());
    assert!(one.upstream.is_quiet() && two.upstream.is_quiet());
}
