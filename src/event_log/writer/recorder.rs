//! Recorder: persists each batch before any reader sees it, in the store or, if that cannot be, in
//! memory.
//!
//! A batch goes in as [`Staged`] and comes out as [`Persisted`]. Owned here: the handling of a
//! batch that the store refuses, and the catch-up of a stream once the store is back. Absent: the
//! events themselves (the tail has them) and their production (the machine).

use std::sync::Arc;

use tracing::{debug, info, warn};

use crate::clock;
use crate::event_log::backing::{
    Backing, Fenced, KEEP_UNSEALED, Persisted, STORE_RETRY_PAUSE, Staged, StagedState, StoreProgress,
};
use crate::event_log::stream::Stream;
use crate::protocol::ids::Seq;
use crate::protocol::stream::Batch;
use crate::store::{Appended, Error, StoreHealth, WriterEpoch};

/// Bytes of one append during a catch-up.
const CATCH_UP: usize = 256 * 1024;

/// Failure of one attempt to write to the store.
enum PersistError {
    Fenced,
    Store(Error),
}

/// Outcome of one attempt to seal a stream in its store.
enum SealOutcome {
    Sealed,
    Fenced,
    /// The store cannot take the seal now.
    Failed,
}

impl From<Error> for PersistError {
    fn from(error: Error) -> Self {
        PersistError::Store(error)
    }
}

/// Attempts that remain for a batch while it is unknown whether the store can be reached. Then
/// memory stands in for the store, even with a lease in doubt: no batch waits for ever. Counted in
/// attempts, not in time, because the process may be frozen while it waits.
struct RetryBudget(u32);

impl Default for RetryBudget {
    fn default() -> Self {
        Self(Self::TRIES)
    }
}

impl RetryBudget {
    /// About three seconds, with pauses of [`STORE_RETRY_PAUSE`].
    const TRIES: u32 = 12;

    fn take_attempt(&mut self, backing: &Backing) -> bool {
        let is_due = backing.lease_health.is_in_doubt() && self.0 > 0;
        self.0 -= u32::from(is_due);
        is_due
    }
}

/// Seals a finished stream in its store, then calls `done`, unless another writer has the stream.
/// If the store cannot take the seal now, a background task retries until the end of the retention.
pub(in crate::event_log) async fn seal(
    stream: &Arc<Stream>,
    backing: &Arc<Backing>,
    done: impl FnOnce() + Send + 'static,
) {
    match (Recorder { stream, backing }).seal().await {
        SealOutcome::Sealed => return done(),
        SealOutcome::Fenced => return,
        SealOutcome::Failed => {}
    }
    let until = clock::now() + stream.with_machine(|machine| machine.policy().retention);
    let (stream, backing) = (stream.clone(), backing.clone());
    tokio::spawn(async move {
        let recorder = Recorder { stream: &stream, backing: &backing };
        loop {
            match recorder.seal().await {
                SealOutcome::Sealed => return done(),
                SealOutcome::Fenced => return,
                SealOutcome::Failed => {}
            }
            if clock::now() >= until {
                // An unsealed stream has a long retention in the store, and may be what fills it.
                if let Err(error) = backing.store.expire(stream.shared.id).wait().await {
                    debug!(stream.id = %stream.shared.id, %error, "the store could not expire an unsealed stream");
                }
                return;
            }
            clock::sleep(STORE_RETRY_PAUSE).await;
        }
    });
}

/// Recorder of one stream.
pub(in crate::event_log) struct Recorder<'a> {
    pub(in crate::event_log) stream: &'a Stream,
    pub(in crate::event_log) backing: &'a Backing,
}

