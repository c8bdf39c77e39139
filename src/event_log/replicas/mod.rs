//! Knowledge that replicas share through the store, beside the streams.
//!
//! Owned here: the leases of other replicas ([`leases`]), and their readers of streams that are
//! written here ([`readers`]). Of sessions: their records ([`sessions`]), and the records to open a
//! session again ([`homes`]). Of calls with a key: their claims ([`claims`]) and their responses
//! ([`kept_responses`]). A process finds the records of its predecessor as well. Absent: the
//! messages between replicas and the renewal of this replica's lease (`cluster`), and the streams
//! of other replicas (`recovery`).

pub(in crate::event_log) mod claims;
pub(in crate::event_log) mod homes;
pub(in crate::event_log) mod kept_responses;
pub(in crate::event_log) mod leases;
pub(in crate::event_log) mod readers;
pub(in crate::event_log) mod sessions;
