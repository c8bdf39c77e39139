//! The way of one request of the host: the POST, the messages of its response, and the repetition
//! of a request that may run twice, or that a `serve` at the far side joins. Absent: the wait for
//! the session (`waiting.rs`).

use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use http_body::Frame;
use http_body_util::BodyExt;
use tracing::debug;

use super::far::Reply;
use super::input::HostRequest;
use super::keys::CallKey;
use super::pipe::Pipe;
use super::running::Entry;
use super::waiting::list_of;
use super::words::{self, own_code};
use crate::backoff::Backoff;
use crate::body::BoxBody;
use crate::clock;
use crate::config::Repeat;
use crate::protocol::effects;
use crate::protocol::error::{ErrorCode, Failure};
use crate::protocol::jsonrpc::{self, response};

/// Pauses before a request is sent again.
const PAUSES: Backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(5));

/// Outcome of one attempt of a request.
enum Attempt {
    /// The request has a response, or none will be written.
    Done,
    /// The attempt failed with this error, which was not written.
    Failed { error: Bytes, cause: Cause },
}

/// Cause of a failed attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Cause {
    /// The connection broke before an event ID. The request may have run.
    Broke,
    /// A proxy in between answered, and not the far side. The request may have run.
    InBetween,
    /// The far side cannot be reached, or takes no request now. This attempt did not run.
    Away,
    /// The far side has answered, or the request was given up.
    Final,
}

impl Pipe {
    /// Runs a request until its response was written, or until it was withdrawn.
    pub(super) async fn call(&self, request: HostRequest, entry: &Entry) {
        let answered = async {
            let error = match self.wait_for_far(&request).await {
                Ok(()) if entry.post() => self.attempts(&request, entry).await,
                Ok(()) => None,
                Err(error) => Some(error),
            };
            if let Some(error) = error {
                self.respond(&request.id, error).await;
            }
        };
        tokio::select! {
            biased;
            () = entry.withdrawn() => {}
            () = answered => return,
        }
        if let Some(key) = entry.key() {
            self.far.cancel_by_key(&request.id, key).await;
        }
    }

    /// Sends the request, and again if it may be repeated. Returns the error that the host gets: the
    /// first one after which the request may have run, unless a later one says more.
    async fn attempts(&self, request: &HostRequest, entry: &Entry) -> Option<Bytes> {
        let has_effects = !effects::are_absent(&request.body);
        let promise = self.far.promise().filter(|_| has_effects);
        let key = promise.map(|promise| entry.set_key(CallKey::new(promise, request.revision.clone())));
        let until = clock::now()
            + key.map_or(self.settings.connect.max_wait, |key| key.hold.min(self.settings.connect.max_wait));
        let mut pauses = PAUSES;
        let mut lost = None;
        let mut repeats = 0;
        loop {
            let headers = key.map(|key| key.headers(self.settings.connect.max_wait, repeats > 0));
            let reply = self.far.post_request(request, headers.unwrap_or_default()).await;
            let Attempt::Failed { error, cause } = self.read_reply(request, reply, entry).await else { return None };
            let may_repeat = match cause {
                Cause::Broke => key.is_some() || self.may_repeat(request, repeats),
                Cause::InBetween => key.is_some(),
                Cause::Away => key.is_some() && repeats > 0,
                Cause::Final => false,
            };
            if !may_repeat || clock::now() >= until {
                return Some(lost.filter(|_| !words::may_have_run(&error)).unwrap_or(error));
            }
            debug!(method = &*request.method, ?cause, "the request is sent again");
            if has_effects && cause != Cause::Away {
                lost.get_or_insert(error);
            }
            if repeats > 0 {
                clock::sleep(pauses.next_pause()).await;
            }
            repeats += 1;
        }
    }

    /// Returns true if a request without a key may be sent again: it has no effects, or is the call of
    /// a tool that only reads.
    fn may_repeat(&self, request: &HostRequest, repeats: u32) -> bool {
        if effects::are_absent(&request.body) {
            return true;
        }
        let is_call = &*request.method == "tools/call" && self.settings.connect.repeat == Repeat::ReadOnly;
        is_call && repeats == 0 && jsonrpc::tool_name(&request.body).is_some_and(|tool| self.tools.only_reads(&tool))
    }

