//! Clients that give every request the same ID: each gets the response of its own call.

use serde_json::json;

use crate::support::http_versions::{HttpVersion, TestClient, listen_tls};
use crate::support::pki::Pki;
use crate::support::*;

/// ID of every request.
const ID: u64 = 1;

fn request(method: &str, params: serde_json::Value) -> String {
    json!({"jsonrpc": "2.0", "id": ID, "method": method, "params": params}).to_string()
}

fn add() -> String {
    request("tools/call", json!({"name": "add", "arguments": {}}))
}

fn outcome(run: u64) -> String {
    json!({"jsonrpc": "2.0", "id": ID, "result": {"run": run}}).to_string()
}

/// A server and a session whose `initialize` had the ID of all later requests.
async fn open() -> (Upstream, Proxy, Session) {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |_| {}).await;
    let session = open_in(&proxy, &mut upstream, "mcp-session-id: s-1\r\n").await;
    (upstream, proxy, session)
}

async fn open_in(proxy: &Proxy, upstream: &mut Upstream, head: &str) -> Session {
    let session = Session::opened_elsewhere(V2025_11, "s-1", None);
    let body = initialize(V2025_11).replace("\"id\":0", "\"id\":1");
    let pending = Request::post(body).start(proxy.addr).await;
    let answer = json!({"jsonrpc": "2.0", "id": ID, "result": {"protocolVersion": V2025_11,
        "capabilities": {"tools": {}}, "serverInfo": {"name": "scripted", "version": "1"}}});
    upstream.expect("initialize").await.json_with(200, head, answer.to_string()).await;
    assert_eq!(pending.response().await.json().await, answer);
    session
}

/// Answers the next request of the server.
async fn answer(upstream: &mut Upstream, form: Form, run: u64) {
    form.answer(upstream.next().await, outcome(run)).await;
}

/// Reads a whole response, and returns the run that it names.
pub(crate) async fn run_of(response: &mut Response) -> u64 {
    let message = if response.is_sse() {
        let (events, end) = response.events().await;
        assert_eq!((events.len(), end), (1, End::Complete));
        events[0].json()
    } else {
        response.json().await
    };
    message["result"]["run"].as_u64().unwrap_or_else(|| panic!("no run: {message}"))
}

#[tokio::test]
async fn each_call_gets_its_own_response_over_pools_of_any_size() {
    let lists = ["tools/list", "prompts/list", "resources/list"].map(|method| request(method, json!({})));
    let others = ["a", "b"].map(|name| request("tools/call", json!({"name": name, "arguments": {}})));
    let prompt = request("prompts/get", json!({"name": "p"}));
    let bodies = |n: usize| -> String {
        match n {
            3 => lists[0].clone(),
            6 => prompt.clone(),
            8 => others[0].clone(),
            9 => others[1].clone(),
            11 | 12 => lists[n - 10].clone(),
            13 => lists[1].clone(),
            _ => add(),
        }
    };
    for form in FORMS {
        // A pool of none closes each connection after its response.
        for pool in [0, 1, 2, 4] {
            let (mut upstream, proxy, session) = open().await;
            let mut idle: Vec<Option<Client>> = (0..pool).map(|_| None).collect();
            for n in 0..16 {
                let post = session.post(bodies(n));
                let kept = if pool == 0 { None } else { idle[n % pool].take() };
                let client = match kept {
                    Some(mut client) => {
                        client.send(&post.bytes(proxy.addr)).await;
                        client
                    }
                    None => post.start(proxy.addr).await,
                };
                answer(&mut upstream, form, n as u64).await;
                let mut response = client.response().await;
                assert_eq!(run_of(&mut response).await, n as u64, "{form:?}, pool of {pool}");
                if pool == 0 {
                    response.fin();
                } else {
                    idle[n % pool] = Some(response.into_client());
                }
            }
            assert!(upstream.is_quiet());
        }
    }
}

#[tokio::test]
async fn equal_calls_at_once_run_each_and_are_answered_in_any_order() {
    for form in FORMS {
        for first in [0, 1] {
            let (mut upstream, proxy, session) = open().await;
            let post = session.post(add());
            let mut clients = Vec::new();
            let mut calls = Vec::new();
            for _ in 0..2 {
                clients.push(post.start(proxy.addr).await);
                calls.push(upstream.expect("tools/call").await);
            }
            let (mut clients, mut calls) = (clients.into_iter().map(Some), calls.into_iter().map(Some));
            let (mut clients, mut calls): (Vec<_>, Vec<_>) = (clients.by_ref().collect(), calls.by_ref().collect());
            for n in [first, 1 - first] {
                let call = calls[n].take().unwrap();
                form.answer(call, outcome(n as u64)).await;
                let mut response = clients[n].take().unwrap().response().await;
                assert_eq!(run_of(&mut response).await, n as u64, "{form:?}, {first} first");
            }
            assert!(upstream.is_quiet());
        }
    }
}

