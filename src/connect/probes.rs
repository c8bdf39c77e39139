//! Probes for the revisions without sessions: the host's, and one of this process for the promise
//! of the far side.
//!
//! Some hosts probe by a process of its own. The process that stays gets a call first, and the key
//! of a call needs the promise. So the far side is asked for it before. A probe that a fault of the
//! network has ended is sent again: its host would take an older revision for the whole session.
//! Absent: the file of the remembered answers; revisions with sessions, in which `initialize` comes
//! first.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use serde_json::{Value, json};
use tracing::{info, warn};

use super::far::Reply;
use super::input::HostRequest;
use super::opening::ANSWER_WITHIN;
use super::pipe::Pipe;
use super::words::own_code;
use crate::backoff::Backoff;
use crate::clock;
use crate::protocol::era;
use crate::protocol::error::ErrorCode;
use crate::protocol::jsonrpc::{self, RequestId, code, response};

/// Longest wait of a call for the promise. The call is sent without a key then.
const PROMISE_WITHIN: Duration = Duration::from_secs(4);
/// Pauses before the far side is asked again.
const PAUSES: Backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(1));
const METHOD: &str = "server/discover";
/// ID of a probe of this process.
const ID: &str = "mcp-resume";

impl Pipe {
    /// Answers a probe of the host, in time. The remembered answer is that of a far side that is
    /// away.
    pub(super) async fn discover(self: Arc<Self>, request: HostRequest) {
        let record = self.remember(&request).await;
        let revision = request.revision.clone().unwrap_or_else(|| era::REVISION.into());
        let body = tokio::time::timeout(ANSWER_WITHIN, self.probe(&request, &revision)).await;
        let is_answer = |body: &Bytes| {
            let speaks_of_revisions = |code| matches!(code, code::UNSUPPORTED_VERSION | code::MISSING_CAPABILITY);
            request.response_in(body).is_some() && jsonrpc::error_code(body).is_none_or(speaks_of_revisions)
        };
        let is_away = body.is_err();
        let remembered = || record.result(METHOD).filter(|_| is_away);
        let answer = match body.ok().flatten().filter(is_answer) {
            Some(answer) => {
                record.keep(METHOD, &request.body, &answer);
                answer
            }
            None => match remembered() {
                Some(result) => {
                    warn!("the far side is not there yet: its earlier answers hold until it comes");
                    self.is_away.store(true, Ordering::Relaxed);
                    let (pipe, probe) = (self.clone(), request.clone());
                    self.spawn(async move { pipe.await_far(&probe, &revision).await });
                    response::result(&request.id, result).into()
                }
                None => response::method_not_found(&request.id).into(),
            },
        };
        self.respond(&request.id, answer).await;
    }

    /// Probes until the far side has come. Until then lists are the remembered ones.
    async fn await_far(&self, probe: &HostRequest, revision: &str) {
        self.probe(probe, revision).await;
        info!("the far side has come");
        self.is_away.store(false, Ordering::Relaxed);
    }

    /// Learns of the promise before `request`, a call of a revision without sessions. Asks nothing
    /// if a response has shown it before, or without a credential, which the promise needs.
    pub(super) async fn learn_promise(&self, request: &HostRequest) {
        let Some(revision) = &request.revision else { return };
        if self.far.knows_promise() || !self.far.credentials().has_any() {
            return;
        }
        let Some(probe) = own_probe(request, revision) else { return };
        let asked = async {
            let _turn = self.probing.lock().await;
            if !self.far.knows_promise() {
                self.probe(&probe, revision).await;
            }
        };
        let _ = tokio::time::timeout(PROMISE_WITHIN, asked).await;
    }

    /// Sends a probe until the far side answers. Returns the body of its answer.
    async fn probe(&self, probe: &HostRequest, revision: &str) -> Option<Bytes> {
        let mut pauses = PAUSES;
        loop {
            let reply = self.far.post_modern(probe, revision).await;
            let (status, is_of_serve) = match &reply {
                Reply::Whole { status, is_of_serve, .. } => (*status, *is_of_serve),
                Reply::Messages(_) => (StatusCode::OK, false),
            };
            let body = reply.response_to(probe).await;
            if is_of_serve || !is_fault(status, body.as_deref().unwrap_or_default()) {
                return body;
            }
            clock::sleep(pauses.next_pause()).await;
        }
    }
}

/// Returns a probe with the facts that the host gives of itself in `request`.
fn own_probe(request: &HostRequest, revision: &str) -> Option<HostRequest> {
    let fact = |place: &'static [&'static str]| {
        let fact = jsonrpc::member(&request.body, place)?;
        serde_json::from_str::<Value>(fact).ok()
    };
    let client = fact(&["params", "_meta", era::CLIENT_INFO]);
    let capabilities = fact(&["params", "_meta", era::CAPABILITIES]);
    let body = era::discover(json!(ID), revision, client, capabilities).into();
    let id = RequestId::from_json(&json!(ID).to_string())?;
    Some(HostRequest { id, method: METHOD.into(), body, revision: request.revision.clone() })
}

/// Returns true for a response of this process, or of a proxy in between, in place of the far
/// side's.
fn is_fault(status: StatusCode, body: &[u8]) -> bool {
    match own_code(body) {
        Some(code) => matches!(code, ErrorCode::UpstreamBroke | ErrorCode::Unreachable),
        None => {
            matches!(status, StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT)
        }
    }
}
