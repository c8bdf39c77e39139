//! Requests of the server: to whom each went, and who may answer it.

use std::collections::{HashMap, VecDeque};

use super::ids::{ID_MAX, MemberKey, Receiver};
use crate::protocol::jsonrpc::{self, RequestId};

/// Limit of what is remembered of one kind. The oldest goes.
pub(super) const REMEMBERED: usize = 1024;

const ELICITATION: &[&str] = &["params", "elicitationId"];

/// Requests of the server on one channel. Its size is bounded by [`REMEMBERED`].
#[derive(Debug, Default)]
pub(super) struct Questions {
    asked: Remembered<Question>,
    elicitations: Remembered<Question>,
    /// Tokens under which the server takes progress of a session.
    tokens: Remembered<MemberKey>,
}

/// A request of the server.
#[derive(Clone, Copy, Debug)]
pub(super) struct Question {
    pub(super) receiver: Receiver,
    pub(super) member: MemberKey,
    is_answered: bool,
}

/// A map that forgets its oldest entries.
#[derive(Debug)]
pub(super) struct Remembered<V> {
    values: HashMap<RequestId, V>,
    order: VecDeque<RequestId>,
}

impl Questions {
    /// Notes a request of the server that goes to `receiver` in the session `member`.
    pub(super) fn note(&mut self, text: &[u8], id: RequestId, receiver: Receiver, member: MemberKey) {
        let question = Question { receiver, member, is_answered: false };
        let elicitation = jsonrpc::member(text, ELICITATION).and_then(RequestId::from_json);
        let token = jsonrpc::progress_token(text).and_then(RequestId::from_json);
        self.asked.insert(id, question);
        if let Some(elicitation) = elicitation {
            self.elicitations.insert(elicitation, question);
        }
        if let Some(token) = token {
            self.tokens.insert(token, member);
        }
    }

    /// Returns the request that a notification of the server names, or `None` if it names none that is known.
    pub(super) fn named_by(&self, method: &str, text: &[u8]) -> Option<&Question> {
        let at = |path| jsonrpc::member(text, path).and_then(RequestId::from_json);
        match method {
            "notifications/cancelled" => self.asked.get(&at(&["params", "requestId"])?),
            "notifications/elicitation/complete" => self.elicitations.get(&at(ELICITATION)?),
            _ => None,
        }
    }

    /// Takes the answer of a session. Returns false if the request went to another one, or was answered before.
    pub(super) fn take_answer(&mut self, member: MemberKey, id: &RequestId) -> bool {
        let question = self.asked.get_mut(id).filter(|question| question.member == member && !question.is_answered);
        question.is_some_and(|question| !std::mem::replace(&mut question.is_answered, true))
    }

    /// Forgets a session that has ended. Returns the requests that it leaves without an answer.
    pub(super) fn leave(&mut self, member: MemberKey) -> Vec<RequestId> {
        let unanswered = |question: &Question| question.member == member && !question.is_answered;
        let left = self.asked.values.iter().filter(|(_, question)| unanswered(question));
        let left: Vec<RequestId> = left.map(|(id, _)| id.clone()).collect();
        for id in &left {
            self.asked.remove(id);
        }
        left
    }

    /// Returns true if the server takes the progress of this session under the token.
    pub(super) fn has_token(&self, member: MemberKey, token: &RequestId) -> bool {
        self.tokens.get(token) == Some(&member)
    }
}

impl<V> Default for Remembered<V> {
    fn default() -> Self {
        Self { values: HashMap::new(), order: VecDeque::new() }
    }
}

impl<V> Remembered<V> {
    /// Inserts a value. An ID of more than [`ID_MAX`] is not remembered.
    pub(super) fn insert(&mut self, id: RequestId, value: V) {
        if id.text().len() > ID_MAX {
            return;
        }
        if self.values.insert(id.clone(), value).is_none() {
            self.order.push_back(id);
        }
        // Removed ids stay in the order, and go with the oldest.
        while self.values.len() > REMEMBERED || self.order.len() > 2 * REMEMBERED {
            let Some(oldest) = self.order.pop_front() else { return };
            self.values.remove(&oldest);
        }
    }

    pub(super) fn get(&self, id: &RequestId) -> Option<&V> {
        self.values.get(id)
    }

    fn get_mut(&mut self, id: &RequestId) -> Option<&mut V> {
        self.values.get_mut(id)
    }

    pub(super) fn remove(&mut self, id: &RequestId) -> Option<V> {
        self.values.remove(id)
    }

    pub(super) fn contains(&self, id: &RequestId) -> bool {
        self.values.contains_key(id)
    }

    #[cfg(test)]
    pub(super) fn sizes(&self) -> (usize, usize) {
        (self.values.len(), self.order.len())
    }
}
