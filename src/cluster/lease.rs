//! This replica's lease, and the expired leases of others.
//!
//! The lease shows the other replicas that this one lives. An expired lease does not prove that a
//! replica is dead: it may be alive and cut off from the store. So its stream ends when a client
//! requests it from another replica, and all its streams end after [`CUT_OFF`]. Invariant: no
//! stream of another replica is ended before the store was reachable for one whole lease. So an
//! outage of the store expires no replica.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tracing::{debug, error, info, warn};

use crate::clock;
use crate::event_log::{EventLog, StoreLoss};
use crate::protocol::ids::{Owner, StreamId};
use crate::store::{Coordination, Error, Renewal};

/// Time after the expiry of a lease while its replica counts as cut off and not as gone. The
/// replica keeps the streams that no client requests elsewhere. It may have streams that the store
/// does not know.
const CUT_OFF: Duration = Duration::from_secs(600);
/// Further time of the record of the expiry after [`CUT_OFF`], in leases: a replica that starts
/// meanwhile continues the count from the record.
const RECORD_LEASES: u32 = 4;
/// Pause after the store failed.
pub(super) const PAUSE: Duration = Duration::from_millis(250);

/// Keeps the lease, and ends the streams of replicas that are gone.
pub(super) struct LeaseKeeper<'a> {
    coordination: &'a dyn Coordination,
    log: &'a Arc<EventLog>,
    lease: Duration,
    /// True if another process holds the name of this replica.
    is_name_taken: &'a AtomicBool,
    others: LiveReplicas,
    expired: HashMap<Owner, Expiry>,
}

/// Replicas that lived less than a lease ago.
#[derive(Default)]
struct LiveReplicas {
    seen: HashMap<Owner, Instant>,
    /// True if the store may have lost their leases.
    may_be_lost: bool,
}

/// Expired lease of a replica.
struct Expiry {
    /// Time since the expiry that other replicas have counted.
    counted: Duration,
    /// Time of this replica's last continuation of the count.
    noted: Instant,
}

impl Expiry {
    /// Returns the observed time since the expiry.
    fn age(&self) -> Duration {
        self.counted + clock::now().saturating_duration_since(self.noted)
    }
}

impl<'a> LeaseKeeper<'a> {
    pub(super) fn new(
        coordination: &'a dyn Coordination,
        log: &'a Arc<EventLog>,
        lease: Duration,
        is_name_taken: &'a AtomicBool,
    ) -> Self {
        Self { coordination, log, lease, is_name_taken, others: LiveReplicas::default(), expired: HashMap::new() }
    }

    /// Renews the lease three times in its length, until dropped.
    pub(super) async fn run(mut self) {
        let mut reachable_since: Option<Instant> = None;
        let mut losses = self.coordination.possible_losses();
        loop {
            let began = clock::boot();
            let renewed = self.coordination.renew(self.lease).wait().await;
            let now = clock::now();
            let next = match renewed {
                Ok(renewal) => {
                    if self.handle_losses(*losses.borrow_and_update()) != StoreLoss::Nothing {
                        reachable_since = None;
                        self.others.may_be_lost = true;
                    }
                    if let Err(error) = self.update_live_replicas().await {
                        debug!(%error, "the live replicas cannot be read");
                    }
                    let since = *reachable_since.get_or_insert(now);
                    self.handle_renewal(renewal).await;
                    if renewal != Renewal::HeldByAnother {
                        // The lease counts from before the request: the response of the store may
                        // have been late.
                        self.log.leases().own().note(began + self.lease);
                        if renewal == Renewal::Acquired {
                            self.log.sessions().note_renewal_due();
                        }
                    }
                    let has_seen_a_lease =
                        now.saturating_duration_since(since) >= self.lease && renewal != Renewal::HeldByAnother;
                    self.log.leases().note_known(has_seen_a_lease);
                    if has_seen_a_lease {
                        self.sweep().await;
                    }
                    now + self.lease / 3
                }
                Err(error) => {
                    self.log.leases().own().note_renewal_failed();
                    self.log.leases().note_known(false);
                    if reachable_since.take().is_some() {
                        warn!(%error, "the lease could not be renewed");
                    }
                    // A connection that broke while this process was frozen works again in a
                    // moment.
                    now + PAUSE.min(self.lease / 3)
                }
            };
            tokio::select! {
                biased;
                Ok(()) = losses.changed() => {}
                () = clock::sleep_until(next) => {}
            }
        }
    }

    async fn handle_renewal(&self, renewal: Renewal) {
        let is_taken = renewal == Renewal::HeldByAnother;
        if is_taken != self.is_name_taken.swap(is_taken, Ordering::Relaxed) && is_taken {
            error!("another process that uses this store is called the same: this one serves nothing new");
        }
        if renewal == Renewal::Extended {
            return;
        }
        self.log.leases().own().note_acquired();
        // The lease had expired or is another's: other replicas may have ended streams of this one.
        if let Err(error) = self.log.adoption().drop_taken_over().await {
            warn!(%error, "the store could not be asked which streams other replicas have adopted");
        }
    }

