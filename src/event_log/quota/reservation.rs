//! Reservations: bytes that count in a quota until they are dropped.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use crate::event_log::quota::account::Quota;
use crate::event_log::quota::overrun::Overrun;
use crate::protocol::error::ErrorCode;

/// Approximate cost of a stream beside its events: state, pump and its part of the upstream
/// connection.
const STREAM_COST: usize = 2048;
/// Bytes of an incomplete event that are read however full the quota is: one piece of a gathering
/// read. To read more without capacity takes the [`Overrun`], one call at a time.
const ARRIVING_FREE: usize = 64 * 1024;

impl Quota {
    /// Reserves `bytes` for a request until it belongs to a stream.
    pub fn reserve(self: &Arc<Self>, bytes: usize) -> Reservation {
        let mut reservation = Reservation { quota: self.clone(), bytes: 0 };
        reservation.set(bytes);
        reservation
    }

    /// Reserves memory for one more stream with a request of this size. The stream reports later
    /// that it is a running call.
    pub(in crate::event_log) fn reserve_stream(self: &Arc<Self>, request_bytes: usize) -> StreamReservation {
        Reservation { quota: self.clone(), bytes: 0 }.into_stream(request_bytes)
    }
}

/// Bytes counted in a quota for the life of this value.
#[derive(Debug)]
pub struct Reservation {
    quota: Arc<Quota>,
    bytes: usize,
}

impl Reservation {
    /// Changes the number of bytes.
    pub fn set(&mut self, bytes: usize) {
        match bytes.checked_sub(self.bytes) {
            Some(0) => {}
            Some(more) => self.quota.add(more),
            None => self.quota.subtract(self.bytes - bytes),
        }
        self.bytes = bytes;
    }

