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
pub(super) struct Started {
    pub(super) body: Bytes,
    /// Name of the session, or `None` if the server has refused it.
    pub(super) name: Option<String>,
}

/// An `initialize` that the server has not answered.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) code: ErrorCode,
    pub(super) detail: String,
    /// Response of the server, in place of one of the proxy's.
    pub(super) response: Option<Box<Response>>,
}

impl Failed {
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
pub(super) struct Waiter {
    id: RequestId,
    /// Stream of the request, or `None` for one of the proxy's own.
    stream: Option<Arc<Stream>>,
    /// `None` once the answer is there.
    answer: Option<oneshot::Sender<Result<Started, Failed>>>,
}

impl Waiter {
    /// Creates one that waits until the receiver is dropped, for a channel that several requests
    /// share.
    pub(super) fn without_request() -> (Self, oneshot::Receiver<Result<Started, Failed>>) {
        Self::new(RequestId::Number("0".into()), None)
    }

    pub(super) fn new(
        id: RequestId,
        stream: Option<Arc<Stream>>,
    ) -> (Self, oneshot::Receiver<Result<Started, Failed>>) {
        let (answer, answered) = oneshot::channel();
        (Self { id, stream, answer: Some(answer) }, answered)
    }

    /// Returns false once the client has given up: its request is over, or no connection reads its
    /// response.
    pub(super) fn waits(&self) -> bool {
        let is_read = |stream: &Arc<Stream>| stream.with_machine(|machine| machine.reader().is_attached());
        match &self.answer {
            Some(answer) => !answer.is_closed() && self.stream.as_ref().is_none_or(is_read),
            None => self.stream.as_ref().is_some_and(is_read),
        }
    }

    /// Returns true while the request takes an answer.
    pub(super) fn is_there(&self) -> bool {
        self.answer.as_ref().is_some_and(|answer| !answer.is_closed())
    }

    /// Gives the request the server's answer, with this name of the session. Returns false if the
    /// request is over.
    pub(super) fn answer(&mut self, body: &Bytes, name: Option<String>) -> bool {
        let started = Started { body: self.addressed(body), name };
        self.answer.take().is_some_and(|answer| answer.send(Ok(started)).is_ok())
    }

    /// Returns the server's answer under the ID of the request.
    pub(super) fn addressed(&self, body: &Bytes) -> Bytes {
        let renamed = |message: &Message, _: &RequestId| match message {
            Message::Response { .. } => Some(self.id.clone()),
            Message::Request { .. } | Message::Notification { .. } => None,
        };
        jsonrpc::rename_ids(body, renamed).map_or_else(|| body.clone(), Bytes::from)
    }
}

/// A session that is being opened, or was opened for a client that has given up.
pub(super) struct Pending {
    pub(super) caller: Option<Arc<Caller>>,
    /// Parameters of its `initialize`, or `None` for one that is not kept.
    params: Option<InitializeParams>,
    /// Sessions that will share the server, or `None` for one with a server of its own.
    sharers: Option<Sharers>,
    /// The requests that want it: the last one, unless the server will be shared.
    waiters: Vec<Waiter>,
    /// Time of the last `initialize` that wanted it.
    pub(super) wanted_at: Instant,
    /// The server, once the process runs.
    pub(super) server: Option<Arc<Server>>,
    answer: Option<Answer>,
}

/// The answer of a server whose client has given up.
struct Answer {
    body: Bytes,
    /// Name that was given to the session, if its request was still there.
    name: Option<String>,
    /// Time since which the session is idle. Another one means that its client uses it.
    idle_since: Option<Instant>,
}

/// A start or a server that was there for an `initialize`.
pub(super) enum TakenOver {
    /// The start with this number goes on for it.
    Starting(u64),
    /// The server had answered.
    Started(Started),
}

/// Outcome of the search for a start that another `initialize` can take over.
pub(super) enum Taken {
    /// The start goes on for this request.
    Starting,
    /// The server had answered: its session, under this name before, and its answer.
    Answered { server: Arc<Server>, body: Bytes, old_name: Option<String> },
}

impl Pending {
    pub(super) fn new(
        caller: Option<Arc<Caller>>,
        params: Option<InitializeParams>,
        sharers: Option<Sharers>,
        waiter: Waiter,
    ) -> Self {
        Self { caller, params, sharers, waiters: vec![waiter], wanted_at: clock::now(), server: None, answer: None }
    }

