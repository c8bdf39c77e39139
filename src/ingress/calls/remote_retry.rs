//! Retries of calls that another replica runs, or that ran before a restart.
//!
//! A call that a retry may match is recorded in the store before it goes upstream
//! (`event_log/recovery/claims.rs`): every such call if replicas share the store, else calls with a
//! key. The one exception are calls without a key in a session that one replica alone serves;
//! another replica joins such a session before it searches. A replica that finds the record asks
//! the one that runs the call, and returns that call's response, or its stream, which it serves
//! from the store. A call with a key that an older token of the caller began is found by the
//! subject that both tokens claim, once the server has confirmed the newer one.
//!
//! Owned here: the outcome if the running replica is dead or silent. Invariants: a call that may
//! have run is not run again. A caller that proves nothing gets nothing of another token's call,
//! changes nothing of it, and may still make a call of its own. Absent: retries of calls of this
//! process, which need no inquiry, calls without a key that an older token began elsewhere, and
//! those of clients that use request IDs freely.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tracing::{debug, warn};

use super::drain_admission::Admission;
use super::request::{CallRequest, Retry};
use crate::clock;
use crate::cluster::{Absence, Replicas};
use crate::config::OnUnreachable;
use crate::event_log::{
    Binding, ClaimGuard, ClaimOutcome, ClaimRecord, ClaimRequest, EventLog, Fingerprint, RegistrationLock, RetryMatch,
    Stream, SubjectClaim,
};
use crate::ingress::components::Components;
use crate::ingress::stream_finder::StreamFinder;
use crate::ingress::token_refresh::{TokenRefresh, Unproven};
use crate::protocol::cluster::{HttpMessage, RepeatedCall};
use crate::protocol::error::{ErrorCode, Failure};
use crate::protocol::ids::{EventId, Owner};
use crate::protocol::request_ids::IdUse;
use crate::store::{Error, StoreHealth};
use crate::upstream::Upstream;

/// Time for a replica to respond. After it, a live replica is asked again.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for a replica to respond that another joins a session. After it, a live replica is asked
/// again.
const JOIN_TIMEOUT: Duration = Duration::from_secs(1);
/// Time after which a live replica that has not responded is given up.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(30);
/// Time after which a pending write or removal is expected to be done.
const PAUSE: Duration = Duration::from_millis(250);

/// Earlier call that a POST may retry.
pub(super) enum EarlierCall {
    /// No call at another replica. Holds the claim to run the call, if there is one.
    None(Option<PendingClaim>),
    /// Stream of another replica, or of this one before it was started.
    Stream(Arc<Stream>),
    /// Response that passed through another replica.
    Response(HttpMessage),
    /// Call of another token, which the caller has not proven to be its own.
    Unproven(Unproven),
    /// Call that is lost, or must not run again.
    Refused(Failure),
}

/// Right to run a call, held until the call is registered.
pub(super) struct PendingClaim {
    pub(super) guard: ClaimGuard,
    pub(super) lock: RegistrationLock,
}

/// Result of one inquiry about a recorded call.
enum Finding {
    Done(EarlierCall),
    /// The record is of a call that no client can resume: the new call replaces it.
    Replace,
    /// The replica that runs the call has not responded yet.
    Silent,
    /// That replica does not know the call, whose record may be removed in a moment.
    Unknown,
    /// The inquiry is to be repeated, at once or after this pause.
    Again(Option<Duration>),
}

/// Next step of a search after an inquiry, given the inquiries before it.
enum Step {
    Done(EarlierCall),
    Replace,
    /// Reads the record again.
    Again,
}

/// Finds the calls of other replicas, or of an earlier process, that a POST may retry.
pub(super) struct RemoteRetries {
    log: Arc<EventLog>,
    upstream: Arc<Upstream>,
    replicas: Option<Arc<Replicas>>,
    admission: Admission,
    finder: Arc<StreamFinder>,
    tokens: Arc<TokenRefresh>,
}

