//! POSTs without requests: the client's responses and notifications.
//!
//! They are forwarded at once and answered with the upstream's status. They are held, and answered with 202, only while the upstream
//! refuses connections or has not answered in time. A POST of which no byte was sent is tried again, in order. One of which bytes were sent is
//! never sent again. Later POSTs of the session wait behind them. Before it is sent, each takes a place among those of its session, and a reservation of
//! memory if it needs one. It keeps both until the upstream has answered or is no longer waited for.
//!
//! This holds for credentials that the upstream has accepted lately. With other credentials nothing changes here before the upstream has
//! answered with 2xx: its refusal must reach the client as a status, and must not end a call or settle a server's request.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Response, StatusCode};
use serde_json::value::RawValue;
use tokio::sync::oneshot;
use tracing::{Instrument, info, warn};

use super::{Ingress, RequestContext, detached, forward_to_owner, head_bytes, respond, token_refresh};
use crate::backoff::Backoff;
use crate::body::BoxBody;
use crate::clock;
use crate::event_log::{PostSlot, QueuedTurn, Session, Sessions, Stream, Turn, UploadReservation, stream_owing};
use crate::protocol::dialect::resume_tokens;
use crate::protocol::error::{ErrorCode, Failure};
use crate::protocol::headers::SessionId;
use crate::protocol::jsonrpc::{self, Message, RequestId};
use crate::protocol::stream::ClientResponse;
use crate::simulation::{self, Bug};
use crate::upstream::{Credentials, ResponseBody, Template};

/// Pauses between two attempts to reach an upstream that refuses connections.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));
/// Longest time for which a response is held if its stream is unknown, and for which an upstream that has it may give no status.
const HOLD_TIMEOUT: Duration = Duration::from_secs(600);
/// Longest time for which a POST with credentials that the upstream has not accepted lately is retried while it refuses connections.
const UNPROVEN_TIMEOUT: Duration = Duration::from_secs(20);
/// Time, from when it was sent, for which a written response keeps later POSTs waiting for its status.
const LATE_TIMEOUT: Duration = Duration::from_secs(5);

/// One POST on its way upstream.
pub(super) struct UpstreamPost {
    pub(super) template: Template,
    /// Session of the POST, if it has one. Later POSTs of the session wait behind it.
    pub(super) session: Option<Arc<Session>>,
    /// Records of the session under the caller's older tokens, if one of them is concerned.
    pub(super) previous: Vec<Arc<Session>>,
    /// Requests of the server that the POST answers, each for the first time.
    pub(super) answered: Vec<(Arc<Stream>, RequestId)>,
    /// Requests that the POST cancels.
    pub(super) cancelled: Vec<RequestId>,
    /// Reservation for the bytes of the POST, in its sender's quota.
    pub(super) carried: UploadReservation,
    /// Place among the POSTs of the session, once it may be sent.
    pub(super) place: Option<PostSlot>,
    /// Credentials by which the upstream judges the POST.
    pub(super) credentials: Credentials,
    /// Changes to make once the upstream has accepted the POST. `None` if the upstream has accepted these credentials lately: all changes
    /// are then made at once.
    pub(super) on_accepted: Option<OnAccepted>,
    /// True for a status of the upstream after which the client may send its responses again.
    pub(super) is_lost: fn(StatusCode) -> bool,
}

/// Applies the responses of a POST to their streams.
pub(super) type OnAccepted = Box<dyn Fn(&Ingress) + Send + Sync>;

/// Outcome of a delivery, for the client that waits.
pub(super) enum Outcome {
    /// The POST is held until the upstream takes it.
    Held,
    /// Response of the upstream.
    Passed(Response<BoxBody>),
    /// The POST cannot be delivered, or its outcome is unknown.
    Failed(Failure),
}

