//! Status document for balancers: the identity of a sidecar, and whether it takes calls. It is on
//! the data listener, the only address that a balancer knows.
//!
//! The document has no secret and no host name. Absent: the balancer's use of it.

use std::sync::Arc;

use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderValue, Method, Response, StatusCode};
use serde_json::json;

use super::components::Components;
use super::metrics::Metrics;
use crate::body::{BoxBody, whole};
use crate::cluster::Replicas;
use crate::config::{self, Config};
use crate::event_log::EventLog;
use crate::lifecycle::drain::Drain;
use crate::lifecycle::readiness::Readiness;
use crate::protocol::routing::WELL_KNOWN;
use crate::server::respond;
use crate::upstream::Upstream;

/// Path of the document. It is never the upstream's.
pub(super) const PATH: &str = WELL_KNOWN;

/// Makes the status document.
pub(super) struct StatusDocument {
    config: Arc<Config>,
    log: Arc<EventLog>,
    upstream: Arc<Upstream>,
    metrics: Arc<Metrics>,
    drain: Arc<Drain>,
    replicas: Option<Arc<Replicas>>,
    instance: u64,
}

impl StatusDocument {
    pub(super) fn new(components: &Components) -> Self {
        let Components { config, log, upstream, metrics, drain, replicas, instance, .. } = components;
        Self {
            config: config.clone(),
            log: log.clone(),
            upstream: upstream.clone(),
            metrics: metrics.clone(),
            drain: drain.clone(),
            replicas: replicas.clone(),
            instance: *instance,
        }
    }

    /// Responds to a request for [`PATH`], with 200 while anything is served.
    pub(super) async fn handle(&self, method: &Method) -> Response<BoxBody> {
        if !matches!(*method, Method::GET | Method::HEAD) {
            return respond::method_not_allowed();
        }
        let body = self.content().await;
        let mut response = respond::status(StatusCode::OK);
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        response.headers_mut().insert(CONTENT_LENGTH, body.len().into());
        if *method == Method::GET {
            *response.body_mut() = whole(body.into());
        }
        response
    }

    async fn content(&self) -> String {
        let readiness = Readiness::of(&self.drain, &self.log, self.replicas.as_deref(), &self.upstream).await;
        let kind = match self.config.store {
            config::Store::Memory => "memory",
            config::Store::Disk(_) => "disk",
            config::Store::Redis(_) => "redis",
        };
        let store = json!({
            "kind": kind,
            "shared": self.log.coordination().is_some(),
            "epoch": format!("{:08x}", self.log.epoch().0),
        });
        // Each caller has a session, or a process, of this replica alone.
        let keeps_callers = self.config.upstream.is_channel()
            || self.config.bridge.as_ref().is_some_and(|bridge| bridge.modern_clients == config::ModernClients::Always);
        json!({
            "service": "mcp-resume",
            "owner": self.log.owner().to_string(),
            "instance": format!("{:016x}", self.instance),
            "ready": readiness.can_take_calls(),
            "draining": self.drain.has_begun(),
            "store": store,
            "bridge": keeps_callers,
            "openStreams": self.metrics.upstream.open_calls(),
        })
        .to_string()
    }
}
