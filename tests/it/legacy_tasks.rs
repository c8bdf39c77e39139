//! 2025-11-25: calls whose clients ask for tasks, for servers that have none.

use std::sync::Arc;
use std::time::Duration;

use mcp_resume::config::{Config, LegacyTasks, Tasks};
use serde_json::{Value, json};

use crate::cancel::cancelled;
use crate::client_responses::{answer, question};
use crate::support::*;
use crate::tasks::terms;

const RELATED: &str = "io.modelcontextprotocol/related-task";

pub(crate) async fn stage_with(tasks: Tasks, change: impl FnOnce(&mut Config)) -> (Upstream, Proxy, Session) {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |config| {
        config.tasks = Some(Arc::new(tasks));
        change(config);
    })
    .await;
    let (_, session) = open(&proxy, &mut upstream, V2025_11, json!({"tools": {}})).await;
    (upstream, proxy, session)
}

async fn stage() -> (Upstream, Proxy, Session) {
    stage_with(offering(Duration::from_secs(3600)), |_| {}).await
}

pub(crate) fn offering(max_wait: Duration) -> Tasks {
    Tasks { legacy: Some(Arc::new(LegacyTasks::new(["slow".to_owned()], max_wait))), ..terms() }
}

/// Opens a session with a server of these capabilities. Returns the capabilities that the client
/// gets.
async fn open(proxy: &Proxy, upstream: &mut Upstream, version: &'static str, capabilities: Value) -> (Value, Session) {
    let pending = Request::post(initialize(version)).start(proxy.addr).await;
    let result =
        json!({"protocolVersion": version, "capabilities": capabilities, "serverInfo": {"name": "s", "version": "1"}});
    let result = json!({"jsonrpc": "2.0", "id": 0, "result": result});
    upstream.expect("initialize").await.json_with(200, "mcp-session-id: s-1\r\n", result.to_string()).await;
    let opened = pending.response().await.json().await;
    (opened["result"]["capabilities"].clone(), Session::opened_elsewhere(version, "s-1", None))
}

fn wish(id: u64, task: Value) -> String {
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call",
        "params": {"name": "slow", "arguments": {}, "_meta": {"progressToken": 7}, "task": task}})
    .to_string()
}

/// Has a call begin as a task. Returns the server's side of it, and the handle.
pub(crate) async fn begun(upstream: &mut Upstream, proxy: &Proxy, session: &Session) -> (Sse, Value) {
    let pending = session.post(wish(5, json!({"ttl": 60_000}))).start(proxy.addr).await;
    let sse = upstream.expect("tools/call").await.sse().await;
    let mut response = pending.response().await;
    assert_eq!(response.header("content-type"), Some("application/json"));
    let handle = response.json().await;
    assert_eq!(handle["id"], 5);
    (sse, handle["result"]["task"].clone())
}

fn id_of(handle: &Value) -> &str {
    handle["taskId"].as_str().expect("an ID")
}

fn request(id: u64, method: &str, task: &str) -> String {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": {"taskId": task}}).to_string()
}

async fn asked(proxy: &Proxy, session: &Session, method: &str, task: &str) -> Value {
    let mut response = session.post(request(6, method, task)).send(proxy.addr).await;
    assert_eq!((response.status, response.header("content-type")), (200, Some("application/json")));
    response.json().await
}

async fn state(proxy: &Proxy, session: &Session, task: &str) -> Value {
    asked(proxy, session, "tasks/get", task).await["result"].clone()
}

/// Opens the standalone stream.
async fn listen(upstream: &mut Upstream, proxy: &Proxy, session: &Session) -> (Sse, Response) {
    let pending = session.get().start(proxy.addr).await;
    let sse = upstream.expect("GET").await.sse().await;
    let mut listening = pending.response().await.sse();
    listening.prime().await;
    (sse, listening)
}

fn related(message: &Value) -> &Value {
    let part = if message.get("params").is_some() { "params" } else { "result" };
    &message[part]["_meta"][RELATED]["taskId"]
}

