//! What is tested: the machine and the tail together, as their caller uses them, behind methods that a mutant can override.

use std::time::{Duration, Instant};

use bytes::Bytes;

use super::steps::{Said, Setup};
use crate::clock;
use crate::protocol::error::{ErrorCode, Failure};
use crate::protocol::ids::{AttachId, Seq};
use crate::protocol::jsonrpc::RequestId;
use crate::protocol::sse;
use crate::protocol::stream::{Answer, Batch, Debt, Effect, Ending, Machine, Outcome, Phase, Place};
use crate::store::memory::Tail;
use crate::store::{Appended, WriterEpoch};

/// Something that happens to a stream, in the words of both the machine and the model.
#[derive(Clone, Debug)]
pub(super) enum Input {
    StreamHead,
    PlainHead,
    /// The response has to begin, whatever the upstream does.
    Commit,
    /// `says` is for the model, which reads no JSON.
    Event {
        data: Vec<u8>,
        says: Vec<Said>,
        id: Option<String>,
        retry: Option<u64>,
    },
    Message {
        data: Vec<u8>,
        says: Vec<Said>,
    },
    End(Ending),
    Fail(Failure),
    /// A connection, and where it reads on.
    Attach(u64, u64),
    Detach(u64),
    Primed(u64),
    Written(u64),
    Return(Option<u64>),
    Touch,
    Cancel(RequestId),
    Answer(RequestId),
    AnswerLost(RequestId),
    /// Whether it is the turn of a client that has so much.
    Turn(u64),
    Expire,
    Delivered,
    Full(bool),
    Timeout,
}

/// What the machine says to an input.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Reply {
    Nothing,
    Yes(bool),
    Answer(Answer),
}

/// A batch on its way to the store.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Handed {
    pub(super) first: u64,
    pub(super) events: Vec<Vec<u8>>,
}

/// Everything after a cursor.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Replay {
    Lost,
    End,
    Events(Vec<(u64, Vec<u8>)>),
}

/// What one connection reads.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Reading {
    /// Another one took over; come back after so many milliseconds.
    TakenOver(u64),
    Lost,
    End,
    /// The events, and how far the cursor goes.
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

/// All that can be seen of a stream from outside, its events apart.
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
    pub(super) asks_wait: bool,
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

/// One stream under test. The defaults are the truth; a mutant overrides one method.
pub(super) trait Subject: Sized {
    fn wrap(real: Real) -> Self;
    fn real(&self) -> &Real;
    fn real_mut(&mut self) -> &mut Real;

    fn begin(setup: &Setup) -> Self {
        Self::wrap(Real::new(setup, setup.request_ids()))
    }

    fn tell(&mut self, input: &Input, at: u64) -> Reply {
        self.real_mut().tell(input, at)
    }

    /// What is staged goes to the store.
    fn hand(&mut self, _at: u64) -> Option<Handed> {
        self.real_mut().hand()
    }

    /// The store has accepted what it was handed.
    fn accept(&mut self, at: u64) {
        self.real_mut().accept(at);
    }

    fn trim(&mut self, upto: u64) {
        self.real_mut().trim(upto);
    }

    fn effects(&mut self) -> Vec<Effect> {
        let machine = &mut self.real_mut().machine;
        std::iter::from_fn(|| machine.poll_effect()).collect()
    }

    fn replay(&self, cursor: u64) -> Replay {
        self.real().replay(cursor)
    }

    /// Whether this connection is the one that reads.
    fn reads(&self, attach: u64) -> bool {
        self.real().machine.reader().is(AttachId(attach))
    }

    /// What the connection that was taken over is told, in milliseconds.
    fn farewell(&self) -> u64 {
        let machine = &self.real().machine;
        machine.takeover_retry().as_millis() as u64
    }

