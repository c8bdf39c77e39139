//! Sessions of older clients in front of a server of 2026-07-28 alone: refreshed tokens, servers
//! that are replaced, and clients that do not answer.

use super::legacy_clients::{
    FIRST, Legacy, REFUSAL, answers, asked, discovered, form, initialize_by, listens, opened, refuses, requires, stage,
};
use super::*;

/// Opens a session of this caller, the first one.
async fn opened_by(upstream: &mut Upstream, proxy: &Proxy, token: &str) -> Legacy {
    let pending = initialize_by(V2025_11).with("Authorization", token).start(proxy.addr).await;
    refuses(upstream, FIRST).await;
    let id = pending.response().await.header("mcp-session-id").expect("a session").to_owned();
    Legacy { id, version: V2025_11, lists: None }
}

/// Plays the handshake of a server with sessions, which is otherwise as the other one.
async fn begins_session(upstream: &mut Upstream) {
    let initialize = upstream.expect("initialize").await;
    assert_eq!(initialize.header("mcp-session-id"), None);
    let id = initialize.json_body()["id"].clone();
    let capabilities = json!({"tools": {"listChanged": true}, "resources": {"subscribe": true}, "logging": {}});
    let info = json!({"name": "s", "version": "1"});
    let result = json!({"protocolVersion": V2025_11, "capabilities": capabilities, "serverInfo": info});
    let opened = json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string();
    initialize.json_with(200, "mcp-session-id: s-1\r\n", opened).await;
}

