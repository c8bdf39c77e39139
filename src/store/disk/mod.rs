//! Store of one replica on its own disk. It survives a restart and a crash of the process, and a
//! crash of the machine as far as [`Fsync`] promises.
//!
//! One thread writes ([`writer`]). It takes all waiting calls, and checks them in order against the
//! metadata in memory ([`index`]). It writes their changes as one group, syncs once, and delivers
//! all results. Reads go to the database beside it, on the threads of the runtime for blocking
//! work. Below the tail in memory they are rare, and each of them may wait for the disk. The
//! database is fjall ([`database`]). Its keys and rows are listed in [`layout`], the other files of
//! the directory in [`directory`].
//!
//! Space: an expired stream is gone at once for readers, who check its expiry. Its rows are removed
//! and its events become obsolete soon after. Tables with obsolete events alone are dropped as a
//! whole. Once the tables take more than twice the live bytes and a constant, the rest is
//! rewritten. The journals of the database take up to about 200 MiB more.
//!
//! Failures: after a failed write all calls of the group return the error. The database is then
//! opened again, with growing pauses, until a write and all due flushes and compactions have
//! succeeded. Writes are refused meanwhile, and later ones find the state of the disk. So a full
//! disk stays full for this store until it has room for all of this. This holds also for a disk
//! that was full when the store was opened. Reads continue ([`access`]), from the failed database
//! and then from the reopened one.

mod access;
mod database;
mod directory;
mod failure;
mod index;
mod inspect;
mod journal;
mod layout;
mod options;
mod reply;
mod shared;
#[cfg(test)]
mod tests;
mod writer;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use tokio::task::spawn_blocking;

use self::access::Access;
use self::database::Database;
use self::directory::Directory;
use self::failure::Failure;
use self::index::Index;
use self::options::Sizes;
pub use self::options::{Fsync, OpenError, Options};
use self::reply::{Completion, Reply};
use self::shared::{Shared, millis, now};
use self::writer::{Call, Command, Writer};
use super::change_subscriptions::ChangeSubscriptions;
use super::completion::Completions;
use super::{Appended, ChangeSubscription, Error, Keys, Pending, Read, Store, StoreHealth, Stored, WriterEpoch};
use mcp_resume_protocol::ids::{Owner, Seq, StreamId};
use mcp_resume_protocol::stream::Batch;

/// Maximum bytes of calls that wait for the writer. Further calls are refused: the disk does not
/// keep up.
const MAX_QUEUED_BYTES: usize = 64 << 20;
/// Maximum length of the key of a record.
const MAX_RECORD_KEY: usize = 32 << 10;

/// An opened store.
pub struct Opened {
    /// The store.
    pub store: Arc<Disk>,
    /// Keys in the directory.
    pub keys: Keys,
    /// Name of the replica, from the first opening of the store.
    pub name: String,
}

/// Inspects a directory without changing it.
fn check_directory(directory: &Directory, fsync: Fsync) -> Result<(), OpenError> {
    let Some((_, keys)) = directory.keys()? else { return Ok(()) };
    let path = directory.database();
    match inspect::inspect(&path, keys.epoch, fsync) {
        Ok(_) => Ok(()),
        Err(failure) => Err(OpenError::database(&path, failure)),
    }
}

/// The disk store. Dropping the last handle blocks until all calls are written and the database is
/// closed.
pub struct Disk {
    shared: Arc<Shared>,
    completions: Completions<Completion>,
    calls: Option<mpsc::Sender<Call>>,
    writer: Option<thread::JoinHandle<()>>,
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.calls = None;
        if let Some(writer) = self.writer.take() {
            // The thread ends without callers. A panic in it has been reported.
            let _ = writer.join();
        }
    }
}

impl Disk {
    /// Opens the directory, or creates it. Reads the metadata of all live streams, though not their
    /// events, and blocks meanwhile.
    ///
    /// # Errors
    /// [`OpenError`]. A directory that is damaged, foreign or in use is left unchanged.
    pub fn open(options: Options, default_name: &str) -> Result<Opened, OpenError> {
        Self::open_with(options, default_name, Sizes::default())
    }

    fn open_with(options: Options, default_name: &str, sizes: Sizes) -> Result<Opened, OpenError> {
        let directory = Directory::open(&options.path, |directory| check_directory(directory, options.fsync))?;
        let path = directory.database();
        let (name, keys) = match directory.keys()? {
            Some(kept) => kept,
            None => directory.make_contents(default_name, |path, keys| {
                Database::make(path, keys.epoch, sizes).map_err(|failure| OpenError::database(path, failure))
            })?,
        };
        let shared = Arc::new(Shared {
            owner: Owner::from_name(&name),
            index: Index::default(),
            subscriptions: ChangeSubscriptions::default(),
            access: Access::default(),
            queued_bytes: AtomicUsize::new(0),
            #[cfg(test)]
            groups: AtomicUsize::new(0),
            #[cfg(test)]
            attempts: AtomicUsize::new(0),
        });
        let (sender, calls) = mpsc::channel();
        let mut writer = Writer::new(shared.clone(), calls, directory, keys.epoch, &options, sizes);
        writer.open().map_err(|failure| OpenError::database(&path, failure))?;
        // The writer uses the clock of the runtime.
        let runtime = tokio::runtime::Handle::try_current().ok();
        let thread = thread::Builder::new().name("disk-store".into()).spawn(move || {
            let _clock = runtime.as_ref().map(tokio::runtime::Handle::enter);
            writer.run();
        });
        let thread = thread.map_err(|error| OpenError::at(&options.path, error))?;
        Ok(Opened {
            store: Arc::new(Self {
                shared,
                completions: Completions::default(),
                calls: Some(sender),
                writer: Some(thread),
            }),
            keys,
            name,
        })
    }

