//! Claims of calls with an `Idempotency-Key`. A client may send a call again to another replica, or
//! after a restart. By the claim, the replica that runs it is found.
//!
//! Owned here: the claims and their removal, and the replies to other replicas about calls of this
//! one. A call with a key is claimed before it goes upstream, and its claim is removed with its
//! entry in the retry index. A call whose caller shows a JWT has a second record. By it the same
//! caller finds the call with another token. Invariants: of concurrent copies of a call, one claims
//! it. A change or removal applies to the record that was read, never to its successor. The claim
//! of a call that its replica leaves behind stays. The claim of a call that never ran is removed,
//! with as many attempts as the store needs.
//!
//! Absent: claims of calls without a key, which are retried within one process only; the response
//! to the client (`ingress`); responses that outlive the process (`kept_responses.rs`).

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::clock;
use crate::event_log::backing::Backing;
use crate::event_log::backing::claim::{
    CHECK_EVERY, ClaimGuard, ClaimOutcome, ClaimRecord, ClaimRequest, Record, SubjectClaim, encode, existing, key,
    read_subject_claim, subject_key,
};
use crate::event_log::backing::fingerprint::Fingerprint;
use crate::event_log::replicas::kept_responses;
use crate::event_log::retention::Retention;
use crate::event_log::retry_index::RetryIndex;
use crate::event_log::stream::Stream;
use crate::event_log::stream::retries::RetryMatch;
use crate::protocol::cluster::{Base64, RepeatedCall};
use crate::protocol::ids::{Owner, StreamId};
use crate::protocol::request_ids::IdUse;
use crate::store::Error;

/// Time that a query from another replica waits for the response head. The other replica then
/// repeats the query, because it or its client may have gone.
const HEAD_WAIT: Duration = Duration::from_millis(500);

/// Claims of the calls with a key, here and in the store.
pub struct Claims {
    here: Owner,
    backing: Option<Arc<Backing>>,
    retry_index: Arc<RetryIndex<Stream>>,
    retention: Arc<Retention>,
}

impl Claims {
    /// Creates the claims of replica `here`, whose calls are in `retry_index`.
    pub(in crate::event_log) fn new(
        here: Owner,
        backing: Option<Arc<Backing>>,
        retry_index: Arc<RetryIndex<Stream>>,
        retention: Arc<Retention>,
    ) -> Self {
        Self { here, backing, retry_index, retention }
    }

    /// Claims a call for this replica, unless it was claimed before; with `only_reads`, only reads
    /// the claim. To be called under the call's registration lock
    /// ([`crate::event_log::RetryIndex::registering`]).
    ///
    /// # Errors
    /// If the store fails. No claim is left then.
    pub async fn claim(
        &self,
        call: &Fingerprint,
        claim: ClaimRequest,
        only_reads: bool,
    ) -> Result<ClaimOutcome, Error> {
        let Some(backing) = &self.backing else { return Ok(ClaimOutcome::Unclaimed) };
        let store = backing.store.clone();
        if only_reads {
            return Ok(store.get(&key(call)).wait().await?.map_or(ClaimOutcome::Unclaimed, existing));
        }
        // The guard exists before the write: if the client leaves now, the record is removed.
        let guard = ClaimGuard::new(self.here, backing.released.clone(), store, *call, claim);
        let Record { key, value } = guard.record();
        let claimed = guard.store.claim(&key, &value, guard.keep()).wait().await;
        match claimed.inspect_err(|error| backing.note_failure(error))? {
            // The store may have received the claim twice.
            Some(there) if there != value => Ok(existing(there)),
            None | Some(_) => Ok(ClaimOutcome::Claimed(guard)),
        }
    }

