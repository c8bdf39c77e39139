//! 5. From a cursor to a response body.
//!
//! Owned here: following a stream on one connection (priming, replay, the live tail, heartbeats, closing early), knowing when
//! a response has arrived, and the one event that tells of a lost stream. Absent: finding the stream (event log) and the
//! response head (ingress).

mod claim;
mod follow;
mod lost;
mod passing;
mod receipts;

pub use claim::Claim;
pub use follow::{Follow, Interim, Plan, Start};
pub use lost::lost_event;
pub use passing::Passing;
pub use receipts::{Kept, Receipt, Receipts};
