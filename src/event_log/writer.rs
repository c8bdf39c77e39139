//! The pump's side of a stream: the one writer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tracing::warn;

use super::Stream;
use super::head::Head;
use super::room::Room;
use super::stream::Advanced;
use crate::clock;
use crate::protocol::stream::{Batch, Effect, Machine};
use crate::store::Appended;

/// A paused stream looks so often whether others of its principal have made room. Its own reader tells it at once.
const LOOK_FOR_ROOM: Duration = Duration::from_millis(250);

/// The pump's side of a stream: the one writer. Not `Clone`, so that there is never a second.
pub struct Writer {
    stream: Arc<Stream>,
    room: Arc<Room>,
}

impl Writer {
    pub(super) fn new(stream: Arc<Stream>, room: Arc<Room>) -> Self {
        Self { stream, room }
    }

    /// The stream it writes.
    pub fn stream(&self) -> &Arc<Stream> {
        &self.stream
    }

    /// Tells the machine what happened, stores what it staged, publishes the head it decided on, and wakes the reader: one
    /// state change and one wake-up however many events there are. Not to be dropped half way: the pump awaits it whole.
    pub async fn update<R>(&self, tell: impl FnOnce(&mut Machine, Instant) -> R) -> R {
        let Advanced { result, mut staged, mut short } = self.stream.advance(tell);
        while let Some(batch) = staged {
            if !self.make_durable(&batch).await {
                self.stream.refuse();
                break;
            }
            Advanced { staged, short, .. } = self.stream.accept(&batch);
        }
        if short {
            self.room.make(self.stream.share());
            self.stream.fit();
        }
        result
    }

    /// Store before deliver. A store that cannot take the batch leaves it to memory, as it would have been without a store;
    /// one that has given the stream to another writer takes nothing more from this one: false.
    async fn make_durable(&self, batch: &Batch) -> bool {
        let Some(store) = &self.stream.store else { return true };
        let (epoch, after) = {
            let inner = self.stream.lock();
            (inner.epoch, inner.tail.last())
        };
        match store.append(self.stream.id, epoch, after, batch, None).wait().await {
            Ok(Appended::Ok) => true,
            Ok(refused) => {
                warn!(stream.id = %self.stream.id, ?refused, "the store refused a batch");
                false
            }
            Err(error) => {
                warn!(stream.id = %self.stream.id, %error, "the store is unavailable, memory holds the events");
                true
            }
        }
    }

    /// Records the stream with its store, before its head is written.
    pub async fn create(&self) {
        let Some(store) = &self.stream.store else { return };
        match store.create(self.stream.id, b"", Duration::from_secs(600)).wait().await {
            Ok(epoch) => self.stream.lock().epoch = epoch,
            Err(error) => {
                warn!(stream.id = %self.stream.id, %error, "the store is unavailable, memory holds the stream")
            }
        }
    }

    /// Seals the stream with its store, once the machine has.
    pub async fn seal(&self) {
        let Some(store) = &self.stream.store else { return };
        let epoch = self.stream.lock().epoch;
        if let Err(error) = store.seal(self.stream.id, epoch, b"", Duration::from_secs(600)).wait().await {
            warn!(stream.id = %self.stream.id, %error, "the store is unavailable, the stream is sealed in memory");
        }
    }

    /// Publishes a head that the upstream gave.
    pub fn set_head(&self, head: Head) {
        let mut inner = self.stream.lock();
        if let Head::Plain(plain) = &head {
            inner.part.keep_beside(plain.kept_body().map_or(0, Bytes::len));
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
        if !inner.machine.is_paused() {
            return (deadline, true);
        }
        let look = clock::now() + LOOK_FOR_ROOM;
        (Some(deadline.map_or(look, |deadline| deadline.min(look))), false)
    }

    /// Resolves when another task changed the stream.
    pub async fn changed(&self) {
        self.stream.pump.notified().await;
    }
}
