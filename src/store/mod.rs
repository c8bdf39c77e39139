//! Where events rest below the live tail, and the contract every such place keeps.
//!
//! The live tail is in memory for every store ([`tail::Tail`]); a store makes batches durable and serves reads below the
//! tail. The memory store is the tail alone: the event log holds no [`Store`] then, and pays nothing for the trait. Absent
//! here: numbering, timers and policy, which belong to the stream state machine, and knowledge of JSON-RPC: what a stream is
//! ([`Stored::about`]) and where it stands ([`Stored::state`]) are bytes here.

mod completion;
#[cfg(test)]
pub(crate) mod contract;
mod coordination;
pub mod disk;
mod followers;
mod metrics;
pub mod redis;
pub mod tail;
#[cfg(test)]
pub(crate) mod test_store;

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
pub use coordination::{Coordination, Renewal};
pub use followers::ChangeSubscription;
pub use metrics::Metrics;

use crate::protocol::ids::{Owner, Seq, StoreEpoch, StreamId};
use crate::protocol::stream::Batch;

/// Which writer of a stream is the current one. A takeover raises it; appends under an older one are fenced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct WriterEpoch(pub u64);

/// What an append met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Appended {
    /// The batch is in the store, once, however often it was sent.
    Ok,
    /// A newer writer has taken the stream: nothing was written, and nothing this writer sends ever will be.
    Fenced,
    /// The stream is sealed: nothing was written.
    Sealed,
    /// The store's tail is not where the writer believes it, and the batch is not what is there: nothing was written.
    Conflict {
        /// Where the tail is.
        tail: Seq,
    },
}

/// What a read found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Read {
    /// Events in order, the first one directly after the cursor; empty at the tail.
    Events(Vec<(Seq, Bytes)>),
    /// Events after the cursor were trimmed away: the caller must tell a gap, never skip it.
    Trimmed {
        /// The last number that is gone.
        upto: Seq,
    },
    /// No such stream, or it has expired.
    Gone,
}

/// A stream as a store has it, less its events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// What [`Store::create`] was told of it; never changes.
    pub about: Bytes,
    /// The state that was last written beside a batch or a seal; empty before the first.
    pub state: Bytes,
    /// The replica that writes it, or did last.
    pub owner: Owner,
    /// That writer's.
    pub epoch: WriterEpoch,
    /// The last number that is gone.
    pub trimmed: Seq,
    /// The last number there is.
    pub tail: Seq,
    /// Whether it has ended.
    pub sealed: bool,
}

/// Whether a store can take what is new. Cheap to ask: no call of the store is made for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreHealth {
    /// It can.
    Ready,
    /// It has no room.
    Full,
    /// It cannot be reached, or fails.
    Unreachable,
}

/// What the contents of a store are known by, and the keys that belong to them. Made with the contents, and lost with them alone.
#[derive(Clone)]
pub struct Keys {
    /// Names the contents.
    pub epoch: StoreEpoch,
    /// Signs event IDs, tokens and issued sessions.
    pub signing: [u8; 32],
    /// Hashes who a caller is.
    pub principal: [u8; 32],
}

/// The store could not do it. The caller's policy decides what follows; nothing was half done.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store cannot be reached, or fails. Whether a call that was under way took effect is open.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
    /// The store has no room for it.
    #[error("the store is full: {0}")]
    Full(String),
    /// The stream does not exist, or has expired.
    #[error("no such stream")]
    Gone,
}

/// A result that is there at once, or comes later. Ready costs no allocation.
pub enum Pending<T> {
    /// Here it is.
    Ready(T),
    /// It comes; dropping the future does not undo what it began.
    Later(Pin<Box<dyn Future<Output = T> + Send>>),
}

impl<T> Pending<T> {
    /// Waits for the result.
    pub async fn wait(self) -> T {
        match self {
            Pending::Ready(value) => value,
            Pending::Later(future) => future.await,
        }
    }
}

