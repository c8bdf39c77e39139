//! Callers: each has sessions of its own, and what another one has stolen is of no use to it.

use super::*;

/// Plays the handshake of a caller with this token, whose session gets this name.
async fn opens_for(upstream: &mut Upstream, token: &str, name: &str, is_asked: bool) {
    if is_asked {
        upstream.expect("server/discover").await.json(404, "{}").await;
    }
    let initialize = upstream.expect("initialize").await;
    assert_eq!(initialize.header("authorization"), Some(token));
    let id = initialize.json_body()["id"].clone();
    initialize.json_with(200, &format!("mcp-session-id: {name}\r\n"), initialized(&id)).await;
    let told = upstream.expect("notifications/initialized").await;
    assert_eq!((told.header("authorization"), told.header("mcp-session-id")), (Some(token), Some(name)));
    told.status(202).await;
}

/// Has a call of this caller ask its question: the server's stream, the request at the server, and
/// the result that asks.
async fn asked(upstream: &mut Upstream, proxy: &Proxy, token: &str, name: &str, is_asked: bool) -> (Sse, Value, Value) {
    let pending = call(5, json!({})).with("Authorization", token).start(proxy.addr).await;
    opens_for(upstream, token, name, is_asked).await;
    let called = first_call(upstream).await;
    assert_eq!((called.header("authorization"), called.header("mcp-session-id")), (Some(token), Some(name)));
    let sent = called.json_body();
    let sse = called.sse().await;
    let mut response = pending.response().await.sse();
    response.prime().await;
    sse.event(question(0)).await;
    let asked = response.event().await.json()["result"].clone();
    assert_eq!(asked["resultType"], "input_required");
    (sse, sent, asked)
}

#[tokio::test]
async fn callers_have_sessions_of_their_own_and_no_use_of_each_others_states() {
    let (mut upstream, proxy) = stage().await;
    let (one, sent_one, asked_one) = asked(&mut upstream, &proxy, "Bearer one", "s-one", true).await;
    let (two, _, _) = asked(&mut upstream, &proxy, "Bearer two", "s-two", false).await;
    let answers = json!({"requestState": asked_one["requestState"], "inputResponses": {"q1": {"action": "accept"}}});
    let stolen = call(6, answers.clone()).with("Authorization", "Bearer two").send(proxy.addr).await.json().await;
    assert_eq!(stolen["error"]["code"], -32602);
    let guessed = json!({"requestState": "0".repeat(32), "inputResponses": {}});
    let guessed = call(6, guessed).with("Authorization", "Bearer two").send(proxy.addr).await.json().await;
    // One that never was and one of another caller look alike.
    assert_eq!(guessed["error"], stolen["error"]);
    assert!(upstream.is_quiet() && !one.is_closed() && !two.is_closed());
    let pending = call(7, answers).with("Authorization", "Bearer one").start(proxy.addr).await;
    let answered = upstream.expect("response").await;
    assert_eq!(
        (answered.header("authorization"), answered.header("mcp-session-id")),
        (Some("Bearer one"), Some("s-one"))
    );
    answered.status(202).await;
    let mut response = pending.response().await.sse();
    response.prime().await;
    one.finish(result_under(&sent_one["id"])).await;
    assert_eq!(response.event().await.json()["id"], 7);
}

#[tokio::test]
async fn the_session_at_the_server_is_none_of_a_clients() {
    let (mut upstream, proxy) = stage().await;
    let (_sse, sent, _) = asked(&mut upstream, &proxy, "Bearer one", "s-one", true).await;
    // The name is the server's to refuse: nothing of the caller's session is at the proxy under it.
    let mut answer = Request::post(json!({"jsonrpc": "2.0", "id": 0, "result": {"action": "accept"}}).to_string());
    answer = answer.with("Mcp-Session-Id", "s-one").with("Authorization", "Bearer two");
    let pending = answer.start(proxy.addr).await;
    let passed = upstream.expect("response").await;
    assert_eq!(passed.header("authorization"), Some("Bearer two"));
    passed.status(403).await;
    assert_eq!(pending.response().await.status, 403);
    let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": sent["id"]}});
    let cancel = request(0, "x", json!({})).with_body(cancel.to_string()).with("Authorization", "Bearer two");
    assert_eq!(cancel.send(proxy.addr).await.status, 202);
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn a_refreshed_token_goes_on_with_what_the_first_began() {
    let (mut upstream, proxy) = stage().await;
    let (old, new) = (bearer("u", 1), bearer("u", 2));
    let (sse, sent, asked) = asked(&mut upstream, &proxy, &old, "s-one", true).await;
    let answers = json!({"requestState": asked["requestState"], "inputResponses": {"q1": {"action": "accept"}}});
    let pending = call(6, answers).with("Authorization", &new).start(proxy.addr).await;
    upstream.judge(&new, Judge::Verifies).await;
    let answered = upstream.expect("response").await;
    assert_eq!(
        (answered.header("authorization"), answered.header("mcp-session-id")),
        (Some(new.as_str()), Some("s-one"))
    );
    answered.status(202).await;
    let mut response = pending.response().await.sse();
    response.prime().await;
    sse.finish(result_under(&sent["id"])).await;
    assert_eq!(response.event().await.json()["id"], 6);
    // What the proxy sends by itself has the newer token.
    pass(Duration::from_secs(601)).await;
    let end = upstream.expect("DELETE").await;
    assert_eq!((end.header("authorization"), end.header("mcp-session-id")), (Some(new.as_str()), Some("s-one")));
    end.status(200).await;
}

#[tokio::test]
async fn a_token_that_proves_nothing_has_a_session_of_its_own() {
    let (mut upstream, proxy) = stage().await;
    let (_sse, _, asked) = asked(&mut upstream, &proxy, &bearer("u", 1), "s-one", true).await;
    let forged = bearer("u", 2);
    let answers = json!({"requestState": asked["requestState"], "inputResponses": {"q1": {"action": "accept"}}});
    let pending = call(6, answers).with("Authorization", &forged).start(proxy.addr).await;
    upstream.judge(&forged, Judge::Accepts).await;
    opens_for(&mut upstream, &forged, "s-two", false).await;
    assert_eq!(pending.response().await.json().await["error"]["code"], -32602);
}
