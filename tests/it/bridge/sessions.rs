//! Sessions that the bridge opens: their number, their end, and what is no request of the revision.

use super::*;

/// Plays the handshake of the session of a client with this name.
async fn opens_as(upstream: &mut Upstream, is_asked: bool, client: &str) {
    if is_asked {
        upstream.expect("server/discover").await.json(404, "{}").await;
    }
    let initialize = upstream.expect("initialize").await;
    let body = initialize.json_body();
    assert_eq!(body["params"]["clientInfo"]["name"], client);
    initialize.json_with(200, &format!("mcp-session-id: s-{client}\r\n"), initialized(&body["id"])).await;
    upstream.expect("notifications/initialized").await.status(202).await;
}

/// Has a client of this name list the tools. `opens_session` says whether that opens a session, and
/// whether the server is asked for its era first.
async fn lists(upstream: &mut Upstream, proxy: &Proxy, request: &Request, opens_session: Option<bool>) {
    let body: Value = serde_json::from_slice(request.body()).expect("JSON");
    let client =
        body["params"]["_meta"]["io.modelcontextprotocol/clientInfo"]["name"].as_str().expect("a name").to_owned();
    let pending = request.start(proxy.addr).await;
    if let Some(is_asked) = opens_session {
        opens_as(upstream, is_asked, &client).await;
    }
    let list = match opens_session {
        Some(_) => first_call(upstream).await,
        None => upstream.next().await,
    };
    assert_eq!(list.rpc_method(), "tools/list");
    let id = list.json_body()["id"].clone();
    list.json(200, json!({"jsonrpc": "2.0", "id": id, "result": {"tools": []}}).to_string()).await;
    assert_eq!(pending.response().await.json().await["result"]["resultType"], "complete");
}

/// A list by a client of this name.
fn list_by(client: &str) -> Request {
    let mut body: Value = serde_json::from_slice(request(1, "tools/list", json!({})).body()).expect("JSON");
    body["params"]["_meta"]["io.modelcontextprotocol/clientInfo"]["name"] = json!(client);
    request(1, "tools/list", json!({})).with_body(body.to_string())
}

async fn ends(upstream: &mut Upstream, name: &str) {
    let end = upstream.next().await;
    assert_eq!((end.method.as_str(), end.header("mcp-session-id")), ("DELETE", Some(name)));
    end.status(200).await;
}

#[tokio::test]
async fn an_idle_session_is_ended() {
    let (mut upstream, proxy) = stage_with(|bridge| bridge.idle = Duration::from_secs(60)).await;
    lists(&mut upstream, &proxy, &list_by("one"), Some(true)).await;
    settle(&proxy, &mut upstream).await;
    pass(Duration::from_secs(40)).await;
    lists(&mut upstream, &proxy, &list_by("one"), None).await;
    settle(&proxy, &mut upstream).await;
    pass(Duration::from_secs(40)).await;
    settle(&proxy, &mut upstream).await;
    assert!(upstream.is_quiet(), "it was used 40 s ago");
    pass(Duration::from_secs(21)).await;
    ends(&mut upstream, "s-one").await;
    lists(&mut upstream, &proxy, &list_by("one"), Some(false)).await;
}

#[tokio::test]
async fn one_more_session_of_a_caller_ends_the_one_that_is_idle_longest() {
    let (mut upstream, proxy) = stage_with(|bridge| bridge.sessions_per_principal = 2).await;
    lists(&mut upstream, &proxy, &list_by("one"), Some(true)).await;
    pass(Duration::from_secs(1)).await;
    lists(&mut upstream, &proxy, &list_by("two"), Some(false)).await;
    pass(Duration::from_secs(1)).await;
    lists(&mut upstream, &proxy, &list_by("one"), None).await;
    let pending = list_by("three").start(proxy.addr).await;
    let mut first = [upstream.next().await, upstream.next().await];
    first.sort_by_key(|call| call.rpc_method() != "DELETE");
    let [end, initialize] = first;
    assert_eq!(end.header("mcp-session-id"), Some("s-two"));
    end.status(200).await;
    initialize.status(500).await;
    assert_eq!(pending.response().await.status, 500);
}

