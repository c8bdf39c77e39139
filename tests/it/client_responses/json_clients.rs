//! Server requests to a client that accepts only JSON.

use super::*;

/// The next refusal of a question, and which it refuses.
async fn refusal(upstream: &mut Upstream) -> (Call, String) {
    let refusal = upstream.expect("response").await;
    let body = refusal.json_body();
    assert_eq!(body["error"]["code"], -32601, "{body}");
    let id = body["id"].as_str().expect("a question's").to_owned();
    (refusal, id)
}

#[tokio::test]
async fn questions_to_a_client_that_takes_json_alone_are_refused_one_at_a_time_and_in_order() {
    let (mut upstream, proxy, session) = setup().await;
    let pending = session.post(call(1)).with("Accept", "application/json").start(proxy.addr).await;
    let sse = upstream.expect("tools/call").await.sse().await;
    for n in 0..5 {
        sse.event(question(&n.to_string())).await;
    }
    for n in 0..5 {
        let (refusal, id) = refusal(&mut upstream).await;
        assert_eq!(id, n.to_string());
        settle(&proxy, &mut upstream).await;
        assert!(upstream.is_quiet());
        refusal.status(202).await;
    }
    sse.finish(result(1)).await;
    assert_eq!(pending.response().await.status, 200);
}

#[tokio::test]
async fn questions_that_wait_to_be_refused_are_bounded() {
    const ID: usize = 1000;
    // 64 KiB, at an id and 48 bytes each.
    const WAIT: usize = 62;
    let (mut upstream, proxy, session) = setup_with(|c| c.admin.address = Some(([127, 0, 0, 1], 0).into())).await;
    let pending = session.post(call(1)).with("Accept", "application/json").start(proxy.addr).await;
    let sse = upstream.expect("tools/call").await.sse().await;
    let id = |n: usize| format!("{n:0ID$}");
    sse.event(question(&id(0))).await;
    let (mut first, _) = refusal(&mut upstream).await;
    for n in 1..200 {
        sse.event(question(&id(n))).await;
    }
    let read = async || metric(&proxy, "mcp_resume_upstream_events_total").await;
    until("all are read", async || read().await >= 200.0).await;
    settle(&proxy, &mut upstream).await;
    for n in 1..=WAIT {
        first.status(202).await;
        let (next, named) = refusal(&mut upstream).await;
        assert_eq!(named, id(n));
        first = next;
    }
    first.status(202).await;
    // There is room again.
    settle(&proxy, &mut upstream).await;
    sse.event(question("last")).await;
    let (last, named) = refusal(&mut upstream).await;
    assert_eq!(named, "last");
    last.status(202).await;
    sse.finish(result(1)).await;
    assert_eq!(pending.response().await.status, 200);
}
