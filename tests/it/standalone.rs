//! The standalone GET stream: it outlives the connections on both sides.

use crate::support::*;

fn notice(n: u64) -> String {
    format!(r#"{{"jsonrpc":"2.0","method":"notifications/message","params":{{"level":"info","data":{n}}}}}"#)
}

/// Opens the stream; the upstream takes it.
async fn open(proxy: &Proxy, upstream: &mut Upstream, session: &Session) -> (Sse, Response) {
    let pending = session.get().start(proxy.addr).await;
    let upstream_call = upstream.expect("GET").await;
    assert_eq!(upstream_call.target, "/mcp");
    assert_eq!(upstream_call.header("mcp-session-id"), Some("s-1"));
    assert_eq!(upstream_call.header("last-event-id"), None);
    let sse = upstream_call.sse().await;
    (sse, pending.response().await.sse())
}

#[tokio::test]
async fn its_events_are_numbered() {
    let (mut upstream, proxy, session) = setup().await;
    let (sse, mut response) = open(&proxy, &mut upstream, &session).await;
    let prime = response.prime().await;
    let place = EventId::of(prime.id());
    assert_eq!(prime.id(), place.at(0));
    for n in 1..=3 {
        sse.event(notice(n)).await;
        let event = response.event().await;
        assert_eq!((event.id(), event.bytes()), (place.at(n).as_str(), notice(n).as_bytes()));
    }
}

#[tokio::test]
async fn events_without_a_client_are_kept() {
    let (mut upstream, proxy, session) = setup().await;
    let (sse, mut response) = open(&proxy, &mut upstream, &session).await;
    let place = EventId::of(response.prime().await.id());
    response.reset();
    sse.event(notice(1)).await;
    let mut back = session.resume(&place.at(0)).send(proxy.addr).await.sse();
    back.prime().await;
    assert_eq!(back.event().await.id(), place.at(1));
    sse.event(notice(2)).await;
    assert_eq!(back.event().await.id(), place.at(2));
    assert!(!sse.is_closed());
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn a_plain_get_starts_after_what_was_written() {
    let (mut upstream, proxy, session) = setup().await;
    let (sse, mut response) = open(&proxy, &mut upstream, &session).await;
    let place = EventId::of(response.prime().await.id());
    sse.event(notice(1)).await;
    response.event().await;
    response.reset();
    settle(&proxy, &mut upstream).await;
    sse.event(notice(2)).await;
    let mut back = session.get().send(proxy.addr).await.sse();
    assert_eq!(EventId::of(back.prime().await.id()).seq, "1");
    let event = back.event().await;
    assert_eq!((event.id(), event.bytes()), (place.at(2).as_str(), notice(2).as_bytes()));
    assert!(upstream.is_quiet(), "the upstream's stream is still open");
}

#[tokio::test]
async fn a_second_get_takes_over() {
    let (mut upstream, proxy, session) = setup().await;
    let (sse, mut older) = open(&proxy, &mut upstream, &session).await;
    older.prime().await;
    let mut newer = session.get().send(proxy.addr).await.sse();
    newer.prime().await;
    older.ends().await;
    sse.event(notice(1)).await;
    assert_eq!(newer.event().await.bytes(), notice(1).as_bytes());
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn a_dropped_upstream_is_opened_again_unnoticed() {
    let (mut upstream, proxy, session) = setup().await;
    let (sse, mut response) = open(&proxy, &mut upstream, &session).await;
    let place = EventId::of(response.prime().await.id());
    sse.event(notice(1)).await;
    response.event().await;
    sse.reset().await;
    // The server's old stream lingers for a while.
    let again = upstream.expect("GET").await;
    assert_eq!(again.header("mcp-session-id"), Some("s-1"));
    assert_eq!(again.header("last-event-id"), None);
    again.status(409).await;
    let sse = upstream.expect("GET").await.sse().await;
    sse.event(notice(2)).await;
    assert_eq!(response.event().await.id(), place.at(2));
    sse.end().await;
    let sse = upstream.expect("GET").await.sse().await;
    sse.event(notice(3)).await;
    assert_eq!(response.event().await.id(), place.at(3));
}

#[tokio::test]
async fn an_upstream_that_is_away_for_a_moment_is_opened_again() {
    let (mut upstream, proxy, session) = setup().await;
    let (sse, mut response) = open(&proxy, &mut upstream, &session).await;
    response.prime().await;
    upstream.refuse().await;
    sse.reset().await;
    upstream.listen_again().await;
    let sse = upstream.expect("GET").await.sse().await;
    sse.event(notice(1)).await;
    assert_eq!(response.event().await.bytes(), notice(1).as_bytes());
}

#[tokio::test]
async fn an_upstream_that_refuses_to_open_it_again_ends_it() {
    for status in [401, 403, 404, 405] {
        let (mut upstream, proxy, session) = setup_with(|c| c.sessions.revive = false).await;
        let (sse, mut response) = open(&proxy, &mut upstream, &session).await;
        response.prime().await;
        sse.end().await;
        upstream.expect("GET").await.status(status).await;
        response.ends().await;
        // What the client hears next is the upstream's own word again.
        let pending = session.get().start(proxy.addr).await;
        upstream.expect("GET").await.status(status).await;
        assert_eq!(pending.response().await.status, status);
    }
}

#[tokio::test]
async fn an_upstream_that_refuses_its_own_id_is_asked_once_without() {
    for status in [400, 500] {
        let (mut upstream, proxy, session) = setup_with(|c| c.admin.address = Some(([127, 0, 0, 1], 0).into())).await;
        let (sse, mut response) = open(&proxy, &mut upstream, &session).await;
        let place = EventId::of(response.prime().await.id());
        sse.bytes(format!("id: u1\nretry: 1\ndata: {}\n\n", notice(1))).await;
        response.event().await;
        sse.end().await;
        // A server that is away is asked the same again.
        for away in [503, status] {
            let again = upstream.expect("GET").await;
            assert_eq!(again.header("last-event-id"), Some("u1"));
            again.status(away).await;
        }
        let anew = upstream.expect("GET").await;
        assert_eq!(anew.header("last-event-id"), None);
        let sse = anew.sse().await;
        sse.event(notice(2)).await;
        let warning = response.event().await;
        assert_eq!((warning.id(), &warning.json()["params"]["level"]), (place.at(2).as_str(), &"warning".into()));
        assert_eq!(response.event().await.bytes(), notice(2).as_bytes());
        assert_eq!(metric(&proxy, "mcp_resume_gaps_total").await, 1.0);
    }
}

#[tokio::test]
async fn an_upstream_that_knows_the_session_no_more_is_not_asked_without_its_id() {
    let (mut upstream, proxy, session) = setup_with(|c| c.sessions.revive = false).await;
    let (sse, mut response) = open(&proxy, &mut upstream, &session).await;
    response.prime().await;
    sse.bytes(format!("id: u1\nretry: 1\ndata: {}\n\n", notice(1))).await;
    response.event().await;
    sse.end().await;
    upstream.expect("GET").await.status(404).await;
    response.ends().await;
    settle(&proxy, &mut upstream).await;
}

#[tokio::test]
async fn a_server_without_such_a_stream_says_so_itself() {
    let (mut upstream, proxy, session) = setup().await;
    for _ in 0..2 {
        let pending = session.get().start(proxy.addr).await;
        upstream.expect("GET").await.json_with(405, "allow: POST, DELETE\r\n", "{\"no\": 1}").await;
        let mut response = pending.response().await;
        assert_eq!(response.status, 405);
        assert_eq!(response.header("allow"), Some("POST, DELETE"));
        assert_eq!(response.body().await, b"{\"no\": 1}");
    }
}

#[tokio::test]
async fn a_get_that_accepts_no_stream_opens_none() {
    let (mut upstream, proxy, session) = setup().await;
    let pending = session.get().with("Accept", "text/html").start(proxy.addr).await;
    upstream.expect("GET").await.json(406, "{}").await;
    assert_eq!(pending.response().await.status, 406);
}

#[tokio::test]
async fn a_client_that_stays_away_has_left_it() {
    let (mut upstream, proxy, session) = setup_with(|c| c.streams.max_wait = Some(SOON)).await;
    let (sse, mut response) = open(&proxy, &mut upstream, &session).await;
    response.prime().await;
    response.reset();
    sse.closed().await;
}

#[tokio::test]
async fn a_lost_cursor_starts_at_the_oldest_event_kept_and_says_so() {
    let (mut upstream, proxy, session) = setup().await;
    let (sse, mut response) = open(&proxy, &mut upstream, &session).await;
    let place = EventId::of(response.prime().await.id());
    for n in 1..=2 {
        sse.event(notice(n)).await;
        response.event().await;
    }
    for lost in [place.forged().at(1), place.at(77)] {
        let mut back = session.resume(&lost).send(proxy.addr).await.sse();
        let mut frames = Vec::new();
        while frames.last().is_none_or(|f: &Frame| f.bytes() != notice(2).as_bytes()) {
            frames.push(back.any_frame().await.expect("more"));
        }
        let first = EventId::of(frames[0].id());
        assert!(!frames[0].is_event());
        assert_eq!((first.handle, first.seq.as_str()), (place.handle.clone(), "0"));
        assert!(frames.iter().any(|f| !f.comments.is_empty()), "a comment: {frames:?}");
        let events: Vec<&Frame> = frames.iter().filter(|f| f.is_event()).collect();
        let (warnings, kept): (Vec<&Frame>, Vec<&Frame>) = events.into_iter().partition(|f| f.id.is_none());
        assert_eq!(warnings.len(), 1, "the server declared logging");
        let warning = warnings[0].json();
        assert_eq!(warning["method"], "notifications/message");
        assert_eq!(warning["params"]["level"], "warning");
        let ids: Vec<&str> = kept.iter().map(|f| f.id()).collect();
        assert_eq!(ids, [place.at(1), place.at(2)]);
    }
}

#[tokio::test]
async fn a_full_standalone_stream_drops_its_oldest_and_never_pauses() {
    let (mut upstream, proxy, session) = setup_with(|c| c.streams.max_events = 4).await;
    let (sse, mut response) = open(&proxy, &mut upstream, &session).await;
    let place = EventId::of(response.prime().await.id());
    response.reset();
    settle(&proxy, &mut upstream).await;
    for n in 1..=20 {
        sse.event(notice(n)).await;
    }
    settle(&proxy, &mut upstream).await;
    let mut back = session.resume(&place.at(0)).send(proxy.addr).await.sse();
    let mut last = None;
    while last.as_deref() != Some(place.at(20).as_str()) {
        last = back.event().await.id.clone().or(last);
    }
    assert!(!sse.is_closed());
}

#[tokio::test]
async fn events_dropped_before_a_plain_get_are_reported() {
    let admin = Some(([127, 0, 0, 1], 0).into());
    let (mut upstream, proxy, session) = setup_with(|c| {
        c.streams.max_events = 4;
        c.admin.address = admin;
    })
    .await;
    let (sse, mut response) = open(&proxy, &mut upstream, &session).await;
    let place = EventId::of(response.prime().await.id());
    response.reset();
    settle(&proxy, &mut upstream).await;
    for n in 1..=10 {
        sse.event(notice(n)).await;
    }
    settle(&proxy, &mut upstream).await;
    assert_eq!(metric(&proxy, "mcp_resume_gaps_total").await, 0.0);
    let mut back = session.get().send(proxy.addr).await.sse();
    let mut frames = Vec::new();
    while frames.last().is_none_or(|f: &Frame| f.bytes() != notice(10).as_bytes()) {
        frames.push(back.any_frame().await.expect("more"));
    }
    let comments = frames.iter().flat_map(|f| &f.comments).filter(|text| text.contains("lost"));
    assert_eq!(comments.count(), 1, "{frames:?}");
    let events: Vec<&Frame> = frames.iter().filter(|f| f.is_event()).collect();
    let (warnings, kept): (Vec<&Frame>, Vec<&Frame>) = events.into_iter().partition(|f| f.id.is_none());
    assert_eq!(warnings.len(), 1, "the server declared logging");
    assert_eq!(warnings[0].json()["params"]["level"], "warning");
    let ids: Vec<&str> = kept.iter().map(|f| f.id()).collect();
    assert_eq!(ids, [place.at(7), place.at(8), place.at(9), place.at(10)]);
    assert_eq!(metric(&proxy, "mcp_resume_gaps_total").await, 1.0);

    // Nothing was lost since.
    let mut again = session.get().send(proxy.addr).await.sse();
    assert_eq!(EventId::of(again.prime().await.id()).seq, "10");
    sse.event(notice(11)).await;
    assert_eq!(again.any_frame().await.expect("more").id(), place.at(11));
    assert_eq!(metric(&proxy, "mcp_resume_gaps_total").await, 1.0);
}

#[tokio::test]
async fn its_questions_are_answered_like_any() {
    let (mut upstream, proxy, session) = setup().await;
    let (sse, mut response) = open(&proxy, &mut upstream, &session).await;
    let place = EventId::of(response.prime().await.id());
    sse.event(r#"{"jsonrpc":"2.0","id":9,"method":"roots/list"}"#).await;
    response.event().await;
    let answer = r#"{"jsonrpc":"2.0","id":9,"result":{"roots":[]}}"#;
    let pending = session.post(answer).start(proxy.addr).await;
    upstream.expect("response").await.status(202).await;
    assert_eq!(pending.response().await.status, 202);
    response.reset();
    sse.event(notice(2)).await;
    let mut back = session.resume(&place.at(0)).send(proxy.addr).await.sse();
    assert_eq!(back.event().await.bytes(), notice(2).as_bytes());
    assert_eq!(session.post(answer).send(proxy.addr).await.status, 202);
    settle(&proxy, &mut upstream).await;
}

#[tokio::test]
async fn a_stranger_gets_a_stream_of_its_own() {
    let (mut upstream, proxy, session) = setup().await;
    let (sse, mut response) = open(&proxy, &mut upstream, &session).await;
    response.prime().await;
    let pending = session.get().with("Authorization", "Bearer b").start(proxy.addr).await;
    // Whether it may is for the upstream to say.
    let upstream_call = upstream.expect("GET").await;
    assert_eq!(upstream_call.header("authorization"), Some("Bearer b"));
    upstream_call.status(403).await;
    assert_eq!(pending.response().await.status, 403);
    sse.event(notice(1)).await;
    assert_eq!(response.event().await.bytes(), notice(1).as_bytes());
}

#[tokio::test]
async fn a_deleted_session_ends_it() {
    let (mut upstream, proxy, session) = setup().await;
    let (sse, mut response) = open(&proxy, &mut upstream, &session).await;
    response.prime().await;
    let pending = session.delete().start(proxy.addr).await;
    upstream.expect("DELETE").await.status(200).await;
    assert_eq!(pending.response().await.status, 200);
    response.ends().await;
    sse.closed().await;
}

#[tokio::test]
async fn it_is_opened_again_as_it_was_opened() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |_| {}).await;
    let session = Session::open_as(&proxy, &mut upstream, V2025_11, "s-9", Some("Bearer mine")).await;
    let pending = session.get().target("/mcp?key=k").start(proxy.addr).await;
    let sse = upstream.expect("GET").await.sse().await;
    let mut response = pending.response().await.sse();
    response.prime().await;
    sse.end().await;
    let again = upstream.expect("GET").await;
    assert_eq!(again.target, "/mcp?key=k");
    assert_eq!(again.header("authorization"), Some("Bearer mine"));
    assert_eq!(again.header("mcp-session-id"), Some("s-9"));
    assert_eq!(again.header("mcp-protocol-version"), Some(V2025_11));
    again.sse().await.event(notice(1)).await;
    assert_eq!(response.event().await.bytes(), notice(1).as_bytes());
}
