//! 2026-07-28: calls that become tasks, for servers that have none.

use std::sync::Arc;
use std::time::Duration;

use mcp_resume::config::{Config, Tasks};
use serde_json::{Value, json};

use crate::support::*;

const EXTENSION: &str = "io.modelcontextprotocol/tasks";

pub(crate) fn terms() -> Tasks {
    Tasks {
        after: Duration::from_millis(30),
        hold: None,
        max_wait: Duration::from_secs(3600),
        retention: Duration::from_secs(3600),
        legacy: None,
    }
}

/// A request of a client that declares the extension.
pub(crate) fn declaring(id: impl Into<Value>, method: &str, params: Value) -> Request {
    let mut body = json!({"jsonrpc": "2.0", "id": id.into(), "method": method, "params": {"_meta": {
        "io.modelcontextprotocol/protocolVersion": V2026,
        "io.modelcontextprotocol/clientInfo": {"name": "raw", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}, "extensions": {EXTENSION: {}}},
        "progressToken": 7}}});
    for (name, value) in params.as_object().into_iter().flatten() {
        body["params"][name] = value.clone();
    }
    Request::post(body.to_string()).with("MCP-Protocol-Version", V2026).with("Mcp-Method", method)
}

fn slow_call(id: impl Into<Value>) -> Request {
    declaring(id, "tools/call", json!({"name": "slow", "arguments": {}})).with("Mcp-Name", "slow")
}

fn get(task: &str) -> Request {
    declaring("poll", "tasks/get", json!({"taskId": task})).with("Mcp-Name", task).with("Accept", "application/json")
}

pub(crate) async fn stage(change: impl FnOnce(&mut Config)) -> (Upstream, Proxy) {
    stage_with(terms(), change).await
}

async fn stage_with(tasks: Tasks, change: impl FnOnce(&mut Config)) -> (Upstream, Proxy) {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |config| {
        config.tasks = Some(Arc::new(tasks));
        change(config);
    })
    .await;
    (upstream, proxy)
}

/// Has a client discover the server, whose result has these capabilities. Returns what the client
/// gets.
async fn discover(upstream: &mut Upstream, proxy: &Proxy, capabilities: Value) -> Value {
    discover_by(upstream, proxy, declaring(0, "server/discover", json!({})), capabilities).await
}

/// Does as [`discover`] with this request. Its credentials are accepted by the server from then on:
/// the proxy sends no `server/discover` of its own for a later call with them.
async fn discover_by(upstream: &mut Upstream, proxy: &Proxy, request: Request, capabilities: Value) -> Value {
    let asked = request.start(proxy.addr).await;
    let result = json!({"jsonrpc": "2.0", "id": 0, "result": {"resultType": "complete", "supportedVersions": [V2026],
        "capabilities": capabilities, "ttlMs": 0, "cacheScope": "private"}});
    upstream.expect("server/discover").await.json(200, result.to_string()).await;
    asked.response().await.json().await
}

/// Has a call become a task. Returns the upstream's side of it, and the handle.
pub(crate) async fn promoted(upstream: &mut Upstream, proxy: &Proxy) -> (Sse, Value) {
    discover(upstream, proxy, json!({"tools": {}})).await;
    let (sse, mut response) = begin(proxy, upstream, &slow_call(5)).await;
    response.prime().await;
    let handle = response.event().await.json();
    response.ends().await;
    assert_eq!((&handle["id"], &handle["result"]["resultType"]), (&json!(5), &json!("task")), "{handle}");
    (sse, handle["result"].clone())
}

pub(crate) fn id_of(handle: &Value) -> String {
    handle["taskId"].as_str().expect("a task").to_owned()
}

pub(crate) async fn state(proxy: &Proxy, task: &str) -> Value {
    let mut response = get(task).send(proxy.addr).await;
    assert_eq!(response.status, 200);
    let message = response.json().await;
    assert_eq!(message["id"], "poll");
    message["result"].clone()
}

#[tokio::test]
async fn the_extension_is_offered_for_a_server_without() {
    let (mut upstream, proxy) = stage(|_| {}).await;
    let offered = discover(&mut upstream, &proxy, json!({"tools": {}})).await;
    assert_eq!(offered["result"]["capabilities"], json!({"tools": {}, "extensions": {EXTENSION: {}}}));
    let own = json!({"tools": {}, "extensions": {EXTENSION: {"x": 1}}});
    assert_eq!(discover(&mut upstream, &proxy, own.clone()).await["result"]["capabilities"], own);
}

