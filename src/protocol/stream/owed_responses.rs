//! The responses that a request stream owes: one for each request id it carried.
//!
//! Each lookup and each change costs the same for any number of responses. The states are counted
//! as they change, and a large batch has an index by id. Absent: the content of a response.

use std::collections::{HashMap, VecDeque};

use serde::{Deserialize, Serialize};

use crate::ids::Seq;
use crate::jsonrpc::{RequestId, only_alike};

/// Largest number of ids for a linear search. Most streams owe one response and need no index.
const UNINDEXED_MAX: usize = 8;

/// The state of one owed response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OwedResponse {
    /// Not settled yet.
    Due,
    /// The response is the event with this number.
    Answered(Seq),
    /// The client cancelled the request: a response may still come, but is not owed.
    Cancelled,
}

/// The owed responses of one stream. A standalone stream owes no response.
#[derive(Debug)]
pub struct OwedResponses {
    owed: Vec<(RequestId, OwedResponse)>,
    /// The index by id, or `None` for few ids.
    index: Option<Box<Index>>,
    /// Number of ids in [`OwedResponse::Due`].
    due: usize,
    /// Number of ids in [`OwedResponse::Answered`].
    answered: usize,
    /// The events of the first and the last response; 0 for none.
    responses: (Seq, Seq),
    last_error: Option<Seq>,
}

/// The requests of each id that have no response.
type Index = HashMap<RequestId, Unanswered>;

#[derive(Debug, Default)]
struct Unanswered {
    /// Their indexes in `owed`, in order.
    indexes: VecDeque<usize>,
    /// True if all of them were cancelled.
    is_cancelled: bool,
}

impl OwedResponse {
    /// Returns the event of the response, or `None` without one.
    pub(super) fn event(self) -> Option<Seq> {
        match self {
            Self::Answered(seq) => Some(seq),
            Self::Due | Self::Cancelled => None,
        }
    }
}

impl OwedResponses {
    pub(super) fn new(ids: Vec<RequestId>) -> Self {
        Self::of(ids.into_iter().map(|id| (id, OwedResponse::Due)).collect(), None)
    }

    pub(super) fn of(owed: Vec<(RequestId, OwedResponse)>, last_error: Option<Seq>) -> Self {
        let index = if owed.len() > UNINDEXED_MAX { Some(Box::new(index(&owed))) } else { None };
        let mut responses =
            Self { owed: Vec::new(), index, due: 0, answered: 0, responses: (Seq(0), Seq(0)), last_error };
        for (_, response) in &owed {
            match response {
                OwedResponse::Due => responses.due += 1,
                OwedResponse::Answered(seq) => responses.count_response(*seq),
                OwedResponse::Cancelled => {}
            }
        }
        responses.owed = owed;
        responses
    }

    pub(super) fn to_parts(&self) -> (Vec<(RequestId, OwedResponse)>, Option<Seq>) {
        (self.owed.clone(), self.last_error)
    }

    /// Moves the parts out; no response is owed afterwards.
    pub(super) fn take_parts(&mut self) -> (Vec<(RequestId, OwedResponse)>, Option<Seq>) {
        let Self { owed, last_error, .. } = std::mem::replace(self, Self::new(Vec::new()));
        (owed, last_error)
    }

    pub(super) fn restore(&mut self, owed: Vec<(RequestId, OwedResponse)>, last_error: Option<Seq>) {
        *self = Self::of(owed, last_error);
    }

    /// Returns each id with its state, in the order of the request.
    pub fn iter(&self) -> impl Iterator<Item = (&RequestId, OwedResponse)> {
        self.owed.iter().map(|(id, response)| (id, *response))
    }

    /// Returns each id, in the order of the request.
    pub fn ids(&self) -> impl ExactSizeIterator<Item = &RequestId> + Clone {
        self.owed.iter().map(|(id, _)| id)
    }

    /// Returns the ids that are not settled yet.
    pub fn due(&self) -> impl Iterator<Item = &RequestId> {
        self.owed.iter().filter(|(_, response)| *response == OwedResponse::Due).map(|(id, _)| id)
    }

    /// Returns the ids that have no response, cancelled ones included.
    pub fn unanswered(&self) -> impl Iterator<Item = &RequestId> {
        self.owed.iter().filter(|(_, response)| !matches!(response, OwedResponse::Answered(_))).map(|(id, _)| id)
    }

    /// Returns the id without a response, if it is the only one.
    pub fn only_unanswered(&self) -> Option<&RequestId> {
        let mut unanswered = self.unanswered();
        unanswered.next().filter(|_| unanswered.next().is_none())
    }

    /// Returns true if a request of this id is due.
    pub fn is_due(&self, id: &RequestId) -> bool {
        self.first_unanswered(id).is_some_and(|index| self.owed[index].1 == OwedResponse::Due)
    }

    /// Returns true if a request of this id has no response, a cancelled one included.
    pub fn is_unanswered(&self, id: &RequestId) -> bool {
        self.first_unanswered(id).is_some()
    }

