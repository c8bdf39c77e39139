//! A store in memory for tests: every call of the contract over [`Tail`]s.
//!
//! In production the event log keeps the tails itself and has no store behind them. Time is read
//! from [`mcp_resume_base::clock`], so a paused clock moves it.

use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use bytes::Bytes;
use dashmap::DashMap;
use tokio::sync::{Notify, watch};

use super::change_subscriptions::ChangeSubscriptions;
use crate::{
    Appended, ChangeSubscription, Coordination, Error, Pending, Read, Renewal, Store, StoreHealth, Stored, WriterEpoch,
};
use mcp_resume_base::clock;
use mcp_resume_base::random;
use mcp_resume_base::sync;
use mcp_resume_protocol::ids::{Owner, Seq, StoreEpoch, StreamId};
use mcp_resume_protocol::stream::Batch;
use mcp_resume_protocol::tail::Tail;

/// Delay of the result of a slow claim, or of a slow query for members.
const SLOW: Duration = Duration::from_secs(2);

/// Handle of one replica to the shared contents. Streams are found by id; each has its own lock,
/// and one lock is one atomic step.
pub struct TestStore {
    owner: Owner,
    /// Distinguishes processes with the same replica name.
    incarnation: u64,
    contents: Arc<Contents>,
}

/// Contents shared by all replicas.
#[derive(Default)]
pub struct Contents {
    streams: DashMap<StreamId, Arc<Mutex<StoredStream>>>,
    records: DashMap<Vec<u8>, (Bytes, Instant)>,
    subscriptions: ChangeSubscriptions,
    leases: DashMap<Owner, (Option<u64>, Instant)>,
    messages: DashMap<Owner, VecDeque<Bytes>>,
    sent: Notify,
    /// Members of each group, with the ends of their times.
    groups: DashMap<Vec<u8>, Vec<(Owner, Instant)>>,
    /// Number of losses of the whole contents.
    lost: watch::Sender<u64>,
    /// True while the store is unreachable.
    away: AtomicBool,
    /// True while results of claims and of queries for members are delayed.
    slow: AtomicBool,
    /// True while joins are delayed.
    has_slow_joins: AtomicBool,
    /// Number of delayed joins that are in progress, and the most at a time.
    joins: AtomicUsize,
    joins_peak: AtomicUsize,
    /// True while claims take effect but report that the store is unavailable.
    deaf: AtomicBool,
    /// True while new records are refused.
    full: AtomicBool,
    /// Streams whose takeover is refused.
    refused: DashMap<StreamId, ()>,
}

impl Default for TestStore {
    fn default() -> Self {
        Self::of(Owner(1))
    }
}

impl Deref for TestStore {
    type Target = Contents;

    fn deref(&self) -> &Contents {
        &self.contents
    }
}

struct StoredStream {
    owner: Owner,
    tail: Tail,
    about: Bytes,
    state: Bytes,
    epoch: WriterEpoch,
    sealed: bool,
    keep: Duration,
    until: Instant,
}

impl TestStore {
    /// Returns a store for that replica, with contents of its own.
    pub fn of(owner: Owner) -> Self {
        Self { owner, incarnation: u64::from_be_bytes(random::bytes()), contents: Arc::default() }
    }

    /// Returns the same contents as seen by another replica, or by another process with the same
    /// name.
    pub fn as_of(&self, owner: Owner) -> Self {
        Self { contents: self.contents.clone(), ..Self::of(owner) }
    }

    /// Makes the store unreachable for all replicas, or reachable again.
    pub fn set_away(&self, away: bool) {
        self.away.store(away, Ordering::Relaxed);
    }

    /// Loses the whole contents. The store stays reachable.
    pub fn lose(&self) {
        self.streams.clear();
        self.records.clear();
        self.leases.clear();
        self.messages.clear();
        self.groups.clear();
        self.lost.send_modify(|times| *times += 1);
    }

    /// Delays the results of claims and of queries for members, which take effect at once, or stops
    /// delaying them.
    pub fn set_slow(&self, slow: bool) {
        self.slow.store(slow, Ordering::Relaxed);
    }

    /// Delays joins of groups, which take effect at the end of the delay, or stops delaying them.
    pub fn set_slow_joins(&self, slow: bool) {
        self.has_slow_joins.store(slow, Ordering::Relaxed);
    }

