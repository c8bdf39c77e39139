//! The responses a request stream owes: one for every request id it carried.
//!
//! Each question and each change costs the same however many there are: the states are counted as they change, and the ids of a large batch
//! have an index. Absent: what a response says.

use std::collections::{HashMap, VecDeque};

use serde::{Deserialize, Serialize};

use crate::protocol::ids::Seq;
use crate::protocol::jsonrpc::RequestId;

/// So many ids are looked through one by one. More get an index, which most streams do without: they owe one response.
const UNINDEXED_MAX: usize = 8;

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
    /// `None`: there are few.
    index: Option<Box<Index>>,
    /// How many are [`Debt::Due`].
    due: usize,
    /// How many are [`Debt::Answered`].
    answered: usize,
    /// Where the first and the last response stand; 0 for none.
    responses: (Seq, Seq),
    last_error: Option<Seq>,
}

/// The requests of each id that have no response.
type Index = HashMap<RequestId, Unanswered>;

#[derive(Debug, Default)]
struct Unanswered {
    /// Their places among those owed, in order.
    places: VecDeque<usize>,
    /// All of them were cancelled.
    is_cancelled: bool,
}

impl Debts {
    pub(super) fn new(ids: Vec<RequestId>) -> Self {
        Self::of(ids.into_iter().map(|id| (id, Debt::Due)).collect(), None)
    }

    fn of(owed: Vec<(RequestId, Debt)>, last_error: Option<Seq>) -> Self {
        let index = (owed.len() > UNINDEXED_MAX).then(|| Box::new(index(&owed)));
        let mut debts = Self { owed: Vec::new(), index, due: 0, answered: 0, responses: (Seq(0), Seq(0)), last_error };
        for (_, debt) in &owed {
            match debt {
                Debt::Due => debts.due += 1,
                Debt::Answered(seq) => debts.note_response(*seq),
                Debt::Cancelled => {}
            }
        }
        debts.owed = owed;
        debts
    }

    pub(super) fn to_parts(&self) -> (Vec<(RequestId, Debt)>, Option<Seq>) {
        (self.owed.clone(), self.last_error)
    }

