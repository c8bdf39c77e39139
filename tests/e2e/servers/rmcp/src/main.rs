//! A server on the stock rmcp SDK; it keeps sessions, and the events of a call that runs.
//!
//! `PORT`: the port of the loopback interface (0 or unset: any), told on stdout. `KEEP_ALIVE_SECS`:
//! the time without a message after which a session ends (unset: rmcp's own 300). With the argument
//! `stdio` it is on stdio, and notes its runs in files of the folder `COUNTERS`. The tools and the
//! counters are those of every server of the suite (`servers/README.md`).

use std::{
    collections::HashMap,
    convert::Infallible,
    env,
    error::Error,
    fs::OpenOptions,
    io::Write,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use http_body_util::{BodyExt, Full, combinators::BoxBody};
use hyper::{Request, Response, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use rmcp::{
    ErrorData, RoleServer, ServerHandler, ServiceExt,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, Implementation, InputRequiredResult,
        JsonObject, ListToolsResult, PaginatedRequestParams, ProgressNotificationParam, ServerCapabilities,
        ServerConfig, SubscriptionFilter, Tool,
    },
    service::{RequestContext, SubscriptionContext},
    transport::streamable_http_server::{
        StreamableHttpServerConfig, StreamableHttpService, session::local::LocalSessionManager,
    },
};
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::broadcast};

#[derive(Clone, Copy, Default)]
struct Runs {
    started: u64,
    finished: u64,
    cancelled: u64,
}

#[derive(Clone, Default)]
struct Counters {
    runs: Arc<Mutex<HashMap<String, Runs>>>,
    /// The folder of their files, on stdio.
    folder: Option<PathBuf>,
}

impl Counters {
    fn count(&self, key: &str, what: &str) {
        let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        let runs = runs.entry(key.to_owned()).or_default();
        *match what {
            "started" => &mut runs.started,
            "finished" => &mut runs.finished,
            _ => &mut runs.cancelled,
        } += 1;
        if let Some(folder) = self.folder.as_ref().filter(|_| !key.is_empty()) {
            let file = OpenOptions::new().create(true).append(true).open(folder.join(key));
            file.and_then(|mut file| file.write_all(format!("{what}\n").as_bytes())).expect("a folder of counters");
        }
    }

    /// The answer to `/counters?key=K`.
    fn page(&self, query: &str) -> Value {
        let key = query.strip_prefix("key=").unwrap_or_default();
        let runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner).get(key).copied().unwrap_or_default();
        json!({"started": runs.started, "finished": runs.finished, "cancelled": runs.cancelled})
    }
}

#[derive(Clone)]
struct Server {
    counters: Counters,
    /// Changes of the list of tools, for the subscriptions.
    changes: broadcast::Sender<()>,
}