#[tokio::test]
async fn a_refreshed_token_that_the_server_confirms_goes_on_in_the_session() {
    let (mut upstream, proxy) = stage().await;
    let (old, new) = (bearer("u", 1), bearer("u", 2));
    let session = opened_by(&mut upstream, &proxy, &old).await;
    let pending = session.call(5).with("Authorization", &old).start(proxy.addr).await;
    let (mut response, asked) = asked(&mut upstream, pending).await;
    // The answer has the later token.
    let answer = session.post(&json!({"jsonrpc": "2.0", "id": asked["id"], "result": {"action": "accept"}}));
    let pending = answer.with("Authorization", &new).start(proxy.addr).await;
    upstream.judge(&new, Judge::Verifies).await;
    let again = upstream.expect("tools/call").await;
    assert_eq!(again.header("authorization"), Some(new.as_str()));
    assert_eq!(pending.response().await.status, 202);
    answers(again, json!({"resultType": "complete", "content": []})).await;
    assert_eq!(response.event().await.json()["result"], json!({"content": []}));
    // From now on it is known, beside the first.
    for (id, token) in [(6, &new), (7, &old)] {
        let pong = session.request(id, "ping", json!({})).with("Authorization", token).send(proxy.addr).await;
        assert_eq!(pong.status, 200);
    }
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn a_token_that_proves_nothing_has_no_use_of_the_session() {
    let (mut upstream, proxy) = stage().await;
    let session = opened_by(&mut upstream, &proxy, &bearer("u", 1)).await;
    let forged = bearer("u", 2);
    let pending = session.request(5, "ping", json!({})).with("Authorization", &forged).start(proxy.addr).await;
    // Asked for the session, and for its revival.
    for _ in 0..2 {
        upstream.judge(&forged, Judge::Accepts).await;
    }
    assert_eq!(pending.response().await.status, 404);
    let other = session.request(6, "ping", json!({})).with("Authorization", &bearer("v", 3)).send(proxy.addr).await;
    assert_eq!(other.status, 404);
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn a_server_that_was_replaced_by_one_with_sessions_opens_the_session_itself() {
    let (mut upstream, proxy) = stage().await;
    let session = opened(&mut upstream, &proxy).await;
    pass(Duration::from_secs(6)).await;
    let pending = session.call(5).start(proxy.addr).await;
    let refusal =
        r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"Bad Request: Server not initialized"}}"#;
    upstream.expect("tools/call").await.json(400, refusal).await;
    upstream.expect("server/discover").await.json(400, refusal).await;
    begins_session(&mut upstream).await;
    upstream.expect("notifications/initialized").await.status(202).await;
    let call = upstream.expect("tools/call").await;
    assert_eq!(call.header("mcp-session-id"), Some("s-1"));
    assert_eq!(call.json_body()["params"]["_meta"], json!({"progressToken": 7}));
    answers(call, json!({"content": []})).await;
    assert_eq!(pending.response().await.json().await["result"], json!({"content": []}));
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn a_server_with_sessions_that_was_replaced_by_one_without_is_translated_for() {
    let (mut upstream, proxy) = stage().await;
    let pending = initialize_by(V2025_11).start(proxy.addr).await;
    begins_session(&mut upstream).await;
    let id = pending.response().await.header("mcp-session-id").expect("a session").to_owned();
    let session = Legacy { id, version: V2025_11, lists: None };
    let told = session.post(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).start(proxy.addr).await;
    upstream.expect("notifications/initialized").await.status(202).await;
    assert_eq!(told.response().await.status, 202);
    let pending = session.call(5).start(proxy.addr).await;
    upstream.expect("tools/call").await.json(400, REFUSAL).await;
    // The session is opened again, as the bridge's.
    let call = loop {
        let call = upstream.next().await;
        match call.rpc_method().as_str() {
            "tools/call" => break call,
            "ping" | "initialize" => call.json(400, REFUSAL).await,
            "subscriptions/listen" => call.status(503).await,
            method => {
                assert_eq!(method, "server/discover");
                let id = call.json_body()["id"].clone();
                call.json(200, discovered(&id)).await;
            }
        }
    };
    assert_eq!((call.header("mcp-session-id"), call.header("mcp-protocol-version")), (None, Some(V2026)));
    answers(call, json!({"resultType": "complete", "content": []})).await;
    assert_eq!(pending.response().await.json().await["result"], json!({"content": []}));
}

#[tokio::test]
async fn a_404_without_a_message_does_not_end_the_session() {
    let (mut upstream, proxy) = stage().await;
    let session = opened(&mut upstream, &proxy).await;
    let pending = session.call(5).start(proxy.addr).await;
    upstream.expect("tools/call").await.status(404).await;
    // Another server may be in its place.
    let mut response = pending.response().await;
    assert_eq!(response.status, 502);
    assert_eq!(response.json().await["error"]["code"], -32603);
    assert_eq!(session.request(6, "ping", json!({})).send(proxy.addr).await.status, 200);
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn a_call_waits_for_the_subscription_of_the_sessions_stream() {
    let (mut upstream, proxy) = stage().await;
    let session = opened_by(&mut upstream, &proxy, "Bearer one").await;
    let own = session.get().with("Authorization", "Bearer one").start(proxy.addr).await;
    let listen = upstream.expect("subscriptions/listen").await;
    let pending = session.call(5).with("Authorization", "Bearer one").start(proxy.addr).await;
    settle(&proxy, &mut upstream).await;
    assert!(upstream.is_quiet());
    let body = listen.json_body();
    let lists = listen.sse().await;
    let meta = json!({"io.modelcontextprotocol/subscriptionId": body["id"]});
    let params = json!({"notifications": body["params"]["notifications"], "_meta": meta});
    let acknowledged =
        json!({"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged", "params": params});
    lists.event(acknowledged.to_string()).await;
    let call = upstream.expect("tools/call").await;
    let changed = json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed", "params": {"_meta": meta}});
    lists.event(changed.to_string()).await;
    answers(call, json!({"resultType": "complete", "content": []})).await;
    let mut own = own.response().await.sse();
    own.prime().await;
    assert_eq!(own.event().await.json()["method"], "notifications/tools/list_changed");
    assert_eq!(pending.response().await.status, 200);
}

#[tokio::test]
async fn a_client_that_does_not_answer_in_time_has_its_call_fail() {
    let (mut upstream, proxy) = stage().await;
    let session = opened(&mut upstream, &proxy).await;
    let pending = session.call(5).start(proxy.addr).await;
    let (mut response, _) = asked(&mut upstream, pending).await;
    settle(&proxy, &mut upstream).await;
    pass(Duration::from_secs(601)).await;
    let told = response.event().await.json();
    assert_eq!((&told["id"], &told["result"]["isError"]), (&json!(5), &json!(true)), "{told}");
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn a_client_of_json_alone_is_told_why_its_call_fails() {
    let (mut upstream, proxy) = stage().await;
    let session = opened(&mut upstream, &proxy).await;
    let pending = session.call(5).with("Accept", "application/json").start(proxy.addr).await;
    let call = upstream.expect("tools/call").await;
    let id = call.json_body()["id"].clone();
    call.json(200, requires(&id, json!({"a": form()}), "s")).await;
    let told = pending.response().await.json().await;
    assert_eq!(told["result"]["isError"], true, "{told}");
    let text = told["result"]["content"][0]["text"].as_str().expect("a text");
    assert!(text.contains("can be asked nothing"), "{text}");
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn the_name_of_a_session_of_before_is_no_name_at_the_server() {
    let (mut upstream, proxy) = stage().await;
    let session = Legacy { id: format!("mcp-resume-bridge-{}", "ab".repeat(16)), version: V2025_11, lists: None };
    for request in [session.call(5), session.get(), session.get().method("DELETE")] {
        assert_eq!(request.send(proxy.addr).await.status, 404);
    }
    settle(&proxy, &mut upstream).await;
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn a_level_that_is_none_is_refused() {
    let (mut upstream, proxy) = stage().await;
    let session = opened(&mut upstream, &proxy).await;
    let set = session.request(1, "logging/setLevel", json!({"level": "loud"})).send(proxy.addr).await.json().await;
    assert_eq!(set["error"]["code"], -32602);
}

#[tokio::test]
async fn a_subscription_that_is_lost_is_made_anew_with_the_newest_token() {
    let (mut upstream, proxy) = stage().await;
    let (old, new) = (bearer("u", 1), bearer("u", 2));
    let session = opened_by(&mut upstream, &proxy, &old).await;
    let subscribe = session.request(1, "resources/subscribe", json!({"uri": "a:1"})).with("Authorization", &old);
    let pending = subscribe.start(proxy.addr).await;
    let (first, _) = listens(&mut upstream).await;
    assert_eq!(pending.response().await.status, 200);
    let again = session.request(2, "resources/subscribe", json!({"uri": "a:1"})).with("Authorization", &new);
    let pending = again.start(proxy.addr).await;
    upstream.judge(&new, Judge::Verifies).await;
    // The session is subscribed already.
    assert_eq!(pending.response().await.status, 200);
    first.fin().await;
    pass(Duration::from_secs(2)).await;
    let listen = upstream.expect("subscriptions/listen").await;
    assert_eq!(listen.header("authorization"), Some(new.as_str()));
}

#[tokio::test]
async fn a_burst_of_changes_reaches_an_older_client_that_reads() {
    let (mut upstream, proxy) = stage().await;
    let mut session = opened(&mut upstream, &proxy).await;
    let lists = session.lists.take().expect("a subscription");
    let mut own = session.get().start(proxy.addr).await.response().await.sse();
    own.prime().await;
    let meta = json!({"_meta": {"io.modelcontextprotocol/subscriptionId": "x"}});
    let change = json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed", "params": meta}).to_string();
    lists.bytes(format!("data: {change}\n\n").repeat(2000)).await;
    for number in 0..2000 {
        assert_eq!(own.event().await.json()["method"], "notifications/tools/list_changed", "{number}");
    }
}
