//! Servers on stdio: a process for each session, whose messages find their responses.

use mcp_resume::config::OnUnreachable;
use mcp_resume::protocol::client_address::{Network, Trust};
use serde_json::{Value, json};
use std::str::FromStr;

use crate::misdirected::ONE;
use crate::support::redis::Redis;
use crate::support::stdio::{StdioServer, StdioServers};
use crate::support::*;

/// A call of a tool under this id, with progress.
fn call(id: i64) -> String {
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": "t", "_meta": {"progressToken": id}}})
        .to_string()
}

fn answer(id: i64) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "result": {"content": [{"type": "text", "text": format!("answer {id}")}]}})
}

fn progress(token: i64) -> Value {
    json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": token, "progress": 1}})
}

/// The JSON of the next event with data.
async fn event(response: &mut Response) -> Value {
    response.event().await.json()
}

/// The server gets the call with this id, and its client the answer.
async fn completes(server: &mut StdioServer, pending: Client, id: i64) {
    assert_eq!(server.message().await["id"], id);
    server.say(answer(id)).await;
    assert_eq!(event(&mut pending.response().await.sse()).await, answer(id));
}

#[tokio::test]
async fn a_call_gets_the_messages_that_name_it() {
    let servers = StdioServers::start().await;
    let proxy = servers.proxy(|_| {}).await;
    let (mut server, session) = servers.open(&proxy).await;
    let mut one = session.post(call(1)).send(proxy.addr).await.sse();
    let mut two = session.post(call(2)).send(proxy.addr).await.sse();
    assert_eq!((server.message().await["id"].clone(), server.message().await["id"].clone()), (json!(1), json!(2)));
    for message in [progress(2), answer(2), progress(1), answer(1)] {
        server.say(message).await;
    }
    assert_eq!((event(&mut two).await, event(&mut two).await), (progress(2), answer(2)));
    assert_eq!((event(&mut one).await, event(&mut one).await), (progress(1), answer(1)));
}

#[tokio::test]
async fn a_call_that_is_cut_is_resumed() {
    let servers = StdioServers::start().await;
    let proxy = servers.proxy(|_| {}).await;
    let (mut server, session) = servers.open(&proxy).await;
    let mut response = session.post(call(1)).send(proxy.addr).await.sse();
    server.message().await;
    server.say(progress(1)).await;
    let last = response.event().await.id().to_owned();
    drop(response);
    server.say(answer(1)).await;
    let mut resumed = session.resume(&last).send(proxy.addr).await.sse();
    assert_eq!(event(&mut resumed).await, answer(1));
}

#[tokio::test]
async fn each_session_has_a_process_of_its_own() {
    let servers = StdioServers::start().await;
    let proxy = servers.proxy(|_| {}).await;
    let (mut first, one) = servers.open(&proxy).await;
    let (mut second, two) = servers.open(&proxy).await;
    assert_ne!((first.pid, &one.id), (second.pid, &two.id));
    let mut response = two.post(call(1)).send(proxy.addr).await.sse();
    second.message().await;
    // A response of another process under the same id.
    first.say(answer(1)).await;
    second.say(progress(1)).await;
    assert_eq!(event(&mut response).await, progress(1));
    second.say(answer(1)).await;
    assert_eq!(event(&mut response).await, answer(1));
}

#[tokio::test]
async fn a_request_is_one_line() {
    let servers = StdioServers::start().await;
    let proxy = servers.proxy(|_| {}).await;
    let (mut server, session) = servers.open(&proxy).await;
    let smuggled = "{\"jsonrpc\":\"2.0\",\r\n\"id\":1,\"method\":\"tools/call\",\"params\":\n{\"jsonrpc\":\"2.0\",\"id\":2,\"method\":\"tools/call\"}\r}";
    let pending = session.post(smuggled).start(proxy.addr).await;
    let line = server.line().await;
    assert_eq!(line, smuggled.replace(['\r', '\n'], " "));
    server.say(answer(1)).await;
    assert_eq!(pending.response().await.status, 200);
}

