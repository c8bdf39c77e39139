//! Sessions under two names: the server's name, and the name for clients.
//!
//! - A revived session has a new name at the server, while its client keeps the old name.
//! - A new session whose name another client uses already has a name of the proxy's own for its
//!   client.
//! - A balancer routes a session by its name alone. Therefore clients get names that include the
//!   owner of the session's server (`replica.wrap_sessions`).
//!
//! The proxy uses the clients' names everywhere; only the server sees its own. Requests are
//! unwrapped here, and responses wrapped. No state is kept: a name stays valid after a restart.
//! Invariant: a name with a different owner, or without an owner, passes unchanged.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use http::{HeaderMap, HeaderName, HeaderValue};
use tracing::warn;

use crate::event_log::{Handshake, Handshakes, UpstreamName};
use crate::protocol::headers::{SessionId, names};
use crate::protocol::ids::Owner;
use crate::protocol::routing;

/// Translation between the two names of sessions.
#[derive(Debug, Default)]
pub(super) struct SessionNames {
    /// Owner in the names for clients; without one both names are the same.
    owner: Arc<OnceLock<Owner>>,
    /// Names of the revived sessions, or `None` if sessions are not opened again.
    handshakes: Option<Arc<Handshakes>>,
    has_warned: AtomicBool,
}

/// Names of a session that a client has just opened, if clients get a name of the proxy's own.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FreshName {
    /// Name for clients.
    pub(super) visible: SessionId,
    /// Name at the server.
    pub(super) server: SessionId,
}

/// Name of a session for a request to the server.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum OwnName<'a> {
    /// The header passes unchanged.
    Unchanged,
    /// The server's name for the session.
    Part(&'a [u8]),
    /// The server's name for a session with a second name, or `None` if the server assigned no
    /// name.
    Renamed(Option<SessionId>),
}

impl SessionNames {
    /// Creates a translation. It puts `owner` into the names for clients once it is set, and knows
    /// the revived sessions.
    pub(super) fn new(owner: Arc<OnceLock<Owner>>, handshakes: Option<Arc<Handshakes>>) -> Self {
        Self { owner, handshakes, has_warned: AtomicBool::new(false) }
    }

    fn owner(&self) -> Option<Owner> {
        self.owner.get().copied()
    }

