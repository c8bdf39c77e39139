//! Heads of the upstream that come after the proxy has begun the response, or refuse to resume it.
//!
//! Owned here: requests that the upstream has accepted without a response (202, 204). Their
//! responses come on the session's standalone stream. Also the headers of a refusal, which become
//! members of the error. Absent: the classification of statuses (the caller).

use std::time::Instant;

use super::Lifecycle;
use super::states::Outcome;
use super::timers::Timer;
use crate::jsonrpc::RequestId;
use crate::refusal::RefusalHeaders;

/// Facts of a late head, and of responses that came elsewhere before it.
#[derive(Debug, Default)]
pub(super) struct LateFacts {
    /// True once the upstream has accepted the requests without a response.
    is_accepted: bool,
    /// Owed ids whose responses came on the session's standalone stream. At most one entry for each
    /// owed id.
    answered_elsewhere: Vec<RequestId>,
    /// Headers of the upstream's refusal, which ended the call.
    refusal: Option<Box<RefusalHeaders>>,
}

impl LateFacts {
    /// Returns true if the upstream has accepted the requests without a response.
    pub(super) fn is_accepted(&self) -> bool {
        self.is_accepted
    }

    /// Returns the headers of the upstream's refusal, which ended the call.
    pub(super) fn refusal(&self) -> Option<&RefusalHeaders> {
        self.refusal.as_deref()
    }
}

/// The late head of one stream, and the lifecycle that it may end.
pub struct LateHead<'a> {
    facts: &'a mut Option<Box<LateFacts>>,
    lifecycle: &'a mut Lifecycle,
}

impl<'a> LateHead<'a> {
    pub(super) fn new(facts: &'a mut Option<Box<LateFacts>>, lifecycle: &'a mut Lifecycle) -> Self {
        Self { facts, lifecycle }
    }

    /// The headers of a refusal of the upstream, for the error with its status.
    pub fn handle_refusal_headers(&mut self, headers: Option<Box<RefusalHeaders>>) {
        if headers.is_some() {
            self.facts.get_or_insert_default().refusal = headers;
        }
    }

    /// The upstream has accepted the requests without a response, after the proxy began one. The
    /// stream stays open for `max_wait` at most, until the responses have come on the session's
    /// standalone stream. Without that stream it ends at once. No error takes the place of a
    /// response: without the proxy the client would have got no response here.
    pub fn handle_accepted(&mut self, has_standalone: bool, now: Instant) {
        if !self.lifecycle.can_append() {
            return;
        }
        // The server has taken the call over: it neither times out nor is cancelled here any more.
        self.lifecycle.timers.stop(Timer::Call);
        let facts = self.facts.get_or_insert_default();
        facts.is_accepted = true;
        for id in std::mem::take(&mut facts.answered_elsewhere) {
            self.lifecycle.owed_responses.cancel(&id);
        }
        if !has_standalone || self.lifecycle.owed_responses.is_settled() {
            return self.end(now);
        }
        if let Some(max_wait) = self.lifecycle.policy.max_wait {
            self.lifecycle.timers.set(Timer::Call, now + max_wait);
        }
    }

    /// The response to `id` came on the session's standalone stream. Changes nothing unless the
    /// stream owes it.
    pub fn handle_answered_elsewhere(&mut self, id: &RequestId, now: Instant) {
        if self.lifecycle.ending().is_some() || !self.lifecycle.owed_responses.is_due(id) {
            return;
        }
        let facts = self.facts.get_or_insert_default();
        if !facts.is_accepted {
            if !facts.answered_elsewhere.contains(id) {
                facts.answered_elsewhere.push(id.clone());
            }
            return;
        }
        self.lifecycle.owed_responses.cancel(id);
        if self.lifecycle.owed_responses.is_settled() {
            self.end(now);
        }
    }

