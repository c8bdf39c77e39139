//! Choice of the sidecar: identifiers lead to their owner, new calls are spread.

use super::*;

fn resume(token: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":5,"method":"requests/resume","params":{{"resumeToken":"{token}"}}}}"#)
}

fn poll(handle: impl std::fmt::Display) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":5,"method":"tasks/get","params":{{"taskId":"mrt1.{handle}"}}}}"#)
}

/// Answers for the call that waits at the replica.
fn answers(owner: impl std::fmt::Display) -> String {
    let state = format!("{owner}~{}", "7".repeat(32));
    format!(r#"{{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{{"name":"t","requestState":"{state}"}}}}"#)
}

#[tokio::test]
async fn every_identifier_of_a_stream_leads_to_its_owner() {
    let [one, two, three] = three().await;
    let balancer = balance(&[&one, &two, &three], &[]).await;
    for sidecar in [&one, &two, &three] {
        let number = sidecar.owner.0;
        let session = format!("Mcp-Session-Id: {}~s\r\n", sidecar.owner);
        for request in [
            get("/mcp", &format!("Last-Event-ID: {}\r\n", sidecar.event_id())),
            get(&format!("/mcp?mcp-stream={}", sidecar.handle()), ""),
            post(&resume(&sidecar.token()), ""),
            post(&poll(sidecar.handle()), ""),
            post(&answers(sidecar.owner), ""),
            post("{}", &format!("Mcp-Method: tasks/get\r\nMcp-Name: mrt1.{}\r\n", sidecar.handle())),
            post(CALL, &session),
            get("/mcp", &session),
            format!("DELETE /mcp HTTP/1.1\r\nHost: localhost\r\n{session}\r\n"),
            // A client's own word on where it goes counts for nothing.
            post(CALL, &format!("{session}Mcp-Resume-Owner: ffffffff\r\n")),
        ] {
            let seen = balancer.ask(&request).await;
            assert!(seen.ends_with(&format!("sidecar {number}")), "{request}{seen}");
            let [came] = &sidecar.take_seen()[..] else { panic!("one request") };
            assert_eq!(header(came, "mcp-resume-owner"), Some(sidecar.owner.to_string().as_str()), "{came}");
            assert_eq!(came.matches("wner:").count(), 1, "{came}");
            assert_eq!(header(came, "host"), Some("localhost"));
            assert_eq!(came.split("\r\n\r\n").nth(1), request.split("\r\n\r\n").nth(1), "the body as it was");
        }
    }
}

#[tokio::test]
async fn new_calls_are_spread_and_those_of_one_key_are_not() {
    let [one, two, three] = three().await;
    let sidecars = [&one, &two, &three];
    let (balancer, other) = (balance(&sidecars, &[]).await, balance(&sidecars, &[]).await);
    for _ in 0..30 {
        balancer.ask(&post(CALL, "")).await;
    }
    // How evenly is chance: the turns differ, and so does what is still on its way. Whose load
    // counts is a table test.
    for sidecar in sidecars {
        assert!(!sidecar.take_seen().is_empty());
    }
    for key in 0..20 {
        let request = post(CALL, &format!("Idempotency-Key: {key}\r\n"));
        let first = balancer.ask(&request).await;
        // Heads have the time in them.
        let body = first.rsplit("\r\n\r\n").next().expect("a body");
        assert!(body.starts_with("sidecar "), "{first}");
        assert!(balancer.ask(&request).await.ends_with(body));
        assert!(other.ask(&request).await.ends_with(body), "every balancer decides alike");
    }
    assert!(sidecars.iter().all(|sidecar| !sidecar.take_seen().is_empty()));
}

/// A call of 2026-07-28 by the caller of this token, which wants progress under another number each
/// time.
fn call_by(token: &str, number: usize) -> String {
    let head =
        format!("MCP-Protocol-Version: 2026-07-28\r\nAuthorization: Bearer {token}\r\nIdempotency-Key: {number}\r\n");
    post(CALL, &head)
}

/// Returns what a sidecar reports that keeps a session for each caller.
fn keeps_callers(sidecar: &Sidecar) -> serde_json::Value {
    let mut report = report(sidecar.owner, "memory", true);
    report["bridge"] = true.into();
    report
}

#[tokio::test]
async fn requests_of_one_caller_go_to_one_sidecar_where_these_keep_callers() {
    let [one, two, three] = three().await;
    let sidecars = [&one, &two, &three];
    for sidecar in sidecars {
        sidecar.reports(Some(keeps_callers(sidecar)));
    }
    let (balancer, other) = (balance(&sidecars, &[]).await, balance(&sidecars, &[]).await);
    let body = |response: String| response.rsplit("\r\n\r\n").next().expect("a body").to_owned();
    let mut chosen = std::collections::BTreeSet::new();
    for caller in 0..20 {
        let first = body(balancer.ask(&call_by(&format!("token-{caller}"), 0)).await);
        for number in 1..4 {
            let balancer = if number == 3 { &other } else { &balancer };
            assert_eq!(body(balancer.ask(&call_by(&format!("token-{caller}"), number)).await), first);
        }
        chosen.insert(first);
    }
    assert_eq!(chosen.len(), 3, "callers are spread");
    // A request that names an owner goes there, and other callers are no concern.
    let named = answers(two.owner);
    let head = "MCP-Protocol-Version: 2026-07-28\r\nAuthorization: Bearer token-1\r\n";
    for _ in 0..4 {
        assert!(balancer.ask(&post(&named, head)).await.ends_with("sidecar 2"));
    }
    for head in ["MCP-Protocol-Version: 2026-07-28\r\n", "Authorization: Bearer token-1\r\n"] {
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..30 {
            seen.insert(body(balancer.ask(&post(CALL, head)).await));
        }
        assert!(seen.len() > 1, "the least loaded: {head}");
    }
}

#[tokio::test]
async fn where_no_sidecar_keeps_callers_their_requests_are_spread() {
    let [one, two, three] = three().await;
    let balancer = balance(&[&one, &two, &three], &[]).await;
    for number in 0..30 {
        balancer.ask(&call_by("token", number)).await;
    }
    for sidecar in [&one, &two, &three] {
        assert!(!sidecar.take_seen().is_empty());
    }
}

#[tokio::test]
async fn a_caller_is_identified_as_configured() {
    let [one, two, three] = three().await;
    let sidecars = [&one, &two, &three];
    for sidecar in sidecars {
        sidecar.reports(Some(keeps_callers(sidecar)));
    }
    let balancer = balance(&sidecars, &[("AUTH__PRINCIPAL", "header:X-User")]).await;
    let mut seen = std::collections::BTreeSet::new();
    for token in 0..20 {
        let head = format!("MCP-Protocol-Version: 2026-07-28\r\nAuthorization: Bearer {token}\r\nX-User: one\r\n");
        let response = balancer.ask(&post(CALL, &head)).await;
        seen.insert(response.rsplit("\r\n\r\n").next().expect("a body").to_owned());
    }
    assert_eq!(seen.len(), 1);
}

/// A caller loses its session with its sidecar, and nothing more.
#[tokio::test]
async fn another_sidecar_takes_the_callers_of_one_that_is_down() {
    let [mut one, mut two, _] = three().await;
    for sidecar in [&one, &two] {
        sidecar.reports(Some(keeps_callers(sidecar)));
    }
    let balancer = balance(&[&one, &two], &FREEZES).await;
    let is_first = balancer.ask(&call_by("token", 0)).await.ends_with("sidecar 1");
    let (gone, other) = if is_first { (&mut one, 2) } else { (&mut two, 1) };
    gone.stop().await;
    balancer.until(gone, "down").await;
    assert!(balancer.ask(&call_by("token", 1)).await.ends_with(&format!("sidecar {other}")));
}

#[tokio::test]
async fn a_misdirected_request_is_sent_to_its_owner_once_the_identities_are_known() {
    let [one, two, _] = three().await;
    let balancer = balance(&[&one, &two], &[]).await;
    // They have changed places since they were asked, as pods do.
    let misdirected = |own: &str| answer("421 Misdirected Request", &format!("Mcp-Resume-Owner: {own}\r\n"), "{}");
    let (first, second) = (misdirected(&two.owner.to_string()), misdirected(&one.owner.to_string()));
    let (of_one, of_two) = (one.owner.to_string(), two.owner.to_string());
    one.answers(move |request| match header(request, "mcp-resume-owner") {
        Some(mark) if mark == of_two => Answer::Whole(ok("it is here")),
        _ => Answer::Whole(first.clone()),
    });
    two.answers(move |request| match header(request, "mcp-resume-owner") {
        Some(mark) if mark == of_one => Answer::Whole(ok("it is here")),
        _ => Answer::Whole(second.clone()),
    });
    one.reports(Some(report(two.owner, "memory", true)));
    two.reports(Some(report(one.owner, "memory", true)));
    let seen = balancer.ask(&post(&resume(&one.token()), "")).await;
    assert!(seen.ends_with("it is here") && seen.starts_with("HTTP/1.1 200"), "{seen}");
    assert!(balancer.page("/metrics").await.contains("sent_again_total{reason=\"misdirected\"} 1"));
}

#[tokio::test]
async fn a_token_in_a_body_that_is_not_read_leads_to_its_owner() {
    let [one, two, three] = three().await;
    for sidecar in [&one, &three] {
        let own = sidecar.owner.to_string();
        let misdirected = answer("421 Misdirected Request", &format!("Mcp-Resume-Owner: {own}\r\n"), "{}");
        sidecar.answers(move |_| Answer::Whole(misdirected.clone()));
    }
    let balancer = balance(&[&one, &two, &three], &[]).await;
    // A body of no known length is not looked into: a sidecar reads it, and says that it is not its
    // own.
    for _ in 0..6 {
        for body in [resume(&two.token()), answers(two.owner)] {
            let seen = balancer.ask(&post_chunked(&body)).await;
            assert!(seen.ends_with("sidecar 2"), "{seen}");
            assert!(two.next().await.contains(&body));
        }
    }
}

/// That one says that the call is gone.
#[tokio::test]
async fn answers_for_a_call_whose_replica_is_down_go_to_another_unmarked() {
    let [one, mut two, _] = three().await;
    let balancer = balance(&[&one, &two], &FREEZES).await;
    two.stop().await;
    balancer.until(&two, "down").await;
    let seen = balancer.ask(&post(&answers(two.owner), "")).await;
    assert!(seen.ends_with("sidecar 1"), "{seen}");
    assert_eq!(header(&one.next().await, "mcp-resume-owner"), None);
    // A state of that form may also be the server's own.
    let seen = balancer.ask(&post(&answers("0badcafe"), "")).await;
    assert!(seen.ends_with("sidecar 1"), "{seen}");
}

#[tokio::test]
async fn a_token_leads_to_its_owner_from_within_another_replicas_session() {
    let [one, two, three] = three().await;
    let balancer = balance(&[&one, &two, &three], &[]).await;
    let session = format!("Mcp-Session-Id: {}~s\r\n", one.owner);
    let body = resume(&two.token());
    for request in [post(&body, &session), post_chunked_with(&body, &session)] {
        let seen = balancer.ask(&request).await;
        assert!(seen.ends_with("sidecar 2"), "{seen}");
    }
}

#[tokio::test]
async fn a_long_body_of_unknown_length_arrives_whole_and_its_token_is_found_as_far_as_it_is_kept() {
    let [one, two, three] = three().await;
    let balancer = balance(&[&one, &two, &three], &[]).await;
    let names_two = two.owner.to_string();
    for sidecar in [&one, &three] {
        let misdirected = answer("421 Misdirected Request", &format!("Mcp-Resume-Owner: {}\r\n", sidecar.owner), "{}");
        sidecar.answers(move |request| match request.contains("resumeToken") {
            true => Answer::Whole(misdirected.clone()),
            false => Answer::Whole(ok("no token")),
        });
    }
    two.answers(move |request| match header(request, "mcp-resume-owner") {
        Some(mark) if mark == names_two => Answer::Whole(ok("it is here")),
        _ => Answer::Whole(ok("no token")),
    });
    let session = format!("Mcp-Session-Id: {}~s\r\n", one.owner);
    let padded = |length: usize, rest: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{{"name":"t","arguments":{{"a":"{}"{rest}}}}}}}"#,
            "x".repeat(length)
        )
    };
    let seen = balancer.ask(&post_chunked_with("", &session).replace("0\r\n\r\n0\r\n\r\n", "0\r\n\r\n")).await;
    assert!(seen.ends_with("no token"), "{seen}");
    one.next().await;
    for length in [100, 20_000, 33_000, 60_000, 70_000, 300_000] {
        let body = padded(length, "");
        let seen = balancer.ask(&post_chunked_with(&body, &session)).await;
        assert!(seen.ends_with("no token"), "{length}: {seen}");
        assert!(one.next().await.contains(&body), "{length}");
    }
    let token = format!(r#","resumeToken":"{}""#, two.token());
    for length in [100, 20_000, 33_000, 60_000] {
        let seen = balancer.ask(&post_chunked_with(&padded(length, &token), &session)).await;
        assert!(seen.ends_with("it is here"), "{length}: {seen}");
    }
    // Beyond that it is said once and for all: to come back later would change nothing.
    for request in [post_chunked_with(&padded(300_000, &token), &session), post(&padded(300_000, &token), &session)] {
        let seen = balancer.ask(&request).await;
        assert!(seen.starts_with("HTTP/1.1 413") && seen.contains("\"mayHaveRun\":false"), "{seen}");
        assert_eq!(header(&seen, "retry-after"), None);
    }
}

