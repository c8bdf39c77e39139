//! Messages of the server that name no call: changes, questions, log messages, progress.

use super::*;

/// Has a call begin, with the session's own stream open beside it: both streams at the server, the
/// response, and the request at the server.
pub(super) async fn begun_with_stream(
    upstream: &mut Upstream,
    proxy: &Proxy,
    request: &Request,
) -> (Sse, Sse, Response, Value) {
    let pending = request.start(proxy.addr).await;
    opens(upstream, true).await;
    let (get, call) = first_two(upstream).await;
    let own = get.sse().await;
    let body = call.json_body();
    let sse = call.sse().await;
    let mut response = pending.response().await.sse();
    response.prime().await;
    (own, sse, response, body)
}

/// Opens a session by a list, with its own stream.
pub(super) async fn opened(upstream: &mut Upstream, proxy: &Proxy) -> Sse {
    let pending = request(1, "tools/list", json!({})).start(proxy.addr).await;
    opens(upstream, true).await;
    let (get, list) = first_two(upstream).await;
    let own = get.sse().await;
    let id = list.json_body()["id"].clone();
    list.json(200, json!({"jsonrpc": "2.0", "id": id, "result": {"tools": []}}).to_string()).await;
    pending.response().await.json().await;
    own
}

pub(super) fn listen(id: impl Into<Value>, notifications: Value) -> Request {
    request(id, "subscriptions/listen", json!({"notifications": notifications}))
}

fn roots_question(id: u64) -> String {
    json!({"jsonrpc": "2.0", "id": id, "method": "roots/list"}).to_string()
}

async fn subscribes(upstream: &mut Upstream, method: &str, uri: &str, is_accepted: bool) {
    let call = upstream.expect(method).await;
    let body = call.json_body();
    assert_eq!(body["params"], json!({"uri": uri}));
    let outcome = if is_accepted { ("result", json!({})) } else { ("error", json!({"code": -32602, "message": "no"})) };
    call.json(200, json!({"jsonrpc": "2.0", "id": body["id"], outcome.0: outcome.1}).to_string()).await;
}

#[tokio::test]
async fn changes_are_told_to_the_subscriptions_that_asked_for_them() {
    let (mut upstream, proxy) = stage().await;
    let own = opened(&mut upstream, &proxy).await;
    let asked = json!({"toolsListChanged": true, "promptsListChanged": true, "resourceSubscriptions": ["a:1", "a:2"]});
    let pending = listen("sub", asked).start(proxy.addr).await;
    subscribes(&mut upstream, "resources/subscribe", "a:1", true).await;
    subscribes(&mut upstream, "resources/subscribe", "a:2", false).await;
    let mut response = pending.response().await.sse();
    response.prime().await;
    let subscription = json!({"io.modelcontextprotocol/subscriptionId": "sub"});
    let first = response.event().await.json();
    assert_eq!(first["method"], "notifications/subscriptions/acknowledged");
    let honoured = json!({"toolsListChanged": true, "resourceSubscriptions": ["a:1"]});
    assert_eq!(first["params"], json!({"notifications": honoured, "_meta": subscription}));
    own.event(json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}).to_string()).await;
    let changed = response.event().await.json();
    assert_eq!(
        (&changed["method"], &changed["params"]),
        (&json!("notifications/tools/list_changed"), &json!({"_meta": subscription}))
    );
    for uri in ["a:3", "a:1"] {
        own.event(
            json!({"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": {"uri": uri}}).to_string(),
        )
        .await;
    }
    let updated = response.event().await.json();
    assert_eq!(updated["params"], json!({"uri": "a:1", "_meta": subscription}));
    // A second subscription to the same resource is the server's first.
    let pending = listen("two", json!({"resourceSubscriptions": ["a:1"]})).start(proxy.addr).await;
    let mut second = pending.response().await.sse();
    second.prime().await;
    assert_eq!(second.event().await.json()["params"]["notifications"], json!({"resourceSubscriptions": ["a:1"]}));
    second.reset();
    response.reset();
    pass(Duration::from_secs(60)).await;
    subscribes(&mut upstream, "resources/unsubscribe", "a:1", true).await;
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn a_change_on_the_stream_of_a_call_is_for_the_subscriptions() {
    let (mut upstream, proxy) = stage().await;
    let (_own, sse, mut response, sent) = begun_with_stream(&mut upstream, &proxy, &call(5, json!({}))).await;
    let mut listening = listen("sub", json!({"toolsListChanged": true})).start(proxy.addr).await.response().await.sse();
    listening.prime().await;
    listening.event().await;
    sse.event(json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}).to_string()).await;
    assert_eq!(listening.event().await.json()["method"], "notifications/tools/list_changed");
    sse.finish(result_under(&sent["id"])).await;
    assert_eq!(response.event().await.json()["id"], 5);
}

