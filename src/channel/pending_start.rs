//! Servers that are being started, each for the `initialize` that wants it now, or for several
//! whose sessions will share it.
//!
//! A client may give up before its server has answered: `npx` installs a package for longer than
//! clients wait. The server is kept, and the next `initialize` of the same caller with equal
//! parameters takes it over. Owned here: the decision whether a start is still wanted, and by which
//! request. Absent: the wait for room (`admission`), the server itself (`start`).

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use tokio::sync::oneshot;

use super::body::Response;
use super::caller::{Caller, Sharers};
use super::server::Server;
use crate::clock;
use crate::event_log::Stream;
use crate::protocol::error::ErrorCode;
use crate::protocol::jsonrpc::{self, InitializeParams, Message, RequestId};

/// An answered `initialize`.
pub(super) struct StartResponse {
    pub(super) body: Bytes,
    /// Name of the session, or `None` if the server has refused it.
    pub(super) name: Option<String>,
}

/// An `initialize` that the server has not answered.
#[derive(Debug)]
pub(super) struct StartFailure {
    pub(super) code: ErrorCode,
    pub(super) detail: String,
    /// Response of the server, in place of one of the proxy's.
    pub(super) response: Option<Box<Response>>,
}

impl StartFailure {
    pub(super) fn of(code: ErrorCode, detail: String) -> Self {
        Self { code, detail, response: None }
    }

    /// Returns the failure for one of several requests.
    pub(super) fn without_response(&self) -> Self {
        Self::of(self.code, self.detail.clone())
    }

    /// Creates the failure of a session that the server has refused with a response of HTTP.
    pub(super) fn by(response: Box<Response>) -> Self {
        let detail = format!("status {}", response.status().as_u16());
        Self { code: ErrorCode::UpstreamStatus, detail, response: Some(response) }
    }
}

/// The request that waits for a start.
pub(super) struct StartRequest {
    id: RequestId,
    /// Stream of the request, or `None` for one of the proxy's own.
    stream: Option<Arc<Stream>>,
    /// `None` once the answer is there.
    sender: Option<oneshot::Sender<Result<StartResponse, StartFailure>>>,
}

impl StartRequest {
    /// Creates one that waits until the receiver is dropped, for a channel that several requests
    /// share.
    pub(super) fn without_request() -> (Self, oneshot::Receiver<Result<StartResponse, StartFailure>>) {
        Self::new(RequestId::Number("0".into()), None)
    }

    pub(super) fn new(
        id: RequestId,
        stream: Option<Arc<Stream>>,
    ) -> (Self, oneshot::Receiver<Result<StartResponse, StartFailure>>) {
        let (sender, receiver) = oneshot::channel();
        (Self { id, stream, sender: Some(sender) }, receiver)
    }

    /// Returns false once the client has given up: its request is over, or no connection reads its
    /// response.
    pub(super) fn has_client(&self) -> bool {
        let is_read = |stream: &Arc<Stream>| stream.with_machine(|machine| machine.reader().is_attached());
        match &self.sender {
            Some(sender) => !sender.is_closed() && self.stream.as_ref().is_none_or(is_read),
            None => self.stream.as_ref().is_some_and(is_read),
        }
    }

    /// Returns true while the request takes an answer.
    pub(super) fn is_open(&self) -> bool {
        self.sender.as_ref().is_some_and(|sender| !sender.is_closed())
    }

    /// Gives the request the server's answer, with this name of the session. Returns false if the
    /// request is over.
    pub(super) fn respond(&mut self, body: &Bytes, name: Option<String>) -> bool {
        let response = StartResponse { body: self.with_own_id(body), name };
        self.sender.take().is_some_and(|sender| sender.send(Ok(response)).is_ok())
    }

    /// Returns the server's answer under the ID of the request.
    pub(super) fn with_own_id(&self, body: &Bytes) -> Bytes {
        let renamed = |message: &Message, _: &RequestId| match message {
            Message::Response { .. } => Some(self.id.clone()),
            Message::Request { .. } | Message::Notification { .. } => None,
        };
        jsonrpc::rename_ids(body, renamed).map_or_else(|| body.clone(), Bytes::from)
    }
}

/// A session that is being opened, or was opened for a client that has given up.
pub(super) struct PendingStart {
    pub(super) caller: Option<Arc<Caller>>,
    /// Parameters of its `initialize`, or `None` for one that is not kept.
    params: Option<InitializeParams>,
    /// Sessions that will share the server, or `None` for one with a server of its own.
    sharers: Option<Sharers>,
    /// The requests that want it: the last one, unless the server will be shared.
    requests: Vec<StartRequest>,
    /// Time of the last `initialize` that wanted it.
    pub(super) wanted_at: Instant,
    /// The server, once the process runs.
    pub(super) server: Option<Arc<Server>>,
    unclaimed: Option<UnclaimedResponse>,
}

