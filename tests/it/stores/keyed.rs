//! Calls with an `Idempotency-Key` after the process that ran them is gone: the tool runs once, whatever became of it.

use super::disk::Dir;
use super::*;

const KEY: &str = "Idempotency-Key";

/// What a client that sends the same POST again is told where the process died while the call ran.
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
