//! The admin listener: probes and the metrics page. Nothing here changes state.

use std::sync::Arc;

use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Request, Response, StatusCode};

use crate::event_log::BoxBody;
use crate::incoming::Incoming;
use crate::ingress::respond;
use crate::metrics::Metrics;
use crate::upstream::{Upstream, whole};

/// What the pages are made from.
pub struct Admin {
    /// For `/metrics`.
    pub metrics: Arc<Metrics>,
    /// For `/readyz`.
    pub upstream: Arc<Upstream>,
}

impl Admin {
    /// Answers one request.
    pub async fn handle(self: Arc<Self>, request: Request<Incoming>) -> Response<BoxBody> {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return respond::method_not_allowed();
        }
        match request.uri().path() {
            "/healthz" => text(StatusCode::OK, "ok\n"),
            "/readyz" if self.upstream.is_ready().await => text(StatusCode::OK, "ready\n"),
            "/readyz" => text(StatusCode::SERVICE_UNAVAILABLE, "the upstream has not accepted a connection yet\n"),
            "/metrics" => {
                let mut page = respond::status(StatusCode::OK);
                let kind = HeaderValue::from_static("text/plain; version=0.0.4");
                page.headers_mut().insert(CONTENT_TYPE, kind);
                *page.body_mut() = whole(self.metrics.render().into());
                page
            }
            _ => text(StatusCode::NOT_FOUND, "here are /healthz, /readyz and /metrics\n"),
        }
    }
}

fn text(status: StatusCode, text: &'static str) -> Response<BoxBody> {
    let mut response = respond::status(status);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    *response.body_mut() = whole(text.into());
    response
}