    /// Returns the most delayed joins that were in progress at a time.
    pub fn joins_peak(&self) -> usize {
        self.joins_peak.load(Ordering::Relaxed)
    }

    /// Makes claims take effect and still report an unavailable store, as all other calls do, or
    /// ends this.
    pub fn set_deaf(&self, deaf: bool) {
        self.deaf.store(deaf, Ordering::Relaxed);
    }

    /// Refuses records that are put and claims, as a full store does, or accepts them again.
    pub fn set_full(&self, full: bool) {
        self.full.store(full, Ordering::Relaxed);
    }

    /// Refuses takeovers of `stream` from now on.
    pub fn refuse(&self, stream: StreamId) {
        self.refused.insert(stream, ());
    }

    /// Returns the keys of the records that have not expired.
    pub fn records(&self) -> Vec<Vec<u8>> {
        let now = clock::now();
        self.records.iter().filter(|entry| entry.1 > now).map(|entry| entry.key().clone()).collect()
    }

    fn reach(&self) -> Result<(), Error> {
        let is_away = self.away.load(Ordering::Relaxed) || self.deaf.load(Ordering::Relaxed);
        if is_away { Err(Error::Unavailable("away".into())) } else { Ok(()) }
    }

    fn find(&self, stream: StreamId) -> Option<Arc<Mutex<StoredStream>>> {
        // The guard of the map is dropped before the lock of the stream is awaited.
        let stored = self.streams.get(&stream).map(|entry| entry.value().clone())?;
        let lives = lock(&stored).until > clock::now();
        if lives { Some(stored) } else { None }
    }

    fn with<T>(&self, stream: StreamId, act: impl FnOnce(&mut StoredStream) -> T) -> Pending<Result<T, Error>> {
        Pending::Ready(self.reach().and_then(|()| match self.find(stream) {
            Some(stored) => Ok(act(&mut lock(&stored))),
            None => Err(Error::Gone),
        }))
    }

    /// Runs `act` on the stream as [`Self::with`] does, and notifies the subscribers afterwards.
    fn change<T>(&self, stream: StreamId, act: impl FnOnce(&mut StoredStream) -> T) -> Pending<Result<T, Error>> {
        let result = self.with(stream, act);
        self.subscriptions.notify(stream);
        result
    }

    fn record(&self, key: &[u8]) -> Option<Bytes> {
        self.records.get(key).filter(|entry| entry.1 > clock::now()).map(|entry| entry.0.clone())
    }
}

fn lock(stored: &Mutex<StoredStream>) -> MutexGuard<'_, StoredStream> {
    sync::lock(stored)
}

impl StoredStream {
    fn keep(&mut self, keep: Duration) {
        self.until = clock::now() + keep;
    }
}

impl Store for TestStore {
    fn create(&self, stream: StreamId, about: &[u8], tail: Seq, keep: Duration) -> Pending<Result<WriterEpoch, Error>> {
        if let Err(error) = self.reach() {
            return Pending::Ready(Err(error));
        }
        let stored = StoredStream {
            owner: self.owner,
            tail: Tail::starting_at(tail),
            about: Bytes::copy_from_slice(about),
            state: Bytes::new(),
            epoch: WriterEpoch::default(),
            sealed: false,
            keep,
            until: clock::now() + keep,
        };
        self.streams.insert(stream, Arc::new(Mutex::new(stored)));
        self.subscriptions.notify(stream);
        Pending::Ready(Ok(WriterEpoch::default()))
    }

    fn append(
        &self,
        stream: StreamId,
        epoch: WriterEpoch,
        after: Seq,
        batch: &Batch,
        state: Option<&[u8]>,
    ) -> Pending<Result<Appended, Error>> {
        self.change(stream, |stored| {
            let before = stored.tail.last();
            let appended = stored.tail.append(epoch, after, batch);
            if appended == Appended::Ok {
                let is_new = stored.tail.last() > before || (batch.is_empty() && after == before && !stored.sealed);
                if let Some(state) = state
                    && is_new
                {
                    stored.state = Bytes::copy_from_slice(state);
                }
                if !stored.sealed {
                    stored.keep(stored.keep);
                }
            }
            appended
        })
    }

