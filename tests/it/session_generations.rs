//! Requests of a server, and responses and cancels of a client, in a session that was opened again.

use std::time::Duration;

use serde_json::{Value, json};

use crate::cancel::cancelled;
use crate::dialects::url::target;
use crate::revival::*;
use crate::support::*;

/// A request of the server.
pub(crate) fn question(id: impl Into<Value>) -> String {
    json!({ "jsonrpc": "2.0", "id": id.into(), "method": "elicitation/create", "params": { "message": "" } })
        .to_string()
}

/// A client's response to one.
pub(crate) fn response_to(id: impl Into<Value>) -> String {
    json!({ "jsonrpc": "2.0", "id": id.into(), "result": { "action": "accept" } }).to_string()
}

/// Begins a call whose response is an event stream, in the session `name`.
pub(crate) async fn begin_call(
    upstream: &mut Upstream,
    proxy: &Proxy,
    session: &Session,
    id: u64,
    name: &str,
) -> (Sse, Response) {
    let pending = session.post(call(id)).start(proxy.addr).await;
    let sent = upstream.expect("tools/call").await;
    assert_eq!(sent.header("mcp-session-id"), Some(name));
    let sse = sent.sse().await;
    let mut response = pending.response().await.sse();
    response.prime().await;
    (sse, response)
}

/// Sends a client's message, and returns as the upstream gets it in the session `name`.
pub(crate) async fn passes(
    upstream: &mut Upstream,
    proxy: &Proxy,
    session: &Session,
    message: String,
    name: &str,
) -> Value {
    let pending = session.post(message).start(proxy.addr).await;
    let call = upstream.next().await;
    assert_eq!(call.header("mcp-session-id"), Some(name));
    let body = call.json_body();
    call.status(202).await;
    assert_eq!(pending.response().await.status, 202);
    body
}

/// Sends a client's message that the proxy takes and drops.
pub(crate) async fn is_dropped(upstream: &mut Upstream, proxy: &Proxy, session: &Session, message: String) {
    assert_eq!(session.post(message).send(proxy.addr).await.status, 202);
    settle(proxy, upstream).await;
    assert!(upstream.is_quiet());
}

/// Opens the session again as `to`, after a call that the server refuses under the name `from`.
async fn revive(upstream: &mut Upstream, proxy: &Proxy, session: &Session, id: u64, from: &str, to: &str) {
    let pending = session.post(call(id)).start(proxy.addr).await;
    forget(upstream, "tools/call", from).await;
    open_again(upstream, to).await;
    answer(upstream, id, to).await;
    assert_eq!(pending.response().await.status, 200);
}

/// A session in which a call with an unanswered request of the server has failed with the server,
/// opened again as `s-2`.
async fn revived_with_unanswered(id: impl Into<Value>) -> (Upstream, Proxy, Session) {
    let (mut upstream, proxy, session) = ready().await;
    let (sse, mut response) = begin_call(&mut upstream, &proxy, &session, 1, "s-1").await;
    let asked = question(id);
    sse.event(&asked).await;
    assert_eq!(response.event().await.bytes(), asked.as_bytes());
    sse.reset().await;
    assert_fault(&response.event().await.json(), 1, UPSTREAM_FAILED, "upstream");
    revive(&mut upstream, &proxy, &session, 2, "s-1", "s-2").await;
    (upstream, proxy, session)
}

#[tokio::test]
async fn a_late_response_answers_no_request_of_the_new_session() {
    let (mut upstream, proxy, session) = revived_with_unanswered(0).await;
    let (sse, mut response) = begin_call(&mut upstream, &proxy, &session, 3, "s-2").await;
    sse.event(question(0)).await;
    assert_eq!(response.event().await.bytes(), question("mr-1-0").as_bytes());
    is_dropped(&mut upstream, &proxy, &session, response_to(0)).await;
    let body = passes(&mut upstream, &proxy, &session, response_to("mr-1-0"), "s-2").await;
    assert_eq!(body, serde_json::from_str::<Value>(&response_to(0)).unwrap());
    // Each is answered once.
    is_dropped(&mut upstream, &proxy, &session, response_to("mr-1-0")).await;
    is_dropped(&mut upstream, &proxy, &session, response_to(0)).await;
    sse.finish(result(3)).await;
    assert_eq!(response.event().await.bytes(), result(3).as_bytes());
}

