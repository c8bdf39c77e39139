//! What one principal holds of this process, and what all of them hold together.
//!
//! Owned here: the accounts that every bound per principal hangs on, and the verdict whether one is over. A stream has its
//! principal's share at hand, so that an event costs two additions and no search. Invariants: what a [`StreamReservation`] or a [`Reservation`]
//! added is taken off when it is dropped, so that an account never drifts; memory is counted as it is taken, reserves and all.
//! Absent: making room, which needs the streams (`writer/eviction.rs`), and the answer to whoever finds no room.
//!
//! **The total.** The last eighth of `max_bytes_total` is kept for those who hold little. Once the rest is taken, whoever holds
//! more than an even part of that eighth is over, and gives way as if its own share were full; the others do not notice. So one
//! principal's excess is taken from that principal also when the process is full.

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

/// What a stream costs beside its events, about: its state, its pump and the upstream connection's part in it.
const STREAM_COST: usize = 2048;
/// This part of the total is kept for those who hold little.
const RESERVE: usize = 8;
/// What is read of an event that has not come whole, however full the share is: the piece that a gather takes at once. To read on with it
/// where there is no room is a turn, of one call at a time.
const ARRIVING_FREE: usize = 64 * 1024;
/// A call that has the turn and gets no further keeps it for so long: neither a server that stops within an event nor a client that takes
/// nothing keeps the other calls of a full share waiting.
const OVERRUN_IDLE: Duration = Duration::from_secs(5);
/// Resumes that may come at once, in seconds' worth of their rate: all clients of a site are cut together and come back
/// together.
const RESUME_BURST: Duration = Duration::from_secs(10);
/// Quotas that nobody uses are looked for once there are so many, and again at each doubling of those in use.
const QUOTAS_MIN: usize = 1024;

/// The bounds of one stream's tail.
#[derive(Clone, Copy, Debug)]
pub struct TailLimits {
    /// Bytes of memory.
    pub max_bytes: usize,
    /// Events.
    pub max_events: usize,
}

/// What one principal may hold, and all together.
#[derive(Clone, Copy, Debug)]
pub struct QuotaLimits {
    /// Bytes of one principal.
    pub max_bytes: usize,
    /// Bytes of all.
    pub max_bytes_total: usize,
    /// Calls of one principal that run.
    pub max_streams: usize,
    /// Those of them that no connection reads.
    pub max_detached: usize,
    /// Resumes of one principal in a second.
    pub resumes_per_sec: u32,
    /// A stub keeps its last response for so long, and a delivery that is in doubt is a retry's for so long.
    pub delivered_retention: Duration,
    /// Sessions that are remembered.
    pub max_sessions: usize,
}

/// Whose share it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum QuotaKey {
    /// A principal with a credential.
    Known([u8; 16]),
    /// An anonymous session that was opened here.
    Session(SessionId),
    /// Whoever else is at that address.
    Peer(IpAddr),
}

impl QuotaKey {
    /// The share of a principal that `is_proven` is its own. Anybody can make up a credential: any other shares with those who show
    /// none. That is its session's share, if the session was opened here: anybody can make up the name of one. Else its address's; of
    /// IPv6 the network's, because a host has as many addresses as it likes.
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

/// All shares.
pub struct Quotas {
    global: Arc<GlobalQuota>,
    quotas: DashMap<QuotaKey, Arc<Quota>>,
    sweep_at: AtomicUsize,
}

/// What every share is a part of.
pub(super) struct GlobalQuota {
    pub(super) allowance: QuotaLimits,
    /// Its gauge of bytes is the account itself: there is no second one to differ from it.
    pub(super) metrics: Arc<Metrics>,
    /// Quotas that hold anything.
    holders: AtomicUsize,
    /// That of the calls of all shares, where the process is full.
    overrun: Overrun,
}

/// One principal's share.
pub struct Quota {
    global: Arc<GlobalQuota>,
    bytes: AtomicUsize,
    streams: AtomicUsize,
    detached: AtomicUsize,
    /// POSTs without requests that are on their way up.
    carried: AtomicUsize,
    /// When the resumes that were let through are paid for: at most [`RESUME_BURST`] from now, and one more.
    resumes_paid: Mutex<Option<Instant>>,
    /// The queue of those that wait. Nothing is owed for them before it is their turn, so whoever leaves it gives up its place.
    resumes_queue: tokio::sync::Mutex<()>,
    delivered: Mutex<Delivered>,
    /// The stubs of a share, by when they became that: they go before all else.
    proven: Mutex<BTreeSet<(Instant, StreamId)>>,
    /// That of its calls, where it is full.
    overrun: Overrun,
}

/// The right to read on with a large event although there is no room. One call has it at a time, until its client has taken the event:
/// so what is full gets on, and is exceeded by one event, or by one more for each [`OVERRUN_IDLE`] in which a client takes nothing.
#[derive(Default)]
struct Overrun {
    held: Mutex<OverrunState>,
    freed: Notify,
}

#[derive(Default)]
struct OverrunState {
    /// Counts the calls that had the turn, so that one that has lost it does not give back another one's.
    number: u64,
    /// When the call that has it got on last.
    progress_at: Option<Instant>,
}

impl Overrun {
    /// Takes the turn where no other call has it, or that call gets no further. Returns its number.
    fn take(&self, now: Instant) -> Option<u64> {
        let mut held = self.lock();
        if held.progress_at.is_some_and(|at| now.saturating_duration_since(at) < OVERRUN_IDLE) {
            return None;
        }
        held.number += 1;
        held.progress_at = Some(now);
        Some(held.number)
    }

