//! The slow, obvious model: one list of events with flags, and every rule spelled out at its place.

mod downstream;
mod ending;
mod upstream;

use super::steps::Setup;
use super::subject::{Input, Owed, Reading, Replay, Reply, Stage, TakenBatch, View};
use crate::error::{ErrorCode, Failure};
use crate::jsonrpc::RequestId;
use crate::stream::{Effect, Outcome};

const TAKEOVER_WINDOW: u64 = 10_000;
const TAKEOVER_RETRY_MAX: u64 = 60_000;
const UPSTREAM_RETRY: u64 = 1000;
const BACKOFF_MAX: u64 = 30_000;
const STANDALONE_PAUSE_MIN: u64 = 500;
const AT_ONCE: u64 = 5000;
const AT_ONCE_BACKOFF_MAX: u64 = 60_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Staged,
    WithStore,
    Stored,
}

#[derive(Clone, Debug)]
struct Event {
    bytes: Vec<u8>,
    place: Place,
    gone: bool,
    /// The server→client requests in it, each with true if it was settled.
    requests: Vec<(u8, bool)>,
    /// True if it holds server→client requests alone.
    is_requests_only: bool,
    is_response: bool,
}

/// The upstream call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Call {
    Sending,
    Reading,
    PausingUntil(u64),
    SendingAgain,
    Over,
}

pub(super) struct Model {
    setup: Setup,
    ids: Vec<RequestId>,
    events: Vec<Event>,
    pub(super) head: Option<Head>,
    answered: Vec<Option<u64>>,
    cancelled: Vec<bool>,
    errors: bool,
    refused: bool,
    delivered: bool,
    pub(super) call: Call,
    upstream_id: Option<String>,
    upstream_id_is_new: bool,
    upstream_id_was_named: bool,
    upstream_retry: u64,
    attempts: u32,
    requested_at: u64,
    has_event: bool,
    has_had_event: bool,
    barren: u32,
    waits_for_reader: bool,
    ending: Option<Outcome>,
    failed: bool,
    sealed_at: Option<u64>,
    attached: Option<u64>,
    since: u64,
    primed: bool,
    sent_retry: u64,
    returned: bool,
    position: u64,
    written: u64,
    confirmed: u64,
    takeovers: Vec<u64>,
    linger_until: Option<u64>,
    cancel_until: Option<u64>,
    full_since: Option<u64>,
    quiet_since: u64,
    last_turn: Option<u64>,
    pub(super) effects: Vec<Effect>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Head {
    Theirs,
    Ours,
    Passed,
}

impl Model {
    pub(super) fn new(setup: &Setup) -> Self {
        let ids = setup.request_ids();
        Self {
            events: vec![],
            head: None,
            answered: vec![None; ids.len()],
            cancelled: vec![false; ids.len()],
            errors: false,
            refused: false,
            delivered: false,
            call: Call::Sending,
            upstream_id: None,
            upstream_id_is_new: false,
            upstream_id_was_named: false,
            upstream_retry: UPSTREAM_RETRY,
            attempts: 0,
            requested_at: 0,
            has_event: false,
            has_had_event: false,
            barren: 0,
            waits_for_reader: false,
            ending: None,
            failed: false,
            sealed_at: None,
            attached: None,
            since: 0,
            primed: false,
            sent_retry: setup.retry,
            returned: false,
            position: 0,
            written: 0,
            confirmed: 0,
            takeovers: vec![],
            linger_until: None,
            cancel_until: None,
            full_since: None,
            quiet_since: 0,
            last_turn: None,
            effects: vec![],
            ids,
            setup: setup.clone(),
        }
    }

    pub(super) fn handle(&mut self, input: &Input, at: u64) -> Reply {
        match input {
            Input::StreamHead => return Reply::Bool(self.stream_head()),
            Input::PlainHead => return Reply::Bool(self.pass_head(at)),
            Input::Commit => {
                self.take_head(Head::Ours);
                return Reply::Bool(self.head != Some(Head::Passed) || self.sealed_at.is_some());
            }
            Input::Fail(failure) => return Reply::Bool(self.fail_call(*failure, at)),
            Input::Cancel(id) => return Reply::Bool(self.cancel(id, at)),
            Input::ClientResponse(id) => return Reply::ClientResponse(self.answer(id, at)),
            Input::Turn(cursor) => return Reply::Bool(self.begin_turn(*cursor, at)),
            Input::Event { data, messages, id, retry } => {
                self.note_upstream(id.as_deref(), *retry);
                if !data.is_empty() {
                    self.log(data, messages, at);
                }
            }
            Input::Message { data, messages } => self.log(data, messages, at),
            Input::End(ending) => self.upstream_end(*ending, at),
            Input::Attach(attach, cursor) => self.attach(*attach, *cursor, at),
            Input::Detach(attach) if self.attached == Some(*attach) => {
                self.attached = None;
                self.since = at;
            }
            Input::Detach(_) => {}
            Input::Primed(retry) => {
                self.primed = true;
                self.sent_retry = *retry;
            }
            Input::Written(upto) => self.note_written(*upto, at),
            Input::Reconnect(cursor) => {
                self.returned = true;
                self.confirmed = self.confirmed.max(cursor.filter(|cursor| *cursor <= self.tail()).unwrap_or(0));
                self.touch(at);
            }
            Input::Touch => self.touch(at),
            Input::ClientResponseLost(id) => self.answer_lost(id),
            Input::Expire => {
                if self.ending.is_none() {
                    self.announce_cancel();
                }
                self.fail(Outcome::Expired, Failure::after_send(ErrorCode::Abandoned), at);
            }
            Input::Delivered => self.delivered = true,
            Input::Full(full) if self.ending.is_none() => {
                self.full_since = if *full { self.full_since.or(Some(at)) } else { None };
            }
            Input::Full(_) => {}
            Input::Timeout => self.timeout(at),
        }
        Reply::Nothing
    }