#[tokio::test]
async fn only_a_request_with_an_unanswered_id_is_renamed() {
    let (mut upstream, proxy, session) = revived_with_unanswered("0").await;
    let (sse, mut response) = begin_call(&mut upstream, &proxy, &session, 3, "s-2").await;
    for id in [json!(0), json!(1), json!("1")] {
        sse.event(question(id.clone())).await;
        assert_eq!(response.event().await.bytes(), question(id.clone()).as_bytes());
        let body = passes(&mut upstream, &proxy, &session, response_to(id.clone()), "s-2").await;
        assert_eq!(body["id"], id);
    }
    sse.event(question("0")).await;
    assert_eq!(response.event().await.bytes(), question("mr-1-0").as_bytes());
    let body = passes(&mut upstream, &proxy, &session, response_to("mr-1-0"), "s-2").await;
    assert_eq!(body["id"], json!("0"));
}

/// A request that was answered names nothing that a late response could mean.
#[tokio::test]
async fn the_id_of_an_answered_request_is_used_again() {
    let (mut upstream, proxy, session) = ready().await;
    let (sse, mut response) = begin_call(&mut upstream, &proxy, &session, 1, "s-1").await;
    sse.event(question(0)).await;
    response.event().await;
    passes(&mut upstream, &proxy, &session, response_to(0), "s-1").await;
    sse.finish(result(1)).await;
    response.event().await;
    revive(&mut upstream, &proxy, &session, 2, "s-1", "s-2").await;
    let (sse, mut response) = begin_call(&mut upstream, &proxy, &session, 3, "s-2").await;
    sse.event(question(0)).await;
    assert_eq!(response.event().await.bytes(), question(0).as_bytes());
    assert_eq!(passes(&mut upstream, &proxy, &session, response_to(0), "s-2").await["id"], json!(0));
}

#[tokio::test]
async fn a_renamed_request_keeps_its_id_in_replays_and_in_the_servers_cancel() {
    let (mut upstream, proxy, session) = ready().await;
    let (sse, mut response) = listen(&mut upstream, &proxy, &session).await;
    sse.event(question(0)).await;
    let place = EventId::of(response.event().await.id());
    let (pending, sse) = begin_while_listening(&mut upstream, &proxy, &session, sse).await;
    // The server asks before the handshake is complete.
    sse.event(question(0)).await;
    let asked = response.event().await;
    assert_eq!(asked.bytes(), question("mr-1-0").as_bytes());
    complete(&mut upstream, "s-2").await;
    answer(&mut upstream, 1, "s-2").await;
    assert_eq!(pending.response().await.status, 200);
    sse.event(cancelled(0)).await;
    let cancel = loop {
        let event = response.event().await;
        if event.json()["method"] == "notifications/cancelled" {
            break event;
        }
    };
    assert_eq!(cancel.json()["params"]["requestId"], "mr-1-0");
    assert_eq!(asked.id(), place.at(2));
    response.reset();
    let mut back = session.resume(&place.at(1)).send(proxy.addr).await.sse();
    let replayed = back.event().await;
    assert_eq!((replayed.id(), replayed.bytes()), (asked.id(), asked.bytes()));
    is_dropped(&mut upstream, &proxy, &session, response_to(0)).await;
    assert_eq!(passes(&mut upstream, &proxy, &session, response_to("mr-1-0"), "s-2").await["id"], json!(0));
}

