//! Takes the model and a subject through the same steps and compares them after each.

use std::fmt;

use proptest::prelude::*;

use super::model::{Call, Head, Model};
use super::steps::{Setup, Step, What, ask_id, failure, setup, steps};
use super::subject::{Input, Reading, Real, Replay, Reply, Stage, Subject, View};
use crate::protocol::ids::StreamKind;
use crate::protocol::jsonrpc::RequestId;

/// A promise that was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Promise {
    /// One of the eight that the module documents.
    Invariant(u8),
    /// Something happened at the wrong time.
    Timers,
    /// Something else that the caller is told.
    Answers,
}

/// What was promised and what was seen instead.
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

fn demand<T: PartialEq + fmt::Debug>(promise: Promise, what: &str, wanted: T, got: T) -> Checked {
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
    driver.wind_up()
}

/// A connection: its name and how far it has read.
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
    /// Events the store has been given and has accepted.
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
            Step::Hand => self.hand()?,
            Step::Accept => self.accept(),
            Step::Turn(millis) => {
                self.hand()?;
                self.accept();
                self.pass(millis)?;
                let Some(input) = self.input(step) else { return Ok(()) };
                self.tell(&input)?;
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
                Some(input) => self.tell(&input)?,
                None => return Ok(()),
            },
        }
        self.compare(leaves)
    }

    /// The step in the machine's words; `None` where its caller would not take it now.
    fn input(&mut self, step: &Step) -> Option<Input> {
        let (call, passed) = (self.model.call, self.model.head == Some(Head::Passed));
        let speaks = call == Call::Reading || (call == Call::Over && !passed) || self.model.head == Some(Head::Ours);
        Some(match step {
            Step::StreamHead if matches!(call, Call::Sending | Call::SendingAgain) && !passed => Input::StreamHead,
            Step::Commit => Input::Commit,
            Step::PlainHead if call == Call::Sending && !passed => Input::PlainHead,
            Step::Event { what, id, retry } if speaks => {
                let (data, says) = self.say(what);
                Input::Event { data, says, id: id.map(|id| format!("theirs-{id}")), retry: *retry }
            }
            Step::Message(what) if speaks && !matches!(what, What::Empty) => {
                let (data, says) = self.say(what);
                Input::Message { data, says }
            }
            Step::End(ending) if matches!(call, Call::Reading | Call::SendingAgain) => Input::End(*ending),
            Step::Fail if matches!(call, Call::Sending | Call::Reading) && !passed => Input::Fail(failure()),
            Step::Detach => Input::Detach(self.connection.take()?.attach),
            Step::DetachOld => Input::Detach(self.old.pop()?.attach),
            Step::Prime(retry) => Input::Primed(self.connection.map(|_| *retry)?),
            Step::Return(cursor) => Input::Return(*cursor),
            Step::Touch => Input::Touch,
            Step::Cancel(which) if !passed => Input::Cancel(self.ids.get(*which).cloned()?),
            Step::Answer(ask) => Input::Answer(ask_id(*ask)),
            // With several of one id nobody can say which answer was lost.
            Step::AnswerLost(ask) if self.model.count_answered(&ask_id(*ask)) == 1 => Input::AnswerLost(ask_id(*ask)),
            Step::Turn(_) => Input::Turn(self.connection?.cursor),
            Step::Expire if !passed => Input::Expire,
            Step::Delivered => Input::Delivered,
            Step::Full(full) => Input::Full(*full),
            _ => return None,
        })
    }

    fn say(&mut self, what: &What) -> (Vec<u8>, Vec<super::steps::Said>) {
        self.serial += 1;
        let what = what.fitted(self.ids.len());
        (what.data(&self.ids, self.serial), what.says())
    }

    fn tell(&mut self, input: &Input) -> Checked {
        let wanted = self.model.tell(input, self.now);
        let got = self.subject.tell(input, self.now);
        let promise = match wanted {
            Reply::Answer(_) => Promise::Invariant(8),
            Reply::Nothing | Reply::Yes(_) => Promise::Answers,
        };
        demand(promise, "what is said to the caller", wanted, got)
    }

    /// Time passes, and each deadline is met at its time.
    fn pass(&mut self, millis: u64) -> Checked {
        let until = self.now + millis;
        while let Some(at) = self.model.deadline().filter(|at| *at <= until) {
            self.now = self.now.max(at);
            self.tell(&Input::Timeout)?;
            self.compare(false)?;
            let next = self.subject.view().deadline;
            demand(Promise::Timers, "nothing stays due", false, next.is_some_and(|next| next <= self.now))?;
        }
        self.now = until;
        Ok(())
    }

    fn hand(&mut self) -> Checked {
        let wanted = self.model.hand();
        let got = self.subject.hand(self.now);
        demand(Promise::Invariant(1), "the batch for the store", wanted, got)
    }

    fn accept(&mut self) {
        self.model.accept(self.now);
        self.subject.accept(self.now);
        self.accepted = self.model.tail();
    }

    // ── connections ───────────────────────────────────────────────────────────────────────────────────────────────────

    fn attach(&mut self, share: u8) -> Checked {
        self.attaches += 1;
        let has = self.connection.or(self.old.last().copied()).map_or(0, |connection| connection.cursor);
        let cursor = has * u64::from(share) / 255;
        self.old.extend(self.connection.replace(Connection { attach: self.attaches, cursor }));
        self.tell(&Input::Attach(self.attaches, cursor))
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
                demand(Promise::Invariant(5), "who reads", wanted.clone(), got.clone())?;
            }
            _ => {}
        }
        demand(Promise::Invariant(3), "what a reader gets", wanted, got)
    }

    /// Whoever was taken over gets nothing but a farewell.
    fn read_old(&mut self) -> Checked {
        let Some(Connection { attach, cursor }) = self.old.last().copied() else { return Ok(()) };
        let wanted = self.model.read(attach, cursor, 1, self.now);
        let got = self.subject.read(attach, cursor, 1, self.now);
        demand(Promise::Invariant(5), "what an older reader gets", wanted, got)
    }

    // ── comparing ─────────────────────────────────────────────────────────────────────────────────────────────────────

    fn compare(&mut self, leaves: bool) -> Checked {
        let (wanted, got) = (self.model.view(), self.subject.view());
        let effects = (std::mem::take(&mut self.model.effects), self.subject.effects());
        if leaves {
            let still = |view: &View| View { deadline: None, readable_until: None, ..view.clone() };
            demand(Promise::Invariant(6), "a client that leaves changes", still(&wanted), still(&got))?;
            demand(Promise::Invariant(6), "a client that leaves causes", &effects.0, &effects.1)?;
        }
        self.compare_replays()?;
        self.compare_views(&wanted, &got)?;
        demand(Promise::Invariant(7), "what is to be done", effects.0, effects.1)?;
        self.owes_nothing(&got)
    }

    fn compare_views(&self, wanted: &View, got: &View) -> Checked {
        demand(Promise::Invariant(2), "readable before the store has it", false, got.tail > self.accepted)?;
        demand(Promise::Invariant(1), "the last number", wanted.tail, got.tail)?;
        demand(Promise::Invariant(5), "whether anybody reads", wanted.attached, got.attached)?;
        demand(Promise::Invariant(7), "the responses owed", &wanted.owed, &got.owed)?;
        demand(Promise::Invariant(8), "whether requests wait", wanted.asks_wait, got.asks_wait)?;
        let timers = |view: &View| (view.deadline, view.turn_at, view.readable_until, view.paused);
        if std::mem::discriminant(&wanted.stage) == std::mem::discriminant(&got.stage) {
            demand(Promise::Timers, "deadline, retention, pause", timers(wanted), timers(got))?;
        }
        demand(Promise::Invariant(7), "how it stands", wanted.stage, got.stage)?;
        demand(Promise::Answers, "the view", wanted, got)
    }

    /// Every cursor there is, and one beyond.
    fn compare_replays(&self) -> Checked {
        for cursor in 0..=self.model.tail() + 1 {
            let (wanted, got) = (self.model.replay(cursor), self.subject.replay(cursor));
            if let (Replay::Events(wanted), Replay::Events(got)) = (&wanted, &got) {
                self.same_events(wanted, got)?;
            }
            demand(Promise::Invariant(3), &format!("the place of cursor {cursor}"), wanted, got)?;
        }
        Ok(())
    }

    /// Names the promise that a wrong list of events breaks.
    fn same_events(&self, wanted: &[(u64, Vec<u8>)], got: &[(u64, Vec<u8>)]) -> Checked {
        let extra = got.iter().find(|event| !wanted.contains(event)).map(|(seq, _)| *seq);
        let missing = wanted.iter().find(|event| !got.contains(event)).map(|(seq, _)| *seq);
        if let Some(seq) = extra {
            let (spent, _) = self.model.kind_of(seq).unwrap_or_default();
            demand(Promise::Invariant(2), "delivered before stored", false, seq > self.accepted)?;
            demand(Promise::Invariant(8), "an answered request is replayed", false, spent)?;
        }
        if let Some(seq) = missing {
            let (_, response) = self.model.kind_of(seq).unwrap_or_default();
            demand(Promise::Invariant(4), "the response is gone", false, response)?;
        }
        demand(Promise::Invariant(3), "the later events", wanted, got)
    }

    /// Said without the model's help: a sealed request stream that was one has a response, or a cancel, for every id.
    fn owes_nothing(&self, got: &View) -> Checked {
        let sealed = matches!(got.stage, Stage::Sealed(..)) && self.kind == StreamKind::Request;
        let opened = matches!(self.model.head, Some(Head::Theirs | Head::Ours));
        let due = got.owed.iter().any(|owed| matches!(owed, super::subject::Owed::Due));
        demand(Promise::Invariant(7), "sealed in debt", false, sealed && opened && due)
    }

    /// The store takes what there is, everybody leaves, and all timers run out: every stream ends, and says so.
    fn wind_up(&mut self) -> Checked {
        for _ in 0..3 {
            self.take(&Step::Hand)?;
            self.take(&Step::Accept)?;
            self.take(&Step::Read(3))?;
        }
        self.take(&Step::Detach)?;
        self.take(&Step::Pass(2000))?;
        self.take(&Step::Hand)?;
        self.take(&Step::Accept)
    }
}

proptest! {
    #[test]
    fn any_steps_lead_where_the_model_says(setup in setup(), steps in steps()) {
        let checked = check::<Real>(&setup, &steps);
        prop_assert!(checked.is_ok(), "{}", checked.err().map(|violation| violation.to_string()).unwrap_or_default());
    }
}
