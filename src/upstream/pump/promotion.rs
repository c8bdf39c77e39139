//! Promotion: a call becomes a task, and continues in a stream of its own.
//!
//! The stream of the POST gets the task handle as its owed response, and is then a finished call.
//! The pump, its upstream call and the received bytes pass to the stream of the task. Only the pump
//! appends, so the response of the server and the handle cannot race: the first append counts.
//! Absent: the states of a task and the time of a promotion (`protocol/stream/task.rs`).

use std::sync::Arc;

use serde_json::json;
use tracing::{debug, info};

use super::super::discovery::discover;
use super::super::server::synthetic;
use super::Pump;
use crate::clock;
use crate::event_log::{TaskTerms, Writer};
use crate::protocol::error::ErrorCode;
use crate::protocol::jsonrpc::{self, RequestId};
use crate::protocol::stream::{Machine, Phase, UpstreamCursor};
use crate::protocol::tasks::{self, Continuation, TaskState};
use crate::simulation::{self, Bug};

/// Maximum request size of a call that may continue after input, in bytes.
const KEPT_REQUEST: usize = 1024 * 1024;

impl Pump {
    /// Promotes the call to a task, or schedules another attempt if that is not possible now.
    pub(super) async fn promote(&mut self) {
        let Some(terms) = self.call.tasks.clone() else { return };
        let stream = self.writer.stream();
        if !stream.upstream().is_sent() || stream.upstream().is_waiting() {
            // The time counts from the moment at which the request goes to the server.
            return self
                .writer
                .update(|machine, now| machine.lifecycle_mut().handle_promotion_at(now + terms.after))
                .await;
        }
        if !self.may_promote() {
            return self.writer.update(|machine, now| machine.lifecycle_mut().handle_promotion_refused(now)).await;
        }
        let call = self.writer.stream().clone();
        let limits = TaskTerms { max_wait: terms.max_wait, retention: terms.retention };
        let task = match self.log.create_task(&call, limits, self.call.template.body().len()) {
            Ok(task) => task,
            Err(code) => {
                debug!(stream.id = %call.id(), error = code.label(), "a call does not become a task now");
                return self.writer.update(|machine, now| machine.lifecycle_mut().handle_promotion_refused(now)).await;
            }
        };
        let writer = self.log.writer(&task);
        let wall_ms = clock::wall_ms();
        let text = call.last_progress_text();
        let may_continue = self.call.template.body().len() <= KEPT_REQUEST;
        writer
            .update(|machine, now| {
                machine.handle_task(TaskState::new(wall_ms, now, text.as_deref()).with_rounds(may_continue), now)
            })
            .await;
        let id = call.with_machine(|machine| machine.owed_responses().due().next().cloned());
        let record = task.as_task().read().map(|reading| reading.record).filter(|_| task.as_task().is_recorded());
        let (Some(id), Some(record)) = (id, record) else { return self.give_up(writer).await };
        let view = record.view(task.handle(), wall_ms, terms.max_wait, terms.retention);
        let handle = tasks::created(&id, &view);
        self.publish();
        let hand_over = |machine: &mut Machine, now| {
            let cursor = machine.handle_promoted(&handle, now)?;
            // The task is set before the client can have its handle.
            call.set_task(task.id());
            Some(cursor)
        };
        match self.writer.update(hand_over).await {
            Some(cursor) if !call.replica().has_moved() => self.continue_in(writer, cursor).await,
            Some(_) | None => self.give_up(writer).await,
        }
    }

    /// Returns true if the client may get a task handle now. The server must be known to have no
    /// tasks, and must have accepted the call's credentials. Otherwise a discovery begins.
    fn may_promote(&self) -> bool {
        let observed = self.upstream.observed();
        let has_head = self
            .writer
            .stream()
            .with_machine(|machine| machine.lifecycle().phase() == Phase::Open && !machine.lifecycle().is_committed());
        let is_accepted = has_head
            || (observed.has_accepted(&self.call.credentials, clock::now())
                && self.upstream.knows_cors(self.call.template.origin()));
        match observed.discovery(clock::now()) {
            Some(discovery) if is_accepted => !discovery.has_tasks,
            Some(discovery) if discovery.has_tasks => false,
            Some(_) | None => {
                discover(&self.upstream, &self.call.template, self.call.credentials);
                false
            }
        }
    }

    /// Ends the stream of a task that no client knows. The promotion is repeated if the call still
    /// runs.
    async fn give_up(&mut self, writer: Writer) {
        self.writer.update(|machine, now| machine.lifecycle_mut().handle_promotion_refused(now)).await;
        writer.stream().expire(ErrorCode::Abandoned);
        writer.update(|_, _| ()).await;
        self.log.drop_task(writer.stream()).await;
    }

    /// Concludes the stream of the POST, and continues in the stream of the task.
    async fn continue_in(&mut self, writer: Writer, cursor: UpstreamCursor) {
        self.set_arriving(0);
        (self.pings, self.refusals) = (None, None);
        let call = std::mem::replace(&mut self.writer, writer);
        let task = self.writer.stream();
        task.upstream().set_sent();
        task.upstream().set_session_generation(call.stream().upstream().session_generation());
        task.upstream().set_state(self.input.upstream_state());
        self.name_call(task);
        self.writer.update(|machine, _| machine.task_stream().handle_handed_over(cursor)).await;
        info!(stream.id = %call.stream().id(), task.id = %self.writer.stream().id(), "the call goes on as a task");
        self.metrics.observe_task();
        let stream = call.stream().clone();
        self.conclude(Some(call)).await;
        self.log.retention().release(stream);
    }

    /// Sends the call again with the client responses.
    pub(super) fn call_again(&mut self, continuation: &Continuation) {
        let id = synthetic::own_id();
        let Some(body) = again(self.call.template.body(), &id, continuation) else {
            return self.writer.stream().expire(ErrorCode::UpstreamGarbage);
        };
        let stream = self.writer.stream().clone();
        // The first request stays, for the rounds that may follow.
        if let Some(later) = stream.as_task().take_call_headers() {
            self.call.template = Arc::new(self.call.template.going_on(&later));
        }
        let template = Arc::new(self.call.template.with_body(body.into()));
        stream.upstream().set_unsent();
        let id = RequestId::String(id.into());
        stream.change(|machine, now| machine.task_stream().handle_called_again(id, now));
        if simulation::has(Bug::GoesOnTwice) {
            self.post_aside(template.body().to_vec());
        }
        self.send(template, false);
    }
}

/// Returns the next request of a call: the original parameters, with the client responses and the
/// state of the last round only.
fn again(body: &[u8], id: &str, continuation: &Continuation) -> Option<Vec<u8>> {
    const OF_A_ROUND: [&str; 2] = ["inputResponses", "requestState"];
    let body = jsonrpc::without_members(body, &["params"], &OF_A_ROUND).unwrap_or_else(|| body.to_vec());
    let mut members = String::new();
    let Continuation { input_responses, request_state } = continuation;
    for (name, value) in OF_A_ROUND.iter().zip([input_responses, request_state]) {
        if let Some(value) = value {
            members.push_str(&format!("{}:{value},", json!(name)));
        }
    }
    let params = jsonrpc::span(&body, jsonrpc::member(&body, &["params"])?);
    let place = params.start + 1..params.start + 1;
    let request = jsonrpc::span(&body, jsonrpc::member(&body, &["id"])?);
    // `params` is not empty: it has at least `_meta`.
    Some(jsonrpc::splice(&body, vec![(place, members), (request, json!(id).to_string())]))
}
