//! POSTs that wait for the server, and what is kept of a request while it runs or waits.

use super::*;
use std::time::Duration;

const KIB: usize = 1024;

fn notification(n: usize) -> String {
    format!(r#"{{"jsonrpc":"2.0","method":"notifications/n{n}"}}"#)
}

/// Asserts the status of a POST's answer.
async fn assert_status(session: &Session, proxy: &Proxy, body: String, status: u16) {
    assert_eq!(session.post(body).send(proxy.addr).await.status, status);
}

#[tokio::test]
async fn posts_that_wait_for_the_server_are_bounded_for_each_session() {
    let (mut upstream, proxy, session) = bounded(|c| c.limits.held_posts_per_session = 3).await;
    let mut neighbour = Neighbour::moves_in(&proxy, &mut upstream).await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    response.prime().await;
    upstream.refuse().await;
    assert_status(&session, &proxy, notification(1), 202).await;
    assert_status(&session, &proxy, notification(2), 202).await;
    let waiting = session.post(call(2)).start(proxy.addr).await;
    // The call has been read when this is answered.
    assert_status(&session, &proxy, "no JSON".to_owned(), 400).await;
    assert_refused(session.post(notification(3)).send(proxy.addr).await, 503, "client").await;
    assert_refused(session.post(call(3)).send(proxy.addr).await, 503, "client").await;
    assert_eq!(metric(&proxy, &rejects("too_many_held")).await, 2.0);
    neighbour.hears().await;
    upstream.listen_again().await;
    for n in [1, 2] {
        upstream.expect(&format!("notifications/n{n}")).await.status(202).await;
    }
    upstream.expect("tools/call").await.json(200, result(2)).await;
    assert_eq!(waiting.response().await.body().await, result(2).as_bytes());
    let later = session.post(notification(4)).start(proxy.addr).await;
    upstream.expect("notifications/n4").await.status(202).await;
    assert_eq!(later.response().await.status, 202);
    // Every place is free again.
    upstream.refuse().await;
    for n in 5..8 {
        assert_status(&session, &proxy, notification(n), 202).await;
    }
    assert_refused(session.post(notification(8)).send(proxy.addr).await, 503, "client").await;
    upstream.listen_again().await;
    for n in 5..8 {
        upstream.expect(&format!("notifications/n{n}")).await.status(202).await;
    }
    sse.finish(result(1)).await;
    response.events().await;
    neighbour.moves_out().await;
}

#[tokio::test]
async fn the_head_of_a_request_for_the_sessions_own_stream_counts_as_its_callers() {
    const HEAD: usize = 50_000;
    let (mut upstream, proxy, session) = bounded(|_| {}).await;
    let before = metric(&proxy, "mcp_resume_held_bytes").await as usize;
    let pending = session.get().with("X-Heavy", &"x".repeat(HEAD)).start(proxy.addr).await;
    let sse = upstream.expect("GET").await.sse().await;
    let mut response = pending.response().await.sse();
    response.prime().await;
    let during = metric(&proxy, "mcp_resume_held_bytes").await as usize;
    assert!((HEAD..HEAD + 10_000).contains(&(during - before)), "{during} bytes after {before}");
    drop(sse);
}

/// What is remembered of a question outlives the event that asked it, and so counts beside that.
#[tokio::test]
async fn questions_of_the_server_count_beside_their_events() {
    const ASKED: usize = 50;
    const ID: usize = 200;
    // Of the same length; only one of them is a request.
    let message = |member: &str, n: usize| {
        format!(r#"{{"jsonrpc":"2.0","{member}":"{n:0ID$}","method":"elicitation/create","params":{{}}}}"#)
    };
    let mut grown = Vec::new();
    for member in ["no", "id"] {
        let (mut upstream, proxy, session) = bounded(|_| {}).await;
        let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
        response.prime().await;
        let before = metric(&proxy, "mcp_resume_held_bytes").await as usize;
        for n in 0..ASKED {
            sse.event(message(member, n)).await;
            response.event().await;
        }
        settle(&proxy, &mut upstream).await;
        grown.push(metric(&proxy, "mcp_resume_held_bytes").await as usize - before);
    }
    assert!(grown[1] >= grown[0] + ASKED * ID, "{} bytes for questions, {} for others", grown[1], grown[0]);
}

#[tokio::test]
async fn a_post_that_was_sent_and_finds_no_place_waits_for_the_servers_own_answer() {
    let (mut upstream, proxy, session) = bounded(|c| {
        c.limits.held_posts_per_session = 1;
        c.delivery.commit_after = Some(Duration::from_secs(1));
    })
    .await;
    let one = session.post(notification(1)).start(proxy.addr).await;
    let of_one = upstream.next().await;
    let other = session.post(notification(2)).start(proxy.addr).await;
    let of_other = upstream.next().await;
    pass(Duration::from_secs(2)).await;
    let (mut one, mut other) = (Box::pin(one.response()), Box::pin(other.response()));
    let (held, waiting, of_held, of_waiting) = tokio::select! {
        held = &mut one => (held, other, of_one, of_other),
        held = &mut other => (held, one, of_other, of_one),
    };
    assert_eq!(held.status, 202);
    of_waiting.status(204).await;
    assert_eq!(waiting.await.status, 204);
    of_held.status(202).await;
    settle(&proxy, &mut upstream).await;
    assert_eq!(metric(&proxy, "mcp_resume_answers_held_total").await, 1.0);
}

#[tokio::test]
async fn the_heads_of_calls_and_of_posts_that_wait_count_as_their_callers() {
    const HEAD: usize = 50_000;
    let (mut upstream, proxy, session) = bounded(|c| {
        c.streams.max_event_bytes = 64 * KIB;
        c.streams.max_bytes = 256 * KIB;
        c.streams.max_bytes_per_principal = 1024 * KIB;
        c.delivery.commit_after = Some(Duration::from_secs(1));
    })
    .await;
    let heavy = |body: String| session.post(body).with("X-Heavy", &"x".repeat(HEAD));
    let held = async || metric(&proxy, "mcp_resume_held_bytes").await as usize;
    let before = held().await;

    let (sse, mut response) = begin(&proxy, &mut upstream, &heavy(call(1))).await;
    let during = held().await;
    assert!((HEAD..HEAD + 10_000).contains(&(during - before)), "{during} bytes after {before}");
    let waiting = heavy(notification(1)).start(proxy.addr).await;
    let of_waiting = upstream.next().await;
    pass(Duration::from_secs(2)).await;
    assert_eq!(waiting.response().await.status, 202);
    let both = held().await;
    assert!((HEAD..HEAD + 10_000).contains(&(both - during)), "{both} bytes after {during}");
    of_waiting.status(202).await;
    sse.finish(result(1)).await;
    response.events().await;
    settle(&proxy, &mut upstream).await;
    let after = held().await;
    assert!(after < before + 10_000, "{after} bytes are left");

    let mut running = Vec::new();
    loop {
        let pending = heavy(call(100 + running.len())).start(proxy.addr).await;
        let mut response = Box::pin(pending.response());
        tokio::select! {
            biased;
            upstream_call = upstream.next() => running.push((upstream_call, response)),
            refused = &mut response => break assert_refused(refused, 429, "client").await,
        }
        assert!(running.len() < 1024 * KIB / HEAD + 5, "more than there is room for");
    }
    assert!(running.len() > 15, "{} calls", running.len());
}
