//! A store whose appends take effect when the test says so.

use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::protocol::ids::{AttachId, Seq, StreamId};
use crate::protocol::jsonrpc::RequestId;
use crate::protocol::stream::{Batch, Outcome};
use crate::store::memory::whole::Memory;
use crate::store::{Answered, Appended, Error, Pending, Read, Store, WriterEpoch};

/// [`Memory`] behind a gate that lets one append through for each permit.
pub(super) struct Slow {
    pub(super) behind: Arc<Memory>,
    gate: Arc<Semaphore>,
    broken: bool,
}

impl Slow {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { behind: Arc::default(), gate: Arc::new(Semaphore::new(0)), broken: false })
    }

    /// One that cannot be reached.
    pub(super) fn broken() -> Arc<Self> {
        Arc::new(Self { behind: Arc::default(), gate: Arc::new(Semaphore::new(0)), broken: true })
    }

    /// The next append takes effect.
    pub(super) fn let_one_through(&self) {
        self.gate.add_permits(1);
    }
}

impl Store for Slow {
    fn create(&self, stream: StreamId) -> Pending<Result<WriterEpoch, Error>> {
        self.behind.create(stream)
    }

    fn append(
        &self,
        stream: StreamId,
        epoch: WriterEpoch,
        after: Seq,
        batch: &Batch,
    ) -> Pending<Result<Appended, Error>> {
        if self.broken {
            return Pending::Ready(Err(Error::Unavailable("broken".into())));
        }
        let (behind, gate, batch) = (self.behind.clone(), self.gate.clone(), batch.clone());
        Pending::Later(Box::pin(async move {
            gate.acquire().await.expect("the gate is never closed").forget();
            behind.append(stream, epoch, after, &batch).wait().await
        }))
    }

    fn seal(&self, stream: StreamId, epoch: WriterEpoch, outcome: Outcome) -> Pending<Result<Appended, Error>> {
        self.behind.seal(stream, epoch, outcome)
    }

    fn take_over(&self, stream: StreamId) -> Pending<Result<WriterEpoch, Error>> {
        self.behind.take_over(stream)
    }

    fn answer(&self, stream: StreamId, request: &RequestId) -> Pending<Result<Answered, Error>> {
        self.behind.answer(stream, request)
    }

    fn attach(&self, stream: StreamId, reader: AttachId) -> Pending<Result<Option<AttachId>, Error>> {
        self.behind.attach(stream, reader)
    }

    fn read(&self, stream: StreamId, after: Seq, limit: usize) -> Pending<Result<Read, Error>> {
        self.behind.read(stream, after, limit)
    }

    fn trim(&self, stream: StreamId, upto: Seq) -> Pending<Result<(), Error>> {
        self.behind.trim(stream, upto)
    }

    fn expire(&self, stream: StreamId) -> Pending<Result<(), Error>> {
        self.behind.expire(stream)
    }
}
