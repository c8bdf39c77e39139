//! Running calls of a session, and server requests that wait for one.
//!
//! Absent: the choice of a call on a channel (`channel/connection/state.rs`). There a client may
//! have a standalone stream, which gets a server request without a call. Here only a call can pass
//! it on, so the request waits for one.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use bytes::Bytes;
use tokio::sync::mpsc;

use crate::sync;
use crate::upstream::bridge::outbox::Outbox;

/// Capacity of a call's inbox.
const INBOX: usize = 64;
/// Maximum number of server requests that wait for a call.
const MAX_WAITING: usize = 64;

/// The running calls, the oldest first.
#[derive(Default)]
pub(super) struct RunningCalls(Mutex<State>);

#[derive(Default)]
struct State {
    calls: Vec<RunningCall>,
    /// Waiting server requests, each with its expiry.
    waiting: Vec<(Bytes, Instant)>,
    /// A `roots/list` request was refused or timed out since the last `roots/list_changed`.
    has_refused_roots: bool,
}

struct RunningCall {
    own: String,
    traits: Traits,
    /// True while the call is parked: it gets no server requests then.
    is_parked: bool,
    inbox: Arc<Outbox>,
}

/// Traits of a call that decide which messages it gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Traits {
    /// True if the call accepts server requests.
    pub(super) takes_requests: bool,
    /// True if its client wants log messages.
    pub(super) wants_logs: bool,
}

/// Beginning of a call.
pub(super) struct Begun {
    /// Messages for the call.
    pub(super) inbox: mpsc::Receiver<Bytes>,
    /// True if the server must get `roots/list_changed`: it can request roots again.
    pub(super) announces_roots: bool,
}

impl RunningCalls {
    /// Adds a call. It gets the waiting server requests, if it accepts any.
    pub(super) fn begin(&self, own: &str, traits: Traits) -> Begun {
        let (outbox, inbox) = Outbox::new(INBOX.max(MAX_WAITING));
        let mut state = sync::lock(&self.0);
        let mut announces_roots = false;
        if traits.takes_requests {
            announces_roots = std::mem::take(&mut state.has_refused_roots);
            for (request, _) in state.waiting.drain(..) {
                // The inbox has room for all waiting server requests.
                outbox.send(request);
            }
        }
        state.calls.push(RunningCall { own: own.to_owned(), traits, is_parked: false, inbox: outbox });
        Begun { inbox, announces_roots }
    }

    /// Sets whether a call is parked. Returns the waiting server requests for a call that
    /// continues.
    pub(super) fn set_parked(&self, own: &str, is_parked: bool) -> Vec<Bytes> {
        let mut state = sync::lock(&self.0);
        let Some(call) = state.calls.iter_mut().find(|call| call.own == own) else { return Vec::new() };
        call.is_parked = is_parked;
        if is_parked { Vec::new() } else { state.waiting.drain(..).map(|(request, _)| request).collect() }
    }

    /// Removes a call.
    pub(super) fn end(&self, own: &str) {
        sync::lock(&self.0).calls.retain(|call| call.own != own);
    }

    /// Delivers a message to the call that it names. Returns false if the call has ended, or its
    /// inbox is full.
    pub(super) fn give(&self, own: &str, message: Bytes) -> bool {
        let state = sync::lock(&self.0);
        state.calls.iter().find(|call| call.own == own).is_some_and(|call| call.inbox.send(message))
    }

    /// Waits briefly for the reader of a call, if it is behind.
    pub(super) async fn wait_for_reader(&self, own: &str) {
        let inbox = {
            let state = sync::lock(&self.0);
            state.calls.iter().find(|call| call.own == own && !call.is_parked).map(|call| call.inbox.clone())
        };
        if let Some(inbox) = inbox {
            inbox.wait_for_reader().await;
        }
    }

    /// Delivers a cancellation to all calls that accept server requests: it does not name its call.
    pub(super) fn give_all(&self, message: &Bytes) {
        for call in sync::lock(&self.0).calls.iter().filter(|call| call.traits.takes_requests) {
            call.inbox.send(message.clone());
        }
    }

    /// Delivers a log message to the only call whose client wants log messages. Returns false
    /// unless exactly one such call runs.
    pub(super) fn give_log(&self, message: Bytes) -> bool {
        let state = sync::lock(&self.0);
        let mut wanting = state.calls.iter().filter(|call| call.traits.wants_logs);
        match (wanting.next(), wanting.next()) {
            (Some(call), None) => call.inbox.send(message),
            (Some(_), Some(_)) | (None, _) => false,
        }
    }