impl Ingress {
    pub(super) async fn client_responses(
        self: Arc<Self>,
        mut context: Box<RequestContext>,
        messages: Vec<Message>,
        body: Bytes,
    ) -> Response<BoxBody> {
        let (Some(session), Some(id)) = (context.session.clone(), &context.binding.session) else {
            return self.forward_whole(context, body).await;
        };
        let cancelled = jsonrpc::cancelled_request_ids(&messages, &body);
        let mut owner_unknown = None;
        let names_request = forward_to_owner::names_request(&messages, !cancelled.is_empty());
        if self.replicas.is_some() && self.may_concern_others(&context, names_request) {
            let streams = self.log.sessions().streams(id, &session);
            let is_elsewhere =
                context.has_remote_session() || !token_refresh::is_concerned(&streams, &messages, &cancelled);
            if is_elsewhere {
                match Box::pin(self.forward_to_owner(&context, &body, names_request)).await {
                    Ok(Some(response)) => return response,
                    Ok(None) => {}
                    Err(unknown) => owner_unknown = Some(unknown),
                }
            }
        }
        if let Some(code) = self.remote_session_error(&context) {
            return self.refuse(code);
        }
        let sessions = self.log.sessions();
        let is_concerned = |id: &SessionId, session: &Session| {
            token_refresh::is_concerned(&sessions.streams(id, session), &messages, &cancelled)
        };
        // Streams of the caller's current token need no older one.
        let previous = if context.binding.subject.is_none() || is_concerned(id, &session) {
            Vec::new()
        } else {
            match Box::pin(self.previous_sessions(&context, is_concerned)).await {
                Ok(previous) => previous,
                Err(unproven) => return self.refuse_unproven(unproven),
            }
        };
        let body = with_upstream_ids(body, &cancelled, std::iter::once(&session).chain(&previous));
        context.reservation = None;
        let carried = self.carry(&context, body.len());
        let place = match self.place(Some(&session), &carried).await {
            Ok(place) => place,
            Err(code) => return self.refuse(code),
        };
        let queued = session.queue_turn();
        let records = std::iter::once(&session).chain(&previous);
        let is_proven = self.upstream.observed().has_accepted(&context.credentials, clock::now());
        let (answered, repeated) = match is_proven {
            true => note_responses(sessions, id, records, &messages),
            false => (Vec::new(), repeated_responses(sessions, id, records, &messages)),
        };
        if !repeated.is_empty() {
            self.metrics.observe_repeated_answer();
        }
        let Some(body) = without(body, messages.len(), &repeated) else {
            return respond::status(StatusCode::ACCEPTED);
        };
        let on_accepted = (!is_proven)
            .then(|| note_on_acceptance(id, std::iter::once(&session).chain(&previous).cloned().collect(), messages));
        let template = self.upstream.call(&context.parts, context.connection.forwarded(), detached(body));
        let (reply, replied) = oneshot::channel();
        // A task of its own: a client that leaves now has still responded.
        let is_lost = |status: StatusCode| !status.is_success();
        let (session, credentials) = (Some(session), context.credentials);
        let delivery = UpstreamPost {
            template,
            session,
            previous,
            answered,
            cancelled,
            carried,
            place,
            credentials,
            on_accepted,
            is_lost,
        };
        tokio::spawn(self.clone().deliver(delivery, queued, reply).in_current_span());
        match replied.await {
            Ok(Outcome::Held) => respond::status(StatusCode::ACCEPTED),
            Ok(Outcome::Passed(response)) => match owner_unknown {
                Some(owner_unknown) => owner_unknown.check(&self, response),
                None => response,
            },
            Ok(Outcome::Failed(failure)) => self.fail_forward(failure),
            Err(_) => self.fail_forward(Failure::after_send(ErrorCode::UpstreamBroke)),
        }
    }

    /// Reserves bytes in the sender's quota for a POST on its way upstream.
    pub(super) fn carry(&self, context: &RequestContext, body: usize) -> UploadReservation {
        context.quota.reserve_upload(head_bytes(&context.parts) + body)
    }

    /// Waits for a place among the session's POSTs, and for room. Nothing is sent without them.
    ///
    /// # Errors
    /// `TooManyHeld`, `ShareFull` or `ProxyFull`.
    pub(super) async fn place(
        &self,
        session: Option<&Arc<Session>>,
        carried: &UploadReservation,
    ) -> Result<Option<PostSlot>, ErrorCode> {
        self.log.evict_for_upload(carried)?;
        let Some(session) = session else { return Ok(None) };
        let most = self.config.limits.held_posts_per_session;
        session.take_slot(most, self.config.upstream.connect_timeout).await.map(Some)
    }

