//! One client connection: facts about its peer, and its responses that are not known to have
//! arrived.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use http::HeaderMap;

use crate::delivery::Receipts;
use crate::event_log::{Quota, QuotaKey};
use crate::protocol::certificate::CertificateNames;
use crate::protocol::client_address::Trust;
use crate::server::{ClosedBy, ConnectionState, Peer};
use crate::sync;
use crate::upstream::{Forwarded, PublicName};

/// State that the requests of one connection share.
pub struct Connection {
    peer: IpAddr,
    trust: Trust,
    is_behind_trusted: bool,
    is_secure: bool,
    certificate: Option<CertificateNames>,
    forwarded: Forwarded,
    receipts: Arc<Receipts>,
    /// Quota of the last request, and its key. Most connections have one caller.
    quota: Mutex<Option<(QuotaKey, Arc<Quota>)>>,
}

impl Connection {
    /// Returns the state of a connection from `peer`. The proxies in `trust` speak for other
    /// clients, so their certificates are not a client's. `public` is the name of the endpoint for
    /// clients.
    pub(super) fn new(peer: Peer, trust: Trust, public: Option<Arc<PublicName>>) -> Self {
        let Peer { address, scheme, certificate } = peer;
        let peer = address.ip();
        let is_behind_trusted = trust.contains(peer);
        let receipts = if is_behind_trusted { Receipts::of_proxy() } else { Receipts::default() };
        Self {
            peer,
            forwarded: Forwarded::new(peer, scheme, is_behind_trusted, public),
            trust,
            is_behind_trusted,
            is_secure: scheme == "https",
            certificate: if is_behind_trusted { None } else { certificate },
            receipts: Arc::new(receipts),
            quota: Mutex::default(),
        }
    }

    /// Returns the state of a client in this process, which no connection separates from the proxy.
    pub(super) fn of_local_client() -> Self {
        let peer = IpAddr::from(Ipv4Addr::LOCALHOST);
        Self {
            peer,
            forwarded: Forwarded::absent(),
            trust: Trust::default(),
            is_behind_trusted: false,
            is_secure: false,
            certificate: None,
            receipts: Arc::new(Receipts::of_local_client()),
            quota: Mutex::default(),
        }
    }

    /// Address of the peer.
    pub fn peer(&self) -> IpAddr {
        self.peer
    }

    /// True if the peer is a trusted proxy, so that the connection may carry requests of many
    /// clients.
    pub fn is_behind_trusted(&self) -> bool {
        self.is_behind_trusted
    }

    /// Returns the address of the client that sent a request with these headers: the peer's, or the
    /// address reported by trusted proxies.
    pub fn client(&self, headers: &HeaderMap) -> IpAddr {
        if self.is_behind_trusted { self.trust.address(self.peer, headers) } else { self.peer }
    }

    /// True if the connection is encrypted.
    pub fn is_secure(&self) -> bool {
        self.is_secure
    }

    /// Names in the client's certificate, if it presented one.
    pub fn certificate(&self) -> Option<CertificateNames> {
        self.certificate
    }

    /// Headers that describe the peer to the upstream.
    pub fn forwarded(&self) -> &Forwarded {
        &self.forwarded
    }

    /// Returns the quota of `key`. `find` looks it up, unless the last request had the same key.
    /// Quotas in use are never replaced, so the kept quota is still the only quota of its key.
    pub(super) fn quota(&self, key: QuotaKey, find: impl FnOnce(QuotaKey) -> Arc<Quota>) -> Arc<Quota> {
        let mut last = sync::lock(&self.quota);
        if let Some((known, quota)) = &*last
            && *known == key
        {
            return quota.clone();
        }
        let quota = find(key.clone());
        *last = Some((key, quota.clone()));
        quota
    }

    /// Responses that ended and are not known to have arrived.
    pub fn receipts(&self) -> &Arc<Receipts> {
        &self.receipts
    }
}

/// Receipts are confirmed once the connection has stayed open long enough after their responses.
impl ConnectionState for Connection {
    fn next_deadline(&self) -> Option<Instant> {
        self.receipts.next_settled()
    }

    fn handle_deadline(&self, now: Instant) {
        self.receipts.confirm_settled(now);
    }

    fn is_taken_over(&self) -> bool {
        self.receipts.is_taken_over()
    }

    fn ended(&self, by: ClosedBy) {
        match by {
            ClosedBy::Client => self.receipts.confirm_closed(),
            ClosedBy::Server => self.receipts.confirm_interims(),
        }
    }
}