    /// Records the call of `guard` for the caller's other tokens, under this subject, and whether
    /// the server had accepted the present token. Returns the record of a call under another token
    /// if there is one, with its bytes.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn claim_for_subject(
        &self,
        guard: &mut ClaimGuard,
        subject: &Fingerprint,
        is_accepted: bool,
    ) -> Result<Option<(SubjectClaim, Bytes)>, Error> {
        let Some(backing) = &self.backing else { return Ok(None) };
        let claim = guard.subject_claim(is_accepted);
        let record = Record { key: subject_key(subject), value: encode(&claim) };
        // Set before the write, as for the claim itself.
        guard.subject_record = Some(Box::new(record.clone()));
        loop {
            let claimed = guard.store.claim(&record.key, &record.value, guard.keep()).wait().await;
            let there = claimed.inspect_err(|error| backing.note_failure(error))?;
            let there = match there {
                Some(there) if there != record.value => there,
                Some(_) | None => return Ok(None),
            };
            let previous = read_subject_claim(&there)?;
            if previous.call != claim.call {
                return Ok(Some((previous, there)));
            }
            // An earlier record of the same token is being removed: otherwise this call could not
            // have been claimed.
            guard.store.expire_if_equal(&record.key, &there, None).wait().await?;
        }
    }

    /// Returns the record of a call under this subject, with its bytes, or `None` without one.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn subject_claim(&self, subject: &Fingerprint) -> Result<Option<(SubjectClaim, Bytes)>, Error> {
        let Some(backing) = &self.backing else { return Ok(None) };
        let record = backing.store.get(&subject_key(subject)).wait().await?;
        record.map(|record| Ok((read_subject_claim(&record)?, record))).transpose()
    }

    /// Removes the record under a subject, if it still has these bytes: the call can no longer be
    /// retried with any token.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn release_subject_claim(&self, subject: &Fingerprint, record: &Bytes) -> Result<(), Error> {
        self.expire_record(&subject_key(subject), record, None).await
    }

    /// Removes the claim of a call, if it still has these bytes: the call can no longer be retried.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn release(&self, call: &Fingerprint, record: &Bytes) -> Result<(), Error> {
        self.expire_record(&key(call), record, None).await
    }

    /// Extends the claim `run` of another replica's call by `retention`, if the store still has it.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn extend(&self, call: &Fingerprint, run: &ClaimRecord, retention: Duration) -> Result<(), Error> {
        self.expire_record(&key(call), &encode(run), Some(retention)).await
    }

    async fn expire_record(&self, key: &[u8], value: &[u8], after: Option<Duration>) -> Result<(), Error> {
        match &self.backing {
            Some(backing) => backing.store.expire_if_equal(key, value, after).wait().await,
            None => Ok(()),
        }
    }

    /// Returns whether a call that this replica claimed has ended or never ran, so that its claim
    /// is void.
    pub fn has_released(&self, stream: StreamId) -> bool {
        self.backing.as_ref().is_some_and(|backing| backing.released.contains(stream))
    }

    /// Replies to another replica that received a call again: `run` is the stream in the call's
    /// claim, and `body` the fingerprint of the POST body. Waits briefly for the response head.
    pub async fn lookup_retry(&self, call: &Base64, run: Option<StreamId>, body: &Base64) -> RepeatedCall {
        let Some(call) = Fingerprint::from_wire(call) else { return RepeatedCall::Nothing };
        // A call that was claimed a moment ago may not be registered yet.
        drop(self.retry_index.registering(call).await);
        let found = self.retry_index.find(&call, |id| self.retention.expand(id)).into_iter().next();
        let Some(stream) = found else {
            let is_released = run.is_some_and(|run| self.has_released(run));
            return if is_released { RepeatedCall::Another } else { RepeatedCall::Nothing };
        };
        stream.retries().wait_for_detach().await;
        // A malformed fingerprint matches no body.
        let Some(body) = Fingerprint::from_wire(body) else { return RepeatedCall::OtherBody };
        match stream.retries().compare(Some(body), IdUse::Unique) {
            RetryMatch::Retry => {}
            RetryMatch::OtherBody => return RepeatedCall::OtherBody,
            RetryMatch::NewCall => return RepeatedCall::Another,
        }
        stream.touch();
        match tokio::time::timeout(HEAD_WAIT, stream.head()).await {
            Ok(head) => kept_responses::reply_for_retry(stream.id(), &head),
            Err(_) => RepeatedCall::Waiting,
        }
    }

    /// Extends the claims of this replica's calls, until dropped.
    pub async fn keep(&self) {
        if self.backing.is_none() {
            return std::future::pending().await;
        }
        loop {
            clock::sleep(CHECK_EVERY).await;
            let now = clock::now();
            for claim in self.retry_index.claims() {
                claim.extend_if_due(now);
            }
        }
    }

    /// Leaves the claims of all calls in the store: this process ends, and others, or the next one,
    /// serve its streams.
    pub fn leave_all(&self) {
        for claim in self.retry_index.claims() {
            claim.leave();
        }
    }
}
