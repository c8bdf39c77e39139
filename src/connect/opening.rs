//! The beginning of the session: the host's `initialize` is answered in time, also if the far side
//! is away.
//!
//! Hosts give a server up after five seconds or more, and do not start one again that answered an
//! error. So an error is written only for what no wait repairs. Else the host gets the pending
//! handshake, and its requests wait for the far side.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, StatusCode};
use http_body_util::BodyExt;
use serde_json::json;
use tracing::{info, warn};

use super::far::{FarState, Reply};
use super::input::HostRequest;
use super::pipe::{LIST_CHANGES, Pipe};
use super::strangers::page_status;
use super::words::own_code;
use crate::backoff::Backoff;
use crate::body::BoxBody;
use crate::clock;
use crate::protocol::error::ErrorCode;
use crate::protocol::jsonrpc::{self, Body, Message, response};
use crate::sync;

/// Time until the host has its answer.
pub(super) const ANSWER_WITHIN: Duration = Duration::from_millis(3800);
/// Pauses before the far side is asked again.
const PAUSES: Backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(5));
/// Revisions with sessions, the newest first.
const REVISIONS: [&str; 4] = ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];
/// The errors of a proxy that no wait repairs.
const FINAL: [ErrorCode; 2] = [ErrorCode::UpstreamRedirect, ErrorCode::WayRefused];
/// Most messages that are kept before the answer to `initialize`.
const OTHERS_MAX: usize = 64;

/// An answer to `initialize`.
enum Opened {
    /// The result, with the name of the session.
    Result(Bytes, Option<HeaderValue>),
    /// An error that no wait repairs.
    Error(Bytes),
    /// None yet.
    NotYet,
}

impl Pipe {
    /// Opens the session, and answers the host's `initialize`.
    pub(super) async fn open(&self, request: HostRequest) {
        self.far.set_state(FarState::Absent);
        *sync::lock(&self.opening) = Some(request.clone());
        let record = self.remember(&request).await;
        let mut reached = std::pin::pin!(self.reach(&request));
        let in_time = tokio::select! {
            biased;
            reached = &mut reached => Some(reached),
            () = clock::sleep(ANSWER_WITHIN) => None,
        };
        match in_time {
            Some(message) => self.greet(&request.id, self.tell(message)).await,
            None => {
                warn!("the far side is not there yet: its session is opened when it comes");
                let remembered = record.result("initialize").map(|result| response::result(&request.id, result));
                let is_remembered = remembered.is_some();
                let answer: Bytes = remembered.map_or_else(|| pending_handshake(&request), Bytes::from);
                self.greet(&request.id, self.tell(answer.clone())).await;
                let message = reached.await;
                if jsonrpc::error_in(&message).is_none() {
                    info!("the far side has come");
                    self.compare(&answer, &message);
                    // The lists of the pending handshake were empty.
                    self.announce_lists(if is_remembered { &answer } else { &message }).await;
                }
            }
        }
    }

    /// Opens the session that the far side has refused, and that its next program may open.
    pub(super) async fn open_again(&self) {
        let request = sync::lock(&self.opening).clone();
        let Some(request) = request else { return };
        self.far.set_state(FarState::Absent);
        let message = self.reach(&request).await;
        if jsonrpc::error_in(&message).is_none() {
            self.announce_lists(&message).await;
        }
    }

    /// Asks the far side until it has opened the session, or has refused it for good. Returns its
    /// answer.
    async fn reach(&self, request: &HostRequest) -> Bytes {
        let mut pauses = PAUSES;
        let mut body = request.body.clone();
        loop {
            let replacements = self.program.replacements();
            let (reply, session) = self.far.post_opening(body.clone()).await;
            let opened = match reply {
                Reply::Messages(body) => self.read_opening(request, body, session).await,
                Reply::Whole { status, body, .. } if status.is_success() => opened(request, body, session),
                Reply::Whole { status, body: refusal, .. } => {
                    if status == StatusCode::BAD_REQUEST
                        && let Some(again) = in_named_revision(&body, &refusal)
                    {
                        body = again;
                        continue;
                    }
                    self.refused_opening(request, status, &refusal)
                }
            };
            if !matches!(opened, Opened::NotYet) {
                self.program.settle();
            }
            match opened {
                Opened::Result(message, session) => {
                    let revision = jsonrpc::string_member(&message, &["result", "protocolVersion"]);
                    if let Some(record) = self.record() {
                        record.keep("initialize", &request.body, &message);
                    }
                    self.note_opened(&message);
                    self.far.open(session, revision.as_deref());
                    self.follow_revivals();
                    return message;
                }
                Opened::Error(error) => {
                    let object = jsonrpc::error_in(&error).unwrap_or("null").to_owned();
                    self.far.set_state(FarState::Refused(object));
                    return error;
                }
                Opened::NotYet => tokio::select! {
                    () = clock::sleep(pauses.next_pause()) => {}
                    () = self.program.replaced_after(replacements) => pauses = PAUSES,
                },
            }
        }
    }