#[tokio::test]
async fn a_body_that_is_no_utf_8_is_refused() {
    let servers = StdioServers::start().await;
    let proxy = servers.proxy(|_| {}).await;
    let (_server, session) = servers.open(&proxy).await;
    let response = session.post(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"a\xff\"}").send(proxy.addr).await;
    assert_eq!(response.status, 400);
}

#[tokio::test]
async fn a_process_that_ends_fails_its_calls_and_the_next_one_opens_the_session_again() {
    let servers = StdioServers::start().await;
    let proxy = servers.proxy_with(|config| config.admin.address = Some(([127, 0, 0, 1], 0).into())).await;
    let (mut server, session) = servers.open(&proxy).await;
    let mut response = session.post(call(1)).send(proxy.addr).await.sse();
    server.message().await;
    server.exit().await;
    let error = event(&mut response).await;
    let data = json!({"error": "server_ended", "fault": "upstream", "mayHaveRun": true, "exitCode": 3});
    assert_eq!((&error["id"], &error["error"]["code"], &error["error"]["data"]), (&json!(1), &json!(-32010), &data));
    // The error is the call's outcome.
    let failed = async || metric(&proxy, r#"mcp_resume_streams_sealed_total{outcome="failed"}"#).await;
    until("the call has ended", async || failed().await == 1.0).await;
    assert_eq!(metric(&proxy, r#"mcp_resume_upstream_failures_total{reason="server_ended"}"#).await, 1.0);

    let pending = session.post(call(2)).start(proxy.addr).await;
    completes(&mut servers.open_again().await, pending, 2).await;
}

#[tokio::test]
async fn a_question_reaches_the_client_and_its_answer_the_server() {
    let servers = StdioServers::start().await;
    let proxy = servers.proxy(|_| {}).await;
    let (mut server, session) = servers.open(&proxy).await;
    let mut response = session.post(call(1)).send(proxy.addr).await.sse();
    server.message().await;
    let question = json!({"jsonrpc": "2.0", "id": 0, "method": "elicitation/create", "params": {"message": "?"}});
    server.say(&question).await;
    assert_eq!(event(&mut response).await, question);
    let own = json!({"jsonrpc": "2.0", "id": 0, "result": {"action": "accept"}});
    assert_eq!(session.post(own.to_string()).send(proxy.addr).await.status, 202);
    assert_eq!(server.message().await, own);
    server.say(answer(1)).await;
    assert_eq!(event(&mut response).await, answer(1));
}

#[tokio::test]
async fn messages_of_no_call_wait_for_the_first_get() {
    let servers = StdioServers::start().await;
    let proxy = servers.proxy(|_| {}).await;
    let (mut server, session) = servers.open(&proxy).await;
    let changed = json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"});
    server.say(&changed).await;
    let mut standalone = session.get().send(proxy.addr).await.sse();
    assert_eq!(event(&mut standalone).await, changed);
    server.say(&changed).await;
    assert_eq!(event(&mut standalone).await, changed);
}

/// Some clients give every request the same ID.
#[tokio::test]
async fn requests_with_an_id_that_is_in_use_are_all_answered() {
    let servers = StdioServers::start().await;
    let proxy = servers.proxy(|_| {}).await;
    let (mut server, session) = servers.open(&proxy).await;
    let tool = |name: &str| {
        let params = json!({"name": name, "_meta": {"progressToken": 1}});
        json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
    };
    let mut responses = Vec::new();
    let mut ids = Vec::new();
    for name in ["a", "b", "c"] {
        responses.push(session.post(tool(name).to_string()).send(proxy.addr).await.sse());
        let mut sent = server.message().await;
        ids.push(sent["id"].clone());
        // The token of a request with a number is that number.
        assert_eq!(sent["params"]["_meta"]["progressToken"], sent["id"]);
        (sent["id"], sent["params"]["_meta"]["progressToken"]) = (json!(1), json!(1));
        assert_eq!(sent, tool(name));
    }
    assert!(ids[0] == 1 && ids[1] != 1 && ids[2] != 1 && ids[1] != ids[2], "{ids:?}");
    for at in [2, 0, 1] {
        server.say(progress(ids[at].as_i64().expect("a number"))).await;
        let result = json!({"content": [{"type": "text", "text": at}]});
        server.say(json!({"jsonrpc": "2.0", "id": ids[at], "result": result})).await;
        assert_eq!(event(&mut responses[at]).await, progress(1));
        assert_eq!(event(&mut responses[at]).await, json!({"jsonrpc": "2.0", "id": 1, "result": result}));
        responses[at].ends().await;
    }
    // The ID is free again.
    let pending = session.post(call(1)).start(proxy.addr).await;
    completes(&mut server, pending, 1).await;
}

#[tokio::test]
async fn a_request_with_the_id_of_a_cancelled_one_without_a_response_is_answered() {
    let servers = StdioServers::start().await;
    let proxy = servers.proxy(|_| {}).await;
    let (mut server, session) = servers.open(&proxy).await;
    let mut first = session.post(call(1)).send(proxy.addr).await.sse();
    server.message().await;
    let cancel =
        |id: &Value| json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}});
    assert_eq!(session.post(cancel(&json!(1)).to_string()).send(proxy.addr).await.status, 202);
    assert_eq!(server.message().await, cancel(&json!(1)));
    first.ends().await;
    let other = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"other"}}"#;
    let mut second = session.post(other).send(proxy.addr).await.sse();
    let id = server.message().await["id"].clone();
    assert_ne!(id, 1, "the late response would be taken for this one's");
    server.say(answer(1)).await;
    // Its cancel names it as the server knows it.
    assert_eq!(session.post(cancel(&json!(1)).to_string()).send(proxy.addr).await.status, 202);
    assert_eq!(server.message().await, cancel(&id));
    second.ends().await;
}

