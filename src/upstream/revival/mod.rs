//! Revival: opening a session again that its server has forgotten, and sending the refused request
//! once more.
//!
//! A server forgets its sessions when it restarts, and some servers end idle sessions.
//!
//! Owned here: the decision whether a refused session may be opened again.
//!
//! Invariants:
//!
//! - A session has one inquiry and one handshake at a time.
//! - A session is not opened again while the server responds to inquiries in it.
//! - A refused request is sent again once, or twice if the server was restarted in between.
//! - A request with effects is sent again only after a refusal in known words.
//!
//! Absent: the recognition of a refusal (`session_refusals/`), the handshake ([`handshake`]), its
//! record (`event_log`), and the wordings of refusals (`protocol`). A refused notification or
//! client response is dropped, without a revival.

mod generations;
mod handshake;
mod lists;

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderValue, Method, Response, StatusCode};
use tracing::{Instrument, debug, info};

pub use generations::reopened_session;
use handshake::{Handshaking, Opened};

use super::metrics::{Metrics, RevivalOutcome};
use super::server::body::read_up_to;
use super::server::exchange::Exchange;
use super::server::request::Template;
use super::server::response_body::ResponseBody;
use super::server::synthetic;
use super::session_refusals::Inquiry;
use super::stack::Upstream;
use super::token_probe::ProbeOutcome;
use crate::channel;
use crate::clock;
use crate::event_log::{AttemptEnd, Binding, EventLog, Handshake, Home, Principal, Stream};
use crate::otel::SpanKind;
use crate::protocol::effects;
use crate::protocol::error::Failure;
use crate::protocol::headers::{self, SessionId, names};
use crate::protocol::ids::Owner;
use crate::protocol::jsonrpc::{self, RequestId};
use crate::protocol::session_refusal::{self, Refusal, Verdict, Words};

/// Maximum wait for a permit, while as many handshakes as allowed are running.
const PERMIT_WAIT: Duration = Duration::from_secs(30);
/// Minimum time that a stream must stay open after a refusal to prove that the session lives.
const LIVING_FOR: Duration = Duration::from_secs(1);
const LIVING_STEP: Duration = Duration::from_millis(50);

/// Outcome of a request after a possible revival.
pub(super) enum Settled {
    /// Response for the client.
    Response(Result<Box<Response<ResponseBody>>, Failure>),
    /// The session was opened again: the request must be sent once more.
    Revived {
        /// Request under the new name of the session.
        again: Arc<Template>,
        /// Refusal, for a client that needs no other response.
        refusal: Response<ResponseBody>,
    },
}

/// Outcome of an attempt to open a session again, for one request.
enum Attempt {
    /// The session has the newest name.
    Revived,
    /// The session was not opened again: the server responds in it, or has a stream of it open.
    Lives,
    /// The server refuses the caller.
    Unauthorized(Response<ResponseBody>),
    /// The server on stdio could not be started. The response gives the reason; `None` after the
    /// attempt of another request. The session stays.
    Unstarted(Option<Response<ResponseBody>>),
    /// The server cannot serve the session as before, or its client has ended it.
    Gone,
    /// Another replica has become the home of the session meanwhile.
    Displaced(Owner),
    /// The session was not opened.
    Failed,
}

/// Returns the response to requests with these IDs after the server of their session could not be
/// started.
async fn unstarted(reason: Option<Response<ResponseBody>>, ids: &[RequestId]) -> Response<ResponseBody> {
    let Some(reason) = reason else { return channel::no_server(ids).map(ResponseBody::from) };
    let (mut parts, mut body) = reason.into_parts();
    let mut begun = BytesMut::new();
    read_up_to(&mut body, &mut begun, session_refusal::BODY_MAX).await;
    // The error has the ID of the proxy's own `initialize`.
    let addressed = ids.first().and_then(|id| jsonrpc::response::readdressed(&begun, id));
    if addressed.is_some() {
        headers::remove_body_facts(&mut parts.headers);
    }
    Response::from_parts(parts, ResponseBody::begun(addressed.map_or(begun.freeze(), Into::into), body))
}

