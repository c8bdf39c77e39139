//! The server→client requests of a stream and whether they were answered.
//!
//! Each question and each change costs about the same however many requests there were. What is remembered is bounded: beyond
//! [`REMEMBERED_BYTES`] the requests that were answered first are forgotten, then those that have waited longest. An answer to a forgotten
//! request is one to an unknown request, so the server judges it. Invariant: an event that was spent stays spent for as long as the log
//! keeps it, whether or not its requests are remembered.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::event_set::Places;
use crate::protocol::ids::Seq;
use crate::protocol::jsonrpc::RequestId;

#[cfg(test)]
mod tests;

/// What all remembered requests of one stream may take: about a thousand with short ids.
pub(super) const REMEMBERED_BYTES: usize = 256 * 1024;
/// A request with an id that takes more than this part of it is not remembered: it would cost all others.
const ID_PART: usize = 4;
/// What one takes beside its id, about.
const ASK_COST: usize = 256;

/// What an answer to a server→client request meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The first answer: forward it.
    First,
    /// Answered before: acknowledge it and drop it.
    Again,
    /// The first answer, when the stream is over: nobody waits for it, so that the upstream may say what it likes. No replay
    /// asks again.
    Late,
    /// No such request on this stream, or none that is remembered.
    Unknown,
}

/// The requests of one stream. Usually there are none, and a lookup costs a check of that.
#[derive(Debug, Default)]
pub struct Asks(Option<Box<Known>>);

#[derive(Debug, Default)]
struct Known {
    /// Those without an answer, by their place among all that were asked.
    waiting: BTreeMap<u64, Ask>,
    /// Those with one.
    answered: BTreeMap<u64, Ask>,
    by_id: HashMap<Arc<RequestId>, Same>,
    /// How many wait of each event that has any.
    waiting_in: BTreeMap<Seq, usize>,
    /// The events that are requests which were all answered.
    spent: Places,
    /// Some were forgotten: those that are remembered do not tell which events are spent.
    has_forgotten: bool,
    /// The last event with a request that was forgotten unanswered: it is not spent when the others are answered.
    unspendable: Seq,
    next: u64,
    bytes: usize,
    changes: u64,
}

#[derive(Debug)]
struct Ask {
    id: Arc<RequestId>,
    seq: Seq,
    at: Instant,
    /// Its event holds nothing but requests, none of which was forgotten unanswered.
    alone: bool,
}

/// The requests of one id.
#[derive(Debug, Default)]
struct Same {
    /// Their places, in order: those with an answer come first.
    places: VecDeque<u64>,
    answered: usize,
}

/// A server→client request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Asked {
    pub(super) id: RequestId,
    pub(super) seq: Seq,
    pub(super) alone: bool,
    pub(super) answered: bool,
}

impl Asks {
    /// Notes a request in the event at `seq`; `alone` says that this event holds nothing but requests.
    pub(super) fn ask(&mut self, id: RequestId, seq: Seq, alone: bool, at: Instant) {
        self.0.get_or_insert_default().ask(id, seq, alone, at);
    }

    /// What is remembered of the requests, and the events that are spent where that does not tell.
    pub(super) fn to_parts(&self) -> (Vec<Asked>, Option<Places>) {
        let Some(known) = &self.0 else { return (Vec::new(), None) };
        let part = |ask: &Ask, answered| Asked { id: (*ask.id).clone(), seq: ask.seq, alone: ask.alone, answered };
        let waiting = known.waiting.iter().map(|(place, ask)| (*place, part(ask, false)));
        let mut parts: Vec<_> = waiting.chain(known.answered.iter().map(|(at, ask)| (*at, part(ask, true)))).collect();
        parts.sort_unstable_by_key(|(place, _)| *place);
        let spent = known.has_forgotten.then(|| known.spent.clone());
        (parts.into_iter().map(|(_, part)| part).collect(), spent)
    }

    /// What was asked elsewhere, at `at` for all that is known here.
    pub(super) fn restore(&mut self, asked: Vec<Asked>, spent: Option<Places>, at: Instant) {
        let changes = self.0.as_ref().map_or(0, |known| known.changes);
        self.0 = None;
        if asked.is_empty() && spent.is_none() {
            return;
        }
        let has_forgotten = spent.is_some();
        let spent = spent.unwrap_or_default();
        let mut known = Box::new(Known { has_forgotten, spent, changes, ..Known::default() });
        for Asked { id, seq, alone, answered } in asked {
            known.ask(id.clone(), seq, alone, at);
            if answered {
                known.answer(&id);
            }
        }
        self.0 = Some(known);
    }

    /// Grows with each request and each answer.
    pub(super) fn changes(&self) -> u64 {
        self.0.as_ref().map_or(0, |known| known.changes)
    }

    /// Marks the oldest unanswered request of this id as answered.
    pub(super) fn answer(&mut self, id: &RequestId) -> Answer {
        self.0.as_mut().map_or(Answer::Unknown, |known| known.answer(id))
    }

    /// Takes one answer back: it never reached the upstream, which goes on waiting for it.
    pub(super) fn unanswer(&mut self, id: &RequestId) {
        if let Some(known) = &mut self.0 {
            known.unanswer(id);
        }
    }

    /// The log has dropped its events up to `seq`.
    pub(super) fn handle_trimmed(&mut self, seq: Seq) {
        if let Some(known) = &mut self.0 {
            known.spent.drop_upto(seq);
        }
    }

    /// What is remembered takes so many bytes, about.
    pub fn byte_len(&self) -> usize {
        self.0.as_ref().map_or(0, |known| known.bytes)
    }

