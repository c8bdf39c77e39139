//! Slow calls of a server with sessions, which are tasks of their clients.

use std::sync::Arc;

use super::*;
use crate::stores::disk::Dir;
use crate::tasks::{declaring, id_of, state, terms};

/// Has a call become a task: the server's stream, the request at the server, and the task.
async fn promoted(upstream: &mut Upstream, proxy: &Proxy) -> (Sse, Value, String) {
    let call = declaring(5, "tools/call", json!({"name": "slow", "arguments": {}})).with("Mcp-Name", "slow");
    let pending = call.start(proxy.addr).await;
    // The proxy asks for the server's tasks, too, in a session of its own.
    let call = loop {
        let call = upstream.next().await;
        match call.rpc_method().as_str() {
            "tools/call" => break call,
            "initialize" => {
                let id = call.json_body()["id"].clone();
                call.json_with(200, "mcp-session-id: s-1\r\n", initialized(&id)).await;
            }
            "notifications/initialized" => call.status(202).await,
            "GET" => call.status(405).await,
            _ => call.json(404, "{}").await,
        }
    };
    let sent = call.json_body();
    let sse = call.sse().await;
    let mut response = pending.response().await.sse();
    response.prime().await;
    let handle = response.event().await.json()["result"].clone();
    assert_eq!(handle["resultType"], "task", "{handle}");
    (sse, sent, id_of(&handle))
}

#[tokio::test]
async fn a_question_is_the_tasks_and_waits_for_its_user_as_the_task_does() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |config| {
        config.dialects.input_grace = Duration::from_millis(50);
        config.bridge = Some(always());
        config.tasks = Some(Arc::new(terms()));
    })
    .await;
    let (sse, sent, task) = promoted(&mut upstream, &proxy).await;
    sse.event(progress_under(&sent["id"])).await;
    until("the text", async || state(&proxy, &task).await["statusMessage"] == "1").await;
    sse.event(question(0)).await;
    until("the question", async || state(&proxy, &task).await["status"] == "input_required").await;
    let asked = state(&proxy, &task).await["inputRequests"].clone();
    assert_eq!(asked["1-q1"]["method"], "elicitation/create", "{asked}");
    // An ordinary call waits for ten minutes.
    pass(Duration::from_secs(3000)).await;
    assert_eq!(state(&proxy, &task).await["status"], "input_required");
    let answers = json!({"taskId": task, "inputResponses": {"1-q1": {"action": "accept"}}});
    let updated = declaring(6, "tasks/update", answers).start(proxy.addr).await;
    // The era of the server is asked for again after so long.
    let answered = loop {
        let call = upstream.next().await;
        match call.rpc_method().as_str() {
            "response" => break call,
            // That of the session, if the call came before it.
            "GET" => call.status(405).await,
            method => {
                assert_eq!(method, "server/discover");
                call.json(404, "{}").await;
            }
        }
    };
    assert_eq!(answered.json_body(), json!({"jsonrpc": "2.0", "id": 0, "result": {"action": "accept"}}));
    answered.status(202).await;
    assert_eq!(updated.response().await.status, 200);
    sse.finish(result_under(&sent["id"])).await;
    until("the end", async || state(&proxy, &task).await["status"] == "completed").await;
    // The client comes back an hour later.
    pass(Duration::from_secs(3500)).await;
    assert_eq!(state(&proxy, &task).await["result"]["content"][0]["text"], "done");
}

#[tokio::test]
async fn the_outcome_of_a_task_outlives_the_process() {
    let (dir, mut upstream) = (Dir::new("bridged"), Upstream::start().await);
    let open = async |upstream: &Upstream| {
        let mut command = command(upstream);
        command.args(["--store", &dir.store()]).env("MCP_RESUME_TASKS__AFTER_MS", "30");
        command.env("MCP_RESUME_BRIDGE__MODERN_CLIENTS", "always");
        Proxy::process(command).await
    };
    let proxy = open(&upstream).await;
    let (sse, sent, ended) = promoted(&mut upstream, &proxy).await;
    sse.finish(result_under(&sent["id"])).await;
    until("the end", async || state(&proxy, &ended).await["status"] == "completed").await;
    let (_sse, _, running) = promoted(&mut upstream, &proxy).await;
    proxy.kill().await;
    let proxy = open(&upstream).await;
    assert_eq!(state(&proxy, &ended).await["result"]["content"][0]["text"], "done");
    until("the end", async || state(&proxy, &running).await["status"] == "failed").await;
    assert_eq!(state(&proxy, &running).await["error"]["data"]["mayHaveRun"], true);
    // The next call has a session of its own.
    let (sse, sent, next) = promoted(&mut upstream, &proxy).await;
    sse.finish(result_under(&sent["id"])).await;
    until("the end", async || state(&proxy, &next).await["status"] == "completed").await;
}
