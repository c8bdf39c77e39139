//! Parked calls: calls that wait for client responses, each found by its `requestState`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;
use tokio::task::AbortHandle;

use super::call::BridgedCall;
use super::session::{Busy, LegacySession, Waiting};
use super::{ClientRequest, ModernClients, Settings};
use crate::protocol::bridge::modern_clients::{self as bridge, MAX_ROUNDS, UrlElicitations};
use crate::protocol::dialect::resume_tokens::CallDigest;
use crate::protocol::ids::ParkedCall;
use crate::protocol::tasks;
use crate::{clock, random, sync};

/// Maximum number of parked calls of one session.
const MAX_OF_SESSION: usize = 64;

/// The calls, by `requestState`.
#[derive(Default)]
pub(super) struct ParkedCalls(Mutex<HashMap<String, Entry>>);

struct Entry {
    call: Parked,
    /// Task that gives up the call after its maximum wait.
    timer: AbortHandle,
    _waiting: Waiting,
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
    Retry(Box<ClientRequest>),
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
    /// Takes out all calls.
    pub(super) fn take_all(&self) -> Vec<Parked> {
        let all = std::mem::take(&mut *sync::lock(&self.0));
        all.into_values().map(|entry| entry.call).collect()
    }

    /// Returns true if any call is parked.
    pub(super) fn has_any(&self) -> bool {
        !sync::lock(&self.0).is_empty()
    }

    /// Returns true if a call is parked under this state.
    pub(super) fn has(&self, state: &str) -> bool {
        sync::lock(&self.0).contains_key(state)
    }

    /// Takes the call that is parked under this state. Session and digest must match.
    pub(super) fn take(
        &self,
        state: &str,
        session: &Arc<LegacySession>,
        digest: Option<&CallDigest>,
    ) -> Option<Parked> {
        let mut parked = sync::lock(&self.0);
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
    pub(super) fn error(&self) -> &[u8] {
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
            return UrlOutcome::Retry(Box::new(self.in_same_round(request)));
        }
        UrlOutcome::Declined
    }
}

impl ModernClients {
    /// Parks a call that is running at the server; see [`Self::park`].
    pub(super) fn park_call(self: Arc<Self>, call: Box<BridgedCall>) -> Option<String> {
        self.park(Parked::Call(call))
    }

    /// Parks a call. Returns its `requestState`, or `None` beyond [`MAX_OF_SESSION`]: then the call
    /// is dropped.
    fn park(self: Arc<Self>, call: Parked) -> Option<String> {
        let waiting = call.session().begin_waiting(MAX_OF_SESSION)?;
        let state = ParkedCall::from_bytes(self.settings.owner, random::bytes()).to_string();
        let (max_wait, clients, name) = (self.max_wait(call.request()), Arc::downgrade(&self), state.clone());
        let mut parked = sync::lock(&self.parked.0);
        let timer = tokio::spawn(async move {
            clock::sleep(max_wait).await;
            let given_up = clients.upgrade().and_then(|clients| sync::lock(&clients.parked.0).remove(&name));
            drop(given_up);
        });
        parked.insert(state.clone(), Entry { call, timer: timer.abort_handle(), _waiting: waiting });
        Some(state)
    }

    /// Returns the maximum wait of a parked call for its client. A call that may have become a task
    /// waits as long as a task.
    fn max_wait(&self, request: &ClientRequest) -> Duration {
        let Settings { max_wait, task_wait, .. } = self.settings;
        task_wait.filter(|_| tasks::declares(request.template.body())).map_or(max_wait, |wait| wait.max(max_wait))
    }

    /// Returns the response to a call that the server has refused until its user opens elicitation
    /// URLs: `input_required`, or an error if the client does not support URL elicitation.
    pub(super) fn require_urls(
        self: &Arc<Self>,
        request: &ClientRequest,
        session: &Arc<LegacySession>,
        elicitations: UrlElicitations,
        error: &[u8],
    ) -> Vec<u8> {
        const METHOD: &str = "elicitation/create";
        let id = &request.id;
        if elicitations.params.iter().any(|params| request.envelope.declared.refuses(METHOD, params).is_some()) {
            return bridge::url_elicitation_missing(id);
        }
        if request.rounds >= MAX_ROUNDS {
            return bridge::result_as(error, id, None, request.hints()).unwrap_or_default();
        }
        let params = elicitations.params.clone();
        let request = ClientRequest { rounds: request.rounds + 1, ..request.clone() };
        let error = Bytes::copy_from_slice(error);
        let call = UrlCall { session: session.clone(), _busy: session.begin(), request, elicitations, error };
        match self.clone().park(Parked::Urls(Box::new(call))) {
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
