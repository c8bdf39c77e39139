//! Task of each response: ends a response whose client takes nothing of it.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use hyper::rt::Executor;
use tracing::debug;

use super::open_requests::{BLOCKED, BlockedResponse, OpenRequests};
use crate::TAKEN_OVER_TIMEOUT;
use crate::handler::ConnectionState;
use mcp_resume_base::clock::{self, Alarm};

/// Runs each response of a connection in a task of its own.
pub(super) struct ResponseTasks<C> {
    pub(super) requests: Arc<OpenRequests>,
    pub(super) connection: Arc<C>,
}

impl<C> Clone for ResponseTasks<C> {
    fn clone(&self) -> Self {
        Self { requests: self.requests.clone(), connection: self.connection.clone() }
    }
}

impl<C: ConnectionState, F: Future<Output = ()> + Send + 'static> Executor<F> for ResponseTasks<C> {
    fn execute(&self, response: F) {
        // Boxed: a captured value that an async block moves would take its space twice.
        let task = ResponseTask { response: Box::pin(response), tasks: self.clone(), alarm: Alarm::new() };
        tokio::spawn(BLOCKED.scope(Cell::new(None), task));
    }
}

/// A response and its send timeout. Ending it early drops hyper's part, which resets its stream and
/// frees the piece taken of its body.
struct ResponseTask<C, F> {
    response: Pin<Box<F>>,
    tasks: ResponseTasks<C>,
    alarm: Alarm,
}

impl<C: ConnectionState, F: Future<Output = ()>> Future for ResponseTask<C, F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.response.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        match BLOCKED.with(Cell::get) {
            Some(blocked) => self.poll_blocked(cx, blocked),
            None => Poll::Pending,
        }
    }
}

impl<C: ConnectionState, F> ResponseTask<C, F> {
    /// Ready if the response must end.
    fn poll_blocked(&mut self, cx: &mut Context<'_>, blocked: BlockedResponse) -> Poll<()> {
        loop {
            let now = clock::now();
            let is_overdue = self.tasks.requests.blocked_until(blocked.since) <= now;
            if blocked.can_be_cut && (is_overdue || self.is_taken_over(blocked.since, now)) {
                debug!("a response ends of which its client takes nothing");
                return Poll::Ready(());
            }
            if is_overdue {
                self.tasks.requests.leave(blocked.since, now);
            }
            self.alarm.set(Some(now + TAKEN_OVER_TIMEOUT));
            if self.alarm.poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
    }

    fn is_taken_over(&self, blocked_since: Instant, now: Instant) -> bool {
        blocked_since + TAKEN_OVER_TIMEOUT <= now && self.tasks.connection.is_taken_over()
    }
}
