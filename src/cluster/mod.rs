//! This process among others like it that share its store.
//!
//! Owned here: the lease by which the others know that it lives, the end of streams whose replica does not, and what replicas say to each
//! other: who reads where ([`EventLog`] decides what follows), and requests that concern something at another replica. Invariant:
//! nobody is swept before the store could be reached for one whole lease, so that an outage of the store is nobody's death. Absent:
//! what a request means (ingress).

mod rpc;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tracing::{debug, error, info, warn};

pub use rpc::{Absence, Requests};

use crate::clock;
use crate::event_log::{Displaced, EventLog, READER_HOLD, Regained};
use crate::protocol::cluster::{Handed, Message};
use crate::protocol::ids::{Owner, StreamId};
use crate::store::{Error, Renewal, Shared};

/// Readers that were displaced are looked for so often, also where nobody has told of one.
const LOOK_FOR_READERS: Duration = Duration::from_secs(1);
/// A replica whose lease has lapsed may only be cut off from the store. For so long it keeps the streams that no client asks for elsewhere,
/// and may have others that the store does not know.
const CUT_OFF: Duration = Duration::from_secs(600);
/// The record of that outlasts its time by so many leases: a replica that begins meanwhile goes on counting.
const COUNTED_ON: u32 = 4;
/// After the store failed while it was waited for.
const PAUSE: Duration = Duration::from_millis(250);

/// Why this process cannot be one of several.
#[derive(Debug, thiserror::Error)]
pub enum BeginError {
    /// Another living process has its name.
    #[error(
        "another process that uses this store is called the same and was heard of within the last {0:?}: \
         give each a replica.name of its own"
    )]
    Taken(Duration),
    /// The store failed.
    #[error("the store cannot be used: {0}")]
    Store(#[from] Error),
}

/// The replicas that were there less than a lease ago.
#[derive(Default)]
struct Others {
    seen: HashMap<Owner, Instant>,
    /// The store may not know of them since.
    are_missing: bool,
}

/// A replica whose lease has lapsed.
struct Lapse {
    /// Time that others have counted before.
    before: Duration,
    /// When it was noted here.
    noted: Instant,
}

impl Lapse {
    /// How long it has lasted while somebody looked.
    fn lasts(&self) -> Duration {
        self.before + clock::now().saturating_duration_since(self.noted)
    }
}

/// This process among others.
pub struct Replicas {
    shared: Arc<dyn Shared>,
    log: Arc<EventLog>,
    lease: Duration,
    requests: Requests,
    is_taken: AtomicBool,
}

impl Replicas {
    /// Takes this replica's name, waiting until a process that had it before counts as gone, and ends what that one left open.
    ///
    /// # Errors
    /// When another living process has the name, or the store fails.
    pub async fn begin(shared: Arc<dyn Shared>, log: Arc<EventLog>, lease: Duration) -> Result<Arc<Self>, BeginError> {
        if shared.renew(lease).wait().await? == Renewal::Taken {
            info!(?lease, "a process of this name was running a moment ago: waiting until it counts as gone");
            // A little longer, because the lease is renewed three times in its length.
            clock::sleep(lease + lease / 10).await;
            if shared.renew(lease).wait().await? == Renewal::Taken {
                return Err(BeginError::Taken(lease));
            }
        }
        let left = log.recover().await?;
        if left > 0 {
            info!(streams = left, "ended what was left open when this replica last ran");
        }
        log.note_contents(shared.epoch(), *shared.regained().borrow(), lease);
        let requests = Requests::new(shared.clone(), log.clone());
        Ok(Arc::new(Self { shared, log, lease, requests, is_taken: AtomicBool::new(false) }))
    }

    /// Which replica this is.
    pub fn owner(&self) -> Owner {
        self.shared.owner()
    }

    /// Whether another process has taken the name of this one, which had better end.
    pub fn is_taken(&self) -> bool {
        self.is_taken.load(Ordering::Relaxed)
    }

    /// Requests to other replicas.
    pub fn requests(&self) -> &Requests {
        &self.requests
    }

    /// Keeps the lease, ends the streams of replicas that are gone, and listens; until dropped. `take` answers a request of another
    /// replica: `None` where it concerns nothing here.
    pub async fn run<F>(&self, take: impl Fn(Handed) -> F)
    where
        F: Future<Output = Option<Handed>> + Send + 'static,
    {
        tokio::join!(self.keep_lease(), self.listen(take), self.watch_readers());
    }

    /// Ends the lease: nothing is open here any more.
    pub async fn leave(&self) {
        self.log.leave_runs();
        if let Err(error) = self.shared.give_up().wait().await {
            warn!(%error, "the lease could not be given up: it lapses");
        }
    }

