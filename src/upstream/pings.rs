//! Pings between the proxy and the server, beside the calls: responses to the server's, and the
//! proxy's own.
//!
//! Owned here: the sending of both, each in a separate task, so that no ping waits behind another
//! message. An unwritten response is retried while its stream runs. A ping of the proxy is sent
//! once, and its response dropped. Absent: the choice and the time of responses to pings (the
//! machine), the choice of sessions that get a ping (`event_log`), and the headers after a refusal
//! (`ping_headers`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use http::StatusCode;
use tracing::{Instrument, debug};

use super::metrics::{Metrics, PingOutcome};
use super::server::body::collect;
use super::server::request::Template;
use super::server::synthetic;
use super::stack::Upstream;
use crate::backoff::Backoff;
use crate::clock;
use crate::event_log::Stream;
use crate::protocol::jsonrpc::{RequestId, response};

/// Pauses between two attempts to send a response.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(1));
/// Time limit of sending a response, and of the server's response to a ping. No server waits longer
/// for either.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum number of responses of one stream in flight. A ping beyond it gets no response.
const MAX_RESPONSES: usize = 32;
/// Size limit of the ID in a response, whose memory is not counted by a quota.
const MAX_ID: usize = 1024;
/// Limits of the HTTP response to a message. A longer response closes its connection.
const MAX_RESPONSE: usize = 64 * 1024;
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Pings of one stream.
pub(super) struct Pings {
    upstream: Arc<Upstream>,
    stream: Arc<Stream>,
    metrics: Arc<Metrics>,
    /// Request that opened the stream.
    call: Arc<Template>,
    /// Number of responses in flight.
    responses: AtomicUsize,
    /// True once the server has refused the credentials of a ping or a response of this stream.
    has_refused: AtomicBool,
}

impl Drop for Pings {
    fn drop(&mut self) {
        if self.has_refused.load(Ordering::Relaxed) {
            self.upstream.ping_headers().forget(self.stream.binding());
        }
    }
}

impl Pings {
    pub(super) fn new(
        upstream: Arc<Upstream>,
        stream: Arc<Stream>,
        metrics: Arc<Metrics>,
        call: Arc<Template>,
    ) -> Arc<Self> {
        let (responses, has_refused) = (AtomicUsize::new(0), AtomicBool::new(false));
        Arc::new(Self { upstream, stream, metrics, call, responses, has_refused })
    }

    /// Returns true if these are the pings of `call`.
    pub(super) fn are_of(&self, call: &Arc<Template>) -> bool {
        Arc::ptr_eq(&self.call, call)
    }

    /// Responds to a ping of the server.
    pub(super) fn respond(self: &Arc<Self>, id: RequestId) {
        // Only the pump begins responses, so the count cannot be exceeded.
        if id.text().len() > MAX_ID || self.responses.load(Ordering::Relaxed) >= MAX_RESPONSES {
            return debug!(stream.id = %self.stream.id(), "a server sends pings faster than it takes answers: one gets none");
        }
        self.responses.fetch_add(1, Ordering::Relaxed);
        let pings = self.clone();
        let responding = async move {
            let responding = tokio::time::timeout(TIMEOUT, pings.send_response(&id));
            let outcome = responding.await.unwrap_or(PingOutcome::Failed);
            pings.responses.fetch_sub(1, Ordering::Relaxed);
            pings.metrics.observe_ping_response(outcome);
            debug!(stream.id = %pings.stream.id(), outcome = outcome.label(), "answered a ping of the server");
        };
        tokio::spawn(responding.in_current_span());
    }

    async fn send_response(&self, id: &RequestId) -> PingOutcome {
        let mut backoff = BACKOFF;
        loop {
            match self.send(response::empty(id)).await {
                Ok(outcome) => return outcome,
                Err(may_have_arrived) if may_have_arrived => return PingOutcome::Failed,
                Err(_) if self.stream.with_machine(|machine| machine.lifecycle().is_sealed()) => {
                    return PingOutcome::Failed;
                }
                Err(_) => clock::sleep(backoff.next_pause()).await,
            }
        }
    }

    /// Sends a ping, which keeps the session alive at the server.
    pub(super) fn send_ping(self: &Arc<Self>) {
        let pings = self.clone();
        let sending = async move {
            let outcome = match tokio::time::timeout(TIMEOUT, pings.send(synthetic::ping())).await {
                Ok(Ok(outcome)) => outcome,
                Ok(Err(_)) | Err(_) => PingOutcome::Failed,
            };
            pings.metrics.observe_keep_alive_ping(outcome);
            debug!(stream.id = %pings.stream.id(), outcome = outcome.label(), "sent a quiet session's server a ping");
        };
        tokio::spawn(sending.in_current_span());
    }

    /// Sends a message with the headers of the session's caller, and drops the response. The error
    /// is true if the message may have arrived.
    async fn send(&self, message: Vec<u8>) -> Result<PingOutcome, bool> {
        let has_refused = self.has_refused.load(Ordering::Relaxed);
        let headers = self.upstream.ping_headers();
        let Some(call) = headers.find(self.stream.binding(), &self.call, has_refused) else {
            return Ok(PingOutcome::Withheld);
        };
        match self.upstream.send(&synthetic::post(&call.in_session_of(&self.call), message)).await {
            Ok(response) => {
                let status = response.status();
                if matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
                    self.has_refused.store(true, Ordering::Relaxed);
                    headers.record_refusal(self.stream.binding(), &call);
                }
                // Reading a body to its end frees the connection for others.
                let whole = collect(response.into_body(), MAX_RESPONSE);
                let _ = tokio::time::timeout(RESPONSE_TIMEOUT, whole).await;
                Ok(if status.is_success() { PingOutcome::Accepted } else { PingOutcome::Refused })
            }
            Err(failure) => {
                debug!(?failure, "a ping or its answer did not reach the upstream");
                Err(failure.may_have_run)
            }
        }
    }
}