impl RemoteRetries {
    pub(super) fn new(
        components: &Components,
        admission: Admission,
        finder: Arc<StreamFinder>,
        tokens: Arc<TokenRefresh>,
    ) -> Self {
        let Components { log, upstream, replicas, .. } = components;
        Self { log: log.clone(), upstream: upstream.clone(), replicas: replicas.clone(), admission, finder, tokens }
    }

    /// True if the store may have the record of an earlier call that `retry` comes back to.
    pub(super) fn may_be_recorded(&self, retry: Retry) -> bool {
        // An equal call elsewhere is another one, or cannot be told from one.
        retry.fingerprint.is_some()
            && !retry.is_by_free_id()
            && (self.replicas.is_some() || (retry.body.is_some() && self.log.has_store()))
    }

    /// Returns the recorded call that `request` retries, or claims the call for this replica.
    pub(super) async fn find(&self, request: &CallRequest) -> EarlierCall {
        if let Err(outcome) = self.join_session(request).await {
            return outcome;
        }
        loop {
            let claim = match self.find_by_own_token(request).await {
                EarlierCall::None(claim) => claim,
                found => return found,
            };
            let Some(subject) = request.retry.subject else { return EarlierCall::None(claim) };
            // Boxed: most callers claim no subject.
            match Box::pin(self.find_by_previous_tokens(request, &subject, claim)).await {
                ControlFlow::Break(outcome) => return outcome,
                ControlFlow::Continue(()) => {}
            }
        }
    }

    /// Tells the other replicas that serve the session of a call without a key that this one does
    /// too, once, and waits until they have claimed their calls in it.
    async fn join_session(&self, request: &CallRequest) -> Result<(), EarlierCall> {
        let Retry { fingerprint: Some(call), body: None, .. } = request.retry else { return Ok(()) };
        // A call that cannot run here needs no claims of the others.
        if request.context.has_remote_session() || !self.admission.can_admit(request) {
            return Ok(());
        }
        let (context, Some(replicas)) = (&request.context, &self.replicas) else { return Ok(()) };
        let (Some(session), Some(id)) = (&context.session, &context.binding.session) else { return Ok(()) };
        let Some(announcement) = self.log.begin_announcement(session) else { return Ok(()) };
        if self.log.store_health() != StoreHealth::Ready {
            return Ok(());
        }
        // Registered before it asks: a replica that opens the session later finds this one.
        if !self.log.ensure_registered(id, session).await {
            return Ok(());
        }
        let members = match replicas.requests().members(id).await {
            Ok(members) => members,
            Err(error) => {
                // The next call asks again. Until then the claims alone decide, as far as the store
                // has them.
                debug!(%error, "the other replicas of a session are unknown");
                return Ok(());
            }
        };
        for member in members {
            self.join_at(replicas, member, &context.binding, &call).await?;
        }
        session.note_announced(announcement);
        Ok(())
    }

    /// Joins the session of `binding` at one replica. Waits while that replica may be about to run
    /// the call: it holds its lease, or its lease has only just expired, as all do in an outage of
    /// the store.
    async fn join_at(
        &self,
        replicas: &Replicas,
        member: Owner,
        binding: &Binding,
        call: &Fingerprint,
    ) -> Result<(), EarlierCall> {
        let began = clock::now();
        loop {
            let joining = replicas.requests().join_session(member, binding, call);
            match tokio::time::timeout(JOIN_TIMEOUT, joining).await {
                Ok(Ok(Some(()))) => return Ok(()),
                Ok(Ok(None)) => match replicas.requests().absence(member).await {
                    Ok(Absence::Gone | Absence::CutOff) => return Ok(()),
                    Ok(Absence::Expired) => clock::sleep(PAUSE).await,
                    Err(error) => return Err(self.without_store(&error, None)),
                },
                Ok(Err(_)) if self.log.is_store_recovering() => clock::sleep(PAUSE).await,
                Ok(Err(error)) => return Err(self.without_store(&error, None)),
                Err(_) => {}
            }
            if clock::now().saturating_duration_since(began) >= SILENCE_TIMEOUT {
                warn!(owner = member.0, "a replica does not respond about a session");
                return Err(EarlierCall::Refused(Failure::before_run(ErrorCode::StoreFailed)));
            }
        }
    }

