//! The way of one request of the host: the POST, the messages of its response, and the repetition
//! of a request that may run twice, or that a `serve` at the far side joins. Absent: the wait for
//! the session (`waiting.rs`).

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use http_body::Frame;
use http_body_util::BodyExt;
use tracing::debug;

use super::far::Reply;
use super::input::HostRequest;
use super::keys::CallKey;
use super::pipe::Pipe;
use super::running::Entry;
use super::strangers::{Stranger, page_status};
use super::tools;
use super::waiting::list_of;
use super::words::{self, own_code};
use crate::backoff::Backoff;
use crate::body::BoxBody;
use crate::clock;
use crate::config::Repeat;
use crate::protocol::bridge::legacy_clients;
use crate::protocol::effects;
use crate::protocol::error::{ErrorCode, Failure};
use crate::protocol::jsonrpc::{self, Body, Message, code, response};

/// Most pages of the list of tools that are read for one call.
const PAGES: usize = 64;
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
    /// Something else than the far side answered.
    Strange(Stranger),
    /// The far side cannot be reached, or takes no request now. This attempt did not run.
    Away,
    /// The headers do not repeat the arguments of the call, which did not run.
    Mismatch,
    /// The far side has answered, or the request was given up.
    Final,
}

impl Pipe {
    /// Runs a request until its response was written, or until it was withdrawn.
    pub(super) async fn call(&self, request: HostRequest, entry: &Entry) {
        let answered = async {
            let error = match self.wait_for_turn(&request).await {
                Ok(()) if entry.post() => loop {
                    let replacements = self.program.replacements();
                    let error = self.attempts(&request, entry).await;
                    match &error {
                        Some(end) if self.may_listen_again(&request, end, replacements).await => {}
                        _ => break error,
                    }
                },
                Ok(()) => None,
                Err(error) => Some(error),
            };
            match error {
                Some(_) if entry.is_acknowledged() => self.end_subscription(&request.id).await,
                Some(error) => self.respond(&request.id, error).await,
                None => {}
            }
        };
        tokio::select! {
            biased;
            () = entry.withdrawn() => {}
            () = answered => return,
        }
        if let Some(key) = entry.key() {
            self.cancel_by_key(&request.id, &key).await;
        }
    }

    /// Waits until the request may be sent to the far side.
    ///
    /// # Errors
    /// The response, if it will not be sent.
    async fn wait_for_turn(&self, request: &HostRequest) -> Result<(), Bytes> {
        self.wait_for_far(request).await?;
        self.wait_for_program(request).await?;
        self.gone(request).map_or(Ok(()), Err)
    }

    /// Sends the request, and again if it may be repeated. Returns the error that the host gets. A
    /// later error does not hide that an earlier attempt may have run.
    async fn attempts(&self, request: &HostRequest, entry: &Entry) -> Option<Bytes> {
        let began = clock::now();
        let has_effects = !effects::are_absent(&request.body);
        if has_effects {
            self.learn_promise(request).await;
        }
        let max_wait = self.settings.connect.max_wait;
        let new_key = || {
            let promise = self.far.promise().filter(|_| has_effects);
            promise.map(|promise| entry.set_key(CallKey::new(promise, request.revision.clone())))
        };
        let mut key = new_key();
        let limit = key.as_ref().map_or(max_wait, |key| key.hold.min(max_wait));
        let mut until = clock::now() + limit;
        let mut pauses = PAUSES;
        let (mut lost, mut repeats, mut has_read_tools) = (None, 0, false);
        loop {
            let mut headers = self.tools.headers_of(request);
            headers.extend(key.iter().flat_map(|key| key.headers(max_wait, repeats > 0)));
            let reply = self.far.post_request(request, headers).await;
            let Attempt::Failed { error, cause } = self.read_reply(request, reply, entry).await else { return None };
            if cause == Cause::Mismatch && !has_read_tools {
                has_read_tools = true;
                if self.read_tools_again(request).await {
                    // Under the first key the far side may keep the refusal.
                    key = new_key();
                    continue;
                }
            }
            if entry.is_acknowledged() && entry.take_heard() {
                // A subscription may last for days: its breaks are counted from its last message.
                (until, pauses, repeats) = (clock::now() + limit, PAUSES, 0);
            }
            if clock::now() >= until || !self.may_repeat(request, entry, cause, began, repeats) {
                return Some(lost.filter(|_| !words::may_have_run(&error)).unwrap_or(error));
            }
            debug!(method = &*request.method, ?cause, "the request is sent again");
            let was_seen = !matches!(cause, Cause::Away | Cause::Strange(Stranger::Portal));
            if has_effects && was_seen {
                lost.get_or_insert(error);
            }
            if repeats > 0 {
                clock::sleep(pauses.next_pause()).await;
            }
            repeats += 1;
        }
    }

