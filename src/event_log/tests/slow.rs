//! A store whose appends, and seals and loads if need be, take effect when the test says so.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::protocol::ids::{Owner, Seq, StreamId};
use crate::protocol::stream::Batch;
use crate::store::test_store::TestStore;
use crate::store::{Appended, ChangeSubscription, Error, Pending, Read, Store, StoreHealth, Stored, WriterEpoch};

/// [`TestStore`] behind a gate that lets one append through per permit. Further gates let seals and
/// loads through unless they are closed.
pub(super) struct Slow {
    pub(super) behind: Arc<TestStore>,
    gate: Arc<Semaphore>,
    seals: Arc<Semaphore>,
    loads: Arc<Semaphore>,
    broken: AtomicBool,
}

impl Slow {
    pub(super) fn new() -> Arc<Self> {
        Self::before(TestStore::default())
    }

    /// Creates a gate before contents that other stores share.
    pub(super) fn before(behind: TestStore) -> Arc<Self> {
        let [gate, seals, loads] = [0, 1, 1].map(|permits| Arc::new(Semaphore::new(permits)));
        Arc::new(Self { behind: Arc::new(behind), gate, seals, loads, broken: AtomicBool::new(false) })
    }

    /// Creates a store that cannot be reached.
    pub(super) fn broken() -> Arc<Self> {
        let slow = Self::new();
        slow.set_broken(true);
        slow
    }

    /// Sets whether the store can be reached.
    pub(super) fn set_broken(&self, broken: bool) {
        self.broken.store(broken, Ordering::Relaxed);
    }

    fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }

    /// Opens the gate: every append takes effect from now on.
    pub(super) fn open(&self) {
        self.gate.add_permits(1000);
    }

    /// Holds all seals until the permit is dropped.
    pub(super) fn hold_seals(&self) -> OwnedSemaphorePermit {
        self.seals.clone().try_acquire_owned().expect("no test holds them")
    }

    /// Holds all loads until the permit is dropped.
    pub(super) fn hold_loads(&self) -> OwnedSemaphorePermit {
        self.loads.clone().try_acquire_owned().expect("no test holds them")
    }

    /// Lets the next append take effect.
    pub(super) fn let_one_through(&self) {
        self.gate.add_permits(1);
    }
}

impl Store for Slow {
    fn create(&self, stream: StreamId, about: &[u8], tail: Seq, keep: Duration) -> Pending<Result<WriterEpoch, Error>> {
        self.behind.create(stream, about, tail, keep)
    }

    fn append(
        &self,
        stream: StreamId,
        epoch: WriterEpoch,
        after: Seq,
        batch: &Batch,
        state: Option<&[u8]>,
    ) -> Pending<Result<Appended, Error>> {
        if self.is_broken() {
            return Pending::Ready(Err(Error::Unavailable("broken".into())));
        }
        let (behind, gate) = (self.behind.clone(), self.gate.clone());
        let (batch, state) = (batch.clone(), state.map(<[u8]>::to_vec));
        Pending::Later(Box::pin(async move {
            gate.acquire().await.expect("the gate is never closed").forget();
            behind.append(stream, epoch, after, &batch, state.as_deref()).wait().await
        }))
    }

    fn seal(
        &self,
        stream: StreamId,
        epoch: WriterEpoch,
        state: &[u8],
        keep: Duration,
    ) -> Pending<Result<Appended, Error>> {
        let (behind, seals, state) = (self.behind.clone(), self.seals.clone(), state.to_vec());
        Pending::Later(Box::pin(async move {
            let _through = seals.acquire().await.expect("the gate is never closed");
            behind.seal(stream, epoch, &state, keep).wait().await
        }))
    }

    fn write_whole(
        &self,
        stream: StreamId,
        about: &[u8],
        batch: &Batch,
        state: &[u8],
        keep: Duration,
    ) -> Pending<Result<WriterEpoch, Error>> {
        if self.is_broken() {
            return Pending::Ready(Err(Error::Unavailable("broken".into())));
        }
        let (behind, gate) = (self.behind.clone(), self.gate.clone());
        let (about, batch, state) = (about.to_vec(), batch.clone(), state.to_vec());
        Pending::Later(Box::pin(async move {
            gate.acquire().await.expect("the gate is never closed").forget();
            behind.write_whole(stream, &about, &batch, &state, keep).wait().await
        }))
    }

    fn take_over(&self, stream: StreamId) -> Pending<Result<WriterEpoch, Error>> {
        self.behind.take_over(stream)
    }

    fn load(&self, stream: StreamId) -> Pending<Result<Option<Stored>, Error>> {
        if self.is_broken() {
            return Pending::Ready(Err(Error::Unavailable("broken".into())));
        }
        let (behind, loads) = (self.behind.clone(), self.loads.clone());
        Pending::Later(Box::pin(async move {
            let _through = loads.acquire().await.expect("the gate is never closed");
            behind.load(stream).wait().await
        }))
    }

    fn read(&self, stream: StreamId, after: Seq, max_bytes: usize) -> Pending<Result<Read, Error>> {
        self.behind.read(stream, after, max_bytes)
    }

    fn subscribe(&self, stream: StreamId) -> Pending<Result<ChangeSubscription, Error>> {
        self.behind.subscribe(stream)
    }

    fn trim(&self, stream: StreamId, epoch: WriterEpoch, upto: Seq) -> Pending<Result<(), Error>> {
        self.behind.trim(stream, epoch, upto)
    }

    fn keep(&self, stream: StreamId, keep: Duration) -> Pending<Result<(), Error>> {
        self.behind.keep(stream, keep)
    }

    fn expire(&self, stream: StreamId) -> Pending<Result<(), Error>> {
        self.behind.expire(stream)
    }

    fn open_streams(&self, owner: Owner) -> Pending<Result<Vec<StreamId>, Error>> {
        self.behind.open_streams(owner)
    }

    fn put(&self, key: &[u8], value: &[u8], keep: Duration) -> Pending<Result<(), Error>> {
        self.behind.put(key, value, keep)
    }

    fn claim(&self, key: &[u8], value: &[u8], keep: Duration) -> Pending<Result<Option<Bytes>, Error>> {
        self.behind.claim(key, value, keep)
    }

    fn replace(&self, key: &[u8], before: &[u8], value: &[u8], keep: Duration) -> Pending<Result<bool, Error>> {
        self.behind.replace(key, before, value, keep)
    }

    fn get(&self, key: &[u8]) -> Pending<Result<Option<Bytes>, Error>> {
        self.behind.get(key)
    }

    fn expire_if_equal(&self, key: &[u8], value: &[u8], keep: Option<Duration>) -> Pending<Result<(), Error>> {
        self.behind.expire_if_equal(key, value, keep)
    }

    fn remove(&self, key: &[u8]) -> Pending<Result<(), Error>> {
        self.behind.remove(key)
    }

    fn health(&self) -> StoreHealth {
        match self.is_broken() {
            true => StoreHealth::Unreachable,
            false => StoreHealth::Ready,
        }
    }
}
