//! The writer thread: takes calls, forms groups of them, commits, and delivers the results. It also
//! removes expired data.
//!
//! A group has all waiting calls, up to [`MAX_GROUP_BYTES`] and [`MAX_GROUP_CALLS`]. Each call is
//! checked against the state in memory as changed by the earlier calls of the group. Readers do not
//! see these changes before the commit.

mod call_group;
mod command;
mod compaction;
mod expiry;
mod group;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use tracing::{info, warn};

pub(super) use self::command::{Call, Command};
use self::compaction::{Compactor, Limits};
use self::expiry::{ExpiryQueue, Item};
use self::group::Group;
use super::access::State;
use super::database::{Database, Record};
use super::directory::Directory;
use super::failure::{Failure, damaged};
use super::options::{Fsync, Options, Sizes};
use super::shared::{Shared, now};
use crate::StoreHealth;
use mcp_resume_base::backoff::Backoff;
use mcp_resume_base::clock;
use mcp_resume_protocol::ids::{Seq, StoreEpoch, StreamId};

/// Maximum size of a group: large enough that many calls share a sync, small enough that none waits
/// long.
const MAX_GROUP_BYTES: usize = 2 << 20;
const MAX_GROUP_CALLS: usize = 4096;
/// Longest time that a commit stays unsynced with [`Fsync::Interval`].
const INTERVAL: Duration = Duration::from_millis(200);
/// Maximum items of the expiry queue that are removed in one group.
const MAX_SWEPT_ITEMS: usize = 1024;
/// Least interval between two removals of expired data, in milliseconds.
const SWEEP_EVERY: u64 = 1000;
/// Longest and shortest wait for a call. A failed flush or compaction is noticed after the longest
/// wait.
const MAX_WAIT: Duration = Duration::from_secs(2);
const MIN_WAIT: Duration = Duration::from_millis(10);
/// Interval of the checks for the end of a compaction.
const COMPACTION_CHECK_EVERY: Duration = Duration::from_millis(50);
/// Pauses before further attempts to write after a failure.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(5));

pub(super) struct Writer {
    shared: Arc<Shared>,
    calls: mpsc::Receiver<Call>,
    directory: Directory,
    store_epoch: StoreEpoch,
    fsync: Fsync,
    sizes: Sizes,
    space: SpaceUsage,
    /// `None` after a failure, and for good once no caller is left.
    database: Option<Arc<Database>>,
    /// Database that was opened on a full disk and not written to yet.
    opened_full: Option<(Arc<Database>, Failure)>,
    group: Group,
    expiry: ExpiryQueue,
    next_number: u64,
    /// Time of the first unsynced commit, or `None` if all is synced.
    unsynced: Option<Instant>,
    /// Data that becomes obsolete with the next sync.
    obsolete: Vec<Obsolete>,
    /// Time of the last removal of expired data.
    swept: u64,
    compactor: Compactor,
}

/// Live bytes and their limit.
struct SpaceUsage {
    max: u64,
    events: u64,
    /// Bytes of the rows of streams, and of the records.
    rows: u64,
    is_full: bool,
}

impl SpaceUsage {
    fn live(&self) -> u64 {
        self.events + self.rows
    }

    /// Limit for new data: once the store is full, a sixteenth less.
    fn limit(&self) -> u64 {
        if self.is_full { self.max - self.max / 16 } else { self.max }
    }
}

enum Obsolete {
    Stream { number: u64 },
    Events { number: u64, trimmed: Seq },
}

impl Writer {
    pub(super) fn new(
        shared: Arc<Shared>,
        calls: mpsc::Receiver<Call>,
        directory: Directory,
        store_epoch: StoreEpoch,
        options: &Options,
        sizes: Sizes,
    ) -> Self {
        Self {
            shared,
            calls,
            directory,
            store_epoch,
            fsync: options.fsync,
            sizes,
            space: SpaceUsage { max: options.max_bytes, events: 0, rows: 0, is_full: false },
            database: None,
            opened_full: None,
            group: Group::default(),
            expiry: ExpiryQueue::default(),
            next_number: 0,
            unsynced: None,
            obsolete: Vec::new(),
            swept: 0,
            compactor: Compactor::default(),
        }
    }

