//! The balancer by its wire: real sockets, and sidecars that say what a test wants.

// A test's way to fail.
#![allow(clippy::unwrap_used, clippy::panic)]

#[allow(dead_code)]
#[path = "../it/support/pki.rs"]
mod pki;
mod support;
mod tls;

use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http::{Request, Version};
use http_body_util::{BodyExt, Empty, Full};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use support::{Answer, Sidecar, answer, balance, get, header, ok, post, post_chunked, post_chunked_with, report};

const CALL: &str = r#"{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"t"}}"#;

fn resume(token: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":5,"method":"requests/resume","params":{{"resumeToken":"{token}"}}}}"#)
}

async fn three() -> [Sidecar; 3] {
    [Sidecar::start(1).await, Sidecar::start(2).await, Sidecar::start(3).await]
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
    // How evenly is chance: the turns differ, and so does what is still on its way. Whose load counts is a table test.
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

#[tokio::test]
async fn what_another_has_is_sent_there_once_it_is_known_who_is_where() {
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
    // A body of no known length is not looked into: a sidecar reads it, and says that it is not its own.
    for _ in 0..6 {
        let body = resume(&two.token());
        let seen = balancer.ask(&post_chunked(&body)).await;
        assert!(seen.ends_with("sidecar 2"), "{seen}");
        assert!(two.next().await.contains(&body));
    }
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
async fn a_call_whose_sidecar_cannot_reach_its_server_goes_to_another() {
    let [one, two, _] = three().await;
    let balancer = balance(&[&one, &two], &[("BALANCE__HEALTH_MS", "86400000")]).await;
    let unreachable = answer("502 Bad Gateway", "Mcp-Resume-Owner: 00000001\r\n", "unreachable");
    one.answers(move |_| Answer::Whole(unreachable.clone()));
    for _ in 0..8 {
        let seen = balancer.ask(&post(CALL, "")).await;
        assert!(seen.ends_with("sidecar 2"), "{seen}");
    }
    assert!(one.take_seen().len() < 5, "one that fails at once draws no more than others");
    let session = "Mcp-Session-Id: 00000001~s\r\n";
    let seen = balancer.ask(&post(CALL, session)).await;
    assert!(seen.starts_with("HTTP/1.1 502") && seen.ends_with("unreachable"), "{seen}");
    assert_eq!(header(&seen, "mcp-resume-owner"), None);
    // With no other sidecar, the response of the only one is passed on.
    let alone = balance(&[&one], &[]).await;
    let seen = alone.ask(&post(CALL, "")).await;
    assert!(seen.starts_with("HTTP/1.1 502") && seen.ends_with("unreachable"), "{seen}");
}

#[tokio::test]
async fn a_sidecar_whose_server_only_fails_gets_no_more_new_calls() {
    let [one, two, _] = three().await;
    let settings = [("BALANCE__HEALTH_MS", "86400000"), ("BALANCE__EJECT_AFTER", "2")];
    let balancer = balance(&[&one, &two], &settings).await;
    let broken = answer("502 Bad Gateway", "", "broke off");
    one.answers(move |_| Answer::Whole(broken.clone()));
    let mut failed = 0;
    for _ in 0..40 {
        failed += usize::from(balancer.ask(&post(CALL, "")).await.starts_with("HTTP/1.1 502"));
    }
    assert!(failed <= 2, "{failed} of 40");
    // What names it still goes there; a few of those, and it is out.
    let session = "Mcp-Session-Id: 00000001~s\r\n";
    while balancer.metric("ejections_total").await == 0 {
        assert!(balancer.ask(&post(CALL, session)).await.starts_with("HTTP/1.1 502"));
    }
    balancer.until(&one, "ejected").await;
}

#[tokio::test]
async fn a_sidecar_whose_server_only_times_out_gets_no_more_new_calls_unless_the_calls_are_the_cause() {
    let one = Sidecar::start(1).await;
    let settings = [("BALANCE__HEALTH_MS", "86400000"), ("BALANCE__EJECT_AFTER", "2")];
    let balancer = balance(&[&one], &settings).await;
    let session = "Mcp-Session-Id: 00000001~s\r\n";
    let of_the_call = "Mcp-Resume-Failure: call\r\n";
    for (status, mark, condition) in [
        ("504 Gateway Timeout", of_the_call, "ready"),
        ("503 Service Unavailable", of_the_call, "ready"),
        ("504 Gateway Timeout", "", "ejected"),
    ] {
        let late = answer(status, mark, "late");
        one.answers(move |_| Answer::Whole(late.clone()));
        for _ in 0..3 {
            let seen = balancer.ask(&post(CALL, session)).await;
            assert!(seen.starts_with(&format!("HTTP/1.1 {status}")) && seen.ends_with("late"), "{seen}");
            assert_eq!(header(&seen, "mcp-resume-failure"), None);
        }
        balancer.until(&one, condition).await;
    }
}

#[tokio::test]
async fn failed_gets_and_refusals_say_nothing_of_a_sidecars_server() {
    let one = Sidecar::start(1).await;
    let settings = [("BALANCE__HEALTH_MS", "86400000"), ("BALANCE__EJECT_AFTER", "2")];
    let balancer = balance(&[&one], &settings).await;
    let session = "Mcp-Session-Id: 00000001~s\r\n";
    let refused = answer("503 Service Unavailable", "Mcp-Resume-Owner: 00000001\r\n", "draining");
    let failed = answer("502 Bad Gateway", "", "broke off");
    for (request, given) in [(post(CALL, session), refused), (get("/mcp", session), failed.clone())] {
        one.answers(move |_| Answer::Whole(given.clone()));
        for _ in 0..5 {
            assert!(balancer.ask(&request).await.starts_with("HTTP/1.1 50"));
        }
        balancer.until(&one, "ready").await;
        assert_eq!(balancer.metric("ejections_total").await, 0, "{request}");
    }
    // The same answer to a call does.
    one.answers(move |_| Answer::Whole(failed.clone()));
    for _ in 0..2 {
        balancer.ask(&post(CALL, session)).await;
    }
    balancer.until(&one, "ejected").await;
}

#[tokio::test]
async fn a_servers_own_421_and_503_are_its_own() {
    let one = Sidecar::start(1).await;
    let balancer = balance(&[&one], &[]).await;
    for status in ["421 Misdirected Request", "503 Service Unavailable"] {
        let text = answer(status, "X-Own: 1\r\n", "the server's");
        one.answers(move |_| Answer::Whole(text.clone()));
        let seen = balancer.ask(&post(CALL, "")).await;
        assert!(seen.starts_with(&format!("HTTP/1.1 {status}")) && seen.ends_with("the server's"), "{seen}");
        assert_eq!(header(&seen, "x-own"), Some("1"));
        assert_eq!(one.take_seen().len(), 1, "sent once");
    }
}

#[tokio::test]
async fn a_call_that_meets_a_drain_goes_elsewhere_and_one_of_a_session_is_told() {
    let [one, two, _] = three().await;
    let balancer = balance(&[&one, &two], &[("BALANCE__HEALTH_MS", "86400000")]).await;
    let draining = answer("503 Service Unavailable", "Mcp-Resume-Owner: 00000001\r\n", "draining");
    one.answers(move |_| Answer::Whole(draining.clone()));
    for _ in 0..6 {
        let seen = balancer.ask(&post(CALL, "")).await;
        assert!(seen.ends_with("sidecar 2"), "{seen}");
    }
    let seen = balancer.ask(&post(CALL, "Mcp-Session-Id: 00000001~s\r\n")).await;
    assert!(seen.starts_with("HTTP/1.1 503") && seen.ends_with("draining"), "{seen}");
    assert_eq!(header(&seen, "mcp-resume-owner"), None, "clients need not know");
}

#[tokio::test]
async fn one_that_drains_gets_what_it_has_and_no_new_calls() {
    let [one, two, _] = three().await;
    let balancer = balance(&[&one, &two], &[("BALANCE__HEALTH_MS", "50")]).await;
    let mut draining = report(one.owner, "memory", false);
    draining["draining"] = true.into();
    one.reports(Some(draining));
    balancer.until(&one, "closing").await;
    for _ in 0..4 {
        assert!(balancer.ask(&post(CALL, "")).await.ends_with("sidecar 2"));
    }
    let seen = balancer.ask(&get("/mcp", &format!("Last-Event-ID: {}\r\n", one.event_id()))).await;
    assert!(seen.ends_with("sidecar 1"), "{seen}");
}

#[tokio::test]
async fn a_balancer_is_ready_as_long_as_calls_run_behind_it() {
    let mut one = Sidecar::start(1).await;
    one.reports(Some(report(one.owner, "memory", false)));
    let balancer = balance(&[&one], &[("BALANCE__HEALTH_MS", "50"), ("BALANCE__UNHEALTHY_AFTER", "1")]).await;
    balancer.until(&one, "closing").await;
    let said = balancer.page("/readyz").await;
    assert!(said.starts_with("HTTP/1.1 200") && said.contains("no replica takes new calls"), "{said}");
    one.stop().await;
    balancer.until(&one, "down").await;
    assert!(balancer.page("/readyz").await.starts_with("HTTP/1.1 503"));
}

#[tokio::test]
async fn a_request_that_names_a_sidecar_that_is_down_does_not_wait_for_it() {
    let [mut one, two, _] = three().await;
    let balancer = balance(&[&one, &two], &[("BALANCE__HEALTH_MS", "50"), ("BALANCE__UNHEALTHY_AFTER", "1")]).await;
    one.stop().await;
    balancer.until(&one, "down").await;
    for _ in 0..3 {
        let seen = balancer.ask(&get("/mcp", &format!("Last-Event-ID: {}\r\n", one.event_id()))).await;
        assert!(seen.ends_with("sidecar 2"), "{seen}");
    }
    assert_eq!(balancer.metric("rounds_total").await, 0);
}

#[tokio::test]
async fn a_request_without_a_sent_byte_goes_to_another_sidecar() {
    let [mut one, two, _] = three().await;
    let balancer = balance(&[&one, &two], &[("BALANCE__HEALTH_MS", "86400000")]).await;
    one.stop().await;
    for _ in 0..8 {
        assert!(balancer.ask(&post(CALL, "")).await.ends_with("sidecar 2"));
    }
    assert!(two.take_seen().iter().all(|request| request.ends_with(CALL)), "with its body");
}

#[tokio::test]
async fn a_call_of_which_bytes_were_taken_is_never_sent_again() {
    let [one, two, _] = three().await;
    let balancer = balance(&[&one, &two], &[]).await;
    let came = std::sync::Arc::new(AtomicUsize::new(0));
    for sidecar in [&one, &two] {
        let came = came.clone();
        sidecar.answers(move |_| {
            came.fetch_add(1, Ordering::Relaxed);
            Answer::Nothing
        });
    }
    let seen = balancer.ask(&post(CALL, "")).await;
    assert!(seen.starts_with("HTTP/1.1 502"), "{seen}");
    let error: serde_json::Value = serde_json::from_str(seen.split("\r\n\r\n").nth(1).unwrap()).unwrap();
    assert_eq!((&error["id"], &error["error"]["data"]["mayHaveRun"]), (&5.into(), &true.into()), "{seen}");
    assert_eq!(came.load(Ordering::Relaxed), 1);
    assert_eq!(balancer.metric("failures_total{code=\"replica_broke\"}").await, 1);
}

#[tokio::test]
async fn an_error_with_the_requests_id_is_sent_when_no_sidecar_is_left() {
    let mut one = Sidecar::start(1).await;
    let balancer = balance(&[&one], &[]).await;
    one.stop().await;
    let seen = balancer.ask(&post(CALL, "")).await;
    assert!(seen.starts_with("HTTP/1.1 503") && seen.contains("\"id\":5"), "{seen}");
    assert!(seen.contains("\"mayHaveRun\":false") && header(&seen, "retry-after") == Some("1"), "{seen}");
    assert_eq!(balancer.metric("failures_total{code=\"no_replica\"}").await, 1);
}

#[tokio::test]
async fn what_is_gone_with_its_owner_is_answered_honestly() {
    for (store, expected) in
        [("memory", "sidecar 2"), ("redis", "sidecar 2"), ("disk", "no replica takes the request now")]
    {
        let [mut one, two, _] = three().await;
        for sidecar in [&one, &two] {
            sidecar.reports(Some(report(sidecar.owner, store, true)));
        }
        let settings = [("BALANCE__HEALTH_MS", "50"), ("BALANCE__UNHEALTHY_AFTER", "1")];
        let balancer = balance(&[&one, &two], &settings).await;
        one.stop().await;
        let seen = balancer.ask(&get("/mcp", &format!("Last-Event-ID: {}\r\n", one.event_id()))).await;
        assert!(seen.contains(expected), "{store}: {seen}");
        // Its owner is the one that answered, so it is not sent on.
        assert!(two.take_seen().iter().all(|request| header(request, "mcp-resume-owner").is_none()));
    }
}

#[tokio::test]
async fn an_answer_that_waits_for_one_that_does_not_answer_any_more_is_cut() {
    let one = Sidecar::start(1).await;
    one.answers(|_| Answer::Begun("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n".to_owned()));
    let balancer = balance(&[&one], &FREEZES).await;
    let mut reading = balancer.send(&post(CALL, "")).await;
    let mut seen = Vec::new();
    while !seen.ends_with(b"data: 1\n\n") && !seen.ends_with(b"data: 1\n\n\r\n") {
        assert!(reading.read_buf(&mut seen).await.unwrap() > 0);
    }
    one.reports(None);
    let mut rest = Vec::new();
    let _ = reading.read_to_end(&mut rest).await;
    assert!(!rest.ends_with(b"0\r\n\r\n"), "no clean end: the client comes back");
    assert!(balancer.page("/metrics").await.contains("mcp_resume_balancer_cuts_total 1"));
    balancer.until(&one, "down").await;
    assert!(balancer.page("/readyz").await.starts_with("HTTP/1.1 503"));
}

const FREEZES: [(&str, &str); 2] = [("BALANCE__HEALTH_MS", "50"), ("BALANCE__HEALTH_TIMEOUT_MS", "50")];

/// From now on it takes everything, and says nothing.
fn freeze(sidecar: &Sidecar) {
    sidecar.answers(|_| Answer::Begun(String::new()));
    sidecar.reports(None);
}

#[tokio::test]
async fn a_call_that_waits_for_one_that_does_not_answer_any_more_is_told_so() {
    for is_reused in [false, true] {
        let one = Sidecar::start(1).await;
        let balancer = balance(&[&one], &FREEZES).await;
        if is_reused {
            balancer.ask(&post(CALL, "")).await;
        }
        freeze(&one);
        let seen = balancer.ask(&post(CALL, "")).await;
        assert!(seen.starts_with("HTTP/1.1 502") && seen.contains("\"id\":5"), "{seen}");
        assert!(seen.contains("\"mayHaveRun\":true"), "{seen}");
        assert_eq!(balancer.metric("failures_total{code=\"replica_broke\"}").await, 1);
        assert_eq!(balancer.metric("cuts_total").await, 0);
    }
}

#[tokio::test]
async fn a_call_over_http2_is_told_so_as_well() {
    let one = Sidecar::start(1).await;
    let balancer = balance(&[&one], &FREEZES).await;
    freeze(&one);
    let io = TokioIo::new(TcpStream::connect(balancer.address).await.unwrap());
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), io).await.unwrap();
    tokio::spawn(connection);
    let request = Request::post("http://localhost/mcp").header("content-type", "application/json");
    let request = request.header("content-length", CALL.len());
    let response = sender.send_request(request.body(Full::<Bytes>::from(CALL)).unwrap()).await.unwrap();
    assert_eq!(response.status(), 502);
    let body = response.into_body().collect().await.unwrap().to_bytes();
    assert!(std::str::from_utf8(&body).unwrap().contains("\"id\":5"), "{body:?}");
}