/// Nothing could tell their responses apart for the client.
#[tokio::test]
async fn a_batch_with_one_id_twice_is_refused() {
    let servers = StdioServers::start().await;
    let proxy = servers.proxy(|_| {}).await;
    let (_server, session) = servers.open(&proxy).await;
    let twice = format!("[{},{}]", call(1), call(1));
    let mut refused = session.post(twice).send(proxy.addr).await;
    assert_eq!((refused.status, refused.json().await[0]["error"]["code"].clone()), (400, json!(-32600)));
}

#[tokio::test]
async fn an_id_of_more_than_a_kilobyte_is_refused() {
    let servers = StdioServers::start().await;
    let proxy = servers.proxy(|_| {}).await;
    let (mut server, session) = servers.open(&proxy).await;
    let call_of =
        |id: &str| json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": "t"}}).to_string();
    assert_eq!(session.post(call_of(&"x".repeat(1025))).send(proxy.addr).await.status, 400);
    let _running = session.post(call_of(&"x".repeat(1024))).send(proxy.addr).await.sse();
    assert_eq!(server.message().await["id"], "x".repeat(1024));
}

#[tokio::test]
async fn a_server_whose_client_listens_makes_room_for_another() {
    let servers = StdioServers::start().await;
    let proxy = servers.proxy(|command| command.max_children = 1).await;
    let (mut first, session) = servers.open(&proxy).await;
    let _standalone = session.get().send(proxy.addr).await.sse();
    let pending = Request::post(initialize(V2025_11)).start(proxy.addr).await;
    first.end_of_input().await;
    first.exit().await;
    let mut second = servers.next().await;
    second.answer_initialize(0).await;
    assert_eq!(pending.response().await.status, 200);
}

