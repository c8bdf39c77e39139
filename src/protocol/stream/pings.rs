//! Pings of the server. The proxy responds to them where the client cannot.
//!
//! Owned here: the time of each response, and the choice of the pings that are logged. A server
//! whose ping gets no response ends its session, and the calls in it. A ping that no reader can
//! respond to gets its response at once, and is no event. Where a reader has the ping, the proxy
//! responds after [`READER_WAIT`], or when the reader leaves. Then the ping is settled: it is not
//! replayed, and the client's own response is a repetition. Absent: the message of a response
//! (`upstream`), and the client's responses (`server_requests`).

use std::time::{Duration, Instant};

use super::states::Effect;
use super::timers::Timer;
use super::{Lifecycle, ServerRequests};
use crate::jsonrpc::{Body, Message, RequestId};

/// Method of a ping, of either side.
pub(super) const PING: &str = "ping";
/// Time that a reader has to respond to a ping itself.
const READER_WAIT: Duration = Duration::from_secs(1);

/// Returns the ids of the pings of a message that holds nothing else, or `None` for another
/// message.
pub(super) fn pings_alone(body: &Body) -> Option<Vec<&RequestId>> {
    let ids = body.messages().iter().map(|message| match message {
        Message::Request { id, method } if method == PING => Some(id),
        Message::Request { .. } | Message::Notification { .. } | Message::Response { .. } => None,
    });
    ids.collect()
}

impl ServerRequests {
    /// Responds to the logged pings that are due: all pings without a reader, else the pings that
    /// have waited for [`READER_WAIT`].
    pub(super) fn answer_due_pings(&mut self, lifecycle: &mut Lifecycle, has_reader: bool, now: Instant) {
        if !lifecycle.policy.should_answer_pings || lifecycle.ending().is_some() {
            return;
        }
        let wait = if has_reader { READER_WAIT } else { Duration::ZERO };
        let is_due = |(_, at): &(&RequestId, Instant)| *at + wait <= now;
        let due: Vec<RequestId> = self.pings().take_while(is_due).map(|(id, _)| id.clone()).collect();
        for id in due {
            self.answer(&id);
            lifecycle.effects.push_back(Effect::AnswerPing(id));
        }
        match self.pings().next() {
            Some((_, at)) => lifecycle.timers.set(Timer::Ping, at + READER_WAIT),
            None => lifecycle.timers.stop(Timer::Ping),
        }
    }
}
