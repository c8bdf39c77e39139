//! The admin listener: probes, the metrics page, the streams and their live page, the drain.
//! `ask.rs` is its client.
//!
//! Invariants: no response gives access to a stream, or has contents of one. Only the drain changes
//! state, and no page of another origin can begin it: a browser sends `X-Drain` only after a
//! preflight request.

pub mod ask;
mod metrics;
mod streams;
pub(crate) mod waiting;

use std::sync::Arc;

use http::header::CONTENT_SECURITY_POLICY;
use http::{HeaderValue, Method, Request, Response, StatusCode};

pub use metrics::Metrics;

use crate::body::{BoxBody, Incoming};
use crate::cluster::Replicas;
use crate::event_log::EventLog;
use crate::lifecycle::drain::{Drain, X_DRAIN};
use crate::lifecycle::readiness::Readiness;
use crate::protocol::access::AllowedHosts;
use crate::protocol::error::ErrorCode;
use crate::server::respond::{self, text};
use crate::store::StoreHealth;
use crate::upstream::{Reachability, Upstream};

/// Content security policy: the live page loads its own parts and connects to its own origin.
const PAGE_POLICY: &str = "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'";

/// Paths of the listener for metrics alone.
const FOR_METRICS: [&str; 4] = ["/metrics", "/livez", "/healthz", "/readyz"];

/// Handler of the admin listener.
pub struct Admin {
    /// For `/metrics`.
    pub metrics: Arc<Metrics>,
    /// For `/readyz` and `/metrics`.
    pub upstream: Arc<Upstream>,
    /// For `/streams`.
    pub log: Arc<EventLog>,
    /// For `/readyz`: the replicas that share the store, or `None` without a shared store.
    pub replicas: Option<Arc<Replicas>>,
    /// For `/drain`, and `/readyz` during one.
    pub drain: Arc<Drain>,
    /// Host names that requests may have.
    pub hosts: AllowedHosts,
    /// True if only metrics and probes are served, which change nothing and name no stream.
    pub is_metrics_only: bool,
}

impl Admin {
    /// Handles one request.
    pub async fn handle(self: Arc<Self>, request: Request<Incoming>) -> Response<BoxBody> {
        // Protects from DNS rebinding: a page that leads a browser here by a name of its own can
        // read nothing.
        if !self.hosts.admit(request.uri(), request.headers()) {
            return respond::access_refused(
                ErrorCode::HostRefused,
                request.uri(),
                request.headers(),
                &self.metrics.errors,
            );
        }
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return respond::method_not_allowed();
        }
        match request.uri().path() {
            path if self.is_metrics_only && !FOR_METRICS.contains(&path) => {
                text(StatusCode::NOT_FOUND, "here are /livez, /readyz and /metrics\n")
            }
            "/" => live_page("text/html; charset=utf-8", include_str!("page.html")),
            "/page.css" => live_page("text/css; charset=utf-8", include_str!("page.css")),
            "/page.js" => live_page("text/javascript; charset=utf-8", include_str!("page.js")),
            "/healthz" | "/livez" => text(StatusCode::OK, "ok\n"),
            "/readyz" => self.readyz().await,
            "/upstreamz" => match self.upstream.server().reachability().await {
                Reachability::Accepting => text(StatusCode::OK, "ok\n"),
                Reachability::Unknown => text(StatusCode::SERVICE_UNAVAILABLE, Readiness::NoUpstream.text()),
                Reachability::Lost => text(StatusCode::SERVICE_UNAVAILABLE, Readiness::UpstreamLost.text()),
            },
            "/metrics" => {
                let readiness = self.readiness().await;
                self.metrics.set_ready(readiness.can_take_calls());
                self.metrics.store.set_ready(self.log.store_health() == StoreHealth::Ready);
                self.metrics.upstream.set_ready(self.upstream.server().reachability().await == Reachability::Accepting);
                respond::metrics(self.metrics.render())
            }
            "/streams" => respond::json(StatusCode::OK, streams::list(self.log.summaries()).into()),
            "/drain" if !request.headers().contains_key(X_DRAIN) || *request.method() != Method::GET => {
                text(StatusCode::FORBIDDEN, "a drain is asked for by GET with the header X-Drain\n")
            }
            "/drain" => {
                self.drain.run().await;
                text(StatusCode::OK, "drained\n")
            }
            _ => {
                text(StatusCode::NOT_FOUND, "here are /, /streams, /livez, /readyz, /upstreamz, /metrics and /drain\n")
            }
        }
    }

    async fn readiness(&self) -> Readiness {
        Readiness::of(&self.drain, &self.log, self.replicas.as_deref(), &self.upstream).await
    }

    async fn readyz(&self) -> Response<BoxBody> {
        let readiness = self.readiness().await;
        let status = if readiness.can_take_calls() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        text(status, readiness.text())
    }
}

/// Returns a part of the live page; all parts are compiled in.
fn live_page(media_type: &'static str, text: &'static str) -> Response<BoxBody> {
    let mut response = respond::page(StatusCode::OK, media_type, text);
    response.headers_mut().insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(PAGE_POLICY));
    response
}
