//! Quotas: the memory and calls that one principal holds, and all principals together.
//!
//! Owned here: the accounts behind every limit per principal, and the decision whether one is exceeded. A stream
//! refers to the quota of its principal, so that an event costs two additions and no lookup. Invariants: the bytes of
//! a [`StreamReservation`] or a [`Reservation`] are subtracted when it is dropped, so that an account never drifts;
//! memory is counted as it is allocated, spare capacity included. Absent: eviction, which needs the streams
//! (`writer/eviction.rs`), and the error response for a refused request.
//!
//! **The total.** The last eighth of `max_bytes_total` is reserved for principals that hold little. Once the rest is
//! taken, a principal that holds more than its fair share of that eighth is over its limit, as if its own quota were
//! full; the others are not affected. A full process therefore evicts from the principals that filled it.

pub(in crate::event_log) mod largest;
mod upload;

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::ops::Bound;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use dashmap::DashMap;
use tokio::sync::Notify;
pub use upload::UploadReservation;

use crate::clock;
use crate::event_log::identity::principal::Principal;
use crate::event_log::metrics::Metrics;
use crate::protocol::headers::SessionId;
use crate::protocol::ids::StreamId;
use crate::sync;

/// Approximate cost of a stream beside its events: state, pump and its part of the upstream connection.
const STREAM_COST: usize = 2048;
/// Divisor of the total: this part is reserved for principals that hold little.
const RESERVE: usize = 8;
/// Bytes of an incomplete event that are read however full the quota is: one piece of a gathering read. To read more
/// without capacity takes the [`Overrun`], one call at a time.
const ARRIVING_FREE: usize = 64 * 1024;
/// Time that a call without progress keeps the [`Overrun`]. Neither a server that stops within an event nor a client
/// that reads nothing blocks the other calls of a full quota.
const OVERRUN_IDLE: Duration = Duration::from_secs(5);
/// Burst of resumes, as time at their rate: all clients of a site are cut together and resume together.
const RESUME_BURST: Duration = Duration::from_secs(10);
/// Number of quotas from which unused ones are swept; the next sweep follows at twice the number then in use.
const QUOTAS_MIN: usize = 1024;

/// Limits of one stream's tail.
#[derive(Clone, Copy, Debug)]
pub struct TailLimits {
    /// Bytes of memory.
    pub max_bytes: usize,
    /// Events.
    pub max_events: usize,
}

/// Limits of one principal, and of all together.
#[derive(Clone, Copy, Debug)]
pub struct QuotaLimits {
    /// Bytes of one principal.
    pub max_bytes: usize,
    /// Bytes of all principals.
    pub max_bytes_total: usize,
    /// Running calls of one principal.
    pub max_streams: usize,
    /// Running calls of one principal without a reader.
    pub max_detached: usize,
    /// Resumes of one principal per second.
    pub resumes_per_sec: u32,
    /// Time for which a stub keeps its last response, and for which a retry may match a call whose delivery is in
    /// doubt.
    pub delivered_retention: Duration,
    /// Sessions that have a record.
    pub max_sessions: usize,
}

/// Holder of a quota.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum QuotaKey {
    /// A principal with a credential.
    Known([u8; 16]),
    /// An anonymous session that was opened here.
    Session(SessionId),
    /// Any other caller at this address.
    Peer(IpAddr),
}

impl QuotaKey {
    /// Returns the key for a principal; `is_proven` says that the server has accepted its credential. Any caller can
    /// invent a credential, so an unproven one shares with the callers without one: the key is the session if it was
    /// opened here, else the address. An IPv6 address counts by its /64 network, because a host has as many addresses
    /// as it likes.
    pub fn of(principal: &Principal, is_proven: bool, opened: Option<&SessionId>, address: IpAddr) -> Self {
        const HOST: u128 = u64::MAX as u128;
        match (principal, opened, address.to_canonical()) {
            (Principal::Known(known), _, _) if is_proven => QuotaKey::Known(*known),
            (_, Some(session), _) => QuotaKey::Session(session.clone()),
            (_, None, IpAddr::V6(v6)) => QuotaKey::Peer(Ipv6Addr::from_bits(v6.to_bits() & !HOST).into()),
            (_, None, v4) => QuotaKey::Peer(v4),
        }
    }
}

/// All quotas, by their keys.
pub struct Quotas {
    global: Arc<GlobalQuota>,
    quotas: DashMap<QuotaKey, Arc<Quota>>,
    sweep_at: AtomicUsize,
}