/// A place for streams that outlives the live tail.
///
/// Ordering: calls for one stream take effect in the order they were made by one caller. Durability: what a call returned Ok
/// for survives what the store says it survives. Atomicity: every call is all or nothing, `append` together with its checks of
/// epoch, seal and tail. Cancellation: dropping a result leaves it open whether the call took effect; repeating it is safe.
/// Expiry: a stream is readable for as long as it was last told to be kept, and gone some time after; each `create`, `append`
/// and `seal` by its writer, and [`Self::keep`], begin that time anew, an `append` to within a sixteenth of it. A store knows which replica it belongs to.
pub trait Store: Send + Sync + 'static {
    /// Records a new stream and makes the caller its writer. Complete before the stream's head is written. Its tail is at `tail`: 0, but
    /// for a stream that the store has lost and whose events up to there are gone. Unsealed, it is kept for `keep` from each call of
    /// its writer's on.
    fn create(&self, stream: StreamId, about: &[u8], tail: Seq, keep: Duration) -> Pending<Result<WriterEpoch, Error>>;

    /// Appends `batch` behind `after`, which must be the tail, and writes `state` beside it where there is one: in one step.
    /// An empty batch writes the state alone. Sending an identical batch again is [`Appended::Ok`] and writes nothing, on a
    /// sealed stream too; a batch that was trimmed since is not known again. The epoch is checked first, then the place, then
    /// the seal.
    fn append(
        &self,
        stream: StreamId,
        epoch: WriterEpoch,
        after: Seq,
        batch: &Batch,
        state: Option<&[u8]>,
    ) -> Pending<Result<Appended, Error>>;

    /// Ends the stream: no append succeeds after it, and it is kept for `keep` from now on. Sealing again is Ok, keeps the first
    /// state and changes nothing.
    fn seal(
        &self,
        stream: StreamId,
        epoch: WriterEpoch,
        state: &[u8],
        keep: Duration,
    ) -> Pending<Result<Appended, Error>>;

    /// Makes the caller the writer and fences the one before it, in one step. The tail stays where it is, and so does a seal.
    fn take_over(&self, stream: StreamId) -> Pending<Result<WriterEpoch, Error>>;

    /// The stream without its events; `None` where there is no such stream, or it has expired.
    fn load(&self, stream: StreamId) -> Pending<Result<Option<Stored>, Error>>;

    /// Events after `after` of `max_bytes` together at most, but one at least where there is one; none at the tail and beyond
    /// it. A batch is seen whole or not at all by readers whose limit lets them.
    fn read(&self, stream: StreamId, after: Seq, max_bytes: usize) -> Pending<Result<Read, Error>>;

    /// Hears of changes to the stream from the moment this is Ok; to be asked for before the stream is looked at. No error for a
    /// stream that does not exist.
    fn follow(&self, stream: StreamId) -> Pending<Result<ChangeSubscription, Error>>;

    /// Drops the events up to `upto`; some of them may be read for a while yet. What is beyond the tail is left alone, and a
    /// writer that was fenced changes nothing.
    fn trim(&self, stream: StreamId, epoch: WriterEpoch, upto: Seq) -> Pending<Result<(), Error>>;

    /// Keeps the stream for `keep` from now on, unless it is kept for longer already. Nothing for one that is gone.
    fn keep(&self, stream: StreamId, keep: Duration) -> Pending<Result<(), Error>>;

    /// Forgets the stream and frees its space. Forgetting again is Ok.
    fn expire(&self, stream: StreamId) -> Pending<Result<(), Error>>;

    /// The streams of a replica that are not sealed, in no order.
    fn open_streams(&self, owner: Owner) -> Pending<Result<Vec<StreamId>, Error>>;

    /// Writes a small record that stands beside the streams (a session's, a retry's), for `keep`, over what was there.
    fn put(&self, key: &[u8], value: &[u8], keep: Duration) -> Pending<Result<(), Error>>;

    /// The same where there is none yet: then `None`; else what is there stays, and is what comes back. Of many callers one is
    /// told `None`.
    fn claim(&self, key: &[u8], value: &[u8], keep: Duration) -> Pending<Result<Option<Bytes>, Error>>;

    /// The record, if it is there and has not expired.
    fn get(&self, key: &[u8]) -> Pending<Result<Option<Bytes>, Error>>;

    /// Keeps a record for `keep` from now on if it is still `value`, or forgets it then where that is `None`. Nothing for any other
    /// record.
    fn expire_if_equal(&self, key: &[u8], value: &[u8], keep: Option<Duration>) -> Pending<Result<(), Error>>;

    /// Forgets the record. Forgetting again is Ok.
    fn remove(&self, key: &[u8]) -> Pending<Result<(), Error>>;

    /// Whether it can take what is new.
    fn health(&self) -> StoreHealth;
}
