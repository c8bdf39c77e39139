//! Running calls of a session, and server requests that wait for one.

use std::sync::Mutex;
use std::time::Instant;

use bytes::Bytes;
use tokio::sync::mpsc;

use crate::sync;
use crate::upstream::bridge::pressure::{is_pressed, relieved};

/// Most messages that wait to be read by one call.
const INBOX: usize = 64;
/// Most questions of a session that wait for a call.
const MAX_WAITING: usize = 64;

/// The running calls, the oldest first.
#[derive(Default)]
pub(super) struct RunningCalls(Mutex<State>);

#[derive(Default)]
struct State {
    calls: Vec<RunningCall>,
    /// Questions, each with the time until which it waits.
    waiting: Vec<(Bytes, Instant)>,
    /// True if the server was told that there are no roots, or was not answered, since it was last
    /// told to ask again.
    has_refused_roots: bool,
}

struct RunningCall {
    own: String,
    traits: Traits,
    /// True while the call waits for the answers of its client: it asks nothing further then.
    is_parked: bool,
    /// True if a burst has waited in vain for the call's reader.
    is_slow: bool,
    inbox: mpsc::Sender<Bytes>,
}

/// Traits of a call that decide which messages it gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Traits {
    /// True if the server may ask for input in it.
    pub(super) may_ask: bool,
    /// True if its client wants log messages.
    pub(super) wants_logs: bool,
}

/// Beginning of a call.
pub(super) struct Begun {
    /// Messages for the call.
    pub(super) inbox: mpsc::Receiver<Bytes>,
    /// True if the server is to be told that it can ask for roots again.
    pub(super) tells_roots: bool,
}

impl RunningCalls {
    /// Adds a call. Questions that wait are its own from now on, if it may ask.
    pub(super) fn begin(&self, own: &str, traits: Traits) -> Begun {
        let (sender, inbox) = mpsc::channel(INBOX.max(MAX_WAITING));
        let mut state = sync::lock(&self.0);
        let mut tells_roots = false;
        if traits.may_ask {
            tells_roots = std::mem::take(&mut state.has_refused_roots);
            for (question, _) in state.waiting.drain(..) {
                // There is room for as many as can wait.
                let _ = sender.try_send(question);
            }
        }
        state.calls.push(RunningCall { own: own.to_owned(), traits, is_parked: false, is_slow: false, inbox: sender });
        Begun { inbox, tells_roots }
    }

    /// Notes whether a call waits for the answers of its client. Returns questions for one that
    /// goes on.
    pub(super) fn set_parked(&self, own: &str, is_parked: bool) -> Vec<Bytes> {
        let mut state = sync::lock(&self.0);
        let Some(call) = state.calls.iter_mut().find(|call| call.own == own) else { return Vec::new() };
        call.is_parked = is_parked;
        if is_parked { Vec::new() } else { state.waiting.drain(..).map(|(question, _)| question).collect() }
    }

    /// Removes a call.
    pub(super) fn end(&self, own: &str) {
        sync::lock(&self.0).calls.retain(|call| call.own != own);
    }

    /// Gives a message to the call that it names. Returns false if that runs no more, or has too
    /// many messages.
    pub(super) fn give(&self, own: &str, message: Bytes) -> bool {
        let state = sync::lock(&self.0);
        state.calls.iter().find(|call| call.own == own).is_some_and(|call| call.inbox.try_send(message).is_ok())
    }

    /// Waits a moment for the reader of a call, if that is behind.
    pub(super) async fn wait_for_reader(&self, own: &str) {
        let inbox = {
            let mut state = sync::lock(&self.0);
            let Some(call) = state.calls.iter_mut().find(|call| call.own == own) else { return };
            let is_pressed = is_pressed(&call.inbox);
            call.is_slow &= is_pressed;
            if !is_pressed || call.is_slow || call.is_parked {
                return;
            }
            call.inbox.clone()
        };
        if !relieved(inbox).await
            && let Some(call) = sync::lock(&self.0).calls.iter_mut().find(|call| call.own == own)
        {
            call.is_slow = true;
        }
    }

    /// Gives a message to all calls that may ask: the server has withdrawn a question of one of
    /// them.
    pub(super) fn give_all(&self, message: &Bytes) {
        for call in sync::lock(&self.0).calls.iter().filter(|call| call.traits.may_ask) {
            let _ = call.inbox.try_send(message.clone());
        }
    }

    /// Gives a log message to the only call whose client wants any. Returns false if there is none,
    /// or are several.
    pub(super) fn give_log(&self, message: Bytes) -> bool {
        let state = sync::lock(&self.0);
        let mut wanting = state.calls.iter().filter(|call| call.traits.wants_logs);
        match (wanting.next(), wanting.next()) {
            (Some(call), None) => call.inbox.try_send(message).is_ok(),
            (Some(_), Some(_)) | (None, _) => false,
        }
    }

