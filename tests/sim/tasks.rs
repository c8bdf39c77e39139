//! Calls that become tasks, in runs of their own: clients that poll, answer and cancel over
//! connections that break, before a server without tasks.
//!
//! A seed draws the calls: the server's behaviour and the client's. The server counts the runs of
//! each call and round. Each client checks what it is told: one outcome, the server's own, and none
//! after a cancel.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mcp_resume::clock;
use mcp_resume::config::{Config, Tasks};
use mcp_resume::sidecar::Sidecar;
use mcp_resume::simulation::{self, Bug};
use mcp_resume::upstream::{Dial, DialFuture, Wire};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::network::{Dialer, Listener, Pipe, network};
use super::rng::Rng;
use super::wire::{Events, Parser, Part};

const EXTENSION: &str = "io.modelcontextprotocol/tasks";
const VERSION: &str = "2026-07-28";
/// Calls of one run.
const CALLS: usize = 4;
/// Longer than any call takes whose client does not leave.
const LONGEST: Duration = Duration::from_secs(900);
/// Time without a poll after which a task is abandoned.
const MAX_WAIT: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Result,
    Error,
    /// The connection breaks.
    Dies,
}

/// One call.
#[derive(Clone, Debug)]
struct Job {
    key: usize,
    /// Time that the server takes for each round.
    takes: Duration,
    /// Progress notifications before each response.
    progress: usize,
    is_sse: bool,
    /// Questions of each round of input; none is a state alone.
    rounds: Vec<usize>,
    end: End,
    /// Number of polls after which the client cancels.
    cancels: Option<usize>,
    /// Number of polls after which the client leaves for good.
    leaves: Option<usize>,
    /// Probability, in per cent, that a connection breaks.
    cuts: usize,
    rng: Rng,
}

#[derive(Default)]
struct World {
    /// Runs by call and round.
    runs: Mutex<BTreeMap<(usize, usize), usize>>,
    /// Calls that run at the server.
    open: Mutex<BTreeMap<usize, usize>>,
    blames: Mutex<Vec<String>>,
    reached: Mutex<Vec<&'static str>>,
    jobs: Vec<Job>,
    drains: Option<Duration>,
}

/// Faults and kinds of events of a run.
struct Report {
    blames: Vec<String>,
    reached: Vec<&'static str>,
}

impl World {
    fn blame(&self, fault: String) {
        self.blames.lock().unwrap().push(fault);
    }

    fn reach(&self, what: &'static str) {
        self.reached.lock().unwrap().push(what);
    }
}

fn draw(seed: u64) -> (World, Tasks) {
    let rng = &mut Rng::new(seed ^ 0x7a5c_0001);
    let jobs = (0..CALLS).map(|key| {
        let rounds = (0..rng.below(4)).map(|_| rng.below(4)).collect();
        let is_hasty = |rng: &mut Rng| rng.percent(15).then(|| rng.below(5));
        Job {
            key,
            takes: rng.pick(&[
                Duration::ZERO,
                Duration::from_millis(200),
                Duration::from_secs(3),
                Duration::from_secs(30),
            ]) + rng.millis(300),
            progress: rng.below(4),
            is_sse: rng.percent(70),
            rounds,
            end: rng.pick(&[End::Result, End::Result, End::Result, End::Error, End::Dies]),
            cancels: is_hasty(rng),
            leaves: is_hasty(rng),
            cuts: rng.pick(&[0, 10, 40]),
            rng: rng.fork(),
        }
    });
    let jobs: Vec<_> = jobs.collect();
    let hold = rng.pick(&[None, Some(Duration::from_secs(1)), Some(Duration::from_secs(5))]);
    let after = rng.pick(&[Duration::from_millis(100), Duration::from_secs(2)]);
    let drains = rng.percent(15).then(|| rng.millis(20_000));
    (
        World { jobs, drains, ..World::default() },
        Tasks { after, hold, max_wait: MAX_WAIT, retention: MAX_WAIT * 2, legacy: None },
    )
}

/// The way to the server.
struct Direct(Dialer);

impl Dial for Direct {
    fn dial(&self, _: &http::Uri) -> DialFuture {
        let pipe = self.0.connect();
        Box::pin(async move { pipe.map(|pipe| Box::new(pipe) as Box<dyn Wire>) })
    }
}

fn simulate(seed: u64, bug: Option<Bug>) -> Report {
    let (world, tasks) = draw(seed);
    simulation::seed(seed);
    simulation::plant(bug);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let world = Arc::new(world);
    runtime.block_on(run(world.clone(), tasks));
    drop(runtime);
    simulation::plant(None);
    let blames = std::mem::take(&mut *world.blames.lock().unwrap());
    let reached = std::mem::take(&mut *world.reached.lock().unwrap());
    Report { blames, reached }
}

