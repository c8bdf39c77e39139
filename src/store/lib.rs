//! Storage of events below the live tail, and the contract of every store.
//!
//! The live tail is in memory with every store ([`tail::Tail`]). A store makes batches durable and
//! serves reads below the tail. The memory store is the tail alone: the event log then holds no
//! [`Store`], and pays nothing for the trait.
//!
//! Absent: numbering, timers and policy, which belong to the stream state machine, and knowledge of
//! JSON-RPC. The description of a stream ([`Stored::about`]) and its state ([`Stored::state`]) are
//! bytes here.

mod change_subscriptions;
mod completion;
#[cfg(test)]
pub(crate) mod contract;
mod coordination;
pub mod disk;
mod metrics;
pub mod redis;
#[cfg(any(test, feature = "test-store"))]
pub mod test_store;

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
pub use change_subscriptions::ChangeSubscription;
pub use coordination::{Coordination, Renewal};
pub use metrics::Metrics;

use mcp_resume_protocol::ids::{Owner, Seq, StoreEpoch, StreamId};
use mcp_resume_protocol::stream::Batch;
pub use mcp_resume_protocol::tail::{Appended, WriterEpoch};

/// Outcome of a read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Read {
    /// Events in order, the first one directly after the cursor. Empty at the tail.
    Events(Vec<(Seq, Bytes)>),
    /// Events after the cursor were trimmed. The caller must report the gap, and never skip it.
    Trimmed {
        /// The last number that is gone.
        upto: Seq,
    },
    /// No such stream, or it has expired.
    Gone,
}

/// A stream in a store, without its events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Description given to [`Store::create`]. Never changes.
    pub about: Bytes,
    /// State written last beside a batch or a seal. Empty before the first one.
    pub state: Bytes,
    /// Replica of the current or last writer.
    pub owner: Owner,
    /// Epoch of that writer.
    pub epoch: WriterEpoch,
    /// The last number that is gone.
    pub trimmed: Seq,
    /// The last number there is.
    pub tail: Seq,
    /// True if the stream has ended.
    pub sealed: bool,
}

/// Readiness of a store for new data. Reading it makes no call to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreHealth {
    /// New data is accepted.
    Ready,
    /// No space is left.
    Full,
    /// The store cannot be reached, or fails.
    Unreachable,
}

/// Identity of a store's contents, and the keys that belong to them. Created with the contents, and
/// lost only with them.
#[derive(Clone)]
pub struct Keys {
    /// Identifies the contents.
    pub epoch: StoreEpoch,
    /// Signs event IDs, tokens and issued sessions.
    pub signing: [u8; 32],
    /// Hashes the identity of a caller.
    pub principal: [u8; 32],
}

/// Failure of a call. The caller's policy decides what follows. No call takes effect in part.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store cannot be reached, or fails. A call in flight may have taken effect.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
    /// The store has no room for the data.
    #[error("the store is full: {0}")]
    Full(String),
    /// The stream does not exist, or has expired.
    #[error("no such stream")]
    Gone,
}

/// A result that is ready now or later. `Ready` costs no allocation.
pub enum Pending<T> {
    /// The result.
    Ready(T),
    /// A future of the result. Dropping it does not undo the call.
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

/// Storage for streams that outlives the live tail.
///
/// Ordering: calls of one caller for one stream take effect in the order of the calls. Durability:
/// after `Ok`, the effect survives the failures that the store promises to survive. Atomicity:
/// every call takes effect as a whole or not at all, `append` together with its checks of epoch,
/// seal and tail. Cancellation: after a dropped result, the call may or may not have taken effect;
/// repeating it is safe.
///
/// Expiry: a stream is readable for the time last given for it, and is gone some time after that.
/// Each `create`, `append` and `seal` by its writer, and [`Self::keep`], starts that time anew, an
/// `append` to within a sixteenth of it. A store belongs to one replica, and knows it.
pub trait Store: Send + Sync + 'static {
    /// Creates a stream and makes the caller its writer. Completes before the response head of the
    /// stream is written. `tail` is 0, except for a stream that the store has lost: its events up
    /// to `tail` are gone. An unsealed stream is kept for `keep` after each call of its writer.
    fn create(&self, stream: StreamId, about: &[u8], tail: Seq, keep: Duration) -> Pending<Result<WriterEpoch, Error>>;

