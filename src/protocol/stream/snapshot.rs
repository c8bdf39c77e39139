//! What another process must know of a stream beside its events, to serve it or to end it.
//!
//! Absent on purpose: what only the process with the upstream call can use (deadlines, the upstream's own event IDs), and who
//! reads now.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::announcements::{AnnouncementRecord, AnnouncementState};
use super::event_set::Places;
use super::numbering::Numbering;
use super::owed_responses::Debt;
use super::reader::Known;
use super::server_requests::Asked;
use super::states::{Outcome, Phase};
use super::timers::Timer;
use super::{Machine, Policy};
use crate::protocol::error::Failure;
use crate::protocol::ids::Seq;
use crate::protocol::jsonrpc::{self, Message, RequestId};

/// Where a stream stood when its last event was numbered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// How it ends, once its last event is with the store.
    ending: Option<Outcome>,
    failure: Option<Failure>,
    debts: Vec<(RequestId, Debt)>,
    last_error: Option<Seq>,
    asks: Vec<Asked>,
    /// The events that are spent, where the requests that are remembered do not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    spent: Option<Places>,
    reader: Known,
    last_retry_ms: u64,
    delivered: bool,
    cancelled: bool,
    revoked: bool,
    framed: Option<AnnouncementRecord>,
    /// The last event that it takes into account; none in what earlier versions wrote.
    #[serde(default)]
    upto: Seq,
}

/// The parts of a snapshot that must not be lost with the process. What is left out may be old there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    ending: bool,
    settled: usize,
    answered: usize,
    asks: u64,
    reader: Known,
    delivered: bool,
    revoked: bool,
}

impl Snapshot {
    /// Returns the last event that it takes into account.
    pub fn upto(&self) -> Seq {
        self.upto
    }
}

impl Machine {
    /// Where it stands, everything numbered so far included.
    pub fn snapshot(&self) -> Snapshot {
        let (debts, last_error) = self.debts.to_parts();
        let (asks, spent) = self.asks.to_parts();
        Snapshot {
            ending: match self.phase {
                Phase::Sealed { outcome, .. } => Some(outcome),
                Phase::Waiting | Phase::Passed | Phase::Open => self.sealing,
            },
            failure: self.failure,
            debts,
            last_error,
            asks,
            spent,
            reader: self.reader.known(),
            last_retry_ms: u64::try_from(self.last_retry.as_millis()).unwrap_or(u64::MAX),
            delivered: self.delivered,
            cancelled: self.cancelled,
            revoked: self.revoked,
            upto: self.numbered_upto(),
            framed: self.announcements.as_ref().map(|announcements| announcements.record()),
        }
    }

    /// Whether a new snapshot is worth writing: where these are as they were, only what may be old has changed.
    pub fn marks(&self) -> Marks {
        Marks {
            ending: self.sealing.is_some() || self.is_sealed(),
            settled: self.debts.settled_len(),
            answered: self.debts.answered_len(),
            asks: self.asks.changes(),
            // How far was written is always a little behind.
            reader: Known { written: Seq(0), ..self.reader.known() },
            delivered: self.delivered,
            revoked: self.revoked,
        }
    }

    /// The stream of another process, or of one before this: `tail` events were logged and those up to `trimmed` are gone. It has no
    /// upstream. Where there is no `snapshot` it was never written to.
    pub fn restore(
        policy: Policy,
        ids: Vec<RequestId>,
        snapshot: Option<Snapshot>,
        tail: Seq,
        trimmed: Seq,
        now: Instant,
    ) -> Self {
        let mut machine = Self::new(policy, ids, now);
        machine.phase = Phase::Open;
        machine.committed = true;
        machine.timers.stop(Timer::Commit);
        machine.timers.stop(Timer::Call);
        machine.numbering = Numbering::following(tail, trimmed);
        if let Some(snapshot) = snapshot {
            machine.reader.restore(snapshot.reader);
            machine.apply(snapshot);
        }
        machine
    }

    /// Takes note of an event that is logged behind the snapshot that this was restored from: a response that was owed has come.
    pub fn handle_logged(&mut self, seq: Seq, data: &[u8]) {
        if !jsonrpc::may_have_id(data) {
            return;
        }
        let Ok(body) = jsonrpc::peek(data) else { return };
        for message in body.messages() {
            if let Message::Response { id: Some(id), is_error } = message {
                self.debts.answer(id, seq, *is_error);
            }
        }
    }

    /// A stream that ended at `at` with `outcome`, that no connection has read since `since`, and that so many connections had read. Without
    /// a snapshot nothing is known of it but that.
    pub fn ended(
        policy: Policy,
        snapshot: Option<Snapshot>,
        (outcome, at): (Outcome, Instant),
        (since, connections): (Instant, u32),
        (tail, trimmed): (Seq, Seq),
    ) -> Self {
        let mut machine = Self::restore(policy, Vec::new(), snapshot, tail, trimmed, since);
        machine.sealing = Some(outcome);
        machine.phase = Phase::Sealed { outcome, at };
        machine.timers.stop_all();
        machine.delivered = true;
        machine.reader.note_earlier(connections);
        machine
    }

    /// The stream's writer is elsewhere and has logged up to `tail` (behind what is known here, or as far) and trimmed up to `trimmed`. Who
    /// reads it here is as it was.
    pub fn handle_elsewhere(&mut self, snapshot: Option<Snapshot>, tail: Seq, trimmed: Seq) {
        self.numbering.note_remote_tail(tail);
        self.handle_trimmed(trimmed);
        if let Some(snapshot) = snapshot {
            self.reader.learn(snapshot.reader);
            self.apply(snapshot);
        }
    }

    /// The stream's writer has sealed it elsewhere: there is nothing more to come. Without a snapshot nobody knows how it ended.
    pub fn handle_sealed_elsewhere(&mut self, now: Instant) {
        if !self.is_sealed() {
            let outcome = self.sealing.take().unwrap_or(Outcome::Failed);
            self.phase = Phase::Sealed { outcome, at: now };
            self.timers.stop_all();
        }
    }

    fn apply(&mut self, snapshot: Snapshot) {
        self.sealing = snapshot.ending;
        self.failure = snapshot.failure;
        self.debts.restore(snapshot.debts, snapshot.last_error);
        self.asks.restore(snapshot.asks, snapshot.spent, self.input_turn.quiet_since());
        self.asks.handle_trimmed(self.trimmed());
        self.last_retry = Duration::from_millis(snapshot.last_retry_ms);
        self.delivered |= snapshot.delivered;
        self.cancelled |= snapshot.cancelled;
        self.revoked |= snapshot.revoked;
        self.announcements = snapshot.framed.map(|record| Box::new(AnnouncementState::restore(record)));
        self.restart_abandon();
    }
}