#[tokio::test]
async fn a_slow_call_becomes_a_task_with_its_progress_and_its_result() {
    let (mut upstream, proxy) = stage(|_| {}).await;
    let (sse, handle) = promoted(&mut upstream, &proxy).await;
    assert_eq!(handle["status"], "working");
    assert_eq!(handle["ttlMs"], 3_600_000);
    assert_eq!(handle["pollIntervalMs"], 1000);
    for absent in ["task", "result", "error", "inputRequests", "requestState", "ttl", "pollInterval"] {
        assert!(handle.get(absent).is_none(), "{handle}");
    }
    let task = id_of(&handle);
    let working = state(&proxy, &task).await;
    assert_eq!((&working["resultType"], &working["status"]), (&json!("complete"), &json!("working")));
    sse.event(r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":7,"progress":3,"total":10,"message":"linking"}}"#).await;
    until("the text", async || state(&proxy, &task).await["statusMessage"] == "3 of 10: linking").await;
    sse.finish(r#"{"jsonrpc":"2.0","id":5,"result":{"content":[],"isError":true}}"#).await;
    until("the end", async || state(&proxy, &task).await["status"] == "completed").await;
    let ended = state(&proxy, &task).await;
    assert_eq!(ended["result"], json!({"resultType": "complete", "content": [], "isError": true}));
    assert!(ended.get("pollIntervalMs").is_none() && ended.get("error").is_none(), "{ended}");
    assert!(upstream.is_quiet(), "the upstream has noticed nothing");
}

#[tokio::test]
async fn an_error_of_the_server_fails_the_task() {
    let (mut upstream, proxy) = stage(|_| {}).await;
    let (sse, handle) = promoted(&mut upstream, &proxy).await;
    sse.finish(r#"{"jsonrpc":"2.0","id":5,"error":{"code":-32603,"message":"panicked"}}"#).await;
    let task = id_of(&handle);
    until("the end", async || state(&proxy, &task).await["status"] == "failed").await;
    assert_eq!(state(&proxy, &task).await["error"], json!({"code": -32603, "message": "panicked"}));
}

#[tokio::test]
async fn a_server_that_breaks_off_fails_the_task() {
    let (mut upstream, proxy) = stage(|_| {}).await;
    let (sse, handle) = promoted(&mut upstream, &proxy).await;
    sse.reset().await;
    let task = id_of(&handle);
    until("the end", async || state(&proxy, &task).await["status"] == "failed").await;
    assert_eq!(state(&proxy, &task).await["error"]["code"], -32010);
}

#[tokio::test]
async fn a_json_server_and_a_client_of_json_alone_are_served() {
    let (mut upstream, proxy) = stage(|_| {}).await;
    discover(&mut upstream, &proxy, json!({})).await;
    let request = slow_call(5).with("Accept", "application/json");
    let pending = request.start(proxy.addr).await;
    let call = upstream.expect("tools/call").await;
    let handle = pending.response().await.json().await["result"].clone();
    assert_eq!(handle["resultType"], "task");
    call.json(200, result(5)).await;
    let task = id_of(&handle);
    until("the end", async || state(&proxy, &task).await["status"] == "completed").await;
}

#[tokio::test]
async fn a_fast_call_and_one_that_does_not_declare_are_no_tasks() {
    let (mut upstream, proxy) = stage_with(Tasks { after: LIMIT, ..terms() }, |_| {}).await;
    discover(&mut upstream, &proxy, json!({})).await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &modern(1)).await;
    response.prime().await;
    pass(2 * LIMIT).await;
    sse.finish(result(1)).await;
    assert_eq!(response.event().await.bytes(), result(1).as_bytes());
    let (sse, mut response) = begin(&proxy, &mut upstream, &slow_call(2)).await;
    sse.finish(result(2)).await;
    response.prime().await;
    assert_eq!(response.event().await.bytes(), result(2).as_bytes());
}

#[tokio::test]
async fn nothing_is_promoted_for_a_server_with_tasks_of_its_own() {
    let (mut upstream, proxy) = stage(|_| {}).await;
    discover(&mut upstream, &proxy, json!({"extensions": {EXTENSION: {}}})).await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &slow_call(1)).await;
    response.prime().await;
    pass(Duration::from_millis(100)).await;
    sse.finish(result(1)).await;
    assert_eq!(response.event().await.bytes(), result(1).as_bytes());
    let poll = declaring("p", "tasks/get", json!({"taskId": "theirs"})).start(proxy.addr).await;
    let answer = json!({"jsonrpc": "2.0", "id": "p", "result": {"resultType": "complete", "taskId": "theirs"}});
    upstream.expect("tasks/get").await.json(200, answer.to_string()).await;
    assert_eq!(poll.response().await.json().await, answer);
}

#[tokio::test]
async fn the_proxy_asks_a_server_that_no_client_has_discovered() {
    let (mut upstream, proxy) = stage(|_| {}).await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &slow_call(5)).await;
    response.prime().await;
    let asked = upstream.expect("server/discover").await;
    let id = asked.json_body()["id"].clone();
    let result = json!({"jsonrpc": "2.0", "id": id, "result": {"supportedVersions": [V2026], "capabilities": {}}});
    asked.json(200, result.to_string()).await;
    assert_eq!(response.event().await.json()["result"]["resultType"], "task");
    drop(sse);
}