    /// Reads the response to a request.
    async fn read_reply(&self, request: &HostRequest, reply: Reply, entry: &Entry) -> Attempt {
        match reply {
            Reply::Messages(body) => self.read_messages(request, body).await,
            Reply::Whole { status, body, .. } if status.is_success() => {
                if !body.is_empty() {
                    return self.read_whole(request, body).await;
                }
                // Some servers send the response by the GET stream.
                if tokio::time::timeout(self.settings.connect.max_wait, entry.ended()).await.is_ok() {
                    return Attempt::Done;
                }
                gave_up(request, ErrorCode::UpstreamTimeout)
            }
            Reply::Whole { status, body, is_of_serve } => {
                let cause = cause_of(status, &body, is_of_serve);
                Attempt::Failed { error: self.refusal(request, status, &body), cause }
            }
        }
    }

    async fn read_messages(&self, request: &HostRequest, mut body: BoxBody) -> Attempt {
        while let Some(frame) = body.frame().await {
            let Ok(Ok(message)) = frame.map(Frame::into_data) else { return gave_up(request, ErrorCode::StreamLost) };
            if let Some((error, code)) = self.take(request, message).await {
                let broke = code == ErrorCode::UpstreamBroke && ended_here(&mut body).await;
                return Attempt::Failed { error, cause: if broke { Cause::Broke } else { Cause::Final } };
            }
        }
        if self.is_running(&request.id) { gave_up(request, ErrorCode::UpstreamBroke) } else { Attempt::Done }
    }

    async fn read_whole(&self, request: &HostRequest, body: Bytes) -> Attempt {
        if let Some((error, _)) = self.take(request, body).await {
            return Attempt::Failed { error, cause: Cause::Final };
        }
        if self.is_running(&request.id) { gave_up(request, ErrorCode::UpstreamGarbage) } else { Attempt::Done }
    }

    /// Writes a message of the response to `request`. An error of a proxy is returned with its code,
    /// and not written.
    async fn take(&self, request: &HostRequest, mut message: Bytes) -> Option<(Bytes, ErrorCode)> {
        if let Some(is_error) = request.response_in(&message) {
            if is_error && let Some(code) = own_code(&message) {
                return Some((message, code));
            }
            if !is_error && &*request.method == "tools/list" {
                self.tools.read_list(&message);
                message = self.settings.ignored.remove_from(message);
            }
            if !is_error
                && list_of(&request.method).is_some()
                && let Some(record) = self.record()
            {
                record.keep(&request.method, &request.body, &message);
            }
        }
        self.pass(message).await;
        None
    }

    /// Returns the error for a response with a status that is no success.
    pub(super) fn refusal(&self, request: &HostRequest, status: StatusCode, body: &[u8]) -> Bytes {
        if let Some(error) = response::readdressed(body, &request.id)
            && status != StatusCode::UNAUTHORIZED
        {
            return error.into();
        }
        words::refusal(&request.id, request.subject(), status, &self.settings.origin, self.far.credentials())
    }
}

/// Returns the failure of a request whose response will not come.
fn gave_up(request: &HostRequest, code: ErrorCode) -> Attempt {
    Attempt::Failed { error: request.failed(Failure::after_send(code)), cause: Cause::Final }
}

/// Returns true if this process has ended the stream with the error that was its last message: then
/// the end follows at once.
async fn ended_here(body: &mut BoxBody) -> bool {
    tokio::select! {
        biased;
        frame = body.frame() => frame.is_some_and(|frame| frame.is_ok_and(|frame| frame.is_trailers())),
        () = std::future::ready(()) => false,
    }
}

/// Returns the cause of a failed attempt with this response.
fn cause_of(status: StatusCode, body: &[u8], is_of_serve: bool) -> Cause {
    match own_code(body) {
        // What a `serve` says of its own server is the answer, in each repetition.
        Some(ErrorCode::UpstreamBroke) if !is_of_serve => Cause::Broke,
        Some(_) if is_of_serve && status == StatusCode::SERVICE_UNAVAILABLE && !words::may_have_run(body) => {
            Cause::Away
        }
        Some(ErrorCode::Unreachable) if !is_of_serve => Cause::Away,
        Some(_) => Cause::Final,
        None if !is_of_serve && status.is_server_error() => Cause::InBetween,
        None => Cause::Final,
    }
}
