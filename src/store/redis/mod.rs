//! The store that replicas share: Redis or Valkey, 6.2 or later, one server, a master with
//! sentinels, or a Cluster.
//!
//! A stream is a hash (description and position) and a Redis Stream, on one slot. The Redis Stream
//! has one entry per batch. The ID of an entry is the number of the batch's last event. Each change
//! is one script there. It checks the writer's epoch, the position and the seal, and restarts the
//! expiry. Most appends need no script: `append.rs` says which. One connection serves all callers
//! of the process: waiting calls are sent together, and a few such flights are in flight at once. A
//! second connection receives the messages that Redis publishes for this replica. Followers and
//! [`Coordination::receive`] wait for them, and nothing is polled.
//!
//! Durability: Ok means that Redis has accepted the write. It survives a crash of Redis if the
//! append-only file has it (`appendfsync`), and a failover if the new master had received it.
//!
//! [`Store::health`] needs no call to find an outage: a probe writes once a second. A broken
//! connection is reported at once, and replaced until a connection works. Meanwhile calls fail at
//! once. A failover looks the same. This module does not rewrite lost data, except the signing
//! keys, under a new epoch. [`Coordination::possible_losses`] makes the event log rewrite the rest.
//!
//! The first call is [`Redis::connect`]; its runtime drives the connections, and callers may be on
//! any other. The user that the URL names needs the keys `~mr:*` and the channels `&mr:wake:*`
//! (with the prefix that is set), and the commands
//!
//! ```text
//! +evalsha +eval +script|load +hello +auth +select +ping +subscribe +publish +time +del +get +set +pttl +pexpire
//! +exists +rename +hset +hget +hmget +hdel +hgetall +hincrby +xadd +xrange +xtrim +xinfo|stream +zadd +zrem +zscore
//! +zrange +zrangebyscore +zremrangebyscore +rpush +lrange +lindex +ltrim
//! ```
//!
//! with `+role` behind sentinels and `+cluster|slots` in a Cluster; `+config|get` lets it see the
//! eviction policy. Before Redis 7 subcommands are allowed as `+script +cluster +config +xinfo`.
//!
//! Absent: eviction (a `maxmemory-policy` other than `noeviction` loses streams, and is warned
//! about), and reading from replicas.

mod address;
mod append;
mod command;
mod connection;
mod connector;
mod coordination;
mod core;
mod entry;
mod failure;
mod generation;
mod keys;
mod options;
mod pubsub;
mod scripts;
#[cfg(test)]
mod tests;
mod words;

use std::sync::Arc;
use std::time::Duration;

use ::redis::{Cmd, Value};
use bytes::Bytes;
use tokio::task::JoinHandle;
use tracing::{debug, warn};

pub use self::address::UrlError;
use self::append::Append;
use self::command::{Note, ask, cmd};
use self::connector::{Connector, Link};
use self::core::Core;
use self::entry::{BatchRead, BatchReader};
use self::failure::unexpected_reply;
use self::generation::Unusable;
use self::keys::{Names, order};
pub use self::options::{Identity, Options};
use self::words::{last_words, number, words};
#[cfg(doc)]
use super::Coordination;
use super::{Appended, ChangeSubscription, Error, Keys, Pending, Read, Store, StoreHealth, Stored, WriterEpoch};
use mcp_resume_protocol::ids::{Owner, Seq, StreamId};
use mcp_resume_protocol::stream::Batch;

/// Maximum bytes of one read, plus the batch that exceeds them.
const READ_MAX: usize = 8 * 1024 * 1024;
/// Maximum time to live. Redis refuses times far beyond it.
const KEEP_MAX: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// Longest time that a stream is in its owner's index before it is created.
const INDEXED_BEFORE_MS: u64 = 60_000;

/// A store that was opened.
pub struct Opened {
    /// The store.
    pub store: Arc<Redis>,
    /// Keys and present epoch of its contents; later epochs come from [`Coordination::epoch`].
    pub keys: Keys,
}