#[tokio::test]
async fn a_caller_with_many_starts_delays_no_other() {
    let servers = StdioServers::start().await;
    let trusted = [Network::from_str("127.0.0.1").expect("an address").into()];
    let proxy = servers
        .proxy_with(|config| {
            config.admin.address = Some(([127, 0, 0, 1], 0).into());
            config.listen.trusted_proxies = Trust::new(trusted);
            // No process is ended to make room.
            config.sessions.revive = false;
            config.upstream.command.as_mut().expect("a command").max_children = 1;
        })
        .await;
    let starting = async |address: &str, name: &str| {
        let params =
            json!({"protocolVersion": V2025_11, "capabilities": {}, "clientInfo": {"name": name, "version": "1"}});
        let body = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}).to_string();
        Request::post(body).with("x-forwarded-for", address).start(proxy.addr).await
    };
    let first = starting("10.0.0.1", "a").await;
    let mut server = servers.next().await;
    server.answer_initialize(0).await;
    let id = first.response().await.header("mcp-session-id").expect("a session").to_owned();
    let mut waiting = Vec::new();
    for _ in 0..3 {
        waiting.push(starting("10.0.0.1", "a").await);
    }
    let other = starting("10.0.0.2", "b").await;
    // All have reached the proxy before the process ends.
    until("all wait", async || metric(&proxy, "mcp_resume_streams_open").await == 4.0).await;
    assert_eq!(Session::opened_elsewhere(V2025_11, &id, None).delete().send(proxy.addr).await.status, 200);
    server.end_of_input().await;
    server.exit().await;
    let mut server = servers.next().await;
    let message = server.expect("initialize").await;
    assert_eq!(message["params"]["clientInfo"]["name"], "b");
    let result = json!({"protocolVersion": V2025_11, "capabilities": {}, "serverInfo": {"name": "s", "version": "1"}});
    server.say(json!({"jsonrpc": "2.0", "id": 0, "result": result})).await;
    assert_eq!(other.response().await.status, 200);
}

#[tokio::test]
async fn the_end_of_a_session_is_that_of_its_process() {
    let servers = StdioServers::start().await;
    let proxy = servers.proxy(|_| {}).await;
    let (mut server, session) = servers.open(&proxy).await;
    assert_eq!(session.delete().send(proxy.addr).await.status, 200);
    server.end_of_input().await;
    let pid = server.pid;
    server.exit().await;
    until("the process is gone", async || !StdioServer::is_running(pid)).await;
    assert_eq!(session.post(call(1)).send(proxy.addr).await.status, 404);
}

#[tokio::test]
async fn a_process_that_stays_is_killed() {
    let servers = StdioServers::start().await;
    let proxy = servers.proxy(|_| {}).await;
    let (mut server, session) = servers.open(&proxy).await;
    assert_eq!(session.delete().send(proxy.addr).await.status, 200);
    server.end_of_input().await;
    // It goes on until it is made to end.
    until("the process is gone", async || !StdioServer::is_running(server.pid)).await;
}

#[tokio::test]
async fn the_process_ends_with_the_proxy() {
    let servers = StdioServers::start().await;
    let proxy = servers.proxy(|_| {}).await;
    let (mut server, _session) = servers.open(&proxy).await;
    let stopping = proxy.ask_to_stop();
    server.end_of_input().await;
    let pid = server.pid;
    server.exit().await;
    within("the end of the proxy", stopping).await;
    assert!(!StdioServer::is_running(pid));
}

#[tokio::test]
async fn a_session_without_a_request_is_closed_for_idleness_and_opened_again() {
    let servers = StdioServers::start().await;
    let proxy = servers.proxy(|command| command.idle = Some(std::time::Duration::from_millis(100))).await;
    let (mut server, session) = servers.open(&proxy).await;
    server.end_of_input().await;
    server.exit().await;
    let pending = session.post(call(2)).start(proxy.addr).await;
    completes(&mut servers.open_again().await, pending, 2).await;
}

#[tokio::test]
async fn a_program_that_is_not_found_says_so() {
    let servers = StdioServers::start().await;
    let proxy = servers.proxy(|command| command.line = vec!["no-such-program".to_owned(), "secret".to_owned()]).await;
    let mut response = Request::post(initialize(V2025_11)).send(proxy.addr).await;
    let error = response.json().await["error"].clone();
    assert_eq!((response.status, &error["code"], &error["data"]["mayHaveRun"]), (502, &json!(-32010), &json!(false)));
    let message = error["message"].as_str().expect("text");
    assert!(message.contains("the program no-such-program was not found") && !message.contains("secret"), "{message}");
}

