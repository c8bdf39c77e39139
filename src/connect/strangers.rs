//! Answers of something else than the far side: the portal of a network, or the page of an edge.
//!
//! A far side that has worked is not given up for them. Owned here: the meaning of the core's
//! errors about them, and the error that the host gets. Absent: their recognition
//! (`upstream/server/strangers.rs`, `redirects.rs`).

use bytes::Bytes;
use http::{StatusCode, Uri};
use serde_json::json;

use super::input::HostRequest;
use super::pipe::Pipe;
use super::words::own_code;
use crate::protocol::error::{Details, ErrorCode, Failure};
use crate::protocol::jsonrpc;

/// Methods whose remembered result shows that the far side has worked.
const HANDSHAKES: [&str; 2] = ["initialize", "server/discover"];

/// Sender of an answer that is not the far side's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stranger {
    /// A page of some status. The far side may have the request.
    Page(StatusCode),
    /// Another host, to which the far side redirects on https. It may have the request.
    Elsewhere,
    /// Another host, to which plain http was redirected: the far side has not seen the request.
    Portal,
}

impl Stranger {
    /// Returns true if the far side may have the request.
    pub(super) fn may_have_run(self) -> bool {
        self != Self::Portal
    }
}

impl Pipe {
    /// Returns the sender of a response with this body, or `None` if it may be the far side's.
    pub(super) fn stranger(&self, body: &[u8]) -> Option<Stranger> {
        match own_code(body)? {
            ErrorCode::NotTheServer => page_status(body).map(Stranger::Page),
            ErrorCode::UpstreamRedirect => {
                let other = jsonrpc::string_member(body, &["error", "data", "origin"])?.parse::<Uri>().ok()?;
                let own = self.settings.origin.parse::<Uri>().ok()?;
                let is_same = other.host()?.eq_ignore_ascii_case(own.host()?);
                let of_scheme = if own.scheme_str() == Some("http") { Stranger::Portal } else { Stranger::Elsewhere };
                (!is_same).then_some(of_scheme)
            }
            _ => None,
        }
    }

    /// Returns true if the far side has served a request of this process, or of an earlier one.
    pub(super) fn has_worked(&self) -> bool {
        let is_remembered = || {
            let record = self.record();
            record.is_some_and(|record| HANDSHAKES.iter().any(|method| record.result(method).is_some()))
        };
        self.far.has_worked() || is_remembered()
    }

    /// Returns the error for a response of a stranger, with this body.
    pub(super) fn strange_answer(&self, request: &HostRequest, stranger: Stranger, body: &[u8]) -> Bytes {
        let (failure, text, origin) = match stranger {
            Stranger::Page(status) => {
                let failure =
                    Failure { http_status: Some(status.as_u16()), ..Failure::after_send(ErrorCode::NotTheServer) };
                (failure, format!("status {}", status.as_u16()), None)
            }
            Stranger::Elsewhere => (Failure::after_send(ErrorCode::UpstreamRedirect), String::new(), Some(body)),
            Stranger::Portal => (Failure::before_run(ErrorCode::UpstreamRedirect), String::new(), Some(body)),
        };
        let other = origin.and_then(|body| jsonrpc::string_member(body, &["error", "data", "origin"]));
        let origin = other.unwrap_or_else(|| self.settings.origin.clone());
        let details = Details { text: &text, members: vec![("origin", json!(origin))] };
        failure.to_message_with(Some(&request.id), request.subject(), details).into()
    }
}

/// Returns the status of a web page in place of the far side's answer, or `None` for any other
/// response.
pub(super) fn page_status(body: &[u8]) -> Option<StatusCode> {
    if own_code(body)? != ErrorCode::NotTheServer {
        return None;
    }
    let status = jsonrpc::member(body, &["error", "data", "httpStatus"])?;
    StatusCode::from_bytes(status.as_bytes()).ok()
}
