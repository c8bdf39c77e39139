//! Pending starts: each is a server that starts for one `initialize`, or for several that share it.
//!
//! A client may leave before its server has responded: `npx` may install a package for longer than
//! clients wait. The server is kept. The next `initialize` of the same caller with equal parameters
//! takes it over. Owned here: the decision whether a start is still wanted, and by which request.
//! Absent: the wait for room (`admission`), the server itself (`start`). The module docs of
//! [`channel`](super) list all types of a start.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use tokio::sync::oneshot;

use super::body::Response;
use super::caller::{Caller, Sharers};
use super::link::{OpenError, ShownStderr};
use super::respond::{Cause, refusal_with};
use super::server::Server;
use crate::clock;
use crate::event_log::Stream;
use crate::protocol::error::{Details, ErrorCode};
use crate::protocol::jsonrpc::{self, InitializeParams, Message, RequestId};

/// The server's response to an `initialize`.
pub(super) struct StartResponse {
    pub(super) body: Bytes,
    /// Name of the session, or `None` if the server has refused the session.
    pub(super) name: Option<String>,
}

/// The failure of a start, for one of its requests.
#[derive(Debug)]
pub(super) struct StartFailure {
    pub(super) code: ErrorCode,
    pub(super) detail: String,
    /// Stderr of the program, as far as it may be shown.
    pub(super) stderr: ShownStderr,
    /// HTTP response of the server, which replaces an error of the proxy.
    pub(super) response: Option<Box<Response>>,
}

impl StartFailure {
    pub(super) fn of(code: ErrorCode, detail: String) -> Self {
        Self { code, detail, stderr: ShownStderr::default(), response: None }
    }

    /// Returns a copy of the failure for another request.
    pub(super) fn without_response(&self) -> Self {
        Self { stderr: self.stderr.clone(), ..Self::of(self.code, self.detail.clone()) }
    }

    /// Creates the failure of a session that the server has refused with an HTTP response.
    pub(super) fn by(response: Box<Response>) -> Self {
        let detail = match response.extensions().get::<Cause>() {
            Some(Cause(cause)) => cause.clone(),
            None => format!("status {}", response.status().as_u16()),
        };
        Self { response: Some(response), ..Self::of(ErrorCode::UpstreamStatus, detail) }
    }

    /// Returns the response to the requests with these IDs.
    pub(super) fn into_response(self, ids: &[RequestId]) -> Response {
        if let Some(response) = self.response {
            return *response;
        }
        let lines = self.stderr.for_client.join("\n");
        let members = if lines.is_empty() { vec![] } else { vec![("stderr", lines.into())] };
        refusal_with(self.code, Details { text: &self.detail, members }, ids)
    }
}

impl From<ErrorCode> for StartFailure {
    fn from(code: ErrorCode) -> Self {
        Self::of(code, String::new())
    }
}

impl From<OpenError> for StartFailure {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Failed { code, detail } => Self::of(code, detail),
            OpenError::Refused(response) => Self::by(response),
        }
    }
}

/// A pending `initialize` that waits for a start.
pub(super) struct StartRequest {
    id: RequestId,
    /// Stream of the request, or `None` for a synthetic request.
    stream: Option<Arc<Stream>>,
    /// `None` once the response was sent.
    sender: Option<oneshot::Sender<Result<StartResponse, StartFailure>>>,
}

impl StartRequest {
    /// Creates a pending request that lasts until the receiver is dropped. It stands for several
    /// requests that share a channel.
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

    /// Returns false once the client has left: its request has ended, or no connection reads the
    /// response.
    pub(super) fn has_client(&self) -> bool {
        let is_read = |stream: &Arc<Stream>| stream.with_machine(|machine| machine.reader().is_attached());
        match &self.sender {
            Some(sender) => !sender.is_closed() && self.stream.as_ref().is_none_or(is_read),
            None => self.stream.as_ref().is_some_and(is_read),
        }
    }

    /// Returns true while the request waits for its response.
    pub(super) fn is_open(&self) -> bool {
        self.sender.as_ref().is_some_and(|sender| !sender.is_closed())
    }

    /// Sends the server's response, with this name of the session. Returns false if the request has
    /// ended.
    pub(super) fn respond(&mut self, body: &Bytes, name: Option<String>) -> bool {
        let response = StartResponse { body: self.with_own_id(body), name };
        self.sender.take().is_some_and(|sender| sender.send(Ok(response)).is_ok())
    }

    /// Returns the server's response with the ID of this request.
    pub(super) fn with_own_id(&self, body: &Bytes) -> Bytes {
        let renamed = |message: &Message, _: &RequestId| match message {
            Message::Response { .. } => Some(self.id.clone()),
            Message::Request { .. } | Message::Notification { .. } => None,
        };
        jsonrpc::rename_ids(body, renamed).map_or_else(|| body.clone(), Bytes::from)
    }
}

