//! The upstream call of a stream, and the rules of its resumption after its response has ended.

use std::time::{Duration, Instant};

use bytes::Bytes;

use super::policy::Policy;
use crate::error::{ErrorCode, Failure};
use crate::ids::StreamKind;
use crate::sse;

/// Pause before an upstream that sent no `retry` is resumed.
const DEFAULT_RETRY: Duration = Duration::from_secs(1);
/// Minimum pause before a standalone stream is reopened, so that a server with a `retry` of 0 is
/// not hammered.
const STANDALONE_PAUSE_MIN: Duration = Duration::from_millis(500);
/// Pause between two attempts to open a standalone stream whose session the upstream does not know.
const DORMANT_RETRY: Duration = Duration::from_secs(60);
/// Maximum of the back-off between attempts to reopen a standalone stream.
const BACKOFF_MAX: Duration = Duration::from_secs(30);
/// Time within which a standalone stream without an event ends "at once". A load balancer waits for
/// longer before it cuts a silent response.
const AT_ONCE: Duration = Duration::from_secs(5);
/// Maximum of the back-off after standalone streams that ended at once.
const AT_ONCE_BACKOFF_MAX: Duration = Duration::from_secs(60);

/// Statuses that refuse the caller, the session or the method, and say nothing of the event ID.
const NOT_ABOUT_IDS: [u16; 4] = [401, 403, 404, 405];
const OK: u16 = 200;
const SERVER_ERROR: u16 = 500;
/// Statuses of a server that may resume the call later.
const TEMPORARY: [u16; 6] = [409, 425, 429, 502, 503, 504];
/// Pauses before the resumes of a call after its last event.
const RESUME_PAUSES: [Duration; 7] = [
    Duration::ZERO,
    Duration::from_millis(250),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(4),
    Duration::from_secs(5),
];

/// The end of an upstream response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// A complete response by the rules of HTTP.
    Clean,
    /// A broken connection, or half an event at the end.
    Broken,
    /// The upstream refused to resume, with this status.
    Refused(u16),
    /// The upstream no longer knows the session. A standalone stream stays open until its session
    /// is opened again.
    SessionLost,
    /// The upstream cannot resume the call now: there was no connection, or its status is
    /// temporary.
    Unavailable,
}

/// A change of the session of a standalone stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionChange {
    /// The session is being opened again: the stream is opened anew under its new name, at once.
    Reopening,
    /// The session is gone at the server after all, or its handshake has failed.
    Lost,
    /// The session was opened again. The client learns that the server's state of the session is
    /// gone.
    Revived,
}

/// The consequence of an [`Ending`].
pub(super) enum Next {
    /// The call is resumed after this pause.
    Reopen(Duration),
    /// The call is resumed after this pause, without the event ID that was refused: the events
    /// after that ID are lost.
    ReopenAnew(Duration),
    /// The call has failed.
    Fail(Failure),
}

/// Position in the upstream response of a stream. The call is resumed from it.
#[derive(Debug)]
pub struct UpstreamCursor {
    last_id: Option<Bytes>,
    /// True if `last_id` came with the response that is being read. The end of a response without a
    /// new id is a failure.
    has_new_id: bool,
    /// True if the awaited response was requested by `last_id`.
    has_sent_id: bool,
    retry: Duration,
    attempts: u32,
    /// Time of the last request for the response.
    requested_at: Instant,
    /// True if an event came with the response that is being read.
    has_event: bool,
    /// True if an event has ever come.
    has_had_event: bool,
    /// Number of responses in a row that ended at once, without an event.
    barren: u32,
    /// First break of the call since its last event, or `None` without one.
    broken_at: Option<Instant>,
    /// Number of resumes of the call since its last event.
    resumes: u32,
    /// True if a standalone stream is reopened when its next reader comes.
    waits_for_reader: bool,
    /// True if the server has sent a ping.
    has_pinged: bool,
    /// True if the upstream no longer knows the session of a standalone stream. A later request
    /// may open it again.
    is_dormant: bool,
}