    // ── leases ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async fn keep_lease(&self) {
        let mut reachable_since: Option<Instant> = None;
        let mut others = Others::default();
        let mut lapses = HashMap::new();
        let mut regained = self.shared.regained();
        loop {
            let began = clock::boot();
            let renewed = self.shared.renew(self.lease).wait().await;
            let now = clock::now();
            let again = match renewed {
                Ok(renewal) => {
                    if self.see_what_is_left(*regained.borrow_and_update()) != Regained::No {
                        reachable_since = None;
                        others.are_missing = true;
                    }
                    if let Err(error) = self.see_others(&mut others).await {
                        debug!(%error, "it cannot be told which replicas there are");
                    }
                    let since = *reachable_since.get_or_insert(now);
                    self.take_renewal(renewal).await;
                    if renewal != Renewal::Taken {
                        // From before it was asked for: the store may have answered late.
                        self.log.note_heard(began + self.lease);
                    }
                    if now.saturating_duration_since(since) >= self.lease && renewal != Renewal::Taken {
                        self.sweep(&mut lapses).await;
                    }
                    now + self.lease / 3
                }
                Err(error) => {
                    self.log.note_missed();
                    if reachable_since.take().is_some() {
                        warn!(%error, "the lease could not be renewed");
                    }
                    // A connection that broke while this process was frozen is there again in a moment.
                    now + PAUSE.min(self.lease / 3)
                }
            };
            tokio::select! {
                biased;
                Ok(()) = regained.changed() => {}
                () = clock::sleep_until(again) => {}
            }
        }
    }

    async fn take_renewal(&self, renewal: Renewal) {
        let is_taken = renewal == Renewal::Taken;
        if is_taken != self.is_taken.swap(is_taken, Ordering::Relaxed) && is_taken {
            error!("another process that uses this store is called the same: this one serves nothing new");
        }
        // Not heard of for longer than the lease: others may have ended what is open here.
        if renewal != Renewal::Held
            && let Err(error) = self.log.leave_taken().await
        {
            warn!(%error, "the store could not say which streams others have taken");
        }
    }

    /// A store that came back without what it held, or without the last of it, gets back what is here.
    fn see_what_is_left(&self, times: u64) -> Regained {
        let regained = self.log.note_contents(self.shared.epoch(), times, self.lease);
        match regained {
            Regained::No => {}
            Regained::Less => self.log.look_back(),
            Regained::Empty => {
                warn!("the store has lost what it held: what is here is brought there again");
                self.log.write_back();
            }
        }
        regained
    }

    /// Those that are there. Where the store does not know them any more, they are to be heard of within a lease: what one of them began
    /// since, and had no time to say whose it is, must end as well.
    async fn see_others(&self, others: &mut Others) -> Result<(), Error> {
        if others.are_missing {
            let seen: Vec<_> = others.seen.keys().copied().collect();
            self.shared.expect(&seen, self.lease).wait().await?;
            others.are_missing = false;
        }
        let living = self.shared.living().wait().await?;
        let now = clock::now();
        // Not only those of now: the store may have lost them a moment ago, and nobody has noticed yet.
        others.seen.retain(|_, at| now.saturating_duration_since(*at) < self.lease);
        others.seen.extend(living.into_iter().map(|owner| (owner, now)));
        Ok(())
    }

    /// `lapses` holds the replicas whose lease has lapsed, as far as that was noted here.
    async fn sweep(&self, lapses: &mut HashMap<Owner, Lapse>) {
        if let Err(error) = self.try_sweep(lapses).await {
            warn!(%error, "the streams of a replica that is gone could not be ended yet");
        }
    }

    /// Does all that can be done, and returns the first error.
    async fn try_sweep(&self, lapses: &mut HashMap<Owner, Lapse>) -> Result<(), Error> {
        let mut lapsed = self.shared.lapsed().wait().await?;
        // As it was a while ago nobody has renewed.
        if self.log.has_young_contents() {
            return Ok(());
        }
        lapsed.retain(|owner| *owner != self.owner());
        // Before anything is written: clients wait for the ends of streams, and a store without room may refuse a record.
        self.log.note_lapsed(lapsed.iter().copied().collect());
        let mut done = vec![self.note_back(lapses, &lapsed).await];
        for owner in lapsed {
            done.push(self.count(lapses, owner).await);
        }
        done.push(self.adopt_all(self.log.asked_of_lapsed()).await);
        let gone: Vec<_> =
            lapses.iter().filter(|(_, lapse)| lapse.lasts() >= CUT_OFF).map(|(owner, _)| *owner).collect();
        for owner in gone {
            done.push(self.end_all_of(owner).await);
        }
        done.into_iter().collect()
    }

    /// Takes those that have not lapsed any more from `lapses`. For one that was heard of again the time counts anew.
    async fn note_back(&self, lapses: &mut HashMap<Owner, Lapse>, lapsed: &[Owner]) -> Result<(), Error> {
        let over: Vec<_> = lapses.keys().copied().filter(|owner| !lapsed.contains(owner)).collect();
        if over.is_empty() {
            return Ok(());
        }
        let living = self.shared.living().wait().await?;
        for owner in over {
            if living.contains(&owner) {
                self.shared.remove(&cut_off(owner)).wait().await?;
            }
            lapses.remove(&owner);
        }
        Ok(())
    }

    /// Counts on how long `owner` was not heard of, from what replicas have counted that may not be there any more.
    async fn count(&self, lapses: &mut HashMap<Owner, Lapse>, owner: Owner) -> Result<(), Error> {
        let record = cut_off(owner);
        let lapse = match lapses.entry(owner) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                let before = self.shared.get(&record).wait().await?.map_or(Duration::ZERO, |counted| to_time(&counted));
                warn!(
                    owner = owner.0,
                    "a replica was not heard of for its lease: each of its streams ends when a client asks for it elsewhere"
                );
                entry.insert(Lapse { before, noted: clock::now() })
            }
        };
        let lasts = lapse.lasts();
        let keep = CUT_OFF.saturating_sub(lasts) + self.lease * COUNTED_ON;
        self.shared.put(&record, &of_time(lasts), keep).wait().await
    }

    async fn end_all_of(&self, owner: Owner) -> Result<(), Error> {
        let open = self.shared.open_streams(owner).wait().await?;
        info!(owner = owner.0, streams = open.len(), "ending the streams of a replica that did not come back");
        self.adopt_all(open).await?;
        self.shared.dismiss(owner).wait().await
    }

    /// Ends all that can be ended now, and returns the first error.
    async fn adopt_all(&self, streams: Vec<StreamId>) -> Result<(), Error> {
        let mut done = Ok(());
        for stream in streams {
            done = done.and(self.log.adopt(stream).await);
        }
        done
    }

    // ── messages ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async fn listen<F>(&self, take: impl Fn(Handed) -> F)
    where
        F: Future<Output = Option<Handed>> + Send + 'static,
    {
        loop {
            match self.shared.receive().wait().await {
                Ok(messages) => {
                    for message in messages {
                        self.hear(&message, &take).await;
                    }
                }
                Err(error) => {
                    debug!(%error, "nothing can be heard of other replicas");
                    clock::sleep(PAUSE).await;
                }
            }
        }
    }

    async fn hear<F>(&self, message: &[u8], take: &impl Fn(Handed) -> F)
    where
        F: Future<Output = Option<Handed>> + Send + 'static,
    {
        match Message::decode(message) {
            Some(Message::Reader(reader)) => self.displace(self.log.note_reader(&reader)).await,
            Some(Message::Displaced { stream, attach }) => self.log.displace(stream, attach),
            Some(Message::Request { from, number, request }) => {
                let (shared, taken) = (self.shared.clone(), take(request));
                // Others are not to wait for an upstream that takes its time.
                tokio::spawn(async move {
                    let reply = Message::Reply { number, reply: taken.await };
                    rpc::answer(&*shared, from, reply).await;
                });
            }
            Some(Message::Reply { number, reply }) => self.requests.take_reply(number, reply),
            Some(Message::Repeated { from, number, call, run, body }) => {
                let (shared, log) = (self.shared.clone(), self.log.clone());
                // It may wait for a word of the upstream.
                tokio::spawn(async move {
                    let known = log.known(&call, run, body.as_ref()).await;
                    rpc::answer(&*shared, from, Message::Known { number, known }).await;
                });
            }
            Some(Message::Known { number, known }) => self.requests.take_known(number, known),
            Some(Message::Where { from, number, stream }) => {
                let upto = self.log.written_upto(stream);
                rpc::answer(&*self.shared, from, Message::There { number, upto }).await;
            }
            Some(Message::There { number, upto }) => self.requests.take_place(number, upto),
            None => debug!("another replica says what is not known here"),
        }
    }

    async fn watch_readers(&self) {
        loop {
            tokio::select! {
                biased;
                () = self.log.has_displaced_readers() => {}
                () = clock::sleep(LOOK_FOR_READERS) => {}
            }
            self.displace(self.log.displaced_readers()).await;
        }
    }

    async fn displace(&self, displaced: Vec<Displaced>) {
        for (to, stream, attach) in displaced {
            let message = Message::Displaced { stream, attach }.encode();
            if let Err(error) = self.shared.send(to, &message, READER_HOLD).wait().await {
                debug!(stream.id = %stream, %error, "a reader could not be told that it is displaced");
            }
        }
    }
}

/// The record that a replica was taken for gone a while ago. It says how long that one was not heard of.
fn cut_off(owner: Owner) -> Vec<u8> {
    [&b"cut off\0"[..], &owner.0.to_be_bytes()].concat()
}

fn of_time(time: Duration) -> [u8; 8] {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX).to_be_bytes()
}

/// The time that a record says; none where it says nothing that can be read.
fn to_time(record: &[u8]) -> Duration {
    Duration::from_millis(record.try_into().map_or(0, u64::from_be_bytes))
}