/// Error from opening the store. Quotes no password.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The URL is malformed.
    #[error("the URL of Redis {0}")]
    Url(#[from] UrlError),
    /// The prefix would determine the slot of a key.
    #[error("the prefix of keys in Redis must not hold {{ or }}")]
    Prefix,
    /// Redis does not reply, or not yet as it should. A later attempt may succeed.
    #[error("Redis cannot be reached: {0}")]
    Unreachable(String),
    /// Redis refuses a command that the store needs, or its configuration rules the store out.
    #[error("Redis cannot be used: {0}")]
    Refused(String),
    /// A later version of this program has written there.
    #[error(
        "Redis holds what a later version has written (layout {found}, and this one knows {known}): start that version, or choose another prefix"
    )]
    Newer {
        /// Version of the layout there.
        found: u32,
        /// Latest version that is known here.
        known: u32,
    },
    /// A key of this name belongs to another program.
    #[error("the key {key} in Redis is not of this program: choose another prefix")]
    Foreign {
        /// Name of the key.
        key: String,
    },
}

/// The store. Dropping it closes its connections; calls that wait then fail.
pub struct Redis {
    core: Arc<Core>,
    tasks: [JoinHandle<()>; 3],
}

impl Drop for Redis {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl Redis {
    /// Checks the URL, the prefix and the TLS files, without a connection.
    ///
    /// # Errors
    /// If a store can never be opened with these options.
    pub fn check(options: Options) -> Result<(), OpenError> {
        Names::new(&options.prefix).ok_or(OpenError::Prefix)?;
        let connector = Connector::new(options.url.parse()?, options);
        connector.check().map_err(|failure| OpenError::Refused(failure.to_string()))
    }

    /// Connects, and agrees with the other replicas on the keys. The calling runtime drives the
    /// connections.
    ///
    /// # Errors
    /// If Redis cannot be reached or used. No task is left behind then.
    pub async fn connect(options: Options, owner: Owner) -> Result<Opened, OpenError> {
        let names = Names::new(&options.prefix).ok_or(OpenError::Prefix)?;
        let key_wait = options.key_wait;
        let connector = Arc::new(Connector::new(options.url.parse()?, options));
        let patience = connector.patience() * 2 + key_wait;
        let opening = tokio::time::timeout(patience, Self::open(connector, names, owner, key_wait));
        opening.await.unwrap_or_else(|_| Err(OpenError::Unreachable("it did not reply in time".to_owned())))
    }

    async fn open(connector: Arc<Connector>, names: Names, owner: Owner, wait: Duration) -> Result<Opened, OpenError> {
        let open_error = |failure: failure::Failure| {
            let problem = failure.to_string();
            if failure.breaks_connection() { OpenError::Unreachable(problem) } else { OpenError::Refused(problem) }
        };
        let mut link = connector.open().await.map_err(open_error)?;
        let key = names.contents();
        let agreed = match &mut link {
            Link::Server(connection, _) => generation::join(connection, key.as_bytes(), wait).await,
            Link::Cluster(connection) => generation::join(connection, key.as_bytes(), wait).await,
        };
        let keys = agreed.map_err(|unusable| match unusable {
            Unusable::Newer(found) => OpenError::Newer { found, known: generation::VERSION },
            Unusable::Foreign => OpenError::Foreign { key },
            Unusable::Failed(failure) => open_error(failure),
        })?;
        warn_of_eviction(&mut link).await;
        let (core, calls) = Core::new(owner, names, keys.clone());
        let core = Arc::new(core);
        let subscription = pubsub::Subscription::open(&core, &connector).await.map_err(open_error)?;
        connection::prepare(&core, &mut link).await.map_err(open_error)?;
        let tasks = [
            tokio::spawn(connection::run(core.clone(), connector.clone(), link, calls)),
            tokio::spawn(pubsub::listen(core.clone(), connector, subscription)),
            tokio::spawn(pubsub::renew(core.clone())),
        ];
        Ok(Opened { store: Arc::new(Self { core, tasks }), keys })
    }

