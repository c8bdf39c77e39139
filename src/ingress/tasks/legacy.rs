//! POSTs with requests that concern tasks of 2025-11-25: `tasks/get`, `tasks/result`,
//! `tasks/cancel`.
//!
//! A task is the stream of its call. `tasks/result` reads it under the ID of its own request, and
//! can be resumed as any response can. `tasks/list` is not offered, and goes to the server. Absent:
//! the call itself (`ingress/calls/`).

use std::sync::Arc;

use bytes::Bytes;
use http::{Response, StatusCode};

use crate::body::BoxBody;
use crate::event_log::{EventLog, Stream};
use crate::ingress::calls::Calls;
use crate::ingress::components::Components;
use crate::ingress::context::RequestContext;
use crate::ingress::forward_to_replicas::OwnerForwarder;
use crate::ingress::refusals::Refusals;
use crate::ingress::stream_finder::StreamFinder;
use crate::ingress::token_refresh::Unproven;
use crate::protocol::classify;
use crate::protocol::error::ErrorCode;
use crate::protocol::jsonrpc::RequestId;
use crate::protocol::tasks::{self, Status, TaskMethod, TaskRequest, legacy};
use crate::server::respond;

/// Handles requests for tasks of 2025-11-25.
pub(in crate::ingress) struct LegacyTasks {
    is_on: bool,
    log: Arc<EventLog>,
    refusals: Refusals,
    finder: Arc<StreamFinder>,
    owners: Arc<OwnerForwarder>,
}

/// The task that a request names.
enum Found {
    Task(Arc<Stream>),
    /// The response to the request.
    Response(Response<BoxBody>),
}

impl LegacyTasks {
    pub(in crate::ingress) fn new(
        components: &Components,
        refusals: Refusals,
        finder: Arc<StreamFinder>,
        owners: Arc<OwnerForwarder>,
    ) -> Self {
        let is_on = components.config.tasks.as_ref().is_some_and(|tasks| tasks.legacy.is_some());
        Self { is_on, log: components.log.clone(), refusals, finder, owners }
    }

    /// Returns true if the request is for a task of the proxy's own; else the server answers it.
    pub(in crate::ingress) fn concerns(&self, context: &RequestContext, request: &TaskRequest, body: &[u8]) -> bool {
        if !self.is_on || !matches!(request.method, TaskMethod::Get | TaskMethod::Result | TaskMethod::Cancel) {
            return false;
        }
        let is_offered = context.session.as_ref().is_some_and(|session| session.has_tasks() == Some(true));
        is_offered || tasks::task_id_of(body).is_some_and(|id| id.starts_with(tasks::ID_PREFIX))
    }

    /// Handles a request that [`Self::concerns`] the proxy.
    pub(in crate::ingress) async fn handle(
        &self,
        mut context: Box<RequestContext>,
        request: TaskRequest,
        call: classify::Call,
        body: Bytes,
        calls: &Calls,
    ) -> Response<BoxBody> {
        self.finder.wait_for_resume_rate(&mut context).await;
        let stream = match self.find(&context, &request.id, &body).await {
            Found::Task(stream) => stream,
            Found::Response(response) => return response,
        };
        match request.method {
            TaskMethod::Result => calls.read_task(context, call, stream).await,
            TaskMethod::Cancel if stream.is_remote() => self.forward(&context, &request, &body).await,
            TaskMethod::Cancel => self.cancel(&request.id, &stream).await,
            TaskMethod::Get | TaskMethod::Update | TaskMethod::List => self.get(&request.id, &stream).await,
        }
    }

    async fn find(&self, context: &RequestContext, id: &RequestId, body: &[u8]) -> Found {
        let handle = tasks::task_id_of(body).as_deref().and_then(tasks::handle_of);
        let found = match &handle {
            Some(handle) => self.finder.find_task(context, handle).await,
            None => Ok(None),
        };
        match found {
            Ok(Some(stream)) if stream.is_legacy_task() => Found::Task(stream),
            Ok(_) => Found::Response(respond::json(StatusCode::OK, tasks::unknown_task(id).into())),
            Err(Unproven::Unavailable(code)) => Found::Response(self.refusals.refuse_request(code, id)),
            Err(unproven) => Found::Response(unproven.into_response(&self.refusals)),
        }
    }

    async fn get(&self, id: &RequestId, stream: &Arc<Stream>) -> Response<BoxBody> {
        if self.log.refresh(stream).await.is_err() {
            return self.refusals.refuse_request(ErrorCode::StoreFailed, id);
        }
        stream.note_task_known();
        respond_with_state(id, stream)
    }

    /// Cancels a task here. The status that the client is told is stored by then.
    pub(in crate::ingress) async fn cancel(&self, id: &RequestId, stream: &Stream) -> Response<BoxBody> {
        if let Some(view) = stream.legacy_view()
            && !matches!(view.status, Status::Working | Status::InputRequired)
        {
            return respond::json(StatusCode::OK, legacy::cannot_cancel(id, view.status).into());
        }
        stream.withdraw_questions();
        stream.cancel_task();
        if stream.task_ended().await {
            respond_with_state(id, stream)
        } else {
            self.refusals.refuse_request(ErrorCode::StoreFailed, id)
        }
    }

    async fn forward(&self, context: &RequestContext, request: &TaskRequest, body: &Bytes) -> Response<BoxBody> {
        let handle = tasks::task_id_of(body).as_deref().and_then(tasks::handle_of);
        let Some(handle) = handle else {
            return respond::json(StatusCode::OK, tasks::unknown_task(&request.id).into());
        };
        // Without a reply the call is another replica's still, and ends with its lease.
        match self.owners.forward_task(context, &handle, body).await {
            Ok(Some(response)) => response,
            Ok(None) => self.refusals.refuse_request(ErrorCode::StoreFailed, &request.id),
            Err(code) => self.refusals.refuse_request(code, &request.id),
        }
    }
}

fn respond_with_state(id: &RequestId, stream: &Stream) -> Response<BoxBody> {
    let response = stream.legacy_view().map(|view| legacy::got(id, &view));
    respond::json(StatusCode::OK, response.unwrap_or_else(|| tasks::unknown_task(id)).into())
}
