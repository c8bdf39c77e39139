//! Probe that asks the upstream whether a token is genuine: only the upstream can tell.
//!
//! The probe is a harmless request with the caller's own headers, but without credentials beside
//! the token: those may be what the upstream accepts. It is sent three times. If the upstream
//! accepts it, refuses it with a corrupted signature, and accepts it again, the upstream verifies
//! signatures, and this one is valid. The third response rules out another cause of the refusal: a
//! cookie that expired, or a limit that was reached.

use std::time::Duration;

use http::header::{ACCEPT, AUTHORIZATION};
use http::request::Parts;
use http::{HeaderValue, Response, StatusCode};

use super::ResponseBody;
use super::discovery::discover_request;
use super::{Forwarded, Template, Upstream, synthetic};
use crate::channel::Caller;
use crate::clock;
use crate::protocol::headers::{Era, ProtocolVersion, SessionId};
use crate::protocol::jwt;

/// Time limit for each response. A client waits meanwhile, and one of its few retries is used up
/// when it gives up.
const WAIT: Duration = Duration::from_secs(5);

/// Media types of the response to a probe.
const ACCEPTED: HeaderValue = HeaderValue::from_static("application/json, text/event-stream");

/// Result of a probe.
pub enum ProbeOutcome {
    /// The token is genuine, and the upstream refuses others.
    Genuine,
    /// Not proven: the upstream accepts any token.
    Foreign,
    /// Not proven: the upstream does not respond to the probe, or not in this session.
    Inconclusive,
    /// The upstream refuses the token. Holds the probe and the response.
    Refused(Box<(Template, Response<ResponseBody>)>),
    /// No response that shows anything.
    Unknown,
}

impl Upstream {
    /// Probes the token of the request `parts`, which is a JWT.
    pub async fn probe(&self, parts: &Parts, client: &Forwarded, era: Era) -> ProbeOutcome {
        self.compare_tokens(self.probe_request(parts, client, era), false).await
    }

    /// Probes the token of a request that the upstream refused with its session, where the token is
    /// a JWT. The upstream may refuse that session once more: then it has accepted the token, if it
    /// refuses the corrupted one with 401 or 403. [`ProbeOutcome::Genuine`] means no more than
    /// that: the upstream may answer a caller in the same way to whom it denies a session that
    /// lives.
    pub(super) async fn probe_outside_session(&self, refused: &Template) -> ProbeOutcome {
        let call = refused.clone().with_token_alone();
        match self.names_bridged_session(&call) {
            true => self.compare_tokens(outside_sessions(call), false).await,
            false => self.compare_tokens(synthetic::post(&call, synthetic::ping()).with(ACCEPT, ACCEPTED), true).await,
        }
    }

    /// Returns true if the server accepts the token of `probe`, which is a JWT of this caller in
    /// this session, and refuses others. Asks unless that was done a moment ago.
    pub(super) async fn confirms_token(&self, caller: &Caller, session: Option<SessionId>, probe: Template) -> bool {
        let (used, tokens) = ((*caller.principal(), session), self.observed().tokens());
        if let Some(is_genuine) = tokens.probed(&used, clock::now()) {
            return is_genuine;
        }
        let outcome = self.compare_tokens(probe.with_token_alone(), false).await;
        let is_genuine = matches!(outcome, ProbeOutcome::Genuine);
        if is_genuine || matches!(outcome, ProbeOutcome::Foreign) {
            tokens.note_probed(used, is_genuine, clock::now());
        }
        is_genuine
    }

    /// Sends the probe `genuine`, the same with a corrupted signature, and `genuine` again. With
    /// `may_lack_session` a refusal of the session stands for a 2xx.
    async fn compare_tokens(&self, genuine: Template, may_lack_session: bool) -> ProbeOutcome {
        let Some(corrupted) = genuine.own_headers().get(AUTHORIZATION).and_then(jwt::corrupted) else {
            return ProbeOutcome::Inconclusive;
        };
        let corrupted = genuine.clone().with(AUTHORIZATION, corrupted);
        for (request, is_genuine) in [(&genuine, true), (&corrupted, false), (&genuine, true)] {
            let Ok(Ok(response)) = tokio::time::timeout(WAIT, self.send(request, None)).await else {
                return ProbeOutcome::Unknown;
            };
            let (response, lacks_session) = match may_lack_session {
                true => self.is_session_refused(response).await,
                false => (response, false),
            };
            match (is_genuine, response.status()) {
                (true, _) if lacks_session => {}
                // It says nothing about the token.
                (false, _) if lacks_session => return ProbeOutcome::Inconclusive,
                (true, status) if status.is_success() => {}
                (true, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => {
                    return ProbeOutcome::Refused(Box::new((request.clone(), response)));
                }
                (false, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => {}
                (_, StatusCode::TOO_MANY_REQUESTS) => return ProbeOutcome::Unknown,
                (_, status) if status.is_server_error() => return ProbeOutcome::Unknown,
                (false, status) if status.is_success() => return ProbeOutcome::Foreign,
                _ => return ProbeOutcome::Inconclusive,
            }
        }
        ProbeOutcome::Genuine
    }

    fn probe_request(&self, parts: &Parts, client: &Forwarded, era: Era) -> Template {
        let call = self.call(parts, client, bytes::Bytes::new()).with_token_alone();
        if self.names_bridged_session(&call) {
            return outside_sessions(call);
        }
        match era {
            Era::Legacy => {
                let id = synthetic::own_id();
                let ping = serde_json::json!({ "jsonrpc": "2.0", "id": id, "method": "ping" });
                synthetic::post(&call, ping.to_string().into_bytes())
            }
            Era::Modern => {
                let requested =
                    ProtocolVersion::from_headers(&parts.headers).filter(|version| version.era() == Era::Modern);
                discover_request(&call, requested.map(|version| version.as_str().to_owned()))
            }
        }
    }
}

/// Returns the probe of a server of 2026-07-28 whose client is in a session of the bridge, which
/// would answer a ping itself.
pub(super) fn outside_sessions(call: Template) -> Template {
    discover_request(&call.without_session(), None)
}
