//! Probes of the tokens of callers, through all layers of the upstream.

use std::sync::Arc;

use http::header::ACCEPT;
use http::request::Parts;

use super::forwarded::Forwarded;
use super::server::request::Template;
use super::server::synthetic::{self, discover_request};
use super::stack::Upstream;
use super::token_probe::{ProbeOutcome, compare_tokens, outside_sessions};
use crate::channel::Caller;
use crate::protocol::headers::{Era, ProtocolVersion};

impl Upstream {
    /// Probes the token of the request `parts` of this caller, which must be a JWT.
    pub async fn probe(
        &self,
        parts: &Parts,
        client: &Forwarded,
        caller: Option<Arc<Caller>>,
        era: Era,
    ) -> ProbeOutcome {
        compare_tokens(self, probe_request(self, parts, client, era).for_caller(caller), None).await
    }

    /// Probes the JWT of a request that the upstream refused with its session. A further refusal of
    /// the session counts as acceptance, if the corrupted token gets a 401 or 403.
    /// [`ProbeOutcome::Genuine`] does not mean more: the session may live, and be denied to this
    /// caller only.
    pub(super) async fn probe_outside_session(&self, refused: &Template) -> ProbeOutcome {
        let call = refused.clone().with_token_alone();
        if names_bridged_session(self, &call) {
            return compare_tokens(self, outside_sessions(call), None).await;
        }
        let ping = synthetic::post(&call, synthetic::ping()).with(ACCEPT, synthetic::BOTH_TYPES);
        compare_tokens(self, ping, Some(self.revivals())).await
    }
}

/// Returns true if the request names a session that the proxy keeps for the server.
fn names_bridged_session(upstream: &Upstream, template: &Template) -> bool {
    upstream.bridge().is_some_and(|bridge| bridge.keeps_session_of(template))
}

fn probe_request(upstream: &Upstream, parts: &Parts, client: &Forwarded, era: Era) -> Template {
    let call = upstream.call(parts, client, bytes::Bytes::new()).with_token_alone();
    if names_bridged_session(upstream, &call) {
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
