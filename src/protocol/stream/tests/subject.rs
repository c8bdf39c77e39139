//! The subject: the machine and the tail together, as their caller uses them, behind methods that a
//! mutant can override.

use std::time::{Duration, Instant};

use bytes::Bytes;

use super::steps::{MessageKind, Setup};
use crate::error::{ErrorCode, Failure};
use crate::ids::{AttachId, Seq};
use crate::jsonrpc::RequestId;
use crate::sse;
use crate::stream::{
    Batch, ClientResponse, CursorPlace, Effect, Ending, Machine, Outcome, OwedResponse, Phase, Resume,
};
use crate::tail::{Appended, Tail, WriterEpoch};
use mcp_resume_base::clock;

/// An input of a stream, for the machine and for the model.
#[derive(Clone, Debug)]
pub(super) enum Input {
    StreamHead,
    PlainHead,
    /// The response has to begin, with or without a head of the upstream.
    Commit,
    /// `messages` is for the model, which reads no JSON.
    Event {
        data: Vec<u8>,
        messages: Vec<MessageKind>,
        id: Option<String>,
        retry: Option<u64>,
    },
    Message {
        data: Vec<u8>,
        messages: Vec<MessageKind>,
    },
    End(Ending),
    Fail(Failure),
    /// A connection and its cursor.
    Attach(u64, u64),
    Detach(u64),
    Primed(u64),
    Written(u64),
    Reconnect(Option<u64>),
    Touch,
    Cancel(RequestId),
    ClientResponse(RequestId),
    ClientResponseLost(RequestId),
    /// The client's turn begins if it is due for a client with this cursor.
    Turn(u64),
    Expire,
    Delivered,
    Full(bool),
    Timeout,
}

/// The machine's return value for an input.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Reply {
    Nothing,
    Bool(bool),
    ClientResponse(ClientResponse),
}

/// A batch for the store.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TakenBatch {
    pub(super) first: u64,
    pub(super) events: Vec<Vec<u8>>,
}

/// The events after a cursor.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Replay {
    Lost,
    End,
    Events(Vec<(u64, Vec<u8>)>),
}

/// The result of a read by one connection.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Reading {
    /// Another connection took over; reconnect after this many milliseconds.
    TakenOver(u64),
    Lost,
    End,
    /// The events and the new cursor.
    Events(Vec<(u64, Vec<u8>)>, u64),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Stage {
    Waiting,
    Passed,
    Open,
    Sealed(Outcome, u64),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Owed {
    Due,
    Answered(u64),
    Cancelled,
}

/// The state of a stream that its caller can see, without the events.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct View {
    pub(super) stage: Stage,
    pub(super) committed: bool,
    pub(super) failed: bool,
    pub(super) tail: u64,
    pub(super) trimmed: u64,
    pub(super) owed: Vec<Owed>,
    pub(super) has_error: bool,
    pub(super) answered: bool,
    pub(super) has_open_requests: bool,
    pub(super) refused: bool,
    pub(super) delivered: bool,
    pub(super) attached: bool,
    pub(super) returned: bool,
    pub(super) releasable: u64,
    pub(super) paused: bool,
    pub(super) deadline: Option<u64>,
    pub(super) turn_at: Option<u64>,
    pub(super) last_turn: Option<u64>,
    pub(super) readable_until: Option<u64>,
}

/// One stream under test. The default methods are correct; a mutant overrides one of them.
pub(super) trait Subject: Sized {
    fn wrap(real: Real) -> Self;
    fn real(&self) -> &Real;
    fn real_mut(&mut self) -> &mut Real;

    fn begin(setup: &Setup) -> Self {
        Self::wrap(Real::new(setup, setup.request_ids()))
    }

    fn handle(&mut self, input: &Input, at: u64) -> Reply {
        self.real_mut().handle(input, at)
    }

    /// Gives the staged events to the store.
    fn take_batch(&mut self, _at: u64) -> Option<TakenBatch> {
        self.real_mut().take_batch()
    }