    /// Searches the recorded calls of the current token.
    async fn find_by_own_token(&self, request: &CallRequest) -> EarlierCall {
        let Retry { fingerprint: Some(call), body, .. } = request.retry else { return EarlierCall::None(None) };
        let search =
            Search { retries: self, replicas: self.replicas.as_deref(), request, call, body, is_previous_token: false };
        let mut inquiry = Inquiry::default();
        let mut is_recorded = false;
        loop {
            let lock = self.log.retry_index().registering(call).await;
            let here = self.log.find_call(&call);
            if here.as_ref().is_some_and(|stream| stream.retries().compare(body, IdUse::Unique) != RetryMatch::NewCall)
            {
                return EarlierCall::None(None);
            }
            let (run, record) = match search.claim().await {
                Ok(ClaimOutcome::Claimed(guard)) => return EarlierCall::None(Some(PendingClaim { guard, lock })),
                Ok(ClaimOutcome::Unclaimed) => return EarlierCall::None(None),
                Ok(ClaimOutcome::Existing(run, record)) => (run, record),
                Ok(ClaimOutcome::Unreadable) => return lost(ErrorCode::StoreFailed),
                // The record was there a moment ago, so its call still runs.
                Err(_) if is_recorded => return lost(ErrorCode::StoreFailed),
                Err(outcome) => return outcome,
            };
            is_recorded = true;
            drop(lock);
            match inquiry.step(&search, here, run, &record).await {
                Step::Done(outcome) => return outcome,
                Step::Replace => {
                    if self.log.release_claim(&call, &record).await.is_err() {
                        return lost(ErrorCode::StoreFailed);
                    }
                    is_recorded = false;
                }
                Step::Again => {}
            }
        }
    }

    /// Searches the calls with a key that other tokens of the caller, who is `subject`, began. If
    /// there is none, records in `claim` how they find this call. `Continue` if the search must be
    /// repeated, because the store may have changed.
    async fn find_by_previous_tokens(
        &self,
        request: &CallRequest,
        subject: &Fingerprint,
        mut claim: Option<PendingClaim>,
    ) -> ControlFlow<EarlierCall> {
        let Retry { fingerprint: Some(own), body, .. } = request.retry else {
            return ControlFlow::Break(EarlierCall::None(claim));
        };
        if self
            .log
            .find_call(&own)
            .is_some_and(|stream| stream.retries().compare(body, IdUse::Unique) != RetryMatch::NewCall)
        {
            return ControlFlow::Break(EarlierCall::None(claim));
        }
        let found = match &mut claim {
            Some(PendingClaim { guard, .. }) => {
                let is_accepted = self.upstream.observed().has_accepted(&request.context.credentials, clock::now());
                self.log.claim_for_subject(guard, subject, own, body, is_accepted).await
            }
            None if self.log.store_health() == StoreHealth::Unreachable => Ok(None),
            None => self.log.subject_claim(subject).await,
        };
        let (previous, record) = match found {
            Ok(Some(found)) => found,
            Ok(None) => return ControlFlow::Break(EarlierCall::None(claim)),
            Err(error) => return ControlFlow::Break(self.without_store(&error, claim)),
        };
        match self.tokens.proves_subject(&request.context, request.call.era()).await {
            Ok(true) => {}
            Ok(false) => {
                if let Some(claim) = &mut claim {
                    claim.guard.drop_subject_claim();
                }
                return ControlFlow::Break(EarlierCall::None(claim));
            }
            Err(unproven) => return ControlFlow::Break(EarlierCall::Unproven(unproven)),
        }
        // The earlier call is this one or another. No other request has to wait for it.
        drop(claim);
        if !previous.is_accepted && previous.run.body != body {
            // The sender of that call may have invented its subject.
            return self.replace_previous(subject, &record).await;
        }
        self.follow_previous(request, subject, previous, &record).await
    }

