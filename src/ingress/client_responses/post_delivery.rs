//! Delivery to the upstream of POSTs that hold no JSON-RPC request, in the order of their session.
//! Absent: the filter of responses that the upstream has already (`mod.rs`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{Response, StatusCode};
use tokio::sync::oneshot;
use tracing::{Instrument, debug, info, warn};

use crate::backoff::Backoff;
use crate::body::BoxBody;
use crate::clock;
use crate::event_log::{EventLog, PostSlot, QueuedTurn, Session, Stream, Turn, UploadReservation, stream_owing};
use crate::ingress::components::Components;
use crate::ingress::context::RequestContext;
use crate::ingress::forward;
use crate::protocol::error::{ErrorCode, Failure};
use crate::protocol::headers::SessionId;
use crate::protocol::jsonrpc::RequestId;
use crate::upstream::{Credentials, ResponseBody, Template};

/// Pauses between two attempts to reach an upstream that refuses connections.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));
/// Maximum time to hold a response whose stream is unknown, and maximum wait for the upstream's
/// status.
const HOLD_TIMEOUT: Duration = Duration::from_secs(600);
/// Time that a sent response keeps later POSTs waiting for its status.
const LATE_TIMEOUT: Duration = Duration::from_secs(5);

/// One POST on its way upstream.
pub(super) struct UpstreamPost {
    pub(super) template: Template,
    /// Name of the session for clients, if the POST names one.
    pub(super) session_id: Option<SessionId>,
    /// Session of the POST, if it has one. Later POSTs of the session wait behind it.
    pub(super) session: Option<Arc<Session>>,
    /// Records of the session under the caller's older tokens, if any of them is concerned.
    pub(super) previous: Vec<Arc<Session>>,
    /// Server requests with their first response in the POST.
    pub(super) settled: Vec<(Arc<Stream>, RequestId)>,
    /// Requests that the POST cancels.
    pub(super) cancelled: Vec<RequestId>,
    /// Reservation for the bytes of the POST, in its sender's quota.
    pub(super) reservation: UploadReservation,
    /// Slot among the POSTs of the session, once it may be sent.
    pub(super) slot: Option<PostSlot>,
    /// Credentials of the POST for the upstream.
    pub(super) credentials: Credentials,
    /// Changes to make once the upstream has accepted the POST. `None` if the upstream has accepted
    /// these credentials lately: all changes are then made at once.
    pub(super) on_accepted: Option<OnAccepted>,
    /// True for an upstream status that allows the client to send its responses again.
    pub(super) may_be_sent_again: fn(StatusCode) -> bool,
}

/// Applies the responses of a POST to their streams.
pub(super) type OnAccepted = Box<dyn Fn(&EventLog) + Send + Sync>;

/// Outcome of a delivery, for the client that waits.
pub(super) enum Outcome {
    /// The POST is held until the upstream takes it.
    Held,
    /// The server has forgotten the session, which the next request of the client may open again.
    Dropped,
    /// Response of the upstream.
    Response(Response<BoxBody>),
    /// The POST cannot be delivered, or its outcome is unknown.
    Failed(Failure),
}

/// Waits for a slot among the session's POSTs, and for room. Nothing is sent without them.
///
/// # Errors
/// `TooManyHeld`, `ShareFull` or `ProxyFull`.
pub(super) async fn take_slot(
    components: &Components,
    session: Option<&Arc<Session>>,
    reservation: &UploadReservation,
) -> Result<Option<PostSlot>, ErrorCode> {
    components.log.evict_for_upload(reservation)?;
    let Some(session) = session else { return Ok(None) };
    let config = &components.config;
    session.take_slot(config.limits.held_posts_per_session, config.upstream.connect_timeout).await.map(Some)
}

/// Waits until the request that a cancel names has been sent, so that the cancel goes upstream
/// after it. Once it counts, the stream ends in either case.
async fn await_cancelled(components: &Components, post: &UpstreamPost) {
    for (stream, id) in post.owing() {
        let limit = components.config.upstream.connect_timeout;
        if stream.upstream().is_waiting() {
            // The call withdraws its request, unless that is being sent at this moment.
            stream.cancel(&id);
            let _ = tokio::time::timeout(limit, stream.upstream().reached()).await;
            continue;
        }
        // A request that is never sent needs no cancel upstream.
        let _ = tokio::time::timeout(limit, stream.upstream().sent()).await;
        if post.on_accepted.is_none() {
            stream.cancel(&id);
        }
    }
}

