//! Records of a stream beside its events: another process, or this one after a restart, serves and
//! ends the stream with them.
//!
//! Two records, both JSON: the description and the state. The description never changes. The state
//! is written with the batch that changes it. A field that a later version adds must have a
//! default, so that records of older versions can be read. A field that it drops stays readable for
//! one version. Absent: the events, and the time of each write (`writer/recorder.rs`).

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::event_log::backing::fingerprint::Fingerprint;
use crate::identity::Binding;
use crate::otel::CallRecord;
use crate::protocol::cluster::Base64;
use crate::protocol::dialect::resume_tokens::CallDigest;
use crate::protocol::dialect::resume_tokens::Form;
use crate::protocol::dialect::resume_tokens::Names;
use crate::protocol::ids::{Owner, Secret, Seq, StoreEpoch};
use crate::protocol::jsonrpc::RequestId;
use crate::protocol::progress::TokenOfRequest;
use crate::protocol::stream::{Policy, Snapshot, SnapshotDigest};
use std::time::Duration;

/// Description of a stream.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::event_log) struct About {
    /// Replica that made the stream, and the epoch of the store's contents then; the handle names
    /// both for ever.
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
    /// Progress that the requests want, or `None` if connections write no progress of the proxy's
    /// own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::event_log) progress: Option<ProgressRecord>,
    /// Span of the call, or `None` if the call is not traced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::event_log) trace: Option<CallRecord>,
    /// Fingerprint of a call in a session without a key, if the record was written while the call
    /// ran and no replica shares the store. The next process recognises its repetition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::event_log) call: Option<Base64>,
}

/// Progress that the requests of a stream want.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::event_log) struct ProgressRecord {
    /// Start of the call, in milliseconds since 1970.
    pub(in crate::event_log) began_ms: u64,
    pub(in crate::event_log) tokens: Vec<TokenOfRequest>,
}

/// Description of a stream that is read in slices, as partial results.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Slicing {
    /// Digest that identifies a later call as a continuation.
    pub sameness: CallDigest,
    /// Form of an interim result.
    pub form: Form,
    /// Length of a slice.
    pub length: Duration,
    /// Names of the first call, also used upstream.
    pub first: Names,
}

/// State of a stream.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::event_log) struct State {
    pub(in crate::event_log) machine: Snapshot,
    /// Names of its slices except the first.
    #[serde(default)]
    pub(in crate::event_log) slices: Vec<Names>,
    /// Secret of the resume token, if it was made after the description was written.
    #[serde(default)]
    pub(in crate::event_log) secret: Option<Secret>,
    /// Last event of a dead writer as far as the store knew, if another replica ended the stream:
    /// later events are that one's.
    #[serde(default)]
    pub(in crate::event_log) adopted_after: Option<Seq>,
}

/// Digest of a state, to decide whether a new one is worth writing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::event_log) struct StateDigest {
    pub(in crate::event_log) machine: SnapshotDigest,
    pub(in crate::event_log) slices: u64,
    pub(in crate::event_log) has_secret: bool,
}

/// Error for a record that cannot be read: damaged, or of another version.
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

    /// Decodes a state; `None` if none was written yet.
    pub(in crate::event_log) fn decode(bytes: &[u8]) -> Result<Option<Self>, Unreadable> {
        if bytes.is_empty() { Ok(None) } else { Ok(Some(serde_json::from_slice(bytes)?)) }
    }
}

fn encode(record: &impl Serialize) -> Bytes {
    serde_json::to_vec(record).expect("records have no maps with keys that are no text").into()
}
