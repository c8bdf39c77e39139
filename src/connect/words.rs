//! Errors in words for the host, which often shows a model the text alone.
//!
//! Invariant: no byte of a server and no argument is in a text.

use bytes::Bytes;
use http::StatusCode;
use serde_json::json;

use super::credentials::Credentials;
use crate::protocol::error::{Details, ErrorCode, Failure, Subject};
use crate::protocol::jsonrpc::{self, RequestId};

/// Returns the error for a response with this status, which is no JSON-RPC error. `origin` is the
/// far side's, for `data`.
pub(super) fn refusal(
    id: &RequestId,
    subject: Subject,
    status: StatusCode,
    origin: &str,
    credentials: &dyn Credentials,
) -> Bytes {
    let may_have_run = status.is_server_error();
    let failure =
        Failure { http_status: Some(status.as_u16()), may_have_run, ..Failure::before_run(ErrorCode::UpstreamStatus) };
    let text = match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            format!("status {}; {}", status.as_u16(), credentials.cure())
        }
        status => format!("status {}", status.as_u16()),
    };
    let members = vec![("origin", json!(origin))];
    failure.to_message_with(Some(id), subject, Details { text: &text, members }).into()
}

/// Returns true unless an error says that its request has not run.
pub(super) fn may_have_run(message: &[u8]) -> bool {
    jsonrpc::member(message, &["error", "data", "mayHaveRun"]) != Some("false")
}

/// Returns the code of a proxy's error, or `None` for any other message. The proxy is this one, or
/// a `serve` before the server.
pub(super) fn own_code(message: &[u8]) -> Option<ErrorCode> {
    let label = jsonrpc::string_member(message, &["error", "data", "error"])?;
    ErrorCode::try_from(label).ok()
}
