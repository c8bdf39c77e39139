//! Era of the server, which the proxy asks by itself: a call in the wrong era may run.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::StatusCode;

use super::response_in;
use crate::channel::era_of;
use crate::clock;
use crate::protocol::headers::Era;
use crate::upstream::discovery::discover_request;
use crate::upstream::{Template, Upstream};

/// Time for which the answer counts.
const TTL: Duration = Duration::from_secs(300);
/// Time limit of the question. Other requests wait meanwhile.
const WAIT: Duration = Duration::from_secs(5);

/// Age from which an answer may be wrong: a server that goes on to refuse is asked no oftener.
const MIN_AGE: Duration = Duration::from_secs(5);

/// Era of the server, as it was last found.
pub(super) struct ServerEra {
    upstream: Arc<Upstream>,
    known: tokio::sync::Mutex<Option<(Era, Instant)>>,
}

impl ServerEra {
    pub(super) fn new(upstream: Arc<Upstream>) -> Self {
        Self { upstream, known: tokio::sync::Mutex::default() }
    }

    /// Returns the era, or `None` if it is not known now. Asks with the headers of this request.
    pub(super) async fn of(&self, template: &Template) -> Option<Era> {
        let mut known = self.known.lock().await;
        if let Some((era, since)) = *known
            && clock::now() < since + TTL
        {
            return Some(era);
        }
        let era = self.ask(template).await?;
        *known = Some((era, clock::now()));
        Some(era)
    }

    /// Asks again, because a response shows that the server may have left this era. Returns true if it has.
    pub(super) async fn has_changed(&self, template: &Template, from: Era) -> bool {
        let mut known = self.known.lock().await;
        if let Some((era, since)) = *known
            && clock::now() < since + MIN_AGE
        {
            return era != from;
        }
        let Some(era) = self.ask(template).await else { return false };
        *known = Some((era, clock::now()));
        era != from
    }

    async fn ask(&self, template: &Template) -> Option<Era> {
        let request = discover_request(template, None);
        let response = tokio::time::timeout(WAIT, self.upstream.exchange(&request, None)).await.ok()?.ok()?;
        let status = response.status();
        if status.is_server_error() || matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
            // The refusal of the request itself tells the client more.
            return None;
        }
        Some(era_of(response_in(response).await.as_deref()))
    }
}
