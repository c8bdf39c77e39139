//! Tool calls through the stock rmcp client, told as JSON lines on stdout.
//!
//! The flags and the lines are those of every client of the suite (`clients/README.md`). The
//! runtime is current-thread on purpose: rmcp hands each notification to a task of its own, and
//! only there do they keep their order.

// Sampling, roots and logging are deprecated as of 2026-07-28; the suite asks for them at older
// revisions.
#![allow(deprecated)]

mod login;
mod tasks;

use std::{collections::HashMap, error::Error, time::Duration};

use rmcp::{
    ClientHandler, ClientLifecycleMode, ClientServiceExt, ErrorData, RoleClient, ServiceError,
    model::{
        CallToolRequest, CallToolRequestParams, CallToolResult, ClientCapabilities, ClientConfig, ClientRequest,
        CreateMessageRequestParams, CreateMessageResult, ElicitRequestParams, ElicitResult, ElicitationAction,
        Implementation, ListRootsResult, LoggingMessageNotificationParam, ProgressNotificationParam, ProtocolVersion,
        ResourceUpdatedNotificationParam, Root, SamplingMessage, ServerNotification, ServerResult,
        SubscribeRequestParams, SubscriptionFilter, TASKS_EXTENSION_ID,
    },
    service::{NotificationContext, PeerRequestOptions, RequestContext, RunningService},
    transport::{
        StreamableHttpClientTransport, TokioChildProcess, auth::AuthClient, streamable_http_client::StreamableHttpClientTransportConfig,
    },
};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

fn say(line: &Value) {
    println!("{line}");
}

/// Fills in a form: a fixed text, number or truth for each property.
fn filled(schema: &Value) -> Value {
    let properties = schema["properties"].as_object().into_iter().flatten();
    let value = |property: &Value| match property["type"].as_str() {
        Some("boolean") => json!(true),
        Some("number" | "integer") => json!(5),
        _ => json!("elicited"),
    };
    properties.map(|(name, property)| (name.clone(), value(property))).collect::<serde_json::Map<_, _>>().into()
}

/// Answers every question of a server with a fixed text and tells what it saw.
struct Witness {
    /// Declares tasks.
    tasks: bool,
}

impl ClientHandler for Witness {
    async fn create_message(
        &self,
        _: CreateMessageRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<CreateMessageResult, ErrorData> {
        say(&json!({"event": "asked", "kind": "sampling"}));
        let message = SamplingMessage::assistant_text("sampled");
        Ok(CreateMessageResult::new(message, "fixed".into()))
    }

    async fn list_roots(&self, _: RequestContext<RoleClient>) -> Result<ListRootsResult, ErrorData> {
        say(&json!({"event": "asked", "kind": "roots"}));
        Ok(ListRootsResult::new(vec![Root::new("file:///rooted")]))
    }

    async fn create_elicitation(
        &self,
        question: ElicitRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        say(&json!({"event": "asked", "kind": "elicitation"}));
        let question = serde_json::to_value(question).unwrap_or_default();
        Ok(ElicitResult::new(ElicitationAction::Accept).with_content(filled(&question["requestedSchema"])))
    }

    async fn on_progress(&self, progress: ProgressNotificationParam, _: NotificationContext<RoleClient>) {
        say(&json!({"event": "progress", "n": progress.progress as u64}));
    }

    async fn on_logging_message(&self, message: LoggingMessageNotificationParam, _: NotificationContext<RoleClient>) {
        say(&json!({"event": "logged", "data": message.data}));
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        say(&json!({"event": "changed", "list": "tools"}));
    }

    async fn on_prompt_list_changed(&self, _: NotificationContext<RoleClient>) {
        say(&json!({"event": "changed", "list": "prompts"}));
    }

    async fn on_resource_list_changed(&self, _: NotificationContext<RoleClient>) {
        say(&json!({"event": "changed", "list": "resources"}));
    }

    async fn on_resource_updated(&self, updated: ResourceUpdatedNotificationParam, _: NotificationContext<RoleClient>) {
        say(&json!({"event": "updated", "uri": updated.uri}));
    }

    fn get_info(&self) -> ClientConfig {
        let mut declared = json!({"roots": {}, "sampling": {}, "elicitation": {}});
        if self.tasks {
            // As `enable_tasks()` writes it, which needs rmcp's server.
            declared["extensions"] = json!({TASKS_EXTENSION_ID: {}});
        }
        let capabilities: ClientCapabilities =
            serde_json::from_value(declared).expect("capabilities as the specification writes them");
        ClientConfig::new(capabilities, Implementation::new("e2e-rmcp", "1.0.0"))
            .with_protocol_version(ProtocolVersion::V_2025_11_25)
    }
}

/// `--name value` pairs; anything else is a mistake of the suite.
fn flags() -> Result<HashMap<String, String>, Box<dyn Error>> {
    let mut found = HashMap::new();
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let name = word.strip_prefix("--").ok_or("a flag begins with --")?;
        found.insert(name.to_owned(), words.next().ok_or("a flag has a value")?);
    }
    Ok(found)
}