    /// Waits until the request that a cancel names has been sent, so that the cancel goes upstream after it. Once it counts, the stream
    /// ends in either case.
    async fn await_cancelled(&self, delivery: &UpstreamPost) {
        for (stream, id) in delivery.owing() {
            let limit = self.config.upstream.connect_timeout;
            // A request that is never sent needs no cancel upstream.
            let _ = tokio::time::timeout(limit, stream.sent()).await;
            if delivery.on_accepted.is_none() {
                stream.cancel(&id);
            }
        }
    }

    pub(super) async fn deliver(
        self: Arc<Self>,
        delivery: UpstreamPost,
        queued: Option<QueuedTurn>,
        reply: oneshot::Sender<Outcome>,
    ) {
        self.await_cancelled(&delivery).await;
        let mut attempt = Attempt { ingress: &self, delivery: &delivery, reply: Some(reply), turn: None };
        if let Some(queued) = queued {
            if let Err(code) = self.log.evict_for(delivery.carried.reservation()) {
                return attempt.fail(Failure::before_run(code));
            }
            attempt.acknowledge();
            attempt.turn = Some(queued.await);
        }
        let until = clock::now() + if delivery.on_accepted.is_some() { UNPROVEN_TIMEOUT } else { HOLD_TIMEOUT };
        let mut backoff = BACKOFF;
        loop {
            match attempt.send().await {
                Ok(response) => return attempt.finish(response),
                Err(failure) if failure.may_have_run => return attempt.fail(failure),
                Err(failure) if !delivery.is_wanted(until) => return attempt.fail(failure),
                Err(_) if let Err(code) = self.log.evict_for(delivery.carried.reservation()) => {
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
}

impl UpstreamPost {
    fn records(&self) -> impl Iterator<Item = &Arc<Session>> {
        self.session.iter().chain(&self.previous)
    }

    /// Returns the calls that the POST cancels, each with the ID under which the upstream knows the request.
    fn owing(&self) -> Vec<(Arc<Stream>, RequestId)> {
        if self.cancelled.is_empty() {
            return Vec::new();
        }
        let running = running(self.records());
        let owing = |id| running.iter().find_map(|running| stream_owing(running, id));
        self.cancelled.iter().filter_map(owing).collect()
    }

    /// Called when the upstream has accepted the POST. Makes the changes that waited for that.
    fn take(&self, ingress: &Ingress) {
        if let Some(apply) = &self.on_accepted {
            apply(ingress);
            self.owing().iter().for_each(|(stream, id)| _ = stream.cancel(id));
        }
    }

    /// Called when the POST did not arrive: the requests that it answers are open again.
    pub(super) fn lose(&self) {
        self.answered.iter().for_each(|(stream, id)| stream.answer_lost(id));
    }

    /// True while a call upstream waits for the POST: a call whose request it answers, or, if it answers none, any call of the session.
    fn is_wanted(&self, until: Instant) -> bool {
        let runs = |stream: &Arc<Stream>| !stream.look(|machine| machine.is_sealed());
        let waits = match self.answered.as_slice() {
            [] => self.records().any(|session| session.streams().iter().any(runs)),
            answered => answered.iter().any(|(stream, _)| runs(stream)),
        };
        clock::now() < until && waits
    }
}

/// Upstream response to a POST.
type Answered = Result<Response<ResponseBody>, Failure>;

/// Waits for the upstream's response, at most [`HOLD_TIMEOUT`] if the upstream has the POST and says nothing: others need its place.
async fn within_hold_limit(sending: impl Future<Output = Answered>) -> Answered {
    let silent = |_| Err(Failure::after_send(ErrorCode::UpstreamTimeout));
    tokio::time::timeout(HOLD_TIMEOUT, sending).await.unwrap_or_else(silent)
}

/// One delivery in progress.
struct Attempt<'a> {
    ingress: &'a Arc<Ingress>,
    delivery: &'a UpstreamPost,
    reply: Option<oneshot::Sender<Outcome>>,
    turn: Option<Turn>,
}

impl Attempt<'_> {
    /// Sends the POST. After the time to answer it is acknowledged with 202. After [`LATE_TIMEOUT`] no other POST waits behind it, but it
    /// is not given up before [`HOLD_TIMEOUT`]. With credentials that may be refused the proxy never answers 202.
    async fn send(&mut self) -> Answered {
        let (ingress, delivery) = (self.ingress, self.delivery);
        let late_at = clock::now() + LATE_TIMEOUT;
        let mut sending = std::pin::pin!(ingress.upstream.send(&delivery.template, None));
        if self.turn.is_none() {
            let patience = ingress.config.delivery.commit_after.filter(|_| delivery.on_accepted.is_none());
            let Some(patience) = patience else { return within_hold_limit(sending).await };
            if let Ok(answered) = tokio::time::timeout(patience, &mut sending).await {
                return answered;
            }
            // The turn may take a while. The upstream is waited for meanwhile.
            tokio::select! {
                // A simulated run must take the same branch each time if both are ready.
                biased;
                answered = &mut sending => return answered,
                // A POST that cannot be held waits for the upstream's response.
                held = self.hold() => if held.is_err() {
                    return within_hold_limit(sending).await;
                }
            }
        }
        // Several POSTs that the upstream does not answer do not add up their delays.
        let left = late_at.saturating_duration_since(clock::now());
        if let Ok(answered) = tokio::time::timeout(left, &mut sending).await {
            return answered;
        }
        self.turn = None;
        within_hold_limit(sending).await
    }

    /// Holds the POST: later POSTs of the session wait, and the client goes on, unless the upstream may refuse it.
    ///
    /// # Errors
    /// If there is no room to hold it.
    async fn hold(&mut self) -> Result<(), ErrorCode> {
        if self.delivery.on_accepted.is_some() {
            return Ok(());
        }
        if self.reply.is_some() {
            self.ingress.log.evict_for(self.delivery.carried.reservation())?;
        }
        if let (None, Some(session)) = (&self.turn, &self.delivery.session) {
            self.turn = Some(session.clone().take_turn().await);
        }
        self.acknowledge();
        Ok(())
    }

    fn acknowledge(&mut self) {
        if self.delivery.on_accepted.is_none()
            && let Some(reply) = self.reply.take()
        {
            self.ingress.metrics.observe_held_answer();
            info!("an answer of the client is held until the upstream takes it");
            let _ = reply.send(Outcome::Held);
        }
    }

    fn finish(self, response: Response<ResponseBody>) {
        let status = response.status();
        self.ingress.upstream.observed().note_status(self.delivery.credentials, status, clock::now());
        if (self.delivery.is_lost)(status) {
            self.delivery.lose();
        } else {
            self.delivery.take(self.ingress);
        }
        match self.reply {
            // The client may have left. Its response has arrived all the same.
            Some(reply) => {
                let response = self.ingress.pass_response(&self.delivery.template, response);
                drop(reply.send(Outcome::Passed(response)));
            }
            None if status.is_success() => {}
            None => warn!(status = status.as_u16(), "the upstream refused an answer that was held"),
        }
    }

    fn fail(self, failure: Failure) {
        if !failure.may_have_run {
            self.delivery.lose();
        }
        match self.reply {
            Some(reply) => drop(reply.send(Outcome::Failed(failure))),
            None => warn!(error = failure.code.label(), "an answer that was held could not be delivered"),
        }
    }
}

/// Applies the messages that answer a server's request. Returns those that do so for the first time, and the indexes of those whose
/// request was answered before. Searches the streams once, however many messages there are.
fn note_responses<'a>(
    sessions: &Sessions,
    session_id: &SessionId,
    records: impl Iterator<Item = &'a Arc<Session>>,
    messages: &[Message],
) -> (Vec<(Arc<Stream>, RequestId)>, Vec<usize>) {
    let mut answered = Vec::new();
    let mut repeated = Vec::new();
    if !messages.iter().any(|message| matches!(message, Message::Response { id: Some(_), .. })) {
        return (answered, repeated);
    }
    let asking: Vec<_> = records.map(|session| sessions.asking(session_id, session)).collect();
    for (index, message) in messages.iter().enumerate() {
        let Message::Response { id: Some(id), .. } = message else { continue };
        let outcomes = asking.iter().map(|streams| Sessions::answer(streams, id));
        match { outcomes }.find(|(outcome, _)| *outcome != ClientResponse::Unknown) {
            Some((ClientResponse::First, Some(stream))) => answered.push((stream, id.clone())),
            Some((ClientResponse::Duplicate, _)) if !simulation::has(Bug::ForwardsEveryAnswer) => repeated.push(index),
            Some((
                ClientResponse::First | ClientResponse::Duplicate | ClientResponse::Late | ClientResponse::Unknown,
                _,
            ))
            | None => {}
        }
    }
    (answered, repeated)
}

/// Returns the running calls of each record.
fn running<'a>(records: impl Iterator<Item = &'a Arc<Session>>) -> Vec<Vec<Arc<Stream>>> {
    records.map(|session| session.running()).collect()
}