async fn run(world: Arc<World>, tasks: Tasks) {
    let (dialer, listener) = network(65_536);
    let (to_upstream, upstream) = network(65_536);
    let mut config = Config::for_upstream("http://upstream.test:9/mcp").expect("a usable URL");
    config.replica.name = Some("simulated".to_owned());
    config.replica.drain_delay = Some(Duration::ZERO);
    config.replica.drain_timeout = Duration::from_secs(10);
    config.tasks = Some(Arc::new(tasks));
    let sidecar = Sidecar::new(config, Arc::new(Direct(to_upstream))).unwrap();
    let log = sidecar.log();
    let drains = world.drains;
    let draining = async move {
        match drains {
            Some(at) => clock::sleep(at).await,
            None => std::future::pending().await,
        }
    };
    let proxy = tokio::spawn(sidecar.run(listener, draining));
    let server = tokio::spawn(serve(world.clone(), upstream));
    let mut clients = tokio::task::JoinSet::new();
    for job in world.jobs.clone() {
        clients.spawn(Client { world: world.clone(), dialer: dialer.clone(), job, polls: 0, rounds_before: 0 }.run());
    }
    while let Some(ended) = clients.join_next().await {
        if let Err(error) = ended {
            world.blame(format!("a client broke: {error}"));
        }
    }
    clock::sleep(MAX_WAIT + Duration::from_secs(60)).await;
    let open = world.open.lock().unwrap().clone();
    if !open.is_empty() {
        world.blame(format!("calls run for no client: {open:?}"));
    }
    for ((key, round), runs) in &*world.runs.lock().unwrap() {
        if *runs > 1 {
            world.blame(format!("call {key} ran {runs} times in round {round}"));
        }
    }
    if world.drains.is_none() {
        clock::sleep(MAX_WAIT * 4 + Duration::from_secs(4000)).await;
        if !log.is_empty() {
            world.blame(format!("not forgotten: {} streams", log.len()));
        }
    }
    server.abort();
    proxy.abort();
}

// ── the server ───────────────────────────────────────────────────────────────────────────────────

async fn serve(world: Arc<World>, mut listener: Listener) {
    let mut connections = tokio::task::JoinSet::new();
    while let Some(pipe) = listener.next().await {
        connections.spawn(Connection { world: world.clone(), pipe, parser: Parser::default() }.run());
    }
}

struct Connection {
    world: Arc<World>,
    pipe: Pipe,
    parser: Parser,
}

/// A call that runs at the server.
struct Running(Arc<World>, usize);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.open.lock().unwrap().remove(&self.1);
    }
}

impl Connection {
    async fn run(mut self) {
        while let Some(body) = self.request().await {
            if self.answer(&body).await.is_none() {
                return;
            }
        }
    }

    async fn request(&mut self) -> Option<Value> {
        let mut body = Vec::new();
        loop {
            match self.parser.next() {
                Some(Part::Head(_)) => {}
                Some(Part::Data(data)) => body.extend(data),
                Some(Part::End) => return serde_json::from_slice(&body).ok(),
                None => self.read().await?,
            }
        }
    }

    async fn read(&mut self) -> Option<()> {
        let mut bytes = [0; 4096];
        let read = self.pipe.read(&mut bytes).await.ok().filter(|read| *read > 0)?;
        self.parser.feed(&bytes[..read]);
        Some(())
    }

    /// Waits, unless the proxy closes the connection meanwhile.
    async fn wait(&mut self, time: Duration) -> Option<()> {
        let mut sleep = std::pin::pin!(clock::sleep(time));
        loop {
            tokio::select! {
                biased;
                read = self.read() => read?,
                () = &mut sleep => return Some(()),
            }
        }
    }

    async fn json(&mut self, message: &Value) -> Option<()> {
        let body = message.to_string();
        let head =
            format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n", body.len());
        self.pipe.write_all(format!("{head}{body}").as_bytes()).await.ok()
    }

    async fn event(&mut self, message: &Value) -> Option<()> {
        let event = format!("data: {message}\n\n");
        let chunk = format!("{:x}\r\n{event}\r\n", event.len());
        self.pipe.write_all(chunk.as_bytes()).await.ok()
    }

