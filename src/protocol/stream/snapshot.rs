//! Snapshots: the state of a stream beside its events. With it another process can serve or end the
//! stream.
//!
//! Absent: state that only the process with the upstream call can use (deadlines, the upstream's
//! event IDs), and the current reader.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::announcements::{AnnouncementRecord, AnnouncementState};
use super::event_set::EventSet;
use super::numbering::Numbering;
use super::owed_responses::OwedResponse;
use super::reader_state::ReaderProgress;
use super::server_requests::ServerRequestRecord;
use super::states::{HeadOrigin, Outcome, Phase};
use super::timers::Timer;
use super::{Machine, Policy};
use crate::error::Failure;
use crate::ids::Seq;
use crate::jsonrpc::RequestId;

/// The state of a stream when its last event was numbered. Stores hold it, under the names that the
/// serialized form gives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The outcome of a stream whose last event is numbered, or `None` if more may come.
    ending: Option<Outcome>,
    failure: Option<Failure>,
    #[serde(rename = "debts")]
    owed_responses: Vec<(RequestId, OwedResponse)>,
    last_error: Option<Seq>,
    #[serde(rename = "asks")]
    server_requests: Vec<ServerRequestRecord>,
    /// The spent events, or `None` if the remembered requests determine them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    spent: Option<EventSet>,
    reader: ReaderProgress,
    last_retry_ms: u64,
    #[serde(rename = "delivered")]
    is_delivered: bool,
    #[serde(rename = "cancelled")]
    is_cancelled: bool,
    #[serde(rename = "revoked")]
    is_revoked: bool,
    #[serde(rename = "framed")]
    announcements: Option<AnnouncementRecord>,
    /// The last event that is taken into account; 0 in snapshots of earlier versions.
    #[serde(default)]
    upto: Seq,
}

/// The parts of a snapshot that must not be lost with the process. The other parts may be out of
/// date in the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SnapshotDigest {
    ending: Option<Outcome>,
    settled: usize,
    answered: usize,
    server_request_changes: u64,
    reader: ReaderProgress,
    is_delivered: bool,
    is_revoked: bool,
}

impl Snapshot {
    /// Returns a snapshot that takes every numbered event into account.
    pub fn of(machine: &Machine) -> Self {
        let Machine { lifecycle, reader, server_requests, .. } = machine;
        let (owed_responses, last_error) = lifecycle.owed_responses.to_parts();
        let (server_requests, spent) = server_requests.to_parts();
        Self {
            ending: lifecycle.ending(),
            failure: lifecycle.failure,
            owed_responses,
            last_error,
            server_requests,
            spent,
            reader: reader.progress(),
            last_retry_ms: u64::try_from(reader.last_retry().as_millis()).unwrap_or(u64::MAX),
            is_delivered: reader.is_delivered(),
            is_cancelled: lifecycle.is_cancelled,
            is_revoked: lifecycle.is_revoked,
            upto: lifecycle.numbering.last(),
            announcements: lifecycle.announcements.as_ref().map(|announcements| announcements.record()),
        }
    }

    /// Returns the last event that the snapshot takes into account.
    pub fn upto(&self) -> Seq {
        self.upto
    }
}

impl SnapshotDigest {
    /// Returns the digest of a snapshot of the machine as it is now. As long as it does not change,
    /// a new snapshot need not be written.
    pub fn of(machine: &Machine) -> Self {
        let Machine { lifecycle, reader, server_requests, .. } = machine;
        Self {
            ending: lifecycle.ending(),
            settled: lifecycle.owed_responses.settled_len(),
            answered: lifecycle.owed_responses.answered_len(),
            server_request_changes: server_requests.changes(),
            reader: reader.progress().without_written(),
            is_delivered: reader.is_delivered(),
            is_revoked: lifecycle.is_revoked,
        }
    }
}