    fn index(&self, stream: StreamId) -> Cmd {
        let mut cmd = scripts::INDEX.call();
        cmd.arg(self.core.names.index(self.core.owner)).arg(&stream.as_bytes()[..]);
        cmd
    }

    fn call<T: Send + 'static>(
        &self,
        stream: StreamId,
        cmd: Cmd,
        read: impl FnOnce(Value) -> Result<T, Error> + Send + 'static,
    ) -> Pending<Result<T, Error>> {
        self.core.call(stream, vec![cmd], move |answers| read(last(answers)))
    }
}

/// Logs a warning if Redis may evict streams to free memory: the loss would be silent.
async fn warn_of_eviction(link: &mut Link) {
    let query = cmd(&[b"CONFIG", b"GET", b"maxmemory-policy"]);
    let answer = match link {
        Link::Server(connection, _) => ask(connection, &query).await,
        Link::Cluster(connection) => ask(connection, &query).await,
    };
    match answer {
        Ok(answer) => {
            if let Some(policy) = eviction_policy(&answer) {
                warn!(policy, "Redis may drop streams to make room: set maxmemory-policy to noeviction");
            }
        }
        Err(why) => debug!(%why, "Redis does not say whether it drops keys to make room"),
    }
}

/// Returns the eviction policy in a reply, unless it evicts nothing.
fn eviction_policy(answer: &Value) -> Option<String> {
    match answer {
        Value::BulkString(text) if text.starts_with(b"allkeys-") || text.starts_with(b"volatile-") => {
            Some(String::from_utf8_lossy(text).into_owned())
        }
        Value::Array(values) => values.iter().find_map(eviction_policy),
        Value::Map(pairs) => pairs.iter().find_map(|(_, value)| eviction_policy(value)),
        _ => None,
    }
}

impl Store for Redis {
    fn create(&self, stream: StreamId, about: &[u8], tail: Seq, keep: Duration) -> Pending<Result<WriterEpoch, Error>> {
        let mut create = self.core.names.change(&scripts::CREATE, stream);
        create.arg(about).arg(keys::of(self.core.owner)).arg(millis(keep)).arg(tail.0);
        self.core.call(stream, vec![self.index(stream), create], |answers| parse_created(&last(answers)))
    }

    fn append(
        &self,
        stream: StreamId,
        epoch: WriterEpoch,
        after: Seq,
        batch: &Batch,
        state: Option<&[u8]>,
    ) -> Pending<Result<Appended, Error>> {
        let append = Append::new(stream, epoch, after, batch, state);
        let core = self.core.clone();
        self.core.append(append, move |answers| {
            let appended = answers.first().map_or(Ok(Appended::Ok), parse_appended);
            if matches!(appended, Err(Error::Gone)) {
                core.probe_now.notify_one();
            }
            appended
        })
    }

    fn seal(
        &self,
        stream: StreamId,
        epoch: WriterEpoch,
        state: &[u8],
        keep: Duration,
    ) -> Pending<Result<Appended, Error>> {
        let mut seal = self.core.names.change(&scripts::SEAL, stream);
        seal.arg(epoch.0).arg(state).arg(millis(keep));
        let (core, owner) = (self.core.clone(), self.core.owner);
        let note: Note = Box::new(move |answer| {
            if let ["ok", now] = last_words(answer).as_slice() {
                remove_from_index(&core, owner, now, &[stream]);
            }
        });
        self.core.call_and_note(stream, vec![seal], note, |answers| parse_appended(&last(answers)))
    }

    /// The owner's index has only streams that may be open, so a whole stream needs no place there.
    fn write_whole(
        &self,
        stream: StreamId,
        about: &[u8],
        batch: &Batch,
        state: &[u8],
        keep: Duration,
    ) -> Pending<Result<WriterEpoch, Error>> {
        let mut whole = self.core.names.change(&scripts::WHOLE, stream);
        whole.arg(about).arg(keys::of(self.core.owner)).arg(millis(keep));
        whole.arg(batch.len()).arg(entry::encode(batch)).arg(state);
        self.call(stream, whole, |answer| parse_created(&answer))
    }