    /// The store has accepted the batch that it was given.
    fn accept(&mut self, at: u64) {
        self.real_mut().accept(at);
    }

    fn trim(&mut self, upto: u64) {
        self.real_mut().trim(upto);
    }

    fn effects(&mut self) -> Vec<Effect> {
        let machine = &mut self.real_mut().machine;
        std::iter::from_fn(|| machine.lifecycle_mut().poll_effect()).collect()
    }

    fn replay(&self, cursor: u64) -> Replay {
        self.real().replay(cursor)
    }

    /// Returns true if this connection is the reader.
    fn reads(&self, attach: u64) -> bool {
        self.real().machine.reader().is(AttachId(attach))
    }

    /// Returns the `retry` of the displaced connection, in milliseconds.
    fn takeover_retry(&self) -> u64 {
        let machine = &self.real().machine;
        machine.reader().takeover_retry().as_millis() as u64
    }

    /// Reads up to `limit` events for one connection.
    fn read(&mut self, attach: u64, cursor: u64, limit: usize, at: u64) -> Reading {
        if !self.reads(attach) {
            return Reading::TakenOver(self.takeover_retry());
        }
        match self.replay(cursor) {
            Replay::Lost => Reading::Lost,
            Replay::End => Reading::End,
            Replay::Events(mut events) => {
                let cut = events.len() > limit;
                events.truncate(limit);
                let tail = self.real().machine.numbering().tail().0;
                let last = if cut { events.last().map_or(cursor, |(seq, _)| *seq) } else { tail };
                if last > cursor {
                    self.handle(&Input::Written(last), at);
                }
                Reading::Events(events, last)
            }
        }
    }

    fn view(&self) -> View {
        self.real().view()
    }
}

/// The machine and the tail.
pub(super) struct Real {
    start: Instant,
    pub(super) machine: Machine,
    pub(super) tail: Tail,
    storing: Option<Batch>,
}

impl Subject for Real {
    fn wrap(real: Real) -> Self {
        real
    }

    fn real(&self) -> &Real {
        self
    }

    fn real_mut(&mut self) -> &mut Real {
        self
    }
}

impl Real {
    pub(super) fn new(setup: &Setup, ids: Vec<RequestId>) -> Self {
        let start = clock::now();
        Self { start, machine: Machine::new(setup.policy(), ids, start), tail: Tail::new(), storing: None }
    }

    pub(super) fn handle(&mut self, input: &Input, at: u64) -> Reply {
        let now = self.start + Duration::from_millis(at);
        let machine = &mut self.machine;
        match input {
            Input::StreamHead => return Reply::Bool(machine.handle_stream_head()),
            Input::PlainHead => return Reply::Bool(machine.handle_plain_head(now)),
            Input::Commit => return Reply::Bool(machine.lifecycle_mut().handle_commit()),
            Input::Fail(failure) => return Reply::Bool(machine.handle_failure(*failure, now)),
            Input::Cancel(id) => return Reply::Bool(machine.lifecycle_mut().handle_cancel(id, now)),
            Input::ClientResponse(id) => return Reply::ClientResponse(machine.handle_client_response(id, now)),
            Input::Turn(cursor) => return Reply::Bool(machine.handle_input_turn(Seq(*cursor), now)),
            Input::Event { data, id, retry, .. } => {
                let id = id.as_ref().map(|id| Bytes::from(id.clone()));
                let (name, data) = (Bytes::from_static(b"message"), Bytes::from(data.clone()));
                machine.handle_event(&sse::Event { name, data, id, retry: retry.map(Duration::from_millis) }, now);
            }
            Input::Message { data, .. } => machine.handle_message(b"message", data, now),
            Input::End(ending) => machine.handle_upstream_end(*ending, now),
            Input::Attach(attach, cursor) => machine.handle_attach(AttachId(*attach), Seq(*cursor), now),
            Input::Detach(attach) => machine.handle_detach(AttachId(*attach), now),
            Input::Primed(retry) => machine.handle_primed(Duration::from_millis(*retry)),
            Input::Written(upto) => machine.handle_written(Seq(*upto), now),
            Input::Reconnect(cursor) => machine.handle_resume(Resume::ByCursor, cursor.map(Seq), now),
            Input::Touch => machine.handle_touch(now),
            Input::ClientResponseLost(id) => machine.handle_client_response_lost(id, now),
            Input::Expire => machine.handle_expire(ErrorCode::Abandoned, now),
            Input::Delivered => machine.reader_mut().set_delivered(),
            Input::Full(full) => machine.lifecycle_mut().handle_full(*full, now),
            Input::Timeout => machine.handle_timeout(now),
        }
        self.seal_if_due();
        Reply::Nothing
    }

