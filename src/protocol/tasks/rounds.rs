//! Rounds of input: the requests of an `input_required` result, under the proxy's own keys, with
//! their responses.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::error::ErrorCode;
use crate::jsonrpc;

/// Maximum number of requests in a round. Each response stores the outstanding ones again.
const MAX_REQUESTS: usize = 100;
/// Maximum size of the requests of a round, in bytes.
const MAX_BYTES: usize = 4 * 1024 * 1024;

/// One request for input, with its response.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct InputRequest {
    /// Key at the server.
    at_server: String,
    /// The request, as the server wrote it, or null once the client has responded.
    request: Box<RawValue>,
    /// The client's response. Only the process that has the call needs it.
    #[serde(skip)]
    response: Option<Box<RawValue>>,
    is_answered: bool,
}

/// The rounds of one task. Only the last one counts.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Rounds {
    /// Number of rounds so far.
    count: u32,
    /// Requests of the last round, by keys that no other round has.
    #[serde(rename = "questions")]
    requests: BTreeMap<String, InputRequest>,
    /// State that the server wants back, with its quotes.
    #[serde(skip)]
    request_state: Option<Box<RawValue>>,
}

/// Progress of a round after an update.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum InputProgress {
    /// No response was for an outstanding request.
    None,
    /// Some requests are still outstanding.
    Partial,
    /// Every request has its response: the call continues.
    Complete(Continuation),
}

/// Members of the request that continues the call at the server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Continuation {
    /// `inputResponses` as JSON, or `None` if the server requested no input.
    pub input_responses: Option<String>,
    /// `requestState` as JSON, or `None` if the server gave none.
    pub request_state: Option<String>,
}

impl Rounds {
    /// Begins the round of an `input_required` result.
    ///
    /// # Errors
    /// If the result exceeds the limits of a round, is malformed, or has neither requests nor a
    /// state. Without both, the call would run a second time.
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
        self.requests = requests
            .into_iter()
            .map(|(at_server, request)| {
                (
                    format!("{count}-{at_server}"),
                    InputRequest { at_server, request, response: None, is_answered: false },
                )
            })
            .collect();
        self.request_state = state.and_then(|state| RawValue::from_string(state.to_owned()).ok());
        Ok(())
    }

    /// Returns the memory of requests and responses, in bytes.
    pub(super) fn byte_len(&self) -> usize {
        let of = |(key, input): (&String, &InputRequest)| {
            let response = input.response.as_ref().map_or(0, |response| response.get().len());
            2 * key.len() + size_of::<InputRequest>() + input.request.get().len() + response
        };
        let state = self.request_state.as_ref().map_or(0, |state| state.get().len());
        state + self.requests.iter().map(of).sum::<usize>()
    }

    /// Returns the number of rounds so far.
    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// Returns true while a request is outstanding.
    pub(super) fn has_outstanding(&self) -> bool {
        self.requests.values().any(|input| !input.is_answered)
    }

    /// Returns the requests that are outstanding, by their keys.
    pub(super) fn outstanding(&self) -> impl Iterator<Item = (&str, &str)> {
        let open = self.requests.iter().filter(|(_, input)| !input.is_answered);
        open.map(|(key, input)| (key.as_str(), input.request.get()))
    }

    /// Takes the `inputResponses` of an update. Unknown keys and repeated responses are ignored.
    pub(super) fn take_responses(&mut self, input_responses: &str) -> InputProgress {
        let responses: BTreeMap<String, Box<RawValue>> = serde_json::from_str(input_responses).unwrap_or_default();
        let mut has_changed = false;
        for (key, response) in responses {
            if let Some(input) = self.requests.get_mut(&key).filter(|input| !input.is_answered) {
                (input.response, input.is_answered) = (Some(response), true);
                // Each response stores the round again, and no client gets a request twice.
                input.request = RawValue::NULL.to_owned();
                has_changed = true;
            }
        }
        match (has_changed, self.has_outstanding()) {
            (false, _) => InputProgress::None,
            (true, true) => InputProgress::Partial,
            (true, false) => InputProgress::Complete(self.continuation()),
        }
    }

    /// Returns the members of the continued call, and ends the round.
    pub(super) fn continuation(&mut self) -> Continuation {
        let requests = std::mem::take(&mut self.requests);
        let responses: BTreeMap<String, Box<RawValue>> =
            requests.into_values().filter_map(|input| Some((input.at_server, input.response?))).collect();
        let input_responses = if responses.is_empty() { None } else { serde_json::to_string(&responses).ok() };
        let request_state = self.request_state.take().map(|state| state.get().to_owned());
        Continuation { input_responses, request_state }
    }

    /// Drops the last round: the call has ended.
    pub(super) fn end(&mut self) {
        self.requests.clear();
        self.request_state = None;
    }
}
