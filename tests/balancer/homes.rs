//! Sessions that have moved from the replica in their name.

use super::support::event_id;
use super::*;

use mcp_resume::protocol::ids::Owner;

const MARK: &str = "mcp-resume-owner";
const HOME: &str = "mcp-resume-home";

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