/// A session that is being opened, or that is open and not yet claimed by a client.
pub(super) struct PendingStart {
    pub(super) caller: Option<Arc<Caller>>,
    /// Parameters of its `initialize`, or `None` for a start that is not kept.
    params: Option<InitializeParams>,
    /// Sessions that will share the server, or `None` for a session with its own server.
    sharers: Option<Sharers>,
    /// Pending requests. More than one only if the server will be shared.
    requests: Vec<StartRequest>,
    /// Time of the last `initialize` that wanted the start.
    pub(super) wanted_at: Instant,
    /// The server, once the process runs.
    pub(super) server: Option<Arc<Server>>,
    unclaimed: Option<UnclaimedResponse>,
}

/// A server's response whose client has left.
struct UnclaimedResponse {
    body: Bytes,
    /// Name of the session, if its request was still pending.
    name: Option<String>,
    /// Time since which the session is idle. A later change means that the client uses it.
    idle_since: Option<Instant>,
}

/// An earlier start or server that serves another `initialize`.
pub(super) enum ExistingStart {
    /// The start with this number, now for the other request.
    Pending(u64),
    /// The server had responded already.
    Complete(StartResponse),
}

/// Result of [`PendingStart::reassign_to`].
pub(super) enum Reassigned {
    /// The start is still pending, now for the other request.
    Pending,
    /// The server had responded already.
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

    /// Returns the oldest pending request.
    pub(super) fn first_request(&self) -> Option<&StartRequest> {
        self.requests.first()
    }

    pub(super) fn into_requests(self) -> Vec<StartRequest> {
        self.requests
    }

    /// Returns true while a client waits for the session.
    pub(super) fn is_wanted(&self) -> bool {
        self.requests.iter().any(StartRequest::has_client)
    }

    /// Returns the time of the last `initialize` for the session, or `None` while a client waits.
    pub(super) fn unwanted_since(&self) -> Option<Instant> {
        if self.is_wanted() { None } else { Some(self.wanted_at) }
    }

    /// Returns true if the session is unused since the server's response.
    pub(super) fn is_untouched(&self) -> bool {
        let (Some(unclaimed), Some(server)) = (&self.unclaimed, &self.server) else { return false };
        unclaimed.idle_since.is_some() && server.idle_since(clock::now()) == unclaimed.idle_since
    }

    /// Returns true if the start can serve the request of `other`.
    pub(super) fn can_serve(&self, other: &Self) -> bool {
        let is_alike = self.caller.is_some() && self.caller == other.caller;
        let is_alike = is_alike && self.params.is_some() && self.params == other.params;
        let has_ended = self.server.as_ref().is_some_and(|server| server.connection.ending().is_some());
        let is_free = || !self.is_wanted() && (self.unclaimed.is_none() || self.is_untouched());
        is_alike && !has_ended && (self.sharers.is_some() || is_free())
    }

    /// Makes the start serve the request of `other`. The earlier request gets no response, unless
    /// both share the server.
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

    /// Sends the failure to all pending requests.
    pub(super) fn fail(&mut self, failure: StartFailure) {
        let mut failure = Some(failure);
        for sender in self.requests.iter_mut().filter_map(|request| request.sender.take()) {
            let Some(whole) = failure.take() else { return };
            failure = Some(whole.without_response());
            let _ = sender.send(Err(whole));
        }
    }

    /// Sends the server's refusal to all pending requests.
    pub(super) fn refuse(&mut self, body: &Bytes) {
        for request in &mut self.requests {
            request.respond(body, None);
        }
    }

    /// Sends the server's response to the pending request, with this name of the session. Returns
    /// true if the request was still pending, and true if its client still waited.
    pub(super) fn respond(&mut self, body: Bytes, name: String) -> (bool, bool) {
        let is_wanted = self.is_wanted();
        let is_sent = self.requests.first_mut().is_some_and(|request| request.respond(&body, Some(name.clone())));
        let idle_since = self.server.as_ref().and_then(|server| server.idle_since(clock::now()));
        self.unclaimed = Some(UnclaimedResponse { body, name: is_sent.then_some(name), idle_since });
        (is_sent, is_sent && is_wanted)
    }
}

#[cfg(test)]
mod tests {
    use http::StatusCode;

    use super::*;
    use crate::channel::empty;

    #[test]
    fn the_log_has_the_servers_status_and_not_that_of_an_error_in_its_place() {
        let detail = |response| StartFailure::by(Box::new(response)).detail;
        assert_eq!(detail(empty(StatusCode::UNAUTHORIZED)), "status 401");
        let mut error = empty(StatusCode::BAD_GATEWAY);
        error.extensions_mut().insert(Cause("status 307".to_owned()));
        assert_eq!(detail(error), "status 307");
    }
}
