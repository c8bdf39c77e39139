//! Server requests that the proxy sends again to a client that resumes, and responses that come
//! twice.

use super::*;

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
        // A 404 says that the session is gone, which the next request opens again.
        assert_eq!(pending.response().await.status, 202);
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
