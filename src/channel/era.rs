//! Era of the server: whether it speaks revisions without sessions.
//!
//! The first message on a channel fixes its era at many servers, and some run a call that they do
//! not understand. So no client's request finds the era out: the proxy asks `server/discover` on a
//! new channel, once. That channel is the first of its caller if the server speaks such a revision,
//! and ends otherwise. A server that ends without an answer is asked again by a later request.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde_json::json;
use tokio::sync::OwnedMutexGuard;
use tracing::info;

use super::Channels;
use super::caller::Caller;
use super::connection::{Begun, End};
use super::metrics::EndReason;
use super::pending::Failed;
use super::server::Server;
use super::start::until;
use crate::backoff::Backoff;
use crate::protocol::error::ErrorCode;
use crate::protocol::headers::{Era, ProtocolVersion};
use crate::protocol::jsonrpc::{self, Message, RequestId};
use crate::{clock, sync};

/// Revision in which the proxy asks.
const ASKED: &str = "2026-07-28";
/// Error of a server that does not speak the revision of a request.
pub(super) const UNSUPPORTED_VERSION: i64 = -32022;

/// Error of the proxy for a request whose server has ended.
const SERVER_ENDED: i64 = -32010;
/// Pauses after servers that ended when they were asked.
const PAUSES: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));

/// Era of a server, once it was asked.
#[derive(Debug, Default)]
pub(super) struct ServerEra {
    known: Mutex<Option<Era>>,
    /// Wait before the next question, after servers that ended without an answer.
    retry: Mutex<Retry>,
    /// Held by the one that asks.
    asking: Arc<tokio::sync::Mutex<()>>,
}

/// Time of the next question to a server that has ended upon the last one.
#[derive(Debug)]
struct Retry {
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
    fn note_end(&mut self, now: Instant) {
        self.not_before = Some(now + self.pauses.next_pause());
    }

    fn must_wait(&self, now: Instant) -> bool {
        self.not_before.is_some_and(|until| until > now)
    }
}

impl ServerEra {
    fn known(&self) -> Option<Era> {
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
    pub(super) fn note_refused_handshake(&self, error: &[u8]) {
        if error_code(error) == Some(UNSUPPORTED_VERSION) {
            *sync::lock(&self.known) = None;
            *sync::lock(&self.retry) = Retry::default();
        }
    }
}

impl Channels {
    /// Returns the era of the server. If it is not known yet, the server is asked on the channel of
    /// `caller`, also if the request is given up. One that ends without an answer counts as a
    /// legacy one for this request, and is asked again by a later one.
    pub(super) async fn era(self: &Arc<Self>, caller: Option<&Arc<Caller>>) -> Result<Era, Failed> {
        if let Some(era) = self.era.known() {
            return Ok(era);
        }
        let deadline = clock::now() + self.settings.start;
        let Ok(asking) = until(deadline, self.era.asking.clone().lock_owned()).await else {
            return Err(Failed::of(ErrorCode::ServerSlow, String::new()));
        };
        if let Some(era) = self.era.known() {
            return Ok(era);
        }
        if sync::lock(&self.era.retry).must_wait(clock::now()) {
            return Ok(Era::Legacy);
        }
        let asked = self.runtime.spawn(self.clone().ask_era(caller.cloned(), asking));
        asked.await.unwrap_or_else(|_| Err(Failed::of(ErrorCode::ServerFailed, String::new())))
    }

    async fn ask_era(
        self: Arc<Self>,
        caller: Option<Arc<Caller>>,
        _asking: OwnedMutexGuard<()>,
    ) -> Result<Era, Failed> {
        let server = self.shared(caller.as_ref()).await?;
        let answer = until(clock::now() + self.settings.start, discover(&server)).await.ok().flatten();
        if server.connection.ending() == Some(End::Closed) {
            // The proxy has ended it, which says nothing of the server.
            return Err(Failed::of(ErrorCode::NoServer, String::new()));
        }
        let has_answered = answer.as_deref().is_some_and(|answer| error_code(answer) != Some(SERVER_ENDED));
        if !has_answered && server.connection.ending() == Some(End::Lost) {
            info!("a server has ended when it was asked for its revisions");
            sync::lock(&self.era.retry).note_end(clock::now());
            // A client that also speaks an older revision falls back to it.
            return Ok(Era::Legacy);
        }
        let era = era_of(answer.as_deref());
        info!(?era, "the server on stdio was asked for its revisions");
        *sync::lock(&self.era.known) = Some(era);
        if era == Era::Legacy {
            server.end(EndReason::Client);
        }
        Ok(era)
    }
}

/// Asks the server what it speaks. Returns its response, or `None` if it has ended.
async fn discover(server: &Server) -> Option<Bytes> {
    let request = json!({"jsonrpc": "2.0", "id": 0, "method": "server/discover", "params": {"_meta": {
        "io.modelcontextprotocol/protocolVersion": ASKED,
        "io.modelcontextprotocol/clientInfo": {"name": "mcp-resume", "version": env!("CARGO_PKG_VERSION")},
        "io.modelcontextprotocol/clientCapabilities": {},
    }}});
    let message = Message::Request { id: RequestId::from_json("0")?, method: "server/discover".into() };
    let call = server.connection.call(None, &[message], &request.to_string().into(), None, None, Box::new(|| {}));
    let mut waiting = call.ok()?;
    match waiting.begun().await {
        Begun::Written => waiting.events.response().await,
        Begun::Refused(_) | Begun::Ended => None,
    }
}

/// Returns the era of a server that gave this response to `server/discover`. A server that names
/// revisions speaks those; any other error, or silence, is that of one that has never heard of the
/// method.
pub(crate) fn era_of(response: Option<&[u8]>) -> Era {
    let Some(response) = response else { return Era::Legacy };
    let path: &[&str] = match error_code(response) {
        None => &["result", "supportedVersions"],
        Some(UNSUPPORTED_VERSION) => &["error", "data", "supported"],
        Some(_) => return Era::Legacy,
    };
    let listed = jsonrpc::member(response, path).and_then(|list| serde_json::from_str::<Vec<String>>(list).ok());
    let is_modern = |text: &String| ProtocolVersion::parse(text).is_some_and(|version| version.era() == Era::Modern);
    match listed {
        Some(listed) if !listed.iter().any(is_modern) => Era::Legacy,
        Some(_) | None => Era::Modern,
    }
}

/// Returns the code of an error response, 0 for an error without one, or `None` for a result.
pub(super) fn error_code(response: &[u8]) -> Option<i64> {
    jsonrpc::member(response, &["error"])?;
    Some(jsonrpc::member(response, &["error", "code"]).and_then(|code| code.parse().ok()).unwrap_or_default())
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
        era.note_refused_handshake(br#"{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":""}}"#);
        assert_eq!(era.known(), Some(Era::Legacy));
        era.note_refused_handshake(br#"{"jsonrpc":"2.0","id":1,"error":{"code":-32022,"message":""}}"#);
        assert_eq!(era.known(), None);
    }
}
