//! Messages of servers on stdio that are over the limit, or find no memory: their calls end in
//! words, and their sessions go on.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mcp_resume::config::{Config, Flags};
use serde_json::{Value, json};

use crate::support::stdio::{StdioServer, StdioServers};
use crate::support::*;

const LIMIT: usize = 8 * 1024;

/// Time after which a message ends all calls that may wait for it.
const END_WAIT: Duration = Duration::from_secs(31);

async fn limited(servers: &StdioServers) -> Proxy {
    servers.proxy_with(limit).await
}

fn limit(config: &mut Config) {
    config.streams.max_event_bytes = LIMIT;
    config.admin.address = Some(([127, 0, 0, 1], 0).into());
}

/// A call under this ID, which repeats no other one.
fn call(id: i64) -> String {
    static CALLS: AtomicU64 = AtomicU64::new(0);
    let params = json!({"name": "t", "arguments": {"n": CALLS.fetch_add(1, Ordering::Relaxed)}});
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}).to_string()
}

fn answer(id: i64) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "result": {"content": []}})
}

/// Text of more bytes than a message may have.
fn pad() -> String {
    r#" \"id\":3 "#.repeat(LIMIT / 8)
}

/// The JSON of the next event with data.
async fn event(response: &mut Response) -> Value {
    response.event().await.json()
}

/// The next event is the end of the call `id` with this error.
async fn fails(response: &mut Response, id: i64, code: i64, message: &str) {
    let error = event(response).await;
    let expected = (&json!(id), &json!(code), &json!(after_a_run(message)), &json!(true));
    let error =
        (&error["id"], &error["error"]["code"], &error["error"]["message"], &error["error"]["data"]["mayHaveRun"]);
    assert_eq!(error, expected);
}

async fn is_too_large(response: &mut Response, id: i64) {
    fails(response, id, -32010, "the MCP server sent an event over the size limit").await;
}

/// The server gets the cancel of this request.
async fn is_cancelled(server: &mut StdioServer, id: impl Into<Value>) {
    assert_eq!(server.expect("notifications/cancelled").await["params"]["requestId"], id.into());
}

/// A further call in the session is answered.
async fn goes_on(server: &mut StdioServer, session: &Session, proxy: &Proxy, id: i64) {
    let pending = session.post(call(id)).start(proxy.addr).await;
    assert_eq!(server.message().await["id"], id);
    server.say(answer(id)).await;
    assert_eq!(event(&mut pending.response().await.sse()).await, answer(id));
}

/// Two calls that run.
async fn two_calls(server: &mut StdioServer, session: &Session, proxy: &Proxy) -> (Response, Response) {
    let one = session.post(call(1)).send(proxy.addr).await.sse();
    let two = session.post(call(2)).send(proxy.addr).await.sse();
    assert_eq!((server.message().await["id"].clone(), server.message().await["id"].clone()), (json!(1), json!(2)));
    (one, two)
}

async fn skipped(proxy: &Proxy, reason: &str) -> f64 {
    metric(proxy, &format!("mcp_resume_channel_messages_skipped_total{{reason=\"{reason}\"}}")).await
}

