//! State of the sessions that share a server: the level of the log, and subscriptions.
//!
//! The server has the lowest level that a session requests, and a subscription while a session
//! holds it. Owned here: the decision to send a request or to respond in the server's place, and
//! the receivers of the resulting notifications. Invariant: the proxy responds in the server's
//! place only if the server has accepted an equal request, and nothing in flight could change that.
//! Absent: the messages (`routing`), sessions themselves, and the subscriptions of the bridge
//! (`upstream/bridge/modern_clients/listeners.rs`), which sends their requests itself.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};

use super::ids::MemberKey;
use super::server_requests::Remembered;
use crate::jsonrpc::{self, RequestId, SessionChange};

/// Maximum number of subscriptions of a session.
pub(super) const SUBSCRIPTIONS_MAX: usize = 256;
/// Maximum size of all subscribed URIs, in bytes.
const URI_BYTES_MAX: usize = 1024 * 1024;
/// Maximum number of outstanding requests for one subscription. The oldest is dropped.
const REQUESTS_MAX: usize = 64;
/// Levels of the log, the most verbose first.
pub(super) const LEVELS: [&str; 8] = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"];

const SET_LEVEL: &str = "logging/setLevel";

/// A request of the proxy's own: method and params.
pub type OwnRequest = (&'static str, Value);

/// Level of the log, as its place in [`LEVELS`].
type Level = usize;

/// State that the sessions on one channel share. Its size is bounded by their number.
#[derive(Debug, Default)]
pub struct SharedState {
    /// Levels that sessions have requested.
    levels: BTreeMap<MemberKey, Level>,
    /// Level that was sent last.
    sent: Option<Level>,
    /// Request that sent it, until its response.
    in_flight: Option<RequestId>,
    /// True if the server has accepted it.
    is_set: bool,
    subscriptions: HashMap<Arc<str>, Subscription>,
    uris: BTreeMap<MemberKey, BTreeSet<Arc<str>>>,
    uri_bytes: usize,
    /// Requests without a response of the server.
    requests: Remembered<Sent>,
}

/// Subscription to a resource.
#[derive(Debug, Default)]
struct Subscription {
    /// True if the server has accepted it.
    is_accepted: bool,
    /// Subscribed sessions. The flag is true if the server has confirmed the subscription for the
    /// session.
    holders: BTreeMap<MemberKey, bool>,
    /// Pending requests for it.
    requests: Vec<(RequestId, MemberKey)>,
}

/// Decision on a request of a session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Decision {
    /// The request goes to the server. It changes nothing of the state, or more than is kept.
    Pass,
    /// The request goes to the server, with this text.
    Forward(Change, Bytes),
    /// The proxy responds in the server's place.
    Answer(Change),
}

/// A change of the state.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    member: MemberKey,
    kind: Kind,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Kind {
    Level(Level),
    Subscribe(Arc<str>),
    Unsubscribe(Arc<str>),
}

/// A request that the server has, and that it may refuse.
#[derive(Debug)]
enum Sent {
    /// The session's level, and the one before.
    Level {
        member: MemberKey,
        requested: Level,
        before: Option<Level>,
    },
    /// A level of the proxy's own choice.
    OwnLevel,
    Subscription(MemberKey, Arc<str>),
}

impl SharedState {
    /// Decides on a request of a session. Changes nothing.
    pub fn decide(&self, member: MemberKey, text: &Bytes) -> Decision {
        let Some(change) = jsonrpc::session_change(text) else { return Decision::Pass };
        match change {
            SessionChange::LogLevel(level) => self.decide_level(member, &level, text),
            SessionChange::Subscribed(uri) => self.decide_subscription(member, &uri, text),
            SessionChange::Unsubscribed(uri) => {
                let holders = self.subscriptions.get(&*uri).map(|subscription| &subscription.holders);
                let has_others = holders.is_some_and(|holders| holders.keys().any(|holder| *holder != member));
                let change = Change { member, kind: Kind::Unsubscribe(uri.into()) };
                if has_others { Decision::Answer(change) } else { Decision::Forward(change, text.clone()) }
            }
        }
    }

