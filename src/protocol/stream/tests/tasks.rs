//! Calls that become tasks, and the streams of tasks, through random steps against a model of a few
//! lines each.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use serde_json::json;

use super::steps::Setup;
use crate::error::ErrorCode;
use crate::headers::Era;
use crate::ids::{AttachId, Seq};
use crate::jsonrpc::RequestId;
use crate::stream::{Effect, Ending, Machine, OwedResponse, Policy, TaskChange, UpstreamCursor};
use crate::tasks::{Record, Status, TaskState};
use mcp_resume_base::clock;

const KEYS: [&str; 3] = ["a", "b", "c"];
const MAX_WAIT: u64 = 700;
/// Grace of a modern call, and two polls and a second.
const GRACE: u64 = 40 + 2 * 1000 + 1000;

/// One step of a task's stream.
#[derive(Clone, Debug)]
enum Step {
    Progress(u8),
    /// The server requests the keys with a bit, or nothing but a poll.
    Ask(u8),
    Result,
    Error,
    /// A response that names no request of the task.
    Stray,
    Update(u8),
    Poll,
    Cancel,
    End,
    Drain,
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..3_u8).prop_map(Step::Progress),
        4 => (0..8_u8).prop_map(Step::Ask),
        1 => Just(Step::Result),
        1 => Just(Step::Error),
        1 => Just(Step::Stray),
        6 => (0..8_u8).prop_map(Step::Update),
        3 => Just(Step::Poll),
        1 => Just(Step::Cancel),
        1 => Just(Step::End),
        1 => Just(Step::Drain),
        2 => (1..4 * MAX_WAIT).prop_map(Step::Pass),
    ]
}

/// The state of a task, as simply as it can be said.
#[derive(Debug)]
struct Model {
    outcome: Option<Status>,
    rounds: u32,
    open: BTreeSet<String>,
    awaits_poll: bool,
    text: Option<String>,
    calls: u32,
    is_known: bool,
    touched: u64,
}

impl Model {
    fn status(&self) -> Status {
        match self.outcome {
            Some(outcome) => outcome,
            None if self.open.is_empty() => Status::Working,
            None => Status::InputRequired,
        }
    }

    fn end(&mut self, outcome: Status) {
        if self.outcome.is_none() {
            self.outcome = Some(outcome);
            self.open.clear();
            self.awaits_poll = false;
        }
    }

    fn awaits_client(&self) -> bool {
        self.awaits_poll || !self.open.is_empty()
    }

    fn touch(&mut self, now: u64) {
        (self.is_known, self.touched) = (true, now);
    }

    fn abandoned_at(&self) -> u64 {
        self.touched + if self.is_known { MAX_WAIT } else { GRACE }
    }
}

struct Task {
    machine: Machine,
    model: Model,
    start: Instant,
    now: u64,
    /// Request that the server has now.
    request: RequestId,
    events: Vec<Vec<u8>>,
    is_closed: bool,
}

impl Task {
    fn begin() -> Self {
        let start = clock::now();
        let policy = Policy {
            max_wait: Some(Duration::from_millis(MAX_WAIT)),
            modern_grace: Some(Duration::from_millis(40)),
            can_pause: false,
            is_task: true,
            era: Era::Modern,
            ..Setup::plain().policy()
        };
        let request = RequestId::Number("1".into());
        let mut machine = Machine::new(policy, vec![request.clone()], start);
        machine.handle_task(TaskState::new(1_000_000, start, None), start);
        let model = Model {
            outcome: None,
            rounds: 0,
            open: BTreeSet::new(),
            awaits_poll: false,
            text: None,
            calls: 0,
            is_known: false,
            touched: 0,
        };
        let mut task = Self { machine, model, start, now: 0, request, events: Vec::new(), is_closed: false };
        task.settle();
        task
    }

    fn at(&self) -> Instant {
        self.start + Duration::from_millis(self.now)
    }