    /// Gives a question to the oldest call that may ask, or lets it wait until this time. Returns
    /// false if too many wait.
    pub(super) fn ask(&self, question: Bytes, until: Instant) -> bool {
        let mut state = sync::lock(&self.0);
        let of_call = |call: &&RunningCall| call.traits.may_ask && !call.is_parked && call.inbox.capacity() > 0;
        if let Some(call) = state.calls.iter().find(of_call) {
            return call.inbox.try_send(question).is_ok();
        }
        let has_room = state.waiting.len() < MAX_WAITING;
        if has_room {
            state.waiting.push((question, until));
        }
        has_room
    }

    /// Takes the questions that have waited until now.
    pub(super) fn take_late(&self, now: Instant) -> Vec<Bytes> {
        let mut state = sync::lock(&self.0);
        let (late, waiting) = std::mem::take(&mut state.waiting).into_iter().partition(|(_, until)| *until <= now);
        state.waiting = waiting;
        let late: Vec<(Bytes, Instant)> = late;
        late.into_iter().map(|(question, _)| question).collect()
    }

    /// Removes the waiting questions for which this holds: the server has withdrawn them.
    pub(super) fn withdraw(&self, is_withdrawn: impl Fn(&Bytes) -> bool) {
        sync::lock(&self.0).waiting.retain(|(question, _)| !is_withdrawn(question));
    }

    /// Remembers that a question for roots was refused.
    pub(super) fn note_refused_roots(&self) {
        sync::lock(&self.0).has_refused_roots = true;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::clock;

    const MAY_ASK: Traits = Traits { may_ask: true, wants_logs: false };
    const LOGS: Traits = Traits { may_ask: false, wants_logs: true };

    fn message(text: &'static str) -> Bytes {
        Bytes::from_static(text.as_bytes())
    }

    #[test]
    fn a_question_is_for_the_oldest_call_that_may_ask_or_waits_for_one() {
        let (calls, now) = (RunningCalls::default(), clock::now());
        let until = now + Duration::from_secs(30);
        let mut logs = calls.begin("1", LOGS);
        assert!(calls.ask(message("a"), until) && calls.take_late(now).is_empty());
        let mut two = calls.begin("2", MAY_ASK);
        let mut three = calls.begin("3", MAY_ASK);
        assert!(calls.ask(message("b"), until));
        assert_eq!([two.inbox.try_recv(), two.inbox.try_recv()], [Ok(message("a")), Ok(message("b"))]);
        calls.end("2");
        assert!(calls.ask(message("c"), until));
        assert_eq!(three.inbox.try_recv(), Ok(message("c")));
        calls.set_parked("3", true);
        assert!(calls.ask(message("w"), until) && three.inbox.try_recv().is_err());
        assert_eq!(calls.set_parked("3", false), [message("w")]);
        calls.end("3");
        assert!(calls.ask(message("d"), until) && calls.ask(message("e"), until));
        calls.withdraw(|question| question == "d");
        assert_eq!(calls.take_late(until), [message("e")]);
        assert!(logs.inbox.try_recv().is_err());
    }

    #[test]
    fn waiting_questions_and_messages_of_a_call_are_bounded() {
        let (calls, now) = (RunningCalls::default(), clock::now());
        let taken = (0..MAX_WAITING + 1).filter(|_| calls.ask(message("q"), now)).count();
        assert_eq!(taken, MAX_WAITING);
        let _call = calls.begin("1", MAY_ASK);
        assert!(!calls.give("1", message("x")) && !calls.give("2", message("x")));
    }

    #[test]
    fn log_messages_are_for_the_only_call_that_wants_any() {
        let calls = RunningCalls::default();
        let mut one = calls.begin("1", LOGS);
        let _ask = calls.begin("2", MAY_ASK);
        assert!(calls.give_log(message("a")) && calls.give("1", message("b")));
        assert_eq!([one.inbox.try_recv(), one.inbox.try_recv()], [Ok(message("a")), Ok(message("b"))]);
        let _other = calls.begin("3", LOGS);
        assert!(!calls.give_log(message("c")));
    }

    #[test]
    fn the_next_call_that_may_ask_lets_the_server_ask_for_roots_again() {
        let calls = RunningCalls::default();
        calls.note_refused_roots();
        assert_eq!([LOGS, MAY_ASK, MAY_ASK].map(|traits| calls.begin("1", traits).tells_roots), [false, true, false]);
    }
}
