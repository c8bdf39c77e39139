//! Era of the server, found by a synthetic request: a call in the wrong era may run.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use http::header::WWW_AUTHENTICATE;

use super::responses::response_in;
use super::settings::Link;
use crate::channel::ServerEra;
use crate::clock;
use crate::protocol::era::era_of;
use crate::protocol::headers::Era;
use crate::upstream::server::exchange::Exchange;
use crate::upstream::server::request::Template;
use crate::upstream::server::synthetic::discover_request;

/// Validity of an era that a response has shown.
const TTL: Duration = Duration::from_secs(300);
/// Validity of an era after a discovery request without a usable response. If no era is known,
/// silence counts as legacy.
const NO_RESPONSE_TTL: Duration = Duration::from_secs(30);
/// Time limit of a discovery request. Other requests wait meanwhile.
const WAIT: Duration = Duration::from_secs(5);

/// Statuses of a server that refuses `server/discover` because its revisions have sessions. Other
/// statuses concern the caller, or are temporary.
const LEGACY_STATUSES: [StatusCode; 6] = [
    StatusCode::BAD_REQUEST,
    StatusCode::NOT_FOUND,
    StatusCode::METHOD_NOT_ALLOWED,
    StatusCode::NOT_ACCEPTABLE,
    StatusCode::UNSUPPORTED_MEDIA_TYPE,
    StatusCode::UNPROCESSABLE_ENTITY,
];
/// Minimum age of an era that is discovered again. It bounds the rate of discovery at a server that
/// keeps refusing.
const MIN_AGE: Duration = Duration::from_secs(5);

/// The era of the server, and the discovery of it.
pub(super) struct EraDiscovery {
    link: Arc<Link>,
    era: ServerEra,
}

impl EraDiscovery {
    pub(super) fn new(link: Arc<Link>) -> Self {
        Self { link, era: ServerEra::of(None) }
    }

    /// Returns the era, or `None` if it was never found. An expired era is discovered again with
    /// the headers of this request; concurrent calls each send a request.
    pub(super) async fn of(&self, template: &Template) -> Option<Era> {
        match self.era.last() {
            Some(known) if known.is_valid() => Some(known.era),
            Some(known) => Some(self.discover(template).await.unwrap_or(known.era)),
            None => self.discover(template).await,
        }
    }

    /// Discovers the era again after a response that suggests a change. Returns true if the era is
    /// not `from` any more.
    pub(super) async fn has_changed(&self, template: &Template, from: Era) -> bool {
        self.latest(template).await.is_some_and(|era| era != from)
    }

    /// Returns true if the server is of this era. A known other era is discovered again first, and
    /// an unknown one is discovered once.
    pub(super) async fn is_or_has_become(&self, template: &Template, era: Era) -> bool {
        match self.era.last() {
            Some(known) if known.is_valid() => known.era == era || self.latest(template).await == Some(era),
            Some(_) | None => self.of(template).await == Some(era),
        }
    }

    /// Returns an era that is at most [`MIN_AGE`] old, or `None` if the discovery finds none.
    async fn latest(&self, template: &Template) -> Option<Era> {
        match self.era.last() {
            Some(known) if clock::now() < known.since + MIN_AGE => Some(known.era),
            Some(_) | None => self.discover(template).await,
        }
    }

    /// Sends a discovery request. Returns `None` if the response does not show the era.
    async fn discover(&self, template: &Template) -> Option<Era> {
        let request = discover_request(&template.clone().without_session(), None);
        let discovery = async {
            let response = self.link.server.exchange(&request, None).await.ok()?;
            let (status, challenges) = (response.status(), response.headers().contains_key(WWW_AUTHENTICATE));
            // The response to the client's own request is more useful to the client.
            let shows_era = (status.is_success() || LEGACY_STATUSES.contains(&status)) && !challenges;
            if !shows_era {
                return None;
            }
            let message = response_in(response).await;
            // A success without a JSON-RPC response does not come from an MCP server.
            if message.is_none() && status.is_success() { None } else { Some(era_of(message.as_deref())) }
        };
        let found = tokio::time::timeout(WAIT, discovery).await;
        let found = match found {
            Ok(shown) => shown.map(|era| (era, TTL)),
            // The server does not know the method, or it is busy.
            Err(_) => Some((self.era.last().map_or(Era::Legacy, |known| known.era), NO_RESPONSE_TTL)),
        };
        match found {
            Some((era, ttl)) => self.era.set(era, Some(ttl)),
            // Other requests use the known era meanwhile.
            None => self.era.extend(NO_RESPONSE_TTL),
        }
        found.map(|(era, _)| era)
    }
}
