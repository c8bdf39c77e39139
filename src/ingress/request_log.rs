//! What the log says of requests: a line for each return of a client to its stream, and at DEBUG one for each request.

use std::time::Instant;

use http::{Method, Request, Response};
use tracing::{Level, debug, enabled, info};

use crate::clock;
use crate::config::UpstreamUrl;
use crate::event_log::Stream;
use crate::protocol::ids::Seq;
use crate::protocol::stream::Phase;

/// Tells of a client that came back to `stream`, by `how`, and goes on after `cursor`.
pub(super) fn log_return(stream: &Stream, how: &'static str, cursor: Seq) {
    if !enabled!(Level::INFO) {
        return;
    }
    let (name, summary) = (stream.call_name(), stream.summary(clock::now()));
    let outcome = match summary.phase {
        Phase::Sealed { outcome, .. } => Some(outcome.label()),
        Phase::Waiting | Phase::Passed | Phase::Open => None,
    };
    info!(
        stream.id = %stream.id(),
        session = stream.binding().session_hash(),
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

/// A request whose line is to be written.
pub(super) struct AccessLine {
    method: Method,
    /// Without its query, which may open a stream. Only of the endpoint: other paths are not ours, and may hold a secret.
    path: Option<String>,
    began: Instant,
}

impl AccessLine {
    /// Notes a request to the server at `upstream`; `None`, at no cost, where the line is not wanted.
    pub(super) fn begin<B>(request: &Request<B>, upstream: &UpstreamUrl) -> Option<Box<Self>> {
        enabled!(Level::DEBUG).then(|| {
            let path = request.uri().path();
            let path = upstream.is_endpoint(path).then(|| path.to_owned());
            Box::new(Self { method: request.method().clone(), path, began: clock::now() })
        })
    }

    /// Writes the line, once the head of the response is there.
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
