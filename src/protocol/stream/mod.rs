//! The stream state machine: all decisions about one stream, and no I/O.
//!
//! Owned here: the numbers of events, the owed responses, the current reader, every timer, and the
//! only way to end a stream. Invariants, each a property test in `tests`:
//!
//! 1. Numbers are 1, 2, 3 … without gaps, assigned here alone.
//! 2. An event counts as stored, and may be read, only after [`Lifecycle::handle_stored`].
//! 3. A cursor gets exactly the later events; see [`Machine::locate`].
//! 4. The terminal response is an event like any other and stays until retention ends.
//! 5. At most one connection is attached; the newest wins.
//! 6. A reader that leaves starts a timer and changes nothing else.
//! 7. A request stream is sealed with a response for every id it owed.
//! 8. A server→client request gets one response, and is not replayed after it.
//!
//! The machine is made of parts with state and rules of their own. These are the [`Lifecycle`], the
//! [`ReaderState`], the [`ServerRequests`], the upstream's position, and for few streams a task or
//! a late head. The machine takes the inputs that concern several parts; an input for one part goes
//! to that part.
//!
//! Methods come in three families. `handle_*` takes an input; [`Lifecycle::poll_batch`],
//! [`Lifecycle::poll_effect`] and [`Lifecycle::poll_timeout`] return what the caller has to do;
//! getters change nothing. A caller passes an input to a `handle_*`, drains batches and effects,
//! and sleeps until the timeout. Absent: sockets, tasks, clocks, randomness, and the events' bytes,
//! which the machine numbers and passes on.

mod announcements;
mod cursor_place;
mod ended;
mod event_batch;
mod event_set;
mod input_turn;
mod late_head;
mod lifecycle;
mod numbering;
mod owed_responses;
mod pings;
mod policy;
mod reader_state;
mod repetition;
mod retention;
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

use std::time::{Duration, Instant};

pub use announcements::Announcements;
pub use cursor_place::CursorPlace;
pub use ended::{End, Rest};
pub use event_batch::Batch;
use input_turn::InputTurn;
use late_head::LateFacts;
pub use late_head::LateHead;
pub use lifecycle::Lifecycle;
pub use numbering::Numbering;
pub use owed_responses::{OwedResponse, OwedResponses};
use pings::PING;
pub use policy::{LegacyTask, Policy};
pub use reader_state::{ReaderState, Resume};
pub use server_requests::{ClientResponse, ServerRequests};
pub use snapshot::{Snapshot, SnapshotDigest};
use states::HeadOrigin;
pub use states::{Effect, Outcome, Phase};
pub use task::{TaskCall, TaskChange, TaskStream};
use timers::Timer;
use upstream_resume::Next;
pub use upstream_resume::{Ending, SessionChange, UpstreamCursor};

use crate::error::{ErrorCode, Failure};
use crate::headers::Era;
use crate::ids::{AttachId, Seq, StreamKind};
use crate::jsonrpc::{self, Message, RequestId};
use crate::sse;
use crate::tasks::{self, TaskState};

/// The state machine of one stream.
#[derive(Debug)]
pub struct Machine {
    lifecycle: Lifecycle,
    reader: ReaderState,
    server_requests: ServerRequests,
    upstream: UpstreamCursor,
    input_turn: InputTurn,
    /// A late head of the upstream, or `None` for most streams.
    late_facts: Option<Box<LateFacts>>,
    /// The call of a task, in the process that has it; `None` for every other stream.
    task: Option<Box<TaskCall>>,
}

impl Machine {
    /// Creates a stream at the beginning of its upstream call. It owes a response for each of `ids`
    /// (empty for a standalone stream).
    pub fn new(policy: Policy, ids: Vec<RequestId>, now: Instant) -> Self {
        let mut machine = Self {
            reader: ReaderState::new(policy.retry, now),
            server_requests: ServerRequests::default(),
            upstream: UpstreamCursor::new(now),
            input_turn: InputTurn::new(now),
            late_facts: None,
            task: None,
            lifecycle: Lifecycle::new(policy, ids, now),
        };
        machine.restart_abandon();
        machine
    }

    // ── the parts ────────────────────────────────────────────────────────────────────────────────

    /// Returns the phase of the stream, and the state that its end depends on.
    pub fn lifecycle(&self) -> &Lifecycle {
        &self.lifecycle
    }