    /// Returns the sessions that will share the server.
    pub(super) fn sharers(&self) -> Option<&Sharers> {
        self.sharers.as_ref()
    }

    /// Returns the request that wants it for longest.
    pub(super) fn waiter(&self) -> Option<&Waiter> {
        self.waiters.first()
    }

    /// Returns the requests that want it.
    pub(super) fn into_waiters(self) -> Vec<Waiter> {
        self.waiters
    }

    /// Returns true while a client waits for the session.
    pub(super) fn is_wanted(&self) -> bool {
        self.waiters.iter().any(Waiter::waits)
    }

    /// Returns the time of the last `initialize` that wanted the session, or `None` while one does.
    pub(super) fn unwanted_since(&self) -> Option<Instant> {
        if self.is_wanted() { None } else { Some(self.wanted_at) }
    }

    /// Returns true if nothing has passed in the session since its answer.
    pub(super) fn is_untouched(&self) -> bool {
        let (Some(answer), Some(server)) = (&self.answer, &self.server) else { return false };
        answer.idle_since.is_some() && server.idle_since(clock::now()) == answer.idle_since
    }

    /// Returns true if the start can go on for `other`, another `initialize`.
    pub(super) fn can_serve(&self, other: &Self) -> bool {
        let is_alike = self.caller.is_some() && self.caller == other.caller;
        let is_alike = is_alike && self.params.is_some() && self.params == other.params;
        let has_ended = self.server.as_ref().is_some_and(|server| server.connection.ending().is_some());
        let is_free = || !self.is_wanted() && (self.answer.is_none() || self.is_untouched());
        is_alike && !has_ended && (self.sharers.is_some() || is_free())
    }

    /// Lets the start go on for the request of `other`. The one before gets no answer, unless they
    /// will share the server.
    pub(super) fn go_on_for(&mut self, other: Self) -> Taken {
        self.wanted_at = other.wanted_at;
        if self.sharers.is_some() {
            self.waiters.retain(Waiter::is_there);
            self.waiters.extend(other.waiters);
            return Taken::Starting;
        }
        self.waiters = other.waiters;
        match (self.answer.take(), &self.server, self.waiters.first()) {
            (Some(Answer { body, name, .. }), Some(server), Some(waiter)) => {
                Taken::Answered { server: server.clone(), body: waiter.addressed(&body), old_name: name }
            }
            _ => Taken::Starting,
        }
    }

    /// Gives the requests that want the session their failure.
    pub(super) fn fail(&mut self, failed: Failed) {
        let mut failed = Some(failed);
        for answer in self.waiters.iter_mut().filter_map(|waiter| waiter.answer.take()) {
            let Some(whole) = failed.take() else { return };
            failed = Some(whole.without_response());
            let _ = answer.send(Err(whole));
        }
    }

    /// Gives the requests that want the session the server's refusal.
    pub(super) fn refuse(&mut self, body: &Bytes) {
        for waiter in &mut self.waiters {
            waiter.answer(body, None);
        }
    }

    /// Gives the request that wants the session its answer, with this name of the session. Returns
    /// whether the request was there, and whether its client was.
    pub(super) fn answer(&mut self, body: Bytes, name: String) -> (bool, bool) {
        let is_wanted = self.is_wanted();
        let is_sent = self.waiters.first_mut().is_some_and(|waiter| waiter.answer(&body, Some(name.clone())));
        let idle_since = self.server.as_ref().and_then(|server| server.idle_since(clock::now()));
        self.answer = Some(Answer { body, name: is_sent.then_some(name), idle_since });
        (is_sent, is_sent && is_wanted)
    }
}
