//! Record of a handshake as a store holds it.
//!
//! Owned here: the form of the record, which is JSON. A field that a later version adds must have a
//! default, so that records of older versions can be read. It may hold secrets of the client, so it
//! is never logged. Absent: the key of the record and its fenced writes (`replicas/homes.rs`).

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::generations::UpstreamName;
use crate::identity::Principal;
use crate::protocol::headers::ProtocolVersion;
use crate::protocol::ids::{Owner, SessionGeneration};
use crate::protocol::jsonrpc::{InitializeParams, ServerFacts};
use crate::protocol::lists::ReadLists;
use crate::random;

/// Record of a handshake in a store.
#[derive(Clone, Serialize, Deserialize)]
pub(in crate::event_log) struct StoredHandshake {
    /// Replica whose server has the session.
    pub(in crate::event_log) home: Owner,
    /// Generation of the session's name.
    pub(in crate::event_log) generation: SessionGeneration,
    /// Number of replicas that took the session over: after a loss in the store, the home of the
    /// highest number is the home.
    pub(super) takeovers: u32,
    /// Random number of the write, so that no two records are equal.
    pub(super) nonce: u64,
    /// Name of the session at that server.
    pub(in crate::event_log) name: UpstreamName,
    /// Principals that may cause the session to be opened again.
    pub(in crate::event_log) principals: Vec<Principal>,
    pub(super) params: InitializeParams,
    pub(super) version: ProtocolVersion,
    pub(super) server: ServerFacts,
    pub(super) is_initialized: bool,
    pub(super) log_level: Option<Box<str>>,
    pub(super) subscriptions: Vec<Box<str>>,
    /// True once the server has responded to a request in the session.
    #[serde(default)]
    pub(super) was_answered: bool,
    /// Pages of lists that the client has read.
    #[serde(default = "ReadLists::unknown")]
    pub(super) read_lists: ReadLists,
    /// Cookies of a load balancer, of one caller in the session.
    #[serde(default)]
    pub(super) cookies: Option<KeptCookies>,
    /// Lifetime of the record after the last use of its session.
    pub(in crate::event_log) keep: Duration,
}

/// Cookies of a load balancer before the server, for the requests of one caller in a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptCookies {
    /// Digest of the server's name for the session, and of the caller's credentials.
    pub digest: [u8; 32],
    /// The cookies, as in a header `Cookie`.
    pub text: Box<str>,
}

/// Masked: the parameters may hold secrets.
impl fmt::Debug for StoredHandshake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { home, generation, .. } = self;
        f.debug_struct("StoredHandshake").field("home", home).field("generation", generation).finish_non_exhaustive()
    }
}

impl StoredHandshake {
    /// Makes `home` the home of the session, whose server does not have it.
    pub(in crate::event_log) fn move_to(&mut self, home: Owner) {
        self.home = home;
        self.takeovers = self.takeovers.saturating_add(1);
        self.nonce = Self::new_nonce();
        self.generation.0 = self.generation.0.saturating_add(1);
        self.name = UpstreamName::lost();
    }

    /// Returns whether this is the record of a replica that took the session over from the home in
    /// `other`, or at the same time.
    pub(in crate::event_log) fn is_later_than(&self, other: &Self) -> bool {
        self.home != other.home && self.takeovers >= other.takeovers
    }

    pub(super) fn new_nonce() -> u64 {
        u64::from_be_bytes(random::bytes())
    }

    /// Returns the record as bytes.
    pub(in crate::event_log) fn encode(&self) -> Bytes {
        serde_json::to_vec(self).expect("a record has no maps with keys that are no text").into()
    }

    /// Reads a record.
    ///
    /// # Errors
    /// If it is damaged, or of a later version.
    pub(in crate::event_log) fn decode(bytes: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(bytes)
    }
}