fn millis(flags: &HashMap<String, String>, name: &str, default: u64) -> Result<u64, Box<dyn Error>> {
    Ok(flags.get(name).map_or(Ok(default), |text| text.parse())?)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let flags = flags()?;
    let linger = Duration::from_millis(millis(&flags, "linger-ms", 200)?);
    let timeout = Duration::from_millis(millis(&flags, "timeout-ms", 30_000)?);
    if let Err(error) = call(&flags, timeout, linger).await {
        say(&json!({"event": "error", "message": error.to_string()}));
    }
    say(&json!({"event": "closed"}));
    // What is still under way may not keep the process.
    std::process::exit(0);
}

/// Calls the tool, with a limit that progress extends if there is a `deadline`. Without one a
/// result that asks is answered, by another call.
async fn call_tool(
    client: &RunningService<RoleClient, Witness>,
    params: CallToolRequestParams,
    deadline: Option<Duration>,
) -> Result<CallToolResult, ServiceError> {
    let Some(deadline) = deadline else { return client.call_tool(params).await };
    let options = PeerRequestOptions::with_timeout(deadline).reset_timeout_on_progress();
    let request = ClientRequest::CallToolRequest(CallToolRequest::new(params));
    match client.send_cancellable_request(request, options).await?.await_response().await? {
        ServerResult::CallToolResult(result) => Ok(result),
        _ => Err(ServiceError::UnexpectedResponse),
    }
}

async fn call(flags: &HashMap<String, String>, timeout: Duration, linger: Duration) -> Result<(), Box<dyn Error>> {
    let url = flags.get("url").ok_or("--url is needed")?.as_str();
    let preferred_versions = vec![ProtocolVersion::V_2026_07_28];
    let lifecycle = match flags.get("mode").map(String::as_str) {
        Some("modern") => ClientLifecycleMode::Discover { preferred_versions },
        Some("auto") => ClientLifecycleMode::Auto { preferred_versions, legacy_version: None },
        _ => ClientLifecycleMode::Initialize,
    };
    let witness = Witness { tasks: flags.get("tasks").is_some_and(|tasks| tasks == "true") };
    let client = if let Some(words) = url.strip_prefix("stdio:") {
        witness.serve_with_lifecycle(TokioChildProcess::new(command(words)?)?, lifecycle).await?
    } else if flags.get("login").is_some_and(|login| login == "true") {
        let signed_in = AuthClient::new(reqwest::Client::new(), login::sign_in(url).await?);
        let endpoint = StreamableHttpClientTransportConfig::with_uri(url);
        let transport = StreamableHttpClientTransport::with_client(signed_in, endpoint);
        witness.serve_with_lifecycle(transport, lifecycle).await?
    } else {
        witness.serve_with_lifecycle(StreamableHttpClientTransport::from_uri(url), lifecycle).await?
    };
    let protocol = client.peer_info().map(|info| info.protocol_version.to_string());
    say(&json!({"event": "connected", "protocol": protocol}));

    let deadline = match millis(flags, "deadline-ms", 0)? {
        0 => None,
        deadline => Some(Duration::from_millis(deadline)),
    };
    let arguments = flags.get("args").map_or("{}", String::as_str);
    let mut asked = json!({"tool": flags.get("tool"), "args": serde_json::from_str::<Value>(arguments)?});
    let mut more = BufReader::new(tokio::io::stdin()).lines();
    loop {
        match tokio::time::timeout(timeout, make_call(&client, asked, deadline)).await {
            Ok(Ok(end)) => say(&end),
            Ok(Err(error)) => say(&json!({"event": "error", "message": error.to_string()})),
            // Left as it is: to close a session in mid-call takes rmcp its own time.
            Err(_) => return Err("timeout".into()),
        }
        if flags.get("then").is_none_or(|then| then != "true") {
            break;
        }
        let Some(line) = more.next_line().await? else { break };
        asked = serde_json::from_str(&line)?;
    }
    tokio::time::sleep(linger).await;
    client.cancel().await?;
    Ok(())
}

