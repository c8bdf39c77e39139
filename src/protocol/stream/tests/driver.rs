//! The driver takes the model and a subject through the same steps, and compares them after each.

use std::fmt;

use proptest::prelude::*;

use super::model::{Call, Head, Model};
use super::steps::{MessageKind, Payload, Setup, Step, failure, request_id, setup, steps};
use super::subject::{Input, Reading, Real, Replay, Reply, Stage, Subject, View};
use crate::ids::StreamKind;
use crate::jsonrpc::RequestId;

/// A promise that was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Promise {
    /// One of the eight documented invariants.
    Invariant(u8),
    /// The time of an action.
    Timers,
    /// Other return values.
    Replies,
}

/// A broken promise, and the observation.
pub(super) struct Violation {
    pub(super) promise: Promise,
    what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} broken: {}", self.promise, self.what)
    }
}

type Checked = Result<(), Violation>;

fn require<T: PartialEq + fmt::Debug>(promise: Promise, what: &str, wanted: T, got: T) -> Checked {
    if wanted == got {
        return Ok(());
    }
    Err(Violation { promise, what: format!("{what}: wanted {wanted:?}, got {got:?}") })
}

/// Runs one case.
pub(super) fn check<S: Subject>(setup: &Setup, steps: &[Step]) -> Checked {
    let mut driver = Driver::<S>::new(setup);
    driver.compare(false)?;
    for step in steps {
        driver.take(step)?;
    }
    driver.finish()
}

/// A connection and its cursor.
#[derive(Clone, Copy)]
struct Connection {
    attach: u64,
    cursor: u64,
}

struct Driver<S> {
    model: Model,
    subject: S,
    ids: Vec<RequestId>,
    kind: StreamKind,
    now: u64,
    serial: u64,
    connection: Option<Connection>,
    old: Vec<Connection>,
    attaches: u64,
    /// Number of events that the store has accepted.
    accepted: u64,
}

impl<S: Subject> Driver<S> {
    fn new(setup: &Setup) -> Self {
        Self {
            model: Model::new(setup),
            subject: S::begin(setup),
            ids: setup.request_ids(),
            kind: setup.kind,
            now: 0,
            serial: 0,
            connection: None,
            old: vec![],
            attaches: 0,
            accepted: 0,
        }
    }

    fn take(&mut self, step: &Step) -> Checked {
        let leaves = matches!(step, Step::Detach | Step::DetachOld);
        match *step {
            Step::Pass(millis) => return self.pass(millis),
            Step::TakeBatch => self.take_batch()?,
            Step::Accept => self.accept(),
            Step::Turn(millis) => {
                self.take_batch()?;
                self.accept();
                self.pass(millis)?;
                let Some(input) = self.input(step) else { return Ok(()) };
                self.handle(&input)?;
            }
            Step::Attach(share) => self.attach(share)?,
            Step::Read(limit) => self.read(limit)?,
            Step::ReadOld => self.read_old()?,
            Step::Trim(share) => {
                let upto = self.model.releasable() * u64::from(share) / 255;
                self.model.trim(upto);
                self.subject.trim(upto);
            }
            _ => match self.input(step) {
                Some(input) => self.handle(&input)?,
                None => return Ok(()),
            },
        }
        self.compare(leaves)
    }

    /// Returns the input of a step, or `None` if a caller would not take it now.
    fn input(&mut self, step: &Step) -> Option<Input> {
        let (call, passed) = (self.model.call, self.model.head == Some(Head::Passed));
        let speaks = call == Call::Reading || (call == Call::Over && !passed) || self.model.head == Some(Head::Ours);
        Some(match step {
            Step::StreamHead if matches!(call, Call::Sending | Call::SendingAgain) && !passed => Input::StreamHead,
            Step::Commit => Input::Commit,
            Step::PlainHead if call == Call::Sending && !passed => Input::PlainHead,
            Step::Event { payload, id, retry } if speaks => {
                let (data, messages) = self.payload(payload);
                Input::Event { data, messages, id: id.map(|id| format!("theirs-{id}")), retry: *retry }
            }
            Step::Message(payload) if speaks && !matches!(payload, Payload::Empty) => {
                let (data, messages) = self.payload(payload);
                Input::Message { data, messages }
            }
            Step::End(ending) if matches!(call, Call::Reading | Call::SendingAgain) => Input::End(*ending),
            Step::Fail if matches!(call, Call::Sending | Call::Reading) && !passed => Input::Fail(failure()),
            Step::Detach => Input::Detach(self.connection.take()?.attach),
            Step::DetachOld => Input::Detach(self.old.pop()?.attach),
            Step::Prime(retry) => Input::Primed(self.connection.map(|_| *retry)?),
            Step::Reconnect(cursor) => Input::Reconnect(*cursor),
            Step::Touch => Input::Touch,
            Step::Cancel(which) if !passed => Input::Cancel(self.ids.get(*which).cloned()?),
            Step::ClientResponse(request) => Input::ClientResponse(request_id(*request)),
            // With several settled requests of one id the lost response is ambiguous.
            Step::ClientResponseLost(request) if self.model.count_answered(&request_id(*request)) == 1 => {
                Input::ClientResponseLost(request_id(*request))
            }
            Step::Turn(_) => Input::Turn(self.connection?.cursor),
            Step::Expire if !passed => Input::Expire,
            Step::Delivered => Input::Delivered,
            Step::Full(full) => Input::Full(*full),
            _ => return None,
        })
    }

