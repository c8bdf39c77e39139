//! Checks everything that one caller receives for one call.
//!
//! Each event is kept under its number with its bytes. Later events, from any process, must agree
//! with it.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::script::{Script, What};
use crate::sse::Frame;

/// The proxy died while it ran the call.
const OWNER_DIED: i64 = -32011;
/// The stream or the place is gone.
const STREAM_LOST: i64 = -32012;

/// End of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// With the tool's own response.
    Answered,
    /// With the error of a proxy for one that died.
    OwnerDied,
}

/// A call as its caller knows it.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) script: Script,
    pub(crate) id: Value,
    /// The client's session asked for a policy.
    pub(crate) wants_policy: bool,
    /// From the policy.
    pub(crate) token: Option<String>,
    pub(crate) ended: Option<Ending>,
    /// The last event that the client said it has.
    confirmed: u64,
    /// Events before this one were acknowledged in a way that lets the proxy release them.
    let_go: u64,
    handle: Option<String>,
    events: BTreeMap<u64, Seen>,
    /// The next step of the script to be seen.
    next_step: usize,
    question: Option<Question>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    id: Option<String>,
    event: Option<String>,
    data: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
struct Question {
    at: u64,
    was_answered: bool,
}

/// An event ID taken apart.
pub(crate) struct Id<'a> {
    pub(crate) handle: &'a str,
    pub(crate) place: &'a str,
}

impl<'a> Id<'a> {
    pub(crate) fn of(frame: &'a Frame) -> Result<Id<'a>, String> {
        let id = frame.id.as_deref().ok_or_else(|| format!("an event without an id: {}", shown(&frame.raw)))?;
        let mut parts = id.split('.');
        match (parts.next(), parts.next()) {
            (Some(handle), Some(place)) => Ok(Id { handle, place }),
            _ => Err(format!("no event ID of ours: {id}")),
        }
    }

    fn number(&self) -> Result<u64, String> {
        self.place.parse().map_err(|_| format!("no number: {}", self.place))
    }
}

impl Call {
    pub(crate) fn new(seed: u64, id: Value, wants_policy: bool) -> Call {
        Call {
            script: Script::new(seed),
            id,
            wants_policy,
            token: None,
            ended: None,
            confirmed: 0,
            let_go: 0,
            handle: None,
            events: BTreeMap::new(),
            next_step: 0,
            question: None,
        }
    }

    /// The number of the last event seen; 0 before the first.
    pub(crate) fn last(&self) -> u64 {
        self.events.last_key_value().map_or(0, |(number, _)| *number)
    }

    /// Returns the event ID to resume with at `number`, or `None` while no id was seen.
    pub(crate) fn id_of(&self, number: u64) -> Option<String> {
        let seen = self.events.get(&number).and_then(|seen| seen.id.clone());
        // Before the first event there is only the place.
        seen.or_else(|| self.handle.as_ref().map(|handle| format!("{handle}.{number}")))
    }

    /// Cursors from which a client may resume: 0 and every event seen, without those released.
    pub(crate) fn places(&self) -> Vec<u64> {
        let first = (self.let_go == 0).then_some(0);
        first.into_iter().chain(self.events.keys().copied().filter(|number| *number >= self.let_go)).collect()
    }

    /// The client says that it has everything up to `number`.
    pub(crate) fn note_confirmed(&mut self, number: u64) {
        self.confirmed = self.confirmed.max(number);
    }

    /// Notes an acknowledgement that lets the proxy release the events before it.
    pub(crate) fn note_let_go(&mut self) {
        self.let_go = self.confirmed;
    }

    pub(crate) fn let_go(&self) -> u64 {
        self.let_go
    }

    /// Notes that the client has sent a response to the question. The response may have failed.
    pub(crate) fn note_answer(&mut self) {
        self.question.iter_mut().for_each(|question| question.was_answered = true);
    }

    /// Returns true if the last event of the call is the question.
    pub(crate) fn is_asked(&self) -> bool {
        self.question.is_some_and(|question| question.at == self.last() && !question.was_answered)
    }