/// Asks for a word by the result of a call.
fn question() -> InputRequiredResult {
    let schema = json!({"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]});
    let params = json!({"mode": "form", "message": "a word?", "requestedSchema": schema});
    let requests = json!({"question": {"method": "elicitation/create", "params": params}});
    let result = json!({"resultType": "input_required", "inputRequests": requests});
    serde_json::from_value(result).expect("a result as the specification writes it")
}

impl Server {
    /// Sends progress 1 … `steps`, one each interval; returns false if the client cancelled the
    /// call.
    async fn progress(&self, steps: u64, interval: Duration, context: &RequestContext<RoleServer>) -> bool {
        for n in 1..=steps {
            tokio::select! {
                () = context.ct.cancelled() => return false,
                () = tokio::time::sleep(interval) => {}
            }
            if let Some(token) = context.meta.get_progress_token() {
                let param = ProgressNotificationParam::new(token, n as f64)
                    .with_total(steps as f64)
                    .with_message(format!("step {n}"));
                // A client that cannot be reached gets the rest of its call all the same.
                let _ = context.peer.notify_progress(param).await;
            }
        }
        true
    }
}

/// Asks the client for a word; it answers in a further call.
fn ask() -> Result<CallToolResponse, ErrorData> {
    let form = json!({"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]});
    let params = json!({"mode": "form", "message": "a word?", "requestedSchema": form});
    let question = json!({"word": {"method": "elicitation/create", "params": params}});
    let questions =
        serde_json::from_value(question).map_err(|error| ErrorData::internal_error(error.to_string(), None))?;
    Ok(InputRequiredResult::from_input_requests(questions).into())
}

fn text_of(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder().enable_tools().enable_tool_list_changed().build();
        ServerConfig::new(capabilities).with_server_info(Implementation::new("rmcp", "1.0.0"))
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let any = JsonObject::from_iter([("type".to_owned(), json!("object"))]);
        let tools =
            ["change", "input", "long", "plain", "quick", "confirm"].map(|name| Tool::new(name, "", any.clone()));
        Ok(ListToolsResult::with_all_items(tools.to_vec()))
    }

    fn accepted_subscription_filter(&self, requested: &SubscriptionFilter) -> Option<SubscriptionFilter> {
        Some(requested.clone())
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        let mut changes = self.changes.subscribe();
        loop {
            tokio::select! {
                () = context.cancelled() => return Ok(()),
                Ok(()) = changes.recv() => {
                    let sent = context.sink().notify_tool_list_changed().await;
                    sent.map_err(|error| ErrorData::internal_error(error.to_string(), None))?;
                }
            }
        }
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let arguments = request.arguments.unwrap_or_default();
        let number = |name: &str| arguments.get(name).and_then(Value::as_u64).unwrap_or_default();
        let key = arguments.get("key").and_then(Value::as_str).unwrap_or_default();
        let answers = request.input_responses.as_ref();
        let answer = answers.and_then(|given| Some(given.get("question")?["content"]["word"].as_str()?.to_owned()));
        let confirmed = answers.and_then(|answers| answers.get("word"));
        if request.name == "confirm" && confirmed.is_none() {
            tokio::time::sleep(Duration::from_millis(900)).await;
            return ask();
        }
        let (steps, text) = match &*request.name {
            "confirm" => {
                (0, format!("answered {}", confirmed.map_or("", |answer| text_of(&answer["content"]["word"]))))
            }
            "long" | "plain" => (number("steps"), format!("done {}", number("steps"))),
            "quick" => (0, "quick".to_owned()),
            "input" => (0, format!("answered {}", answer.as_deref().unwrap_or_default())),
            "change" => {
                // Without a subscription there is no receiver.
                let _ = self.changes.send(());
                (0, "changed".to_owned())
            }
            _ => return Err(ErrorData::invalid_params("there is no such tool", None)),
        };
        self.counters.count(key, "started");
        if !self.progress(steps, Duration::from_millis(number("interval_ms")), &context).await {
            self.counters.count(key, "cancelled");
            return Err(ErrorData::internal_error("cancelled", None));
        }
        self.counters.count(key, "finished");
        if request.name == "input" && answer.is_none() {
            return Ok(question().into());
        }
        Ok(CallToolResult::success(vec![ContentBlock::text(text)]).into())
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let is_stdio = env::args().nth(1).is_some_and(|argument| argument == "stdio");
    let folder = env::var_os("COUNTERS").filter(|_| is_stdio).map(PathBuf::from);
    let counters = Counters { folder, ..Counters::default() };
    let server = Server { counters: counters.clone(), changes: broadcast::Sender::new(16) };
    if is_stdio {
        server.serve(rmcp::transport::stdio()).await?.waiting().await?;
        return Ok(());
    }
    let mut sessions = LocalSessionManager::default();
    if let Ok(secs) = env::var("KEEP_ALIVE_SECS") {
        sessions.session_config.keep_alive = Some(Duration::from_secs(secs.parse()?));
    }
    let service = StreamableHttpService::new(
        move || Ok(server.clone()),
        Arc::new(sessions),
        StreamableHttpServerConfig::default(),
    );
    let port = env::var("PORT").unwrap_or_else(|_| "0".to_owned());
    let listener = TcpListener::bind(("127.0.0.1", port.parse()?)).await?;
    println!("{}", json!({"port": listener.local_addr()?.port()}));
    loop {
        let (connection, _) = listener.accept().await?;
        let (service, counters) = (service.clone(), counters.clone());
        let answer = service_fn(move |request: Request<Incoming>| {
            let (service, counters) = (service.clone(), counters.clone());
            async move { Ok::<_, Infallible>(answer(request, &service, &counters).await) }
        });
        // A client that resets its connection ends that connection alone.
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(connection), answer));
    }
}

async fn answer(
    request: Request<Incoming>,
    service: &StreamableHttpService<Server, LocalSessionManager>,
    counters: &Counters,
) -> Response<BoxBody<Bytes, Infallible>> {
    match request.uri().path() {
        "/counters" => {
            let page = counters.page(request.uri().query().unwrap_or_default()).to_string();
            Response::new(Full::new(Bytes::from(page)).boxed())
        }
        "/mcp" => service.handle(request).await,
        _ => {
            let mut response = Response::new(Full::default().boxed());
            *response.status_mut() = hyper::StatusCode::NOT_FOUND;
            response
        }
    }
}
