//! Response bodies of either client.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use super::http1;
use super::sent_flag::Slot;
use crate::body::{BoxBody, BoxError, Incoming};
use crate::channel;
use crate::protocol::error::ErrorCode;

/// Body of an upstream response.
#[derive(Debug)]
pub enum ResponseBody {
    /// Body of the own client: its reader reads the connection.
    Http1(Box<http1::Body>),
    /// Body of hyper's client: the connection's task reads the connection.
    Hyper(Incoming<Option<Slot>>),
    /// Body of a server that is not on HTTP.
    Channel(channel::Body),
    /// Body whose messages are translated from those of the server.
    Translated(BoxBody),
    /// A body of either whose beginning was read already.
    Begun(Box<Begun>),
}

/// A body whose beginning was read.
#[derive(Debug)]
pub struct Begun {
    first: Option<Bytes>,
    rest: ResponseBody,
}

impl ResponseBody {
    /// Puts the bytes that were read of a body before the rest of it.
    pub(super) fn begun(first: Bytes, rest: Self) -> Self {
        ResponseBody::Begun(Box::new(Begun { first: Some(first).filter(|first| !first.is_empty()), rest }))
    }

    /// Returns the error of the responses that a server on a channel owed when it was lost, or
    /// `None` if it was not.
    pub(super) fn lost(&self) -> Option<ErrorCode> {
        match self {
            ResponseBody::Channel(body) => body.lost(),
            ResponseBody::Begun(begun) => begun.rest.lost(),
            ResponseBody::Http1(_) | ResponseBody::Hyper(_) | ResponseBody::Translated(_) => None,
        }
    }

    /// Returns true if the body's reader reads the connection itself. The other kind hands over one
    /// read at a time, through another task.
    pub(super) fn is_gathered(&self) -> bool {
        match self {
            ResponseBody::Http1(_) | ResponseBody::Channel(_) => true,
            ResponseBody::Hyper(_) | ResponseBody::Translated(_) => false,
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
            ResponseBody::Channel(body) => Pin::new(body).poll_frame(cx),
            ResponseBody::Translated(body) => Pin::new(body).poll_frame(cx),
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
            ResponseBody::Channel(body) => body.is_end_stream(),
            ResponseBody::Translated(body) => body.is_end_stream(),
            ResponseBody::Begun(begun) => begun.first.is_none() && begun.rest.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            ResponseBody::Http1(body) => body.size_hint(),
            ResponseBody::Hyper(body) => body.size_hint(),
            ResponseBody::Channel(body) => body.size_hint(),
            ResponseBody::Translated(body) => body.size_hint(),
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
