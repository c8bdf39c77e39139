//! The known era of a server, and the era that a response shows.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::backoff::Backoff;
use crate::protocol::headers::{Era, ProtocolVersion};
use crate::protocol::jsonrpc::{self, code, error_code};
use crate::sync;

/// Pauses after a server that ended during discovery.
const PAUSES: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));

/// Era of a server, once it is known.
#[derive(Debug, Default)]
pub(super) struct ServerEra {
    pub(super) known: Mutex<Option<Era>>,
    /// Wait before the next discovery, after servers that ended without a response.
    pub(super) retry: Mutex<Retry>,
    /// Held during a discovery.
    pub(super) discovery: Arc<tokio::sync::Mutex<()>>,
}

/// Time of the next discovery, after the server ended during the last one.
#[derive(Debug)]
pub(super) struct Retry {
    pauses: Backoff,
    not_before: Option<Instant>,
}

impl Default for Retry {
    fn default() -> Self {
        Self { pauses: PAUSES, not_before: None }
    }
}

impl Retry {
    /// Delays the next discovery, because the server ended during this one. Such an end shows
    /// nothing about the era: the server may have failed for any reason.
    pub(super) fn delay(&mut self, now: Instant) {
        self.not_before = Some(now + self.pauses.next_pause());
    }

    pub(super) fn must_wait(&self, now: Instant) -> bool {
        self.not_before.is_some_and(|until| until > now)
    }
}

impl ServerEra {
    pub(super) fn known(&self) -> Option<Era> {
        *sync::lock(&self.known)
    }

    /// Creates the era of a server. A known era needs no discovery.
    pub(super) fn of(known: Option<Era>) -> Self {
        Self { known: Mutex::new(known), ..Self::default() }
    }

    /// Sets the era, as a discovery does.
    #[cfg(test)]
    pub(super) fn set(&self, era: Era) {
        *sync::lock(&self.known) = Some(era);
    }

    /// Handles the server's refusal of `initialize` with this error. If the server speaks no
    /// revision with sessions, its era becomes unknown: the server may have failed, or responded
    /// too slowly.
    pub(super) fn handle_refused_handshake(&self, error: &[u8]) {
        if error_code(error) == Some(code::UNSUPPORTED_VERSION) {
            *sync::lock(&self.known) = None;
            *sync::lock(&self.retry) = Retry::default();
        }
    }
}

/// Returns the era that a response to `server/discover` shows. A server speaks the revisions that
/// it names. Any other error, or silence, shows a server that does not know the method.
pub(crate) fn era_of(response: Option<&[u8]>) -> Era {
    let Some(response) = response else { return Era::Legacy };
    let path: &[&str] = match error_code(response) {
        Some(code::UNSUPPORTED_VERSION) => &["error", "data", "supported"],
        None if jsonrpc::member(response, &["error"]).is_none() => &["result", "supportedVersions"],
        Some(_) | None => return Era::Legacy,
    };
    let listed = jsonrpc::member(response, path).and_then(|list| serde_json::from_str::<Vec<String>>(list).ok());
    let is_modern = |text: &String| ProtocolVersion::parse(text).is_some_and(|version| version.era() == Era::Modern);
    match listed {
        Some(listed) if !listed.iter().any(is_modern) => Era::Legacy,
        Some(_) | None => Era::Modern,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_response_to_discover_tells_the_era() {
        for (response, era) in [
            (r#"{"jsonrpc":"2.0","id":1,"result":{"supportedVersions":["2026-07-28"]}}"#, Era::Modern),
            (r#"{"jsonrpc":"2.0","id":1,"result":{}}"#, Era::Modern),
            (r#"{"jsonrpc":"2.0","id":1,"result":{"supportedVersions":["2025-11-25"]}}"#, Era::Legacy),
            (
                r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32022,"message":"","data":{"supported":["2027-01-01"]}}}"#,
                Era::Modern,
            ),
            (
                r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32022,"message":"","data":{"supported":["2025-11-25"]}}}"#,
                Era::Legacy,
            ),
            (r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32022,"message":""}}"#, Era::Modern),
            (r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":""}}"#, Era::Legacy),
            (r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":""}}"#, Era::Legacy),
            (r#"{"jsonrpc":"2.0","id":1,"error":{}}"#, Era::Legacy),
        ] {
            assert_eq!(era_of(Some(response.as_bytes())), era, "{response}");
        }
        assert_eq!(era_of(None), Era::Legacy, "silence");
    }

    #[test]
    fn a_server_without_handshakes_is_asked_again() {
        let era = ServerEra::default();
        era.set(Era::Legacy);
        era.handle_refused_handshake(br#"{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":""}}"#);
        assert_eq!(era.known(), Some(Era::Legacy));
        era.handle_refused_handshake(br#"{"jsonrpc":"2.0","id":1,"error":{"code":-32022,"message":""}}"#);
        assert_eq!(era.known(), None);
    }
}