    fn take(&mut self, step: &Step) {
        let at = self.at();
        let id = self.request.to_json();
        let can_speak = self.model.outcome.is_none();
        match step {
            Step::Progress(n) => {
                let message = format!(
                    r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":1,"progress":{n}}}}}"#
                );
                self.machine.handle_message(b"message", message.as_bytes(), at);
                if can_speak {
                    self.model.text = Some(n.to_string());
                }
            }
            Step::Ask(bits) => {
                let asked = keys(*bits);
                let requests: serde_json::Map<_, _> =
                    asked.iter().map(|key| ((*key).to_owned(), json!({"method": "roots/list"}))).collect();
                let result = json!({"resultType": "input_required", "requestState": "s", "inputRequests": requests});
                let message = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#);
                self.machine.handle_message(b"message", message.as_bytes(), at);
                if can_speak && self.model.rounds == 10 {
                    self.model.end(Status::Failed);
                } else if can_speak {
                    self.model.rounds += 1;
                    self.model.open = asked.iter().map(|key| format!("{}-{key}", self.model.rounds)).collect();
                    self.model.awaits_poll = asked.is_empty();
                }
            }
            Step::Result => {
                let message = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"content":[]}}}}"#);
                self.machine.handle_message(b"message", message.as_bytes(), at);
                self.model.end(Status::Completed);
            }
            Step::Error => {
                let message = format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":1,"message":"m"}}}}"#);
                self.machine.handle_message(b"message", message.as_bytes(), at);
                self.model.end(Status::Failed);
            }
            Step::Stray => {
                self.machine.handle_message(b"message", br#"{"jsonrpc":"2.0","id":"stray","result":{}}"#, at);
            }
            Step::Update(bits) => self.update(*bits, at),
            Step::Poll => {
                self.machine.handle_task_request(at).handle_poll(at);
                if can_speak {
                    self.model.touch(self.now);
                }
                if std::mem::take(&mut self.model.awaits_poll) {
                    self.model.calls += 1;
                }
            }
            Step::Cancel => {
                let change = self.machine.handle_task_request(at).handle_cancel(at);
                assert_eq!(change == TaskChange::Changed, can_speak);
                self.model.end(Status::Cancelled);
            }
            Step::End => {
                self.machine.handle_upstream_end(Ending::Clean, at);
                if !self.model.awaits_client() {
                    self.model.end(Status::Failed);
                }
            }
            Step::Drain => {
                self.machine.handle_expire(ErrorCode::Draining, at);
                self.model.end(Status::Failed);
            }
            Step::Pass(millis) => {
                self.now += millis;
                self.machine.handle_timeout(self.at());
                if self.model.abandoned_at() <= self.now {
                    self.model.end(Status::Failed);
                }
            }
        }
        self.settle();
        self.check();
    }

    fn update(&mut self, bits: u8, at: Instant) {
        let answered: Vec<String> = keys(bits).iter().map(|key| format!("{}-{key}", self.model.rounds)).collect();
        let answers: serde_json::Map<_, _> =
            answered.iter().map(|key| (key.clone(), json!({"action": "accept"}))).collect();
        let change = self.machine.handle_task_request(at).handle_update(&json!(answers).to_string(), at);
        if self.model.outcome.is_none() {
            self.model.touch(self.now);
        }
        let before = self.model.open.len();
        self.model.open.retain(|key| !answered.contains(key));
        let has_changed = self.model.open.len() < before;
        assert_eq!(change == TaskChange::Changed, has_changed);
        if has_changed && self.model.open.is_empty() {
            self.model.calls += 1;
        }
    }

    /// Stores what is staged, and carries out the effects.
    fn settle(&mut self) {
        while let Some(batch) = self.machine.lifecycle_mut().poll_batch() {
            self.events.extend(batch.events().map(<[u8]>::to_vec));
            let at = self.at();
            self.machine.lifecycle_mut().handle_stored(at);
        }
        let mut calls = 0;
        while let Some(effect) = self.machine.lifecycle_mut().poll_effect() {
            match effect {
                Effect::CallAgain(_) => calls += 1,
                Effect::Close => self.is_closed = true,
                Effect::AnnounceCancel(_) => {}
                effect => panic!("{effect:?}"),
            }
        }
        for _ in 0..calls {
            assert!(self.model.calls > 0, "the server is called again without a reason");
            self.model.calls -= 1;
            self.request = RequestId::String(format!("again-{}", self.model.rounds).into());
            let at = self.at();
            self.machine.task_stream().handle_called_again(self.request.clone(), at);
        }
        assert_eq!(self.model.calls, 0, "the server is not called again");
    }

    fn check(&self) {
        let record = self.machine.task().expect("a task").state().record();
        assert_eq!(record.status(), self.model.status());
        let open: Vec<&str> = record.outstanding().map(|(key, _)| key).collect();
        assert_eq!(open, self.model.open.iter().map(String::as_str).collect::<Vec<_>>());
        if self.model.outcome.is_none() {
            assert_eq!(record.text(), self.model.text.as_deref());
        }
        assert_eq!(self.machine.lifecycle().is_sealed(), self.model.outcome.is_some());
        assert_eq!(self.is_closed, self.model.outcome.is_some());
        let (_, owed) = self.machine.owed_responses().iter().next().expect("one");
        let has_response = matches!(owed, OwedResponse::Answered(_));
        assert_eq!(has_response, matches!(self.model.outcome, Some(Status::Completed | Status::Failed)));
        // Any process that has the events knows the state.
        let mut records = self.events.iter().filter_map(|event| Record::parse(&crate::sse::encoded_data(event)));
        let last = records.next_back().expect("a record");
        assert!(last.is_same_status(record), "{last:?} {record:?}");
        let kept = self.machine.releasable().0 as usize;
        assert!(self.events[kept..].iter().any(|event| Record::parse(&crate::sse::encoded_data(event)).is_some()));
    }
}