#[tokio::test]
async fn a_cancel_is_final_and_closes_the_call() {
    let (mut upstream, proxy) = stage(|_| {}).await;
    let (sse, handle) = promoted(&mut upstream, &proxy).await;
    let task = id_of(&handle);
    for _ in 0..2 {
        let cancel = declaring(9, "tasks/cancel", json!({"taskId": task})).send(proxy.addr).await.json().await;
        assert_eq!(cancel, json!({"jsonrpc": "2.0", "id": 9, "result": {"resultType": "complete"}}));
        let ended = state(&proxy, &task).await;
        assert_eq!(ended["status"], "cancelled");
        assert!(ended.get("result").is_none() && ended.get("error").is_none(), "{ended}");
    }
    sse.closed().await;
}

#[tokio::test]
async fn questions_after_the_handle_are_answered_by_updates() {
    let (mut upstream, proxy) = stage(|_| {}).await;
    let (sse, handle) = promoted(&mut upstream, &proxy).await;
    let task = id_of(&handle);
    let question = |message: &str| json!({"method": "elicitation/create", "params": {"mode": "form", "message": message, "requestedSchema": {"type": "object", "properties": {}}}});
    let round = json!({"jsonrpc": "2.0", "id": 5, "result": {"resultType": "input_required", "requestState": "S",
        "inputRequests": {"a": question("A?"), "b": question("B?")}}});
    sse.finish(round.to_string()).await;
    until("the questions", async || state(&proxy, &task).await["status"] == "input_required").await;
    assert_eq!(state(&proxy, &task).await["inputRequests"], json!({"1-a": question("A?"), "1-b": question("B?")}));
    let update = async |responses: Value| {
        let update = declaring(8, "tasks/update", json!({"taskId": task, "inputResponses": responses}));
        assert_eq!(
            update.send(proxy.addr).await.json().await,
            json!({"jsonrpc": "2.0", "id": 8, "result": {"resultType": "complete"}})
        );
    };
    let (yes, no) = (json!({"action": "accept", "content": {"ok": true}}), json!({"action": "decline"}));
    update(json!({"1-a": yes, "unknown": no})).await;
    assert_eq!(state(&proxy, &task).await["inputRequests"], json!({"1-b": question("B?")}));
    assert!(upstream.is_quiet());
    update(json!({"1-a": no, "1-b": no})).await;
    let again = upstream.expect("tools/call").await;
    assert_eq!(again.header("mcp-name"), Some("slow"));
    let body = again.json_body();
    assert_eq!(body["params"]["inputResponses"], json!({"a": yes, "b": no}));
    assert_eq!(body["params"]["requestState"], "S");
    assert_eq!(body["params"]["name"], "slow");
    assert_ne!(body["id"], 5);
    assert_eq!(state(&proxy, &task).await["status"], "working");
    let answer = json!({"jsonrpc": "2.0", "id": body["id"], "result": {"content": [], "resultType": "complete"}});
    again.json(200, answer.to_string()).await;
    until("the end", async || state(&proxy, &task).await["status"] == "completed").await;
}

