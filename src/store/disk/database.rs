//! The database of the store: three keyspaces, commits of whole groups, reads of one stream.
//!
//! Properties of the database that matter here:
//!
//! - After a failed write it takes no more writes, so it is closed and opened anew
//!   ([`super::writer`]). A flush or compaction that fails in one of its own threads has the same
//!   effect, and the next write reports it.
//! - A commit waits while flushes lag behind, and forever once they have failed.
//!   [`Database::commit`] therefore checks first.
//! - A damaged file may cause a panic, which is caught where files are first read.

use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use fjall::compaction::filter::Factory;
use fjall::{AbstractTree as _, Keyspace, KeyspaceCreateOptions, PersistMode, Readable as _};
use tracing::warn;

use super::failure::{Failure, caught, damaged};
use super::index::{LiveEvents, ObsoleteFilterFactory};
use super::inspect::inspect;
use super::layout::{self, EVENTS, RECORDS, STREAMS, StreamMeta};
use super::options::{Fsync, Sizes};
use mcp_resume_protocol::ids::{Seq, StoreEpoch, StreamId};

/// Worker threads of the database. The first one compacts nothing, so that flushes do not wait. It
/// passes each due compaction to itself until another worker takes it: with two workers for as long
/// as the other one compacts. With four, one nearly always takes it at once.
const WORKERS: usize = 4;
/// Minimum size of the journals that the database accepts. One journal is written, and as many
/// bytes as this are kept for data that is not flushed.
const JOURNALS: u64 = 64 << 20;
/// Limits for a commit: memtables of a keyspace that wait for a flush, and tables that wait for a
/// compaction. At higher limits the database itself would wait.
const MAX_SEALED: usize = 1;
const MAX_TABLES: usize = 16;

/// An open database. Closed when dropped.
pub(super) struct Database {
    database: fjall::Database,
    streams: Keyspace,
    events: Keyspace,
    records: Keyspace,
    pub(super) live_events: Arc<LiveEvents>,
}

/// Rows of one commit, each key once. `None` removes a row.
#[derive(Default)]
pub(super) struct Changes {
    pub(super) streams: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    pub(super) events: Vec<([u8; 16], Vec<u8>)>,
    pub(super) records: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

impl Database {
    /// Creates an empty database for these contents, and closes it. Its sizes are fixed here: the
    /// sizes of a later open have no effect on it.
    pub(super) fn make(path: &Path, epoch: StoreEpoch, sizes: Sizes) -> Result<(), Failure> {
        let database = Self::build(path, sizes)?;
        let row = (layout::EPOCH_ROW.to_vec(), Some(epoch.0.to_be_bytes().to_vec()));
        database.commit(Changes { streams: vec![row], ..Changes::default() }, Fsync::Always)
    }

    /// Opens the database that was created for these contents. All its events count as live until
    /// [`LiveEvents::decide`] is called.
    ///
    /// # Errors
    /// Damage that [`inspect`] finds; no file was changed then. Otherwise the failures of the
    /// database.
    pub(super) fn open(path: &Path, epoch: StoreEpoch, fsync: Fsync, sizes: Sizes) -> Result<Self, Failure> {
        inspect(path, epoch, fsync)?.cut()?;
        caught(|| Self::build(path, sizes))
    }

    fn build(path: &Path, sizes: Sizes) -> Result<Self, Failure> {
        let live_events = Arc::new(LiveEvents::default());
        let filter: Arc<dyn Factory> = Arc::new(ObsoleteFilterFactory(AssertUnwindSafe(live_events.clone())));
        let database =
            fjall::Database::builder(path)
                .worker_threads(WORKERS)
                .max_journaling_size(JOURNALS)
                .with_compaction_filter_factories(Arc::new(move |keyspace| {
                    if keyspace == EVENTS { Some(filter.clone()) } else { None }
                }))
                .open()?;
        let keyspace =
            |name, memtable| database.keyspace(name, || KeyspaceCreateOptions::default().max_memtable_size(memtable));
        let (streams, events, records) =
            (keyspace(STREAMS, sizes.memtable)?, keyspace(EVENTS, sizes.memtable)?, keyspace(RECORDS, sizes.memtable)?);
        Ok(Self { database, streams, events, records, live_events })
    }

