//! Eviction of session records: the idle ones after a time, and the least recently used beyond a
//! limit.
//!
//! Owned here: the limits of records, their count, and the choice of the records to remove. Absent:
//! the order of the records that were opened here (`lru_queue.rs`).

use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use crate::clock;
use crate::event_log::metrics::Metrics;
use crate::event_log::sessions::lru_queue::{Found, LruQueue};
use crate::event_log::sessions::{Key, Session, Sessions, is_living};
use crate::sync;

/// Longest idle time of a session without streams. It is forgotten then. The upstream may still
/// know it.
const IDLE: Duration = Duration::from_secs(3600);
/// Idle time for a session that was opened elsewhere: without a stream its record is empty, and any
/// caller can invent an id.
const IDLE_UNOPENED: Duration = Duration::from_secs(60);
/// Divisor of the limit of sessions opened here: this many records of sessions opened elsewhere may
/// exist beside those in use. A record has up to 1.5 KiB.
const UNOPENED: usize = 4;

impl Sessions {
    /// Forgets idle sessions, and standalone streams that have ended.
    pub fn sweep(&self, now: Instant) {
        self.standalone.retain(|_, stream| is_living(stream));
        let mut gone = 0;
        self.sessions.retain(|key, session| {
            let listens = self.standalone.contains_key(key);
            let idle = if session.opened.is_some() { IDLE } else { IDLE_UNOPENED };
            let used = session.lock().used;
            let stays = listens || now.saturating_duration_since(used) < idle || session.has_streams();
            self.handshakes.note_use(&key.0, used);
            gone += usize::from(!stays && session.opened.is_some());
            stays
        });
        self.lru_queue().forget(gone);
        self.handshakes.sweep(now, || self.sessions.iter().map(|entry| entry.key().0.clone()).collect());
        // The extra limit for records in use shrinks with them.
        let left = self.record_count.unopened.load(Ordering::Relaxed);
        let most = unopened_max(self.max_opened);
        self.evict_at.fetch_min(most.max(left + most / 2), Ordering::Relaxed);
    }

    /// Queues a record of a session opened here that is now in the map. Beyond the limit the least
    /// recently used goes; one in use goes only if those before it are in use as well.
    pub(super) fn enter(&self, key: Key, serial: u64) {
        let mut queue = self.lru_queue();
        let find = |key: &Key, serial: u64| {
            let Some(entry) = self.sessions.get(key).filter(|entry| entry.serial == serial) else { return Found::Gone };
            let used = entry.lock().used;
            Found::Used(used, self.is_in_use(key, entry.value()))
        };
        while queue.len() >= self.max_opened {
            let Some((key, serial)) = queue.pop(find) else { break };
            if self.sessions.remove_if(&key, |_, session| session.serial == serial).is_some() {
                self.record_count.metrics.observe_session_eviction();
            }
        }
        // After all that were skipped: the newest is the last to go.
        queue.push(key, serial, clock::now());
        queue.prune(self.max_opened, |key, serial| matches!(find(key, serial), Found::Used(..)));
    }

    /// Forgets half of the unused records of sessions opened elsewhere, the least recently used, if
    /// there are too many. A search scans the whole map, so there is one per half the limit of new
    /// records.
    pub(super) fn keep_bound(&self) {
        let evict_at = self.evict_at.load(Ordering::Relaxed);
        let is_due = self.record_count.unopened.load(Ordering::Relaxed) >= evict_at;
        // One task searches at a time.
        let begins =
            || self.evict_at.compare_exchange(evict_at, usize::MAX, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if !is_due || !begins() {
            return;
        }
        let unused = self.sessions.iter().filter(|entry| self.may_evict(entry.key(), entry.value()));
        let mut unused: Vec<_> = unused.map(|entry| (entry.lock().used, entry.key().clone())).collect();
        unused.sort_unstable_by(|(a, (a_id, _)), (b, (b_id, _))| (a, a_id).cmp(&(b, b_id)));
        let half = unopened_max(self.max_opened) / 2;
        unused.truncate(unused.len().saturating_sub(half));
        for (_, key) in &unused {
            if self.sessions.remove_if(key, |key, session| self.may_evict(key, session)).is_some() {
                self.record_count.metrics.observe_session_eviction();
            }
        }
        let left = self.record_count.unopened.load(Ordering::Relaxed);
        self.evict_at.store(left + half.max(1), Ordering::Relaxed);
    }

    /// Returns whether the record may be forgotten: all it holds is whether its client can resume.
    fn may_evict(&self, key: &Key, session: &Arc<Session>) -> bool {
        session.opened.is_none() && !self.is_in_use(key, session)
    }

    /// Returns whether a request or a live stream uses the record.
    fn is_in_use(&self, key: &Key, session: &Arc<Session>) -> bool {
        Arc::strong_count(session) > 1 || session.has_streams() || self.standalone.contains_key(key)
    }

    pub(super) fn lru_queue(&self) -> MutexGuard<'_, LruQueue> {
        sync::lock(&self.lru_queue)
    }
}

/// Returns the limit for sessions opened elsewhere, from the limit for those opened here.
pub(super) fn unopened_max(most: usize) -> usize {
    (most / UNOPENED).max(1)
}

/// Number of records, forgotten ones that are still used included.
pub(super) struct RecordCount {
    unopened: AtomicUsize,
    serials: AtomicU64,
    metrics: Arc<Metrics>,
}

impl RecordCount {
    pub(super) fn new(metrics: Arc<Metrics>) -> Self {
        Self { unopened: AtomicUsize::new(0), serials: AtomicU64::new(0), metrics }
    }

    /// Returns a number that no other record has.
    pub(super) fn next_serial(&self) -> u64 {
        self.serials.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn enter(&self, is_opened: bool) {
        self.unopened.fetch_add(usize::from(!is_opened), Ordering::Relaxed);
        self.metrics.observe_session();
    }

    pub(super) fn leave(&self, is_opened: bool) {
        self.unopened.fetch_sub(usize::from(!is_opened), Ordering::Relaxed);
        self.metrics.observe_session_end();
    }
}

impl fmt::Debug for RecordCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordCount").field("unopened", &self.unopened).finish_non_exhaustive()
    }
}
