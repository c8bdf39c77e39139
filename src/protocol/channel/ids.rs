//! Names of calls and requests on a channel, and the numbers of requests on a channel that several
//! callers share.
//!
//! Callers choose their ids and progress tokens independently, so two of them may choose the same.
//! Towards the server each request has a number of the proxy's, which is its progress token as
//! well. On the way back the caller's own names replace it. Numbers are random, and integers since
//! some servers take no strings. No number belongs to a running request, or to a request whose
//! response may still arrive. Every other byte of a message stays.

use std::collections::HashMap;
use std::ops::Range;

use bytes::Bytes;

use crate::jsonrpc::{self, Message, RequestId};

const ID: &[&str] = &["id"];
const TOKEN_OF_REQUEST: &[&str] = &["params", "_meta", "progressToken"];
const TOKEN_OF_PROGRESS: &[&str] = &["params", "progressToken"];
const CANCELLED: &[&str] = &["params", "requestId"];
const SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";
const SUBSCRIPTION_OF_NOTIFICATION: &[&str] = &["params", "_meta", SUBSCRIPTION];
const SUBSCRIPTION_OF_RESULT: &[&str] = &["result", "_meta", SUBSCRIPTION];

/// Bits of a number. All languages keep an integer of this size, also languages with doubles alone.
const BITS: u32 = 53;

/// Size limit of the remembered ID of a request, in bytes.
pub const ID_MAX: usize = 1024;

/// Source of numbers that cannot be guessed.
pub type Random = fn() -> u64;

/// A call on a channel, by number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct CallKey(pub u64);

/// A session on a channel, by number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct MemberKey(pub u64);

/// Receiver of a server request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Receiver {
    /// The response of this call.
    Call(CallKey),
    /// The standalone stream of this session.
    Standalone(MemberKey),
}

/// A running request has the same id.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the ID of the request is in use")]
pub struct IdInUse;

/// A request that has no response, by both of its names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Owed {
    /// Id at the server.
    pub at_server: RequestId,
    /// The id that its caller gave it.
    pub at_caller: RequestId,
}

/// Numbers of the running calls. The calls bound its size.
#[derive(Debug)]
pub(super) struct Ids {
    random: Random,
    names: HashMap<RequestId, Name>,
    calls: HashMap<CallKey, Vec<RequestId>>,
    /// Numbers by the names that sessions gave their requests.
    numbers: HashMap<(MemberKey, RequestId), RequestId>,
    /// True if running requests of one session may have one id.
    allows_repeats: bool,
}

/// Names that a caller gave a request.
#[derive(Debug)]
struct Name {
    call: CallKey,
    /// Session of the request, or `None` without a session.
    member: Option<MemberKey>,
    id: RequestId,
    token: Option<RequestId>,
    is_listen: bool,
}

impl Ids {
    pub(super) fn new(random: Random) -> Self {
        Self { random, names: HashMap::new(), calls: HashMap::new(), numbers: HashMap::new(), allows_repeats: false }
    }

    /// Creates numbers for requests whose ids are in use in their session. An id that several
    /// requests share leads to the number of the last one.
    pub(super) fn of_repeated(random: Random) -> Self {
        Self { allows_repeats: true, ..Self::new(random) }
    }

    /// Returns true if no request has a number.
    pub(super) fn is_unused(&self) -> bool {
        self.calls.is_empty()
    }

