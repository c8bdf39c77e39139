//! The state of a probe, and its requests: their common limits.
//!
//! Invariant: a server that left [`MAX_TIMEOUTS`] requests without a response gets no further one.
//! Absent: the requests to send, and the facts that follow ([`super::probe`], [`super::watch`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;

use super::exchange::{Client, Cut, ExchangeError, Observation, Request};
use super::facts::{UnknownSession, is_busy, printable};
use super::requests::Requester;
use super::{Options, Timeouts};
use crate::config::{Config, PublicUrl};
use crate::protocol::jsonrpc::RequestId;
use crate::protocol::session_refusal::{self, BODY_MAX, SessionRefusals};

/// Number of timeouts before the server gets no further request of the kinds that count timeouts.
const MAX_TIMEOUTS: usize = 2;

/// A probe of one server.
pub(super) struct Probe<'a> {
    pub(super) options: &'a Options,
    pub(super) timeouts: Timeouts,
    pub(super) client: Client,
    /// `listen.public_url`, or `None` without it.
    pub(super) public: Option<Arc<PublicUrl>>,
    refusals: SessionRefusals,
    /// Requests without a response in time.
    timed_out: AtomicUsize,
}

impl<'a> Probe<'a> {
    pub(super) fn new(config: &Config, options: &'a Options, client: Client) -> Self {
        let refusals = SessionRefusals::new(config.sessions.refusals.clone());
        let (timeouts, public) = (options.timeouts, config.listen.public_url.clone());
        Self { options, timeouts, client, public, refusals, timed_out: AtomicUsize::new(0) }
    }

    /// Returns true if the server stopped responding.
    pub(super) fn has_fallen_silent(&self) -> bool {
        self.timed_out.load(Ordering::Relaxed) >= MAX_TIMEOUTS
    }

    /// Sends a ping, and returns the reaction to its session.
    pub(super) async fn ping(&self, requester: &Requester, id: u64) -> UnknownSession {
        let request = requester.post(Some(id), "ping", Value::Null);
        let exchange = self.client.plain(request, BODY_MAX, self.timeouts.response);
        let Ok((status, body)) = self.unless_silent(exchange).await else { return UnknownSession::Unknown };
        let ids = [RequestId::Number(id.to_string().into())];
        let body = body.as_deref();
        let is_refused = !status.is_success() || body.is_some_and(session_refusal::is_error_without_id);
        match status.as_u16() {
            // It is about the server, and not about the session.
            status if is_busy(status) => UnknownSession::Unknown,
            status if self.refusals.judge(status, body, &ids).is_known() => UnknownSession::Recognised { status },
            status if is_refused => {
                let words = body.and_then(session_refusal::wording);
                UnknownSession::Unrecognised { status, words: words.map(|words| printable(&words)) }
            }
            _ => UnknownSession::Accepted,
        }
    }

    /// Sends a request and reads its whole response.
    pub(super) async fn request(&self, request: Request) -> Result<Observation, ExchangeError> {
        self.request_until(request, Cut::Never).await
    }

    /// Sends a request and reads its response up to `cut`, unless too many earlier ones timed out.
    pub(super) async fn request_until(&self, request: Request, cut: Cut) -> Result<Observation, ExchangeError> {
        self.unless_silent(self.client.exchange(request, self.timeouts.response, cut)).await
    }

    /// Awaits a response, unless too many earlier ones timed out.
    async fn unless_silent<T>(
        &self,
        exchange: impl Future<Output = Result<T, ExchangeError>>,
    ) -> Result<T, ExchangeError> {
        if self.has_fallen_silent() {
            return Err(ExchangeError::TimedOut);
        }
        let response = exchange.await;
        if matches!(response, Err(ExchangeError::TimedOut)) {
            self.timed_out.fetch_add(1, Ordering::Relaxed);
        }
        response
    }
}
