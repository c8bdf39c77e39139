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

/// Returns the bytes that each of [`CALLS`] calls leaves.
async fn left_by(proxy: &Proxy, upstream: &mut Upstream, request: impl Fn(u64) -> Request) -> (usize, Client) {
    let mut client = None;
    for id in 0..WARM_UP {
        client = Some(call_once(proxy, upstream, client, &request(id), id).await);
    }
    let before = allocated();
    for id in WARM_UP..WARM_UP + CALLS {
        client = Some(call_once(proxy, upstream, client, &request(id), id).await);
    }
    ((allocated() - before) / CALLS as usize, client.expect("calls were made"))
}

/// Returns the bytes that the event of a response has on the wire, without its id.
fn event_bytes() -> usize {
    "event: message\ndata: \n\n".len() + response_to(WARM_UP + CALLS).len()
}

/// One test, because the allocator counts for the whole process.
#[tokio::test]
async fn a_finished_call_takes_its_bytes_and_a_kilobyte_and_half_of_that_once_its_delivery_is_proven() {
    in_a_session().await;
    without_a_session().await;
}

async fn without_a_session() {
    let (mut upstream, proxy, _) = setup_with(|_| {}).await;
    let (left, _client) = left_by(&proxy, &mut upstream, modern).await;
    println!("without a session: {left} bytes, of which the event has {}", event_bytes());
    assert!(left <= event_bytes() * 115 / 100 + 1024, "{left} bytes");
}

async fn in_a_session() {
    let (mut upstream, proxy, session) = setup_with(|config| {
        config.streams.delivered_retention = Duration::from_secs(60);
    })
    .await;
    let before = allocated();
    let (left, client) = left_by(&proxy, &mut upstream, |id| session.post(call(id))).await;
    println!("delivery proven: {left} bytes, of which the event has {}", event_bytes());
    assert!(left <= event_bytes() * 115 / 100 + 768, "{left} bytes");
    pass(Duration::from_secs(61)).await;
    settle(&proxy, &mut upstream).await;
    let left = (allocated() - before) / (WARM_UP + CALLS) as usize;
    println!("delivery proven, without the response: {left} bytes");
    assert!(left <= 512, "{left} bytes");
    drop(client);
    proxy.stop().await;
}
