//! Servers that are silent, end streams early, refuse them, or ask without end.

use super::outside_calls::{begun_with_stream, listen, opened};
use super::*;

/// The server's refusal of the question for its era, by an event on a stream that it leaves open.
async fn refuses_by_stream(call: Call) -> Sse {
    let sse = call.sse().await;
    sse.event(r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32601,"message":"Method not found"}}"#).await;
    sse
}

/// Has a client make a call, so that it has a session.
async fn has_called(upstream: &mut Upstream, proxy: &Proxy) {
    let (sse, mut response, sent) = begun(upstream, proxy, &call(5, json!({}))).await;
    response.prime().await;
    sse.finish(result_under(&sent["id"])).await;
    response.event().await;
}

/// Answers the question for the era as a server of 2026-07-28.
async fn is_modern(upstream: &mut Upstream) {
    let discover = upstream.expect("server/discover").await;
    let id = discover.json_body()["id"].clone();
    let found = json!({"supportedVersions": [V2026], "capabilities": {}});
    discover.json(200, json!({"jsonrpc": "2.0", "id": id, "result": found}).to_string()).await;
}

/// The call, under the ID 6, reaches the server as it is.
async fn passes(upstream: &mut Upstream, pending: Client, request: &Request) {
    let passed = upstream.expect("tools/call").await;
    assert_eq!(passed.body, request.body());
    passed.json(200, result(6)).await;
    assert_eq!(pending.response().await.body().await, result(6).as_bytes());
}

#[tokio::test]
async fn a_response_that_never_ends_holds_nothing_up() {
    let (mut upstream, proxy) = stage().await;
    let pending = request(1, "tools/list", json!({})).start(proxy.addr).await;
    let _era = refuses_by_stream(upstream.expect("server/discover").await).await;
    let initialize = upstream.expect("initialize").await;
    let id = initialize.json_body()["id"].clone();
    let opening = initialize.sse_with("mcp-session-id: s-1\r\n").await;
    opening.event(initialized(&id)).await;
    upstream.expect("notifications/initialized").await.status(202).await;
    let (get, list) = first_two(&mut upstream).await;
    get.status(405).await;
    let id = list.json_body()["id"].clone();
    list.json(200, json!({"jsonrpc": "2.0", "id": id, "result": {"tools": []}}).to_string()).await;
    assert_eq!(pending.response().await.json().await["id"], 1);
}

