//! A POST with requests, as its handler carries it from classification to its response.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::partial_results::PartialResults;
use super::task_rules::RequestedTask;
use crate::delivery::{EmptyEvents, Start};
use crate::event_log::{Attachment, Binding, Fingerprint, Repeatable, Session};
use crate::ingress::components::Components;
use crate::ingress::connection::Connection;
use crate::ingress::context::RequestContext;
use crate::protocol::classify;
use crate::protocol::headers::{Accept, Present, names};
use crate::protocol::ids::IssuedSession;
use crate::protocol::jsonrpc;
use crate::protocol::request_ids::IdUse;
use crate::upstream::InlineTask;

/// A POST with requests, and all that is known of it.
pub(super) struct CallRequest {
    pub(super) context: Box<RequestContext>,
    pub(super) call: classify::Call,
    pub(super) accept: Accept,
    pub(super) body: Bytes,
    /// Name of its tool, if some tool has settings of its own.
    pub(super) tool: Option<String>,
    /// Partial results, if the configuration allows them for the call.
    pub(super) partial: Option<Box<PartialResults>>,
    /// Task that the client wants, at 2025-11-25.
    pub(super) task: Option<Box<RequestedTask>>,
    pub(super) retry: Retry,
    /// Declarations of an `initialize`.
    pub(super) initialize: Option<IssuedSession>,
}

impl CallRequest {
    /// Returns a POST whose contents are not examined yet.
    pub(super) fn new(
        components: &Components,
        context: Box<RequestContext>,
        call: classify::Call,
        body: Bytes,
        partial: Option<Box<PartialResults>>,
    ) -> Self {
        let accept = context.facts.accept;
        let has_settings = call.has_tool_call() && !components.config.tools.is_empty();
        let tool = if has_settings { jsonrpc::tool_name_at(&body, call.name.as_ref()) } else { None };
        let tool = tool.map(Cow::into_owned);
        Self { context, call, accept, body, tool, partial, task: None, retry: Retry::default(), initialize: None }
    }

    /// Returns true if a session, a key, a token or the ID of a task identifies the call.
    pub(super) fn is_identified(&self) -> bool {
        let has_name = self.retry.fingerprint.is_some() || self.task.is_some() || self.partial.is_some();
        self.context.binding.session.is_some() || has_name
    }

    /// Notes the fingerprints of the POST, which names the IDs of its requests in its session.
    pub(super) fn note_retry(&mut self) {
        let Self { context, call, body, .. } = self;
        self.retry = retry_of(context, &context.binding, call, body).note_ids(context.session.as_deref(), call);
    }
}

/// Data that the response to a call still needs. Head and body of the request are gone by then:
/// they are slices of the connection's read buffer, which hyper could not reuse otherwise.
pub(super) struct Reply {
    pub(super) call: classify::Call,
    pub(super) accept: Accept,
    /// Form of events with empty data for this client.
    pub(super) empty_events: EmptyEvents,
    /// Longest wait of the response head for the first message. `None`: the head does not wait.
    pub(super) hold: Option<Duration>,
    pub(super) query: Option<Box<str>>,
    pub(super) session: Option<Arc<Session>>,
    pub(super) connection: Arc<Connection>,
    pub(super) beginning: Beginning,
    /// True if the client may get the end of a slice before the upstream has sent a head.
    pub(super) may_begin: bool,
    /// Request of the call, if its client may send it again on a new connection.
    pub(super) repeatable: Option<Repeatable>,
}

/// Attachment of a request to the stream of the call that it began or retried.
pub(super) struct StartedCall {
    pub(super) attachment: Attachment,
    pub(super) beginning: Beginning,
    /// Upstream call, if this request began it.
    pub(super) pump: InlineTask,
    /// Request of the call, if its client may send it again on a new connection.
    pub(super) repeatable: Option<Repeatable>,
}

/// Position where the response to a call begins.
#[derive(Clone, Copy)]
pub(super) struct Beginning {
    pub(super) start: Start,
    /// True if earlier events were trimmed. The client gets a notice.
    pub(super) has_gap: bool,
}

/// Fingerprints of a POST that may be the retry of a call.
#[derive(Clone, Copy, Default)]
pub(super) struct Retry {
    /// Fingerprint of the call, or `None` if the POST cannot be a retry.
    pub(super) fingerprint: Option<Fingerprint>,
    /// Fingerprint of the body, if the POST has a key. A retry with the key must have the same
    /// body.
    pub(super) body: Option<Fingerprint>,
    /// Use of request IDs in the session. It decides whether the same POST without a key is a retry
    /// or a new call.
    pub(super) id_use: IdUse,
    /// Fingerprint for the caller's other tokens, if the POST has a key and its token claims a
    /// subject.
    pub(super) subject: Option<Fingerprint>,
}

/// Returns the fingerprints of a POST by `binding`: the caller with this token, or with an older
/// one.
pub(super) fn retry_of(context: &RequestContext, binding: &Binding, call: &classify::Call, body: &[u8]) -> Retry {
    let parts = &context.parts;
    let query = parts.uri.query().unwrap_or_default();
    let id_use = IdUse::Unique;
    // A client in this process sends nothing here again; its keys are for the server.
    let is_local = context.connection.receipts().are_local();
    let may_be_retry = !call.is_opening() && !is_local;
    let has_key = may_be_retry && binding.is_distinct() && context.facts.has(Present::IdempotencyKey);
    let key = if has_key { parts.headers.get(names::IDEMPOTENCY_KEY) } else { None };
    match key {
        Some(key) => Retry {
            fingerprint: Some(Fingerprint::of_key(binding, key.as_bytes())),
            body: Some(Fingerprint::of_body(query, body)),
            subject: Fingerprint::of_subject_key(binding, key.as_bytes()),
            id_use,
        },
        None if may_be_retry && binding.session.is_some() => {
            Retry { fingerprint: Some(Fingerprint::of_call(binding, query, body)), body: None, subject: None, id_use }
        }
        None => Retry { fingerprint: None, body: None, subject: None, id_use },
    }
}

impl Retry {
    /// Returns true if the POST names its call by an ID that the client may have used for others.
    pub(super) fn is_by_free_id(&self) -> bool {
        self.body.is_none() && self.id_use == IdUse::Free
    }

    /// Notes the request IDs of the POST in its session, and their use there.
    pub(super) fn note_ids(mut self, session: Option<&Session>, call: &classify::Call) -> Self {
        let contents = self.body.or(self.fingerprint);
        if let Some((session, contents)) = session.zip(contents) {
            self.id_use = session.note_request_ids(&call.ids, contents.short());
        }
        self
    }
}