/// Status and meaning of a refusal.
struct RefusedAs {
    status: u16,
    refusal: Refusal,
}

/// A request in a session, whose response may refuse the session.
pub(super) struct Refused<'a> {
    pub(super) upstream: &'a Arc<Upstream>,
    pub(super) log: &'a Arc<EventLog>,
    pub(super) metrics: &'a Arc<Metrics>,
    pub(super) stream: &'a Arc<Stream>,
    pub(super) template: &'a Arc<Template>,
    /// True if a balancer can send the request to another replica.
    pub(super) is_routed: bool,
}

impl Refused<'_> {
    /// Opens the session again if `response` refuses it. The caller then sends the request once
    /// more.
    pub(super) async fn settle(self, response: Response<ResponseBody>) -> Settled {
        let pass = |response| Settled::Response(Ok(Box::new(response)));
        // The balancer sends the request to the home of the session. The server here has not run
        // it.
        let send_to = |home| Settled::Response(Err(Failure::at_home(home)));
        let binding = self.stream.binding();
        let Some(id) = &binding.session else { return pass(response) };
        let is_unknown = self.log.sessions().handshakes().find(id).is_none() && !self.log.has_store();
        // The handshake would need a proof of its own.
        if is_unknown || self.template.has_proof() {
            return pass(response);
        }
        let ids =
            self.stream.with_machine(|machine| machine.owed_responses().unanswered().cloned().collect::<Vec<_>>());
        let (mut response, refusal) = self.upstream.revivals().examine(response, &ids).await;
        let refused = RefusedAs { status: response.status().as_u16(), refusal: self.as_own(refusal) };
        if !refused.refusal.is_possible() {
            return pass(response);
        }
        let may_repeat = refused.refusal.is_known() || effects::are_absent(self.template.body());
        let handshake = match self.home(id).await {
            Home::Here(handshake) if self.may_revive(&handshake).await => handshake,
            Home::Elsewhere(owner) if self.is_routed && may_repeat && self.is_unknown_here(&refused).await => {
                return send_to(owner);
            }
            Home::Here(_) | Home::Elsewhere(_) | Home::Gone(_) | Home::Unknown => return pass(response),
        };
        match self.open_again(id, &handshake, &refused).await {
            Attempt::Revived if may_repeat => {
                let again = Arc::new(in_revision((**self.template).clone().in_session(&handshake.name()), &handshake));
                Settled::Revived { again, refusal: response }
            }
            // The request may have run. The client's next request finds the new session.
            Attempt::Revived => pass(response),
            Attempt::Lives => {
                self.record_living(&handshake, &refused);
                pass(response)
            }
            Attempt::Unauthorized(unauthorized) => pass(unauthorized),
            Attempt::Unstarted(reason) => pass(unstarted(reason, &ids).await),
            Attempt::Displaced(owner) if self.is_routed => send_to(owner),
            Attempt::Gone | Attempt::Displaced(_) => {
                // The client opens a session of its own.
                *response.status_mut() = StatusCode::NOT_FOUND;
                pass(response)
            }
            Attempt::Failed => pass(response),
        }
    }

    /// Adjusts a refusal to the transport. The statuses of a server on a channel are written by the
    /// proxy, so their refusals are known.
    fn as_own(&self, refusal: Refusal) -> Refusal {
        match refusal {
            Refusal::Possible(_) if self.upstream.has_channels() => Refusal::Known,
            refusal => refusal,
        }
    }

    /// Records the refusal of a living session. A stream that was refused is not requested again.
    fn record_living(&self, handshake: &Handshake, refused: &RefusedAs) {
        match refused.refusal {
            Refusal::Known => self.upstream.revivals().signs.record_living_refused(),
            Refusal::Possible(_) if *self.template.method() == Method::GET => {
                handshake.note_refused_get(refused.status);
            }
            Refusal::Possible(_) | Refusal::None => {}
        }
    }

    /// Inquires whether the session of the refused request lives.
    async fn verdict(&self, refused: &RefusedAs, handshake: Option<&Handshake>) -> Verdict {
        let upstream = self.upstream;
        let inquiry = Inquiry {
            refusals: upstream.revivals().refusals(),
            request: self.template,
            version: handshake.map(|handshake| &handshake.version),
            server: handshake.map(|handshake| &handshake.server),
            refused: (refused.status, &refused.refusal),
        };
        inquiry.run(async |probe| upstream.unnamed().exchange(&probe, None).await.ok()).await
    }

    /// Returns true if the local server does not know the session, whose home is another replica.
    async fn is_unknown_here(&self, refused: &RefusedAs) -> bool {
        match self.verdict(refused, None).await {
            Verdict::Dead | Verdict::RefusedAlike => true,
            Verdict::Undecided => refused.refusal.is_known(),
            Verdict::Lives => false,
        }
    }

    /// Returns true if the session lives. The caller holds the turn to open it.
    async fn lives(&self, id: &SessionId, handshake: &Handshake, refused: &RefusedAs) -> bool {
        // A channel ends with its session. No server has assigned a lost name.
        if self.upstream.has_channels() || handshake.name().is_lost() && self.template.is_in_session(&handshake.name())
        {
            return false;
        }
        let is_dead = match self.verdict(refused, Some(handshake)).await {
            Verdict::Dead => true,
            // A server that has never responded in the session may refuse every request in it.
            Verdict::RefusedAlike => handshake.was_answered(),
            Verdict::Undecided => refused.refusal.is_known(),
            Verdict::Lives => false,
        };
        // The refusal may concern one of several callers alone.
        let has_others = !self.upstream.revivals().front.takes_any_server;
        !is_dead || has_others && self.has_living_stream(id, handshake).await
    }

    /// Returns true if the caller may open the session again. The record must name the caller, or
    /// an older token of the same caller.
    async fn may_revive(&self, handshake: &Handshake) -> bool {
        let Binding { principal, subject, .. } = self.stream.binding();
        if handshake.may_revive(principal) {
            return true;
        }
        let Some(subject) = subject else { return false };
        let previous = self.upstream.observed().tokens().other_principals(subject, principal);
        if !previous.iter().any(|principal| handshake.may_revive(principal)) {
            return false;
        }
        // The subject is only a claim. The server's 2xx in the handshake is the proof.
        let probed = self.upstream.probe_outside_session(self.template).await;
        self.metrics.observe_probe(&probed);
        matches!(probed, ProbeOutcome::Genuine)
    }

    /// Returns the home of the refused session. A session whose home is gone is taken over.
    async fn home(&self, id: &SessionId) -> Home {
        let home = match self.log.homes().find(id).await {
            Ok(Home::Gone(_)) => self.log.homes().take_over(id, &self.stream.binding().principal).await,
            home => home,
        };
        home.unwrap_or_else(|error| {
            debug!(%error, "the store could not be asked for the home of a session");
            self.log.sessions().handshakes().find(id).map_or(Home::Unknown, Home::Here)
        })
    }

    /// Returns true if another stream of the session stays open for a second. Then the session
    /// lives, and the refusal concerns only this caller or connection. The caller holds the turn to
    /// open the session.
    async fn has_living_stream(&self, id: &SessionId, handshake: &Handshake) -> bool {
        let (sessions, principals) = (self.log.sessions(), handshake.principals());
        let until = clock::now() + LIVING_FOR;
        loop {
            let is_read = |stream: &Arc<Stream>| !Arc::ptr_eq(stream, self.stream) && stream.upstream().is_streaming();
            if !sessions.streams_of(id, &principals).iter().any(is_read) {
                return false;
            }
            if clock::now() >= until {
                return true;
            }
            clock::sleep(LIVING_STEP).await;
        }
    }

    /// Opens the session again, unless it lives, or another request has opened it meanwhile. The
    /// attempt continues if this future is dropped.
    async fn open_again(&self, id: &SessionId, handshake: &Arc<Handshake>, refused: &RefusedAs) -> Attempt {
        let ended = handshake.ended();
        let turn = handshake.turn().await;
        if handshake.is_over() {
            return Attempt::Gone;
        }
        let name = handshake.name();
        if !self.template.is_in_session(&name) && !name.is_lost() {
            return Attempt::Revived;
        }
        match handshake.end_since(ended) {
            Some(AttemptEnd::Failed) if self.upstream.has_channels() => return Attempt::Unstarted(None),
            Some(AttemptEnd::Failed) => return Attempt::Failed,
            // One inquiry serves all requests that were refused together.
            Some(AttemptEnd::Lives) => return Attempt::Lives,
            Some(AttemptEnd::Other) | None => {}
        }
        if self.lives(id, handshake, refused).await {
            handshake.end_attempt(AttemptEnd::Lives);
            self.metrics.observe_revival(RevivalOutcome::Lives);
            return Attempt::Lives;
        }
        // After a restart many sessions are opened again at once, each for a moment.
        let permit = self.upstream.revivals().permits.clone().acquire_owned();
        let wait = self.upstream.server().start_limit().unwrap_or(PERMIT_WAIT);
        let Ok(Ok(permit)) = tokio::time::timeout(wait, permit).await else {
            self.metrics.observe_revival(RevivalOutcome::Limited);
            // Requests that wait for the same turn do not wait for a permit again.
            handshake.end_attempt(AttemptEnd::Failed);
            return if self.upstream.has_channels() { Attempt::Unstarted(None) } else { Attempt::Failed };
        };
        // Servers on channels have a limit of starts instead. The proxy itself often ends them.
        let is_limited = !self.upstream.has_channels();
        if !handshake.begin_attempt(clock::now(), is_limited) {
            self.metrics.observe_revival(RevivalOutcome::Limited);
            debug!("a session is not opened again: the limit of attempts is reached");
            return Attempt::Failed;
        }
        let mut span = self.stream.trace().span().map(|call| call.begin("session revival", SpanKind::Internal));
        let request = match &span {
            Some(span) => Arc::new(self.template.below(span.context())),
            None => self.template.clone(),
        };
        let handshaking = Handshaking {
            upstream: self.upstream.clone(),
            log: self.log.clone(),
            id: id.clone(),
            handshake: handshake.clone(),
            request,
        };
        let (handshake, metrics, upstream) = (handshake.clone(), self.metrics.clone(), self.upstream.clone());
        let began = clock::now();
        let attempt = async move {
            let opened = handshaking.run(permit).await;
            let outcome = outcome_of(&opened);
            if matches!(opened, Opened::Revived) && is_limited {
                upstream.revivals().signs.record_revival(handshake.note_revival(clock::now()));
            }
            let has_failed = outcome == RevivalOutcome::Failed;
            handshake.end_attempt(if has_failed { AttemptEnd::Failed } else { AttemptEnd::Other });
            metrics.observe_revival(outcome);
            if let Some(mut span) = span.take() {
                span.set("mcp_resume.outcome", outcome.label());
                if has_failed {
                    span.fail(outcome.label());
                }
            }
            let reason = if let Opened::Failed(reason) = &opened { Some(*reason) } else { None };
            let took_ms = clock::now().saturating_duration_since(began).as_millis() as u64;
            info!(outcome = outcome.label(), reason, took_ms, "an attempt to open a forgotten session again has ended");
            drop(turn);
            opened
        };
        tokio::spawn(attempt.in_current_span()).await.map_or(Attempt::Failed, Attempt::from)
    }
}

