//! Record of a handshake as a store holds it.
//!
//! Owned here: the form of the record, which is JSON. A field that a later version adds must have a default, so that records of older versions
//! can be read. It may hold secrets of the client, so it is never logged. Absent: the key of the record and its fenced writes
//! (`recovery/handshakes.rs`).

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::generations::UpstreamName;
use crate::event_log::identity::principal::Principal;
use crate::protocol::headers::ProtocolVersion;
use crate::protocol::ids::{Owner, SessionGeneration};
use crate::protocol::jsonrpc::{InitializeParams, ServerFacts};

/// Record of a handshake in a store.
#[derive(Clone, Serialize, Deserialize)]
pub(in crate::event_log) struct StoredHandshake {
    /// Replica whose server has the session.
    pub(in crate::event_log) home: Owner,
    /// Generation of the session's name: a replica writes over no record of a later one.
    pub(in crate::event_log) generation: SessionGeneration,
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
    /// Lifetime of the record after the last use of its session.
    pub(in crate::event_log) keep: Duration,
}

/// Masked: the parameters may hold secrets.
impl fmt::Debug for StoredHandshake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { home, generation, .. } = self;
        f.debug_struct("StoredHandshake").field("home", home).field("generation", generation).finish_non_exhaustive()
    }
}

impl StoredHandshake {
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