impl UpstreamCursor {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            last_id: None,
            has_new_id: false,
            has_sent_id: false,
            retry: DEFAULT_RETRY,
            attempts: 0,
            requested_at: now,
            has_event: false,
            has_had_event: false,
            barren: 0,
            broken_at: None,
            resumes: 0,
            waits_for_reader: false,
            has_pinged: false,
            is_dormant: false,
        }
    }

    /// Returns true if the upstream no longer knows the session of this standalone stream.
    pub fn is_dormant(&self) -> bool {
        self.is_dormant
    }

    /// The server sent a ping. A ping while no response is open would cost the session.
    pub(super) fn handle_ping(&mut self) {
        (self.has_event, self.has_had_event) = (true, true);
        self.has_pinged = true;
    }

    /// A response has begun.
    pub(super) fn handle_opened(&mut self) {
        self.is_dormant = false;
        self.has_sent_id = false;
        self.attempts = 0;
    }

    /// Keeps the id and `retry` of an event. An id that is no valid header value cannot be sent
    /// back.
    pub(super) fn handle_event(&mut self, event: &sse::Event) {
        (self.has_event, self.has_had_event) = (true, true);
        (self.broken_at, self.resumes) = (None, 0);
        if let Some(id) = &event.id {
            self.has_new_id |= self.last_id.as_ref() != Some(id);
            self.last_id = if is_header_value(id) { Some(id.clone()) } else { None };
        }
        if let Some(retry) = event.retry {
            self.retry = retry;
        }
    }

    /// Returns the consequence of the end of a response.
    pub(super) fn after_end(&mut self, ending: Ending, policy: &Policy, now: Instant) -> Next {
        let is_anew = policy.kind == StreamKind::Standalone && self.forget_refused_id(ending);
        if ending == Ending::SessionLost && policy.kind == StreamKind::Standalone {
            return Next::Reopen(self.wait_for_session());
        }
        let pause = match policy.kind {
            StreamKind::Standalone if is_anew => Ok(self.back_off()),
            StreamKind::Standalone => self.standalone_pause(ending, now),
            StreamKind::Request | StreamKind::Task => match policy.resumes_for {
                Some(limit) => {
                    self.repeated_pause(ending, limit, now).map_err(|failure| of_listen(failure, ending, policy))
                }
                None => self.request_pause(ending, policy),
            },
        };
        match pause {
            Ok(pause) if is_anew => Next::ReopenAnew(pause),
            Ok(pause) => Next::Reopen(pause),
            Err(failure) => Next::Fail(failure),
        }
    }

    /// Returns the pause before a request's call is resumed: only a server that closes on purpose
    /// after it has sent an id is resumed.
    fn request_pause(&mut self, ending: Ending, policy: &Policy) -> Result<Duration, Failure> {
        let is_on_purpose = match ending {
            Ending::Clean => true,
            Ending::Broken => policy.should_resume_hard_cuts,
            Ending::Refused(status) => {
                return Err(Failure { http_status: Some(status), ..Failure::after_send(ErrorCode::UpstreamStatus) });
            }
            Ending::SessionLost => {
                return Err(Failure { http_status: Some(404), ..Failure::after_send(ErrorCode::UpstreamStatus) });
            }
            Ending::Unavailable => false,
        };
        if is_on_purpose && self.has_new_id && self.last_id.is_some() {
            Ok(self.retry)
        } else {
            Err(Failure::after_send(ErrorCode::UpstreamBroke))
        }
    }

    /// Returns the pause before a request's call is resumed, however often that was tried before:
    /// after its `retry` if the server has closed on purpose, else at once, and then after longer
    /// and longer pauses. A server that still has the old stream, or that is busy or away, is asked
    /// again.
    fn repeated_pause(&mut self, ending: Ending, limit: Duration, now: Instant) -> Result<Duration, Failure> {
        let refused = |status| Failure { http_status: Some(status), ..Failure::after_send(ErrorCode::UpstreamStatus) };
        let failure = match ending {
            Ending::Clean | Ending::Broken | Ending::Unavailable => Failure::after_send(ErrorCode::UpstreamBroke),
            Ending::Refused(status) if TEMPORARY.contains(&status) => refused(status),
            Ending::Refused(status) => return Err(refused(status)),
            Ending::SessionLost => return Err(refused(404)),
        };
        let Some(last_id) = &self.last_id else { return Err(failure) };
        let pause = match ending {
            Ending::Clean => self.retry,
            Ending::Broken | Ending::Unavailable | Ending::Refused(_) | Ending::SessionLost => {
                spread(RESUME_PAUSES[(self.resumes as usize).min(RESUME_PAUSES.len() - 1)], last_id)
            }
        };
        self.resumes += 1;
        let broken_at = *self.broken_at.get_or_insert(now);
        if now + pause > broken_at + limit { Err(failure) } else { Ok(pause) }
    }

    /// Returns the pause before a standalone stream is reopened. If the server pings, it is
    /// reopened at once, but no sooner after the last request than another would be.
    fn standalone_pause(&mut self, ending: Ending, now: Instant) -> Result<Duration, Failure> {
        let is_end = matches!(ending, Ending::Clean | Ending::Broken);
        // A request without a response has a back-off of its own.
        let was_opened = self.attempts == 0;
        if is_end && was_opened && !self.has_event && now.saturating_duration_since(self.requested_at) < AT_ONCE {
            return Ok(self.barren_pause());
        }
        self.barren = 0;
        match ending {
            Ending::Clean | Ending::Broken if self.has_pinged && self.attempts == 0 => {
                Ok(self.back_off().saturating_sub(now.saturating_duration_since(self.requested_at)))
            }
            Ending::Refused(status) if status < SERVER_ERROR => {
                Err(Failure { http_status: Some(status), ..Failure::after_send(ErrorCode::UpstreamStatus) })
            }
            Ending::Refused(_) | Ending::Clean | Ending::Broken | Ending::SessionLost | Ending::Unavailable => {
                Ok(self.back_off())
            }
        }
    }

    /// Returns the pause after a response that ended at once: the latest `retry`, doubled with each
    /// such response in a row.
    fn barren_pause(&mut self) -> Duration {
        let first = self.retry.max(STANDALONE_PAUSE_MIN);
        let pause = first.saturating_mul(1 << self.barren.min(16)).min(AT_ONCE_BACKOFF_MAX.max(first));
        self.barren += 1;
        pause
    }

    /// Decides whether a standalone stream that is due is reopened later, when its next reader
    /// comes. So it is if its responses end at once, no event has ever come, and no client reads.
    pub(super) fn wait_for_reader(&mut self, is_read: bool) -> bool {
        self.waits_for_reader = self.barren > 0 && !self.has_had_event && !is_read;
        self.waits_for_reader
    }

    /// Returns true if a reader was awaited, which has come.
    pub(super) fn take_reader_wait(&mut self) -> bool {
        std::mem::take(&mut self.waits_for_reader)
    }

    /// Forgets the event ID if the upstream refused it, and returns true then. Some servers send
    /// ids that they can never resume from: such an id is sent once.
    fn forget_refused_id(&mut self, ending: Ending) -> bool {
        let may_mean_id = matches!(ending, Ending::Refused(status) if !NOT_ABOUT_IDS.contains(&status));
        let is_refused = may_mean_id && self.has_sent_id;
        if is_refused {
            self.last_id = None;
        }
        is_refused
    }

    /// Waits until the session is opened again. Returns the pause before the next attempt, since a
    /// refusal may have been temporary.
    pub(super) fn wait_for_session(&mut self) -> Duration {
        self.is_dormant = true;
        self.waits_for_reader = false;
        DORMANT_RETRY
    }

    /// Forgets the position: the session was opened again, and its server knows no event ID from
    /// before.
    pub(super) fn begin_anew(&mut self) {
        self.is_dormant = false;
        self.last_id = None;
        self.has_sent_id = false;
        self.attempts = 0;
        self.barren = 0;
        self.waits_for_reader = false;
    }

    /// Returns the pause before the next attempt: the latest `retry`, doubled with each attempt
    /// since the last response.
    fn back_off(&mut self) -> Duration {
        let first = self.retry.max(STANDALONE_PAUSE_MIN);
        let pause = first.saturating_mul(1 << self.attempts.min(16)).min(BACKOFF_MAX.max(first));
        self.attempts += 1;
        pause
    }

    /// Resumes the call. Returns the event ID to send.
    pub(super) fn reopen(&mut self, now: Instant) -> Option<Bytes> {
        self.requested_at = now;
        self.has_new_id = false;
        self.has_event = false;
        self.has_sent_id = self.last_id.is_some();
        self.last_id.clone()
    }
}