    async fn answer(&mut self, request: &Value) -> Option<()> {
        let id = &request["id"];
        if request["method"] == "server/discover" {
            let result =
                json!({"resultType": "complete", "supportedVersions": [VERSION], "capabilities": {"tools": {}}});
            return self.json(&json!({"jsonrpc": "2.0", "id": id, "result": result})).await;
        }
        let params = &request["params"];
        let key = params["arguments"]["key"].as_u64().expect("a key") as usize;
        let job = self.world.jobs[key].clone();
        let round = params["requestState"].as_str().map_or(0, |state| state.parse().expect("a round"));
        self.check_answers(&job, round, params);
        *self.world.runs.lock().unwrap().entry((key, round)).or_default() += 1;
        self.world.open.lock().unwrap().insert(key, round);
        let _running = Running(self.world.clone(), key);
        if job.is_sse {
            let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
            self.pipe.write_all(head.as_bytes()).await.ok()?;
        }
        for n in 1..=job.progress {
            self.wait(job.takes / (job.progress as u32 + 1)).await?;
            let params = json!({"progressToken": key, "progress": n});
            if job.is_sse {
                self.event(&json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})).await?;
            }
        }
        self.wait(job.takes / (job.progress as u32 + 1)).await?;
        let message = match job.rounds.get(round) {
            Some(questions) => {
                let asked: serde_json::Map<_, _> =
                    (0..*questions).map(|q| (format!("q{q}"), json!({"method": "roots/list", "params": {}}))).collect();
                let state = (round + 1).to_string();
                json!({"result": {"resultType": "input_required", "requestState": state, "inputRequests": asked}})
            }
            None if job.end == End::Dies => return None,
            None if job.end == End::Error => json!({"error": {"code": 7, "message": format!("failed {key}")}}),
            None => json!({"result": {"resultType": "complete", "content": [], "key": key}}),
        };
        let mut message = message;
        message["jsonrpc"] = "2.0".into();
        message["id"] = id.clone();
        match job.is_sse {
            true => {
                self.event(&message).await?;
                self.pipe.write_all(b"0\r\n\r\n").await.ok()
            }
            false => self.json(&message).await,
        }
    }

    /// Checks that each question of the round before has its own answer.
    fn check_answers(&self, job: &Job, round: usize, params: &Value) {
        let asked = if round == 0 { 0 } else { job.rounds[round - 1] };
        let expected: serde_json::Map<_, _> =
            (0..asked).map(|q| (format!("q{q}"), answer_to(job.key, round, q))).collect();
        let given = params["inputResponses"].as_object().cloned().unwrap_or_default();
        if given != expected {
            self.world.blame(format!("call {} got {given:?} for round {round}, not {expected:?}", job.key));
        }
    }
}

/// The answer to question `q` of a round of a call, of which the first is 1.
fn answer_to(key: usize, round: usize, q: usize) -> Value {
    json!({"roots": [], "of": [key, round, q]})
}

// ── a client ─────────────────────────────────────────────────────────────────────────────────────

struct Client {
    world: Arc<World>,
    dialer: Dialer,
    job: Job,
    polls: usize,
    /// Rounds of input before the handle.
    rounds_before: usize,
}

/// Response as far as it came.
#[derive(Default)]
struct Seen {
    message: Option<Value>,
    /// Last event ID.
    id: Option<String>,
    status: u16,
    is_cut: bool,
}

impl Client {
    async fn run(mut self) {
        if timeout(LONGEST, self.call()).await.is_err() {
            self.world.blame(format!("call {} never ended: {:?}", self.job.key, self.job));
        }
    }

    fn head(&self, method: &str, more: &str) -> String {
        let key = self.job.key;
        format!(
            "{method} /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer c{key}\r\nMCP-Protocol-Version: {VERSION}\r\n{more}"
        )
    }

