//! Servers on stdio whose process is shared by the sessions of a caller.

use serde_json::{Value, json};

use crate::support::stdio::{StdioServer, StdioServers};
use crate::support::*;

async fn shared(servers: &StdioServers) -> Proxy {
    servers.proxy(|command| command.shared = true).await
}

/// Opens the first session of a process.
async fn open(servers: &StdioServers, proxy: &Proxy) -> (StdioServer, Session) {
    let pending = Request::post(initialize(V2025_11)).start(proxy.addr).await;
    let mut server = servers.next().await;
    server.answer_initialize(Value::Null).await;
    let session = opened(proxy, pending.response().await).await;
    server.expect("notifications/initialized").await;
    (server, session)
}

/// Opens a further session at the process.
async fn join(proxy: &Proxy) -> Session {
    let response = Request::post(initialize(V2025_11)).send(proxy.addr).await;
    opened(proxy, response).await
}

async fn opened(proxy: &Proxy, mut response: Response) -> Session {
    let body = response.json().await;
    assert_eq!(
        (response.status, &body["id"], &body["result"]["serverInfo"]["name"]),
        (200, &json!(0), &json!("scripted"))
    );
    let id = response.header("mcp-session-id").expect("a session").to_owned();
    let session = Session::opened_elsewhere(V2025_11, &id, None);
    let ready = session.post(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#).send(proxy.addr).await;
    assert_eq!(ready.status, 202);
    session
}

/// A call under the ID 1, with progress, that names its session.
fn call(of: &str) -> String {
    let params = json!({"name": of, "_meta": {"progressToken": 1}});
    json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).to_string()
}

fn result(id: &Value, of: &Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "result": {"content": [{"type": "text", "text": of}]}})
}

fn progress(token: &Value, of: &Value) -> Value {
    json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": token, "progress": 1, "message": of}})
}

/// The JSON of the next event with data.
async fn event(response: &mut Response) -> Value {
    response.event().await.json()
}

#[tokio::test]
async fn sessions_of_a_caller_have_one_process_and_their_own_calls() {
    let servers = StdioServers::start().await;
    let proxy = shared(&servers).await;
    let (mut server, one) = open(&servers, &proxy).await;
    let two = join(&proxy).await;
    assert_ne!(one.id, two.id);
    let mut of_one = one.post(call("one")).send(proxy.addr).await.sse();
    let mut of_two = two.post(call("two")).send(proxy.addr).await.sse();
    let calls = [server.message().await, server.message().await];
    for call in calls.iter().rev() {
        let (id, of) = (&call["id"], &call["params"]["name"]);
        server.say(progress(id, of)).await;
        server.say(result(id, of)).await;
    }
    for (response, of) in [(&mut of_one, json!("one")), (&mut of_two, json!("two"))] {
        assert_eq!(event(response).await, progress(&json!(1), &of));
        assert_eq!(event(response).await, result(&json!(1), &of));
    }
}

#[tokio::test]
async fn a_question_is_asked_and_answered_in_the_session_whose_call_runs() {
    let servers = StdioServers::start().await;
    let proxy = shared(&servers).await;
    let (mut server, one) = open(&servers, &proxy).await;
    let two = join(&proxy).await;
    let mut response = one.post(call("one")).send(proxy.addr).await.sse();
    let id = server.message().await["id"].clone();
    let notify = r#"{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}"#;
    // The other session is the one used last.
    assert_eq!(two.post(notify).send(proxy.addr).await.status, 202);
    server.expect("notifications/roots/list_changed").await;
    let question = json!({"jsonrpc": "2.0", "id": 0, "method": "elicitation/create", "params": {"message": "?"}});
    server.say(&question).await;
    assert_eq!(event(&mut response).await, question);
    let own = |of| json!({"jsonrpc": "2.0", "id": 0, "result": {"action": of}}).to_string();
    for (session, action) in [(&two, "decline"), (&one, "accept"), (&one, "cancel")] {
        assert_eq!(session.post(own(action)).send(proxy.addr).await.status, 202);
    }
    assert_eq!(server.message().await["result"]["action"], "accept");
    assert_eq!(two.post(notify).send(proxy.addr).await.status, 202);
    server.expect("notifications/roots/list_changed").await;
    server.say(result(&id, &json!("one"))).await;
    assert_eq!(event(&mut response).await, result(&json!(1), &json!("one")));
}

