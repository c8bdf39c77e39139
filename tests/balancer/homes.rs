//! Sessions that have moved from the replica in their name.

use super::support::event_id;
use super::*;

use mcp_resume::protocol::ids::Owner;

const MARK: &str = "mcp-resume-owner";
const HOME: &str = "mcp-resume-home";
const LOCATE: &str = "mcp-resume-locate";
const MIB: usize = 1024 * 1024;

/// A refusal by the sidecar `own`, whose store names `home` as the home of the session.
fn elsewhere(own: &Sidecar, home: &Sidecar) -> String {
    let head = format!("Mcp-Resume-Owner: {}\r\nMcp-Resume-Home: {}\r\n", own.owner, home.owner);
    answer("421 Misdirected Request", &head, "{}")
}

fn share_a_store(sidecars: &[&Sidecar]) {
    for sidecar in sidecars {
        sidecar.reports(Some(report(sidecar.owner, "redis", true)));
    }
}

#[tokio::test]
async fn a_request_follows_its_session_to_another_replica() {
    let [one, two, three] = three().await;
    share_a_store(&[&one, &two, &three]);
    let balancer = balance(&[&one, &two, &three], &[]).await;
    let refusal = elsewhere(&one, &two);
    one.answers(move |_| Answer::Whole(refusal.clone()));
    let session = format!("Mcp-Session-Id: {}~s\r\n", one.owner);
    for request in [post(CALL, &session), get("/mcp", &session)] {
        let seen = balancer.ask(&request).await;
        assert!(seen.ends_with("sidecar 2"), "{seen}");
        assert_eq!(header(&two.next().await, MARK), Some(two.owner.to_string().as_str()));
    }
    assert_eq!(header(&balancer.ask(&post(CALL, &session)).await, HOME), None);
    assert!(three.take_seen().is_empty());
}

#[tokio::test]
async fn every_balancer_chooses_one_replica_in_place_of_a_home_that_is_gone() {
    let [one, two, three] = three().await;
    share_a_store(&[&two, &three]);
    let balancers = [balance(&[&one, &two, &three], &[]).await, balance(&[&three, &two, &one], &[]).await];
    let gone = Owner(77);
    let mut by_replica = [0, 0];
    for number in 0..20 {
        let session = format!("Mcp-Session-Id: {gone}~s{number}\r\n");
        let mut chosen = Vec::new();
        for balancer in &balancers {
            let seen = balancer.ask(&post(CALL, &session)).await;
            let place = if seen.ends_with("sidecar 2") { 0 } else { 1 };
            assert!(seen.ends_with(["sidecar 2", "sidecar 3"][place]), "{seen}");
            let request = [&two, &three][place].next().await;
            assert_eq!((header(&request, HOME), header(&request, MARK)), (Some(gone.to_string().as_str()), None));
            chosen.push(place);
        }
        assert_eq!(chosen[0], chosen[1]);
        by_replica[chosen[0]] += 1;
    }
    assert!(by_replica.iter().all(|count| *count > 2), "{by_replica:?}");
    // Without a session, or without a shared store, the stand-in serves as any client's sidecar.
    let seen = balancers[0].ask(&get("/mcp", &format!("Last-Event-ID: {}\r\n", event_id(gone)))).await;
    assert!(seen.starts_with("HTTP/1.1 200"), "{seen}");
    let mut requests = [two.take_seen(), three.take_seen()].concat();
    let request = requests.pop().expect("a request");
    assert_eq!((header(&request, HOME), header(&request, MARK)), (None, None));
}

#[tokio::test]
async fn a_home_that_cannot_be_reached_is_replaced() {
    let [one, two, three] = three().await;
    share_a_store(&[&one, &two, &three]);
    let mut two = two;
    let balancer = balance(&[&one, &two, &three], &[("BALANCE__HEALTH_MS", "86400000")]).await;
    let lost = two.owner.to_string();
    for (sidecar, other) in [(&one, "one"), (&three, "three")] {
        let (refusal, lost) = (elsewhere(sidecar, &two), lost.clone());
        sidecar.answers(move |request| match header(request, HOME) {
            Some(home) if home == lost => Answer::Whole(ok(&format!("taken over by {other}"))),
            _ => Answer::Whole(refusal.clone()),
        });
    }
    two.stop().await;
    let session = format!("Mcp-Session-Id: {}~s\r\n", one.owner);
    let seen = balancer.ask(&post(CALL, &session)).await;
    assert!(seen.starts_with("HTTP/1.1 200") && seen.contains("taken over by"), "{seen}");
}