    /// Queues a call for the writer. It will be made even if the result is dropped.
    fn call<T: Send + 'static>(
        &self,
        bytes: usize,
        command: impl FnOnce(Reply<T>) -> Command,
    ) -> Pending<Result<T, Error>> {
        let queued = &self.shared.queued_bytes;
        if queued.fetch_add(bytes, Ordering::Relaxed) > MAX_QUEUED_BYTES {
            queued.fetch_sub(bytes, Ordering::Relaxed);
            return Pending::Ready(Err(Error::Unavailable("the disk does not keep up".into())));
        }
        let (reply, result) = Reply::new(self.completions.here());
        let call = Call { at: now(), bytes, command: command(reply) };
        let stopped = || Error::Unavailable("the writer has stopped".into());
        if self.calls.as_ref().is_none_or(|calls| calls.send(call).is_err()) {
            return Pending::Ready(Err(stopped()));
        }
        Pending::Later(Box::pin(async move { result.await.unwrap_or_else(|_| Err(stopped())) }))
    }

    /// Reads from the database on a thread that may wait for the disk.
    fn read_database<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Shared, &Database) -> Result<T, Failure> + Send + 'static,
    ) -> Pending<Result<T, Error>> {
        let shared = self.shared.clone();
        Pending::Later(Box::pin(async move {
            let reading = spawn_blocking(move || {
                let Some(database) = shared.access.database() else {
                    return Err(Error::Unavailable("the database cannot be opened".into()));
                };
                Ok(read(&shared, &database)?)
            });
            reading.await.unwrap_or_else(|error| Err(Error::Unavailable(error.to_string())))
        }))
    }
}

impl Shared {
    fn read(&self, database: &Database, stream: StreamId, after: Seq, max_bytes: usize) -> Result<Read, Failure> {
        self.index.check(stream)?;
        let Some(mut meta) = self.index.find(stream, now()) else { return Ok(Read::Gone) };
        loop {
            if after < meta.trimmed {
                return Ok(Read::Trimmed { upto: meta.trimmed });
            }
            if let Some(events) = database.read(meta.number, after, meta.tail, max_bytes)? {
                return Ok(Read::Events(events));
            }
            // A compaction may have dropped events during the read; if the stream is unchanged,
            // events are missing.
            let Some(later) = self.index.find(stream, now()) else { return Ok(Read::Gone) };
            if (later.number, later.trimmed) == (meta.number, meta.trimmed) {
                return Err(failure::damaged(format!("events behind {after} are missing")));
            }
            meta = later;
        }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        if failure.is_full { Self::Full(failure.problem) } else { Self::Unavailable(failure.problem) }
    }
}

impl Store for Disk {
    fn create(&self, stream: StreamId, about: &[u8], tail: Seq, keep: Duration) -> Pending<Result<WriterEpoch, Error>> {
        let (about, keep) = (about.to_vec(), millis(keep));
        self.call(about.len(), |reply| Command::Create { stream, about, tail, keep, reply })
    }

    fn append(
        &self,
        stream: StreamId,
        epoch: WriterEpoch,
        after: Seq,
        batch: &Batch,
        state: Option<&[u8]>,
    ) -> Pending<Result<Appended, Error>> {
        let (events, batch, state) = (batch.len() as u64, layout::encode_batch(batch), state.map(<[u8]>::to_vec));
        let bytes = batch.len() + state.as_ref().map_or(0, Vec::len);
        self.call(bytes, |reply| Command::Append { stream, epoch, after, events, batch, state, reply })
    }

    fn seal(
        &self,
        stream: StreamId,
        epoch: WriterEpoch,
        state: &[u8],
        keep: Duration,
    ) -> Pending<Result<Appended, Error>> {
        let (state, keep) = (state.to_vec(), millis(keep));
        self.call(state.len(), |reply| Command::Seal { stream, epoch, state, keep, reply })
    }

    fn write_whole(
        &self,
        stream: StreamId,
        about: &[u8],
        batch: &Batch,
        state: &[u8],
        keep: Duration,
    ) -> Pending<Result<WriterEpoch, Error>> {
        let (events, batch) = (batch.len() as u64, layout::encode_batch(batch));
        let (about, state, keep) = (about.to_vec(), state.to_vec(), millis(keep));
        let bytes = about.len() + batch.len() + state.len();
        self.call(bytes, |reply| Command::WriteWhole { stream, about, events, batch, state, keep, reply })
    }

