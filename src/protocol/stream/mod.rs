//! The stream state machine: everything that decides what happens to one stream, and nothing that does it.
//!
//! Owned here: the numbering of events, what responses are owed, who reads, every timer, and the one way a stream ends.
//! Invariants, each a property test in `tests`:
//!
//! 1. Numbers are 1, 2, 3 … without gaps, assigned here alone.
//! 2. An event counts as stored, and may be read, only after [`Machine::handle_stored`].
//! 3. A cursor gets exactly the later events; see [`Machine::place`].
//! 4. The terminal response is an event like any other and stays until retention ends.
//! 5. At most one connection is attached; the newest wins.
//! 6. A reader that leaves starts a timer and changes nothing else.
//! 7. A request stream is sealed with a response for every id it owed.
//! 8. A server→client request is answered once, and not replayed after.
//!
//! The caller's loop has one shape: tell what happened with a `handle_*`, drain [`Machine::poll_batch`] and
//! [`Machine::poll_effect`], sleep until [`Machine::poll_timeout`]. Absent: sockets, tasks, clocks, randomness, and the
//! events' bytes, which the machine numbers and hands on.

mod announcements;
mod batch;
mod event_set;
mod getters;
mod input_turn;
mod numbering;
mod owed_responses;
mod policy;
mod reader;
mod seal;
mod server_requests;
mod snapshot;
mod states;
#[cfg(test)]
mod tests;
mod timeouts;
mod timers;
mod upstream;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use announcements::AnnouncementState;
pub use announcements::Frame;
pub use batch::Batch;
use input_turn::InputTurn;
use numbering::Numbering;
pub use owed_responses::{Debt, Debts};
pub use policy::Policy;
pub use reader::Reader;
pub use server_requests::{Answer, Asks};
pub use snapshot::{Marks, Snapshot};
pub use states::{Effect, Outcome, Phase, Place};
use timers::{Timer, TimerTable};
pub use upstream::Ending;
use upstream::{Next, Upstream};

use crate::protocol::error::{ErrorCode, Failure};
use crate::protocol::ids::{AttachId, Seq, StreamKind};
use crate::protocol::jsonrpc::{self, Message, RequestId};
use crate::protocol::sse;

/// The state machine of one stream.
#[derive(Debug)]
pub struct Machine {
    policy: Box<Policy>,
    phase: Phase,
    committed: bool,
    debts: Debts,
    asks: Asks,
    reader: Reader,
    upstream: Upstream,
    numbering: Numbering,
    sealing: Option<Outcome>,
    /// Why the proxy ended it, where it did.
    failure: Option<Failure>,
    last_retry: Duration,
    timers: TimerTable,
    delivered: bool,
    cancelled: bool,
    /// No token opens it any more, whatever became of it before.
    revoked: bool,
    input_turn: InputTurn,
    /// What stands around the messages of the upstream. `None` for most streams.
    announcements: Option<Box<AnnouncementState>>,
    effects: VecDeque<Effect>,
}

impl Machine {
    /// A stream that owes a response for each of `ids` (none for a standalone stream), its upstream call just begun.
    pub fn new(policy: Policy, ids: Vec<RequestId>, now: Instant) -> Self {
        let mut machine = Self {
            phase: Phase::Waiting,
            committed: false,
            debts: Debts::new(ids),
            asks: Asks::default(),
            reader: Reader::new(now),
            upstream: Upstream::new(),
            numbering: Numbering::new(),
            sealing: None,
            failure: None,
            last_retry: policy.retry,
            timers: TimerTable::default(),
            delivered: false,
            cancelled: false,
            revoked: false,
            input_turn: InputTurn::new(now),
            announcements: None,
            effects: VecDeque::new(),
            policy: Box::new(policy),
        };
        machine.start_timers(now);
        machine
    }

    /// The stream is to be framed. To be told before its head.
    pub fn handle_frame(&mut self, frame: Frame) {
        self.announcements = Some(Box::new(AnnouncementState::new(frame)));
    }

    // ── what the upstream does ────────────────────────────────────────────────────────────────────────────────────────