    /// Whether nothing was ever asked.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Since when the oldest request of this id has waited for an answer.
    pub fn outstanding_since(&self, id: &RequestId) -> Option<Instant> {
        self.0.as_ref()?.oldest_waiting(id).map(|ask| ask.at)
    }

    /// Whether a request of this id is remembered.
    pub fn knows(&self, id: &RequestId) -> bool {
        self.0.as_ref().is_some_and(|known| known.by_id.contains_key(id))
    }

    /// Whether every request of this id that is remembered was answered, and there is one.
    pub fn has_answered(&self, id: &RequestId) -> bool {
        let same = self.0.as_ref().and_then(|known| known.by_id.get(id));
        same.is_some_and(|same| same.answered == same.places.len())
    }

    /// Whether any request waits for an answer.
    pub fn has_outstanding(&self) -> bool {
        self.0.as_ref().is_some_and(|known| !known.waiting.is_empty())
    }

    /// Whether any request behind `seq` waits for an answer.
    pub fn has_outstanding_after(&self, seq: Seq) -> bool {
        self.0.as_ref().and_then(|known| known.waiting.last_key_value()).is_some_and(|(_, ask)| ask.seq > seq)
    }

    /// How many events after `after` and up to `upto` are requests that were all answered.
    pub fn spent_between(&self, after: Seq, upto: Seq) -> u64 {
        self.0.as_ref().map_or(0, |known| known.spent.count(after, upto))
    }

    /// Whether the event at `seq` is a request that was answered, which no replay repeats. An array counts once all of it
    /// was, and not at all with other messages in it: those are owed to the client.
    pub fn is_answered(&self, seq: Seq) -> bool {
        self.0.as_ref().is_some_and(|known| known.spent.contains(seq))
    }
}

impl Known {
    fn ask(&mut self, id: RequestId, seq: Seq, alone: bool, at: Instant) {
        self.changes += 1;
        // Another request of the same event may have been answered before this one was read.
        self.spent.remove(seq);
        if cost(&id) > REMEMBERED_BYTES / ID_PART {
            self.has_forgotten = true;
            return self.keep_unspent(seq);
        }
        let alone = alone && self.unspendable != seq;
        let id = Arc::new(id);
        let place = self.next;
        self.next += 1;
        self.bytes += cost(&id);
        self.by_id.entry(id.clone()).or_default().places.push_back(place);
        self.waiting.insert(place, Ask { id, seq, at, alone });
        *self.waiting_in.entry(seq).or_default() += 1;
        while self.bytes > REMEMBERED_BYTES {
            self.forget_one();
        }
    }

    fn answer(&mut self, id: &RequestId) -> Answer {
        let Some(same) = self.by_id.get_mut(id) else { return Answer::Unknown };
        let Some(&place) = same.places.get(same.answered) else { return Answer::Again };
        same.answered += 1;
        self.changes += 1;
        if let Some(ask) = self.waiting.remove(&place) {
            if self.wait_less(ask.seq) && ask.alone {
                self.spent.insert(ask.seq);
            }
            self.answered.insert(place, ask);
        }
        Answer::First
    }

    fn unanswer(&mut self, id: &RequestId) {
        let Some(same) = self.by_id.get_mut(id) else { return };
        let Some(place) = same.answered.checked_sub(1).and_then(|last| same.places.get(last).copied()) else { return };
        same.answered -= 1;
        self.changes += 1;
        if let Some(ask) = self.answered.remove(&place) {
            self.spent.remove(ask.seq);
            *self.waiting_in.entry(ask.seq).or_default() += 1;
            self.waiting.insert(place, ask);
        }
    }

    fn oldest_waiting(&self, id: &RequestId) -> Option<&Ask> {
        let same = self.by_id.get(id)?;
        self.waiting.get(same.places.get(same.answered)?)
    }

    /// One request of the event at `seq` waits no more; true when none does.
    fn wait_less(&mut self, seq: Seq) -> bool {
        let Some(waiting) = self.waiting_in.get_mut(&seq) else { return true };
        *waiting -= 1;
        let is_last = *waiting == 0;
        if is_last {
            self.waiting_in.remove(&seq);
        }
        is_last
    }

    /// Forgets the request that was asked first of those with an answer; where there is none, of those without.
    fn forget_one(&mut self) {
        self.has_forgotten = true;
        let (ask, was_answered) = match (self.answered.pop_first(), self.waiting.first_key_value()) {
            (Some((_, ask)), _) => (ask, true),
            (None, Some((&place, _))) => match self.waiting.remove(&place) {
                Some(ask) => (ask, false),
                None => return,
            },
            (None, None) => return,
        };
        self.bytes -= cost(&ask.id);
        if !was_answered {
            self.wait_less(ask.seq);
            self.keep_unspent(ask.seq);
        }
        if let Some(same) = self.by_id.get_mut(&ask.id) {
            // Of one id as well the oldest goes first.
            same.places.pop_front();
            same.answered -= usize::from(was_answered);
            if same.places.is_empty() {
                self.by_id.remove(&ask.id);
            }
        }
    }

    /// A request of the event at `seq` was forgotten unanswered: the event is not spent when the others are answered. Of what is remembered
    /// they are the first, or the last.
    fn keep_unspent(&mut self, seq: Seq) {
        self.unspendable = self.unspendable.max(seq);
        for asks in [&mut self.waiting, &mut self.answered] {
            let of_event = |ask: &&mut Ask| ask.seq == seq && ask.alone;
            asks.values_mut().take_while(of_event).for_each(|ask| ask.alone = false);
            asks.values_mut().rev().take_while(of_event).for_each(|ask| ask.alone = false);
        }
    }
}

fn cost(id: &RequestId) -> usize {
    ASK_COST + id.text().len()
}
