//! A POST without requests: the client's answers and notifications.
//!
//! They are forwarded at once and answered with the upstream's own status. Only while the upstream refuses connections, or has
//! not answered in time, are they held and answered 202: what was not written is delivered in order, what was written is never
//! sent again, and later POSTs of the session wait behind them. Each has a place among those of its session, and room where it needs
//! any, before it is sent, and keeps both until the upstream has answered it or is waited for no longer.
//!
//! So it is for credentials that the upstream has accepted lately. With any other ones nothing changes here before it has said 2xx: its
//! refusal must reach the client as a status, and must not end a call or answer a question.

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
/// An answer whose stream is not known is held for so long. An upstream that has one and gives no status is waited for as long.
const HOLD_TIMEOUT: Duration = Duration::from_secs(600);
/// A POST with credentials that the upstream has not accepted lately is tried for so long while it refuses connections.
const UNPROVEN_TIMEOUT: Duration = Duration::from_secs(20);
/// A written answer keeps later POSTs waiting for its status for so long from when it was sent.
const LATE_TIMEOUT: Duration = Duration::from_secs(5);

const CANCELLED: &str = "notifications/cancelled";

/// One POST on its way up.
pub(super) struct Delivery {
    pub(super) template: Template,
    /// Where there is one: whose later POSTs wait behind it.
    pub(super) session: Option<Arc<Session>>,
    /// Its records under the caller's older tokens, where one of them matters here.
    pub(super) previous: Vec<Arc<Session>>,
    /// The server→client requests it answers, each for the first time.
    pub(super) answered: Vec<(Arc<Stream>, RequestId)>,
    /// The requests it cancels.
    pub(super) cancelled: Vec<RequestId>,
    /// Bytes of its sender's share that it takes.
    pub(super) carried: UploadReservation,
    /// Its place among those of the session, once it may be sent.
    pub(super) place: Option<PostSlot>,
    /// What the upstream judges it by.
    pub(super) credentials: Credentials,
    /// What it changes here once the upstream has taken it; `None` where the upstream has accepted these credentials lately, and it
    /// has changed everything already.
    pub(super) on_accepted: Option<OnAccepted>,
    /// The statuses of the upstream behind which the client may give its answers again.
    pub(super) is_lost: fn(StatusCode) -> bool,
}

/// Notes what a POST answers.
pub(super) type OnAccepted = Box<dyn Fn(&Ingress) + Send + Sync>;

