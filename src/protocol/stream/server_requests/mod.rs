//! The server→client requests of a stream, and the client responses to them.
//!
//! Each lookup and each change costs about the same however many requests there were. Memory is
//! bounded: beyond [`REMEMBERED_BYTES`] the requests that were settled first are forgotten, then
//! the requests that have waited longest. A response to a forgotten request counts as a response to
//! an unknown request, so the server decides. An event is spent once it holds server requests alone
//! and all are settled; no replay repeats it. Invariant: a spent event stays spent as long as the
//! log keeps it, even if its requests are forgotten.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::event_set::EventSet;
use crate::ids::Seq;
use crate::jsonrpc::RequestId;

mod packed;
#[cfg(test)]
mod tests;

pub(super) use packed::PackedRequests;

/// Limit for all remembered requests of one stream: about a thousand with short ids.
pub(super) const REMEMBERED_BYTES: usize = 256 * 1024;
/// A request whose id takes more than this part of the limit is not remembered, because it would
/// displace all others.
const ID_PART: usize = 4;
/// Approximate cost of one request beside its id.
const REQUEST_COST: usize = 256;

/// The effect of a client's response to a server→client request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientResponse {
    /// The first response: forward it.
    First,
    /// A response to a request that had a response before: acknowledge and drop it.
    Duplicate,
    /// The first response, after the stream has ended: the upstream may not accept it. No replay
    /// repeats the request.
    Late,
    /// No such request is remembered on this stream.
    Unknown,
}

/// The server→client requests of one stream. Most streams have none, and a lookup then costs one
/// check.
#[derive(Debug, Default)]
pub struct ServerRequests(Option<Box<Ledger>>);

#[derive(Debug, Default)]
struct Ledger {
    /// Pending requests by their index among all requests.
    waiting: BTreeMap<u64, ServerRequest>,
    /// Settled requests by their index among all requests.
    answered: BTreeMap<u64, ServerRequest>,
    by_id: HashMap<Arc<RequestId>, SameId>,
    /// Number of pending requests of each event that has any.
    waiting_in: BTreeMap<Seq, usize>,
    /// Spent events: they hold requests alone, all of them settled.
    spent: EventSet,
    /// True if a request was forgotten: the remembered requests no longer determine the spent
    /// events.
    has_forgotten: bool,
    /// The last event with a request that was forgotten while pending. Responses to its other
    /// requests do not spend it.
    unspendable: Seq,
    next_index: u64,
    bytes: usize,
    changes: u64,
}

#[derive(Debug)]
struct ServerRequest {
    id: Arc<RequestId>,
    seq: Seq,
    at: Instant,
    /// True if its event holds requests alone, and all of them are remembered or settled.
    is_alone: bool,
    /// True for a ping. The proxy responds to it if the client does not. Not recorded: only the
    /// process with the upstream call responds.
    is_ping: bool,
}

/// The requests of one id.
#[derive(Debug, Default)]
struct SameId {
    /// Their indexes in order; settled requests come first.
    indexes: VecDeque<u64>,
    answered: usize,
}

/// The recorded form of a server→client request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ServerRequestRecord {
    id: RequestId,
    seq: Seq,
    #[serde(rename = "alone")]
    is_alone: bool,
    #[serde(rename = "answered")]
    is_answered: bool,
}

impl ServerRequests {
    /// Adds a request in the event at `seq`; `is_alone` says that this event holds requests alone.
    pub(super) fn add(&mut self, id: RequestId, seq: Seq, is_alone: bool, at: Instant) {
        self.0.get_or_insert_default().add(id, seq, is_alone, at);
    }

    /// Settles every outstanding request: no response to it can reach its session any more.
    pub(super) fn settle_all(&mut self) {
        let waiting: Vec<_> = self.outstanding().cloned().collect();
        for id in waiting {
            self.answer(&id);
        }
    }

    /// Marks the newest request of this id as a ping.
    pub(super) fn mark_ping(&mut self, id: &RequestId) {
        if let Some(ledger) = &mut self.0 {
            ledger.mark_ping(id);
        }
    }

    /// Returns true if a pending request of this id is a ping.
    pub fn is_ping(&self, id: &RequestId) -> bool {
        self.0.as_ref().and_then(|ledger| ledger.oldest_waiting(id)).is_some_and(|request| request.is_ping)
    }

    /// Returns the event of the oldest pending request that is no ping.
    pub fn oldest_unanswered(&self) -> Option<Seq> {
        let waiting = self.0.iter().flat_map(|ledger| ledger.waiting.values());
        waiting.filter(|request| !request.is_ping).map(|request| request.seq).min()
    }

    /// Returns the pending pings, in the order of their arrival, each with its time.
    pub(super) fn pings(&self) -> impl Iterator<Item = (&RequestId, Instant)> {
        let waiting = self.0.iter().flat_map(|ledger| ledger.waiting.values());
        waiting.filter(|request| request.is_ping).map(|request| (&*request.id, request.at))
    }

