//! The pump's side of a stream: the one writer.

mod eviction;
pub(in crate::event_log) mod recorder;
pub(in crate::event_log) mod stream_table;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};

use crate::clock;
use crate::event_log::backing::{Backing, PersistOutcome, Staged};
use crate::event_log::stream::response_head::Head;
use crate::event_log::stream::{Advanced, Stream, in_flight};
use crate::event_log::writer::recorder::{Recorder, seal};
use crate::event_log::writer::stream_table::StreamTable;
use crate::protocol::stream::{Effect, Machine};

/// A paused stream looks so often whether others of its principal have made room. Its own reader tells it at once.
const CAPACITY_POLL: Duration = Duration::from_millis(250);

/// The pump's side of a stream: the one writer. Not `Clone`, so that there is never a second.
pub struct Writer {
    stream: Arc<Stream>,
    streams: Arc<StreamTable>,
}

impl Writer {
    pub(in crate::event_log) fn new(stream: Arc<Stream>, streams: Arc<StreamTable>) -> Self {
        Self { stream, streams }
    }

    /// The stream it writes.
    pub fn stream(&self) -> &Arc<Stream> {
        &self.stream
    }

    /// Tells the machine what happened, stores what it staged, publishes the head it decided on, and wakes the reader: one
    /// state change and one wake-up however many events there are. Not to be dropped half way: the pump awaits it whole.
    pub async fn update<R>(&self, tell: impl FnOnce(&mut Machine, Instant) -> R) -> R {
        let Advanced { result, staged, mut needs_eviction } = self.stream.advance(tell);
        if let Some(backing) = &self.stream.backing
            && (staged.is_some() || self.recorder(backing).can_catch_up())
        {
            // Boxed: without a store nothing of it is carried along.
            needs_eviction |= Box::pin(self.record(backing, staged.unwrap_or_default())).await;
        }
        if needs_eviction {
            self.streams.evict(self.stream.quota());
            self.stream.fit();
        }
        result
    }

    fn recorder<'a>(&'a self, backing: &'a Backing) -> Recorder<'a> {
        Recorder { stream: &self.stream, backing }
    }

    /// Store before deliver, until nothing is staged any more. Says whether the stream wants room.
    async fn record(&self, backing: &Backing, mut staged: Staged) -> bool {
        loop {
            if self.recorder(backing).keep(&staged).await == PersistOutcome::Fenced {
                self.streams.leave(&self.stream);
                return false;
            }
            let advanced = self.stream.accept(&staged.batch);
            match advanced.staged {
                Some(next) => staged = next,
                None => return advanced.needs_eviction,
            }
        }
    }

    /// Seals the stream with its store, once the machine has. One that the store does not take now is sealed there as soon as it can
    /// be, or forgotten there once its retention is over.
    pub async fn seal(&self) {
        self.seal_and(|| {}).await;
    }

    /// The same, and then `done`, unless another writer has the stream.
    pub(in crate::event_log) async fn seal_and(&self, done: impl FnOnce() + Send + 'static) {
        if let Some(backing) = &self.stream.backing {
            seal(&self.stream, backing, done).await;
        }
    }

    /// Publishes a head that the upstream gave.
    pub fn set_head(&self, head: Head) {
        let mut inner = self.stream.lock();
        if let Head::Plain(plain) = &head {
            inner.reservation.keep_beside(plain.kept_body().map_or(0, Bytes::len));
        }
        inner.head = head;
        inner.wake();
    }

    /// The next thing the machine wants done.
    pub fn poll_effect(&self) -> Option<Effect> {
        self.stream.lock().machine.poll_effect()
    }

    /// When the machine wants to be told the time, and whether the upstream may be read.
    pub fn agenda(&self) -> (Option<Instant>, bool) {
        let inner = self.stream.lock();
        let deadline = inner.machine.poll_timeout();
        let is_behind = inner
            .store_progress
            .as_ref()
            .is_some_and(|store_progress| store_progress.is_behind && !store_progress.is_memory_only);
        let is_paused = inner.machine.is_paused() || inner.is_held_up;
        if !is_paused && !is_behind {
            return (deadline, true);
        }
        let look = clock::now() + CAPACITY_POLL;
        (Some(deadline.map_or(look, |deadline| deadline.min(look))), !is_paused)
    }

    /// Resolves when another task changed the stream.
    pub async fn changed(&self, may_read: bool) {
        let changed = self.stream.pump.notified();
        if may_read {
            return changed.await;
        }
        // What keeps it from reading may be another call of its share.
        tokio::select! {
            biased;
            () = changed => {}
            () = self.stream.quota().overrun_released() => {}
        }
    }

    /// Waits until what arrives may be read on with: there is room, or it is this call's turn. For an answer that passes, of which the
    /// store gets nothing. Dropping the future loses nothing.
    pub async fn wait_for_capacity(&self) {
        while !self.has_capacity() {
            self.streams.evict(self.stream.quota());
            if self.has_capacity() {
                return;
            }
            let look = clock::now() + CAPACITY_POLL;
            tokio::select! {
                biased;
                () = self.changed(false) => {}
                () = clock::sleep_until(look) => {}
            }
        }
    }

    fn has_capacity(&self) -> bool {
        let mut inner = self.stream.lock();
        inner.fit(self.stream.bounds);
        !inner.is_held_up
    }

    /// Returns `bytes` as a piece of a body, counted in the name of the stream's principal until the piece is dropped.
    pub fn counted(&self, bytes: BytesMut) -> Bytes {
        in_flight::counted(self.stream.quota(), bytes)
    }

    /// So many bytes have come of an event, or of an answer that becomes one, that is not whole. Counts from now on; whether there is room
    /// for the rest is decided with the next [`Self::update`].
    pub fn note_arriving(&self, bytes: usize) {
        self.stream.lock().reservation.set_arriving(bytes);
    }
}
