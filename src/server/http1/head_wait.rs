//! The wait of a connection for its next head. hyper reports its beginning and its end, and the
//! connection's task ends a wait that is too long.
//!
//! hyper's own timeout would make and register a timer for each request. A connection also needs
//! the beginning of the wait: after some time without input it gives hyper's buffers back.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hyper::rt;

use crate::HEAD_TIMEOUT;
use mcp_resume_base::clock::{self, Alarm};
use mcp_resume_base::sync;

/// Time before a connection that waits gives hyper's buffers back.
const IDLE_AFTER: Duration = Duration::from_secs(5);

/// End of the current wait, or `None` while a request runs. Shared with hyper.
#[derive(Clone, Debug, Default)]
pub(super) struct HeadWait(Arc<Mutex<Option<Instant>>>);

impl HeadWait {
    /// Notes that a head has come.
    pub(super) fn end(&self) {
        *sync::lock(&self.0) = None;
    }

    /// Returns the end of the current wait, or `None` without a wait.
    pub(super) fn until(&self) -> Option<Instant> {
        *sync::lock(&self.0)
    }
}

/// hyper requests a timer when it begins to wait for a head, and for no other reason.
impl rt::Timer for HeadWait {
    fn sleep(&self, time: Duration) -> Pin<Box<dyn rt::Sleep>> {
        self.sleep_until(clock::now() + time)
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn rt::Sleep>> {
        // A wait continues if hyper begins anew in it.
        sync::lock(&self.0).get_or_insert(deadline);
        Box::pin(Never)
    }

    fn now(&self) -> Instant {
        clock::now()
    }

    fn reset(&self, _: &mut Pin<Box<dyn rt::Sleep>>, deadline: Instant) {
        sync::lock(&self.0).get_or_insert(deadline);
    }
}

/// Timer of hyper's that never fires.
struct Never;

impl Future for Never {
    type Output = ();

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }
}

impl rt::Sleep for Never {}

/// Event of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitEvent {
    /// Nothing has come for a while.
    Idle,
    /// The time for the head has passed.
    TooLong,
}

/// Watch of the waits of one connection.
pub(super) struct WaitWatch {
    wait: HeadWait,
    alarm: Alarm,
    /// End of the wait that was last reported as idle.
    idle: Option<Instant>,
    /// Longest time of an idle connection, from the beginning of its wait.
    idle_timeout: Duration,
}

impl WaitWatch {
    /// Creates the watch of a connection that may be idle for this time.
    pub(super) fn new(wait: HeadWait, idle_timeout: Duration) -> Self {
        Self { wait, alarm: Alarm::new(), idle: None, idle_timeout }
    }

    /// Ends the current wait: a head has begun. hyper begins another wait for its rest.
    pub(super) fn end_wait(&self) {
        self.wait.end();
    }

    /// Polls for the end of an idle connection's time.
    pub(super) fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(until) = self.wait.until() else { return Poll::Pending };
        self.alarm.set(Some(until - HEAD_TIMEOUT + self.idle_timeout));
        self.alarm.poll(cx)
    }

    /// Returns the next event of the current wait. Each wait is idle once.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<WaitEvent> {
        let Some(until) = self.wait.until() else { return Poll::Pending };
        let event = if self.idle == Some(until) { WaitEvent::TooLong } else { WaitEvent::Idle };
        self.alarm.set(Some(match event {
            WaitEvent::Idle => until - HEAD_TIMEOUT + IDLE_AFTER.min(self.idle_timeout),
            WaitEvent::TooLong => until,
        }));
        self.alarm.poll(cx).map(|()| {
            if event == WaitEvent::Idle {
                self.idle = Some(until);
            }
            event
        })
    }
}
