//! The short form of ended streams: the state of a sealed machine without a reader and without the
//! parts of a running call.
//!
//! [`End`] has the state that every ended stream needs; [`Rest`] is for readers of its events. Both
//! together give the machine again ([`Machine::ended`]). Absent: the events.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use super::announcements::AnnouncementState;
use super::numbering::Numbering;
use super::owed_responses::{OwedResponse, OwedResponses};
use super::reader_state::{LastConnection, ReaderProgress, Takeovers};
use super::repetition::first_cut;
use super::server_requests::PackedRequests;
use super::states::{HeadOrigin, Outcome, Phase};
use super::{Machine, Policy, ReaderState};
use crate::error::Failure;
use crate::headers::Era;
use crate::ids::{Seq, StreamKind};
use crate::jsonrpc::RequestId;

/// The end of a request stream.
#[derive(Clone, Copy, Debug)]
pub struct End {
    /// The outcome.
    pub outcome: Outcome,
    /// Time of the seal.
    pub sealed_at: Instant,
    /// Time since which no connection has read the stream.
    pub left_at: Instant,
    /// Time that the stream stays readable after the later of both.
    pub retention: Duration,
    /// The last event.
    pub tail: Seq,
    /// Number of connections that were ever attached here.
    pub connections: u32,
    /// Era of the client.
    pub era: Era,
    /// True if a client may name the call by an `Idempotency-Key`.
    pub has_idempotency_key: bool,
    /// True if the last message is known to have arrived.
    pub is_delivered: bool,
    /// True if the response passed through. It has no event and no seal, and the times are times of
    /// the last reader.
    pub has_passed: bool,
    /// True if the server has sent requests to the client.
    pub has_server_requests: bool,
    /// True if unwritten events paused the upstream.
    can_pause: bool,
    /// True if the client accepts no stream.
    should_refuse_requests: bool,
    /// True if the requests were `tools/call` alone.
    is_tool_call: bool,
    /// True if a client has an event ID.
    is_primed: bool,
    /// True if the last connection closed gracefully.
    has_closed_gracefully: bool,
    /// True if the last connection was given the whole response, and its end showed nothing.
    is_whole: bool,
    /// Milliseconds after `left_at` while the same POST is a retry where IDs are free.
    retry_ms: u16,
}

impl End {
    /// Returns the end of a sealed request stream without a reader and without a task, or of a
    /// stream whose response passed through. Returns `None` for any other stream. The body of a
    /// response that passed through may still be arriving.
    pub fn of(machine: &Machine) -> Option<Self> {
        let Machine { lifecycle, reader, server_requests, .. } = machine;
        let policy = &lifecycle.policy;
        let (outcome, sealed_at, has_passed) = match lifecycle.phase {
            Phase::Sealed { outcome, at } => (outcome, at, false),
            Phase::Passed => (Outcome::Completed, reader.since(), true),
            Phase::Waiting | Phase::Open => return None,
        };
        if policy.kind != StreamKind::Request || policy.is_task || reader.is_attached() {
            return None;
        }
        Some(Self {
            outcome,
            sealed_at,
            left_at: reader.since(),
            retention: policy.retention,
            tail: lifecycle.numbering.tail(),
            connections: reader.connections(),
            era: policy.era,
            has_idempotency_key: policy.has_idempotency_key,
            is_delivered: reader.is_delivered(),
            has_passed,
            has_server_requests: !server_requests.is_empty(),
            can_pause: policy.can_pause,
            should_refuse_requests: policy.should_refuse_requests,
            is_tool_call: policy.is_tool_call,
            is_primed: reader.is_primed(),
            has_closed_gracefully: reader.has_closed_gracefully(),
            is_whole: reader.is_whole(),
            retry_ms: reader.retry_ms(lifecycle.phase),
        })
    }

    /// Returns the end of retention; see [`Machine::readable_until`].
    pub fn readable_until(&self) -> Instant {
        self.sealed_at.max(self.left_at) + self.retention
    }

    /// Returns the latest time for a client to return; see
    /// [`Machine::reader_expected_until`].
    pub fn reader_expected_until(&self, patience: Duration, now: Instant) -> Option<Instant> {
        let is_wanted = self.outcome != Outcome::Cancelled && !self.is_delivered && !self.has_passed;
        if !is_wanted || !self.is_primed || self.has_closed_gracefully {
            return None;
        }
        Some(self.sealed_at.max(self.left_at) + patience).filter(|until| *until > now)
    }

    fn policy(&self) -> Policy {
        Policy {
            has_idempotency_key: self.has_idempotency_key,
            should_refuse_requests: self.should_refuse_requests,
            is_tool_call: self.is_tool_call,
            ..Policy::of_ended(self.era, self.retention, self.can_pause)
        }
    }
}

/// The state of an ended stream beside its [`End`].
#[derive(Debug)]
pub struct Rest {
    /// The last event that the log has dropped.
    trimmed: Seq,
    owed_responses: Box<[(RequestId, OwedResponse)]>,
    last_retry: Duration,
    progress: ReaderProgress,
    is_cancelled: bool,
    is_revoked: bool,
    /// State of few streams, or `None` if this one has no such state.
    rare: Option<Box<Rare>>,
}

/// The state that few ended streams have.
#[derive(Debug, Default)]
struct Rare {
    last_error: Option<Seq>,
    failure: Option<Failure>,
    server_requests: PackedRequests,
    announcements: Option<Box<AnnouncementState>>,
    last_input_turn: Option<Seq>,
    takeovers: Takeovers,
}