    /// The first event of a response, which repeats a place. Returns that place, which is `cursor`
    /// where the client named one.
    pub(crate) fn begin(&mut self, frame: &Frame, cursor: Option<u64>) -> Result<u64, String> {
        let id = Id::of(frame)?;
        if id.place == "end" {
            return Err(format!("a place that was given out is lost: cursor {cursor:?}, {}", shown(&frame.raw)));
        }
        if frame.is_event() {
            return Err(format!("a response that begins with no empty event: {}", shown(&frame.raw)));
        }
        let handle = self.handle.get_or_insert_with(|| id.handle.to_owned());
        if handle != id.handle {
            return Err(format!("another stream answers: {} for {handle}", id.handle));
        }
        let place = id.number()?;
        match cursor {
            Some(cursor) if cursor != place => Err(format!("asked for what follows {cursor}, got {place}")),
            None if place > self.last() => Err(format!("begins after {place}, of which {} was seen", self.last())),
            Some(_) | None => Ok(place),
        }
    }

    /// An event that follows `after` in one response. Returns its number.
    pub(crate) fn take(&mut self, frame: &Frame, after: u64) -> Result<u64, String> {
        let id = Id::of(frame)?;
        if Some(id.handle) != self.handle.as_deref() {
            return Err(format!("an event of another stream: {}", shown(&frame.raw)));
        }
        let number = id.number()?;
        if number <= after {
            return Err(format!("event {number} after {after}: a duplicate, or out of order"));
        }
        if let Some(missing) = (after + 1..number).find(|missing| !self.may_miss(*missing)) {
            return Err(format!("event {number} after {after}: a gap, {missing} is missing"));
        }
        let seen = Seen { id: frame.id.clone(), event: frame.event.clone(), data: frame.bytes().to_vec() };
        match self.events.get(&number) {
            Some(before) if *before == seen => Ok(number),
            Some(before) => {
                Err(format!("event {number} has changed: {} was {}", shown(&seen.data), shown(&before.data)))
            }
            None => {
                self.check(number, &seen)?;
                self.events.insert(number, seen);
                Ok(number)
            }
        }
    }

    /// A question that was answered is not asked again.
    fn may_miss(&self, number: u64) -> bool {
        self.question.is_some_and(|question| question.at == number && question.was_answered)
    }

    /// Checks an event that has not been seen yet.
    fn check(&mut self, number: u64, seen: &Seen) -> Result<(), String> {
        if let Some(ended) = self.ended {
            return Err(format!("event {number} after the end ({ended:?}): {}", shown(&seen.data)));
        }
        if seen.event.as_deref() != Some("message") {
            return Err(format!("event {number} is called {:?}", seen.event));
        }
        let message: Value = serde_json::from_slice(&seen.data)
            .map_err(|error| format!("event {number}: {error}: {}", shown(&seen.data)))?;
        if message["method"] == "notifications/requests/resumePolicy" {
            let is_first = number == 1 && self.wants_policy && message["params"]["requestId"] == self.id;
            self.token = message["params"]["resumeToken"].as_str().map(str::to_owned);
            return if is_first && self.token.is_some() { Ok(()) } else { Err(format!("a policy: {message}")) };
        }
        if message.get("error").is_some() {
            let error = &message["error"];
            let is_honest = error["code"] == OWNER_DIED
                && error["data"]["error"] == "owner_died"
                && error["data"]["fault"] == "proxy"
                && error["data"]["mayHaveRun"] == true
                && message["id"] == self.id;
            self.ended = Some(Ending::OwnerDied);
            return if is_honest { Ok(()) } else { Err(format!("event {number} is another error: {message}")) };
        }
        let expected = match self.script.steps.get(self.next_step) {
            Some(step) => {
                if matches!(step.what, What::Question) {
                    self.question = Some(Question { at: number, was_answered: false });
                }
                self.script.data(step)
            }
            None => {
                self.ended = Some(Ending::Answered);
                self.script.result(&self.id)
            }
        };
        self.next_step += 1;
        if seen.data == expected.as_bytes() {
            Ok(())
        } else {
            Err(format!("event {number}: {} instead of {}", shown(&seen.data), shown(expected.as_bytes())))
        }
    }
}

/// Returns true if `frame` is the one event of a lost stream, under the id of the call.
pub(crate) fn is_lost(frame: &Frame, id: &Value) -> bool {
    let is_end = Id::of(frame).is_ok_and(|id| id.place == "end");
    let message: Value = serde_json::from_slice(frame.bytes()).unwrap_or_default();
    is_end && message["error"]["code"] == STREAM_LOST && message["id"] == *id
}

/// Bytes in a message: not all of them.
pub(crate) fn shown(bytes: &[u8]) -> String {
    const MOST: usize = 300;
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(MOST)]);
    format!("{text:?}{}", if bytes.len() > MOST { "…" } else { "" })
}

