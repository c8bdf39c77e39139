//! The wait of a connection for its next head: hyper tells when it begins and ends, and the
//! connection's task ends one that is too long.
//!
//! hyper's own timeout would make and register a timer for each request. A connection also needs
//! the beginning of the wait: after a time in which nothing came it gives hyper's buffers back.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hyper::rt;

use crate::clock::{self, Alarm};
use crate::server::HEAD_TIMEOUT;
use crate::sync;

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
}

impl WaitWatch {
    pub(super) fn new(wait: HeadWait) -> Self {
        Self { wait, alarm: Alarm::new(), idle: None }
    }

    /// Returns the next event of the current wait. Each wait is idle once.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<WaitEvent> {
        let Some(until) = self.wait.until() else { return Poll::Pending };
        let event = if self.idle == Some(until) { WaitEvent::TooLong } else { WaitEvent::Idle };
        self.alarm.set(Some(match event {
            WaitEvent::Idle => until - HEAD_TIMEOUT + IDLE_AFTER,
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
