//! Which replica runs a call that a client may send again, here, to another one or after a restart.
//!
//! Owned here: a record in the store for each call that a retry may match elsewhere, claimed before the call goes upstream and gone with the
//! entry of the index of retries that it stands for; and what this replica tells others of the calls that it runs. Where replicas share
//! the store every such call has a record, else only one with a key. A call with a key whose caller shows a JWT has a second one, by which
//! the same caller finds it with another token. Invariants: of many that are sent one call at once, one claims it;
//! what is changed or removed is the record that was seen, never one that has taken its place; that of a call which its replica leaves
//! behind stays; that of a call which never ran goes, however often the store has to be asked. Absent: what a client is answered
//! (ingress), and the answers that outlive the process (`kept_responses.rs`).

use std::time::Duration;

use bytes::Bytes;

use crate::clock;
use crate::event_log::backing::claim::{
    ClaimGuard, ClaimOutcome, ClaimRecord, ClaimRequest, LOOK, Record, SubjectClaim, before, key, read_subject_claim,
    subject_key, written,
};
use crate::event_log::backing::fingerprint::Fingerprint;
use crate::event_log::log::EventLog;
use crate::event_log::recovery::kept_responses;
use crate::protocol::cluster::{Base64, RepeatedCall};
use crate::protocol::ids::StreamId;
use crate::store::Error;

/// Another replica that asks waits so long for the head of a response, and then asks again: it may have gone, and so may its client.
const HEAD_WAIT: Duration = Duration::from_millis(500);
impl EventLog {
    /// Claims a call for this replica, unless it was claimed before; with `only_looks`, looks whether it was. To be called while the call
    /// is about to be registered ([`crate::event_log::Retries::registering`]).
    ///
    /// # Errors
    /// When the store cannot be asked. Nothing is left of the claim then.
    pub async fn claim(
        &self,
        call: &Fingerprint,
        claim: ClaimRequest,
        only_looks: bool,
    ) -> Result<ClaimOutcome, Error> {
        let Some(backing) = &self.backing else { return Ok(ClaimOutcome::Unclaimed) };
        let (store, key) = (backing.store.clone(), key(call));
        if only_looks {
            return Ok(store.get(&key).wait().await?.map_or(ClaimOutcome::Unclaimed, before));
        }
        // There from before it is asked for: a client that leaves now takes the record with it.
        let hold = ClaimGuard::new(self.owner(), self.released.clone(), store, key, claim);
        let Record { key, value } = &hold.record;
        let claimed = hold.store.claim(key, value, hold.keep()).wait().await;
        match claimed.inspect_err(|error| backing.note_failure(error))? {
            None => Ok(ClaimOutcome::Claimed(hold)),
            // It was asked for twice on the way.
            Some(there) if there == *value => Ok(ClaimOutcome::Claimed(hold)),
            Some(there) => Ok(before(there)),
        }
    }

    /// Writes down that `hold` is of the `call` with this body of a caller with this subject, whose token the server had accepted or not,
    /// unless there is one of another token: then that, and how it is written.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn claim_for_subject(
        &self,
        hold: &mut ClaimGuard,
        subject: &Fingerprint,
        call: Fingerprint,
        body: Option<Fingerprint>,
        is_accepted: bool,
    ) -> Result<Option<(SubjectClaim, Bytes)>, Error> {
        let Some(backing) = &self.backing else { return Ok(None) };
        let run = ClaimRecord { owner: self.owner(), stream: hold.stream, body };
        let record = Record { key: subject_key(subject), value: written(&SubjectClaim { run, call, is_accepted }) };
        // There from before it is asked for, as the other one.
        hold.subject_record = Some(Box::new(record.clone()));
        loop {
            let claimed = hold.store.claim(&record.key, &record.value, hold.keep()).wait().await;
            let there = claimed.inspect_err(|error| backing.note_failure(error))?;
            let Some(there) = there.filter(|there| *there != record.value) else { return Ok(None) };
            let elder = read_subject_claim(&there)?;
            if elder.call != call {
                return Ok(Some((elder, there)));
            }
            // An earlier one of the same token, on its way out: this one could not be claimed before.
            hold.store.expire_if_equal(&record.key, &there, None).wait().await?;
        }
    }

    /// Returns the call with a key that was begun for a caller with this subject, and how that is written.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn subject_claim(&self, subject: &Fingerprint) -> Result<Option<(SubjectClaim, Bytes)>, Error> {
        let Some(backing) = &self.backing else { return Ok(None) };
        let record = backing.store.get(&subject_key(subject)).wait().await?;
        record.map(|record| Ok((read_subject_claim(&record)?, record))).transpose()
    }

    /// Frees the place of a call that nobody comes back to any more, with any token.
    ///
    /// # Errors
    /// When the store cannot be told.
    pub async fn release_subject_claim(&self, subject: &Fingerprint, record: &Bytes) -> Result<(), Error> {
        match &self.backing {
            Some(backing) => backing.store.expire_if_equal(&subject_key(subject), record, None).wait().await,
            None => Ok(()),
        }
    }

    /// Frees the place of a call whose record nobody comes back to any more.
    ///
    /// # Errors
    /// When the store cannot be told.
    pub async fn release_claim(&self, call: &Fingerprint, record: &Bytes) -> Result<(), Error> {
        match &self.backing {
            Some(backing) => backing.store.expire_if_equal(&key(call), record, None).wait().await,
            None => Ok(()),
        }
    }

    /// Keeps the record of `run`, a call of another replica, for `retention` from now on, if it is still there.
    ///
    /// # Errors
    /// When the store cannot be told.
    pub async fn extend_claim(&self, call: &Fingerprint, run: &ClaimRecord, retention: Duration) -> Result<(), Error> {
        match &self.backing {
            Some(backing) => backing.store.expire_if_equal(&key(call), &written(run), Some(retention)).wait().await,
            None => Ok(()),
        }
    }

    /// Returns whether a call that this process claimed is over or never ran, so that its record says nothing any more.
    pub fn has_released_claim(&self, run: StreamId) -> bool {
        self.released.contains(run)
    }

    /// Returns what this replica knows of a call that was sent again at another one, where `run` is what its record names, and `body` is
    /// there if it has a key. Waits for a word of its answer, and not for long.
    pub async fn lookup_retry(&self, call: &Base64, run: Option<StreamId>, body: Option<&Base64>) -> RepeatedCall {
        let Some(call) = Fingerprint::from_wire(call) else { return RepeatedCall::Nothing };
        // One that was claimed a moment ago may not be registered yet.
        drop(self.retry_index().registering(call).await);
        let Some(stream) = self.retry_index().find(&call) else {
            let is_released = run.is_some_and(|run| self.has_released_claim(run));
            return if is_released { RepeatedCall::Another } else { RepeatedCall::Nothing };
        };
        stream.wait_for_detach().await;
        if !stream.may_return(body.is_some()) {
            return RepeatedCall::Another;
        }
        if stream.body() != body.and_then(Fingerprint::from_wire) {
            return RepeatedCall::OtherBody;
        }
        stream.touch();
        match tokio::time::timeout(HEAD_WAIT, stream.head()).await {
            Ok(head) => kept_responses::reply_for_retry(stream.id(), &head),
            Err(_) => RepeatedCall::Waiting,
        }
    }

    /// Keeps the records of the calls that are known here, until dropped.
    pub async fn keep_claims(&self) {
        if !self.has_store() {
            return std::future::pending().await;
        }
        loop {
            clock::sleep(LOOK).await;
            let now = clock::now();
            self.retry_index().streams().iter().for_each(|stream| stream.extend_claims(now));
        }
    }
}