#[tokio::test]
async fn tasks_are_offered_at_their_revision_for_the_configured_tools() {
    let (mut upstream, proxy, session) = stage().await;
    let offer = json!({"cancel": {}, "requests": {"tools": {"call": {}}}});
    let (capabilities, _) = open(&proxy, &mut upstream, V2025_11, json!({"tools": {}})).await;
    assert_eq!(capabilities, json!({"tools": {}, "tasks": offer}));
    for (version, own) in [(V2025_06, json!({"tools": {}})), (V2025_11, json!({"tasks": {"list": {}}}))] {
        let (capabilities, _) = open(&proxy, &mut upstream, version, own.clone()).await;
        assert_eq!(capabilities, own);
    }
    let (_, session) = (session, open(&proxy, &mut upstream, V2025_11, json!({})).await.1);
    let pending = session.post(r#"{"jsonrpc":"2.0","id":2,"method":"tools/list"}"#).start(proxy.addr).await;
    let listed = r#"{"jsonrpc":"2.0","id":2,"result":{"tools":[{"name":"slow"},{"name":"fast"}]}}"#;
    let facts = "etag: \"e\"\r\ncontent-digest: sha-256=:AA==:\r\n";
    upstream.expect("tools/list").await.json_with(200, facts, listed).await;
    let mut response = pending.response().await;
    let tools = response.json().await["result"]["tools"].clone();
    // They describe other bytes.
    assert_eq!((response.header("etag"), response.header("content-digest")), (None, None));
    assert_eq!(tools, json!([{"name": "slow", "execution": {"taskSupport": "optional"}}, {"name": "fast"}]));
}

#[tokio::test]
async fn a_call_is_a_task_at_once_and_the_server_notices_nothing() {
    let (mut upstream, proxy, session) = stage().await;
    let pending = session.post(wish(5, json!({"ttl": 60_000}))).start(proxy.addr).await;
    let call = upstream.expect("tools/call").await;
    assert_eq!(call.json_body()["params"], json!({"name": "slow", "arguments": {}, "_meta": {"progressToken": 7}}));
    // Before the server has answered at all.
    let handle = pending.response().await.json().await["result"]["task"].clone();
    assert_eq!(
        (&handle["status"], &handle["ttl"], &handle["pollInterval"]),
        (&json!("working"), &json!(60_000), &json!(1000))
    );
    let task = id_of(&handle).to_owned();
    assert!(task.starts_with("mrt1."));
    assert_eq!(state(&proxy, &session, &task).await["status"], "working");
    let sse = call.sse().await;
    sse.event(progress(3)).await;
    until("the text", async || state(&proxy, &session, &task).await.get("statusMessage").is_some()).await;
    sse.finish(result(5)).await;
    until("the end", async || state(&proxy, &session, &task).await["status"] == "completed").await;
    assert!(state(&proxy, &session, &task).await.get("pollInterval").is_none());
    for _ in 0..2 {
        let mut read = session.post(request(9, "tasks/result", &task)).send(proxy.addr).await.sse();
        read.prime().await;
        let outcome = read.event().await.json();
        assert_eq!((&outcome["id"], related(&outcome)), (&json!(9), &json!(task)));
        assert_eq!(outcome["result"]["content"][0]["text"], "done");
        read.ends().await;
    }
    assert_eq!(asked(&proxy, &session, "tasks/cancel", &task).await["error"]["code"], -32602);
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn a_json_response_and_one_that_waits_for_it_are_the_outcome() {
    let (mut upstream, proxy, session) = stage().await;
    let pending = session.post(wish(5, json!({}))).start(proxy.addr).await;
    let call = upstream.expect("tools/call").await;
    let handle = pending.response().await.json().await["result"]["task"].clone();
    assert_eq!(handle["ttl"], Value::Null);
    let waiting = session.post(request(9, "tasks/result", id_of(&handle))).with("Accept", "application/json");
    let waiting = waiting.start(proxy.addr).await;
    call.json(200, result(5)).await;
    let outcome = waiting.response().await.json().await;
    assert_eq!((&outcome["id"], related(&outcome)), (&json!(9), &handle["taskId"]));
}

#[tokio::test]
async fn an_error_of_the_tool_fails_the_task_with_its_text() {
    let (mut upstream, proxy, session) = stage().await;
    let (sse, handle) = begun(&mut upstream, &proxy, &session).await;
    sse.finish(r#"{"jsonrpc":"2.0","id":5,"result":{"isError":true,"content":[{"type":"text","text":"no disk"}]}}"#)
        .await;
    let task = id_of(&handle);
    until("the end", async || state(&proxy, &session, task).await["status"] == "failed").await;
    assert_eq!(state(&proxy, &session, task).await["statusMessage"], "no disk");
    let mut read = session.post(request(9, "tasks/result", task)).send(proxy.addr).await.sse();
    read.prime().await;
    assert_eq!(read.event().await.json()["result"]["isError"], true);
}

#[tokio::test]
async fn a_reader_that_is_cut_resumes_and_gets_the_messages_of_the_task() {
    let (mut upstream, proxy, session) = stage().await;
    let (sse, handle) = begun(&mut upstream, &proxy, &session).await;
    let mut read = session.post(request(9, "tasks/result", id_of(&handle))).send(proxy.addr).await.sse();
    read.prime().await;
    sse.event(progress(1)).await;
    let event = read.event().await;
    assert_eq!((&event.json()["params"]["progressToken"], related(&event.json())), (&json!(7), &handle["taskId"]));
    read.reset();
    sse.finish(result(5)).await;
    let mut back = session.resume(event.id()).send(proxy.addr).await.sse();
    back.prime().await;
    assert_eq!(back.event().await.json()["id"], 9);
}

#[tokio::test]
async fn a_question_goes_to_the_standalone_stream_and_its_answer_to_the_server() {
    let (mut upstream, proxy, session) = stage().await;
    let (_standalone, mut listening) = listen(&mut upstream, &proxy, &session).await;
    let (sse, handle) = begun(&mut upstream, &proxy, &session).await;
    let task = id_of(&handle);
    sse.event(question("q")).await;
    let asked = listening.event().await.json();
    assert_eq!((&asked["id"], related(&asked)), (&json!("q"), &handle["taskId"]));
    assert_eq!(state(&proxy, &session, task).await["status"], "input_required");
    let given = session.post(answer("q")).start(proxy.addr).await;
    upstream.expect("response").await.status(202).await;
    assert_eq!(given.response().await.status, 202);
    assert_eq!(state(&proxy, &session, task).await["status"], "working");
    sse.event(progress(2)).await;
    assert_eq!(related(&listening.event().await.json()), &handle["taskId"]);
    sse.finish(result(5)).await;
    let mut statuses = Vec::new();
    while statuses.last() != Some(&json!("completed")) {
        let told = listening.event().await.json();
        assert_eq!(
            (&told["method"], &told["params"]["taskId"]),
            (&json!("notifications/tasks/status"), &handle["taskId"])
        );
        statuses.push(told["params"]["status"].clone());
    }
}

#[tokio::test]
async fn a_question_without_a_reader_waits_for_the_first_one() {
    for by_result in [true, false] {
        let (mut upstream, proxy, session) = stage().await;
        let (sse, handle) = begun(&mut upstream, &proxy, &session).await;
        let task = id_of(&handle);
        sse.event(question("q")).await;
        until("the question", async || state(&proxy, &session, task).await["status"] == "input_required").await;
        let mut reading = if by_result {
            let mut read = session.post(request(9, "tasks/result", task)).send(proxy.addr).await.sse();
            read.prime().await;
            read
        } else {
            listen(&mut upstream, &proxy, &session).await.1
        };
        assert_eq!(reading.event().await.json()["id"], "q");
        let given = session.post(answer("q")).start(proxy.addr).await;
        upstream.expect("response").await.status(202).await;
        assert_eq!(given.response().await.status, 202);
        sse.finish(result(5)).await;
        until("the end", async || state(&proxy, &session, task).await["status"] == "completed").await;
        let mut again = session.post(request(10, "tasks/result", task)).send(proxy.addr).await.sse();
        again.prime().await;
        assert_eq!(again.event().await.json()["id"], 10, "the question is not asked twice");
    }
}

#[tokio::test]
async fn a_cancel_is_final_and_reaches_the_server() {
    let (mut upstream, proxy, session) = stage().await;
    let (sse, handle) = begun(&mut upstream, &proxy, &session).await;
    let task = id_of(&handle);
    let cancel = session.post(request(8, "tasks/cancel", task)).start(proxy.addr).await;
    let told = upstream.expect("notifications/cancelled").await;
    assert_eq!(told.json_body()["params"]["requestId"], 5);
    told.status(202).await;
    let response = cancel.response().await.json().await;
    assert_eq!((&response["id"], &response["result"]["status"]), (&json!(8), &json!("cancelled")));
    sse.closed().await;
    assert_eq!(state(&proxy, &session, task).await["status"], "cancelled");
    assert_eq!(asked(&proxy, &session, "tasks/cancel", task).await["error"]["code"], -32602);
}

#[tokio::test]
async fn a_notification_cancels_no_task() {
    let (mut upstream, proxy, session) = stage().await;
    let (sse, handle) = begun(&mut upstream, &proxy, &session).await;
    let mut read = session.post(request(9, "tasks/result", id_of(&handle))).send(proxy.addr).await.sse();
    read.prime().await;
    for id in [5, 9] {
        assert_eq!(session.post(cancelled(id)).send(proxy.addr).await.status, 202);
    }
    assert!(upstream.is_quiet());
    sse.finish(result(5)).await;
    assert_eq!(read.event().await.json()["id"], 9);
}

#[tokio::test]
async fn a_retry_gets_the_handle_again_and_the_tool_runs_once() {
    let (mut upstream, proxy, session) = stage().await;
    let (_sse, handle) = begun(&mut upstream, &proxy, &session).await;
    let again = session.post(wish(5, json!({"ttl": 60_000}))).send(proxy.addr).await.json().await;
    assert_eq!(again["result"]["task"]["taskId"], handle["taskId"]);
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn a_task_for_another_tool_is_refused() {
    let (upstream, proxy, session) = stage().await;
    let body = wish(5, json!({})).replace("slow", "fast");
    assert_eq!(session.post(body).send(proxy.addr).await.json().await["error"]["code"], -32601);
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn unknown_foreign_and_forged_tasks_are_one() {
    let (mut upstream, proxy, session) = stage().await;
    let (_sse, handle) = begun(&mut upstream, &proxy, &session).await;
    let task = id_of(&handle);
    let forged = format!("{}{}", &task[..task.len() - 1], if task.ends_with('A') { 'B' } else { 'A' });
    let stranger = Session::opened_elsewhere(V2025_11, "s-1", Some("Bearer other"));
    for method in ["tasks/get", "tasks/result", "tasks/cancel"] {
        let expected = asked(&proxy, &session, method, "mrt1.none").await;
        assert_eq!(expected["error"]["code"], -32602, "{expected}");
        assert_eq!(asked(&proxy, &session, method, &forged).await, expected);
        assert_eq!(asked(&proxy, &session, method, "other").await, expected);
        assert_eq!(asked(&proxy, &stranger, method, task).await, expected);
    }
    assert_eq!(state(&proxy, &session, task).await["status"], "working");
}

#[tokio::test]
async fn a_refusal_of_the_server_is_the_response() {
    let (mut upstream, proxy, session) = stage().await;
    let stranger = Session::opened_elsewhere(V2025_11, "s-1", Some("Bearer other"));
    let pending = stranger.post(wish(5, json!({}))).start(proxy.addr).await;
    upstream.expect("tools/call").await.status(401).await;
    assert_eq!(pending.response().await.status, 401);
    // The credentials count as refused from here on.
    let pending = session.post(call_tool(4, "fast")).start(proxy.addr).await;
    upstream.expect("tools/call").await.status(401).await;
    assert_eq!(pending.response().await.status, 401);
    let pending = session.post(wish(5, json!({}))).start(proxy.addr).await;
    upstream.expect("tools/call").await.status(401).await;
    assert_eq!(pending.response().await.status, 401);
    let pending = session.post(wish(6, json!({}))).start(proxy.addr).await;
    upstream.expect("tools/call").await.json(200, result(6)).await;
    let handle = pending.response().await.json().await["result"]["task"].clone();
    until("the end", async || state(&proxy, &session, id_of(&handle)).await["status"] == "completed").await;
}

#[tokio::test]
async fn a_task_without_requests_is_abandoned() {
    let (mut upstream, proxy, session) = stage_with(offering(SOON * 10), |_| {}).await;
    let pending = session.post(wish(5, json!({"ttl": 86_400_000}))).start(proxy.addr).await;
    let call = upstream.expect("tools/call").await;
    let handle = pending.response().await.json().await["result"]["task"].clone();
    assert_eq!(handle["ttl"], (SOON * 10).as_millis() as u64, "no longer than it is kept");
    let sse = call.sse().await;
    upstream.expect("notifications/cancelled").await.status(202).await;
    sse.closed().await;
    let view = state(&proxy, &session, id_of(&handle)).await;
    assert_eq!(view["status"], "failed");
}

#[tokio::test]
async fn running_tasks_are_bounded() {
    let (mut upstream, proxy, session) =
        stage_with(offering(Duration::from_secs(3600)), |config| config.limits.tasks_per_principal = 1).await;
    let (sse, _) = begun(&mut upstream, &proxy, &session).await;
    let refused = session.post(wish(6, json!({}))).send(proxy.addr).await;
    assert_eq!(refused.status, 429);
    sse.finish(result(5)).await;
    until("room", async || {
        let pending = session.post(wish(7, json!({}))).start(proxy.addr).await;
        let response = pending.response().await;
        response.status == 200
    })
    .await;
}

#[tokio::test]
async fn the_end_of_the_session_ends_its_tasks() {
    let (mut upstream, proxy, session) = stage().await;
    let (sse, _) = begun(&mut upstream, &proxy, &session).await;
    let ending = session.delete().start(proxy.addr).await;
    upstream.expect("DELETE").await.status(200).await;
    assert_eq!(ending.response().await.status, 200);
    sse.closed().await;
}

#[tokio::test]
async fn requests_that_read_a_cancelled_task_get_an_error() {
    let (mut upstream, proxy, session) = stage().await;
    let (_sse, handle) = begun(&mut upstream, &proxy, &session).await;
    let task = id_of(&handle);
    let mut reading = session.post(request(9, "tasks/result", task)).send(proxy.addr).await.sse();
    reading.prime().await;
    let cancel = session.post(request(8, "tasks/cancel", task)).start(proxy.addr).await;
    upstream.expect("notifications/cancelled").await.status(202).await;
    assert_eq!(cancel.response().await.json().await["result"]["status"], "cancelled");
    let message = reading.event().await.json();
    assert_eq!((&message["id"], &message["error"]["code"]), (&json!(9), &json!(-32603)));
    let later = session.post(request(10, "tasks/result", task)).with("Accept", "application/json");
    let later = later.send(proxy.addr).await.json().await;
    assert_eq!((&later["id"], &later["error"]["code"]), (&json!(10), &json!(-32603)));
    assert_eq!(state(&proxy, &session, task).await["status"], "cancelled");
}

#[tokio::test]
async fn a_question_outlives_the_standalone_stream_that_had_it() {
    for by_result in [true, false] {
        let (mut upstream, proxy, session) = stage().await;
        let (_standalone, mut listening) = listen(&mut upstream, &proxy, &session).await;
        let (sse, handle) = begun(&mut upstream, &proxy, &session).await;
        let task = id_of(&handle);
        sse.event(question("q")).await;
        assert_eq!(listening.event().await.json()["id"], "q");
        listening.reset();
        settle(&proxy, &mut upstream).await;
        let request = if by_result { session.post(request(9, "tasks/result", task)) } else { session.get() };
        let mut next = request.send(proxy.addr).await.sse();
        next.prime().await;
        let mut message = next.event().await.json();
        while message.get("id").is_none() {
            message = next.event().await.json();
        }
        assert_eq!(message["id"], "q", "{by_result}");
        assert_eq!(state(&proxy, &session, task).await["status"], "input_required");
        let given = session.post(answer("q")).start(proxy.addr).await;
        upstream.expect("response").await.status(202).await;
        assert_eq!(given.response().await.status, 202);
        assert_eq!(state(&proxy, &session, task).await["status"], "working");
    }
}

#[tokio::test]
async fn a_question_of_a_reader_that_does_not_come_back_goes_to_the_standalone_stream() {
    let (mut upstream, proxy, session) = stage().await;
    let (_standalone, mut listening) = listen(&mut upstream, &proxy, &session).await;
    let (sse, handle) = begun(&mut upstream, &proxy, &session).await;
    let mut read = session.post(request(9, "tasks/result", id_of(&handle))).send(proxy.addr).await.sse();
    read.prime().await;
    sse.event(question("q")).await;
    assert_eq!(read.event().await.json()["id"], "q");
    read.reset();
    settle(&proxy, &mut upstream).await;
    // In the time in which the reader may come back the question stays its own.
    tokio::select! {
        biased;
        event = listening.event() => assert_ne!(event.json()["id"], "q", "{:?}", event.json()),
        () = settle(&proxy, &mut upstream) => {}
    }
    pass(Duration::from_secs(60)).await;
    let mut message = listening.event().await.json();
    while message.get("id").is_none() {
        message = listening.event().await.json();
    }
    assert_eq!(message["id"], "q");
}

#[tokio::test]
async fn a_server_without_a_standalone_stream_has_that_of_its_tasks() {
    let (mut upstream, proxy, session) = stage().await;
    let pending = session.get().start(proxy.addr).await;
    upstream.expect("GET").await.status(405).await;
    let mut listening = pending.response().await.sse();
    listening.prime().await;
    let (sse, handle) = begun(&mut upstream, &proxy, &session).await;
    sse.event(question("q")).await;
    let asked = listening.event().await.json();
    assert_eq!((&asked["id"], related(&asked)), (&json!("q"), &handle["taskId"]));
}

#[tokio::test]
async fn a_change_is_told_to_a_client_that_listens_later() {
    let (mut upstream, proxy, session) = stage().await;
    let (sse, handle) = begun(&mut upstream, &proxy, &session).await;
    sse.event(progress(3)).await;
    until("the text", async || state(&proxy, &session, id_of(&handle)).await.get("statusMessage").is_some()).await;
    pass(Duration::from_secs(2)).await;
    let (_standalone, mut listening) = listen(&mut upstream, &proxy, &session).await;
    let told = listening.event().await.json();
    assert_eq!((&told["method"], &told["params"]["status"]), (&json!("notifications/tasks/status"), &json!("working")));
}

#[tokio::test]
async fn a_session_that_outlives_the_proxy_keeps_its_tasks() {
    let mut upstream = Upstream::start().await;
    let proxy =
        Proxy::start(&upstream, |config| config.tasks = Some(Arc::new(offering(Duration::from_secs(3600))))).await;
    let session = Session::opened_elsewhere(V2025_11, "s-1", None);
    let pending = session.post(wish(5, json!({}))).start(proxy.addr).await;
    let call = upstream.expect("tools/call").await;
    assert_eq!(call.json_body()["params"].get("task"), None);
    // Without the server's word on the credentials, its head comes first.
    let sse = call.sse().await;
    let handle = pending.response().await.json().await["result"]["task"].clone();
    sse.finish(result(5)).await;
    until("the end", async || state(&proxy, &session, id_of(&handle)).await["status"] == "completed").await;
}
