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

/// Most calls of one session that wait.
const MAX_OF_SESSION: usize = 64;

/// The calls, by their states.
#[derive(Default)]
pub(super) struct ParkedCalls(Mutex<HashMap<String, Entry>>);

struct Entry {
    call: Parked,
    /// Task that gives the call up.
    timer: AbortHandle,
    _waiting: Waiting,
}

/// A call that waits.
pub(super) enum Parked {
    /// Call that the server has not answered.
    Call(Box<BridgedCall>),
    /// Call that the server has refused until its user has opened pages: it is sent again.
    Pages(Box<PageCall>),
}

/// A call that its user must open pages for.
pub(super) struct PageCall {
    session: Arc<LegacySession>,
    _busy: Busy,
    request: ClientRequest,
    elicitations: UrlElicitations,
    /// Refusal of the server.
    error: Bytes,
}

/// Consequence of the answers to the questions for pages.
pub(super) enum AfterPages {
    /// All are opened: this request is sent.
    Again(Box<ClientRequest>),
    /// Some questions have no answer.
    Asked,
    /// The user declines.
    Refused,
}

impl Parked {
    /// Ends the call at the server. Returns once that is told.
    pub(super) async fn give_up(self) {
        if let Self::Call(call) = self {
            call.give_up().await;
        }
    }

    fn session(&self) -> &Arc<LegacySession> {
        match self {
            Self::Call(call) => call.session(),
            Self::Pages(pages) => &pages.session,
        }
    }

    fn request(&self) -> &ClientRequest {
        match self {
            Self::Call(call) => call.request(),
            Self::Pages(pages) => &pages.request,
        }
    }

    fn is_of(&self, session: &Arc<LegacySession>, digest: &CallDigest) -> bool {
        match self {
            Self::Call(call) => call.is_of(session, digest),
            Self::Pages(pages) => Arc::ptr_eq(&pages.session, session) && pages.request.digest.as_ref() == Some(digest),
        }
    }
}

impl ParkedCalls {
    /// Takes out all calls.
    pub(super) fn take_all(&self) -> Vec<Parked> {
        let all = std::mem::take(&mut *sync::lock(&self.0));
        all.into_values().map(|entry| entry.call).collect()
    }

    /// Returns true if any call waits.
    pub(super) fn has_any(&self) -> bool {
        !sync::lock(&self.0).is_empty()
    }

    /// Returns true if a call waits under this state.
    pub(super) fn has(&self, state: &str) -> bool {
        sync::lock(&self.0).contains_key(state)
    }

    /// Takes the call that waits under this state. It must be the same call of the same session.
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

impl PageCall {
    /// Returns the IDs under which the server tells that a page is done.
    pub(super) fn ids(&self) -> &[String] {
        &self.elicitations.ids
    }

    /// Returns the questions.
    pub(super) fn elicitations(&self) -> UrlElicitations {
        self.elicitations.clone()
    }

    /// Returns the refusal of the server.
    pub(super) fn error(&self) -> &[u8] {
        &self.error
    }

    /// Returns a later request of the call, in the round of this one.
    pub(super) fn as_before(&self, request: &ClientRequest) -> ClientRequest {
        ClientRequest { rounds: self.request.rounds, ..request.clone() }
    }

    /// Returns the consequence of the answers to the questions.
    pub(super) fn after(&self, request: &ClientRequest, answers: &Value) -> AfterPages {
        let answers: Vec<_> = (1..=self.elicitations.params.len()).map(|number| answers.get(key(number))).collect();
        if answers.contains(&None) {
            return AfterPages::Asked;
        }
        if answers.iter().flatten().all(|answer| answer["action"] == "accept") {
            return AfterPages::Again(Box::new(self.as_before(request)));
        }
        AfterPages::Refused
    }
}

impl ModernClients {
    /// Keeps a call that the server has not answered; see [`Self::park`].
    pub(super) fn park_call(self: Arc<Self>, call: Box<BridgedCall>) -> Option<String> {
        self.park(Parked::Call(call))
    }

    /// Keeps a call. Returns the state by which it is found, or `None` if too many of its session
    /// wait: then the call is dropped.
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

    /// Returns the time for which a call waits for its client: one that may have become a task
    /// waits as a task does.
    fn max_wait(&self, request: &ClientRequest) -> Duration {
        let Settings { max_wait, task_wait, .. } = self.settings;
        task_wait.filter(|_| tasks::declares(request.template.body())).map_or(max_wait, |wait| wait.max(max_wait))
    }

    /// Returns the response to a request that the server has refused until its user has opened
    /// pages: the questions, or an error if the client cannot be asked.
    pub(super) fn ask_for_pages(
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
        let waiting = PageCall { session: session.clone(), _busy: session.begin(), request, elicitations, error };
        match self.clone().park(Parked::Pages(Box::new(waiting))) {
            Some(state) => {
                let keys: Vec<_> = (1..=params.len()).map(key).collect();
                let questions = keys.iter().zip(&params).map(|(key, params)| (key.as_str(), METHOD, params));
                bridge::input_required(id, questions, &state)
            }
            None => bridge::too_many_waiting(id),
        }
    }
}

/// Returns the key of a question, which are counted from 1.
fn key(number: usize) -> String {
    format!("q{number}")
}
