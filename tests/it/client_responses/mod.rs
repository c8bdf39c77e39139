//! Client responses to the server's requests.

use crate::support::*;
use serde_json::json;
use std::time::Duration;

pub(crate) fn question(id: &str) -> String {
    json!({"jsonrpc": "2.0", "id": id, "method": "sampling/createMessage", "params": {"messages": []}}).to_string()
}

pub(crate) fn answer(id: &str) -> String {
    json!({"jsonrpc": "2.0", "id": id, "result": {"role": "assistant"}}).to_string()
}

/// The client answers and the upstream takes it.
async fn answers(proxy: &Proxy, upstream: &mut Upstream, session: &Session, id: &str) {
    let pending = session.post(answer(id)).start(proxy.addr).await;
    let call = upstream.expect("response").await;
    assert_eq!(call.body, answer(id).into_bytes());
    call.status(202).await;
    assert_eq!(pending.response().await.status, 202);
}

/// A POST of the client's that the proxy takes without the upstream.
async fn held(proxy: &Proxy, session: &Session, body: String) {
    let response = session.post(body).send(proxy.addr).await;
    assert_eq!(response.status, 202);
}

#[tokio::test]
async fn an_answer_gets_the_upstreams_status() {
    let (mut upstream, proxy, session) = setup().await;
    for status in [202, 400, 401, 404] {
        let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(status))).await;
        let id = format!("q{status}");
        sse.event(question(&id)).await;
        assert_eq!(response.event().await.bytes(), question(&id).as_bytes());
        let pending = session.post(answer(&id)).start(proxy.addr).await;
        let upstream_call = upstream.expect("response").await;
        assert_eq!(upstream_call.header("mcp-session-id"), Some("s-1"));
        upstream_call.status_with(status, "x-custom: 1\r\n").await;
        let answered = pending.response().await;
        assert_eq!(answered.status, status);
        assert_eq!(answered.header("x-custom"), Some("1"));
        sse.finish(result(status)).await;
        response.events().await;
    }
}

/// Credentials that the upstream refused since wait for its word, and what it refuses has answered nothing.
#[tokio::test]
async fn an_answer_that_may_be_refused_changes_nothing_before_it_is_taken() {
    let (mut upstream, proxy, session) = setup_with(|c| c.delivery.commit_after = Some(SOON)).await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    let place = EventId::of(response.prime().await.id());
    sse.event(question("q")).await;
    response.event().await;
    let pending = session.get().start(proxy.addr).await;
    upstream.expect("GET").await.status(401).await;
    assert_eq!(pending.response().await.status, 401);
    for status in [401, 404] {
        let pending = session.post(answer("q")).start(proxy.addr).await;
        let upstream_call = upstream.expect("response").await;
        let mut answered = std::pin::pin!(pending.response());
        pass(Duration::from_secs(10)).await;
        tokio::select! {
            biased;
            _ = &mut answered => panic!("it was answered before the upstream was heard"),
            () = settle(&proxy, &mut upstream) => {}
        }
        // It waits for its answer meanwhile: another reader is asked.
        let mut other = session.resume(&place.at(0)).send(proxy.addr).await.sse();
        assert_eq!(other.event().await.bytes(), question("q").as_bytes());
        upstream_call.status(status).await;
        assert_eq!(answered.await.status, status);
    }
    answers(&proxy, &mut upstream, &session, "q").await;
    // The request is answered now, and is not asked again.
    held(&proxy, &session, answer("q")).await;
    sse.finish(result(1)).await;
    let mut back = session.resume(&place.at(0)).send(proxy.addr).await.sse();
    assert_eq!(back.event().await.bytes(), result(1).as_bytes());
    assert!(upstream.is_quiet());
}

/// The refusal arrives in a made-up session too.
#[tokio::test]
async fn a_late_refusal_of_a_notification_reaches_a_client_of_unknown_credentials() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |c| c.delivery.commit_after = Some(SOON)).await;
    let session = Session::opened_elsewhere(V2025_11, "made-up", Some("Bearer t"));
    let pending = session.post(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#).start(proxy.addr).await;
    let upstream_call = upstream.expect("notifications/initialized").await;
    pass(Duration::from_secs(60)).await;
    settle(&proxy, &mut upstream).await;
    upstream_call.status(401).await;
    assert_eq!(pending.response().await.status, 401);
}