    /// Numbers the requests of a call: `messages` and their `texts` are renamed in place. Skips
    /// numbers that `is_taken` knows.
    ///
    /// # Errors
    /// If two requests have the same id, or a running request of the session has it: their
    /// responses could not be distinguished.
    pub(super) fn begin(
        &mut self,
        call: CallKey,
        member: Option<MemberKey>,
        messages: &mut [Message],
        texts: &mut [Bytes],
        is_taken: impl Fn(&RequestId) -> bool,
    ) -> Result<(), IdInUse> {
        let mut names: Vec<(RequestId, Name)> = Vec::new();
        for (message, text) in messages.iter_mut().zip(texts) {
            let Message::Request { id, method } = message else { continue };
            let is_used =
                !self.allows_repeats && member.is_some_and(|member| self.numbers.contains_key(&(member, id.clone())));
            if is_used || names.iter().any(|(_, name)| name.id == *id) {
                return Err(IdInUse);
            }
            let number = self.new_number(|number| is_taken(number) || names.iter().any(|(other, _)| other == number));
            let place = |path| value_at(text, path).map(|value| jsonrpc::span(text, value));
            let token = value_at(text, TOKEN_OF_REQUEST).and_then(RequestId::from_json);
            let mut splices: Vec<_> = place(ID).map(|place| (place, number.to_json())).into_iter().collect();
            if token.is_some() {
                splices.extend(place(TOKEN_OF_REQUEST).map(|place| (place, number.to_json())));
            }
            *text = jsonrpc::splice(text, splices).into();
            let is_listen = method == "subscriptions/listen";
            let id = std::mem::replace(id, number.clone());
            names.push((number, Name { call, member, id, token, is_listen }));
        }
        self.calls.insert(call, names.iter().map(|(number, _)| number.clone()).collect());
        for (number, name) in &names {
            if let Some(member) = name.member {
                self.numbers.insert((member, name.id.clone()), number.clone());
            }
        }
        self.names.extend(names);
        Ok(())
    }

    /// Returns a number that no running request has, and that `is_taken` does not know. Sequential
    /// numbers would reveal the requests of other callers, and some servers read the `ID` of a
    /// message as its `id`.
    pub(super) fn new_number(&self, is_taken: impl Fn(&RequestId) -> bool) -> RequestId {
        loop {
            let number = RequestId::Number(((self.random)() >> (u64::BITS - BITS)).to_string().into());
            if !self.names.contains_key(&number) && !is_taken(&number) {
                return number;
            }
        }
    }

    /// Returns the number of a request of a session.
    pub(super) fn number_of(&self, member: MemberKey, id: &RequestId) -> Option<&RequestId> {
        self.numbers.get(&(member, id.clone()))
    }

    /// Forgets an ended call.
    pub(super) fn end(&mut self, call: CallKey) {
        for number in self.calls.remove(&call).unwrap_or_default() {
            let Some(Name { member: Some(member), id, .. }) = self.names.remove(&number) else { continue };
            let key = (member, id);
            // A later request may have taken the id over.
            if self.numbers.get(&key) == Some(&number) {
                self.numbers.remove(&key);
            }
        }
    }

    /// Returns true if no call runs.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.names.is_empty() && self.calls.is_empty() && self.numbers.is_empty()
    }

    /// Returns the caller's id of the request with this number.
    pub(super) fn id_at_caller(&self, number: &RequestId) -> Option<&RequestId> {
        Some(&self.names.get(number)?.id)
    }

    /// Returns the number that a notification of the server names, as its request or as its
    /// progress token.
    pub(super) fn named_by(method: &str, text: &[u8]) -> Option<RequestId> {
        let path = match method {
            "notifications/progress" => TOKEN_OF_PROGRESS,
            "notifications/cancelled" => CANCELLED,
            _ => SUBSCRIPTION_OF_NOTIFICATION,
        };
        value_at(text, path).and_then(RequestId::from_json)
    }

    /// Returns a message of the server for `call` with the caller's names in place of the numbers.
    /// Returns `None` if it has no number of the call.
    pub(super) fn to_caller(&self, call: CallKey, message: &Message, text: &[u8]) -> Option<Vec<u8>> {
        let mut splices = self.splices(call, message, text);
        if splices.is_empty() {
            // A response that only lenient parsers read.
            splices = self.splices(call, message, &jsonrpc::readable(text)?);
        }
        if splices.is_empty() { None } else { Some(jsonrpc::splice(text, splices)) }
    }

    fn splices(&self, call: CallKey, message: &Message, text: &[u8]) -> Vec<(Range<usize>, String)> {
        let mut splices = Vec::new();
        let mut rename = |path, by: fn(&Name) -> Option<&RequestId>| {
            splices.extend(self.renamed(call, text, path, by));
        };
        match message {
            Message::Response { id: Some(id), .. } => {
                rename(ID, |name| Some(&name.id));
                if self.names.get(id).is_some_and(|name| name.is_listen) {
                    rename(SUBSCRIPTION_OF_RESULT, |name| Some(&name.id));
                }
            }
            Message::Notification { method } => {
                match &**method {
                    "notifications/progress" => rename(TOKEN_OF_PROGRESS, |name| name.token.as_ref()),
                    "notifications/cancelled" => rename(CANCELLED, |name| Some(&name.id)),
                    _ => {}
                }
                rename(SUBSCRIPTION_OF_NOTIFICATION, |name| Some(&name.id));
            }
            Message::Response { id: None, .. } | Message::Request { .. } => {}
        }
        splices
    }

    /// Returns the place of a number of `call` in `text`, with the caller's name for it.
    fn renamed(
        &self,
        call: CallKey,
        text: &[u8],
        path: &'static [&'static str],
        by: fn(&Name) -> Option<&RequestId>,
    ) -> Option<(Range<usize>, String)> {
        let value = value_at(text, path)?;
        let name = self.names.get(&RequestId::from_json(value)?).filter(|name| name.call == call)?;
        Some((jsonrpc::span(text, value), by(name)?.to_json()))
    }
}

