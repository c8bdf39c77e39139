//! Sessions on one channel, in random schedules.

use std::collections::BTreeSet;

use bytes::Bytes;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::ids::{CallKey, IdInUse, MemberKey, Owed, Receiver};
use super::super::routing::{Routing, Target};
use crate::jsonrpc::{self, Message, RequestId};

/// One step. Sessions, calls and requests are chosen by number.
#[derive(Clone, Debug)]
enum Step {
    Begin { member: u64, id: u8, has_token: bool },
    Progress(usize),
    Response(usize),
    GiveUp(usize),
    Cancel { member: u64, id: u8 },
    Ask { member: u64, in_call: bool },
    Reply { member: u64, at: usize },
    ProgressOfReply { member: u64, at: usize },
    Withdraw(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let begin = (0..3u64, 0..3u8, any::<bool>());
    prop_oneof![
        3 => begin.prop_map(|(member, id, has_token)| Step::Begin { member, id, has_token }),
        2 => (0..20usize).prop_map(Step::Progress),
        2 => (0..20usize).prop_map(Step::Response),
        1 => (0..20usize).prop_map(Step::GiveUp),
        2 => (0..3u64, 0..3u8).prop_map(|(member, id)| Step::Cancel { member, id }),
        2 => (0..3u64, any::<bool>()).prop_map(|(member, in_call)| Step::Ask { member, in_call }),
        3 => (0..3u64, 0..20usize).prop_map(|(member, at)| Step::Reply { member, at }),
        1 => (0..3u64, 0..20usize).prop_map(|(member, at)| Step::ProgressOfReply { member, at }),
        1 => (0..20usize).prop_map(Step::Withdraw),
    ]
}

struct Call {
    member: u64,
    id: Value,
    number: Value,
    has_token: bool,
    is_complete: bool,
}

struct ServerRequest {
    member: u64,
    call: Option<usize>,
    is_answered: bool,
}

/// A channel, and all that a slow reader of its messages would know.
struct Model {
    routing: Routing,
    calls: Vec<Call>,
    requests: Vec<ServerRequest>,
}

/// Numbers that differ, in no order.
fn scattered() -> u64 {
    thread_local!(static LAST: std::cell::Cell<u64> = const { std::cell::Cell::new(0) });
    LAST.set(LAST.get().wrapping_add(1));
    LAST.get().wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn parsed(message: &Value) -> (Message, Bytes) {
    let text = Bytes::from(message.to_string());
    (jsonrpc::peek(&text).expect("a message").messages()[0].clone(), text)
}

fn json_of(text: &[u8]) -> Value {
    serde_json::from_slice(text).expect("JSON")
}

impl Model {
    /// The server says something.
    fn route(&mut self, message: &Value) -> (Target, Value) {
        let (message, text) = parsed(message);
        let (target, text) = self.routing.route(&message, text);
        (target, json_of(&text))
    }

    /// A session says something that is no request; returns what the server gets.
    fn say(&mut self, member: u64, message: &Value) -> Option<Value> {
        let (message, text) = parsed(message);
        self.routing.from_member(MemberKey(member), &message, text).map(|text| json_of(&text))
    }

    fn running(&self, member: u64, id: &Value) -> Option<&Call> {
        self.calls.iter().find(|call| call.member == member && call.id == *id && !call.is_complete)
    }

    fn begin(&mut self, member: u64, id: u8, has_token: bool) {
        let id = json!(id);
        let mut request = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"of": member}});
        if has_token {
            request["params"]["_meta"] = json!({"progressToken": id});
        }
        let (message, text) = parsed(&request);
        let (mut messages, mut texts) = ([message], [text]);
        let call = CallKey(self.calls.len() as u64);
        let begun = self.routing.begin(call, Some(MemberKey(member)), &mut messages, &mut texts);
        assert_eq!(begun, if self.running(member, &id).is_some() { Err(IdInUse) } else { Ok(()) });
        if begun.is_err() {
            return;
        }
        let number = json_of(&texts[0])["id"].clone();
        assert!(self.calls.iter().all(|call| call.number != number), "a number is used again");
        request["id"] = number.clone();
        if has_token {
            request["params"]["_meta"]["progressToken"] = number.clone();
        }
        assert_eq!(json_of(&texts[0]), request, "nothing else has changed");
        self.calls.push(Call { member, id, number, has_token, is_complete: false });
    }

    fn progress(&mut self, at: usize) {
        let Call { id, number, has_token, is_complete, .. } = &self.calls[at];
        let message = |token: &Value| json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": token}});
        let (said, seen, is_taken) = (message(number), message(id), *has_token && !is_complete);
        let (target, text) = self.route(&said);
        if is_taken {
            assert_eq!((target, text), (Target::Call { call: CallKey(at as u64), is_complete: false }, seen));
        } else {
            assert_eq!(target, Target::Dropped);
        }
    }

    fn respond(&mut self, at: usize) {
        let Call { id, number, is_complete, .. } = &self.calls[at];
        let message = |id: &Value| json!({"jsonrpc": "2.0", "id": id, "result": {"at": at}});
        let (said, seen, was_over) = (message(number), message(id), *is_complete);
        let (target, text) = self.route(&said);
        if was_over {
            assert_eq!(target, Target::Dropped);
        } else {
            assert_eq!((target, text), (Target::Call { call: CallKey(at as u64), is_complete: true }, seen));
            self.calls[at].is_complete = true;
        }
    }

    fn give_up(&mut self, at: usize) {
        let owed = self.routing.give_up(CallKey(at as u64));
        let call = &mut self.calls[at];
        let names: Vec<_> =
            owed.iter().map(|Owed { at_server, at_caller }| (at_server.to_json(), at_caller.to_json())).collect();
        let expected = if call.is_complete { vec![] } else { vec![(call.number.to_string(), call.id.to_string())] };
        assert_eq!(names, expected);
        call.is_complete = true;
    }

    fn cancel(&mut self, member: u64, id: u8) {
        let message =
            |id: &Value| json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}});
        let expected = self.running(member, &json!(id)).map(|call| message(&call.number));
        assert_eq!(self.say(member, &message(&json!(id))), expected);
        // Names of the server are no session's.
        let numbers: Vec<Value> = self.calls.iter().map(|call| call.number.clone()).collect();
        for number in numbers {
            assert_eq!(self.say(member, &message(&number)), None);
        }
    }

    fn ask(&mut self, member: u64, in_call: bool) {
        let id = self.requests.len();
        let call = self.calls.iter().position(|call| call.member == member && !call.is_complete).filter(|_| in_call);
        let receiver = call.map_or(Receiver::Standalone(MemberKey(member)), |at| Receiver::Call(CallKey(at as u64)));
        let params = json!({"elicitationId": format!("e{id}"), "_meta": {"progressToken": id}});
        let (message, text) =
            parsed(&json!({"jsonrpc": "2.0", "id": id, "method": "elicitation/create", "params": params}));
        let (target, text) = self.routing.route(&message, text);
        let Target::Unnamed(id) = target else { panic!("it names no call: {target:?}") };
        self.routing.insert_server_request(&text, id, receiver, MemberKey(member));
        self.requests.push(ServerRequest { member, call, is_answered: false });
    }

    fn reply(&mut self, member: u64, at: usize) {
        let message = json!({"jsonrpc": "2.0", "id": at, "result": {"of": member}});
        let request = &mut self.requests[at];
        let is_taken = request.member == member && !request.is_answered;
        request.is_answered |= is_taken;
        assert_eq!(self.say(member, &message), is_taken.then_some(message));
    }

    fn progress_of_reply(&mut self, member: u64, at: usize) {
        let message = json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": at}});
        let is_taken = self.requests[at].member == member;
        assert_eq!(self.say(member, &message), is_taken.then_some(message));
    }

    /// The server withdraws a request, and completes its elicitation: both follow it.
    fn withdraw(&mut self, at: usize) {
        let request = &self.requests[at];
        let running = request.call.filter(|&call| !self.calls[call].is_complete);
        let expected = match running {
            Some(call) => Target::Call { call: CallKey(call as u64), is_complete: false },
            None => Target::Member(MemberKey(request.member)),
        };
        let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": at}});
        let complete = json!({"jsonrpc": "2.0", "method": "notifications/elicitation/complete", "params": {"elicitationId": format!("e{at}")}});
        // A request with a response cannot be withdrawn.
        let of_cancel = if request.is_answered { Target::Dropped } else { expected.clone() };
        for (message, expected) in [(cancel, of_cancel), (complete, expected)] {
            assert_eq!(self.route(&message), (expected, message));
        }
    }
}

