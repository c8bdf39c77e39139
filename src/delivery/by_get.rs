//! Delivery of a response by the GET stream of its session, to a client that does not resume the
//! stream of the call.
//!
//! A task begins when a connection of such a call breaks, or when its client opens the GET stream
//! after the process of the call has died; other calls start no task. It waits for
//! four steps: the time to resume has passed, the response is complete, a client reads the GET
//! stream, and that delivery is proven. Absent: each step itself
//! (`event_log/stream/by_get.rs`), and the clients that it is for (`ingress`).

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tracing::{Instrument, info};

use super::SETTLED;
use crate::clock;
use crate::event_log::{Binding, ByGet, DeliveryCertainty, EventLog, GetProgress, GetTurn, Stream};
use crate::protocol::ids::{AttachId, Seq};

/// Pause after a GET stream took no message although a client reads it: its store is behind.
const PAUSE: Duration = Duration::from_secs(1);

/// Watches a call from now on, if its response may go by GET. Called when a connection of the call
/// ended, and its client is not known to have the response.
pub(super) fn watch(log: &Arc<EventLog>, stream: &Arc<Stream>) {
    let Some(by_get) = stream.by_get() else { return };
    // Without a runtime the process ends.
    let Ok(runtime) = Handle::try_current() else { return };
    if by_get.begin_watch() {
        let (log, stream) = (log.clone(), stream.clone());
        let delivery = async move {
            if deliver(&log, &stream).await {
                log.retention().note_delivered(stream, DeliveryCertainty::Doubtful);
            } else {
                // The task may be the last user of an ended call.
                log.retention().release(stream);
            }
        };
        runtime.spawn(delivery.in_current_span());
    }
}

/// Watches the calls in the caller's session that ended with an earlier process. Called when the
/// client opens the GET stream of the session.
pub fn watch_ended_calls(log: &Arc<EventLog>, caller: &Binding) {
    let ended = log.adoption().ended_calls().take_of(caller);
    if ended.is_empty() {
        return;
    }
    let log = log.clone();
    let restoration = async move {
        for id in ended {
            // The response of a call that cannot be read remains for a resume.
            if let Ok(Some(stream)) = log.restoration().restore_by_id(id).await {
                watch(&log, &stream);
            }
        }
    };
    tokio::spawn(restoration.in_current_span());
}

/// Returns true once the client has the response from the GET stream, and false once it gets
/// nothing from there.
async fn deliver(log: &EventLog, stream: &Stream) -> bool {
    let Some(by_get) = stream.by_get() else { return false };
    let mut turn = by_get.turn();
    loop {
        let mut opened = pin!(by_get.calls().opened());
        opened.as_mut().enable();
        let wakes_at = match turn {
            GetTurn::Over => return false,
            GetTurn::Read => None,
            GetTurn::Expected(until) => Some(until),
            GetTurn::Due { is_complete, .. } => match get_stream(log, stream) {
                None => by_get.kept_until(),
                Some(get) => {
                    by_get.move_requests(&get);
                    if is_complete && let Some(seq) = by_get.hand_over(&get) {
                        info!(stream.id = %stream.id(), "a response goes by the GET stream of its session");
                        if confirmed(&by_get, &get, seq).await {
                            by_get.set_delivered();
                            return true;
                        }
                        by_get.take_back();
                    }
                    if is_complete { Some(clock::now() + PAUSE) } else { by_get.keep_alive() }
                }
            },
        };
        turn = tokio::select! {
            turn = poll_fn(|cx| by_get.poll_turn(cx, turn)) => turn,
            () = opened => by_get.turn(),
            () = sleep(wakes_at) => by_get.turn(),
        };
    }
}

/// Returns the GET stream of the call's session, if a client reads it.
fn get_stream(log: &EventLog, call: &Stream) -> Option<Arc<Stream>> {
    let binding = call.binding();
    let get = log.sessions().standalone(binding.session.as_ref()?, &binding.principal)?;
    Some(get).filter(|get| get.with_machine(|machine| machine.reader().is_attached()))
}

/// Waits for a proof that the client has the event at `seq` of `get`: it has resumed behind it, or
/// a connection that was given it stayed open for two seconds. Returns false if no connection was
/// ever given it, or if that can no longer be known.
async fn confirmed(by_get: &ByGet<'_>, get: &Stream, seq: Seq) -> bool {
    let mut given: Option<(AttachId, Instant)> = None;
    loop {
        let mut opened = pin!(by_get.calls().opened());
        opened.as_mut().enable();
        let now = clock::now();
        let looks_at = match GetProgress::of(get, seq) {
            GetProgress::Confirmed => return true,
            GetProgress::Lost | GetProgress::Ended => return false,
            GetProgress::Written(attach) => match given {
                Some((known, at)) if known == attach && at + SETTLED <= now => return true,
                Some((known, at)) if known == attach => at + SETTLED,
                Some(_) | None => {
                    given = Some((attach, now));
                    now + SETTLED
                }
            },
            GetProgress::Waiting | GetProgress::Unread => {
                if by_get.kept_until().is_some_and(|until| until <= now) {
                    return false;
                }
                now + SETTLED
            }
        };
        tokio::select! {
            () = opened => {}
            () = clock::sleep_until(looks_at) => {}
        }
    }
}

async fn sleep(until: Option<Instant>) {
    match until {
        Some(until) => clock::sleep_until(until).await,
        None => std::future::pending().await,
    }
}