#[tokio::test]
async fn a_resume_that_waits_for_one_that_does_not_answer_any_more_goes_to_another() {
    let [one, two, _] = three().await;
    for sidecar in [&one, &two] {
        sidecar.reports(Some(report(sidecar.owner, "redis", true)));
    }
    let balancer = balance(&[&one, &two], &FREEZES).await;
    freeze(&one);
    let seen = balancer.ask(&get("/mcp", &format!("Last-Event-ID: {}\r\n", one.event_id()))).await;
    assert!(seen.ends_with("sidecar 2"), "{seen}");
}

#[tokio::test]
async fn two_of_one_name_are_caught() {
    let [one, two, _] = three().await;
    let mut same = report(one.owner, "memory", true);
    same["instance"] = "ffffffffffffffff".into();
    two.reports(Some(same));
    let balancer = balance(&[&one, &two], &[("BALANCE__HEALTH_MS", "50")]).await;
    assert!(balancer.page("/metrics").await.contains("mcp_resume_balancer_doubled_owners 1"));
}

#[tokio::test]
async fn who_the_client_is_is_said_by_those_who_are_trusted() {
    let one = Sidecar::start(1).await;
    let forwarded = "X-Forwarded-For: 192.0.2.7\r\nX-Forwarded-Proto: https\r\n";
    let others =
        ["Forwarded", "X-Forwarded-Port", "X-Forwarded-Prefix", "X-Forwarded-User", "X-Forwarded-Ssl", "X-Real-IP"];
    let forwarded = others.iter().fold(forwarded.to_owned(), |all, name| format!("{all}{name}: a\r\n{name}: b\r\n"));
    for (trusted, address, scheme) in
        [("", "127.0.0.1", "http"), ("127.0.0.1,::1/128", "192.0.2.7, 127.0.0.1", "https")]
    {
        let balancer = balance(&[&one], &[("LISTEN__TRUSTED_PROXIES", trusted)]).await;
        let answer = balancer.ask(&post(CALL, &forwarded)).await;
        assert!(answer.ends_with("sidecar 1"), "{answer}");
        let came = one.next().await;
        assert_eq!(header(&came, "x-forwarded-for"), Some(address), "{came}");
        assert_eq!(header(&came, "x-forwarded-proto"), Some(scheme));
        for name in others.map(str::to_ascii_lowercase) {
            assert_eq!(header(&came, &name).is_some(), !trusted.is_empty(), "{name}");
        }
    }
    let settings = [("LISTEN__TRUSTED_PROXIES", "127.0.0.0/8"), ("BALANCE__PROXY_PROTOCOL", "true")];
    let balancer = balance(&[&one], &settings).await;
    let mut io = TcpStream::connect(balancer.address).await.unwrap();
    io.write_all(b"PROXY TCP4 198.51.100.9 127.0.0.1 4000 80\r\n").await.unwrap();
    io.write_all(post(CALL, "").as_bytes()).await.unwrap();
    assert!(support::read(&mut io).await.unwrap().ends_with("sidecar 1"));
    assert_eq!(header(&one.next().await, "x-forwarded-for"), Some("198.51.100.9"));
}

