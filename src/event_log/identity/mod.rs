//! Identities: of this replica, of callers, and of the owners of streams.

pub(in crate::event_log) mod ownership;
pub(in crate::event_log) mod principal;
