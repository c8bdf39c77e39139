//! Recognition of a server on HTTP+SSE at the URL of a server on Streamable HTTP.
//!
//! Only a refused `initialize` begins a search: no other request costs anything. The server then
//! gets `server/discover`, and if it does not know that either, a GET. A stream whose first event
//! is `endpoint` proves HTTP+SSE. From then on `initialize` and the sessions go to channels, for as
//! long as the process runs. The refused `initialize` is the first. Other requests pass as before,
//! so that clients of the old transport keep working.
//!
//! Invariants:
//!
//! - The server sees the headers of the current client, on its own origin.
//! - A server that has ever responded as Streamable HTTP does is not searched again.
//! - A single search runs at a time, and an unsuccessful search is not repeated at once.
//!
//! Absent: the channels ([`super::sse_server`], `channel/`).

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use http::{Method, Response, StatusCode};
use tokio::sync::Mutex;
use tracing::{debug, info};

use super::channels::exchange_by_channel;
use super::exchange::Exchange;
use super::http::HttpServer;
use super::request::Template;
use super::response_body::ResponseBody;
use super::sent::Sent;
use super::{Server, body, synthetic};
use crate::channel::{Channels, OpenError};
use crate::clock;
use crate::protocol::ids::Owner;
use crate::protocol::jsonrpc::{self, Message};
use crate::tls;

/// Time for the response to `server/discover`, and for the first event of a GET.
const LIMIT: Duration = Duration::from_secs(5);
/// Maximum wait of a refused `initialize` for another request's search.
const TURN_LIMIT: Duration = Duration::from_secs(10);
/// Time after an unsuccessful search until the next one.
const PAUSE: Duration = Duration::from_secs(30);
/// Size limit of the response to `server/discover`.
const MAX_BODY: usize = 1024 * 1024;

/// Search for the transport of a server.
pub struct Recognition {
    /// Owner in the names of sessions on channels.
    owner: Owner,
    make: Box<dyn Fn() -> Result<Arc<Channels>, tls::Error> + Send + Sync>,
    /// True once the server has responded as Streamable HTTP does.
    is_streamable: AtomicBool,
    /// Earliest time of the next search. Held by the running search.
    not_before: Mutex<Option<Instant>>,
}

/// Result of a search.
enum Found {
    /// The server is on HTTP+SSE.
    Sse(Arc<Channels>),
    /// The server is on Streamable HTTP.
    Streamable,
    /// The server has refused the caller, which shows nothing about its transport.
    Unauthorized,
    Nothing,
}

impl Recognition {
    /// Creates the search. `make` creates channels to the server and must work on any thread. Names
    /// of their sessions have `owner`.
    pub fn new(owner: Owner, make: impl Fn() -> Result<Arc<Channels>, tls::Error> + Send + Sync + 'static) -> Self {
        Self { owner, make: Box::new(make), is_streamable: AtomicBool::new(false), not_before: Mutex::default() }
    }

    /// Returns true for a status of a server on HTTP+SSE that refuses a POST at the place of its
    /// event stream.
    pub(super) fn may_concern(status: StatusCode) -> bool {
        matches!(status, StatusCode::BAD_REQUEST | StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED)
    }

    /// Records that the server has responded as Streamable HTTP does.
    pub(super) fn mark_streamable(&self) {
        self.is_streamable.store(true, Ordering::Relaxed);
    }

    /// Handles the response to a refused request. If it refuses an `initialize`, and the server
    /// turns out to be on HTTP+SSE, returns the response to that `initialize` on a channel.
    pub(super) async fn recognise(
        &self,
        server: &Server,
        template: &Template,
        refusal: Response<ResponseBody>,
        sent: Option<&Sent>,
    ) -> Response<ResponseBody> {
        // The requests of a search would have no proof.
        if !opens_session(template) || template.has_proof() {
            return refusal;
        }
        if !server.has_channels() && !self.is_streamable.load(Ordering::Relaxed) {
            let search = self.search(server, template);
            let _ = tokio::time::timeout(TURN_LIMIT + 2 * LIMIT, search).await;
        }
        match server.channels.get() {
            Some(channels) => exchange_by_channel(channels, template, sent).await,
            None => refusal,
        }
    }

    /// Searches once, unless another search has just ended.
    async fn search(&self, server: &Server, template: &Template) {
        let Ok(mut not_before) = tokio::time::timeout(TURN_LIMIT, self.not_before.lock()).await else { return };
        let must_wait = not_before.is_some_and(|until| clock::now() < until);
        if must_wait || server.has_channels() || self.is_streamable.load(Ordering::Relaxed) {
            return;
        }
        // Set first, in case this future is dropped before its end.
        *not_before = Some(clock::now() + PAUSE);
        match self.find(&server.http, template).await {
            Found::Sse(channels) => {
                let _ = server.owner.set(self.owner);
                let _ = server.channels.set(channels);
                info!(
                    upstream = %server.http.config.place(),
                    "the server is on HTTP+SSE: its clients get sessions on event streams (--upstream-sse says so from the start)"
                );
            }
            Found::Streamable => self.mark_streamable(),
            Found::Unauthorized => *not_before = None,
            Found::Nothing => {}
        }
    }

    async fn find(&self, http: &HttpServer, template: &Template) -> Found {
        if within(LIMIT, knows_discover(http, template)).await == Some(true) {
            return Found::Streamable;
        }
        let channels = match (self.make)() {
            Ok(channels) => channels,
            Err(error) => {
                debug!(%error, "no channel to the server could be created");
                return Found::Nothing;
            }
        };
        match channels.try_open(template.lines(), LIMIT).await {
            Ok(()) => Found::Sse(channels),
            Err(OpenError::Refused(response)) => match response.status() {
                StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Found::Unauthorized,
                _ => Found::Nothing,
            },
            Err(OpenError::Failed { .. }) => Found::Nothing,
        }
    }
}

/// Returns true if the server responds to `server/discover` as Streamable HTTP does: with success,
/// or with a JSON-RPC error.
async fn knows_discover(http: &HttpServer, template: &Template) -> bool {
    let request = synthetic::discover_request(template, None);
    let Ok(response) = http.exchange(&request, None).await else { return false };
    if response.status().is_success() {
        return true;
    }
    let body = body::collect(response.into_body(), MAX_BODY).await.unwrap_or_default();
    jsonrpc::peek(&body).is_ok_and(|body| matches!(body.messages(), [Message::Response { .. }]))
}

/// Returns true for an `initialize` without a session.
fn opens_session(template: &Template) -> bool {
    let is_initialize =
        |message: &Message| matches!(message, Message::Request { method, .. } if method == "initialize");
    *template.method() == Method::POST
        && !template.names_session()
        && jsonrpc::peek(template.body()).is_ok_and(|body| matches!(body.messages(), [only] if is_initialize(only)))
}

async fn within<T>(limit: Duration, future: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(limit, future).await.ok()
}