#[tokio::test]
async fn callers_do_not_wait_for_each_others_questions() {
    let (mut upstream, proxy) = stage().await;
    let one = request(1, "tools/list", json!({})).with("Authorization", "Bearer one").start(proxy.addr).await;
    let silent = upstream.expect("server/discover").await;
    let two = request(2, "tools/list", json!({})).with("Authorization", "Bearer two").start(proxy.addr).await;
    upstream.expect("server/discover").await.status_with(401, "www-authenticate: Bearer\r\n").await;
    // What the refusal of a caller says of the server is nothing: the request itself is refused.
    upstream.expect("tools/list").await.status_with(401, "www-authenticate: Bearer\r\n").await;
    assert_eq!(two.response().await.status, 401);
    silent.json(431, "{}").await;
    upstream.expect("tools/list").await.json(200, r#"{"jsonrpc":"2.0","id":1,"result":{}}"#).await;
    assert_eq!(one.response().await.status, 200);
}

#[tokio::test]
async fn a_stream_that_the_server_ends_early_is_read_on() {
    let (mut upstream, proxy) = stage().await;
    let (sse, mut response, sent) = begun(&mut upstream, &proxy, &call(5, json!({}))).await;
    response.prime().await;
    sse.bytes("id: e-1\nretry: 1500\ndata: \n\n").await;
    sse.end().await;
    settle(&proxy, &mut upstream).await;
    pass(Duration::from_secs(2)).await;
    let get = upstream.expect("GET").await;
    assert_eq!((get.header("last-event-id"), get.header("mcp-session-id")), (Some("e-1"), Some("s-1")));
    get.sse().await.finish(result_under(&sent["id"])).await;
    assert_eq!(response.event().await.json()["id"], 5);
    assert!(upstream.is_quiet(), "nothing is cancelled");
}

#[tokio::test]
async fn a_client_that_leaves_before_the_response_begins_cancels_its_call() {
    let (mut upstream, proxy) = stage().await;
    let pending = call(5, json!({})).start(proxy.addr).await;
    opens(&mut upstream, true).await;
    let called = first_call(&mut upstream).await;
    let id = called.json_body()["id"].clone();
    pending.reset();
    settle(&proxy, &mut upstream).await;
    pass(Duration::from_secs(60)).await;
    let told = upstream.expect("notifications/cancelled").await;
    assert_eq!(told.json_body()["params"]["requestId"], id);
    told.status(202).await;
    called.closed().await;
}

#[tokio::test]
async fn a_question_that_a_call_did_not_tell_is_the_next_ones() {
    let (mut upstream, proxy) = stage_with_grace(Duration::from_secs(30)).await;
    let (own, one, mut response_one, sent_one) = begun_with_stream(&mut upstream, &proxy, &call(5, json!({}))).await;
    let pending = call(6, json!({})).start(proxy.addr).await;
    let called = upstream.expect("tools/call").await;
    let sent_two = called.json_body();
    let two = called.sse().await;
    let mut response_two = pending.response().await.sse();
    response_two.prime().await;
    own.event(question(9)).await;
    settle(&proxy, &mut upstream).await;
    one.finish(result_under(&sent_one["id"])).await;
    assert_eq!(response_one.event().await.json()["id"], 5);
    settle(&proxy, &mut upstream).await;
    pass(Duration::from_secs(31)).await;
    let asked = response_two.event().await.json()["result"].clone();
    assert_eq!(asked["resultType"], "input_required");
    let answers = json!({"requestState": asked["requestState"], "inputResponses": {"q1": {"action": "accept"}}});
    let pending = call(7, answers).start(proxy.addr).await;
    let answered = upstream.expect("response").await;
    assert_eq!(answered.json_body(), json!({"jsonrpc": "2.0", "id": 9, "result": {"action": "accept"}}));
    answered.status(202).await;
    two.finish(result_under(&sent_two["id"])).await;
    let mut response = pending.response().await.sse();
    response.prime().await;
    assert_eq!(response.event().await.json()["id"], 7);
}

#[tokio::test]
async fn a_call_that_asks_without_end_is_told_in_time_and_bounded() {
    let (mut upstream, proxy) = stage_with_grace(Duration::from_secs(30)).await;
    let (sse, mut response, _) = begun(&mut upstream, &proxy, &call(5, json!({}))).await;
    response.prime().await;
    for id in 0..64 {
        sse.event(question(id)).await;
    }
    sse.event(question(64)).await;
    let refused = upstream.expect("response").await;
    assert_eq!((&refused.json_body()["id"], &refused.json_body()["error"]["code"]), (&json!(64), &json!(-32603)));
    refused.status(202).await;
    pass(Duration::from_secs(31)).await;
    let asked = response.event().await.json()["result"]["inputRequests"].clone();
    assert_eq!(asked.as_object().expect("an object").len(), 64);
}

#[tokio::test]
async fn a_refused_stream_is_opened_again_and_a_forgotten_session_ends_its_subscriptions() {
    let (mut upstream, proxy) = stage().await;
    let own = opened(&mut upstream, &proxy).await;
    let mut listening = listen("sub", json!({"toolsListChanged": true})).start(proxy.addr).await.response().await.sse();
    listening.prime().await;
    listening.event().await;
    own.reset().await;
    settle(&proxy, &mut upstream).await;
    pass(Duration::from_secs(2)).await;
    upstream.expect("GET").await.json(409, "{}").await;
    settle(&proxy, &mut upstream).await;
    pass(Duration::from_secs(3)).await;
    let own = upstream.expect("GET").await.sse().await;
    own.event(json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}).to_string()).await;
    assert_eq!(listening.event().await.json()["method"], "notifications/tools/list_changed");
    own.reset().await;
    settle(&proxy, &mut upstream).await;
    pass(Duration::from_secs(2)).await;
    upstream.expect("GET").await.json(404, "{}").await;
    let end = listening.event().await.json();
    assert_eq!((&end["id"], &end["result"]["resultType"]), (&json!("sub"), &json!("complete")));
    listening.ends().await;
}

#[tokio::test]
async fn a_server_that_was_replaced_by_one_of_the_clients_revision_is_left_alone() {
    let (mut upstream, proxy) = stage().await;
    has_called(&mut upstream, &proxy).await;
    pass(Duration::from_secs(6)).await;
    let again = call(6, json!({}));
    let pending = again.start(proxy.addr).await;
    forgets(&mut upstream).await;
    upstream
        .expect("initialize")
        .await
        .json(400, r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32022,"message":"no"}}"#)
        .await;
    // It is asked for its transport, and for its era.
    is_modern(&mut upstream).await;
    is_modern(&mut upstream).await;
    passes(&mut upstream, pending, &again).await;
}

