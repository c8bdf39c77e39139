//! The level and the subscriptions of sessions at one server.

use std::collections::BTreeSet;

use bytes::Bytes;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::ids::MemberKey;
use super::super::shared_state::{Decision, LEVELS, OwnRequest, SUBSCRIPTIONS_MAX, SharedState};
use crate::jsonrpc::RequestId;

const ONE: MemberKey = MemberKey(1);
const TWO: MemberKey = MemberKey(2);

fn number(n: u64) -> RequestId {
    RequestId::Number(n.to_string().into())
}

fn request(method: &str, param: &str, value: &str) -> Bytes {
    json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": {param: value}}).to_string().into()
}

/// A session's request, as the server gets it under this number. `None` if the proxy responds in
/// the server's place.
fn send(state: &mut SharedState, member: MemberKey, text: &Bytes, n: u64) -> Option<Value> {
    match state.decide(member, text) {
        Decision::Forward(change, text) => {
            state.apply(change, Some(number(n)));
            Some(serde_json::from_slice(&text).expect("JSON"))
        }
        Decision::Answer(change) => {
            state.apply(change, None);
            None
        }
        Decision::Pass => panic!("no change"),
    }
}

fn level(state: &mut SharedState, member: MemberKey, level: &str, n: u64) -> Option<String> {
    let sent = send(state, member, &request("logging/setLevel", "level", level), n)?;
    Some(sent["params"]["level"].as_str().expect("a level").to_owned())
}

fn all(state: &SharedState, method: &str, params: Value) -> Vec<MemberKey> {
    let text = json!({"jsonrpc": "2.0", "method": method, "params": params}).to_string();
    state.receivers(method, text.as_bytes(), [ONE, TWO].into_iter())
}

#[test]
fn the_server_has_the_lowest_level_that_is_asked() {
    let mut state = SharedState::default();
    assert_eq!(level(&mut state, ONE, "warning", 1).as_deref(), Some("warning"));
    assert_eq!(level(&mut state, TWO, "error", 2).as_deref(), Some("warning"), "the first is not accepted yet");
    state.settle(&number(1), false);
    state.settle(&number(2), false);
    assert_eq!(level(&mut state, TWO, "emergency", 3), None);
    assert_eq!(level(&mut state, TWO, "debug", 4).as_deref(), Some("debug"));
    state.settle(&number(4), false);
    let log = |level| json!({"level": level, "data": 1});
    assert_eq!(all(&state, "notifications/message", log("info")), [TWO]);
    assert_eq!(all(&state, "notifications/message", log("error")), [ONE, TWO]);
    assert_eq!(all(&state, "notifications/message", log("unheard")), [ONE, TWO]);
    assert_eq!(state.leave(TWO), [("logging/setLevel", json!({"level": "warning"}))]);
    state.record_own_request("logging/setLevel", number(5));
    state.settle(&number(5), false);
    assert_eq!(level(&mut state, ONE, "warning", 6), None);
    assert_eq!(state.leave(ONE), []);
    assert!(state.is_empty());
}

#[test]
fn a_level_that_the_server_refuses_counts_for_none() {
    let mut state = SharedState::default();
    assert!(level(&mut state, ONE, "debug", 1).is_some());
    state.settle(&number(1), true);
    assert_eq!(level(&mut state, TWO, "error", 2).as_deref(), Some("error"));
    assert_eq!(state.decide(ONE, &request("logging/setLevel", "level", "loud")), Decision::Pass);
}

#[test]
fn a_subscription_ends_with_the_last_session_that_holds_it() {
    let mut state = SharedState::default();
    let (subscribe, unsubscribe) = ("resources/subscribe", "resources/unsubscribe");
    let ask =
        |state: &mut SharedState, member, method, n| send(state, member, &request(method, "uri", "u:a"), n).is_some();
    assert!(ask(&mut state, ONE, subscribe, 1));
    assert!(ask(&mut state, TWO, subscribe, 2), "the first is not accepted yet");
    state.settle(&number(2), false);
    state.settle(&number(1), true);
    assert_eq!(all(&state, "notifications/resources/updated", json!({"uri": "u:a"})), [TWO]);
    assert!(!ask(&mut state, ONE, subscribe, 3));
    assert_eq!(all(&state, "notifications/resources/updated", json!({"uri": "u:a/part"})), [ONE, TWO]);
    assert!(!ask(&mut state, TWO, unsubscribe, 4));
    assert_eq!(all(&state, "notifications/resources/updated", json!({"uri": "U:a"})), [ONE]);
    assert_eq!(state.leave(ONE), [("resources/unsubscribe", json!({"uri": "u:a"}))]);
    assert!(state.is_empty());
    assert!(ask(&mut state, TWO, unsubscribe, 5), "none holds it, so the server responds");
}

#[test]
fn subscriptions_of_a_session_are_bounded() {
    let mut state = SharedState::default();
    for n in 0..SUBSCRIPTIONS_MAX as u64 {
        send(&mut state, ONE, &request("resources/subscribe", "uri", &format!("u:{n}")), n);
    }
    let more = request("resources/subscribe", "uri", "u:more");
    assert_eq!(state.decide(ONE, &more), Decision::Pass);
    assert!(matches!(state.decide(TWO, &more), Decision::Forward(..)));
    assert!(matches!(state.decide(ONE, &request("resources/subscribe", "uri", "u:1")), Decision::Forward(..)));
}

