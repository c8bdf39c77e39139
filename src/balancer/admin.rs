//! The balancer's admin listener: probes, metrics, and the list of replicas.

use std::future::{Future, pending};
use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request, Response, StatusCode};
use pingora_core::server::ShutdownWatch;
use serde_json::json;
use tokio::net::TcpListener;

use super::metrics::Metrics;
use super::selection::{Condition, Replica, StoreScope};
use super::table::Table;
use mcp_resume_protocol::access::{self, AllowedHosts};
use mcp_resume_protocol::error::ErrorCode;
use mcp_resume_server::body::{BoxBody, Incoming};
use mcp_resume_server::respond::{self, text};
use mcp_resume_server::{self as server, ConnectionLimit, ListenerConfig, Protocols};

/// Most connections: probes and a few collectors.
const CONNECTIONS: usize = 256;

/// State behind the pages.
pub(super) struct Admin {
    pub(super) metrics: Arc<Metrics>,
    pub(super) table: Arc<Table>,
    pub(super) stopping: ShutdownWatch,
    /// Host names that requests may use.
    pub(super) hosts: AllowedHosts,
}

/// Serves until `stopped` resolves.
pub(super) async fn serve(
    listener: TcpListener,
    admin: Admin,
    (header_bytes, idle): (usize, Duration),
    stopped: impl Future<Output = ()>,
) {
    let limit = ConnectionLimit::new(CONNECTIONS);
    let config = ListenerConfig { protocols: Protocols::Http1, header_bytes, idle, limit, metrics: None };
    let admin = Arc::new(admin);
    let handler = move |request: Request<Incoming>| {
        let admin = admin.clone();
        async move { admin.handle(&request) }
    };
    server::serve(listener, config, handler, pending(), stopped).await;
}

impl Admin {
    fn handle(&self, request: &Request<Incoming>) -> Response<BoxBody> {
        // Blocks DNS rebinding: a page of another host must not read these pages.
        if !self.hosts.admit(request.uri(), request.headers()) {
            let detail = access::host_refused(request.uri(), request.headers());
            return respond::refusal_about(ErrorCode::HostRefused, &detail);
        }
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return respond::method_not_allowed();
        }
        match request.uri().path() {
            "/healthz" | "/livez" => text(StatusCode::OK, "ok\n"),
            "/readyz" => self.readiness(),
            "/metrics" => respond::metrics(self.metrics.render()),
            "/replicas" => respond::json(StatusCode::OK, list(&self.table).into()),
            _ => text(StatusCode::NOT_FOUND, "here are /livez, /readyz, /metrics and /replicas\n"),
        }
    }

    fn readiness(&self) -> Response<BoxBody> {
        if *self.stopping.borrow() {
            return text(StatusCode::SERVICE_UNAVAILABLE, "stopping\n");
        }
        let can_take_calls = |replica: &Replica| matches!(replica.condition, Condition::Ready | Condition::Ejected);
        if self.table.replicas().iter().any(can_take_calls) {
            return text(StatusCode::OK, "ready\n");
        }
        // Clients of running calls must still get through, and no other balancer could do more for
        // them.
        if self.table.replicas().iter().any(|replica| replica.condition == Condition::NoNewCalls) {
            return text(StatusCode::OK, "ready for what runs: no replica takes new calls\n");
        }
        text(StatusCode::SERVICE_UNAVAILABLE, "no replica answers\n")
    }
}

fn list(table: &Table) -> Vec<u8> {
    let replicas = table.replicas().into_iter().map(|replica| {
        let condition = match replica.condition {
            Condition::Ready => "ready",
            Condition::Ejected => "ejected",
            Condition::NoNewCalls => "closing",
            Condition::Down => "down",
        };
        json!({
            "address": replica.address.to_string(),
            "owner": replica.owner.to_string(),
            "condition": condition,
            "sharesStore": replica.store == StoreScope::Shared,
            "load": replica.load,
            "part": replica.weight,
            "rank": replica.priority,
        })
    });
    let never_reported = table.never_reported().into_iter();
    let never_reported = never_reported.map(|address| json!({"address": address.to_string(), "condition": "unknown"}));
    serde_json::Value::Array(replicas.chain(never_reported).collect()).to_string().into_bytes()
}