    /// The upstream's head says SSE. True when the client gets that head; false when the proxy committed before, or the
    /// stream has ended.
    pub fn handle_stream_head(&mut self) -> bool {
        self.upstream.opened();
        self.timers.stop(Timer::Reopen);
        self.open(false)
    }

    /// The upstream's answer is none to log and passes as it is. False when it cannot: the proxy committed, or it is over.
    pub fn handle_plain_head(&mut self) -> bool {
        let passes = self.phase == Phase::Waiting;
        if passes {
            self.pass();
        }
        passes
    }

    /// One event of the upstream. Its id and `retry` are consumed; it gets a number if it has data.
    pub fn handle_event(&mut self, event: &sse::Event, now: Instant) {
        self.upstream.note(event);
        if !event.data.is_empty() {
            self.handle_message(&event.name, &event.data, now);
        }
    }

    /// Makes room for so many events that are about to come, with so many bytes of data together.
    pub fn reserve(&mut self, events: usize, bytes: usize) {
        if self.is_logging() {
            self.numbering.reserve(events, bytes);
        }
    }

    /// One JSON-RPC message of the upstream that is no SSE event: the body of a late or converted JSON answer.
    pub fn handle_message(&mut self, name: &[u8], data: &[u8], now: Instant) {
        if !self.is_logging() {
            return;
        }
        let seq = self.numbering.push(name, data);
        self.input_turn.note_activity(now);
        let owed = !self.debts.is_settled();
        // What does not decode is an opaque event: only framing, size or a missing response fails a call. And of what does decode,
        // only what has an id matters here.
        if jsonrpc::may_have_id(data)
            && let Ok(body) = jsonrpc::peek(data)
        {
            let only_asks = body.messages().iter().all(|message| matches!(message, Message::Request { .. }));
            for message in body.messages() {
                self.note_message(message, seq, only_asks, now);
            }
        }
        // While a cancelled request may still answer, only the response that settles the debts ends the stream this early.
        let paid = owed && self.debts.is_settled();
        let complete = self.policy.kind == StreamKind::Request && self.debts.is_answered();
        if paid {
            self.timers.stop(Timer::Call);
        }
        if (paid || complete) && !self.timers.is_set(Timer::Linger) {
            self.timers.set(Timer::Linger, now + self.policy.linger);
        }
    }

    /// The upstream's response ended or broke.
    pub fn handle_upstream_end(&mut self, ending: Ending, now: Instant) {
        if self.sealing.is_some() || self.is_sealed() {
            return;
        }
        if self.owes_nothing() {
            return self.begin_seal(self.settled_outcome(), now);
        }
        match self.upstream.after_end(ending, &self.policy) {
            Next::Reopen(pause) => self.timers.set(Timer::Reopen, now + pause),
            Next::ReopenAnew(pause) => {
                self.timers.set(Timer::Reopen, now + pause);
                self.effects.push_back(Effect::TellGap);
            }
            Next::Fail(failure) => {
                self.timers.stop(Timer::Reopen);
                self.give_up(Outcome::Failed, failure, now);
            }
        }
    }

    /// The call failed: before a head, or in a way no ending describes. True when the failure can still be told as an HTTP
    /// status (nothing was committed).
    pub fn handle_failure(&mut self, failure: Failure, now: Instant) -> bool {
        if self.phase == Phase::Waiting {
            self.pass();
            self.timers.stop(Timer::Reopen);
            return true;
        }
        self.give_up(Outcome::Failed, failure, now);
        false
    }

    // ── what the downstream does ──────────────────────────────────────────────────────────────────────────────────────

    /// A connection takes the stream to read it after `cursor`. The one before it, if any, is no longer the reader.
    pub fn handle_attach(&mut self, attach: AttachId, cursor: Seq, now: Instant) {
        self.reader.attach(attach, cursor, now);
        self.timers.stop(Timer::Abandon);
    }

    /// A connection left. Nothing happens unless it was the reader.
    pub fn handle_detach(&mut self, attach: AttachId, now: Instant) {
        if self.reader.detach(attach, now) {
            self.restart_abandon();
        }
    }

    /// An id and a `retry` were written downstream.
    pub fn handle_primed(&mut self, retry: Duration) {
        self.reader.prime();
        self.last_retry = retry;
        self.restart_abandon();
    }