#[tokio::test]
async fn a_caller_whose_sessions_are_all_busy_gets_no_other() {
    let (mut upstream, proxy) = stage_with(|bridge| bridge.sessions_per_principal = 1).await;
    let (sse, mut response, sent) = begun(&mut upstream, &proxy, &call(5, json!({}))).await;
    response.prime().await;
    let mut refused = list_by("two").send(proxy.addr).await;
    assert_eq!((refused.status, &refused.json().await["error"]["code"]), (503, &json!(-32013)));
    sse.finish(result_under(&sent["id"])).await;
    assert_eq!(response.event().await.json()["id"], 5);
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn what_is_no_request_of_the_revision_never_reaches_the_server() {
    let (mut upstream, proxy) = stage().await;
    lists(&mut upstream, &proxy, &list_by("one"), Some(true)).await;
    let notification = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}});
    let modern = |body: &str| Request::post(body).with("MCP-Protocol-Version", V2026);
    let told = modern(&notification.to_string()).with("Mcp-Method", "notifications/cancelled").send(proxy.addr).await;
    assert_eq!(told.status, 202);
    let mut batch = modern(&format!("[{notification}]")).send(proxy.addr).await;
    assert_eq!((batch.status, &batch.json().await["error"]["code"]), (400, &json!(-32600)));
    let get = Request::get().with("MCP-Protocol-Version", V2026).send(proxy.addr).await;
    assert_eq!((get.status, get.header("allow")), (405, Some("POST")));
    let mut later: Value = serde_json::from_slice(list_by("one").body()).expect("JSON");
    later["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!("2027-01-01");
    let later = list_by("one").with_body(later.to_string()).with("MCP-Protocol-Version", "2027-01-01");
    let mut later = later.send(proxy.addr).await;
    let error = later.json().await["error"].clone();
    assert_eq!((later.status, &error["code"], &error["data"]["supported"]), (400, &json!(-32022), &json!([V2026])));
    let mut bare: Value = serde_json::from_slice(list_by("one").body()).expect("JSON");
    bare["params"]["_meta"].as_object_mut().expect("an object").remove("io.modelcontextprotocol/clientCapabilities");
    let mut bare = list_by("one").with_body(bare.to_string()).send(proxy.addr).await;
    assert_eq!((bare.status, &bare.json().await["error"]["code"]), (400, &json!(-32602)));
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn refusals_of_the_caller_and_failures_of_the_server_pass() {
    let (mut upstream, proxy) = stage().await;
    lists(&mut upstream, &proxy, &list_by("one"), Some(true)).await;
    for (status, header, value) in [(401, "www-authenticate", "Bearer"), (403, "x-reason", "scope")] {
        let pending = list_by("one").start(proxy.addr).await;
        let error = json!({"jsonrpc": "2.0", "id": null, "error": {"code": -1, "message": "no"}}).to_string();
        upstream.expect("tools/list").await.json_with(status, &format!("{header}: {value}\r\n"), error).await;
        let response = pending.response().await;
        assert_eq!((response.status, response.header(header)), (status, Some(value)));
    }
    let pending = list_by("one").start(proxy.addr).await;
    let list = upstream.expect("tools/list").await;
    let error = json!({"code": -32601, "message": "no such method"});
    let body = json!({"jsonrpc": "2.0", "id": list.json_body()["id"], "error": error}).to_string();
    list.json(200, body).await;
    let mut response = pending.response().await;
    assert_eq!((response.status, response.json().await), (404, json!({"jsonrpc": "2.0", "id": 1, "error": error})));
}

#[tokio::test]
async fn a_server_that_has_become_one_of_the_older_revisions_is_asked_again() {
    let (mut upstream, proxy) = stage().await;
    let pending = list_by("one").start(proxy.addr).await;
    let discover = upstream.expect("server/discover").await;
    let found = json!({"supportedVersions": [V2026], "capabilities": {}});
    let body = json!({"jsonrpc": "2.0", "id": discover.json_body()["id"], "result": found}).to_string();
    discover.json(200, body).await;
    upstream.expect("tools/list").await.json(200, r#"{"jsonrpc":"2.0","id":1,"result":{"tools":[]}}"#).await;
    pending.response().await.json().await;
    pass(Duration::from_secs(6)).await;
    let pending = list_by("one").start(proxy.addr).await;
    let refusal = r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"Bad Request: no session"}}"#;
    upstream.expect("tools/list").await.json(400, refusal).await;
    opens_as(&mut upstream, true, "one").await;
    let list = first_call(&mut upstream).await;
    let id = list.json_body()["id"].clone();
    list.json(200, json!({"jsonrpc": "2.0", "id": id, "result": {"tools": []}}).to_string()).await;
    assert_eq!(pending.response().await.json().await["result"]["resultType"], "complete");
}

