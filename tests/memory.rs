//! Memory of finished calls, counted by the allocator: what the proxy still holds for each call that is over.
//!
//! Proxy, server and client share the thread of the test, so that the same requests give the same count. The server and the client hold
//! the same at both ends of a measurement.

// A test's way to fail.
#![allow(clippy::unwrap_used, clippy::panic)]
// The tests measure how soon the proxy answers; they do not move its time.
#![allow(clippy::disallowed_methods)]
// Some of the support is for the cases that are not here.
#![allow(dead_code, unused_imports)]

#[path = "it/support/mod.rs"]
mod support;

use std::alloc::System;
use std::time::Duration;

use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use support::*;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const WORKERS: Option<usize> = None;

/// Calls before the measurement, which fill pools and caches.
const WARM_UP: u64 = 100;
/// Calls of a measurement. Tables double, so the count includes up to half of a table that is empty.
const CALLS: u64 = 1000;
/// Text in each response.
const TEXT: usize = 200;

/// Returns the bytes that are allocated now.
fn allocated() -> usize {
    let stats = ALLOCATOR.stats();
    stats.bytes_allocated - stats.bytes_deallocated
}

fn response_to(id: u64) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"content":[{{"type":"text","text":"{}"}}]}}}}"#, "x".repeat(TEXT))
}

/// Makes a call that is answered by a stream of one event, on the connection of the one before.
async fn call_once(
    proxy: &Proxy,
    upstream: &mut Upstream,
    client: Option<Client>,
    request: &Request,
    id: u64,
) -> Client {
    let mut client = match client {
        Some(client) => client,
        None => Client::connect(proxy.addr).await,
    };
    client.send(&request.bytes(proxy.addr)).await;
    upstream.expect("tools/call").await.sse().await.finish(response_to(id)).await;
    let mut response = client.response().await.sse();
    response.prime().await;
    assert_eq!(response.event().await.bytes(), response_to(id).as_bytes());
    response.ends().await;
    response.into_client()
}

/// Bytes that a call leaves.
struct Left {
    allocated: usize,
    /// Bytes that count in the quotas.
    held: usize,
}

/// Returns the bytes that each of [`CALLS`] calls leaves. A delivery is proven by the next call on the same connection.
async fn left_by(
    proxy: &Proxy,
    upstream: &mut Upstream,
    is_proven: bool,
    request: impl Fn(u64) -> Request,
) -> (Left, Client) {
    let mut client = None;
    for id in 0..WARM_UP {
        client = Some(call_once(proxy, upstream, client.filter(|_| is_proven), &request(id), id).await);
    }
    settle(proxy, upstream).await;
    let (before, held_before) = (allocated(), held(proxy).await);
    for id in WARM_UP..WARM_UP + CALLS {
        client = Some(call_once(proxy, upstream, client.filter(|_| is_proven), &request(id), id).await);
    }
    settle(proxy, upstream).await;
    let calls = CALLS as usize;
    let left = Left { allocated: (allocated() - before) / calls, held: (held(proxy).await - held_before) / calls };
    (left, client.expect("calls were made"))
}

fn with_metrics(config: &mut mcp_resume::config::Config) {
    config.admin.address = Some(([127, 0, 0, 1], 0).into());
}

/// Returns the bytes that count in the quotas.
async fn held(proxy: &Proxy) -> usize {
    metric(proxy, "mcp_resume_held_bytes").await as usize
}

/// Returns the bytes that the event of a response has on the wire, without its id.
fn event_bytes() -> usize {
    "event: message\ndata: \n\n".len() + response_to(WARM_UP + CALLS).len()
}

/// One test, because the allocator counts for the whole process.
#[tokio::test]
async fn a_finished_call_takes_its_bytes_and_a_kilobyte_and_half_of_that_once_its_delivery_is_proven() {
    in_a_session().await;
    for_a_retry().await;
    without_a_session().await;
}

async fn without_a_session() {
    let (mut upstream, proxy, _) = setup_with(with_metrics).await;
    let (left, _client) = left_by(&proxy, &mut upstream, true, modern).await;
    let Left { allocated, held } = left;
    println!("without a session: {allocated} bytes, of which the event has {}, counted {held}", event_bytes());
    assert!(allocated <= event_bytes() * 115 / 100 + 1024, "{allocated} bytes");
    assert!(held >= allocated, "{held} bytes are counted of {allocated}");
}

/// A retry finds the call, until its delivery is proven.
async fn for_a_retry() {
    let (mut upstream, proxy, session) = setup_with(with_metrics).await;
    let (left, client) = left_by(&proxy, &mut upstream, false, |id| session.post(call(id))).await;
    let Left { allocated, held } = left;
    println!("for a retry: {allocated} bytes, of which the event has {}, counted {held}", event_bytes());
    assert!(allocated <= event_bytes() * 115 / 100 + 1408, "{allocated} bytes");
    assert!(held >= allocated, "{held} bytes are counted of {allocated}");
    assert!(held <= allocated * 3 / 2, "{held} bytes are counted of {allocated}");
    drop(client);
    proxy.stop().await;
}

async fn in_a_session() {
    let (mut upstream, proxy, session) = setup_with(|config| {
        with_metrics(config);
        config.streams.delivered_retention = Duration::from_secs(60);
    })
    .await;
    let before = allocated();
    let (left, client) = left_by(&proxy, &mut upstream, true, |id| session.post(call(id))).await;
    let Left { allocated: left, held } = left;
    println!("delivery proven: {left} bytes, of which the event has {}, counted {held}", event_bytes());
    assert!(left <= event_bytes() * 115 / 100 + 768, "{left} bytes");
    assert!(held >= left, "{held} bytes are counted of {left}");
    pass(Duration::from_secs(61)).await;
    settle(&proxy, &mut upstream).await;
    let left = (allocated() - before) / (WARM_UP + CALLS) as usize;
    println!("delivery proven, without the response: {left} bytes");
    assert!(left <= 512, "{left} bytes");
    drop(client);
    proxy.stop().await;
}
