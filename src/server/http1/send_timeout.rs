//! Send timeout of HTTP/1.1: ends a connection whose client takes nothing of its response.
//!
//! The kernel ends a connection whose peer acknowledges nothing. A peer that acknowledges with a
//! closed window, and so never makes room, is ended here. Absent: a minimum rate. A client that
//! takes a byte now and then keeps its connection. The memory of a connection is bounded.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use crate::handler::ConnectionState;
use crate::{SEND_TIMEOUT, TAKEN_OVER_TIMEOUT};
use mcp_resume_base::clock::{self, Alarm};

/// Send timeout of one connection.
pub(super) struct SendTimeout<C> {
    connection: Arc<C>,
    alarm: Alarm,
}

impl<C: ConnectionState> SendTimeout<C> {
    pub(super) fn new(connection: Arc<C>) -> Self {
        Self { connection, alarm: Alarm::new() }
    }

    /// Ready if the connection must end. `blocked_since`: time since which its client takes
    /// nothing.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, blocked_since: Option<Instant>) -> Poll<()> {
        let Some(since) = blocked_since else { return Poll::Pending };
        loop {
            let now = clock::now();
            let blocked = now.saturating_duration_since(since);
            if blocked >= SEND_TIMEOUT || (blocked >= TAKEN_OVER_TIMEOUT && self.connection.is_taken_over()) {
                return Poll::Ready(());
            }
            self.alarm.set(Some((since + SEND_TIMEOUT).min(now + TAKEN_OVER_TIMEOUT)));
            if self.alarm.poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
    }
}
