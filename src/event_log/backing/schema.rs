//! What is written of a stream beside its events, so that another process, or this one after a restart, can serve and end it.
//!
//! Two records, both JSON: what a stream is, which never changes, and where it stands, which is written anew with the batch that changes
//! it. A field that a later version adds must have a default, so that what an older version wrote can be read; one that it takes
//! away stays readable for one version. Absent: the events, and when anything is written (`writer/recorder.rs`).

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::event_log::backing::fingerprint::Fingerprint;
use crate::event_log::identity::ownership::Binding;
use crate::protocol::dialect::resume_tokens::CallDigest;
use crate::protocol::dialect::resume_tokens::Form;
use crate::protocol::dialect::resume_tokens::Names;
use crate::protocol::ids::{Owner, Secret, Seq, StoreEpoch};
use crate::protocol::jsonrpc::RequestId;
use crate::protocol::stream::{Policy, Snapshot, SnapshotDigest};
use std::time::Duration;

/// What a stream is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::event_log) struct About {
    /// Who made it, and in which contents of the store: its handle says so for ever.
    pub(in crate::event_log) owner: Owner,
    pub(in crate::event_log) epoch: StoreEpoch,
    pub(in crate::event_log) policy: Policy,
    pub(in crate::event_log) binding: Binding,
    pub(in crate::event_log) ids: Vec<RequestId>,
    pub(in crate::event_log) batch: bool,
    pub(in crate::event_log) polls: bool,
    pub(in crate::event_log) body: Option<Fingerprint>,
    pub(in crate::event_log) slicing: Option<Slicing>,
    pub(in crate::event_log) secret: Option<Secret>,
}

/// How a stream is sliced.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Slicing {
    /// Which calls may carry it on.
    pub sameness: CallDigest,
    /// What its result looks like.
    pub form: Form,
    /// How long a slice is.
    pub length: Duration,
    /// What the first call is called, upstream as well.
    pub first: Names,
}

/// Where it stands.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::event_log) struct State {
    pub(in crate::event_log) machine: Snapshot,
    /// What its slices are called, the first one aside.
    #[serde(default)]
    pub(in crate::event_log) slices: Vec<Names>,
    /// Where it was made after the stream was recorded.
    #[serde(default)]
    pub(in crate::event_log) secret: Option<Secret>,
    /// The last event of a writer that is gone, as far as the store knew, where another one ended it: what follows is that one's.
    #[serde(default)]
    pub(in crate::event_log) adopted_after: Option<Seq>,
}

/// Whether a state is worth writing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::event_log) struct StateMarks {
    pub(in crate::event_log) machine: SnapshotDigest,
    pub(in crate::event_log) slices: u64,
    pub(in crate::event_log) has_secret: bool,
}

/// A record that cannot be read: damaged, or of another version.
#[derive(Debug, thiserror::Error)]
#[error("the record of a stream cannot be read: {0}")]
pub(in crate::event_log) struct Unreadable(#[from] serde_json::Error);

impl About {
    pub(in crate::event_log) fn encode(&self) -> Bytes {
        encode(self)
    }

    pub(in crate::event_log) fn decode(bytes: &[u8]) -> Result<Self, Unreadable> {
        Ok(serde_json::from_slice(bytes)?)
    }
}

impl State {
    pub(in crate::event_log) fn encode(&self) -> Bytes {
        encode(self)
    }

    /// `None`: none was written yet.
    pub(in crate::event_log) fn decode(bytes: &[u8]) -> Result<Option<Self>, Unreadable> {
        if bytes.is_empty() { Ok(None) } else { Ok(Some(serde_json::from_slice(bytes)?)) }
    }
}

fn encode(record: &impl Serialize) -> Bytes {
    serde_json::to_vec(record).expect("records have no maps with keys that are no text").into()
}