#[tokio::test]
async fn a_subscription_to_nothing_that_the_server_tells_ends_at_once() {
    let (mut upstream, proxy) = stage().await;
    let _own = opened(&mut upstream, &proxy).await;
    let mut response = listen("sub", json!({"promptsListChanged": true})).send(proxy.addr).await;
    response.prime().await;
    assert_eq!(response.event().await.json()["params"]["notifications"], json!({}));
    let end = response.event().await.json();
    assert_eq!((&end["id"], &end["result"]["resultType"]), (&json!("sub"), &json!("complete")));
    response.ends().await;
    let invalid = listen("sub", json!([])).send(proxy.addr).await.json().await;
    assert_eq!(invalid["error"]["code"], -32602);
}

#[tokio::test]
async fn a_subscription_goes_on_in_the_session_that_is_opened_anew() {
    let (mut upstream, proxy) = stage().await;
    let _own = opened(&mut upstream, &proxy).await;
    let asked = json!({"toolsListChanged": true, "resourceSubscriptions": ["a:1"]});
    let pending = listen("sub", asked).start(proxy.addr).await;
    subscribes(&mut upstream, "resources/subscribe", "a:1", true).await;
    let mut listening = pending.response().await.sse();
    listening.prime().await;
    listening.event().await;
    let pending = call(6, json!({})).start(proxy.addr).await;
    forgets(&mut upstream).await;
    opens(&mut upstream, false).await;
    let (get, subscribed) = first_two(&mut upstream).await;
    let own = get.sse().await;
    assert_eq!(
        (subscribed.rpc_method().as_str(), &subscribed.json_body()["params"]),
        ("resources/subscribe", &json!({"uri": "a:1"}))
    );
    let id = subscribed.json_body()["id"].clone();
    subscribed.json(200, json!({"jsonrpc": "2.0", "id": id, "result": {}}).to_string()).await;
    // All may have changed meanwhile.
    assert_eq!(listening.event().await.json()["method"], "notifications/tools/list_changed");
    let again = upstream.expect("tools/call").await;
    let id = again.json_body()["id"].clone();
    again.json(200, result_under(&id)).await;
    assert_eq!(pending.response().await.json().await["id"], 6);
    own.event(
        json!({"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": {"uri": "a:1"}}).to_string(),
    )
    .await;
    assert_eq!(listening.event().await.json()["params"]["uri"], "a:1");
}

#[tokio::test]
async fn a_question_that_names_no_call_is_the_running_calls() {
    let (mut upstream, proxy) = stage().await;
    let (own, sse, mut response, sent) = begun_with_stream(&mut upstream, &proxy, &call(5, json!({}))).await;
    own.event(roots_question(0)).await;
    let asked = response.event().await.json()["result"].clone();
    assert_eq!(asked["inputRequests"]["q1"], json!({"method": "roots/list", "params": {}}));
    let answers = json!({"requestState": asked["requestState"], "inputResponses": {"q1": {"roots": []}}});
    let pending = call(6, answers).start(proxy.addr).await;
    let answered = upstream.expect("response").await;
    assert_eq!(answered.json_body(), json!({"jsonrpc": "2.0", "id": 0, "result": {"roots": []}}));
    answered.status(202).await;
    let mut response = pending.response().await.sse();
    response.prime().await;
    sse.finish(result_under(&sent["id"])).await;
    assert_eq!(response.event().await.json()["id"], 6);
}