    fn payload(&mut self, payload: &Payload) -> (Vec<u8>, Vec<MessageKind>) {
        self.serial += 1;
        let payload = payload.fitted(self.ids.len());
        (payload.data(&self.ids, self.serial), payload.messages())
    }

    fn handle(&mut self, input: &Input) -> Checked {
        let wanted = self.model.handle(input, self.now);
        let got = self.subject.handle(input, self.now);
        let promise = match wanted {
            Reply::ClientResponse(_) => Promise::Invariant(8),
            Reply::Nothing | Reply::Bool(_) => Promise::Replies,
        };
        require(promise, "the reply", wanted, got)
    }

    /// Passes time, and fires each deadline at its time.
    fn pass(&mut self, millis: u64) -> Checked {
        let until = self.now + millis;
        while let Some(at) = self.model.deadline().filter(|at| *at <= until) {
            self.now = self.now.max(at);
            self.handle(&Input::Timeout)?;
            self.compare(false)?;
            let next = self.subject.view().deadline;
            require(Promise::Timers, "nothing stays due", false, next.is_some_and(|next| next <= self.now))?;
        }
        self.now = until;
        Ok(())
    }

    fn take_batch(&mut self) -> Checked {
        let wanted = self.model.take_batch();
        let got = self.subject.take_batch(self.now);
        require(Promise::Invariant(1), "the batch for the store", wanted, got)
    }

    fn accept(&mut self) {
        self.model.accept(self.now);
        self.subject.accept(self.now);
        self.accepted = self.model.tail();
    }

    // ── connections ──────────────────────────────────────────────────────────────────────────────

    fn attach(&mut self, share: u8) -> Checked {
        self.attaches += 1;
        let has = self.connection.or(self.old.last().copied()).map_or(0, |connection| connection.cursor);
        let cursor = has * u64::from(share) / 255;
        self.old.extend(self.connection.replace(Connection { attach: self.attaches, cursor }));
        self.handle(&Input::Attach(self.attaches, cursor))
    }

    fn read(&mut self, limit: usize) -> Checked {
        let Some(Connection { attach, cursor }) = self.connection else { return Ok(()) };
        let wanted = self.model.read(attach, cursor, limit, self.now);
        let got = self.subject.read(attach, cursor, limit, self.now);
        let moved = match &wanted {
            Reading::Events(_, last) => *last,
            Reading::Lost => self.model.trimmed(),
            Reading::End | Reading::TakenOver(_) => cursor,
        };
        self.connection = Some(Connection { attach, cursor: moved });
        match (&wanted, &got) {
            (Reading::Events(wanted, _), Reading::Events(got, _)) => self.same_events(wanted, got)?,
            (Reading::TakenOver(_), _) | (_, Reading::TakenOver(_)) => {
                require(Promise::Invariant(5), "the current reader", wanted.clone(), got.clone())?;
            }
            _ => {}
        }
        require(Promise::Invariant(3), "the events of a reader", wanted, got)
    }

    /// A displaced connection gets nothing but a `retry`.
    fn read_old(&mut self) -> Checked {
        let Some(Connection { attach, cursor }) = self.old.last().copied() else { return Ok(()) };
        let wanted = self.model.read(attach, cursor, 1, self.now);
        let got = self.subject.read(attach, cursor, 1, self.now);
        require(Promise::Invariant(5), "the read of a displaced connection", wanted, got)
    }

    // ── comparing ────────────────────────────────────────────────────────────────────────────────