    pub(super) fn take_batch(&mut self) -> Option<TakenBatch> {
        let batch = self.machine.lifecycle_mut().poll_batch()?;
        let taken = TakenBatch { first: batch.first().0, events: batch.events().map(<[u8]>::to_vec).collect() };
        self.storing = Some(batch);
        Some(taken)
    }

    pub(super) fn accept(&mut self, at: u64) {
        let Some(batch) = self.storing.take() else { return };
        let after = self.tail.last();
        assert_eq!(self.tail.append(WriterEpoch::default(), after, &batch), Appended::Ok, "nothing follows the seal");
        self.machine.lifecycle_mut().handle_stored(self.start + Duration::from_millis(at));
        self.seal_if_due();
    }

    fn trim(&mut self, upto: u64) {
        self.tail.trim(Seq(upto));
        self.machine.handle_trimmed(self.tail.trimmed());
    }

    pub(super) fn replay(&self, cursor: u64) -> Replay {
        let after = match self.machine.locate(Seq(cursor)) {
            CursorPlace::Lost => return Replay::Lost,
            CursorPlace::AtEnd => return Replay::End,
            CursorPlace::After(after) => after,
        };
        let stored = self.tail.events_after(after).take_while(|(seq, _)| *seq <= self.machine.numbering().tail());
        let due = stored.filter(|(seq, _)| !self.machine.server_requests().is_spent(*seq));
        Replay::Events(due.map(|(seq, event)| (seq.0, event.to_vec())).collect())
    }

    fn seal_if_due(&mut self) {
        if self.machine.lifecycle().is_sealed() {
            self.tail.seal(WriterEpoch::default());
        }
    }

    pub(super) fn millis(&self, at: Instant) -> u64 {
        at.duration_since(self.start).as_millis() as u64
    }

    fn view(&self) -> View {
        let machine = &self.machine;
        let owed = machine.owed_responses().iter().map(|(_, debt)| match debt {
            OwedResponse::Due => Owed::Due,
            OwedResponse::Answered(seq) => Owed::Answered(seq.0),
            OwedResponse::Cancelled => Owed::Cancelled,
        });
        View {
            stage: match machine.lifecycle().phase() {
                Phase::Waiting => Stage::Waiting,
                Phase::Passed => Stage::Passed,
                Phase::Open => Stage::Open,
                Phase::Sealed { outcome, at } => Stage::Sealed(outcome, self.millis(at)),
            },
            committed: machine.lifecycle().is_committed(),
            failed: machine.lifecycle().failure().is_some(),
            tail: machine.numbering().tail().0,
            trimmed: machine.numbering().trimmed().0,
            owed: owed.collect(),
            has_error: machine.owed_responses().has_error(),
            answered: machine.lifecycle().is_answered(),
            has_open_requests: machine.server_requests().has_outstanding(),
            refused: machine.lifecycle().is_cancelled(),
            delivered: machine.reader().is_delivered(),
            attached: machine.reader().is_attached(),
            returned: machine.reader().has_reconnected(),
            releasable: machine.releasable().0,
            paused: machine.lifecycle().is_paused(),
            deadline: machine.lifecycle().poll_timeout().map(|at| self.millis(at)),
            turn_at: machine.input_turn_at().map(|at| self.millis(at)),
            last_turn: machine.input_turn().began_at().map(|seq| seq.0),
            readable_until: machine.readable_until().map(|at| self.millis(at)),
        }
    }
}
