//! Replicas that share a store, from their clients to the server behind them, over pipes on a
//! paused clock.

mod waits;
mod writes;

use std::future::pending;
use std::io;

use http::Uri;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::*;
use crate::clock;
use crate::config::OnUnreachable;
use crate::event_log::{Backing, Identity};
use crate::protocol::ids::{Keyring, Owner, StoreEpoch};
use crate::store::test_store::TestStore;
use crate::upstream::{DialFuture, Wire};

const LEASE: Duration = Duration::from_secs(15);
/// Timeout of a read that must succeed.
const LONG: Duration = Duration::from_secs(24 * 3600);
const PIPE: usize = 1024 * 1024;

const RESULT: &str = r#"{"jsonrpc":"2.0","id":1,"result":{"content":[]}}"#;
const PROGRESS: &str = r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"n":1}}"#;

/// The server behind all replicas. The test responds to its calls.
struct Farm {
    dial: mpsc::UnboundedSender<DuplexStream>,
    calls: mpsc::UnboundedReceiver<DuplexStream>,
}

impl Farm {
    fn new() -> Self {
        let (dial, calls) = mpsc::unbounded_channel();
        Self { dial, calls }
    }

    /// Waits for the next call.
    async fn call(&mut self) -> Pipe {
        let mut pipe = Pipe::new(timeout(LONG, self.calls.recv()).await.expect("a call").expect("replicas"));
        pipe.until("tools/call").await;
        pipe
    }

    /// Returns true if every call was taken by the test.
    fn is_quiet(&mut self) -> bool {
        self.calls.try_recv().is_err()
    }
}

struct ToFarm(Option<mpsc::UnboundedSender<DuplexStream>>);

impl Dial for ToFarm {
    fn dial(&self, _: &Uri) -> DialFuture {
        let (near, far) = duplex(PIPE);
        let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
        let sent = self.0.as_ref().ok_or_else(refused).and_then(|farm| farm.send(far).map_err(|_| refused()));
        Box::pin(async move { sent.map(|()| Box::new(near) as Box<dyn Wire>) })
    }
}

struct Listener(mpsc::UnboundedReceiver<DuplexStream>);

impl Accept for Listener {
    type Io = DuplexStream;

    async fn accept(&mut self) -> io::Result<(DuplexStream, SocketAddr)> {
        match self.0.recv().await {
            Some(pipe) => Ok((pipe, SocketAddr::from(([192, 0, 2, 1], 4000)))),
            None => pending().await,
        }
    }
}

/// One end of a connection, and all bytes that arrived on it.
struct Pipe {
    io: DuplexStream,
    seen: String,
}

impl Pipe {
    fn new(io: DuplexStream) -> Self {
        Self { io, seen: String::new() }
    }

    async fn more(&mut self) -> bool {
        let mut bytes = [0; 4096];
        let read = timeout(LONG, self.io.read(&mut bytes)).await.expect("more, or the end");
        let read = read.unwrap_or_default();
        self.seen.push_str(std::str::from_utf8(&bytes[..read]).unwrap());
        read > 0
    }

    async fn until(&mut self, text: &str) {
        while !self.seen.contains(text) {
            assert!(self.more().await, "{text} is not in {}", self.seen);
        }
    }

    /// Reads a response up to `text`, and returns all that was read.
    async fn answer(mut self, text: &str) -> String {
        self.until(text).await;
        self.seen
    }

    async fn write(&mut self, text: &str) {
        self.io.write_all(text.as_bytes()).await.unwrap();
    }

    async fn json(mut self, text: &str) {
        let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\nX-Custom: 1\r\n";
        self.write(&format!("{head}Content-Length: {}\r\n\r\n{text}", text.len())).await;
    }

    async fn begin_sse(&mut self) {
        self.write("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n").await;
    }

    async fn event(&mut self, data: &str) {
        self.write(&format!("data: {data}\n\n")).await;
    }
}