    fn take_over(&self, stream: StreamId) -> Pending<Result<WriterEpoch, Error>> {
        let mut take = self.core.names.change(&scripts::TAKE_OVER, stream);
        take.arg(keys::of(self.core.owner));
        let core = self.core.clone();
        let note: Note = Box::new(move |answer| {
            if let ["ok", _, before, now] = last_words(answer).as_slice()
                && let Some(before) = keys::owner(before.as_bytes()).filter(|before| *before != core.owner)
            {
                remove_from_index(&core, before, now, &[stream]);
            }
        });
        let steps = vec![self.index(stream), take];
        self.core.call_and_note(stream, steps, note, |answers| match words(&last(answers)).as_slice() {
            ["ok", epoch, ..] => Ok(WriterEpoch(number(epoch)?)),
            ["gone"] => Err(Error::Gone),
            _ => Err(unexpected_reply()),
        })
    }

    fn load(&self, stream: StreamId) -> Pending<Result<Option<Stored>, Error>> {
        let load = self.core.names.on(&scripts::LOAD, stream);
        self.core.query(stream, load, |answers| parse_stored(last(answers)), Option::is_none)
    }

    fn read(&self, stream: StreamId, after: Seq, max_bytes: usize) -> Pending<Result<Read, Error>> {
        let mut read = self.core.names.on(&scripts::READ, stream);
        read.arg(after.0).arg(after.0.saturating_add(1)).arg(max_bytes.min(READ_MAX));
        let is_nothing = |read: &Read| matches!(read, Read::Gone);
        self.core.query(stream, read, move |answers| parse_events(last(answers), after, max_bytes), is_nothing)
    }

    fn subscribe(&self, stream: StreamId) -> Pending<Result<ChangeSubscription, Error>> {
        let subscription = self.core.subscriptions.subscribe(stream);
        let registering = pubsub::register(&self.core, stream);
        Pending::Later(Box::pin(async move {
            registering.wait().await?;
            Ok(subscription)
        }))
    }

    fn trim(&self, stream: StreamId, epoch: WriterEpoch, upto: Seq) -> Pending<Result<(), Error>> {
        let mut trim = self.core.names.change(&scripts::TRIM, stream);
        trim.arg(epoch.0).arg(upto.0).arg(upto.0.saturating_add(1));
        self.call(stream, trim, |answer| parse_ok(&answer))
    }

    fn keep(&self, stream: StreamId, keep: Duration) -> Pending<Result<(), Error>> {
        let mut cmd = self.core.names.change(&scripts::KEEP, stream);
        cmd.arg(millis(keep));
        self.call(stream, cmd, |answer| parse_ok(&answer))
    }

    fn expire(&self, stream: StreamId) -> Pending<Result<(), Error>> {
        let expire = self.core.names.change(&scripts::EXPIRE, stream);
        let forget = cmd(&[b"ZREM", self.core.names.index(self.core.owner).as_bytes(), stream.as_bytes()]);
        self.core
            .call(stream, vec![expire, forget], |answers| answers.first().map_or(Err(unexpected_reply()), parse_ok))
    }

    fn open_streams(&self, owner: Owner) -> Pending<Result<Vec<StreamId>, Error>> {
        let core = self.core.clone();
        let index = core.names.index(owner);
        let mut indexed = scripts::INDEXED.call();
        indexed.arg(&index);
        let listing = core.call(order(&index), vec![indexed], |answers| parse_index(&last(answers)));
        Pending::Later(Box::pin(async move {
            let (now, streams) = listing.wait().await?;
            let checking: Vec<_> =
                streams.into_iter().map(|stream| (stream, is_open_of(&core, stream, owner))).collect();
            let (mut open, mut stale) = (Vec::new(), Vec::new());
            for (stream, is_open) in checking {
                if is_open.wait().await? { &mut open } else { &mut stale }.push(stream);
            }
            // A stream that was noted a moment ago may not be created yet.
            remove_from_index(&core, owner, &now.saturating_sub(INDEXED_BEFORE_MS).to_string(), &stale);
            Ok(open)
        }))
    }

