//! Calls that the server refuses until its user has opened a page: error -32042.

use super::*;

fn refusal(id: &Value) -> String {
    let question = json!({"mode": "url", "elicitationId": "e-1", "url": "https://x.example/", "message": "sign in"});
    let error = json!({"code": -32042, "message": "sign in first", "data": {"elicitations": [question]}});
    json!({"jsonrpc": "2.0", "id": id, "error": error}).to_string()
}

/// Has a call be refused for a page: the result that asks for it.
async fn asked(upstream: &mut Upstream, proxy: &Proxy) -> Value {
    let pending = call(5, json!({})).start(proxy.addr).await;
    opens(upstream, true).await;
    let called = first_call(upstream).await;
    let id = called.json_body()["id"].clone();
    called.json(200, refusal(&id)).await;
    let asked = pending.response().await.json().await;
    assert_eq!((&asked["id"], &asked["result"]["resultType"]), (&json!(5), &json!("input_required")));
    let params = json!({"mode": "url", "url": "https://x.example/", "message": "sign in"});
    assert_eq!(asked["result"]["inputRequests"], json!({"q1": {"method": "elicitation/create", "params": params}}));
    asked["result"].clone()
}

#[tokio::test]
async fn the_call_is_sent_again_once_the_page_is_opened() {
    let (mut upstream, proxy) = stage().await;
    let asked = asked(&mut upstream, &proxy).await;
    let answers = json!({"requestState": asked["requestState"], "inputResponses": {"q1": {"action": "accept"}}});
    let pending = call(6, answers.clone()).start(proxy.addr).await;
    settle(&proxy, &mut upstream).await;
    assert!(upstream.is_quiet(), "the page is not done");
    pass(Duration::from_secs(3)).await;
    let again = upstream.expect("tools/call").await;
    let body = again.json_body();
    assert_eq!((&body["params"]["arguments"], body["params"].get("requestState")), (&json!({"a": 1}), None));
    again.json(200, result_under(&body["id"])).await;
    assert_eq!(pending.response().await.json().await["id"], 6);
    assert_eq!(call(7, answers).send(proxy.addr).await.json().await["error"]["code"], -32602);
}

#[tokio::test]
async fn a_user_who_declines_gets_the_refusal_of_the_server() {
    let (mut upstream, proxy) = stage().await;
    let asked = asked(&mut upstream, &proxy).await;
    let missing = json!({"requestState": asked["requestState"], "inputResponses": {}});
    let again = call(6, missing).send(proxy.addr).await.json().await["result"].clone();
    assert_eq!(again["inputRequests"], asked["inputRequests"]);
    let declined = json!({"requestState": again["requestState"], "inputResponses": {"q1": {"action": "decline"}}});
    let refused = call(7, declined).send(proxy.addr).await.json().await;
    assert_eq!(
        (&refused["id"], &refused["error"]["code"], &refused["error"]["message"]),
        (&json!(7), &json!(-32603), &json!("sign in first"))
    );
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn a_client_that_opens_no_pages_gets_the_capability_that_it_lacks() {
    let (mut upstream, proxy) = stage().await;
    let mut body: Value = serde_json::from_slice(call(5, json!({})).body()).expect("JSON");
    body["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"] = json!({"elicitation": {}});
    let pending = call(5, json!({})).with_body(body.to_string()).start(proxy.addr).await;
    upstream.expect("server/discover").await.json(404, "{}").await;
    let initialize = upstream.expect("initialize").await;
    let id = initialize.json_body()["id"].clone();
    initialize.json_with(200, "mcp-session-id: s-1\r\n", initialized(&id)).await;
    upstream.expect("notifications/initialized").await.status(202).await;
    let called = first_call(&mut upstream).await;
    let id = called.json_body()["id"].clone();
    called.json(200, refusal(&id)).await;
    let mut response = pending.response().await;
    let error = response.json().await["error"].clone();
    assert_eq!((response.status, &error["code"]), (400, &json!(-32021)));
    assert_eq!(error["data"]["requiredCapabilities"], json!({"elicitation": {"url": {}}}));
}