#[tokio::test]
async fn what_a_client_says_of_itself_is_bounded() {
    let (mut upstream, proxy) = stage().await;
    let mut body: Value = serde_json::from_slice(request(1, "tools/list", json!({})).body()).expect("JSON");
    body["params"]["_meta"]["io.modelcontextprotocol/clientInfo"]["x"] = json!("x".repeat(64 * 1024));
    let pending = request(1, "tools/list", json!({})).with_body(body.to_string()).start(proxy.addr).await;
    upstream.expect("server/discover").await.json(404, "{}").await;
    let mut refused = pending.response().await;
    assert_eq!((refused.status, &refused.json().await["error"]["code"]), (400, &json!(-32602)));
    assert!(upstream.is_quiet());
    // Icons may be whole images, and vendors may send what they like.
    let meta = &mut body["params"]["_meta"];
    meta["io.modelcontextprotocol/clientInfo"] =
        json!({"name": "raw", "version": "1", "icons": [{"src": "x".repeat(100_000)}]});
    meta["x.example/state"] = json!("x".repeat(100_000));
    let pending = request(1, "tools/list", json!({})).with_body(body.to_string()).start(proxy.addr).await;
    opens(&mut upstream, false).await;
    let list = first_call(&mut upstream).await;
    let (own, meta) = (list.json_body()["id"].clone(), list.json_body()["params"]["_meta"].clone());
    assert_eq!(meta["x.example/state"].as_str().map(str::len), Some(100_000));
    list.json(200, json!({"jsonrpc": "2.0", "id": own, "result": {"tools": []}}).to_string()).await;
    assert_eq!(pending.response().await.status, 200);
}

#[tokio::test]
async fn a_revision_that_a_replaced_server_refuses_in_a_session_is_spoken_no_more() {
    let (mut upstream, proxy) = stage().await;
    has_called(&mut upstream, &proxy).await;
    pass(Duration::from_secs(6)).await;
    let again = call(6, json!({}));
    let pending = again.start(proxy.addr).await;
    let refused = upstream.expect("tools/call").await;
    let id = refused.json_body()["id"].clone();
    refused
        .json(400, json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32022, "message": "no"}}).to_string())
        .await;
    is_modern(&mut upstream).await;
    passes(&mut upstream, pending, &again).await;
}

#[tokio::test]
async fn a_burst_of_changes_reaches_a_client_that_reads() {
    let (mut upstream, proxy) = stage().await;
    let own = outside_calls::opened(&mut upstream, &proxy).await;
    let listen = request(9, "subscriptions/listen", json!({"notifications": {"toolsListChanged": true}}));
    let mut listening = listen.start(proxy.addr).await.response().await.sse();
    listening.prime().await;
    assert_eq!(listening.event().await.json()["method"], "notifications/subscriptions/acknowledged");
    let change = "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/tools/list_changed\"}\n\n";
    own.bytes(change.repeat(2000)).await;
    for number in 0..2000 {
        assert_eq!(listening.event().await.json()["method"], "notifications/tools/list_changed", "{number}");
    }
}