    fn put(&self, key: &[u8], value: &[u8], keep: Duration) -> Pending<Result<(), Error>> {
        let name = self.core.names.record(key);
        let put = cmd(&[b"SET", &name, value, b"PX", millis(keep).to_string().as_bytes()]);
        self.core.call(order(name), vec![put], |_| Ok(()))
    }

    fn claim(&self, key: &[u8], value: &[u8], keep: Duration) -> Pending<Result<Option<Bytes>, Error>> {
        let name = self.core.names.record(key);
        let mut claim = scripts::CLAIM.call();
        claim.arg(&name).arg(value).arg(millis(keep));
        self.core.call(order(name), vec![claim], |answers| parse_optional(last(answers)))
    }

    fn replace(&self, key: &[u8], before: &[u8], value: &[u8], keep: Duration) -> Pending<Result<bool, Error>> {
        let name = self.core.names.record(key);
        let mut replace = scripts::REPLACE.call();
        replace.arg(&name).arg(before).arg(value).arg(millis(keep));
        self.core.call(order(name), vec![replace], |answers| parse_flag(last(answers)))
    }

    fn get(&self, key: &[u8]) -> Pending<Result<Option<Bytes>, Error>> {
        let name = self.core.names.record(key);
        let get = cmd(&[b"GET", &name]);
        self.core.query(order(name), get, |answers| parse_optional(last(answers)), Option::is_none)
    }

    fn expire_if_equal(&self, key: &[u8], value: &[u8], keep: Option<Duration>) -> Pending<Result<(), Error>> {
        let name = self.core.names.record(key);
        let mut hold = scripts::HOLD.call();
        hold.arg(&name).arg(value).arg(keep.map(millis).map_or_else(String::new, |keep| keep.to_string()));
        self.core.call(order(name), vec![hold], |_| Ok(()))
    }

    fn remove(&self, key: &[u8]) -> Pending<Result<(), Error>> {
        let name = self.core.names.record(key);
        let remove = cmd(&[b"DEL", &name]);
        self.core.call(order(name), vec![remove], |_| Ok(()))
    }

    fn health(&self) -> StoreHealth {
        self.core.health()
    }
}

/// Removes streams from the index of open ones, except those noted again after `upto`.
fn remove_from_index(core: &Core, owner: Owner, upto: &str, streams: &[StreamId]) {
    if streams.is_empty() {
        return;
    }
    let index = core.names.index(owner);
    let mut cmd = scripts::UNINDEX.call();
    cmd.arg(&index).arg(upto);
    for stream in streams {
        cmd.arg(&stream.as_bytes()[..]);
    }
    // A stream that stays in the index is examined again by the next query.
    let _ = core.call(order(&index), vec![cmd], |_| Ok(()));
}

/// Returns true if the stream exists, is not sealed, and belongs to `owner`.
fn is_open_of(core: &Core, stream: StreamId, owner: Owner) -> Pending<Result<bool, Error>> {
    let [meta, ..] = core.names.stream(stream);
    let look = cmd(&[b"HMGET", meta.as_bytes(), b"o", b"z"]);
    core.call(
        stream,
        vec![look],
        move |answers| Ok(words(&last(answers)).as_slice() == [keys::of(owner).as_str(), "0"]),
    )
}

/// Decodes the time and the streams of an index.
fn parse_index(answer: &Value) -> Result<(u64, Vec<StreamId>), Error> {
    let Value::Array(parts) = answer else { return Err(unexpected_reply()) };
    let [Value::BulkString(now), Value::Array(streams)] = parts.as_slice() else { return Err(unexpected_reply()) };
    let streams = streams.iter().filter_map(|stream| match stream {
        Value::BulkString(bytes) => bytes.as_slice().try_into().ok().map(StreamId::from_bytes),
        _ => None,
    });
    Ok((number(std::str::from_utf8(now).map_err(|_| unexpected_reply())?)?, streams.collect()))
}