    /// Appends `batch` after `after`, which must be the tail, and writes `state` beside it if there
    /// is one, in one step. An empty batch writes the state alone. A repeated identical batch
    /// returns [`Appended::Ok`] and writes nothing, on a sealed stream too. A batch that was
    /// trimmed since is not recognized. The epoch is checked first, then the place, then the seal.
    fn append(
        &self,
        stream: StreamId,
        epoch: WriterEpoch,
        after: Seq,
        batch: &Batch,
        state: Option<&[u8]>,
    ) -> Pending<Result<Appended, Error>>;

    /// Ends the stream: no append succeeds after it, and it is kept for `keep` from now. A repeated
    /// seal returns `Ok`, keeps the first state and changes nothing.
    fn seal(
        &self,
        stream: StreamId,
        epoch: WriterEpoch,
        state: &[u8],
        keep: Duration,
    ) -> Pending<Result<Appended, Error>>;

    /// Writes an ended stream, in one step. The effect is that of [`Self::create`] without events,
    /// [`Self::append`] of `batch` with all events, and [`Self::seal`] with `state` and `keep`.
    /// Another stream of this name is replaced, as by [`Self::create`].
    fn write_whole(
        &self,
        stream: StreamId,
        about: &[u8],
        batch: &Batch,
        state: &[u8],
        keep: Duration,
    ) -> Pending<Result<WriterEpoch, Error>>;

    /// Makes the caller the writer and fences the previous one, in one step. The tail and a seal
    /// stay.
    fn take_over(&self, stream: StreamId) -> Pending<Result<WriterEpoch, Error>>;

    /// Returns the stream without its events, or `None` if there is no such stream or it has
    /// expired.
    fn load(&self, stream: StreamId) -> Pending<Result<Option<Stored>, Error>>;

    /// Returns the events after `after`, at most `max_bytes` together but at least one if there is
    /// one. Returns none at the tail and beyond it. A reader sees a batch as a whole or not at all,
    /// if its limit permits.
    fn read(&self, stream: StreamId, after: Seq, max_bytes: usize) -> Pending<Result<Read, Error>>;

    /// Subscribes to changes of the stream, from the moment of the `Ok`. To be called before the
    /// stream is read. A stream that does not exist is no error.
    fn subscribe(&self, stream: StreamId) -> Pending<Result<ChangeSubscription, Error>>;

    /// Drops the events up to `upto`. Some of them may stay readable for a while. A place beyond
    /// the tail changes nothing, and neither does a fenced writer.
    fn trim(&self, stream: StreamId, epoch: WriterEpoch, upto: Seq) -> Pending<Result<(), Error>>;

    /// Keeps the stream for `keep` from now, unless it is kept for longer already. No effect on a
    /// stream that is gone.
    fn keep(&self, stream: StreamId, keep: Duration) -> Pending<Result<(), Error>>;

    /// Removes the stream and frees its space. A repeated call returns `Ok`.
    fn expire(&self, stream: StreamId) -> Pending<Result<(), Error>>;

    /// Returns the unsealed streams of a replica, in no order.
    fn open_streams(&self, owner: Owner) -> Pending<Result<Vec<StreamId>, Error>>;

    /// Writes a small record beside the streams, such as the record of a session or a retry, for
    /// `keep`. An existing record is replaced.
    fn put(&self, key: &[u8], value: &[u8], keep: Duration) -> Pending<Result<(), Error>>;

    /// Writes a record if the key has none yet, and returns `None`. An existing record stays and is
    /// returned. Of several concurrent callers, one gets `None`.
    fn claim(&self, key: &[u8], value: &[u8], keep: Duration) -> Pending<Result<Option<Bytes>, Error>>;

    /// Replaces a record that still equals `before`, and keeps the new one for `keep`. Returns
    /// whether the record is `value` now, so that a repeated call returns the same. Of several
    /// concurrent callers with other values, one gets `true`.
    fn replace(&self, key: &[u8], before: &[u8], value: &[u8], keep: Duration) -> Pending<Result<bool, Error>>;

    /// Returns the record, or `None` if the key has none or it has expired.
    fn get(&self, key: &[u8]) -> Pending<Result<Option<Bytes>, Error>>;

    /// Keeps a record for `keep` from now if it still equals `value`, or removes it if `keep` is
    /// `None`. No effect on any other record.
    fn expire_if_equal(&self, key: &[u8], value: &[u8], keep: Option<Duration>) -> Pending<Result<(), Error>>;

    /// Removes the record. A repeated call returns `Ok`.
    fn remove(&self, key: &[u8]) -> Pending<Result<(), Error>>;

    /// Returns the readiness for new data.
    fn health(&self) -> StoreHealth;
}