    /// Returns a record of each remembered request, and the spent events if the requests do not
    /// determine them.
    pub(super) fn to_parts(&self) -> (Vec<ServerRequestRecord>, Option<EventSet>) {
        let Some(ledger) = &self.0 else { return (Vec::new(), None) };
        let record = |request: &ServerRequest, is_answered| ServerRequestRecord {
            id: (*request.id).clone(),
            seq: request.seq,
            is_alone: request.is_alone,
            is_answered,
        };
        let waiting = ledger.waiting.iter().map(|(index, request)| (*index, record(request, false)));
        let answered = ledger.answered.iter().map(|(index, request)| (*index, record(request, true)));
        let mut records: Vec<_> = waiting.chain(answered).collect();
        records.sort_unstable_by_key(|(index, _)| *index);
        let spent = if ledger.has_forgotten { Some(ledger.spent.clone()) } else { None };
        (records.into_iter().map(|(_, record)| record).collect(), spent)
    }

    /// Replaces the requests by the records of another process, each as if it had arrived at `at`.
    pub(super) fn restore(&mut self, records: Vec<ServerRequestRecord>, spent: Option<EventSet>, at: Instant) {
        let changes = self.changes();
        self.0 = None;
        if records.is_empty() && spent.is_none() {
            return;
        }
        let has_forgotten = spent.is_some();
        let spent = spent.unwrap_or_default();
        let mut ledger = Box::new(Ledger { has_forgotten, spent, changes, ..Ledger::default() });
        for ServerRequestRecord { id, seq, is_alone, is_answered } in records {
            ledger.add(id.clone(), seq, is_alone, at);
            if is_answered {
                ledger.answer(&id);
            }
        }
        self.0 = Some(ledger);
    }

    /// Returns a counter that grows with each request and each response.
    pub(super) fn changes(&self) -> u64 {
        self.0.as_ref().map_or(0, |ledger| ledger.changes)
    }

    /// Settles the oldest pending request of this id.
    pub(super) fn answer(&mut self, id: &RequestId) -> ClientResponse {
        match &mut self.0 {
            Some(ledger) => ledger.answer(id),
            None => ClientResponse::Unknown,
        }
    }

    /// Reverts one response: it never reached the upstream, which still waits for it.
    pub(super) fn unsettle(&mut self, id: &RequestId) {
        if let Some(ledger) = &mut self.0 {
            ledger.unsettle(id);
        }
    }

    /// The log has dropped its events up to `seq`.
    pub(super) fn handle_trimmed(&mut self, seq: Seq) {
        if let Some(ledger) = &mut self.0 {
            ledger.spent.drop_upto(seq);
        }
    }

    /// Returns the approximate memory of the remembered requests, in bytes.
    pub fn byte_len(&self) -> usize {
        self.0.as_ref().map_or(0, |ledger| ledger.bytes)
    }

    /// Returns true if there was never a request.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Returns the arrival of the oldest pending request of this id.
    pub fn outstanding_since(&self, id: &RequestId) -> Option<Instant> {
        self.0.as_ref()?.oldest_waiting(id).map(|request| request.at)
    }

    /// Returns true if a request of this id is remembered.
    pub fn knows(&self, id: &RequestId) -> bool {
        self.0.as_ref().is_some_and(|ledger| ledger.by_id.contains_key(id))
    }

    /// Returns true if at least one request of this id is remembered, and all of them are settled.
    pub fn has_answered(&self, id: &RequestId) -> bool {
        let same = self.0.as_ref().and_then(|ledger| ledger.by_id.get(id));
        same.is_some_and(|same| same.answered == same.indexes.len())
    }

    /// Returns the ids of the pending requests, in the order of their arrival.
    pub fn outstanding(&self) -> impl Iterator<Item = &RequestId> {
        self.0.iter().flat_map(|ledger| ledger.waiting.values()).map(|request| &*request.id)
    }

    /// Returns true if any request is pending.
    pub fn has_outstanding(&self) -> bool {
        self.0.as_ref().is_some_and(|ledger| !ledger.waiting.is_empty())
    }

    /// Returns true if any request behind `seq` is pending.
    pub fn has_outstanding_after(&self, seq: Seq) -> bool {
        let last = self.0.as_ref().and_then(|ledger| ledger.waiting.last_key_value());
        last.is_some_and(|(_, request)| request.seq > seq)
    }

    /// Returns the number of spent events after `after` and up to `upto`.
    pub fn spent_between(&self, after: Seq, upto: Seq) -> u64 {
        self.0.as_ref().map_or(0, |ledger| ledger.spent.count(after, upto))
    }