#[tokio::test]
async fn a_call_is_joined_after_its_connection_broke() {
    for form in FORMS {
        let (mut upstream, proxy, session) = open().await;
        let post = session.post(add());

        // Before the head, after an earlier call has shown the use of IDs.
        let client = post.start(proxy.addr).await;
        let call = upstream.expect("tools/call").await;
        client.reset();
        settle(&proxy, &mut upstream).await;
        let pending = post.start(proxy.addr).await;
        settle(&proxy, &mut upstream).await;
        form.answer(call, outcome(1)).await;
        let mut response = pending.response().await;
        assert_eq!(run_of(&mut response).await, 1, "{form:?}, before the head");
        drop(response);

        // While the response arrives.
        let client = post.start(proxy.addr).await.stop_after(10);
        answer(&mut upstream, form, 2).await;
        assert!(client.try_response().await.is_err());
        settle(&proxy, &mut upstream).await;
        let mut response = post.send(proxy.addr).await;
        assert_eq!(run_of(&mut response).await, 2, "{form:?}, in the response");
        assert!(upstream.is_quiet());
        response.fin();

        // The next one runs.
        let pending = post.start(proxy.addr).await;
        answer(&mut upstream, form, 3).await;
        assert_eq!(run_of(&mut pending.response().await).await, 3, "{form:?}");
    }
}