impl Machine {
    /// Restores the stream of another process, or of an earlier one. The log has its events up to
    /// `tail` and has dropped those up to `trimmed`. The machine has no upstream. Without a
    /// `snapshot` the stream was never written to.
    pub fn restore(
        policy: Policy,
        ids: Vec<RequestId>,
        snapshot: Option<Snapshot>,
        tail: Seq,
        trimmed: Seq,
        now: Instant,
    ) -> Self {
        let mut machine = Self::new(policy, ids, now);
        let lifecycle = &mut machine.lifecycle;
        lifecycle.phase = Phase::Open;
        lifecycle.head_origin = HeadOrigin::Proxy;
        lifecycle.timers.stop(Timer::Commit);
        lifecycle.timers.stop(Timer::Call);
        lifecycle.numbering = Numbering::following(tail, trimmed);
        if let Some(snapshot) = snapshot {
            machine.reader.restore(snapshot.reader);
            machine.apply(snapshot);
        }
        machine
    }

    /// The writer of the stream is in another process: it has logged events up to `tail` and
    /// trimmed up to `trimmed`. The current reader does not change.
    pub fn handle_remote_progress(&mut self, snapshot: Option<Snapshot>, tail: Seq, trimmed: Seq) {
        self.lifecycle.numbering.handle_remote_tail(tail);
        self.handle_trimmed(trimmed);
        if let Some(snapshot) = snapshot {
            self.reader.merge(snapshot.reader);
            self.apply(snapshot);
        }
    }

    fn apply(&mut self, snapshot: Snapshot) {
        let lifecycle = &mut self.lifecycle;
        lifecycle.sealing = snapshot.ending;
        lifecycle.failure = snapshot.failure;
        lifecycle.owed_responses.restore(snapshot.owed_responses, snapshot.last_error);
        lifecycle.is_cancelled |= snapshot.is_cancelled;
        lifecycle.is_revoked |= snapshot.is_revoked;
        lifecycle.announcements = snapshot.announcements.map(|record| Box::new(AnnouncementState::restore(record)));
        self.server_requests.restore(snapshot.server_requests, snapshot.spent, self.input_turn.quiet_since());
        self.server_requests.handle_trimmed(lifecycle.numbering.trimmed());
        self.reader.set_last_retry(Duration::from_millis(snapshot.last_retry_ms));
        if snapshot.is_delivered {
            self.reader.set_delivered();
        }
        self.restart_abandon();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::headers::Era;
    use mcp_resume_base::clock;

    /// A snapshot as stores hold it.
    const RECORD: &str = concat!(
        r#"{"ending":"Failed","failure":null,"debts":[[{"Number":"1"},{"Answered":2}],[{"String":"a"},"Due"],"#,
        r#"[{"Number":"3"},"Cancelled"]],"last_error":2,"asks":[{"id":{"Number":"7"},"seq":1,"alone":true,"answered":false}],"#,
        r#""reader":{"primed":true,"returned":true,"by_url":false,"written":2,"confirmed":1,"has_told":true,"told":1},"#,
        r#""last_retry_ms":40,"delivered":false,"cancelled":false,"revoked":true,"#,
        r#""framed":{"opened":1,"closed":null,"closing":"{}"},"upto":2}"#,
    );

    #[test]
    fn the_recorded_form_is_read_and_written_unchanged() {
        let snapshot: Snapshot = serde_json::from_str(RECORD).unwrap();
        let policy = Policy::of_ended(Era::Legacy, Duration::ZERO, true);
        let restored = Machine::restore(policy, vec![], Some(snapshot), Seq(2), Seq(0), clock::now());
        assert_eq!(serde_json::to_string(&Snapshot::of(&restored)).unwrap(), RECORD);
    }

    #[test]
    fn the_recorded_names_of_a_policy_are_fixed() {
        let policy = Policy::of_ended(Era::Legacy, Duration::ZERO, true);
        let record = serde_json::to_value(policy).unwrap();
        for name in ["keyed", "pauses", "resume_hard_cuts", "refuses_asks", "announces_cancel"] {
            assert!(record[name].is_boolean(), "{name}");
        }
    }
}
