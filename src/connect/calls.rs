//! The way of one request of the host: the POST, the messages of its response, and the repetition
//! of a request that may run twice. Absent: the wait for the session (`waiting.rs`).

use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use http_body_util::BodyExt;
use tracing::debug;

use super::far::Reply;
use super::input::HostRequest;
use super::pipe::Pipe;
use super::running::Entry;
use super::waiting::list_of;
use super::words::{self, own_code};
use crate::backoff::Backoff;
use crate::body::BoxBody;
use crate::clock;
use crate::protocol::effects;
use crate::protocol::error::{ErrorCode, Failure};
use crate::protocol::jsonrpc::{self, response};

/// Pauses before a request is sent again.
const PAUSES: Backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(5));

/// Outcome of one attempt of a request.
enum Attempt {
    /// The request has a response, or none will be written.
    Done,
    /// An error of the proxy's own, which was not written.
    Failed { error: Bytes, code: Option<ErrorCode> },
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
            () = answered => {}
        }
    }

    /// Sends the request, and again if it may be repeated. Returns the error that the host gets.
    async fn attempts(&self, request: &HostRequest, entry: &Entry) -> Option<Bytes> {
        let until = clock::now() + self.settings.max_wait;
        let mut pauses = PAUSES;
        let mut repeats = 0;
        loop {
            let reply = match &request.revision {
                Some(revision) => self.far.post_modern(request, revision).await,
                None => self.far.post(request.body.clone()).await.0,
            };
            let (error, code) = match self.read_reply(request, reply, entry).await {
                Attempt::Done => return None,
                Attempt::Failed { error, code } => (error, code),
            };
            if code != Some(ErrorCode::UpstreamBroke) || clock::now() >= until || !self.may_repeat(request, repeats) {
                return Some(error);
            }
            debug!(method = &*request.method, "the connection broke before an event ID: the request is sent again");
            if repeats > 0 {
                clock::sleep(pauses.next_pause()).await;
            }
            repeats += 1;
        }
    }

    /// Returns true if a request whose connection broke may be sent again: it has no effects, or is
    /// the call of a tool that only reads.
    fn may_repeat(&self, request: &HostRequest, repeats: u32) -> bool {
        if effects::are_absent(&request.body) {
            return true;
        }
        let is_call = &*request.method == "tools/call";
        is_call && repeats == 0 && jsonrpc::tool_name(&request.body).is_some_and(|tool| self.tools.only_reads(&tool))
    }

    /// Reads the response to a request.
    async fn read_reply(&self, request: &HostRequest, reply: Reply, entry: &Entry) -> Attempt {
        match reply {
            Reply::Messages(body) => self.read_messages(request, body).await,
            Reply::Whole { status, body } if status.is_success() => {
                if !body.is_empty() {
                    return self.read_whole(request, body).await;
                }
                // Some servers send the response by the GET stream.
                if tokio::time::timeout(self.settings.max_wait, entry.ended()).await.is_ok() {
                    return Attempt::Done;
                }
                Attempt::Failed { error: request.failed(Failure::after_send(ErrorCode::UpstreamTimeout)), code: None }
            }
            Reply::Whole { status, body } => {
                let code = own_code(&body);
                Attempt::Failed { error: self.refusal(request, status, &body), code }
            }
        }
    }

    async fn read_messages(&self, request: &HostRequest, mut body: BoxBody) -> Attempt {
        while let Some(frame) = body.frame().await {
            let Ok(Ok(message)) = frame.map(|frame| frame.into_data()) else {
                return Attempt::Failed {
                    error: request.failed(Failure::after_send(ErrorCode::StreamLost)),
                    code: None,
                };
            };
            if let Some(failed) = self.take(request, message).await {
                return failed;
            }
        }
        if self.is_running(&request.id) {
            return Attempt::Failed {
                error: request.failed(Failure::after_send(ErrorCode::UpstreamBroke)),
                code: None,
            };
        }
        Attempt::Done
    }

    async fn read_whole(&self, request: &HostRequest, body: Bytes) -> Attempt {
        if let Some(failed) = self.take(request, body).await {
            return failed;
        }
        if self.is_running(&request.id) {
            return Attempt::Failed {
                error: request.failed(Failure::after_send(ErrorCode::UpstreamGarbage)),
                code: None,
            };
        }
        Attempt::Done
    }

    /// Writes a message of the response to `request`. An error of the proxy's own is returned, and
    /// not written.
    async fn take(&self, request: &HostRequest, mut message: Bytes) -> Option<Attempt> {
        if let Some(is_error) = request.response_in(&message) {
            if is_error && let Some(code) = own_code(&message) {
                return Some(Attempt::Failed { error: message, code: Some(code) });
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