impl Rest {
    /// Takes the rest of the state out of a stream that has an [`End`]. The machine is of no use
    /// afterwards.
    pub fn take(machine: &mut Machine) -> Self {
        let Machine { lifecycle, reader, server_requests, input_turn, .. } = machine;
        let (owed_responses, last_error) = lifecycle.owed_responses.take_parts();
        let trimmed = lifecycle.numbering.trimmed();
        let rare = Rare {
            last_error,
            failure: lifecycle.failure,
            server_requests: PackedRequests::of(std::mem::take(server_requests), trimmed),
            announcements: lifecycle.announcements.take(),
            last_input_turn: input_turn.began_at(),
            takeovers: reader.takeovers(),
        };
        let is_plain = rare.last_error.is_none()
            && rare.failure.is_none()
            && rare.server_requests.is_empty()
            && rare.announcements.is_none()
            && rare.last_input_turn.is_none()
            && rare.takeovers == Takeovers::default();
        Self {
            trimmed,
            owed_responses: owed_responses.into(),
            last_retry: reader.last_retry(),
            progress: reader.progress(),
            is_cancelled: lifecycle.is_cancelled,
            is_revoked: lifecycle.is_revoked,
            rare: if is_plain { None } else { Some(Box::new(rare)) },
        }
    }

    /// Returns the memory beside the value itself, in bytes.
    pub fn byte_len(&self) -> usize {
        let ids: usize = self.owed_responses.iter().map(|(id, _)| id.text().len()).sum();
        let rare = self.rare.as_ref().map_or(0, |rare| size_of::<Rare>() + rare.server_requests.byte_len());
        size_of_val(&*self.owed_responses) + ids + rare
    }

    /// Returns the failure by the proxy that ended the stream, or `None` if there was no failure.
    pub fn failure(&self) -> Option<Failure> {
        self.rare.as_ref()?.failure
    }

    /// Returns the last event written to any connection.
    pub fn written(&self) -> Seq {
        self.progress.written()
    }

    /// Returns the event of the last response, or `None` without a response.
    pub fn last_response(&self) -> Option<Seq> {
        self.owed_responses.iter().filter_map(|(_, response)| response.event()).max()
    }

    /// Returns true if the server has sent requests to the client.
    pub fn has_server_requests(&self) -> bool {
        self.rare.as_ref().is_some_and(|rare| !rare.server_requests.is_empty())
    }

    /// Returns true if a server→client request of one of these ids is remembered.
    pub fn knows_request(&self, ids: &HashSet<&RequestId>) -> bool {
        self.rare.as_ref().is_some_and(|rare| rare.server_requests.knows_any(ids))
    }

    /// Returns the ids of the pending server→client requests.
    pub fn unanswered_requests(&self) -> impl Iterator<Item = &RequestId> {
        self.rare.iter().flat_map(|rare| rare.server_requests.outstanding())
    }

    /// Returns the last event that the log has dropped.
    pub fn trimmed(&self) -> Seq {
        self.trimmed
    }

    /// The log has dropped its events up to `upto`.
    pub fn handle_trimmed(&mut self, upto: Seq) {
        self.trimmed = self.trimmed.max(upto);
        if let Some(rare) = &mut self.rare {
            rare.server_requests.handle_trimmed(self.trimmed);
        }
    }
}

impl Machine {
    /// Restores an ended stream. Without its `rest` no event is left.
    pub fn ended(end: &End, rest: Option<Rest>) -> Self {
        let mut machine = Self::new(end.policy(), Vec::new(), end.left_at);
        let lifecycle = &mut machine.lifecycle;
        lifecycle.timers.stop_all();
        lifecycle.head_origin = HeadOrigin::Proxy;
        if end.has_passed {
            lifecycle.phase = Phase::Passed;
        } else {
            lifecycle.sealing = Some(end.outcome);
            lifecycle.phase = Phase::Sealed { outcome: end.outcome, at: end.sealed_at };
        }
        let trimmed = rest.as_ref().map_or(end.tail, |rest| rest.trimmed);
        lifecycle.numbering = Numbering::following(end.tail, trimmed);
        machine.reader = ReaderState::of_ended(LastConnection {
            left_at: end.left_at,
            connections: end.connections,
            is_delivered: end.is_delivered,
            has_closed_gracefully: end.has_closed_gracefully,
            is_whole: end.is_whole,
            first_cut: first_cut(end.left_at, end.retry_ms),
        });
        if let Some(rest) = rest {
            machine.put_rest(rest);
        }
        machine
    }

    fn put_rest(&mut self, rest: Rest) {
        let Self { lifecycle, reader, server_requests, input_turn, .. } = self;
        lifecycle.is_cancelled = rest.is_cancelled;
        lifecycle.is_revoked = rest.is_revoked;
        let rare = rest.rare.map(|rare| *rare).unwrap_or_default();
        lifecycle.owed_responses = OwedResponses::of(rest.owed_responses.into(), rare.last_error);
        lifecycle.failure = rare.failure;
        lifecycle.announcements = rare.announcements;
        *server_requests = rare.server_requests.unpack();
        if let Some(cursor) = rare.last_input_turn {
            input_turn.begin(cursor);
        }
        reader.put_rest(rest.last_retry, rest.progress, rare.takeovers);
    }
}
