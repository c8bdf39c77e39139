//! A request as the handlers carry it: its head, its sender, and the resources that it counts
//! against.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Uri;
use http::request::Parts;

use super::connection::Connection;
use super::promise::Reliance;
use crate::channel::Caller;
use crate::event_log::{Binding, PresentedCredentials, Quota, Reservation, Session};
use crate::protocol::error::ErrorCode;
use crate::protocol::headers::{ProtocolVersion, RequestFacts, names};
use crate::protocol::ids::{EventId, Owner};
use crate::protocol::trace::RequestTrace;
use crate::upstream::Credentials;

/// Head of a request, and facts about its sender. Boxed where it is owned: each future on a
/// request's way would hold it twice, and all of them are one allocation.
pub(super) struct RequestContext {
    pub(super) parts: Parts,
    /// Facts of the head, without its session.
    pub(super) facts: RequestFacts,
    pub(super) binding: Binding,
    /// Credentials of the sender for the upstream.
    pub(super) credentials: Credentials,
    pub(super) session: Option<Arc<Session>>,
    pub(super) session_kind: SessionKind,
    pub(super) sender: Sender,
    /// Address of the client.
    pub(super) address: IpAddr,
    /// Quota that the sender's requests count against.
    pub(super) quota: Arc<Quota>,
    /// Caller of the server to start, or `None` if servers are not started.
    pub(super) caller: Option<Arc<Caller>>,
    /// Size of the head as it was sent; see [`head_bytes`].
    pub(super) head_bytes: usize,
    /// Bytes of the body, once it was read whole.
    pub(super) body_bytes: usize,
    /// Reservation for head and body, from when the body was read until they count as a stream's or
    /// go upstream.
    pub(super) reservation: Option<Reservation>,
    pub(super) connection: Arc<Connection>,
    /// Headers of a client that relies on the promise of the proxy, or `None` without them.
    pub(super) reliance: Option<Box<Reliance>>,
    /// Arrival for spans, or `None` if calls are not traced. Boxed, because few are.
    pub(super) arrival: Option<Box<Arrival>>,
}

/// Arrival of a request, for spans.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    /// Time since 1970.
    pub(super) at: Duration,
    /// Trace contexts of the request, or of its message once that was read.
    pub(super) trace: RequestTrace,
}

/// Sender of a request.
#[derive(Clone, Copy)]
pub(super) enum Sender {
    Client,
    /// A balancer. It has marked the request with the named replica.
    Balancer,
    /// A balancer, which does not reach the home of the session, this replica, and has chosen the
    /// replica here in its place.
    StandIn(Owner),
    /// Another replica, which forwards the request of a client or of a balancer.
    Replica {
        is_marked: bool,
    },
}

impl Sender {
    /// True if a balancer has marked the request with the replica that it names.
    pub(super) fn is_marked(self) -> bool {
        match self {
            Self::Client | Self::StandIn(_) => false,
            Self::Balancer => true,
            Self::Replica { is_marked } => is_marked,
        }
    }

    /// True if a balancer sends the request and can send it to another replica.
    pub(super) fn is_routed(self) -> bool {
        match self {
            Self::Client | Self::Replica { is_marked: false } => false,
            Self::Balancer | Self::StandIn(_) | Self::Replica { is_marked: true } => true,
        }
    }

    /// True if another replica forwards the request.
    pub(super) fn is_replica(self) -> bool {
        match self {
            Self::Client | Self::Balancer | Self::StandIn(_) => false,
            Self::Replica { .. } => true,
        }
    }
}

/// Origin of the session that a request names.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum SessionKind {
    /// A session of the server here, or none.
    Upstream,
    /// A session that the proxy issued, unknown to the upstream.
    Issued,
    /// A session of another replica's server: its home. It is never named to the server here.
    Remote,
}