    /// Writes all of `changes` or nothing, durably if `fsync` says so. Readers see them afterwards.
    pub(super) fn commit(&self, changes: Changes, fsync: Fsync) -> Result<(), Failure> {
        self.wait_for_flushes()?;
        let mut batch = self.database.batch().durability(Some(match fsync {
            Fsync::Always => PersistMode::SyncData,
            Fsync::Interval => PersistMode::Buffer,
        }));
        for (key, value) in changes.events {
            batch.insert(&self.events, key, value);
        }
        for (keyspace, rows) in [(&self.streams, changes.streams), (&self.records, changes.records)] {
            for (key, value) in rows {
                match value {
                    Some(value) => batch.insert(keyspace, key, value),
                    None => batch.remove(keyspace, key),
                }
            }
        }
        caught(|| Ok(batch.commit()?))
    }

    /// Syncs the earlier commits to the disk.
    pub(super) fn sync(&self) -> Result<(), Failure> {
        Ok(self.database.persist(PersistMode::SyncData)?)
    }

    fn wait_for_flushes(&self) -> Result<(), Failure> {
        let keyspaces = [&self.streams, &self.events, &self.records];
        while keyspaces
            .iter()
            .any(|keyspace| keyspace.sealed_memtable_count() > MAX_SEALED || keyspace.l0_table_count() > MAX_TABLES)
        {
            // Returns an error if a flush has failed.
            self.database.persist(PersistMode::Buffer)?;
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Returns the metadata of every stream.
    pub(super) fn metas(&self) -> Result<StreamMetas, Failure> {
        caught(|| {
            let mut metas = StreamMetas { highest: self.highest_number()?, ..StreamMetas::default() };
            for row in self.streams.prefix(layout::METAS) {
                let (key, row) = row.into_inner()?;
                let meta = layout::stream_of(&key).zip(StreamMeta::decode(&row));
                let (stream, meta) = meta.ok_or_else(|| damaged("a row of a stream cannot be read"))?;
                metas.highest = metas.highest.max(meta.number);
                match caught(|| self.followed(meta)) {
                    Ok(meta) => metas.known.push((stream, meta)),
                    Err(failure) => {
                        warn!(stream.id = %stream, error = failure.problem, "events of a stream are damaged in the store");
                        metas.damaged.push((stream, meta));
                    }
                }
            }
            Ok(metas)
        })
    }

    /// Returns the highest stream number that has events. No block of a table is read for it, since
    /// any may be damaged.
    fn highest_number(&self) -> Result<u64, Failure> {
        let version = self.events.tree.current_version();
        let mut highest = 0;
        for table in version.iter_tables() {
            highest = highest.max(event_of(table.metadata.key_range.max())?.0);
        }
        let in_memory = self.events.range(layout::event_key(highest.saturating_add(1), Seq(0))..).next_back();
        match in_memory {
            Some(last) => Ok(highest.max(event_of(&last.key()?)?.0)),
            None => Ok(highest),
        }
    }

    /// Returns the metadata, moved on by the events stored after it.
    fn followed(&self, mut meta: StreamMeta) -> Result<StreamMeta, Failure> {
        if !meta.sealed {
            for event in self.events.range(meta.behind()) {
                let (key, batch) = event.into_inner()?;
                meta.add(event_of(&key)?.1, batch.len() as u64);
            }
        }
        Ok(meta)
    }

    /// Returns every record.
    pub(super) fn records(&self) -> Result<Vec<Record>, Failure> {
        let record = |row: fjall::Guard| {
            let (key, row) = row.into_inner()?;
            let (until, value) = decode_record(&row)?;
            let key = key.get(1..).unwrap_or_default();
            Ok(Record { key: key.into(), until, size: record_size(key, value) })
        };
        caught(|| self.records.iter().map(record).collect())
    }

    /// Returns metadata, description and state of the stream, as one commit left them.
    pub(super) fn load(&self, stream: StreamId) -> Result<Option<(StreamMeta, Bytes, Bytes)>, Failure> {
        caught(|| self.load_row(stream))
    }

    fn load_row(&self, stream: StreamId) -> Result<Option<(StreamMeta, Bytes, Bytes)>, Failure> {
        let snapshot = self.database.snapshot();
        let get = |key| snapshot.get(&self.streams, key);
        let Some(meta) = get(layout::meta_key(stream))? else { return Ok(None) };
        let mut meta = StreamMeta::decode(&meta).ok_or_else(|| damaged("a row of a stream cannot be read"))?;
        if let Some(last) = snapshot.range(&self.events, meta.behind()).next_back() {
            meta.tail = event_of(&last.key()?)?.1;
        }
        let [about, state] = [get(layout::about_key(stream))?, get(layout::state_key(stream))?]
            .map(|row| row.map_or_else(Bytes::new, |row| Bytes::copy_from_slice(&row)));
        Ok(Some((meta, about, state)))
    }

    /// Returns the events of a stream after `after` and up to `tail`, at most `max_bytes` together
    /// but at least one. Returns `None` if one of them is missing.
    pub(super) fn read(
        &self,
        number: u64,
        after: Seq,
        tail: Seq,
        max_bytes: usize,
    ) -> Result<Option<Vec<(Seq, Bytes)>>, Failure> {
        caught(|| self.read_events(number, after, tail, max_bytes))
    }

    fn read_events(
        &self,
        number: u64,
        after: Seq,
        tail: Seq,
        max_bytes: usize,
    ) -> Result<Option<Vec<(Seq, Bytes)>>, Failure> {
        let mut found: Vec<(Seq, Bytes)> = Vec::new();
        let (mut cursor, mut left) = (after, max_bytes);
        let from = layout::event_key(number, Seq(after.0.saturating_add(1)));
        for entry in self.events.range(from..=layout::event_key(number, tail)) {
            let (key, batch) = entry.into_inner()?;
            let events = layout::decode_batch(&Bytes::copy_from_slice(&batch), event_of(&key)?.1);
            let events = events.ok_or_else(|| damaged("a batch of events cannot be read"))?;
            for (seq, event) in events.into_iter().filter(|(seq, _)| *seq > after) {
                if seq.0 != cursor.0 + 1 {
                    return Ok(None);
                }
                if event.len() > left && !found.is_empty() {
                    return Ok(Some(found));
                }
                left = left.saturating_sub(event.len());
                cursor = seq;
                found.push((seq, event));
            }
        }
        Ok(if cursor >= tail { Some(found) } else { None })
    }

    pub(super) fn record(&self, key: &[u8]) -> Result<Option<(u64, Bytes)>, Failure> {
        caught(|| {
            let Some(row) = self.records.get(layout::record_key(key))? else { return Ok(None) };
            let (until, value) = decode_record(&row)?;
            Ok(Some((until, Bytes::copy_from_slice(value))))
        })
    }

    /// Returns the bytes of its tables.
    pub(super) fn table_bytes(&self) -> Tables {
        Tables { events: self.events.disk_space(), rows: self.streams.disk_space() + self.records.disk_space() }
    }

    /// Drops the tables that hold only obsolete events, without a read or a write of events.
    /// Returns false if it dropped no table.
    pub(super) fn drop_obsolete(&self) -> Result<bool, Failure> {
        let number = |key: &[u8]| Ok::<_, Failure>(event_of(key)?.0);
        let version = self.events.tree.current_version();
        let spans = version.iter_tables().map(|table| {
            let keys = &table.metadata.key_range;
            Ok((number(keys.min())?, number(keys.max())?))
        });
        let spans = spans.collect::<Result<Vec<(u64, u64)>, Failure>>()?;
        // A version in use keeps its tables, also the tables that are dropped below.
        drop(version);
        let mut has_dropped = false;
        for (first, last) in self.live_events.gaps() {
            if !spans.iter().any(|&(min, max)| first <= min && max <= last) {
                continue;
            }
            let (first, last) = (layout::event_key(first, Seq(0)), layout::event_key(last, Seq(u64::MAX)));
            self.events.tree.drop_range::<[u8; 16], _>(first..=last).map_err(fjall::Error::from)?;
            has_dropped = true;
        }
        Ok(has_dropped)
    }

    /// Rewrites all events, or all rows, without the obsolete ones. Takes long; appends continue
    /// meanwhile.
    pub(super) fn compact(&self, part: Part) -> Result<(), Failure> {
        match part {
            Part::Events => Ok(self.events.major_compact()?),
            Part::Rows => Ok(self.streams.major_compact().and_then(|()| self.records.major_compact())?),
        }
    }

    /// Makes the database delete the files of replaced tables, which it does when a memtable is
    /// rotated.
    pub(super) fn unlink(&self) -> Result<(), Failure> {
        let probe = (layout::PROBE_ROW.to_vec(), Some(Vec::new()));
        self.commit(Changes { streams: vec![probe], ..Changes::default() }, Fsync::Interval)?;
        self.streams.rotate_memtable()?;
        Ok(())
    }

    /// Waits until the rotated memtables are flushed.
    #[cfg(test)]
    pub(super) fn settle(&self) {
        let keyspaces = [&self.streams, &self.events, &self.records];
        while keyspaces.iter().any(|keyspace| keyspace.sealed_memtable_count() > 0) {
            thread::yield_now();
        }
    }

    /// Returns an error if a write would fail because of an earlier failure.
    pub(super) fn check(&self) -> Result<(), Failure> {
        Ok(self.database.persist(PersistMode::Buffer)?)
    }

    /// Writes a row, frees space, and does the flushes and compactions that are due. Afterwards the
    /// threads of the database have no work left that a full disk would fail.
    pub(super) fn catch_up(&self) -> Result<(), Failure> {
        self.drop_obsolete()?;
        let probe = (layout::PROBE_ROW.to_vec(), Some(Vec::new()));
        self.commit(Changes { streams: vec![probe], ..Changes::default() }, Fsync::Always)?;
        let keyspaces = [&self.streams, &self.events, &self.records];
        for keyspace in keyspaces {
            while keyspace.sealed_memtable_count() > 0 {
                self.check()?;
                thread::sleep(Duration::from_millis(1));
            }
            // Unlike the thread of the database, this call reports the cause of a failure.
            let strategy = keyspace.config.compaction_strategy.clone();
            keyspace.tree.compact(strategy, 0).map_err(fjall::Error::from)?;
        }
        while self.database.active_compactions() > 0 {
            thread::sleep(Duration::from_millis(1));
        }
        self.check()
    }
}

/// Streams found in the database.
#[derive(Default)]
pub(super) struct StreamMetas {
    pub(super) known: Vec<(StreamId, StreamMeta)>,
    /// Streams whose last events cannot be read, so that their end is unknown.
    pub(super) damaged: Vec<(StreamId, StreamMeta)>,
    /// Highest number of a stream or of events.
    pub(super) highest: u64,
}

/// A record without its value.
pub(super) struct Record {
    pub(super) key: Arc<[u8]>,
    pub(super) until: u64,
    pub(super) size: u64,
}

/// Bytes of the tables on disk.
pub(super) struct Tables {
    pub(super) events: u64,
    pub(super) rows: u64,
}

#[derive(Clone, Copy)]
pub(super) enum Part {
    Events,
    Rows,
}

pub(super) fn record_size(key: &[u8], value: &[u8]) -> u64 {
    layout::OVERHEAD + 8 + (key.len() + value.len()) as u64
}

fn event_of(key: &[u8]) -> Result<(u64, Seq), Failure> {
    layout::event_of(key).ok_or_else(|| damaged("a key of an event cannot be read"))
}

fn decode_record(row: &[u8]) -> Result<(u64, &[u8]), Failure> {
    layout::decode_record(row).ok_or_else(|| damaged("a record cannot be read"))
}