    fn decide_level(&self, member: MemberKey, level: &str, text: &Bytes) -> Decision {
        // The server refuses an unknown level.
        let Some(requested) = LEVELS.iter().position(|known| *known == level) else { return Decision::Pass };
        let others = self.levels.iter().filter(|(other, _)| **other != member).map(|(_, level)| *level);
        let lowest = others.min().map_or(requested, |others| others.min(requested));
        let change = Change { member, kind: Kind::Level(requested) };
        if self.sent == Some(lowest) && self.is_set {
            return Decision::Answer(change);
        }
        let Some(place) = jsonrpc::member(text, &["params", "level"]).filter(|_| lowest != requested) else {
            return Decision::Forward(change, text.clone());
        };
        let lowered = jsonrpc::splice(text, vec![(jsonrpc::span(text, place), format!("{:?}", LEVELS[lowest]))]);
        Decision::Forward(change, lowered.into())
    }

    fn decide_subscription(&self, member: MemberKey, uri: &str, text: &Bytes) -> Decision {
        let change = Change { member, kind: Kind::Subscribe(uri.into()) };
        let known = self.subscriptions.get(uri);
        let holds = known.is_some_and(|subscription| subscription.holders.contains_key(&member));
        let count = self.uris.get(&member).map_or(0, BTreeSet::len);
        let is_full = known.is_none() && self.uri_bytes + uri.len() > URI_BYTES_MAX;
        if !holds && (count >= SUBSCRIPTIONS_MAX || is_full) {
            return Decision::Pass;
        }
        let is_accepted = known.is_some_and(|subscription| subscription.is_accepted);
        if is_accepted { Decision::Answer(change) } else { Decision::Forward(change, text.clone()) }
    }

    /// Applies a change. `number` is its request at the server, or `None` if the proxy responded in
    /// its place.
    pub fn apply(&mut self, change: Change, number: Option<RequestId>) {
        let Change { member, kind } = change;
        match kind {
            Kind::Level(requested) => {
                let before = self.levels.insert(member, requested);
                if let Some(number) = number {
                    let lowest = self.lowest();
                    self.record_level_request(lowest, number, Sent::Level { member, requested, before });
                }
            }
            Kind::Subscribe(uri) => self.subscribe(member, uri, number),
            Kind::Unsubscribe(uri) => {
                self.unsubscribe(member, &uri);
            }
        }
    }

    fn lowest(&self) -> Option<Level> {
        self.levels.values().min().copied()
    }

    fn record_level_request(&mut self, level: Option<Level>, number: RequestId, sent: Sent) {
        (self.sent, self.in_flight, self.is_set) = (level, Some(number.clone()), false);
        self.requests.insert(number, sent);
    }

    fn subscribe(&mut self, member: MemberKey, uri: Arc<str>, number: Option<RequestId>) {
        if !self.subscriptions.contains_key(&uri) {
            self.uri_bytes += uri.len();
        }
        let subscription = self.subscriptions.entry(uri.clone()).or_default();
        self.uris.entry(member).or_default().insert(uri.clone());
        let is_accepted = subscription.holders.entry(member).or_default();
        match number {
            Some(number) => {
                if subscription.requests.len() >= REQUESTS_MAX {
                    subscription.requests.remove(0);
                }
                subscription.requests.push((number.clone(), member));
                self.requests.insert(number, Sent::Subscription(member, uri));
            }
            None => *is_accepted = true,
        }
    }

    /// Takes a subscription from a session. Returns true if it was the last to hold it.
    fn unsubscribe(&mut self, member: MemberKey, uri: &str) -> bool {
        if let Some(uris) = self.uris.get_mut(&member) {
            uris.remove(uri);
            if uris.is_empty() {
                self.uris.remove(&member);
            }
        }
        let Some(subscription) = self.subscriptions.get_mut(uri) else { return false };
        let is_last = subscription.holders.remove(&member).is_some() && subscription.holders.is_empty();
        if is_last {
            self.subscriptions.remove(uri);
            self.uri_bytes -= uri.len();
        }
        is_last
    }

