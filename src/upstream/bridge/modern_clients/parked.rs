//! Parked calls: calls that wait for client responses, each found by its `requestState`.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::StatusCode;
use serde_json::Value;
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::AbortHandle;

use super::call::{BridgedCall, Next};
use super::request::ClientRequest;
use super::session::{Busy, LegacySession};
use crate::protocol::bridge::modern_clients::{self as bridge, MAX_ROUNDS, UrlElicitations};
use crate::protocol::dialect::resume_tokens::CallDigest;
use crate::protocol::ids::ParkedCall;
use crate::protocol::tasks;
use crate::upstream::bridge::settings::{Link, Settings};
use crate::upstream::server::response_body::Messages;
use crate::{clock, random, sync};

/// Maximum wait of a response for the first message of the server.
const FIRST_WAIT: Duration = Duration::from_millis(100);

/// The parked calls, by `requestState`.
pub(super) struct ParkedCalls {
    link: Arc<Link>,
    calls: Mutex<HashMap<String, Entry>>,
}

/// Beginning of the response to a call.
pub(super) enum Begun {
    /// Messages for the client.
    Stream(Messages),
    /// An immediate error of the server. It has an HTTP status at the client's revision.
    Refused(Bytes),
}

struct Entry {
    call: Parked,
    /// Task that gives up the call after its maximum wait.
    timer: AbortHandle,
    _parking: OwnedSemaphorePermit,
}

/// A parked call.
pub(super) enum Parked {
    /// Call that is still running at the server.
    Call(Box<BridgedCall>),
    /// Call that the server has refused until its user opens elicitation URLs. It is sent again.
    Urls(Box<UrlCall>),
}

/// A call whose user must open elicitation URLs.
pub(super) struct UrlCall {
    session: Arc<LegacySession>,
    _busy: Busy,
    request: ClientRequest,
    elicitations: UrlElicitations,
    /// Refusal of the server.
    error: Bytes,
}

/// Outcome of the client responses to URL elicitations.
pub(super) enum UrlOutcome {
    /// All URLs were accepted: this request is sent.
    Retry(Arc<ClientRequest>),
    /// Some elicitations have no client response.
    Incomplete,
    /// The user declined.
    Declined,
}

impl Parked {
    /// Cancels the call at the server. Returns once the server has been notified.
    pub(super) async fn give_up(self) {
        if let Self::Call(call) = self {
            call.give_up().await;
        }
    }

    fn session(&self) -> &Arc<LegacySession> {
        match self {
            Self::Call(call) => call.session(),
            Self::Urls(call) => &call.session,
        }
    }

    fn request(&self) -> &ClientRequest {
        match self {
            Self::Call(call) => call.request(),
            Self::Urls(call) => &call.request,
        }
    }

    fn is_of(&self, session: &Arc<LegacySession>, digest: &CallDigest) -> bool {
        match self {
            Self::Call(call) => call.is_of(session, digest),
            Self::Urls(call) => Arc::ptr_eq(&call.session, session) && call.request.digest.as_ref() == Some(digest),
        }
    }
}

impl ParkedCalls {
    /// Creates an empty table.
    pub(super) fn new(link: Arc<Link>) -> Arc<Self> {
        Arc::new(Self { link, calls: Mutex::default() })
    }

    /// Takes out all calls.
    pub(super) fn take_all(&self) -> Vec<Parked> {
        let all = std::mem::take(&mut *sync::lock(&self.calls));
        all.into_values().map(|entry| entry.call).collect()
    }

    /// Returns true if any call is parked.
    pub(super) fn has_any(&self) -> bool {
        !sync::lock(&self.calls).is_empty()
    }

    /// Returns true if a call is parked under this state.
    pub(super) fn has(&self, state: &str) -> bool {
        sync::lock(&self.calls).contains_key(state)
    }

    /// Takes the call that is parked under this state. Session and digest must match.
    pub(super) fn take(
        &self,
        state: &str,
        session: &Arc<LegacySession>,
        digest: Option<&CallDigest>,
    ) -> Option<Parked> {
        let mut parked = sync::lock(&self.calls);
        let is_same =
            parked.get(state).is_some_and(|entry| digest.is_some_and(|digest| entry.call.is_of(session, digest)));
        let entry = if is_same { parked.remove(state)? } else { return None };
        entry.timer.abort();
        Some(entry.call)
    }
}

impl UrlCall {
    /// Returns the elicitation IDs that the server announces as complete.
    pub(super) fn ids(&self) -> &[String] {
        &self.elicitations.ids
    }

    /// Returns the elicitations.
    pub(super) fn elicitations(&self) -> UrlElicitations {
        self.elicitations.clone()
    }

    /// Returns the refusal of the server.
    pub(super) fn error(&self) -> &Bytes {
        &self.error
    }

    /// Returns a later request of the call, with this call's number of rounds.
    pub(super) fn in_same_round(&self, request: &ClientRequest) -> ClientRequest {
        ClientRequest { rounds: self.request.rounds, ..request.clone() }
    }

