//! Calls that begin without a stream: those outside a session whose response may pass as it is.
//!
//! The handler polls such a call, and returns its response. The call gets a stream if its response
//! needs one or does not come in one piece, after a moment without a response, and if its client
//! disconnects. From then on it is a call like any other, as if it had had its stream from the
//! beginning. A call that may come again also gets a stream if its connection breaks before its
//! response has arrived. Absent: the response itself (`upstream/direct_call.rs`), and the proofs of
//! arrival (`delivery/receipts.rs`).

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Response};
use http_body_util::{BodyExt, Full};
use tokio::runtime::Handle;

use super::reply;
use super::request::{Beginning, CallRequest, Reply, StartedCall};
use super::task_rules;
use crate::body::BoxBody;
use crate::clock::ShortWait;
use crate::delivery::{CountedBody, DisconnectGuard, Metrics, PassedResponse, Start};
use crate::event_log::{self, EventLog, Plain, Repeatable, Spec, StreamReservation, Writer};
use crate::ingress::components::Components;
use crate::ingress::context::RequestContext;
use crate::ingress::stream_start::{self, RunningCall, UncountedCall};
use crate::protocol::ids::Seq;
use crate::protocol::jsonrpc::RequestId;
use crate::protocol::stream::Policy;
use crate::simulation::{self, Bug};
use crate::upstream::{self, DirectCall, Pump};

/// A call without a stream, and what its stream would be made of.
pub(super) struct BegunCall {
    call: DirectCall,
    /// Specification of the stream, without the IDs of the requests.
    spec: Spec,
    reservation: StreamReservation,
    /// Counts the call for the drain until its response passes.
    running: Option<RunningCall>,
    /// Request of the call, if its client may send it again on a new connection.
    repeatable: Option<Repeatable>,
    /// End of the wait for the response.
    until: ShortWait,
}

/// Longest wait of a call without a stream, about. It is shorter than the grace of a drain's end.
const MAX_WAIT: Duration = Duration::from_millis(400);

/// Begins a call without a stream. Its stream would have `spec`, without the IDs of the requests.
pub(super) fn begin(
    components: &Components,
    context: &RequestContext,
    call: upstream::Call,
    spec: Spec,
    reservation: StreamReservation,
    repeatable: Option<Repeatable>,
) -> Box<BegunCall> {
    let call = DirectCall::begin(components.upstream.clone(), components.metrics.upstream.clone(), call);
    let running = Some(RunningCall::begin(components, context));
    Box::new(BegunCall { call, spec, reservation, running, repeatable, until: ShortWait::coarse(MAX_WAIT) })
}

/// Returns true if nothing needs the stream of the call before its response. A session finds the
/// streams of its calls, and so does a retry. A server on a channel knows whether a stream is read.
pub(super) fn may_begin(components: &Components, request: &CallRequest) -> bool {
    let CallRequest { context, call, accept, tool, body, partial, task, retry, .. } = request;
    context.binding.session.is_none()
        && retry.fingerprint.is_none()
        && accept.json
        && !call.is_opening()
        && !call.has_listen()
        && partial.is_none()
        && task.is_none()
        && components.log.traces().is_none()
        && !components.upstream.has_channels()
        && task_rules::terms(components, call, body, tool.as_deref()).is_none()
        && !simulation::has(Bug::DrainsPastCalls)
}

/// Returns true if nothing happens in a stream of this policy before the wait without one ends.
pub(super) fn may_wait(policy: &Policy) -> bool {
    let is_later = |after: Option<Duration>| after.is_none_or(|after| after >= 2 * MAX_WAIT);
    is_later(policy.commit_after) && is_later(policy.call_timeout)
}

/// Returns the response to a call that began without a stream. The map of the request's `headers`
/// serves the response.
pub(super) async fn respond(
    components: &Components,
    reply: Reply,
    mut headers: HeaderMap,
    begun: Box<BegunCall>,
) -> Response<BoxBody> {
    // They are slices of the connection's read buffer.
    headers.clear();
    let mut waiting = Waiting { components, ids: &reply.call.ids, begun: Some(begun) };
    let whole = waiting.whole(reply.connection.receipts().piece()).await;
    if let Some(response) = whole
        && let Some(begun) = waiting.begun.take()
    {
        drop(waiting);
        return pass(components, reply, begun, response, headers);
    }
    let started = waiting.take_stream();
    drop((waiting, headers));
    match started {
        Some(StartedCall { attachment, pump, repeatable, .. }) => {
            reply::await_response(components, Reply { repeatable, ..reply }, attachment, pump).await
        }
        None => reply::lost(components),
    }
}

