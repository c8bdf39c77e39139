//! Support of the tests: a scripted upstream, the proxy, a client with control of every byte.
//!
//! Nothing here sleeps. Tests wait for events and fail when one does not come in [`LIMIT`].

pub(crate) mod client;
pub(crate) mod collector;
pub(crate) mod frames;
pub(crate) mod http_versions;
pub(crate) mod jwt;
pub(crate) mod mcp;
pub(crate) mod pki;
pub(crate) mod proxy;
pub(crate) mod redis;
pub(crate) mod sse;
#[cfg(target_os = "linux")]
pub(crate) mod stdio;
pub(crate) mod upstream;
pub(crate) mod wire;

pub(crate) use client::{Client, End, Request, Response};
pub(crate) use collector::{Collector, Span};
pub(crate) use jwt::{Judge, bearer, bearer_of_client};
pub(crate) use mcp::*;
pub(crate) use proxy::{LATER, Proxy, SOON, command};
pub(crate) use redis::Redis;
pub(crate) use sse::Frame;
pub(crate) use upstream::{Call, Sse, Upstream};

use std::time::Duration;

/// Longest wait of a test for one event. The test fails after it. Long enough for a machine that
/// has much other work.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// `wait`, or a panic that says what did not happen.
pub(crate) async fn within<T>(what: &str, wait: impl Future<Output = T>) -> T {
    match tokio::time::timeout(LIMIT, wait).await {
        Ok(value) => value,
        Err(_) => panic!("waited {LIMIT:?} in vain: {what}"),
    }
}

/// Asks until it is so.
pub(crate) async fn until(what: &str, is_so: impl AsyncFn() -> bool) {
    // What has to pass on other threads, in other processes, or in time needs a turn.
    let asking = async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(5)).await
        }
    };
    within(what, asking).await;
}

/// An upstream, a proxy before it and an initialized session of 2025-11-25.
pub(crate) async fn setup() -> (Upstream, Proxy, Session) {
    setup_with(|_| {}).await
}

pub(crate) async fn setup_with(change: impl FnOnce(&mut mcp_resume::config::Config)) -> (Upstream, Proxy, Session) {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, change).await;
    let session = Session::open(&proxy, &mut upstream, V2025_11).await;
    (upstream, proxy, session)
}

/// Form of a server's response.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Form {
    Json,
    Events,
}

pub(crate) const FORMS: [Form; 2] = [Form::Json, Form::Events];

impl Form {
    /// Answers a call with one message.
    pub(crate) async fn answer(self, call: Call, message: String) {
        match self {
            Form::Json => call.json(200, message).await,
            Form::Events => call.sse().await.finish(message).await,
        }
    }
}

/// POSTs `body`; the upstream begins an SSE answer.
pub(crate) async fn begin(proxy: &Proxy, upstream: &mut Upstream, request: &Request) -> (Sse, Response) {
    let pending = request.start(proxy.addr).await;
    let sse = upstream.next().await.sse().await;
    let response = pending.response().await.sse();
    (sse, response)
}

/// A round trip through proxy and upstream. What the proxy was told on other connections before
/// this was begun has reached it when this returns: test and proxy share one thread. Of several
/// threads each serves the next connection in turn; two rounds, for what one has to tell another.
pub(crate) async fn settle(proxy: &Proxy, upstream: &mut Upstream) {
    // On a busy machine the system delivers on loopback by threads of its own, one for each
    // processor: what was sent from another processor may be behind. They run meanwhile.
    std::thread::sleep(Duration::from_micros(500));
    for _ in 0..crate::WORKERS.map_or(1, |workers| 2 * workers) {
        let pending = Request::new("GET", "/settle").start(proxy.addr).await;
        let call = upstream.next().await;
        assert_eq!(call.target, "/settle");
        call.status(204).await;
        assert_eq!(pending.response().await.status, 204);
    }
}

/// The value of one sample on the metrics page, named with its labels; 0 where there is none yet.
pub(crate) async fn metric(proxy: &Proxy, sample: &str) -> f64 {
    let admin = proxy.admin.expect("an admin listener");
    let page = Request::new("GET", "/metrics").send(admin).await.body().await;
    let page = String::from_utf8(page).expect("text");
    let value = page.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
    value.map_or(0.0, |value| value.parse().expect("a number"))
}

/// Advances the time of the whole runtime at once.
pub(crate) async fn pass(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}