#[tokio::test]
async fn one_address_asks_no_more_often_than_it_may() {
    let one = Sidecar::start(1).await;
    let balancer = balance(&[&one], &[("BALANCE__REQUESTS_PER_SEC", "3")]).await;
    let mut refused = 0;
    for _ in 0..20 {
        let seen = balancer.ask(&post(CALL, "")).await;
        if seen.starts_with("HTTP/1.1 429") {
            assert!(header(&seen, "retry-after") == Some("1") && seen.contains("too many requests"), "{seen}");
            refused += 1;
        }
    }
    assert!(refused > 0 && one.take_seen().len() == 20 - refused);
    assert_eq!(balancer.metric("failures_total{code=\"too_many_requests\"}").await, refused);
}

#[tokio::test]
async fn what_sidecars_answer_is_no_failure_of_the_balancers() {
    let one = Sidecar::start(1).await;
    let balancer = balance(&[&one], &[]).await;
    one.answers(|_| Answer::Whole(answer("503 Service Unavailable", "", "{}")));
    assert!(balancer.ask(&post(CALL, "")).await.starts_with("HTTP/1.1 503"));
    for code in ["no_replica", "replica_broke", "too_many_requests", "bad_request", "body_too_slow", "body_too_large"] {
        assert_eq!(balancer.metric(&format!("failures_total{{code=\"{code}\"}}")).await, 0, "there, and 0");
    }
}

