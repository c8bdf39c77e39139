//! Kept responses: outcomes of calls with a key, apart from streams. An outcome is a response that
//! passed through, or a failure.
//!
//! Owned here: a record in the store beside the call's claim (`claims.rs`), so that the key finds
//! its response after the process is gone. Invariants: the record is in the store before a client
//! has the response, unless memory stands in for the store. A record that waits for the store
//! counts in its caller's quota. Absent: responses that are streams, which the store has anyway,
//! and responses to calls without a key.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tracing::warn;

use crate::clock;
use crate::event_log::backing::{Backing, STORE_RETRY_PAUSE};
use crate::event_log::stream::Stream;
use crate::event_log::stream::response_head::Head;
use crate::protocol::cluster::{HttpMessage, RepeatedCall};
use crate::protocol::error::{ErrorCode, Failure};
use crate::protocol::ids::StreamId;
use crate::store::{Error, StoreHealth};

/// Size above which a response is not stored. Responses kept for a retry are smaller, except lists
/// of tools.
const RESPONSE_MAX: usize = 1024 * 1024;
/// Late responses that are written at a time, once the store accepts writes again.
pub(in crate::event_log) const LATE_WRITES_MAX: usize = 16;

/// Kept responses in the store.
pub struct KeptResponses {
    backing: Option<Arc<Backing>>,
    /// Permits for the writes of late responses.
    permits: Arc<Semaphore>,
}

impl KeptResponses {
    /// Creates the kept responses in the store `backing`.
    pub(in crate::event_log) fn new(backing: Option<Arc<Backing>>) -> Self {
        Self { backing, permits: Arc::new(Semaphore::new(LATE_WRITES_MAX)) }
    }

    /// Stores the response of a call with a key and a claim, if `head` would be lost with this
    /// process. Waits for a store that is to be waited for; otherwise the record follows once the
    /// store accepts it.
    pub async fn store(&self, stream: &Stream, head: &Head) {
        let Some(backing) = &self.backing else { return };
        if !stream.retries().has_claim() {
            return;
        }
        if let Some((record, keep)) = record_of(stream, head) {
            let key = key(stream.id());
            if backing
                .retry_until_available(|| backing.store.put(&key, &record, keep), "take the response to a call")
                .await
            {
                return;
            }
            let held = stream.quota().reserve(key.len() + record.len());
            let late_response = LateResponse { key, record, until: clock::now() + keep };
            let (backing, permits) = (backing.clone(), self.permits.clone());
            tokio::spawn(async move {
                late_response.write(&backing, &permits).await;
                // Counted until the record is written.
                drop(held);
            });
        }
    }

    /// Writes the record again after a loss in the store.
    pub(in crate::event_log) fn rewrite(&self, stream: &Stream) {
        if let Some(backing) = &self.backing
            && stream.retries().has_claim()
            && let Some((record, keep)) = record_of(stream, &stream.head_now())
        {
            // Not awaited: a resync does not stop for one record.
            let _ = backing.store.put(&key(stream.id()), &record, keep);
        }
    }

    /// Returns the stored response of the call with this stream id, or `None` without one.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn find(&self, run: StreamId) -> Result<Option<RepeatedCall>, Error> {
        let Some(backing) = &self.backing else { return Ok(None) };
        let record = backing.store.get(&key(run)).wait().await?;
        Ok(record.and_then(|record| match serde_json::from_slice(&record) {
            Ok(known) => Some(known),
            Err(error) => {
                warn!(stream.id = %run, %error, "the stored response of a call cannot be read");
                None
            }
        }))
    }
}

/// Record of a response that the store refused at first.
struct LateResponse {
    key: Vec<u8>,
    record: Bytes,
    /// End of the call's retention.
    until: Instant,
}

impl LateResponse {
    /// Writes the record once the store accepts it and a permit is free; gives up at the end of the
    /// retention.
    async fn write(&self, backing: &Backing, permits: &Semaphore) {
        let Ok(Ok(_permit)) = timeout(self.left(), permits.acquire()).await else { return };
        loop {
            clock::sleep(STORE_RETRY_PAUSE).await;
            let left = self.left();
            if left.is_zero() {
                return;
            }
            let is_ready = backing.store.health() == StoreHealth::Ready;
            if is_ready && backing.store.put(&self.key, &self.record, left).wait().await.is_ok() {
                return;
            }
        }
    }

    fn left(&self) -> Duration {
        self.until.saturating_duration_since(clock::now())
    }
}

/// Returns the reply to another replica that received the call again.
pub(in crate::event_log) fn reply_for_retry(stream: StreamId, head: &Head) -> RepeatedCall {
    match head {
        Head::Waiting => RepeatedCall::Waiting,
        Head::Stream(..) | Head::Committed | Head::TakenOver => RepeatedCall::Stream(stream),
        Head::Failed(failure) => RepeatedCall::Failed(*failure),
        Head::Plain(plain) => match plain.kept_body().filter(|body| body.len() <= RESPONSE_MAX) {
            Some(body) => RepeatedCall::Answer(HttpMessage::of_response(plain.status, &plain.headers, body.to_vec())),
            // As for a second retry here: the first one has the response.
            None => RepeatedCall::Failed(Failure::after_send(ErrorCode::StreamLost)),
        },
    }
}

fn record_of(stream: &Stream, head: &Head) -> Option<(Bytes, Duration)> {
    let known = match reply_for_retry(stream.id(), head) {
        known @ (RepeatedCall::Answer(_) | RepeatedCall::Failed(_)) => known,
        RepeatedCall::Nothing
        | RepeatedCall::Another
        | RepeatedCall::OtherBody
        | RepeatedCall::Waiting
        | RepeatedCall::Stream(_) => return None,
    };
    let record = serde_json::to_vec(&known).expect("a record has no maps with keys that are no text");
    Some((record.into(), stream.with_machine(|machine| machine.policy().retention)))
}

fn key(run: StreamId) -> Vec<u8> {
    [&b"answer\0"[..], run.as_bytes()].concat()
}