fn keys(bits: u8) -> Vec<&'static str> {
    KEYS.into_iter().enumerate().filter(|(index, _)| bits & (1 << index) != 0).map(|(_, key)| key).collect()
}

/// One step of a call that may become a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallStep {
    Attach,
    Detach,
    Head,
    Response,
    End,
    Cancel,
    Due,
}

const CALL_STEPS: [CallStep; 7] = [
    CallStep::Attach,
    CallStep::Detach,
    CallStep::Head,
    CallStep::Response,
    CallStep::End,
    CallStep::Cancel,
    CallStep::Due,
];

proptest! {
    #[test]
    fn a_task_is_what_its_model_says(steps in prop::collection::vec(step(), 1..60)) {
        let mut task = Task::begin();
        for step in &steps {
            task.take(step);
        }
    }

    #[test]
    fn a_call_has_one_response_its_own_or_the_handle(steps in prop::collection::vec(prop::sample::select(&CALL_STEPS[..]), 1..30)) {
        let start = clock::now();
        let id = RequestId::Number("1".into());
        let policy = Policy { era: Era::Modern, modern_grace: Some(Duration::from_secs(60)), ..Setup::plain().policy() };
        let mut machine = Machine::new(policy, vec![id.clone()], start);
        machine.lifecycle_mut().handle_promotion_at(start + Duration::from_millis(1));
        let (mut now, mut responses, mut promotions) = (start, Vec::new(), 0);
        let mut is_attached = false;
        for step in steps {
            now += Duration::from_secs(1);
            match step {
                CallStep::Attach => {
                    machine.handle_attach(AttachId(1), Seq(0), now);
                    is_attached = true;
                }
                CallStep::Detach => {
                    machine.handle_detach(AttachId(1), now);
                    is_attached = false;
                }
                CallStep::Head => {
                    machine.handle_stream_head();
                }
                CallStep::Response => machine.handle_message(b"message", br#"{"jsonrpc":"2.0","id":1,"result":{}}"#, now),
                CallStep::End => machine.handle_upstream_end(Ending::Clean, now),
                CallStep::Cancel => {
                    machine.lifecycle_mut().handle_cancel(&id, now);
                }
                CallStep::Due => machine.handle_timeout(now),
            }
            while let Some(effect) = machine.lifecycle_mut().poll_effect() {
                if effect == Effect::Promote {
                    prop_assert!(is_attached, "the client must get the handle");
                    let handle = br#"{"jsonrpc":"2.0","id":1,"result":{"resultType":"task"}}"#;
                    let cursor: Option<UpstreamCursor> = machine.handle_promoted(handle, now);
                    prop_assert!(cursor.is_some());
                    promotions += 1;
                }
            }
            while let Some(batch) = machine.lifecycle_mut().poll_batch() {
                responses.extend(batch.events().map(<[u8]>::to_vec));
                machine.lifecycle_mut().handle_stored(now);
            }
            if promotions > 0 {
                prop_assert!(machine.lifecycle().is_sealed());
            }
        }
        prop_assert!(promotions <= 1);
        let handles = responses.iter().filter(|event| memchr::memmem::find(event, b"resultType").is_some()).count();
        prop_assert_eq!(handles, promotions);
        if promotions == 1 {
            let last = responses.last().expect("the handle");
            prop_assert!(memchr::memmem::find(last, b"resultType").is_some(), "nothing follows the handle");
            prop_assert_eq!(machine.owed_responses().answered_len(), 1);
        }
    }
}