#[tokio::test]
async fn two_sidecars_of_one_name_are_reported() {
    let [one, two, _] = three().await;
    let mut same = report(one.owner, "memory", true);
    same["instance"] = "ffffffffffffffff".into();
    two.reports(Some(same));
    let balancer = balance(&[&one, &two], &[("BALANCE__HEALTH_MS", "50")]).await;
    assert!(balancer.page("/metrics").await.contains("mcp_resume_balancer_doubled_owners 1"));
}

#[tokio::test]
async fn a_sidecar_of_unknown_identity_is_counted_and_listed() {
    let [one, two, _] = three().await;
    two.reports(None);
    let balancer = balance(&[&one, &two], &[("BALANCE__HEALTH_MS", "50")]).await;
    balancer.until(&one, "ready").await;
    balancer.until(&two, "unknown").await;
    assert_eq!(balancer.metric("replicas{condition=\"unknown\"}").await, 1);
    two.reports(Some(report(two.owner, "memory", true)));
    balancer.until(&two, "ready").await;
    two.reports(None);
    balancer.until(&two, "down").await;
    assert_eq!(balancer.metric("replicas{condition=\"unknown\"}").await, 0, "one that went down is known");
}

#[tokio::test]
async fn the_identity_of_a_sidecar_is_not_shown_to_clients() {
    let one = Sidecar::start(1).await;
    let balancer = balance(&[&one], &[]).await;
    let seen = balancer.ask(&get("/.well-known/mcp-resume", "")).await;
    assert!(seen.starts_with("HTTP/1.1 404"), "{seen}");
    assert!(one.take_seen().is_empty());
}
