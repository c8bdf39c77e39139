//! The routing of server messages to responses.
//!
//! On Streamable HTTP the response with a message shows its call. On a channel only the message
//! itself does: a response by its ID, progress by its token. Owned here: the ids, tokens and server
//! requests of one channel. One session owns the channel, or several sessions or callers without
//! sessions share it. Absent: the choice for a message without a call, which depends on the
//! connected clients.

use std::collections::HashMap;

use bytes::Bytes;

use super::ids::{CallKey, IdInUse, Ids, MemberKey, Owed, Random, Receiver};
use super::server_requests::{Remembered, ServerRequests};
use crate::jsonrpc::{self, Message, RequestId};

/// Response for a message of the server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Target {
    /// The response of this call.
    Call {
        /// The call.
        call: CallKey,
        /// True after the last owed response of the call.
        is_complete: bool,
    },
    /// The standalone stream of each session: the message names no call.
    Standalone,
    /// The standalone stream of this session.
    Member(MemberKey),
    /// A server request that names no call. The caller chooses its receiver, and records it with
    /// [`Routing::insert_server_request`].
    Unnamed(RequestId),
    /// No receiver: the response to an abandoned or unknown call, or, on a shared channel, any
    /// message that names such a call.
    Dropped,
    /// No receiver: the response to a request of the proxy.
    Own,
}

/// State of one channel. Its size is bounded by the running calls, and beside them by constants.
#[derive(Debug, Default)]
pub struct Routing {
    calls: HashMap<CallKey, Call>,
    running: HashMap<RequestId, CallKey>,
    tokens: HashMap<RequestId, CallKey>,
    server_requests: ServerRequests,
    given_up: Remembered<()>,
    /// Requests of the proxy's own.
    own: Remembered<()>,
    /// Numbers in place of the callers' ids, on a shared channel.
    ids: Option<Ids>,
    /// Numbers in place of ids that are in use, on a channel of one session, or `None` on others.
    /// Most sessions never use an id twice.
    repeated: Option<Ids>,
    /// True if the callers have sessions, so that the server can send requests.
    has_sessions: bool,
    /// True once the server has `notifications/initialized`.
    is_initialized: bool,
}

#[derive(Debug, Default)]
struct Call {
    unanswered: Vec<RequestId>,
    tokens: Vec<RequestId>,
}

impl Routing {
    /// Returns the state of a channel that several callers without sessions share. The server sees
    /// numbers of the proxy's in place of their ids and tokens.
    pub fn shared(random: Random) -> Self {
        Self { ids: Some(Ids::new(random)), ..Self::default() }
    }

    /// Returns the state of a channel of one session. A request whose id is in use has a number
    /// towards the server, as each request has on a shared channel. Some clients give every request
    /// the same id.
    pub fn of_session(random: Random) -> Self {
        Self { repeated: Some(Ids::of_repeated(random)), ..Self::default() }
    }

    /// Returns the state of a channel that several sessions share, with numbers as on any shared
    /// one.
    pub fn of_sessions(random: Random) -> Self {
        Self { has_sessions: true, ..Self::shared(random) }
    }

    /// Begins a call of the session `member`, or of none, with `messages` and their `texts`, which
    /// get the names of the server.
    ///
    /// # Errors
    /// If two of its requests have the same id: their responses could not be distinguished. A
    /// channel without numbers also refuses an id of a running request, or of an abandoned request
    /// that is pending: the responses could be confused.
    pub fn begin(
        &mut self,
        call: CallKey,
        member: Option<MemberKey>,
        messages: &mut [Message],
        texts: &mut [Bytes],
    ) -> Result<(), IdInUse> {
        let is_in_use = |message: &Message| match message {
            Message::Request { id, .. } => self.running.contains_key(id) || self.given_up.contains(id),
            Message::Notification { .. } | Message::Response { .. } => false,
        };
        let repeated = if messages.iter().any(is_in_use) { self.repeated.as_mut() } else { None };
        if let Some(ids) = self.ids.as_mut().or(repeated) {
            let (given_up, own) = (&self.given_up, &self.own);
            ids.begin(call, member, messages, texts, |number| given_up.contains(number) || own.contains(number))?;
        }
        self.insert_call(call, messages, texts)
    }

