//! The GET stream of the probe's session, and a watch of that session while its client is silent.
//!
//! The stream is held as a client would hold it, and its pings get responses, so that the session
//! lives through the other requests. In the watch, pings get responses until two have shown their
//! interval. After that the server gets no message. At the end, a ping of the client shows whether
//! the session still exists.
//!
//! Invariant: the watch ends with its time, sooner only with the GET stream. Absent: all that the
//! server does after that time.

use std::pin::pin;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::exchange::{Cut, EventReader};
use super::facts::{SessionState, Standalone, UnknownSession, Watch, millis};
use super::requests::Requester;
use super::state::Probe;
use crate::clock;

/// Longest time that the stream is held beside other requests.
const HELD_MAX: Duration = Duration::from_secs(3600);

/// The GET stream of a session.
#[derive(Default)]
pub(super) struct SessionStream {
    /// The open stream, or `None` before its head and after its end.
    listener: Option<EventReader>,
    opened: Option<Instant>,
    pings: Pings,
}

/// Pings that came on a stream.
#[derive(Default)]
struct Pings {
    number: usize,
    responded: Option<Instant>,
    interval: Option<Duration>,
    ignored: Option<Instant>,
}

impl Pings {
    fn count(&mut self) {
        self.number += 1;
        if let Some(responded) = self.responded {
            let since = clock::now().saturating_duration_since(responded);
            self.interval.get_or_insert(since);
        }
    }
}

/// Returns the ID of a ping, or `None` of another message.
fn ping_id(message: &Value) -> Option<&Value> {
    message.get("id").filter(|_| message["method"] == "ping")
}

impl Probe<'_> {
    /// Opens the GET stream of a session.
    pub(super) async fn open_stream(&self, requester: &Requester) -> (Standalone, SessionStream) {
        let deadline = clock::now() + self.timeouts.stream;
        let (standalone, listener) = self.client.listen(requester.get(None), deadline).await;
        let opened = listener.as_ref().map(|_| clock::now());
        (standalone, SessionStream { listener, opened, pings: Pings::default() })
    }

    /// Awaits `work`, and responds to the pings that come meanwhile.
    pub(super) async fn while_listening<T>(
        &self,
        requester: &Requester,
        stream: &mut SessionStream,
        work: impl Future<Output = T>,
    ) -> T {
        let mut work = pin!(work);
        let deadline = clock::now() + HELD_MAX;
        loop {
            let Some(listener) = &mut stream.listener else { return work.await };
            tokio::select! {
                biased;
                done = &mut work => return done,
                message = listener.next_message(deadline) => match message {
                    Some(message) => if let Some(id) = ping_id(&message) {
                        stream.pings.count();
                        self.respond_to_ping(requester, id, &mut stream.pings).await;
                    },
                    None => stream.listener = None,
                },
            }
        }
    }

    async fn respond_to_ping(&self, requester: &Requester, id: &Value, pings: &mut Pings) {
        // The end of the session shows whether the server took it.
        let _ = self.request_until(requester.response(id, json!({})), Cut::AfterHead).await;
        pings.responded = Some(clock::now());
    }

    /// Watches a session. Returns `None` without a session, and where no time is given to it.
    /// `unknown_session` is the server's reaction to a session that it does not know.
    pub(super) async fn watch(
        &self,
        requester: &Requester,
        mut stream: SessionStream,
        unknown_session: UnknownSession,
    ) -> Option<Watch> {
        let time = self.timeouts.watch;
        if time.is_zero() || !matches!(requester, Requester::Legacy { session: Some(_), .. }) {
            return None;
        }
        self.options.report_progress(&format!("watching a session for {} s", time.as_secs_f32()));
        let begun = clock::now();
        let end = begun + time;
        if stream.listener.is_none() {
            stream.listener = self.client.listen(requester.get(None), end).await.1;
        }
        let has_ended_before = stream.opened.is_some() && stream.listener.is_none();
        let opened = *stream.opened.get_or_insert(begun);
        let has_stream = stream.listener.is_some() || has_ended_before;
        match &mut stream.listener {
            Some(listener) => self.listen(requester, listener, end, &mut stream.pings).await,
            None if has_ended_before => {}
            None => clock::sleep(end.saturating_duration_since(clock::now())).await,
        }
        let (ended, pings) = (clock::now(), stream.pings);
        let since = |time: Instant| millis(ended.saturating_duration_since(time));
        let silent = since(pings.responded.unwrap_or(begun).max(begun));
        Some(Watch {
            watched_ms: since(opened),
            stream: has_stream,
            stream_ended: has_stream && ended < end,
            pings: pings.number,
            ping_interval_ms: pings.interval.map(millis),
            unanswered_ms: pings.ignored.map(since),
            silent_ms: if has_ended_before { None } else { Some(silent) },
            session: self.session_state(requester, unknown_session).await,
        })
    }

    /// Reads the messages of the GET stream until its end or the end of the watch. Responds to
    /// pings until their interval is known.
    async fn listen(&self, requester: &Requester, listener: &mut EventReader, end: Instant, pings: &mut Pings) {
        while let Some(message) = listener.next_message(end).await {
            let Some(id) = ping_id(&message) else { continue };
            pings.count();
            if pings.interval.is_none() {
                self.respond_to_ping(requester, id, pings).await;
            } else {
                pings.ignored.get_or_insert_with(clock::now);
            }
        }
    }

    /// Returns the state of the session: it counts as ended if a ping is refused as in a session
    /// that the server does not know.
    async fn session_state(&self, requester: &Requester, unknown_session: UnknownSession) -> SessionState {
        const ID: u64 = 70;
        match (self.ping(requester, ID).await, unknown_session) {
            (UnknownSession::Accepted, _) => SessionState::Lives,
            (UnknownSession::Recognised { .. }, _) => SessionState::Ended,
            (UnknownSession::Unrecognised { status, .. }, UnknownSession::Unrecognised { status: known, .. })
                if status == known =>
            {
                SessionState::Ended
            }
            (UnknownSession::Unrecognised { .. } | UnknownSession::Unknown, _) => SessionState::Unknown,
        }
    }
}