#[tokio::test]
async fn one_connection_too_many_is_closed_and_counted() {
    let one = Sidecar::start(1).await;
    let balancer = balance(&[&one], &[("LIMITS__CONNECTIONS", "1")]).await;
    let mut first = balancer.send(&post(CALL, "")).await;
    assert!(support::read(&mut first).await.unwrap().ends_with("sidecar 1"));
    let mut second = TcpStream::connect(balancer.address).await.unwrap();
    assert_eq!(second.read(&mut [0]).await.unwrap_or(0), 0);
    assert_eq!(balancer.metric("connections_refused_total").await, 1);
    assert_eq!(balancer.metric("connections_max").await, 1);
    assert_eq!(balancer.metric("connections").await, 1);
}

#[tokio::test]
async fn the_admin_listener_has_places_of_its_own() {
    let one = Sidecar::start(1).await;
    let balancer = balance(&[&one], &[("LIMITS__CONNECTIONS", "1")]).await;
    let asked = async || {
        let mut io = TcpStream::connect(balancer.admin).await.unwrap();
        io.write_all(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
        let seen = support::read(&mut io).await.expect("an answer");
        (io, seen)
    };
    let mut held = Vec::new();
    for _ in 0..256 {
        let (io, seen) = asked().await;
        assert!(seen.starts_with("HTTP/1.1 200"), "{seen}");
        held.push(io);
    }
    let (_, seen) = asked().await;
    assert!(seen.starts_with("HTTP/1.1 503"), "{seen}");
    assert!(balancer.ask(&post(CALL, "")).await.ends_with("sidecar 1"));
}

#[tokio::test]
async fn one_that_has_never_said_who_it_is_is_counted_and_listed() {
    let [one, two, _] = three().await;
    two.reports(None);
    let balancer = balance(&[&one, &two], &FREEZES).await;
    balancer.until(&two, "unknown").await;
    assert_eq!(balancer.metric("replicas{condition=\"unknown\"}").await, 1);
    two.reports(Some(report(two.owner, "memory", true)));
    balancer.until(&two, "ready").await;
    two.reports(None);
    balancer.until(&two, "down").await;
    assert_eq!(balancer.metric("replicas{condition=\"unknown\"}").await, 0, "one that went down is known");
}

#[tokio::test]
async fn http2_is_spoken_with_clients() {
    let one = Sidecar::start(1).await;
    let balancer = balance(&[&one], &[]).await;
    let io = TokioIo::new(TcpStream::connect(balancer.address).await.unwrap());
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), io).await.unwrap();
    tokio::spawn(connection);
    for _ in 0..3 {
        let request = Request::get("http://localhost/mcp").header("last-event-id", one.event_id());
        let response = sender.send_request(request.body(Empty::<Bytes>::new()).unwrap()).await.unwrap();
        assert_eq!(response.version(), Version::HTTP_2);
        assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "sidecar 1");
    }
}

#[tokio::test]
async fn the_identity_of_a_sidecar_is_not_shown_to_clients() {
    let one = Sidecar::start(1).await;
    let balancer = balance(&[&one], &[]).await;
    let seen = balancer.ask(&get("/.well-known/mcp-resume", "")).await;
    assert!(seen.starts_with("HTTP/1.1 404"), "{seen}");
    assert!(one.take_seen().is_empty());
}