    /// Ends the stream of accepted requests without further messages.
    pub(super) fn end(&mut self, now: Instant) {
        self.lifecycle.owed_responses.cancel_due();
        self.lifecycle.begin_seal(Outcome::Completed, now);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http::HeaderMap;
    use http::header::RETRY_AFTER;

    use super::*;
    use crate::error::{ErrorCode, Failure};
    use crate::headers::Era;
    use crate::ids::{AttachId, Seq};
    use crate::stream::{Effect, Machine, Phase, Policy};
    use mcp_resume_base::clock;

    const MAX_WAIT: Duration = Duration::from_secs(600);
    const CALL_TIMEOUT: Duration = Duration::from_secs(30);

    fn id(number: u8) -> RequestId {
        RequestId::Number(number.to_string().into())
    }

    /// Returns a committed stream with a reader, that owes responses for 1 and 2.
    fn committed(now: Instant) -> Machine {
        let policy = Policy {
            max_wait: Some(MAX_WAIT),
            call_timeout: Some(CALL_TIMEOUT),
            should_announce_cancel: true,
            ..Policy::of_ended(Era::Legacy, MAX_WAIT, true)
        };
        let mut machine = Machine::new(policy, vec![id(1), id(2)], now);
        machine.handle_attach(AttachId(1), Seq(0), now);
        machine.lifecycle_mut().handle_commit();
        machine
    }

    /// Lets the time pass to `now`, and returns true if the stream has ended without an event and
    /// without a cancel.
    fn has_ended(machine: &mut Machine, now: Instant) -> bool {
        machine.handle_timeout(now);
        let effects: Vec<Effect> = std::iter::from_fn(|| machine.lifecycle_mut().poll_effect()).collect();
        assert_eq!(machine.numbering().last(), Seq(0));
        match machine.lifecycle().phase() {
            Phase::Sealed { outcome, .. } => {
                assert_eq!(
                    (outcome, machine.lifecycle().failure(), effects),
                    (Outcome::Completed, None, vec![Effect::Close])
                );
                true
            }
            Phase::Waiting | Phase::Passed | Phase::Open => {
                assert_eq!(effects, []);
                false
            }
        }
    }

    #[test]
    fn accepted_requests_wait_for_all_their_responses_elsewhere() {
        let now = clock::now();
        let mut machine = committed(now);
        machine.late_head().handle_answered_elsewhere(&id(2), now);
        machine.late_head().handle_answered_elsewhere(&id(2), now);
        assert!(!has_ended(&mut machine, now), "the response may still come here");
        machine.late_head().handle_accepted(true, now);
        let later = now + CALL_TIMEOUT + Duration::from_secs(1);
        machine.late_head().handle_answered_elsewhere(&id(3), later);
        assert!(!has_ended(&mut machine, later), "another request's");
        machine.late_head().handle_answered_elsewhere(&id(1), later);
        assert!(has_ended(&mut machine, later));
        machine.late_head().handle_answered_elsewhere(&id(1), later);
        assert!(machine.lifecycle().is_sealed());
    }

    #[test]
    fn accepted_requests_wait_no_longer_than_a_client_that_is_away() {
        for has_reader in [true, false] {
            let now = clock::now();
            let mut machine = committed(now);
            if !has_reader {
                machine.handle_detach(AttachId(1), now);
            }
            machine.late_head().handle_accepted(true, now);
            assert!(!has_ended(&mut machine, now + MAX_WAIT - Duration::from_nanos(1)), "{has_reader}");
            assert!(has_ended(&mut machine, now + MAX_WAIT), "{has_reader}");
        }
    }

    #[test]
    fn accepted_requests_without_a_standalone_stream_end_at_once() {
        let now = clock::now();
        let mut machine = committed(now);
        machine.late_head().handle_accepted(false, now);
        assert!(has_ended(&mut machine, now));
    }

    #[test]
    fn an_error_has_the_headers_of_a_refusal_with_a_status_alone() {
        let headers = HeaderMap::from_iter([(RETRY_AFTER, "7".parse().unwrap())]);
        for (http_status, has_member) in [(Some(429), true), (None, false)] {
            let now = clock::now();
            let mut machine = committed(now);
            machine.late_head().handle_refusal_headers(RefusalHeaders::of(&headers));
            machine.handle_failure(Failure { http_status, ..Failure::after_send(ErrorCode::UpstreamStatus) }, now);
            let batch = machine.lifecycle_mut().poll_batch().expect("two errors");
            let has = |event: &[u8]| String::from_utf8_lossy(event).contains(r#""retryAfter":"7""#);
            assert_eq!(batch.events().map(has).collect::<Vec<_>>(), [has_member; 2]);
        }
    }
}