#[derive(Clone, Debug)]
enum Step {
    Subscribe(u64, u8),
    Unsubscribe(u64, u8),
    Level(u64, usize),
    Settle(usize, bool),
    Leave(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0..3u64, 0..3u8).prop_map(|(member, uri)| Step::Subscribe(member, uri)),
        2 => (0..3u64, 0..3u8).prop_map(|(member, uri)| Step::Unsubscribe(member, uri)),
        2 => (0..3u64, 0..LEVELS.len()).prop_map(|(member, level)| Step::Level(member, level)),
        4 => (0..8usize, any::<bool>()).prop_map(|(at, is_error)| Step::Settle(at, is_error)),
        1 => (0..3u64).prop_map(Step::Leave),
    ]
}

/// A server that takes one request after the other, and accepts it with its response.
#[derive(Default)]
struct Server {
    last: u64,
    waiting: Vec<(u64, String, Value)>,
    level: Option<String>,
    subscribed: BTreeSet<String>,
}

impl Server {
    fn take(&mut self, method: &str, params: Value) -> u64 {
        self.last += 1;
        self.waiting.push((self.last, method.to_owned(), params));
        self.last
    }

    fn respond(&mut self, is_error: bool, state: &mut SharedState) {
        let (n, method, params) = self.waiting.remove(0);
        let param = |name: &str| params[name].as_str().map(str::to_owned);
        match (&*method, is_error) {
            ("logging/setLevel", false) => self.level = param("level"),
            ("resources/subscribe", false) => drop(self.subscribed.insert(param("uri").expect("a URI"))),
            ("resources/unsubscribe", false) => drop(self.subscribed.remove(&param("uri").expect("a URI"))),
            _ => {}
        }
        let own = state.settle(&number(n), is_error);
        self.take_own(own, state);
    }

    fn take_own(&mut self, requests: impl IntoIterator<Item = OwnRequest>, state: &mut SharedState) {
        for (method, params) in requests {
            let n = self.take(method, params);
            state.record_own_request(method, number(n));
        }
    }
}

proptest! {
    #[test]
    fn the_server_keeps_what_the_sessions_were_told(steps in proptest::collection::vec(step(), 1..80)) {
        let (mut state, mut server) = (SharedState::default(), Server::default());
        let mut held = BTreeSet::new();
        for step in steps {
            let (member, method, param, value) = match step {
                Step::Subscribe(member, uri) => (member, "resources/subscribe", "uri", format!("u:{uri}")),
                Step::Unsubscribe(member, uri) => (member, "resources/unsubscribe", "uri", format!("u:{uri}")),
                Step::Level(member, level) => (member, "logging/setLevel", "level", LEVELS[level].to_owned()),
                Step::Settle(count, is_error) => {
                    for _ in 0..count.min(server.waiting.len()) {
                        // Only the first kind may be refused: what ends a subscription cannot.
                        let may_fail = server.waiting[0].1 != "resources/unsubscribe";
                        server.respond(is_error && may_fail, &mut state);
                    }
                    continue;
                }
                Step::Leave(member) => {
                    held.retain(|(holder, _)| *holder != member);
                    let own = state.leave(MemberKey(member));
                    server.take_own(own, &mut state);
                    continue;
                }
            };
            let text = request(method, param, &value);
            if method == "resources/unsubscribe" {
                held.remove(&(member, value.clone()));
            }
            match state.decide(MemberKey(member), &text) {
                Decision::Forward(change, text) => {
                    let params: Value = serde_json::from_slice(&text).expect("JSON");
                    let n = server.take(method, params["params"].clone());
                    state.apply(change, Some(number(n)));
                }
                Decision::Answer(change) => {
                    match method {
                        "resources/subscribe" => drop(held.insert((member, value))),
                        "resources/unsubscribe" => {}
                        _ => {
                            let requested = LEVELS.iter().position(|known| *known == value).expect("a level");
                            let set = server.level.as_ref().and_then(|set| LEVELS.iter().position(|known| known == set));
                            prop_assert!(set.is_some_and(|set| set <= requested), "told {value}, and the server has {set:?}");
                        }
                    }
                    state.apply(change, None);
                }
                Decision::Pass => prop_assert!(false, "a change"),
            }
            if server.waiting.is_empty() {
                for (_, uri) in &held {
                    prop_assert!(server.subscribed.contains(uri), "{uri} is held, and the server has not got it");
                }
            }
        }
        while !server.waiting.is_empty() {
            server.respond(false, &mut state);
        }
        for member in 0..3 {
            let own = state.leave(MemberKey(member));
            server.take_own(own, &mut state);
        }
        while !server.waiting.is_empty() {
            server.respond(false, &mut state);
        }
        prop_assert!(server.subscribed.is_empty(), "a subscription outlives the sessions");
        prop_assert!(state.is_empty());
    }
}