/// Returns a POST of one tool call, in a session.
fn post(id: u64, extra: &str) -> String {
    let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"t"}}}}"#);
    post_of(&body, extra)
}

fn post_of(body: &str, extra: &str) -> String {
    let length = body.len();
    format!(
        "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nAccept: application/json, \
         text/event-stream\r\nMCP-Protocol-Version: 2025-06-18\r\nMcp-Session-Id: s\r\nContent-Length: {length}\r\n\
         {extra}\r\n{body}"
    )
}

/// Returns a call with a key of a client that takes no stream: only the server begins the response.
fn json_only(id: u64) -> String {
    let request = post(id, &key_of(id)).replace("application/json, text/event-stream", "application/json");
    assert!(!request.contains("event-stream"));
    request
}

const KEY: &str = "Idempotency-Key: k\r\n";
/// Error message for a call whose replica died.
const OWNER_DIED: &str = "the proxy that ran the call has died";

/// Returns a header with a key of this call alone.
fn key_of(id: u64) -> String {
    format!("Idempotency-Key: k-{id}\r\n")
}

struct Replica {
    connect: mpsc::UnboundedSender<DuplexStream>,
    components: Components,
    tasks: Vec<JoinHandle<()>>,
}

impl Replica {
    async fn of(store: &TestStore, owner: u32, farm: &Farm) -> Self {
        Self::with(store, owner, Some(farm.dial.clone()), OnUnreachable::Degrade).await
    }

    async fn with(
        store: &TestStore,
        owner: u32,
        farm: Option<mpsc::UnboundedSender<DuplexStream>>,
        on_unreachable: OnUnreachable,
    ) -> Self {
        Self::by(store, owner, Arc::new(ToFarm(farm)), on_unreachable).await
    }

    async fn by(store: &TestStore, owner: u32, dialer: Arc<dyn Dial>, on_unreachable: OnUnreachable) -> Self {
        let mut config = Config::for_upstream("http://upstream.test:9/mcp").unwrap();
        config.replica.lease = LEASE;
        let store = Arc::new(store.as_of(Owner(owner)));
        let metrics = Metrics::new().unwrap();
        let backing = Backing {
            store: store.clone(),
            coordination: Some(store),
            on_unreachable,
            lease_health: Arc::default(),
            generation: Arc::default(),
            displacing: Arc::default(),
            released: Arc::default(),
            metrics: metrics.ingress.event_log.clone(),
        };
        let keys = Keyring::new([7; 32], Vec::new());
        let identity = Identity { owner: Owner(owner), epoch: StoreEpoch(1), keys };
        let setup = StoreSetup { identity, principal_key: [8; 32], backing: Some(backing) };
        let server = McpServer::with_dialer(config.upstream.clone(), dialer).unwrap();
        let components = recover(compose(config, setup, &metrics, server, None).unwrap()).await.unwrap();
        let (connect, connections) = mpsc::unbounded_channel();
        let config = data_listener(&components, None);
        let (log, replicas) = (components.log.clone(), components.replicas.clone().unwrap());
        let shared = Arc::new(components.clone());
        let handle = move |message| ingress::handle_forwarded(shared.clone(), message);
        let tasks = vec![
            tokio::spawn(serve_data(Listener(connections), components.clone(), config, pending())),
            tokio::spawn(async move {
                tokio::join!(
                    log.retention().sweep(),
                    log.restoration().keep_open(),
                    log.claims().keep(),
                    log.stored_sessions().keep_registrations(),
                    log.homes().keep_saved()
                );
            }),
            tokio::spawn(async move { replicas.run(handle).await }),
        ];
        Self { connect, components, tasks }
    }

    async fn send(&self, request: &str) -> Pipe {
        let (near, far) = duplex(PIPE);
        self.connect.send(far).unwrap();
        let mut pipe = Pipe::new(near);
        pipe.write(request).await;
        pipe
    }

    /// Aborts all tasks of the replica.
    fn kill(&self) {
        for task in &self.tasks {
            task.abort();
        }
    }

