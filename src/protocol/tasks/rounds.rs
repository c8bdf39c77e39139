//! Rounds of input: the requests of an `input_required` result, under keys of the proxy's own, and
//! their answers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::error::ErrorCode;
use crate::jsonrpc;

/// Most requests of a round: each answer stores those again that are outstanding.
const MAX_REQUESTS: usize = 100;
/// Most bytes of the requests of a round.
const MAX_BYTES: usize = 4 * 1024 * 1024;

/// One request for input, and its answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Question {
    /// Key at the server.
    at_server: String,
    /// The request, as the server wrote it, or null once it is answered.
    request: Box<RawValue>,
    /// The answer of the client. Only the process that has the call needs it.
    #[serde(skip)]
    answer: Option<Box<RawValue>>,
    is_answered: bool,
}

/// The rounds of one task, of which the last one counts.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Rounds {
    /// Number of rounds so far.
    count: u32,
    /// Requests of the last round, by keys that no other round has.
    questions: BTreeMap<String, Question>,
    /// State that the server wants back, with its quotes.
    #[serde(skip)]
    request_state: Option<Box<RawValue>>,
}

/// Outcome of answers to a round.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answered {
    /// No answer was for a request that is outstanding.
    Nothing,
    /// Some requests are outstanding still.
    Partly,
    /// Every request has its answer: the call goes on.
    Fully(Continuation),
}

/// Members with which the call goes on at the server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Continuation {
    /// `inputResponses` as JSON, or `None` if the server asked nothing.
    pub input_responses: Option<String>,
    /// `requestState` as JSON, or `None` if the server gave none.
    pub request_state: Option<String>,
}

impl Rounds {
    /// Begins the round of an `input_required` result.
    ///
    /// # Errors
    /// If the result asks for more than a round may have, is not well-formed, or has neither
    /// requests nor a state: the call would run a second time.
    pub(super) fn begin(&mut self, message: &[u8]) -> Result<(), ErrorCode> {
        self.count += 1;
        let requests: BTreeMap<String, Box<RawValue>> = match jsonrpc::member(message, &["result", "inputRequests"]) {
            Some(requests) => serde_json::from_str(requests).map_err(|_| ErrorCode::UpstreamGarbage)?,
            None => BTreeMap::new(),
        };
        let state = jsonrpc::member(message, &["result", "requestState"]).filter(|state| *state != "null");
        let has_other = requests.values().any(|request| !request.get().starts_with('{'));
        if has_other || (requests.is_empty() && state.is_none()) {
            return Err(ErrorCode::UpstreamGarbage);
        }
        let bytes: usize = requests.iter().map(|(key, request)| key.len() + request.get().len()).sum();
        if requests.len() > MAX_REQUESTS || bytes > MAX_BYTES {
            return Err(ErrorCode::TooMuchInput);
        }
        let count = self.count;
        self.questions = requests
            .into_iter()
            .map(|(at_server, request)| {
                (format!("{count}-{at_server}"), Question { at_server, request, answer: None, is_answered: false })
            })
            .collect();
        self.request_state = state.and_then(|state| RawValue::from_string(state.to_owned()).ok());
        Ok(())
    }

    /// Returns the memory of questions and answers, in bytes.
    pub(super) fn byte_len(&self) -> usize {
        let of = |(key, question): (&String, &Question)| {
            let answer = question.answer.as_ref().map_or(0, |answer| answer.get().len());
            2 * key.len() + size_of::<Question>() + question.request.get().len() + answer
        };
        let state = self.request_state.as_ref().map_or(0, |state| state.get().len());
        state + self.questions.iter().map(of).sum::<usize>()
    }

    /// Returns the number of rounds so far.
    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// Returns true while a request is outstanding.
    pub(super) fn is_asking(&self) -> bool {
        self.questions.values().any(|question| !question.is_answered)
    }

    /// Returns the requests that are outstanding, by their keys.
    pub(super) fn outstanding(&self) -> impl Iterator<Item = (&str, &str)> {
        let open = self.questions.iter().filter(|(_, question)| !question.is_answered);
        open.map(|(key, question)| (key.as_str(), question.request.get()))
    }

    /// Takes the `inputResponses` of an update. Unknown keys, and those of requests that have an
    /// answer, are ignored.
    pub(super) fn answer(&mut self, input_responses: &str) -> Answered {
        let answers: BTreeMap<String, Box<RawValue>> = serde_json::from_str(input_responses).unwrap_or_default();
        let mut has_changed = false;
        for (key, answer) in answers {
            if let Some(question) = self.questions.get_mut(&key).filter(|question| !question.is_answered) {
                (question.answer, question.is_answered) = (Some(answer), true);
                // Each answer stores the round again, and no client is asked twice.
                question.request = RawValue::NULL.to_owned();
                has_changed = true;
            }
        }
        match (has_changed, self.is_asking()) {
            (false, _) => Answered::Nothing,
            (true, true) => Answered::Partly,
            (true, false) => Answered::Fully(self.continuation()),
        }
    }

    /// Returns the members with which the call goes on, and ends the round.
    pub(super) fn continuation(&mut self) -> Continuation {
        let questions = std::mem::take(&mut self.questions);
        let answers: BTreeMap<String, Box<RawValue>> =
            questions.into_values().filter_map(|question| Some((question.at_server, question.answer?))).collect();
        let input_responses = if answers.is_empty() { None } else { serde_json::to_string(&answers).ok() };
        let request_state = self.request_state.take().map(|state| state.get().to_owned());
        Continuation { input_responses, request_state }
    }

    /// Drops the last round: the call is over.
    pub(super) fn end(&mut self) {
        self.questions.clear();
        self.request_state = None;
    }
}