    /// Notes that the call with this number got on; false where it has the turn no more.
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

/// Why a stream that is over may go to make room. Those of the first row go first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EvictionQueue {
    /// It has arrived.
    Delivered,
    /// The connection that carried it all ended in peace. Its client may lack the end: the stream goes last, and whole.
    Unconfirmed,
}

/// The streams of a share that are over and may go, by when each came into its row: the first to go.
#[derive(Default)]
struct Delivered {
    row: BTreeSet<(Instant, StreamId)>,
    /// Up to here they were shortened.
    shortened: Option<(Instant, StreamId)>,
    unconfirmed: BTreeSet<(Instant, StreamId)>,
}

impl Delivered {
    fn row(&mut self, row: EvictionQueue) -> &mut BTreeSet<(Instant, StreamId)> {
        match row {
            EvictionQueue::Delivered => &mut self.row,
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
    /// None yet.
    pub fn new(allowance: QuotaLimits, metrics: Arc<Metrics>) -> Self {
        let global =
            Arc::new(GlobalQuota { allowance, metrics, holders: AtomicUsize::new(0), overrun: Overrun::default() });
        Self { global, quotas: DashMap::new(), sweep_at: AtomicUsize::new(QUOTAS_MIN) }
    }

    /// The share of `sharer`, an empty one if it has none yet.
    pub fn of(&self, key: QuotaKey, now: Instant) -> Arc<Quota> {
        if let Some(quota) = self.quotas.get(&key) {
            return quota.clone();
        }
        if self.quotas.len() >= self.sweep_at.load(Ordering::Relaxed) {
            self.sweep(now);
        }
        self.quotas.entry(key).or_insert_with(|| Arc::new(Quota::new(self.global.clone()))).clone()
    }

    /// Forgets the shares that nobody uses. Made-up names cost no more than twice what is in use.
    pub(super) fn sweep(&self, now: Instant) {
        self.quotas.retain(|_, quota| Arc::strong_count(quota) > 1 || quota.owes_time(now));
        self.sweep_at.store(self.quotas.len().saturating_mul(2).max(QUOTAS_MIN), Ordering::Relaxed);
    }

    /// How many are known.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.quotas.len()
    }

    /// Those that hold anything, the largest first.
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
    /// Bytes that must go before those who hold more than an even part of the reserve may hold more.
    pub(super) fn excess(&self) -> usize {
        self.metrics.held_bytes().saturating_sub(self.high())
    }

    fn high(&self) -> usize {
        self.allowance.max_bytes_total - self.allowance.max_bytes_total / RESERVE
    }

    /// What everybody may hold, however full it is.
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
            carried: AtomicUsize::new(0),
            resumes_paid: Mutex::default(),
            resumes_queue: tokio::sync::Mutex::default(),
            delivered: Mutex::default(),
            proven: Mutex::default(),
            overrun: Overrun::default(),
        }
    }

    /// Resolves when a call that had the turn to read on has given it back.
    pub(super) async fn overrun_released(&self) {
        tokio::select! {
            () = self.overrun.freed.notified() => {}
            () = self.global.overrun.freed.notified() => {}
        }
    }

    /// Bytes it holds.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Calls of it that run.
    pub fn streams(&self) -> usize {
        self.streams.load(Ordering::Relaxed)
    }