    /// Events up to `upto` were written to the reader.
    pub fn handle_written(&mut self, upto: Seq, now: Instant) {
        // Somebody takes something: a replay counts as well.
        self.handle_taking(now);
        self.reader.write(upto);
        if !self.reader.is_attached() {
            self.restart_abandon();
        }
    }

    /// The reader took a part of the event that follows: the stream is read, however slowly.
    pub fn handle_taking(&mut self, now: Instant) {
        if self.timers.is_set(Timer::Full) {
            self.timers.set(Timer::Full, now + self.policy.full_wait);
        }
    }

    /// A client came back for the stream, by GET or by a token; see [`Self::handle_confirmed`].
    pub fn handle_return(&mut self, cursor: Option<Seq>, now: Instant) {
        self.reader.note_return();
        self.handle_confirmed(cursor, now);
    }

    /// The same by the stream's URL.
    pub fn handle_return_by_url(&mut self, cursor: Option<Seq>, now: Instant) {
        self.reader.note_url();
        self.handle_return(cursor, now);
    }

    /// A client asked for what follows `cursor`: whatever precedes it has arrived. Restarts the timers.
    pub fn handle_confirmed(&mut self, cursor: Option<Seq>, now: Instant) {
        if let Some(cursor) = cursor.filter(|cursor| *cursor <= self.tail()) {
            self.reader.confirm(cursor);
        }
        self.handle_touch(now);
    }

    /// Somebody asked for the stream without reading it: restarts the detached timer, and retention of a sealed stream.
    pub fn handle_touch(&mut self, now: Instant) {
        if !self.reader.is_attached() {
            self.reader.touch(now);
            self.restart_abandon();
        }
    }

    /// The response that carried the last event is known to have arrived.
    pub fn handle_delivered(&mut self) {
        self.delivered = true;
    }

    /// The connection that carried the last event ended in peace.
    pub fn handle_parted(&mut self) {
        self.reader.part();
    }

    /// The connection `attach` ends with an interim result, behind the event at `upto`.
    pub fn handle_interim(&mut self, attach: AttachId, upto: Seq) {
        // Where nothing else announces the token, whoever has it has it from an interim result: no later one than the first.
        self.reader.tell(attach, upto, self.announcements.is_none());
    }

    /// What became of that: it has arrived, or its connection ended before anybody knew.
    pub fn handle_interim_settled(&mut self, attach: AttachId, has_arrived: bool) {
        self.reader.settle(attach, has_arrived);
    }

    /// Begins the client's turn if it is due for one that has everything up to `cursor`, which is remembered. False when there is
    /// more for it, or nothing to wait for.
    pub fn handle_turn(&mut self, cursor: Seq, now: Instant) -> bool {
        let is_due = self.turn_at().is_some_and(|at| at <= now);
        let has_all = cursor <= self.tail() && self.is_spent_after(cursor) && self.numbering.is_stored();
        let begins = is_due && has_all;
        if begins {
            self.input_turn.begin(cursor);
        }
        begins
    }

    /// The client cancels one of its requests. False when there is nothing to cancel. From here on the stream's tokens are
    /// refused; the first of the upstream's response, its end, or `cancel_grace` seals it.
    pub fn handle_cancel(&mut self, id: &RequestId, now: Instant) -> bool {
        if self.is_sealed() || self.sealing.is_some() || !self.debts.cancel(id) {
            return false;
        }
        if self.debts.is_settled() {
            self.cancelled = true;
            self.timers.stop(Timer::Call);
            self.timers.set(Timer::CancelGrace, now + self.policy.cancel_grace);
        }
        true
    }

    /// Since when the upstream has waited for the answer to `id`; `None` where it does not.
    pub fn waits_for_answer(&self, id: &RequestId) -> Option<Instant> {
        self.asks.outstanding_since(id).filter(|_| !self.is_sealed())
    }

    /// The client answers a server→client request of this stream.
    pub fn handle_answer(&mut self, id: &RequestId, now: Instant) -> Answer {
        match self.asks.answer(id) {
            Answer::First if self.is_sealed() => Answer::Late,
            Answer::First => {
                self.input_turn.note_activity(now);
                Answer::First
            }
            answer @ (Answer::Again | Answer::Late | Answer::Unknown) => answer,
        }
    }