/// Total of all quotas.
pub(super) struct GlobalQuota {
    pub(super) allowance: QuotaLimits,
    /// Metrics; their gauge of held bytes is the account itself, so that no second one can differ.
    pub(super) metrics: Arc<Metrics>,
    /// Quotas that hold any bytes.
    holders: AtomicUsize,
    /// Overrun of all calls, for a full process.
    overrun: Overrun,
}

/// Quota of one principal.
pub struct Quota {
    global: Arc<GlobalQuota>,
    bytes: AtomicUsize,
    streams: AtomicUsize,
    detached: AtomicUsize,
    /// POSTs without requests in flight to the upstream.
    uploads: AtomicUsize,
    /// Time at which the admitted resumes are paid for: at most [`RESUME_BURST`] from now, plus one.
    resumes_paid: Mutex<Option<Instant>>,
    /// Queue of waiting resumes. A resume is counted only once it is admitted, so a caller that leaves owes nothing.
    resumes_queue: tokio::sync::Mutex<()>,
    queues: Mutex<EvictionQueues>,
    /// Stubs by the time of their creation: they are evicted first.
    stubs: Mutex<BTreeSet<(Instant, StreamId)>>,
    /// Overrun of this quota's calls.
    overrun: Overrun,
}

/// Right to read on with a large event although the quota is full. One call has it at a time, until its client has
/// read the event. A full quota thus makes progress, and is exceeded by one event, or by one more for each
/// [`OVERRUN_IDLE`] in which a client reads nothing.
#[derive(Default)]
struct Overrun {
    held: Mutex<OverrunState>,
    freed: Notify,
}

#[derive(Default)]
struct OverrunState {
    /// Number of the latest holder, so that an earlier one cannot free the right of a later one.
    number: u64,
    /// Last progress of the holder, or `None` if the right is free.
    progress_at: Option<Instant>,
}

impl Overrun {
    /// Takes the right if it is free or its holder makes no progress. Returns the number of the new holder.
    fn take(&self, now: Instant) -> Option<u64> {
        let mut held = self.lock();
        if held.progress_at.is_some_and(|at| now.saturating_duration_since(at) < OVERRUN_IDLE) {
            return None;
        }
        held.number += 1;
        held.progress_at = Some(now);
        Some(held.number)
    }

    /// Notes progress of the holder with this number. Returns false if it has lost the right.
    fn touch(&self, number: u64, now: Instant) -> bool {
        let mut held = self.lock();
        let is_held = held.number == number && held.progress_at.is_some();
        if is_held {
            held.progress_at = Some(now);
        }
        is_held
    }

    fn free(&self, number: u64) {
        let mut held = self.lock();
        if held.number == number {
            held.progress_at = None;
            drop(held);
            self.freed.notify_waiters();
        }
    }

    fn lock(&self) -> MutexGuard<'_, OverrunState> {
        sync::lock(&self.held)
    }
}

/// Reason for which a finished stream may be evicted. Streams of the first queue go first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EvictionQueue {
    /// The last message was delivered.
    Delivered,
    /// The connection with the last message was closed gracefully, but the client may lack the end. The stream is
    /// evicted last, and whole.
    Unconfirmed,
}

/// Finished streams of a quota that may be evicted, by the time at which they were queued.
#[derive(Default)]
struct EvictionQueues {
    delivered: BTreeSet<(Instant, StreamId)>,
    /// Last stream whose front was trimmed.
    trimmed: Option<(Instant, StreamId)>,
    unconfirmed: BTreeSet<(Instant, StreamId)>,
}

impl EvictionQueues {
    fn of(&mut self, queue: EvictionQueue) -> &mut BTreeSet<(Instant, StreamId)> {
        match queue {
            EvictionQueue::Delivered => &mut self.delivered,
            EvictionQueue::Unconfirmed => &mut self.unconfirmed,
        }
    }
}

impl fmt::Debug for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Quota").field("bytes", &self.bytes).field("streams", &self.streams).finish_non_exhaustive()
    }
}

impl Quotas {
    /// Creates an empty set of quotas.
    pub fn new(allowance: QuotaLimits, metrics: Arc<Metrics>) -> Self {
        let global =
            Arc::new(GlobalQuota { allowance, metrics, holders: AtomicUsize::new(0), overrun: Overrun::default() });
        Self { global, quotas: DashMap::new(), sweep_at: AtomicUsize::new(QUOTAS_MIN) }
    }

