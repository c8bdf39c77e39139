//! Retries of calls with an `Idempotency-Key` that another replica runs, or that ran before a
//! restart.
//!
//! Such a call is recorded in the store before it goes upstream (`event_log/replicas/claims.rs`). A
//! replica that finds the record sends an inquiry to the replica that runs the call, and returns
//! the response of the call, or its stream, which it serves from the store. A call that an older
//! token of the caller began is found by the subject that both tokens claim, once the server has
//! confirmed the newer one.
//!
//! Owned here: the outcome if the running replica is dead or silent. Invariants: a call that may
//! have run is not run again. Once the lease of its replica has expired, a call without a stored
//! response ends with `owner_died`. A caller without a proof gets no response of another token's
//! call, changes no record of it, and may still begin a call of its own. Absent: retries of calls
//! of this process, which need no inquiry, and retries without a key, which are new calls here.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tracing::{debug, warn};

use super::drain_admission;
use super::request::{CallRequest, Retry};
use crate::clock;
use crate::cluster::Absence;
use crate::config::OnUnreachable;
use crate::event_log::{
    ClaimGuard, ClaimOutcome, ClaimRecord, ClaimRequest, EventLog, Fingerprint, RegistrationLock, RetryMatch, Stream,
    SubjectClaim,
};
use crate::ingress::components::Components;
use crate::ingress::context::RequestContext;
use crate::ingress::stream_finder;
use crate::ingress::token_refresh::{self, Unproven};
use crate::protocol::cluster::{HttpMessage, RepeatedCall};
use crate::protocol::error::{ErrorCode, Failure};
use crate::protocol::ids::EventId;
use crate::protocol::request_ids::IdUse;
use crate::store::{Error, StoreHealth};

/// Time for a replica to respond. After it, the inquiry to a live replica is repeated.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest time without a response of a live replica. Then it is given up.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(30);
/// Time that a pending write or removal is expected to take.
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
    /// Boxed: most calls have none.
    pub(super) guard: Box<ClaimGuard>,
    pub(super) lock: RegistrationLock,
}

/// Result of one inquiry about a recorded call.
enum Finding {
    Done(EarlierCall),
    /// No client can resume the recorded call: the new call replaces it.
    Replace,
    /// The replica that runs the call has not responded yet.
    Silent,
    /// That replica does not know the call, and may be about to remove its record.
    Unknown,
    /// The inquiry is to be repeated after this pause.
    Again(Duration),
}

/// Next step of a search after an inquiry, given the inquiries before it.
enum Step {
    Done(EarlierCall),
    Replace,
    /// Reads the record again.
    Again,
}

/// Returns whether the store may have the record of an earlier call for `retry`.
pub(super) fn may_be_recorded(components: &Components, retry: Retry) -> bool {
    retry.body.is_some() && components.log.has_store()
}

/// Returns the recorded call that `request` retries, or claims the call for this replica.
pub(super) async fn find(components: &Components, request: &CallRequest) -> EarlierCall {
    let Retry { fingerprint: Some(call), body: Some(body), subject, .. } = request.retry else {
        return EarlierCall::None(None);
    };
    let search = Search { components, request, call, body, is_previous_token: false };
    loop {
        let claim = match search.find_or_claim().await {
            EarlierCall::None(claim) => claim,
            found => return found,
        };
        let Some(subject) = &subject else { return EarlierCall::None(claim) };
        // Boxed: most callers claim no subject.
        match Box::pin(search.find_by_previous_tokens(subject, claim)).await {
            ControlFlow::Break(outcome) => return outcome,
            ControlFlow::Continue(()) => {}
        }
    }
}

async fn replace_previous(components: &Components, subject: &Fingerprint, record: &Bytes) -> ControlFlow<EarlierCall> {
    match components.log.claims().release_subject_claim(subject, record).await {
        Ok(()) => ControlFlow::Continue(()),
        Err(_) => ControlFlow::Break(lost(ErrorCode::StoreFailed)),
    }
}