    /// Returns true if the stream carried a request of this id.
    pub(super) fn has(&self, id: &RequestId) -> bool {
        match &self.index {
            Some(index) => index.contains_key(id),
            None => self.owed.iter().any(|(owed, _)| owed == id),
        }
    }

    /// Returns the only id without a response that clients take for `id`. Returns `None` if no id
    /// or several ids are like it, or if a request has `id` itself.
    pub fn alike(&self, id: &RequestId) -> Option<RequestId> {
        if self.has(id) {
            return None;
        }
        only_alike(id, self.owed.len(), self.unanswered(), |other| self.is_unanswered(other))
    }

    /// Returns the number of settled requests: with a response, or cancelled.
    pub fn settled_len(&self) -> usize {
        self.owed.len() - self.due
    }

    /// Returns the number of requests with a response.
    pub fn answered_len(&self) -> usize {
        self.answered
    }

    /// Returns true if no response is owed any more.
    pub fn is_settled(&self) -> bool {
        self.due == 0
    }

    /// Returns true if every id has its response, so that no more is expected of the upstream.
    pub fn is_answered(&self) -> bool {
        self.answered == self.owed.len()
    }

    /// Returns the event of the last response, or `None` without one.
    pub fn last_response(&self) -> Option<Seq> {
        if self.answered > 0 { Some(self.responses.1) } else { None }
    }

    /// Returns the event of the first response, or `None` without one.
    pub fn first_response(&self) -> Option<Seq> {
        if self.answered > 0 { Some(self.responses.0) } else { None }
    }

    /// Returns true if any id was cancelled and has no response.
    pub fn is_cancelled(&self) -> bool {
        self.due + self.answered < self.owed.len()
    }

    /// Returns true if any response was a JSON-RPC error, errors of the proxy included.
    pub fn has_error(&self) -> bool {
        self.last_error.is_some()
    }

    /// Returns the event of the last response that was an error, or `None` without one.
    pub fn last_error(&self) -> Option<Seq> {
        self.last_error
    }

    /// Records the response at `seq`, for the first request of that id without a response.
    pub(super) fn answer(&mut self, id: &RequestId, seq: Seq, is_error: bool) {
        if let Some(index) = self.first_unanswered(id) {
            self.settle(index, seq, is_error);
        }
    }

    /// Records an error as the response to each due request; `log` writes it and returns its event.
    pub(super) fn fail_due(&mut self, mut log: impl FnMut(&RequestId) -> Seq) {
        for index in 0..self.owed.len() {
            if let (id, OwedResponse::Due) = &self.owed[index] {
                let seq = log(id);
                self.settle(index, seq, true);
            }
        }
    }

    /// Cancels each request of that id. Returns false if the id is not of this stream or is settled
    /// already.
    pub(super) fn cancel(&mut self, id: &RequestId) -> bool {
        let before = self.due;
        match &mut self.index {
            Some(index) => {
                if let Some(unanswered) = index.get_mut(id)
                    && !unanswered.is_cancelled
                {
                    unanswered.is_cancelled = true;
                    self.due -= unanswered.indexes.len();
                    for &index in &unanswered.indexes {
                        self.owed[index].1 = OwedResponse::Cancelled;
                    }
                }
            }
            None => {
                for (_, response) in
                    self.owed.iter_mut().filter(|(owed, response)| owed == id && *response == OwedResponse::Due)
                {
                    *response = OwedResponse::Cancelled;
                    self.due -= 1;
                }
            }
        }
        self.due < before
    }

    /// Cancels each due request.
    pub(super) fn cancel_due(&mut self) {
        let due: Vec<RequestId> = self.due().cloned().collect();
        for id in &due {
            self.cancel(id);
        }
    }

    /// Returns the index of the first request of this id that has no response. Later ones are in
    /// the same state, because a cancel covers all of them.
    fn first_unanswered(&self, id: &RequestId) -> Option<usize> {
        match &self.index {
            Some(index) => index.get(id)?.indexes.front().copied(),
            None => self
                .owed
                .iter()
                .position(|(owed, response)| owed == id && !matches!(response, OwedResponse::Answered(_))),
        }
    }

    /// Records the response at `seq` for the request at `index`, the first of its id without a
    /// response.
    fn settle(&mut self, index: usize, seq: Seq, is_error: bool) {
        let (id, response) = &mut self.owed[index];
        self.due -= usize::from(*response == OwedResponse::Due);
        *response = OwedResponse::Answered(seq);
        if let Some(unanswered) = self.index.as_mut().and_then(|index| index.get_mut(id)) {
            unanswered.indexes.pop_front();
        }
        self.count_response(seq);
        if is_error {
            self.last_error = self.last_error.max(Some(seq));
        }
    }

    fn count_response(&mut self, seq: Seq) {
        let (first, last) = self.responses;
        self.responses = if self.answered == 0 { (seq, seq) } else { (first.min(seq), last.max(seq)) };
        self.answered += 1;
    }
}

