//! The log of streams: each stream by its id, from its first byte upstream to the end of its
//! retention.
//!
//! Each of these modules imports only modules after it:
//!
//! - `log` creates and finds streams, and has the others as its parts;
//! - `recovery` restores streams, of this process and of others;
//! - `replicas` shares leases, readers, sessions and calls with the other replicas;
//! - `retention` keeps and forgets streams;
//! - `writer` appends and evicts;
//! - `stream` is one stream with its reader;
//! - `backing` is the store behind the log;
//! - `identity` and `quota` have the owner of a stream, and the limits of that owner.
//!
//! `sessions`, `retry_index` and `sweeper` stand beside them. Invariant: no index keeps a stream
//! longer than its retention. Absent: HTTP (`ingress`), SSE responses (`delivery`) and the upstream
//! (`upstream`).

mod backing;
mod broken_calls;
mod ended_calls;
mod identity;
mod log;
mod metrics;
mod quota;
mod recovery;
mod replicas;
mod retention;
mod retry_index;
mod sessions;
mod stream;
mod sweeper;
#[cfg(test)]
mod tests;
mod writer;

pub use crate::identity::{Binding, PresentedCredentials, Principal, Principals, Subject};
pub use backing::Backing;
pub use backing::claim::{ClaimGuard, ClaimOutcome, ClaimRecord, ClaimRequest, SubjectClaim};
pub use backing::fingerprint::Fingerprint;
pub use backing::generation::{Generation, StoreLoss};
pub use backing::lease_health::LeaseHealth;
pub use backing::schema::Slicing;
pub use broken_calls::{BrokenCall, BrokenCalls, Repeatable, SentRequest, Way};
pub use ended_calls::EndedCalls;
pub use identity::Identity;
pub use log::{EventLog, StreamName, TaskTerms, new_attach};
pub use metrics::Metrics;
pub use quota::{Quota, QuotaKey, QuotaLimits, Quotas, Reservation, StreamReservation, TailLimits, UploadReservation};
pub use recovery::adoption::Adoption;
pub use recovery::restore::{Restoration, Unreachable};
pub use recovery::resync::Resync;
pub use replicas::claims::Claims;
pub use replicas::homes::{Home, Homes, Saved};
pub use replicas::kept_responses::KeptResponses;
pub use replicas::leases::Leases;
pub use replicas::readers::{Displaced, READER_HOLD, RemoteReaders};
pub use replicas::sessions::StoredSessions;
pub use retention::{FoundStreams, Retention};
pub use retry_index::{Match, Registration, RegistrationLock, RetryIndex};
pub use sessions::handshakes::{AttemptEnd, Handshake, Handshakes, KeptCookies, Replacement, UpstreamName};
pub use sessions::{Opened, PostSlot, QueuedTurn, RunningCall, Session, Sessions, Turn, stream_owing};
pub use stream::attachment::{Attachment, ReadOutcome};
pub use stream::delivery_certainty::DeliveryCertainty;
pub use stream::get_calls::GetCalls;
pub use stream::messages::NextMessage;
pub use stream::partial_results::Slice;
pub use stream::progress::{AskingRequests, CallProgress, WrittenProgress};
pub use stream::response_head::{Head, Plain};
pub use stream::retries::{Retries, RetryMatch};
pub use stream::summary::{Summary, TaskSummary};
pub use stream::trace::DeliverySpan;
pub use stream::{
    ByGet, Collected, GetProgress, LegacyTask, Spec, Stream, TaskReading, Turn as GetTurn, UpstreamState,
};
pub use writer::{Next, Writer};