    /// Returns true if a request may be sent again after a failure of this cause. `began` is the
    /// time of its first attempt.
    fn may_repeat(&self, request: &HostRequest, entry: &Entry, cause: Cause, began: Instant, repeats: u32) -> bool {
        let has_key = entry.key().is_some();
        match cause {
            Cause::Broke => has_key || self.may_run_twice(request, repeats),
            Cause::InBetween => has_key || entry.is_acknowledged(),
            Cause::Strange(_) if has_key || entry.is_acknowledged() => true,
            Cause::Strange(stranger) => {
                let is_harmless = !stranger.may_have_run() || effects::are_absent(&request.body) || request.is_listen();
                is_harmless && clock::now() < began + self.settings.connect.wait
            }
            Cause::Away => has_key && repeats > 0 || entry.is_acknowledged(),
            Cause::Mismatch | Cause::Final => false,
        }
    }

    /// Returns true if a request without a key may run twice: it has no effects, is a subscription,
    /// or is the call of a tool that only reads.
    fn may_run_twice(&self, request: &HostRequest, repeats: u32) -> bool {
        if effects::are_absent(&request.body) || request.is_listen() {
            return true;
        }
        let is_call = &*request.method == "tools/call" && self.settings.connect.repeat == Repeat::ReadOnly;
        is_call && repeats == 0 && jsonrpc::tool_name(&request.body).is_some_and(|tool| self.tools.only_reads(&tool))
    }

    /// Reads the list of tools in the name of a refused call, for the headers of its arguments.
    /// Returns false if the far side did not send the list.
    async fn read_tools_again(&self, call: &HostRequest) -> bool {
        let mut cursor: Option<String> = None;
        for _ in 0..PAGES {
            let Some(list) = tools::list_request(call, cursor.as_deref()) else { return false };
            let reply = self.far.post_request(&list, HeaderMap::new()).await;
            let page = reply.response_to(&list).await.filter(|page| list.response_in(page) == Some(false));
            let Some(page) = page else { return false };
            self.tools.read_list(&page);
            cursor = jsonrpc::string_member(&page, &["result", "nextCursor"]);
            if cursor.is_none() {
                break;
            }
        }
        true
    }

    /// Reads the response to a request.
    async fn read_reply(&self, request: &HostRequest, reply: Reply, entry: &Entry) -> Attempt {
        match reply {
            Reply::Messages(body) => self.read_messages(request, body, entry).await,
            Reply::Whole { status, body, .. } if status.is_success() => {
                if !body.is_empty() {
                    return self.read_whole(request, body, entry).await;
                }
                // Some servers send the response by the GET stream.
                if tokio::time::timeout(self.settings.connect.max_wait, entry.ended()).await.is_ok() {
                    return Attempt::Done;
                }
                gave_up(request, ErrorCode::UpstreamTimeout)
            }
            Reply::Whole { status, body, is_of_serve } => {
                if let Some(stranger) = self.stranger(&body).filter(|_| !is_of_serve && self.has_worked()) {
                    let error = self.strange_answer(request, stranger, &body);
                    return Attempt::Failed { error, cause: Cause::Strange(stranger) };
                }
                let cause =
                    if is_mismatch(request, &body) { Cause::Mismatch } else { cause_of(status, &body, is_of_serve) };
                Attempt::Failed { error: self.refusal(request, status, &body), cause }
            }
        }
    }

    async fn read_messages(&self, request: &HostRequest, mut body: BoxBody, entry: &Entry) -> Attempt {
        while let Some(frame) = body.frame().await {
            let Ok(Ok(message)) = frame.map(Frame::into_data) else { return gave_up(request, ErrorCode::StreamLost) };
            match self.take(request, message, entry).await {
                Taken::Passed => {}
                Taken::Mismatch(error) => return Attempt::Failed { error, cause: Cause::Mismatch },
                Taken::Failure(error, code) => {
                    let broke = code == ErrorCode::UpstreamBroke && !has_ended(&error);
                    let broke = broke && ended_here(&mut body).await;
                    return Attempt::Failed { error, cause: if broke { Cause::Broke } else { Cause::Final } };
                }
            }
        }
        if self.is_running(&request.id) { gave_up(request, ErrorCode::UpstreamBroke) } else { Attempt::Done }
    }

