//! Body of a response from a channel: the messages of one call, or of a session's GET.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use futures_util::Stream;

use crate::protocol::channel::ids::Receiver;
use crate::protocol::error::ErrorCode;
use crate::protocol::jsonrpc::{self, Message};
use crate::sync;

/// A response from a channel.
pub type Response = http::Response<Body>;

/// Body of a response.
#[derive(Debug)]
pub enum Body {
    /// A JSON response, until it is read.
    Whole(Option<Bytes>),
    /// The messages of an event stream.
    Events(Events),
}

/// Reading end of an event stream. Dropping it reports to the channel that the reader has left.
#[derive(Debug)]
pub struct Events {
    queue: Arc<Queue>,
    receiver: Receiver,
    channel: Arc<dyn Channel>,
}

/// The channel behind the events.
pub(super) trait Channel: std::fmt::Debug + Send + Sync {
    /// Reports that a response is abandoned. Must not take a lock that a caller may hold while it
    /// drops a response.
    fn leave(&self, receiver: Receiver, queue: &Queue);
}

/// Messages that wait for their reader.
#[derive(Debug, Default)]
pub(super) struct Queue(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    messages: VecDeque<Bytes>,
    bytes: usize,
    has_ended: bool,
    /// Error of the owed responses of a lost server, or `None` for a working server.
    lost: Option<ErrorCode>,
    waker: Option<Waker>,
}

impl Body {
    /// Creates the body of a complete response.
    pub fn whole(body: impl Into<Bytes>) -> Self {
        Self::Whole(Some(body.into()))
    }
}

impl Events {
    pub(super) fn new(queue: Arc<Queue>, receiver: Receiver, channel: Arc<dyn Channel>) -> Self {
        Self { queue, receiver, channel }
    }

    /// Returns the error of the owed responses of a lost server, or `None`. Known before they are
    /// read.
    pub fn lost(&self) -> Option<ErrorCode> {
        sync::lock(&self.queue.0).lost
    }

    fn poll_message(&self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let mut state = sync::lock(&self.queue.0);
        match state.messages.pop_front() {
            Some(message) => {
                state.bytes -= message.len();
                Poll::Ready(Some(message))
            }
            None if state.has_ended => Poll::Ready(None),
            None => {
                state.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    /// Waits for the next message, in place of the event stream. `None` at the end of the stream.
    pub(super) async fn first_message(&self) -> Option<Bytes> {
        std::future::poll_fn(|cx| self.poll_message(cx)).await
    }

    /// Waits for the next response, in place of the event stream, and drops messages before it.
    /// `None` at the end of the stream.
    pub(super) async fn response(&self) -> Option<Bytes> {
        loop {
            let message = self.first_message().await?;
            if let Ok(body) = jsonrpc::peek(&message)
                && matches!(body.messages(), [Message::Response { .. }])
            {
                return Some(message);
            }
        }
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        self.channel.leave(self.receiver, &self.queue);
    }
}

impl Queue {
    /// Adds a message. Returns false if `limit` bytes leave no room for it. An empty queue takes a
    /// message of any size.
    pub(super) fn push(&self, message: Bytes, limit: usize) -> bool {
        let mut state = sync::lock(&self.0);
        if state.has_ended || (state.bytes > 0 && state.bytes + message.len() > limit) {
            return state.has_ended;
        }
        state.bytes += message.len();
        state.messages.push_back(message);
        wake(state.waker.take());
        true
    }

    /// Adds a synthetic message, without a limit.
    pub(super) fn force(&self, message: Bytes) {
        let mut state = sync::lock(&self.0);
        state.bytes += message.len();
        state.messages.push_back(message);
        wake(state.waker.take());
    }

    /// Sets the error of the responses that follow, which a lost server still owed.
    pub(super) fn set_lost(&self, code: ErrorCode) {
        sync::lock(&self.0).lost = Some(code);
    }

    /// Ends the stream after the queued messages.
    pub(super) fn end(&self) {
        let mut state = sync::lock(&self.0);
        state.has_ended = true;
        wake(state.waker.take());
    }
}

fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}

impl Stream for Events {
    type Item = Bytes;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        self.poll_message(cx)
    }
}