/// Returns the outcome after a failure of the store. With `degrade` the call counts as unknown
/// to other replicas, unless its client says that it sends the call again.
fn without_store(
    components: &Components,
    request: &CallRequest,
    error: &Error,
    claim: Option<PendingClaim>,
) -> EarlierCall {
    debug!(%error, "the store could not say whether a call is another replica's");
    match (error, components.log.on_unreachable()) {
        (Error::Unavailable(_) | Error::Gone, OnUnreachable::Degrade) if !request.context.is_sent_again() => {
            EarlierCall::None(claim)
        }
        (Error::Unavailable(_) | Error::Gone | Error::Full(_), OnUnreachable::Degrade | OnUnreachable::Refuse) => {
            EarlierCall::Refused(Failure::before_run(ErrorCode::StoreFailed))
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
    /// in this process, which no client can resume.
    async fn step(&mut self, search: &Search<'_>, here: Option<Arc<Stream>>, run: ClaimRecord, record: &Bytes) -> Step {
        let log = &search.components.log;
        let began = clock::now();
        let finding = if here.is_some_and(|stream| stream.id() == run.stream) || log.claims().has_released(run.stream) {
            Finding::Replace
        } else if run.owner == log.owner() {
            // The call is no longer here: an earlier process of this name ran it, or another
            // replica has its stream.
            search.find_without_owner(run).await
        } else {
            search.inquire_at_owner(run).await
        };
        // Repeated: the replica forgets the call a moment before its record is removed.
        let finding = match finding {
            Finding::Unknown if self.unknown.as_ref() == Some(record) => search.find_without_owner(run).await,
            finding => finding,
        };
        let has_responded = !matches!(finding, Finding::Silent);
        self.silent_since = if has_responded { None } else { self.silent_since.or(Some(began)) };
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
            Finding::Again(pause) => clock::sleep(pause).await,
        }
        Step::Again
    }
}

/// Search for the earlier call of one POST.
#[derive(Clone, Copy)]
struct Search<'a> {
    components: &'a Components,
    request: &'a CallRequest,
    call: Fingerprint,
    body: Fingerprint,
    /// True if another token of the caller began the call, which the server has confirmed.
    is_previous_token: bool,
}

