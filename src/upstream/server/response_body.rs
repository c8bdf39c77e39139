//! Response bodies: bytes of a server on HTTP, or messages of this process.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use http_body::{Body, Frame, SizeHint};
use tokio::sync::mpsc;

use super::http1;
use super::sent_flag::Slot;
use crate::body::{BoxError, Incoming};
use crate::channel;
use crate::protocol::error::ErrorCode;
use crate::protocol::sse;

/// Body of an upstream response.
#[derive(Debug)]
pub enum ResponseBody {
    /// Body of the own client: its reader reads the connection.
    Http1(Box<http1::Body>),
    /// Body of hyper's client: the connection's task reads the connection.
    Hyper(Incoming<Option<Slot>>),
    /// Body in memory, until it is read.
    Whole(Option<Bytes>),
    /// Messages of an event stream of this process. As a body of bytes each is one event.
    Messages(Messages),
    /// A body of any kind whose beginning was read already.
    Begun(Box<Begun>),
}

/// Messages of an event stream that no transport has encoded.
pub enum Messages {
    /// Messages of a server on a channel.
    Channel(channel::Events),
    /// Messages of the bridge, and the loss of the server behind them.
    Bridge(Pin<Box<dyn Stream<Item = Result<Bytes, Broken>> + Send>>, Lost),
}

/// Loss of the server on a channel behind a stream of the bridge. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Lost(Arc<OnceLock<ErrorCode>>);

impl Lost {
    /// Records that the server was lost, with the error of the responses that it owed.
    pub(in crate::upstream) fn record(&self, code: ErrorCode) {
        let _ = self.0.set(code);
    }
}

/// Error of a stream of messages that ends before it is complete.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the response broke off")]
pub struct Broken;

/// A body whose beginning was read.
#[derive(Debug)]
pub struct Begun {
    first: Option<Bytes>,
    rest: ResponseBody,
}

impl Messages {
    /// Returns the messages of `stream`, which is complete when it ends.
    pub(in crate::upstream) fn of(stream: impl Stream<Item = Bytes> + Send + 'static) -> Self {
        Self::with_loss(stream, Lost::default())
    }

    /// Returns the messages of `stream`, with the loss of the server that sends them.
    pub(in crate::upstream) fn with_loss(stream: impl Stream<Item = Bytes> + Send + 'static, lost: Lost) -> Self {
        Self::Bridge(Box::pin(stream.map(Ok)), lost)
    }

    /// Returns the messages that another task sends. They end when all senders are dropped.
    pub(in crate::upstream) fn received(receiver: mpsc::Receiver<Bytes>) -> Self {
        Self::received_with_loss(receiver, Lost::default())
    }

    /// Returns the messages that another task sends, with the loss of the server behind them.
    pub(in crate::upstream) fn received_with_loss(mut receiver: mpsc::Receiver<Bytes>, lost: Lost) -> Self {
        Self::with_loss(stream::poll_fn(move |cx| receiver.poll_recv(cx)), lost)
    }

    /// Returns messages that break off before the first.
    pub(in crate::upstream) fn broken() -> Self {
        Self::Bridge(Box::pin(stream::iter([Err(Broken)])), Lost::default())
    }

    /// Returns the error of the responses owed by a lost server on a channel, or `None` if the
    /// server was not lost.
    pub(in crate::upstream) fn lost(&self) -> Option<ErrorCode> {
        match self {
            Self::Channel(events) => events.lost(),
            Self::Bridge(_, lost) => lost.0.get().copied(),
        }
    }
}

impl Stream for Messages {
    type Item = Result<Bytes, Broken>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match self.get_mut() {
            Self::Channel(events) => events.poll_next_unpin(cx).map(|message| message.map(Ok)),
            Self::Bridge(messages, _) => messages.poll_next_unpin(cx),
        }
    }
}

impl fmt::Debug for Messages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Messages").finish_non_exhaustive()
    }
}

impl From<channel::Body> for ResponseBody {
    fn from(body: channel::Body) -> Self {
        match body {
            channel::Body::Whole(whole) => Self::Whole(whole),
            channel::Body::Events(events) => Self::Messages(Messages::Channel(events)),
        }
    }
}

impl ResponseBody {
    /// Returns a body that is in memory.
    pub(in crate::upstream) fn whole(body: impl Into<Bytes>) -> Self {
        Self::Whole(Some(body.into()))
    }

    /// Puts the bytes that were already read before the rest of a body.
    pub(in crate::upstream) fn begun(first: Bytes, rest: Self) -> Self {
        ResponseBody::Begun(Box::new(Begun { first: Some(first).filter(|first| !first.is_empty()), rest }))
    }

    /// Takes the body if all of it has arrived and it has at most `max` bytes. Else nothing is
    /// lost, and the next poll continues. Never takes a body that another task hands over.
    pub(in crate::upstream) fn take_arrived(&mut self, cx: &mut Context<'_>, max: usize) -> Option<Bytes> {
        match self {
            ResponseBody::Http1(body) => body.take_arrived(cx, max),
            ResponseBody::Whole(body) => body.take_if(|body| body.len() <= max),
            ResponseBody::Hyper(_) | ResponseBody::Messages(_) | ResponseBody::Begun(_) => None,
        }
    }

    /// Returns true if the body's reader reads the connection itself. Other bodies hand over one
    /// read at a time, through another task.
    pub(in crate::upstream) fn is_gathered(&self) -> bool {
        match self {
            ResponseBody::Http1(_) | ResponseBody::Whole(_) => true,
            ResponseBody::Hyper(_) | ResponseBody::Messages(_) => false,
            ResponseBody::Begun(begun) => begun.first.is_none() && begun.rest.is_gathered(),
        }
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut *self {
            ResponseBody::Http1(body) => Pin::new(body).poll_frame(cx),
            ResponseBody::Hyper(body) => Pin::new(body).poll_frame(cx),
            ResponseBody::Whole(body) => Poll::Ready(body.take().map(|body| Ok(Frame::data(body)))),
            ResponseBody::Messages(messages) => messages.poll_next_unpin(cx).map(|message| {
                let event = message.map(|message| message.map(|message| Frame::data(sse::message_event(&message))));
                event.map(|event| event.map_err(Into::into))
            }),
            ResponseBody::Begun(begun) => match begun.first.take() {
                Some(first) => Poll::Ready(Some(Ok(Frame::data(first)))),
                None => Pin::new(&mut begun.rest).poll_frame(cx),
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            ResponseBody::Http1(body) => body.is_end_stream(),
            ResponseBody::Hyper(body) => body.is_end_stream(),
            ResponseBody::Whole(body) => body.is_none(),
            ResponseBody::Messages(_) => false,
            ResponseBody::Begun(begun) => begun.first.is_none() && begun.rest.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            ResponseBody::Http1(body) => body.size_hint(),
            ResponseBody::Hyper(body) => body.size_hint(),
            ResponseBody::Whole(body) => SizeHint::with_exact(body.as_ref().map_or(0, Bytes::len) as u64),
            ResponseBody::Messages(_) => SizeHint::default(),
            ResponseBody::Begun(begun) => {
                let (first, mut hint) = (begun.first.as_ref().map_or(0, Bytes::len) as u64, begun.rest.size_hint());
                if let Some(upper) = hint.upper() {
                    hint.set_upper(upper + first);
                }
                hint.set_lower(hint.lower() + first);
                hint
            }
        }
    }
}
