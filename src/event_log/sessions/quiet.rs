//! Quiet sessions: a call runs, and no message passes between the proxy and the server.
//!
//! Some servers end a silent session, and the calls in it. No call has a timer for this. One task
//! checks the sessions with calls, many times in the time limit. Absent: the ping (`upstream`), and
//! the time limit (the configuration).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::clock;
use crate::event_log::sessions::session::{Key, State};
use crate::event_log::sessions::{Session, Sessions};
use crate::protocol::ids::IssuedSession;

/// Number of looks in the time limit, so that a ping is late by a small part of it.
const LOOKS: u32 = 16;
/// Limits of the pause between two looks.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

impl Session {
    /// Notes that a message without a stream of its own goes to the server.
    pub fn note_sent(&self) {
        self.lock().sent = Some(clock::now());
    }
}

impl Sessions {
    /// Has a ping sent in each session with a running call and without a message for `limit`. Runs
    /// until dropped.
    pub async fn keep_alive(&self, limit: Duration) {
        let pause = (limit / LOOKS).clamp(PAUSE.0, PAUSE.1);
        loop {
            clock::sleep(pause).await;
            self.keep_quiet_alive(limit, clock::now());
        }
    }

    fn keep_quiet_alive(&self, limit: Duration, now: Instant) {
        let has_calls = |session: &Session| session.calls.load(Ordering::Relaxed) > 0;
        let busy = self.sessions.iter().filter(|entry| has_calls(entry.value()));
        let mut busy: Vec<(Key, Arc<Session>)> =
            busy.map(|entry| (entry.key().clone(), entry.value().clone())).collect();
        // The server knows nothing of a session that the proxy issued.
        busy.retain(|((id, _), _)| !IssuedSession::is_claimed_by(id));
        // The order of the map is random, and simulated runs must not differ.
        busy.sort_unstable_by_key(|(_, session)| session.serial);
        for ((id, _), session) in busy {
            let streams = self.streams(&id, &session);
            let exchanges =
                streams.iter().map(|stream| stream.with_machine(|machine| machine.input_turn().quiet_since()));
            let own = { session.lock().last_message() };
            let last = exchanges.chain(own).max();
            if last.is_some_and(|last| now.saturating_duration_since(last) >= limit)
                && streams.iter().rev().any(|stream| stream.keep_alive())
            {
                session.note_sent();
            }
        }
    }
}

impl State {
    /// Returns the time of the last message that no stream records: a message without a stream, or
    /// the end of a call.
    fn last_message(&self) -> Option<Instant> {
        self.sent.max(self.call_ended)
    }
}
