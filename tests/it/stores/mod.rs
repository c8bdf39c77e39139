//! Stores that outlive the process: a directory, and a Redis that replicas share.

pub(crate) mod disk;
mod drain;
mod forward_to_owner;
mod idempotency_key;
mod issued_sessions;
mod leases;
mod outage;
mod remote_retry;
mod replicas;
mod revival;
mod tasks;

use mcp_resume::config::{Config, OnUnreachable};
use serde_json::Value;

use crate::support::*;

/// Error message for a call whose replica died.
const OWNER_DIED: &str = "the proxy that ran the call has died";
const STORE_FAILED: &str = "the proxy's store is full, or cannot be reached";

/// A replica, and the server behind it that knows its own sessions alone.
pub(crate) struct Replica {
    pub(crate) proxy: Proxy,
    pub(crate) upstream: Upstream,
}

impl Replica {
    pub(crate) async fn start(redis: &Redis, name: &str) -> Replica {
        Replica::with(redis, name, |_| {}).await
    }

    pub(crate) async fn with(redis: &Redis, name: &str, change: impl FnOnce(&mut Config)) -> Replica {
        let upstream = Upstream::start().await;
        let of_redis = redis.of(name, OnUnreachable::Degrade);
        let proxy = Proxy::start(&upstream, |config| {
            of_redis(config);
            change(config);
        })
        .await;
        Replica { proxy, upstream }
    }

    /// A process of its own.
    pub(crate) async fn process(redis: &Redis, name: &str, settings: &[(&str, &str)]) -> Replica {
        let upstream = Upstream::start().await;
        let mut command = command(&upstream);
        command.args(["--store", &redis.url()]).env("MCP_RESUME_REPLICA__NAME", name);
        command.env("MCP_RESUME_REPLICA__LEASE_SECS", "2").envs(settings.iter().copied());
        Replica { proxy: Proxy::process(command).await, upstream }
    }

    pub(crate) async fn open(&mut self, version: &'static str) -> Session {
        Session::open(&self.proxy, &mut self.upstream, version).await
    }

    pub(crate) async fn begin(&mut self, request: &Request) -> (Sse, Response, EventId) {
        let (sse, mut response) = begin(&self.proxy, &mut self.upstream, request).await;
        let place = EventId::of(response.prime().await.id());
        (sse, response, place)
    }

    pub(crate) async fn send(&self, request: Request) -> Response {
        request.send(self.proxy.addr).await
    }

    /// The whole answer, as it is.
    async fn told(&self, request: Request) -> (u16, String) {
        told(&self.proxy, request).await
    }

    async fn readiness(&self) -> (u16, String) {
        readiness(&self.proxy).await
    }

    async fn metric(&self, sample: &str) -> f64 {
        metric(&self.proxy, &format!("mcp_resume_{sample}")).await
    }

    /// Waits until the owner of the only call knows of `count` readers, at any replica.
    async fn knows_of_readers(&self, count: usize) {
        let attached = async || {
            let mut listed = Request::new("GET", "/streams").send(self.proxy.admin.expect("an admin listener")).await;
            let listed = listed.json().await;
            let streams = listed["streams"].as_array().expect("a list").clone();
            streams.iter().filter(|stream| stream["attached"] == true).count()
        };
        until("the owner hears of readers", async || attached().await == count).await;
    }
}

async fn told(proxy: &Proxy, request: Request) -> (u16, String) {
    let mut response = request.send(proxy.addr).await;
    (response.status, String::from_utf8(response.body().await).expect("text"))
}

async fn readiness(proxy: &Proxy) -> (u16, String) {
    let mut response = Request::new("GET", "/readyz").send(proxy.admin.expect("an admin listener")).await;
    (response.status, String::from_utf8(response.body().await).expect("text"))
}

/// Two replicas with a Redis of their own, and a session of the first one's server.
async fn pair() -> (Redis, Replica, Replica, Session) {
    pair_with(|_| {}).await
}

async fn pair_with(change: impl Fn(&mut Config)) -> (Redis, Replica, Replica, Session) {
    let redis = Redis::start();
    let mut one = Replica::with(&redis, "one", &change).await;
    let two = Replica::with(&redis, "two", &change).await;
    let session = one.open(V2025_11).await;
    (redis, one, two, session)
}

/// The stream URL of an event id.
fn url_of(place: &EventId) -> String {
    format!("/mcp?mcp-stream={}", place.handle)
}

fn texts(events: &[Frame]) -> Vec<String> {
    events.iter().map(|event| String::from_utf8(event.bytes().to_vec()).expect("text")).collect()
}

/// Everything to the end, which must be one.
async fn rest(response: &mut Response) -> Vec<String> {
    let (events, end) = response.events().await;
    assert_eq!(end, End::Complete);
    texts(&events)
}

#[track_caller]
fn assert_owner_died(text: &str, id: impl Into<Value>) {
    let message: Value = serde_json::from_str(text).expect("a message");
    assert_fault(&message, id, ABANDONED, "proxy");
    assert_eq!(message["error"]["message"], after_a_run(OWNER_DIED));
    assert_eq!(message["error"]["data"]["mayHaveRun"], true);
}

#[track_caller]
fn assert_lost(text: &str) {
    assert!(text.contains(".end\n") && text.contains(&GONE.to_string()), "{text}");
}
