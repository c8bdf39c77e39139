//! Callers that share a channel.

use std::sync::Arc;

use super::caller::Caller;
use super::connection::Users;

/// Callers that share a channel: one principal, callers without credentials at one address, or the proxy itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Sharer(Option<Arc<Caller>>);

impl Sharer {
    /// Creates the sharer of a caller's requests, or of the proxy's own.
    pub(super) fn of(caller: Option<&Arc<Caller>>) -> Self {
        Self(caller.cloned())
    }

    pub(super) fn users(&self) -> Users {
        if self.0.as_ref().is_some_and(|caller| caller.is_anonymous()) { Users::Anonymous } else { Users::Principal }
    }

    pub(super) fn caller(&self) -> Option<&Arc<Caller>> {
        self.0.as_ref()
    }
}
