//! Eviction of session records: the idle ones after a time, and the least recently used beyond a
//! limit.
//!
//! Owned here: the idle times, and the choice of the records to remove. Absent: the order of the
//! records that were opened here (`lru_queue.rs`), and the count (`record_count.rs`).

use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use crate::clock;
use crate::event_log::sessions::lru_queue::{Found, LruQueue};
use crate::event_log::sessions::record_count::unopened_max;
use crate::event_log::sessions::session::Key;
use crate::event_log::sessions::{Session, Sessions, is_living};
use crate::sync;

/// Longest idle time of a session without streams. It is forgotten then. The upstream may still
/// know it.
const IDLE: Duration = Duration::from_secs(3600);
/// Idle time for a session that was opened elsewhere: without a stream its record is empty, and any
/// caller can invent an id.
const IDLE_UNOPENED: Duration = Duration::from_secs(60);
/// Divisor of the limit of records: a caller with this part of them loses its own first.
const OWN_PART: usize = 4;

impl Sessions {
    /// Forgets idle sessions, and ended standalone streams.
    pub fn sweep(&self, now: Instant) {
        self.standalone.retain(|_, stream| is_living(stream));
        let mut gone = Vec::new();
        self.sessions.retain(|key, session| {
            let listens = self.standalone.contains_key(key);
            let idle = if session.opened.is_some() { IDLE } else { IDLE_UNOPENED };
            let used = session.lock().used;
            let stays = listens || now.saturating_duration_since(used) < idle || session.has_streams();
            self.handshakes.note_use(&key.0, used);
            if !stays && session.opened.is_some() {
                gone.push(key.1);
            }
            stays
        });
        let mut queue = self.lru_queue();
        gone.iter().for_each(|principal| queue.forget(principal));
        drop(queue);
        self.handshakes.sweep(now, || self.sessions.iter().map(|entry| entry.key().0.clone()).collect());
        // The extra limit for records in use shrinks with them.
        let left = self.record_count.unopened.load(Ordering::Relaxed);
        let most = unopened_max(self.max_opened);
        self.evict_at.fetch_min(most.max(left + most / 2), Ordering::Relaxed);
    }

    /// Queues a record of a session opened here that is now in the map. Beyond the limit the least
    /// recently used goes; one in use goes only if those before it are in use as well. A caller
    /// with a quarter of all records loses one of its own.
    pub(super) fn enter(&self, key: Key, serial: u64) {
        let mut queue = self.lru_queue();
        let find = |key: &Key, serial: u64| {
            let Some(entry) = self.sessions.get(key).filter(|entry| entry.serial == serial) else { return Found::Gone };
            let used = entry.lock().used;
            Found::Used(used, self.is_in_use(key, entry.value()))
        };
        while queue.len() >= self.max_opened {
            let popped = match queue.held(&key.1) >= (self.max_opened / OWN_PART).max(1) {
                true => queue.pop(Some(&key.1), find).or_else(|| queue.pop(None, find)),
                false => queue.pop(None, find),
            };
            let Some((key, serial)) = popped else { break };
            if self.sessions.remove_if(&key, |_, session| session.serial == serial).is_some() {
                self.record_count.metrics.observe_session_eviction();
            }
        }
        // After all skipped records: the newest is removed last.
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