fn parse_stored(answer: Value) -> Result<Option<Stored>, Error> {
    let Value::Array(fields) = answer else { return Err(unexpected_reply()) };
    if fields.is_empty() {
        return Ok(None);
    }
    let mut fields = fields.into_iter().map(|field| if let Value::BulkString(bytes) = field { bytes } else { vec![] });
    let mut field = || fields.next().unwrap_or_default();
    let (about, state, owner) = (field().into(), field().into(), keys::owner(&field()).ok_or_else(unexpected_reply)?);
    let mut numeric = || number(std::str::from_utf8(&field()).map_err(|_| unexpected_reply())?);
    let (epoch, trimmed, tail) = (WriterEpoch(numeric()?), Seq(numeric()?), Seq(numeric()?));
    Ok(Some(Stored { about, state, owner, epoch, trimmed, tail, sealed: numeric()? == 1 }))
}

/// Decodes the events of entries. A missing event was trimmed by another replica.
fn parse_events(answer: Value, after: Seq, max_bytes: usize) -> Result<Read, Error> {
    let Value::Array(parts) = answer else { return Err(unexpected_reply()) };
    let entries =
        match (words(&Value::Array(parts.iter().take(2).cloned().collect())).as_slice(), parts.into_iter().nth(2)) {
            (["gone"], _) => return Ok(Read::Gone),
            (["trimmed", upto], _) => return Ok(Read::Trimmed { upto: Seq(number(upto)?) }),
            (["events", tail], Some(Value::Array(entries))) => {
                if entries.is_empty() && number(tail)? > after.0 {
                    return Ok(Read::Trimmed { upto: Seq(number(tail)?) });
                }
                entries
            }
            _ => return Err(unexpected_reply()),
        };
    let mut reader = BatchReader::new(after, max_bytes);
    let mut entries = entries.into_iter();
    while let (Some(Value::BulkString(first)), Some(Value::BulkString(bytes))) = (entries.next(), entries.next()) {
        let first = Seq(number(std::str::from_utf8(&first).map_err(|_| unexpected_reply())?)?);
        match reader.read(first, bytes.into()) {
            BatchRead::More => {}
            BatchRead::Gap if reader.events.is_empty() => return Ok(Read::Trimmed { upto: Seq(first.0 - 1) }),
            BatchRead::Full | BatchRead::Gap => break,
            BatchRead::Malformed => return Err(unexpected_reply()),
        }
    }
    Ok(Read::Events(reader.events))
}

fn parse_created(answer: &Value) -> Result<WriterEpoch, Error> {
    match words(answer).as_slice() {
        ["ok", epoch] => Ok(WriterEpoch(number(epoch)?)),
        _ => Err(unexpected_reply()),
    }
}

fn parse_appended(answer: &Value) -> Result<Appended, Error> {
    match words(answer).as_slice() {
        ["ok", ..] => Ok(Appended::Ok),
        ["fenced"] => Ok(Appended::Fenced),
        ["sealed"] => Ok(Appended::Sealed),
        ["conflict", tail] => Ok(Appended::Conflict { tail: Seq(number(tail)?) }),
        ["gone"] => Err(Error::Gone),
        _ => Err(unexpected_reply()),
    }
}

fn parse_ok(answer: &Value) -> Result<(), Error> {
    match words(answer).as_slice() {
        ["ok"] => Ok(()),
        ["gone"] => Err(Error::Gone),
        _ => Err(unexpected_reply()),
    }
}

fn parse_flag(answer: Value) -> Result<bool, Error> {
    match answer {
        Value::Int(flag) => Ok(flag == 1),
        _ => Err(unexpected_reply()),
    }
}

fn parse_optional(answer: Value) -> Result<Option<Bytes>, Error> {
    match answer {
        Value::Nil => Ok(None),
        Value::BulkString(bytes) => Ok(Some(bytes.into())),
        _ => Err(unexpected_reply()),
    }
}

fn last(mut answers: Vec<Value>) -> Value {
    answers.pop().unwrap_or_default()
}

/// Returns a time to live in milliseconds, at least one.
fn millis(keep: Duration) -> u64 {
    (keep.min(KEEP_MAX).as_millis() as u64).max(1)
}