    /// Up to `limit` events for one connection.
    fn read(&mut self, attach: u64, cursor: u64, limit: usize, at: u64) -> Reading {
        if !self.reads(attach) {
            return Reading::TakenOver(self.farewell());
        }
        match self.replay(cursor) {
            Replay::Lost => Reading::Lost,
            Replay::End => Reading::End,
            Replay::Events(mut events) => {
                let cut = events.len() > limit;
                events.truncate(limit);
                let tail = self.real().machine.tail().0;
                let last = if cut { events.last().map_or(cursor, |(seq, _)| *seq) } else { tail };
                if last > cursor {
                    self.tell(&Input::Written(last), at);
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
    with_store: Option<Batch>,
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
        Self { start, machine: Machine::new(setup.policy(), ids, start), tail: Tail::new(), with_store: None }
    }

    pub(super) fn tell(&mut self, input: &Input, at: u64) -> Reply {
        let now = self.start + Duration::from_millis(at);
        let machine = &mut self.machine;
        match input {
            Input::StreamHead => return Reply::Yes(machine.handle_stream_head()),
            Input::PlainHead => return Reply::Yes(machine.handle_plain_head()),
            Input::Commit => return Reply::Yes(machine.handle_commit()),
            Input::Fail(failure) => return Reply::Yes(machine.handle_failure(*failure, now)),
            Input::Cancel(id) => return Reply::Yes(machine.handle_cancel(id, now)),
            Input::Answer(id) => return Reply::Answer(machine.handle_answer(id, now)),
            Input::Turn(cursor) => return Reply::Yes(machine.handle_turn(Seq(*cursor), now)),
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
            Input::Return(cursor) => machine.handle_return(cursor.map(Seq), now),
            Input::Touch => machine.handle_touch(now),
            Input::AnswerLost(id) => machine.handle_answer_lost(id),
            Input::Expire => machine.handle_expire(ErrorCode::Abandoned, now),
            Input::Delivered => machine.handle_delivered(),
            Input::Full(full) => machine.handle_full(*full, now),
            Input::Timeout => machine.handle_timeout(now),
        }
        self.seal_if_due();
        Reply::Nothing
    }

    pub(super) fn hand(&mut self) -> Option<Handed> {
        let batch = self.machine.poll_batch()?;
        let handed = Handed { first: batch.first().0, events: batch.events().map(<[u8]>::to_vec).collect() };
        self.with_store = Some(batch);
        Some(handed)
    }

    pub(super) fn accept(&mut self, at: u64) {
        let Some(batch) = self.with_store.take() else { return };
        let after = self.tail.last();
        assert_eq!(self.tail.append(WriterEpoch::default(), after, &batch), Appended::Ok, "nothing follows the seal");
        self.machine.handle_stored(self.start + Duration::from_millis(at));
        self.seal_if_due();
    }

    fn trim(&mut self, upto: u64) {
        self.tail.trim(Seq(upto));
        self.machine.handle_trimmed(self.tail.trimmed());
    }

    pub(super) fn replay(&self, cursor: u64) -> Replay {
        let after = match self.machine.place(Seq(cursor)) {
            Place::Lost => return Replay::Lost,
            Place::AtEnd => return Replay::End,
            Place::After(after) => after,
        };
        let stored = self.tail.events_after(after).take_while(|(seq, _)| *seq <= self.machine.tail());
        let due = stored.filter(|(seq, _)| !self.machine.asks().is_answered(*seq));
        Replay::Events(due.map(|(seq, event)| (seq.0, event.to_vec())).collect())
    }

    fn seal_if_due(&mut self) {
        if self.machine.is_sealed() {
            self.tail.seal(WriterEpoch::default());
        }
    }

    pub(super) fn millis(&self, at: Instant) -> u64 {
        at.duration_since(self.start).as_millis() as u64
    }

    fn view(&self) -> View {
        let machine = &self.machine;
        let owed = machine.debts().iter().map(|(_, debt)| match debt {
            Debt::Due => Owed::Due,
            Debt::Answered(seq) => Owed::Answered(seq.0),
            Debt::Cancelled => Owed::Cancelled,
        });
        View {
            stage: match machine.phase() {
                Phase::Waiting => Stage::Waiting,
                Phase::Passed => Stage::Passed,
                Phase::Open => Stage::Open,
                Phase::Sealed { outcome, at } => Stage::Sealed(outcome, self.millis(at)),
            },
            committed: machine.is_committed(),
            failed: machine.failure().is_some(),
            tail: machine.tail().0,
            trimmed: machine.trimmed().0,
            owed: owed.collect(),
            has_error: machine.debts().has_error(),
            answered: machine.is_answered(),
            asks_wait: machine.asks().has_outstanding(),
            refused: machine.is_cancelled(),
            delivered: machine.is_delivered(),
            attached: machine.reader().is_attached(),
            returned: machine.reader().has_returned(),
            releasable: machine.releasable().0,
            paused: machine.is_paused(),
            deadline: machine.poll_timeout().map(|at| self.millis(at)),
            turn_at: machine.turn_at().map(|at| self.millis(at)),
            last_turn: machine.last_turn().map(|seq| seq.0),
            readable_until: machine.readable_until().map(|at| self.millis(at)),
        }
    }
}