/// What became of it, for the client that waits.
pub(super) enum Outcome {
    /// It is held until the upstream takes it.
    Held,
    /// The upstream's own answer.
    Passed(Response<BoxBody>),
    /// It cannot be delivered, or nobody knows.
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
        let cancelled = cancelled_ids(&messages, &body);
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
        // What is the caller's by its own token needs no other.
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
        let is_proven = self.upstream.observed().accepts(&context.credentials, clock::now());
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
        // A task of its own: a client that leaves now has still answered.
        let is_lost = |status: StatusCode| !status.is_success();
        let (session, credentials) = (Some(session), context.credentials);
        let delivery = Delivery {
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

    /// Bytes of its sender's share that a POST takes while it is on its way up.
    pub(super) fn carry(&self, context: &RequestContext, body: usize) -> UploadReservation {
        context.quota.reserve_upload(head_bytes(&context.parts) + body)
    }

    /// The place of a POST among those of its session, and room for it: nothing is sent without.
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

    /// A cancel goes up after the bytes of the request it cancels. Once it counts the stream ends one way or the other.
    async fn await_cancelled(&self, delivery: &Delivery) {
        for (stream, id) in delivery.owing() {
            let limit = self.config.upstream.connect_timeout;
            // A request that never leaves has nothing to be cancelled upstream.
            let _ = tokio::time::timeout(limit, stream.sent()).await;
            if delivery.on_accepted.is_none() {
                stream.cancel(&id);
            }
        }
    }

    pub(super) async fn deliver(
        self: Arc<Self>,
        delivery: Delivery,
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

impl Delivery {
    fn records(&self) -> impl Iterator<Item = &Arc<Session>> {
        self.session.iter().chain(&self.previous)
    }

    /// The calls that it cancels, each with the name that the upstream knows the request by.
    fn owing(&self) -> Vec<(Arc<Stream>, RequestId)> {
        if self.cancelled.is_empty() {
            return Vec::new();
        }
        let running = running(self.records());
        let owing = |id| running.iter().find_map(|running| stream_owing(running, id));
        self.cancelled.iter().filter_map(owing).collect()
    }

    /// The upstream has taken it. What it was to change only then is changed.
    fn take(&self, ingress: &Ingress) {
        if let Some(apply) = &self.on_accepted {
            apply(ingress);
            self.owing().iter().for_each(|(stream, id)| _ = stream.cancel(id));
        }
    }

    /// It did not arrive: what it answers waits again.
    pub(super) fn lose(&self) {
        self.answered.iter().for_each(|(stream, id)| stream.answer_lost(id));
    }

    /// Whether there is still somebody upstream who waits for it: the calls that asked, or, for what answers no question, any
    /// call of the session.
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

/// What it says in the end. One that has the POST and says nothing is given up after [`HOLD_TIMEOUT`]: others need the place.
async fn within_hold_limit(sending: impl Future<Output = Answered>) -> Answered {
    let silent = |_| Err(Failure::after_send(ErrorCode::UpstreamTimeout));
    tokio::time::timeout(HOLD_TIMEOUT, sending).await.unwrap_or_else(silent)
}

/// One delivery in progress.
struct Attempt<'a> {
    ingress: &'a Arc<Ingress>,
    delivery: &'a Delivery,
    reply: Option<oneshot::Sender<Outcome>>,
    turn: Option<Turn>,
}

impl Attempt<'_> {
    /// Sends it. An upstream that does not answer in time is waited for behind a 202, and after [`LATE_TIMEOUT`] nobody waits
    /// behind it any longer; but it is not taken back before [`HOLD_TIMEOUT`]. With credentials that may be refused there is no 202 of
    /// ours.
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
            // The turn may be a while: the upstream goes on being asked meanwhile.
            tokio::select! {
                // Where both are ready at once a simulated run must go the same way each time.
                biased;
                answered = &mut sending => return answered,
                // One that cannot be held waits for the upstream's own answer.
                held = self.hold() => if held.is_err() {
                    return within_hold_limit(sending).await;
                }
            }
        }
        // Of several that the upstream has and does not answer, none adds to the time of the next.
        let left = late_at.saturating_duration_since(clock::now());
        if let Ok(answered) = tokio::time::timeout(left, &mut sending).await {
            return answered;
        }
        self.turn = None;
        within_hold_limit(sending).await
    }

    /// From here on it is held: later POSTs of the session wait, and the client goes on, unless the upstream may refuse it.
    ///
    /// # Errors
    /// Where there is no room to hold it.
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
            // The client may have left; its answer has arrived all the same.
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

/// Which of the messages answer a server→client request for the first time, and which have been answered before. The streams are looked
/// through once, however many messages there are.
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

/// The running calls of each record.
fn running<'a>(records: impl Iterator<Item = &'a Arc<Session>>) -> Vec<Vec<Arc<Stream>>> {
    records.map(|session| session.running()).collect()
}

/// Which of the messages answer a server→client request that has been answered before. Changes nothing.
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

/// Notes the answers of a POST once the upstream has taken it.
fn note_on_acceptance(id: &SessionId, records: Vec<Arc<Session>>, messages: Vec<Message>) -> OnAccepted {
    let id = id.clone();
    Box::new(move |ingress| drop(note_responses(ingress.log.sessions(), &id, records.iter(), &messages)))
}

/// The body with the cancels of later slices under the ids that the upstream knows. The streams are found again when they are
/// cancelled: by then some may be over.
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

/// The requests that the body's notifications cancel.
pub(super) fn cancelled_ids(messages: &[Message], body: &[u8]) -> Vec<RequestId> {
    let is_cancel = |message: &Message| matches!(message, Message::Notification { method } if **method == *CANCELLED);
    if !messages.iter().any(is_cancel) {
        return Vec::new();
    }
    match serde_json::from_slice::<Vec<&RawValue>>(body) {
        Ok(batch) => {
            let cancels = batch.iter().zip(messages).filter(|(_, message)| is_cancel(message));
            cancels.filter_map(|(raw, _)| jsonrpc::cancelled_request_id(raw.get().as_bytes())).collect()
        }
        Err(_) => jsonrpc::cancelled_request_id(body).into_iter().collect(),
    }
}

/// The body without the messages at `repeated`, which are in order; `None` when nothing is left.
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