    /// Those of them that no connection reads.
    pub fn detached(&self) -> usize {
        self.detached.load(Ordering::Relaxed)
    }

    /// Whether it must give something up before it may hold more.
    pub fn is_exceeded(&self) -> bool {
        self.excess() > 0
    }

    /// Bytes it must give up: what is above its own bound, or its part of what is above the total.
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

    /// Whether it holds more than everybody may, however full the process is.
    pub(super) fn exceeds_fair_share(&self) -> bool {
        self.bytes() > self.global.fair_share()
    }

    /// Holds `bytes` of a request until they are known to belong to a stream.
    pub fn reserve(self: &Arc<Self>, bytes: usize) -> Reservation {
        let mut reservation = Reservation { quota: self.clone(), bytes: 0 };
        reservation.set(bytes);
        reservation
    }

    /// The account of one more stream, whose request has so many bytes. Its stream says when it is a call that runs.
    pub(super) fn reserve_stream(self: &Arc<Self>, request_bytes: usize) -> StreamReservation {
        self.global.metrics.observe_stream();
        let base = STREAM_COST + request_bytes;
        StreamReservation {
            reservation: self.reserve(base),
            base,
            asks: 0,
            events: 0,
            staged: 0,
            arriving: 0,
            overrun: None,
            global_overrun: None,
            running: false,
            detached: false,
        }
    }

    /// Whether a resume may go on at once: none waits, and the rate allows one more. Counts it then.
    pub fn try_resume(&self) -> bool {
        self.resumes_queue.try_lock().is_ok() && self.count_resume(clock::now()).is_ok()
    }

    /// Waits until one more resume may go on, in the order of arrival, and counts it. Dropping the future before gives up its place.
    pub async fn wait_for_resume(&self) {
        let _turn = self.resumes_queue.lock().await;
        while let Err(at) = self.count_resume(clock::now()) {
            clock::sleep_until(at).await;
        }
    }

    /// Counts a resume that goes on `now`.
    ///
    /// # Errors
    /// When one may.
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

    /// Whether forgetting it would make its next resumes cheaper.
    fn owes_time(&self, now: Instant) -> bool {
        sync::lock(&self.resumes_paid).is_some_and(|paid| paid > now)
    }

    pub(super) fn enqueue(&self, (row, at): (EvictionQueue, Instant), stream: StreamId) {
        self.delivered().row(row).insert((at, stream));
    }

    pub(super) fn dequeue(&self, (row, at): (EvictionQueue, Instant), stream: StreamId) {
        self.delivered().row(row).remove(&(at, stream));
    }

    /// How many of its streams are in that row.
    pub(super) fn queue_len(&self, row: EvictionQueue) -> usize {
        self.delivered().row(row).len()
    }

    /// Takes the first stream out of that row, with the time it came there.
    pub(super) fn pop_first_of(&self, row: EvictionQueue) -> Option<(Instant, StreamId)> {
        self.delivered().row(row).pop_first()
    }

    pub(super) fn add_stub(&self, at: Instant, stream: StreamId) {
        self.proven().insert((at, stream));
    }

    pub(super) fn remove_stub(&self, at: Instant, stream: StreamId) {
        self.proven().remove(&(at, stream));
    }

    /// Its oldest stub.
    pub(super) fn pop_stub(&self) -> Option<StreamId> {
        self.proven().pop_first().map(|(_, stream)| stream)
    }

    /// Its stream that was delivered first of those that this has not handed out yet. They stay in the row.
    pub(super) fn next_to_trim(&self) -> Option<StreamId> {
        let mut delivered = self.delivered();
        let from = delivered.shortened.map_or(Bound::Unbounded, Bound::Excluded);
        let next = *delivered.row.range((from, Bound::Unbounded)).next()?;
        delivered.shortened = Some(next);
        Some(next.1)
    }

    /// One of its streams dropped so many events to make room, and keeps its upstream waiting or not.
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

    fn proven(&self) -> MutexGuard<'_, BTreeSet<(Instant, StreamId)>> {
        sync::lock(&self.proven)
    }

    fn delivered(&self) -> MutexGuard<'_, Delivered> {
        sync::lock(&self.delivered)
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

/// Bytes held in somebody's name for as long as this lives.
#[derive(Debug)]
pub struct Reservation {
    quota: Arc<Quota>,
    bytes: usize,
}

