//! Sidecars that are down, drain, fail, or no longer answer.

use super::*;

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
async fn failed_gets_and_refusals_are_no_sign_of_a_sidecars_server() {
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
async fn a_call_at_a_draining_sidecar_goes_to_another_and_one_of_a_session_is_refused() {
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
async fn a_draining_sidecar_gets_requests_of_its_streams_and_no_new_calls() {
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
    let balancer = balance(&[&one], &STOPS).await;
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
    let balancer = balance(&[&one, &two], &STOPS).await;
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
async fn a_stream_whose_owner_is_gone_is_reported_lost() {
    for (store, expected) in
        [("memory", "sidecar 2"), ("redis", "sidecar 2"), ("disk", "no replica takes the request now")]
    {
        let [mut one, two, _] = three().await;
        for sidecar in [&one, &two] {
            sidecar.reports(Some(report(sidecar.owner, store, true)));
        }
        let balancer = balance(&[&one, &two], &STOPS).await;
        one.stop().await;
        let seen = balancer.ask(&get("/mcp", &format!("Last-Event-ID: {}\r\n", one.event_id()))).await;
        assert!(seen.contains(expected), "{store}: {seen}");
        // Its owner is the one that answered, so it is not sent on.
        assert!(two.take_seen().iter().all(|request| header(request, "mcp-resume-owner").is_none()));
    }
}

#[tokio::test]
async fn a_response_of_a_frozen_sidecar_is_cut() {
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

/// From now on it takes everything, and says nothing.
fn freeze(sidecar: &Sidecar) {
    sidecar.answers(|_| Answer::Begun(String::new()));
    sidecar.reports(None);
}

#[tokio::test]
async fn a_call_at_a_frozen_sidecar_ends_with_an_error() {
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
async fn a_call_over_http2_at_a_frozen_sidecar_ends_with_an_error() {
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
async fn a_resume_at_a_frozen_sidecar_goes_to_another() {
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
async fn responses_of_sidecars_are_no_failures_of_the_balancer() {
    let one = Sidecar::start(1).await;
    let balancer = balance(&[&one], &[]).await;
    one.answers(|_| Answer::Whole(answer("503 Service Unavailable", "", "{}")));
    assert!(balancer.ask(&post(CALL, "")).await.starts_with("HTTP/1.1 503"));
    for code in ["no_replica", "replica_broke", "too_many_requests", "bad_request", "body_too_slow", "body_too_large"] {
        assert_eq!(balancer.metric(&format!("failures_total{{code=\"{code}\"}}")).await, 0, "there, and 0");
    }
}
