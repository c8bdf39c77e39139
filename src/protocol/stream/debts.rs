//! The responses a request stream owes: one for every request id it carried.

use serde::{Deserialize, Serialize};

use crate::protocol::ids::Seq;
use crate::protocol::jsonrpc::RequestId;

/// What became of one owed response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Debt {
    /// Nothing yet.
    Due,
    /// The response is the event at this place.
    Answered(Seq),
    /// Its client cancelled it: a response may still come, none is owed.
    Cancelled,
}

/// The ledger of one stream. A standalone stream owes nothing and its ledger is empty.
#[derive(Debug)]
pub struct Debts {
    owed: Vec<(RequestId, Debt)>,
    last_error: Option<Seq>,
}

impl Debts {
    pub(super) fn new(ids: Vec<RequestId>) -> Self {
        Self { owed: ids.into_iter().map(|id| (id, Debt::Due)).collect(), last_error: None }
    }

    pub(super) fn to_parts(&self) -> (Vec<(RequestId, Debt)>, Option<Seq>) {
        (self.owed.clone(), self.last_error)
    }

    pub(super) fn restore(&mut self, owed: Vec<(RequestId, Debt)>, last_error: Option<Seq>) {
        *self = Self { owed, last_error };
    }

    /// Every id with its state, in the order of the request.
    pub fn iter(&self) -> impl Iterator<Item = (&RequestId, Debt)> {
        self.owed.iter().map(|(id, debt)| (id, *debt))
    }

    /// Every id, in the order of the request.
    pub fn ids(&self) -> impl Iterator<Item = &RequestId> {
        self.owed.iter().map(|(id, _)| id)
    }

    /// The ids that nothing has settled yet.
    pub fn due(&self) -> impl Iterator<Item = &RequestId> {
        self.owed.iter().filter(|(_, debt)| *debt == Debt::Due).map(|(id, _)| id)
    }

    /// The ids that have no response, cancelled ones included.
    pub fn unanswered(&self) -> impl Iterator<Item = &RequestId> {
        self.owed.iter().filter(|(_, debt)| !matches!(debt, Debt::Answered(_))).map(|(id, _)| id)
    }

    /// Whether no response is owed any more.
    pub fn is_settled(&self) -> bool {
        self.due().next().is_none()
    }

    /// Whether every id has its response: nothing more can be expected of the upstream.
    pub fn is_answered(&self) -> bool {
        self.owed.iter().all(|(_, debt)| matches!(debt, Debt::Answered(_)))
    }

    /// Where the last response stands, if there is any.
    pub fn last_response(&self) -> Option<Seq> {
        let places = self.owed.iter().filter_map(|(_, debt)| match debt {
            Debt::Answered(seq) => Some(*seq),
            Debt::Due | Debt::Cancelled => None,
        });
        places.max()
    }

    /// Where the first response stands, if there is any.
    pub fn first_response(&self) -> Option<Seq> {
        let places = self.owed.iter().filter_map(|(_, debt)| match debt {
            Debt::Answered(seq) => Some(*seq),
            Debt::Due | Debt::Cancelled => None,
        });
        places.min()
    }

    /// Whether some id was cancelled and has no response.
    pub fn is_cancelled(&self) -> bool {
        self.owed.iter().any(|(_, debt)| *debt == Debt::Cancelled)
    }

    /// Whether some response was a JSON-RPC error, ours included.
    pub fn has_error(&self) -> bool {
        self.last_error.is_some()
    }

    /// Where the last response stands that was an error.
    pub fn last_error(&self) -> Option<Seq> {
        self.last_error
    }

    /// Notes the response at `seq`: for the first request of that id that has none.
    pub(super) fn answer(&mut self, id: &RequestId, seq: Seq, is_error: bool) {
        let unanswered = self.owed.iter_mut().find(|(owed, debt)| owed == id && !matches!(debt, Debt::Answered(_)));
        if let Some((_, debt)) = unanswered {
            *debt = Debt::Answered(seq);
            self.last_error = self.last_error.max(Some(seq).filter(|_| is_error));
        }
    }

    /// Notes a cancel, of every request of that id; false when the id is not of this stream or is settled already.
    pub(super) fn cancel(&mut self, id: &RequestId) -> bool {
        let mut found = false;
        for (_, debt) in self.owed.iter_mut().filter(|(owed, debt)| owed == id && *debt == Debt::Due) {
            *debt = Debt::Cancelled;
            found = true;
        }
        found
    }
}
