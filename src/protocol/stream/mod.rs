//! The stream state machine: all decisions about one stream, and no I/O.
//!
//! Owned here: the numbers of events, the owed responses, the current reader, every timer, and the
//! one way in which a stream ends. Invariants, each a property test in `tests`:
//!
//! 1. Numbers are 1, 2, 3 … without gaps, assigned here alone.
//! 2. An event counts as stored, and may be read, only after [`Machine::handle_stored`].
//! 3. A cursor gets exactly the later events; see [`Machine::locate`].
//! 4. The terminal response is an event like any other and stays until retention ends.
//! 5. At most one connection is attached; the newest wins.
//! 6. A reader that leaves starts a timer and changes nothing else.
//! 7. A request stream is sealed with a response for every id it owed.
//! 8. A server→client request is answered once, and not replayed after.
//!
//! Methods come in three families. `handle_*` takes an input; [`Machine::poll_batch`],
//! [`Machine::poll_effect`] and [`Machine::poll_timeout`] return what the caller has to do; getters
//! change nothing. A caller passes an input to a `handle_*`, drains batches and effects, and sleeps
//! until the timeout. Absent: sockets, tasks, clocks, randomness, and the events' bytes, which the
//! machine numbers and passes on.

mod announcements;
mod cursor_place;
mod ended;
mod event_batch;
mod event_set;
mod getters;
mod input_turn;
mod late_head;
mod numbering;
mod owed_responses;
mod pings;
mod policy;
mod reader_state;
mod repetition;
mod retention;
mod seal;
mod server_requests;
mod snapshot;
mod states;
mod status;
mod task;
#[cfg(test)]
mod tests;
mod timeouts;
mod timers;
mod upstream_resume;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use announcements::AnnouncementState;
pub use announcements::Announcements;
pub use cursor_place::CursorPlace;
pub use ended::{End, Rest};
pub use event_batch::Batch;
use input_turn::InputTurn;
use late_head::LateHead;
use numbering::Numbering;
pub use owed_responses::{OwedResponse, OwedResponses};
use pings::PING;
pub use policy::{LegacyTask, Policy};
pub use reader_state::ReaderState;
pub use server_requests::{ClientResponse, ServerRequests};
pub use snapshot::{Snapshot, SnapshotDigest};
use states::HeadOrigin;
pub use states::{Effect, Outcome, Phase};
use task::TaskCall;
pub use task::TaskChange;
use timers::{Timer, TimerTable};
use upstream_resume::Next;
pub use upstream_resume::{Ending, UpstreamCursor};

use crate::error::{ErrorCode, Failure};
use crate::ids::{AttachId, Seq, StreamKind};
use crate::jsonrpc::{self, Message, RequestId};
use crate::sse;

/// Pause between two attempts to open a standalone stream whose session the upstream does not know.
const DORMANT_RETRY: Duration = Duration::from_secs(60);

/// The state machine of one stream.
#[derive(Debug)]
pub struct Machine {
    policy: Box<Policy>,
    phase: Phase,
    head_origin: HeadOrigin,
    owed_responses: OwedResponses,
    server_requests: ServerRequests,
    reader: ReaderState,
    upstream: UpstreamCursor,
    numbering: Numbering,
    /// The outcome of a stream that ends once its last event is stored, or `None` if more events
    /// may come.
    sealing: Option<Outcome>,
    /// The failure with which the proxy ended the stream, or `None` if it did not.
    failure: Option<Failure>,
    /// The `retry` that was last sent downstream.
    last_retry: Duration,
    timers: TimerTable,
    /// True if the client has cancelled the stream.
    is_cancelled: bool,
    /// True if the upstream no longer knows the stream's session, which a later request may open
    /// again.
    is_dormant: bool,
    /// True if tokens no longer open the stream for any other reason.
    is_revoked: bool,
    input_turn: InputTurn,
    /// The proxy's own messages around those of the upstream, or `None` for most streams.
    announcements: Option<Box<AnnouncementState>>,
    /// A late head of the upstream, or `None` for most streams.
    late_head: Option<Box<LateHead>>,
    /// The call of a task, in the process that has it; `None` for every other stream.
    task: Option<Box<TaskCall>>,
    effects: VecDeque<Effect>,
}