#[tokio::test]
async fn a_question_asked_while_the_client_is_away_is_asked_once() {
    let (mut upstream, proxy, session) = setup().await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    let place = EventId::of(response.prime().await.id());
    response.reset();
    sse.event(question("q")).await;
    let mut back = session.resume(&place.at(0)).send(proxy.addr).await.sse();
    assert_eq!(back.event().await.bytes(), question("q").as_bytes());
    answers(&proxy, &mut upstream, &session, "q").await;
    back.reset();
    sse.event(progress(1)).await;
    // A stale cursor: what was answered is not asked again, the rest comes.
    let mut again = session.resume(&place.at(0)).send(proxy.addr).await.sse();
    let event = again.event().await;
    assert_eq!((event.id(), event.bytes()), (place.at(2).as_str(), progress(1).as_bytes()));
    sse.finish(result(1)).await;
    assert_eq!(again.event().await.bytes(), result(1).as_bytes());
    again.ends().await;
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn a_question_not_answered_yet_is_asked_again() {
    let (mut upstream, proxy, session) = setup().await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    let place = EventId::of(response.prime().await.id());
    sse.event(question("q")).await;
    response.event().await;
    response.reset();
    let mut back = session.resume(&place.at(0)).send(proxy.addr).await.sse();
    assert_eq!(back.event().await.bytes(), question("q").as_bytes());
    answers(&proxy, &mut upstream, &session, "q").await;
    sse.finish(result(1)).await;
    back.event().await;
    back.ends().await;
}

#[tokio::test]
async fn a_second_answer_is_acknowledged_and_dropped() {
    let (mut upstream, proxy, session) = setup().await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    sse.event(question("q")).await;
    response.event().await;
    answers(&proxy, &mut upstream, &session, "q").await;
    held(&proxy, &session, answer("q")).await;
    settle(&proxy, &mut upstream).await;
    sse.finish(result(1)).await;
    response.event().await;
}

#[tokio::test]
async fn a_question_that_is_answered_when_its_stream_is_over_is_not_asked_again() {
    for status in [202, 404] {
        let (mut upstream, proxy, session) = setup().await;
        let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
        let place = EventId::of(response.prime().await.id());
        sse.event(question("q")).await;
        sse.event(question("r")).await;
        sse.finish(result(1)).await;
        let (events, end) = response.events().await;
        assert_eq!((events.len(), end), (3, End::Complete));
        // No response waits for it: its outcome is between the client and the server.
        let pending = session.post(answer("q")).start(proxy.addr).await;
        upstream.expect("response").await.status(status).await;
        assert_eq!(pending.response().await.status, status);
        held(&proxy, &session, answer("q")).await;
        assert!(upstream.is_quiet());
        let mut back = session.resume(&place.at(0)).send(proxy.addr).await.sse();
        let event = back.event().await;
        assert_eq!((event.id(), event.bytes()), (place.at(2).as_str(), question("r").as_bytes()));
        assert_eq!(back.event().await.bytes(), result(1).as_bytes());
        back.ends().await;
    }
}

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
async fn an_answer_to_nothing_we_know_is_forwarded() {
    let (mut upstream, proxy, session) = setup().await;
    answers(&proxy, &mut upstream, &session, "unknown").await;
    let pending = Request::post(answer("q")).start(proxy.addr).await;
    upstream.expect("response").await.status(400).await;
    assert_eq!(pending.response().await.status, 400);
}

#[tokio::test]
async fn an_answer_without_a_session_is_always_forwarded() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |_| {}).await;
    let request = Request::post(call(1)).with("MCP-Protocol-Version", V2025_11);
    let (sse, mut response) = begin(&proxy, &mut upstream, &request).await;
    sse.event(question("q")).await;
    response.event().await;
    for _ in 0..2 {
        let pending = Request::post(answer("q")).start(proxy.addr).await;
        upstream.expect("response").await.status(202).await;
        assert_eq!(pending.response().await.status, 202);
    }
    sse.finish(result(1)).await;
}

#[tokio::test]
async fn equal_question_ids_of_two_streams_are_two_questions() {
    let (mut upstream, proxy, session) = setup().await;
    let (one, mut first) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    let (two, mut second) = begin(&proxy, &mut upstream, &session.post(call(2))).await;
    one.event(question("0")).await;
    first.event().await;
    two.event(question("0")).await;
    second.event().await;
    // The oldest outstanding first, then the other; then nothing is left to answer.
    answers(&proxy, &mut upstream, &session, "0").await;
    answers(&proxy, &mut upstream, &session, "0").await;
    held(&proxy, &session, answer("0")).await;
    settle(&proxy, &mut upstream).await;
    one.finish(result(1)).await;
    two.finish(result(2)).await;
}