    fn seal(
        &self,
        stream: StreamId,
        epoch: WriterEpoch,
        state: &[u8],
        keep: Duration,
    ) -> Pending<Result<Appended, Error>> {
        self.change(stream, |stored| {
            let appended = stored.tail.seal(epoch);
            if appended == Appended::Ok && !stored.sealed {
                stored.sealed = true;
                stored.state = Bytes::copy_from_slice(state);
                stored.keep(keep);
            }
            appended
        })
    }

    fn write_whole(
        &self,
        stream: StreamId,
        about: &[u8],
        batch: &Batch,
        state: &[u8],
        keep: Duration,
    ) -> Pending<Result<WriterEpoch, Error>> {
        let Pending::Ready(created) = self.create(stream, about, Seq(0), keep) else { unreachable!("it is ready") };
        match created {
            Ok(epoch) => {
                drop(self.append(stream, epoch, Seq(0), batch, None));
                drop(self.seal(stream, epoch, state, keep));
                Pending::Ready(Ok(epoch))
            }
            Err(error) => Pending::Ready(Err(error)),
        }
    }

    fn take_over(&self, stream: StreamId) -> Pending<Result<WriterEpoch, Error>> {
        if self.refused.contains_key(&stream) {
            return Pending::Ready(Err(Error::Unavailable("refused".into())));
        }
        self.change(stream, |stored| {
            stored.owner = self.owner;
            stored.epoch = stored.tail.take_over();
            stored.epoch
        })
    }

    fn load(&self, stream: StreamId) -> Pending<Result<Option<Stored>, Error>> {
        let found = self.with(stream, |stored| Stored {
            about: stored.about.clone(),
            state: stored.state.clone(),
            owner: stored.owner,
            epoch: stored.epoch,
            trimmed: stored.tail.trimmed(),
            tail: stored.tail.last(),
            sealed: stored.sealed,
        });
        Pending::Ready(match found {
            Pending::Ready(Ok(found)) => Ok(Some(found)),
            Pending::Ready(Err(Error::Gone)) => Ok(None),
            Pending::Ready(Err(error)) => Err(error),
            Pending::Later(_) => unreachable!("it is there at once"),
        })
    }

    fn read(&self, stream: StreamId, after: Seq, max_bytes: usize) -> Pending<Result<Read, Error>> {
        let found = self.with(stream, |stored| {
            if after < stored.tail.trimmed() {
                return Read::Trimmed { upto: stored.tail.trimmed() };
            }
            let mut left = max_bytes;
            let within = stored.tail.events_after(after).enumerate().take_while(|(index, (_, event))| {
                let fits = event.len() <= left;
                left = left.saturating_sub(event.len());
                fits || *index == 0
            });
            Read::Events(within.map(|(_, (seq, event))| (seq, Bytes::copy_from_slice(event))).collect())
        });
        match found {
            Pending::Ready(Err(Error::Gone)) => Pending::Ready(Ok(Read::Gone)),
            found => found,
        }
    }

    fn subscribe(&self, stream: StreamId) -> Pending<Result<ChangeSubscription, Error>> {
        Pending::Ready(Ok(self.subscriptions.subscribe(stream)))
    }

    fn trim(&self, stream: StreamId, epoch: WriterEpoch, upto: Seq) -> Pending<Result<(), Error>> {
        self.change(stream, |stored| {
            if epoch >= stored.epoch {
                stored.tail.trim(upto);
            }
        })
    }

    fn keep(&self, stream: StreamId, keep: Duration) -> Pending<Result<(), Error>> {
        if let Some(stored) = self.find(stream) {
            let mut stored = lock(&stored);
            stored.until = stored.until.max(clock::now() + keep);
        }
        Pending::Ready(Ok(()))
    }

    fn expire(&self, stream: StreamId) -> Pending<Result<(), Error>> {
        self.streams.remove(&stream);
        self.subscriptions.notify(stream);
        Pending::Ready(Ok(()))
    }

    fn open_streams(&self, owner: Owner) -> Pending<Result<Vec<StreamId>, Error>> {
        let is_open = |stored: MutexGuard<'_, StoredStream>| stored.owner == owner && !stored.sealed;
        let open = self.streams.iter().filter(|entry| is_open(lock(entry.value())));
        Pending::Ready(Ok(open.map(|entry| *entry.key()).collect()))
    }