impl RequestContext {
    /// Parts of the request that may identify its sender.
    pub(super) fn presented_credentials(&self) -> PresentedCredentials<'_> {
        let Parts { headers, uri, .. } = &self.parts;
        PresentedCredentials { headers, query: uri.query(), certificate: self.connection.certificate() }
    }

    /// Reserves bytes for the head and the body for as long as the request waits, unless they are
    /// reserved.
    pub(super) fn reserve(&mut self) -> &Reservation {
        let Self { head_bytes, body_bytes, quota, reservation, .. } = self;
        reservation.get_or_insert_with(|| quota.reserve(*head_bytes + *body_bytes))
    }

    /// Adds the trace contexts of the request's message.
    pub(super) fn add_message_trace(&mut self, message: &[u8]) {
        if let Some(arrival) = &mut self.arrival {
            arrival.trace = RequestTrace::of(&self.parts.headers, message);
        }
    }

    /// Takes the reservation of the request, for a stream that the bytes will belong to.
    pub(super) fn take_reservation(&mut self) -> Reservation {
        self.reservation.take().unwrap_or_else(|| self.quota.reserve(0))
    }

    /// True if the proxy issued the session.
    pub(super) fn has_issued_session(&self) -> bool {
        self.session_kind == SessionKind::Issued
    }

    /// True if the session belongs to another replica's server.
    pub(super) fn has_remote_session(&self) -> bool {
        self.session_kind == SessionKind::Remote
    }

    /// True if the server here has the session.
    pub(super) fn has_home_session(&self) -> bool {
        let is_home = |session: &Arc<Session>| session.is_home() || session.is_accepted_here();
        self.session_kind == SessionKind::Upstream && self.session.as_ref().is_some_and(is_home)
    }

    /// Error for a request that only the session's own server can serve. `None` if this replica has
    /// that server.
    pub(super) fn remote_session_error(&self) -> Option<ErrorCode> {
        match self.session_kind {
            SessionKind::Upstream | SessionKind::Issued => None,
            // In the place of a lost home, and without a record, this replica serves clients as its
            // own.
            SessionKind::Remote if matches!(self.sender, Sender::StandIn(_)) && !self.has_remote_home() => {
                Some(ErrorCode::SessionElsewhere)
            }
            SessionKind::Remote if self.sender.is_routed() => Some(ErrorCode::Misdirected),
            SessionKind::Remote => Some(ErrorCode::SessionElsewhere),
        }
    }

    /// True if the store has named another replica as the home of the session.
    pub(super) fn has_remote_home(&self) -> bool {
        self.session.as_ref().is_some_and(|session| session.remote_home().is_some())
    }

    /// Returns true for a request that its client has sent before, by its own word.
    pub(super) fn is_sent_again(&self) -> bool {
        self.reliance.as_ref().is_some_and(|reliance| reliance.epoch.is_some())
    }

    /// Returns true for a client that repairs its own connections: no rule for clients of its name
    /// is for it.
    pub(super) fn repairs_connections(&self) -> bool {
        self.reliance.as_ref().is_some_and(|reliance| reliance.hold.is_some())
    }

    /// Protocol version of the request: its own, else its session's.
    pub(super) fn version(&self) -> Option<ProtocolVersion> {
        let session = self.session.as_deref().and_then(Session::version);
        self.facts.version.as_ref().or(session).cloned()
    }

    /// Event ID of the proxy in the request's `Last-Event-ID`, not yet verified.
    pub(super) fn last_event_id(&self) -> Option<EventId> {
        self.parts.headers.get(names::LAST_EVENT_ID).and_then(|id| EventId::parse(id.as_bytes()))
    }
}

/// Returns the approximate size of a head as it was sent: the target, names, values, and four bytes
/// of framing for each.
pub(super) fn head_bytes(facts: &RequestFacts, target: &Uri) -> usize {
    facts.size + target.path_and_query().map_or(0, |target| target.as_str().len())
}

/// Copies a small body. It is a slice of the connection's read buffer, and would keep that alive.
pub(super) fn detached(body: Bytes) -> Bytes {
    const SMALL: usize = 64 * 1024;
    if body.len() <= SMALL { Bytes::copy_from_slice(&body) } else { body }
}