/// Returns a request in the revision that its session has now.
pub(super) fn in_revision(template: Template, handshake: &Handshake) -> Template {
    let revision = handshake.replacement().and_then(|it| HeaderValue::from_str(it.version.as_str()).ok());
    match revision {
        Some(revision) => template.with(names::MCP_PROTOCOL_VERSION, revision),
        None => template,
    }
}

/// Returns the outcome of a handshake for metrics and traces.
fn outcome_of(opened: &Opened) -> RevivalOutcome {
    match opened {
        Opened::Revived => RevivalOutcome::Revived,
        Opened::Unauthorized(_) => RevivalOutcome::Unauthorized,
        Opened::Differs => RevivalOutcome::Differs,
        Opened::Ended => RevivalOutcome::Ended,
        Opened::Displaced(_) => RevivalOutcome::Displaced,
        Opened::Failed(_) | Opened::Unstarted(_) => RevivalOutcome::Failed,
    }
}

impl From<Opened> for Attempt {
    fn from(opened: Opened) -> Self {
        match opened {
            Opened::Revived => Self::Revived,
            Opened::Unauthorized(response) => Self::Unauthorized(*response),
            Opened::Unstarted(response) => Self::Unstarted(Some(*response)),
            Opened::Differs | Opened::Ended => Self::Gone,
            Opened::Displaced(owner) => Self::Displaced(owner),
            Opened::Failed(_) => Self::Failed,
        }
    }
}