    fn insert_call(&mut self, call: CallKey, messages: &[Message], texts: &[Bytes]) -> Result<(), IdInUse> {
        let ids = messages.iter().filter_map(|message| match message {
            Message::Request { id, .. } => Some(id.clone()),
            Message::Notification { .. } | Message::Response { .. } => None,
        });
        let unanswered: Vec<RequestId> = ids.collect();
        for (index, id) in unanswered.iter().enumerate() {
            let is_repeated = unanswered[..index].contains(id);
            if is_repeated || self.running.contains_key(id) || self.given_up.contains(id) {
                return Err(IdInUse);
            }
        }
        let tokens = texts.iter().filter_map(|text| jsonrpc::progress_token(text).and_then(RequestId::from_json));
        let tokens: Vec<RequestId> = tokens.collect();
        for id in &unanswered {
            self.running.insert(id.clone(), call);
        }
        for token in &tokens {
            self.tokens.insert(token.clone(), call);
        }
        self.calls.insert(call, Call { unanswered, tokens });
        Ok(())
    }

    /// Begins a request of the proxy's own on a shared channel, and returns its number: nothing
    /// takes its response.
    pub fn begin_own(&mut self) -> Option<RequestId> {
        let (given_up, own) = (&self.given_up, &self.own);
        let number = self.ids.as_ref()?.new_number(|number| given_up.contains(number) || own.contains(number));
        self.own.insert(number.clone(), ());
        Some(number)
    }

    /// Returns the number of a request of a session that runs on a channel of several sessions.
    pub fn number_of(&self, member: MemberKey, id: &RequestId) -> Option<&RequestId> {
        self.numbers()?.number_of(member, id)
    }

    /// Returns a notification or a response of a session in the form for the server. Returns `None`
    /// for a message that must not reach the server. These are a second response, a response to a
    /// request that went to another session, and a notification about a request of another session.
    /// On a channel of several sessions only one `notifications/initialized` reaches the server.
    pub fn from_member(&mut self, member: MemberKey, message: &Message, text: Bytes) -> Option<Bytes> {
        if !self.has_sessions {
            return Some(self.with_number(member, message, text));
        }
        match message {
            Message::Response { id, .. } => {
                let id = id.as_ref()?;
                self.server_requests.take_response(member, id).then_some(text)
            }
            Message::Notification { method } => match &**method {
                "notifications/initialized" => (!std::mem::replace(&mut self.is_initialized, true)).then_some(text),
                "notifications/cancelled" => self.renamed_cancel(member, &text),
                "notifications/progress" => {
                    let token = jsonrpc::member(&text, &["params", "progressToken"]).and_then(RequestId::from_json)?;
                    self.server_requests.has_token(member, &token).then_some(text)
                }
                _ => Some(text),
            },
            Message::Request { .. } => None,
        }
    }

    /// Returns the cancel of a request under the request's number if it has one. Returns every
    /// other message unchanged. Of equal ids the first is meant.
    fn with_number(&self, member: MemberKey, message: &Message, text: Bytes) -> Bytes {
        let has_numbers = self.repeated.as_ref().is_some_and(|repeated| !repeated.is_unused());
        let is_cancel = matches!(message, Message::Notification { method } if method == "notifications/cancelled");
        if !has_numbers
            || !is_cancel
            || jsonrpc::cancelled_request_id(&text).is_some_and(|id| self.running.contains_key(&id))
        {
            return text;
        }
        self.renamed_cancel(member, &text).unwrap_or(text)
    }

    /// Returns a cancel with the number of its request, or `None` if that has none.
    fn renamed_cancel(&self, member: MemberKey, text: &Bytes) -> Option<Bytes> {
        let place = jsonrpc::member(text, &["params", "requestId"])?;
        let number = self.number_of(member, &RequestId::from_json(place)?)?.to_json();
        Some(jsonrpc::splice(text, vec![(jsonrpc::span(text, place), number)]).into())
    }

    /// Returns the numbers that are in use.
    fn numbers(&self) -> Option<&Ids> {
        self.ids.as_ref().or(self.repeated.as_ref()).filter(|ids| !ids.is_unused())
    }

    /// Returns the call of a running request.
    pub fn call_of(&self, id: &RequestId) -> Option<CallKey> {
        self.running.get(id).copied()
    }

    /// Returns the number of owed responses of a call.
    pub fn owed(&self, call: CallKey) -> usize {
        self.calls.get(&call).map_or(0, |call| call.unanswered.len())
    }