/// The checker against what it has to find: a kit that finds nothing proves nothing.
#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn frame(id: &str, data: &str) -> Frame {
        let event = (!data.is_empty()).then(|| "message".to_owned());
        Frame { id: Some(id.to_owned()), event, data: Some(data.as_bytes().to_vec()), ..Frame::default() }
    }

    /// The seed of a script with some steps, none of them a question.
    fn plain() -> u64 {
        let is_plain = |seed: &u64| {
            let steps = Script::new(*seed).steps;
            steps.len() > 2 && steps.iter().all(|step| !matches!(step.what, What::Question))
        };
        (0..).find(is_plain).expect("most are")
    }

    fn error(code: i64) -> String {
        json!({"jsonrpc": "2.0", "id": 7, "error": {"code": code, "message": "the proxy that ran the call has died",
            "data": {"error": "owner_died", "fault": "proxy", "mayHaveRun": true}}})
        .to_string()
    }

    /// A call of which the first two events were seen.
    fn begun() -> Call {
        let mut call = Call::new(plain(), json!(7), false);
        assert_eq!(call.begin(&frame("h.0", ""), None), Ok(0));
        for number in 1..=2 {
            assert_eq!(call.take(&event(&call, number), number - 1), Ok(number));
        }
        call
    }

    fn event(call: &Call, number: u64) -> Frame {
        let index = number as usize - 1;
        let step = call.script.steps.get(index);
        let data = step.map_or_else(|| call.script.result(&call.id), |step| call.script.data(step));
        frame(&format!("h.{number}"), &data)
    }

    fn complaint<T: std::fmt::Debug>(said: Result<T, String>) -> String {
        said.expect_err("it has to complain")
    }

    #[test]
    fn a_replay_that_agrees_is_fine() {
        let mut call = begun();
        assert_eq!(call.begin(&frame("h.1.abc", ""), Some(1)), Ok(1));
        assert_eq!(call.take(&event(&call, 2), 1), Ok(2));
        assert_eq!(call.take(&event(&call, 3), 2), Ok(3));
        assert_eq!(call.last(), 3);
    }

    #[test]
    fn gaps_duplicates_changes_and_strangers_are_found() {
        let call = begun();
        let said = |number, data: &str, after| complaint(call.clone().take(&frame(number, data), after));
        let (second, third) = (event(&call, 2), event(&call, 3));
        assert!(said("h.3", std::str::from_utf8(third.bytes()).unwrap(), 1).contains("a gap, 2 is missing"));
        assert!(said("h.2", std::str::from_utf8(second.bytes()).unwrap(), 2).contains("a duplicate"));
        assert!(said("h.2", std::str::from_utf8(third.bytes()).unwrap(), 1).contains("has changed"));
        assert!(said("h.3", std::str::from_utf8(second.bytes()).unwrap(), 2).contains("instead of"));
        assert!(said("i.3", std::str::from_utf8(third.bytes()).unwrap(), 2).contains("another stream"));
    }

    #[test]
    fn a_lost_or_wrong_place_is_found() {
        let call = begun();
        let said = |id, cursor| complaint(call.clone().begin(&frame(id, ""), cursor));
        assert!(said("h.end", Some(2)).contains("is lost"));
        assert!(said("h.1.x", Some(2)).contains("asked for what follows 2, got 1"));
        assert!(said("h.3.x", None).contains("of which 2 was seen"));
        assert!(said("i.2", Some(2)).contains("another stream"));
    }

    #[test]
    fn a_call_ends_once() {
        let mut call = begun();
        assert_eq!(call.take(&frame("h.3", &error(OWNER_DIED)), 2), Ok(3));
        assert_eq!(call.ended, Some(Ending::OwnerDied));
        assert!(complaint(call.take(&event(&call, 4), 3)).contains("after the end"));
        let mut call = begun();
        let result = call.script.result(&call.id);
        assert!(complaint(call.take(&frame("h.3", &result), 2)).contains("instead of"));
        let mut call = begun();
        assert!(complaint(call.take(&frame("h.3", &error(-32010)), 2)).contains("another error"));
    }
}