    /// Opens the database and reads the live data. A full disk is no error: the data can be read.
    pub(super) fn open(&mut self) -> Result<(), Failure> {
        let database = self.open_database()?;
        match self.probe() {
            Err(failure) if failure.is_full => {
                self.stop(&failure);
                self.shared.access.set(State::Open(database.clone()));
                self.opened_full = Some((database, failure));
            }
            Err(failure) => return Err(failure),
            Ok(()) => self.use_database(database),
        }
        Ok(())
    }

    fn open_database(&mut self) -> Result<Arc<Database>, Failure> {
        let database = Database::open(&self.directory.database(), self.store_epoch, self.fsync, self.sizes)?;
        self.read_index(&database)?;
        Ok(Arc::new(database))
    }

    /// Checks for room. Writes of a few bytes would succeed on a disk that is practically full.
    fn probe(&self) -> Result<(), Failure> {
        Ok(self.directory.probe(MAX_GROUP_BYTES).map_err(fjall::Error::Io)?)
    }

    /// Runs until no caller is left.
    pub(super) fn run(mut self) {
        if let Some((database, failure)) = self.opened_full.take() {
            self.reopen(failure, Some(database));
        }
        while self.database.is_some() {
            match self.calls.recv_timeout(self.next_wakeup()) {
                Ok(first) => self.take_all(first),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            self.do_periodic_work();
        }
        self.compactor.wait();
        if self.unsynced.is_some()
            && let Some(database) = &self.database
            && let Err(failure) = database.sync()
        {
            warn!(error = failure.problem, "the store could not be synced at the end");
        }
        self.shared.access.set(State::Closed);
    }

    /// Takes all waiting calls that fit in a group, and commits them.
    fn take_all(&mut self, first: Call) {
        let mut next = Some(first);
        let mut taken = 0;
        while let Some(call) = next.take() {
            self.shared.queued_bytes.fetch_sub(call.bytes, Ordering::Relaxed);
            self.apply_call(call);
            taken += 1;
            if self.group.byte_len() < MAX_GROUP_BYTES && taken < MAX_GROUP_CALLS {
                next = self.calls.try_recv().ok();
            }
        }
        self.commit();
    }

    /// Commits the group and delivers its results.
    fn commit(&mut self) {
        let group = std::mem::take(&mut self.group);
        let (pending, changes) = group.into_changes();
        let Some(database) = &self.database else {
            return pending.fail(Failure { is_full: false, problem: "the store is closed".into() });
        };
        let Some(changes) = changes else { return pending.deliver() };
        let result = database.commit(changes, self.fsync);
        #[cfg(test)]
        self.shared.groups.fetch_add(1, Ordering::Relaxed);
        match result {
            Ok(()) => {
                if self.fsync == Fsync::Interval {
                    self.unsynced.get_or_insert_with(clock::now);
                }
                self.apply(pending);
            }
            Err(failure) => {
                // Callers that get the failure find the store in the reported state.
                self.stop(&failure);
                pending.fail(failure.clone());
                self.reopen(failure, None);
            }
        }
    }

    /// Ends all writes. Reads continue.
    fn stop(&mut self, failure: &Failure) {
        self.shared.index.set_health(if failure.is_full { StoreHealth::Full } else { StoreHealth::Unreachable });
        self.database = None;
    }

    /// Tries until writes succeed again. Calls are refused meanwhile. `unused` was opened and not
    /// written to yet.
    fn reopen(&mut self, mut failure: Failure, mut unused: Option<Arc<Database>>) {
        warn!(error = failure.problem, "the store cannot write, and tries again until it can");
        let mut backoff = BACKOFF;
        let mut is_first = unused.is_none();
        loop {
            self.stop(&failure);
            self.compactor.wait();
            if !std::mem::take(&mut is_first) && !self.refuse_for(backoff.next_pause(), &failure) {
                return;
            }
            #[cfg(test)]
            self.shared.attempts.fetch_add(1, Ordering::Relaxed);
            match self.try_again(&mut unused, &failure) {
                Ok(Some(database)) => break self.use_database(database),
                Ok(None) => return,
                Err(again) => failure = again,
            }
        }
        info!("the store can write again");
        self.shared.subscriptions.notify_all();
    }

    /// Checks for room, and makes the database do the due flushes and compactions, which a full
    /// disk would fail. A database with a failed write is opened again before that. It takes no
    /// more writes, and the files of failed writes are removed. Returns `None` if no caller is
    /// left.
    fn try_again(
        &mut self,
        unused: &mut Option<Arc<Database>>,
        failure: &Failure,
    ) -> Result<Option<Arc<Database>>, Failure> {
        let database = match unused.take().filter(|database| database.check().is_ok()) {
            Some(database) => database,
            None => match self.reopen_database(failure)? {
                Some(database) => database,
                None => return Ok(None),
            },
        };
        let has_dropped = self.forget_expired(&database)?;
        if let Err(failure) = self.probe() {
            // The files of dropped tables are deleted when the database is opened again.
            *unused = if has_dropped { None } else { Some(database) };
            return Err(failure);
        }
        let is_called = self.catch_up(&database, failure)?;
        Ok(if is_called { Some(database) } else { None })
    }

    /// Drops tables with expired streams alone: the store may need their space to continue. Returns
    /// false if it dropped no table. These streams are gone for every call, also for a call made
    /// before they expired. Their rows are removed with the next sweep.
    fn forget_expired(&self, database: &Database) -> Result<bool, Failure> {
        let now = now();
        for mut meta in self.shared.index.streams.iter_mut().filter(|meta| !meta.lives(now)) {
            meta.until = 0;
            database.live_events.forget(meta.number);
        }
        database.drop_obsolete()
    }

    /// Opens the database again, for readers first. Returns `None` if no caller is left.
    fn reopen_database(&mut self, failure: &Failure) -> Result<Option<Arc<Database>>, Failure> {
        let before = self.shared.access.set(State::Opening);
        // The last reader closes the database, which is locked until then.
        while before.as_ref().is_some_and(|before| Arc::strong_count(before) > 1) {
            if !self.refuse_for(MIN_WAIT, failure) {
                return Ok(None);
            }
        }
        // Closes the database, whose directory is locked until then.
        drop(before);
        let opened = self.open_database();
        self.shared.access.set(opened.as_ref().map_or(State::Closed, |database| State::Open(database.clone())));
        opened.map(Some)
    }

    /// Does the due work of the database on a thread of its own. Returns false if no caller is
    /// left.
    fn catch_up(&mut self, database: &Arc<Database>, failure: &Failure) -> Result<bool, Failure> {
        let catching_up = database.clone();
        let thread = thread::Builder::new().name("disk-opener".into()).spawn(move || catching_up.catch_up());
        let thread = thread.map_err(fjall::Error::Io)?;
        let mut is_called = true;
        while is_called && !thread.is_finished() {
            is_called = self.refuse_for(MIN_WAIT, failure);
        }
        thread.join().unwrap_or_else(|_| Err(damaged("it panicked")))?;
        Ok(is_called)
    }

    /// Refuses calls with the failure for a while. Returns false if no caller is left.
    fn refuse_for(&mut self, pause: Duration, failure: &Failure) -> bool {
        let until = clock::now() + pause;
        loop {
            match self.calls.recv_timeout(until.saturating_duration_since(clock::now())) {
                Ok(call) => {
                    self.shared.queued_bytes.fetch_sub(call.bytes, Ordering::Relaxed);
                    call.command.refuse(failure);
                }
                Err(RecvTimeoutError::Timeout) => return true,
                Err(RecvTimeoutError::Disconnected) => return false,
            }
        }
    }

    /// Reads the state on disk into memory. Concurrent readers find each stream in its old or new
    /// state, never missing.
    fn read_index(&mut self, database: &Database) -> Result<(), Failure> {
        let (index, now) = (&self.shared.index, now());
        let (metas, records) = (database.metas()?, database.records()?);
        self.expiry = ExpiryQueue::default();
        self.unsynced = None;
        self.obsolete.clear();
        (self.space.events, self.space.rows) = (0, 0);
        index.damaged.clear();
        for (stream, meta) in &metas.known {
            index.streams.insert(*stream, *meta);
            self.expiry.set(Item::Stream(*stream), meta.until);
            self.space.events += meta.events;
            self.space.rows += meta.rows + meta.state;
        }
        for (stream, _) in &metas.damaged {
            index.damaged.insert(*stream);
        }
        // The store may need the space of expired streams to continue.
        for (_, meta) in metas.known.iter().chain(&metas.damaged).filter(|(_, meta)| meta.lives(now)) {
            database.live_events.keep(meta.number, meta.trimmed);
        }
        for Record { key, until, size } in &records {
            index.records.insert(key.clone(), (*until, *size));
            self.expiry.set(Item::Record(key.clone()), *until);
            self.space.rows += size;
        }
        let streams: HashSet<StreamId> = metas.known.iter().map(|(stream, _)| *stream).collect();
        let records: HashSet<&[u8]> = records.iter().map(|record| &*record.key).collect();
        index.streams.retain(|stream, _| streams.contains(stream));
        index.records.retain(|key, _| records.contains(&**key));
        self.next_number = self.next_number.max(metas.highest + 1);
        database.live_events.decide(self.next_number);
        Ok(())
    }

    fn use_database(&mut self, database: Arc<Database>) {
        self.shared.access.set(State::Open(database.clone()));
        self.database = Some(database);
        self.publish_health();
    }

    /// Publishes the readiness. A store that was full is ready again only once a sixteenth is free.
    fn publish_health(&mut self) {
        self.space.is_full = self.space.is_full && self.space.live() > self.space.limit();
        self.shared.index.set_health(if self.space.is_full { StoreHealth::Full } else { StoreHealth::Ready });
    }

    /// Does the periodic work between calls.
    fn do_periodic_work(&mut self) {
        if self.unsynced.is_some_and(|since| clock::now() - since >= INTERVAL) {
            self.sync();
        }
        if let Some(Err(failure)) = self.database.as_ref().map(|database| database.check()) {
            self.reopen(failure, None);
        }
        let now = now();
        if self.expiry.next().is_some_and(|due| due <= now) && now >= self.swept + SWEEP_EVERY {
            self.sweep(now);
        }
        self.compact_if_due();
    }

    /// Removes expired streams and records.
    pub(super) fn sweep(&mut self, now: u64) {
        self.swept = now;
        loop {
            let mut is_done = false;
            for _ in 0..MAX_SWEPT_ITEMS {
                let Some(item) = self.expiry.due(now) else {
                    is_done = true;
                    break;
                };
                self.sweep_item(item, now);
            }
            self.commit();
            if is_done || self.database.is_none() {
                return;
            }
        }
    }

    fn sweep_item(&mut self, item: Item, now: u64) {
        match &item {
            Item::Stream(stream) => match self.meta(*stream) {
                Some(meta) if meta.lives(now) => self.expiry.set(item, meta.until),
                Some(_) => self.forget(*stream),
                None => {}
            },
            Item::Record(key) => match self.sized(key) {
                Some((until, _)) if until > now => self.expiry.set(item.clone(), until),
                Some(_) => self.forget_record(key.clone()),
                None => {}
            },
        }
    }

    /// Starts a compaction if it would free enough, and finishes a compaction that has ended.
    fn compact_if_due(&mut self) {
        if self.compactor.has_ended() {
            self.finish_compaction();
        }
        if self.compactor.is_due(self.sizes.slack / 4) {
            self.begin_compaction();
        }
    }

    fn begin_compaction(&mut self) {
        let slack = self.sizes.slack;
        let limits = Limits { events: self.space.events * 2 + slack, rows: self.space.rows * 2 + slack };
        self.compactor.begin(self.database.as_ref(), limits);
    }

    fn finish_compaction(&mut self) {
        self.compactor.wait();
        let Some(database) = &self.database else { return };
        if let Err(failure) = database.unlink() {
            self.reopen(failure, None);
        }
    }

    /// Removes all expired data, and waits until its space is free.
    #[cfg(test)]
    pub(super) fn compact_all(&mut self, now: u64) {
        self.commit();
        self.sweep(now);
        if self.unsynced.is_some() {
            self.sync();
        }
        if self.compactor.is_busy() {
            self.finish_compaction();
        }
        if let Some(database) = &self.database {
            database.settle();
        }
        self.begin_compaction();
        if self.compactor.is_busy() {
            self.finish_compaction();
        }
    }

    fn sync(&mut self) {
        let Some(database) = &self.database else { return };
        match database.sync() {
            Ok(()) => {
                self.unsynced = None;
                self.publish_obsolete();
            }
            Err(failure) => self.reopen(failure, None),
        }
    }

    /// Returns the time until the next periodic work.
    fn next_wakeup(&self) -> Duration {
        let now = now();
        let next = self.expiry.next().map(|due| due.max(self.swept + SWEEP_EVERY).saturating_sub(now));
        let rest = next.map_or(MAX_WAIT, |next| Duration::from_millis(next).clamp(MIN_WAIT, MAX_WAIT));
        let sync = self.unsynced.map(|since| (since + INTERVAL).saturating_duration_since(clock::now()));
        let wait = sync.map_or(rest, |sync| sync.min(rest));
        if self.compactor.is_busy() { wait.min(COMPACTION_CHECK_EVERY) } else { wait }
    }
}