    fn put(&self, key: &[u8], value: &[u8], keep: Duration) -> Pending<Result<(), Error>> {
        if self.full.load(Ordering::Relaxed) {
            return Pending::Ready(Err(Error::Full("full".into())));
        }
        Pending::Ready(self.reach().map(|()| {
            self.records.insert(key.to_vec(), (Bytes::copy_from_slice(value), clock::now() + keep));
        }))
    }

    fn claim(&self, key: &[u8], value: &[u8], keep: Duration) -> Pending<Result<Option<Bytes>, Error>> {
        if self.full.load(Ordering::Relaxed) {
            return Pending::Ready(Err(Error::Full("full".into())));
        }
        if let Err(error) = self.reach() {
            if self.deaf.load(Ordering::Relaxed) {
                self.records.insert(key.to_vec(), (Bytes::copy_from_slice(value), clock::now() + keep));
            }
            return Pending::Ready(Err(error));
        }
        let (now, value) = (clock::now(), Bytes::copy_from_slice(value));
        let mut there = None;
        self.records
            .entry(key.to_vec())
            .and_modify(|record| {
                if record.1 > now {
                    there = Some(record.0.clone());
                } else {
                    *record = (value.clone(), now + keep);
                }
            })
            .or_insert_with(|| (value.clone(), now + keep));
        if self.slow.load(Ordering::Relaxed) {
            return Pending::Later(Box::pin(async move {
                clock::sleep_until(now + SLOW).await;
                Ok(there)
            }));
        }
        Pending::Ready(Ok(there))
    }

    fn get(&self, key: &[u8]) -> Pending<Result<Option<Bytes>, Error>> {
        Pending::Ready(self.reach().map(|()| self.record(key)))
    }

    fn replace(&self, key: &[u8], before: &[u8], value: &[u8], keep: Duration) -> Pending<Result<bool, Error>> {
        if self.full.load(Ordering::Relaxed) {
            return Pending::Ready(Err(Error::Full("full".into())));
        }
        let now = clock::now();
        Pending::Ready(self.reach().map(|()| {
            let Some(mut record) = self.records.get_mut(key) else { return false };
            let is_it = record.1 > now && (record.0 == before || record.0 == value);
            if is_it {
                *record = (Bytes::copy_from_slice(value), now + keep);
            }
            is_it
        }))
    }

    fn expire_if_equal(&self, key: &[u8], value: &[u8], keep: Option<Duration>) -> Pending<Result<(), Error>> {
        let now = clock::now();
        Pending::Ready(self.reach().map(|()| {
            self.records.remove_if_mut(key, |_, record| {
                let is_it = record.0 == value && record.1 > now;
                if let (true, Some(keep)) = (is_it, keep) {
                    record.1 = now + keep;
                }
                is_it && keep.is_none()
            });
        }))
    }

    fn remove(&self, key: &[u8]) -> Pending<Result<(), Error>> {
        Pending::Ready(self.reach().map(|()| {
            self.records.remove(key);
        }))
    }

    fn health(&self) -> StoreHealth {
        match self.reach() {
            Ok(_) if self.full.load(Ordering::Relaxed) => StoreHealth::Full,
            Ok(_) => StoreHealth::Ready,
            Err(_) => StoreHealth::Unreachable,
        }
    }
}

impl Coordination for TestStore {
    fn owner(&self) -> Owner {
        self.owner
    }

    fn epoch(&self) -> StoreEpoch {
        StoreEpoch(1 + u32::try_from(*self.lost.borrow()).unwrap_or(u32::MAX - 1))
    }

    fn possible_losses(&self) -> watch::Receiver<u64> {
        self.lost.subscribe()
    }

    fn renew(&self, lease: Duration) -> Pending<Result<Renewal, Error>> {
        let now = clock::now();
        Pending::Ready(self.reach().map(|()| {
            let before = self.leases.get(&self.owner).map(|entry| *entry.value());
            let renewal = match before {
                Some((Some(holder), until)) if until > now && holder != self.incarnation => {
                    return Renewal::HeldByAnother;
                }
                Some((Some(_), until)) if until > now => Renewal::Extended,
                Some(_) | None => Renewal::Acquired,
            };
            self.leases.insert(self.owner, (Some(self.incarnation), now + lease));
            renewal
        }))
    }

