//! Streams that have ended, in short: the state of a sealed machine that no connection reads,
//! without the parts that only a running call needs.
//!
//! [`End`] answers the questions that are asked of every ended stream; [`Rest`] is for readers of
//! its events. Both together give the machine again ([`Machine::ended`]). Absent: the events.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use super::announcements::AnnouncementState;
use super::numbering::Numbering;
use super::owed_responses::{OwedResponse, OwedResponses};
use super::reader_state::{LastConnection, ReaderProgress, Takeovers};
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
    /// Time for which the stream stays readable after the later of both.
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
    /// True if the response passed through: there is no event and no seal, and the times are those
    /// of the last reader.
    pub has_passed: bool,
    /// True if the server has sent requests to the client.
    pub has_server_requests: bool,
    /// True if unwritten events paused the upstream.
    can_pause: bool,
    /// True if the client accepts no stream.
    should_refuse_requests: bool,
    /// True if a client has an event ID.
    is_primed: bool,
    /// True if the last connection closed gracefully.
    has_closed_gracefully: bool,
    /// True if the last connection was given the whole response, and its end showed nothing.
    is_whole: bool,
    /// Milliseconds after `left_at` in which the same POST is a retry where IDs are free.
    retry_ms: u16,
}

impl End {
    /// Returns the end of retention; see [`Machine::readable_until`].
    pub fn readable_until(&self) -> Instant {
        self.sealed_at.max(self.left_at) + self.retention
    }

    /// Returns the time until which a client may come back; see [`Machine::reader_expected_until`].
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
    last_error: Option<Seq>,
    failure: Option<Failure>,
    last_retry: Duration,
    progress: ReaderProgress,
    is_cancelled: bool,
    is_revoked: bool,
    /// State of few streams, or `None` if this one has none of it.
    rare: Option<Box<Rare>>,
}

/// The state that few ended streams have.
#[derive(Debug, Default)]
struct Rare {
    server_requests: PackedRequests,
    announcements: Option<Box<AnnouncementState>>,
    last_input_turn: Option<Seq>,
    takeovers: Takeovers,
}

impl Rest {
    /// Returns the memory beside the value itself, in bytes.
    pub fn byte_len(&self) -> usize {
        let ids: usize = self.owed_responses.iter().map(|(id, _)| id.text().len()).sum();
        let rare = self.rare.as_ref().map_or(0, |rare| size_of::<Rare>() + rare.server_requests.byte_len());
        size_of_val(&*self.owed_responses) + ids + rare
    }

    /// Returns the failure with which the proxy ended the stream, or `None` if it did not.
    pub fn failure(&self) -> Option<Failure> {
        self.failure
    }

    /// Returns the last event written to any connection.
    pub fn written(&self) -> Seq {
        self.progress.written()
    }

    /// Returns the event of the last response, or `None` if there is none.
    pub fn last_response(&self) -> Option<Seq> {
        self.owed_responses.iter().filter_map(|(_, response)| response.event()).max()
    }

    /// Returns whether the server has sent requests to the client.
    pub fn has_server_requests(&self) -> bool {
        self.rare.as_ref().is_some_and(|rare| !rare.server_requests.is_empty())
    }

    /// Returns whether a server→client request of one of these ids is remembered.
    pub fn knows_request(&self, ids: &HashSet<&RequestId>) -> bool {
        self.rare.as_ref().is_some_and(|rare| rare.server_requests.knows_any(ids))
    }

    /// Returns the ids of the unanswered server→client requests.
    pub fn unanswered_requests(&self) -> impl Iterator<Item = &RequestId> {
        self.rare.iter().flat_map(|rare| rare.server_requests.outstanding())
    }

    /// Returns the last event that the log has dropped.
    pub fn trimmed(&self) -> Seq {
        self.trimmed
    }

    /// Notes that the log has dropped its events up to `upto`.
    pub fn note_trimmed(&mut self, upto: Seq) {
        self.trimmed = self.trimmed.max(upto);
        if let Some(rare) = &mut self.rare {
            rare.server_requests.handle_trimmed(self.trimmed);
        }
    }
}

