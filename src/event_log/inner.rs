//! What a stream's lock guards: the state machine and the tail, which change together, the head, and who waits for them.

use std::task::{Context, Waker};
use std::time::Instant;

use bytes::BytesMut;

use super::head::Head;
use crate::clock;
use crate::protocol::ids::{self, Handle, Seq};
use crate::protocol::stream::{Batch, Machine, Phase};
use crate::store::memory::Tail;
use crate::store::{Appended, WriterEpoch};

/// The bounds of one stream's tail.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Bytes of memory.
    pub max_bytes: usize,
    /// Events.
    pub max_events: usize,
}

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) machine: Machine,
    pub(super) tail: Tail,
    pub(super) epoch: WriterEpoch,
    pub(super) head: Head,
    /// The one reader's task: waiting for the head, or at the tail.
    pub(super) reader: Option<Waker>,
    /// Tasks that wait for the head or the answer without being the reader: they were taken over and take no stream.
    pub(super) watchers: Vec<Waker>,
}

impl Inner {
    pub(super) fn new(machine: Machine) -> Self {
        Self {
            machine,
            tail: Tail::new(),
            epoch: WriterEpoch::default(),
            head: Head::Waiting,
            reader: None,
            watchers: Vec::new(),
        }
    }

    pub(super) fn watch(&mut self, cx: &Context<'_>) {
        if !self.watchers.iter().any(|watcher| watcher.will_wake(cx.waker())) {
            self.watchers.push(cx.waker().clone());
        }
    }

    /// Wakers only schedule their tasks, so that they may be called under the lock.
    pub(super) fn wake(&mut self) {
        self.reader.take().into_iter().chain(self.watchers.drain(..)).for_each(Waker::wake);
    }

    /// The last number that was dealt with, and how many events were written. Answered server→client requests are passed
    /// over: a cursor may stand on them all the same.
    pub(super) fn write_events(&self, handle: &Handle, cursor: Seq, out: &mut BytesMut, budget: usize) -> (Seq, u64) {
        let mut last = cursor;
        let mut written = 0;
        for (seq, event) in self.tail.events_after(cursor) {
            if last != cursor && out.len() + event.len() > budget {
                break;
            }
            if seq > self.machine.tail() {
                break;
            }
            if !self.machine.asks().is_answered(seq) {
                write_id_line(out, handle, seq);
                out.extend_from_slice(event);
                written += 1;
            }
            last = seq;
        }
        (last, written)
    }

    /// Makes room, and says whether the upstream must wait.
    pub(super) fn fit(&mut self, bounds: Bounds) {
        let fits = self.tail.trim_to_fit(bounds.max_bytes, bounds.max_events, self.machine.releasable());
        self.machine.handle_trimmed(self.tail.trimmed());
        self.machine.handle_full(!fits, clock::now());
    }

    /// What may go depends on who reads: after a change of readers there may be room.
    pub(super) fn fit_paused(&mut self, bounds: Bounds) {
        if self.machine.is_paused() {
            self.fit(bounds);
        }
    }

    pub(super) fn accept(&mut self, batch: &Batch, bounds: Bounds, now: Instant) {
        let after = self.tail.last();
        let appended = self.tail.append(self.epoch, after, batch);
        debug_assert_eq!(appended, Appended::Ok, "the pump is the only writer");
        self.machine.handle_stored(now);
        self.fit(bounds);
    }

    /// A commit or an end while the head is outstanding decides the head.
    pub(super) fn settle_head(&mut self) -> bool {
        if !matches!(self.head, Head::Waiting) {
            return false;
        }
        match self.machine.phase() {
            Phase::Open if self.machine.is_committed() => self.head = Head::Committed,
            Phase::Sealed { .. } => {
                self.head = match self.machine.failure() {
                    Some(failure) => Head::Failed(failure),
                    None => Head::Committed,
                };
            }
            Phase::Waiting | Phase::Passed | Phase::Open => return false,
        }
        true
    }
}

fn write_id_line(out: &mut BytesMut, handle: &Handle, seq: Seq) {
    out.extend_from_slice(b"id: ");
    ids::write_event_id(out, handle, seq, None).expect("a BytesMut grows as it is written to");
    out.extend_from_slice(b"\n");
}
