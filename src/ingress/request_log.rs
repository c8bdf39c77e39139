//! Log lines of requests: one for each return of a client to its stream, and one for each request
//! at DEBUG.

use std::time::Instant;

use http::{Method, Request, Response};
use tracing::{Level, debug, enabled, info};

use crate::clock;
use crate::config::UpstreamUrl;
use crate::event_log::Stream;
use crate::protocol::ids::Seq;
use crate::protocol::stream::Phase;

/// Logs the return of a client to `stream` by the dialect `how`. It continues after `cursor`.
pub(super) fn log_return(stream: &Stream, how: &'static str, cursor: Seq) {
    if !enabled!(Level::INFO) {
        return;
    }
    let (name, summary) = (stream.trace().name(), stream.summary(clock::now()));
    let outcome = match summary.phase {
        Phase::Sealed { outcome, .. } => Some(outcome.label()),
        Phase::Waiting | Phase::Passed | Phase::Open => None,
    };
    info!(
        stream.id = %stream.id(),
        session = stream.binding().session_hash().as_deref(),
        method = name.map(|name| &*name.method),
        tool = name.and_then(|name| name.tool.as_deref()),
        by = how,
        cursor = cursor.0,
        duration_ms = summary.age.as_millis() as u64,
        events = summary.events,
        connections = summary.connections,
        outcome,
        "client came back"
    );
}

/// Access log line of a request.
pub(super) struct AccessLine {
    method: Method,
    /// Path without its query, which may open a stream. `None` for other paths than the endpoint,
    /// which may hold secrets.
    path: Option<String>,
    began: Instant,
}

impl AccessLine {
    /// Begins the line of a request to the server at `upstream`. `None`, at no cost, if DEBUG lines
    /// are off.
    pub(super) fn begin<B>(request: &Request<B>, upstream: &UpstreamUrl) -> Option<Box<Self>> {
        if !enabled!(Level::DEBUG) {
            return None;
        }
        let path = request.uri().path();
        let path = if upstream.is_endpoint(path) { Some(path.to_owned()) } else { None };
        Some(Box::new(Self { method: request.method().clone(), path, began: clock::now() }))
    }

    /// Writes the line once the response has a head.
    pub(super) fn end<B>(&self, response: &Response<B>) {
        let duration = clock::now().saturating_duration_since(self.began);
        debug!(
            method = %self.method,
            path = self.path.as_deref().unwrap_or("another"),
            status = response.status().as_u16(),
            duration_ms = duration.as_millis() as u64,
            "request"
        );
    }
}
