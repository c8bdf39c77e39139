//! Sessions under two names: the server's name, and the name for clients, which has the owner before it.
//!
//! A balancer routes a session by its name alone. Therefore clients get names that include the owner of the session's server
//! (`replica.wrap_sessions`). The proxy uses the clients' names everywhere; only the server sees its own. Requests are unwrapped
//! here, and responses wrapped. No state is kept: a name stays valid after a restart. Invariant: a name with another owner, or
//! none, passes unchanged.

use std::sync::atomic::{AtomicBool, Ordering};

use http::{HeaderMap, HeaderName, HeaderValue};
use tracing::warn;

use crate::protocol::headers::{SessionId, names};
use crate::protocol::ids::Owner;
use crate::protocol::routing;

/// Translation between the two names of sessions.
#[derive(Debug, Default)]
pub(super) struct SessionNames {
    /// Owner in the names for clients, or `None` if both names are the same.
    owner: Option<Owner>,
    has_warned: AtomicBool,
}

impl SessionNames {
    /// Creates a translation that puts `owner` into the names for clients.
    pub(super) fn wrapped_for(owner: Owner) -> Self {
        Self { owner: Some(owner), has_warned: AtomicBool::new(false) }
    }

    /// Returns the server's name of the session in a client's header, or `None` if the header passes unchanged.
    pub(super) fn unwrapped<'a>(&self, name: &HeaderName, value: &'a HeaderValue) -> Option<&'a [u8]> {
        if *name != names::MCP_SESSION_ID {
            return None;
        }
        routing::strip(self.owner?, value.to_str().ok()?).map(str::as_bytes)
    }

    /// Gives the session of a response its name for clients. A name that would become too long stays unchanged.
    pub(super) fn wrap(&self, headers: &mut HeaderMap) {
        let Some(owner) = self.owner else { return };
        let Some(session) = SessionId::from_headers(headers) else { return };
        match routing::wrap(owner, &session).and_then(|wrapped| HeaderValue::from_str(wrapped.as_str()).ok()) {
            Some(wrapped) => {
                headers.insert(names::MCP_SESSION_ID, wrapped);
            }
            None if self.has_warned.swap(true, Ordering::Relaxed) => {}
            None => warn!(
                bytes = session.as_str().len(),
                "the server's names of sessions are too long to say whose they are: no balancer finds their replica"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: Owner = Owner(0xbad_cafe);

    fn unwrapped<'a>(sessions: &SessionNames, value: &'a HeaderValue) -> Option<&'a str> {
        sessions.unwrapped(&names::MCP_SESSION_ID, value).map(|name| std::str::from_utf8(name).unwrap())
    }

    fn wrapped(sessions: &SessionNames, name: &str) -> String {
        let mut headers = HeaderMap::new();
        headers.insert(names::MCP_SESSION_ID, name.parse().unwrap());
        sessions.wrap(&mut headers);
        headers[names::MCP_SESSION_ID].to_str().unwrap().to_owned()
    }

    #[test]
    fn a_name_is_wrapped_in_responses_and_unwrapped_in_requests() {
        let sessions = SessionNames::wrapped_for(OWN);
        for name in ["s", "a~b", "deadbeef~s", "0badcafe~s"] {
            let seen = wrapped(&sessions, name);
            assert_eq!(seen, format!("0badcafe~{name}"));
            assert_eq!(unwrapped(&sessions, &HeaderValue::from_str(&seen).unwrap()), Some(name));
        }
    }

    #[test]
    fn a_name_with_another_owner_or_none_passes_unchanged() {
        let sessions = SessionNames::wrapped_for(OWN);
        for name in ["s", "deadbeef~s", "0badcafe~", "0badcafe", "0BADCAFE~s"] {
            assert_eq!(unwrapped(&sessions, &HeaderValue::from_str(name).unwrap()), None, "{name}");
        }
        let other = HeaderName::from_static("x-session");
        assert_eq!(sessions.unwrapped(&other, &HeaderValue::from_static("0badcafe~s")), None);
    }

    #[test]
    fn a_name_that_is_too_long_stays_unchanged() {
        let sessions = SessionNames::wrapped_for(OWN);
        let longest = "s".repeat(1024 - "0badcafe~".len());
        assert_eq!(wrapped(&sessions, &longest).len(), 1024);
        let longer = format!("{longest}s");
        assert_eq!(wrapped(&sessions, &longer), longer);
    }

    #[test]
    fn no_name_is_wrapped_by_default() {
        let sessions = SessionNames::default();
        assert_eq!(wrapped(&sessions, "s"), "s");
        assert_eq!(unwrapped(&sessions, &HeaderValue::from_static("0badcafe~s")), None);
    }
}
