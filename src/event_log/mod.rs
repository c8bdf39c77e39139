//! The log of streams: each stream by its id, from its first byte upstream to the end of its
//! retention.
//!
//! Each of these modules imports only those after it: `recovery` brings streams, sessions and calls
//! back, of this process and of others; `log` creates, finds, keeps and forgets streams; `writer`
//! appends and evicts; `stream` is one stream with its reader; `backing` is the store behind the
//! log; `identity` and `quota` say whose a stream is and how much its owner may hold. `sessions`,
//! `retry_index` and `sweeper` stand beside them. Invariant: no index keeps a stream
//! longer than its retention. Absent: HTTP (`ingress`), SSE responses (`delivery`) and the upstream
//! (`upstream`).

mod backing;
mod identity;
mod log;
mod metrics;
mod quota;
mod recovery;
mod retry_index;
mod sessions;
mod stream;
mod sweeper;
#[cfg(test)]
mod tests;
mod writer;

pub use backing::Backing;
pub use backing::claim::{ClaimGuard, ClaimOutcome, ClaimRecord, ClaimRequest, SubjectClaim};
pub use backing::fingerprint::Fingerprint;
pub use backing::generation::{Generation, StoreLoss};
pub use backing::lease_health::LeaseHealth;
pub use backing::reader_table::{Displaced, READER_HOLD};
pub use backing::schema::Slicing;
pub use identity::Identity;
pub use identity::binding::Binding;
pub use identity::principal::{PresentedCredentials, Principal, Principals, Subject};
pub use log::{EventLog, FoundStreams, TaskTerms, new_attach};
pub use metrics::Metrics;
pub use quota::{Quota, QuotaKey, QuotaLimits, Quotas, Reservation, StreamReservation, TailLimits, UploadReservation};
pub use recovery::handshakes::{Home, Saved};
pub use recovery::restore::Unreachable;
pub use retry_index::{Match, Registration, RegistrationLock, RetryIndex};
pub use sessions::handshakes::{AttemptEnd, Handshake, Handshakes, UpstreamName};
pub use sessions::{Opened, PostSlot, QueuedTurn, Session, Sessions, Turn, stream_owing};
pub use stream::attachment::{Attachment, ReadOutcome};
pub use stream::delivery_certainty::DeliveryCertainty;
pub use stream::partial_results::Slice;
pub use stream::progress::{AskingRequests, CallProgress, WrittenProgress};
pub use stream::response_head::{Head, Plain};
pub use stream::retries::{Retries, RetryMatch};
pub use stream::summary::{Summary, TaskSummary};
pub use stream::trace::DeliverySpan;
pub use stream::{Collected, LegacyTask, Spec, Stream, TaskReading, UpstreamState};
pub use writer::{Next, Writer};
