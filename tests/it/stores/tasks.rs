//! Tasks whose client asks another replica, or another process of the same store.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::disk::Dir;
use super::*;
use crate::tasks::{declaring, id_of, promoted, state, terms};

async fn pair_of_tasks() -> (Redis, Replica, Replica) {
    let redis = Redis::start();
    let with_tasks = |config: &mut Config| config.tasks = Some(Arc::new(terms()));
    let one = Replica::with(&redis, "one", with_tasks).await;
    let two = Replica::with(&redis, "two", with_tasks).await;
    (redis, one, two)
}

async fn change(proxy: &Proxy, method: &str, params: Value) {
    let reply = declaring("change", method, params).send(proxy.addr).await.json().await;
    assert_eq!(reply, json!({"jsonrpc": "2.0", "id": "change", "result": {"resultType": "complete"}}));
}

fn result_of(id: &Value, result: Value) -> String {
    json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string()
}

#[tokio::test]
async fn a_task_is_polled_answered_and_read_elsewhere() {
    let (_redis, mut one, two) = pair_of_tasks().await;
    let (sse, handle) = promoted(&mut one.upstream, &one.proxy).await;
    let task = id_of(&handle);
    assert_eq!(state(&two.proxy, &task).await["status"], "working");
    let requests = json!({"q": {"method": "roots/list"}});
    sse.finish(result_of(&json!(5), json!({"resultType": "input_required", "inputRequests": requests}))).await;
    until("the question", async || state(&two.proxy, &task).await["status"] == "input_required").await;
    change(&two.proxy, "tasks/update", json!({"taskId": task, "inputResponses": {"1-q": {"roots": []}}})).await;
    assert_eq!(state(&two.proxy, &task).await["status"], "working", "the acknowledged answer counts everywhere");
    let again = one.upstream.expect("tools/call").await;
    let id = again.json_body()["id"].clone();
    again.json(200, result_of(&id, json!({"content": [], "resultType": "complete"}))).await;
    until("the end", async || state(&two.proxy, &task).await["status"] == "completed").await;
    assert_eq!(state(&two.proxy, &task).await["result"]["content"], json!([]));
    assert!(two.upstream.is_quiet());
}

#[tokio::test]
async fn a_call_that_waits_for_a_poll_goes_on_with_one_elsewhere() {
    let (_redis, mut one, two) = pair_of_tasks().await;
    let (sse, handle) = promoted(&mut one.upstream, &one.proxy).await;
    let task = id_of(&handle);
    sse.finish(result_of(&json!(5), json!({"resultType": "input_required", "requestState": "S"}))).await;
    let poll = async {
        loop {
            assert_eq!(state(&two.proxy, &task).await["status"], "working");
            pass(Duration::from_millis(10)).await;
        }
    };
    let again = tokio::select! {
        again = one.upstream.expect("tools/call") => again,
        () = poll => unreachable!(),
    };
    assert_eq!(again.json_body()["params"]["requestState"], "S");
    let id = again.json_body()["id"].clone();
    again.json(200, result_of(&id, json!({"content": []}))).await;
    until("the end", async || state(&two.proxy, &task).await["status"] == "completed").await;
    assert!(one.upstream.is_quiet() && two.upstream.is_quiet());
}

#[tokio::test]
async fn a_cancel_elsewhere_is_final_everywhere() {
    let (_redis, mut one, two) = pair_of_tasks().await;
    let (sse, handle) = promoted(&mut one.upstream, &one.proxy).await;
    let task = id_of(&handle);
    assert_eq!(state(&two.proxy, &task).await["status"], "working");
    change(&two.proxy, "tasks/cancel", json!({"taskId": task})).await;
    sse.closed().await;
    for replica in [&one, &two] {
        assert_eq!(state(&replica.proxy, &task).await["status"], "cancelled");
    }
}

#[tokio::test]
async fn the_task_of_a_replica_that_died_fails_at_another() {
    let redis = Redis::start();
    let settings = [("MCP_RESUME_TASKS__AFTER_MS", "30"), ("MCP_RESUME_TASKS__ENABLED", "true")];
    let mut one = Replica::process(&redis, "one", &settings).await;
    let two = Replica::with(&redis, "two", |config| config.tasks = Some(Arc::new(terms()))).await;
    let (_sse, handle) = promoted(&mut one.upstream, &one.proxy).await;
    let task = id_of(&handle);
    assert_eq!(state(&two.proxy, &task).await["status"], "working");
    one.proxy.kill().await;
    until("the end", async || state(&two.proxy, &task).await["status"] == "failed").await;
    let ended = state(&two.proxy, &task).await;
    assert_eq!(ended["error"]["data"]["mayHaveRun"], true, "{ended}");
}

#[tokio::test]
async fn tasks_outlive_their_process_on_disk() {
    let (dir, mut upstream) = (Dir::new("tasks"), Upstream::start().await);
    let open = async |upstream: &Upstream| {
        let mut command = command(upstream);
        command.args(["--store", &dir.store()]).env("MCP_RESUME_TASKS__AFTER_MS", "30");
        Proxy::process(command).await
    };
    let proxy = open(&upstream).await;
    let (sse, handle) = promoted(&mut upstream, &proxy).await;
    let ended = id_of(&handle);
    sse.finish(result_of(&json!(5), json!({"content": [{"type": "text", "text": "done"}]}))).await;
    until("the end", async || state(&proxy, &ended).await["status"] == "completed").await;
    let (_sse, handle) = promoted(&mut upstream, &proxy).await;
    let running = id_of(&handle);
    proxy.kill().await;
    let proxy = open(&upstream).await;
    assert_eq!(state(&proxy, &ended).await["result"]["content"][0]["text"], "done");
    until("the end", async || state(&proxy, &running).await["status"] == "failed").await;
    assert_eq!(state(&proxy, &running).await["error"]["data"]["mayHaveRun"], true);
    assert_eq!(state(&proxy, &running).await["createdAt"], handle["createdAt"]);
}
