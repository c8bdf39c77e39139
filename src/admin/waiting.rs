//! Responses of the admin listener before the store is open: the process runs, and is not ready.

use http::{Request, Response, StatusCode};

use super::Metrics;
use crate::body::{BoxBody, Incoming};
use crate::lifecycle::readiness::Readiness;
use crate::protocol::access::AllowedHosts;
use crate::protocol::error::ErrorCode;
use crate::server::respond::{self, text};

/// Handles one request. A drain ends at once, because no call runs.
pub(crate) fn respond(request: &Request<Incoming>, hosts: &AllowedHosts, metrics: &Metrics) -> Response<BoxBody> {
    if !hosts.admit(request.uri(), request.headers()) {
        return respond::access_refused(ErrorCode::HostRefused, request.uri(), request.headers(), &metrics.errors);
    }
    match request.uri().path() {
        "/healthz" | "/livez" => text(StatusCode::OK, "ok\n"),
        "/drain" => text(StatusCode::OK, "drained\n"),
        "/metrics" => respond::metrics(metrics.render()),
        _ => text(StatusCode::SERVICE_UNAVAILABLE, Readiness::StoreUnreachable.text()),
    }
}
