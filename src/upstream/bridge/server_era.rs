//! Era of the server, found by a request of the proxy's own: a call in the wrong era may run.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use http::StatusCode;
use http::header::WWW_AUTHENTICATE;

use super::response_in;
use crate::channel::era_of;
use crate::protocol::headers::Era;
use crate::upstream::server::Server;
use crate::upstream::server::exchange::Exchange;
use crate::upstream::server::request::Template;
use crate::upstream::server::synthetic::discover_request;
use crate::{clock, sync};

/// Time for which the answer counts.
const TTL: Duration = Duration::from_secs(300);
/// Time for which the era counts on if the question is not answered, and for which silence counts
/// as an answer.
const UNANSWERED_TTL: Duration = Duration::from_secs(30);
/// Time limit of the question. Other requests wait meanwhile.
const WAIT: Duration = Duration::from_secs(5);

/// Statuses with which a server of the revisions with sessions refuses the question. Others concern
/// the caller, or the moment.
const LEGACY_STATUSES: [StatusCode; 6] = [
    StatusCode::BAD_REQUEST,
    StatusCode::NOT_FOUND,
    StatusCode::METHOD_NOT_ALLOWED,
    StatusCode::NOT_ACCEPTABLE,
    StatusCode::UNSUPPORTED_MEDIA_TYPE,
    StatusCode::UNPROCESSABLE_ENTITY,
];
/// Age from which an answer may be wrong: a server that goes on to refuse is asked no oftener.
const MIN_AGE: Duration = Duration::from_secs(5);

/// Era of the server, as it was last found.
pub(super) struct ServerEra {
    server: Arc<Server>,
    known: Mutex<Option<Known>>,
}

/// An era that was found.
#[derive(Clone, Copy)]
struct Known {
    era: Era,
    /// Time of the question.
    since: Instant,
    /// Time from which the server is asked again.
    until: Instant,
}

impl ServerEra {
    pub(super) fn new(server: Arc<Server>) -> Self {
        Self { server, known: Mutex::default() }
    }

    /// Returns the era, or `None` if it was never found. Asks with the headers of this request,
    /// beside others that ask.
    pub(super) async fn of(&self, template: &Template) -> Option<Era> {
        match self.known() {
            Some(known) if clock::now() < known.until => Some(known.era),
            Some(known) => Some(self.ask(template).await.unwrap_or(known.era)),
            None => self.ask(template).await,
        }
    }

    /// Asks again, because a response shows that the server may have left this era. Returns true if
    /// it has.
    pub(super) async fn has_changed(&self, template: &Template, from: Era) -> bool {
        self.latest(template).await.is_some_and(|era| era != from)
    }

    /// Returns true if the server is of this era. If it was of another one when it was last asked,
    /// it is asked again.
    pub(super) async fn is_or_has_become(&self, template: &Template, era: Era) -> bool {
        self.of(template).await == Some(era) || self.latest(template).await == Some(era)
    }

    /// Returns the era as it was found a moment ago, or is found now.
    async fn latest(&self, template: &Template) -> Option<Era> {
        match self.known() {
            Some(known) if clock::now() < known.since + MIN_AGE => Some(known.era),
            Some(_) | None => self.ask(template).await,
        }
    }

    fn known(&self) -> Option<Known> {
        *sync::lock(&self.known)
    }

    /// Asks the server. Returns `None` if the answer does not show its era.
    async fn ask(&self, template: &Template) -> Option<Era> {
        let request = discover_request(&template.clone().without_session(), None);
        let asking = async {
            let response = self.server.exchange(&request, None).await.ok()?;
            let (status, challenges) = (response.status(), response.headers().contains_key(WWW_AUTHENTICATE));
            // The refusal of the request itself tells the client more.
            let shows_era = (status.is_success() || LEGACY_STATUSES.contains(&status)) && !challenges;
            if !shows_era {
                return None;
            }
            let message = response_in(response).await;
            // A success without a response is one of something else.
            if message.is_none() && status.is_success() { None } else { Some(era_of(message.as_deref())) }
        };
        let found = tokio::time::timeout(WAIT, asking).await;
        let (now, mut known) = (clock::now(), sync::lock(&self.known));
        let (era, ttl) = match (found, *known) {
            (Ok(Some(era)), _) => (era, TTL),
            // A server that is silent has never heard of the method, or is busy.
            (Err(_), None) => (Era::Legacy, UNANSWERED_TTL),
            (Err(_), Some(before)) => (before.era, UNANSWERED_TTL),
            (Ok(None), before) => {
                // Other requests go on with the era as it was.
                *known = before.map(|before| Known { until: before.until.max(now + UNANSWERED_TTL), ..before });
                return None;
            }
        };
        *known = Some(Known { era, since: now, until: now + ttl });
        Some(era)
    }
}
