//! Server requests: the receiver of each, and the session that may respond.

use std::collections::{HashMap, VecDeque};

use super::ids::{ID_MAX, MemberKey, Receiver};
use crate::jsonrpc::{self, RequestId};

/// Maximum number of entries of one kind. The oldest is dropped.
pub(super) const REMEMBERED: usize = 1024;

const ELICITATION: &[&str] = &["params", "elicitationId"];

/// Server requests on one channel. Its size is bounded by [`REMEMBERED`].
#[derive(Debug, Default)]
pub(super) struct ServerRequests {
    outstanding: Remembered<ServerRequest>,
    elicitations: Remembered<ServerRequest>,
    /// Sessions by the progress tokens that the server accepts from them.
    tokens: Remembered<MemberKey>,
}

/// A server request.
#[derive(Clone, Copy, Debug)]
pub(super) struct ServerRequest {
    pub(super) receiver: Receiver,
    pub(super) member: MemberKey,
}

/// A map that forgets its oldest entries.
#[derive(Debug)]
pub(super) struct Remembered<V> {
    /// Values, each with the number of its insertion.
    values: HashMap<RequestId, (u64, V)>,
    /// Insertions in their order, also of what was removed since.
    order: VecDeque<(u64, RequestId)>,
    last: u64,
}

impl ServerRequests {
    /// Records a server request that goes to `receiver` in the session `member`.
    pub(super) fn insert(&mut self, text: &[u8], id: RequestId, receiver: Receiver, member: MemberKey) {
        let request = ServerRequest { receiver, member };
        let elicitation = jsonrpc::member(text, ELICITATION).and_then(RequestId::from_json);
        let token = jsonrpc::progress_token(text).and_then(RequestId::from_json);
        self.outstanding.insert(id, request);
        if let Some(elicitation) = elicitation {
            self.elicitations.insert(elicitation, request);
        }
        if let Some(token) = token {
            self.tokens.insert(token, member);
        }
    }

    /// Returns the request that a notification of the server names, or `None` if it names no known
    /// one.
    pub(super) fn named_by(&self, method: &str, text: &[u8]) -> Option<&ServerRequest> {
        let at = |path| jsonrpc::member(text, path).and_then(RequestId::from_json);
        match method {
            "notifications/cancelled" => self.outstanding.get(&at(&["params", "requestId"])?),
            "notifications/elicitation/complete" => self.elicitations.get(&at(ELICITATION)?),
            _ => None,
        }
    }

    /// Takes a client response. Returns false if the request went to another session, or already
    /// has a response.
    pub(super) fn take_response(&mut self, member: MemberKey, id: &RequestId) -> bool {
        let is_receiver = self.outstanding.get(id).is_some_and(|request| request.member == member);
        is_receiver && self.outstanding.remove(id).is_some()
    }

    /// Forgets an ended session. Returns its outstanding requests.
    pub(super) fn leave(&mut self, member: MemberKey) -> Vec<RequestId> {
        let left = self.outstanding.values.iter().filter(|(_, (_, request))| request.member == member);
        let left: Vec<RequestId> = left.map(|(id, _)| id.clone()).collect();
        for id in &left {
            self.outstanding.remove(id);
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
        Self { values: HashMap::new(), order: VecDeque::new(), last: 0 }
    }
}

impl<V> Remembered<V> {
    /// Inserts a value. An ID of more than [`ID_MAX`] is not remembered.
    pub(super) fn insert(&mut self, id: RequestId, value: V) {
        if id.text().len() > ID_MAX {
            return;
        }
        self.last += 1;
        self.values.insert(id.clone(), (self.last, value));
        self.order.push_back((self.last, id));
        let is_current = |values: &HashMap<_, (u64, V)>, (number, id): &(u64, RequestId)| {
            values.get(id).is_some_and(|(other, _)| other == number)
        };
        if self.order.len() > 2 * REMEMBERED {
            self.order.retain(|insertion| is_current(&self.values, insertion));
        }
        while self.values.len() > REMEMBERED {
            let Some(oldest) = self.order.pop_front() else { return };
            if is_current(&self.values, &oldest) {
                self.values.remove(&oldest.1);
            }
        }
    }

    pub(super) fn get(&self, id: &RequestId) -> Option<&V> {
        self.values.get(id).map(|(_, value)| value)
    }

    pub(super) fn remove(&mut self, id: &RequestId) -> Option<V> {
        self.values.remove(id).map(|(_, value)| value)
    }

    pub(super) fn contains(&self, id: &RequestId) -> bool {
        self.values.contains_key(id)
    }

    #[cfg(test)]
    pub(super) fn sizes(&self) -> (usize, usize) {
        (self.values.len(), self.order.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: usize) -> RequestId {
        RequestId::Number(n.to_string().into())
    }

    #[test]
    fn what_is_removed_makes_room() {
        let mut remembered = Remembered::default();
        remembered.insert(id(0), 0);
        // A server may reuse an ID after the response.
        for n in 1..10 * REMEMBERED {
            remembered.insert(id(1 + n % 3), n);
            assert!(remembered.remove(&id(1 + n % 3)).is_some());
        }
        assert_eq!(remembered.get(&id(0)), Some(&0));
        for n in 1..=REMEMBERED {
            remembered.insert(id(n), n);
        }
        assert_eq!((remembered.get(&id(0)), remembered.get(&id(1))), (None, Some(&1)));
        let (values, order) = remembered.sizes();
        assert!(values == REMEMBERED && order <= 2 * REMEMBERED);
    }
}
