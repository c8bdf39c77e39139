//! Recovery: streams of other processes, and of this one before a restart or a data loss.
//!
//! States of a stream as one replica sees it, in a shared store:
//!
//! ```text
//!     call arrives            +-------+  sealed by its writer   +--------+
//!     --------------------->  | owned | ----------------------> | sealed | -> retention ends
//!                             +-------+                         +--------+
//!       data loss: resynced    |  ^ |                              ^   ^
//!       from memory (`resync`) +--+ | adopted by another replica   |   |
//!                                   v (`lease`: ours expired)      |   |
//!                             +-------+                            |   |
//!                             | moved | readers resume elsewhere   |   |
//!                             +-------+                            |   |
//!     client resumes here     +----------+  sealed by its owner    |   |
//!     --------------------->  | followed | ------------------------+   |
//!     (`restore`, `follower`) +----------+                             |
//!                                   | lease of the owner expired       |
//!                                   v                                  |
//!                             +---------+  ended with `owner_died`     |
//!                             | adopted | -----------------------------+
//!                             +---------+
//! ```
//!
//! An owned stream is written here; a followed one is copied from the store while it is read here
//! (`follower` reports that to its owner). Adoption (`adoption`) fences the old owner: the store
//! takes no more of its writes. Absent: sessions and calls of other processes (`replicas`), the
//! renewal of leases and the messages between replicas (`cluster`).

pub(in crate::event_log) mod adoption;
pub(in crate::event_log) mod follower;
mod rebuild;
pub(in crate::event_log) mod restore;
pub(in crate::event_log) mod resync;