#[tokio::test]
async fn requests_that_do_not_fit_are_refused() {
    let (mut upstream, proxy) = stage(|_| {}).await;
    let (_sse, handle) = promoted(&mut upstream, &proxy).await;
    let task = id_of(&handle);
    let refused = async |request: Request, status: u16, code: i64| {
        let mut response = request.send(proxy.addr).await;
        let message = response.json().await;
        assert_eq!((response.status, message["error"]["code"].as_i64()), (status, Some(code)), "{message}");
        message
    };
    refused(modern_method(1, "tasks/get").without("Mcp-Name"), 400, -32021).await;
    refused(get(&task).with("Mcp-Name", "other"), 400, -32020).await;
    refused(get(&task).with("Mcp-Method", "tools/call"), 400, -32020).await;
    refused(declaring(1, "tasks/result", json!({"taskId": task})), 404, -32601).await;
    refused(declaring(1, "tasks/list", json!({})), 404, -32601).await;
    let unknown = refused(get("mrt1.nothing").without("Mcp-Name"), 200, -32602).await;
    let mut forged = task.clone();
    let last = forged.pop().expect("a character");
    forged.push(if last == 'A' { 'B' } else { 'A' });
    for other in ["theirs", &forged] {
        assert_eq!(refused(get(other).without("Mcp-Name"), 200, -32602).await, unknown);
    }
    let foreign = get(&task).with("Authorization", "Bearer other");
    assert_eq!(refused(foreign, 200, -32602).await, unknown);
    // No event ID is made of a task.
    let event = format!("{}.0", task.strip_prefix("mrt1.").expect("ours"));
    let mut resumed = modern_resume(&event).send(proxy.addr).await.sse();
    assert_eq!(resumed.events().await.0[0].json()["error"]["code"], -32012);
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn a_held_poll_tells_the_end_at_once_and_survives_a_cut() {
    let tasks = Tasks { hold: Some(LIMIT * 6), ..terms() };
    let (mut upstream, proxy) = stage_with(tasks, |_| {}).await;
    let (sse, handle) = promoted(&mut upstream, &proxy).await;
    let task = id_of(&handle);
    let mut held = get(&task).with("Accept", "application/json, text/event-stream").send(proxy.addr).await.sse();
    let prime = held.prime().await;
    let place = EventId::of(prime.id());
    held.reset();
    let mut back = modern_resume(&place.at(0)).send(proxy.addr).await.sse();
    back.prime().await;
    sse.finish(result(5)).await;
    let event = back.event().await;
    assert_eq!(event.id(), place.at(1));
    let message = event.json();
    assert_eq!((&message["id"], &message["result"]["status"]), (&json!("poll"), &json!("completed")));
    back.ends().await;
    assert_eq!(modern_resume(&place.at(1)).send(proxy.addr).await.status, 204);
    assert_eq!(state(&proxy, &task).await["status"], "completed", "a task that has ended is not held");
}

#[tokio::test]
async fn a_task_whose_client_never_asks_is_cancelled_and_one_that_is_named_goes_on() {
    let tasks = Tasks { max_wait: LIMIT * 6, retention: LIMIT * 6, ..terms() };
    let (mut upstream, proxy) = stage_with(tasks, |config| config.streams.modern_grace = Some(Duration::ZERO)).await;
    let (named, handle) = promoted(&mut upstream, &proxy).await;
    state(&proxy, &id_of(&handle)).await;
    // The connection of this client breaks before it can have the handle.
    let request = slow_call(6);
    let pending = request.start(proxy.addr).await;
    let lost = upstream.expect("tools/call").await.sse().await;
    let mut response = pending.response().await.sse();
    response.prime().await;
    response.event().await;
    response.reset();
    lost.closed().await;
    assert!(!named.is_closed());
}

#[tokio::test]
async fn a_retry_of_a_promoted_call_gets_the_same_handle() {
    let (mut upstream, proxy) = stage(|_| {}).await;
    let discovery = declaring(0, "server/discover", json!({})).with("Authorization", "Bearer a");
    discover_by(&mut upstream, &proxy, discovery, json!({})).await;
    let request = slow_call(5).with("Authorization", "Bearer a").with("Idempotency-Key", "k");
    let (sse, mut response) = begin(&proxy, &mut upstream, &request).await;
    response.prime().await;
    let handle = response.event().await.json();
    let mut again = request.send(proxy.addr).await.sse();
    again.prime().await;
    assert_eq!(again.event().await.json(), handle);
    assert!(upstream.is_quiet());
    drop(sse);
}

#[tokio::test]
async fn a_retry_finds_its_running_task_though_memory_is_needed() {
    let (mut upstream, proxy) = stage(|config| {
        config.admin.address = Some(([127, 0, 0, 1], 0).into());
        config.streams.max_bytes_per_principal = 256 * 1024;
    })
    .await;
    let discovery = declaring(0, "server/discover", json!({})).with("Authorization", "Bearer a");
    discover_by(&mut upstream, &proxy, discovery, json!({})).await;
    let request = slow_call(5).with("Authorization", "Bearer a").with("Idempotency-Key", "k");
    let (_sse, mut response) = begin(&proxy, &mut upstream, &request).await;
    response.prime().await;
    let handle = response.event().await.json();
    response.ends().await;
    let large =
        json!({"jsonrpc": "2.0", "id": 6, "result": {"content": [{"type": "text", "text": "x".repeat(60 * 1024)}]}});
    let other = declaring(6, "tools/list", json!({})).with("Authorization", "Bearer a");
    while metric(&proxy, "mcp_resume_evicted_streams_total").await < 8.0 {
        let (sse, mut response) = begin(&proxy, &mut upstream, &other).await;
        sse.finish(large.to_string()).await;
        response.prime().await;
        response.event().await;
        response.ends().await;
    }
    let mut again = request.send(proxy.addr).await.sse();
    again.prime().await;
    assert_eq!(again.event().await.json(), handle);
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn a_foreign_task_is_one_that_is_not_there_for_every_method() {
    let (mut upstream, proxy) = stage(|_| {}).await;
    let discovery = declaring(0, "server/discover", json!({})).with("Authorization", "Bearer victim");
    discover_by(&mut upstream, &proxy, discovery, json!({})).await;
    let request = slow_call(5).with("Authorization", "Bearer victim");
    let (sse, mut response) = begin(&proxy, &mut upstream, &request).await;
    response.prime().await;
    let task = id_of(&response.event().await.json()["result"]);
    let mut forged = task.clone();
    let last = forged.pop().expect("a character");
    forged.push(if last == 'A' { 'B' } else { 'A' });
    for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
        let mut seen = Vec::new();
        for (id, token) in [
            (task.as_str(), "Bearer thief"),
            (task.as_str(), ""),
            (forged.as_str(), "Bearer victim"),
            ("mrt1.", "Bearer victim"),
            ("theirs", "Bearer victim"),
        ] {
            let params = json!({"taskId": id, "inputResponses": {"1-a": {}}});
            let request = declaring(1, method, params).with("Accept", "application/json");
            let request = if token.is_empty() { request } else { request.with("Authorization", token) };
            let mut response = request.send(proxy.addr).await;
            seen.push((response.status, response.body().await));
        }
        assert!(seen.iter().all(|one| *one == seen[0] && one.0 == 200), "{method}: {seen:?}");
        assert_eq!(serde_json::from_slice::<Value>(&seen[0].1).unwrap()["error"]["code"], -32602);
    }
    let own = get(&task).with("Authorization", "Bearer victim").send(proxy.addr).await.json().await;
    assert_eq!(own["result"]["status"], "working", "nothing has cancelled it");
    assert!(!sse.is_closed() && upstream.is_quiet());
}

#[tokio::test]
async fn a_caller_with_as_many_tasks_as_it_may_have_keeps_ordinary_calls() {
    let (mut upstream, proxy) = stage(|config| config.limits.tasks_per_principal = 2).await;
    let mut running = Vec::new();
    for _ in 0..2 {
        running.push(promoted(&mut upstream, &proxy).await);
    }
    let (sse, mut response) = begin(&proxy, &mut upstream, &slow_call(7)).await;
    response.prime().await;
    pass(Duration::from_millis(200)).await;
    sse.finish(result(7)).await;
    assert_eq!(response.event().await.bytes(), result(7).as_bytes());
    // A place is free again with the end of a task, not with its retention.
    let (ended, handle) = running.pop().expect("one");
    let (waiting, mut response) = begin(&proxy, &mut upstream, &slow_call(8)).await;
    response.prime().await;
    pass(Duration::from_millis(200)).await;
    ended.finish(result(5)).await;
    until("the end", async || state(&proxy, &id_of(&handle)).await["status"] == "completed").await;
    // A call that found no place becomes a task later.
    assert_eq!(response.event().await.json()["result"]["resultType"], "task");
    drop(waiting);
}

#[tokio::test]
async fn rounds_with_large_answers_are_counted_and_do_not_end_the_call() {
    let (mut upstream, proxy) = stage(|config| config.admin.address = Some(([127, 0, 0, 1], 0).into())).await;
    let (sse, handle) = promoted(&mut upstream, &proxy).await;
    let task = id_of(&handle);
    let asked = |id: &Value, state: &str| {
        json!({"jsonrpc": "2.0", "id": id, "result": {"resultType": "input_required", "requestState": state,
        "inputRequests": {"q": {"method": "sampling/createMessage"}}}})
        .to_string()
    };
    let large = "x".repeat(1536 * 1024);
    sse.finish(asked(&json!(5), &large)).await;
    let mut held = 0.0;
    for round in 1..=3 {
        let key = format!("{round}-q");
        until("the question", async || state(&proxy, &task).await["inputRequests"].get(&key).is_some()).await;
        held = metric(&proxy, "mcp_resume_held_bytes").await;
        assert!(held > large.len() as f64, "{held}");
        let answer = json!({"role": "assistant", "content": {"type": "text", "text": large}, "model": "m"});
        let responses = json!({"taskId": task, "inputResponses": {key: answer}});
        declaring(1, "tasks/update", responses).send(proxy.addr).await;
        let again = upstream.expect("tools/call").await;
        let body = again.json_body();
        assert_eq!(body["params"]["requestState"], large);
        again.json(200, asked(&body["id"], &large)).await;
    }
    assert!(held < 4.0 * large.len() as f64, "{held}: answers of former rounds are not kept");
}

#[tokio::test]
async fn states_that_are_past_take_no_memory() {
    let (mut upstream, proxy) = stage(|config| config.admin.address = Some(([127, 0, 0, 1], 0).into())).await;
    let (sse, handle) = promoted(&mut upstream, &proxy).await;
    let task = id_of(&handle);
    let question = json!({"method": "elicitation/create", "params": {"message": "x".repeat(600)}});
    let requests: serde_json::Map<_, _> = (0..100).map(|n| (n.to_string(), question.clone())).collect();
    let asked =
        json!({"jsonrpc": "2.0", "id": 5, "result": {"resultType": "input_required", "inputRequests": requests}});
    sse.finish(asked.to_string()).await;
    until("the questions", async || state(&proxy, &task).await["status"] == "input_required").await;
    let before = metric(&proxy, "mcp_resume_held_bytes").await;
    for number in 0..99 {
        let responses = json!({format!("1-{number}"): {"action": "decline"}});
        let update = declaring(1, "tasks/update", json!({"taskId": task, "inputResponses": responses}));
        update.send(proxy.addr).await;
    }
    let after = metric(&proxy, "mcp_resume_held_bytes").await;
    assert!(after < before * 2.0, "{before} {after}");
    assert_eq!(state(&proxy, &task).await["inputRequests"], json!({"1-99": question}));
    let malformed = declaring(1, "tasks/update", json!({"taskId": task, "inputResponses": []}));
    assert_eq!(malformed.send(proxy.addr).await.json().await["error"]["code"], -32602);
}

#[tokio::test]
async fn a_server_that_asks_for_ever_fails_the_task() {
    let (mut upstream, proxy) = stage(|_| {}).await;
    let (sse, handle) = promoted(&mut upstream, &proxy).await;
    let task = id_of(&handle);
    let asked = |id: &Value| {
        json!({"jsonrpc": "2.0", "id": id, "result": {"resultType": "input_required",
        "inputRequests": {"q": {"method": "roots/list"}}}})
    };
    sse.finish(asked(&json!(5)).to_string()).await;
    for round in 1..=10 {
        let key = format!("{round}-q");
        until("the question", async || state(&proxy, &task).await["inputRequests"].get(&key).is_some()).await;
        let responses = json!({"taskId": task, "inputResponses": {key: {"roots": []}}});
        declaring(1, "tasks/update", responses).send(proxy.addr).await;
        let again = upstream.expect("tools/call").await;
        let id = again.json_body()["id"].clone();
        again.json(200, asked(&id).to_string()).await;
    }
    until("the end", async || state(&proxy, &task).await["status"] == "failed").await;
    assert_eq!(state(&proxy, &task).await["error"]["code"], -32010);
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn a_server_that_asks_for_too_much_at_once_fails_the_task() {
    let (mut upstream, proxy) = stage(|_| {}).await;
    let (sse, handle) = promoted(&mut upstream, &proxy).await;
    let task = id_of(&handle);
    let requests: serde_json::Map<_, _> = (0..101).map(|n| (n.to_string(), json!({"method": "roots/list"}))).collect();
    let asked =
        json!({"jsonrpc": "2.0", "id": 5, "result": {"resultType": "input_required", "inputRequests": requests}});
    sse.finish(asked.to_string()).await;
    until("the end", async || state(&proxy, &task).await["status"] == "failed").await;
    assert_eq!(state(&proxy, &task).await["error"]["code"], -32010);
}

#[tokio::test]
async fn a_round_that_asks_nothing_or_is_malformed_does_not_run_the_call_again() {
    for requests in [json!({}), json!({"a": "no object"}), json!([]), json!({"a": {"method": "roots/list"}, "b": 1})] {
        let (mut upstream, proxy) = stage(|_| {}).await;
        let (sse, handle) = promoted(&mut upstream, &proxy).await;
        let task = id_of(&handle);
        let asked =
            json!({"jsonrpc": "2.0", "id": 5, "result": {"resultType": "input_required", "inputRequests": requests}});
        sse.finish(asked.to_string()).await;
        until("the end", async || state(&proxy, &task).await["status"] == "failed").await;
        assert!(upstream.is_quiet());
    }
}

#[tokio::test]
async fn a_server_that_wants_its_state_back_gets_it_with_the_next_poll() {
    let (mut upstream, proxy) = stage(|_| {}).await;
    let (sse, handle) = promoted(&mut upstream, &proxy).await;
    let task = id_of(&handle);
    let wait = json!({"jsonrpc": "2.0", "id": 5, "result": {"resultType": "input_required", "requestState": "S"}});
    sse.finish(wait.to_string()).await;
    let poll = async {
        loop {
            assert_eq!(state(&proxy, &task).await["status"], "working");
            pass(Duration::from_millis(10)).await;
        }
    };
    let again = tokio::select! {
        again = upstream.expect("tools/call") => again,
        () = poll => unreachable!(),
    };
    assert_eq!(again.json_body()["params"]["requestState"], "S");
    let answer = json!({"jsonrpc": "2.0", "id": again.json_body()["id"], "result": {"content": []}});
    again.json(200, answer.to_string()).await;
    until("the end", async || state(&proxy, &task).await["status"] == "completed").await;
}

#[tokio::test]
async fn the_call_goes_on_with_the_credentials_of_the_update() {
    let (mut upstream, proxy) = stage(|config| {
        config.auth.principal = mcp_resume::config::PrincipalSource::Header("x-user".parse().unwrap());
    })
    .await;
    let as_user = |request: Request, token: &str| {
        request.with("X-User", "a").with("Authorization", token).with("Accept", "application/json, text/event-stream")
    };
    let discovery = as_user(declaring(0, "server/discover", json!({})), "Bearer old");
    discover_by(&mut upstream, &proxy, discovery, json!({})).await;
    let request = as_user(slow_call(5), "Bearer old").with("Mcp-Param-Region", "eu");
    let (sse, mut response) = begin(&proxy, &mut upstream, &request).await;
    response.prime().await;
    let task = id_of(&response.event().await.json()["result"]);
    let asked = json!({"jsonrpc": "2.0", "id": 5, "result": {"resultType": "input_required",
        "inputRequests": {"q": {"method": "roots/list"}}}});
    sse.finish(asked.to_string()).await;
    let poll = as_user(get(&task), "Bearer new");
    until("the question", async || poll.send(proxy.addr).await.json().await["result"]["status"] == "input_required")
        .await;
    let update = declaring(1, "tasks/update", json!({"taskId": task, "inputResponses": {"1-q": {"roots": []}}}));
    as_user(update, "Bearer new").send(proxy.addr).await;
    let again = upstream.expect("tools/call").await;
    assert_eq!(again.header("authorization"), Some("Bearer new"));
    assert_eq!((again.header("mcp-param-region"), again.header("mcp-name")), (Some("eu"), Some("slow")));
    assert_eq!(again.header("mcp-method"), Some("tools/call"));
}

#[tokio::test]
async fn a_large_outcome_is_told_by_a_poll_of_its_own() {
    let tasks = Tasks { hold: Some(LIMIT * 6), ..terms() };
    let (mut upstream, proxy) = stage_with(tasks, |_| {}).await;
    let (sse, handle) = promoted(&mut upstream, &proxy).await;
    let task = id_of(&handle);
    let poll = get(&task).with("Accept", "application/json, text/event-stream");
    let mut held = poll.send(proxy.addr).await.sse();
    let large = "x".repeat(4 * 1024 * 1024);
    let outcome = json!({"jsonrpc": "2.0", "id": 5, "result": {"content": [{"type": "text", "text": large}]}});
    let place = EventId::of(held.prime().await.id());
    sse.finish(outcome.to_string()).await;
    assert_eq!(held.event().await.json()["result"]["status"], "working");
    let mut back = modern_resume(&place.at(0)).send(proxy.addr).await.sse();
    back.prime().await;
    assert_eq!(back.event().await.json()["result"]["status"], "working", "a client that is back, too");
    let ended = poll.send(proxy.addr).await.json().await;
    assert_eq!(ended["result"]["result"]["content"][0]["text"].as_str().map(str::len), Some(large.len()));
}

#[tokio::test]
async fn own_tasks_are_not_subscribed_to_at_the_server() {
    let (mut upstream, proxy) = stage(|_| {}).await;
    discover(&mut upstream, &proxy, json!({})).await;
    let filter = json!({"notifications": {"toolsListChanged": true, "taskIds": ["mrt1.x"]}});
    let pending = declaring(1, "subscriptions/listen", filter).start(proxy.addr).await;
    let listen = upstream.expect("subscriptions/listen").await;
    assert_eq!(listen.json_body()["params"]["notifications"], json!({"toolsListChanged": true}));
    drop(pending);
    let undeclared = modern_method(2, "subscriptions/listen").without("Mcp-Name");
    let body = String::from_utf8(undeclared.body().to_vec()).unwrap();
    let body = body.replace(r#""name":"slow""#, r#""notifications":{"taskIds":["mrt1.x"]}"#);
    let mut refused = undeclared.with_body(body).send(proxy.addr).await;
    assert_eq!((refused.status, refused.json().await["error"]["code"].as_i64()), (400, Some(-32021)));
}

#[tokio::test]
async fn a_tool_that_requires_tasks_refuses_clients_without() {
    let (mut upstream, proxy) = stage(|config| {
        let task = Some(mcp_resume::config::TaskSupport::Required);
        config.tools.insert("slow".to_owned(), mcp_resume::config::ToolOverrides { task, ..Default::default() });
    })
    .await;
    let mut refused = modern(1).send(proxy.addr).await;
    let message = refused.json().await;
    assert_eq!((refused.status, &message["error"]["code"]), (400, &json!(-32021)));
    assert_eq!(message["error"]["data"]["requiredCapabilities"], json!({"extensions": {EXTENSION: {}}}));
    assert!(upstream.is_quiet());
    promoted(&mut upstream, &proxy).await;
}

#[tokio::test]
async fn the_server_s_own_tasks_have_the_owner_in_their_ids_behind_a_balancer() {
    let (mut upstream, proxy) = stage(|config| {
        config.replica.wrap_sessions = true;
        config.replica.name = Some("one".to_owned());
    })
    .await;
    let owner = mcp_resume::protocol::ids::Owner::from_name("one");
    discover(&mut upstream, &proxy, json!({"extensions": {EXTENSION: {}}})).await;
    let task = |id: String| json!({"resultType": "task", "taskId": id, "status": "working"});
    let called = slow_call(5).start(proxy.addr).await;
    let answer = json!({"jsonrpc": "2.0", "id": 5, "result": task("t".to_owned())});
    upstream.expect("tools/call").await.json(200, answer.to_string()).await;
    let shown = format!("{owner}~t");
    assert_eq!(called.response().await.json().await["result"], task(shown.clone()));
    let polled = get(&shown).start(proxy.addr).await;
    let poll = upstream.expect("tasks/get").await;
    assert_eq!((poll.header("mcp-name"), &poll.json_body()["params"]["taskId"]), (Some("t"), &json!("t")));
    let answer = json!({"jsonrpc": "2.0", "id": "poll", "result": task("t".to_owned())});
    poll.json(200, answer.to_string()).await;
    assert_eq!(polled.response().await.json().await["result"], task(shown));
}

#[tokio::test]
async fn a_task_has_a_result_that_only_lenient_parsers_read() {
    let (mut upstream, proxy) = stage(|_| {}).await;
    let (sse, handle) = promoted(&mut upstream, &proxy).await;
    sse.finish(r#"{"jsonrpc":"2.0","id":"5","result":{"content":[],"structuredContent":{"x":NaN}}}"#).await;
    settle(&proxy, &mut upstream).await;
    let body = get(&id_of(&handle)).send(proxy.addr).await.body().await;
    let text = String::from_utf8(body.to_vec()).expect("text");
    let result = r#""result":{"resultType":"complete","content":[],"structuredContent":{"x":NaN}}}}"#;
    assert!(text.contains(r#""status":"completed""#) && text.ends_with(result), "{text}");
}