    /// Begins a resync if the store returned without some or all of its contents.
    fn handle_losses(&self, losses: u64) -> StoreLoss {
        let loss = self.log.resync().note_generation(self.coordination.epoch(), losses, self.lease);
        match loss {
            StoreLoss::Nothing => {}
            StoreLoss::Partial => self.log.resync().verify_and_rewrite(),
            StoreLoss::Total => {
                warn!("the store has lost its contents: this replica rewrites its data");
                self.log.resync().rewrite_all();
            }
        }
        loss
    }

    /// Updates the live replicas. If the store may have lost their leases, grants each a grace
    /// period of one lease first. Otherwise a replica that died just then would never expire, and
    /// its newest streams would never end.
    async fn update_live_replicas(&mut self) -> Result<(), Error> {
        if self.others.may_be_lost {
            let seen: Vec<_> = self.others.seen.keys().copied().collect();
            self.coordination.grant_grace(&seen, self.lease).wait().await?;
            self.others.may_be_lost = false;
        }
        let live = self.coordination.live_replicas().wait().await?;
        let now = clock::now();
        // Replicas seen before stay for a lease: the store may have lost them a moment ago, and the
        // loss is not known yet.
        self.others.seen.retain(|_, at| now.saturating_duration_since(*at) < self.lease);
        self.others.seen.extend(live.into_iter().map(|owner| (owner, now)));
        Ok(())
    }

    async fn sweep(&mut self) {
        if let Err(error) = self.try_sweep().await {
            warn!(%error, "the streams of a dead replica could not be ended yet");
        }
    }

    /// Does every step that can be done, and returns the first error.
    async fn try_sweep(&mut self) -> Result<(), Error> {
        let mut expired = self.coordination.expired_leases().wait().await?;
        // The contents are a while old: no replica has renewed its lease in them.
        if self.log.resync().is_store_recovering() {
            return Ok(());
        }
        expired.retain(|owner| *owner != self.coordination.owner());
        // Before any write: clients wait for the ends of streams, and a full store may refuse a
        // record.
        self.log.leases().set_expired(expired.iter().copied().collect());
        let mut results = vec![self.forget_returned(&expired).await];
        for owner in expired {
            results.push(self.count_expired(owner).await);
        }
        results.push(adopt_all(self.log, self.log.adoption().requested_of_expired_owners()).await);
        let is_gone = |expiry: &Expiry| expiry.age() >= CUT_OFF;
        let gone: Vec<_> = self.expired.iter().filter(|(_, expiry)| is_gone(expiry)).map(|(owner, _)| *owner).collect();
        for owner in gone {
            results.push(self.end_all_of(owner).await);
        }
        results.into_iter().collect()
    }

    /// Forgets the old expiries. If the replica lives again, the next expiry counts from zero.
    async fn forget_returned(&mut self, expired: &[Owner]) -> Result<(), Error> {
        let over: Vec<_> = self.expired.keys().copied().filter(|owner| !expired.contains(owner)).collect();
        if over.is_empty() {
            return Ok(());
        }
        let live = self.coordination.live_replicas().wait().await?;
        for owner in over {
            if live.contains(&owner) {
                self.coordination.remove(&cut_off_key(owner)).wait().await?;
            }
            self.expired.remove(&owner);
        }
        Ok(())
    }

    /// Continues the count since the expiry of a replica's lease, from the record of replicas that
    /// may be gone themselves.
    async fn count_expired(&mut self, owner: Owner) -> Result<(), Error> {
        let key = cut_off_key(owner);
        let expiry = match self.expired.entry(owner) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                let counted =
                    self.coordination.get(&key).wait().await?.map_or(Duration::ZERO, |record| decode(&record));
                warn!(
                    owner = owner.0,
                    "the lease of a replica has expired: each of its streams ends when a client requests it at another replica"
                );
                entry.insert(Expiry { counted, noted: clock::now() })
            }
        };
        let age = expiry.age();
        let keep = CUT_OFF.saturating_sub(age) + self.lease * RECORD_LEASES;
        self.coordination.put(&key, &encode(age), keep).wait().await
    }

    async fn end_all_of(&self, owner: Owner) -> Result<(), Error> {
        let open = self.coordination.open_streams(owner).wait().await?;
        info!(owner = owner.0, streams = open.len(), "ending the streams of a replica that has not returned");
        adopt_all(self.log, open).await?;
        self.coordination.forget(owner).wait().await
    }
}

/// Ends all streams that can be ended now, and returns the first error.
async fn adopt_all(log: &Arc<EventLog>, streams: Vec<StreamId>) -> Result<(), Error> {
    let mut result = Ok(());
    for stream in streams {
        result = result.and(log.adoption().adopt(stream).await);
    }
    result
}

/// Returns the key of the record that a replica's lease has expired. The record holds the time
/// since.
pub(super) fn cut_off_key(owner: Owner) -> Vec<u8> {
    [&b"cut off\0"[..], &owner.0.to_be_bytes()].concat()
}

fn encode(age: Duration) -> [u8; 8] {
    u64::try_from(age.as_millis()).unwrap_or(u64::MAX).to_be_bytes()
}

/// Decodes the time in a record, or returns zero if the record is malformed.
fn decode(record: &[u8]) -> Duration {
    Duration::from_millis(record.try_into().map_or(0, u64::from_be_bytes))
}