impl Machine {
    /// Creates a stream whose upstream call has just begun, and that owes a response for each of
    /// `ids` (none for a standalone stream).
    pub fn new(policy: Policy, ids: Vec<RequestId>, now: Instant) -> Self {
        let mut machine = Self {
            phase: Phase::Waiting,
            head_origin: HeadOrigin::Upstream,
            owed_responses: OwedResponses::new(ids),
            server_requests: ServerRequests::default(),
            reader: ReaderState::new(now),
            upstream: UpstreamCursor::new(now),
            numbering: Numbering::new(),
            sealing: None,
            failure: None,
            last_retry: policy.retry,
            timers: TimerTable::default(),
            is_cancelled: false,
            is_dormant: false,
            is_revoked: false,
            input_turn: InputTurn::new(now),
            announcements: None,
            late_head: None,
            task: None,
            effects: VecDeque::new(),
            policy: Box::new(policy),
        };
        machine.start_timers(now);
        machine
    }

    /// Adds announcements to the stream. Must precede its head.
    pub fn handle_announcements(&mut self, announcements: Announcements) {
        self.announcements = Some(Box::new(AnnouncementState::new(announcements)));
    }

    // ── the upstream ─────────────────────────────────────────────────────────────────────────────

    /// The upstream sent the head of an SSE response. Returns true if the client gets that head,
    /// and false if the proxy committed before or the stream has ended.
    pub fn handle_stream_head(&mut self) -> bool {
        self.is_dormant = false;
        self.upstream.note_opened();
        self.timers.stop(Timer::Reopen);
        self.open(HeadOrigin::Upstream)
    }

    /// The upstream's response is not logged and passes as it is. Returns false if it cannot,
    /// because the proxy committed or the stream has ended.
    pub fn handle_plain_head(&mut self, now: Instant) -> bool {
        let can_pass = self.phase == Phase::Waiting;
        if can_pass {
            self.pass_through(now);
        }
        can_pass
    }

    /// One event of the upstream. Its id and `retry` are consumed; it gets a number if it has data.
    pub fn handle_event(&mut self, event: &sse::Event, now: Instant) {
        self.upstream.note_event(event);
        if !event.data.is_empty() {
            self.handle_message(&event.name, &event.data, now);
        }
    }

    /// Reserves memory for `events` events that are about to come, with `bytes` bytes of data
    /// together.
    pub fn reserve(&mut self, events: usize, bytes: usize) {
        if self.can_append() {
            self.numbering.reserve(events, bytes);
        }
    }

    /// One JSON-RPC message of the upstream: an event's data, or the body of a late or converted
    /// JSON response.
    pub fn handle_message(&mut self, name: &[u8], data: &[u8], now: Instant) {
        if !self.can_append() {
            return;
        }
        self.input_turn.note_activity(now);
        if self.policy.has_records() {
            return self.handle_message_of_task(data, now);
        }
        // Data that does not decode is an opaque event: only framing, size or a missing response
        // fails a call. Of data that decodes, only messages with an id matter here.
        let body = if jsonrpc::may_have_id(data) { jsonrpc::peek(data).ok() } else { None };
        if let Some(body) = &body
            && self.answer_unlogged(body)
        {
            return;
        }
        let seq = self.numbering.push(name, data);
        let had_owed = !self.owed_responses.is_settled();
        if let Some(body) = body {
            let is_alone = body.messages().iter().all(|message| matches!(message, Message::Request { .. }));
            for message in body.messages() {
                self.note_message(message, seq, is_alone, now);
            }
        }
        // While a cancelled request may still be answered, only the response that settles the last
        // owed one ends the stream this early.
        let is_last_owed = had_owed && self.owed_responses.is_settled();
        if is_last_owed {
            self.timers.stop(Timer::Call);
        }
        let is_complete = self.policy.kind == StreamKind::Request && self.owed_responses.is_answered();
        if (is_last_owed || is_complete) && !self.timers.is_set(Timer::Linger) {
            self.timers.set(Timer::Linger, now + self.policy.linger);
        }
    }