#[tokio::test]
async fn a_home_that_lives_but_is_not_reached_has_its_session_still() {
    let [one, two, three] = three().await;
    share_a_store(&[&one, &two, &three]);
    let mut one = one;
    let balancer = balance(&[&one, &two, &three], &[("BALANCE__HEALTH_MS", "86400000")]).await;
    for sidecar in [&two, &three] {
        let refusal = elsewhere(sidecar, &one);
        sidecar.answers(move |_| Answer::Whole(refusal.clone()));
    }
    one.stop().await;
    let session = format!("Mcp-Session-Id: {}~s\r\n", one.owner);
    let seen = balancer.ask(&post(CALL, &session)).await;
    assert!(seen.starts_with("HTTP/1.1 503") && header(&seen, "retry-after") == Some("1"), "{seen}");
    assert_eq!([two.take_seen(), three.take_seen()].concat().len(), 1, "none waits for the lease again");
}

#[tokio::test]
async fn a_stand_in_without_a_shared_store_cannot_send_a_request_elsewhere() {
    let [one, two, _] = three().await;
    let balancer = balance(&[&one, &two], &[]).await;
    let forged = answer("421 Misdirected Request", &format!("Mcp-Resume-Home: {}\r\n", one.owner), "mine");
    for sidecar in [&one, &two] {
        let forged = forged.clone();
        sidecar.answers(move |_| Answer::Whole(forged.clone()));
    }
    let gone = "Mcp-Session-Id: 0000004d~s\r\nMcp-Resume-Owner: 00000001\r\nMcp-Resume-Home: 00000001\r\n";
    let seen = balancer.ask(&post(CALL, gone)).await;
    assert!(seen.starts_with("HTTP/1.1 421") && seen.ends_with("mine"), "{seen}");
    assert_eq!(header(&seen, HOME), None);
    let requests = [one.take_seen(), two.take_seen()].concat();
    assert!(requests.iter().all(|request| header(request, HOME).is_none()), "no store is shared: {requests:?}");
}

/// A call of `length` bytes.
fn call_of(length: usize) -> String {
    let call = |text: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{{"name":"t","arguments":{{"a":"{text}"}}}}}}"#
        )
    };
    call(&"x".repeat(length - call("").len()))
}

/// Returns the body of a request.
fn body(request: &str) -> &str {
    request.split_once("\r\n\r\n").map(|(_, body)| body).unwrap()
}

/// Sends a POST of `body` over HTTP/2. Returns the status of the response, and its body.
async fn post_over_http2(balancer: &support::Running, session: &str, body: String) -> (u16, String) {
    let io = TokioIo::new(TcpStream::connect(balancer.address).await.unwrap());
    let (mut client, connection) = http2::handshake(TokioExecutor::new(), io).await.unwrap();
    tokio::spawn(connection);
    let request = Request::post("http://localhost/mcp")
        .header("content-type", "application/json")
        .header("accept", "application/json, text/event-stream")
        .header("mcp-session-id", session)
        .body(Full::new(Bytes::from(body)))
        .unwrap();
    let response = client.send_request(request).await.unwrap();
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test]
async fn a_long_request_follows_its_session_before_its_body_is_sent() {
    let [one, two, three] = three().await;
    share_a_store(&[&one, &two, &three]);
    let balancer = balance(&[&one, &two, &three], &[]).await;
    let refusal = elsewhere(&one, &two);
    one.answers(move |_| Answer::Whole(refusal.clone()));
    let (session, credential) = (format!("{}~s", one.owner), "Authorization: Bearer a\r\n");
    let head = format!("Mcp-Session-Id: {session}\r\n{credential}");
    for length in [65 * 1024, MIB, 20 * MIB] {
        let call = call_of(length);
        for request in [post(&call, &head), post_chunked_with(&call, &head)] {
            let seen = balancer.ask(&request).await;
            assert!(seen.ends_with("sidecar 2"), "{length}: {seen}");
            let query = one.next().await;
            assert!(query.starts_with("HEAD /mcp HTTP/1.1") && body(&query).is_empty(), "{query}");
            assert_eq!(header(&query, LOCATE), Some("home"));
            assert_eq!(header(&query, MARK), Some(one.owner.to_string().as_str()));
            assert_eq!(header(&query, "mcp-session-id"), Some(session.as_str()));
            assert_eq!(header(&query, "authorization"), Some("Bearer a"), "the caller is the same");
            assert!(header(&query, "x-forwarded-for").is_some());
            for absent in ["content-length", "transfer-encoding", "expect"] {
                assert_eq!(header(&query, absent), None, "{absent}");
            }
            let [query, request] = two.take_seen().try_into().expect("a query and the request");
            assert_eq!((header(&query, LOCATE), header(&request, LOCATE)), (Some("home"), None));
            assert!(body(&request) == call, "{length}: another body");
        }
        let seen = post_over_http2(&balancer, &session, call.clone()).await;
        assert_eq!(seen, (200, "sidecar 2".to_owned()), "{length}");
        let query = one.next().await;
        assert_eq!((header(&query, LOCATE), header(&query, "host")), (Some("home"), Some("localhost")));
        let [_, request] = two.take_seen().try_into().expect("a query and the request");
        assert!(body(&request) == call, "{length}: another body");
    }
    assert!(one.take_seen().is_empty() && three.take_seen().is_empty());
}

