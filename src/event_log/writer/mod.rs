//! Writer: the pump's side of a stream. Only the pump appends.

mod admission;
mod eviction;
pub(in crate::event_log) mod recorder;
pub(in crate::event_log) mod stream_table;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};

use crate::clock;
use crate::event_log::backing::{Fenced, Staged};
use crate::event_log::stream::response_head::Head;
use crate::event_log::stream::{Advanced, Stream, in_flight};
use crate::event_log::writer::recorder::{Recorder, seal};
use crate::event_log::writer::stream_table::StreamTable;
use crate::protocol::stream::{Effect, Machine, Phase};

/// Interval between a paused stream's checks for capacity freed by others of its principal. Its own
/// reader notifies it at once.
const CAPACITY_POLL: Duration = Duration::from_millis(250);

/// Next step of a pump.
#[derive(Debug)]
pub enum Next {
    /// Carry out an effect.
    Effect(Effect),
    /// Wait for an input.
    Input {
        /// Phase of the stream.
        phase: Phase,
        /// Time of the machine's next timeout, or of the next check for capacity; `None` without
        /// either.
        deadline: Option<Instant>,
        /// True if the upstream may be read.
        may_read: bool,
    },
}

/// The one writer of a stream. Not `Clone`, so that there is never a second.
pub struct Writer {
    stream: Arc<Stream>,
    streams: Arc<StreamTable>,
}

impl Writer {
    pub(in crate::event_log) fn new(stream: Arc<Stream>, streams: Arc<StreamTable>) -> Self {
        Self { stream, streams }
    }

    /// Returns the stream.
    pub fn stream(&self) -> &Arc<Stream> {
        &self.stream
    }

    /// Passes an input to the machine, stores the staged events, publishes the head and wakes the
    /// reader. Any number of events costs one state change and one wake-up. The future must not be
    /// dropped half way; the pump awaits it to the end.
    pub async fn update<R>(&self, tell: impl FnOnce(&mut Machine, Instant) -> R) -> R {
        let Advanced { result, staged, mut needs_eviction } = self.stream.advance(tell);
        if let Some(backing) = &self.stream.backing {
            let recorder = Recorder { stream: &self.stream, backing };
            if staged.is_some() || recorder.can_catch_up() {
                // Boxed, so that the future stays small without a store.
                needs_eviction |= Box::pin(self.persist_all(recorder, staged.unwrap_or_default())).await;
            }
        }
        if needs_eviction {
            self.streams.evict(self.stream.quota());
            self.stream.shared.lock().enforce_limits(self.stream.shared.bounds);
        }
        result
    }

    /// Persists before delivery, until nothing is staged. Returns whether the stream needs an
    /// eviction.
    async fn persist_all(&self, recorder: Recorder<'_>, mut staged: Staged) -> bool {
        loop {
            let accepted = match recorder.persist(staged).await {
                Ok(persisted) => self.stream.accept(persisted),
                Err(Fenced) => {
                    self.streams.leave(&self.stream);
                    return false;
                }
            };
            match accepted.staged {
                Some(next) => staged = next,
                None => return accepted.needs_eviction,
            }
        }
    }

    /// Seals the stream in its store after the machine has sealed it. If the store cannot take the
    /// seal now, a background task retries it until the end of the retention. Then the store
    /// forgets the stream.
    pub async fn seal(&self) {
        self.seal_and(|| {}).await;
    }

    /// Seals the stream, then calls `done`, unless another writer has the stream.
    pub(in crate::event_log) async fn seal_and(&self, done: impl FnOnce() + Send + 'static) {
        if let Some(backing) = &self.stream.backing {
            seal(&self.stream, backing, done).await;
        }
    }

    /// Publishes a head from the upstream.
    pub fn set_head(&self, head: Head) {
        let mut inner = self.stream.shared.lock();
        if let Head::Plain(plain) = &head {
            inner.reservation.keep_beside(plain.kept_body().map_or(0, Bytes::len));
        }
        inner.head = head;
        inner.wake();
    }

    /// Returns the next effect of the machine, or, without an effect, the input that the pump waits
    /// for.
    pub fn poll_next(&self) -> Next {
        let mut inner = self.stream.shared.lock();
        if let Some(effect) = inner.machine.lifecycle_mut().poll_effect() {
            return Next::Effect(effect);
        }
        let (phase, deadline) = (inner.machine.lifecycle().phase(), inner.machine.lifecycle().poll_timeout());
        let is_behind = inner
            .store_progress
            .as_ref()
            .is_some_and(|store_progress| store_progress.is_behind && !store_progress.is_memory_only);
        let is_paused = inner.machine.lifecycle().is_paused() || inner.is_held_up;
        if !is_paused && !is_behind {
            return Next::Input { phase, deadline, may_read: true };
        }
        let poll_at = clock::now() + CAPACITY_POLL;
        let deadline = Some(deadline.map_or(poll_at, |deadline| deadline.min(poll_at)));
        Next::Input { phase, deadline, may_read: !is_paused }
    }

    /// Returns whether the upstream may be read.
    pub fn may_read(&self) -> bool {
        let inner = self.stream.shared.lock();
        !inner.machine.lifecycle().is_paused() && !inner.is_held_up
    }

    /// Resolves when another task has changed the stream.
    pub async fn changed(&self, may_read: bool) {
        let changed = self.stream.shared.pump.notified();
        if may_read {
            return changed.await;
        }
        // Another call of the same quota may block the reading.
        tokio::select! {
            biased;
            () = changed => {}
            () = self.stream.quota().overrun_released() => {}
        }
    }

    /// Waits until the rest of an arriving response may be read: there is capacity, or this call
    /// has the overrun. For a response that passes through without the store. Cancel safe.
    pub async fn wait_for_capacity(&self) {
        while !self.has_capacity() {
            self.streams.evict(self.stream.quota());
            if self.has_capacity() {
                return;
            }
            let poll_at = clock::now() + CAPACITY_POLL;
            tokio::select! {
                biased;
                () = self.changed(false) => {}
                () = clock::sleep_until(poll_at) => {}
            }
        }
    }

    fn has_capacity(&self) -> bool {
        let mut inner = self.stream.shared.lock();
        inner.enforce_limits(self.stream.shared.bounds);
        !inner.is_held_up
    }

    /// Returns `bytes` as a chunk of a body, counted in the quota of the stream's principal until
    /// the chunk is dropped.
    pub fn counted(&self, bytes: BytesMut) -> Bytes {
        in_flight::counted(self.stream.quota(), bytes)
    }

    /// Counts the bytes received of an incomplete event, or of a response that becomes one, from
    /// now on. The next [`Self::update`] decides whether there is capacity for the rest.
    pub fn note_arriving(&self, bytes: usize) {
        self.stream.shared.lock().reservation.set_arriving(bytes);
    }
}
