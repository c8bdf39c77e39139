//! The routing of a channel's messages. Input: a byte that says if callers share the channel, then
//! steps of three bytes each.
//!
//! A message reaches the call whose name it has, under the names of that call's client; no other
//! byte changes. An ID is in use until the request is answered. Nothing of a call that is over is
//! left, and what is remembered is bounded.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap, HashSet};

use bytes::Bytes;
use mcp_resume::protocol::channel::ids::{CallKey, MemberKey, Owed, Receiver};
use mcp_resume::protocol::channel::routing::{Routing, Target};
use mcp_resume::protocol::jsonrpc::{self, RequestId, peek};
use serde_json::{Value, json};

const SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";
/// More questions than are remembered, and how often an input may ask so many.
const FLOOD: usize = 1100;
const FLOODS: usize = 2;
/// Bound of the names of questions in the state: ids and elicitations that are remembered, in their
/// order, of which some are forgotten.
const REMEMBERED_MAX: usize = 2 * 3 * 1024;
/// The session of a channel that has one.
const ONLY: MemberKey = MemberKey(0);
/// Bits above those of a number that stands in place of an id.
const UNUSED_BITS: u32 = u64::BITS - 53;

thread_local! {
    static NUMBERS: Cell<u64> = const { Cell::new(0) };
}

/// Numbers from 1 in each input: the proxy's are random, and no input could be repeated.
fn next_number() -> u64 {
    NUMBERS.set(NUMBERS.get() + 1);
    NUMBERS.get() << UNUSED_BITS
}

/// Runs one input.
pub(crate) fn run(bytes: &[u8]) {
    let Some((first, steps)) = bytes.split_first() else { return };
    let mut channel = Channel::new(first & 1 == 1);
    for step in steps.chunks_exact(3) {
        channel.step(step[0] % 16, step[1], step[2]);
        assert_eq!(channel.routing.is_running(), !channel.calls.is_empty());
    }
    channel.end();
}

/// A channel, and what is known of its calls, by the text of names in JSON.
struct Channel {
    routing: Routing,
    is_shared: bool,
    calls: BTreeMap<u64, Vec<Request>>,
    next: u64,
    /// Largest number that stood in place of an id.
    last_number: u64,
    /// Call that has declared a progress token last.
    tokens: HashMap<String, u64>,
    /// Receivers by the members that name questions, and the names.
    questions: HashMap<(&'static str, String), Receiver>,
    given_up: HashSet<String>,
    floods: usize,
}

#[derive(Clone)]
struct Request {
    at_server: Value,
    at_caller: Value,
    token: Option<Value>,
    is_listen: bool,
    is_answered: bool,
}

impl Channel {
    fn new(is_shared: bool) -> Self {
        NUMBERS.set(0);
        let routing = if is_shared { Routing::shared(next_number) } else { Routing::default() };
        Self {
            routing,
            is_shared,
            calls: BTreeMap::new(),
            next: 0,
            last_number: 0,
            tokens: HashMap::new(),
            questions: HashMap::new(),
            given_up: HashSet::new(),
            floods: 0,
        }
    }

    fn step(&mut self, kind: u8, one: u8, other: u8) {
        match kind {
            0 => self.answer(one, "result"),
            1 => self.answer(one, "error"),
            2 => self.progress(one),
            3 => self.follows_question(one, "notifications/cancelled", "requestId"),
            4 => self.follows_question(one, "notifications/elicitation/complete", "elicitationId"),
            5 => self.tagged(one),
            6 => self.plain(),
            7 => self.question(one, other),
            8..=11 => self.begin(one, other),
            12 => self.give_up(one),
            13 => self.withdraw(one),
            14 => self.flood(),
            _ => self.answer_to_none(),
        }
    }

    // ── the clients ──────────────────────────────────────────────────────────────────────────────

