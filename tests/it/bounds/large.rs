//! Events and answers far larger than a socket takes at once, before clients that take nothing of
//! them.

use super::*;
use crate::stores::Replica;
use crate::support::http_versions::{HttpVersion, TestClient};
use crate::support::pki::Pki;
use std::process::Stdio;
use std::time::Duration;

const MIB: usize = 1024 * 1024;
const EVENT: usize = 8 * MIB;

/// A client that reads no more than the head of its answer.
async fn reads_nothing(proxy: &Proxy, request: &Request) -> Client {
    let client = request.start(proxy.addr).await.stop_after(1024);
    let (head, client) = client.head_only().await;
    assert!(head.first.contains("200"), "{}", head.first);
    client
}

/// A call whose client has left, and one large event of it: the call's place is behind its first,
/// empty event.
async fn left_with_an_event(proxy: &Proxy, upstream: &mut Upstream, session: &Session) -> (Sse, EventId) {
    let (sse, mut response) = begin(proxy, upstream, &session.post(call(1))).await;
    let place = EventId::of(response.prime().await.id());
    response.reset();
    sse.event(sized(1, EVENT)).await;
    until("it is kept", async || metric(proxy, "mcp_resume_upstream_events_total").await == 1.0).await;
    (sse, place)
}

/// Kilobytes of memory that the process has.
#[cfg(target_os = "linux")]
fn memory_kib(pid: u32) -> usize {
    status_kib(pid, "VmRSS:")
}

/// The most that it ever had.
#[cfg(target_os = "linux")]
fn most_memory_kib(pid: u32) -> usize {
    status_kib(pid, "VmHWM:")
}

#[cfg(target_os = "linux")]
fn status_kib(pid: u32, name: &str) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find(|line| line.starts_with(name)).expect("a size");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("a number")
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn unread_resumes_of_a_large_event_take_no_copies_of_it() {
    let mut upstream = Upstream::start().await;
    let mut command = command(&upstream);
    command.stderr(Stdio::null());
    let proxy = Proxy::process(command).await;
    let session = Session::open(&proxy, &mut upstream, V2025_11).await;
    let (sse, place) = left_with_an_event(&proxy, &mut upstream, &session).await;
    let pid = proxy.pid();
    let before = memory_kib(pid);
    let mut unread = Vec::new();
    for _ in 0..30 {
        unread.push(reads_nothing(&proxy, &session.resume(&place.at(0))).await);
    }
    let more = memory_kib(pid).saturating_sub(before);
    assert!(more < 30 * 1024, "{more} KiB for {} clients", unread.len());
    sse.finish(result(1)).await;
    proxy.kill().await;
}

#[tokio::test]
async fn bytes_on_their_way_to_a_client_are_counted_and_limited() {
    let (mut upstream, proxy, session) = bounded(|_| ()).await;
    let (sse, place) = left_with_an_event(&proxy, &mut upstream, &session).await;
    let held = || metric(&proxy, "mcp_resume_held_bytes");
    let before = held().await;
    let unread = reads_nothing(&proxy, &session.resume(&place.at(0))).await;
    until("the socket is full", async || held().await - before >= 64.0 * 1024.0).await;
    assert!(held().await - before < 256.0 * 1024.0);
    drop(unread);
    until("it is given back", async || held().await <= before).await;
    sse.finish(result(1)).await;
}