    fn release(&self) -> Pending<Result<(), Error>> {
        Pending::Ready(self.reach().map(|()| {
            self.leases.remove(&self.owner);
        }))
    }

    fn grant_grace(&self, owners: &[Owner], lease: Duration) -> Pending<Result<(), Error>> {
        let until = clock::now() + lease;
        Pending::Ready(self.reach().map(|()| {
            for owner in owners {
                self.leases.entry(*owner).or_insert((None, until));
            }
        }))
    }

    fn live_replicas(&self) -> Pending<Result<Vec<Owner>, Error>> {
        let now = clock::now();
        let live = || self.leases.iter().filter(|entry| entry.1 > now).map(|entry| *entry.key()).collect();
        Pending::Ready(self.reach().map(|()| live()))
    }

    fn expired_leases(&self) -> Pending<Result<Vec<Owner>, Error>> {
        let now = clock::now();
        let expired = || self.leases.iter().filter(|entry| entry.1 <= now).map(|entry| *entry.key()).collect();
        Pending::Ready(self.reach().map(|()| expired()))
    }

    fn forget(&self, owner: Owner) -> Pending<Result<(), Error>> {
        let now = clock::now();
        Pending::Ready(self.reach().map(|()| {
            if self.leases.remove_if(&owner, |_, (_, until)| *until <= now).is_some() {
                self.groups.iter_mut().for_each(|mut members| members.retain(|(member, _)| *member != owner));
            }
        }))
    }

    fn send(&self, to: Owner, message: &[u8], _: Duration) -> Pending<Result<(), Error>> {
        Pending::Ready(self.reach().map(|()| {
            self.messages.entry(to).or_default().push_back(Bytes::copy_from_slice(message));
            self.sent.notify_waiters();
        }))
    }

    fn receive(&self) -> Pending<Result<Vec<Bytes>, Error>> {
        let (contents, owner) = (self.contents.clone(), self.owner);
        Pending::Later(Box::pin(async move {
            loop {
                let sent = contents.sent.notified();
                tokio::pin!(sent);
                sent.as_mut().enable();
                let messages = contents.messages.remove(&owner).map(|(_, messages)| messages).unwrap_or_default();
                if !messages.is_empty() {
                    return Ok(messages.into());
                }
                sent.await;
            }
        }))
    }

    fn join(&self, group: &[u8], keep: Duration) -> Pending<Result<(), Error>> {
        let (contents, owner, group, now) = (self.contents.clone(), self.owner, group.to_vec(), clock::now());
        let act = move |contents: &Contents| {
            let mut members = contents.groups.entry(group).or_default();
            members.retain(|(member, _)| *member != owner);
            members.push((owner, now + keep));
        };
        if !self.has_slow_joins.load(Ordering::Relaxed) {
            return Pending::Ready(self.reach().map(|()| act(self)));
        }
        let joins = self.joins.fetch_add(1, Ordering::Relaxed) + 1;
        self.joins_peak.fetch_max(joins, Ordering::Relaxed);
        let reached = self.reach();
        Pending::Later(Box::pin(async move {
            clock::sleep_until(now + SLOW).await;
            contents.joins.fetch_sub(1, Ordering::Relaxed);
            reached.map(|()| act(&contents))
        }))
    }

    fn members(&self, group: &[u8]) -> Pending<Result<Vec<Owner>, Error>> {
        let now = clock::now();
        let living = |members: &Vec<(Owner, Instant)>| {
            members.iter().filter(|(_, until)| *until > now).map(|(owner, _)| *owner).collect()
        };
        let found = self.groups.get(group).map(|members| living(members.value())).unwrap_or_default();
        if self.slow.load(Ordering::Relaxed) {
            return Pending::Later(Box::pin(async move {
                clock::sleep_until(now + SLOW).await;
                Ok(found)
            }));
        }
        Pending::Ready(Ok(found))
    }
}

#[cfg(test)]
crate::contract::suite!(std::sync::Arc::new(TestStore::default()));
