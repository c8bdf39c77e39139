//! Requests of clients of 2026-07-28 that are translated.

use http::{Response, StatusCode};
use serde_json::{Value, json};

use super::session::LegacySession;
use crate::protocol::bridge::modern_clients::{self as bridge, Envelope, Kind, ListHints, UrlElicitations};
use crate::protocol::channel::envelope;
use crate::protocol::dialect::resume_tokens::CallDigest;
use crate::protocol::jsonrpc::{self, RequestId, code, response};
use crate::upstream::bridge::responses::json_response;
use crate::upstream::server::request::Template;
use crate::upstream::server::response_body::ResponseBody;

/// A request that is translated.
#[derive(Clone)]
pub(super) struct ClientRequest {
    pub(super) template: Template,
    pub(super) id: RequestId,
    pub(super) kind: Kind,
    pub(super) envelope: Envelope,
    /// The client's progress token, as JSON, or `None` without one.
    pub(super) progress_token: Option<String>,
    /// Digest of the call, equal for each request of it. `None` if the request cannot be
    /// translated.
    pub(super) digest: Option<CallDigest>,
    /// Number of input rounds so far.
    pub(super) rounds: u32,
}

impl ClientRequest {
    /// Checks the headers and the envelope of a request.
    ///
    /// # Errors
    /// The refusal of the request.
    pub(super) fn checked(
        template: &Template,
        id: &RequestId,
        method: &str,
    ) -> Result<Self, Box<Response<ResponseBody>>> {
        let body = template.body();
        let kind = Kind::of(method);
        let envelope = Envelope::of(body).map_err(|reason| {
            Box::new(refusal(Some(id), code::INVALID_PARAMS, &format!("Invalid params: {reason}"), Value::Null))
        })?;
        if let Some(header) = envelope::mismatch(&template.lines().to_map(), method, body) {
            let text = format!("Header mismatch: {header} does not match the body");
            return Err(refusal(Some(id), code::HEADER_MISMATCH, &text, Value::Null).into());
        }
        let version = jsonrpc::meta_protocol_version(body).unwrap_or_default();
        if version != bridge::MODERN {
            let data = json!({"supported": [bridge::MODERN], "requested": version});
            return Err(refusal(Some(id), code::UNSUPPORTED_VERSION, "Unsupported protocol version", data).into());
        }
        Ok(Self {
            template: template.clone(),
            id: id.clone(),
            envelope,
            progress_token: jsonrpc::progress_token(body).map(str::to_owned),
            digest: if kind.may_request_input() {
                bridge::translated(body, "", "").and_then(|body| CallDigest::of(&body, method))
            } else {
                None
            },
            kind,
            rounds: 0,
        })
    }

    /// Returns the elicitation URLs of a response of the server that refuses the request until its
    /// user opens them.
    pub(super) fn urls_in(&self, response: &[u8]) -> Option<UrlElicitations> {
        UrlElicitations::of(response).filter(|_| self.kind.may_request_input())
    }

    /// Translates a response of the server for the client, or returns `None` if the message is no
    /// response.
    pub(super) fn result_as(&self, session: &LegacySession, response: &[u8]) -> Option<Vec<u8>> {
        let hints = if matches!(self.kind, Kind::List | Kind::Read) { ListHints::Uncached } else { ListHints::Absent };
        bridge::result_as(response, &self.id, session.server_info.as_ref(), hints)
    }
}

/// Returns a refusal of a request that the server has not received.
pub(super) fn refusal(id: Option<&RequestId>, code: i64, text: &str, data: Value) -> Response<ResponseBody> {
    json_response(StatusCode::BAD_REQUEST, response::error_with_data(id, code, text, data))
}