    pub(super) fn restore(&mut self, owed: Vec<(RequestId, Debt)>, last_error: Option<Seq>) {
        *self = Self::of(owed, last_error);
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

    /// Whether a request of this id is due.
    pub fn is_due(&self, id: &RequestId) -> bool {
        self.first_unanswered(id).is_some_and(|place| self.owed[place].1 == Debt::Due)
    }

    /// Whether a request of this id has no response, a cancelled one included.
    pub fn is_unanswered(&self, id: &RequestId) -> bool {
        self.first_unanswered(id).is_some()
    }

    /// How many are settled: answered or cancelled.
    pub fn settled_len(&self) -> usize {
        self.owed.len() - self.due
    }

    /// How many have their response.
    pub fn answered_len(&self) -> usize {
        self.answered
    }

    /// Whether no response is owed any more.
    pub fn is_settled(&self) -> bool {
        self.due == 0
    }

    /// Whether every id has its response: nothing more can be expected of the upstream.
    pub fn is_answered(&self) -> bool {
        self.answered == self.owed.len()
    }

    /// Where the last response stands, if there is any.
    pub fn last_response(&self) -> Option<Seq> {
        Some(self.responses.1).filter(|_| self.answered > 0)
    }

    /// Where the first response stands, if there is any.
    pub fn first_response(&self) -> Option<Seq> {
        Some(self.responses.0).filter(|_| self.answered > 0)
    }

    /// Whether some id was cancelled and has no response.
    pub fn is_cancelled(&self) -> bool {
        self.due + self.answered < self.owed.len()
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
        if let Some(place) = self.first_unanswered(id) {
            self.settle(place, seq, is_error);
        }
    }

    /// Notes an error as the response to everything that is due; `log` says where it stands.
    pub(super) fn fail_due(&mut self, mut log: impl FnMut(&RequestId) -> Seq) {
        for place in 0..self.owed.len() {
            if let (id, Debt::Due) = &self.owed[place] {
                let seq = log(id);
                self.settle(place, seq, true);
            }
        }
    }

    /// Notes a cancel, of every request of that id; false when the id is not of this stream or is settled already.
    pub(super) fn cancel(&mut self, id: &RequestId) -> bool {
        let before = self.due;
        match &mut self.index {
            Some(index) => {
                if let Some(unanswered) = index.get_mut(id).filter(|unanswered| !unanswered.is_cancelled) {
                    unanswered.is_cancelled = true;
                    self.due -= unanswered.places.len();
                    unanswered.places.iter().for_each(|&place| self.owed[place].1 = Debt::Cancelled);
                }
            }
            None => {
                for (_, debt) in self.owed.iter_mut().filter(|(owed, debt)| owed == id && *debt == Debt::Due) {
                    *debt = Debt::Cancelled;
                    self.due -= 1;
                }
            }
        }
        self.due < before
    }

    /// The place of the first request of this id that has no response. Those behind it are as it is: a cancel is of all.
    fn first_unanswered(&self, id: &RequestId) -> Option<usize> {
        match &self.index {
            Some(index) => index.get(id)?.places.front().copied(),
            None => self.owed.iter().position(|(owed, debt)| owed == id && !matches!(debt, Debt::Answered(_))),
        }
    }

    /// The request at `place`, the first of its id that has none, has its response at `seq`.
    fn settle(&mut self, place: usize, seq: Seq, is_error: bool) {
        let (id, debt) = &mut self.owed[place];
        self.due -= usize::from(*debt == Debt::Due);
        *debt = Debt::Answered(seq);
        if let Some(unanswered) = self.index.as_mut().and_then(|index| index.get_mut(id)) {
            unanswered.places.pop_front();
        }
        self.note_response(seq);
        self.last_error = self.last_error.max(Some(seq).filter(|_| is_error));
    }

    fn note_response(&mut self, seq: Seq) {
        let (first, last) = self.responses;
        self.responses = if self.answered == 0 { (seq, seq) } else { (first.min(seq), last.max(seq)) };
        self.answered += 1;
    }
}

fn index(owed: &[(RequestId, Debt)]) -> Index {
    let mut index = Index::new();
    for (place, (id, debt)) in owed.iter().enumerate().filter(|(_, (_, debt))| !matches!(debt, Debt::Answered(_))) {
        let unanswered = index.entry(id.clone()).or_default();
        unanswered.places.push_back(place);
        unanswered.is_cancelled = *debt == Debt::Cancelled;
    }
    index
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::protocol::jsonrpc::counted::comparisons;

    fn id(number: usize) -> RequestId {
        RequestId::Number(number.to_string().into())
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Answer(usize, bool),
        Cancel(usize),
        Fail,
        Restore,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            20 => (0usize..12, any::<bool>()).prop_map(|(id, is_error)| Step::Answer(id, is_error)),
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
            let mut debts = Debts::new(ids.iter().map(|number| id(*number)).collect());
            let mut list: Vec<(usize, Debt)> = ids.iter().map(|number| (*number, Debt::Due)).collect();
            let mut seq = 0;
            for step in steps {
                seq += 1;
                match step {
                    Step::Answer(number, is_error) => {
                        debts.answer(&id(number), Seq(seq), is_error);
                        let first = list.iter_mut().find(|(owed, debt)| *owed == number && !matches!(debt, Debt::Answered(_)));
                        first.into_iter().for_each(|(_, debt)| *debt = Debt::Answered(Seq(seq)));
                    }
                    Step::Cancel(number) => {
                        let due = list.iter_mut().filter(|(owed, debt)| *owed == number && *debt == Debt::Due);
                        let expected = due.map(|(_, debt)| *debt = Debt::Cancelled).count() > 0;
                        prop_assert_eq!(debts.cancel(&id(number)), expected);
                    }
                    Step::Fail => {
                        let mut next = seq;
                        debts.fail_due(|_| { next += 1; Seq(next) });
                        for (_, debt) in list.iter_mut().filter(|(_, debt)| *debt == Debt::Due) {
                            seq += 1;
                            *debt = Debt::Answered(Seq(seq));
                        }
                    }
                    Step::Restore => {
                        let (owed, last_error) = debts.to_parts();
                        debts.restore(owed, last_error);
                    }
                }
                let expected: Vec<_> = list.iter().map(|(number, debt)| (id(*number), *debt)).collect();
                prop_assert_eq!(debts.to_parts().0, expected);
                let places: Vec<Seq> = list.iter().filter_map(|(_, debt)| match debt {
                    Debt::Answered(seq) => Some(*seq),
                    Debt::Due | Debt::Cancelled => None,
                }).collect();
                let count = |wanted: Debt| list.iter().filter(|(_, debt)| *debt == wanted).count();
                prop_assert_eq!(debts.first_response(), places.iter().min().copied());
                prop_assert_eq!(debts.last_response(), places.iter().max().copied());
                prop_assert_eq!(debts.answered_len(), places.len());
                prop_assert_eq!(debts.settled_len(), list.len() - count(Debt::Due));
                prop_assert_eq!(debts.is_settled(), count(Debt::Due) == 0);
                prop_assert_eq!(debts.is_answered(), places.len() == list.len());
                prop_assert_eq!(debts.is_cancelled(), count(Debt::Cancelled) > 0);
                for number in 0..12 {
                    let has = |wanted: fn(Debt) -> bool| list.iter().any(|(owed, debt)| *owed == number && wanted(*debt));
                    prop_assert_eq!(debts.is_due(&id(number)), has(|debt| debt == Debt::Due));
                    prop_assert_eq!(debts.is_unanswered(&id(number)), has(|debt| !matches!(debt, Debt::Answered(_))));
                }
            }
        }
    }

    /// Comparisons for a batch of so many: answered one by one from the end, cancelled, and failed.
    fn work(of: usize) -> usize {
        let debts = || Debts::new((0..of).map(id).collect());
        comparisons(|| {
            let mut answered = debts();
            (0..of).rev().for_each(|number| answered.answer(&id(number), Seq(1), false));
            assert!(answered.is_answered());
            let mut cancelled = debts();
            (0..of).rev().for_each(|number| assert!(cancelled.cancel(&id(number))));
            debts().fail_due(|_| Seq(1));
        })
    }

    #[test]
    fn the_work_grows_with_the_batch_and_not_with_its_square() {
        let (small, large) = (work(1000), work(8000));
        assert!(large < small * 10, "{small} comparisons for 1,000 requests and {large} for 8,000");
    }
}