impl Search<'_> {
    fn log(&self) -> &Arc<EventLog> {
        &self.components.log
    }

    /// Returns the call of this process with the same fingerprint, and its relation to the POST.
    fn find_here(&self) -> (Option<Arc<Stream>>, RetryMatch) {
        let here = self.log().find_call(&self.call);
        let relation = here.as_ref().map_or(RetryMatch::NewCall, |stream| self.relation_to(stream));
        (here, relation)
    }

    fn relation_to(&self, stream: &Stream) -> RetryMatch {
        stream.retries().compare(Some(self.body), IdUse::Unique)
    }

    fn may_have(&self, stream: &Stream) -> bool {
        let caller = &self.request.context.binding;
        stream.binding().admits(caller) || (self.is_previous_token && stream.binding().is_claimed_by(caller))
    }

    /// Searches the recorded calls of the current token, and claims the call if it has no record.
    async fn find_or_claim(&self) -> EarlierCall {
        let mut inquiry = Inquiry::default();
        let mut is_recorded = false;
        loop {
            let lock = self.log().retry_index().registering(self.call).await;
            let (here, relation) = self.find_here();
            if relation != RetryMatch::NewCall {
                return EarlierCall::None(None);
            }
            let (run, record) = match self.claim().await {
                Ok(ClaimOutcome::Claimed(guard)) => {
                    return EarlierCall::None(Some(PendingClaim { guard: Box::new(guard), lock }));
                }
                Ok(ClaimOutcome::Unclaimed) => return EarlierCall::None(None),
                Ok(ClaimOutcome::Existing(run, record)) => (run, record),
                Ok(ClaimOutcome::Unreadable) => return lost(ErrorCode::StoreFailed),
                // The record existed a moment ago, so its call still runs.
                Err(_) if is_recorded => return lost(ErrorCode::StoreFailed),
                Err(outcome) => return outcome,
            };
            is_recorded = true;
            drop(lock);
            match inquiry.step(self, here, run, &record).await {
                Step::Done(outcome) => return outcome,
                Step::Replace => {
                    if self.log().claims().release(&self.call, &record).await.is_err() {
                        return lost(ErrorCode::StoreFailed);
                    }
                    is_recorded = false;
                }
                Step::Again => {}
            }
        }
    }

    /// Searches the calls that other tokens of the caller, with the claimed `subject`, began. If
    /// there is no such call, records in `claim` how these tokens find this one. Returns `Continue`
    /// if the search must be repeated, because the store may have changed.
    async fn find_by_previous_tokens(
        &self,
        subject: &Fingerprint,
        mut claim: Option<PendingClaim>,
    ) -> ControlFlow<EarlierCall> {
        if self.find_here().1 != RetryMatch::NewCall {
            return ControlFlow::Break(EarlierCall::None(claim));
        }
        let context = &self.request.context;
        let found = match &mut claim {
            Some(PendingClaim { guard, .. }) => {
                let observed = self.components.upstream.observed();
                let is_accepted = observed.has_accepted(&context.credentials, clock::now());
                self.log().claims().claim_for_subject(guard, subject, is_accepted).await
            }
            None if self.log().store_health() == StoreHealth::Unreachable => Ok(None),
            None => self.log().claims().subject_claim(subject).await,
        };
        let (previous, record) = match found {
            Ok(Some(found)) => found,
            Ok(None) => return ControlFlow::Break(EarlierCall::None(claim)),
            Err(error) => return ControlFlow::Break(without_store(self.components, self.request, &error, claim)),
        };
        match token_refresh::proves_subject(self.components, context, self.request.call.era()).await {
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
        if !previous.is_accepted && previous.run.body != self.body {
            // The sender of that call may have invented its subject.
            return replace_previous(self.components, subject, &record).await;
        }
        self.follow_previous(subject, previous, &record).await
    }

    /// Follows the call of `previous`, which the caller has proven to be its own.
    async fn follow_previous(
        &self,
        subject: &Fingerprint,
        previous: SubjectClaim,
        record: &Bytes,
    ) -> ControlFlow<EarlierCall> {
        let search = Self { call: previous.call, is_previous_token: true, ..*self };
        let mut inquiry = Inquiry::default();
        loop {
            // A call that was claimed a moment ago may not be registered yet.
            drop(self.log().retry_index().registering(search.call).await);
            let (here, relation) = search.find_here();
            if let Some(stream) = &here
                && stream.id() == previous.run.stream
                && relation != RetryMatch::NewCall
            {
                stream.retries().wait_for_detach().await;
                return ControlFlow::Break(if search.may_have(stream) && relation == RetryMatch::Retry {
                    EarlierCall::Stream(stream.clone())
                } else {
                    key_reused()
                });
            }
            match inquiry.step(&search, here, previous.run, record).await {
                Step::Done(outcome) => return ControlFlow::Break(outcome),
                Step::Replace => return replace_previous(self.components, subject, record).await,
                Step::Again => match self.log().claims().subject_claim(subject).await {
                    Ok(Some((_, there))) if there == *record => {}
                    Ok(_) => return ControlFlow::Continue(()),
                    Err(_) => return ControlFlow::Break(lost(ErrorCode::StoreFailed)),
                },
            }
        }
    }

    /// Claims the call. If the store is unreachable, `degrade` continues as if no other replica had
    /// the call. A full store is still read, and takes no new call.
    async fn claim(&self) -> Result<ClaimOutcome, EarlierCall> {
        let (log, components) = (self.log(), self.components);
        let claim =
            ClaimRequest { retention: drain_admission::settings(components, self.request).retention, body: self.body };
        let claimed = match log.store_health() {
            StoreHealth::Ready => {
                log.claims().claim(&self.call, claim, !drain_admission::can_admit(components, self.request)).await
            }
            StoreHealth::Full => match log.claims().claim(&self.call, claim, true).await {
                Ok(ClaimOutcome::Unclaimed) | Err(_) => {
                    return Err(EarlierCall::Refused(Failure::before_run(ErrorCode::StoreFailed)));
                }
                there => there,
            },
            StoreHealth::Unreachable if self.request.context.is_sent_again() => {
                return Err(EarlierCall::Refused(Failure::before_run(ErrorCode::StoreFailed)));
            }
            StoreHealth::Unreachable => return Err(EarlierCall::None(None)),
        };
        claimed.map_err(|error| without_store(self.components, self.request, &error, None))
    }

    async fn inquire_at_owner(&self, run: ClaimRecord) -> Finding {
        let Some(replicas) = &self.components.replicas else { return self.find_without_owner(run).await };
        let inquiry = replicas.requests().known_at(run, &self.call, &self.body);
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
            RepeatedCall::OtherBody => Finding::Done(key_reused()),
            RepeatedCall::Waiting => Finding::Again(Duration::ZERO),
            RepeatedCall::Answer(response) => Finding::Done(EarlierCall::Response(response)),
            RepeatedCall::Failed(failure) => Finding::Done(EarlierCall::Refused(failure)),
            RepeatedCall::Stream(id) => match self.log().restoration().restore_by_id(id).await {
                Ok(Some(stream)) if self.may_have(&stream) => {
                    Finding::Done(restore_for_client(self.components, &self.request.context, stream).await)
                }
                // The stream exists, and is not yet in the store, which was unreachable.
                Ok(_) | Err(_) => Finding::Done(lost(ErrorCode::StoreFailed)),
            },
        }
    }

    /// Returns the call of a process that is gone, from its stream or its response in the store.
    async fn find_without_owner(&self, run: ClaimRecord) -> Finding {
        if run.body != self.body {
            return Finding::Done(key_reused());
        }
        let stream = match self.log().restoration().restore_by_id(run.stream).await {
            Ok(stream) => stream.filter(|stream| self.may_have(stream)),
            Err(_) => return Finding::Done(lost(ErrorCode::StoreFailed)),
        };
        let Some(stream) = stream else {
            return self.find_without_stream(run).await;
        };
        stream.retries().wait_for_detach().await;
        match self.relation_to(&stream) {
            RetryMatch::Retry => {
                Finding::Done(restore_for_client(self.components, &self.request.context, stream).await)
            }
            RetryMatch::OtherBody => Finding::Done(key_reused()),
            RetryMatch::NewCall => Finding::Replace,
        }
    }

    /// Returns the call of a process that is gone if the store has no stream of it: the process may
    /// have died between the claim and the first record of the stream. As with a stream, the call
    /// ends for its client once the lease of its owner has expired.
    async fn find_without_stream(&self, run: ClaimRecord) -> Finding {
        match self.log().kept_responses().find(run.stream).await {
            Ok(Some(RepeatedCall::Answer(response))) => return Finding::Done(EarlierCall::Response(response)),
            Ok(Some(RepeatedCall::Failed(failure))) => return Finding::Done(EarlierCall::Refused(failure)),
            Ok(_) => {}
            Err(_) => return Finding::Done(lost(ErrorCode::StoreFailed)),
        }
        let absence = match &self.components.replicas {
            Some(replicas) => replicas.requests().absence(run.owner).await,
            None => Ok(Absence::Gone),
        };
        match absence {
            Ok(Absence::Expired) => Finding::Again(PAUSE * 4),
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
        let retention = drain_admission::settings(self.components, self.request).retention;
        if let Err(error) = self.log().claims().extend(&self.call, &run, retention).await {
            debug!(%error, "the record of a call could not be kept");
        }
    }
}

/// Returns the stream once the events that the client has are here.
pub(super) async fn restore_for_client(
    components: &Components,
    context: &RequestContext,
    stream: Arc<Stream>,
) -> EarlierCall {
    let id = EventId::of_handle(stream.handle().as_str()).expect("a handle is well-formed");
    match stream_finder::restore_cursor(components, context, &id).await {
        Ok(()) => EarlierCall::Stream(stream),
        Err(_) => lost(ErrorCode::StoreFailed),
    }
}

/// Refuses a call that may have run and whose outcome is unknown.
pub(super) fn lost(code: ErrorCode) -> EarlierCall {
    EarlierCall::Refused(Failure::after_send(code))
}

/// Refuses a POST with the key of an earlier call and another body.
fn key_reused() -> EarlierCall {
    EarlierCall::Refused(Failure::before_run(ErrorCode::KeyReused))
}
