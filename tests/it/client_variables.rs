//! Headers of clients that become variables of their process. They are credentials: callers with
//! other values have other processes, sessions and streams.

use std::time::Duration;

use mcp_resume::config::{Bridge, ClientVariable, Command, Config, Flags, ModernClients, PrincipalSource, Tasks};
use serde_json::{Value, json};

use crate::support::stdio::{StdioServer, StdioServers};
use crate::support::*;

const HEADER: &str = "X-GitHub-Token";

/// The variables of a configuration.
fn wanted() -> Vec<ClientVariable> {
    let file =
        "[upstream]\ncommand = ['a']\n[upstream.env_from_headers]\nGITHUB_TOKEN = 'X-GitHub-Token'\nORG = 'X-Org'";
    let config = Config::load(Some(("test", file)), [], Flags::default()).expect("a configuration");
    config.upstream.command.expect("a command").env_from_headers
}

fn from_headers(command: &mut Command) {
    command.env_from_headers = wanted();
}

/// A request with this token.
fn of(request: Request, token: &str) -> Request {
    if token.is_empty() { request } else { request.with(HEADER, token) }
}

fn token_of(server: &StdioServer) -> Option<&str> {
    server.environment.get("GITHUB_TOKEN").map(String::as_str)
}

/// Opens a session of this token, whose requests have no header yet.
async fn open(servers: &StdioServers, proxy: &Proxy, token: &str) -> (StdioServer, Session) {
    let pending = of(Request::post(initialize(V2025_11)), token).start(proxy.addr).await;
    let mut server = servers.next().await;
    server.answer_initialize(Value::Null).await;
    let response = pending.response().await;
    assert_eq!(response.status, 200);
    let id = response.header("mcp-session-id").expect("a session").to_owned();
    let session = Session::opened_elsewhere(V2025_11, &id, None);
    let ready = session.post(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
    assert_eq!(of(ready, token).send(proxy.addr).await.status, 202);
    server.expect("notifications/initialized").await;
    (server, session)
}

async fn completes(server: &mut StdioServer, pending: Client) {
    let id = server.expect("tools/call").await["id"].clone();
    server.say(json!({"jsonrpc": "2.0", "id": id, "result": {"content": []}})).await;
    let event = pending.response().await.sse().event().await.json();
    assert_eq!(event["result"], json!({"content": []}));
}

#[tokio::test]
async fn a_header_becomes_a_variable_and_an_absent_one_makes_none() {
    let servers = StdioServers::start().await;
    let proxy = servers.proxy(from_headers).await;
    let opening = Request::post(initialize(V2025_11)).with(HEADER, " ghp_one ").with("X-Org", "a b=c");
    let pending = opening.start(proxy.addr).await;
    let mut server = servers.next().await;
    assert_eq!((token_of(&server), server.environment["ORG"].as_str()), (Some("ghp_one"), "a b=c"));
    server.answer_initialize(0).await;
    assert_eq!(pending.response().await.status, 200);
    for token in ["", " "] {
        let (server, _) = open(&servers, &proxy, token).await;
        assert!(token_of(&server).is_none() && !server.environment.contains_key("ORG"));
    }
}

#[tokio::test]
async fn without_the_key_a_header_makes_no_variable_and_no_other_caller() {
    let servers = StdioServers::start().await;
    let proxy = servers.proxy(|_| {}).await;
    let (mut server, session) = open(&servers, &proxy, "ghp_one").await;
    assert_eq!(token_of(&server), None);
    let pending = of(session.post(call(1)), "ghp_two").start(proxy.addr).await;
    completes(&mut server, pending).await;
}

#[tokio::test]
async fn a_session_fixes_the_value_for_each_of_its_requests() {
    let servers = StdioServers::start().await;
    let proxy = servers.proxy(from_headers).await;
    for (own, other) in [("ghp_one", "ghp_two"), ("ghp_one", ""), ("", "ghp_two")] {
        let (mut server, session) = open(&servers, &proxy, own).await;
        for request in [
            session.post(call(7)),
            session.post(r#"{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}"#),
            session.post(r#"{"jsonrpc":"2.0","id":"q","result":{}}"#),
            session.post(r#"{"jsonrpc":"2.0","id":8,"method":"ping"}"#),
            session.get(),
            // Such a GET passes through with its body.
            Request::new("GET", "/mcp").with("Mcp-Session-Id", &session.id).with_body("a"),
            session.delete(),
        ] {
            let what = format!("{own:?} {other:?} {request:?}");
            let mut response = of(request, other).send(proxy.addr).await;
            let error = response.json().await;
            assert_eq!((response.status, &error["error"]["data"]["error"]), (403, &json!("other_variables")), "{what}");
            assert_eq!(error["error"]["data"]["mayHaveRun"], false);
            assert!(!error.to_string().contains("ghp_"), "{error}");
        }
        let pending = of(session.post(call(9)), own).start(proxy.addr).await;
        completes(&mut server, pending).await;
        assert_eq!(of(session.delete(), own).send(proxy.addr).await.status, 200);
        server.end_of_input().await;
    }
}

#[tokio::test]
async fn a_process_that_is_started_again_has_the_value() {
    let servers = StdioServers::start().await;
    let proxy = servers
        .proxy_with(|config| {
            from_headers(config.upstream.command.as_mut().expect("a command"));
            config.admin.address = Some(([127, 0, 0, 1], 0).into());
        })
        .await;
    let (server, session) = open(&servers, &proxy, "ghp_one").await;
    let pid = server.pid;
    server.exit().await;
    until("the process is gone", async || !StdioServer::is_running(pid)).await;
    // The proxy may still read its output: a call is then one of the old process.
    until("its end is known", async || metric(&proxy, r#"mcp_resume_channel_ends_total{reason="lost"}"#).await == 1.0)
        .await;
    for other in ["ghp_two", ""] {
        let refused = of(session.post(call(1)), other).send(proxy.addr).await.status;
        assert!(matches!(refused, 403 | 404), "{refused}");
    }
    let pending = of(session.post(call(2)), "ghp_one").start(proxy.addr).await;
    let mut server = servers.open_again().await;
    assert_eq!(token_of(&server), Some("ghp_one"));
    completes(&mut server, pending).await;
}

#[tokio::test]
async fn the_streams_of_a_value_are_closed_to_all_others() {
    let servers = StdioServers::start().await;
    let proxy = servers.proxy(from_headers).await;
    let (mut server, session) = open(&servers, &proxy, "ghp_one").await;
    let pending = of(session.post(call(1)), "ghp_one").start(proxy.addr).await;
    let id = server.expect("tools/call").await["id"].clone();
    let mut response = pending.response().await.sse();
    let place = EventId::of(response.prime().await.id());
    response.reset();
    server.say(json!({"jsonrpc": "2.0", "id": id, "result": {"content": ["secret"]}})).await;
    for other in ["ghp_two", ""] {
        let mut response = of(session.resume(&place.at(0)), other).send(proxy.addr).await.sse();
        assert_eq!(response.event().await.json()["error"]["data"]["error"], "stream_lost");
    }
    let mut own = of(session.resume(&place.at(0)), "ghp_one").send(proxy.addr).await.sse();
    own.prime().await;
    assert_eq!(own.event().await.json()["result"], json!({"content": ["secret"]}));
}

fn modern_call(id: u64, token: &str) -> Request {
    of(modern(id), token)
}

/// The next process, which says that it speaks the revision without sessions.
async fn modern_server(servers: &StdioServers) -> StdioServer {
    let mut server = servers.next().await;
    let id = server.expect("server/discover").await["id"].clone();
    let result = json!({"supportedVersions": [V2026], "capabilities": {"tools": {}}});
    server.say(json!({"jsonrpc": "2.0", "id": id, "result": result})).await;
    server
}

async fn runs(server: &mut StdioServer, pending: Client) {
    let id = server.expect("tools/call").await["id"].clone();
    server.say(json!({"jsonrpc": "2.0", "id": id, "result": {"content": [], "resultType": "complete"}})).await;
    assert_eq!(pending.response().await.status, 200);
}

#[tokio::test]
async fn requests_without_sessions_have_a_process_for_each_value() {
    for source in [
        PrincipalSource::Auto,
        PrincipalSource::None,
        PrincipalSource::Header("x-user".parse().expect("a name")),
        PrincipalSource::Cookie("sid".to_owned()),
    ] {
        let servers = StdioServers::start().await;
        let proxy = servers
            .proxy_with(|config| {
                config.auth.principal = source.clone();
                from_headers(config.upstream.command.as_mut().expect("a command"));
            })
            .await;
        let pending = modern_call(1, "ghp_one").start(proxy.addr).await;
        let mut one = modern_server(&servers).await;
        runs(&mut one, pending).await;
        let pending = modern_call(2, "ghp_two").start(proxy.addr).await;
        let mut two = servers.next().await;
        runs(&mut two, pending).await;
        let pending = modern_call(3, "").start(proxy.addr).await;
        let mut none = servers.next().await;
        runs(&mut none, pending).await;
        let found = [&one, &two, &none].map(token_of);
        assert_eq!(found, [Some("ghp_one"), Some("ghp_two"), None], "{source:?}");
        let pending = modern_call(4, "ghp_one").start(proxy.addr).await;
        runs(&mut one, pending).await;
    }
}

#[tokio::test]
async fn sessions_share_a_process_only_with_equal_values() {
    let servers = StdioServers::start().await;
    let proxy = servers
        .proxy(|command| {
            from_headers(command);
            command.shared = true;
        })
        .await;
    let (one, _) = open(&servers, &proxy, "ghp_one").await;
    let joined = of(Request::post(initialize(V2025_11)), "ghp_one").send(proxy.addr).await;
    assert_eq!(joined.status, 200, "no further process");
    let session = joined.header("mcp-session-id").expect("a session").to_owned();
    let (two, _) = open(&servers, &proxy, "ghp_two").await;
    let (none, _) = open(&servers, &proxy, "").await;
    assert_eq!([&one, &two, &none].map(token_of), [Some("ghp_one"), Some("ghp_two"), None]);
    let session = Session::opened_elsewhere(V2025_11, &session, None);
    assert_eq!(of(session.post(call(1)), "ghp_two").send(proxy.addr).await.status, 403);
}

#[tokio::test]
async fn a_session_of_the_bridge_fixes_the_value() {
    let servers = StdioServers::start().await;
    let proxy = servers
        .proxy_with(|config| {
            from_headers(config.upstream.command.as_mut().expect("a command"));
            config.bridge = Some(Bridge {
                modern_clients: ModernClients::Auto,
                legacy_clients: true,
                idle: Duration::from_secs(600),
                sessions_per_principal: 8,
            });
        })
        .await;
    let pending = of(Request::post(initialize(V2025_11)), "ghp_one").start(proxy.addr).await;
    let serving = tokio::spawn(async move {
        let mut values = Vec::new();
        let mut server = servers.next().await;
        loop {
            values.push(token_of(&server).map(str::to_owned));
            // A process that refused `initialize` ends; another one serves.
            while let Ok(Some(line)) = server.next_line().await {
                let message: Value = serde_json::from_str(&line).expect("JSON");
                let id = &message["id"];
                let answer = match message["method"].as_str() {
                    Some("initialize") => json!({"error": {"code": -32022, "message": "Unsupported protocol version",
                        "data": {"supported": [V2026]}}}),
                    Some("server/discover") => json!({"result": {"resultType": "complete",
                        "supportedVersions": [V2026], "capabilities": {"tools": {}}, "ttlMs": 0,
                        "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "s", "version": "1"}}}}),
                    Some("tools/call") => json!({"result": {"content": [], "resultType": "complete"}}),
                    Some("tools/list") => json!({"result": {"tools": [], "resultType": "complete"}}),
                    _ => continue,
                };
                let is_call = message["method"] == "tools/call";
                let mut whole = json!({"jsonrpc": "2.0", "id": id});
                whole.as_object_mut().expect("an object").extend(answer.as_object().expect("an object").clone());
                server.say(whole).await;
                if is_call {
                    return values;
                }
            }
            server = servers.next().await;
        }
    });
    let response = pending.response().await;
    assert_eq!(response.status, 200);
    let session = Session::opened_elsewhere(V2025_11, response.header("mcp-session-id").expect("a session"), None);
    for other in ["ghp_two", ""] {
        for request in [session.post(call(7)), session.get(), session.delete()] {
            let mut response = of(request, other).send(proxy.addr).await;
            let error = response.json().await;
            assert_eq!((response.status, &error["error"]["data"]["error"]), (403, &json!("other_variables")));
        }
    }
    let called = of(session.post(call(1)), "ghp_one").send(proxy.addr).await;
    assert_eq!(called.status, 200);
    let values = within("a call", serving).await.expect("no panic");
    assert!(values.iter().all(|value| value.as_deref() == Some("ghp_one")), "{values:?}");
}

/// The message of a response in either form.
async fn answer(pending: Client) -> Value {
    let mut response = pending.response().await;
    if response.is_sse() { response.event().await.json() } else { response.json().await }
}

#[tokio::test]
async fn a_task_is_closed_to_other_values() {
    let servers = StdioServers::start().await;
    let proxy = servers
        .proxy_with(|config| {
            from_headers(config.upstream.command.as_mut().expect("a command"));
            let tasks = Config::load(None, [], Flags { command: vec!["a".to_owned()], ..Flags::default() });
            let tasks: Tasks = (*tasks.expect("a configuration").tasks.expect("tasks")).clone();
            config.tasks = Some(Tasks { after: SOON, ..tasks }.into());
        })
        .await;
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "slow", "_meta": {
        "io.modelcontextprotocol/protocolVersion": V2026,
        "io.modelcontextprotocol/clientCapabilities": {"extensions": {"io.modelcontextprotocol/tasks": {}}}}}});
    let request = Request::post(body.to_string())
        .with("MCP-Protocol-Version", V2026)
        .with("Mcp-Method", "tools/call")
        .with("Mcp-Name", "slow");
    // The first call shows that the server has no tasks.
    let pending = of(request.clone(), "ghp_one").start(proxy.addr).await;
    let mut server = modern_server(&servers).await;
    let serving = tokio::spawn(async move {
        while let Ok(Some(line)) = server.next_line().await {
            let message: Value = serde_json::from_str(&line).expect("JSON");
            if message["method"] == "server/discover" {
                let result = json!({"supportedVersions": [V2026], "capabilities": {"tools": {}}, "ttlMs": 60_000});
                server.say(json!({"jsonrpc": "2.0", "id": message["id"], "result": result})).await;
            }
        }
    });
    let created = answer(pending).await;
    let task = created["result"]["taskId"].as_str().unwrap_or_else(|| panic!("no task: {created}")).to_owned();
    let get = json!({"jsonrpc": "2.0", "id": 2, "method": "tasks/get", "params": {"taskId": task, "_meta": {
        "io.modelcontextprotocol/protocolVersion": V2026,
        "io.modelcontextprotocol/clientCapabilities": {"extensions": {"io.modelcontextprotocol/tasks": {}}}}}});
    let get = Request::post(get.to_string())
        .with("MCP-Protocol-Version", V2026)
        .with("Mcp-Method", "tasks/get")
        .with("Mcp-Name", &task);
    let own = answer(of(get.clone(), "ghp_one").start(proxy.addr).await).await;
    assert_eq!(own["result"]["status"], "working", "{own}");
    let other = answer(of(get, "ghp_two").start(proxy.addr).await).await;
    assert!(other["error"]["code"].is_i64(), "{other}");
    serving.abort();
}

#[tokio::test]
async fn other_values_give_a_named_user_no_further_quota() {
    let servers = StdioServers::start().await;
    let proxy = servers
        .proxy_with(|config| {
            from_headers(config.upstream.command.as_mut().expect("a command"));
            config.auth.principal = PrincipalSource::Header("x-user".parse().expect("a name"));
            config.limits.streams_per_principal = 1;
        })
        .await;
    let call = |user: &str, token: &str| modern_call(1, token).with("X-User", user);
    let _first = call("u", "ghp_one").start(proxy.addr).await;
    let mut server = modern_server(&servers).await;
    server.expect("tools/call").await;
    assert_eq!(call("u", "ghp_two").send(proxy.addr).await.status, 429);
    let _other = call("v", "ghp_two").start(proxy.addr).await;
    servers.next().await.expect("tools/call").await;
}

#[tokio::test]
async fn a_value_that_cannot_be_a_variable_is_refused() {
    let servers = StdioServers::start().await;
    let proxy = servers.proxy(from_headers).await;
    let long = "x".repeat(8193);
    for (value, reason) in [
        (long.as_str(), "x-github-token is longer than 8 KiB"),
        ("() { :; }; id", "x-github-token is a function of a shell"),
    ] {
        let mut response = Request::post(initialize(V2025_11)).with(HEADER, value).send(proxy.addr).await;
        let error = response.json().await["error"].clone();
        assert_eq!((response.status, &error["data"]["error"]), (400, &json!("variable_refused")));
        let message = error["message"].as_str().expect("text");
        assert_eq!(message, format!("a header cannot become a variable of the MCP server: {reason}"));
    }
    let twice = Request::post(initialize(V2025_11)).with(HEADER, "ghp_one").and(HEADER, "ghp_one");
    assert_eq!(twice.send(proxy.addr).await.status, 400);
    // A zero byte is no part of any header.
    let mut client = Client::connect(proxy.addr).await;
    let body = initialize(V2025_11);
    let head = format!(
        "POST /mcp HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n{HEADER}: a\0b\r\nContent-Length: {}\r\n\r\n",
        proxy.addr,
        body.len()
    );
    client.send(format!("{head}{body}").as_bytes()).await;
    assert_eq!(client.response().await.status, 400);
    // The longest value that is taken.
    let _pending = Request::post(initialize(V2025_11)).with(HEADER, &long[1..]).start(proxy.addr).await;
    assert_eq!(token_of(&servers.next().await).map(str::len), Some(8192));
}

#[tokio::test]
async fn the_lines_of_a_failed_start_have_no_value_of_a_client() {
    let servers = StdioServers::start().await;
    let line = ["sh", "-c", "echo \"Error: $GITHUB_TOKEN is bad\" >&2; exit 7"].map(str::to_owned).to_vec();
    let proxy = servers
        .proxy(|command| {
            from_headers(command);
            (command.line, command.stderr_to_client) = (line, true);
        })
        .await;
    for token in ["hunter22", "hunter22 and more"] {
        let mut response = Request::post(initialize(V2025_11)).with(HEADER, token).send(proxy.addr).await;
        assert_eq!(response.json().await["error"]["data"]["stderr"], "Error: *** is bad");
    }
}

#[tokio::test]
async fn a_check_gives_the_program_its_header() {
    let line = ["sh", "-c", "echo \"Error: ${GITHUB_TOKEN:-no token} ${#GITHUB_TOKEN}\" >&2; exit 7"];
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_mcp-resume"));
    command.env("MCP_RESUME_UPSTREAM__ENV_FROM_HEADERS", r#"{"GITHUB_TOKEN": "X-GitHub-Token"}"#);
    command.args(["check", "--header", "X-GitHub-Token: hunter22", "--"]).args(line).kill_on_drop(true);
    let output = within("the end of the check", command.output()).await.expect("the binary runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("Error: *** 8"), "{said} {}", String::from_utf8_lossy(&output.stderr));
}