impl Machine {
    /// Returns the end of a sealed request stream without a reader that is no task's, or of one
    /// whose response passed through, or `None` for any other stream. The body of a response that
    /// passed through may still be arriving.
    pub fn end(&self) -> Option<End> {
        let (outcome, at, has_passed) = match self.phase {
            Phase::Sealed { outcome, at } => (outcome, at, false),
            Phase::Passed => (Outcome::Completed, self.reader.since(), true),
            Phase::Waiting | Phase::Open => return None,
        };
        if self.policy.kind != StreamKind::Request || self.policy.is_task || self.reader.is_attached() {
            return None;
        }
        Some(End {
            outcome,
            sealed_at: at,
            left_at: self.reader.since(),
            retention: self.policy.retention,
            tail: self.tail(),
            connections: self.reader.connections(),
            era: self.policy.era,
            has_idempotency_key: self.policy.has_idempotency_key,
            is_delivered: self.is_delivered(),
            has_passed,
            has_server_requests: !self.server_requests.is_empty(),
            can_pause: self.policy.can_pause,
            should_refuse_requests: self.policy.should_refuse_requests,
            is_primed: self.reader.is_primed(),
            has_closed_gracefully: self.reader.has_closed_gracefully(),
            is_whole: self.reader.is_whole(),
            retry_ms: self.retry_ms(self.reader.since()),
        })
    }

    /// Takes the rest of the state out of a stream that has an [`End`]. The machine is of no use
    /// afterwards.
    pub fn take_rest(&mut self) -> Rest {
        let (owed_responses, last_error) = self.owed_responses.take_parts();
        let rare = Rare {
            server_requests: PackedRequests::of(std::mem::take(&mut self.server_requests), self.trimmed()),
            announcements: self.announcements.take(),
            last_input_turn: self.last_input_turn(),
            takeovers: self.reader.takeovers(),
        };
        let is_plain = rare.server_requests.is_empty()
            && rare.announcements.is_none()
            && rare.last_input_turn.is_none()
            && rare.takeovers == Takeovers::default();
        Rest {
            trimmed: self.trimmed(),
            owed_responses: owed_responses.into(),
            last_error,
            failure: self.failure,
            last_retry: self.last_retry,
            progress: self.reader.progress(),
            is_cancelled: self.is_cancelled,
            is_revoked: self.is_revoked,
            rare: if is_plain { None } else { Some(Box::new(rare)) },
        }
    }

    /// Restores a stream that has ended. Without its `rest` no event is left.
    pub fn ended(end: &End, rest: Option<Rest>) -> Self {
        let mut machine = Self::new(end.policy(), Vec::new(), end.left_at);
        machine.timers.stop_all();
        machine.head_origin = HeadOrigin::Proxy;
        if end.has_passed {
            machine.phase = Phase::Passed;
        } else {
            machine.sealing = Some(end.outcome);
            machine.phase = Phase::Sealed { outcome: end.outcome, at: end.sealed_at };
        }
        let trimmed = rest.as_ref().map_or(end.tail, |rest| rest.trimmed);
        machine.numbering = Numbering::following(end.tail, trimmed);
        let (progress, takeovers) = match rest {
            Some(rest) => machine.put_rest(rest),
            None => Default::default(),
        };
        let last = LastConnection {
            is_delivered: end.is_delivered,
            has_closed_gracefully: end.has_closed_gracefully,
            is_whole: end.is_whole,
            first_cut: Self::first_cut_of(end.left_at, end.retry_ms),
        };
        machine.reader = ReaderState::of_ended((end.left_at, end.connections), last, progress, takeovers);
        machine
    }

    fn put_rest(&mut self, rest: Rest) -> (ReaderProgress, Takeovers) {
        self.owed_responses = OwedResponses::of(rest.owed_responses.into(), rest.last_error);
        self.failure = rest.failure;
        self.last_retry = rest.last_retry;
        self.is_cancelled = rest.is_cancelled;
        self.is_revoked = rest.is_revoked;
        let rare = rest.rare.map(|rare| *rare).unwrap_or_default();
        self.server_requests = rare.server_requests.unpack();
        self.announcements = rare.announcements;
        if let Some(cursor) = rare.last_input_turn {
            self.input_turn.begin(cursor);
        }
        (rest.progress, rare.takeovers)
    }
}
