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

/// The record of a question outlives the event that asked it, so it counts beside the event.
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

/// A burst is not refused while the server answers.
#[tokio::test]
async fn a_post_that_finds_no_place_waits_for_one_and_gets_the_servers_own_answer() {
    let (mut upstream, proxy, session) = bounded(|c| {
        c.limits.held_posts_per_session = 1;
        c.delivery.commit_after = None;
    })
    .await;
    let first = session.post(notification(1)).start(proxy.addr).await;
    let of_first = upstream.expect("notifications/n1").await;
    let other = session.post(notification(2)).start(proxy.addr).await;
    settle(&proxy, &mut upstream).await;
    of_first.status(202).await;
    assert_eq!(first.response().await.status, 202);
    upstream.expect("notifications/n2").await.status(204).await;
    assert_eq!(other.response().await.status, 204);
    assert_eq!(metric(&proxy, "mcp_resume_answers_held_total").await, 0.0);
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
    until("the bytes of both are released", async || held().await < before + 10_000).await;

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

/// Asserts that a POST is refused without the server.
async fn assert_not_sent(upstream: &mut Upstream, proxy: &Proxy, request: &Request, status: u16) {
    let refused = request.start(proxy.addr).await;
    tokio::select! {
        biased;
        call = upstream.next() => panic!("{} was sent", call.rpc_method()),
        refused = refused.response() => assert_refused(refused, status, "client").await,
    }
}

/// Sends POSTs, numbered from `n`, until one is not refused, and answers that.
async fn finds_a_place(upstream: &mut Upstream, proxy: &Proxy, session: &Session, mut n: usize) {
    loop {
        let mut later = Box::pin(session.post(notification(n)).start(proxy.addr).await.response());
        tokio::select! {
            biased;
            call = upstream.next() => {
                call.status(204).await;
                assert_eq!(later.await.status, 204);
                return;
            }
            refused = &mut later => assert_eq!(refused.status, 503),
        }
        n += 1;
    }
}

#[tokio::test]
async fn posts_that_the_server_never_answers_keep_their_places() {
    let (mut upstream, proxy, session) = bounded(|c| {
        c.limits.held_posts_per_session = 3;
        c.upstream.connect_timeout = Duration::from_millis(100);
        c.delivery.commit_after = Some(Duration::from_secs(1));
    })
    .await;
    let mut unanswered = Vec::new();
    for n in 1..=3 {
        let pending = session.post(notification(n)).start(proxy.addr).await;
        unanswered.push(upstream.expect(&format!("notifications/n{n}")).await);
        pass(Duration::from_secs(2)).await;
        assert_eq!(pending.response().await.status, 202);
        // No request waits behind it any longer.
        pass(Duration::from_secs(6)).await;
    }
    assert_not_sent(&mut upstream, &proxy, &session.post(notification(4)), 503).await;
    unanswered.remove(0).status(202).await;
    finds_a_place(&mut upstream, &proxy, &session, 5).await;
    // Those that are never answered are given up, sooner or later.
    pass(Duration::from_secs(601)).await;
    for call in unanswered {
        call.closed().await;
    }
}

#[tokio::test]
async fn posts_that_the_server_does_not_answer_delay_the_next_one_together() {
    const TOGETHER: Duration = Duration::from_secs(10);
    let (mut upstream, proxy, session) = bounded(|c| c.delivery.commit_after = Some(Duration::from_secs(1))).await;
    let (mut waiting, mut unanswered) = (Vec::new(), Vec::new());
    for n in 1..=5 {
        waiting.push(session.post(notification(n)).start(proxy.addr).await);
        unanswered.push(upstream.expect(&format!("notifications/n{n}")).await);
    }
    pass(Duration::from_secs(2)).await;
    pass(Duration::from_secs(4)).await;
    let next = async {
        for post in waiting {
            assert_eq!(post.response().await.status, 202);
        }
        let next = session.post(call(1)).start(proxy.addr).await;
        upstream.expect("tools/call").await.json(200, result(1)).await;
        assert_eq!(next.response().await.status, 200);
    };
    tokio::time::timeout(TOGETHER, next).await.expect("each waits for the server from when it was sent");
    drop(unanswered);
}

/// The bound holds in a made-up session too.
#[tokio::test]
async fn posts_of_unknown_credentials_have_places_as_well() {
    let (mut upstream, proxy, _) = bounded(|c| {
        c.limits.held_posts_per_session = 2;
        c.upstream.connect_timeout = Duration::from_millis(100);
    })
    .await;
    let session = Session::opened_elsewhere(V2025_11, "made-up", Some("Bearer t"));
    let mut unanswered = Vec::new();
    for n in 1..=2 {
        let pending = session.post(notification(n)).start(proxy.addr).await;
        unanswered.push(upstream.expect(&format!("notifications/n{n}")).await);
        pending.reset();
    }
    assert_not_sent(&mut upstream, &proxy, &session.post(notification(3)), 503).await;
    unanswered.remove(0).status(202).await;
    finds_a_place(&mut upstream, &proxy, &session, 4).await;
}

/// A POST of the client may be the one that ends a call.
#[tokio::test]
async fn a_full_share_refuses_large_posts_before_they_are_sent_and_takes_slight_ones() {
    let (mut upstream, proxy, session) = bounded(|c| {
        c.streams.max_event_bytes = 64 * KIB;
        c.streams.max_bytes = 256 * KIB;
        c.streams.max_bytes_per_principal = 512 * KIB;
    })
    .await;
    let heavy = |id: usize| session.post(call(id)).with("X-Heavy", &"x".repeat(50_000));
    let mut running = Vec::new();
    loop {
        let mut response = Box::pin(heavy(running.len()).start(proxy.addr).await.response());
        tokio::select! {
            biased;
            upstream_call = upstream.next() => running.push((upstream_call, response)),
            refused = &mut response => break assert_refused(refused, 429, "client").await,
        }
        assert!(running.len() < 20, "more than there is room for");
    }
    assert_not_sent(&mut upstream, &proxy, &session.post(sized(1, 100_000)), 429).await;
    for n in 1..50 {
        let pending = session.post(notification(n)).start(proxy.addr).await;
        upstream.expect(&format!("notifications/n{n}")).await.status(202).await;
        assert_eq!(pending.response().await.status, 202);
    }
    let mut unanswered = Vec::new();
    loop {
        let mut response = Box::pin(session.post(notification(100)).start(proxy.addr).await.response());
        tokio::select! {
            biased;
            upstream_call = upstream.next() => unanswered.push((upstream_call, response)),
            refused = &mut response => break assert_refused(refused, 429, "client").await,
        }
        assert!(unanswered.len() < 20, "more than need no room");
    }
}

#[tokio::test]
async fn delayed_resumes_count_while_they_wait() {
    const BODY: usize = 200_000;
    const HEAD: usize = 50_000;
    let (mut upstream, proxy, session) = bounded(|c| c.limits.resumes_per_sec = 1).await;
    let (_sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    let place = EventId::of(response.prime().await.id());
    let _waiting = super::resumes::use_up_the_rate(&proxy, &session, &place).await;
    let held = async || metric(&proxy, "mcp_resume_held_bytes").await as usize;
    let before = held().await;
    let padding = "x".repeat(BODY);
    let params = serde_json::json!({ "resumeToken": "unknown", "padding": padding });
    let body = crate::dialects::ask(7.into(), "requests/resume", params);
    let mut waiting = Vec::new();
    for _ in 0..3 {
        waiting.push(session.post(&body).start(proxy.addr).await);
    }
    waiting.push(session.resume(&place.at(0)).with("X-Heavy", &"x".repeat(HEAD)).start(proxy.addr).await);
    until("all of them count", async || held().await >= before + 3 * BODY + HEAD).await;
    for client in waiting {
        client.reset();
    }
    until("none counts any more", async || held().await < before + HEAD).await;
}