    /// Returns the quota of `key`; creates it if there is none.
    pub fn of(&self, key: QuotaKey, now: Instant) -> Arc<Quota> {
        if let Some(quota) = self.quotas.get(&key) {
            return quota.clone();
        }
        if self.quotas.len() >= self.sweep_at.load(Ordering::Relaxed) {
            self.sweep(now);
        }
        self.quotas.entry(key).or_insert_with(|| Arc::new(Quota::new(self.global.clone()))).clone()
    }

    /// Forgets unused quotas. Invented keys cost at most twice the quotas in use.
    pub(super) fn sweep(&self, now: Instant) {
        self.quotas.retain(|_, quota| Arc::strong_count(quota) > 1 || quota.owes_time(now));
        self.sweep_at.store(self.quotas.len().saturating_mul(2).max(QUOTAS_MIN), Ordering::Relaxed);
    }

    /// Returns the number of quotas.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.quotas.len()
    }

    /// Returns the quotas that hold any bytes, the largest first.
    pub(super) fn largest_first(&self) -> Vec<Arc<Quota>> {
        let mut quotas: Vec<(usize, Arc<Quota>)> =
            self.quotas.iter().map(|quota| (quota.bytes(), quota.value().clone())).collect();
        quotas.retain(|(bytes, _)| *bytes > 0);
        quotas.sort_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
        quotas.into_iter().map(|(_, quota)| quota).collect()
    }

    pub(super) fn global(&self) -> &GlobalQuota {
        &self.global
    }
}

impl GlobalQuota {
    /// Returns the bytes to free before principals above their fair share may hold more.
    pub(super) fn excess(&self) -> usize {
        self.metrics.held_bytes().saturating_sub(self.high())
    }

    fn high(&self) -> usize {
        self.allowance.max_bytes_total - self.allowance.max_bytes_total / RESERVE
    }

    /// Returns the bytes that every principal may hold in a full process.
    fn fair_share(&self) -> usize {
        self.allowance.max_bytes_total / RESERVE / self.holders.load(Ordering::Relaxed).max(1)
    }
}

impl Quota {
    fn new(global: Arc<GlobalQuota>) -> Self {
        Self {
            global,
            bytes: AtomicUsize::new(0),
            streams: AtomicUsize::new(0),
            detached: AtomicUsize::new(0),
            uploads: AtomicUsize::new(0),
            resumes_paid: Mutex::default(),
            resumes_queue: tokio::sync::Mutex::default(),
            queues: Mutex::default(),
            stubs: Mutex::default(),
            overrun: Overrun::default(),
        }
    }

    /// Resolves when a call has released its overrun.
    pub(super) async fn overrun_released(&self) {
        tokio::select! {
            () = self.overrun.freed.notified() => {}
            () = self.global.overrun.freed.notified() => {}
        }
    }

    /// Returns the bytes held.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Returns the number of running calls.
    pub fn streams(&self) -> usize {
        self.streams.load(Ordering::Relaxed)
    }

    /// Returns the number of running calls without a reader.
    pub fn detached(&self) -> usize {
        self.detached.load(Ordering::Relaxed)
    }

    /// Returns whether the quota must free bytes before it may hold more.
    pub fn is_exceeded(&self) -> bool {
        self.excess() > 0
    }

    /// Returns the bytes to free: the excess over its own limit, or its part of the excess over the total.
    pub(super) fn excess(&self) -> usize {
        self.own_excess().max(self.global_excess())
    }

    pub(super) fn own_excess(&self) -> usize {
        self.bytes().saturating_sub(self.global.allowance.max_bytes)
    }

    pub(super) fn global_excess(&self) -> usize {
        let excess = self.global.excess();
        if excess == 0 { 0 } else { excess.min(self.bytes().saturating_sub(self.global.fair_share())) }
    }

    /// Returns whether the quota holds more than its fair share of a full process.
    pub(super) fn exceeds_fair_share(&self) -> bool {
        self.bytes() > self.global.fair_share()
    }

    /// Reserves `bytes` for a request until it belongs to a stream.
    pub fn reserve(self: &Arc<Self>, bytes: usize) -> Reservation {
        let mut reservation = Reservation { quota: self.clone(), bytes: 0 };
        reservation.set(bytes);
        reservation
    }

    /// Reserves memory for one more stream with a request of this size. The stream reports later that it is a running
    /// call.
    pub(super) fn reserve_stream(self: &Arc<Self>, request_bytes: usize) -> StreamReservation {
        self.global.metrics.observe_stream();
        let base = STREAM_COST + request_bytes;
        StreamReservation {
            reservation: self.reserve(base),
            base,
            server_requests: 0,
            events: 0,
            staged: 0,
            arriving: 0,
            overrun: None,
            global_overrun: None,
            is_running: false,
            detached: false,
        }
    }

