//! Where events rest below the live tail, and the contract every such place keeps.
//!
//! The live tail is in memory for every store ([`memory::Tail`]); a store makes batches durable and serves reads below the
//! tail. The memory store is the tail alone: the event log holds no [`Store`] then, and pays nothing for the trait. Absent
//! here: numbering, timers and policy, which belong to the stream state machine, and knowledge of JSON-RPC.

#[cfg(test)]
pub(crate) mod contract;
pub mod memory;

use std::future::Future;
use std::pin::Pin;

use bytes::Bytes;

use crate::protocol::ids::{AttachId, Seq, StreamId};
use crate::protocol::jsonrpc::RequestId;
use crate::protocol::stream::{Batch, Outcome};

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

/// Whether an answer to a server→client request is the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answered {
    /// It is; no other caller is told so.
    First,
    /// It was answered before.
    Again,
}

/// The store could not do it. The caller's policy decides what follows; nothing was half done.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store cannot be reached, or has no room.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
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
pub trait Store: Send + Sync + 'static {
    /// Records a new stream, its tail at 0, and makes the caller its writer. Complete before the stream's head is written.
    fn create(&self, stream: StreamId) -> Pending<Result<WriterEpoch, Error>>;

    /// Appends `batch` behind `after`, which must be the tail. Sending an identical batch again is [`Appended::Ok`] and writes
    /// nothing, on a sealed stream too; a batch that was trimmed since is not known again. The epoch is checked first, then
    /// the place, then the seal.
    fn append(
        &self,
        stream: StreamId,
        epoch: WriterEpoch,
        after: Seq,
        batch: &Batch,
    ) -> Pending<Result<Appended, Error>>;

    /// Ends the stream: no append succeeds after it. Sealing again is Ok and keeps the first outcome.
    fn seal(&self, stream: StreamId, epoch: WriterEpoch, outcome: Outcome) -> Pending<Result<Appended, Error>>;

    /// Makes the caller the writer and fences the one before it, in one step. The tail stays where it is, and so does a seal.
    fn take_over(&self, stream: StreamId) -> Pending<Result<WriterEpoch, Error>>;

    /// Notes that a server→client request was answered: [`Answered::First`] for exactly one caller.
    fn answer(&self, stream: StreamId, request: &RequestId) -> Pending<Result<Answered, Error>>;

    /// Names the newest reader, on whichever replica, and tells the caller which one it displaced.
    fn attach(&self, stream: StreamId, reader: AttachId) -> Pending<Result<Option<AttachId>, Error>>;

    /// Up to `limit` events after `after`; none at the tail and beyond it. A batch is seen whole or not at all.
    fn read(&self, stream: StreamId, after: Seq, limit: usize) -> Pending<Result<Read, Error>>;

    /// Drops the events up to `upto`. What is beyond the tail is left alone.
    fn trim(&self, stream: StreamId, upto: Seq) -> Pending<Result<(), Error>>;

    /// Forgets the stream and frees its space. Forgetting again is Ok.
    fn expire(&self, stream: StreamId) -> Pending<Result<(), Error>>;
}