/// Returns whether the server refused the session of a POST, and the next request of the client may
/// open it again. Then the POST is dropped. The server repeats the requests that it still needs.
/// The returned response has its whole body.
async fn is_dropped(
    components: &Components,
    post: &UpstreamPost,
    response: Response<ResponseBody>,
) -> (Response<ResponseBody>, bool) {
    match (&post.session_id, &post.session) {
        (Some(id), Some(session)) => {
            let (log, principal, template) = (&components.log, session.principal(), &post.template);
            Box::pin(components.upstream.is_refused_in_revivable_session(log, id, principal, template, response)).await
        }
        (None, _) | (_, None) => (response, false),
    }
}

/// Delivers a POST in a task of its own, in its turn of the session if it is `queued`. So a client
/// that disconnects now has still responded. The task sends the outcome for the client.
pub(super) fn start(
    components: &Arc<Components>,
    post: UpstreamPost,
    queued: Option<QueuedTurn>,
) -> oneshot::Receiver<Outcome> {
    let (reply, replied) = oneshot::channel();
    tokio::spawn(deliver(components.clone(), post, queued, reply).in_current_span());
    replied
}

async fn deliver(
    components: Arc<Components>,
    post: UpstreamPost,
    queued: Option<QueuedTurn>,
    reply: oneshot::Sender<Outcome>,
) {
    await_cancelled(&components, &post).await;
    let mut attempt =
        Attempt { components: &components, post: &post, reply: Some(reply), turn: None, began: clock::now() };
    if let Some(queued) = queued {
        if let Err(code) = components.log.evict_for(post.reservation.reservation()) {
            return attempt.fail(Failure::before_run(code));
        }
        attempt.acknowledge();
        attempt.turn = Some(queued.await);
    }
    let now = clock::now();
    let until = Deadlines { server: now + components.config.upstream.wait, held: now + HOLD_TIMEOUT };
    let mut backoff = BACKOFF;
    loop {
        match attempt.send().await {
            Ok(response) => {
                let (response, is_dropped) = is_dropped(&components, &post, response).await;
                return attempt.finish(response, is_dropped);
            }
            Err(failure) if failure.may_have_run => return attempt.fail(failure),
            Err(failure) if !post.is_wanted(&until) => return attempt.fail(failure),
            Err(_) if let Err(code) = components.log.evict_for(post.reservation.reservation()) => {
                return attempt.fail(Failure::before_run(code));
            }
            Err(_) => {
                if let Err(code) = attempt.hold().await {
                    return attempt.fail(Failure::before_run(code));
                }
            }
        }
        clock::sleep(backoff.next_pause()).await;
    }
}

impl UpstreamPost {
    fn records(&self) -> impl Iterator<Item = &Arc<Session>> {
        self.session.iter().chain(&self.previous)
    }

    /// Returns the calls that the POST cancels, each with the request's ID at the upstream.
    fn owing(&self) -> Vec<(Arc<Stream>, RequestId)> {
        if self.cancelled.is_empty() {
            return Vec::new();
        }
        let running = running_calls(self.records());
        let owing = |id| running.iter().find_map(|running| stream_owing(running, id));
        self.cancelled.iter().filter_map(owing).collect()
    }

    /// Makes the changes that waited for the upstream to accept the POST.
    fn apply(&self, log: &EventLog) {
        if let Some(apply) = &self.on_accepted {
            apply(log);
            for (stream, id) in &self.owing() {
                stream.cancel(id);
            }
        }
    }

    /// Reopens the server requests of the POST: their responses did not arrive.
    pub(super) fn reopen_requests(&self) {
        for (stream, id) in &self.settled {
            stream.handle_client_response_lost(id);
        }
    }

    /// True while the POST is to be tried again. A client response is tried while its call runs.
    /// Any other POST is tried until the wait for the server has ended, and while a call of its
    /// session runs. Credentials that the upstream may refuse wait no longer than for the server.
    fn is_wanted(&self, until: &Deadlines) -> bool {
        let now = clock::now();
        let until_held = if self.on_accepted.is_some() { until.server } else { until.held };
        let is_open = |stream: &Arc<Stream>| !stream.with_machine(|machine| machine.lifecycle().is_sealed());
        match self.settled.as_slice() {
            [] if now < until.server => true,
            [] => now < until_held && self.records().any(|session| session.streams().iter().any(is_open)),
            settled => now < until_held && settled.iter().any(|(stream, _)| is_open(stream)),
        }
    }
}

/// Deadlines of the retries of a POST.
struct Deadlines {
    /// Without a call that waits for it.
    server: Instant,
    /// With a call that waits for it.
    held: Instant,
}

/// Upstream response to a POST.
type UpstreamResult = Result<Response<ResponseBody>, Failure>;

