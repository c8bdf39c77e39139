//! Discovery of the server's era: whether the server speaks revisions without sessions.
//!
//! At many servers the first message on a channel fixes its era. Some run a call that they do not
//! understand. So the proxy does not use a client's request for the discovery. It sends
//! `server/discover` on a new channel, once. That channel becomes the first of its caller if the
//! server speaks such a revision. Otherwise it ends, or is kept for the first session
//! (`keeps_asked`). If the server ends without a response, a later request starts another
//! discovery.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;
use tokio::sync::OwnedMutexGuard;
use tracing::{info, warn};

use super::caller::Caller;
use super::connection::{Begun, End};
use super::link::ProgramEnd;
use super::metrics::EndReason;
use super::pending_start::StartFailure;
use super::server::Server;
use super::start::{report_silence, until};
use super::table::{Channels, SharedStart};
use crate::clock;
use crate::protocol::era::{REVISION, discover as discover_message, era_of, ping};
use crate::protocol::error::ErrorCode;
use crate::protocol::headers::Era;
use crate::protocol::jsonrpc::{self, Message, RequestId, error_code};
use crate::sync;

/// Time of a server that is up to respond to `server/discover`. After it the server counts as one
/// of revisions with sessions.
const SILENCE: Duration = Duration::from_secs(5);
/// Time before a ping shows whether the server is up. Most servers respond sooner.
const PING_AFTER: Duration = Duration::from_secs(1);
/// Interval between looks for a message of the server.
const STEP: Duration = Duration::from_millis(100);

impl Channels {
    /// Returns the era of the server. An unknown era is discovered on the channel of `caller`. The
    /// discovery continues if the request is abandoned.
    ///
    /// A server that ends without a response counts as legacy for this request. A later request
    /// discovers its era again.
    pub(super) async fn era(self: &Arc<Self>, caller: Option<&Arc<Caller>>) -> Result<Era, StartFailure> {
        if let Some(era) = self.era.valid() {
            return Ok(era);
        }
        let deadline = clock::now() + self.settings.start;
        let Ok(lock) = until(deadline, self.discovery.clone().lock_owned()).await else {
            return Err(ErrorCode::ServerSlow.into());
        };
        if let Some(era) = self.era.valid() {
            return Ok(era);
        }
        let discovery = self.runtime.spawn(self.clone().discover_era(caller.cloned(), lock));
        discovery.await.unwrap_or_else(|_| Err(ErrorCode::ServerFailed.into()))
    }

    async fn discover_era(
        self: Arc<Self>,
        caller: Option<Arc<Caller>>,
        _lock: OwnedMutexGuard<()>,
    ) -> Result<Era, StartFailure> {
        let server = self.shared(caller.as_ref()).await?;
        let response = tokio::select! {
            response = until(clock::now() + self.settings.start, discover(&server)) => response.ok().flatten(),
            never = report_silence("server/discover", || server.stderr()) => match never {},
        };
        if server.connection.ending() == Some(End::Closed) {
            // The proxy has ended it. The era stays unknown.
            return Err(ErrorCode::NoServer.into());
        }
        let is_end = |response: &[u8]| error_code(response) == Some(ErrorCode::ServerEnded.json_rpc());
        let has_responded = response.as_deref().is_some_and(|response| !is_end(response));
        if has_responded {
            sync::lock(&self.state).start_gate.record_response();
        }
        if !has_responded && server.connection.ending() == Some(End::Lost) {
            let how = server.program_end().await.map(ProgramEnd::describe);
            let stderr = server.stderr().log_text();
            warn!(how, stderr, "a server has ended when it was asked for its revisions");
            self.era.handle_end();
            // A client that also speaks an older revision falls back to it.
            return Ok(Era::Legacy);
        }
        let era = era_of(response.as_deref());
        info!(?era, "the server on stdio was asked for its revisions");
        self.era.set(era, None);
        if era == Era::Legacy && !self.keep_asked(&server, has_responded) {
            server.end(EndReason::Client);
        }
        Ok(era)
    }
}

impl Channels {
    /// Keeps a server with sessions for the first session, if that is configured. Returns false if
    /// the server must end, because its late response could count as a response in the session.
    fn keep_asked(&self, server: &Arc<Server>, has_responded: bool) -> bool {
        if !self.settings.keeps_asked || !has_responded || !server.connection.begin_session() {
            return false;
        }
        let mut state = sync::lock(&self.state);
        let is_its =
            |opening: &SharedStart| matches!(&*opening.borrow(), Some(Ok(other)) if other.number == server.number);
        state.without_sessions.retain(|_, opening| !is_its(opening));
        state.asked = Some(server.clone());
        true
    }

    /// Takes the server of `caller` that was kept for the first session.
    pub(super) fn take_asked(&self, caller: Option<&Arc<Caller>>) -> Option<Arc<Server>> {
        let asked = sync::lock(&self.state).asked.take_if(|server| server.caller.as_ref() == caller)?;
        Some(asked).filter(|server| server.connection.ending().is_none())
    }
}

/// Sends `server/discover`. Returns the server's response, or `None` if the server has ended.
async fn discover(server: &Server) -> Option<Bytes> {
    let request = discover_message(Value::from(0), REVISION, None, None);
    let message = Message::Request { id: RequestId::from_json("0")?, method: "server/discover".into() };
    let call = server.connection.call(None, &[message], &request.into(), None, None, Box::new(|| {}));
    let mut pending = call.ok()?;
    match pending.begun().await {
        Begun::Written => tokio::select! {
            biased;
            response = pending.events.response() => response,
            () = silence(server) => None,
        },
        Begun::Refused(_) | Begun::Ended => None,
    }
}

/// Resolves once the server has been up for [`SILENCE`], by its first message or its result of a
/// ping. A server that does not know `server/discover` may leave it without a response.
async fn silence(server: &Server) {
    clock::sleep(PING_AFTER).await;
    let has_spoken = async {
        while !server.connection.has_spoken() {
            clock::sleep(STEP).await;
        }
    };
    tokio::select! {
        () = has_spoken => {}
        () = pinged(server) => {}
    }
    clock::sleep(SILENCE).await;
}

/// Resolves when the server has responded to a ping with a result. An error says nothing: a server
/// of a revision without sessions has no ping.
async fn pinged(server: &Server) {
    let id = RequestId::Number("1".into());
    let message = Message::Request { id, method: "ping".into() };
    let call = server.connection.call(None, &[message], &ping(Value::from(1)).into(), None, None, Box::new(|| {}));
    if let Ok(mut pending) = call
        && matches!(pending.begun().await, Begun::Written)
        && let Some(response) = pending.events.response().await
        && jsonrpc::member(&response, &["result"]).is_some()
    {
        return;
    }
    std::future::pending().await
}