/// A handler that waits for a response. Dropped before, its client has disconnected.
struct Waiting<'a> {
    components: &'a Components,
    /// IDs of the requests.
    ids: &'a [RequestId],
    /// The call, or `None` once it has its response or a stream.
    begun: Option<Box<BegunCall>>,
}

impl Waiting<'_> {
    /// Waits for a response of at most `max` bytes that passes. Returns `None` if the call needs a
    /// stream now.
    async fn whole(&mut self, max: usize) -> Option<Response<Bytes>> {
        let begun = self.begun.as_mut()?;
        poll_fn(|cx| match begun.call.poll(cx, max) {
            Poll::Ready(whole) => Poll::Ready(whole),
            Poll::Pending => begun.until.poll(cx).map(|()| None),
        })
        .await
    }

    /// Gives the call its stream, and attaches to it.
    fn take_stream(&mut self) -> Option<StartedCall> {
        let mut begun = self.begun.take()?;
        let running = begun.running.take()?;
        Some(attach(&self.components.log, *begun, self.ids.to_vec(), running, DirectCall::into_pump))
    }
}

/// Gives a call its stream, and attaches to it. `continued` makes the pump of the call.
fn attach(
    log: &Arc<EventLog>,
    begun: BegunCall,
    ids: Vec<RequestId>,
    running: RunningCall,
    continued: impl FnOnce(DirectCall, Arc<EventLog>, Writer) -> Box<Pump>,
) -> StartedCall {
    let BegunCall { call, spec, reservation, repeatable, .. } = begun;
    let stream = log.create_begun(Spec { ids, ..spec }, reservation, call.began());
    let attachment = stream.attach_before_pump(event_log::new_attach(), Seq(0));
    let pump = stream_start::run(continued(call, log.clone(), log.writer(&stream)), running);
    StartedCall { attachment, beginning: Beginning { start: Start::First, has_gap: false }, pump, repeatable }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(started) = self.take_stream() {
            let Components { log, metrics, .. } = self.components;
            disconnect(log.clone(), metrics.delivery.clone(), started);
        }
    }
}

/// Returns the response with its headers in the empty map `headers`. hyper reads the next request
/// of the connection into the map of the last response, and that of a request has the capacity.
fn pass(
    components: &Components,
    reply: Reply,
    mut begun: Box<BegunCall>,
    response: Response<Bytes>,
    mut headers: HeaderMap,
) -> Response<BoxBody> {
    for (name, value) in response.headers() {
        headers.append(name, value.clone());
    }
    let status = response.status();
    let may_come_again =
        begun.repeatable.as_ref().is_some_and(Repeatable::is_small) && !Plain::shows_nothing_ran(status);
    let body = match begun.running.take().filter(|_| may_come_again) {
        Some(running) => {
            let bytes = response.body().clone();
            let passed = Passed::new(components, reply.call.ids, begun, running, response);
            reply.connection.receipts().wait_for_passed(passed);
            Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
        }
        None => CountedBody::new(response.into_body(), begun.reservation).boxed_unsync(),
    };
    let mut response = Response::new(body);
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

/// The client of a call has disconnected.
fn disconnect(log: Arc<EventLog>, metrics: Arc<Metrics>, started: StartedCall) {
    let StartedCall { attachment, pump, repeatable, .. } = started;
    drop(DisconnectGuard::new(log, metrics, attachment, repeatable));
    // The call continues in a task of its own.
    drop(pump);
}

/// A call whose response passed, until that has arrived: its client may send it again.
struct Passed {
    log: Arc<EventLog>,
    metrics: Arc<Metrics>,
    ids: Vec<RequestId>,
    begun: Box<BegunCall>,
    uncounted: UncountedCall,
    response: Response<Bytes>,
}

impl Passed {
    /// Keeps the call of `begun`, which is no longer a running one.
    fn new(
        components: &Components,
        ids: Vec<RequestId>,
        mut begun: Box<BegunCall>,
        running: RunningCall,
        response: Response<Bytes>,
    ) -> Box<Self> {
        let Components { log, metrics, .. } = components;
        begun.call.end();
        begun.reservation.keep_passing(response.body().len());
        let (log, metrics) = (log.clone(), metrics.delivery.clone());
        Box::new(Self { log, metrics, ids, begun, uncounted: running.end(), response })
    }
}

impl PassedResponse for Passed {
    fn handle_break(self: Box<Self>) {
        // Without a runtime the process ends.
        if Handle::try_current().is_err() {
            return;
        }
        let Self { log, metrics, ids, mut begun, uncounted, response } = *self;
        begun.reservation.run_again();
        let running = uncounted.begin_again();
        let started =
            attach(&log, *begun, ids, running, |call, log, writer| call.into_pump_of_passed(log, writer, response));
        disconnect(log, metrics, started);
    }
}