/// Waits for the upstream's response for at most [`HOLD_TIMEOUT`]: other POSTs need the slot of
/// this one.
async fn within_hold_limit(sending: impl Future<Output = UpstreamResult>) -> UpstreamResult {
    match tokio::time::timeout(HOLD_TIMEOUT, sending).await {
        Ok(result) => result,
        Err(_) => Err(Failure::after_send(ErrorCode::UpstreamTimeout)),
    }
}

/// One delivery in progress.
struct Attempt<'a> {
    components: &'a Components,
    post: &'a UpstreamPost,
    reply: Option<oneshot::Sender<Outcome>>,
    turn: Option<Turn>,
    /// Time of the last request.
    began: Instant,
}

impl Attempt<'_> {
    /// Sends the POST. Without a response in time it is acknowledged with 202. After
    /// [`LATE_TIMEOUT`] no other POST waits behind it, but it is not given up before
    /// [`HOLD_TIMEOUT`]. With credentials that may be refused the proxy never responds with 202.
    async fn send(&mut self) -> UpstreamResult {
        let (components, post) = (self.components, self.post);
        self.began = clock::now();
        let late_at = self.began + LATE_TIMEOUT;
        if let Some(session) = &post.session {
            session.note_sent();
        }
        let mut sending = std::pin::pin!(components.upstream.send(&post.template));
        if self.turn.is_none() {
            let commit_after = if post.on_accepted.is_none() { components.config.delivery.commit_after } else { None };
            let Some(commit_after) = commit_after else { return within_hold_limit(sending).await };
            if let Ok(response) = tokio::time::timeout(commit_after, &mut sending).await {
                return response;
            }
            // The turn may take a while. Meanwhile the upstream may respond.
            tokio::select! {
                // A simulated run must take the same branch each time if both are ready.
                biased;
                response = &mut sending => return response,
                // A POST that cannot be held waits for the upstream's response.
                held = self.hold() => if held.is_err() {
                    return within_hold_limit(sending).await;
                }
            }
        }
        // Several POSTs without a response of the upstream do not add up their delays.
        let left = late_at.saturating_duration_since(clock::now());
        if let Ok(response) = tokio::time::timeout(left, &mut sending).await {
            return response;
        }
        self.turn = None;
        within_hold_limit(sending).await
    }

    /// Holds the POST: later POSTs of the session wait, and the client continues, unless the
    /// upstream may refuse it.
    ///
    /// # Errors
    /// If there is no room to hold it.
    async fn hold(&mut self) -> Result<(), ErrorCode> {
        if self.post.on_accepted.is_some() {
            return Ok(());
        }
        if self.reply.is_some() {
            self.components.log.evict_for(self.post.reservation.reservation())?;
        }
        if let (None, Some(session)) = (&self.turn, &self.post.session) {
            self.turn = Some(session.clone().take_turn().await);
        }
        self.acknowledge();
        Ok(())
    }

    fn acknowledge(&mut self) {
        if self.post.on_accepted.is_none()
            && let Some(reply) = self.reply.take()
        {
            self.components.metrics.observe_held_response();
            info!("a client response is held until the upstream takes it");
            let _ = reply.send(Outcome::Held);
        }
    }

    fn finish(self, response: Response<ResponseBody>, is_dropped: bool) {
        if is_dropped {
            debug!("a POST without requests is dropped: the server has forgotten its session");
            if let Some(reply) = self.reply {
                let _ = reply.send(Outcome::Dropped);
            }
            return;
        }
        let status = response.status();
        self.components.upstream.observed().record_status(self.post.credentials, status, self.began, clock::now());
        if (self.post.may_be_sent_again)(status) {
            self.post.reopen_requests();
        } else {
            self.post.apply(&self.components.log);
        }
        match self.reply {
            // The client may have disconnected. Its response has arrived all the same.
            Some(reply) => {
                let response = forward::pass_response(self.components, &self.post.template, response);
                let _ = reply.send(Outcome::Response(response));
            }
            None if status.is_success() => {}
            None => warn!(status = status.as_u16(), "the upstream refused a held client response"),
        }
    }

    fn fail(self, failure: Failure) {
        if !failure.may_have_run {
            self.post.reopen_requests();
        }
        match self.reply {
            Some(reply) => {
                // The client may have disconnected.
                let _ = reply.send(Outcome::Failed(failure));
            }
            None => warn!(error = failure.code.label(), "a held client response could not be delivered"),
        }
    }
}

/// Returns the running calls of each record.
pub(super) fn running_calls<'a>(records: impl Iterator<Item = &'a Arc<Session>>) -> Vec<Vec<Arc<Stream>>> {
    records.map(|session| session.running()).collect()
}

/// Reserves bytes in the sender's quota for a POST on its way upstream.
pub(super) fn reserve_upload(context: &RequestContext, body: usize) -> UploadReservation {
    context.quota.reserve_upload(context.head_bytes + body)
}