    /// Returns true if nothing of any call is left.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        let has_names = [&self.ids, &self.repeated].into_iter().flatten().any(|ids| !ids.is_empty());
        self.calls.is_empty() && self.running.is_empty() && self.tokens.is_empty() && !has_names
    }

    /// Returns true if a call runs.
    pub fn is_running(&self) -> bool {
        !self.calls.is_empty()
    }

    /// Ends a call. Returns its requests without a response. Later responses to them are dropped.
    pub fn give_up(&mut self, call: CallKey) -> Vec<Owed> {
        let Some(Call { unanswered, tokens }) = self.calls.remove(&call) else { return Vec::new() };
        let mut owed = Vec::with_capacity(unanswered.len());
        for id in unanswered {
            self.running.remove(&id);
            let at_caller = self.numbers().and_then(|ids| ids.id_at_caller(&id)).unwrap_or(&id).clone();
            self.given_up.insert(id.clone(), ());
            owed.push(Owed { at_server: id, at_caller });
        }
        self.forget_names(call, tokens);
        owed
    }

    /// Forgets a call that did not reach the server.
    pub fn withdraw(&mut self, call: CallKey) {
        let Some(Call { unanswered, tokens }) = self.calls.remove(&call) else { return };
        for id in &unanswered {
            self.running.remove(id);
        }
        self.forget_names(call, tokens);
    }

    fn forget_names(&mut self, call: CallKey, tokens: Vec<RequestId>) {
        if let Some(ids) = self.ids.as_mut().or(self.repeated.as_mut()) {
            ids.end(call);
        }
        for token in tokens {
            // A later call may have taken the token over.
            if self.tokens.get(&token) == Some(&call) {
                self.tokens.remove(&token);
            }
        }
    }

    /// Returns a response under the id of its request, if its own id only equals that id as a
    /// number or as text. That id must belong to no other request. Returns `None` for every other
    /// message.
    pub fn respelled(&self, message: &Message, text: &[u8]) -> Option<(Message, Bytes)> {
        let Message::Response { id: Some(id), is_error } = message else { return None };
        if self.running.contains_key(id) || self.given_up.contains(id) || self.own.contains(id) {
            return None;
        }
        let is_running = |id: &RequestId| self.running.contains_key(id);
        let running = jsonrpc::only_alike(id, self.running.len(), self.running.keys(), is_running);
        // The numbers of the proxy's own requests have the usual spelling.
        let own = || jsonrpc::only_alike(id, usize::MAX, std::iter::empty(), |id| self.own.contains(id));
        let id = running.or_else(own)?;
        let text = jsonrpc::rename_ids(text, |_, _| Some(id.clone()))?;
        Some((Message::Response { id: Some(id), is_error: *is_error }, text.into()))
    }

    /// Returns the target of a server message, with the message for the caller. A response settles
    /// its request.
    pub fn route(&mut self, message: &Message, text: Bytes) -> (Target, Bytes) {
        match message {
            Message::Response { id: Some(id), .. } => {
                let text = match self.running.get(id) {
                    Some(&call) => self.to_caller(call, message, text),
                    None => text,
                };
                (self.take_response(id), text)
            }
            Message::Response { id: None, .. } => (Target::Dropped, text),
            Message::Request { id, .. } => (Target::Unnamed(id.clone()), text),
            Message::Notification { method } => {
                let target = self.notification(method, &text);
                let text = match target {
                    Target::Call { call, .. } => self.to_caller(call, message, text),
                    Target::Standalone | Target::Member(_) | Target::Unnamed(_) | Target::Dropped | Target::Own => text,
                };
                (target, text)
            }
        }
    }

    /// Returns a message for `call` with the names that its caller knows.
    fn to_caller(&self, call: CallKey, message: &Message, text: Bytes) -> Bytes {
        let renamed = self.numbers().and_then(|ids| ids.to_caller(call, message, &text));
        renamed.map_or(text, Bytes::from)
    }

    fn take_response(&mut self, id: &RequestId) -> Target {
        let Some(call) = self.running.remove(id) else {
            self.given_up.remove(id);
            return if self.own.remove(id).is_some() { Target::Own } else { Target::Dropped };
        };
        let Some(state) = self.calls.get_mut(&call) else { return Target::Dropped };
        state.unanswered.retain(|other| other != id);
        let is_complete = state.unanswered.is_empty();
        if is_complete && let Some(Call { tokens, .. }) = self.calls.remove(&call) {
            self.forget_names(call, tokens);
        }
        Target::Call { call, is_complete }
    }

    /// Returns the target of a notification on a shared channel. A notification about an ended call
    /// reaches no other call.
    fn shared_notification(&self, method: &str, text: &[u8]) -> Target {
        let Some(named) = Ids::named_by(method, text) else { return Target::Standalone };
        let calls = if method == "notifications/progress" { &self.tokens } else { &self.running };
        calls.get(&named).map_or(Target::Dropped, |&call| Target::Call { call, is_complete: false })
    }

    fn notification(&self, method: &str, text: &[u8]) -> Target {
        let names_request = matches!(method, "notifications/cancelled" | "notifications/elicitation/complete");
        if self.ids.is_some() && !(self.has_sessions && names_request) {
            return self.shared_notification(method, text);
        }
        if method == "notifications/progress" {
            let token = jsonrpc::member(text, &["params", "progressToken"]).and_then(RequestId::from_json);
            let call = token.and_then(|token| self.tokens.get(&token));
            return call.map_or(Target::Standalone, |&call| Target::Call { call, is_complete: false });
        }
        match self.server_requests.named_by(method, text) {
            Some(request) => match request.receiver {
                Receiver::Call(call) if self.calls.contains_key(&call) => Target::Call { call, is_complete: false },
                Receiver::Call(_) | Receiver::Standalone(_) if self.has_sessions => Target::Member(request.member),
                Receiver::Call(_) | Receiver::Standalone(_) => Target::Standalone,
            },
            // An unknown request belongs to a single session.
            None if self.has_sessions && method == "notifications/cancelled" => Target::Dropped,
            None => Target::Standalone,
        }
    }

    /// Forgets an ended session. Returns its outstanding server requests.
    pub fn leave(&mut self, member: MemberKey) -> Vec<RequestId> {
        self.server_requests.leave(member)
    }

    /// Records the receiver of a server request in the session `member`, for its response and for
    /// the notifications that name it.
    pub fn insert_server_request(&mut self, text: &[u8], id: RequestId, receiver: Receiver, member: MemberKey) {
        self.server_requests.insert(text, id, receiver, member);
    }
}