    /// Admits a resume at once, if none waits and the rate allows one more. Returns whether it was admitted and
    /// counted.
    pub fn try_resume(&self) -> bool {
        self.resumes_queue.try_lock().is_ok() && self.count_resume(clock::now()).is_ok()
    }

    /// Waits until one more resume is admitted, in the order of arrival, and counts it. To drop the future gives up
    /// the place in the queue.
    pub async fn wait_for_resume(&self) {
        let _turn = self.resumes_queue.lock().await;
        while let Err(at) = self.count_resume(clock::now()) {
            clock::sleep_until(at).await;
        }
    }

    /// Counts a resume at `now`.
    ///
    /// # Errors
    /// The time at which one may be counted.
    fn count_resume(&self, now: Instant) -> Result<(), Instant> {
        let cost = Duration::from_secs(1) / self.global.allowance.resumes_per_sec;
        let mut paid = sync::lock(&self.resumes_paid);
        let before = paid.map_or(now, |paid| paid.max(now));
        match before.checked_sub(RESUME_BURST).filter(|at| *at > now) {
            Some(at) => Err(at),
            None => {
                *paid = Some(before + cost);
                Ok(())
            }
        }
    }

    /// Returns whether forgetting the quota would make its next resumes cheaper.
    fn owes_time(&self, now: Instant) -> bool {
        sync::lock(&self.resumes_paid).is_some_and(|paid| paid > now)
    }

    pub(super) fn enqueue(&self, (queue, at): (EvictionQueue, Instant), stream: StreamId) {
        self.queues().of(queue).insert((at, stream));
    }

    pub(super) fn dequeue(&self, (queue, at): (EvictionQueue, Instant), stream: StreamId) {
        self.queues().of(queue).remove(&(at, stream));
    }

    /// Returns the length of a queue.
    pub(super) fn queue_len(&self, queue: EvictionQueue) -> usize {
        self.queues().of(queue).len()
    }

    /// Takes the first stream out of a queue, with the time at which it was queued.
    pub(super) fn pop_first_of(&self, queue: EvictionQueue) -> Option<(Instant, StreamId)> {
        self.queues().of(queue).pop_first()
    }

    pub(super) fn add_stub(&self, at: Instant, stream: StreamId) {
        self.stubs().insert((at, stream));
    }

    pub(super) fn remove_stub(&self, at: Instant, stream: StreamId) {
        self.stubs().remove(&(at, stream));
    }

    /// Takes the oldest stub.
    pub(super) fn pop_stub(&self) -> Option<StreamId> {
        self.stubs().pop_first().map(|(_, stream)| stream)
    }

    /// Returns the stream that was delivered first among those not yet returned by this method. The stream stays in
    /// the queue.
    pub(super) fn next_to_trim(&self) -> Option<StreamId> {
        let mut queues = self.queues();
        let from = queues.trimmed.map_or(Bound::Unbounded, Bound::Excluded);
        let next = *queues.delivered.range((from, Bound::Unbounded)).next()?;
        queues.trimmed = Some(next);
        Some(next.1)
    }

    /// Counts the events that a stream trimmed, and whether the stream now pauses its upstream.
    pub(super) fn observe_trim(&self, trimmed: u64, pauses: bool) {
        if trimmed > 0 {
            self.global.metrics.observe_trimmed(trimmed);
        }
        if pauses {
            self.global.metrics.observe_pause();
        }
    }

    pub(super) fn global(&self) -> &GlobalQuota {
        &self.global
    }

    fn stubs(&self) -> MutexGuard<'_, BTreeSet<(Instant, StreamId)>> {
        sync::lock(&self.stubs)
    }

    fn queues(&self) -> MutexGuard<'_, EvictionQueues> {
        sync::lock(&self.queues)
    }

    fn add(&self, bytes: usize) {
        if self.bytes.fetch_add(bytes, Ordering::Relaxed) == 0 {
            self.global.holders.fetch_add(1, Ordering::Relaxed);
        }
        self.global.metrics.observe_held(bytes);
    }

    fn take_off(&self, bytes: usize) {
        if self.bytes.fetch_sub(bytes, Ordering::Relaxed) == bytes {
            self.global.holders.fetch_sub(1, Ordering::Relaxed);
        }
        self.global.metrics.observe_released(bytes);
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
            None => self.quota.take_off(self.bytes - bytes),
        }
        self.bytes = bytes;
    }

    /// Returns the quota in which the bytes count.
    pub fn quota(&self) -> &Arc<Quota> {
        &self.quota
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// Reservation of one stream: its bytes, and whether it is a running call, with or without a reader.
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
    /// Number by which this call holds the quota's overrun, or `None`.
    overrun: Option<u64>,
    global_overrun: Option<u64>,
    is_running: bool,
    detached: bool,
}