/// Returns the indexes of the messages that answer a server's request which was answered before. Changes nothing.
fn repeated_responses<'a>(
    sessions: &Sessions,
    session_id: &SessionId,
    records: impl Iterator<Item = &'a Arc<Session>>,
    messages: &[Message],
) -> Vec<usize> {
    if !messages.iter().any(|message| matches!(message, Message::Response { id: Some(_), .. })) {
        return Vec::new();
    }
    let asking: Vec<_> = records.flat_map(|session| sessions.asking(session_id, session)).collect();
    let is_repeated = |message: &Message| {
        let Message::Response { id: Some(id), .. } = message else { return false };
        let waits =
            |stream: &Arc<Stream>| stream.look(|machine| machine.server_requests().outstanding_since(id).is_some());
        let has_answered = |stream: &Arc<Stream>| stream.look(|machine| machine.server_requests().has_answered(id));
        asking.iter().any(has_answered) && !asking.iter().any(waits)
    };
    (0..messages.len()).filter(|index| is_repeated(&messages[*index])).collect()
}

/// Returns the changes that a POST makes once the upstream has accepted it.
fn note_on_acceptance(id: &SessionId, records: Vec<Arc<Session>>, messages: Vec<Message>) -> OnAccepted {
    let id = id.clone();
    Box::new(move |ingress| drop(note_responses(ingress.log.sessions(), &id, records.iter(), &messages)))
}