impl Recorder<'_> {
    /// Writes `staged` to the store, after all missing events. Waits for a store that is to be
    /// waited for; otherwise memory holds the batch until the store is back.
    ///
    /// # Errors
    /// If another writer has the stream.
    pub(in crate::event_log) async fn persist(&self, staged: Staged) -> Result<Persisted, Fenced> {
        let mut has_warned = false;
        let mut retry_budget = RetryBudget::default();
        loop {
            let began = clock::now();
            let error = match self.try_persist(&staged).await {
                Ok(()) => {
                    self.backing.metrics.store.observe_append(clock::now().saturating_duration_since(began));
                    return Ok(Persisted { batch: staged.batch });
                }
                Err(PersistError::Fenced) => return Err(Fenced),
                Err(PersistError::Store(error)) => error,
            };
            let waits = self.backing.should_wait(&error);
            self.backing.note_failure(&error);
            if !std::mem::replace(&mut has_warned, true) {
                let what = if waits { "the stream waits" } else { "memory holds the events" };
                self.warn_once(&error, what);
            }
            // After an expired lease other replicas may have ended the stream. Only an unreachable
            // store leaves it to this one.
            let waits = waits || (matches!(error, Error::Unavailable(_)) && retry_budget.take_attempt(self.backing));
            if !waits {
                self.stream.shared.with_store_progress(|store_progress| store_progress.is_behind = true);
                return Ok(Persisted { batch: staged.batch });
            }
            self.stream.shared.lock().reservation.keep_overrun(clock::now());
            clock::sleep(STORE_RETRY_PAUSE).await;
        }
    }

    /// Returns whether the store lacks events that could be written now.
    pub(in crate::event_log) fn can_catch_up(&self) -> bool {
        self.stream
            .shared
            .with_store_progress(|store_progress| store_progress.is_behind && !store_progress.is_memory_only)
            && self.backing.store.health() == StoreHealth::Ready
    }

    fn warn_once(&self, error: &Error, what: &str) {
        // Once per stream: each of its batches fails alike.
        if !self.stream.shared.with_store_progress(|store_progress| store_progress.is_behind) {
            warn!(stream.id = %self.stream.shared.id, %error, "the store cannot take an event: {what}");
        }
    }

    async fn try_persist(&self, staged: &Staged) -> Result<(), PersistError> {
        // Twice, because the first attempt may correct the assumed state of the store.
        for _ in 0..2 {
            if self.backing.store.health() == StoreHealth::Unreachable {
                if self.stream.shared.with_store_progress(|store_progress| store_progress.is_memory_only) {
                    return Ok(());
                }
                return Err(Error::Unavailable("it did not reply before".into()).into());
            }
            let after = Seq(staged.batch.first().0.max(1) - 1);
            let (mut epoch, is_level_with) = {
                let inner = self.stream.shared.lock();
                let store_progress = inner.store_progress.as_deref();
                if store_progress.is_some_and(|store_progress| store_progress.is_memory_only) {
                    return Ok(());
                }
                (inner.epoch, store_progress.is_some_and(|store_progress| store_progress.is_level_with(after)))
            };
            if !is_level_with {
                if self.backing.lease_health.is_expired()
                    && !self.stream.shared.with_store_progress(|store_progress| store_progress.is_created)
                {
                    // No replica would end the new stream if this one died.
                    return Err(Error::Unavailable(
                        "the lease of this replica has expired and must be renewed first".into(),
                    )
                    .into());
                }
                if self.write_whole(staged).await? {
                    return Ok(());
                }
                self.create().await?;
                if !self.catch_up().await? {
                    return Ok(());
                }
                epoch = self.stream.shared.lock().epoch;
            }
            if staged.batch.is_empty() && staged.state.is_none() {
                return Ok(());
            }
            match self.append(epoch, after, &staged.batch, staged.state.as_ref()).await? {
                Appended::Ok => return Ok(()),
                Appended::Fenced | Appended::Sealed => return Err(PersistError::Fenced),
                // The outcome of an earlier append was unknown.
                Appended::Conflict { tail } if tail < after => {
                    self.stream.shared.with_store_progress(|store_progress| store_progress.upto = tail)
                }
                Appended::Conflict { .. } => return Err(PersistError::Fenced),
            }
        }
        Err(Error::Unavailable("it has lost an accepted event".into()).into())
    }

    /// Writes a new stream to the store in one step. Its last event is in `staged`. Returns false
    /// for any other stream.
    async fn write_whole(&self, staged: &Staged) -> Result<bool, Error> {
        let Some(state) = &staged.state else { return Ok(false) };
        let batch = &staged.batch;
        let (is_whole, retention) = {
            let inner = self.stream.shared.lock();
            let is_new = inner.store_progress.as_deref().is_some_and(StoreProgress::is_new);
            let has_all = !batch.is_empty() && batch.first() == Seq(1) && inner.machine.lifecycle().ending().is_some();
            (is_new && has_all, inner.machine.policy().retention)
        };
        if !is_whole {
            return Ok(false);
        }
        let (store, id, about) = (&self.backing.store, self.stream.shared.id, self.stream.about().encode());
        let epoch = store.write_whole(id, &about, batch, &state.encoded, retention).wait().await?;
        let mut inner = self.stream.shared.lock();
        inner.epoch = epoch;
        if let Some(store_progress) = &mut inner.store_progress {
            **store_progress = StoreProgress {
                is_created: true,
                is_sealed: true,
                upto: Seq(batch.len() as u64),
                digest: state.digest,
                ..StoreProgress::default()
            };
        }
        Ok(true)
    }

    async fn create(&self) -> Result<(), Error> {
        if self.stream.shared.with_store_progress(|store_progress| store_progress.is_created) {
            return Ok(());
        }
        let about = self.stream.about().encode();
        let trimmed = self.stream.shared.lock().tail.trimmed();
        let epoch = self.backing.store.create(self.stream.shared.id, &about, trimmed, KEEP_UNSEALED).wait().await?;
        let mut inner = self.stream.shared.lock();
        inner.epoch = epoch;
        if let Some(store_progress) = &mut inner.store_progress {
            **store_progress = StoreProgress {
                is_created: true,
                upto: trimmed,
                trimmed,
                is_behind: store_progress.is_behind,
                ..StoreProgress::default()
            };
        }
        Ok(())
    }

    /// Writes the events that readers already have. Returns false if some are trimmed, so that the
    /// stream stays in memory.
    async fn catch_up(&self) -> Result<bool, PersistError> {
        loop {
            let (epoch, upto, missing) = {
                let inner = self.stream.shared.lock();
                let upto = inner.store_progress.as_ref().map_or(Seq(0), |store_progress| store_progress.upto);
                let is_there = inner.tail.trimmed() <= upto;
                let missing = if is_there { Some(inner.tail.batch_after(upto, CATCH_UP)) } else { None };
                (inner.epoch, upto, missing)
            };
            let Some(missing) = missing else {
                warn!(stream.id = %self.stream.shared.id, "events were trimmed that the store never had: the stream stays in memory");
                self.stream.shared.with_store_progress(|store_progress| store_progress.is_memory_only = true);
                return Ok(false);
            };
            if missing.is_empty() {
                let was_behind = self
                    .stream
                    .shared
                    .with_store_progress(|store_progress| std::mem::take(&mut store_progress.is_behind));
                if was_behind {
                    info!(stream.id = %self.stream.shared.id, "the store has the whole stream again");
                }
                return Ok(true);
            }
            match self.append(epoch, upto, &missing, None).await? {
                Appended::Ok => {}
                Appended::Conflict { tail } => {
                    self.stream.shared.with_store_progress(|store_progress| store_progress.upto = tail)
                }
                Appended::Fenced | Appended::Sealed => return Err(PersistError::Fenced),
            }
        }
    }

    async fn append(
        &self,
        epoch: WriterEpoch,
        after: Seq,
        batch: &Batch,
        state: Option<&StagedState>,
    ) -> Result<Appended, Error> {
        let (store, id) = (&self.backing.store, self.stream.shared.id);
        let appended = store.append(id, epoch, after, batch, state.map(|state| &state.encoded[..])).wait().await;
        match appended {
            Ok(Appended::Ok) => {
                if let Some(trimmed) = self.note_appended(Seq(after.0 + batch.len() as u64), state) {
                    self.trim(epoch, trimmed).await;
                }
                Ok(Appended::Ok)
            }
            // The store has lost the stream.
            Err(Error::Gone) => {
                self.stream.shared.with_store_progress(|store_progress| store_progress.is_created = false);
                Err(Error::Unavailable("it has lost the stream".into()))
            }
            appended => appended,
        }
    }

    /// Notes that the store has the events up to `upto`, and `state`. Returns the last event that
    /// the store may trim, if that is worth a call.
    fn note_appended(&self, upto: Seq, state: Option<&StagedState>) -> Option<Seq> {
        let mut inner = self.stream.shared.lock();
        let trimmed = inner.machine.numbering().trimmed();
        let store_progress = inner.store_progress.as_deref_mut()?;
        let is_trim_due = store_progress.note_appended(upto, state.map(|state| state.digest), trimmed);
        if is_trim_due { Some(trimmed) } else { None }
    }

    /// Trims the events in the store that are trimmed here.
    async fn trim(&self, epoch: WriterEpoch, upto: Seq) {
        if let Err(error) = self.backing.store.trim(self.stream.shared.id, epoch, upto).wait().await {
            warn!(stream.id = %self.stream.shared.id, %error, "the store could not trim a stream");
        }
    }

    /// Seals the stream in the store, after all missing events.
    async fn seal(&self) -> SealOutcome {
        if self
            .stream
            .shared
            .with_store_progress(|store_progress| !store_progress.is_created && !store_progress.is_behind)
        {
            // The stream never began: a response that passed through, or an early failure.
            return SealOutcome::Sealed;
        }
        if self.stream.shared.with_store_progress(|store_progress| store_progress.is_sealed) {
            return SealOutcome::Sealed;
        }
        match self.try_persist(&Staged::default()).await {
            Ok(()) => {}
            Err(PersistError::Fenced) => return SealOutcome::Fenced,
            Err(PersistError::Store(_)) => return SealOutcome::Failed,
        }
        let (epoch, retention, state) = {
            let state = self.stream.with_machine(|machine| self.stream.state_of(machine));
            let inner = self.stream.shared.lock();
            (inner.epoch, inner.machine.policy().retention, state.encode())
        };
        match self.backing.store.seal(self.stream.shared.id, epoch, &state, retention).wait().await {
            Ok(Appended::Ok) => {
                self.stream.shared.with_store_progress(|store_progress| store_progress.is_sealed = true);
                SealOutcome::Sealed
            }
            Ok(Appended::Fenced | Appended::Sealed | Appended::Conflict { .. }) => SealOutcome::Fenced,
            Err(error) => {
                self.backing.note_failure(&error);
                self.warn_once(&error, "the stream is sealed in memory");
                self.stream.shared.with_store_progress(|store_progress| store_progress.is_behind = true);
                SealOutcome::Failed
            }
        }
    }
}
