//! A call without a stream.
//!
//! The response to most calls of servers without event streams is short JSON, which passes to the
//! client as it is. Nothing of it is logged, so that such a call needs no stream. It sends its
//! request, and hands the response over if that is all there. For any other response, and if it has
//! to wait for one, it gets a stream, whose pump continues it where it is.
//!
//! Invariant: metrics and observed facts are those of the same call in a stream. Absent: the
//! conditions for such a call, and the reasons to end its wait (`ingress/calls/direct.rs`).

use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use bytes::Bytes;
use http::Response;

use super::metrics::{Metrics, OpenCall};
use super::pump::{BegunCall, Call, Pump, SentRequest, adapt_passing};
use super::server::exchange::Exchange;
use super::server::response_body::ResponseBody;
use super::server::sent::{Sent, SentAhead};
use super::stack::Upstream;
use crate::clock;
use crate::event_log::{EventLog, Writer};
use crate::protocol::headers::{self, ResponseFacts};

/// A call whose request is in flight, and that has no stream yet.
pub struct DirectCall {
    upstream: Arc<Upstream>,
    metrics: Arc<Metrics>,
    call: Call,
    /// Counts the call as open, until its response passes.
    open: Option<OpenCall>,
    began: Instant,
    request: SentRequest,
    sent: Arc<SentAhead>,
}

impl DirectCall {
    /// Begins the call. Its request is sent when the call is polled.
    pub fn begin(upstream: Arc<Upstream>, metrics: Arc<Metrics>, call: Call) -> Self {
        let (open, began) = (Some(metrics.begin_call()), clock::now());
        let sent = Arc::<SentAhead>::default();
        let (server, template, record) = (upstream.clone(), call.template.clone(), Sent::Ahead(sent.clone()));
        let in_flight = Box::pin(async move { server.exchange_in_box(&template, Some(&record)).await });
        Self { upstream, metrics, call, open, began, request: SentRequest::InFlight(in_flight), sent }
    }

    /// Returns the time of the beginning.
    pub fn began(&self) -> Instant {
        self.began
    }

    /// Polls for the response, if it passes to the client and has at most `max` bytes. Returns
    /// `None` if the call needs a stream: for any other response, and for an error. Must not be
    /// polled again after a response.
    pub fn poll(&mut self, cx: &mut Context<'_>, max: usize) -> Poll<Option<Response<Bytes>>> {
        let SentRequest::InFlight(in_flight) = &mut self.request else { return Poll::Ready(None) };
        let answered = match ready!(in_flight.as_mut().poll(cx)) {
            Ok(response) => match self.take_whole(response, cx, max) {
                Ok(whole) => return Poll::Ready(Some(whole)),
                Err(response) => Ok(response),
            },
            unanswered => unanswered,
        };
        self.request = SentRequest::Answered(answered);
        Poll::Ready(None)
    }

    /// Returns the call as that of the stream of `writer`.
    pub fn into_pump(self, log: Arc<EventLog>, writer: Writer) -> Box<Pump> {
        let Self { upstream, metrics, call, open, began, request, sent } = self;
        sent.move_to(writer.stream());
        let begun = BegunCall { open: open.unwrap_or_else(|| metrics.begin_call()), began };
        Pump::take_over(upstream, log, metrics, writer, (call, begun, request))
    }

    /// Notes that the response passes: the call is no longer open.
    pub fn end(&mut self) {
        self.open = None;
    }

    /// Returns the call as that of the stream of `writer`, if the client may not have `response`,
    /// which has passed. Head metrics count it again.
    pub fn into_pump_of_passed(mut self, log: Arc<EventLog>, writer: Writer, response: Response<Bytes>) -> Box<Pump> {
        self.request = SentRequest::Answered(Ok(Box::new(response.map(ResponseBody::whole))));
        self.into_pump(log, writer)
    }

    /// Returns the response for the client if it passes and is all there.
    ///
    /// # Errors
    /// The response otherwise. Nothing of it is lost.
    fn take_whole(
        &self,
        mut response: Box<Response<ResponseBody>>,
        cx: &mut Context<'_>,
        max: usize,
    ) -> Result<Response<Bytes>, Box<Response<ResponseBody>>> {
        let facts = ResponseFacts::of(response.headers());
        if (response.status().is_success() && facts.is_sse) || self.call.may_ask_again(&response) {
            return Err(response);
        }
        let Some(body) = response.body_mut().take_arrived(cx, max) else { return Err(response) };
        let now = clock::now();
        self.metrics.observe_head(now.saturating_duration_since(self.began));
        self.call.record_response(&response, &self.upstream, self.began, now);
        let (mut parts, _) = response.into_parts();
        if facts.has_hop_by_hop {
            headers::remove_hop_by_hop(&mut parts.headers);
        }
        adapt_passing(&self.upstream, &mut parts.headers, &facts);
        Ok(Response::from_parts(parts, body))
    }
}