    /// Follows the call of `previous`, which the caller has proven to be its own.
    async fn follow_previous(
        &self,
        request: &CallRequest,
        subject: &Fingerprint,
        previous: SubjectClaim,
        record: &Bytes,
    ) -> ControlFlow<EarlierCall> {
        let (replicas, body, call) = (self.replicas.as_deref(), request.retry.body, previous.call);
        let search = Search { retries: self, replicas, request, call, body, is_previous_token: true };
        let mut inquiry = Inquiry::default();
        loop {
            // A call that was claimed a moment ago may not be registered yet.
            drop(self.log.retry_index().registering(call).await);
            let here = self.log.find_call(&call);
            let retry_match =
                here.as_ref().map_or(RetryMatch::NewCall, |stream| stream.retries().compare(body, IdUse::Unique));
            if let Some(stream) = &here
                && stream.id() == previous.run.stream
                && retry_match != RetryMatch::NewCall
            {
                stream.retries().wait_for_detach().await;
                return ControlFlow::Break(if search.may_have(stream) && retry_match == RetryMatch::Retry {
                    EarlierCall::Stream(stream.clone())
                } else {
                    EarlierCall::Refused(Failure::before_run(ErrorCode::KeyReused))
                });
            }
            match inquiry.step(&search, here, previous.run, record).await {
                Step::Done(outcome) => return ControlFlow::Break(outcome),
                Step::Replace => return self.replace_previous(subject, record).await,
                Step::Again => match self.log.subject_claim(subject).await {
                    Ok(Some((_, there))) if there == *record => {}
                    Ok(_) => return ControlFlow::Continue(()),
                    Err(_) => return ControlFlow::Break(lost(ErrorCode::StoreFailed)),
                },
            }
        }
    }

    async fn replace_previous(&self, subject: &Fingerprint, record: &Bytes) -> ControlFlow<EarlierCall> {
        match self.log.release_subject_claim(subject, record).await {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(lost(ErrorCode::StoreFailed)),
        }
    }

    /// Returns the result if the store cannot be asked. With `degrade` the call counts as unknown
    /// to other replicas.
    fn without_store(&self, error: &Error, claim: Option<PendingClaim>) -> EarlierCall {
        debug!(%error, "the store could not say whether a call is another replica's");
        match (error, self.log.on_unreachable()) {
            (Error::Unavailable(_) | Error::Gone, OnUnreachable::Degrade) => EarlierCall::None(claim),
            (Error::Full(_), _) | (_, OnUnreachable::Refuse) => {
                EarlierCall::Refused(Failure::before_run(ErrorCode::StoreFailed))
            }
        }
    }
}

/// Inquiries about one call.
#[derive(Default)]
struct Inquiry {
    silent_since: Option<Instant>,
    /// Record of a call that its replica does not know.
    unknown: Option<Bytes>,
}