impl Upstream {
    /// Opens the session of a waiting standalone stream again, with the headers of its client's
    /// GET. Returns at once.
    pub fn reopen_session(
        self: &Arc<Self>,
        log: &Arc<EventLog>,
        metrics: &Arc<Metrics>,
        stream: &Arc<Stream>,
        get: Template,
    ) {
        let (upstream, log, metrics, stream) = (self.clone(), log.clone(), metrics.clone(), stream.clone());
        let opening = async move {
            let binding = stream.binding();
            let Some(id) = &binding.session else { return };
            let handshake = log.sessions().handshakes().find(id);
            let Some(handshake) = handshake.filter(|handshake| handshake.may_revive(&binding.principal)) else {
                return;
            };
            let template = Arc::new(get);
            let (upstream, log, metrics) = (&upstream, &log, &metrics);
            let refused = Refused { upstream, log, metrics, stream: &stream, template: &template, is_routed: false };
            // The refusal of the stream was not recorded.
            let before = RefusedAs { status: 404, refusal: Refusal::Possible(Words::Unread) };
            // The stream itself shows the outcome.
            let _ = refused.open_again(id, &handshake, &before).await;
        };
        tokio::spawn(opening.in_current_span());
    }

    /// Returns the messages for the client of a session that was opened again.
    pub fn revival_messages(&self, handshake: &Handshake) -> Vec<Bytes> {
        let messages = synthetic::revival_messages(&handshake.server, &handshake.changed_lists());
        messages.into_iter().map(Bytes::from).collect()
    }

    /// Returns true if a POST without requests was refused, and the client's next request may open
    /// the session again. While a stream of the session is open, the session lives. The returned
    /// response has its whole body.
    pub async fn is_refused_in_revivable_session(
        &self,
        log: &EventLog,
        id: &SessionId,
        principal: &Principal,
        template: &Template,
        response: Response<ResponseBody>,
    ) -> (Response<ResponseBody>, bool) {
        if !self.revivals().may_concern(response.status()) {
            return (response, false);
        }
        let Some(handshake) = log.sessions().handshakes().find(id) else { return (response, false) };
        let streams = log.sessions().streams_of(id, &handshake.principals());
        let is_current = !handshake.is_opening() && template.is_in_session(&handshake.name());
        let is_living =
            !self.has_channels() && is_current && streams.iter().any(|stream| stream.upstream().is_streaming());
        if !handshake.may_revive(principal) || is_living {
            return (response, false);
        }
        let (response, refusal) = self.revivals().examine(response, &[]).await;
        (response, refusal.is_possible())
    }
}