fn value_at<'a>(text: &'a [u8], path: &'static [&'static str]) -> Option<&'a str> {
    jsonrpc::member(text, path)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use bytes::Bytes;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::channel::routing::{Routing, Target};

    /// A channel with both of its sides: the tests speak for the server.
    #[derive(Default)]
    struct Channel {
        routing: Option<Routing>,
    }

    /// Numbers from 1, in each test.
    fn next_number() -> u64 {
        thread_local!(static LAST: std::cell::Cell<u64> = const { std::cell::Cell::new(0) });
        LAST.set(LAST.get() + 1);
        LAST.get() << (u64::BITS - BITS)
    }

    impl Channel {
        fn routing(&mut self) -> &mut Routing {
            self.routing.get_or_insert_with(|| Routing::shared(next_number))
        }

        /// Begins a call and returns the request that the server gets.
        fn call(&mut self, call: u64, request: &str) -> String {
            let body = Bytes::copy_from_slice(request.as_bytes());
            let mut messages = jsonrpc::peek(&body).expect("a message").messages().to_vec();
            let mut texts = [body];
            self.routing().begin(CallKey(call), None, &mut messages, &mut texts).expect("numbers are new");
            String::from_utf8(texts[0].to_vec()).expect("text")
        }

        /// Returns the call that gets a message of the server, and the message as its caller sees
        /// it.
        fn say(&mut self, text: &str) -> (Target, String) {
            let text = Bytes::copy_from_slice(text.as_bytes());
            let message = jsonrpc::peek(&text).expect("a message").messages()[0].clone();
            let (target, text) = self.routing().route(&message, text);
            (target, String::from_utf8(text.to_vec()).expect("text"))
        }
    }

    fn to(call: u64, is_complete: bool) -> Target {
        Target::Call { call: CallKey(call), is_complete }
    }

    #[test]
    fn numbers_take_the_places_of_ids_and_tokens_and_no_other_byte_changes() {
        let mut channel = Channel::default();
        let request =
            r#"{ "jsonrpc":"2.0","id": "a" ,"method":"m","params":{"id":"a","_meta":{"progressToken":"a", "x":"a"}}}"#;
        let sent = channel.call(7, request);
        assert_eq!(
            sent,
            r#"{ "jsonrpc":"2.0","id": 1 ,"method":"m","params":{"id":"a","_meta":{"progressToken":1, "x":"a"}}}"#
        );
        let progress =
            r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1}}"#;
        let seen = r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"a","progress":1}}"#;
        assert_eq!(channel.say(progress), (to(7, false), seen.to_owned()));
        let response = r#"{"jsonrpc":"2.0", "id":1,"result":{"id":1,"_meta":{"progressToken":1}}}"#;
        let seen = r#"{"jsonrpc":"2.0", "id":"a","result":{"id":1,"_meta":{"progressToken":1}}}"#;
        assert_eq!(channel.say(response), (to(7, true), seen.to_owned()));
        assert_eq!(channel.say(progress).0, Target::Dropped, "its call is over");
        assert_eq!(channel.say(response).0, Target::Dropped, "a second response");
    }

    #[test]
    fn a_subscription_is_named_by_its_request() {
        let mut channel = Channel::default();
        channel.call(1, r#"{"jsonrpc":"2.0","id":5,"method":"subscriptions/listen"}"#);
        channel.call(2, r#"{"jsonrpc":"2.0","id":5,"method":"subscriptions/listen"}"#);
        let tagged = |id| json!({"_meta": {"io.modelcontextprotocol/subscriptionId": id}});
        let changed =
            |id| json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed", "params": tagged(id)});
        let (target, seen) = channel.say(&changed(2).to_string());
        assert_eq!((target, seen), (to(2, false), changed(5).to_string()));
        let cancelled =
            |id| json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}});
        assert_eq!(channel.say(&cancelled(2).to_string()), (to(2, false), cancelled(5).to_string()));
        let end = |id| json!({"jsonrpc": "2.0", "id": id, "result": tagged(id)});
        assert_eq!(channel.say(&end(1).to_string()), (to(1, true), end(5).to_string()));
        assert_eq!(channel.say(&changed(1).to_string()).0, Target::Dropped, "its stream is over");
        let unnamed = r#"{"jsonrpc":"2.0","method":"notifications/message"}"#;
        assert_eq!(channel.say(unnamed).0, Target::Standalone);
    }

    #[test]
    fn a_message_does_not_show_the_names_of_another_call() {
        let mut channel = Channel::default();
        for (call, id) in [(1, "mine"), (2, "secret")] {
            let params = json!({"_meta": {"progressToken": id}});
            let request = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params});
            channel.call(call, &request.to_string());
        }
        let progress = |token| {
            json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": token,
                "_meta": {"io.modelcontextprotocol/subscriptionId": 2}}})
        };
        let (target, seen) = channel.say(&progress(json!(1)).to_string());
        assert_eq!((target, seen), (to(1, false), progress(json!("mine")).to_string()));
    }

    #[test]
    fn what_is_given_up_has_both_names() {
        let mut channel = Channel::default();
        channel.call(1, r#"{"jsonrpc":"2.0","id":"x","method":"m"}"#);
        let [at_server, at_caller] = ["1", "\"x\""].map(|id| RequestId::from_json(id).expect("an id"));
        assert_eq!(channel.routing().give_up(CallKey(1)), [Owed { at_server, at_caller }]);
        assert_eq!(channel.say(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#).0, Target::Dropped);
        assert!(channel.call(2, r#"{"jsonrpc":"2.0","id":"x","method":"m"}"#).contains(r#""id":2"#));
    }

    #[test]
    fn a_message_that_is_no_utf_8_is_renamed_as_well() {
        let mut channel = Channel::default();
        channel.call(1, r#"{"jsonrpc":"2.0","id":"x","method":"m"}"#);
        let text = Bytes::from_static(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"a\":\"\xff\"}}");
        let message = jsonrpc::peek(&text).expect("a message").messages()[0].clone();
        let (_, seen) = channel.routing().route(&message, text);
        assert_eq!(&seen[..], b"{\"jsonrpc\":\"2.0\",\"id\":\"x\",\"result\":{\"a\":\"\xff\"}}");
    }

    #[test]
    fn a_number_is_none_of_a_request_that_runs_and_no_more_than_a_double_holds() {
        let mut channel = Channel { routing: Some(Routing::shared(|| u64::MAX)) };
        assert!(channel.call(1, r#"{"jsonrpc":"2.0","id":"x","method":"m"}"#).contains(r#""id":9007199254740991,"#));
        let [taken, free] = [1, 2].map(|number| RequestId::from_json(&number.to_string()).expect("a number"));
        assert_eq!(Ids::new(next_number).new_number(|number| *number == taken), free);
    }

    /// One step of a schedule. Callers and calls are chosen by number.
    #[derive(Clone, Debug)]
    enum Step {
        Begin { caller: u8, id: u8, token: Option<u8>, listens: bool },
        Progress(usize),
        Tagged(usize),
        Cancelled(usize),
        Answer(usize),
        Leave(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        let begin = (0..3u8, 0..3u8, proptest::option::of(0..3u8), any::<bool>());
        prop_oneof![
            3 => begin.prop_map(|(caller, id, token, listens)| Step::Begin { caller, id, token, listens }),
            2 => (0..20usize).prop_map(Step::Progress),
            1 => (0..20usize).prop_map(Step::Tagged),
            1 => (0..20usize).prop_map(Step::Cancelled),
            2 => (0..20usize).prop_map(Step::Answer),
            1 => (0..20usize).prop_map(Step::Leave),
        ]
    }

    /// A call as the model knows it. Every payload names its caller, so that one in foreign hands
    /// is seen.
    struct Running {
        caller: u8,
        id: Value,
        token: Option<Value>,
        number: Value,
        listens: bool,
        is_complete: bool,
    }

    fn begin(channel: &mut Channel, key: u64, step: &Step) -> Option<Running> {
        let &Step::Begin { caller, id, token, listens } = step else { return None };
        // The same text as a string and as a number is another name.
        let name = |of: u8| if caller == 2 { json!(of.to_string()) } else { json!(of) };
        let (id, token) = (name(id), token.map(name));
        let method = if listens { "subscriptions/listen" } else { "tools/call" };
        let mut request = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": {"caller": caller}});
        if let Some(token) = &token {
            request["params"]["_meta"] = json!({ "progressToken": token });
        }
        let mut sent: Value = serde_json::from_str(&channel.call(key, &request.to_string())).expect("JSON");
        let number = sent["id"].take();
        if token.is_some() {
            assert_eq!(sent["params"]["_meta"]["progressToken"], number);
            sent["params"]["_meta"]["progressToken"] = request["params"]["_meta"]["progressToken"].clone();
        }
        sent["id"] = id.clone();
        assert_eq!(sent, request, "nothing else has changed");
        Some(Running { caller, id, token, number, listens, is_complete: false })
    }

    proptest! {
        #[test]
        fn each_message_reaches_its_caller_under_its_own_names(steps in proptest::collection::vec(step(), 1..60)) {
            let mut channel = Channel::default();
            let mut calls: Vec<Running> = Vec::new();
            let mut answered = BTreeMap::<u64, usize>::new();
            for step in &steps {
                if let Some(call) = begin(&mut channel, calls.len() as u64, step) {
                    prop_assert!(calls.iter().all(|other| other.number != call.number), "a number is used again");
                    calls.push(call);
                    continue;
                }
                let &(Step::Progress(at) | Step::Tagged(at) | Step::Cancelled(at) | Step::Answer(at) | Step::Leave(at)) =
                    step else { continue };
                let Some(index) = at.checked_rem(calls.len()) else { continue };
                let call = &mut calls[index];
                let key = index as u64;
                let meta = |id: &Value| json!({"io.modelcontextprotocol/subscriptionId": id});
                let message = |number: &Value, token: &Value| match step {
                    Step::Progress(_) => json!({"jsonrpc": "2.0", "method": "notifications/progress",
                        "params": {"progressToken": token, "caller": call.caller}}),
                    Step::Tagged(_) => json!({"jsonrpc": "2.0", "method": "notifications/x",
                        "params": {"_meta": meta(number), "caller": call.caller}}),
                    Step::Cancelled(_) => json!({"jsonrpc": "2.0", "method": "notifications/cancelled",
                        "params": {"requestId": number, "caller": call.caller}}),
                    _ if call.listens => json!({"jsonrpc": "2.0", "id": number, "result": {"_meta": meta(number)}}),
                    _ => json!({"jsonrpc": "2.0", "id": number, "result": {"caller": call.caller}}),
                };
                if let Step::Leave(_) = step {
                    let owed = channel.routing().give_up(CallKey(key));
                    prop_assert_eq!(owed.len(), usize::from(!call.is_complete));
                    for Owed { at_server, at_caller } in owed {
                        prop_assert_eq!(at_server.to_json(), call.number.to_string());
                        prop_assert_eq!(at_caller.to_json(), call.id.to_string());
                    }
                    call.is_complete = true;
                    continue;
                }
                let (target, seen) = channel.say(&message(&call.number, &call.number).to_string());
                let takes = !call.is_complete && (call.token.is_some() || !matches!(step, Step::Progress(_)));
                if !takes {
                    prop_assert_eq!(target, Target::Dropped);
                    continue;
                }
                let is_complete = matches!(step, Step::Answer(_));
                prop_assert_eq!(target, to(key, is_complete));
                let token = call.token.clone().unwrap_or_default();
                prop_assert_eq!(serde_json::from_str::<Value>(&seen).expect("JSON"), message(&call.id, &token));
                if is_complete {
                    call.is_complete = true;
                    *answered.entry(key).or_default() += 1;
                }
            }
            prop_assert!(answered.values().all(|&times| times == 1));
            for key in 0..calls.len() as u64 {
                channel.routing().give_up(CallKey(key));
            }
            prop_assert!(channel.routing().is_empty(), "a name of a call that is over is left");
        }
    }
}
