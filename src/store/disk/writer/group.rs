//! Group of store calls for one commit: the changes of its calls, and their results.
//!
//! Absent: the check of each call (`call_group.rs`), and the commit itself (`mod.rs`).

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;

use crate::Error;
use crate::completion::{self, Queue};
use crate::disk::database::{self, Changes};
use crate::disk::failure::Failure;
use crate::disk::layout::{self, StreamMeta};
use crate::disk::reply::{Completion, Reply};
use mcp_resume_protocol::ids::StreamId;

/// A reply and its queue.
pub(super) type AddressedReply = (Arc<Queue<Completion>>, Completion);
/// Value and expiry of a record; `None` if it is removed.
pub(super) type Record = Option<(Bytes, u64)>;

/// Changes of the calls so far, over the state in memory; each key once.
#[derive(Default)]
pub(super) struct Group {
    pub(super) metas: HashMap<StreamId, Change>,
    /// Descriptions and states of streams.
    rows: HashMap<Vec<u8>, Option<Vec<u8>>>,
    pub(super) events: Vec<([u8; 16], Vec<u8>)>,
    pub(super) records: HashMap<Arc<[u8]>, Record>,
    /// Growth of the live bytes.
    pub(super) growth: i64,
    /// Approximate bytes to write.
    pub(super) bytes: usize,
    pub(super) replies: Vec<AddressedReply>,
}

/// New metadata of a stream.
#[derive(Clone, Copy)]
pub(super) struct Change {
    /// The metadata, or `None` if the stream is removed.
    pub(super) meta: Option<StreamMeta>,
    /// True if the metadata are written. They need not be if they follow from the events.
    is_written: bool,
}

/// A group during its commit.
pub(super) struct Pending {
    pub(super) metas: HashMap<StreamId, Option<StreamMeta>>,
    pub(super) records: HashMap<Arc<[u8]>, Option<(u64, u64)>>,
    pub(super) bytes: usize,
    replies: Vec<AddressedReply>,
}

impl Pending {
    /// Delivers the results of a group that was written.
    pub(super) fn deliver(self) {
        completion::deliver(self.replies);
    }

    /// Delivers the failure to the calls of a group that was not written.
    pub(super) fn fail(mut self, failure: Failure) {
        let failure = Arc::new(failure);
        for (_, completion) in &mut self.replies {
            completion.fail(&failure);
        }
        self.deliver();
    }
}

impl Group {
    pub(super) fn byte_len(&self) -> usize {
        self.bytes
    }

    /// Returns the work that follows the commit, and the changes to write, or `None` if there is
    /// nothing to write.
    pub(super) fn into_changes(self) -> (Pending, Option<Changes>) {
        let is_empty = self.metas.is_empty() && self.rows.is_empty() && self.records.is_empty();
        let written = self.metas.iter().filter(|(_, change)| change.is_written);
        let metas =
            written.map(|(stream, change)| (layout::meta_key(*stream), change.meta.as_ref().map(StreamMeta::encode)));
        let streams = self.rows.into_iter().chain(metas).collect();
        let encode = |record: &Record| record.as_ref().map(|(value, until)| layout::encode_record(value, *until));
        let records = self.records.iter().map(|(key, record)| (layout::record_key(key), encode(record))).collect();
        let changes = Changes { streams, events: self.events, records };
        let sized =
            |key: &Arc<[u8]>, record: Record| record.map(|(value, until)| (until, database::record_size(key, &value)));
        let records = self.records.into_iter().map(|(key, record)| (key.clone(), sized(&key, record))).collect();
        let metas = self.metas.into_iter().map(|(stream, change)| (stream, change.meta)).collect();
        let pending = Pending { metas, records, bytes: self.bytes, replies: self.replies };
        (pending, if is_empty { None } else { Some(changes) })
    }

    pub(super) fn add_reply<T: Send + 'static>(&mut self, reply: Reply<T>, result: Result<T, Error>) {
        self.replies.push(reply.with(result));
    }

    pub(super) fn set_meta(&mut self, stream: StreamId, before: Option<&StreamMeta>, meta: Option<StreamMeta>) {
        let size = |meta: Option<&StreamMeta>| meta.map_or(0, StreamMeta::size) as i64;
        self.growth += size(meta.as_ref()) - size(before);
        let follows = before.zip(meta.as_ref()).is_some_and(|(before, meta)| meta.follows_from_events(before));
        let change = self.metas.entry(stream).or_insert(Change { meta, is_written: false });
        change.meta = meta;
        if !follows && !std::mem::replace(&mut change.is_written, true) {
            self.bytes += 128;
        }
    }

    pub(super) fn set_row(&mut self, key: Vec<u8>, row: Option<Vec<u8>>) {
        self.bytes += row.as_ref().map_or(0, Vec::len) + 32;
        self.rows.insert(key, row);
    }

    pub(super) fn set_record(&mut self, key: Arc<[u8]>, before: u64, record: Record) {
        let size = record.as_ref().map_or(0, |(value, _)| database::record_size(&key, value));
        self.growth += size as i64 - before as i64;
        self.bytes += size as usize + 32;
        self.records.insert(key, record);
    }
}