#[tokio::test]
async fn calls_of_one_session_wait_beside_each_other() {
    let (mut upstream, proxy) = stage().await;
    let (one, mut response_one, sent_one) = begun(&mut upstream, &proxy, &call(5, json!({}))).await;
    let pending = call(6, json!({})).start(proxy.addr).await;
    let called = upstream.expect("tools/call").await;
    let sent_two = called.json_body();
    let two = called.sse().await;
    let mut response_two = pending.response().await.sse();
    response_one.prime().await;
    response_two.prime().await;
    one.event(question(0)).await;
    one.event(question(1)).await;
    two.event(question(2)).await;
    let asked_one = response_one.event().await.json()["result"].clone();
    let asked_two = response_two.event().await.json()["result"].clone();
    assert_eq!(asked_one["inputRequests"].as_object().expect("an object").len(), 2, "one round");
    // The answers come in the other order, and those of the first in two parts.
    let answer = |asked: &Value, key: &str| json!({"requestState": asked["requestState"], "inputResponses": {key: {"action": "accept"}}});
    let pending = call(7, answer(&asked_two, "q1")).start(proxy.addr).await;
    let answered = upstream.expect("response").await;
    assert_eq!(answered.json_body()["id"], 2);
    answered.status(202).await;
    let mut response = pending.response().await.sse();
    response.prime().await;
    two.finish(result_under(&sent_two["id"])).await;
    assert_eq!(response.event().await.json()["id"], 7);
    let pending = call(8, answer(&asked_one, "q2")).start(proxy.addr).await;
    let answered = upstream.expect("response").await;
    assert_eq!(answered.json_body()["id"], 1);
    answered.status(202).await;
    let mut response = pending.response().await.sse();
    response.prime().await;
    let again = response.event().await.json()["result"].clone();
    assert_eq!(again["inputRequests"].as_object().expect("an object").keys().collect::<Vec<_>>(), ["q1"]);
    let pending = call(9, answer(&again, "q1")).start(proxy.addr).await;
    let answered = upstream.expect("response").await;
    assert_eq!(answered.json_body()["id"], 0);
    answered.status(202).await;
    let mut response = pending.response().await.sse();
    response.prime().await;
    one.finish(result_under(&sent_one["id"])).await;
    assert_eq!(response.event().await.json()["id"], 9);
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn a_client_that_never_answers_is_answered_for_and_its_call_is_cancelled() {
    let (mut upstream, proxy) = stage().await;
    let (sse, mut response, sent) = begun(&mut upstream, &proxy, &call(5, json!({}))).await;
    response.prime().await;
    sse.event(question(0)).await;
    let asked = response.event().await.json()["result"].clone();
    settle(&proxy, &mut upstream).await;
    pass(Duration::from_secs(24 * 3600)).await;
    let answered = upstream.expect("response").await;
    assert_eq!(answered.json_body(), json!({"jsonrpc": "2.0", "id": 0, "result": {"action": "cancel"}}));
    answered.status(202).await;
    let cancelled = upstream.expect("notifications/cancelled").await;
    assert_eq!(cancelled.json_body()["params"]["requestId"], sent["id"]);
    cancelled.status(202).await;
    sse.closed().await;
    let late = json!({"requestState": asked["requestState"], "inputResponses": {"q1": {"action": "accept"}}});
    let pending = call(6, late).start(proxy.addr).await;
    // The era of the server counts no more after a day.
    upstream.expect("server/discover").await.json(404, "{}").await;
    assert_eq!(pending.response().await.json().await["error"]["code"], -32602);
}

#[tokio::test]
async fn a_question_that_the_server_withdraws_leaves_the_round() {
    let (mut upstream, proxy) = stage().await;
    let (sse, mut response, sent) = begun(&mut upstream, &proxy, &call(5, json!({}))).await;
    response.prime().await;
    sse.event(question(0)).await;
    sse.event(json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 0}}).to_string())
        .await;
    sse.finish(result_under(&sent["id"])).await;
    assert_eq!(response.event().await.json()["id"], 5);
    response.ends().await;
    assert!(upstream.is_quiet());
}