/// As of a server that serves old sessions until their calls have ended: the session has gone on,
/// and the call stays where it began.
#[tokio::test]
async fn a_call_of_the_old_session_gets_its_responses_and_cancels_there() {
    let (mut upstream, proxy, session) = ready().await;
    let (sse, mut response) = begin_call(&mut upstream, &proxy, &session, 1, "s-1").await;
    sse.event_id("e1", question(0)).await;
    response.event().await;
    // The rest of the response is to be fetched.
    sse.end().await;
    revive(&mut upstream, &proxy, &session, 2, "s-1", "s-2").await;
    pass(Duration::from_secs(2)).await;
    let get = upstream.expect("GET").await;
    assert_eq!((get.header("mcp-session-id"), get.header("last-event-id")), (Some("s-1"), Some("e1")));
    let sse = get.sse().await;
    assert_eq!(passes(&mut upstream, &proxy, &session, response_to(0), "s-1").await["id"], json!(0));
    // Both sessions ask.
    let (newer, mut other) = begin_call(&mut upstream, &proxy, &session, 3, "s-2").await;
    newer.event(question(5)).await;
    assert_eq!(other.event().await.bytes(), question(5).as_bytes());
    sse.event(question(5)).await;
    assert_eq!(response.event().await.bytes(), question("mr-0-0").as_bytes());
    assert_eq!(passes(&mut upstream, &proxy, &session, response_to("mr-0-0"), "s-1").await["id"], json!(5));
    assert_eq!(passes(&mut upstream, &proxy, &session, response_to(5), "s-2").await["id"], json!(5));
    let body = passes(&mut upstream, &proxy, &session, cancelled(1), "s-1").await;
    assert_eq!(body["params"]["requestId"], json!(1));
    let body = passes(&mut upstream, &proxy, &session, cancelled(3), "s-2").await;
    assert_eq!(body["params"]["requestId"], json!(3));
}

/// As of a tool that asks in parallel, while a person has not answered its first question.
#[tokio::test]
async fn each_of_many_renamed_requests_is_answered() {
    let (mut upstream, proxy, session) = ready().await;
    let (sse, mut response) = begin_call(&mut upstream, &proxy, &session, 1, "s-1").await;
    sse.event_id("e1", question(0)).await;
    response.event().await;
    sse.end().await;
    revive(&mut upstream, &proxy, &session, 2, "s-1", "s-2").await;
    pass(Duration::from_secs(2)).await;
    let sse = upstream.expect("GET").await.sse().await;
    for id in 0..100 {
        sse.event(question(100 + id)).await;
        assert_eq!(response.event().await.bytes(), question(format!("mr-0-{id}")).as_bytes());
    }
    for id in (0..100).rev() {
        let body = passes(&mut upstream, &proxy, &session, response_to(format!("mr-0-{id}")), "s-1").await;
        assert_eq!(body["id"], json!(100 + id));
    }
}

#[tokio::test]
async fn a_response_to_a_renamed_request_is_dropped_with_its_session() {
    let (mut upstream, proxy, session) = revived_with_unanswered(0).await;
    let (sse, mut response) = begin_call(&mut upstream, &proxy, &session, 3, "s-2").await;
    sse.event(question(0)).await;
    assert_eq!(response.event().await.bytes(), question("mr-1-0").as_bytes());
    sse.reset().await;
    response.event().await;
    revive(&mut upstream, &proxy, &session, 4, "s-2", "s-3").await;
    is_dropped(&mut upstream, &proxy, &session, response_to("mr-1-0")).await;
    let (sse, mut response) = begin_call(&mut upstream, &proxy, &session, 5, "s-3").await;
    sse.event(question(0)).await;
    assert_eq!(response.event().await.bytes(), question("mr-2-1").as_bytes());
    assert_eq!(passes(&mut upstream, &proxy, &session, response_to("mr-2-1"), "s-3").await["id"], json!(0));
}

/// A response that its caller may not be able to give waits for the server's status, as ever.
#[tokio::test]
async fn an_unproven_caller_answers_a_renamed_request() {
    let (mut upstream, proxy, session) = revived_with_unanswered(0).await;
    let (sse, mut response) = begin_call(&mut upstream, &proxy, &session, 3, "s-2").await;
    sse.event(question(0)).await;
    response.event().await;
    pass(Duration::from_secs(700)).await;
    is_dropped(&mut upstream, &proxy, &session, response_to(0)).await;
    assert_eq!(passes(&mut upstream, &proxy, &session, response_to("mr-1-0"), "s-2").await["id"], json!(0));
    is_dropped(&mut upstream, &proxy, &session, response_to("mr-1-0")).await;
}