#[tokio::test]
async fn a_response_over_the_limit_ends_the_call_that_its_id_names() {
    let servers = StdioServers::start().await;
    let proxy = limited(&servers).await;
    for response in [
        format!(r#"{{"jsonrpc":"2.0","id":1,"result":{{"text":"{}"}}}}"#, pad()),
        format!(r#"{{"result":{{"id":2,"text":"{}","id":2}},"jsonrpc":"2.0","id":1}}"#, pad()),
        format!(r#"{{"error":{{"code":1,"message":"{}","data":{{"id":2}}}},"id":1,"jsonrpc":"2.0"}}"#, pad()),
    ] {
        let (mut server, session) = servers.open(&proxy).await;
        let (mut one, mut two) = two_calls(&mut server, &session, &proxy).await;
        server.say(response).await;
        is_too_large(&mut one, 1).await;
        is_cancelled(&mut server, 1).await;
        server.say(answer(2)).await;
        assert_eq!(event(&mut two).await, answer(2));
        // The server has answered, so the ID is free.
        goes_on(&mut server, &session, &proxy, 1).await;
    }
    assert_eq!(skipped(&proxy, "too_long").await, 3.0);
    assert_eq!(metric(&proxy, r#"mcp_resume_upstream_failures_total{reason="event_too_large"}"#).await, 3.0);
}

#[tokio::test]
async fn a_response_of_unknown_id_ends_the_only_call() {
    let servers = StdioServers::start().await;
    let proxy = limited(&servers).await;
    for message in [
        format!(r#"{{"result":"{0}","id":1,"text":"{0}"}}"#, pad()),
        format!(r#"{{"x":"{0}","id":1,"result":"{0}"}}"#, pad()),
        format!(r#"[{{"jsonrpc":"2.0","id":1,"result":"{}"}}]"#, pad()),
    ] {
        let (mut server, session) = servers.open(&proxy).await;
        let mut one = session.post(call(1)).send(proxy.addr).await.sse();
        server.message().await;
        // The message need not end.
        server.write(message.as_bytes()).await;
        is_too_large(&mut one, 1).await;
        is_cancelled(&mut server, 1).await;
        server.say("").await;
        goes_on(&mut server, &session, &proxy, 2).await;
    }
}

#[tokio::test]
async fn a_response_of_unknown_id_ends_all_calls_once_it_has_ended() {
    let servers = StdioServers::start().await;
    let proxy = limited(&servers).await;
    let (mut server, session) = servers.open(&proxy).await;
    let (mut one, mut two) = two_calls(&mut server, &session, &proxy).await;
    server.write(format!(r#"{{"result":"{}","#, pad()).as_bytes()).await;
    until("the message is dropped", async || skipped(&proxy, "too_long").await == 1.0).await;
    // A call that begins now is not meant.
    let mut three = session.post(call(3)).send(proxy.addr).await.sse();
    server.message().await;
    server.say(format!(r#""id":1,"text":"{}"}}"#, pad())).await;
    is_too_large(&mut one, 1).await;
    is_too_large(&mut two, 2).await;
    is_cancelled(&mut server, 1).await;
    is_cancelled(&mut server, 2).await;
    server.say(answer(3)).await;
    assert_eq!(event(&mut three).await, answer(3));
}

#[tokio::test]
async fn a_line_without_end_holds_no_call() {
    let servers = StdioServers::start().await;
    let proxy = limited(&servers).await;
    let (mut server, session) = servers.open(&proxy).await;
    let (mut one, mut two) = two_calls(&mut server, &session, &proxy).await;
    server.write(format!(r#"{{"jsonrpc":"2.0","id":1,"result":"{}"#, pad()).as_bytes()).await;
    is_too_large(&mut one, 1).await;
    is_cancelled(&mut server, 1).await;
    server.say(format!("{}\"}}\n{}", pad(), answer(2))).await;
    assert_eq!(event(&mut two).await, answer(2));

    let (mut one, mut two) = two_calls(&mut server, &session, &proxy).await;
    server.write(format!(r#"{{"result":"{}"#, pad()).as_bytes()).await;
    until("the message is dropped", async || skipped(&proxy, "too_long").await == 2.0).await;
    pass(END_WAIT).await;
    is_too_large(&mut one, 1).await;
    is_too_large(&mut two, 2).await;
    is_cancelled(&mut server, 1).await;
    is_cancelled(&mut server, 2).await;
    server.say(format!("{}\",\"id\":1}}", pad())).await;
    goes_on(&mut server, &session, &proxy, 3).await;
}

#[tokio::test]
async fn a_large_message_of_the_server_itself_ends_no_call() {
    let servers = StdioServers::start().await;
    let proxy = limited(&servers).await;
    let (mut server, session) = servers.open(&proxy).await;
    let mut one = session.post(call(1)).send(proxy.addr).await.sse();
    server.message().await;
    let refusal = |id: i64| {
        let message = "the request is larger than this proxy takes";
        json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32600, "message": message}})
    };
    server
        .say(format!(r#"{{"jsonrpc":"2.0","method":"notifications/message","params":{{"data":"{}"}}}}"#, pad()))
        .await;
    // IDs of the server may be those of calls.
    server.say(format!(r#"{{"jsonrpc":"2.0","id":1,"method":"sampling/createMessage","params":"{}"}}"#, pad())).await;
    assert_eq!(server.message().await, refusal(1));
    server.say(format!(r#"{{"method":"sampling/createMessage","params":"{}","id":1}}"#, pad())).await;
    assert_eq!(server.message().await, refusal(1));
    // Nothing that could be a message.
    server.say(format!(r#"log: {{"id":1,"result":"{}"}}"#, pad())).await;
    server.say(answer(1)).await;
    assert_eq!(event(&mut one).await, answer(1));
    assert_eq!(skipped(&proxy, "too_long").await, 4.0);
}

#[tokio::test]
async fn a_response_that_is_no_json_ends_its_call() {
    let servers = StdioServers::start().await;
    let proxy = limited(&servers).await;
    let (mut server, session) = servers.open(&proxy).await;
    let (mut one, mut two) = two_calls(&mut server, &session, &proxy).await;
    for no_response in
        [r#"{"id":1,"error":"of a log"} "#, r#"{"jsonrpc":"2.0","id":9,"result":}"#, r#"{"jsonrpc":"2.0","id":1,"#]
    {
        server.say(no_response).await;
    }
    server.say(r#"{"jsonrpc":"2.0","id":1,"result":{"text":}}"#).await;
    fails(&mut one, 1, -32010, "the MCP server's answer is not a JSON-RPC answer").await;
    is_cancelled(&mut server, 1).await;
    // In an array each message is for itself.
    let mut three = session.post(call(3)).send(proxy.addr).await.sse();
    server.message().await;
    server.say(format!(r#"[{},{{"jsonrpc":"2.0","id":3,"id":3,"result":{{}}}},7]"#, answer(2))).await;
    assert_eq!(event(&mut two).await, answer(2));
    fails(&mut three, 3, -32010, "the MCP server's answer is not a JSON-RPC answer").await;
}

#[tokio::test]
async fn a_response_that_finds_no_memory_ends_its_call() {
    const QUOTA: usize = 1024 * 1024;
    let servers = StdioServers::start().await;
    let proxy = servers
        .proxy_with(|config| {
            config.admin.address = Some(([127, 0, 0, 1], 0).into());
            config.streams.max_event_bytes = 4 * QUOTA;
            config.streams.max_bytes = 8 * QUOTA;
            config.streams.max_bytes_per_principal = QUOTA;
        })
        .await;
    let (mut server, session) = servers.open(&proxy).await;
    let (mut one, mut two) = two_calls(&mut server, &session, &proxy).await;
    server.say(format!(r#"{{"jsonrpc":"2.0","id":1,"result":"{}"}}"#, "x".repeat(2 * QUOTA))).await;
    fails(&mut one, 1, -32013, "this caller's share of the proxy's memory is full").await;
    is_cancelled(&mut server, 1).await;
    server.say(answer(2)).await;
    assert_eq!(event(&mut two).await, answer(2));
    assert_eq!(skipped(&proxy, "full").await, 1.0);
    goes_on(&mut server, &session, &proxy, 1).await;
}

#[tokio::test]
async fn large_responses_that_were_delivered_make_room() {
    const SIZE: usize = 600 * 1024;
    let servers = StdioServers::start().await;
    let proxy = servers
        .proxy_with(|config| {
            config.streams.max_event_bytes = 1024 * 1024;
            config.streams.max_bytes = 2 * 1024 * 1024;
            config.streams.max_bytes_per_principal = 4 * 1024 * 1024;
        })
        .await;
    let (mut server, session) = servers.open(&proxy).await;
    for id in 1..=12 {
        let pending = session.post(call(id)).start(proxy.addr).await;
        server.message().await;
        server.say(format!(r#"{{"jsonrpc":"2.0","id":{id},"result":"{}"}}"#, "x".repeat(SIZE))).await;
        let message = event(&mut pending.response().await.sse()).await;
        assert_eq!(message["result"].as_str().map(str::len), Some(SIZE), "{id}");
    }
}

#[tokio::test]
async fn a_process_that_sessions_share_ends_the_call_that_is_meant() {
    let servers = StdioServers::start().await;
    let proxy = servers
        .proxy_with(|config| {
            limit(config);
            config.upstream.command.as_mut().expect("a command").shared = true;
        })
        .await;
    let pending = Request::post(initialize(V2025_11)).start(proxy.addr).await;
    let mut server = servers.next().await;
    server.answer_initialize(Value::Null).await;
    let first = pending.response().await;
    let second = Request::post(initialize(V2025_11)).send(proxy.addr).await;
    let [one, two] = [first, second].map(|response| {
        let id = response.header("mcp-session-id").expect("a session").to_owned();
        Session::opened_elsewhere(V2025_11, &id, None)
    });
    let mut first = one.post(call(1)).send(proxy.addr).await.sse();
    let number = server.message().await["id"].clone();
    let mut second = two.post(call(1)).send(proxy.addr).await.sse();
    let other = server.message().await["id"].clone();
    server.say(format!(r#"{{"result":"{}","id":{number}}}"#, pad())).await;
    is_too_large(&mut first, 1).await;
    is_cancelled(&mut server, number).await;
    server.say(json!({"jsonrpc": "2.0", "id": other, "result": {"content": []}})).await;
    assert_eq!(event(&mut second).await, answer(1));
}

#[tokio::test]
async fn a_large_answer_to_initialize_fails_the_start() {
    let servers = StdioServers::start().await;
    let proxy = limited(&servers).await;
    let pending = Request::post(initialize(V2025_11)).start(proxy.addr).await;
    let mut server = servers.next().await;
    let id = server.expect("initialize").await["id"].clone();
    server.say(format!(r#"{{"jsonrpc":"2.0","id":{id},"result":"{}"}}"#, pad())).await;
    let mut response = pending.response().await;
    let text = format!("the MCP server sent an event over the size limit{MAY_HAVE_BEEN_CARRIED_OUT}");
    assert_eq!(response.json().await["error"]["message"], text);
}

#[tokio::test]
async fn a_message_of_many_megabytes_arrives_by_default() {
    const SIZE: usize = 17 * 1024 * 1024;
    let servers = StdioServers::start().await;
    let proxy = servers
        .proxy_with(|config| {
            let flags = Flags { command: vec!["server".to_owned()], ..Flags::default() };
            config.streams = Config::load(None, [], flags).expect("a configuration").streams;
        })
        .await;
    let (mut server, session) = servers.open(&proxy).await;
    let pending = session.post(call(1)).start(proxy.addr).await;
    server.message().await;
    server.say(format!(r#"{{"jsonrpc":"2.0","id":1,"result":"{}"}}"#, "x".repeat(SIZE))).await;
    let mut response = pending.response().await.sse();
    assert_eq!(event(&mut response).await["result"].as_str().map(str::len), Some(SIZE));
}