#[tokio::test]
async fn a_program_that_exits_at_once_says_so() {
    let servers = StdioServers::start().await;
    // The second closes its channel before it exits: the request cannot be written.
    let programs = ["echo broken >&2; exit 7", "exec <&- >&-; echo broken >&2; sleep 0.2; exit 7"];
    for (program, stderr_to_client) in programs.into_iter().flat_map(|program| [(program, false), (program, true)]) {
        let line = ["sh", "-c", program].map(str::to_owned).to_vec();
        let proxy = servers.proxy(|command| (command.line, command.stderr_to_client) = (line, stderr_to_client)).await;
        let mut response = Request::post(initialize(V2025_11)).send(proxy.addr).await;
        let error = response.json().await["error"].clone();
        assert_eq!(response.status, 502);
        assert_eq!(error["message"], "the MCP server could not be started: exit code 7");
        assert_eq!(error["data"]["stderr"], if stderr_to_client { json!("broken") } else { Value::Null });
    }
}

#[tokio::test]
async fn the_lines_that_explain_a_failed_start_have_no_value_of_a_variable() {
    let servers = StdioServers::start().await;
    let program =
        "for n in 1 2 3 4; do echo line $n; done >&2; echo \"Error: no key $TOKEN\" >&2; echo end >&2; exit 7";
    let line = ["sh", "-c", program].map(str::to_owned).to_vec();
    let proxy = servers
        .proxy(|command| {
            (command.line, command.stderr_to_client) = (line, true);
            command.env = vec![("TOKEN".to_owned(), "hunter22".to_owned())];
        })
        .await;
    let mut response = Request::post(initialize(V2025_11)).send(proxy.addr).await;
    let error = response.json().await["error"].clone();
    assert_eq!(error["data"]["stderr"], "Error: no key ***\nline 1\nline 2\nline 3\nline 4\nend");
}

#[tokio::test]
async fn a_process_has_no_variable_of_the_proxy() {
    let servers = StdioServers::start().await;
    let proxy = servers.proxy(|command| command.env = vec![("KEY".to_owned(), "a=b, c".to_owned())]).await;
    let (server, _session) = servers.open(&proxy).await;
    assert_eq!(server.environment.get("KEY").map(String::as_str), Some("a=b, c"));
    // `LC_CTYPE` is Python's own; the others are of a shell that starts it.
    let known = ["HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER", "KEY", "LC_CTYPE", "PWD", "OLDPWD", "SHLVL", "_"];
    let is_known = |name: &str| known.contains(&name) || name.trim_start_matches('_').starts_with("PYENV_");
    let others: Vec<_> = server.environment.keys().filter(|name| !is_known(name)).collect();
    assert!(others.is_empty(), "{others:?}");
}

#[tokio::test]
async fn a_session_goes_on_at_another_replica_with_a_process_there() {
    let redis = Redis::start();
    let servers = StdioServers::start().await;
    let first = servers.proxy_with(redis.of("one", OnUnreachable::Refuse)).await;
    let second = servers.proxy_with(redis.of("two", OnUnreachable::Refuse)).await;
    let (mut server, session) = servers.open(&first).await;
    assert!(session.id.starts_with(ONE), "{}", session.id);
    until("the record is written", async || redis.has_record("handshake", "\\\"is_initialized\\\":true")).await;
    let stopping = first.ask_to_stop();
    server.end_of_input().await;
    server.exit().await;
    within("the end of the first replica", stopping).await;

    // As a balancer sends it to a replica in place of the session's own.
    let pending = session.post(call(1)).with("Mcp-Resume-Home", ONE).start(second.addr).await;
    completes(&mut servers.open_again().await, pending, 1).await;
}
