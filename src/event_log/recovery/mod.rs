//! Recovery: streams, sessions and calls of other processes, and of this one before a restart or a loss in the store.

pub(in crate::event_log) mod follower;
pub(in crate::event_log) mod kept_responses;
pub(in crate::event_log) mod lease;
pub(in crate::event_log) mod remote_readers;
pub(in crate::event_log) mod remote_retries;
pub(in crate::event_log) mod restore;
pub(in crate::event_log) mod resync;
pub(in crate::event_log) mod sessions;