#[tokio::test]
async fn a_question_before_the_response_begins_is_the_calls() {
    let (mut upstream, proxy) = stage().await;
    let own = outside_calls::opened(&mut upstream, &proxy).await;
    let pending = call(5, json!({})).start(proxy.addr).await;
    let running = upstream.expect("tools/call").await;
    let sent = running.json_body()["id"].clone();
    own.event(progress_under(&sent)).await;
    let mut response = pending.response().await.sse();
    response.prime().await;
    assert_eq!(response.event().await.json()["params"]["progressToken"], 7);
    own.event(question(0)).await;
    let asked = response.event().await.json()["result"].clone();
    response.ends().await;
    let answers = json!({"requestState": asked["requestState"], "inputResponses": {"q1": {"action": "accept"}}});
    let pending = call(6, answers).start(proxy.addr).await;
    let answered = upstream.expect("response").await;
    assert_eq!(answered.json_body(), json!({"jsonrpc": "2.0", "id": 0, "result": {"action": "accept"}}));
    answered.status(202).await;
    running.json(200, result_under(&sent)).await;
    let mut response = pending.response().await.sse();
    response.prime().await;
    let result = response.event().await.json();
    assert_eq!((&result["id"], &result["result"]["content"][0]["text"]), (&json!(6), &json!("done")));
    // A refusal is an error to the call.
    let pending = call(7, json!({})).start(proxy.addr).await;
    let running = upstream.expect("tools/call").await;
    own.event(progress_under(&running.json_body()["id"])).await;
    let mut response = pending.response().await.sse();
    response.prime().await;
    response.event().await;
    running.status(500).await;
    assert_eq!(response.event().await.json()["error"]["code"], -32603);
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn a_server_whose_era_cannot_be_found_now_is_of_the_one_before() {
    let (mut upstream, proxy) = stage().await;
    has_called(&mut upstream, &proxy).await;
    pass(Duration::from_secs(301)).await;
    for (id, is_asked) in [(6, true), (7, false)] {
        let pending = call(id, json!({})).start(proxy.addr).await;
        if is_asked {
            upstream.expect("server/discover").await.status(503).await;
        }
        let running = upstream.expect("tools/call").await;
        assert_eq!(running.header("mcp-session-id"), Some("s-1"));
        let own = running.json_body()["id"].clone();
        running.json(200, result_under(&own)).await;
        assert_eq!(pending.response().await.json().await["result"]["resultType"], "complete");
    }
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn a_call_that_waits_is_not_run_by_the_server_that_replaced_its_own() {
    let (mut upstream, proxy) = stage().await;
    let (sse, mut response, _) = begun(&mut upstream, &proxy, &call(5, json!({}))).await;
    response.prime().await;
    sse.event(question(0)).await;
    let asked = response.event().await.json()["result"].clone();
    sse.fin().await;
    pass(Duration::from_secs(301)).await;
    let pending = request(9, "tools/list", json!({})).start(proxy.addr).await;
    is_modern(&mut upstream).await;
    upstream.expect("tools/list").await.json(200, r#"{"jsonrpc":"2.0","id":9,"result":{"tools":[]}}"#).await;
    pending.response().await.json().await;
    let answers = json!({"requestState": asked["requestState"], "inputResponses": {"q1": {"action": "accept"}}});
    let pending = call(6, answers).start(proxy.addr).await;
    upstream
        .expect("response")
        .await
        .json(400, r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32022,"message":"no"}}"#)
        .await;
    let mut response = pending.response().await.sse();
    response.prime().await;
    assert_eq!(response.event().await.json()["error"]["data"]["mayHaveRun"], true);
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn the_end_of_the_process_ends_what_is_at_the_server() {
    let (mut upstream, proxy) = stage().await;
    let (sse, mut response, sent) = begun(&mut upstream, &proxy, &call(5, json!({}))).await;
    response.prime().await;
    sse.event(question(0)).await;
    response.event().await;
    response.ends().await;
    let stopping = proxy.ask_to_stop();
    let ends = async {
        let answered = upstream.expect("response").await;
        assert_eq!(answered.json_body()["result"], json!({"action": "cancel"}));
        answered.status(202).await;
        let cancelled = upstream.expect("notifications/cancelled").await;
        assert_eq!(cancelled.json_body()["params"]["requestId"], sent["id"]);
        cancelled.status(202).await;
        let end = upstream.expect("DELETE").await;
        assert_eq!(end.header("mcp-session-id"), Some("s-1"));
        end.status(200).await;
    };
    tokio::join!(within("the end of the proxy", stopping), ends);
}

#[tokio::test]
async fn a_response_that_only_lenient_parsers_read_is_translated() {
    let lenient = |id: &Value| {
        let result = r#"{"content":[],"structuredContent":{"x":NaN,"y":-Infinity}}"#;
        format!("\u{feff}{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{result},\"error\":null}}")
    };
    let (mut upstream, proxy) = stage().await;
    let (sse, mut response, sent) = begun(&mut upstream, &proxy, &call(5, json!({}))).await;
    response.prime().await;
    sse.finish(lenient(&sent["id"])).await;
    let as_event = response.event().await.json();
    let pending = call(6, json!({})).start(proxy.addr).await;
    let called = upstream.expect("tools/call").await;
    let id = called.json_body()["id"].clone();
    called.json(200, lenient(&id)).await;
    let whole = pending.response().await.json().await;
    for (message, id) in [(as_event, 5), (whole, 6)] {
        assert_eq!(
            (&message["id"], &message["result"]["structuredContent"]),
            (&json!(id), &json!({"x": null, "y": null}))
        );
    }
}

/// The server is being replaced, and a gateway in front of it says so.
#[tokio::test]
async fn a_session_is_opened_once_a_gateway_has_its_server() {
    let (mut upstream, proxy) = stage().await;
    let pending = request(1, "tools/list", json!({})).start(proxy.addr).await;
    let refusal = r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"Bad Request: no session"}}"#;
    upstream.expect("server/discover").await.json(400, refusal).await;
    upstream.expect("initialize").await.status_with(503, "retry-after: 0\r\n").await;
    opens(&mut upstream, false).await;
    let (get, list) = first_two(&mut upstream).await;
    get.status(405).await;
    let id = list.json_body()["id"].clone();
    list.json(200, json!({"jsonrpc": "2.0", "id": id, "result": {"tools": []}}).to_string()).await;
    assert_eq!(pending.response().await.json().await["id"], 1);
}