    fn begin(&mut self, one: u8, other: u8) {
        let key = self.next;
        self.next += 1;
        let ids = if one & 64 == 0 { vec![name(one)] } else { vec![name(one), name(other)] };
        let token = if one & 128 == 0 { Some(name(other)) } else { None };
        let is_listen = other & 128 != 0;
        let method = if is_listen { "subscriptions/listen" } else { "tools/call" };
        let sent: Vec<Value> = ids.iter().map(|id| request(id, method, token.as_ref(), key)).collect();
        let whole = if let [single] = &sent[..] { single.clone() } else { json!(sent) };
        let body = Bytes::from(whole.to_string());
        let mut messages = peek(&body).expect("a message").messages().to_vec();
        let texts = jsonrpc::messages(&body).into_iter().map(|text| body.slice(jsonrpc::span(&body, text)));
        let mut texts: Vec<Bytes> = texts.collect();
        let member = if self.is_shared { None } else { Some(ONLY) };
        let is_repeated = ids.len() == 2 && ids[0] == ids[1];
        let is_in_use = |id: &Value| self.call_of(id).is_some() || self.given_up.contains(&id.to_string());
        let is_refused = is_repeated || (!self.is_shared && ids.iter().any(is_in_use));
        let begun = self.routing.begin(CallKey(key), member, &mut messages, &mut texts);
        assert_eq!(begun.is_err(), is_refused, "{whole}");
        if begun.is_err() {
            return;
        }
        let passed: Vec<Value> = texts.iter().map(|text| serde_json::from_slice(text).expect("JSON")).collect();
        assert_eq!(passed.len(), sent.len());
        let of_call = passed.iter().zip(&ids).map(|(passed, at_caller)| {
            let at_server = passed["id"].clone();
            let at_token = if self.is_shared { Some(&at_server) } else { token.as_ref() };
            assert_eq!(
                *passed,
                request(&at_server, method, token.as_ref().and(at_token), key),
                "another byte has changed"
            );
            Request { at_server, at_caller: at_caller.clone(), token: token.clone(), is_listen, is_answered: false }
        });
        let of_call: Vec<Request> = of_call.collect();
        for request in &of_call {
            if self.is_shared {
                let number = request.at_server.as_u64().expect("a number");
                assert!(number > self.last_number, "a number is used again");
                self.last_number = number;
            } else {
                assert_eq!(request.at_server, request.at_caller);
            }
            let token = if self.is_shared { &request.at_server } else { token.as_ref().unwrap_or(&Value::Null) };
            if request.token.is_some() {
                self.tokens.insert(token.to_string(), key);
            }
        }
        self.calls.insert(key, of_call);
    }

    fn give_up(&mut self, one: u8) {
        let key = self.some_call(one);
        let owed = self.routing.give_up(CallKey(key));
        let left = self.calls.remove(&key).unwrap_or_default();
        let left: Vec<&Request> = left.iter().filter(|request| !request.is_answered).collect();
        let names =
            left.iter().map(|request| Owed { at_server: id(&request.at_server), at_caller: id(&request.at_caller) });
        assert_eq!(owed, names.collect::<Vec<_>>());
        self.given_up.extend(left.iter().map(|request| request.at_server.to_string()));
    }

    fn withdraw(&mut self, one: u8) {
        let key = self.some_call(one);
        self.routing.withdraw(CallKey(key));
        self.calls.remove(&key);
    }

    fn some_call(&self, one: u8) -> u64 {
        self.next.saturating_sub(u64::from(one % 8))
    }

    // ── the server ───────────────────────────────────────────────────────────────────────────────

    fn answer(&mut self, one: u8, member: &str) {
        let named = self.name_at_server(one);
        let message =
            |id: &Value, tag: &Value| json!({"jsonrpc": "2.0", "id": id, member: {"_meta": {SUBSCRIPTION: tag}}});
        let found = self.call_of(&named).map(|key| (key, self.request(key, &named)));
        assert_eq!(self.routing.call_of(&id(&named)), found.as_ref().map(|(key, _)| CallKey(*key)));
        let expected = match &found {
            Some((_, request)) => {
                let tag = if request.is_listen && member == "result" { &request.at_caller } else { &named };
                message(&request.at_caller, tag)
            }
            None => message(&named, &named),
        };
        let (target, seen) = self.route(&message(&named, &named));
        let Some((key, _)) = found else {
            assert_eq!((target, seen), (Target::Dropped, expected));
            self.given_up.remove(&named.to_string());
            return;
        };
        let requests = self.calls.get_mut(&key).expect("a call that runs");
        requests.iter_mut().filter(|request| request.at_server == named).for_each(|request| request.is_answered = true);
        let is_complete = requests.iter().all(|request| request.is_answered);
        if is_complete {
            self.calls.remove(&key);
        }
        assert_eq!((target, seen), (Target::Call { call: CallKey(key), is_complete }, expected));
    }

    fn answer_to_none(&mut self) {
        let message = json!({"jsonrpc": "2.0", "id": null, "error": {"code": -32700, "message": ""}});
        assert_eq!(self.route(&message), (Target::Dropped, message));
    }

    fn progress(&mut self, one: u8) {
        let named = self.name_at_server(one);
        let message = |token: &Value, tag: &Value| {
            json!({"jsonrpc": "2.0", "method": "notifications/progress",
                "params": {"progressToken": token, "progress": 1, "_meta": {SUBSCRIPTION: tag}}})
        };
        let call = self.tokens.get(&named.to_string()).copied().filter(|key| self.calls.contains_key(key));
        let (target, expected) = match call {
            Some(key) if self.is_shared => {
                let request = self.request(key, &named);
                let token = request.token.as_ref().expect("a token");
                (to(key), message(token, &request.at_caller))
            }
            Some(key) => (to(key), message(&named, &named)),
            None if self.is_shared => (Target::Dropped, message(&named, &named)),
            None => (Target::Standalone, message(&named, &named)),
        };
        assert_eq!(self.route(&message(&named, &named)), (target, expected));
    }

