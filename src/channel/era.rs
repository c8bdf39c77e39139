//! Discovery of the server's era: whether the server speaks revisions without sessions.
//!
//! At many servers the first message on a channel fixes its era. Some run a call that they do not
//! understand. So the proxy does not use a client's request for the discovery. It sends
//! `server/discover` on a new channel, once. That channel becomes the first of its caller if the
//! server speaks such a revision, and ends otherwise. If the server ends without a response, a
//! later request starts another discovery.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::json;
use tokio::sync::OwnedMutexGuard;
use tracing::info;

use super::caller::Caller;
use super::connection::{Begun, End};
use super::metrics::EndReason;
use super::pending_start::StartFailure;
use super::server::Server;
use super::server_era::era_of;
use super::start::until;
use super::table::Channels;
use crate::protocol::error::ErrorCode;
use crate::protocol::headers::Era;
use crate::protocol::jsonrpc::{Message, RequestId, error_code};
use crate::{clock, sync};

/// Revision of the proxy's `server/discover`.
const PROBE_REVISION: &str = "2026-07-28";

impl Channels {
    /// Returns the era of the server. An unknown era is discovered on the channel of `caller`. The
    /// discovery continues if the request is abandoned.
    ///
    /// A server that ends without a response counts as legacy for this request. A later request
    /// discovers its era again.
    pub(super) async fn era(self: &Arc<Self>, caller: Option<&Arc<Caller>>) -> Result<Era, StartFailure> {
        if let Some(era) = self.era.known() {
            return Ok(era);
        }
        let deadline = clock::now() + self.settings.start;
        let Ok(lock) = until(deadline, self.era.discovery.clone().lock_owned()).await else {
            return Err(StartFailure::of(ErrorCode::ServerSlow, String::new()));
        };
        if let Some(era) = self.era.known() {
            return Ok(era);
        }
        if sync::lock(&self.era.retry).must_wait(clock::now()) {
            return Ok(Era::Legacy);
        }
        let discovery = self.runtime.spawn(self.clone().discover_era(caller.cloned(), lock));
        discovery.await.unwrap_or_else(|_| Err(StartFailure::of(ErrorCode::ServerFailed, String::new())))
    }

    async fn discover_era(
        self: Arc<Self>,
        caller: Option<Arc<Caller>>,
        _lock: OwnedMutexGuard<()>,
    ) -> Result<Era, StartFailure> {
        let server = self.shared(caller.as_ref()).await?;
        let response = until(clock::now() + self.settings.start, discover(&server)).await.ok().flatten();
        if server.connection.ending() == Some(End::Closed) {
            // The proxy has ended it. The era stays unknown.
            return Err(StartFailure::of(ErrorCode::NoServer, String::new()));
        }
        let is_end = |response: &[u8]| error_code(response) == Some(ErrorCode::ServerEnded.json_rpc());
        let has_responded = response.as_deref().is_some_and(|response| !is_end(response));
        if !has_responded && server.connection.ending() == Some(End::Lost) {
            info!("a server has ended when it was asked for its revisions");
            sync::lock(&self.era.retry).delay(clock::now());
            // A client that also speaks an older revision falls back to it.
            return Ok(Era::Legacy);
        }
        let era = era_of(response.as_deref());
        info!(?era, "the server on stdio was asked for its revisions");
        *sync::lock(&self.era.known) = Some(era);
        if era == Era::Legacy {
            server.end(EndReason::Client);
        }
        Ok(era)
    }
}

/// Sends `server/discover`. Returns the server's response, or `None` if the server has ended.
async fn discover(server: &Server) -> Option<Bytes> {
    let request = json!({"jsonrpc": "2.0", "id": 0, "method": "server/discover", "params": {"_meta": {
        "io.modelcontextprotocol/protocolVersion": PROBE_REVISION,
        "io.modelcontextprotocol/clientInfo": {"name": "mcp-resume", "version": env!("CARGO_PKG_VERSION")},
        "io.modelcontextprotocol/clientCapabilities": {},
    }}});
    let message = Message::Request { id: RequestId::from_json("0")?, method: "server/discover".into() };
    let call = server.connection.call(None, &[message], &request.to_string().into(), None, None, Box::new(|| {}));
    let mut pending = call.ok()?;
    match pending.begun().await {
        Begun::Written => pending.events.response().await,
        Begun::Refused(_) | Begun::Ended => None,
    }
}
