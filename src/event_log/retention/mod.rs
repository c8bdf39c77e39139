//! Retention: a finished stream is kept for retries and resumes, and forgotten in the end.
//!
//! Owned here: the start of a retention, its checks by the sweeper, and its extension in the store.
//! An unused stream is a stub meanwhile (`stubs.rs`). A search by session finds the stubs of its
//! finished calls (`finished.rs`). Absent: eviction before the end of the retention
//! (`writer/eviction.rs`).

mod finished;
mod stubs;

pub use finished::FoundStreams;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::clock;
use crate::event_log::backing::{Backing, KEEP_UNSEALED};
use crate::event_log::retry_index::RetryIndex;
use crate::event_log::sessions::Sessions;
use crate::event_log::stream::Stream;
use crate::event_log::stream::context::StreamContext;
use crate::event_log::stream::delivery_certainty::DeliveryCertainty;
use crate::event_log::stream::get_calls::GetCalls;
use crate::event_log::sweeper::{Sweeper, Verdict};
use crate::event_log::writer::stream_table::StreamTable;
use crate::identity::Binding;
use crate::protocol::ids::StreamId;
use crate::protocol::stream::Phase;
use crate::simulation::{self, Bug};
use crate::store::Error;

/// Interval of the search for the task of a call with a key after its retention.
const TASK_CHECK: Duration = Duration::from_secs(60);
/// Interval of the sweep of idle sessions.
const SESSION_SWEEP: Duration = Duration::from_secs(60);

/// Streams that can be found, until their retention ends.
pub struct Retention {
    context: Arc<StreamContext>,
    streams: Arc<StreamTable>,
    retry_index: Arc<RetryIndex<Stream>>,
    sessions: Arc<Sessions>,
    sweeper: Sweeper,
}

impl Retention {
    /// Creates the retention of the streams in a table.
    pub(in crate::event_log) fn new(
        context: Arc<StreamContext>,
        streams: Arc<StreamTable>,
        retry_index: Arc<RetryIndex<Stream>>,
        sessions: Arc<Sessions>,
    ) -> Self {
        Self { context, streams, retry_index, sessions, sweeper: Sweeper::default() }
    }

    /// Returns the calls of a session whose responses may go by GET, or `None` if none does.
    pub(in crate::event_log) fn get_calls(&self, binding: &Binding) -> Option<Arc<GetCalls>> {
        let session = self.sessions.find(binding.session.as_ref()?, &binding.principal)?;
        session.get_calls().cloned()
    }

    /// Keeps a finished stream until its retention ends.
    pub fn retain(&self, stream: &Arc<Stream>) {
        self.streams.publish_once(stream);
        if stream.with_machine(|machine| machine.policy().is_task) {
            stream.delivery().enqueue_ended_task();
        }
        let until = stream.delivery().kept_until();
        let at = until.unwrap_or_else(|| clock::now() + stream.with_machine(|machine| machine.policy().retention));
        self.sweeper.schedule(at, stream.id());
    }

    /// Forgets the stream now.
    pub fn forget(&self, stream: &Arc<Stream>) {
        if stream.is_published() {
            self.streams.forget(stream);
        }
    }

    /// Notes the delivery of the response with the stream's last message, and releases the stream.
    /// A response that passed through is forgotten unless a retry may still match it.
    pub fn note_delivered(&self, stream: Arc<Stream>, delivery: DeliveryCertainty) {
        stream.delivery().set_delivered(delivery);
        self.note_handle_delivered(&stream);
        if stream.with_machine(|machine| machine.lifecycle().phase() != Phase::Passed) {
            return self.release(stream);
        }
        if stream.with_machine(|machine| machine.policy().has_idempotency_key) {
            return self.release(stream);
        }
        if stream.retries().may_come() && !stream.delivery().has_arrived() {
            self.retain(&stream);
            self.release(stream);
        } else {
            self.forget(&stream);
        }
    }

    /// Sweeps finished streams and idle sessions, until dropped.
    pub async fn sweep(&self) {
        tokio::join!(self.sweeper.run(|id, now| self.check_retention(id, now)), self.sweep_sessions());
    }

    fn check_retention(&self, id: StreamId, now: Instant) -> Verdict {
        if simulation::has(Bug::KeepsForEver) {
            return Verdict::Until(None);
        }
        let Some(stream) = self.streams.get(id) else {
            return self.check_stub(id, now).unwrap_or(Verdict::Gone);
        };
        match stream.delivery().kept_until() {
            Some(until) if until <= now && self.keeps_for_task(&stream) => Verdict::Until(Some(now + TASK_CHECK)),
            Some(until) if until <= now || simulation::has(Bug::ForgetsTheLastReader) => {
                self.streams.forget(&stream);
                Verdict::Gone
            }
            until => {
                // A stream that was rebuilt from its stub may be unused again.
                self.release(stream);
                self.keep_for(id, until, now);
                Verdict::Until(until)
            }
        }
    }

    /// Extends the retention of a resumed stream in the store, so that it stays there as long as
    /// here, also over a restart.
    fn keep_for(&self, id: StreamId, until: Option<Instant>, now: Instant) {
        if let Some(backing) = self.context.backing.clone() {
            let keep = until.unwrap_or(now + KEEP_UNSEALED).saturating_duration_since(now);
            tokio::spawn(async move {
                // The stream stays here in any case.
                let _ = backing.store.keep(id, keep).wait().await;
            });
        }
    }

    /// Returns true if the task of a call is kept, whose retry must find the call.
    fn keeps_for_task(&self, call: &Stream) -> bool {
        call.task().is_some_and(|task| self.streams.get(task).is_some()) && call.retries().may_come()
    }

    /// Notes that the client of `call` has its response, which may be the handle of a task.
    pub fn note_handle_delivered(&self, call: &Stream) {
        if let Some(task) = call.task().and_then(|task| self.streams.get(task)) {
            task.touch();
        }
    }

    /// Starts the retention of a restored stream anew, here and in the store.
    ///
    /// # Errors
    /// If the store fails. The stream is kept here in any case.
    pub(in crate::event_log) async fn keep_restored(
        &self,
        backing: &Backing,
        stream: &Arc<Stream>,
    ) -> Result<(), Error> {
        self.retain(stream);
        let retention = stream.with_machine(|machine| machine.policy().retention);
        backing.store.keep(stream.id(), retention).wait().await.inspect_err(|error| backing.note_failure(error))
    }

    async fn sweep_sessions(&self) {
        loop {
            clock::sleep(SESSION_SWEEP).await;
            self.sessions.sweep(clock::now());
            self.streams.quotas.sweep(clock::now());
        }
    }
}