/// Names the status of a `subscriptions/listen` whose response ended in order: its server has ended
/// the subscription, and no connection broke.
fn of_listen(failure: Failure, ending: Ending, policy: &Policy) -> Failure {
    // Only the streams of that method never pause.
    let has_ended = ending == Ending::Clean && !policy.can_pause && failure.http_status.is_none();
    if has_ended { Failure { http_status: Some(OK), ..failure } } else { failure }
}

/// Makes a pause up to a quarter longer. The event ID decides: clients that were cut off together
/// have different ones, and come back one after the other.
fn spread(pause: Duration, id: &[u8]) -> Duration {
    let hash = id.iter().fold(0_u32, |hash, byte| hash.wrapping_mul(31).wrapping_add(u32::from(*byte)));
    pause + pause / 4 * (hash % 64) / 64
}

fn is_header_value(id: &[u8]) -> bool {
    const DELETE: u8 = 0x7f;
    !id.is_empty() && id.iter().all(|&byte| byte >= b' ' && byte != DELETE)
}

#[cfg(test)]
mod tests {
    use mcp_resume_base::clock;

    use super::*;
    use crate::headers::Era;

    const LIMIT: Duration = Duration::from_secs(60);

    fn policy() -> Policy {
        Policy { resumes_for: Some(LIMIT), ..Policy::of_ended(Era::Legacy, Duration::ZERO, true) }
    }

