//! Inquiry whether a session lives, before it is opened again.
//!
//! A refusal may be the response of a tool that ran, in any words. A `ping` in the session is
//! cheap, and shows the difference. Some servers have no `ping` and refuse it like any unknown
//! method. The second probe is therefore a list that the server has declared.
//!
//! Owned here: both probes, their headers and their time limit. Invariant: no probe has effects.
//! Absent: the verdict on a response (`protocol`), and its consequence (`revival/`).

use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method, Response};
use tracing::Instrument;

use crate::protocol::headers::{self, ProtocolVersion, names};
use crate::protocol::jsonrpc::{RequestId, ServerFacts};
use crate::protocol::session_refusal::{self, Refusal, SessionRefusals, Verdict};
use crate::upstream::server::body::{begun, collect};
use crate::upstream::server::request::Template;
use crate::upstream::server::response_body::ResponseBody;
use crate::upstream::server::synthetic;

/// Time limit for the response head of a probe. A slower server counts as busy, and the session as
/// living. It is shorter than the delay of a commit, so that the refusal passes with its status.
const HEAD_WAIT: Duration = Duration::from_millis(1500);
/// Time limit for the body of a response that may be a refusal.
pub(super) const BODY_WAIT: Duration = Duration::from_secs(1);
/// Limits of the rest of a response. Reading it to its end lets the next request use the
/// connection.
const REST_MAX: usize = 64 * 1024;
const REST_WAIT: Duration = Duration::from_secs(2);

/// Inquiry after the refusal of a request in a session.
pub(in crate::upstream) struct Inquiry<'a> {
    pub(in crate::upstream) refusals: &'a SessionRefusals,
    /// The refused request. The probes have its session and its credentials.
    pub(in crate::upstream) request: &'a Template,
    /// Revision of the session.
    pub(in crate::upstream) version: Option<&'a ProtocolVersion>,
    /// Facts that the server stated about itself, or `None` if they are not known.
    pub(in crate::upstream) server: Option<&'a ServerFacts>,
    /// Status and meaning of the refusal.
    pub(in crate::upstream) refused: (u16, &'a Refusal),
}

impl Inquiry<'_> {
    /// Sends the probes by `send`, which returns `None` without a response. Returns the verdict.
    ///
    /// `RefusedAlike` means that all probes were refused alike. Each probe takes at most 1.5 s for
    /// the response head, and 1 s for the body.
    pub(in crate::upstream) async fn run<F, Sending>(&self, send: F) -> Verdict
    where
        F: Fn(Template) -> Sending,
        Sending: Future<Output = Option<Response<ResponseBody>>>,
    {
        let list = self.server.and_then(ServerFacts::list_method);
        for method in ["ping"].into_iter().chain(list) {
            let id = synthetic::own_id();
            let probe = send(self.probe(&id, method));
            let response = match tokio::time::timeout(HEAD_WAIT, probe).await {
                Ok(Some(response)) => response,
                // The server has just ended, together with its sessions.
                Ok(None) => return Verdict::Undecided,
                // A busy server: the refused request may have run.
                Err(_) => return Verdict::Lives,
            };
            match self.verdict(response, id).await {
                Verdict::RefusedAlike => {}
                verdict => return verdict,
            }
        }
        Verdict::RefusedAlike
    }

    fn probe(&self, id: &str, method: &str) -> Template {
        let mut headers: HeaderMap = self.request.own_headers();
        headers.remove(names::LAST_EVENT_ID);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(ACCEPT, synthetic::BOTH_TYPES);
        if let Some(Ok(version)) = self.version.map(|version| HeaderValue::from_str(version.as_str())) {
            headers.insert(names::MCP_PROTOCOL_VERSION, version);
        }
        let body = format!(r#"{{"jsonrpc":"2.0","id":"{id}","method":"{method}"}}"#);
        self.request.beside(Method::POST, &headers, body.into())
    }

    async fn verdict(&self, response: Response<ResponseBody>, id: String) -> Verdict {
        let (status, id) = (response.status().as_u16(), RequestId::String(id.into()));
        if !may_refuse(self.refusals, &response) {
            leave(response);
            return self.refusals.verdict(self.refused, (status, None), &id);
        }
        let (response, body): (_, Option<Bytes>) = begun(response, session_refusal::BODY_MAX, BODY_WAIT).await;
        leave(response);
        self.refusals.verdict(self.refused, (status, body.as_deref()), &id)
    }
}

/// Returns true if the response has the status of a refusal, and a body that can be read. An event
/// stream serves its request.
pub(super) fn may_refuse(refusals: &SessionRefusals, response: &Response<ResponseBody>) -> bool {
    let is_stream = response.status().is_success() && headers::is_sse(response.headers());
    !is_stream && refusals.may_have(response.status().as_u16())
}

/// Reads the rest of a response in a separate task, so that the verdict does not wait for it.
fn leave(response: Response<ResponseBody>) {
    let rest = tokio::time::timeout(REST_WAIT, collect(response.into_body(), REST_MAX));
    tokio::spawn(async move { drop(rest.await) }.in_current_span());
}