#[tokio::test]
async fn a_retry_that_comes_before_the_end_of_its_connection_is_joined() {
    let (mut upstream, proxy, session) = open().await;
    let post = session.post(add());
    let (sse, mut response) = begin(&proxy, &mut upstream, &post).await;
    let place = EventId::of(response.prime().await.id());
    let pending = post.start(proxy.addr).await;
    response.reset();
    let mut again = pending.response().await.sse();
    assert_eq!(EventId::of(again.prime().await.id()).handle, place.handle);
    sse.finish(outcome(1)).await;
    assert_eq!(run_of(&mut again).await, 1);
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn of_equal_calls_the_one_that_was_cut_is_joined() {
    for cut in [0, 1] {
        let (mut upstream, proxy, session) = open().await;
        let post = session.post(add());
        let mut calls = Vec::new();
        for _ in 0..2 {
            let (sse, mut response) = begin(&proxy, &mut upstream, &post).await;
            let place = EventId::of(response.prime().await.id());
            calls.push((sse, Some(response), place));
        }
        calls[cut].1.take().unwrap().reset();
        settle(&proxy, &mut upstream).await;
        let mut again = post.send(proxy.addr).await.sse();
        assert_eq!(EventId::of(again.prime().await.id()).handle, calls[cut].2.handle, "call {cut}");
        for (n, (sse, response, _)) in calls.into_iter().enumerate() {
            sse.finish(outcome(n as u64)).await;
            let response = if n == cut { &mut again } else { &mut response.unwrap() };
            assert_eq!(run_of(response).await, n as u64);
        }
        assert!(upstream.is_quiet());
    }
}

#[tokio::test]
async fn a_cut_call_that_has_ended_long_ago_is_not_joined() {
    for form in FORMS {
        let (mut upstream, proxy, session) = open().await;
        let post = session.post(add());
        let client = post.start(proxy.addr).await;
        let call = upstream.expect("tools/call").await;
        client.reset();
        settle(&proxy, &mut upstream).await;
        form.answer(call, outcome(1)).await;
        settle(&proxy, &mut upstream).await;
        pass(std::time::Duration::from_millis(2100)).await;
        let pending = post.start(proxy.addr).await;
        answer(&mut upstream, form, 2).await;
        assert_eq!(run_of(&mut pending.response().await).await, 2, "{form:?}");
    }
}

#[tokio::test]
async fn clients_that_reset_each_connection_get_the_response_of_an_earlier_call_for_two_seconds_at_most() {
    for form in FORMS {
        let (mut upstream, proxy, session) = open().await;
        let post = session.post(add());
        let pending = post.start(proxy.addr).await;
        answer(&mut upstream, form, 1).await;
        let mut response = pending.response().await;
        assert_eq!(run_of(&mut response).await, 1);
        response.reset();
        settle(&proxy, &mut upstream).await;
        // A cut at the last byte looks so.
        pass(std::time::Duration::from_millis(1500)).await;
        let mut response = post.send(proxy.addr).await;
        assert_eq!(run_of(&mut response).await, 1, "{form:?}");
        response.reset();
        settle(&proxy, &mut upstream).await;
        // The retry has not begun the time anew.
        pass(std::time::Duration::from_millis(1500)).await;
        let pending = post.start(proxy.addr).await;
        answer(&mut upstream, form, 2).await;
        assert_eq!(run_of(&mut pending.response().await).await, 2, "{form:?}");
    }
}

#[tokio::test]
async fn each_call_gets_its_own_response_over_every_version_of_http() {
    let pki = Pki::new();
    for version in HttpVersion::ALL {
        for form in FORMS {
            let mut upstream = Upstream::start().await;
            let proxy = Proxy::start(&upstream, |config| {
                if version.is_tls() {
                    config.listen.tls = Some(listen_tls(pki.pair()));
                }
            })
            .await;
            let headers = [
                ("mcp-session-id", "s-1"),
                ("mcp-protocol-version", V2025_11),
                ("content-type", "application/json"),
                ("accept", "application/json, text/event-stream"),
            ];
            let mut kept = None;
            for run in 0..6_u64 {
                // The first shows the use of IDs. A connection that is dropped says no good-bye, in
                // TLS neither.
                let body = if run == 0 { request("tools/list", json!({})) } else { add() };
                let mut client = match kept.take() {
                    Some(client) => client,
                    None => TestClient::connect(proxy.addr, version, &pki).await,
                };
                let pending = client.send("POST", &headers, body);
                answer(&mut upstream, form, run).await;
                let mut response = pending.head().await;
                let message = match form {
                    Form::Json => response.body().await,
                    Form::Events => response.events().await.remove(0),
                };
                let message: serde_json::Value = serde_json::from_slice(&message).unwrap();
                assert_eq!(message["result"]["run"], run, "{version:?}, {form:?}");
                kept = (run % 3 == 2).then_some(client);
            }
        }
    }
}

#[tokio::test]
async fn an_id_that_comes_again_shows_the_client_s_habit() {
    // The `initialize` had another ID: the second request tells.
    let (mut upstream, proxy, session) = setup().await;
    for (run, body) in [request("tools/list", json!({})), add(), add(), add()].into_iter().enumerate() {
        let pending = session.post(body).start(proxy.addr).await;
        answer(&mut upstream, Form::Json, run as u64).await;
        let mut response = pending.response().await;
        assert_eq!(run_of(&mut response).await, run as u64);
        // Open, as in a pool.
        std::mem::forget(response);
    }
}

#[tokio::test]
async fn a_server_without_sessions_runs_each_call() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |_| {}).await;
    open_in(&proxy, &mut upstream, "").await;
    let post = Request::post(add()).with("MCP-Protocol-Version", V2025_11);
    for run in 0..4 {
        let pending = post.start(proxy.addr).await;
        answer(&mut upstream, FORMS[run % 2], run as u64).await;
        let mut response = pending.response().await;
        assert_eq!(run_of(&mut response).await, run as u64);
        std::mem::forget(response);
    }
}

