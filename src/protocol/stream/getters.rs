//! Getters of the machine. None of them changes it.

use std::time::{Duration, Instant};

use super::states::{HeadOrigin, Phase};
use super::timers::Timer;
use super::{Machine, OwedResponses, Policy, ReaderState, ServerRequests};
use crate::error::{ErrorCode, Failure};
use crate::ids::Seq;
use crate::jsonrpc::RequestId;

impl Machine {
    /// Returns the phase of the stream.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Returns the failure with which the proxy ended the stream, or `None` if it did not.
    pub fn failure(&self) -> Option<Failure> {
        self.failure
    }

    /// Returns true if the response head is the proxy's own.
    pub fn is_committed(&self) -> bool {
        self.head_origin == HeadOrigin::Proxy
    }

    /// Returns true if the proxy begins the response by itself at `now`.
    pub fn is_commit_due(&self, now: Instant) -> bool {
        self.timers.is_due(Timer::Commit, now)
    }

    /// Returns true if no response is owed any more, and those that came may be read.
    pub fn is_answered(&self) -> bool {
        let last_response = self.owed_responses.last_response();
        self.owed_responses.is_settled() && last_response.is_none_or(|seq| seq <= self.tail())
    }

    /// Returns true if the stream has ended.
    pub fn is_sealed(&self) -> bool {
        matches!(self.phase, Phase::Sealed { .. })
    }

    /// Returns true if the client has cancelled the stream, so that no token opens it any more.
    pub fn is_cancelled(&self) -> bool {
        self.is_cancelled
    }

    /// Returns true if the upstream no longer knows the session of this standalone stream.
    pub fn is_dormant(&self) -> bool {
        self.is_dormant
    }

    /// Returns true if no token opens the stream any more: it was cancelled or abandoned, or its
    /// session was deleted.
    pub fn is_revoked(&self) -> bool {
        let was_abandoned = self.failure.is_some_and(|failure| failure.code == ErrorCode::Abandoned);
        self.is_cancelled || self.is_revoked || was_abandoned
    }

    /// Returns true if the last message is known to have arrived.
    pub fn is_delivered(&self) -> bool {
        self.reader.is_delivered()
    }

    /// Returns true if the upstream must not be read now, because the log is full of unwritten
    /// events.
    pub fn is_paused(&self) -> bool {
        self.timers.is_set(Timer::Full)
    }

    /// Returns the bytes of the events that the store has not been given yet.
    pub fn staged_len(&self) -> usize {
        self.numbering.staged_len()
    }

    /// Returns the last event that may be read.
    pub fn tail(&self) -> Seq {
        self.numbering.tail()
    }

    /// Returns the last event that has a number. The store may not have accepted the events behind
    /// the tail yet.
    pub fn last_numbered(&self) -> Seq {
        self.numbering.last()
    }

    /// Returns the last event that is gone.
    pub fn trimmed(&self) -> Seq {
        self.numbering.trimmed()
    }

    /// Returns the current reader and its progress.
    pub fn reader(&self) -> &ReaderState {
        &self.reader
    }

    /// Returns the `retry` that was last sent.
    pub fn last_retry(&self) -> Duration {
        self.last_retry
    }

    /// Returns the `retry` for the connection that was just displaced: a multiple of the one that
    /// was last sent.
    pub fn takeover_retry(&self) -> Duration {
        self.reader.takeover_retry(self.last_retry)
    }

    /// Returns the responses that the stream owes or owed.
    pub fn owed_responses(&self) -> &OwedResponses {
        &self.owed_responses
    }

    /// Returns the server's requests to the client.
    pub fn server_requests(&self) -> &ServerRequests {
        &self.server_requests
    }

    /// Returns the memory of questions to the client beside the events, in bytes.
    pub fn questions_len(&self) -> usize {
        self.server_requests.byte_len() + self.task().map_or(0, |task| task.record().byte_len())
    }

    /// Returns the rules of the stream.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Returns the time of the last message of the upstream or of the last client response to it,
    /// or that of the request before both.
    pub fn last_exchange(&self) -> Instant {
        self.input_turn.quiet_since()
    }

    /// Returns the time since which the upstream has waited for a response to `id`, or `None` if it
    /// does not wait.
    pub fn awaits_response_since(&self, id: &RequestId) -> Option<Instant> {
        if self.is_sealed() { None } else { self.server_requests.outstanding_since(id) }
    }
}
