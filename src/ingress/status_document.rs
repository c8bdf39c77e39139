//! Status document for balancers: the identity of a sidecar, and whether it takes calls. It is on
//! the data listener, the only address that a balancer knows.
//!
//! The document has no secret and no host name. Absent: the balancer's use of it.

use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderValue, Method, Response, StatusCode};
use serde_json::json;

use super::components::Components;
use crate::body::{BoxBody, whole};
use crate::config;
use crate::lifecycle::readiness::Readiness;
use crate::protocol::routing::WELL_KNOWN;
use crate::server::respond;

/// Path of the document. It is never the upstream's.
pub(super) const PATH: &str = WELL_KNOWN;

/// Responds to a request for [`PATH`], with 200 while anything is served.
pub(super) async fn handle(components: &Components, method: &Method) -> Response<BoxBody> {
    if !matches!(*method, Method::GET | Method::HEAD) {
        return respond::method_not_allowed();
    }
    let body = content(components).await;
    let mut response = respond::status(StatusCode::OK);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response.headers_mut().insert(CONTENT_LENGTH, body.len().into());
    if *method == Method::GET {
        *response.body_mut() = whole(body.into());
    }
    response
}

async fn content(components: &Components) -> String {
    let readiness =
        Readiness::of(&components.drain, &components.log, components.replicas.as_deref(), &components.upstream).await;
    let kind = match components.config.store {
        config::Store::Memory => "memory",
        config::Store::Disk(_) => "disk",
        config::Store::Redis(_) => "redis",
    };
    let store = json!({
        "kind": kind,
        "shared": components.log.coordination().is_some(),
        "epoch": components.log.epoch().to_string(),
    });
    // Each caller has a session, or a process, of this replica alone.
    let keeps_callers = components.config.upstream.is_channel()
        || components
            .config
            .bridge
            .as_ref()
            .is_some_and(|bridge| bridge.modern_clients == config::ModernClients::Always);
    json!({
        "service": "mcp-resume",
        "owner": components.log.owner().to_string(),
        "instance": format!("{:016x}", components.instance),
        "ready": readiness.can_take_calls(),
        "draining": components.drain.has_begun(),
        "store": store,
        "bridge": keeps_callers,
        "openStreams": components.metrics.upstream.open_calls(),
    })
    .to_string()
}