#[tokio::test]
async fn a_client_that_counts_is_joined_while_its_connection_is_open() {
    let (mut upstream, proxy, session) = setup().await;
    let pending = session.post(add()).start(proxy.addr).await;
    answer(&mut upstream, Form::Json, 1).await;
    let mut first = pending.response().await;
    assert_eq!(run_of(&mut first).await, 1);
    assert_eq!(run_of(&mut session.post(add()).send(proxy.addr).await).await, 1, "a half-open connection looks open");
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn a_response_is_delivered_once_its_client_has_closed_the_connection() {
    for form in FORMS {
        let (mut upstream, proxy, session) = setup().await;
        for run in 0..3 {
            let pending = session.post(add()).start(proxy.addr).await;
            answer(&mut upstream, form, run).await;
            let mut response = pending.response().await;
            assert_eq!(run_of(&mut response).await, run, "{form:?}");
            response.fin();
            settle(&proxy, &mut upstream).await;
        }
    }
}

/// A call as its client means it.
struct Meant {
    body: String,
    /// Connection of the client's last attempt, or `None` once that has ended.
    client: Option<Client>,
    /// Request at the server, until it is answered.
    call: Option<Call>,
    run: u64,
}

/// A client, a server and their calls, in random order. The client knows of each POST whether it is
/// a new call or a retry.
struct World {
    seed: u64,
    upstream: Upstream,
    proxy: Proxy,
    session: Session,
    /// True for a client that gives each request the same ID.
    has_one_id: bool,
    runs: u64,
    /// Calls without a response.
    waiting: Vec<Meant>,
    /// Connections that carried a response, and are open.
    idle: Vec<Client>,
}

impl World {
    async fn new(seed: u64) -> World {
        let has_one_id = seed.is_multiple_of(2);
        let (upstream, proxy, session) = if has_one_id { open().await } else { setup().await };
        let (waiting, idle) = (Vec::new(), Vec::new());
        World { seed: seed + 1, upstream, proxy, session, has_one_id, runs: 0, waiting, idle }
    }

    fn pick(&mut self, below: usize) -> usize {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.seed >> 33) as usize % below
    }

    /// Sends a POST on a new connection, or on one that is idle.
    async fn post(&mut self, body: &str) -> Client {
        let post = self.session.post(body);
        let idle = self.idle.len();
        match self.pick(2) {
            1 if idle > 0 => {
                let at = self.pick(idle);
                let mut client = self.idle.swap_remove(at);
                client.send(&post.bytes(self.proxy.addr)).await;
                client
            }
            _ => post.start(self.proxy.addr).await,
        }
    }

    async fn begin(&mut self) {
        let id = if self.has_one_id { ID } else { self.runs + 10 };
        let tool = ["a", "b"][self.pick(2)];
        let params = json!({"name": tool, "arguments": {}});
        let body = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}).to_string();
        let client = self.post(&body).await;
        let mut arriving = std::pin::pin!(self.upstream.expect("tools/call"));
        let call = loop {
            tokio::select! {
                biased;
                call = &mut arriving => break call,
                () = tokio::task::yield_now() => {}
            }
            // An equal call may be attached: the proxy waits a moment for the end of its
            // connection.
            pass(SOON / 10).await;
        };
        self.runs += 1;
        self.waiting.push(Meant { body, client: Some(client), call: Some(call), run: self.runs });
    }

    /// The server answers a call. A client that is connected reads the response.
    async fn answer(&mut self, at: usize) {
        let form = FORMS[self.pick(2)];
        let meant = &mut self.waiting[at];
        let Some(call) = meant.call.take() else { return };
        let id = serde_json::from_str::<serde_json::Value>(&meant.body).unwrap()["id"].clone();
        let message = json!({"jsonrpc": "2.0", "id": id, "result": {"run": meant.run}}).to_string();
        match form {
            Form::Json => call.json(200, message).await,
            Form::Events => call.sse().await.finish(message).await,
        }
        settle(&self.proxy, &mut self.upstream).await;
        if self.waiting[at].client.is_some() {
            self.read(at).await;
        }
    }

    async fn read(&mut self, at: usize) {
        let Meant { client, run, .. } = self.waiting.swap_remove(at);
        let mut response = client.expect("a connected client").response().await;
        assert_eq!(run_of(&mut response).await, run);
        match self.pick(3) {
            0 => response.fin(),
            1 | 2 => self.idle.push(response.into_client()),
            _ => unreachable!("three"),
        }
    }

    /// Breaks the connection of a call, before or in the middle of its response, and sends the same
    /// bytes again.
    async fn retry(&mut self, at: usize) {
        let client = self.waiting[at].client.take().expect("a connected client");
        let is_late = self.pick(2) == 0;
        if is_late {
            let client = client.stop_after(1);
            self.answer(at).await;
            assert!(client.try_response().await.is_err());
        } else {
            client.reset();
        }
        settle(&self.proxy, &mut self.upstream).await;
        let body = self.waiting[at].body.clone();
        let client = self.post(&body).await;
        settle(&self.proxy, &mut self.upstream).await;
        self.waiting[at].client = Some(client);
        if is_late {
            self.read(at).await;
        }
    }

    async fn step(&mut self) {
        let waiting = self.waiting.len();
        match self.pick(8) {
            0..=2 if waiting < 4 => self.begin().await,
            3 | 4 if waiting > 0 => {
                let at = self.pick(waiting);
                self.answer(at).await;
            }
            5 | 6 if waiting > 0 => {
                let at = self.pick(waiting);
                self.retry(at).await;
            }
            7 => pass(std::time::Duration::from_millis(2100)).await,
            _ => {}
        }
        assert!(self.upstream.is_quiet(), "a retry ran");
    }
}

#[tokio::test]
async fn each_post_is_what_its_client_means() {
    for seed in 0..40 {
        let mut world = World::new(seed).await;
        let steps = async {
            for _ in 0..30 {
                world.step().await;
            }
            while !world.waiting.is_empty() {
                world.answer(0).await;
            }
        };
        assert!(tokio::time::timeout(LIMIT * 60, steps).await.is_ok(), "seed {seed}");
    }
}
