//! Table of the readers at other replicas, for streams that are written here.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::protocol::ids::{AttachId, Owner, StreamId};
use crate::sync;

/// Time that a reader at another replica counts as reading after its last report.
pub const READER_HOLD: Duration = Duration::from_secs(15);

/// Readers at other replicas, by stream.
#[derive(Debug, Default)]
pub(in crate::event_log) struct ReaderTable {
    known: Mutex<HashMap<StreamId, Vec<RemoteReader>>>,
}

#[derive(Debug)]
pub(in crate::event_log) struct RemoteReader {
    pub(in crate::event_log) from: Owner,
    pub(in crate::event_log) attach: AttachId,
    pub(in crate::event_log) is_reading: bool,
    pub(in crate::event_log) last_seen: Instant,
    pub(in crate::event_log) touches: u64,
}

/// A displaced reader: its replica, the stream and the attachment.
pub type Displaced = (Owner, StreamId, AttachId);

impl ReaderTable {
    pub(in crate::event_log) fn lock(&self) -> MutexGuard<'_, HashMap<StreamId, Vec<RemoteReader>>> {
        sync::lock(&self.known)
    }
}
