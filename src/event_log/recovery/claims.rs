//! Claims of calls: by its claim, a call that a client sends again to another replica or after a
//! restart finds the replica that runs it.
//!
//! Owned here: the claims and their removal, and the replies to other replicas about the calls of
//! this one. A call with a key is claimed before it goes upstream, and with a shared store so is
//! every call that a retry may match, unless its claim is deferred. The claim is removed with its
//! entry in the retry index. A call with a key whose caller shows a JWT has a second record, by
//! which the same caller finds it with another token. Invariants: of concurrent copies of a call,
//! one claims it; a change or removal applies to the record that was seen, never to its successor;
//! the claim of a call that its replica leaves behind stays; the claim of a call that never ran is
//! removed, with as many attempts as the store needs.
//!
//! A claim is **deferred** for a call without a key, in a session that its replica alone serves: it
//! is written when the call is 20 ms old, when its client disconnects, or when another replica
//! joins the session, unless the response was delivered by then. The call runs once all the same:
//!
//! 1. Only the replica that opened a session can be its sole replica: if it finds no other replica
//!    registered once it is registered itself, and if the store has lost nothing for a lease time,
//!    in which the other replicas register again.
//! 2. Each other replica joins the session before its first call in it without a key. It registers
//!    itself, whether or not it knows the session, then asks all replicas that are registered, and
//!    waits for the reply of each that lives. Of two replicas, one at least finds the other. The
//!    sole replica then claims its calls of the session, and replies when the store has the claims.
//!    A replica renews its registration at half of its lifetime, for as long as it has a record of
//!    the session, and joins again then.
//! 3. A call that begins at the sole replica is in the session's list before that claims the calls,
//!    or it is claimed before it runs (`sessions/sharing.rs`). So the joined replica finds the
//!    claim of each such call, and from then on both claim before they run a call.
//! 4. A replica whose lease may have expired, or whose store may have lost data, is no longer sole:
//!    others may have joined without its reply. In either case it renews its registrations at once.
//!    With a new lease it joins its sessions again, since others may have forgotten it and opened
//!    them.
//!
//! A replica joins no session for a call that it refuses in any case. A record of a session that is
//! replaced or evicted passes its calls on.
//!
//! Exceptions, in which a call that began less than 20 ms before can run twice: its replica died or
//! was frozen. Its session was opened anew, within a lease time after a loss, at a replica that had
//! begun after the loss and cannot know of it.
//!
//! The alternative, no handshake and a question to each replica of the session before each call,
//! costs two messages for every call in a shared session, where a claim costs one request.
//!
//! Absent: the response to the client (`ingress`), and responses that outlive the process
//! (`kept_responses.rs`).

use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;

use crate::clock;
use crate::event_log::backing::claim::{
    CHECK_EVERY, ClaimGuard, ClaimOutcome, ClaimRecord, ClaimRequest, ClaimWrite, Record, SubjectClaim, encode,
    existing, key, read_subject_claim, subject_key,
};
use crate::event_log::backing::fingerprint::Fingerprint;
use crate::event_log::backing::{Backing, STORE_RETRY_PAUSE};
use crate::event_log::identity::principal::Principal;
use crate::event_log::log::EventLog;
use crate::event_log::recovery::kept_responses;
use crate::event_log::sessions::{Announcement, Session};
use crate::event_log::stream::Stream;
use crate::event_log::stream::retries::RetryMatch;
use crate::protocol::cluster::{Base64, JoinedSession, RepeatedCall};
use crate::protocol::headers::SessionId;
use crate::protocol::ids::StreamId;
use crate::store::Error;

/// Time that a query from another replica waits for the response head. The other replica then asks
/// again, because it or its client may have gone.
const HEAD_WAIT: Duration = Duration::from_millis(500);

