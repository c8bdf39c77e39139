//! Token probe: a harmless request that shows whether the server verifies signatures.
//!
//! The probe has the caller's own headers, but no credentials beside the token: the upstream might
//! accept those instead. It is sent three times. If the upstream accepts it, refuses it with a
//! corrupted signature, and accepts it again, the upstream verifies signatures, and this one is
//! valid. The third response rules out another cause of the refusal: an expired cookie, or a
//! reached limit.

use std::time::Duration;

use http::header::AUTHORIZATION;
use http::{Response, StatusCode};

use super::server::exchange::Exchange;
use super::server::request::Template;
use super::server::response_body::ResponseBody;
use super::server::synthetic::discover_request;
use super::session_refusals::Revivals;
use super::token_subjects::TokenSubjects;
use crate::channel::Caller;
use crate::clock;
use crate::protocol::headers::SessionId;
use crate::protocol::jwt;

/// Time limit for each response. A client waits meanwhile, and has few retries after it gives up.
const WAIT: Duration = Duration::from_secs(5);

/// Result of a probe.
pub enum ProbeOutcome {
    /// The token is genuine, and the upstream refuses tokens with a wrong signature.
    Genuine,
    /// Not proven: the upstream accepts any token.
    Foreign,
    /// Not proven: the upstream does not respond to the probe, or not in this session.
    Inconclusive,
    /// The upstream refuses the token. Holds the probe and the response.
    Refused(Box<(Template, Response<ResponseBody>)>),
    /// No response that shows anything about the token.
    Unknown,
}

/// Returns true if the server accepts the token of `probe`, a JWT of this caller in this session,
/// and refuses a corrupted one. A recent result is used again.
pub(super) async fn confirms_token(
    server: &impl Exchange,
    tokens: &TokenSubjects,
    caller: &Caller,
    session: Option<SessionId>,
    probe: Template,
) -> bool {
    let used = (*caller.principal(), session);
    if let Some(is_genuine) = tokens.probed(&used, clock::now()) {
        return is_genuine;
    }
    let outcome = compare_tokens(server, probe.with_token_alone(), None).await;
    let is_genuine = matches!(outcome, ProbeOutcome::Genuine);
    if is_genuine || matches!(outcome, ProbeOutcome::Foreign) {
        tokens.record_probe(used, is_genuine, clock::now());
    }
    is_genuine
}

/// Sends the probe `genuine`, the same with a corrupted signature, and `genuine` again. With
/// `may_lack_session`, a refusal of the session by these rules counts as a 2xx.
pub(super) async fn compare_tokens(
    server: &impl Exchange,
    genuine: Template,
    may_lack_session: Option<&Revivals>,
) -> ProbeOutcome {
    let Some(corrupted) = genuine.own_headers().get(AUTHORIZATION).and_then(jwt::corrupted) else {
        return ProbeOutcome::Inconclusive;
    };
    let corrupted = genuine.clone().with(AUTHORIZATION, corrupted);
    for (request, is_genuine) in [(&genuine, true), (&corrupted, false), (&genuine, true)] {
        let Ok(Ok(response)) = tokio::time::timeout(WAIT, server.exchange(request, None)).await else {
            return ProbeOutcome::Unknown;
        };
        let (response, lacks_session) = match may_lack_session {
            Some(rules) => rules.is_session_refused(response).await,
            None => (response, false),
        };
        match (is_genuine, response.status()) {
            (true, _) if lacks_session => {}
            // A refusal of the session shows nothing about the token.
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

/// Returns the probe of a server of 2026-07-28 for a client in a session of the bridge. The bridge
/// itself would respond to a ping.
pub(super) fn outside_sessions(call: Template) -> Template {
    discover_request(&call.without_session(), None)
}