/// Returns the body with the cancels of later slices under the IDs that the upstream knows. The streams are searched again when they are
/// cancelled, since some may have ended by then.
fn with_upstream_ids<'a>(
    body: Bytes,
    cancelled: &[RequestId],
    records: impl Iterator<Item = &'a Arc<Session>>,
) -> Bytes {
    if cancelled.is_empty() {
        return body;
    }
    let running = running(records);
    let named = |id| running.iter().find_map(|running| stream_owing(running, id)).map(|(_, named)| named);
    let renamed = cancelled.iter().filter_map(|id| Some((id, named(id).filter(|named| named != id)?))).collect();
    resume_tokens::rename_cancelled(&body, &renamed).map_or(body, Bytes::from)
}

/// Returns the body without the messages at the indexes `repeated`, which are in order, or `None` if none is left.
fn without(body: Bytes, messages: usize, repeated: &[usize]) -> Option<Bytes> {
    if repeated.is_empty() {
        return Some(body);
    }
    if repeated.len() == messages {
        return None;
    }
    let Ok(batch) = serde_json::from_slice::<Vec<&RawValue>>(&body) else { return Some(body) };
    let mut repeated = repeated.iter().peekable();
    let kept = batch.iter().enumerate().filter(|(index, _)| repeated.next_if_eq(&index).is_none());
    let kept: Vec<&str> = kept.map(|(_, message)| message.get()).collect();
    Some(format!("[{}]", kept.join(",")).into())
}
