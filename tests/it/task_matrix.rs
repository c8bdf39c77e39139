//! Two callers with a task each, and every combination of an ID and a token that one of them may
//! hold of the other's, for every request of both revisions.
//!
//! The rule: a task is its owner's, who shows its ID and the owner's token, in any session. A token
//! that only claims to be the owner's is the server's to judge. All else is a task that is not
//! there, with equal bytes and equal work.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mcp_resume::config::{LegacyTasks, Tasks};
use serde_json::{Value, json};

use crate::support::*;
use crate::tasks::{declaring, terms};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Held {
    Own,
    Stolen,
    Absent,
    Forged,
    /// The thief's own that is over: a token that was replaced, or an ID of another process.
    Expired,
}

const IDS: [Held; 4] = [Held::Own, Held::Stolen, Held::Forged, Held::Expired];
const TOKENS: [Held; 5] = [Held::Own, Held::Stolen, Held::Absent, Held::Forged, Held::Expired];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Caller {
    Thief,
    Victim,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Worth {
    Theirs(Caller),
    Refusal,
    Gone,
}

#[derive(Clone, Copy, Debug)]
struct Attempt {
    version: &'static str,
    method: &'static str,
    id: Held,
    token: Held,
}

impl Attempt {
    fn worth(self) -> Worth {
        let names = |held, caller| held == if caller == Caller::Thief { Held::Own } else { Held::Stolen };
        for owner in [Caller::Thief, Caller::Victim] {
            if names(self.id, owner) && names(self.token, owner) {
                return Worth::Theirs(owner);
            }
            let claimed = if owner == Caller::Thief { Held::Expired } else { Held::Forged };
            if names(self.id, owner) && self.token == claimed {
                return Worth::Refusal;
            }
        }
        Worth::Gone
    }

    /// The request, with the ID of the task in it.
    fn request(self, task: &str) -> Request {
        let params = json!({"taskId": task, "inputResponses": {"1-a": {}}});
        if self.version == V2026 {
            return declaring("asked", self.method, params).with("Accept", "application/json");
        }
        let body = json!({"jsonrpc": "2.0", "id": "asked", "method": self.method, "params": {"taskId": task}});
        Request::post(body.to_string())
            .with("MCP-Protocol-Version", self.version)
            .with("Mcp-Session-Id", "session-1")
            .with("Accept", "application/json")
    }
}

/// The server, which takes these tokens and leaves calls unanswered. Returns the requests that
/// reach it.
fn serve(mut upstream: Upstream, good: [String; 2]) -> Arc<Mutex<Vec<String>>> {
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let noted = seen.clone();
    tokio::spawn(async move {
        let (mut open, mut open_sessions) = (Vec::new(), 0);
        while let Some(call) = upstream.try_next().await {
            let rpc = call.rpc_method();
            noted.lock().unwrap().push(rpc.clone());
            let is_good = call.header("authorization").is_some_and(|token| good.iter().any(|good| good == token));
            let id = if rpc.contains('/') || rpc == "initialize" || rpc == "ping" {
                call.json_body()["id"].clone()
            } else {
                Value::Null
            };
            let result = |result: Value| json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string();
            match rpc.as_str() {
                _ if !is_good => call.json(401, "{}").await,
                "tools/call" => open.push(call.sse().await),
                "initialize" => {
                    let opened = json!({"protocolVersion": V2025_11, "capabilities": {}, "serverInfo": {"name": "s", "version": "1"}});
                    open_sessions += 1;
                    let header = format!("mcp-session-id: session-{open_sessions}\r\n");
                    call.json_with(200, &header, result(opened)).await;
                }
                "server/discover" => {
                    let found = json!({"resultType": "complete", "supportedVersions": [V2026], "capabilities": {}});
                    call.json(200, result(found)).await;
                }
                "ping" => call.json(200, result(json!({}))).await,
                _ => call.status(202).await,
            }
        }
    });
    seen
}

struct Stage {
    proxy: Proxy,
    seen: Arc<Mutex<Vec<String>>>,
    tokens: [String; 2],
    tasks: [String; 2],
}

impl Stage {
    async fn start(version: &'static str) -> Self {
        let upstream = Upstream::start().await;
        let legacy = Some(Arc::new(LegacyTasks::new(["slow".to_owned()], Duration::from_secs(3600))));
        let proxy = Proxy::start(&upstream, |config| {
            config.admin.address = Some(([127, 0, 0, 1], 0).into());
            config.tasks = Some(Arc::new(Tasks { legacy, ..terms() }));
        })
        .await;
        let tokens = [bearer("thief", 1), bearer("victim", 1)];
        let seen = serve(upstream, tokens.clone());
        let mut tasks = [String::new(), String::new()];
        for (token, task) in tokens.iter().zip(&mut tasks) {
            *task = begun(&proxy, version, token).await;
        }
        // A client of 2025-11-25 has its handle before the call reaches the server.
        let calls = || seen.lock().unwrap().iter().filter(|rpc| *rpc == "tools/call").count();
        until("both calls", async || calls() == 2).await;
        if version != V2026 {
            // The proxy drops the response to `initialize` a moment after its client has read it.
            until("no other stream", async || metric(&proxy, "mcp_resume_streams_kept").await == 2.0).await;
        }
        seen.lock().unwrap().clear();
        Self { proxy, seen, tokens, tasks }
    }

    async fn counters(&self) -> BTreeMap<String, String> {
        let page = Request::new("GET", "/metrics").send(self.proxy.admin.expect("a page")).await.body().await;
        let page = String::from_utf8(page).unwrap();
        let steady = page.lines().filter(|line| line.starts_with("mcp_resume_"));
        let steady =
            steady.filter(|line| !["_seconds", "_connections", "sessions_kept"].iter().any(|part| line.contains(part)));
        steady
            .filter_map(|line| line.rsplit_once(' '))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect()
    }

    async fn status(&self, version: &'static str, caller: Caller) -> Value {
        let get = Attempt { version, method: "tasks/get", id: Held::Own, token: Held::Own };
        let request = get.request(&self.tasks[caller as usize]).with("Authorization", &self.tokens[caller as usize]);
        request.send(self.proxy.addr).await.json().await["result"]["status"].clone()
    }
}

/// Has a call of the caller become a task. Returns its ID.
async fn begun(proxy: &Proxy, version: &'static str, token: &str) -> String {
    if version == V2026 {
        let discover = declaring(0, "server/discover", json!({})).with("Authorization", token);
        discover.send(proxy.addr).await.body().await;
        let call = declaring(5, "tools/call", json!({"name": "slow", "arguments": {}})).with("Authorization", token);
        let mut response = call.send(proxy.addr).await.sse();
        response.prime().await;
        return response.event().await.json()["result"]["taskId"].as_str().expect("a task").to_owned();
    }
    let mut opened = Request::post(initialize(version)).with("Authorization", token).send(proxy.addr).await;
    opened.body().await;
    let session = opened.header("mcp-session-id").expect("a session");
    let body = json!({"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": {"name": "slow", "task": {}}});
    let session = Session::opened_elsewhere(version, session, Some(token));
    let handle = session.post(body.to_string()).send(proxy.addr).await.json().await;
    handle["result"]["task"]["taskId"].as_str().expect("a task").to_owned()
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Seen {
    status: u16,
    body: String,
    upstream: Vec<String>,
    moved: Vec<String>,
}

async fn make(attempt: Attempt, expired: &str) -> Seen {
    let Attempt { version, method, .. } = attempt;
    let stage = Stage::start(version).await;
    let task = match attempt.id {
        Held::Own => stage.tasks[0].clone(),
        Held::Stolen => stage.tasks[1].clone(),
        Held::Forged => {
            let (rest, last) = stage.tasks[1].split_at(stage.tasks[1].len() - 1);
            format!("{rest}{}", if last == "A" { "B" } else { "A" })
        }
        Held::Expired | Held::Absent => expired.to_owned(),
    };
    let token = match attempt.token {
        Held::Own => Some(stage.tokens[0].clone()),
        Held::Stolen => Some(stage.tokens[1].clone()),
        Held::Absent => None,
        Held::Forged => Some(bearer("victim", 666)),
        Held::Expired => Some(bearer("thief", 0)),
    };
    let request = attempt.request(&task);
    let request = token.iter().fold(request, |request, token| request.with("Authorization", token));
    let before = stage.counters().await;
    let worth = attempt.worth();
    let what = format!("{attempt:?} is worth {worth:?}");
    // The outcome is waited for by its owner alone.
    let waits = method == "tasks/result" && matches!(worth, Worth::Theirs(_));
    let (status, body) = if waits {
        let waiting = request.start(stage.proxy.addr).await;
        // Another request shows that the first one was handled.
        assert_eq!(stage.status(version, Caller::Thief).await, "working");
        drop(waiting);
        (200, "{}".to_owned())
    } else {
        let mut response = request.send(stage.proxy.addr).await;
        (response.status, String::from_utf8(response.body().await).unwrap())
    };
    let upstream = std::mem::take(&mut *stage.seen.lock().unwrap());
    let after = stage.counters().await;
    let changes = |caller| method == "tasks/cancel" && worth == Worth::Theirs(caller);
    match worth {
        Worth::Theirs(_) => assert!(status == 200 && !body.contains("error"), "{what}: {status} {body}"),
        Worth::Refusal => assert_eq!((status, upstream.len()), (401, 1), "{what}: {body} {upstream:?}"),
        Worth::Gone => {
            assert!(upstream.is_empty(), "{what}: {upstream:?}");
            let error = serde_json::from_str::<Value>(&body).unwrap()["error"]["code"].clone();
            assert_eq!((status, error), (200, json!(-32602)), "{what}: {body}");
        }
    }
    for caller in [Caller::Thief, Caller::Victim] {
        let expected = if changes(caller) { "cancelled" } else { "working" };
        assert_eq!(stage.status(version, caller).await, expected, "{what}, for the {caller:?}");
    }
    let moved = after.into_iter().filter(|(name, value)| before.get(name) != Some(value)).map(|(name, _)| name);
    Seen { status, body, upstream, moved: moved.collect() }
}

fn every_attempt(version: &'static str, methods: [&'static str; 3]) {
    let alone = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let expired = alone().block_on(async { Stage::start(version).await.tasks[0].clone() });
    let mut worths = [0; 3];
    for method in methods {
        let mut gone = BTreeSet::new();
        for (id, token) in IDS.into_iter().flat_map(|id| TOKENS.map(|token| (id, token))) {
            let attempt = Attempt { version, method, id, token };
            let seen = alone().block_on(make(attempt, &expired));
            match attempt.worth() {
                Worth::Theirs(_) => worths[0] += 1,
                Worth::Refusal => worths[1] += 1,
                Worth::Gone => {
                    worths[2] += 1;
                    gone.insert(seen);
                }
            }
        }
        assert_eq!(gone.len(), 1, "{method} differs: {gone:#?}");
    }
    assert_eq!(worths, [2 * 3, 2 * 3, 16 * 3]);
}

#[test]
fn requests_of_2026() {
    every_attempt(V2026, ["tasks/get", "tasks/update", "tasks/cancel"]);
}

#[test]
fn requests_of_2025() {
    every_attempt(V2025_11, ["tasks/get", "tasks/result", "tasks/cancel"]);
}