#[cfg(test)]
mod tests {
    use super::super::server_requests::REMEMBERED;
    use super::*;
    use crate::jsonrpc::peek;

    fn begin(routing: &mut Routing, call: u64, body: &str) -> Result<(), IdInUse> {
        let body = Bytes::copy_from_slice(body.as_bytes());
        let texts: Vec<Bytes> =
            jsonrpc::messages(&body).into_iter().map(|text| body.slice_ref(text.as_bytes())).collect();
        let mut sent = texts.clone();
        let mut messages = peek(&body).expect("a message").messages().to_vec();
        routing.begin(CallKey(call), None, &mut messages, &mut sent)?;
        assert_eq!(sent, texts);
        Ok(())
    }

    fn route(routing: &mut Routing, text: &str) -> Target {
        let text = Bytes::copy_from_slice(text.as_bytes());
        let (target, passed) = routing.route(&peek(&text).expect("a message").messages()[0], text.clone());
        assert_eq!(passed, text);
        target
    }

    const CALL: &str = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"_meta":{"progressToken":"t"}}}"#;

    #[test]
    fn a_message_belongs_to_the_call_that_it_names() {
        let mut routing = Routing::default();
        begin(&mut routing, 1, CALL).expect("a new id");
        let progress = r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"t"}}"#;
        assert_eq!(route(&mut routing, progress), Target::Call { call: CallKey(1), is_complete: false });
        let log = r#"{"jsonrpc":"2.0","method":"notifications/message"}"#;
        assert_eq!(route(&mut routing, log), Target::Standalone);
        let response = r#"{"jsonrpc":"2.0","id":1,"result":{}}"#;
        assert_eq!(route(&mut routing, response), Target::Call { call: CallKey(1), is_complete: true });
        assert_eq!(route(&mut routing, response), Target::Dropped, "a second response");
        assert_eq!(route(&mut routing, progress), Target::Standalone, "progress behind the response");
        assert!(!routing.is_running());
    }

    #[test]
    fn ids_of_both_types_differ() {
        let mut routing = Routing::default();
        begin(&mut routing, 1, CALL).expect("a new id");
        begin(&mut routing, 2, r#"{"jsonrpc":"2.0","id":"1","method":"ping"}"#).expect("another id");
        let response = r#"{"jsonrpc":"2.0","id":"1","result":{}}"#;
        assert_eq!(route(&mut routing, response), Target::Call { call: CallKey(2), is_complete: true });
    }

    #[test]
    fn a_response_to_the_proxy_is_found_under_a_spelled_id() {
        let mut routing = Routing::of_sessions(|| u64::MAX);
        let number = routing.begin_own().expect("a shared channel").to_json();
        for spelled in [format!("\"{number}\""), format!("{number}.0")] {
            let text = format!(r#"{{"jsonrpc":"2.0","id":{spelled},"result":{{}}}}"#);
            let (message, text) = routing
                .respelled(&peek(text.as_bytes()).expect("a message").messages()[0], text.as_bytes())
                .expect("own");
            assert_eq!(text, format!(r#"{{"jsonrpc":"2.0","id":{number},"result":{{}}}}"#));
            if spelled.ends_with('0') {
                assert_eq!(routing.route(&message, text).0, Target::Own);
            }
        }
    }

    #[test]
    fn an_id_is_free_once_it_is_answered() {
        let mut routing = Routing::default();
        begin(&mut routing, 1, CALL).expect("a new id");
        assert_eq!(begin(&mut routing, 2, CALL), Err(IdInUse));
        let id = RequestId::from_json("1").expect("an id");
        assert_eq!(routing.give_up(CallKey(1)), [Owed { at_server: id.clone(), at_caller: id }]);
        assert_eq!(begin(&mut routing, 3, CALL), Err(IdInUse), "the late response would be this one's");
        assert_eq!(route(&mut routing, r#"{"jsonrpc":"2.0","id":1,"result":{}}"#), Target::Dropped);
        begin(&mut routing, 4, CALL).expect("answered");
        routing.withdraw(CallKey(4));
        begin(&mut routing, 5, CALL).expect("never sent");
    }

    #[test]
    fn a_batch_is_over_with_its_last_response() {
        let mut routing = Routing::default();
        let batch = r#"[{"jsonrpc":"2.0","id":1,"method":"a"},{"jsonrpc":"2.0","method":"n"},{"jsonrpc":"2.0","id":2,"method":"b"}]"#;
        begin(&mut routing, 1, batch).expect("new ids");
        let second = r#"{"jsonrpc":"2.0","id":2,"result":{}}"#;
        assert_eq!(route(&mut routing, second), Target::Call { call: CallKey(1), is_complete: false });
        let first = r#"{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":""}}"#;
        assert_eq!(route(&mut routing, first), Target::Call { call: CallKey(1), is_complete: true });
        assert_eq!(
            begin(&mut routing, 2, r#"[{"jsonrpc":"2.0","id":1,"method":"a"},{"jsonrpc":"2.0","id":1,"method":"a"}]"#),
            Err(IdInUse)
        );
    }

    #[test]
    fn notices_follow_their_question() {
        let mut routing = Routing::default();
        begin(&mut routing, 1, CALL).expect("a new id");
        let request = r#"{"jsonrpc":"2.0","id":0,"method":"elicitation/create","params":{"elicitationId":"e"}}"#;
        let id = RequestId::from_json("0").expect("an id");
        assert_eq!(route(&mut routing, request), Target::Unnamed(id.clone()));
        routing.insert_server_request(request.as_bytes(), id, Receiver::Call(CallKey(1)), MemberKey(0));
        let to_call = Target::Call { call: CallKey(1), is_complete: false };
        let complete =
            r#"{"jsonrpc":"2.0","method":"notifications/elicitation/complete","params":{"elicitationId":"e"}}"#;
        assert_eq!(route(&mut routing, complete), to_call);
        let cancel = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":0}}"#;
        assert_eq!(route(&mut routing, cancel), to_call);
        routing.give_up(CallKey(1));
        assert_eq!(route(&mut routing, cancel), Target::Standalone, "its call is over");
    }

    #[test]
    fn what_is_never_answered_is_bounded() {
        let mut routing = Routing::default();
        for call in 0..5000 {
            begin(&mut routing, call, &format!(r#"{{"jsonrpc":"2.0","id":{call},"method":"a"}}"#)).expect("a new id");
            routing.give_up(CallKey(call));
        }
        let (values, order) = routing.given_up.sizes();
        assert!(values == REMEMBERED && order <= 2 * REMEMBERED);
    }
}
