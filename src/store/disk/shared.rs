//! State that the writer and the readers of a disk store share, and its clock.

use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use mcp_resume_base::clock;
use mcp_resume_protocol::ids::Owner;

use super::access::Access;
use super::index::Index;
use crate::change_subscriptions::ChangeSubscriptions;

/// State shared by the writer and the readers.
pub(super) struct Shared {
    pub(super) owner: Owner,
    pub(super) index: Index,
    pub(super) subscriptions: ChangeSubscriptions,
    pub(super) access: Access,
    pub(super) queued_bytes: AtomicUsize,
    /// Number of groups written.
    #[cfg(test)]
    pub(super) groups: AtomicUsize,
    /// Number of attempts to write again after a failure.
    #[cfg(test)]
    pub(super) attempts: AtomicUsize,
}

/// Returns the wall clock, in milliseconds as stored.
pub(super) fn now() -> u64 {
    millis(clock::wall())
}

/// Returns a time in milliseconds as stored.
pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
