//! Coordination of replicas through their shared store: leases, and messages to each other.

use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;

use super::{Error, Pending, Store};
use mcp_resume_protocol::ids::{Owner, StoreEpoch};

/// Outcome of the renewal of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// The lease was running and was extended. No other replica has taken streams of this one.
    Extended,
    /// The lease did not exist or had expired, and runs now. Other replicas may have taken streams
    /// meanwhile.
    Acquired,
    /// A live process with the same replica name holds the lease. Nothing was changed.
    HeldByAnother,
}

/// A store shared by several replicas. Each replica is one process with one [`Owner`].
///
/// Leases run by the clock of the store, so that the clocks of the replicas need not agree. A
/// message is kept until its recipient takes it, once, in the order of each sender. It is lost with
/// the contents of the store, or when it is older than its time to live.
pub trait Coordination: Store {
    /// Returns the owner of this replica.
    fn owner(&self) -> Owner;

    /// Returns the epoch of the contents. It changes when the contents are lost.
    fn epoch(&self) -> StoreEpoch;

    /// Returns a count of possible losses. The store may hold less than was written to it after it
    /// was unreachable, or after its contents changed. Each is counted before any call returns data
    /// of the new contents.
    fn possible_losses(&self) -> watch::Receiver<u64>;

    /// Starts or extends the lease of this replica: it expires `lease` from now.
    fn renew(&self, lease: Duration) -> Pending<Result<Renewal, Error>>;

    /// Ends the lease of this replica at once, when it leaves on purpose and has no open streams.
    fn release(&self) -> Pending<Result<(), Error>>;

    /// Grants a fresh lease to each listed replica that has none. After data loss no lease exists,
    /// and a replica that died at that moment would never be reported as expired. Any process with
    /// the name may renew such a lease.
    fn grant_grace(&self, owners: &[Owner], lease: Duration) -> Pending<Result<(), Error>>;

    /// Returns the replicas with a running lease, this one included if its own runs.
    ///
    /// # Errors
    /// `Unavailable` if the store has lost its contents and the loss was not noticed before.
    fn live_replicas(&self) -> Pending<Result<Vec<Owner>, Error>>;

    /// Returns the replicas whose lease has expired, until they renew it or are forgotten.
    fn expired_leases(&self) -> Pending<Result<Vec<Owner>, Error>>;

    /// Forgets a replica with an expired lease and without open streams. No effect on a replica
    /// that has renewed its lease.
    fn forget(&self, owner: Owner) -> Pending<Result<(), Error>>;

    /// Leaves a message for a replica, which may be this one, for `keep`.
    fn send(&self, to: Owner, message: &[u8], keep: Duration) -> Pending<Result<(), Error>>;

    /// Waits for messages to this replica and takes them, the oldest first; never returns an empty
    /// list. At most one call may wait at a time. Messages taken by an abandoned call may be lost.
    fn receive(&self) -> Pending<Result<Vec<Bytes>, Error>>;

    /// Records for `keep` that this replica belongs to `group`. The last call counts, also if its
    /// time is shorter.
    fn join(&self, group: &[u8], keep: Duration) -> Pending<Result<(), Error>>;

    /// Returns the replicas that joined `group` and were not forgotten since, in no order.
    fn members(&self, group: &[u8]) -> Pending<Result<Vec<Owner>, Error>>;
}
