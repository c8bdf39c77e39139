//! Delivery: response bodies from a cursor.
//!
//! Owned here: following a stream on one connection (priming, replay, the live tail, heartbeats,
//! beats, closing early), its messages for a client in this process, proofs that a response has
//! arrived, and the event that reports a lost stream. Absent: finding the stream (event log) and
//! the response head (ingress).

mod beats;
mod by_get;
mod counted_body;
mod disconnect;
mod disconnect_guard;
mod follow;
mod held_poll;
mod messages;
mod metrics;
mod passthrough;
mod receipts;
mod repetition;
mod stream_lost;

use std::time::Duration;

pub use beats::BeatTimes;
pub use by_get::watch_ended_calls;
pub use counted_body::CountedBody;
pub use disconnect_guard::DisconnectGuard;
pub use follow::{EarlyClose, EmptyEvents, Follow, Interim, LaterRetry, Opening, Plan, Start};
pub use held_poll::{ANSWER, HeldPoll};
pub use messages::{MessageFrames, Messages};
pub use metrics::Metrics;
pub use passthrough::Passthrough;
pub use receipts::{KeptResponseBody, PassedResponse, Receipt, Receipts};
pub use repetition::REPETITION_WINDOW;
pub use stream_lost::lost_event;

/// Time that a connection must stay open after the end of a response, or behind a response on a GET
/// stream, to count it as delivered.
const SETTLED: Duration = Duration::from_secs(2);
