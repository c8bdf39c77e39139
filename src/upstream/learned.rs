//! What the upstream's answers have taught the proxy, needed before it may write a response head of its own.

use std::time::{Duration, Instant};

use dashmap::DashMap;
use http::header::ACCESS_CONTROL_ALLOW_ORIGIN;
use http::{HeaderMap, HeaderValue};

use super::Tokens;
use crate::event_log::Principal;
use crate::protocol::headers;

/// For so long after a 2xx the upstream is believed to accept the same credentials.
const TRUST: Duration = Duration::from_secs(600);
/// More callers or origins than this are not remembered: those get the upstream's own heads, late or not.
const MAX_REMEMBERED: usize = 65_536;

/// What a caller shows, as the upstream may judge it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Credentials {
    /// The usual headers.
    pub headers: Principal,
    /// Whatever the operator tells callers by.
    pub principal: Principal,
    /// Its query.
    pub query: Principal,
}

/// Credentials that were accepted, CORS headers by origin, and which tools have results with a schema.
#[derive(Debug, Default)]
pub struct Learned {
    accepted: DashMap<Credentials, Instant>,
    cors: DashMap<HeaderValue, HeaderMap>,
    tokens: Tokens,
    /// Of tools that somebody wants to know it of: whether a list ever showed an `outputSchema`.
    structured: DashMap<String, bool>,
}

impl Learned {
    /// What is known of tokens.
    pub fn tokens(&self) -> &Tokens {
        &self.tokens
    }

    /// The upstream answered 2xx to these credentials.
    pub fn note_accepted(&self, credentials: Credentials, now: Instant) {
        if let Some(mut known) = self.accepted.get_mut(&credentials) {
            *known = now;
            return;
        }
        if self.accepted.len() >= MAX_REMEMBERED {
            self.accepted.retain(|_, at| now.saturating_duration_since(*at) < TRUST);
        }
        if self.accepted.len() < MAX_REMEMBERED {
            self.accepted.insert(credentials, now);
        }
    }

    /// The upstream refused these credentials.
    pub fn note_refused(&self, credentials: &Credentials) {
        self.accepted.remove(credentials);
    }

    /// Whether it accepted them lately.
    pub fn accepts(&self, credentials: &Credentials, now: Instant) -> bool {
        self.accepted.get(credentials).is_some_and(|at| now.saturating_duration_since(*at) < TRUST)
    }

    /// A list shows these tools, each with whether it has an `outputSchema`. Once one had it, to any caller, it has.
    pub fn note_tools(&self, tools: Vec<(String, bool)>) {
        for (tool, is_structured) in tools {
            *self.structured.entry(tool).or_default() |= is_structured;
        }
    }

    /// Whether a list has shown this tool.
    pub fn knows(&self, tool: &str) -> bool {
        self.structured.contains_key(tool)
    }

    /// Whether this tool is known to have no `outputSchema`.
    pub fn is_plain(&self, tool: &str) -> bool {
        self.structured.get(tool).is_some_and(|is_structured| !*is_structured)
    }

    /// Keeps the CORS headers of an answer to `origin`.
    pub fn note_cors(&self, origin: &HeaderValue, answer: &HeaderMap) {
        // An error made in front of the server's CORS layer says nothing.
        let has_room = self.cors.len() < MAX_REMEMBERED || self.cors.contains_key(origin);
        if has_room && answer.contains_key(ACCESS_CONTROL_ALLOW_ORIGIN) {
            let origin = HeaderValue::from_bytes(origin.as_bytes());
            if let Ok(origin) = origin {
                self.cors.insert(origin, headers::unpinned(&headers::cors_of(answer)));
            }
        }
    }

    /// The CORS headers to repeat for `origin`: empty without an origin, `None` where they are not known.
    pub fn cors(&self, origin: Option<&HeaderValue>) -> Option<HeaderMap> {
        match origin {
            None => Some(HeaderMap::new()),
            Some(origin) => self.cors.get(origin).map(|known| known.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    #[test]
    fn credentials_are_trusted_for_a_while_and_until_they_are_refused() {
        let (learned, now) = (Learned::default(), clock::now());
        let other = Principal::Anonymous;
        let known = |byte| Credentials { headers: Principal::Known([byte; 16]), principal: other, query: other };
        assert!(!learned.accepts(&known(1), now));
        learned.note_accepted(known(1), now);
        assert!(learned.accepts(&known(1), now + TRUST - Duration::from_nanos(1)));
        assert!(!learned.accepts(&known(1), now + TRUST));
        assert!(!learned.accepts(&known(2), now), "another caller's");

        learned.note_accepted(known(1), now + TRUST);
        assert!(learned.accepts(&known(1), now + TRUST), "each 2xx is a new beginning");
        learned.note_refused(&known(1));
        assert!(!learned.accepts(&known(1), now + TRUST));
    }
}
