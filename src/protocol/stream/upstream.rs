//! Where the upstream call stands, and whether it can be taken up again after its response ended.

use std::time::Duration;

use bytes::Bytes;

use super::policy::Policy;
use crate::protocol::error::{ErrorCode, Failure};
use crate::protocol::ids::StreamKind;
use crate::protocol::sse;

/// The pause before an upstream is resumed that named no `retry`.
const DEFAULT_RETRY: Duration = Duration::from_secs(1);
/// A server that asks to be asked again at once is not hammered: a stream that nobody waits for is re-opened this much later.
const STANDALONE_PAUSE_MIN: Duration = Duration::from_millis(500);
/// Re-opening a standalone stream backs off from the pause above to this.
const BACKOFF_MAX: Duration = Duration::from_secs(30);

/// Refusals of the caller, of the session, and of the method.
const NOT_ABOUT_IDS: [u16; 4] = [401, 403, 404, 405];
const SERVER_ERROR: u16 = 500;

/// How an upstream response ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// As HTTP says it should: the last chunk came.
    Clean,
    /// The connection broke, or there was half an event.
    Broken,
    /// It was asked to go on and refused, with this status.
    Refused(u16),
    /// It could not be asked to go on now: no connection, or a status that says so.
    Unavailable,
}

/// What follows an ending.
pub(super) enum Next {
    /// The call is taken up again after this pause.
    Reopen(Duration),
    /// The same, without the id that was refused: what came after that one is lost.
    ReopenAnew(Duration),
    /// It is over.
    Fail(Failure),
}

/// The upstream half of a stream.
#[derive(Debug)]
pub(super) struct Upstream {
    last_id: Option<Bytes>,
    /// Whether `last_id` came with the response that is being read: an end that brought none is a failure.
    id_is_new: bool,
    /// Whether the response that is awaited was asked for by `last_id`.
    id_was_named: bool,
    retry: Duration,
    attempts: u32,
}

impl Upstream {
    pub(super) fn new() -> Self {
        Self { last_id: None, id_is_new: false, id_was_named: false, retry: DEFAULT_RETRY, attempts: 0 }
    }

    pub(super) fn opened(&mut self) {
        self.id_was_named = false;
        self.attempts = 0;
    }

    /// Keeps the id and `retry` of an event. An id that cannot stand in a header cannot be come back with.
    pub(super) fn note(&mut self, event: &sse::Event) {
        if let Some(id) = &event.id {
            self.id_is_new |= self.last_id.as_ref() != Some(id);
            self.last_id = Some(id.clone()).filter(|id| is_header_value(id));
        }
        if let Some(retry) = event.retry {
            self.retry = retry;
        }
    }

    pub(super) fn after_end(&mut self, ending: Ending, policy: &Policy) -> Next {
        let anew = policy.kind == StreamKind::Standalone && self.takes_back_id(ending);
        let pause = match policy.kind {
            StreamKind::Standalone if anew => Ok(self.back_off()),
            StreamKind::Standalone => self.standalone_pause(ending),
            StreamKind::Request => self.request_pause(ending, policy),
        };
        match pause {
            Ok(pause) if anew => Next::ReopenAnew(pause),
            Ok(pause) => Next::Reopen(pause),
            Err(failure) => Next::Fail(failure),
        }
    }

    /// A server that closes on purpose gave an id to come back with; anything else is the end of the call.
    fn request_pause(&mut self, ending: Ending, policy: &Policy) -> Result<Duration, Failure> {
        let on_purpose = match ending {
            Ending::Clean => true,
            Ending::Broken => policy.resume_hard_cuts,
            Ending::Refused(status) => {
                return Err(Failure { http_status: Some(status), ..Failure::after_send(ErrorCode::UpstreamStatus) });
            }
            Ending::Unavailable => false,
        };
        if on_purpose && self.id_is_new && self.last_id.is_some() {
            Ok(self.retry)
        } else {
            Err(Failure::after_send(ErrorCode::UpstreamBroke))
        }
    }

    fn standalone_pause(&mut self, ending: Ending) -> Result<Duration, Failure> {
        match ending {
            Ending::Refused(status) if status < SERVER_ERROR => {
                Err(Failure { http_status: Some(status), ..Failure::after_send(ErrorCode::UpstreamStatus) })
            }
            Ending::Refused(_) | Ending::Clean | Ending::Broken | Ending::Unavailable => Ok(self.back_off()),
        }
    }

    /// Some servers mint ids that they cannot go on after, and refuse them whatever is asked: such a one is named once.
    fn takes_back_id(&mut self, ending: Ending) -> bool {
        let refused = matches!(ending, Ending::Refused(status) if !NOT_ABOUT_IDS.contains(&status));
        let takes_back = refused && self.id_was_named;
        if takes_back {
            self.last_id = None;
        }
        takes_back
    }

    fn back_off(&mut self) -> Duration {
        let first = self.retry.max(STANDALONE_PAUSE_MIN);
        let pause = first.saturating_mul(1 << self.attempts.min(16)).min(BACKOFF_MAX.max(first));
        self.attempts += 1;
        pause
    }

    /// The call is being asked for again: hands out the id to name.
    pub(super) fn reopen(&mut self) -> Option<Bytes> {
        self.id_is_new = false;
        self.id_was_named = self.last_id.is_some();
        self.last_id.clone()
    }
}

fn is_header_value(id: &[u8]) -> bool {
    const DELETE: u8 = 0x7f;
    !id.is_empty() && id.iter().all(|&byte| byte >= b' ' && byte != DELETE)
}