    fn take_over(&self, stream: StreamId) -> Pending<Result<WriterEpoch, Error>> {
        self.call(0, |reply| Command::TakeOver { stream, reply })
    }

    fn load(&self, stream: StreamId) -> Pending<Result<Option<Stored>, Error>> {
        self.read_database(move |shared, database| {
            shared.index.check(stream)?;
            if shared.index.find(stream, now()).is_none() {
                return Ok(None);
            }
            let found = database.load(stream)?.filter(|(meta, ..)| meta.lives(now()));
            Ok(found.map(|(meta, about, state)| Stored {
                about,
                state,
                owner: shared.owner,
                epoch: meta.epoch,
                trimmed: meta.trimmed,
                tail: meta.tail,
                sealed: meta.sealed,
            }))
        })
    }

    fn read(&self, stream: StreamId, after: Seq, max_bytes: usize) -> Pending<Result<Read, Error>> {
        self.read_database(move |shared, database| shared.read(database, stream, after, max_bytes))
    }

    fn subscribe(&self, stream: StreamId) -> Pending<Result<ChangeSubscription, Error>> {
        Pending::Ready(Ok(self.shared.subscriptions.subscribe(stream)))
    }

    fn trim(&self, stream: StreamId, epoch: WriterEpoch, upto: Seq) -> Pending<Result<(), Error>> {
        self.call(0, |reply| Command::Trim { stream, epoch, upto, reply })
    }

    fn keep(&self, stream: StreamId, keep: Duration) -> Pending<Result<(), Error>> {
        let keep = millis(keep);
        self.call(0, |reply| Command::Keep { stream, keep, reply })
    }

    fn expire(&self, stream: StreamId) -> Pending<Result<(), Error>> {
        self.call(0, |reply| Command::Expire { stream, reply })
    }

    fn open_streams(&self, owner: Owner) -> Pending<Result<Vec<StreamId>, Error>> {
        let now = now();
        let open = self.shared.index.streams.iter().filter(|meta| !meta.sealed && meta.lives(now));
        let ids = open.map(|meta| *meta.key());
        Pending::Ready(Ok(if owner == self.shared.owner { ids.collect() } else { Vec::new() }))
    }

    fn put(&self, key: &[u8], value: &[u8], keep: Duration) -> Pending<Result<(), Error>> {
        if let Err(error) = check_key(key) {
            return Pending::Ready(Err(error));
        }
        let (key, value, keep) = (key.into(), Bytes::copy_from_slice(value), millis(keep));
        self.call(value.len(), |reply| Command::Put { key, value, keep, reply })
    }

    fn claim(&self, key: &[u8], value: &[u8], keep: Duration) -> Pending<Result<Option<Bytes>, Error>> {
        if let Err(error) = check_key(key) {
            return Pending::Ready(Err(error));
        }
        let (key, value, keep) = (key.into(), Bytes::copy_from_slice(value), millis(keep));
        self.call(value.len(), |reply| Command::Claim { key, value, keep, reply })
    }

    fn replace(&self, key: &[u8], before: &[u8], value: &[u8], keep: Duration) -> Pending<Result<bool, Error>> {
        let (key, before, value) = (key.into(), Bytes::copy_from_slice(before), Bytes::copy_from_slice(value));
        let keep = millis(keep);
        self.call(before.len() + value.len(), |reply| Command::Replace { key, before, value, keep, reply })
    }

    fn get(&self, key: &[u8]) -> Pending<Result<Option<Bytes>, Error>> {
        let now = now();
        let is_known = self.shared.index.records.get(key).is_some_and(|record| record.0 > now);
        if !is_known && self.shared.access.is_open() {
            return Pending::Ready(Ok(None));
        }
        let key = key.to_vec();
        self.read_database(move |_, database| {
            Ok(database.record(&key)?.filter(|(until, _)| *until > now).map(|(_, value)| value))
        })
    }

    fn expire_if_equal(&self, key: &[u8], value: &[u8], keep: Option<Duration>) -> Pending<Result<(), Error>> {
        let (key, value, keep) = (key.into(), Bytes::copy_from_slice(value), keep.map(millis));
        self.call(value.len(), |reply| Command::ExpireIfEqual { key, value, keep, reply })
    }

    fn remove(&self, key: &[u8]) -> Pending<Result<(), Error>> {
        let key = key.into();
        self.call(0, |reply| Command::Remove { key, reply })
    }

    fn health(&self) -> StoreHealth {
        self.shared.index.health()
    }
}

fn check_key(key: &[u8]) -> Result<(), Error> {
    if key.len() > MAX_RECORD_KEY {
        return Err(Error::Unavailable(format!("the key of a record has {} bytes", key.len())));
    }
    Ok(())
}
