//! Cursors that the proxy cannot serve.

use super::*;

#[tokio::test]
async fn every_kind_of_lost_cursor_gets_the_error_of_its_request() {
    let (mut upstream, proxy, session) = setup_with(|c| c.streams.max_events = 4).await;
    let place = finished(&proxy, &mut upstream, &session.post(call("seven"))).await;
    let (_long, trimmed) = trimmed(&proxy, &mut upstream, &session.post(call_tool("seven", "long"))).await;
    let stranger = session.resume(&place.at(1)).with("Authorization", "Bearer x");
    let elsewhere = session.resume(&place.at(1)).with("Mcp-Session-Id", "s-2");
    let beyond = session.resume(&place.at(3));
    let forged = place.forged();
    let mut answers = Vec::new();
    for (name, request, handle) in [
        ("foreign principal", stranger, &place.handle),
        ("foreign session", elsewhere, &place.handle),
        ("beyond the tail", beyond, &place.handle),
        ("bad MAC", session.resume(&forged.at(1)), &forged.handle),
        ("trimmed away", session.resume(&trimmed.at(1)), &trimmed.handle),
    ] {
        let (message, raw) = gone(request, &proxy).await;
        assert_fault_named(name, &message);
        let raw = String::from_utf8(raw).unwrap();
        assert!(raw.contains(&format!("{handle}.end")), "{name}: {raw}");
        answers.push(raw.replace(handle.as_str(), "HANDLE"));
    }
    answers.dedup();
    assert_eq!(answers.len(), 1, "the same bytes in every case");
}

#[track_caller]
fn assert_fault_named(name: &str, message: &Value) {
    assert_eq!(message["id"], "seven", "{name}: {message}");
    assert_eq!(message["error"]["code"], GONE, "{name}: {message}");
    let fault = message["error"]["data"]["fault"].as_str();
    assert!(matches!(fault, Some("upstream" | "proxy" | "client")), "{name}: {message}");
    assert!(message["error"]["data"]["mayHaveRun"].is_boolean(), "{name}: {message}");
}

#[tokio::test]
async fn a_handle_of_another_process_is_lost_the_same_way() {
    let (mut upstream, proxy, session) = setup().await;
    let other = Proxy::start(&upstream, |_| {}).await;
    let place = finished(&proxy, &mut upstream, &session.post(call(41))).await;
    let (message, _) = gone(session.resume(&place.at(1)), &other).await;
    assert_eq!(message["id"], 41);
    assert_eq!(message["error"]["code"], GONE);
}

#[tokio::test]
async fn the_error_has_the_requests_id_with_its_type() {
    let (mut upstream, proxy, session) = setup().await;
    let long = "x".repeat(100);
    let ids = [
        serde_json::json!(0),
        serde_json::json!(-5),
        serde_json::json!(9_007_199_254_740_991_i64),
        serde_json::json!("0"),
        serde_json::json!("é \"quoted\" \\ \n"),
        serde_json::json!("x".repeat(60)),
    ];
    for id in ids {
        let place = finished(&proxy, &mut upstream, &session.post(call(id.clone()))).await;
        let (message, _) = gone(session.resume(&place.forged().at(1)), &proxy).await;
        assert_eq!(message["id"], id);
    }
    let place = finished(&proxy, &mut upstream, &session.post(call(long))).await;
    let (message, _) = gone(session.resume(&place.forged().at(1)), &proxy).await;
    assert_eq!(message["id"], Value::Null, "longer ids are left out");
}

#[tokio::test]
async fn an_expired_stream_is_lost_and_the_loss_has_an_end() {
    let (mut upstream, proxy, session) = setup_with(|c| {
        c.streams.max_wait = Some(SOON);
        c.streams.retention = SOON;
    })
    .await;
    let place = finished(&proxy, &mut upstream, &session.post(call(1))).await;
    // Each resume starts the retention anew, so the pauses must outgrow it.
    let mut pause = SOON;
    loop {
        tokio::time::sleep(pause).await;
        let response = session.resume(&place.at(2)).send(proxy.addr).await;
        if response.status == 200 {
            break;
        }
        assert_eq!(response.status, 204);
        pause *= 2;
        assert!(pause < LIMIT, "never expired");
    }
    let (message, raw) = gone(session.resume(&place.at(1)), &proxy).await;
    assert_eq!(message["id"], 1);
    assert_eq!(message["error"]["code"], GONE);
    let forged = place.forged();
    let (_, never_was) = gone(session.resume(&forged.at(1)), &proxy).await;
    let raw = String::from_utf8(raw).unwrap();
    assert_eq!(raw.replace(&place.handle, &forged.handle).into_bytes(), never_was, "the same bytes");

    for _ in 0..2 {
        let mut end = session.resume(&place.at("end")).send(proxy.addr).await;
        assert_eq!(end.status, 204, "a client that was told comes back no more");
        assert_eq!(end.body().await, b"");
    }
}

#[tokio::test]
async fn the_end_of_an_unknown_stream_is_204() {
    let (mut upstream, proxy, session) = setup().await;
    let place = finished(&proxy, &mut upstream, &session.post(call(1))).await;
    let end = session.resume(&place.forged().at("end")).send(proxy.addr).await;
    assert_eq!(end.status, 204);
}

#[tokio::test]
async fn an_event_id_of_another_form_is_400() {
    let (mut upstream, proxy, session) = setup().await;
    for id in ["1", "stream_1764000000000_abcdef", "6f1c2f4e-2b1d-4a57-9a41-0d9f3a1b2c3d", "a b.c d", "????.1", "...."]
    {
        let mut response = session.resume(id).send(proxy.addr).await;
        assert_eq!(response.status, 400, "{id}");
        let message = response.json().await;
        assert_eq!(message["jsonrpc"], "2.0", "{id}: {message}");
        assert!(message["error"]["code"].is_i64(), "{id}: {message}");
        assert_eq!(message["id"], Value::Null, "{id}: {message}");
    }
    settle(&proxy, &mut upstream).await;
}

#[tokio::test]
async fn a_resume_from_a_trimmed_cursor_reports_the_gap() {
    let (mut upstream, proxy, session) = setup_with(|c| c.streams.max_events = 4).await;
    let (sse, place) = trimmed(&proxy, &mut upstream, &session.post(call(1))).await;
    let (message, _) = gone(session.resume(&place.at(1)), &proxy).await;
    assert_eq!(message["error"]["code"], GONE);
    let mut back = session.resume(&place.at(20)).send(proxy.addr).await.sse();
    sse.finish(result(1)).await;
    assert_eq!(back.event().await.bytes(), result(1).as_bytes());
}
