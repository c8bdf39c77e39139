//! Body of a response of the inner server: the events of one call, or of a session's GET.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};

use crate::body::BoxError;
use crate::protocol::channel::ids::Receiver;
use crate::protocol::error::ErrorCode;
use crate::protocol::jsonrpc::{self, Message};
use crate::sync;

/// Bytes around a message that make it an event.
const BEFORE: Bytes = Bytes::from_static(b"event: message\ndata: ");
const AFTER: Bytes = Bytes::from_static(b"\n\n");

/// Body of a response.
#[derive(Debug)]
pub enum Body {
    /// A JSON response, until it is read.
    Whole(Option<Bytes>),
    /// An event stream.
    Events(Events),
}

/// The reading end of a response with events. Dropping it tells the channel that the events are not
/// wanted any more.
#[derive(Debug)]
pub struct Events {
    queue: Arc<Queue>,
    receiver: Receiver,
    channel: Arc<dyn Channel>,
}

/// The channel that the events come from.
pub(super) trait Channel: std::fmt::Debug + Send + Sync {
    /// Notes that a response is not read any more. Takes no lock under which a response may be
    /// dropped.
    fn leave(&self, receiver: Receiver, queue: &Queue);
}

/// Events that wait to be read.
#[derive(Debug, Default)]
pub(super) struct Queue(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    messages: VecDeque<Bytes>,
    bytes: usize,
    part: Part,
    is_over: bool,
    /// Error of the responses that the server owed when it was lost, or `None` if it was not.
    lost: Option<ErrorCode>,
    waker: Option<Waker>,
}

/// Next piece of an event.
#[derive(Clone, Copy, Debug, Default)]
enum Part {
    #[default]
    Before,
    Message,
    After,
}

impl Body {
    /// Creates the body of a response that is there.
    pub fn whole(body: impl Into<Bytes>) -> Self {
        Self::Whole(Some(body.into()))
    }

    /// Returns the error of the responses that the server owed when it was lost, or `None` if it
    /// was not.
    pub fn lost(&self) -> Option<ErrorCode> {
        match self {
            Self::Whole(_) => None,
            Self::Events(events) => events.lost(),
        }
    }
}

impl Events {
    pub(super) fn new(queue: Arc<Queue>, receiver: Receiver, channel: Arc<dyn Channel>) -> Self {
        Self { queue, receiver, channel }
    }

    /// Returns the error of the responses that the server owed when it was lost, or `None` if it
    /// was not. Known before they are read.
    fn lost(&self) -> Option<ErrorCode> {
        sync::lock(&self.queue.0).lost
    }

    /// Waits for the first message alone, in place of the event stream. `None` if the stream ends
    /// without one.
    pub(super) async fn first_message(&self) -> Option<Bytes> {
        std::future::poll_fn(|cx| {
            let mut state = sync::lock(&self.queue.0);
            match state.messages.pop_front() {
                Some(message) => {
                    state.bytes -= message.len();
                    Poll::Ready(Some(message))
                }
                None if state.is_over => Poll::Ready(None),
                None => {
                    state.waker = Some(cx.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// Waits for the first response, in place of the event stream; messages before it are dropped.
    /// `None` if the stream ends without one.
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
    /// Adds a message. Returns false if it has no room within `limit` bytes. An empty queue takes a
    /// message of any size.
    pub(super) fn push(&self, message: Bytes, limit: usize) -> bool {
        let mut state = sync::lock(&self.0);
        if state.is_over || (state.bytes > 0 && state.bytes + message.len() > limit) {
            return state.is_over;
        }
        state.bytes += message.len();
        state.messages.push_back(message);
        wake(state.waker.take());
        true
    }

    /// Adds the proxy's own message, at any size of the queue.
    pub(super) fn force(&self, message: Bytes) {
        let mut state = sync::lock(&self.0);
        state.bytes += message.len();
        state.messages.push_back(message);
        wake(state.waker.take());
    }

    /// Notes the error of the responses that follow, which the server owed when it was lost.
    pub(super) fn note_lost(&self, code: ErrorCode) {
        sync::lock(&self.0).lost = Some(code);
    }

    /// Ends the stream behind its messages.
    pub(super) fn end(&self) {
        let mut state = sync::lock(&self.0);
        state.is_over = true;
        wake(state.waker.take());
    }
}

fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}

impl State {
    /// Returns the next piece of the first event.
    fn next_piece(&mut self) -> Option<Bytes> {
        match self.part {
            Part::Before if self.messages.is_empty() => None,
            Part::Before => {
                self.part = Part::Message;
                Some(BEFORE)
            }
            Part::Message => {
                self.part = Part::After;
                let message = self.messages.pop_front()?;
                self.bytes -= message.len();
                Some(message)
            }
            Part::After => {
                self.part = Part::Before;
                Some(AFTER)
            }
        }
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self.get_mut() {
            Body::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Body::Events(events) => {
                let mut state = sync::lock(&events.queue.0);
                match state.next_piece() {
                    Some(piece) => Poll::Ready(Some(Ok(Frame::data(piece)))),
                    None if state.is_over => Poll::Ready(None),
                    None => {
                        state.waker = Some(cx.waker().clone());
                        Poll::Pending
                    }
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Body::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Body::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64),
            Body::Events(_) => SizeHint::default(),
        }
    }
}
