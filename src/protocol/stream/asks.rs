//! The server→client requests of a stream and whether they were answered.

use std::time::Instant;

use super::snapshot::Asked;
use crate::protocol::ids::Seq;
use crate::protocol::jsonrpc::RequestId;

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
    /// No such request on this stream.
    Unknown,
}

/// The requests in the order they were asked. Usually empty: a lookup costs a length check then.
#[derive(Debug, Default)]
pub struct Asks {
    asked: Vec<Ask>,
}

#[derive(Debug)]
struct Ask {
    id: RequestId,
    seq: Seq,
    at: Instant,
    /// Its event holds nothing but requests.
    alone: bool,
    answered: bool,
}

impl Asks {
    /// Notes a request in the event at `seq`; `alone` says that this event holds nothing but requests.
    pub(super) fn ask(&mut self, id: RequestId, seq: Seq, alone: bool, at: Instant) {
        self.asked.push(Ask { id, seq, at, alone, answered: false });
    }

    pub(super) fn to_parts(&self) -> Vec<Asked> {
        let parts = self.asked.iter();
        parts
            .map(|Ask { id, seq, alone, answered, .. }| Asked {
                id: id.clone(),
                seq: *seq,
                alone: *alone,
                answered: *answered,
            })
            .collect()
    }

    /// What was asked elsewhere, at `at` for all that is known here.
    pub(super) fn restore(&mut self, asked: Vec<Asked>, at: Instant) {
        let asks = asked.into_iter();
        self.asked = asks.map(|Asked { id, seq, alone, answered }| Ask { id, seq, at, alone, answered }).collect();
    }

    pub(super) fn len(&self) -> usize {
        self.asked.len()
    }

    pub(super) fn answered_len(&self) -> usize {
        self.asked.iter().filter(|ask| ask.answered).count()
    }

    /// Marks the oldest unanswered request of this id as answered.
    pub(super) fn answer(&mut self, id: &RequestId) -> Answer {
        let mut outcome = Answer::Unknown;
        for ask in self.asked.iter_mut().filter(|ask| ask.id == *id) {
            if !ask.answered {
                ask.answered = true;
                return Answer::First;
            }
            outcome = Answer::Again;
        }
        outcome
    }

    /// Takes one answer back: it never reached the upstream, which goes on waiting for it.
    pub(super) fn unanswer(&mut self, id: &RequestId) {
        if let Some(ask) = self.asked.iter_mut().rev().find(|ask| ask.id == *id && ask.answered) {
            ask.answered = false;
        }
    }

    /// Whether a request of this id waits for an answer, and where it stands.
    pub fn outstanding(&self, id: &RequestId) -> Option<Seq> {
        self.asked.iter().find(|ask| ask.id == *id && !ask.answered).map(|ask| ask.seq)
    }

    /// Since when the oldest request of this id has waited for an answer.
    pub fn outstanding_since(&self, id: &RequestId) -> Option<Instant> {
        self.asked.iter().find(|ask| ask.id == *id && !ask.answered).map(|ask| ask.at)
    }

    /// Whether a request of this id was ever asked here.
    pub fn knows(&self, id: &RequestId) -> bool {
        self.asked.iter().any(|ask| ask.id == *id)
    }

    /// Whether every request of this id was answered, and there is one.
    pub fn has_answered(&self, id: &RequestId) -> bool {
        self.knows(id) && self.outstanding(id).is_none()
    }

    /// Whether any request waits for an answer.
    pub fn has_outstanding(&self) -> bool {
        self.asked.iter().any(|ask| !ask.answered)
    }

    /// The events that are requests which were all answered, each once.
    pub fn answered(&self) -> impl Iterator<Item = Seq> {
        let mut events: Vec<Seq> = self.asked.iter().map(|ask| ask.seq).filter(|seq| self.is_answered(*seq)).collect();
        events.dedup();
        events.into_iter()
    }

    /// Whether any request behind `seq` waits for an answer.
    pub fn has_outstanding_after(&self, seq: Seq) -> bool {
        self.asked.iter().any(|ask| !ask.answered && ask.seq > seq)
    }

    /// Whether the event at `seq` is a request that was answered, which no replay repeats. An array counts once all of it
    /// was, and not at all with other messages in it: those are owed to the client.
    pub fn is_answered(&self, seq: Seq) -> bool {
        let mut here = self.asked.iter().filter(|ask| ask.seq == seq).peekable();
        here.peek().is_some() && here.all(|ask| ask.alone && ask.answered)
    }
}