#[tokio::test]
async fn a_question_waits_for_a_call_and_is_refused_after_half_a_minute() {
    let (mut upstream, proxy) = stage().await;
    let own = opened(&mut upstream, &proxy).await;
    own.event(roots_question(0)).await;
    settle(&proxy, &mut upstream).await;
    pass(Duration::from_secs(31)).await;
    let refused = upstream.expect("response").await;
    assert_eq!((&refused.json_body()["id"], &refused.json_body()["error"]["code"]), (&json!(0), &json!(-32601)));
    refused.status(202).await;
    // The next call that may ask lets the server ask again.
    let pending = call(5, json!({})).start(proxy.addr).await;
    let sse = upstream.expect("tools/call").await.sse().await;
    upstream.expect("notifications/roots/list_changed").await.status(202).await;
    own.event(roots_question(1)).await;
    let mut response = pending.response().await.sse();
    response.prime().await;
    assert_eq!(response.event().await.json()["result"]["inputRequests"]["q1"]["method"], "roots/list");
    assert!(!sse.is_closed());
}

#[tokio::test]
async fn what_the_client_has_not_declared_is_refused_at_once() {
    let (mut upstream, proxy) = stage().await;
    let own = opened(&mut upstream, &proxy).await;
    own.event(json!({"jsonrpc": "2.0", "id": 7, "method": "sampling/createMessage", "params": {}}).to_string()).await;
    let refused = upstream.expect("response").await;
    assert_eq!((&refused.json_body()["id"], &refused.json_body()["error"]["code"]), (&json!(7), &json!(-32601)));
    refused.status(202).await;
    own.event(json!({"jsonrpc": "2.0", "id": 8, "method": "ping"}).to_string()).await;
    let pong = upstream.expect("response").await;
    assert_eq!(pong.json_body(), json!({"jsonrpc": "2.0", "id": 8, "result": {}}));
    pong.status(202).await;
}

#[tokio::test]
async fn progress_and_log_messages_on_the_sessions_stream_are_the_calls() {
    let (mut upstream, proxy) = stage().await;
    let mut logging = call(5, json!({}));
    let mut body: Value = serde_json::from_slice(logging.body()).expect("JSON");
    body["params"]["_meta"]["io.modelcontextprotocol/logLevel"] = json!("warning");
    logging = logging.with_body(body.to_string());
    let pending = logging.start(proxy.addr).await;
    opens(&mut upstream, true).await;
    let (get, level) = first_two(&mut upstream).await;
    let own = get.sse().await;
    assert_eq!(
        (level.rpc_method().as_str(), &level.json_body()["params"]),
        ("logging/setLevel", &json!({"level": "warning"}))
    );
    let id = level.json_body()["id"].clone();
    level.json(200, json!({"jsonrpc": "2.0", "id": id, "result": {}}).to_string()).await;
    let called = upstream.expect("tools/call").await;
    let sent = called.json_body();
    let sse = called.sse().await;
    let mut response = pending.response().await.sse();
    response.prime().await;
    own.event(progress_under(&sent["id"])).await;
    assert_eq!(response.event().await.json()["params"], json!({"progressToken": 7, "progress": 1}));
    let message = |level: &str| {
        json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": level, "data": "x"}})
            .to_string()
    };
    own.event(message("info")).await;
    own.event(message("error")).await;
    assert_eq!(response.event().await.json()["params"]["level"], "error");
    sse.event(message("debug")).await;
    sse.finish(result_under(&sent["id"])).await;
    assert_eq!(response.event().await.json()["id"], 5);
}

#[tokio::test]
async fn log_messages_of_a_call_without_a_level_are_left_out() {
    let (mut upstream, proxy) = stage().await;
    let (_own, sse, mut response, sent) = begun_with_stream(&mut upstream, &proxy, &call(5, json!({}))).await;
    sse.event(
        json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "emergency", "data": "x"}})
            .to_string(),
    )
    .await;
    sse.event(json!({"jsonrpc": "2.0", "method": "notifications/vendor", "params": {}}).to_string()).await;
    assert_eq!(response.event().await.json()["method"], "notifications/vendor");
    sse.finish(result_under(&sent["id"])).await;
    assert_eq!(response.event().await.json()["id"], 5);
}
