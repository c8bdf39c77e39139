//! Tasks: calls that continue in a stream of their own, once their clients have a handle.
//!
//! Owned here: the admission and the creation of a task's stream, and the retention of its call. A
//! call with a key is kept as long as its task: otherwise a retry would run the tool again. Absent:
//! the moment of a promotion (the pump), and the states of a task (`protocol/tasks/`).

use std::sync::Arc;
use std::time::Duration;

use crate::clock;
use crate::event_log::log::EventLog;
use crate::event_log::stream::{Spec, Stream};
use crate::identity::Binding;
use crate::protocol::error::ErrorCode;
use crate::protocol::ids::Verified;
use crate::protocol::stream::Policy;
use crate::simulation::{self, Bug};
use crate::store::StoreHealth;

/// Terms of a new task.
#[derive(Clone, Copy, Debug)]
pub struct TaskTerms {
    /// Longest time without a poll. After it the task is abandoned.
    pub max_wait: Duration,
    /// Retention of the outcome.
    pub retention: Duration,
}

impl EventLog {
    /// Creates the stream of a task that continues `call`, and publishes it. `request_bytes` is the
    /// size of the request, which the task keeps.
    ///
    /// # Errors
    /// `TooManyStreams` for a caller at its limit of running tasks, `ShareFull` or `ProxyFull`
    /// without memory, and `StoreFailed` while the store takes no writes. A task must outlive its
    /// process.
    pub fn create_task(&self, call: &Stream, terms: TaskTerms, request_bytes: usize) -> Result<Arc<Stream>, ErrorCode> {
        if self.store_health() != StoreHealth::Ready {
            return Err(ErrorCode::StoreFailed);
        }
        let quota = call.quota();
        let mut reservation = self.streams.admit_standalone(quota, request_bytes)?;
        if !reservation.reserve_task() {
            return Err(ErrorCode::TooManyStreams);
        }
        let (policy, ids) = call.with_machine(|machine| {
            let ids = machine.owed_responses().due().cloned().collect();
            (machine.policy().clone(), ids)
        });
        let age = clock::now().saturating_duration_since(call.created());
        let policy = Policy {
            max_wait: if simulation::has(Bug::NeverAbandonsTasks) { None } else { Some(terms.max_wait) },
            retention: terms.retention,
            unprimed_grace: Duration::ZERO,
            has_idempotency_key: false,
            call_timeout: policy.call_timeout.map(|timeout| timeout.saturating_sub(age)),
            linger: Duration::ZERO,
            commit_after: None,
            can_pause: false,
            is_task: true,
            ..policy
        };
        let spec = Spec {
            policy,
            binding: call.binding().clone(),
            ids,
            is_batch: false,
            should_poll: false,
            body_fingerprint: None,
            slicing: None,
            get_calls: None,
            span: call.trace().span().map(|span| span.begin_task(call.trace().name())),
        };
        let task = self.create(spec, reservation);
        self.publish_once(&task);
        Ok(task)
    }

    /// Forgets the stream of a task that no client has heard of, here and in the store.
    pub async fn drop_task(&self, task: &Arc<Stream>) {
        self.streams.forget(task);
        if let Some(backing) = &self.context.backing {
            // A store that cannot be reached forgets it with its retention.
            let _ = backing.store.expire(task.id()).wait().await;
        }
    }

    /// Returns the reason why [`Self::find_by`] finds no task. Only for the log: a caller must
    /// not be able to distinguish them.
    pub fn missing_task(&self, handle: Option<&Verified>, binding: &Binding) -> &'static str {
        let Some(verified) = handle else { return "the ID is forged, or signed with another key" };
        match self.streams.entries.get(&verified.stream) {
            Some(entry) if entry.binding().principal != binding.principal => "the task belongs to another caller",
            Some(_) => "the stream is no task, or has moved",
            None if verified.epoch != self.epoch() => "the task belongs to an earlier process or store",
            None => "the task has expired, or its stream was lost",
        }
    }
}