#[tokio::test]
async fn the_oldest_question_is_the_one_asked_first_on_any_stream() {
    let (mut upstream, proxy, session) = setup().await;
    let (one, mut first) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    let (two, mut second) = begin(&proxy, &mut upstream, &session.post(call(2))).await;
    let (first_place, second_place) = (EventId::of(first.prime().await.id()), EventId::of(second.prime().await.id()));
    two.event(question("0")).await;
    second.event().await;
    one.event(question("0")).await;
    first.event().await;
    answers(&proxy, &mut upstream, &session, "0").await;
    first.reset();
    second.reset();
    one.finish(result(1)).await;
    two.finish(result(2)).await;
    let mut first = session.resume(&first_place.at(0)).send(proxy.addr).await.sse();
    assert_eq!(first.event().await.bytes(), question("0").as_bytes());
    let mut second = session.resume(&second_place.at(0)).send(proxy.addr).await.sse();
    assert_eq!(second.event().await.bytes(), result(2).as_bytes());
}

#[tokio::test]
async fn a_session_opened_elsewhere_answers_its_questions_once_as_well() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |_| {}).await;
    let session = Session::opened_elsewhere(V2025_11, "s-old", Some("Bearer refreshed"));
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    let place = EventId::of(response.prime().await.id());
    sse.event(question("q")).await;
    response.event().await;
    answers(&proxy, &mut upstream, &session, "q").await;
    response.reset();
    held(&proxy, &session, answer("q")).await;
    let mut back = session.resume(&place.at(0)).send(proxy.addr).await.sse();
    settle(&proxy, &mut upstream).await;
    sse.finish(result(1)).await;
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
    let (mut upstream, proxy, session) = setup().await;
    upstream.refuse().await;
    let changed = r#"{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}"#;
    assert_eq!(session.post(changed).send(proxy.addr).await.status, 502);
    assert_eq!(session.post(call(1)).send(proxy.addr).await.status, 502);
}

#[tokio::test]
async fn an_answer_the_upstream_did_not_take_may_be_given_again() {
    let (mut upstream, proxy, session) = setup().await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    sse.event(question("q")).await;
    response.event().await;
    // The client's token was too old; it comes again with a new one.
    let pending = session.post(answer("q")).start(proxy.addr).await;
    upstream.expect("response").await.status_with(401, "www-authenticate: Bearer\r\n").await;
    assert_eq!(pending.response().await.status, 401);
    answers(&proxy, &mut upstream, &session, "q").await;
    held(&proxy, &session, answer("q")).await;
    settle(&proxy, &mut upstream).await;
    sse.finish(result(1)).await;
}

#[tokio::test]
async fn an_answer_has_the_type_of_its_question() {
    let (mut upstream, proxy, session) = setup().await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    sse.event(r#"{"jsonrpc":"2.0","id":9,"method":"roots/list"}"#).await;
    response.event().await;
    // Not the question's id: the upstream's to judge.
    answers(&proxy, &mut upstream, &session, "9").await;
    let nine = r#"{"jsonrpc":"2.0","id":9,"result":{"roots":[]}}"#;
    let pending = session.post(nine).start(proxy.addr).await;
    assert_eq!(upstream.expect("response").await.body, nine.as_bytes());
    drop(pending);
    sse.finish(result(1)).await;
}

#[tokio::test]
async fn what_the_proxy_sends_itself_carries_the_callers_credentials() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |_| {}).await;
    let session = Session::open_as(&proxy, &mut upstream, V2025_11, "s-9", Some("Bearer mine")).await;
    let endpoint = "/mcp?key=k";
    let request = session.post(call(1)).target(endpoint);
    let (sse, mut response) = begin(&proxy, &mut upstream, &request).await;
    sse.event(question("q")).await;
    response.event().await;
    upstream.refuse().await;
    let answered = session.post(answer("q")).target(endpoint).send(proxy.addr).await;
    assert_eq!(answered.status, 202);
    upstream.listen_again().await;
    let late = upstream.expect("response").await;
    assert_eq!(late.target, endpoint);
    assert_eq!(late.header("authorization"), Some("Bearer mine"));
    assert_eq!(late.header("mcp-session-id"), Some("s-9"));
    late.status(202).await;
    sse.finish(result(1)).await;
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