    /// Returns true if every event after `after` and up to `upto` is spent.
    pub(super) fn has_spent_all(&self, after: Seq, upto: Seq) -> bool {
        self.spent_between(after, upto) == upto.0.saturating_sub(after.0)
    }

    /// Returns true if the event at `seq` is a settled request, which no replay repeats. An array
    /// counts once all of it is settled, and never if it holds other messages: these are owed to
    /// the client.
    pub fn is_spent(&self, seq: Seq) -> bool {
        self.0.as_ref().is_some_and(|ledger| ledger.spent.contains(seq))
    }
}

impl Ledger {
    fn add(&mut self, id: RequestId, seq: Seq, is_alone: bool, at: Instant) {
        self.changes += 1;
        // Another request of this event may have been settled before this one was read.
        self.spent.remove(seq);
        if cost(&id) > REMEMBERED_BYTES / ID_PART {
            self.has_forgotten = true;
            return self.keep_unspent(seq);
        }
        let is_alone = is_alone && self.unspendable != seq;
        let id = Arc::new(id);
        let index = self.next_index;
        self.next_index += 1;
        self.bytes += cost(&id);
        self.by_id.entry(id.clone()).or_default().indexes.push_back(index);
        self.waiting.insert(index, ServerRequest { id, seq, at, is_alone, is_ping: false });
        *self.waiting_in.entry(seq).or_default() += 1;
        while self.bytes > REMEMBERED_BYTES {
            self.forget_one();
        }
    }

    fn mark_ping(&mut self, id: &RequestId) {
        let newest = self.by_id.get(id).and_then(|same| same.indexes.back());
        if let Some(request) = newest.and_then(|index| self.waiting.get_mut(index)) {
            request.is_ping = true;
        }
    }

    fn answer(&mut self, id: &RequestId) -> ClientResponse {
        let Some(same) = self.by_id.get_mut(id) else { return ClientResponse::Unknown };
        let Some(&index) = same.indexes.get(same.answered) else { return ClientResponse::Duplicate };
        same.answered += 1;
        self.changes += 1;
        if let Some(request) = self.waiting.remove(&index) {
            if self.count_answered(request.seq) && request.is_alone {
                self.spent.insert(request.seq);
            }
            self.answered.insert(index, request);
        }
        ClientResponse::First
    }

    fn unsettle(&mut self, id: &RequestId) {
        let Some(same) = self.by_id.get_mut(id) else { return };
        let Some(index) = same.answered.checked_sub(1).and_then(|last| same.indexes.get(last).copied()) else { return };
        same.answered -= 1;
        self.changes += 1;
        if let Some(request) = self.answered.remove(&index) {
            self.spent.remove(request.seq);
            *self.waiting_in.entry(request.seq).or_default() += 1;
            self.waiting.insert(index, request);
        }
    }

    fn oldest_waiting(&self, id: &RequestId) -> Option<&ServerRequest> {
        let same = self.by_id.get(id)?;
        self.waiting.get(same.indexes.get(same.answered)?)
    }

    /// Counts one request of the event at `seq` as waiting no more. Returns true if it was the
    /// last.
    fn count_answered(&mut self, seq: Seq) -> bool {
        let Some(waiting) = self.waiting_in.get_mut(&seq) else { return true };
        *waiting -= 1;
        let is_last = *waiting == 0;
        if is_last {
            self.waiting_in.remove(&seq);
        }
        is_last
    }

    /// Forgets the oldest settled request, or else the oldest pending one.
    fn forget_one(&mut self) {
        self.has_forgotten = true;
        let oldest_answered = self.answered.pop_first();
        let was_answered = oldest_answered.is_some();
        let Some((_, request)) = oldest_answered.or_else(|| self.waiting.pop_first()) else { return };
        self.bytes -= cost(&request.id);
        if !was_answered {
            self.count_answered(request.seq);
            self.keep_unspent(request.seq);
        }
        if let Some(same) = self.by_id.get_mut(&request.id) {
            // The oldest request is the oldest of its id too.
            same.indexes.pop_front();
            same.answered -= usize::from(was_answered);
            if same.indexes.is_empty() {
                self.by_id.remove(&request.id);
            }
        }
    }

    /// A request of the event at `seq` was forgotten while pending. Responses to the others do not
    /// spend the event. Among the remembered requests the others are the first or the last.
    fn keep_unspent(&mut self, seq: Seq) {
        self.unspendable = self.unspendable.max(seq);
        for requests in [&mut self.waiting, &mut self.answered] {
            let is_of_event = |request: &&mut ServerRequest| request.seq == seq && request.is_alone;
            for request in requests.values_mut().take_while(is_of_event) {
                request.is_alone = false;
            }
            for request in requests.values_mut().rev().take_while(is_of_event) {
                request.is_alone = false;
            }
        }
    }
}

fn cost(id: &RequestId) -> usize {
    REQUEST_COST + id.text().len()
}
