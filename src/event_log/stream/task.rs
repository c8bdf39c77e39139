//! The stream of a task, as requests `tasks/*` read and change it.
//!
//! Invariant: an outcome is told only once it is stored, as every event is. Absent: the states
//! themselves (`protocol/tasks/`), and the way from a call to its task (`log/tasks.rs`).

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::clock;
use crate::event_log::quota::EvictionQueue;
use crate::event_log::stream::Stream;
use crate::event_log::stream::delivery_certainty::DeliveryCertainty;
use crate::event_log::stream::state::Inner;
use crate::event_log::stream::summary::TaskSummary;
use crate::protocol::headers::Lines;
use crate::protocol::ids::{Handle, StreamId};
use crate::protocol::jsonrpc::RequestId;
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
    /// Returns true if the stream is that of a task.
    pub fn is_task(&self) -> bool {
        self.with_machine(|machine| machine.policy().is_task)
    }

    /// Returns the stream of the task that the call has become, or `None` if it has become none.
    pub fn task(&self) -> Option<StreamId> {
        self.task.get().copied()
    }

    /// Notes the stream of the task that the call has become.
    pub fn set_task(&self, task: StreamId) {
        let _ = self.task.set(task);
    }

    /// Notes that the client has the ID of this task.
    pub fn note_task_known(&self) {
        self.touch();
    }

    /// Reads the task for its client, which has asked for it. Returns `None` if nothing of its
    /// state is left.
    pub fn poll_task(&self) -> Option<TaskReading> {
        let mut inner = self.lock();
        inner.machine.handle_task_request(clock::now()).handle_poll(clock::now());
        self.notify_pump(inner);
        self.read_task()
    }

    /// Makes the call a task at `at`. To be called before the pump begins.
    pub fn promote_at(&self, at: Instant) {
        self.lock().machine.lifecycle_mut().handle_promotion_at(at);
    }

    /// Reads the task without a client that has asked for it.
    pub fn read_task(&self) -> Option<TaskReading> {
        let record = read_record(&self.lock())?;
        // All readers share one copy of the outcome, which the quota counts.
        let has_outcome = matches!(record.status(), Status::Completed | Status::Failed);
        let outcome = if has_outcome { self.collect().map(|collected| collected.body) } else { None };
        Some(TaskReading { record, outcome })
    }

    /// Notes that the call goes on at the server under this ID.
    pub fn begin_call_again(&self, request: RequestId) {
        self.lock().machine.task_stream().handle_called_again(request, clock::now());
    }

    /// Returns the beginning of the event IDs of a poll with this ID, or `None` if the ID is too
    /// long for them.
    pub fn poll_handle(&self, id: &RequestId) -> Option<Handle> {
        let (owner, epoch) = self.origin;
        Handle::mint_poll(&self.identity.keys, owner, epoch, self.id, id)
    }

    /// Counts one more poll that is held, until the returned value is dropped. Returns `None` if
    /// `most` are.
    pub fn hold_poll(self: &Arc<Self>, most: u32) -> Option<Holding> {
        let raised =
            self.held_polls.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |held| (held < most).then(|| held + 1));
        raised.ok().map(|_| Holding(self.clone()))
    }

    /// Keeps the headers with which the call of the task goes on, if it waits for its client.
    pub fn keep_call_headers(&self, headers: impl FnOnce() -> Lines) {
        let mut inner = self.lock();
        if inner.machine.task().is_some_and(|task| task.state().awaits_client()) {
            inner.call_headers = Some(Box::new(headers()));
        }
    }

    /// Takes the headers with which the call goes on, if a later request has brought some.
    pub fn take_call_headers(&self) -> Option<Lines> {
        self.lock().call_headers.take().map(|headers| *headers)
    }

    /// Notes that the client was given the outcome: the stream is now among the first to be
    /// evicted.
    pub fn note_outcome_told(&self) {
        if self.with_machine(|machine| machine.lifecycle().is_sealed()) {
            self.note_delivered(DeliveryCertainty::Likely);
        }
    }

    /// Keeps a task that has ended until its retention ends, or its memory is needed.
    pub(in crate::event_log) fn enqueue_ended_task(&self) {
        let mut inner = self.lock();
        if inner.queued.is_none() {
            self.enqueue(&mut inner, EvictionQueue::Unconfirmed, clock::now());
        }
    }

    /// Hands over the answers of the client; `input_responses` is a JSON object.
    pub fn update_task(&self, input_responses: &str) -> TaskChange {
        let mut inner = self.lock();
        let change = inner.machine.handle_task_request(clock::now()).handle_update(input_responses, clock::now());
        let bytes = inner.machine.requests_len();
        inner.reservation.set_server_requests(bytes);
        inner.wake();
        self.notify_pump(inner);
        change
    }

    /// Cancels the task.
    pub fn cancel_task(&self) -> TaskChange {
        let mut inner = self.lock();
        if simulation::has(Bug::ForgetsTheCancel) {
            return TaskChange::Unchanged;
        }
        let change = inner.machine.handle_task_request(clock::now()).handle_cancel(clock::now());
        inner.wake();
        self.notify_pump(inner);
        change
    }

    /// Waits until the last change of the task is stored. Returns false if the store does not take
    /// it in time.
    pub async fn task_stored(&self) -> bool {
        let seq = self.with_machine(|machine| machine.numbering().last());
        let is_over = tokio::time::timeout(STORE_PATIENCE, self.stored(seq)).await.is_ok();
        is_over && self.with_machine(|machine| machine.numbering().tail() >= seq)
    }

    /// Waits until the end of the task is stored. Returns false if the store does not take it in
    /// time.
    pub async fn task_ended(&self) -> bool {
        let sealed = poll_fn(|cx| {
            let mut inner = self.lock();
            if inner.has_moved || inner.machine.lifecycle().is_sealed() {
                return Poll::Ready(());
            }
            inner.watch(cx);
            Poll::Pending
        });
        tokio::time::timeout(STORE_PATIENCE, sealed).await.is_ok()
    }

    /// Resolves when `is_known` is false for the state of the task.
    pub async fn task_changed(&self, is_known: impl Fn(&Record) -> bool) {
        poll_fn(|cx| {
            let mut inner = self.lock();
            if inner.has_moved || read_record(&inner).is_none_or(|record| !is_known(&record)) {
                return Poll::Ready(());
            }
            inner.watch(cx);
            Poll::Pending
        })
        .await;
    }
}

/// Reads the state of the task for the operator, without its questions.
pub(super) fn summarize(inner: &Inner) -> Option<TaskSummary> {
    let read;
    let record = match inner.machine.task() {
        Some(task) => task.state().record(),
        None => {
            read = last_record(inner)?;
            &read
        }
    };
    let status = if inner.machine.lifecycle().is_sealed() { outcome(inner)?.into() } else { record.open_status() };
    Some(TaskSummary { status, text: record.text().map(str::to_owned) })
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