    /// Reads the stream with the answer. Its other messages follow once they may be written.
    async fn read_opening(&self, request: &HostRequest, mut body: BoxBody, session: Option<HeaderValue>) -> Opened {
        let mut others = Vec::new();
        while let Some(Ok(frame)) = body.frame().await {
            let Ok(message) = frame.into_data() else { continue };
            if request.response_in(&message).is_some() {
                let output = self.output.clone();
                self.spawn(async move {
                    for message in others {
                        output.write(message).await;
                    }
                });
                return opened(request, message, session);
            }
            if others.len() < OTHERS_MAX && jsonrpc::peek_any(&message).is_ok() {
                others.push(message);
            }
        }
        Opened::NotYet
    }

    fn refused_opening(&self, request: &HostRequest, status: StatusCode, body: &[u8]) -> Opened {
        // Of a page, whose status the core does not pass on.
        let status = page_status(body).unwrap_or(status);
        let is_temporary = status.is_server_error()
            || status == StatusCode::TOO_MANY_REQUESTS
            || status == StatusCode::REQUEST_TIMEOUT;
        let is_of_stranger = self.stranger(body).is_some() && self.has_worked();
        if is_of_stranger || is_temporary && !is_final(body) {
            if self.settings.is_program {
                self.program.fail(self.refusal(request, status, body));
            }
            return Opened::NotYet;
        }
        Opened::Error(self.refusal(request, status, body))
    }

    /// Writes the messages about each time that the session is opened again. The core compares the
    /// lists that the host has read.
    fn follow_revivals(&self) {
        let Some(handshake) = self.far.handshake() else { return };
        let (pipe, mut announcements) = (self.itself.clone(), handshake.announcements());
        self.spawn(async move {
            while announcements.changed().await.is_ok() {
                let Some(pipe) = pipe.upgrade() else { return };
                for message in pipe.far.revival_messages(&handshake) {
                    pipe.pass(message).await;
                }
            }
        });
    }

    /// Announces a change of each list that this handshake declares: the host may have read others.
    async fn announce_lists(&self, handshake: &[u8]) {
        for (declaration, message) in LIST_CHANGES {
            if jsonrpc::member(handshake, declaration).is_some() {
                self.pass(Bytes::from_static(message.as_bytes())).await;
            }
        }
    }
}

/// Returns true for an error of a proxy that no wait repairs.
fn is_final(message: &[u8]) -> bool {
    own_code(message).is_some_and(|code| FINAL.contains(&code))
}

fn opened(request: &HostRequest, message: Bytes, session: Option<HeaderValue>) -> Opened {
    if request.response_in(&message) == Some(false) {
        return Opened::Result(message, session);
    }
    // A server that could not read the request does not repeat its ID.
    let is_error = matches!(jsonrpc::peek_any(&message), Ok(Body::Single(Message::Response { is_error: true, .. })));
    if !is_error || own_code(&message).is_some() && !is_final(&message) {
        return Opened::NotYet;
    }
    response::readdressed(&message, &request.id).map_or(Opened::NotYet, |error| Opened::Error(error.into()))
}

/// Returns `initialize` with the newest revision that its refusal names, or `None` if that names no
/// other.
fn in_named_revision(body: &[u8], refusal: &[u8]) -> Option<Bytes> {
    let requested = jsonrpc::requested_version(body)?;
    let refusal = String::from_utf8_lossy(refusal);
    let named = REVISIONS.into_iter().find(|revision| *revision != requested && refusal.contains(revision))?;
    let member = jsonrpc::member(body, &["params", "protocolVersion"])?;
    let place = jsonrpc::span(body, member);
    Some(jsonrpc::splice(body, vec![(place, format!("\"{named}\""))]).into())
}

/// Returns the answer to `initialize` while the far side is not there.
fn pending_handshake(request: &HostRequest) -> Bytes {
    let requested = jsonrpc::requested_version(&request.body);
    let revision = requested.filter(|revision| REVISIONS.contains(&&**revision));
    let changes = json!({"listChanged": true});
    let result = json!({
        "protocolVersion": revision.as_deref().unwrap_or(REVISIONS[0]),
        "capabilities": {"tools": changes, "prompts": changes, "resources": changes},
        "serverInfo": {"name": "mcp-resume", "version": env!("CARGO_PKG_VERSION")},
        "instructions": "The MCP server cannot be reached yet. Its tools are listed once it can; calls wait for it.",
    });
    response::result(&request.id, result).into()
}