    /// Changes the number of bytes, and evicts delivered streams if the quota then exceeds its
    /// limits.
    ///
    /// # Errors
    /// `ShareFull` or `ProxyFull` if it is still over them; the bytes count nevertheless.
    pub fn grow(&mut self, bytes: usize) -> Result<(), ErrorCode> {
        self.set(bytes);
        self.quota.make_room()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the quota that the bytes count in.
    pub fn quota(&self) -> &Arc<Quota> {
        &self.quota
    }

    /// Makes this the reservation of a stream with a request of this size.
    pub(in crate::event_log) fn into_stream(mut self, request_bytes: usize) -> StreamReservation {
        self.quota.global.metrics.observe_stream();
        let base = STREAM_COST + request_bytes;
        self.set(base);
        StreamReservation {
            reservation: self,
            base,
            server_requests: 0,
            events: 0,
            staged: 0,
            arriving: 0,
            overrun: None,
            global_overrun: None,
            is_running: false,
            is_detached: false,
            is_task: false,
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// Reservation of one stream: its bytes, and its kind: a running call, with or without a reader, or
/// a task.
#[derive(Debug)]
pub struct StreamReservation {
    reservation: Reservation,
    /// Bytes beside the events.
    base: usize,
    /// Bytes of the server's requests that are remembered.
    server_requests: usize,
    events: usize,
    /// Bytes of events that the store has not accepted yet.
    staged: usize,
    /// Bytes of an incomplete event.
    arriving: usize,
    /// Number of this call's hold on the quota's overrun, or `None`.
    overrun: Option<u64>,
    global_overrun: Option<u64>,
    is_running: bool,
    is_detached: bool,
    is_task: bool,
}

impl StreamReservation {
    pub(in crate::event_log) fn quota(&self) -> &Arc<Quota> {
        &self.reservation.quota
    }

    /// Sets the bytes of the events.
    pub(in crate::event_log) fn set_events(&mut self, bytes: usize) {
        self.events = bytes;
        self.count();
    }

    /// Sets the bytes of the events in flight to the store.
    pub(in crate::event_log) fn set_staged(&mut self, bytes: usize) {
        if bytes != self.staged {
            self.staged = bytes;
            self.count();
        }
    }

    /// Counts the staged events as stored; `events` are the bytes of all events then.
    pub(in crate::event_log) fn set_stored(&mut self, events: usize) {
        self.staged = 0;
        self.set_events(events);
    }

    /// Sets the bytes received of an incomplete event.
    pub(in crate::event_log) fn set_arriving(&mut self, bytes: usize) {
        self.arriving = bytes;
        self.count();
    }

    /// Returns whether the rest of an arriving event must wait, because the quota is full and
    /// another call has the overrun. A call takes the overrun only if it `may_take` it.
    pub(in crate::event_log) fn must_wait(&mut self, may_take: bool, now: Instant) -> bool {
        if self.arriving <= ARRIVING_FREE {
            return false;
        }
        let quota = self.reservation.quota();
        let waits = |overrun: &Overrun, number: &mut Option<u64>| {
            if number.is_none_or(|number| !overrun.touch(number, now)) {
                *number = if may_take { overrun.take(now) } else { None };
            }
            number.is_none()
        };
        if quota.own_excess() > 0 && waits(&quota.overrun, &mut self.overrun) {
            // A call never waits for its quota's overrun while it holds the global overrun. The
            // holder of the quota's overrun may wait for the global one.
            self.release_global_overrun();
            return true;
        }
        quota.global_excess() > 0 && waits(&quota.global.overrun, &mut self.global_overrun)
    }

    /// Returns whether an event is incomplete or waits for the store, so that no client can have
    /// it.
    pub(in crate::event_log) fn is_arriving(&self) -> bool {
        self.arriving > 0 || self.staged > 0
    }

    /// Keeps the overrun without progress: the store is unreachable, and the event of another call
    /// would wait there as well.
    pub(in crate::event_log) fn keep_overrun(&mut self, now: Instant) {
        let quota = self.reservation.quota();
        let keep = |overrun: &Overrun, number: Option<u64>| number.is_some_and(|number| overrun.touch(number, now));
        keep(&quota.overrun, self.overrun);
        keep(&quota.global.overrun, self.global_overrun);
    }

    /// Returns whether this call holds an overrun.
    pub(in crate::event_log) fn has_overrun(&self) -> bool {
        self.overrun.is_some() || self.global_overrun.is_some()
    }

    /// Releases the overrun to another call.
    pub(in crate::event_log) fn release_overrun(&mut self) {
        if let Some(number) = self.overrun.take() {
            self.quota().overrun.free(number);
        }
        self.release_global_overrun();
    }

    fn release_global_overrun(&mut self) {
        if let Some(number) = self.global_overrun.take() {
            self.quota().global.overrun.free(number);
        }
    }

    /// Sets the bytes of the server's requests that are remembered. Most events hold none, and cost
    /// nothing here.
    pub(in crate::event_log) fn set_server_requests(&mut self, bytes: usize) {
        if bytes != self.server_requests {
            self.server_requests = bytes;
            self.count();
        }
    }

    fn count(&mut self) {
        self.reservation.set(self.base + self.server_requests + self.events + self.staged + self.arriving);
    }

    /// Keeps these bytes of the arriving data beside the events, for a retry.
    pub(in crate::event_log) fn keep_beside(&mut self, bytes: usize) {
        self.arriving = 0;
        self.base += bytes;
        self.count();
    }

    /// Counts the call as ended, and keeps the bytes of its response, which passes.
    pub fn keep_passing(&mut self, bytes: usize) {
        self.set_running(false);
        self.keep_beside(bytes);
    }

    /// Counts the call as running again: its response passed, and may not have arrived.
    pub fn run_again(&mut self) {
        self.set_running(true);
    }

    /// Releases the request of a call that has ended; `events` are the bytes of its events.
    pub(in crate::event_log) fn forget_request(&mut self, events: usize) {
        (self.base, self.arriving, self.events) = (STREAM_COST, 0, events);
        self.count();
    }

    /// Sets whether the stream is a running call. A finished one counts by its bytes alone.
    pub(in crate::event_log) fn set_running(&mut self, is_running: bool) {
        if is_running == self.is_running {
            return;
        }
        self.is_running = is_running;
        let streams = &self.quota().streams;
        if is_running {
            streams.fetch_add(1, Ordering::Relaxed);
        } else {
            streams.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Counts the stream as the running call of a task, unless the caller has as many as it may
    /// have. Returns whether it counts.
    pub fn reserve_task(&mut self) -> bool {
        if !self.is_task {
            let quota = self.quota();
            let max_tasks = quota.global().allowance.max_tasks;
            let more = |tasks: usize| (tasks < max_tasks).then_some(tasks + 1);
            self.is_task = quota.tasks.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok();
        }
        self.is_task
    }

    /// Sets whether the stream is the running call of a task.
    pub(in crate::event_log) fn set_task(&mut self, is_task: bool) {
        if is_task == self.is_task {
            return;
        }
        self.is_task = is_task;
        let quota = self.quota();
        if is_task {
            quota.tasks.fetch_add(1, Ordering::Relaxed);
        } else {
            quota.tasks.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Sets whether the stream is a running call without a reader.
    pub(in crate::event_log) fn set_detached(&mut self, is_detached: bool) {
        if is_detached == self.is_detached {
            return;
        }
        self.is_detached = is_detached;
        let quota = self.quota();
        if is_detached {
            quota.detached.fetch_add(1, Ordering::Relaxed);
        } else {
            quota.detached.fetch_sub(1, Ordering::Relaxed);
        }
        quota.global.metrics.observe_detached(is_detached);
    }
}

impl Drop for StreamReservation {
    fn drop(&mut self) {
        self.release_overrun();
        self.set_task(false);
        self.set_detached(false);
        self.set_running(false);
        self.quota().global.metrics.observe_stream_end();
    }
}
