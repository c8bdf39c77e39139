//! Status document for balancers: the identity of a sidecar, and whether it takes calls. It is on the data listener, the only address that
//! a balancer knows.
//!
//! The document has no secret and no host name. Absent: the balancer's use of it.

use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderValue, Method, Response, StatusCode};
use serde_json::json;

use super::{Ingress, respond};
use crate::body::BoxBody;
use crate::body::whole;
use crate::config;
use crate::protocol::routing::WELL_KNOWN;

/// Path of the document. It is never the upstream's.
pub(super) const PATH: &str = WELL_KNOWN;

impl Ingress {
    /// Responds to a request for [`PATH`], with 200 while anything is served.
    pub(super) async fn well_known(&self, method: &Method) -> Response<BoxBody> {
        if !matches!(*method, Method::GET | Method::HEAD) {
            return respond::method_not_allowed();
        }
        let body = self.standing().await;
        let mut response = respond::status(StatusCode::OK);
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        response.headers_mut().insert(CONTENT_LENGTH, body.len().into());
        if *method == Method::GET {
            *response.body_mut() = whole(body.into());
        }
        response
    }

    async fn standing(&self) -> String {
        let readiness = self.readiness().await;
        let kind = match self.config.store {
            config::Store::Memory => "memory",
            config::Store::Disk(_) => "disk",
            config::Store::Redis(_) => "redis",
        };
        let store = json!({
            "kind": kind,
            "shared": self.log.shared().is_some(),
            "epoch": format!("{:08x}", self.log.epoch().0),
        });
        json!({
            "service": "mcp-resume",
            "owner": self.log.owner().to_string(),
            "instance": format!("{:016x}", self.instance),
            "ready": readiness.can_take_calls(),
            "draining": self.drain.has_begun(),
            "store": store,
            "openStreams": self.metrics.upstream.open_calls(),
        })
        .to_string()
    }
}
