//! Clients that take nothing of what is written to them.
//!
//! The kernel ends a connection whose peer acknowledges nothing. A peer that acknowledges with a closed window, and so never makes room,
//! is ended here. On HTTP/2 that is the response for which its peer gives no window (`http2.rs`). Absent: a least rate. A client that
//! takes a byte now and then, or a piece on HTTP/2, keeps its connection, whose memory is bounded.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use crate::clock::{self, Alarm};
use crate::delivery::Receipts;

/// A client that takes nothing for this long has its connection ended, as by nginx (`send_timeout`).
pub(super) const SEND_TIMEOUT: Duration = Duration::from_secs(60);
/// The same where another connection has taken over the stream that is written. A blocked connection looks so often whether it has.
pub(super) const TAKEN_OVER_TIMEOUT: Duration = Duration::from_secs(1);

/// Watches one connection of HTTP/1.1.
pub(super) struct Stall {
    receipts: Arc<Receipts>,
    alarm: Alarm,
}

impl Stall {
    pub(super) fn new(receipts: Arc<Receipts>) -> Self {
        Self { receipts, alarm: Alarm::new() }
    }

    /// Ready when the connection is to end. `blocked_since`: since when its client has taken nothing.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, blocked_since: Option<Instant>) -> Poll<()> {
        let Some(since) = blocked_since else { return Poll::Pending };
        loop {
            let now = clock::now();
            let blocked = now.saturating_duration_since(since);
            if blocked >= SEND_TIMEOUT || (blocked >= TAKEN_OVER_TIMEOUT && self.receipts.is_taken_over()) {
                return Poll::Ready(());
            }
            self.alarm.set(Some((since + SEND_TIMEOUT).min(now + TAKEN_OVER_TIMEOUT)));
            if self.alarm.poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
    }
}
