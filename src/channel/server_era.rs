//! Era of a server as it was found, and what a response says of it.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::backoff::Backoff;
use crate::protocol::headers::{Era, ProtocolVersion};
use crate::protocol::jsonrpc::{self, code, error_code};
use crate::sync;

/// Pauses after servers that ended when they were asked.
const PAUSES: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));

/// Era of a server, once it was asked.
#[derive(Debug, Default)]
pub(super) struct ServerEra {
    pub(super) known: Mutex<Option<Era>>,
    /// Wait before the next question, after servers that ended without an answer.
    pub(super) retry: Mutex<Retry>,
    /// Held by the one that asks.
    pub(super) discovery: Arc<tokio::sync::Mutex<()>>,
}

/// Time of the next question to a server that has ended upon the last one.
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
    /// Notes the end of a server that was asked. Such an end teaches nothing: the server may have
    /// failed for any reason.
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

    /// Creates the era of a server, which is not asked if it is known.
    pub(super) fn of(known: Option<Era>) -> Self {
        Self { known: Mutex::new(known), ..Self::default() }
    }

    /// Sets the era, as if the server had been asked.
    #[cfg(test)]
    pub(super) fn set(&self, era: Era) {
        *sync::lock(&self.known) = Some(era);
    }

    /// Notes that the server has refused `initialize` with this error. One that speaks no revision
    /// with sessions is asked again: it may have been too slow for an answer, or have failed.
    pub(super) fn handle_refused_handshake(&self, error: &[u8]) {
        if error_code(error) == Some(code::UNSUPPORTED_VERSION) {
            *sync::lock(&self.known) = None;
            *sync::lock(&self.retry) = Retry::default();
        }
    }
}

/// Returns the era of a server that gave this response to `server/discover`. A server that names
/// revisions speaks those; any other error, or silence, is that of one that has never heard of the
/// method.
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