impl Reservation {
    /// So many from now on.
    pub fn set(&mut self, bytes: usize) {
        match bytes.checked_sub(self.bytes) {
            Some(0) => {}
            Some(more) => self.quota.add(more),
            None => self.quota.take_off(self.bytes - bytes),
        }
        self.bytes = bytes;
    }

    /// Whose they are.
    pub fn quota(&self) -> &Arc<Quota> {
        &self.quota
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// One stream's part of its principal's share: what it holds, whether it is a call that runs, and whether that has no client.
#[derive(Debug)]
pub struct StreamReservation {
    reservation: Reservation,
    /// What it holds beside its events.
    base: usize,
    /// What is remembered of the server's questions.
    asks: usize,
    events: usize,
    /// Events that the store has not accepted yet.
    staged: usize,
    /// What has come of an event that is not whole.
    arriving: usize,
    /// The number of its turn in its share, where it has taken one.
    overrun: Option<u64>,
    global_overrun: Option<u64>,
    running: bool,
    detached: bool,
}

impl StreamReservation {
    pub(super) fn quota(&self) -> &Arc<Quota> {
        &self.reservation.quota
    }

    /// Its events take so many bytes.
    pub(super) fn set_events(&mut self, bytes: usize) {
        self.events = bytes;
        self.count();
    }

    /// Events of so many bytes are on their way into the store.
    pub(super) fn set_staged(&mut self, bytes: usize) {
        if bytes != self.staged {
            self.staged = bytes;
            self.count();
        }
    }

    /// The store has accepted what was on its way there; the events take so many bytes with that.
    pub(super) fn set_stored(&mut self, events: usize) {
        self.staged = 0;
        self.set_events(events);
    }

    /// So many bytes have come of an event that is not whole.
    pub(super) fn set_arriving(&mut self, bytes: usize) {
        self.arriving = bytes;
        self.count();
    }

    /// Returns whether the rest of an event that is arriving is to wait, because there is no room and it is not this call's turn. A call
    /// takes a turn only where it `may_take` one.
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
            // A call never waits for its share's turn with that of the process: the call that has its share's may wait for this one.
            self.release_global_overrun();
            return true;
        }
        quota.global_excess() > 0 && waits(&quota.global.overrun, &mut self.global_overrun)
    }

    /// Returns whether a part of an event has come, and not all of it, or an event waits for the store: no client can have it.
    pub(super) fn is_arriving(&self) -> bool {
        self.arriving > 0 || self.staged > 0
    }

    /// Keeps the turn that it has, although it gets no further: the store cannot be reached, and another call's event would wait there
    /// as well.
    pub(super) fn keep_overrun(&mut self, now: Instant) {
        let quota = self.reservation.quota();
        let keep = |overrun: &Overrun, number: Option<u64>| number.is_some_and(|number| overrun.touch(number, now));
        keep(&quota.overrun, self.overrun);
        keep(&quota.global.overrun, self.global_overrun);
    }

    /// Returns whether it has taken a turn.
    pub(super) fn has_overrun(&self) -> bool {
        self.overrun.is_some() || self.global_overrun.is_some()
    }

    /// Lets another call read on.
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

    /// What is remembered of the server's questions takes so many bytes. Nothing to do for most events: they ask nothing.
    pub(super) fn set_server_requests(&mut self, bytes: usize) {
        if bytes != self.asks {
            self.asks = bytes;
            self.count();
        }
    }

    fn count(&mut self) {
        self.reservation.set(self.base + self.asks + self.events + self.staged + self.arriving);
    }

    /// It keeps so many bytes beside its events, for a retry: of what was arriving.
    pub(super) fn keep_beside(&mut self, bytes: usize) {
        self.arriving = 0;
        self.base += bytes;
        self.count();
    }

    /// Its call is over, the request is gone; its events take so many bytes.
    pub(super) fn forget_request(&mut self, events: usize) {
        self.base = STREAM_COST;
        self.set_arriving(0);
        self.set_events(events);
    }

    /// Whether it is a call that runs. One that is over counts by its bytes alone.
    pub(super) fn set_running(&mut self, running: bool) {
        if running == self.running {
            return;
        }
        self.running = running;
        let streams = &self.quota().streams;
        match running {
            true => streams.fetch_add(1, Ordering::Relaxed),
            false => streams.fetch_sub(1, Ordering::Relaxed),
        };
    }

    /// Whether it is a call that runs without a client.
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
