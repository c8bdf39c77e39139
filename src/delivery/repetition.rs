//! Calls outside sessions whose connection broke: they are expected again for a moment.
//!
//! A task begins when a connection of such a call breaks; other calls start no task. Absent: the
//! calls that are expected (`event_log/broken_calls.rs`), and the clients that may send a call
//! again (`ingress/calls/repetition.rs` and `adoption.rs`).

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use crate::clock;
use crate::event_log::{EventLog, Repeatable, Stream, Way};

/// Time after a break during which the same request is a retry. HTTP clients send it again at once.
pub const REPETITION_WINDOW: Duration = Duration::from_secs(2);

/// Expects the request of `stream` again, if its last connection broke before the client had the
/// whole response.
pub(super) fn expect(log: &Arc<EventLog>, stream: &Arc<Stream>, repeatable: &Repeatable) {
    // Without a runtime the process ends.
    let Ok(runtime) = Handle::try_current() else { return };
    for way in repeatable.ways() {
        let Some(call) = log.broken_calls().keep(stream, repeatable, *way) else { continue };
        let window = match way {
            Way::SameRequest => REPETITION_WINDOW,
            Way::OtherId => stream.with_machine(|machine| machine.policy().grace(machine.reader().last_retry())),
        };
        let (log, stream) = (log.clone(), stream.clone());
        runtime.spawn(async move {
            clock::sleep(window).await;
            drop(call);
            // The task may be the last user of an ended call.
            log.retention().release(stream);
        });
    }
}