/// The answer of a server whose client has given up.
struct UnclaimedResponse {
    body: Bytes,
    /// Name that was given to the session, if its request was still there.
    name: Option<String>,
    /// Time since which the session is idle. Another one means that its client uses it.
    idle_since: Option<Instant>,
}

/// A start or a server that was there for an `initialize`.
pub(super) enum ExistingStart {
    /// The start with this number goes on for it.
    Pending(u64),
    /// The server had answered.
    Complete(StartResponse),
}

/// Outcome of the search for a start that another `initialize` can take over.
pub(super) enum Reassigned {
    /// The start goes on for this request.
    Pending,
    /// The server had answered: its session, under this name before, and its answer.
    Complete { server: Arc<Server>, body: Bytes, old_name: Option<String> },
}

impl PendingStart {
    pub(super) fn new(
        caller: Option<Arc<Caller>>,
        params: Option<InitializeParams>,
        sharers: Option<Sharers>,
        request: StartRequest,
    ) -> Self {
        Self {
            caller,
            params,
            sharers,
            requests: vec![request],
            wanted_at: clock::now(),
            server: None,
            unclaimed: None,
        }
    }

    /// Returns the sessions that will share the server.
    pub(super) fn sharers(&self) -> Option<&Sharers> {
        self.sharers.as_ref()
    }

    /// Returns the request that wants it for longest.
    pub(super) fn first_request(&self) -> Option<&StartRequest> {
        self.requests.first()
    }

    /// Returns the requests that want it.
    pub(super) fn into_requests(self) -> Vec<StartRequest> {
        self.requests
    }

    /// Returns true while a client waits for the session.
    pub(super) fn is_wanted(&self) -> bool {
        self.requests.iter().any(StartRequest::has_client)
    }

    /// Returns the time of the last `initialize` that wanted the session, or `None` while one does.
    pub(super) fn unwanted_since(&self) -> Option<Instant> {
        if self.is_wanted() { None } else { Some(self.wanted_at) }
    }

    /// Returns true if nothing has passed in the session since its answer.
    pub(super) fn is_untouched(&self) -> bool {
        let (Some(unclaimed), Some(server)) = (&self.unclaimed, &self.server) else { return false };
        unclaimed.idle_since.is_some() && server.idle_since(clock::now()) == unclaimed.idle_since
    }

    /// Returns true if the start can go on for `other`, another `initialize`.
    pub(super) fn can_serve(&self, other: &Self) -> bool {
        let is_alike = self.caller.is_some() && self.caller == other.caller;
        let is_alike = is_alike && self.params.is_some() && self.params == other.params;
        let has_ended = self.server.as_ref().is_some_and(|server| server.connection.ending().is_some());
        let is_free = || !self.is_wanted() && (self.unclaimed.is_none() || self.is_untouched());
        is_alike && !has_ended && (self.sharers.is_some() || is_free())
    }

    /// Lets the start go on for the request of `other`. The one before gets no answer, unless they
    /// will share the server.
    pub(super) fn reassign_to(&mut self, other: Self) -> Reassigned {
        self.wanted_at = other.wanted_at;
        if self.sharers.is_some() {
            self.requests.retain(StartRequest::is_open);
            self.requests.extend(other.requests);
            return Reassigned::Pending;
        }
        self.requests = other.requests;
        match (self.unclaimed.take(), &self.server, self.requests.first()) {
            (Some(UnclaimedResponse { body, name, .. }), Some(server), Some(request)) => {
                Reassigned::Complete { server: server.clone(), body: request.with_own_id(&body), old_name: name }
            }
            _ => Reassigned::Pending,
        }
    }

    /// Gives the requests that want the session their failure.
    pub(super) fn fail(&mut self, failure: StartFailure) {
        let mut failure = Some(failure);
        for sender in self.requests.iter_mut().filter_map(|request| request.sender.take()) {
            let Some(whole) = failure.take() else { return };
            failure = Some(whole.without_response());
            let _ = sender.send(Err(whole));
        }
    }

    /// Gives the requests that want the session the server's refusal.
    pub(super) fn refuse(&mut self, body: &Bytes) {
        for request in &mut self.requests {
            request.respond(body, None);
        }
    }

    /// Gives the request that wants the session its answer, with this name of the session. Returns
    /// whether the request was there, and whether its client was.
    pub(super) fn respond(&mut self, body: Bytes, name: String) -> (bool, bool) {
        let is_wanted = self.is_wanted();
        let is_sent = self.requests.first_mut().is_some_and(|request| request.respond(&body, Some(name.clone())));
        let idle_since = self.server.as_ref().and_then(|server| server.idle_since(clock::now()));
        self.unclaimed = Some(UnclaimedResponse { body, name: is_sent.then_some(name), idle_since });
        (is_sent, is_sent && is_wanted)
    }
}