#[tokio::test]
async fn a_takeover_ends_a_connection_whose_client_reads_nothing() {
    let (mut upstream, proxy, session) = bounded(|_| ()).await;
    let (sse, place) = left_with_an_event(&proxy, &mut upstream, &session).await;
    let mut unread = reads_nothing(&proxy, &session.resume(&place.at(0))).await;
    let mut newer = session.resume(&place.at(1)).send(proxy.addr).await.sse();
    newer.prime().await;
    within("the older connection ends", async {
        while unread.try_send(b"x").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    sse.finish(result(1)).await;
    assert_eq!(newer.event().await.bytes(), result(1).as_bytes());
    newer.ends().await;
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn events_that_wait_for_a_store_are_held_once_and_counted() {
    const CALLS: usize = 8;
    let mut redis = Redis::start();
    let settings = [("MCP_RESUME_STORE__ON_UNREACHABLE", "refuse")];
    let mut replica = Replica::process(&redis, "one", &settings).await;
    let session = replica.open(V2025_11).await;
    let mut calls = Vec::new();
    for id in 0..CALLS {
        calls.push(replica.begin(&session.post(call(id))).await);
    }
    let proxy = &replica.proxy;
    let before = memory_kib(proxy.pid());
    for (n, (sse, ..)) in calls.iter().enumerate() {
        sse.bytes(format!("data: {}", sized(n, EVENT))).await;
    }
    let has_all = async || metric(proxy, "mcp_resume_held_bytes").await >= (CALLS * EVENT) as f64;
    until("all but their ends are there", has_all).await;
    redis.kill();
    until("it is seen", async || metric(proxy, "mcp_resume_store_ready").await == 0.0).await;
    for (sse, ..) in &calls {
        sse.bytes("\n\n").await;
    }
    until("they are there", async || metric(proxy, "mcp_resume_upstream_events_total").await == CALLS as f64).await;
    until("they are counted", has_all).await;
    let more = memory_kib(proxy.pid()).saturating_sub(before);
    assert!(more < CALLS * EVENT / 1024 * 3 / 2, "{more} KiB");
    replica.proxy.kill().await;
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn retries_of_clients_that_take_json_only_share_one_copy_of_a_large_answer() {
    let mut upstream = Upstream::start().await;
    let mut command = command(&upstream);
    command.stderr(Stdio::null());
    let proxy = Proxy::process(command).await;
    let session = Session::open(&proxy, &mut upstream, V2025_11).await;
    let post = session.post(call(1)).without("Accept").with("Accept", "application/json");
    // A retry by its ID alone has two seconds.
    let post = post.with("Idempotency-Key", "k-1");
    let first = post.start(proxy.addr).await;
    let sse = upstream.expect("tools/call").await.sse().await;
    let answer = result(1).replace("\"result\":{", &format!("\"result\":{{\"text\":\"{}\",", "x".repeat(EVENT)));
    assert!(answer.len() > EVENT);
    sse.finish(&answer).await;
    // Its connection stays open: a response is delivered once its client has closed that.
    let mut first = first.response().await;
    assert_eq!(first.body().await, answer.as_bytes());
    let pid = proxy.pid();
    let unread = reads_nothing(&proxy, &post).await;
    let before = most_memory_kib(pid);
    // All at once: the one that is taken over by the next ends soon.
    let mut waiting = Vec::new();
    for _ in 0..30 {
        waiting.push(post.start(proxy.addr).await.stop_after(1024));
    }
    let mut begun = Vec::new();
    for client in waiting {
        begun.push(client.head_only().await);
    }
    let more = most_memory_kib(pid) - before;
    assert!(more < 30 * 1024, "{more} KiB for {} clients", begun.len());
    drop((unread, begun));
    assert_eq!(post.send(proxy.addr).await.body().await, answer.as_bytes());
    drop(first);
    proxy.kill().await;
}

#[tokio::test]
async fn a_response_on_http2_that_was_taken_over_and_is_not_read_ends_soon_and_alone() {
    let (mut upstream, proxy, session) = bounded(|_| ()).await;
    let (sse, place) = left_with_an_event(&proxy, &mut upstream, &session).await;
    let mut client = TestClient::connect(proxy.addr, HttpVersion::Http2, &Pki::new()).await;
    let last = place.at(0);
    let headers = |id| [("mcp-session-id", "s-flood"), ("authorization", "Bearer flood"), ("last-event-id", id)];
    let held = || metric(&proxy, "mcp_resume_held_bytes");
    let before = held().await;
    let _unread = client.send("GET", &headers(&last), "").head().await;
    let attached = || metric(&proxy, "mcp_resume_streams_attached");
    assert_eq!(attached().await, 1.0);
    settle(&proxy, &mut upstream).await;
    until("little is taken for it", async || held().await < before + 64.0 * 1024.0).await;
    let other = reads_nothing(&proxy, &session.resume(&last)).await;
    assert_eq!(attached().await, 2.0);
    pass(Duration::from_secs(3)).await;
    until("the older response ends", async || attached().await == 1.0).await;
    let answer = client.send("POST", &headers("x")[..2], call(2));
    upstream.expect("tools/call").await.json(200, result(2)).await;
    assert_eq!(answer.head().await.body().await, result(2).as_bytes(), "the connection goes on");
    drop((other, sse));
}