    /// A notification that names a question on a channel of one session. On a shared one it may
    /// name a request.
    fn follows_question(&mut self, one: u8, method: &str, member: &'static str) {
        let named = self.name_at_server(one);
        let message = |name: &Value| json!({"jsonrpc": "2.0", "method": method, "params": {member: name}});
        let (target, expected) = if !self.is_shared {
            let target = match self.questions.get(&(member, named.to_string())) {
                Some(Receiver::Call(CallKey(key))) if self.calls.contains_key(key) => to(*key),
                Some(_) | None => Target::Standalone,
            };
            (target, message(&named))
        } else if member == "requestId" {
            self.named_request(&named, message)
        } else {
            (Target::Standalone, message(&named))
        };
        assert_eq!(self.route(&message(&named)), (target, expected));
    }

    fn tagged(&mut self, one: u8) {
        let named = self.name_at_server(one);
        let message = |name: &Value| json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed", "params": {"_meta": {SUBSCRIPTION: name}}});
        let expected =
            if self.is_shared { self.named_request(&named, message) } else { (Target::Standalone, message(&named)) };
        assert_eq!(self.route(&message(&named)), expected);
    }

    fn plain(&mut self) {
        let message = json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {}});
        assert_eq!(self.route(&message), (Target::Standalone, message));
    }

    fn question(&mut self, one: u8, other: u8) {
        let (named, elicitation) = (self.name_at_server(one), name(other));
        let message = json!({"jsonrpc": "2.0", "id": named, "method": "elicitation/create",
            "params": {"elicitationId": elicitation}});
        let text = message.to_string();
        assert_eq!(self.route(&message), (Target::Unnamed(id(&named)), message));
        if self.is_shared {
            return;
        }
        let receiver =
            if other & 64 == 0 { Receiver::Call(CallKey(self.some_call(one))) } else { Receiver::Standalone(ONLY) };
        self.routing.insert_server_request(text.as_bytes(), id(&named), receiver, ONLY);
        self.questions.insert(("requestId", named.to_string()), receiver);
        self.questions.insert(("elicitationId", elicitation.to_string()), receiver);
    }

    /// Asks until all older questions are forgotten.
    fn flood(&mut self) {
        if self.is_shared || self.floods == FLOODS {
            return;
        }
        self.floods += 1;
        for number in 0..FLOOD {
            let name = format!("flood-{}-{number}", self.floods);
            let text = json!({"params": {"elicitationId": name}}).to_string();
            let named = RequestId::String(name.into());
            self.routing.insert_server_request(text.as_bytes(), named, Receiver::Standalone(ONLY), ONLY);
        }
        self.questions.clear();
    }

    fn route(&mut self, message: &Value) -> (Target, Value) {
        let text = Bytes::from(message.to_string());
        let peeked = peek(&text).expect("a message");
        let (target, seen) = self.routing.route(&peeked.messages()[0], text.clone());
        (target, serde_json::from_slice(&seen).expect("JSON"))
    }

    /// Target and text of a message on a shared channel that names a request.
    fn named_request(&self, named: &Value, message: impl Fn(&Value) -> Value) -> (Target, Value) {
        match self.call_of(named) {
            Some(key) => (to(key), message(&self.request(key, named).at_caller)),
            None => (Target::Dropped, message(named)),
        }
    }

    /// A name as the server may write it: of a request, or of none.
    fn name_at_server(&self, one: u8) -> Value {
        if !self.is_shared {
            return name(one);
        }
        let number = self.last_number.saturating_sub(u64::from(one % 16));
        if one & 128 == 0 { json!(number) } else { json!(number.to_string()) }
    }

    fn call_of(&self, at_server: &Value) -> Option<u64> {
        let is_it = |request: &Request| !request.is_answered && request.at_server == *at_server;
        self.calls.iter().find(|(_, requests)| requests.iter().any(is_it)).map(|(&key, _)| key)
    }

    fn request(&self, key: u64, at_server: &Value) -> Request {
        let request = self.calls[&key].iter().find(|request| request.at_server == *at_server);
        request.expect("a request of the call").clone()
    }

    // ── the end ──────────────────────────────────────────────────────────────────────────────────

    fn end(&mut self) {
        for key in 0..self.next {
            self.routing.give_up(CallKey(key));
        }
        assert!(!self.routing.is_running());
        let state = format!("{:?}", self.routing);
        let (of_calls, remembered) = state.split_once("server_requests").expect("a field");
        assert!(!of_calls.contains("CallKey"), "a call is left: {of_calls}");
        assert!(!self.is_shared || !remembered.contains("CallKey"), "a name is left: {remembered}");
        assert!(remembered.matches("flood-").count() <= REMEMBERED_MAX);
    }
}

fn to(key: u64) -> Target {
    Target::Call { call: CallKey(key), is_complete: false }
}

fn request(id: &Value, method: &str, token: Option<&Value>, call: u64) -> Value {
    let mut request = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": {"call": call}});
    if let Some(token) = token {
        request["params"]["_meta"] = json!({ "progressToken": token });
    }
    request
}

/// One of few names. A string and a number of the same text differ.
fn name(byte: u8) -> Value {
    let number = byte % 4;
    if byte & 16 == 0 { json!(number) } else { json!(number.to_string()) }
}

fn id(name: &Value) -> RequestId {
    RequestId::from_json(&name.to_string()).expect("a name")
}