    /// Returns the server's name of the session in a client's header.
    pub(super) fn own_name<'a>(&self, name: &HeaderName, value: &'a HeaderValue) -> OwnName<'a> {
        if *name != names::MCP_SESSION_ID {
            return OwnName::Unchanged;
        }
        let Ok(id) = value.to_str() else { return OwnName::Unchanged };
        if let Some(handshakes) = &self.handshakes
            && let UpstreamName::Renamed(name) = handshakes.upstream_name(id)
        {
            return OwnName::Renamed(name);
        }
        match self.owner().and_then(|owner| routing::strip(owner, id)) {
            Some(own) => OwnName::Part(own.as_bytes()),
            None => OwnName::Unchanged,
        }
    }

    /// Returns the name that the server gave to a session when its client opened it.
    pub(super) fn first_name(&self, id: &SessionId) -> SessionId {
        let own = self.owner().and_then(|owner| routing::strip(owner, id.as_str()));
        own.and_then(SessionId::parse).unwrap_or_else(|| id.clone())
    }

    /// Returns the record of a session by the server's name for it, or `None` without a record.
    pub(super) fn record(&self, name: &SessionId) -> Option<Arc<Handshake>> {
        let handshakes = self.handshakes.as_ref()?;
        let id = handshakes.client_name(name).unwrap_or_else(|| self.visible_name(name));
        handshakes.find(&id)
    }

    /// Returns true if any session was opened again.
    pub(super) fn has_renamed(&self) -> bool {
        self.handshakes.as_ref().is_some_and(|handshakes| handshakes.has_renamed())
    }

    /// Returns the client's name for a session that the server has just opened.
    pub(super) fn visible_name(&self, name: &SessionId) -> SessionId {
        self.owner().and_then(|owner| routing::wrap(owner, name)).unwrap_or_else(|| name.clone())
    }

    /// Records the name that the server has given to a new session, `visible` in its form for the
    /// client. An earlier session with the name has ended at the server. If another client uses
    /// `visible`, returns a name of the proxy's own for this client, with the server's name. This
    /// happens when a server numbers its sessions and was restarted.
    pub(super) fn open(&self, visible: &SessionId) -> Option<FreshName> {
        let handshakes = self.handshakes.as_ref()?;
        let server = self.first_name(visible);
        let is_used = handshakes.find(visible).is_some();
        if is_used || self.has_renamed() {
            handshakes.displace(&server, visible, None);
        }
        if !is_used {
            return None;
        }
        let own = SessionId::parse(&Handshakes::own_name())?;
        Some(FreshName { visible: self.visible_name(&own), server })
    }

    /// Gives the session of a response its name for clients. A name that would become too long
    /// stays unchanged. `is_new` is true for the response to a request without a session: the name
    /// is new, see [`Self::open`].
    pub(super) fn wrap(&self, headers: &mut HeaderMap, is_new: bool) {
        if self.owner().is_none() && !self.has_renamed() {
            return;
        }
        let Some(session) = SessionId::from_headers(headers) else { return };
        let known = match &self.handshakes {
            Some(handshakes) if !is_new => handshakes.client_name(&session),
            Some(_) | None => None,
        };
        if let Some(known) = known.and_then(|known| HeaderValue::from_str(known.as_str()).ok()) {
            headers.insert(names::MCP_SESSION_ID, known);
            return;
        }
        let Some(owner) = self.owner() else { return };
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
    use std::time::Duration;

    use super::*;

    const OWN: Owner = Owner(0xbad_cafe);

    fn unwrapped<'a>(sessions: &SessionNames, value: &'a HeaderValue) -> Option<&'a str> {
        match sessions.own_name(&names::MCP_SESSION_ID, value) {
            OwnName::Part(name) => Some(std::str::from_utf8(name).unwrap()),
            OwnName::Unchanged | OwnName::Renamed(_) => None,
        }
    }

    fn wrapped(sessions: &SessionNames, name: &str) -> String {
        let mut headers = HeaderMap::new();
        headers.insert(names::MCP_SESSION_ID, name.parse().unwrap());
        sessions.wrap(&mut headers, false);
        headers[names::MCP_SESSION_ID].to_str().unwrap().to_owned()
    }

    #[test]
    fn a_name_is_wrapped_in_responses_and_unwrapped_in_requests() {
        let sessions = SessionNames::new(Arc::new(OWN.into()), None);
        for name in ["s", "a~b", "deadbeef~s", "0badcafe~s"] {
            let seen = wrapped(&sessions, name);
            assert_eq!(seen, format!("0badcafe~{name}"));
            assert_eq!(unwrapped(&sessions, &HeaderValue::from_str(&seen).unwrap()), Some(name));
        }
    }

    #[test]
    fn a_name_with_another_owner_or_none_passes_unchanged() {
        let sessions = SessionNames::new(Arc::new(OWN.into()), None);
        for name in ["s", "deadbeef~s", "0badcafe~", "0badcafe", "0BADCAFE~s"] {
            assert_eq!(unwrapped(&sessions, &HeaderValue::from_str(name).unwrap()), None, "{name}");
        }
        let other = HeaderName::from_static("x-session");
        assert_eq!(sessions.own_name(&other, &HeaderValue::from_static("0badcafe~s")), OwnName::Unchanged);
    }

    #[test]
    fn a_name_that_is_too_long_stays_unchanged() {
        let sessions = SessionNames::new(Arc::new(OWN.into()), None);
        let longest = "s".repeat(1024 - "0badcafe~".len());
        assert_eq!(wrapped(&sessions, &longest).len(), 1024);
        let longer = format!("{longest}s");
        assert_eq!(wrapped(&sessions, &longer), longer);
    }

    #[test]
    fn a_used_name_is_replaced_by_one_with_the_owner() {
        let handshakes = Arc::new(Handshakes::new(10));
        let sessions = SessionNames::new(Arc::new(OWN.into()), Some(handshakes.clone()));
        let visible = SessionId::parse("0badcafe~1").unwrap();
        assert_eq!(sessions.open(&visible), None);
        handshakes.record(visible.clone(), Handshake::for_names(Duration::from_secs(60)));
        let fresh = sessions.open(&visible).unwrap();
        assert_eq!(fresh.server.as_str(), "1");
        assert!(fresh.visible.as_str().starts_with("0badcafe~mcp-resume-"));
        let names = Handshake::for_names(Duration::from_secs(60));
        handshakes.record_named(fresh.visible.clone(), names, fresh.server.clone());
        let own = |name: &SessionId| {
            let value = HeaderValue::from_str(name.as_str()).unwrap();
            match sessions.own_name(&names::MCP_SESSION_ID, &value) {
                OwnName::Renamed(name) => name,
                OwnName::Part(_) | OwnName::Unchanged => None,
            }
        };
        assert_eq!(own(&fresh.visible), Some(fresh.server));
        assert!(own(&visible).is_some_and(|lost| lost.as_str().starts_with("mcp-resume-")));
        assert_eq!(wrapped(&sessions, "1"), fresh.visible.as_str());
        assert_eq!(SessionNames::default().open(&visible), None);
    }

    #[test]
    fn no_name_is_wrapped_by_default() {
        let sessions = SessionNames::default();
        assert_eq!(wrapped(&sessions, "s"), "s");
        assert_eq!(unwrapped(&sessions, &HeaderValue::from_static("0badcafe~s")), None);
    }
}
