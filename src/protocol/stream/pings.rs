//! Pings of the server, which the proxy answers where the client cannot.
//!
//! Owned here: the time of each answer, and the choice of the pings that are logged. A ping of the
//! server ends its session, and the calls in it, if no answer comes. One that no reader can answer
//! is answered at once and is no event. One that a reader has is answered after [`READER_WAIT`], or
//! when the reader leaves; then it counts as answered, so that it is not replayed and the client's
//! own answer is a repetition. Absent: the message of an answer (`upstream`), and the client's
//! answers (`server_requests`).

use std::time::{Duration, Instant};

use super::Machine;
use super::states::{Effect, Phase};
use super::timers::Timer;
use crate::headers::Era;
use crate::ids::StreamKind;
use crate::jsonrpc::{Body, Message, RequestId};

/// Method of a ping, of either side.
pub(super) const PING: &str = "ping";
/// Time for which a reader may answer a ping itself.
const READER_WAIT: Duration = Duration::from_secs(1);

impl Machine {
    /// A call has heard nothing for a while in a session where nothing else passes: its server may
    /// be about to end the session. Returns true if the upstream is sent a ping, and false if the
    /// stream is no running call of the legacy era.
    pub fn handle_quiet(&mut self) -> bool {
        let is_call = self.policy.kind == StreamKind::Request && self.policy.era == Era::Legacy;
        let runs = self.sealing.is_none() && matches!(self.phase, Phase::Waiting | Phase::Open);
        let is_quiet = is_call && runs && !self.owed_responses.is_settled();
        if is_quiet {
            self.effects.push_back(Effect::KeepAlive);
        }
        is_quiet
    }

    /// Answers the pings of a message that holds nothing else, if no reader can answer them.
    /// Returns true then: the message is no event.
    pub(super) fn answer_unlogged(&mut self, body: &Body) -> bool {
        if !self.policy.should_answer_pings || self.has_answering_reader() {
            return false;
        }
        let Some(ids) = body.messages().iter().map(ping_id).collect::<Option<Vec<_>>>() else { return false };
        self.upstream.note_ping();
        self.effects.extend(ids.into_iter().cloned().map(Effect::AnswerPing));
        true
    }

    /// Answers the logged pings that are due: all of them without a reader, else those that have
    /// waited for [`READER_WAIT`].
    pub(super) fn answer_pings(&mut self, now: Instant) {
        if !self.policy.should_answer_pings || self.sealing.is_some() || self.is_sealed() {
            return;
        }
        let wait = if self.has_answering_reader() { READER_WAIT } else { Duration::ZERO };
        let is_due = |(_, at): &(&RequestId, Instant)| *at + wait <= now;
        let due: Vec<RequestId> = self.server_requests.pings().take_while(is_due).map(|(id, _)| id.clone()).collect();
        for id in due {
            self.server_requests.answer(&id);
            self.effects.push_back(Effect::AnswerPing(id));
        }
        match self.server_requests.pings().next() {
            Some((_, at)) => self.timers.set(Timer::Ping, at + READER_WAIT),
            None => self.timers.stop(Timer::Ping),
        }
    }

    /// Returns true if a reader is attached that takes requests of the server.
    fn has_answering_reader(&self) -> bool {
        self.reader.is_attached() && !self.policy.should_refuse_requests
    }
}

/// Returns the id of a ping, or `None` for another message.
fn ping_id(message: &Message) -> Option<&RequestId> {
    match message {
        Message::Request { id, method } if method == PING => Some(id),
        Message::Request { .. } | Message::Notification { .. } | Message::Response { .. } => None,
    }
}