impl Inquiry {
    /// Inquires once about the call `run` of `record`. `here` is the call with the same fingerprint
    /// in this process, which a client cannot come back to.
    async fn step(&mut self, search: &Search<'_>, here: Option<Arc<Stream>>, run: ClaimRecord, record: &Bytes) -> Step {
        let log = &search.retries.log;
        let asked_at = clock::now();
        let finding = if here.is_some_and(|stream| stream.id() == run.stream) || log.has_released_claim(run.stream) {
            Finding::Replace
        } else if run.owner == log.owner() {
            // The call is no longer here: an earlier process of this name ran it, or another
            // replica has its stream.
            search.find_without_owner(run).await
        } else {
            search.ask_owner(run).await
        };
        // Repeated: the replica forgets the call a moment before its record is removed.
        let finding = match finding {
            Finding::Unknown if self.unknown.as_ref() == Some(record) => search.find_without_owner(run).await,
            finding => finding,
        };
        let has_responded = !matches!(finding, Finding::Silent);
        self.silent_since = if has_responded { None } else { self.silent_since.or(Some(asked_at)) };
        match finding {
            Finding::Done(outcome) => return Step::Done(outcome),
            Finding::Replace => return Step::Replace,
            Finding::Silent => {
                let is_timeout = |since| clock::now().saturating_duration_since(since) >= SILENCE_TIMEOUT;
                if self.silent_since.is_some_and(is_timeout) {
                    warn!(owner = run.owner.0, "a replica does not respond about a call");
                    return Step::Done(lost(ErrorCode::StoreFailed));
                }
            }
            Finding::Unknown => {
                self.unknown = Some(record.clone());
                clock::sleep(PAUSE).await;
            }
            Finding::Again(pause) => clock::sleep(pause.unwrap_or_default()).await,
        }
        Step::Again
    }
}

/// Search for the earlier call of one POST.
struct Search<'a> {
    retries: &'a RemoteRetries,
    replicas: Option<&'a Replicas>,
    request: &'a CallRequest,
    call: Fingerprint,
    body: Option<Fingerprint>,
    /// True if another token of the caller began the call, which the server has confirmed.
    is_previous_token: bool,
}

