//! Callers, as servers are counted and kept for them.

use crate::event_log::{Principal, QuotaKey};

/// Caller of a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Caller {
    principal: Principal,
    counted_as: QuotaKey,
}

impl Caller {
    /// Creates a caller that counts as the holder of a quota: all of a caller's sessions as one holder, so `counted_as` is none of a session.
    pub fn new(principal: Principal, counted_as: QuotaKey) -> Self {
        Self { principal, counted_as }
    }

    /// Returns true for callers without credentials.
    pub(super) fn is_anonymous(&self) -> bool {
        self.principal.is_anonymous()
    }

    /// Returns the holder of a quota as which the caller counts.
    pub(super) fn counted_as(&self) -> &QuotaKey {
        &self.counted_as
    }
}