impl StreamReservation {
    pub(super) fn quota(&self) -> &Arc<Quota> {
        &self.reservation.quota
    }

    /// Sets the bytes of the events.
    pub(super) fn set_events(&mut self, bytes: usize) {
        self.events = bytes;
        self.count();
    }

    /// Sets the bytes of the events in flight to the store.
    pub(super) fn set_staged(&mut self, bytes: usize) {
        if bytes != self.staged {
            self.staged = bytes;
            self.count();
        }
    }

    /// Counts the staged events as stored; `events` are the bytes of all events then.
    pub(super) fn set_stored(&mut self, events: usize) {
        self.staged = 0;
        self.set_events(events);
    }

    /// Sets the bytes received of an incomplete event.
    pub(super) fn set_arriving(&mut self, bytes: usize) {
        self.arriving = bytes;
        self.count();
    }

    /// Returns whether the rest of an arriving event must wait, because the quota is full and another call has the
    /// overrun. A call takes the overrun only if it `may_take` it.
    pub(super) fn must_wait(&mut self, may_take: bool, now: Instant) -> bool {
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
            // A call never waits for its quota's overrun while it holds the global one, for which the holder of the
            // first may wait.
            self.release_global_overrun();
            return true;
        }
        quota.global_excess() > 0 && waits(&quota.global.overrun, &mut self.global_overrun)
    }

    /// Returns whether an event is incomplete or waits for the store, so that no client can have it.
    pub(super) fn is_arriving(&self) -> bool {
        self.arriving > 0 || self.staged > 0
    }

    /// Keeps the overrun without progress: the store is unreachable, and the event of another call would wait there as
    /// well.
    pub(super) fn keep_overrun(&mut self, now: Instant) {
        let quota = self.reservation.quota();
        let keep = |overrun: &Overrun, number: Option<u64>| number.is_some_and(|number| overrun.touch(number, now));
        keep(&quota.overrun, self.overrun);
        keep(&quota.global.overrun, self.global_overrun);
    }

    /// Returns whether this call holds an overrun.
    pub(super) fn has_overrun(&self) -> bool {
        self.overrun.is_some() || self.global_overrun.is_some()
    }

    /// Releases the overrun to another call.
    pub(super) fn release_overrun(&mut self) {
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

    /// Sets the bytes of the server's requests that are remembered. Most events hold none, and cost nothing here.
    pub(super) fn set_server_requests(&mut self, bytes: usize) {
        if bytes != self.server_requests {
            self.server_requests = bytes;
            self.count();
        }
    }

    fn count(&mut self) {
        self.reservation.set(self.base + self.server_requests + self.events + self.staged + self.arriving);
    }

    /// Keeps these bytes of the arriving data beside the events, for a retry.
    pub(super) fn keep_beside(&mut self, bytes: usize) {
        self.arriving = 0;
        self.base += bytes;
        self.count();
    }

    /// Releases the request of a call that is over; `events` are the bytes of its events.
    pub(super) fn forget_request(&mut self, events: usize) {
        self.base = STREAM_COST;
        self.set_arriving(0);
        self.set_events(events);
    }

    /// Sets whether the stream is a running call. A finished one counts by its bytes alone.
    pub(super) fn set_running(&mut self, is_running: bool) {
        if is_running == self.is_running {
            return;
        }
        self.is_running = is_running;
        let streams = &self.quota().streams;
        match is_running {
            true => streams.fetch_add(1, Ordering::Relaxed),
            false => streams.fetch_sub(1, Ordering::Relaxed),
        };
    }

    /// Sets whether the stream is a running call without a reader.
    pub(super) fn set_detached(&mut self, detached: bool) {
        if detached == self.detached {
            return;
        }
        self.detached = detached;
        let quota = self.quota();
        match detached {
            true => quota.detached.fetch_add(1, Ordering::Relaxed),
            false => quota.detached.fetch_sub(1, Ordering::Relaxed),
        };
        quota.global.metrics.observe_detached(detached);
    }
}

impl Drop for StreamReservation {
    fn drop(&mut self) {
        self.release_overrun();
        self.set_detached(false);
        self.set_running(false);
        self.quota().global.metrics.observe_stream_end();
    }
}