#[tokio::test]
async fn nothing_but_an_answered_question_left_of_a_sealed_stream_is_204() {
    let (mut upstream, proxy, session) = setup().await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    let place = EventId::of(response.prime().await.id());
    // The response, and a question that is asked and answered in the moment after it.
    sse.event(result(1)).await;
    response.event().await;
    sse.event(r#"{"jsonrpc":"2.0","id":9,"method":"roots/list"}"#).await;
    assert_eq!(response.event().await.id(), place.at(2));
    let pending = session.post(r#"{"jsonrpc":"2.0","id":9,"result":{"roots":[]}}"#).start(proxy.addr).await;
    upstream.expect("response").await.status(202).await;
    assert_eq!(pending.response().await.status, 202);
    sse.end().await;
    response.ends().await;
    for seq in [1, 2] {
        assert_eq!(session.resume(&place.at(seq)).send(proxy.addr).await.status, 204, "after {seq}");
    }
    let mut back = session.resume(&place.at(0)).send(proxy.addr).await.sse();
    assert_eq!(back.event().await.bytes(), result(1).as_bytes());
    back.ends().await;
}

/// The upstream refuses the caller's credentials in another call.
async fn refused(proxy: &Proxy, upstream: &mut Upstream, session: &Session, id: &str) {
    let pending = session.post(call(id)).start(proxy.addr).await;
    upstream.expect("tools/call").await.status(401).await;
    assert_eq!(pending.response().await.status, 401);
}

#[tokio::test]
async fn a_second_client_response_is_dropped_even_after_the_credentials_changed() {
    let (mut upstream, proxy, session) = setup().await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    sse.event(question("q")).await;
    let place = EventId::of(response.event().await.id());
    answers(&proxy, &mut upstream, &session, "q").await;
    refused(&proxy, &mut upstream, &session, "2").await;
    held(&proxy, &session, answer("q")).await;
    let url = format!("/mcp?mcp-stream={}", place.handle);
    let mut goes_on = session.post(answer("q")).target(&url).send(proxy.addr).await.sse();
    sse.finish(result(1)).await;
    while goes_on.event().await.bytes() != result(1).as_bytes() {}
    assert!(upstream.is_quiet());
}

/// A notification that the upstream took is as good as a call: the next call needs no word of the upstream's to begin.
#[tokio::test]
async fn credentials_are_accepted_with_a_notification() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |c| c.delivery.commit_after = Some(SOON)).await;
    let session = Session::opened_elsewhere(V2025_11, "s-t", Some("Bearer t"));
    let pending = session.post(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#).start(proxy.addr).await;
    upstream.expect("notifications/initialized").await.status(202).await;
    assert_eq!(pending.response().await.status, 202);
    let pending = session.post(call(1)).start(proxy.addr).await;
    let silent = upstream.expect("tools/call").await;
    pending.response().await.sse().prime().await;
    drop(silent);
}

/// The next refusal of a question, and which it refuses.
async fn refusal(upstream: &mut Upstream) -> (Call, String) {
    let refusal = upstream.expect("response").await;
    let body = refusal.json_body();
    assert_eq!(body["error"]["code"], -32601, "{body}");
    let id = body["id"].as_str().expect("a question's").to_owned();
    (refusal, id)
}

#[tokio::test]
async fn questions_to_a_client_that_takes_json_alone_are_refused_one_at_a_time_and_in_order() {
    let (mut upstream, proxy, session) = setup().await;
    let pending = session.post(call(1)).with("Accept", "application/json").start(proxy.addr).await;
    let sse = upstream.expect("tools/call").await.sse().await;
    for n in 0..5 {
        sse.event(question(&n.to_string())).await;
    }
    for n in 0..5 {
        let (refusal, id) = refusal(&mut upstream).await;
        assert_eq!(id, n.to_string());
        settle(&proxy, &mut upstream).await;
        assert!(upstream.is_quiet());
        refusal.status(202).await;
    }
    sse.finish(result(1)).await;
    assert_eq!(pending.response().await.status, 200);
}

#[tokio::test]
async fn questions_that_wait_to_be_refused_are_bounded() {
    const ID: usize = 1000;
    // 64 KiB, at an id and 48 bytes each.
    const WAIT: usize = 62;
    let (mut upstream, proxy, session) = setup_with(|c| c.admin.address = Some(([127, 0, 0, 1], 0).into())).await;
    let pending = session.post(call(1)).with("Accept", "application/json").start(proxy.addr).await;
    let sse = upstream.expect("tools/call").await.sse().await;
    let id = |n: usize| format!("{n:0ID$}");
    sse.event(question(&id(0))).await;
    let (mut first, _) = refusal(&mut upstream).await;
    for n in 1..200 {
        sse.event(question(&id(n))).await;
    }
    let read = async || metric(&proxy, "mcp_resume_upstream_events_total").await;
    until("all are read", async || read().await >= 200.0).await;
    settle(&proxy, &mut upstream).await;
    for n in 1..=WAIT {
        first.status(202).await;
        let (next, named) = refusal(&mut upstream).await;
        assert_eq!(named, id(n));
        first = next;
    }
    first.status(202).await;
    // There is room again.
    settle(&proxy, &mut upstream).await;
    sse.event(question("last")).await;
    let (last, named) = refusal(&mut upstream).await;
    assert_eq!(named, "last");
    last.status(202).await;
    sse.finish(result(1)).await;
    assert_eq!(pending.response().await.status, 200);
}