    /// Assigns a server request to the oldest call that accepts it, or queues it until this time.
    /// Returns false if the queue is full.
    pub(super) fn assign(&self, request: Bytes, until: Instant) -> bool {
        let mut state = sync::lock(&self.0);
        let of_call = |call: &&RunningCall| call.traits.takes_requests && !call.is_parked && call.inbox.room() > 0;
        if let Some(call) = state.calls.iter().find(of_call) {
            return call.inbox.send(request);
        }
        let has_room = state.waiting.len() < MAX_WAITING;
        if has_room {
            state.waiting.push((request, until));
        }
        has_room
    }

    /// Takes the expired server requests.
    pub(super) fn take_expired(&self, now: Instant) -> Vec<Bytes> {
        let mut state = sync::lock(&self.0);
        let (expired, waiting) = std::mem::take(&mut state.waiting).into_iter().partition(|(_, until)| *until <= now);
        state.waiting = waiting;
        let expired: Vec<(Bytes, Instant)> = expired;
        expired.into_iter().map(|(request, _)| request).collect()
    }

    /// Removes waiting server requests that the server has withdrawn.
    pub(super) fn withdraw(&self, is_withdrawn: impl Fn(&Bytes) -> bool) {
        sync::lock(&self.0).waiting.retain(|(request, _)| !is_withdrawn(request));
    }

    /// Records that a `roots/list` request was refused.
    pub(super) fn mark_roots_refused(&self) {
        sync::lock(&self.0).has_refused_roots = true;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::clock;

    const TAKES_REQUESTS: Traits = Traits { takes_requests: true, wants_logs: false };
    const LOGS: Traits = Traits { takes_requests: false, wants_logs: true };

    fn message(text: &'static str) -> Bytes {
        Bytes::from_static(text.as_bytes())
    }

    #[test]
    fn a_question_is_for_the_oldest_call_that_may_ask_or_waits_for_one() {
        let (calls, now) = (RunningCalls::default(), clock::now());
        let until = now + Duration::from_secs(30);
        let mut logs = calls.begin("1", LOGS);
        assert!(calls.assign(message("a"), until) && calls.take_expired(now).is_empty());
        let mut two = calls.begin("2", TAKES_REQUESTS);
        let mut three = calls.begin("3", TAKES_REQUESTS);
        assert!(calls.assign(message("b"), until));
        assert_eq!([two.inbox.try_recv(), two.inbox.try_recv()], [Ok(message("a")), Ok(message("b"))]);
        calls.end("2");
        assert!(calls.assign(message("c"), until));
        assert_eq!(three.inbox.try_recv(), Ok(message("c")));
        calls.set_parked("3", true);
        assert!(calls.assign(message("w"), until) && three.inbox.try_recv().is_err());
        assert_eq!(calls.set_parked("3", false), [message("w")]);
        calls.end("3");
        assert!(calls.assign(message("d"), until) && calls.assign(message("e"), until));
        calls.withdraw(|request| request == "d");
        assert_eq!(calls.take_expired(until), [message("e")]);
        assert!(logs.inbox.try_recv().is_err());
    }

    #[test]
    fn waiting_questions_and_messages_of_a_call_are_bounded() {
        let (calls, now) = (RunningCalls::default(), clock::now());
        let taken = (0..MAX_WAITING + 1).filter(|_| calls.assign(message("q"), now)).count();
        assert_eq!(taken, MAX_WAITING);
        let _call = calls.begin("1", TAKES_REQUESTS);
        assert!(!calls.give("1", message("x")) && !calls.give("2", message("x")));
    }

    #[test]
    fn log_messages_are_for_the_only_call_that_wants_any() {
        let calls = RunningCalls::default();
        let mut one = calls.begin("1", LOGS);
        let _other = calls.begin("2", TAKES_REQUESTS);
        assert!(calls.give_log(message("a")) && calls.give("1", message("b")));
        assert_eq!([one.inbox.try_recv(), one.inbox.try_recv()], [Ok(message("a")), Ok(message("b"))]);
        let _other = calls.begin("3", LOGS);
        assert!(!calls.give_log(message("c")));
    }

    #[test]
    fn the_next_call_that_may_ask_lets_the_server_ask_for_roots_again() {
        let calls = RunningCalls::default();
        calls.mark_roots_refused();
        assert_eq!(
            [LOGS, TAKES_REQUESTS, TAKES_REQUESTS].map(|traits| calls.begin("1", traits).announces_roots),
            [false, true, false]
        );
    }
}