fn index(owed: &[(RequestId, OwedResponse)]) -> Index {
    let mut index = Index::new();
    for (at, (id, response)) in owed.iter().enumerate() {
        if !matches!(response, OwedResponse::Answered(_)) {
            let unanswered = index.entry(id.clone()).or_default();
            unanswered.indexes.push_back(at);
            unanswered.is_cancelled = *response == OwedResponse::Cancelled;
        }
    }
    index
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::jsonrpc::counted::comparisons;

    fn id(number: usize) -> RequestId {
        RequestId::Number(number.to_string().into())
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Respond(usize, bool),
        Cancel(usize),
        Fail,
        Restore,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            20 => (0usize..12, any::<bool>()).prop_map(|(id, is_error)| Step::Respond(id, is_error)),
            6 => (0usize..12).prop_map(Step::Cancel),
            1 => Just(Step::Fail),
            3 => Just(Step::Restore),
        ]
    }

    proptest! {
        #[test]
        fn few_and_many_agree_with_a_list(
            ids in prop::collection::vec(0usize..10, 0..30),
            steps in prop::collection::vec(step(), 0..40),
        ) {
            let mut responses = OwedResponses::new(ids.iter().map(|number| id(*number)).collect());
            let mut list: Vec<(usize, OwedResponse)> = ids.iter().map(|number| (*number, OwedResponse::Due)).collect();
            let mut seq = 0;
            for step in steps {
                seq += 1;
                match step {
                    Step::Respond(number, is_error) => {
                        responses.answer(&id(number), Seq(seq), is_error);
                        let is_open = |(owed, response): &&mut (usize, OwedResponse)| *owed == number && !matches!(response, OwedResponse::Answered(_));
                        if let Some((_, response)) = list.iter_mut().find(is_open) {
                            *response = OwedResponse::Answered(Seq(seq));
                        }
                    }
                    Step::Cancel(number) => {
                        let due = list.iter_mut().filter(|(owed, response)| *owed == number && *response == OwedResponse::Due);
                        let expected = due.map(|(_, response)| *response = OwedResponse::Cancelled).count() > 0;
                        prop_assert_eq!(responses.cancel(&id(number)), expected);
                    }
                    Step::Fail => {
                        let mut next = seq;
                        responses.fail_due(|_| { next += 1; Seq(next) });
                        for (_, response) in list.iter_mut().filter(|(_, response)| *response == OwedResponse::Due) {
                            seq += 1;
                            *response = OwedResponse::Answered(Seq(seq));
                        }
                    }
                    Step::Restore => {
                        let (owed, last_error) = responses.to_parts();
                        responses.restore(owed, last_error);
                    }
                }
                let expected: Vec<_> = list.iter().map(|(number, response)| (id(*number), *response)).collect();
                prop_assert_eq!(responses.to_parts().0, expected);
                let places: Vec<Seq> = list.iter().filter_map(|(_, response)| match response {
                    OwedResponse::Answered(seq) => Some(*seq),
                    OwedResponse::Due | OwedResponse::Cancelled => None,
                }).collect();
                let count = |wanted: OwedResponse| list.iter().filter(|(_, response)| *response == wanted).count();
                prop_assert_eq!(responses.first_response(), places.iter().min().copied());
                prop_assert_eq!(responses.last_response(), places.iter().max().copied());
                prop_assert_eq!(responses.answered_len(), places.len());
                prop_assert_eq!(responses.settled_len(), list.len() - count(OwedResponse::Due));
                prop_assert_eq!(responses.is_settled(), count(OwedResponse::Due) == 0);
                prop_assert_eq!(responses.is_answered(), places.len() == list.len());
                prop_assert_eq!(responses.is_cancelled(), count(OwedResponse::Cancelled) > 0);
                for number in 0..12 {
                    let has = |wanted: fn(OwedResponse) -> bool| list.iter().any(|(owed, response)| *owed == number && wanted(*response));
                    prop_assert_eq!(responses.is_due(&id(number)), has(|response| response == OwedResponse::Due));
                    prop_assert_eq!(responses.is_unanswered(&id(number)), has(|response| !matches!(response, OwedResponse::Answered(_))));
                }
            }
        }
    }

    /// Comparisons for a batch of so many: settled one by one from the end, cancelled, and failed.
    fn work(of: usize) -> usize {
        let responses = || OwedResponses::new((0..of).map(id).collect());
        comparisons(|| {
            let mut answered = responses();
            (0..of).rev().for_each(|number| answered.answer(&id(number), Seq(1), false));
            assert!(answered.is_answered());
            let mut cancelled = responses();
            (0..of).rev().for_each(|number| assert!(cancelled.cancel(&id(number))));
            responses().fail_due(|_| Seq(1));
        })
    }

    #[test]
    fn the_work_grows_with_the_batch_and_not_with_its_square() {
        let (small, large) = (work(1000), work(8000));
        assert!(large < small * 10, "{small} comparisons for 1,000 requests and {large} for 8,000");
    }
}