impl Search<'_> {
    fn may_have(&self, stream: &Stream) -> bool {
        let caller = &self.request.context.binding;
        stream.binding().admits(caller) || (self.is_previous_token && stream.binding().is_claimed_by(caller))
    }

    /// Claims the call. If the store is away, `degrade` goes on as if no other replica had the
    /// call. A full store is read all the same, and takes no new call.
    async fn claim(&self) -> Result<ClaimOutcome, EarlierCall> {
        let log = &self.retries.log;
        let claim =
            ClaimRequest { retention: self.retries.admission.settings(self.request).retention, body: self.body };
        let claimed = match log.store_health() {
            StoreHealth::Ready => log.claim(&self.call, claim, !self.retries.admission.can_admit(self.request)).await,
            StoreHealth::Full => match log.claim(&self.call, claim, true).await {
                Ok(ClaimOutcome::Unclaimed) | Err(_) => {
                    return Err(EarlierCall::Refused(Failure::before_run(ErrorCode::StoreFailed)));
                }
                there => there,
            },
            StoreHealth::Unreachable => return Err(EarlierCall::None(None)),
        };
        claimed.map_err(|error| self.retries.without_store(&error, None))
    }

    async fn ask_owner(&self, run: ClaimRecord) -> Finding {
        let Some(replicas) = self.replicas else { return self.find_without_owner(run).await };
        let inquiry = replicas.requests().known_at(run, &self.call, self.body.as_ref());
        let known = match tokio::time::timeout(REPLY_TIMEOUT, inquiry).await {
            Ok(Ok(Some(known))) => known,
            Ok(Ok(None)) => return self.find_without_owner(run).await,
            Ok(Err(error)) => {
                debug!(%error, "a replica could not be asked about a call");
                return Finding::Done(lost(ErrorCode::StoreFailed));
            }
            Err(_) => return Finding::Silent,
        };
        match known {
            RepeatedCall::Nothing => Finding::Unknown,
            RepeatedCall::Another => Finding::Replace,
            RepeatedCall::OtherBody => Finding::Done(EarlierCall::Refused(Failure::before_run(ErrorCode::KeyReused))),
            RepeatedCall::Waiting => Finding::Again(None),
            RepeatedCall::Answer(response) => Finding::Done(EarlierCall::Response(response)),
            RepeatedCall::Failed(failure) => Finding::Done(EarlierCall::Refused(failure)),
            RepeatedCall::Stream(id) => match self.retries.log.restore_by_id(id).await {
                Ok(Some(stream)) if self.may_have(&stream) => Finding::Done(self.restore_for_client(stream).await),
                // The stream exists, and is not yet in the store, which was away.
                Ok(_) | Err(_) => Finding::Done(lost(ErrorCode::StoreFailed)),
            },
        }
    }

    /// Returns the call of a process that is gone, from its stream or its response in the store.
    async fn find_without_owner(&self, run: ClaimRecord) -> Finding {
        if run.body.is_some() && run.body != self.body {
            return Finding::Done(EarlierCall::Refused(Failure::before_run(ErrorCode::KeyReused)));
        }
        let stream = match self.retries.log.restore_by_id(run.stream).await {
            Ok(stream) => stream.filter(|stream| self.may_have(stream)),
            Err(_) => return Finding::Done(lost(ErrorCode::StoreFailed)),
        };
        let Some(stream) = stream else {
            return self.find_without_stream(run).await;
        };
        stream.retries().wait_for_detach().await;
        match stream.retries().compare(self.body, IdUse::Unique) {
            RetryMatch::Retry => Finding::Done(self.restore_for_client(stream).await),
            RetryMatch::OtherBody => Finding::Done(EarlierCall::Refused(Failure::before_run(ErrorCode::KeyReused))),
            RetryMatch::NewCall => Finding::Replace,
        }
    }

    /// Returns the call of a process that is gone if the store has no stream of it: the process may
    /// have died between the claim and the first record of the stream. As with a stream, the call
    /// ends for its client once the lease of its owner has expired.
    async fn find_without_stream(&self, run: ClaimRecord) -> Finding {
        match self.retries.log.stored_response(run.stream).await {
            Ok(Some(RepeatedCall::Answer(response))) => return Finding::Done(EarlierCall::Response(response)),
            Ok(Some(RepeatedCall::Failed(failure))) => return Finding::Done(EarlierCall::Refused(failure)),
            Ok(_) => {}
            Err(_) => return Finding::Done(lost(ErrorCode::StoreFailed)),
        }
        let absence = match self.replicas {
            Some(replicas) => replicas.requests().absence(run.owner).await,
            None => Ok(Absence::Gone),
        };
        match absence {
            Ok(Absence::Expired) => Finding::Again(Some(PAUSE * 4)),
            Ok(Absence::Gone) => Finding::Done(lost(ErrorCode::OwnerDied)),
            Ok(Absence::CutOff) => {
                self.keep_record(run).await;
                Finding::Done(lost(ErrorCode::OwnerDied))
            }
            Err(_) => Finding::Done(lost(ErrorCode::StoreFailed)),
        }
    }

    /// Extends the record of a call that may still run at a replica cut off from the store. A
    /// client that retries it must not run the call a second time, and finds the response once the
    /// replica is connected again.
    async fn keep_record(&self, run: ClaimRecord) {
        let retention = self.retries.admission.settings(self.request).retention;
        if let Err(error) = self.retries.log.extend_claim(&self.call, &run, retention).await {
            debug!(%error, "the record of a call could not be kept");
        }
    }

    /// Returns the stream once the events that the client has are here.
    async fn restore_for_client(&self, stream: Arc<Stream>) -> EarlierCall {
        let id = EventId::of_handle(stream.handle().as_str()).expect("a handle is well-formed");
        match self.retries.finder.restore_cursor(&self.request.context, &id).await {
            Ok(()) => EarlierCall::Stream(stream),
            Err(_) => lost(ErrorCode::StoreFailed),
        }
    }
}

/// Refuses a call that may have run and whose outcome is unknown.
fn lost(code: ErrorCode) -> EarlierCall {
    EarlierCall::Refused(Failure::after_send(code))
}
