//! What is written of a stream beside its events, so that another process, or this one after a restart, can serve and end it.
//!
//! Two records, both JSON: what a stream is, which never changes, and where it stands, which is written anew with the batch that changes
//! it. A field that a later version adds must have a default, so that what an older version wrote can be read; one that it takes
//! away stays readable for one version. Absent: the events, and when anything is written (`recorder.rs`).

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::binding::Binding;
use super::retries::Fingerprint;
use super::slices::Slicing;
use crate::protocol::dialect::resume_tokens::Names;
use crate::protocol::ids::{Owner, Secret, Seq, StoreEpoch};
use crate::protocol::jsonrpc::RequestId;
use crate::protocol::stream::{Marks, Policy, Snapshot};

/// What a stream is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct About {
    /// Who made it, and in which contents of the store: its handle says so for ever.
    pub(super) owner: Owner,
    pub(super) epoch: StoreEpoch,
    pub(super) policy: Policy,
    pub(super) binding: Binding,
    pub(super) ids: Vec<RequestId>,
    pub(super) batch: bool,
    pub(super) polls: bool,
    pub(super) body: Option<Fingerprint>,
    pub(super) slicing: Option<Slicing>,
    pub(super) secret: Option<Secret>,
}

/// Where it stands.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct State {
    pub(super) machine: Snapshot,
    /// What its slices are called, the first one aside.
    #[serde(default)]
    pub(super) slices: Vec<Names>,
    /// Where it was made after the stream was recorded.
    #[serde(default)]
    pub(super) secret: Option<Secret>,
    /// The last event of a writer that is gone, as far as the store knew, where another one ended it: what follows is that one's.
    #[serde(default)]
    pub(super) adopted_after: Option<Seq>,
}

/// Whether a state is worth writing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct StateMarks {
    pub(super) machine: Marks,
    pub(super) slices: u64,
    pub(super) has_secret: bool,
}

/// A record that cannot be read: damaged, or of another version.
#[derive(Debug, thiserror::Error)]
#[error("the record of a stream cannot be read: {0}")]
pub(super) struct Unreadable(#[from] serde_json::Error);

impl About {
    pub(super) fn encode(&self) -> Bytes {
        encode(self)
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Unreadable> {
        Ok(serde_json::from_slice(bytes)?)
    }
}

impl State {
    pub(super) fn encode(&self) -> Bytes {
        encode(self)
    }

    /// `None`: none was written yet.
    pub(super) fn decode(bytes: &[u8]) -> Result<Option<Self>, Unreadable> {
        if bytes.is_empty() { Ok(None) } else { Ok(Some(serde_json::from_slice(bytes)?)) }
    }
}

fn encode(record: &impl Serialize) -> Bytes {
    serde_json::to_vec(record).expect("records have no maps with keys that are no text").into()
}