    fn compare(&mut self, leaves: bool) -> Checked {
        let (wanted, got) = (self.model.view(), self.subject.view());
        let effects = (std::mem::take(&mut self.model.effects), self.subject.effects());
        if leaves {
            let still = |view: &View| View { deadline: None, readable_until: None, ..view.clone() };
            require(Promise::Invariant(6), "the state after a disconnect", still(&wanted), still(&got))?;
            require(Promise::Invariant(6), "the effects of a disconnect", &effects.0, &effects.1)?;
        }
        self.compare_replays()?;
        self.compare_views(&wanted, &got)?;
        require(Promise::Invariant(7), "the effects", effects.0, effects.1)?;
        self.owes_nothing(&got)
    }

    fn compare_views(&self, wanted: &View, got: &View) -> Checked {
        require(Promise::Invariant(2), "readable before the store has it", false, got.tail > self.accepted)?;
        require(Promise::Invariant(1), "the last number", wanted.tail, got.tail)?;
        require(Promise::Invariant(5), "is attached", wanted.attached, got.attached)?;
        require(Promise::Invariant(7), "the responses owed", &wanted.owed, &got.owed)?;
        require(Promise::Invariant(8), "has open requests", wanted.has_open_requests, got.has_open_requests)?;
        let timers = |view: &View| (view.deadline, view.turn_at, view.readable_until, view.paused);
        if std::mem::discriminant(&wanted.stage) == std::mem::discriminant(&got.stage) {
            require(Promise::Timers, "deadline, retention, pause", timers(wanted), timers(got))?;
        }
        require(Promise::Invariant(7), "the phase", wanted.stage, got.stage)?;
        require(Promise::Replies, "the view", wanted, got)
    }

    /// Compares the replay of every cursor, and of one beyond the tail.
    fn compare_replays(&self) -> Checked {
        for cursor in 0..=self.model.tail() + 1 {
            let (wanted, got) = (self.model.replay(cursor), self.subject.replay(cursor));
            if let (Replay::Events(wanted), Replay::Events(got)) = (&wanted, &got) {
                self.same_events(wanted, got)?;
            }
            require(Promise::Invariant(3), &format!("the place of cursor {cursor}"), wanted, got)?;
        }
        Ok(())
    }

    /// Finds the promise that a wrong list of events breaks.
    fn same_events(&self, wanted: &[(u64, Vec<u8>)], got: &[(u64, Vec<u8>)]) -> Checked {
        let extra = got.iter().find(|event| !wanted.contains(event)).map(|(seq, _)| *seq);
        let missing = wanted.iter().find(|event| !got.contains(event)).map(|(seq, _)| *seq);
        if let Some(seq) = extra {
            let (spent, _) = self.model.kind_of(seq).unwrap_or_default();
            require(Promise::Invariant(2), "delivered before stored", false, seq > self.accepted)?;
            require(Promise::Invariant(8), "an answered request is replayed", false, spent)?;
        }
        if let Some(seq) = missing {
            let (_, response) = self.model.kind_of(seq).unwrap_or_default();
            require(Promise::Invariant(4), "the response is gone", false, response)?;
        }
        require(Promise::Invariant(3), "the later events", wanted, got)
    }

    /// Checks without the model that a sealed request stream has a response, or a cancel, for every
    /// id.
    fn owes_nothing(&self, got: &View) -> Checked {
        let sealed = matches!(got.stage, Stage::Sealed(..)) && self.kind == StreamKind::Request;
        let opened = matches!(self.model.head, Some(Head::Theirs | Head::Ours));
        let due = got.owed.iter().any(|owed| matches!(owed, super::subject::Owed::Due));
        require(Promise::Invariant(7), "sealed with an owed response", false, sealed && opened && due)
    }

    /// Ends the run: the store accepts every event, every client leaves, and all timers expire, so
    /// that every stream ends.
    fn finish(&mut self) -> Checked {
        for _ in 0..3 {
            self.take(&Step::TakeBatch)?;
            self.take(&Step::Accept)?;
            self.take(&Step::Read(3))?;
        }
        self.take(&Step::Detach)?;
        self.take(&Step::Pass(2000))?;
        self.take(&Step::TakeBatch)?;
        self.take(&Step::Accept)
    }
}

proptest! {
    #[test]
    fn any_steps_agree_with_the_model(setup in setup(), steps in steps()) {
        let checked = check::<Real>(&setup, &steps);
        prop_assert!(checked.is_ok(), "{}", checked.err().map(|violation| violation.to_string()).unwrap_or_default());
    }
}