    /// Returns the outcome of the client responses in `request`.
    pub(super) fn outcome(&self, request: &ClientRequest, responses: &Value) -> UrlOutcome {
        let responses: Vec<_> = (1..=self.elicitations.params.len()).map(|number| responses.get(key(number))).collect();
        if responses.contains(&None) {
            return UrlOutcome::Incomplete;
        }
        if responses.iter().flatten().all(|response| response["action"] == "accept") {
            return UrlOutcome::Retry(Arc::new(self.in_same_round(request)));
        }
        UrlOutcome::Declined
    }
}

impl ParkedCalls {
    /// Returns the messages of a call for its client, up to the response or to an input round.
    pub(super) fn messages(self: &Arc<Self>, call: Box<BridgedCall>) -> Messages {
        let lost = call.lost().clone();
        let steps = stream::unfold((self.clone(), Some(call)), async |(parked, call)| {
            let (mut messages, next) = call?.step().await;
            let call = match next {
                Next::Continues(call) => Some(call),
                Next::NeedsInput(call) => {
                    messages.push(parked.park_call(call).into());
                    None
                }
                Next::NeedsUrls(call, elicitations, error) => {
                    messages.push(parked.require_urls(call.request(), call.session(), elicitations, error).into());
                    None
                }
                Next::Ended => None,
            };
            Some((stream::iter(messages), (parked, call)))
        });
        Messages::with_loss(steps.flatten(), lost)
    }

    /// Waits briefly for the first message: an error may have a status, which precedes it.
    pub(super) async fn begun(self: &Arc<Self>, call: Box<BridgedCall>) -> Begun {
        let lost = call.lost().clone();
        let mut messages = self.messages(call).peekable();
        let is_refusal = |message: &Bytes| bridge::status_of(message) != StatusCode::OK;
        match tokio::time::timeout(FIRST_WAIT, Pin::new(&mut messages).peek()).await {
            Ok(Some(Ok(message))) if is_refusal(message) => Begun::Refused(message.clone()),
            Ok(_) | Err(_) => Begun::Stream(Messages::Bridge(Box::pin(messages), lost)),
        }
    }

    /// Parks a call and hands its pending server requests to the client. Returns the last message
    /// of the response.
    fn park_call(self: &Arc<Self>, mut call: Box<BridgedCall>) -> Vec<u8> {
        let requests = call.begin_round();
        let id = call.request().id.clone();
        match self.park(Parked::Call(call)) {
            Some(state) => {
                let pending = requests.iter().map(|input| (input.key.as_str(), input.method.as_str(), &input.params));
                bridge::input_required(&id, pending, &state)
            }
            // The call was dropped, and so cancelled at the server.
            None => bridge::too_many_waiting(&id),
        }
    }

    /// Parks a call. Returns its `requestState`, or `None` if the session has too many of them:
    /// then the call is dropped.
    fn park(self: &Arc<Self>, call: Parked) -> Option<String> {
        let parking = call.session().begin_parking()?;
        let state = ParkedCall::from_bytes(self.link.settings.owner, random::bytes()).to_string();
        let (max_wait, calls, name) = (self.max_wait(call.request()), Arc::downgrade(self), state.clone());
        let mut parked = sync::lock(&self.calls);
        let timer = tokio::spawn(async move {
            clock::sleep(max_wait).await;
            let given_up = calls.upgrade().and_then(|calls| sync::lock(&calls.calls).remove(&name));
            drop(given_up);
        });
        parked.insert(state.clone(), Entry { call, timer: timer.abort_handle(), _parking: parking });
        Some(state)
    }

    /// Returns the maximum wait of a parked call for its client. A call that may have become a task
    /// waits as long as a task.
    fn max_wait(&self, request: &ClientRequest) -> Duration {
        let Settings { max_wait, task_wait, .. } = self.link.settings;
        task_wait.filter(|_| tasks::declares(request.template.body())).map_or(max_wait, |wait| wait.max(max_wait))
    }

    /// Returns the response to a call that the server has refused until its user opens elicitation
    /// URLs. It is `input_required`, or an error if the client does not support URL elicitation.
    pub(super) fn require_urls(
        self: &Arc<Self>,
        request: &ClientRequest,
        session: &Arc<LegacySession>,
        elicitations: UrlElicitations,
        error: Bytes,
    ) -> Vec<u8> {
        const METHOD: &str = "elicitation/create";
        let id = &request.id;
        if elicitations.params.iter().any(|params| request.envelope.declared.refuses(METHOD, params).is_some()) {
            return bridge::url_elicitation_missing(id);
        }
        if request.rounds >= MAX_ROUNDS {
            return request.result_as(session, &error).unwrap_or_default();
        }
        let params = elicitations.params.clone();
        let request = ClientRequest { rounds: request.rounds + 1, ..request.clone() };
        let call = UrlCall { session: session.clone(), _busy: session.begin(), request, elicitations, error };
        match self.park(Parked::Urls(Box::new(call))) {
            Some(state) => {
                let keys: Vec<_> = (1..=params.len()).map(key).collect();
                let requests = keys.iter().zip(&params).map(|(key, params)| (key.as_str(), METHOD, params));
                bridge::input_required(id, requests, &state)
            }
            None => bridge::too_many_waiting(id),
        }
    }
}

/// Returns the key of an elicitation, numbered from 1.
fn key(number: usize) -> String {
    format!("q{number}")
}
