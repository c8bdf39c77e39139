//! The stream as other replicas and other processes change it: its copy here, its readers there,
//! and its loss in the store. Absent: the stream of the records (`restored.rs`).

use std::sync::OnceLock;
use std::time::Duration;

use bytes::Bytes;

use crate::clock;
use crate::event_log::backing::StorePosition;
use crate::event_log::stream::state::Shared;
use crate::protocol::cluster::Reader;
use crate::protocol::error::ErrorCode;
use crate::protocol::ids::{AttachId, Owner, Seq};
use crate::protocol::sse;
use crate::protocol::stream::{Batch, Machine};
use crate::protocol::tail::Tail;

/// The stream as other replicas and other processes change it.
pub struct Replica<'a> {
    pub(super) shared: &'a Shared,
    pub(super) adopted_after: &'a OnceLock<Seq>,
}

impl Replica<'_> {
    /// Returns true if another process writes or wrote the stream.
    pub(in crate::event_log) fn is_restored(&self) -> bool {
        self.shared.lock().is_restored
    }

    /// An event is only in the store, behind the last state; see [`Lifecycle::handle_logged`].
    ///
    /// [`Lifecycle::handle_logged`]: crate::protocol::stream::Lifecycle::handle_logged
    pub(in crate::event_log) fn handle_logged(&self, seq: Seq, event: &[u8]) {
        let mut decoder = sse::Decoder::new(event.len().saturating_mul(2));
        decoder.feed(Bytes::copy_from_slice(event));
        if let Ok(Some(event)) = decoder.poll_event() {
            self.shared.lock().machine.lifecycle_mut().handle_logged(seq, &event.data);
        }
    }

    /// Returns true if the stream ended because its process did, so that later messages of its
    /// server are lost.
    pub fn has_ended_with_its_process(&self) -> bool {
        let died = |code| matches!(code, ErrorCode::OwnerDied | ErrorCode::Draining);
        self.shared.with_machine(|machine| {
            machine.lifecycle().is_sealed() && machine.lifecycle().failure().is_some_and(|failure| died(failure.code))
        })
    }

    /// The writer died with `after` as its last event in the store; later events are another
    /// writer's. The first call counts.
    pub(in crate::event_log) fn set_adopted(&self, after: Seq) {
        let _ = self.adopted_after.set(after);
    }

    /// Returns the position of a client that resumes with the event at `seq`; `is_adopted` is true
    /// if the adopter logged that event. Events that the dead writer delivered but the store
    /// never had are no part of the stream: such a client lacks the end, even if it names a high
    /// number.
    pub(in crate::event_log) fn resume_cursor(&self, seq: Seq, is_adopted: bool) -> Seq {
        match self.adopted_after() {
            Some(after) if !is_adopted => seq.min(after),
            Some(_) | None => seq,
        }
    }

    /// Returns the last event of the dead writer, if another replica ended the stream.
    pub(in crate::event_log) fn adopted_after(&self) -> Option<Seq> {
        self.adopted_after.get().copied()
    }

    /// Returns true if the stream is open and written by this process.
    pub(in crate::event_log) fn is_written_here(&self) -> bool {
        let inner = self.shared.lock();
        !inner.is_restored && !inner.machine.lifecycle().is_sealed()
    }

    /// Ends the current reader's connection after the stored events, if its client permits that. A
    /// later connection may stay.
    pub fn close_reader(&self, retry: Duration) {
        let mut inner = self.shared.lock();
        inner.closing = inner.machine.reader().attached().map(|attach| (attach, retry));
        inner.wake();
    }

    /// Returns true if another replica has the stream, so that nothing more of it is read here.
    pub fn has_moved(&self) -> bool {
        self.shared.lock().has_moved
    }

    /// Waits until the event at `seq` has arrived, or no more will.
    pub(in crate::event_log) async fn caught_up_to(&self, seq: Seq) {
        let has_come = |machine: &Machine| machine.numbering().tail() >= seq || machine.lifecycle().is_sealed();
        self.shared.wait_until(|inner| inner.has_moved || has_come(&inner.machine)).await;
    }

    /// Returns true if the stream is open and written by another process.
    pub fn is_remote(&self) -> bool {
        let inner = self.shared.lock();
        inner.is_restored && !inner.machine.lifecycle().is_sealed()
    }

    /// Returns the last event that is here.
    pub(in crate::event_log) fn last_kept(&self) -> Seq {
        self.shared.lock().tail.last()
    }

    /// Appends events that another replica logged.
    pub(in crate::event_log) fn append(&self, batch: &Batch) {
        let mut inner = self.shared.lock();
        inner.append_remote(batch, self.shared.bounds, clock::now());
        self.shared.publish(inner, true);
    }

    /// Skips to `upto`: earlier events were trimmed before they came here.
    pub(in crate::event_log) fn skip_to(&self, upto: Seq) {
        let mut inner = self.shared.lock();
        inner.tail = Tail::starting_at(upto);
        inner.machine.handle_remote_progress(None, upto, upto);
        let events = inner.tail.byte_len();
        inner.reservation.set_events(events);
        self.shared.publish(inner, true);
    }

    /// Makes a connection of another replica the reader. The previous reader ends.
    pub(in crate::event_log) fn attach(&self, attach: AttachId, written: Seq) {
        let mut inner = self.shared.lock();
        self.shared.handle_request(&mut inner);
        inner.machine.handle_attach(attach, written, clock::now());
        inner.has_remote_reader = true;
        inner.count_presence();
        inner.wake();
        self.shared.notify_pump(inner);
    }

    /// The remote reader was given the events up to `written`.
    pub(in crate::event_log) fn handle_written(&self, written: Seq) {
        let mut inner = self.shared.lock();
        let written = written.min(inner.machine.numbering().tail());
        inner.machine.handle_written(written, clock::now());
        inner.settle_overrun();
        inner.enforce_limits_if_paused(self.shared.bounds);
        self.shared.notify_pump(inner);
    }

    /// Detaches the remote reader. Does nothing if it was not the reader.
    pub(in crate::event_log) fn detach(&self, attach: AttachId) {
        let mut inner = self.shared.lock();
        inner.machine.handle_detach(attach, clock::now());
        inner.count_presence();
        inner.enforce_limits_if_paused(self.shared.bounds);
        inner.wake();
        self.shared.notify_pump(inner);
    }

    /// Returns the part that the store is known to have.
    pub(in crate::event_log) fn store_position(&self) -> Option<StorePosition> {
        let inner = self.shared.lock();
        inner.store_progress.as_deref()?.position(inner.epoch)
    }

    /// The store has lost the stream and needs it again. Returns true if it was sealed there, so
    /// that no task rewrites it.
    pub(in crate::event_log) fn handle_store_loss(&self) -> bool {
        let was_sealed = self.shared.with_store_progress(|store_progress| {
            if store_progress.is_created {
                store_progress.is_created = false;
                store_progress.is_behind = true;
            }
            std::mem::take(&mut store_progress.is_sealed)
        });
        self.shared.pump.notify_one();
        was_sealed
    }

    /// Describes the local reader for the replica that writes the stream; `touches` counts the
    /// requests without a reader.
    pub(in crate::event_log) fn local_reader(&self, from: Owner, touches: u64) -> Reader {
        let inner = self.shared.lock();
        let reader = inner.machine.reader();
        Reader {
            stream: self.shared.id,
            from,
            attach: reader.attached(),
            written: reader.written(),
            confirmed: reader.confirmed(),
            returned: reader.has_reconnected(),
            touches,
        }
    }
}