    /// The server is gone: each response that it still owed is an error, with this failure.
    pub fn handle_server_lost(&mut self, failure: Failure) {
        if !self.owes_nothing() && self.sealing.is_none() && !self.is_sealed() {
            self.failure = Some(failure);
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
        if self.policy.is_task && self.awaits_client() {
            // The call has ended with questions, and goes on with a call of its own.
            return;
        }
        match self.upstream.after_end(ending, &self.policy, now) {
            Next::Reopen(pause) => self.timers.set(Timer::Reopen, now + pause),
            Next::ReopenAnew(pause) => {
                self.timers.set(Timer::Reopen, now + pause);
                self.effects.push_back(Effect::AnnounceGap);
            }
            Next::Wait => self.wait_for_session(now),
            Next::Fail(failure) => {
                self.timers.stop(Timer::Reopen);
                self.fail(Outcome::Failed, failure, now);
            }
        }
    }

    /// The session of a standalone stream is being opened again: the stream is opened anew under
    /// its new name, at once.
    pub fn handle_session_reopened(&mut self, now: Instant) {
        if self.policy.kind == StreamKind::Standalone && self.phase == Phase::Open && self.sealing.is_none() {
            self.is_dormant = false;
            self.upstream.begin_anew();
            self.server_requests.answer_all();
            self.effects.push_back(Effect::Close);
            self.timers.set(Timer::Reopen, now);
        }
    }

    /// The session of a standalone stream is gone at the server after all, or its handshake has
    /// failed.
    pub fn handle_session_lost(&mut self, now: Instant) {
        if self.policy.kind == StreamKind::Standalone && self.phase == Phase::Open && self.sealing.is_none() {
            self.effects.push_back(Effect::Close);
            self.wait_for_session(now);
        }
    }

    /// Waits until the session is opened again. A refusal may have been a moment's, so the stream
    /// is tried again at times.
    fn wait_for_session(&mut self, now: Instant) {
        self.is_dormant = true;
        self.timers.set(Timer::Reopen, now + DORMANT_RETRY);
    }

    /// The session of a standalone stream was opened again: the client is told that all that the
    /// server kept for the session is gone.
    pub fn handle_session_revived(&mut self) {
        if self.policy.kind == StreamKind::Standalone && self.phase == Phase::Open && self.sealing.is_none() {
            self.effects.push_back(Effect::AnnounceRevival);
        }
    }

    /// The call failed before a head, or in a way that no [`Ending`] describes. Returns true if
    /// nothing was committed, so that the failure can still become an HTTP status.
    pub fn handle_failure(&mut self, failure: Failure, now: Instant) -> bool {
        if self.phase == Phase::Waiting {
            self.pass_through(now);
            self.timers.stop(Timer::Reopen);
            return true;
        }
        self.fail(Outcome::Failed, failure, now);
        false
    }

    // ── the downstream ───────────────────────────────────────────────────────────────────────────

    /// A connection attaches and reads after `cursor`. The connection before it, if any, is no
    /// longer the reader.
    pub fn handle_attach(&mut self, attach: AttachId, cursor: Seq, now: Instant) {
        self.reader.attach(attach, cursor, now);
        self.timers.stop(Timer::Abandon);
    }

    /// A connection left. Nothing happens unless it was the reader.
    pub fn handle_detach(&mut self, attach: AttachId, now: Instant) {
        if self.reader.detach(attach, now) {
            self.restart_abandon();
            self.answer_pings(now);
        }
    }

    /// An id and a `retry` were written downstream.
    pub fn handle_primed(&mut self, retry: Duration) {
        self.reader.note_primed();
        self.last_retry = retry;
        self.restart_abandon();
    }

    /// Events up to `upto` were written to the reader.
    pub fn handle_written(&mut self, upto: Seq, now: Instant) {
        // A replay counts as reading too.
        self.handle_partial_write(now);
        self.reader.note_written(upto);
        if !self.reader.is_attached() {
            self.restart_abandon();
        }
    }

    /// The reader took a part of the next event: the stream is being read, however slowly.
    pub fn handle_partial_write(&mut self, now: Instant) {
        if self.timers.is_set(Timer::Full) {
            self.timers.set(Timer::Full, now + self.policy.full_wait);
        }
    }

    /// A client resumes the stream, by GET or by a token; see [`Self::handle_confirmed`].
    pub fn handle_reconnect(&mut self, cursor: Option<Seq>, now: Instant) {
        self.reader.note_reconnect();
        self.handle_confirmed(cursor, now);
    }

    /// A client resumes the stream by the stream's URL; see [`Self::handle_confirmed`].
    pub fn handle_reconnect_by_url(&mut self, cursor: Option<Seq>, now: Instant) {
        self.reader.note_url();
        self.handle_reconnect(cursor, now);
    }

    /// A client requested the events after `cursor`, so all events up to it have arrived. Restarts
    /// the timers.
    pub fn handle_confirmed(&mut self, cursor: Option<Seq>, now: Instant) {
        if let Some(cursor) = cursor
            && cursor <= self.tail()
        {
            self.reader.note_confirmed(cursor);
        }
        self.handle_touch(now);
    }

    /// A client requested the status of the stream without reading it: restarts the timer of a
    /// detached stream, and the retention of a sealed one.
    pub fn handle_touch(&mut self, now: Instant) {
        self.note_task_known();
        if !self.reader.is_attached() {
            self.reader.touch(now);
            self.restart_abandon();
        }
    }

    /// The response that carried the last event is known to have arrived.
    pub fn handle_delivered(&mut self) {
        self.reader.note_delivered();
    }

    /// The connection that carried the last event closed gracefully.
    pub fn handle_graceful_close(&mut self) {
        self.reader.note_graceful_close();
    }

    /// The connection `attach` was given the last event. `may_break`: [`Self::handle_broken`] will
    /// tell if it breaks.
    pub fn handle_whole(&mut self, attach: AttachId, may_break: bool) {
        self.reader.note_whole(attach, may_break);
    }

    /// The connection `attach`, which carried the last event, broke.
    pub fn handle_broken(&mut self, attach: AttachId, now: Instant) {
        self.reader.note_broken(attach, now);
    }

    /// The connection `attach` ends with an interim result, behind the event at `upto`.
    pub fn handle_interim(&mut self, attach: AttachId, upto: Seq) {
        // Without announcements a client has its token from an interim result, and not from one
        // before the first.
        self.reader.begin_interim(attach, upto, self.announcements.is_none());
    }

    /// The interim result of `attach` has arrived, or its connection ended before that was known.
    pub fn handle_interim_settled(&mut self, attach: AttachId, has_arrived: bool) {
        self.reader.ack_interim(attach, has_arrived);
    }

    /// The client cancels one of its requests. Returns false if there is nothing to cancel. From
    /// here on the stream's tokens are refused; the first of the upstream's response, its end, or
    /// `cancel_grace` seals it.
    pub fn handle_cancel(&mut self, id: &RequestId, now: Instant) -> bool {
        if self.is_sealed() || self.sealing.is_some() || !self.owed_responses.cancel(id) {
            return false;
        }
        if self.owed_responses.is_settled() {
            self.is_cancelled = true;
            self.timers.stop(Timer::Call);
            self.timers.set(Timer::CancelGrace, now + self.policy.cancel_grace);
        }
        true
    }

    /// The client responds to a server→client request of this stream.
    pub fn handle_client_response(&mut self, id: &RequestId, now: Instant) -> ClientResponse {
        match self.server_requests.answer(id) {
            ClientResponse::First if self.is_sealed() => ClientResponse::Late,
            ClientResponse::First => {
                self.input_turn.note_activity(now);
                ClientResponse::First
            }
            response @ (ClientResponse::Duplicate | ClientResponse::Late | ClientResponse::Unknown) => response,
        }
    }

    /// The client's response could not be passed to the upstream after all: the request is
    /// outstanding again.
    pub fn handle_client_response_lost(&mut self, id: &RequestId, now: Instant) {
        self.server_requests.unanswer(id);
        self.answer_pings(now);
    }

    /// The response must begin now, with or without a head of the upstream: an id is about to be
    /// written. Returns false if it cannot, because the upstream's response passes as it is.
    pub fn handle_commit(&mut self) -> bool {
        self.open(HeadOrigin::Proxy);
        self.phase != Phase::Passed
    }

    /// The proxy may not begin the response by itself: the client waits for the upstream's head.
    pub fn handle_commit_forbidden(&mut self) {
        self.timers.stop(Timer::Commit);
    }

    /// Ends the stream regardless of its upstream, with the error `code` for each owed response:
    /// its session was deleted, or the process ends. The server is told to stop the requests of a
    /// deleted session.
    pub fn handle_expire(&mut self, code: ErrorCode, now: Instant) {
        if code == ErrorCode::Abandoned {
            self.is_revoked = true;
            self.announce_cancel();
        }
        self.fail(Outcome::Expired, Failure::after_send(code), now);
    }

    // ── the log ──────────────────────────────────────────────────────────────────────────────────

    /// The store accepted the batch that [`Self::poll_batch`] returned: its events may be read now.
    pub fn handle_stored(&mut self, now: Instant) {
        self.numbering.note_stored();
        self.finish_seal(now);
    }

    /// The store refused the batch that [`Self::poll_batch`] returned: another writer has the
    /// stream, or it has ended there. No staged event will ever be stored, owed errors included, so
    /// none may be read: the stream ends with the last stored event.
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
        self.server_requests.handle_trimmed(self.trimmed());
    }

