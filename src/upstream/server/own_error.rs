//! An error of this process in place of a response of the server, for each request of a body.

use http::{Response, StatusCode};

use super::request::Template;
use super::response_body::ResponseBody;
use crate::channel;
use crate::protocol::error::{Details, Failure, Subject};
use crate::protocol::jsonrpc::{self, Message};

/// Returns the error about the requests of `template`. Without one, its ID is null.
pub(super) fn own_error<'a>(
    template: &Template,
    failure: Failure,
    details: impl Fn() -> Details<'a>,
) -> Response<ResponseBody> {
    let body = jsonrpc::peek_any(template.body()).ok();
    let messages = body.as_ref().map(jsonrpc::Body::messages).unwrap_or_default();
    let ids = messages.iter().filter_map(|message| match message {
        Message::Request { id, .. } => Some(id),
        Message::Notification { .. } | Message::Response { .. } => None,
    });
    let subject = Subject::of(messages);
    let message = |id| failure.to_message_with(id, subject, details());
    let errors: Vec<Vec<u8>> = ids.map(|id| message(Some(id))).collect();
    let body = match (&errors[..], &body) {
        ([], _) => message(None),
        (errors, Some(jsonrpc::Body::Batch(_))) => [b"[".as_slice(), &errors.join(&b","[..]), b"]"].concat(),
        ([error, ..], _) => error.clone(),
    };
    channel::json(StatusCode::BAD_GATEWAY, body).map(ResponseBody::from)
}