/// The command of a server on stdio, given as a JSON array.
fn command(words: &str) -> Result<Command, Box<dyn Error>> {
    let words: Vec<String> = serde_json::from_str(words)?;
    let (program, arguments) = words.split_first().ok_or("a program is needed")?;
    let mut command = Command::new(program);
    command.args(arguments);
    Ok(command)
}

/// Tells of changes of the list of tools, for the rest of the session.
async fn listen(client: &RunningService<RoleClient, Witness>) -> Result<(), ServiceError> {
    let mut changes = client.listen(SubscriptionFilter::builder().tools_list_changed().build()).await?;
    tokio::spawn(async move {
        while let Ok(Some(change)) = changes.next().await {
            if let ServerNotification::ToolListChangedNotification(_) = change {
                say(&json!({"event": "changed", "list": "tools"}));
            }
        }
    });
    Ok(())
}

/// Calls a tool, lists or listens to all, sets the level of log messages, or subscribes to a
/// resource. Returns the line about its end.
async fn make_call(
    client: &RunningService<RoleClient, Witness>,
    mut asked: Value,
    deadline: Option<Duration>,
) -> Result<Value, Box<dyn Error>> {
    if asked["level"].is_string() {
        client.set_level(serde_json::from_value(asked)?).await?;
        return Ok(json!({"event": "result", "text": "level"}));
    }
    if let Some(uri) = asked["subscribe"].as_str() {
        client.subscribe(SubscribeRequestParams::new(uri)).await?;
        return Ok(json!({"event": "result", "text": "subscribe"}));
    }
    if asked["list"].is_string() {
        client.list_all_tools().await?;
        return Ok(json!({"event": "result", "text": "list"}));
    }
    if asked["listen"].is_string() {
        listen(client).await?;
        return Ok(json!({"event": "result", "text": "listen"}));
    }
    if let Value::Array(calls) = asked["at_once"].take() {
        let begin = |call| Ok(tokio::spawn(tasks::call(client.peer().clone(), params_of(call)?, false)));
        let running: Vec<_> = calls.into_iter().map(begin).collect::<Result<_, Box<dyn Error>>>()?;
        for call in running {
            say(&line_of(&call.await??));
        }
        return Ok(json!({"event": "result", "text": "at_once"}));
    }
    if asked["cancel"].is_object() {
        return Ok(line_of(&tasks::call(client.peer().clone(), params_of(asked["cancel"].take())?, true).await?));
    }
    let params = params_of(asked)?;
    if client.service().tasks {
        return Ok(line_of(&tasks::call(client.peer().clone(), params, false).await?));
    }
    Ok(line_of(&serde_json::to_value(call_tool(client, params, deadline).await?)?))
}

fn params_of(mut asked: Value) -> Result<CallToolRequestParams, Box<dyn Error>> {
    let tool = asked["tool"].as_str().ok_or("--tool is needed")?.to_owned();
    Ok(CallToolRequestParams::new(tool).with_arguments(serde_json::from_value(asked["args"].take())?))
}

/// The line about a tool's result.
fn line_of(result: &Value) -> Value {
    let failed = result["isError"] == json!(true);
    let (event, name) = if failed { ("error", "message") } else { ("result", "text") };
    let mut line = json!({"event": event, name: result["content"][0]["text"]});
    if let Some(structured) = result.get("structuredContent") {
        line["structured"] = structured.clone();
    }
    line
}
