//! Delivery: response bodies from a cursor.
//!
//! Owned here: following a stream on one connection (priming, replay, the live tail, heartbeats,
//! beats, closing early), proofs that a response has arrived, and the event that reports a lost
//! stream. Absent: finding the stream (event log) and the response head (ingress).

mod beats;
mod disconnect;
mod disconnect_guard;
mod follow;
mod held_poll;
mod metrics;
mod passthrough;
mod receipts;
mod stream_lost;

pub use beats::BeatTimes;
pub use disconnect_guard::DisconnectGuard;
pub use follow::{EarlyClose, EmptyEvents, Follow, Interim, LaterRetry, Opening, Plan, Start};
pub use held_poll::{ANSWER, HeldPoll};
pub use metrics::Metrics;
pub use passthrough::Passthrough;
pub use receipts::{KeptResponseBody, Receipt, Receipts};
pub use stream_lost::lost_event;