#[tokio::test]
async fn a_renamed_ping_is_answered_under_the_servers_id() {
    let (mut upstream, proxy, session) = revived_with_unanswered(0).await;
    let (sse, response) = begin_call(&mut upstream, &proxy, &session, 3, "s-2").await;
    response.reset();
    settle(&proxy, &mut upstream).await;
    sse.event(r#"{"jsonrpc":"2.0","id":0,"method":"ping"}"#).await;
    let pong = upstream.expect("response").await;
    assert_eq!((pong.header("mcp-session-id"), &pong.json_body()["id"]), (Some("s-2"), &json!(0)));
    pong.status(202).await;
}

/// The request was sent again, and has no response head yet.
#[tokio::test]
async fn the_cancel_of_a_call_that_was_sent_again_goes_to_the_new_session() {
    let (mut upstream, proxy, session) = ready().await;
    let pending = session.post(call(1)).start(proxy.addr).await;
    forget(&mut upstream, "tools/call", "s-1").await;
    open_again(&mut upstream, "s-2").await;
    let again = upstream.expect("tools/call").await;
    assert_eq!(again.header("mcp-session-id"), Some("s-2"));
    let ending = session.delete().start(proxy.addr).await;
    let end = upstream.expect("DELETE").await;
    assert_eq!(end.header("mcp-session-id"), Some("s-2"));
    end.status(200).await;
    assert_eq!(ending.response().await.status, 200);
    let cancel = upstream.expect("notifications/cancelled").await;
    assert_eq!(cancel.header("mcp-session-id"), Some("s-2"));
    cancel.status(202).await;
    assert_eq!(pending.response().await.status, 504);
}

/// POSTs a response on the URL of the stream that asked, and returns it as the upstream gets it in
/// the session `name`. The client reads on in the returned response.
async fn passes_on_url(upstream: &mut Upstream, proxy: &Proxy, request: Request, name: &str) -> (Value, Response) {
    let pending = request.start(proxy.addr).await;
    let call = upstream.expect("response").await;
    assert_eq!((call.target.as_str(), call.header("mcp-session-id")), ("/mcp", Some(name)));
    let body = call.json_body();
    call.status(202).await;
    let mut response = pending.response().await.sse();
    response.prime().await;
    (body, response)
}

#[tokio::test]
async fn a_renamed_request_is_answered_on_the_url_of_its_stream() {
    for pause in [Duration::ZERO, Duration::from_secs(700)] {
        let (mut upstream, proxy, session) = revived_with_unanswered(0).await;
        let (sse, mut response) = begin_call(&mut upstream, &proxy, &session, 3, "s-2").await;
        let url = target(&response);
        sse.event(question(0)).await;
        assert_eq!(response.event().await.bytes(), question("mr-1-0").as_bytes());
        // After the pause the caller is unproven.
        pass(pause).await;
        let late = session.post(response_to(0)).target(&url).send(proxy.addr).await;
        late.sse().prime().await;
        settle(&proxy, &mut upstream).await;
        assert!(upstream.is_quiet(), "a late response");
        let request = session.post(response_to("mr-1-0")).target(&url);
        let (body, _response) = passes_on_url(&mut upstream, &proxy, request.clone(), "s-2").await;
        assert_eq!(body, serde_json::from_str::<Value>(&response_to(0)).unwrap());
        let mut response = request.send(proxy.addr).await.sse();
        response.prime().await;
        sse.finish(result(3)).await;
        assert_eq!(response.event().await.bytes(), result(3).as_bytes());
        assert!(upstream.is_quiet(), "each is answered once");
    }
}

#[tokio::test]
async fn a_call_of_the_old_session_is_answered_there_on_its_url() {
    let (mut upstream, proxy, session) = ready().await;
    let (sse, mut response) = begin_call(&mut upstream, &proxy, &session, 1, "s-1").await;
    let url = target(&response);
    sse.event_id("e1", question(0)).await;
    response.event().await;
    sse.end().await;
    revive(&mut upstream, &proxy, &session, 2, "s-1", "s-2").await;
    pass(Duration::from_secs(2)).await;
    let get = upstream.expect("GET").await;
    assert_eq!(get.header("mcp-session-id"), Some("s-1"));
    let sse = get.sse().await;
    let request = session.post(response_to(0)).target(&url);
    let (body, mut response) = passes_on_url(&mut upstream, &proxy, request, "s-1").await;
    assert_eq!(body["id"], json!(0));
    sse.event(question(5)).await;
    assert_eq!(response.event().await.bytes(), question("mr-0-0").as_bytes());
    let request = session.post(response_to("mr-0-0")).target(&url);
    let (body, _response) = passes_on_url(&mut upstream, &proxy, request, "s-1").await;
    assert_eq!(body["id"], json!(5));
}
