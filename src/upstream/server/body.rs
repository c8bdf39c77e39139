//! Upstream response bodies other than event streams: kept, collected or passed on.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use http::Response;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Frame;

use super::response_body::ResponseBody;
use crate::body::{BoxBody, BoxError};
use crate::clock::Alarm;
use crate::event_log::Writer;
use crate::protocol::error::ErrorCode;
use crate::protocol::stream::Ending;

/// Reads a body into `buffer` until its end or the limit. Returns true if it is complete. A body in
/// several pieces counts as bytes of the stream. It is read further only when the stream has memory
/// for it, or its turn.
pub(in crate::upstream) async fn read_into(
    body: &mut ResponseBody,
    buffer: &mut BytesMut,
    limit: usize,
    writer: &Writer,
) -> Result<bool, Ending> {
    while let Some(frame) = body.frame().await {
        match frame.map_err(|_| Ending::Broken)?.into_data() {
            // Most bodies arrive in one piece. The own client's piece is as large as its content;
            // hyper's is a slice of a read buffer.
            Ok(data) if buffer.is_empty() && body.is_gathered() => *buffer = data.into(),
            Ok(data) => {
                buffer.extend_from_slice(&data);
                writer.note_arriving(buffer.capacity());
                if buffer.len() <= limit {
                    writer.wait_for_capacity().await;
                }
            }
            Err(_) => {}
        }
        if buffer.len() > limit {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Collects a whole body of at most `limit` bytes.
pub(in crate::upstream) async fn collect(body: ResponseBody, limit: usize) -> Result<Bytes, ErrorCode> {
    let whole = Limited::new(body, limit).collect().await;
    whole.map(|whole| whole.to_bytes()).map_err(|error| {
        let too_large = error.downcast_ref::<LengthLimitError>().is_some();
        if too_large { ErrorCode::EventTooLarge } else { ErrorCode::UpstreamBroke }
    })
}

/// Reads the body of a response, for `wait` at most. A body over the limit proves nothing, and is
/// not read further. Returns the response with its whole body, and the body if it was complete.
pub(in crate::upstream) async fn begun(
    response: Response<ResponseBody>,
    limit: usize,
    wait: Duration,
) -> (Response<ResponseBody>, Option<Bytes>) {
    let (parts, mut body) = response.into_parts();
    let mut begun = BytesMut::new();
    let read = tokio::time::timeout(wait, read_up_to(&mut body, &mut begun, limit)).await;
    let begun = begun.freeze();
    let whole = matches!(read, Ok(true)).then(|| begun.clone());
    (Response::from_parts(parts, ResponseBody::begun(begun, body)), whole)
}

/// Reads a body into `begun`, up to a piece beyond the limit. Returns true if it is complete.
pub(in crate::upstream) async fn read_up_to(body: &mut ResponseBody, begun: &mut BytesMut, limit: usize) -> bool {
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else { return false };
        begun.extend_from_slice(&frame.into_data().unwrap_or_default());
        if begun.len() > limit {
            return false;
        }
    }
    true
}

/// Body whose beginning was read already. It fails at its deadline.
struct PrefixedBody {
    first: Option<Bytes>,
    rest: ResponseBody,
    until: Alarm,
}

impl hyper::body::Body for PrefixedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        if self.until.poll(cx).is_ready() {
            return Poll::Ready(Some(Err(io::Error::from(io::ErrorKind::TimedOut).into())));
        }
        Pin::new(&mut self.rest).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_none() && self.rest.is_end_stream()
    }
}

/// Returns a body that passes on `first` and then `rest`. It fails with [`io::ErrorKind::TimedOut`]
/// at `until`.
pub(in crate::upstream) fn passing_body(first: Bytes, rest: ResponseBody, until: Option<Instant>) -> BoxBody {
    let mut alarm = Alarm::new();
    alarm.set(until);
    PrefixedBody { first: Some(first).filter(|first| !first.is_empty()), rest, until: alarm }.boxed_unsync()
}