impl EventLog {
    /// Claims a call for this replica, unless it was claimed before; with `only_reads`, only reads
    /// the claim. To be called under the call's registration lock
    /// ([`crate::event_log::RetryIndex::registering`]).
    ///
    /// # Errors
    /// If the store cannot be asked. No claim is left then.
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
        // The guard exists before the write: if the client leaves now, the record goes too.
        let guard = ClaimGuard::new(self.owner(), backing.released.clone(), store, *call, claim);
        let Record { key, value } = guard.record();
        let claimed = guard.store.claim(&key, &value, guard.keep()).wait().await;
        match claimed.inspect_err(|error| backing.note_failure(error))? {
            // The claim may have been sent twice on the way.
            Some(there) if there != value => Ok(existing(there)),
            None | Some(_) => {
                guard.note_confirmed();
                Ok(ClaimOutcome::Claimed(guard))
            }
        }
    }

    /// Records the `call` for the caller's other tokens, under this subject, with its body and
    /// whether the server had accepted the token. Returns the record of a call under another token
    /// if there is one, with its bytes.
    ///
    /// # Errors
    /// If the store cannot be asked.
    pub async fn claim_for_subject(
        &self,
        guard: &mut ClaimGuard,
        subject: &Fingerprint,
        call: Fingerprint,
        body: Option<Fingerprint>,
        is_accepted: bool,
    ) -> Result<Option<(SubjectClaim, Bytes)>, Error> {
        let Some(backing) = &self.backing else { return Ok(None) };
        let run = ClaimRecord { owner: self.owner(), stream: guard.stream, body };
        let record = Record { key: subject_key(subject), value: encode(&SubjectClaim { run, call, is_accepted }) };
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
            if previous.call != call {
                return Ok(Some((previous, there)));
            }
            // An earlier record of the same token is being removed: otherwise this call could not
            // have been claimed.
            guard.store.expire_if_equal(&record.key, &there, None).wait().await?;
        }
    }

    /// Returns the record of a call with a key under this subject, with its bytes, or `None` if
    /// there is none.
    ///
    /// # Errors
    /// If the store cannot be asked.
    pub async fn subject_claim(&self, subject: &Fingerprint) -> Result<Option<(SubjectClaim, Bytes)>, Error> {
        let Some(backing) = &self.backing else { return Ok(None) };
        let record = backing.store.get(&subject_key(subject)).wait().await?;
        record.map(|record| Ok((read_subject_claim(&record)?, record))).transpose()
    }

    /// Removes the record under a subject, if it is still this one: the call can no longer be
    /// retried with any token.
    ///
    /// # Errors
    /// If the store cannot be told.
    pub async fn release_subject_claim(&self, subject: &Fingerprint, record: &Bytes) -> Result<(), Error> {
        match &self.backing {
            Some(backing) => backing.store.expire_if_equal(&subject_key(subject), record, None).wait().await,
            None => Ok(()),
        }
    }

    /// Removes the claim of a call, if it is still this one: the call can no longer be retried.
    ///
    /// # Errors
    /// If the store cannot be told.
    pub async fn release_claim(&self, call: &Fingerprint, record: &Bytes) -> Result<(), Error> {
        match &self.backing {
            Some(backing) => backing.store.expire_if_equal(&key(call), record, None).wait().await,
            None => Ok(()),
        }
    }

    /// Extends the claim `run` of another replica's call by `retention`, if it is still there.
    ///
    /// # Errors
    /// If the store cannot be told.
    pub async fn extend_claim(&self, call: &Fingerprint, run: &ClaimRecord, retention: Duration) -> Result<(), Error> {
        match &self.backing {
            Some(backing) => backing.store.expire_if_equal(&key(call), &encode(run), Some(retention)).wait().await,
            None => Ok(()),
        }
    }

    /// Returns whether a call that was claimed here is over or never ran, so that its claim is
    /// void.
    pub fn has_released_claim(&self, stream: StreamId) -> bool {
        self.backing.as_ref().is_some_and(|backing| backing.released.contains(stream))
    }

    /// Replies to another replica that received a call again: `run` is the stream in the call's
    /// claim, and `body` is present if the call has a key. Waits briefly for the response head.
    pub async fn lookup_retry(&self, call: &Base64, run: Option<StreamId>, body: Option<&Base64>) -> RepeatedCall {
        let Some(call) = Fingerprint::from_wire(call) else { return RepeatedCall::Nothing };
        // A call that was claimed a moment ago may not be registered yet.
        drop(self.retry_index().registering(call).await);
        let Some(stream) = self.find_call(&call) else {
            let is_released = run.is_some_and(|run| self.has_released_claim(run));
            return if is_released { RepeatedCall::Another } else { RepeatedCall::Nothing };
        };
        stream.retries().wait_for_detach().await;
        let body = match body.map(Fingerprint::from_wire) {
            // Malformed: the fingerprint of no body.
            Some(None) => return RepeatedCall::OtherBody,
            Some(body) => body,
            None => None,
        };
        match stream.retries().compare(body, self.id_use(stream.binding())) {
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

    /// Calls `begin` if this replica alone serves `session` and the store is ready: a call without
    /// a key that `begin` adds to the session needs no claim yet. Another replica joins before or
    /// after that.
    pub fn begin_as_sole<R>(&self, session: &Session, begin: impl FnOnce() -> R) -> Option<R> {
        session.begin_as_sole(self.backing.as_ref()?.ready_term(), begin)
    }

    /// Begins to tell the other replicas that serve `session` that this one does, which is due
    /// before a call without a key runs here. Returns `None` if they know, or if no replicas share
    /// the store.
    pub fn begin_announcement(&self, session: &Session) -> Option<Announcement> {
        let backing = self.backing.as_ref().filter(|backing| backing.coordination.is_some())?;
        session.begin_announcement(backing.term())
    }

    /// Defers the claim of a call that begins, until it is no longer young.
    pub fn defer_claim(&self, stream: &Arc<Stream>) {
        self.young_calls.add(stream);
    }

    /// Claims the calls of a session that another replica joins, and lets later ones be claimed
    /// before they run.
    ///
    /// # Errors
    /// If the store has not confirmed each claim.
    pub async fn share_session(&self, joined: &JoinedSession) -> Result<(), Error> {
        let (id, principal) = (SessionId::parse(&joined.id), Principal::from_wire(&joined.principal));
        match id.zip(principal) {
            Some(key) => claim_all(self.sessions.share(&key)).await,
            None => Ok(()),
        }
    }

    /// Claims all young calls: this process ends.
    ///
    /// # Errors
    /// If the store has not confirmed each claim.
    pub async fn claim_young_calls(&self) -> Result<(), Error> {
        claim_all(self.young_calls.take_all()).await
    }

    /// Claims each call once it is no longer young, until dropped.
    pub async fn write_deferred_claims(&self) {
        let claim = |calls: Vec<Arc<Stream>>| {
            let writes = write_claims(&calls);
            let Some(backing) = self.backing.clone() else { return };
            if writes.is_empty() {
                return;
            }
            let calls = calls.iter().map(Arc::downgrade).collect();
            // Spawned: younger calls do not wait for the store.
            tokio::spawn(confirm_claims(backing, calls, writes));
        };
        self.young_calls.run(claim).await;
    }

    /// Extends the claims of this replica's calls, until dropped.
    pub async fn keep_claims(&self) {
        if !self.has_store() {
            return std::future::pending().await;
        }
        loop {
            clock::sleep(CHECK_EVERY).await;
            let now = clock::now();
            for claim in self.retry_index().claims() {
                claim.extend_if_due(now);
            }
            for stream in self.retry_index().streams() {
                // Its claim may have been all that it was kept whole for.
                self.release(stream);
            }
        }
    }
}

/// Sends the claims of `calls` that the store has not confirmed.
fn write_claims(calls: &[Arc<Stream>]) -> Vec<ClaimWrite> {
    calls.iter().flat_map(|call| call.retries().write_claims()).collect()
}

/// Waits for `writes`, the claims of `calls`, and repeats those that failed until the store has
/// confirmed them. A call that is over or delivered needs none.
async fn confirm_claims(backing: Arc<Backing>, calls: Vec<Weak<Stream>>, mut writes: Vec<ClaimWrite>) {
    while !writes.is_empty() {
        let mut is_confirmed = true;
        for write in writes {
            if let Err(error) = write.wait().await {
                is_confirmed = false;
                backing.note_failure(&error);
            }
        }
        if is_confirmed {
            return;
        }
        clock::sleep(STORE_RETRY_PAUSE).await;
        let running: Vec<_> = calls.iter().filter_map(Weak::upgrade).collect();
        writes = write_claims(&running);
    }
}

/// Claims `calls`, all at once.
async fn claim_all(calls: Vec<Arc<Stream>>) -> Result<(), Error> {
    for write in write_claims(&calls) {
        write.wait().await?;
    }
    Ok(())
}
