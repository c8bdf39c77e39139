//! Client responses and notifications that wait for the server.

use super::*;

#[tokio::test]
async fn an_answer_goes_to_the_call_that_waits_before_one_that_is_over() {
    let (mut upstream, proxy, session) = setup().await;
    let (sse, mut over) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    let place = EventId::of(over.prime().await.id());
    sse.event(question("q")).await;
    sse.finish(result(1)).await;
    over.events().await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(2))).await;
    let waiting = EventId::of(response.prime().await.id());
    sse.event(question("q")).await;
    response.event().await;
    answers(&proxy, &mut upstream, &session, "q").await;
    held(&proxy, &session, answer("q")).await;
    response.reset();
    sse.finish(result(2)).await;
    // The one was answered, the other was not.
    let mut back = session.resume(&waiting.at(0)).send(proxy.addr).await.sse();
    assert_eq!(back.event().await.bytes(), result(2).as_bytes());
    back.ends().await;
    let mut back = session.resume(&place.at(0)).send(proxy.addr).await.sse();
    assert_eq!(back.event().await.bytes(), question("q").as_bytes());
    assert_eq!(back.event().await.bytes(), result(1).as_bytes());
    back.ends().await;
}

#[tokio::test]
async fn an_answer_waits_while_the_upstream_refuses_and_later_requests_wait_behind_it() {
    let (mut upstream, proxy, session) = setup().await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    let place = EventId::of(response.prime().await.id());
    response.reset();
    sse.event(question("a")).await;
    sse.event(question("b")).await;
    let mut back = session.resume(&place.at(0)).send(proxy.addr).await.sse();
    assert_eq!(back.event().await.bytes(), question("a").as_bytes());
    assert_eq!(back.event().await.bytes(), question("b").as_bytes());

    upstream.refuse().await;
    held(&proxy, &session, answer("a")).await;
    held(&proxy, &session, answer("b")).await;
    // A second answer while the first is held is dropped as well.
    held(&proxy, &session, answer("a")).await;
    let later = session.post(call(2)).start(proxy.addr).await;
    upstream.listen_again().await;

    for id in ["a", "b"] {
        let upstream_call = upstream.expect("response").await;
        assert_eq!(upstream_call.body, answer(id).into_bytes());
        assert_eq!(upstream_call.header("mcp-session-id"), Some("s-1"));
        upstream_call.status(202).await;
    }
    upstream.expect("tools/call").await.json(200, result(2)).await;
    assert_eq!(later.response().await.body().await, result(2).as_bytes());
    sse.finish(result(1)).await;
    assert_eq!(back.event().await.bytes(), result(1).as_bytes());
    back.ends().await;
    assert!(upstream.is_quiet(), "each answer was sent once");
}

#[tokio::test]
async fn an_answer_the_upstream_is_slow_to_take_is_never_sent_again() {
    let (mut upstream, proxy, session) = setup_with(|c| c.delivery.commit_after = Some(SOON)).await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    sse.event(question("q")).await;
    response.event().await;
    let pending = session.post(answer("q")).start(proxy.addr).await;
    let slow = upstream.expect("response").await;
    assert_eq!(pending.response().await.status, 202);
    slow.status(500).await;
    settle(&proxy, &mut upstream).await;
    sse.finish(result(1)).await;
    response.event().await;
    response.ends().await;
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn a_notification_waits_while_the_upstream_refuses() {
    let (mut upstream, proxy, session) = setup().await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    upstream.refuse().await;
    let changed = r#"{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}"#;
    held(&proxy, &session, changed.to_owned()).await;
    upstream.listen_again().await;
    let upstream_call = upstream.expect("notifications/roots/list_changed").await;
    assert_eq!(upstream_call.body, changed.as_bytes());
    upstream_call.status(202).await;
    sse.finish(result(1)).await;
    response.event().await;
}

#[tokio::test]
async fn a_notification_that_no_call_waits_for_is_refused_and_delays_no_other_request() {
    let (mut upstream, proxy, session) = setup_with(|c| c.upstream.wait = Duration::ZERO).await;
    upstream.refuse().await;
    let changed = r#"{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}"#;
    assert_eq!(session.post(changed).send(proxy.addr).await.status, 502);
    assert_eq!(session.post(call(1)).send(proxy.addr).await.status, 502);
}

#[tokio::test]
async fn a_client_response_to_an_ended_call_delays_no_other_request() {
    let (mut upstream, proxy, session) = setup().await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    sse.event(question("q")).await;
    response.event().await;
    upstream.refuse().await;
    held(&proxy, &session, answer("q")).await;
    sse.finish(result(1)).await;
    response.event().await;
    response.ends().await;
    upstream.listen_again().await;
    let pending = session.post(call(2)).start(proxy.addr).await;
    loop {
        let upstream_call = upstream.next().await;
        if upstream_call.rpc_method() == "tools/call" {
            upstream_call.json(200, result(2)).await;
            break;
        }
        upstream_call.status(202).await;
    }
    assert_eq!(pending.response().await.body().await, result(2).as_bytes());
}

#[tokio::test]
async fn an_upstream_that_never_acknowledges_an_answer_can_still_be_called() {
    let (mut upstream, proxy, session) = setup_with(|c| c.delivery.commit_after = Some(SOON)).await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    sse.event(question("q")).await;
    response.event().await;
    let pending = session.post(answer("q")).start(proxy.addr).await;
    let silent = upstream.expect("response").await;
    assert_eq!(pending.response().await.status, 202);
    let pending = session.post(call(2)).start(proxy.addr).await;
    upstream.expect("tools/call").await.sse().await.finish(result(2)).await;
    let mut second = pending.response().await.sse();
    assert_eq!(second.event().await.bytes(), result(2).as_bytes());
    drop(silent);
    sse.finish(result(1)).await;
}