    /// The response must begin now, whatever the upstream does: an id is about to be written. False when it cannot, because
    /// the upstream's answer passes as it is.
    pub fn handle_commit(&mut self) -> bool {
        self.open(true);
        self.phase != Phase::Passed
    }

    /// The answer could not be given to the upstream after all: the request is outstanding again.
    pub fn handle_answer_lost(&mut self, id: &RequestId) {
        self.asks.unanswer(id);
    }

    /// The stream ends whatever its upstream does, with the error `code` for whatever it owes: its session was deleted, or the
    /// process ends. The server is told to stop what a deleted session still runs.
    pub fn handle_expire(&mut self, code: ErrorCode, now: Instant) {
        if code == ErrorCode::Abandoned {
            self.revoked = true;
            self.announce_cancel();
        }
        self.give_up(Outcome::Expired, Failure::after_send(code), now);
    }

    // ── the log ───────────────────────────────────────────────────────────────────────────────────────────────────────

    /// The store accepted the batch that [`Self::poll_batch`] handed out: its events may be read now.
    pub fn handle_stored(&mut self, now: Instant) {
        self.numbering.note_stored();
        self.finish_seal(now);
    }

    /// The store refused the batch that [`Self::poll_batch`] handed out: another writer has the stream, or it has ended there.
    /// Nothing staged will ever be stored, the errors that are owed included, so nobody may read it: the stream ends where the
    /// store has it.
    pub fn handle_refused(&mut self, now: Instant) {
        self.numbering.note_refused();
        self.announcements = None;
        self.failure = Some(Failure::after_send(ErrorCode::StoreFailed));
        self.begin_seal(Outcome::Failed, now);
        self.finish_seal(now);
    }

    /// The log dropped its events up to `upto`.
    pub fn handle_trimmed(&mut self, upto: Seq) {
        self.numbering.note_trimmed(upto);
        self.asks.handle_trimmed(self.trimmed());
    }

    /// The log is over its bounds (or no longer is) although everything releasable was dropped. A stream that has ended
    /// needs no more room.
    pub fn handle_full(&mut self, full: bool, now: Instant) {
        if self.sealing.is_some() || !self.policy.pauses {
            return;
        }
        if !full {
            self.timers.stop(Timer::Full);
        } else if !self.timers.is_set(Timer::Full) {
            self.timers.set(Timer::Full, now + self.policy.full_wait);
        }
    }

    /// The next batch to store, in order. `None` while one is being stored or nothing is staged.
    pub fn poll_batch(&mut self) -> Option<Batch> {
        self.numbering.take_batch()
    }

    /// The next thing to do.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    // ── decisions ─────────────────────────────────────────────────────────────────────────────────────────────────────

    fn is_logging(&self) -> bool {
        self.phase == Phase::Open && self.sealing.is_none()
    }

    fn open(&mut self, committed: bool) -> bool {
        self.timers.stop(Timer::Commit);
        let opens = self.phase == Phase::Waiting;
        if opens {
            self.phase = Phase::Open;
            self.committed = committed;
            if let Some(announcements) = &mut self.announcements {
                announcements.log_opening(&mut self.numbering);
            }
        }
        opens
    }

    /// The upstream's answer passes as it is.
    fn pass(&mut self) {
        self.phase = Phase::Passed;
        for timer in [Timer::Commit, Timer::Call, Timer::Abandon] {
            self.timers.stop(timer);
        }
    }

    fn note_message(&mut self, message: &Message, seq: Seq, only_asks: bool, now: Instant) {
        match message {
            Message::Request { id, .. } => {
                self.asks.ask(id.clone(), seq, only_asks, now);
                if self.policy.refuses_asks {
                    self.asks.answer(id);
                    self.effects.push_back(Effect::RefuseAsk(id.clone()));
                }
            }
            Message::Response { id: Some(id), is_error } => {
                self.debts.answer(id, seq, *is_error);
            }
            Message::Response { id: None, .. } | Message::Notification { .. } => {}
        }
    }
}
