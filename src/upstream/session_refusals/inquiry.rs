//! Inquiry whether a session lives, before it is opened again.
//!
//! A refusal may be the response of a tool that ran, in any words. A `ping` in the session costs
//! nothing, and shows the difference. Some servers have no `ping` and refuse it as they refuse
//! everything unknown, so a list that the server has declared is the second question. Owned here:
//! both questions, their headers and their time limit. Invariant: no question has effects. Absent:
//! the verdict of an answer (`protocol`), and its consequence (`revival/`).

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

/// Time limit for the head of an answer. A server that is slower counts as busy, with its session.
/// Shorter than the time after which the proxy begins a response: the refusal has come, and passes
/// with its status.
const ANSWER_WAIT: Duration = Duration::from_millis(1500);
/// Time limit for the body of a response that may be a refusal.
pub(super) const BODY_WAIT: Duration = Duration::from_secs(1);
/// Limits of the rest of an answer. A response that is read to its end leaves its connection to the
/// next request.
const REST_MAX: usize = 64 * 1024;
const REST_WAIT: Duration = Duration::from_secs(2);

/// The question whether a session lives in which a request was refused.
pub(in crate::upstream) struct Inquiry<'a> {
    pub(in crate::upstream) refusals: &'a SessionRefusals,
    /// The refused request: the questions have its session and its credentials.
    pub(in crate::upstream) request: &'a Template,
    /// Revision of the session.
    pub(in crate::upstream) version: Option<&'a ProtocolVersion>,
    /// Facts that the server stated about itself, or `None` if they are not known.
    pub(in crate::upstream) server: Option<&'a ServerFacts>,
    /// Status and meaning of the refusal.
    pub(in crate::upstream) refused: (u16, &'a Refusal),
}

impl Inquiry<'_> {
    /// Asks the server by `send`, which returns `None` without a response, and returns its verdict.
    /// `RefusedAlike` is the verdict of all questions. Each takes 1.5 s at most for the head of its
    /// answer, and one for its body.
    pub(in crate::upstream) async fn ask<F, Sending>(&self, send: F) -> Verdict
    where
        F: Fn(Template) -> Sending,
        Sending: Future<Output = Option<Response<ResponseBody>>>,
    {
        let list = self.server.and_then(ServerFacts::list_method);
        for method in ["ping"].into_iter().chain(list) {
            let id = synthetic::own_id();
            let asking = send(self.question(&id, method));
            let answer = match tokio::time::timeout(ANSWER_WAIT, asking).await {
                Ok(Some(answer)) => answer,
                // The server has just been ended, and its sessions with it.
                Ok(None) => return Verdict::Undecided,
                // A busy server: the refused request may have run.
                Err(_) => return Verdict::Lives,
            };
            match self.verdict(answer, id).await {
                Verdict::RefusedAlike => {}
                verdict => return verdict,
            }
        }
        Verdict::RefusedAlike
    }

    fn question(&self, id: &str, method: &str) -> Template {
        let mut headers: HeaderMap = self.request.own_headers();
        headers.remove(names::LAST_EVENT_ID);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
        if let Some(Ok(version)) = self.version.map(|version| HeaderValue::from_str(version.as_str())) {
            headers.insert(names::MCP_PROTOCOL_VERSION, version);
        }
        let body = format!(r#"{{"jsonrpc":"2.0","id":"{id}","method":"{method}"}}"#);
        self.request.beside(Method::POST, &headers, body.into())
    }

    async fn verdict(&self, answer: Response<ResponseBody>, id: String) -> Verdict {
        let (status, id) = (answer.status().as_u16(), RequestId::String(id.into()));
        if !may_refuse(self.refusals, &answer) {
            leave(answer);
            return self.refusals.verdict(self.refused, (status, None), &id);
        }
        let (answer, body): (_, Option<Bytes>) = begun(answer, session_refusal::BODY_MAX, BODY_WAIT).await;
        leave(answer);
        self.refusals.verdict(self.refused, (status, body.as_deref()), &id)
    }
}

/// Returns whether a response has a status of a refusal, and a body that can be read for it. An
/// event stream serves its request.
pub(super) fn may_refuse(refusals: &SessionRefusals, response: &Response<ResponseBody>) -> bool {
    let is_stream = response.status().is_success() && headers::is_sse(response.headers());
    !is_stream && refusals.may_have(response.status().as_u16())
}

/// Reads the rest of an answer apart from the request that waits for the verdict.
fn leave(answer: Response<ResponseBody>) {
    let rest = tokio::time::timeout(REST_WAIT, collect(answer.into_body(), REST_MAX));
    tokio::spawn(async move { drop(rest.await) }.in_current_span());
}
