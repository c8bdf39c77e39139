//! Era of the server: whether it speaks revisions without sessions.
//!
//! The first message on a channel fixes its era at many servers, and some run a call that they do
//! not understand. So no client's request finds the era out: the proxy asks `server/discover` on a
//! new channel, once. That channel is the first of its caller if the server speaks such a revision,
//! and ends otherwise. A server that ends without an answer is asked again by a later request.

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

/// Revision in which the proxy asks.
const PROBE_REVISION: &str = "2026-07-28";

impl Channels {
    /// Returns the era of the server. If it is not known yet, the server is asked on the channel of
    /// `caller`, also if the request is given up. One that ends without an answer counts as a
    /// legacy one for this request, and is asked again by a later one.
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
            // The proxy has ended it, which says nothing of the server.
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

/// Asks the server what it speaks. Returns its response, or `None` if it has ended.
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