#[tokio::test]
async fn sessions_meet_at_one_new_process_when_theirs_has_died() {
    let servers = StdioServers::start().await;
    let proxy = shared(&servers).await;
    let (mut server, one) = open(&servers, &proxy).await;
    let sessions = [&one, &join(&proxy).await, &join(&proxy).await];
    let mut responses = Vec::new();
    for session in sessions {
        responses.push(session.post(call("lost")).send(proxy.addr).await.sse());
        server.message().await;
    }
    server.exit().await;
    for response in &mut responses {
        let error = event(response).await;
        assert_eq!((&error["id"], &error["error"]["code"]), (&json!(1), &json!(-32010)));
    }
    let mut pending = Vec::new();
    for (session, of) in sessions.into_iter().zip(["one", "two", "three"]) {
        let call = call(of).replace(r#""id":1"#, r#""id":2"#);
        pending.push((session.post(call).start(proxy.addr).await, of));
    }
    let mut server = servers.next().await;
    server.answer_initialize(Value::Null).await;
    server.expect("notifications/initialized").await;
    for _ in sessions {
        let call = server.expect("tools/call").await;
        server.say(result(&call["id"], &call["params"]["name"])).await;
    }
    for (pending, of) in pending {
        assert_eq!(event(&mut pending.response().await.sse()).await, result(&json!(2), &json!(of)));
    }
}

#[tokio::test]
async fn the_process_ends_with_the_last_session() {
    let servers = StdioServers::start().await;
    let proxy = shared(&servers).await;
    let (mut server, one) = open(&servers, &proxy).await;
    let two = join(&proxy).await;
    let mut ending = one.post(call("one")).send(proxy.addr).await.sse();
    let id = server.message().await["id"].clone();
    assert_eq!(one.delete().send(proxy.addr).await.status, 200);
    let error = event(&mut ending).await;
    assert_eq!((&error["id"], &error["error"]["code"]), (&json!(1), &json!(-32011)));
    assert_eq!(server.expect("notifications/cancelled").await["params"]["requestId"], id);
    assert_eq!(one.post(call("again")).send(proxy.addr).await.status, 404);
    let mut response = two.post(call("two")).send(proxy.addr).await.sse();
    let id = server.message().await["id"].clone();
    server.say(result(&id, &json!("two"))).await;
    assert_eq!(event(&mut response).await, result(&json!(1), &json!("two")));
    assert_eq!(two.delete().send(proxy.addr).await.status, 200);
    server.end_of_input().await;
}

#[tokio::test]
async fn what_names_no_call_reaches_each_session_that_wants_it() {
    let servers = StdioServers::start().await;
    let proxy = shared(&servers).await;
    let (mut server, one) = open(&servers, &proxy).await;
    let two = join(&proxy).await;
    let mut to_one = one.get().send(proxy.addr).await.sse();
    let mut to_two = two.get().send(proxy.addr).await.sse();
    let subscribe =
        json!({"jsonrpc": "2.0", "id": 5, "method": "resources/subscribe", "params": {"uri": "u:a"}}).to_string();
    let pending = two.post(&subscribe).start(proxy.addr).await;
    let sent = server.expect("resources/subscribe").await;
    server.say(json!({"jsonrpc": "2.0", "id": sent["id"], "result": {}})).await;
    assert_eq!(pending.response().await.status, 200);
    let updated = json!({"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": {"uri": "u:a"}});
    let changed = json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"});
    server.say(&updated).await;
    server.say(&changed).await;
    assert_eq!((event(&mut to_two).await, event(&mut to_two).await), (updated, changed.clone()));
    assert_eq!(event(&mut to_one).await, changed);
}

#[tokio::test]
async fn a_subscription_counts_once_its_response_came_under_a_spelled_id() {
    let servers = StdioServers::start().await;
    let proxy = shared(&servers).await;
    let (mut server, one) = open(&servers, &proxy).await;
    let two = join(&proxy).await;
    let subscribe =
        json!({"jsonrpc": "2.0", "id": 5, "method": "resources/subscribe", "params": {"uri": "u:a"}}).to_string();
    let pending = one.post(&subscribe).start(proxy.addr).await;
    let sent = server.expect("resources/subscribe").await;
    server.say(json!({"jsonrpc": "2.0", "id": sent["id"].to_string(), "result": {}})).await;
    assert_eq!(pending.response().await.status, 200);
    // The server has the subscription, so the proxy responds in its place.
    assert_eq!(two.post(&subscribe).send(proxy.addr).await.status, 200);
}