    /// Takes the response to a request. A refused change counts for no session. Returns a request
    /// that ends a subscription without holders.
    pub fn settle(&mut self, number: &RequestId, is_error: bool) -> Option<OwnRequest> {
        let sent = self.requests.remove(number)?;
        if self.in_flight.as_ref() == Some(number) {
            (self.in_flight, self.is_set) = (None, !is_error);
        }
        match sent {
            Sent::Level { member, requested, before } if is_error && self.levels.get(&member) == Some(&requested) => {
                match before {
                    Some(before) => self.levels.insert(member, before),
                    None => self.levels.remove(&member),
                };
                None
            }
            Sent::Level { .. } | Sent::OwnLevel => None,
            Sent::Subscription(member, uri) => {
                let subscription = self.subscriptions.get_mut(&uri)?;
                // A request of an ended subscription does not concern this one.
                let at = subscription.requests.iter().position(|(request, _)| request == number)?;
                subscription.requests.remove(at);
                subscription.is_accepted |= !is_error;
                let is_accepted = subscription.holders.get_mut(&member)?;
                *is_accepted |= !is_error;
                if *is_accepted || subscription.requests.iter().any(|(_, other)| *other == member) {
                    return None;
                }
                // A request of a session that has left may still be accepted.
                let may_be_held = subscription.is_accepted || !subscription.requests.is_empty();
                let is_last = self.unsubscribe(member, &uri);
                (is_last && may_be_held).then(|| unsubscribe(&uri))
            }
        }
    }

    /// Forgets an ended session. Returns the requests that end its subscriptions without other
    /// holders, and restore the level.
    pub fn leave(&mut self, member: MemberKey) -> Vec<OwnRequest> {
        let uris = self.uris.get(&member).cloned().unwrap_or_default();
        let freed = uris.into_iter().filter(|uri| self.unsubscribe(member, uri));
        let mut requests: Vec<_> = freed.map(|uri| unsubscribe(&uri)).collect();
        self.levels.remove(&member);
        if let Some(lowest) = self.lowest().filter(|&lowest| self.sent.is_some_and(|sent| sent != lowest)) {
            requests.push((SET_LEVEL, json!({ "level": LEVELS[lowest] })));
        }
        requests
    }

    /// Records the number of a request of the proxy's own.
    pub fn record_own_request(&mut self, method: &str, number: RequestId) {
        if method == SET_LEVEL {
            let lowest = self.lowest();
            self.record_level_request(lowest, number, Sent::OwnLevel);
        }
    }

    /// Returns the `members` that get a notification which names no call. A log message goes to
    /// sessions with its level. The update of a resource goes to subscribers of the resource, or of
    /// a resource that contains it. If there are no such subscribers, because the server writes the
    /// URI in another way, it goes to all subscribers.
    pub fn receivers(&self, method: &str, text: &[u8], members: impl Iterator<Item = MemberKey>) -> Vec<MemberKey> {
        let param = |path| jsonrpc::string_member(text, path);
        match method {
            "notifications/message" => {
                let level = param(&["params", "level"]);
                let level = level.and_then(|level| LEVELS.iter().position(|known| *known == level));
                let is_requested = |member: &MemberKey| match (self.levels.get(member), level) {
                    (Some(requested), Some(level)) => level >= *requested,
                    (None, _) | (_, None) => true,
                };
                members.filter(is_requested).collect()
            }
            "notifications/resources/updated" => match param(&["params", "uri"]) {
                Some(uri) => self.subscribers(&uri),
                None => members.collect(),
            },
            _ => members.collect(),
        }
    }

    fn subscribers(&self, uri: &str) -> Vec<MemberKey> {
        let holds =
            |uris: &BTreeSet<Arc<str>>| uris.contains(uri) || uris.iter().any(|whole| uri.starts_with(&**whole));
        let named: Vec<_> = self.uris.iter().filter(|(_, uris)| holds(uris)).map(|(member, _)| *member).collect();
        if named.is_empty() { self.uris.keys().copied().collect() } else { named }
    }

    /// Returns true if nothing of any session is left.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.levels.is_empty() && self.subscriptions.is_empty() && self.uris.is_empty() && self.uri_bytes == 0
    }
}

fn unsubscribe(uri: &str) -> OwnRequest {
    ("resources/unsubscribe", json!({ "uri": uri }))
}