    fn with_id(id: &'static [u8]) -> sse::Event {
        sse::Event { name: Bytes::new(), data: Bytes::new(), id: Some(Bytes::from_static(id)), retry: None }
    }

    /// Returns the pause before the next resume, or `None` if there is none.
    fn pause(cursor: &mut UpstreamCursor, ending: Ending, now: Instant) -> Option<Duration> {
        match cursor.after_end(ending, &policy(), now) {
            Next::Reopen(pause) => Some(pause),
            Next::ReopenAnew(_) | Next::Fail(_) => None,
        }
    }

    #[test]
    fn a_call_is_resumed_after_growing_pauses_until_its_limit() {
        let began = clock::now();
        let mut now = began;
        let mut cursor = UpstreamCursor::new(now);
        cursor.handle_event(&with_id(b"e-1"));
        assert_eq!(pause(&mut cursor, Ending::Broken, now), Some(Duration::ZERO));
        let mut last = Duration::ZERO;
        let mut ending = Ending::Unavailable;
        while let Some(pause) = pause(&mut cursor, ending, now) {
            assert!(pause >= last.min(Duration::from_secs(5)), "{pause:?} after {last:?}");
            (last, now) = (pause, now + pause);
            ending = if ending == Ending::Unavailable { Ending::Refused(503) } else { Ending::Unavailable };
        }
        assert!(now - began > LIMIT - Duration::from_secs(7) && now - began <= LIMIT, "{:?}", now - began);
        // An event of the call begins the counts anew.
        cursor.handle_event(&with_id(b"e-2"));
        assert_eq!(pause(&mut cursor, Ending::Broken, now), Some(Duration::ZERO));
    }

    #[test]
    fn a_response_that_ended_on_purpose_is_resumed_after_its_retry() {
        let now = clock::now();
        let mut cursor = UpstreamCursor::new(now);
        assert_eq!(pause(&mut cursor, Ending::Clean, now), None, "without an ID");
        cursor.handle_event(&with_id(b"e-1"));
        assert_eq!(pause(&mut cursor, Ending::Clean, now), Some(DEFAULT_RETRY));
        cursor.handle_event(&sse::Event { retry: Some(Duration::from_millis(20)), ..with_id(b"e-2") });
        assert_eq!(pause(&mut cursor, Ending::Clean, now), Some(Duration::from_millis(20)));
    }

    #[test]
    fn a_refused_resume_ends_the_call() {
        let now = clock::now();
        for ending in [Ending::Refused(400), Ending::Refused(401), Ending::Refused(404), Ending::SessionLost] {
            let mut cursor = UpstreamCursor::new(now);
            cursor.handle_event(&with_id(b"e-1"));
            assert_eq!(pause(&mut cursor, ending, now), None, "{ending:?}");
        }
    }
}
