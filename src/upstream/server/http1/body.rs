//! Response body of the HTTP/1.1 client: its reader polls the socket itself.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http_body::{Frame, SizeHint};

use super::pool::Pool;
use super::wire::Wire;
use crate::body::BoxError;
use crate::protocol::http1::{Decoder, Error, Head};
use crate::upstream::server::connect::Socket;

/// Response body. Its connection returns to the pool as soon as the last byte is here, and is
/// closed if the body is dropped before.
pub struct Body {
    content: Content,
    /// Connection, or `None` once the body is complete or broken.
    wire: Option<Wire<Socket>>,
    /// True if the connection may carry another request.
    is_reusable: bool,
    pool: Arc<Pool<Socket>>,
}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Body").field("decoder", &self.content.decoder).finish_non_exhaustive()
    }
}

/// Beginning of a body, received in one read with its head.
pub(super) struct BodyStart {
    content: Content,
    /// True if the connection may carry another request.
    is_reusable: bool,
}

impl BodyStart {
    /// Creates the body of a response with this head. The bytes `behind` arrived with it.
    pub(super) fn new(head: &Head, behind: &[u8]) -> Result<Self, Error> {
        let mut content = Content { decoder: Decoder::new(head.framing), ready: BytesMut::new() };
        let is_reusable = content.handle(behind)? && head.can_keep_alive;
        Ok(Self { content, is_reusable })
    }
}

/// Received part of a body.
struct Content {
    decoder: Decoder,
    /// Bytes that are decoded and not yet handed out.
    ready: BytesMut,
}

impl Content {
    /// Decodes a piece. Returns true if all of it belonged to the body: further bytes would be a
    /// response to no request.
    fn handle(&mut self, piece: &[u8]) -> Result<bool, Error> {
        self.ready.reserve(piece.len());
        Ok(self.decoder.decode(piece, &mut self.ready)? == piece.len())
    }
}

impl Body {
    /// Creates a body whose rest arrives on `wire`.
    pub(super) fn new(wire: Wire<Socket>, start: BodyStart, pool: Arc<Pool<Socket>>) -> Self {
        let BodyStart { content, is_reusable } = start;
        let mut body = Self { content, wire: Some(wire), is_reusable, pool };
        body.release_if_complete();
        body
    }

    /// Releases the connection of a complete body.
    fn release_if_complete(&mut self) {
        if !self.content.decoder.is_complete() {
            return;
        }
        if let Some(socket) = self.wire.take().and_then(Wire::into_idle)
            && self.is_reusable
        {
            self.pool.put(socket);
        }
    }

    /// Takes the body if all of it has arrived and it has at most `max` bytes. Else what was read
    /// stays, and the next poll continues.
    pub(in crate::upstream::server) fn take_arrived(&mut self, cx: &mut Context<'_>, max: usize) -> Option<Bytes> {
        while !self.content.decoder.is_complete() {
            if self.content.ready.len() > max {
                return None;
            }
            match self.poll_more(cx) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(_)) => {
                    // The next poll finds the body too short.
                    self.wire = None;
                    return None;
                }
                Poll::Pending => return None,
            }
        }
        if self.content.ready.len() > max { None } else { Some(std::mem::take(&mut self.content.ready).freeze()) }
    }

    fn poll_more(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        let Self { content, wire: Some(wire), is_reusable, .. } = self else {
            return Poll::Ready(Err(Error::Short.into()));
        };
        match ready!(wire.poll_read(cx, |piece| content.handle(piece)))? {
            Some(whole) => *is_reusable &= whole?,
            None => {
                *is_reusable = false;
                content.decoder.handle_eof()?;
            }
        }
        self.release_if_complete();
        Poll::Ready(Ok(()))
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        while self.content.ready.is_empty() {
            if self.content.decoder.is_complete() {
                return Poll::Ready(None);
            }
            if let Err(error) = ready!(self.poll_more(cx)) {
                self.wire = None;
                return Poll::Ready(Some(Err(error)));
            }
        }
        let piece = std::mem::take(&mut self.content.ready);
        Poll::Ready(Some(Ok(Frame::data(piece.freeze()))))
    }

    fn is_end_stream(&self) -> bool {
        self.content.ready.is_empty() && self.content.decoder.is_complete()
    }

    fn size_hint(&self) -> SizeHint {
        match self.content.decoder.left() {
            Some(left) => SizeHint::with_exact(left.saturating_add(self.content.ready.len() as u64)),
            None => SizeHint::default(),
        }
    }
}
