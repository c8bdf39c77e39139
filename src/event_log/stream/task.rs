//! The stream of a task, as requests `tasks/*` read and change it.
//!
//! Invariant: a client gets an outcome only once it is stored, like every event. Absent: the states
//! themselves (`protocol/tasks/`), and the way from a call to its task (`log/tasks.rs`).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;

use crate::clock;
use crate::event_log::backing::StoreProgress;
use crate::event_log::stream::Stream;
use crate::event_log::stream::delivery::Delivery;
use crate::event_log::stream::delivery_certainty::DeliveryCertainty;
use crate::event_log::stream::state::{Inner, Shared};
use crate::protocol::headers::Lines;
use crate::protocol::sse;
use crate::protocol::stream::{OwedResponse, TaskChange};
use crate::protocol::tasks::{Outcome, Record, Status};
use crate::simulation::{self, Bug};

/// Time for which a client waits until the store has a change.
const STORE_PATIENCE: Duration = Duration::from_secs(5);

/// A task at one moment.
#[derive(Clone, Debug)]
pub struct TaskReading {
    /// State.
    pub record: Record,
    /// Response of the server, or error of the proxy, of a task that has ended with one.
    pub outcome: Option<Bytes>,
}

/// A poll that is held.
pub struct Holding(Arc<Stream>);

impl Drop for Holding {
    fn drop(&mut self) {
        self.0.held_polls.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Stream {
    /// Returns the stream as a task's.
    pub fn as_task(&self) -> Task<'_> {
        Task(&self.shared)
    }

    /// Counts one more poll of this task that is held, until the returned value is dropped. Returns
    /// `None` if `most` are held.
    pub fn hold_poll(self: &Arc<Self>, most: u32) -> Option<Holding> {
        let raised =
            self.held_polls.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |held| (held < most).then(|| held + 1));
        raised.ok().map(|_| Holding(self.clone()))
    }
}

/// The task of a stream.
pub struct Task<'a>(pub(super) &'a Shared);

impl Task<'_> {
    /// Returns whether the store has the record of the task, or memory is the store.
    pub fn is_recorded(&self) -> bool {
        let is_current =
            |progress: &StoreProgress| progress.is_created && !progress.is_behind && !progress.is_memory_only;
        self.0.lock().store_progress.as_deref().is_none_or(is_current)
    }

    /// Reads the task for its client. Returns `None` if nothing of its state is left.
    pub fn poll(&self) -> Option<TaskReading> {
        self.0.change(|machine, now| machine.handle_task_request(now).handle_poll(now));
        self.read()
    }

    /// Reads the task without a request of its client.
    pub fn read(&self) -> Option<TaskReading> {
        let record = read_record(&self.0.lock())?;
        // All readers share one copy of the outcome, which the quota counts.
        let has_outcome = matches!(record.status(), Status::Completed | Status::Failed);
        let outcome = if has_outcome { Delivery(self.0).collect().map(|collected| collected.body) } else { None };
        Some(TaskReading { record, outcome })
    }

    /// Keeps the headers of the next call of the task, if it waits for its client.
    pub fn keep_call_headers(&self, headers: impl FnOnce() -> Lines) {
        let mut inner = self.0.lock();
        if inner.machine.task().is_some_and(|task| task.state().awaits_client()) {
            inner.call_headers = Some(Box::new(headers()));
        }
    }

    /// Takes the headers of the next call, if a later request has brought some.
    pub fn take_call_headers(&self) -> Option<Lines> {
        self.0.lock().call_headers.take().map(|headers| *headers)
    }

    /// The client was given the outcome: the stream is now among the first to be evicted.
    pub fn set_outcome_delivered(&self) {
        if self.0.with_machine(|machine| machine.lifecycle().is_sealed()) {
            Delivery(self.0).set_delivered(DeliveryCertainty::Likely);
        }
    }

    /// Hands over the client's responses; `input_responses` is a JSON object.
    pub fn update(&self, input_responses: &str) -> TaskChange {
        let (now, mut inner) = (clock::now(), self.0.lock());
        let change = inner.machine.handle_task_request(now).handle_update(input_responses, now);
        let bytes = inner.machine.requests_len();
        inner.reservation.set_server_requests(bytes);
        inner.wake();
        self.0.notify_pump(inner);
        change
    }

    /// Cancels the task.
    pub fn cancel(&self) -> TaskChange {
        let (now, mut inner) = (clock::now(), self.0.lock());
        if simulation::has(Bug::ForgetsTheCancel) {
            return TaskChange::Unchanged;
        }
        let change = inner.machine.handle_task_request(now).handle_cancel(now);
        inner.wake();
        self.0.notify_pump(inner);
        change
    }

    /// Waits until the last change of the task is stored. Returns false if the store does not take
    /// it in time.
    pub async fn stored(&self) -> bool {
        let seq = self.0.with_machine(|machine| machine.numbering().last());
        let is_settled = tokio::time::timeout(STORE_PATIENCE, self.0.stored(seq)).await.is_ok();
        is_settled && self.0.with_machine(|machine| machine.numbering().tail() >= seq)
    }

    /// Waits until the end of the task is stored. Returns false if the store does not take it in
    /// time.
    pub async fn ended(&self) -> bool {
        let ended = self.0.wait_until(|inner| inner.has_moved || inner.machine.lifecycle().is_sealed());
        tokio::time::timeout(STORE_PATIENCE, ended).await.is_ok()
    }

    /// Resolves when `is_known` is false for the state of the task.
    pub async fn changed(&self, is_known: impl Fn(&Record) -> bool) {
        let has_changed = |inner: &Inner| read_record(inner).is_none_or(|record| !is_known(&record));
        self.0.wait_until(|inner| inner.has_moved || has_changed(inner)).await;
    }
}

/// Reads the status and the text of the task for the operator, without its requests.
pub(super) fn summarize(inner: &Inner) -> Option<(Status, Option<String>)> {
    let read;
    let record = match inner.machine.task() {
        Some(task) => task.state().record(),
        None => {
            read = last_record(inner)?;
            &read
        }
    };
    let status = if inner.machine.lifecycle().is_sealed() { outcome(inner)?.into() } else { record.open_status() };
    Some((status, record.text().map(str::to_owned)))
}

fn read_record(inner: &Inner) -> Option<Record> {
    let mut record = match inner.machine.task() {
        Some(task) => task.state().record().clone(),
        None => last_record(inner)?,
    };
    if !inner.machine.lifecycle().is_sealed() {
        // The end may be on its way to the store.
        record.reopen();
        return Some(record);
    }
    // An end that another process has written has no record.
    record.close(outcome(inner)?);
    Some(record)
}

/// Returns the outcome of a task whose stream has ended.
fn outcome(inner: &Inner) -> Option<Outcome> {
    let (_, owed) = inner.machine.owed_responses().iter().next()?;
    Some(match (owed, inner.machine.owed_responses().has_error()) {
        (OwedResponse::Answered(_), false) => Outcome::Completed,
        (OwedResponse::Cancelled, _) => Outcome::Cancelled,
        (OwedResponse::Answered(_) | OwedResponse::Due, _) => Outcome::Failed,
    })
}

fn last_record(inner: &Inner) -> Option<Record> {
    let mut events = inner.tail.events_after(inner.tail.trimmed()).rev();
    events.find_map(|(_, event)| Record::parse(&sse::encoded_data(event)))
}
