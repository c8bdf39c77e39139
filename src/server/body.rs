//! HTTP bodies of both sides: boxed bodies, received bodies, and bodies in memory.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{Request, Response, Version};
use http_body::{Body, Frame, SizeHint};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};

/// Any error of a body.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
/// Body on its way through the proxy.
pub type BoxBody = UnsyncBoxBody<Bytes, BoxError>;

/// Body that is being received. Unlike hyper's, it never treats an HTTP/2 body that its sender
/// reset as complete. hyper ends a body that was reset with `CANCEL` or `NO_ERROR` as if all of it
/// had arrived.
#[derive(Debug)]
pub struct Incoming<K = ()> {
    body: hyper::body::Incoming,
    is_http2: bool,
    /// Guard that is dropped together with the body.
    _kept: K,
}

/// Error of an HTTP/2 body that was reset before its end.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the body was reset before its end")]
pub struct Reset;

impl Incoming {
    /// Takes the body of a request.
    pub fn of_request(request: Request<hyper::body::Incoming>) -> Request<Self> {
        let version = request.version();
        request.map(|body| Self::new(body, version, ()))
    }
}

impl<K> Incoming<K> {
    /// Takes the body of a response. `kept` is dropped with the body.
    pub fn of_response(response: Response<hyper::body::Incoming>, kept: K) -> Response<Self> {
        let version = response.version();
        response.map(|body| Self::new(body, version, kept))
    }

    fn new(body: hyper::body::Incoming, version: Version, kept: K) -> Self {
        Self { body, is_http2: version == Version::HTTP_2, _kept: kept }
    }

    fn is_complete(&self) -> bool {
        !self.is_http2 || self.body.is_end_stream() || self.body.size_hint().exact() == Some(0)
    }
}

impl<K: Unpin> Body for Incoming<K> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if frame.is_none() && !self.is_complete() {
            return Poll::Ready(Some(Err(Reset.into())));
        }
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Body of pieces that are in memory.
#[derive(Debug)]
pub struct Pieces(VecDeque<Bytes>);

impl FromIterator<Bytes> for Pieces {
    fn from_iter<I: IntoIterator<Item = Bytes>>(pieces: I) -> Self {
        Self(pieces.into_iter().filter(|piece| !piece.is_empty()).collect())
    }
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        Poll::Ready(self.0.pop_front().map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.iter().map(|piece| piece.len() as u64).sum())
    }
}

/// Returns a body of bytes that are in memory.
pub fn whole(bytes: Bytes) -> BoxBody {
    Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
}