#[tokio::test]
async fn only_a_long_post_in_a_session_of_a_shared_store_is_preceded_by_a_query() {
    let [one, two, _] = three().await;
    share_a_store(&[&one]);
    let balancer = balance(&[&one, &two], &[]).await;
    let (short, long) = (call_of(1000), call_of(100_000));
    let shared = format!("Mcp-Session-Id: {}~s\r\n", one.owner);
    let alone = format!("Mcp-Session-Id: {}~s\r\n", two.owner);
    let resume = format!("Last-Event-ID: {}\r\n{shared}", one.event_id());
    let forged = format!("{shared}Mcp-Resume-Locate: home\r\n");
    for (request, has_query) in [
        (post(&short, &shared), false),
        (post_chunked_with(&short, &shared), false),
        (post(&short, &forged), false),
        (post(&long, &alone), false),
        (post(&long, ""), false),
        (post(&long, &resume), false),
        (get("/mcp", &shared), false),
        (post(&long, &shared), true),
    ] {
        assert!(balancer.ask(&request).await.starts_with("HTTP/1.1 200"));
        let seen = [one.take_seen(), two.take_seen()].concat();
        let is_query = |request: &&String| header(request, LOCATE).is_some();
        assert_eq!((seen.iter().filter(is_query).count(), seen.len()), (has_query.into(), 1 + usize::from(has_query)));
    }
}

#[tokio::test]
async fn a_long_request_waits_where_its_session_is_taken_over() {
    let [one, two, three] = three().await;
    share_a_store(&[&one, &two, &three]);
    let mut two = two;
    let balancer = balance(&[&one, &two, &three], &[("BALANCE__HEALTH_MS", "86400000")]).await;
    let lost = two.owner.to_string();
    for sidecar in [&one, &three] {
        let (refusal, lost) = (elsewhere(sidecar, &two), lost.clone());
        sidecar.answers(move |request| match header(request, HOME) {
            Some(home) if home == lost => Answer::Whole(ok("taken over")),
            _ => Answer::Whole(refusal.clone()),
        });
    }
    two.stop().await;
    let call = call_of(MIB);
    let seen = balancer.ask(&post(&call, &format!("Mcp-Session-Id: {}~s\r\n", one.owner))).await;
    assert!(seen.starts_with("HTTP/1.1 200") && seen.ends_with("taken over"), "{seen}");
    let mut seen = [one.take_seen(), three.take_seen()].concat();
    seen.retain(|request| header(request, HOME).is_some());
    let [query, request] = seen.try_into().expect("a query and the request");
    assert_eq!((header(&query, HOME), header(&query, LOCATE)), (Some(lost.as_str()), Some("home")));
    assert!(body(&request) == call);
}

#[tokio::test]
async fn a_long_request_for_a_home_that_lives_and_is_not_reached_is_refused_before_its_body() {
    let [one, two, three] = three().await;
    share_a_store(&[&one, &two, &three]);
    let mut one = one;
    let balancer = balance(&[&one, &two, &three], &[("BALANCE__HEALTH_MS", "86400000")]).await;
    for sidecar in [&two, &three] {
        let refusal = elsewhere(sidecar, &one);
        sidecar.answers(move |_| Answer::Whole(refusal.clone()));
    }
    one.stop().await;
    let seen = balancer.ask(&post(&call_of(100_000), &format!("Mcp-Session-Id: {}~s\r\n", one.owner))).await;
    assert!(seen.starts_with("HTTP/1.1 503") && header(&seen, "retry-after") == Some("1"), "{seen}");
    let seen = [two.take_seen(), three.take_seen()].concat();
    assert!(seen.iter().all(|request| request.starts_with("HEAD")), "{seen:?}");
}

#[tokio::test]
async fn a_replica_that_freezes_over_a_query_delays_no_request() {
    let [one, two, three] = three().await;
    share_a_store(&[&one, &two, &three]);
    let balancer = balance(&[&one, &two, &three], &FREEZES).await;
    one.answers(|_| Answer::Begun(String::new()));
    let call = call_of(MIB);
    let mut client = balancer.send(&post(&call, &format!("Mcp-Session-Id: {}~s\r\n", one.owner))).await;
    one.next().await;
    one.reports(None);
    let seen = support::read(&mut client).await.unwrap();
    assert!(seen.starts_with("HTTP/1.1 200"), "{seen}");
    let seen = [two.take_seen(), three.take_seen()].concat();
    assert!(body(seen.last().unwrap()) == call);
    assert!(seen.iter().all(|request| header(request, HOME) == Some(one.owner.to_string().as_str())));
}