    async fn read_whole(&self, request: &HostRequest, body: Bytes, entry: &Entry) -> Attempt {
        match self.take(request, body, entry).await {
            Taken::Passed if self.is_running(&request.id) => gave_up(request, ErrorCode::UpstreamGarbage),
            Taken::Passed => Attempt::Done,
            Taken::Mismatch(error) => Attempt::Failed { error, cause: Cause::Mismatch },
            Taken::Failure(error, _) => Attempt::Failed { error, cause: Cause::Final },
        }
    }

    /// Takes a message of the response to `request`, and writes it unless its place is elsewhere.
    async fn take(&self, request: &HostRequest, mut message: Bytes, entry: &Entry) -> Taken {
        match request.response_in(&message) {
            Some(true) => {
                if let Some(code) = own_code(&message) {
                    if code == ErrorCode::StreamLost {
                        // A `serve` that does not know the stream does not know what the request
                        // was.
                        message = request.failed(Failure::after_send(code));
                    }
                    return Taken::Failure(message, code);
                }
                if is_mismatch(request, &message) {
                    return Taken::Mismatch(message);
                }
            }
            Some(false) => message = self.take_result(request, message),
            None if request.is_listen() => {
                entry.hear();
                if is_acknowledgement(&message) && entry.acknowledge() {
                    self.announce_replacement(request, &message).await;
                    return Taken::Passed;
                }
            }
            None => {}
        }
        self.pass(message).await;
        Taken::Passed
    }

    /// Learns from the result of a list, and returns it as the host gets it.
    fn take_result(&self, request: &HostRequest, mut message: Bytes) -> Bytes {
        if &*request.method == "tools/list" {
            self.tools.read_list(&message);
            if self.settings.is_http
                && request.revision.is_some()
                && let Some(shorter) = legacy_clients::without_invalid_tools(&message)
            {
                message = shorter.into();
            }
            message = self.settings.ignored.remove_from(message);
        }
        if list_of(&request.method).is_some()
            && let Some(record) = self.record()
        {
            record.keep(&request.method, &request.body, &message);
        }
        message
    }

    /// Returns the error for a response with a status that is no success.
    pub(super) fn refusal(&self, request: &HostRequest, status: StatusCode, body: &[u8]) -> Bytes {
        if let Some(status) = page_status(body) {
            return match self.has_worked() {
                true => self.strange_answer(request, Stranger::Page(status), body),
                false => self.told(request, status),
            };
        }
        if let Some(error) = response::readdressed(body, &request.id)
            && status != StatusCode::UNAUTHORIZED
        {
            return if self.settings.is_program { words::with_last_lines(error.into()) } else { error.into() };
        }
        self.told(request, status)
    }

    fn told(&self, request: &HostRequest, status: StatusCode) -> Bytes {
        words::refusal(&request.id, request.subject(), status, &self.settings.origin, self.far.credentials())
    }
}

/// Place of a message.
enum Taken {
    /// Written, or not for the host.
    Passed,
    /// Kept: the error of a proxy, with its code.
    Failure(Bytes, ErrorCode),
    /// Kept: the refusal of a call whose headers do not repeat its arguments.
    Mismatch(Bytes),
}

fn is_acknowledgement(message: &[u8]) -> bool {
    const METHOD: &str = "notifications/subscriptions/acknowledged";
    matches!(jsonrpc::peek(message), Ok(Body::Single(Message::Notification { method })) if method == METHOD)
}

/// Returns true for the refusal of a call whose headers do not repeat its arguments.
fn is_mismatch(request: &HostRequest, message: &[u8]) -> bool {
    request.revision.is_some()
        && &*request.method == "tools/call"
        && jsonrpc::error_code(message) == Some(code::HEADER_MISMATCH)
}

/// Returns true for the error of a stream that its server has ended in order.
fn has_ended(error: &[u8]) -> bool {
    jsonrpc::member(error, &["error", "data", "httpStatus"]) == Some("200")
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