    pub(super) fn take_batch(&mut self) -> Option<TakenBatch> {
        let first = self.events.iter().position(|event| event.place == Place::Staged)?;
        if self.events.iter().any(|event| event.place == Place::WithStore) {
            return None;
        }
        let staged = &mut self.events[first..];
        staged.iter_mut().for_each(|event| event.place = Place::WithStore);
        Some(TakenBatch { first: first as u64 + 1, events: staged.iter().map(|event| event.bytes.clone()).collect() })
    }

    pub(super) fn accept(&mut self, at: u64) {
        let accepted = self.events.iter_mut().filter(|event| event.place == Place::WithStore);
        accepted.for_each(|event| event.place = Place::Stored);
        self.seal_if_stored(at);
    }

    pub(super) fn trim(&mut self, upto: u64) {
        self.events.iter_mut().take(upto as usize).for_each(|event| event.gone = true);
    }

    pub(super) fn tail(&self) -> u64 {
        self.events.iter().filter(|event| event.place == Place::Stored).count() as u64
    }

    pub(super) fn trimmed(&self) -> u64 {
        self.events.iter().filter(|event| event.gone).count() as u64
    }

    pub(super) fn releasable(&self) -> u64 {
        if !self.setup.can_pause {
            return self.tail();
        }
        if self.attached.is_some() { self.position } else { self.written.max(self.confirmed) }
    }

    pub(super) fn replay(&self, cursor: u64) -> Replay {
        // A response that passed is no stream, and has no places.
        if (self.head == Some(Head::Passed) && self.sealed_at.is_none())
            || cursor > self.tail()
            || cursor < self.trimmed()
        {
            return Replay::Lost;
        }
        let later = (1..).zip(&self.events).filter(|(seq, event)| *seq > cursor && event.place == Place::Stored);
        let due = later.filter(|(_, event)| !event.is_spent());
        let due: Vec<_> = due.map(|(seq, event)| (seq, event.bytes.clone())).collect();
        if self.sealed_at.is_some() && due.is_empty() { Replay::End } else { Replay::Events(due) }
    }

    pub(super) fn read(&mut self, attach: u64, cursor: u64, limit: usize, at: u64) -> Reading {
        if self.attached != Some(attach) {
            return Reading::TakenOver(self.takeover_retry());
        }
        match self.replay(cursor) {
            Replay::Lost => Reading::Lost,
            Replay::End => Reading::End,
            Replay::Events(events) => {
                let taken: Vec<_> = events.iter().take(limit).cloned().collect();
                let last =
                    if taken.len() < events.len() { taken.last().map_or(cursor, |(seq, _)| *seq) } else { self.tail() };
                if last > cursor {
                    self.note_written(last, at);
                }
                Reading::Events(taken, last)
            }
        }
    }

    /// Returns whether the event at `seq` is spent, and whether it holds a response.
    pub(super) fn kind_of(&self, seq: u64) -> Option<(bool, bool)> {
        self.events.get(seq as usize - 1).map(|event| (event.is_spent(), event.is_response))
    }

    pub(super) fn view(&self) -> View {
        let owed = (0..self.ids.len()).map(|which| match self.answered[which] {
            Some(seq) => Owed::Answered(seq),
            None if self.cancelled[which] => Owed::Cancelled,
            None => Owed::Due,
        });
        let over_since = match (self.sealed_at, self.head) {
            (Some(at), _) => Some(at.max(self.since)),
            (None, Some(Head::Passed)) => Some(self.since),
            (None, Some(Head::Theirs | Head::Ours) | None) => None,
        };
        View {
            stage: match (self.sealed_at, self.ending, self.head) {
                (Some(at), Some(outcome), _) => Stage::Sealed(outcome, at),
                (_, _, None) => Stage::Waiting,
                (_, _, Some(Head::Passed)) => Stage::Passed,
                (_, _, Some(Head::Theirs | Head::Ours)) => Stage::Open,
            },
            committed: self.head == Some(Head::Ours),
            failed: self.failed,
            tail: self.tail(),
            trimmed: self.trimmed(),
            owed: owed.collect(),
            has_error: self.errors,
            answered: self.is_settled() && self.answered.iter().flatten().all(|seq| *seq <= self.tail()),
            has_open_requests: self.has_open_requests(),
            refused: self.refused,
            delivered: self.delivered,
            attached: self.attached.is_some(),
            returned: self.returned,
            releasable: self.releasable(),
            paused: self.setup.can_pause && self.full_since.is_some(),
            deadline: self.deadline(),
            turn_at: self.input_turn_at(),
            last_turn: self.last_turn,
            readable_until: if self.attached.is_none() {
                over_since.map(|over| over + self.setup.retention)
            } else {
                None
            },
        }
    }
}

impl Event {
    /// Returns true if it holds server→client requests alone, all settled: no replay repeats it.
    fn is_spent(&self) -> bool {
        self.is_requests_only && !self.requests.is_empty() && self.requests.iter().all(|(_, answered)| *answered)
    }
}
