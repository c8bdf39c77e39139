//! What replicas that share a store do through it besides keeping streams: leases, and messages to each other.

use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;

use super::{Error, Pending, Store};
use crate::protocol::ids::{Owner, StoreEpoch};

/// What the renewal of a lease met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// The lease was running and goes on: nobody has taken anything of this replica's.
    Extended,
    /// There was none, or it had lapsed; it runs now. Others may have taken streams meanwhile.
    Acquired,
    /// Another living process has the lease of this replica's name. Nothing was changed.
    HeldByAnother,
}

/// A store that several replicas have in common. Each of them is one process with one [`Owner`].
///
/// Leases: by the store's own clock, so that the replicas' clocks need not agree. Messages: kept until the replica they are for
/// takes them, in the order of each sender, each taken once; lost with the store's contents, or when they are older than they were to
/// be kept.
pub trait Coordination: Store {
    /// Which replica this is.
    fn owner(&self) -> Owner;

    /// Names what the store holds now: another one than before once that was lost.
    fn epoch(&self) -> StoreEpoch;

    /// How often the store came to where it may hold less than was written to it: it is reached again after it was not, or its contents
    /// are others. Counted before any call is answered from there.
    fn possible_losses(&self) -> watch::Receiver<u64>;

    /// Begins the lease of this replica, or prolongs it: it lapses `lease` from now.
    fn renew(&self, lease: Duration) -> Pending<Result<Renewal, Error>>;

    /// Ends the lease of this replica at once: it leaves on purpose, and has nothing open.
    fn release(&self) -> Pending<Result<(), Error>>;

    /// Begins a lease for each of these that has none, as if it had been heard of now: they lived before the store lost what it held, and
    /// one that died in that moment would lapse for nobody. Whoever has the name may renew it.
    fn grant_grace(&self, owners: &[Owner], lease: Duration) -> Pending<Result<(), Error>>;

    /// The replicas whose lease runs, this one included where its own does.
    fn live_replicas(&self) -> Pending<Result<Vec<Owner>, Error>>;

    /// The replicas that did not renew their lease in time, until they do or are dismissed.
    fn expired_leases(&self) -> Pending<Result<Vec<Owner>, Error>>;

    /// Forgets a replica whose lease has lapsed: nothing of it is open any more. One that has renewed is left alone.
    fn forget(&self, owner: Owner) -> Pending<Result<(), Error>>;

    /// Leaves a message for a replica, itself included, for `keep`.
    fn send(&self, to: Owner, message: &[u8], keep: Duration) -> Pending<Result<(), Error>>;

    /// Waits for messages to this replica and takes them, the oldest first; never none. Not to be waited for twice at once. What an
    /// abandoned wait had taken may be lost.
    fn receive(&self) -> Pending<Result<Vec<Bytes>, Error>>;

    /// Notes for `keep` that this replica has something to do with `group`; the last call counts, also where it is the shorter one.
    fn join(&self, group: &[u8], keep: Duration) -> Pending<Result<(), Error>>;

    /// The replicas that joined `group` and were not dismissed since, in no order.
    fn members(&self, group: &[u8]) -> Pending<Result<Vec<Owner>, Error>>;
}