proptest! {
    #[test]
    fn sessions_on_one_channel_do_not_meet(steps in proptest::collection::vec(step(), 1..80)) {
        let mut model = Model { routing: Routing::of_sessions(scattered), calls: Vec::new(), requests: Vec::new() };
        for step in steps {
            let calls = model.calls.len();
            let requests = model.requests.len();
            match step {
                Step::Begin { member, id, has_token } => model.begin(member, id, has_token),
                Step::Progress(at) if calls > 0 => model.progress(at % calls),
                Step::Response(at) if calls > 0 => model.respond(at % calls),
                Step::GiveUp(at) if calls > 0 => model.give_up(at % calls),
                Step::Cancel { member, id } => model.cancel(member, id),
                Step::Ask { member, in_call } => model.ask(member, in_call),
                Step::Reply { member, at } if requests > 0 => model.reply(member, at % requests),
                Step::ProgressOfReply { member, at } if requests > 0 => model.progress_of_reply(member, at % requests),
                Step::Withdraw(at) if requests > 0 => model.withdraw(at % requests),
                _ => {}
            }
        }
        for call in 0..model.calls.len() {
            model.give_up(call);
        }
        prop_assert!(model.routing.is_empty(), "a name of a call that is over is left");
    }
}

#[test]
fn a_request_of_the_proxys_own_has_a_number_of_its_own_and_no_receiver() {
    let mut model = Model { routing: Routing::of_sessions(scattered), calls: Vec::new(), requests: Vec::new() };
    let own: BTreeSet<String> =
        (0..3).filter_map(|_| model.routing.begin_own()).map(|number| number.to_json()).collect();
    assert_eq!(own.len(), 3);
    for number in own {
        let number: Value = serde_json::from_str(&number).expect("a number");
        let response = json!({"jsonrpc": "2.0", "id": number, "result": {}});
        assert_eq!(model.route(&response).0, Target::Own);
        assert_eq!(model.route(&response).0, Target::Dropped);
    }
    assert_eq!(Routing::default().begin_own(), None::<RequestId>);
    let unknown = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}});
    assert_eq!(model.route(&unknown).0, Target::Dropped);
    let changed = json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"});
    assert_eq!(model.route(&changed).0, Target::Standalone);
}
