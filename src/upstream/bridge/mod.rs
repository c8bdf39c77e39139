//! Bridge: requests of clients at a server that shares no revision with them.
//!
//! Owned here: the decision whether a request is translated. [`modern_clients`] translates those of clients of 2026-07-28 for a server of the revisions with
//! sessions. Absent: the bytes of the messages (`protocol/bridge/`).

mod modern_clients;
mod server_era;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Response};

use self::modern_clients::ModernClients;
use self::server_era::ServerEra;
use super::body::collect;
use super::tool_schemas::events;
use super::{ResponseBody, Template, Unanswered, Upstream};
use crate::config;
use crate::event_log::Stream;
use crate::protocol::headers::{self, Era, ProtocolVersion, names};
use crate::protocol::jsonrpc;

/// Size limit of the answer to a question of the bridge's own.
const ANSWER_MAX: usize = 1024 * 1024;

/// Settings of the bridge.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Configuration.
    pub config: config::Bridge,
    /// Time for which a call waits for the answers of its client.
    pub max_wait: Duration,
    /// Time without a further question after which a round is told.
    pub input_grace: Duration,
    /// Size limit of a message.
    pub max_event_bytes: usize,
}

/// Translates requests. All workers share it.
pub(super) struct Bridge {
    era: ServerEra,
    modern_clients: Arc<ModernClients>,
}

type Answer = Result<Response<ResponseBody>, Unanswered>;

impl Bridge {
    /// Creates a bridge. `upstream` has connections of the bridge's own.
    pub(super) fn new(settings: Settings, upstream: Arc<Upstream>) -> Arc<Self> {
        let era = ServerEra::new(upstream.clone());
        Arc::new(Self { era, modern_clients: ModernClients::new(settings, upstream) })
    }

    /// Answers a request, or returns `None` if it goes to the server as it is: it is of a revision with sessions, or the server speaks its revision.
    pub(super) async fn send(
        &self,
        upstream: &Upstream,
        template: &Template,
        sent: Option<&Arc<Stream>>,
    ) -> Option<Answer> {
        if *template.method() != Method::POST || template.names_session() || !is_modern(template) {
            return None;
        }
        match self.era.of(template).await? {
            Era::Modern => None,
            Era::Legacy => Some(self.modern_clients.send(upstream, template, sent).await),
        }
    }
}

/// Returns true for a request of a revision without sessions, by its header or its `_meta`.
fn is_modern(template: &Template) -> bool {
    let is_modern = |text: &str| ProtocolVersion::parse(text).is_some_and(|version| version.era() == Era::Modern);
    let header = template.lines().get(&names::MCP_PROTOCOL_VERSION).and_then(|header| std::str::from_utf8(header).ok());
    header.is_some_and(is_modern) || jsonrpc::meta_protocol_version(template.body()).as_deref().is_some_and(is_modern)
}

/// Returns the one response in a body of JSON or of events.
async fn response_in(response: Response<ResponseBody>) -> Option<Bytes> {
    let is_sse = headers::is_sse(response.headers());
    let body = collect(response.into_body(), ANSWER_MAX).await.ok()?;
    let messages = if is_sse { events(&body) } else { vec![body] };
    let is_response = |message: &Bytes| {
        jsonrpc::member(message, &["result"]).or_else(|| jsonrpc::member(message, &["error"])).is_some()
    };
    messages.into_iter().find(is_response)
}