    /// Returns the lifecycle, for inputs that concern no other part.
    pub fn lifecycle_mut(&mut self) -> &mut Lifecycle {
        &mut self.lifecycle
    }

    /// Returns the rules of the stream.
    pub fn policy(&self) -> &Policy {
        &self.lifecycle.policy
    }

    /// Returns the numbers of the stream's events.
    pub fn numbering(&self) -> &Numbering {
        &self.lifecycle.numbering
    }

    /// Returns the responses that the stream owes or owed.
    pub fn owed_responses(&self) -> &OwedResponses {
        &self.lifecycle.owed_responses
    }

    /// Returns the server's requests to the client.
    pub fn server_requests(&self) -> &ServerRequests {
        &self.server_requests
    }

    /// Returns the current reader and its progress.
    pub fn reader(&self) -> &ReaderState {
        &self.reader
    }

    /// Returns the reader, for inputs that concern no other part.
    pub fn reader_mut(&mut self) -> &mut ReaderState {
        &mut self.reader
    }

    /// Returns the position in the upstream's response.
    pub fn upstream(&self) -> &UpstreamCursor {
        &self.upstream
    }

    /// Returns the turns of the client.
    pub fn input_turn(&self) -> &InputTurn {
        &self.input_turn
    }

    /// Returns the part for heads of the upstream that come late.
    pub fn late_head(&mut self) -> LateHead<'_> {
        LateHead::new(&mut self.late_facts, &mut self.lifecycle)
    }

    /// Returns the call of the task, or `None` in a process that does not have it.
    pub fn task(&self) -> Option<&TaskCall> {
        self.task.as_deref()
    }

    /// Returns the part for the inputs of a task.
    pub fn task_stream(&mut self) -> TaskStream<'_> {
        TaskStream::new(&mut self.task, &mut self.lifecycle, &mut self.upstream)
    }

    // ── the upstream ─────────────────────────────────────────────────────────────────────────────

    /// The upstream sent the head of an SSE response. Returns true if the client gets that head,
    /// and false if the proxy committed before or the stream has ended.
    pub fn handle_stream_head(&mut self) -> bool {
        self.upstream.handle_opened();
        self.lifecycle.timers.stop(Timer::Reopen);
        self.lifecycle.open(HeadOrigin::Upstream)
    }

    /// The upstream's response is not logged and passes as it is. Returns false if it cannot,
    /// because the proxy committed or the stream has ended.
    pub fn handle_plain_head(&mut self, now: Instant) -> bool {
        let can_pass = self.lifecycle.phase == Phase::Waiting;
        if can_pass {
            self.lifecycle.phase = Phase::Passed;
            // As for a seal, the retention begins with the response if its client left before.
            self.reader.handle_passed(now);
            for timer in [Timer::Commit, Timer::Call, Timer::Abandon] {
                self.lifecycle.timers.stop(timer);
            }
        }
        can_pass
    }

    /// One event of the upstream. Its id and `retry` are consumed; it gets a number if it has data.
    pub fn handle_event(&mut self, event: &sse::Event, now: Instant) {
        self.upstream.handle_event(event);
        if !event.data.is_empty() {
            self.handle_message(&event.name, &event.data, now);
        }
    }

    /// One JSON-RPC message of the upstream: an event's data, or the body of a late or converted
    /// JSON response.
    pub fn handle_message(&mut self, name: &[u8], data: &[u8], now: Instant) {
        if !self.lifecycle.can_append() {
            return;
        }
        self.input_turn.handle_exchange(now);
        if self.lifecycle.policy.has_records() {
            return self.task_stream().handle_message(data, now);
        }
        // Data that does not decode is an opaque event: only framing, size or a missing response
        // fails a call. Of data that decodes, only messages with an id matter here.
        let body = if jsonrpc::may_have_id(data) { jsonrpc::peek_any(data).ok() } else { None };
        if let Some(body) = &body
            && self.lifecycle.policy.should_answer_pings
            && !self.has_reader_for_requests()
            && let Some(pings) = pings::pings_alone(body)
        {
            self.upstream.handle_ping();
            return self.lifecycle.effects.extend(pings.into_iter().cloned().map(Effect::AnswerPing));
        }
        if let Some(respelled) = body.as_ref().and_then(|body| self.lifecycle.respelled(body, data)) {
            self.lifecycle.effects.push_back(Effect::RecordRespelled);
            return self.handle_message(name, &respelled, now);
        }
        let seq = self.lifecycle.numbering.push(name, data);
        let had_owed = !self.lifecycle.owed_responses.is_settled();
        if let Some(body) = body {
            let is_alone = body.messages().iter().all(|message| matches!(message, Message::Request { .. }));
            for message in body.messages() {
                self.handle_logged_message(message, seq, is_alone, now);
            }
        }
        self.lifecycle.handle_answered(had_owed, now);
    }

    /// The upstream's response is no JSON to the proxy, but may be to its client. It becomes an
    /// event as it is, and counts as the response to the only request without one.
    pub fn handle_unreadable_response(&mut self, data: &[u8], now: Instant) {
        if !self.lifecycle.can_append() {
            return;
        }
        self.input_turn.handle_exchange(now);
        let Lifecycle { numbering, owed_responses, .. } = &mut self.lifecycle;
        let seq = numbering.push(b"message", data);
        let had_owed = !owed_responses.is_settled();
        if let Some(only) = owed_responses.only_unanswered().cloned() {
            owed_responses.answer(&only, seq, false);
        }
        self.lifecycle.handle_answered(had_owed, now);
    }

    fn handle_logged_message(&mut self, message: &Message, seq: Seq, is_alone: bool, now: Instant) {
        let Lifecycle { policy, owed_responses, effects, .. } = &mut self.lifecycle;
        match message {
            Message::Request { id, method } => {
                self.server_requests.add(id.clone(), seq, is_alone, now);
                if policy.should_answer_pings && method == PING {
                    self.upstream.handle_ping();
                    self.server_requests.mark_ping(id);
                    self.answer_pings(now);
                } else if policy.should_refuse_requests {
                    self.server_requests.answer(id);
                    effects.push_back(Effect::RefuseServerRequest(id.clone()));
                }
            }
            Message::Response { id: Some(id), .. } if policy.kind == StreamKind::Standalone => {
                effects.push_back(Effect::RecordResponse(id.clone()));
            }
            Message::Response { id: Some(id), is_error } => owed_responses.answer(id, seq, *is_error),
            Message::Response { id: None, .. } | Message::Notification { .. } => {}
        }
    }

    /// The upstream's response ended or broke.
    pub fn handle_upstream_end(&mut self, ending: Ending, now: Instant) {
        let lifecycle = &mut self.lifecycle;
        if lifecycle.ending().is_some() {
            return;
        }
        if lifecycle.owes_nothing() {
            return lifecycle.begin_seal(lifecycle.settled_outcome(), now);
        }
        if self.task.as_ref().is_some_and(|task| task.state().awaits_client()) {
            // The call has ended with requests to the client. A call of its own will follow.
            return;
        }
        match self.upstream.after_end(ending, &lifecycle.policy, now) {
            Next::Reopen(pause) => lifecycle.timers.set(Timer::Reopen, now + pause),
            Next::ReopenAnew(pause) => {
                lifecycle.timers.set(Timer::Reopen, now + pause);
                lifecycle.effects.push_back(Effect::AnnounceGap);
            }
            Next::Fail(failure) => {
                lifecycle.timers.stop(Timer::Reopen);
                self.fail(Outcome::Failed, failure, now);
            }
        }
    }

    /// The session of a standalone stream has changed at the server. Has no effect on a stream of
    /// another kind, or before the head or after the end.
    pub fn handle_session(&mut self, change: SessionChange, now: Instant) {
        if self.policy().kind != StreamKind::Standalone || !self.lifecycle.can_append() {
            return;
        }
        let Lifecycle { timers, effects, .. } = &mut self.lifecycle;
        match change {
            SessionChange::Reopening => {
                self.upstream.begin_anew();
                self.server_requests.settle_all();
                effects.push_back(Effect::Close);
                timers.set(Timer::Reopen, now);
            }
            SessionChange::Lost => {
                effects.push_back(Effect::Close);
                timers.set(Timer::Reopen, now + self.upstream.wait_for_session());
            }
            SessionChange::Revived => effects.push_back(Effect::AnnounceRevival),
        }
    }

    /// The call failed before a head, or in a way that no [`Ending`] describes. Returns true if
    /// nothing was committed, so that the failure can still become an HTTP status.
    pub fn handle_failure(&mut self, failure: Failure, now: Instant) -> bool {
        let passes = self.handle_plain_head(now);
        if passes {
            self.lifecycle.timers.stop(Timer::Reopen);
        } else {
            self.fail(Outcome::Failed, failure, now);
        }
        passes
    }

    // ── the downstream ───────────────────────────────────────────────────────────────────────────

    /// A connection attaches and reads after `cursor`. The connection before it, if any, is no
    /// longer the reader.
    pub fn handle_attach(&mut self, attach: AttachId, cursor: Seq, now: Instant) {
        self.reader.attach(attach, cursor, now);
        self.lifecycle.timers.stop(Timer::Abandon);
        if self.upstream.take_reader_wait() && self.lifecycle.ending().is_none() {
            self.lifecycle.timers.set(Timer::Reopen, now);
        }
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
        self.reader.handle_primed(retry);
        self.restart_abandon();
    }

    /// Events up to `upto` were written to the reader.
    pub fn handle_written(&mut self, upto: Seq, now: Instant) {
        // A replay counts as reading too.
        self.lifecycle.handle_partial_write(now);
        self.reader.handle_written(upto);
        if !self.reader.is_attached() {
            self.restart_abandon();
        }
    }

    /// A client resumes the stream. It has all events up to `cursor`, if it named one. Restarts the
    /// timers.
    pub fn handle_resume(&mut self, resume: Resume, cursor: Option<Seq>, now: Instant) {
        self.reader.handle_resume(resume, cursor.filter(|cursor| *cursor <= self.numbering().tail()));
        self.handle_touch(now);
    }

    /// A client requested the status of the stream without reading it: restarts the timer of a
    /// detached stream, and the retention of a sealed one.
    pub fn handle_touch(&mut self, now: Instant) {
        if let Some(task) = &mut self.task {
            task.set_known();
        }
        if !self.reader.is_attached() {
            self.reader.touch(now);
            self.restart_abandon();
        }
    }

    /// The connection `attach` ends with an interim result, behind the event at `upto`.
    pub fn handle_interim(&mut self, attach: AttachId, upto: Seq) {
        // Without announcements the first interim result is the client's only source of its token.
        self.reader.begin_interim(attach, upto, self.lifecycle.announcements.is_none());
    }

    /// The client responds to a server→client request of this stream.
    pub fn handle_client_response(&mut self, id: &RequestId, now: Instant) -> ClientResponse {
        match self.server_requests.answer(id) {
            ClientResponse::First if self.lifecycle.is_sealed() => ClientResponse::Late,
            ClientResponse::First => {
                self.input_turn.handle_exchange(now);
                ClientResponse::First
            }
            response @ (ClientResponse::Duplicate | ClientResponse::Late | ClientResponse::Unknown) => response,
        }
    }

    /// The client's response could not be passed to the upstream after all: the request is
    /// outstanding again.
    pub fn handle_client_response_lost(&mut self, id: &RequestId, now: Instant) {
        self.server_requests.unsettle(id);
        self.answer_pings(now);
    }

    /// Begins the client's turn, if it is due and the client has every event up to `cursor`, and
    /// remembers `cursor`. Returns false if there are more events for the client, or no
    /// server→client request waits.
    pub fn handle_input_turn(&mut self, cursor: Seq, now: Instant) -> bool {
        let is_due = self.input_turn_at().is_some_and(|at| at <= now);
        let numbering = self.numbering();
        let tail = numbering.tail();
        let has_all = cursor <= tail && self.server_requests.has_spent_all(cursor, tail) && numbering.is_stored();
        let begins = is_due && has_all;
        if begins {
            self.input_turn.begin(cursor);
        }
        begins
    }

    /// Returns the time of the client's turn: server→client requests wait, and the upstream will
    /// have been quiet for `input_grace` by then. Returns `None` while no request waits, for a
    /// stream that is about to end, and in the modern era, whose clients cancel by leaving.
    pub fn input_turn_at(&self) -> Option<Instant> {
        let Lifecycle { policy, timers, .. } = &self.lifecycle;
        let is_ending = timers.is_set(Timer::Linger) || timers.is_set(Timer::CancelGrace);
        let may_wait = self.lifecycle.can_append() && !is_ending && policy.era == Era::Legacy;
        if may_wait && self.server_requests.has_outstanding() {
            Some(self.input_turn.quiet_since() + policy.input_grace)
        } else {
            None
        }
    }

    /// Ends the stream regardless of its upstream, with the error `code` for each owed response:
    /// its session was deleted, or the process ends. The server is informed of the cancelled
    /// requests of a deleted session.
    pub fn handle_expire(&mut self, code: ErrorCode, now: Instant) {
        if code == ErrorCode::Abandoned {
            self.lifecycle.is_revoked = true;
            self.lifecycle.announce_cancel();
        }
        self.fail(Outcome::Expired, Failure::after_send(code), now);
    }

    // ── the task ─────────────────────────────────────────────────────────────────────────────────

    /// Begins the stream of a task in this state. Its request has the ID that the stream owes a
    /// response for.
    pub fn handle_task(&mut self, state: TaskState, now: Instant) {
        self.task_stream().begin(state, now);
        self.restart_abandon();
    }

    /// The client requests or changes the state of the task, by the returned part. Restarts the
    /// timers; see [`Self::handle_touch`].
    pub fn handle_task_request(&mut self, now: Instant) -> TaskStream<'_> {
        self.handle_touch(now);
        self.task_stream()
    }

    /// The call becomes a task, and `handle` is the response that the stream owes. Returns the
    /// place in the upstream's response where the task's stream begins. Returns `None` if the
    /// call cannot become a task now: it has a response or no reader, or has ended.
    pub fn handle_promoted(&mut self, handle: &[u8], now: Instant) -> Option<UpstreamCursor> {
        if !self.lifecycle.has_no_response() || !self.can_hand_over() {
            return None;
        }
        let lifecycle = &mut self.lifecycle;
        let id = lifecycle.owed_responses.due().next().cloned()?;
        lifecycle.open(HeadOrigin::Proxy);
        let seq = lifecycle.numbering.push(b"message", handle);
        lifecycle.owed_responses.answer(&id, seq, false);
        lifecycle.begin_seal(Outcome::Completed, now);
        Some(std::mem::replace(&mut self.upstream, UpstreamCursor::new(now)))
    }

    /// Returns true if a client is attached to get the handle of a task, and the upstream call is
    /// not between two connections.
    fn can_hand_over(&self) -> bool {
        self.reader.is_attached() && !self.lifecycle.timers.is_set(Timer::Reopen)
    }

    // ── the log ──────────────────────────────────────────────────────────────────────────────────

    /// The log dropped its events up to `upto`.
    pub fn handle_trimmed(&mut self, upto: Seq) {
        self.lifecycle.numbering.handle_trimmed(upto);
        self.server_requests.handle_trimmed(self.numbering().trimmed());
    }

    /// Returns the memory of requests to the client beside the events, in bytes.
    pub fn requests_len(&self) -> usize {
        self.server_requests.byte_len() + self.task.as_ref().map_or(0, |task| task.state().record().byte_len())
    }

    /// Returns the time since which the upstream has waited for a response to `id`, or `None` if it
    /// does not wait.
    pub fn awaits_response_since(&self, id: &RequestId) -> Option<Instant> {
        if self.lifecycle.is_sealed() { None } else { self.server_requests.outstanding_since(id) }
    }

    // ── decisions ────────────────────────────────────────────────────────────────────────────────

    /// Ends the stream, and its task, with `failure` as the error for each owed response; see
    /// [`Lifecycle::fail`].
    fn fail(&mut self, outcome: Outcome, failure: Failure, now: Instant) {
        if self.lifecycle.ending().is_none() && !self.lifecycle.owes_nothing() {
            self.task_stream().end(tasks::Outcome::Failed, now);
        }
        let headers = self.late_facts.as_ref().and_then(|facts| facts.refusal());
        self.lifecycle.fail(outcome, failure, headers, now);
    }

    /// Responds to the logged pings that are due.
    fn answer_pings(&mut self, now: Instant) {
        let has_reader = self.has_reader_for_requests();
        self.server_requests.answer_due_pings(&mut self.lifecycle, has_reader, now);
    }

    /// Returns true if a reader is attached that takes requests of the server.
    fn has_reader_for_requests(&self) -> bool {
        self.reader.is_attached() && !self.lifecycle.policy.should_refuse_requests
    }
}
