//! A failure of the proxy's own, and the only writer of its JSON-RPC error.
//!
//! Many hosts show a model the error's `message` alone. It therefore says, too, if the request may
//! have run. Invariant: no byte of a server is in `message`; those are members of `data`. Absent:
//! the table of errors (the parent module).

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::ErrorCode;
use crate::ids::Owner;
use crate::jsonrpc::{Message, RequestId, response};
use crate::refusal::RefusalHeaders;

/// Requests that an error is about, as far as its text depends on them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Subject {
    /// Nothing but `tools/call`.
    ToolCall,
    /// Any other request. Also a request whose method is unknown.
    #[default]
    Request,
}

impl Subject {
    /// Returns the subject of an error about the requests of `messages`.
    pub fn of(messages: &[Message]) -> Self {
        let mut methods = messages.iter().filter_map(|message| match message {
            Message::Request { method, .. } => Some(&**method),
            Message::Notification { .. } | Message::Response { .. } => None,
        });
        let (first, is_tool_call) = (methods.next(), |method| method == "tools/call");
        if first.is_some_and(is_tool_call) && methods.all(is_tool_call) { Self::ToolCall } else { Self::Request }
    }

    /// Returns the end of the text of an error whose request may have run.
    const fn warning(self) -> &'static str {
        match self {
            Self::ToolCall => "; the tool may have run: check whether it did before you call it again",
            Self::Request => "; the request may have been carried out",
        }
    }
}

/// Facts of one error beside its failure.
#[derive(Debug, Default)]
pub struct Details<'a> {
    /// Text behind the constant one. It must have neither secrets nor bytes of the server.
    pub text: &'a str,
    /// Further members of `data`.
    pub members: Vec<(&'static str, Value)>,
}

impl<'a> Details<'a> {
    /// Returns details with this text alone.
    pub fn of_text(text: &'a str) -> Self {
        Self { text, members: Vec::new() }
    }
}

/// One failure: the code, and the facts that depend on the case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Cause of the error.
    pub code: ErrorCode,
    /// True if the upstream may have begun to run the request. A repeated tool call could then run
    /// twice.
    pub may_have_run: bool,
    /// The status of the upstream's response, or `None` without one.
    pub http_status: Option<u16>,
    /// Replica that can serve the request, or `None` if unknown or absent.
    pub home: Option<Owner>,
}

impl Failure {
    /// Creates a failure before any byte reached the upstream.
    pub const fn before_run(code: ErrorCode) -> Self {
        Self { code, may_have_run: false, http_status: None, home: None }
    }

    /// Creates a failure after bytes of the request may have reached the upstream.
    pub const fn after_send(code: ErrorCode) -> Self {
        Self { code, may_have_run: true, http_status: None, home: None }
    }

    /// Creates the failure of a request in a session that `home` has, before any byte of it was
    /// run.
    pub const fn at_home(home: Owner) -> Self {
        Self { home: Some(home), ..Self::before_run(ErrorCode::Misdirected) }
    }

    /// Returns the JSON-RPC error message for `id`, or for a null id if it is `None`.
    pub fn to_message(self, id: Option<&RequestId>, subject: Subject) -> Vec<u8> {
        self.to_message_with(id, subject, Details::default())
    }

    /// Returns the error message for `id`, or for a null id, with `details`.
    pub fn to_message_with(self, id: Option<&RequestId>, subject: Subject, details: Details<'_>) -> Vec<u8> {
        let mut message = self.code.message().to_owned();
        if !details.text.is_empty() {
            message = format!("{message}: {}", details.text);
        }
        if self.may_have_run {
            message.push_str(subject.warning());
        }
        let mut data = json!({
            "error": self.code.label(),
            "fault": self.code.side().as_str(),
            "mayHaveRun": self.may_have_run,
        });
        if let Some(status) = self.http_status {
            data["httpStatus"] = json!(status);
        }
        for (name, value) in details.members {
            data[name] = value;
        }
        response::error_with_data(id, self.code.json_rpc(), &message, data)
    }

    /// Returns the error message for `id`. One with a status has the headers of that response in
    /// its data.
    pub fn to_message_after(self, id: &RequestId, subject: Subject, headers: Option<&RefusalHeaders>) -> Vec<u8> {
        let headers = headers.filter(|_| self.http_status.is_some());
        let members = headers.map(RefusalHeaders::members).unwrap_or_default();
        self.to_message_with(Some(id), subject, Details { text: "", members })
    }

    /// Returns the messages for all `ids` as one JSON body: an object, or an array for a batch.
    /// Without ids the id is null.
    pub fn to_body(self, ids: &[RequestId], batch: bool, subject: Subject) -> Vec<u8> {
        match ids {
            [] => self.to_message(None, subject),
            [id] if !batch => self.to_message(Some(id), subject),
            ids => {
                let errors: Vec<Vec<u8>> = ids.iter().map(|id| self.to_message(Some(id), subject)).collect();
                [b"[".as_slice(), &errors.join(&b","[..]), b"]"].concat()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(failure: Failure, subject: Subject, details: Details<'_>) -> Value {
        serde_json::from_slice(&failure.to_message_with(None, subject, details)).expect("JSON")
    }

    #[test]
    fn the_text_says_if_the_request_may_have_run() {
        let code = ErrorCode::OwnerDied;
        let before = "the proxy that ran the call has died";
        for (failure, subject, end) in [
            (Failure::before_run(code), Subject::ToolCall, ""),
            (Failure::before_run(code), Subject::Request, ""),
            (
                Failure::after_send(code),
                Subject::ToolCall,
                "; the tool may have run: check whether it did before you call it again",
            ),
            (Failure::after_send(code), Subject::Request, "; the request may have been carried out"),
        ] {
            for (text, middle) in [("", ""), ("a detail", ": a detail")] {
                let error = &written(failure, subject, Details::of_text(text))["error"];
                assert_eq!(error["message"], format!("{before}{middle}{end}"));
                assert_eq!(error["data"]["error"], "owner_died");
                assert_eq!(error["data"]["mayHaveRun"], failure.may_have_run);
            }
        }
    }

    #[test]
    fn only_tool_calls_are_called_tools() {
        let message = |method: &'static str| match method {
            "notifications/progress" => Message::Notification { method: method.into() },
            "" => Message::Response { id: None, is_error: false },
            method => Message::Request { id: RequestId::Number("1".into()), method: method.into() },
        };
        for (methods, subject) in [
            (&[][..], Subject::Request),
            (&["tools/call"], Subject::ToolCall),
            (&["tools/list"], Subject::Request),
            (&["", "notifications/progress"], Subject::Request),
            (&["tools/call", "notifications/progress", "tools/call", ""], Subject::ToolCall),
            (&["tools/call", "prompts/get"], Subject::Request),
            (&["prompts/get", "tools/call"], Subject::Request),
        ] {
            let messages: Vec<Message> = methods.iter().map(|method| message(method)).collect();
            assert_eq!(Subject::of(&messages), subject, "{methods:?}");
        }
    }

    #[test]
    fn details_are_members_of_the_data() {
        let failure = Failure { http_status: Some(401), ..Failure::after_send(ErrorCode::UpstreamStatus) };
        let details = Details { text: "", members: vec![("exitCode", json!(3))] };
        let expected = json!({
            "error": "upstream_status", "fault": "upstream", "mayHaveRun": true, "httpStatus": 401, "exitCode": 3,
        });
        assert_eq!(written(failure, Subject::ToolCall, details)["error"]["data"], expected);
    }
}