    /// Ends the replica in order.
    async fn leave(self) {
        self.kill();
        self.components.replicas.as_ref().unwrap().leave().await;
    }
}

/// Starts two replicas, and the server behind them.
async fn pair() -> (TestStore, Farm, Replica, Replica) {
    let (store, farm) = (TestStore::default(), Farm::new());
    let (one, two) = (Replica::of(&store, 1, &farm).await, Replica::of(&store, 2, &farm).await);
    (store, farm, one, two)
}

/// Lets all tasks come to rest, for less than a second.
async fn settle() {
    tokio::time::sleep(Duration::from_millis(700)).await;
}

#[tokio::test(start_paused = true)]
async fn a_running_stream_can_be_resumed_at_another_replica() {
    let (_store, mut farm, one, two) = pair().await;
    let mut client = one.send(&post(1, KEY)).await;
    let mut call = farm.call().await;
    call.begin_sse().await;
    call.event(PROGRESS).await;
    client.until(PROGRESS).await;
    drop(client);
    let mut again = two.send(&post(1, KEY)).await;
    again.until(PROGRESS).await;
    call.event(RESULT).await;
    drop(call);
    again.until(RESULT).await;
    let seen = again.answer("\r\n0\r\n\r\n").await;
    assert_eq!(seen.matches(PROGRESS).count(), 1, "{seen}");
    for at in [&two, &one] {
        let seen = at.send(&post(1, KEY)).await.answer(RESULT).await;
        assert_eq!(seen.matches(PROGRESS).count(), 1, "{seen}");
    }
    assert!(farm.is_quiet(), "the tool ran once");
}

#[tokio::test(start_paused = true)]
async fn a_call_without_a_key_is_retried_at_its_replica_and_new_at_another() {
    let (store, mut farm, one, two) = pair().await;
    for is_stream in [false, true] {
        let request = post(1 + u64::from(is_stream), "");
        let mut client = one.send(&request).await;
        let mut call = farm.call().await;
        if is_stream {
            call.begin_sse().await;
            call.event(PROGRESS).await;
            client.until(PROGRESS).await;
        }
        drop(client);
        settle().await;
        let again = one.send(&request).await;
        settle().await;
        assert!(farm.is_quiet(), "it runs at this replica");
        let elsewhere = two.send(&request).await;
        farm.call().await.json("{\"new\":1}").await;
        elsewhere.answer("{\"new\":1}").await;
        if is_stream {
            call.event(RESULT).await;
        } else {
            call.json(RESULT).await;
        }
        again.answer(RESULT).await;
        assert!(farm.is_quiet());
    }
    assert!(store.records().iter().all(|key| !key.starts_with(b"run\0")), "no call was claimed");
}

#[tokio::test(start_paused = true)]
async fn a_restarted_replica_knows_a_call_by_its_key_alone() {
    let (store, mut farm, one, two) = pair().await;
    let clients = [one.send(&post(1, "")).await, one.send(&post(2, KEY)).await];
    let _calls = [farm.call().await, farm.call().await];
    settle().await;
    one.kill();
    drop(clients);
    let one = Replica::of(&store, 1, &farm).await;
    for at in [&one, &two] {
        let seen = at.send(&post(2, KEY)).await.answer(OWNER_DIED).await;
        assert!(seen.starts_with("HTTP/1.1 504") && seen.contains("\"mayHaveRun\":true"), "{seen}");
    }
    assert!(farm.is_quiet());
    let again = one.send(&post(1, "")).await;
    farm.call().await.json("{\"new\":1}").await;
    again.answer("{\"new\":1}").await;
}

