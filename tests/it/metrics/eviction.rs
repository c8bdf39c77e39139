//! Streams that fill their room, or their principal's.

use super::{Meter, finish, left, observed_with};
use crate::support::*;
use mcp_resume::config::Config;
use std::time::Duration;

fn small(c: &mut Config) {
    c.streams.max_event_bytes = 64 * 1024;
    c.streams.max_bytes = 256 * 1024;
    c.streams.max_bytes_per_principal = 256 * 1024;
}

fn sized(n: usize) -> String {
    format!(r#"{{"jsonrpc":"2.0","method":"n","params":{{"n":{n},"t":"{}"}}}}"#, "x".repeat(10_000))
}

pub(super) async fn a_delivered_stream_that_is_evicted(evicted: &Meter) {
    let (mut upstream, proxy, session) = observed_with(small).await;
    assert_eq!(evicted.read(&proxy).await, 0.0);
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    for n in 1..=15 {
        sse.event(sized(n)).await;
        response.event().await;
    }
    finish(sse, &mut response).await;
    // Its connection stays open and quiet: the answer has arrived for all that is known.
    let _open = response.into_client();
    pass(Duration::from_secs(3)).await;
    settle(&proxy, &mut upstream).await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(2))).await;
    for n in 1..=15 {
        sse.event(sized(n)).await;
        response.event().await;
    }
    assert_eq!(evicted.read(&proxy).await, 1.0);
}

pub(super) async fn a_full_stream_that_was_read(trimmed: &Meter) {
    let (mut upstream, proxy, session) = observed_with(small).await;
    assert_eq!(trimmed.read(&proxy).await, 0.0);
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    let place = EventId::of(response.prime().await.id());
    for n in 1..=100 {
        sse.event(sized(n)).await;
        response.event().await;
    }
    let dropped = trimmed.read(&proxy).await;
    // Exactly so many cannot be had any more.
    let mut back = session.resume(&place.at(dropped)).send(proxy.addr).await.sse();
    assert_eq!(back.event().await.id(), place.at(dropped + 1.0));
    let mut lost = session.resume(&place.at(dropped - 1.0)).send(proxy.addr).await.sse();
    assert_fault(&lost.event().await.json(), 1, GONE, "client");
}

pub(super) async fn a_full_unread_stream(pauses: &Meter) {
    let (mut upstream, proxy, session) = observed_with(small).await;
    let (sse, _) = left(&proxy, &mut upstream, &session).await;
    assert_eq!(pauses.read(&proxy).await, 0.0);
    let flood = async {
        for n in 1.. {
            sse.event(sized(n)).await;
        }
    };
    let watch = async { while pauses.read(&proxy).await == 0.0 {} };
    tokio::select! {
        () = flood => {}
        () = within("the upstream waits", watch) => {}
    }
    assert_eq!(pauses.read(&proxy).await, 1.0);
}