    /// The log is over its limits although every releasable event was dropped, or it no longer is.
    /// A stream that has ended needs no more memory.
    pub fn handle_full(&mut self, full: bool, now: Instant) {
        if self.sealing.is_some() || !self.policy.can_pause {
            return;
        }
        if !full {
            self.timers.stop(Timer::Full);
        } else if !self.timers.is_set(Timer::Full) {
            self.timers.set(Timer::Full, now + self.policy.full_wait);
        }
    }

    /// Returns the next batch to store, in order, or `None` while one is being stored or nothing is
    /// staged.
    pub fn poll_batch(&mut self) -> Option<Batch> {
        self.numbering.take_batch()
    }

    /// Returns the next effect for the caller to carry out.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    // ── decisions ────────────────────────────────────────────────────────────────────────────────

    /// Returns whether the stream takes further events: its head has come, and its end is not
    /// decided.
    pub fn can_append(&self) -> bool {
        self.phase == Phase::Open && self.sealing.is_none()
    }

    /// Opens a stream that waits for a head. Returns false if it does not wait.
    fn open(&mut self, head_origin: HeadOrigin) -> bool {
        self.timers.stop(Timer::Commit);
        let is_first_head = self.phase == Phase::Waiting;
        if is_first_head {
            self.phase = Phase::Open;
            self.head_origin = head_origin;
            if let Some(announcements) = &mut self.announcements {
                announcements.log_opening(&mut self.numbering);
            }
        }
        is_first_head
    }

    fn pass_through(&mut self, now: Instant) {
        self.phase = Phase::Passed;
        // As for a seal, the retention begins with the response if its client left before.
        self.reader.note_passed(now);
        for timer in [Timer::Commit, Timer::Call, Timer::Abandon] {
            self.timers.stop(timer);
        }
    }

    fn note_message(&mut self, message: &Message, seq: Seq, is_alone: bool, now: Instant) {
        match message {
            Message::Request { id, method } => {
                self.server_requests.add(id.clone(), seq, is_alone, now);
                if self.policy.should_answer_pings && method == PING {
                    self.upstream.note_ping();
                    self.server_requests.mark_ping(id);
                    self.answer_pings(now);
                } else if self.policy.should_refuse_requests {
                    self.server_requests.answer(id);
                    self.effects.push_back(Effect::RefuseServerRequest(id.clone()));
                }
            }
            Message::Response { id: Some(id), .. } if self.policy.kind == StreamKind::Standalone => {
                self.effects.push_back(Effect::NoteResponse(id.clone()));
            }
            Message::Response { id: Some(id), is_error } => {
                self.owed_responses.answer(id, seq, *is_error);
            }
            Message::Response { id: None, .. } | Message::Notification { .. } => {}
        }
    }
}