#[tokio::test(start_paused = true)]
async fn a_retry_at_another_replica_waits_for_a_call_without_a_response() {
    let (_store, mut farm, one, two) = pair().await;
    let client = one.send(&post(1, KEY)).await;
    let call = farm.call().await;
    drop(client);
    let again = two.send(&post(1, KEY)).await;
    // Longer than the interval of inquiries at the owner.
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(farm.is_quiet());
    call.json(RESULT).await;
    let seen = again.answer(RESULT).await;
    assert!(seen.starts_with("HTTP/1.1 200 OK") && seen.to_lowercase().contains("x-custom: 1"), "{seen}");
    settle().await;
    assert!(farm.is_quiet(), "the tool ran once");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_takes_no_stream_gets_the_result_of_a_stream_elsewhere() {
    let (_store, mut farm, one, two) = pair().await;
    let json_only = json_only(1);
    let client = one.send(&json_only).await;
    let mut call = farm.call().await;
    call.begin_sse().await;
    settle().await;
    drop(client);
    let again = two.send(&json_only).await;
    settle().await;
    call.event(RESULT).await;
    let seen = again.answer(RESULT).await;
    assert!(seen.to_lowercase().contains("content-type: application/json"), "{seen}");
    assert!(farm.is_quiet(), "the tool ran once");
}

#[tokio::test(start_paused = true)]
async fn an_undelivered_response_is_served_at_another_replica() {
    let (_store, mut farm, one, two) = pair().await;
    let client = one.send(&post(1, KEY)).await;
    let call = farm.call().await;
    drop(client);
    settle().await;
    call.json(RESULT).await;
    settle().await;
    two.send(&post(1, KEY)).await.answer(RESULT).await;
    assert!(farm.is_quiet(), "the tool ran once");
}

#[tokio::test(start_paused = true)]
async fn a_key_finds_a_delivered_answer_or_stream_at_another_replica() {
    let (_store, mut farm, one, two) = pair().await;
    for is_stream in [false, true] {
        let request = post(1, &format!("Idempotency-Key: {is_stream}\r\n"));
        let client = one.send(&request).await;
        let mut call = farm.call().await;
        if is_stream {
            call.begin_sse().await;
            call.event(PROGRESS).await;
            call.event(RESULT).await;
            drop(call);
        } else {
            call.json(RESULT).await;
        }
        client.answer(RESULT).await;
        tokio::time::sleep(Duration::from_secs(10)).await;
        for _ in 0..2 {
            let seen = two.send(&request).await.answer(RESULT).await;
            assert_eq!(seen.contains(PROGRESS), is_stream, "{seen}");
        }
        assert!(farm.is_quiet(), "the tool ran once");
    }
}

#[tokio::test(start_paused = true)]
async fn of_concurrent_posts_with_one_key_one_runs() {
    for (wait, slow) in (0..20).flat_map(|wait| [(wait, false), (wait, true)]) {
        let (store, mut farm, one, two) = pair().await;
        store.set_slow(slow);
        let request = post(1, KEY);
        let mut clients = Vec::new();
        for at in [&one, &two, &one] {
            clients.push(at.send(&request).await);
            for _ in 0..wait {
                tokio::task::yield_now().await;
            }
        }
        farm.call().await.json(RESULT).await;
        for mut client in clients {
            // A client that was taken over before the response may have to reconnect.
            while !client.seen.contains(RESULT) && !client.seen.contains("retry:") {
                assert!(client.more().await, "{wait}, {slow}: {}", client.seen);
            }
        }
        settle().await;
        assert!(farm.is_quiet(), "{wait}, {slow}: the tool ran once");
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_client_is_still_connected_runs_once_and_answers_both() {
    let (_store, mut farm, one, two) = pair().await;
    let first = one.send(&post(1, KEY)).await;
    let call = farm.call().await;
    // A half-open connection looks like a connected client.
    let second = two.send(&post(1, KEY)).await;
    settle().await;
    assert!(farm.is_quiet(), "the tool runs already");
    call.json(RESULT).await;
    second.answer(RESULT).await;
    first.answer(RESULT).await;
    assert!(farm.is_quiet());
}

#[tokio::test(start_paused = true)]
async fn a_call_that_never_ran_may_run_elsewhere() {
    let (store, mut farm, _one, two) = pair().await;
    let deaf = Replica::with(&store, 3, None, OnUnreachable::Degrade).await;
    deaf.send(&post(3, KEY)).await.answer("could not be reached").await;
    let again = two.send(&post(3, KEY)).await;
    farm.call().await.json(RESULT).await;
    again.answer(RESULT).await;
}

#[tokio::test(start_paused = true)]
async fn a_key_with_another_body_is_refused_elsewhere_too() {
    let (_store, mut farm, one, two) = pair().await;
    let client = one.send(&post(1, KEY)).await;
    farm.call().await.json(RESULT).await;
    client.answer(RESULT).await;
    let seen = two.send(&post(2, KEY)).await.answer("Idempotency-Key").await;
    assert!(seen.starts_with("HTTP/1.1 422"), "{seen}");
    assert!(farm.is_quiet());
}

#[tokio::test(start_paused = true)]
async fn no_caller_gets_the_response_of_another() {
    let (_store, mut farm, one, two) = pair().await;
    for (id, extra) in [(1, ""), (2, KEY)] {
        let client = one.send(&post(id, &format!("{extra}Authorization: Bearer a\r\n"))).await;
        let call = farm.call().await;
        drop(client);
        settle().await;
        call.json(RESULT).await;
        let stranger = two.send(&post(id, &format!("{extra}Authorization: Bearer b\r\n"))).await;
        farm.call().await.json("{\"theirs\":1}").await;
        let seen = stranger.answer("{\"theirs\":1}").await;
        assert!(!seen.contains(RESULT), "{seen}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_replica_died_is_not_run_again() {
    let (_store, mut farm, one, two) = pair().await;
    // Long enough that the second replica has reached the store for a lease.
    tokio::time::sleep(LEASE * 2).await;
    let mut streamed = one.send(&post(1, KEY)).await;
    let mut call = farm.call().await;
    call.begin_sse().await;
    call.event(PROGRESS).await;
    streamed.until(PROGRESS).await;
    let silent = one.send(&json_only(2)).await;
    let other = farm.call().await;
    drop((streamed, silent));
    settle().await;
    one.kill();
    let (streamed, silent) = (two.send(&post(1, KEY)).await, two.send(&json_only(2)).await);
    let seen = streamed.answer(OWNER_DIED).await;
    assert!(seen.contains(PROGRESS) && seen.contains("\"mayHaveRun\":true"), "{seen}");
    let seen = silent.answer(OWNER_DIED).await;
    assert!(seen.starts_with("HTTP/1.1 504") && seen.contains("\"id\":2"), "{seen}");
    assert!(seen.contains("\"mayHaveRun\":true"), "{seen}");
    // Nor later, while a response would be kept.
    tokio::time::sleep(Duration::from_secs(500)).await;
    let seen = two.send(&json_only(2)).await.answer(OWNER_DIED).await;
    assert!(seen.starts_with("HTTP/1.1 504"), "{seen}");
    assert!(farm.is_quiet(), "no tool ran twice");
    drop((call, other));
}

/// The store has the claim of the call, and no stream: its replica died in between.
#[tokio::test(start_paused = true)]
async fn a_call_whose_replica_died_after_its_claim_ends_soon_after_the_lease() {
    for is_full in [false, true] {
        let (store, mut farm, one, two) = pair().await;
        tokio::time::sleep(LEASE * 2).await;
        let client = one.send(&post(1, KEY)).await;
        while !store.records().iter().any(|key| key.starts_with(b"run\0")) {
            tokio::task::yield_now().await;
        }
        one.kill();
        let killed = clock::now();
        drop(client);
        store.set_full(is_full);
        let seen = two.send(&post(1, KEY)).await.answer(OWNER_DIED).await;
        assert!(seen.starts_with("HTTP/1.1 504") && seen.contains("\"mayHaveRun\":true"), "{seen}");
        let took = clock::now() - killed;
        assert!(took <= LEASE + Duration::from_secs(30), "full: {is_full}, {took:?}");
        // The aborted tasks of the replica do not end the connection to the server.
        let _call = farm.calls.try_recv();
        // Now the lease has expired already.
        let again = clock::now();
        two.send(&post(1, KEY)).await.answer(OWNER_DIED).await;
        assert!(clock::now() - again < Duration::from_secs(1));
        assert!(farm.is_quiet(), "the tool did not run again");
    }
}

#[tokio::test(start_paused = true)]
async fn the_responses_of_a_replica_that_left_in_order_are_found() {
    let (_store, mut farm, one, two) = pair().await;
    let client = one.send(&post(1, KEY)).await;
    let mut call = farm.call().await;
    call.begin_sse().await;
    call.event(RESULT).await;
    drop(call);
    client.answer(RESULT).await;
    settle().await;
    one.leave().await;
    two.send(&post(1, KEY)).await.answer(RESULT).await;
    assert!(farm.is_quiet(), "the tool ran once");
}

#[tokio::test(start_paused = true)]
async fn a_call_that_runs_longer_than_responses_are_kept_is_found() {
    let (_store, mut farm, one, two) = pair().await;
    let client = one.send(&post(1, KEY)).await;
    let call = farm.call().await;
    tokio::time::sleep(Duration::from_secs(5 * 3600)).await;
    let again = two.send(&post(1, KEY)).await;
    settle().await;
    assert!(farm.is_quiet(), "the tool runs once");
    call.json(RESULT).await;
    client.answer(RESULT).await;
    again.answer(RESULT).await;
}

#[tokio::test(start_paused = true)]
async fn without_the_store_a_replica_knows_only_its_own_calls_or_takes_none() {
    let (store, mut farm, one, two) = pair().await;
    let strict = Replica::with(&store, 3, Some(farm.dial.clone()), OnUnreachable::Refuse).await;
    store.set_away(true);
    let client = one.send(&post(1, KEY)).await;
    let call = farm.call().await;
    drop(client);
    settle().await;
    // The call is known here, and not at the other replica.
    let again = one.send(&post(1, KEY)).await;
    settle().await;
    assert!(farm.is_quiet());
    let elsewhere = two.send(&post(1, KEY)).await;
    farm.call().await.json("{\"second\":1}").await;
    elsewhere.answer("{\"second\":1}").await;
    call.json(RESULT).await;
    again.answer(RESULT).await;
    let seen = strict.send(&post(1, KEY)).await.answer("store is full, or cannot be reached").await;
    assert!(seen.starts_with("HTTP/1.1 503") && seen.contains("\"mayHaveRun\":false"), "{seen}");
    assert!(farm.is_quiet());
}

#[tokio::test(start_paused = true)]
async fn an_outage_longer_than_the_lease_delays_no_call() {
    let (store, mut farm, one, _two) = pair().await;
    let mut client = one.send(&post(1, "")).await;
    let mut call = farm.call().await;
    call.begin_sse().await;
    call.event(PROGRESS).await;
    client.until(PROGRESS).await;
    store.set_away(true);
    tokio::time::sleep(LEASE * 2).await;
    let began = clock::now();
    let progress = PROGRESS.replace("\"n\":1", "\"n\":2");
    call.event(&progress).await;
    client.until(&progress).await;
    // The client resumes.
    let id = client.seen.lines().rev().find_map(|line| line.strip_prefix("id: ")).unwrap().to_owned();
    drop(client);
    let head = "GET /mcp HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\nMcp-Session-Id: s\r\n";
    let mut client = one.send(&format!("{head}Last-Event-ID: {id}\r\n\r\n")).await;
    client.until("HTTP/1.1 200 OK").await;
    call.event(RESULT).await;
    client.until(RESULT).await;
    // And a call that begins now.
    let mut client = one.send(&post(2, "")).await;
    let mut call = farm.call().await;
    call.begin_sse().await;
    let result = RESULT.replace("\"id\":1", "\"id\":2");
    call.event(&result).await;
    client.until(&result).await;
    let took = clock::now() - began;
    assert!(took < Duration::from_millis(100), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_session_is_never_served_as_unknown_if_the_store_is_waited_for() {
    let (store, mut farm) = (TestStore::default(), Farm::new());
    let one = Replica::with(&store, 1, Some(farm.dial.clone()), OnUnreachable::Refuse).await;
    let two = Replica::with(&store, 2, Some(farm.dial.clone()), OnUnreachable::Refuse).await;
    let opening = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{"resumableRequests":{}},"clientInfo":{"name":"c","version":"1"}}}"#;
    let mut client = one.send(&post_of(opening, "").replace("Mcp-Session-Id: s\r\n", "")).await;
    let mut call = Pipe::new(farm.calls.recv().await.unwrap());
    call.until("initialize").await;
    // The session is opened during an outage of the store: its client gets the response when every
    // replica can know the session.
    store.set_away(true);
    let opened = r#"{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2025-06-18","capabilities":{},"serverInfo":{"name":"s","version":"1"}}}"#;
    let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\nMcp-Session-Id: s\r\n";
    call.write(&format!("{head}Content-Length: {}\r\n\r\n{opened}", opened.len())).await;
    let early = timeout(Duration::from_secs(60), client.more()).await;
    assert!(early.is_err(), "{}", client.seen);
    store.set_away(false);
    client.answer("serverInfo").await;

    // The store is unreachable while another replica inquires about the session, and back when the
    // call could begin.
    let request = post(1, "");
    let (head, body) = request.split_at(request.len() - 10);
    store.set_away(true);
    let mut call = two.send(head).await;
    settle().await;
    store.set_away(false);
    call.write(body).await;
    let seen = call.answer("store is full, or cannot be reached").await;
    assert!(seen.starts_with("HTTP/1.1 503") && seen.contains("\"mayHaveRun\":false"), "{seen}");
    assert!(seen.contains("\"id\":1") && farm.is_quiet(), "{seen}");

    let client = two.send(&post(1, "")).await;
    let mut call = farm.call().await;
    call.begin_sse().await;
    call.event(RESULT).await;
    let seen = client.answer(RESULT).await;
    assert!(seen.contains("resumePolicy"), "{seen}");
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_known_to_run_elsewhere_is_not_run_when_the_store_goes_away() {
    // At any moment between two inquiries.
    for wait in (0..1000).step_by(50).map(Duration::from_millis) {
        let (store, mut farm, one, two) = pair().await;
        let client = one.send(&json_only(1)).await;
        let call = farm.call().await;
        drop(client);
        settle().await;
        let again = two.send(&json_only(1)).await;
        tokio::time::sleep(Duration::from_millis(100) + wait).await;
        store.set_away(true);
        let seen = again.answer("store is full, or cannot be reached").await;
        assert!(seen.starts_with("HTTP/1.1 503") && seen.contains("\"mayHaveRun\":true"), "{seen}");
        assert!(farm.is_quiet(), "{wait:?}: the tool ran once");
        drop(call);
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_is_removed_with_its_call() {
    let (store, mut farm, one, two) = pair().await;
    for wait in 0..10 {
        // The client leaves before the call has begun, or while it runs.
        let client = one.send(&post(1, KEY)).await;
        for _ in 0..wait {
            tokio::task::yield_now().await;
        }
        drop(client);
        settle().await;
        while let Ok(call) = farm.calls.try_recv() {
            drop(call);
        }
        let claims = store.records().iter().filter(|key| !key.starts_with(b"answer\0")).count();
        assert_eq!(claims, one.components.log.retry_index().len(), "after {wait}");
    }
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert!(store.records().is_empty() && one.components.log.retry_index().is_empty());
    let client = two.send(&post(1, KEY)).await;
    farm.call().await.json(RESULT).await;
    client.answer(RESULT).await;
    assert_eq!(store.records().len(), 2, "that it runs here, and its answer");
}