    fn post(&self, id: &str, method: &str, mut params: Value, accepts_stream: bool) -> String {
        params["_meta"] = json!({
            "io.modelcontextprotocol/protocolVersion": VERSION,
            "io.modelcontextprotocol/clientCapabilities": {"extensions": {EXTENSION: {}}},
            "progressToken": self.job.key,
        });
        let body = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string();
        let accept = if accepts_stream { "application/json, text/event-stream" } else { "application/json" };
        let more = format!(
            "Accept: {accept}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        self.head("POST", &more)
    }

    /// Sends a request, and reads the response to its end, to a message, or to a cut.
    async fn exchange(&mut self, request: &str) -> Option<Seen> {
        let cut = self.job.rng.percent(self.job.cuts).then(|| self.job.rng.below(700));
        let Ok(mut pipe) = self.dialer.connect() else {
            if self.world.drains.is_none() {
                self.world.blame("the proxy is gone".to_owned());
            }
            return None;
        };
        pipe.write_all(request.as_bytes()).await.ok();
        let (mut parser, mut events, mut seen, mut body) =
            (Parser::default(), Events::default(), Seen::default(), Vec::new());
        let (mut is_sse, mut taken) = (false, 0);
        loop {
            let mut is_over = false;
            while let Some(part) = parser.next() {
                match part {
                    Part::Head(head) => {
                        seen.status = head.status();
                        is_sse = head.header("content-type") == Some("text/event-stream");
                    }
                    Part::Data(data) if is_sse => events.feed(&data),
                    Part::Data(data) => body.extend(data),
                    Part::End => is_over = true,
                }
            }
            while let Some(event) = events.next() {
                seen.id = event.id.or(seen.id);
                let message: Option<Value> = serde_json::from_str(&event.data).ok();
                // Progress is no answer.
                seen.message = message.filter(|message| message.get("id").is_some()).or(seen.message);
            }
            if is_over {
                seen.message = seen.message.or_else(|| serde_json::from_slice(&body).ok());
                return Some(seen);
            }
            let mut bytes = vec![0; cut.map_or(4096, |cut| cut - taken).clamp(1, 4096)];
            if cut.is_some_and(|cut| taken >= cut) {
                self.world.reach("a cut");
                seen.is_cut = true;
                return Some(seen);
            }
            match pipe.read(&mut bytes).await {
                Ok(read) if read > 0 => {
                    taken += read;
                    parser.feed(&bytes[..read]);
                }
                Ok(_) | Err(_) => {
                    seen.is_cut = true;
                    return Some(seen);
                }
            }
        }
    }

    /// Sends a request until its answer is there: resumed by its event ID after a cut. `None` if it
    /// is lost, as without an ID.
    async fn ask(&mut self, request: String) -> Option<Value> {
        let mut seen = self.exchange(&request).await?;
        loop {
            if let Some(message) = seen.message {
                return Some(message);
            }
            let id = seen.id.clone().filter(|_| seen.is_cut)?;
            clock::sleep(self.job.rng.millis(400)).await;
            let get = self.head("GET", &format!("Accept: text/event-stream\r\nLast-Event-ID: {id}\r\n\r\n"));
            seen = self.exchange(&get).await?;
            self.world.reach("a resume");
            seen.id = seen.id.or(Some(id));
        }
    }

    async fn call(&mut self) {
        let key = self.job.key;
        let (mut round, mut params) = (0, json!({"name": "slow", "arguments": {"key": key}}));
        loop {
            let request = self.post(&format!("call-{key}-{round}"), "tools/call", params.clone(), true);
            let Some(message) = self.ask(request).await else {
                self.world.reach("a call that was lost before its first ID");
                return;
            };
            let result = &message["result"];
            match result["resultType"].as_str() {
                Some("task") => {
                    self.world.reach("a task");
                    let task = result["taskId"].as_str().expect("an ID").to_owned();
                    self.rounds_before = round;
                    return self.follow(&task).await;
                }
                Some("input_required") => {
                    self.world.reach("a round before the handle");
                    round += 1;
                    let questions = result["inputRequests"].as_object().cloned().unwrap_or_default();
                    let answers: serde_json::Map<_, _> =
                        (0..questions.len()).map(|q| (format!("q{q}"), answer_to(key, round, q))).collect();
                    params["requestState"] = result["requestState"].clone();
                    params["inputResponses"] = answers.into();
                }
                _ => return self.check_end(&message, "the call"),
            }
        }
    }

    /// Checks the end of the call, as a response with its result or its error.
    fn check_end(&self, message: &Value, whose: &str) {
        let key = self.job.key;
        let is_right = match self.job.end {
            End::Result => message["result"]["key"] == key,
            End::Error => message["error"]["code"] == 7,
            End::Dies => message["error"]["code"] == -32010,
        };
        let is_drained = self.world.drains.is_some() && message["error"]["code"] == -32011;
        if !is_right && !is_drained {
            self.world.blame(format!("{whose} of {key} ended with {message}"));
        }
    }

    async fn poll(&mut self, task: &str) -> Option<Value> {
        self.polls += 1;
        let takes_stream = self.job.rng.percent(70);
        let request = self.post(&format!("poll-{}", self.polls), "tasks/get", json!({"taskId": task}), takes_stream);
        self.ask(request).await
    }

    async fn follow(&mut self, task: &str) {
        let key = self.job.key;
        // The acknowledgement may be cut.
        let (mut has_asked, mut is_cancelled) = (false, false);
        let mut ended: Option<Value> = None;
        let mut visits = 0;
        while visits < 3 {
            if self.job.leaves.is_some_and(|polls| self.polls >= polls) && ended.is_none() {
                return self.world.reach("a client that left");
            }
            if self.job.cancels.is_some_and(|polls| self.polls >= polls) && !is_cancelled && ended.is_none() {
                let request = self.post("cancel", "tasks/cancel", json!({"taskId": task}), false);
                has_asked = true;
                is_cancelled = self.ask(request).await.is_some_and(|message| message.get("result").is_some());
                self.world.reach("a cancel");
            }
            let Some(message) = self.poll(task).await else {
                if self.world.drains.is_some() {
                    return;
                }
                continue;
            };
            let result = &message["result"];
            let status = result["status"].as_str().unwrap_or_default().to_owned();
            if let Some(ended) = &ended {
                visits += 1;
                if ended["status"] != result["status"] || ended["result"] != result["result"] {
                    self.world.blame(format!("the task of {key} was {ended}, and is {result}"));
                }
                continue;
            }
            match status.as_str() {
                "working" | "input_required" if is_cancelled => {
                    return self.world.blame(format!("the task of {key} is {status} after its cancel"));
                }
                "working" => {
                    let interval = result["pollIntervalMs"].as_u64().expect("an interval");
                    clock::sleep(Duration::from_millis(interval * self.job.rng.below(3) as u64 / 2)).await;
                }
                "input_required" => self.answer(task, &result["inputRequests"]).await,
                "cancelled" if has_asked => ended = Some(result.clone()),
                "completed" | "failed" => {
                    let as_response = json!({"result": result["result"], "error": result["error"]});
                    self.check_end(&as_response, "the task");
                    self.world.reach(if status == "failed" { "a task that failed" } else { "a task that completed" });
                    ended = Some(result.clone());
                }
                _ if self.world.drains.is_some() => return,
                _ => return self.world.blame(format!("the task of {key}: {message}")),
            }
        }
    }

    /// Answers some of the questions, or all.
    async fn answer(&mut self, task: &str, requests: &Value) {
        let keys: Vec<String> = requests.as_object().into_iter().flatten().map(|(key, _)| key.clone()).collect();
        let some = 1 + self.job.rng.below(keys.len().max(1));
        let answers: serde_json::Map<_, _> = keys
            .iter()
            .take(some)
            .map(|name| {
                let (round, question) = name.split_once("-q").expect("a key");
                // Rounds before the handle have no number in the task.
                let round = self.rounds_before + round.parse::<usize>().expect("a round");
                (name.clone(), answer_to(self.job.key, round, question.parse().expect("a question")))
            })
            .collect();
        let params = json!({"taskId": task, "inputResponses": answers});
        let request = self.post("update", "tasks/update", params, false);
        self.ask(request).await;
        self.world.reach("an update");
    }
}

// ── the tests ────────────────────────────────────────────────────────────────────────────────────

/// Seeds of an ordinary test run.
const SEEDS: u64 = 600;

#[test]
fn no_seed_shows_a_task_that_is_lost_run_twice_or_changed() {
    let from = super::number("SIM_FROM").unwrap_or(0);
    let seeds = super::number("SIM_SEEDS").unwrap_or(SEEDS);
    let faults = super::survey(from, from + seeds, 5, |seed| simulate(seed, None).blames.into_iter().next());
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
fn the_seeds_reach_every_kind_of_task() {
    let wanted = [
        "a cut",
        "a resume",
        "a task",
        "a round before the handle",
        "a client that left",
        "a cancel",
        "an update",
        "a task that failed",
        "a task that completed",
        "a call that was lost before its first ID",
    ];
    let reached = Mutex::new(std::collections::BTreeSet::new());
    let missing = || wanted.iter().filter(|wanted| !reached.lock().unwrap().contains(*wanted)).collect::<Vec<_>>();
    super::survey(0, SEEDS, 1, |seed| {
        reached.lock().unwrap().extend(simulate(seed, None).reached);
        missing().is_empty().then_some(())
    });
    assert!(missing().is_empty(), "not reached: {:?}", missing());
}

/// Returns true if one of so many seeds shows the bug.
fn finds(bug: Bug, seeds: u64) -> bool {
    !super::survey(0, seeds, 1, |seed| simulate(seed, Some(bug)).blames.into_iter().next()).is_empty()
}

#[test]
fn a_cancel_that_changes_nothing_is_found() {
    assert!(finds(Bug::ForgetsTheCancel, 200));
}

#[test]
fn a_call_that_goes_on_twice_is_found() {
    assert!(finds(Bug::GoesOnTwice, 200));
}

#[test]
fn a_call_that_runs_on_for_no_client_is_found() {
    assert!(finds(Bug::NeverAbandonsTasks, 400));
}
