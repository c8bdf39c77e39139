//! Reader of an upstream SSE body: gathers the ready bytes, and returns complete events. Absent:
//! the error with which the call ends if an event cannot be read (`pump`).

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Response;
use http_body_util::BodyExt;

use super::ResponseBody;
use super::body::collect;
use crate::clock;
use crate::protocol::error::ErrorCode;
use crate::protocol::headers;
use crate::protocol::sse::{self, Decoder};
use crate::protocol::stream::Ending;

/// Size at which a gather ends. With its last piece it has less than twice as much.
const GATHER_MAX: usize = 64 * 1024;
/// Interval between two pieces of a burst. Within a burst the reader yields once more for the next
/// piece: hyper hands over one piece at a time through another task, which has to run in between. A
/// lone event is not delayed.
const BURST: Duration = Duration::from_micros(200);

/// One SSE response of the upstream.
#[derive(Debug)]
pub(super) struct EventReader {
    body: ResponseBody,
    decoder: Decoder,
    last_piece: Option<Instant>,
}

impl EventReader {
    pub(super) fn new(body: ResponseBody, max_event_bytes: usize) -> Self {
        Self { body, decoder: Decoder::new(max_event_bytes), last_piece: None }
    }

    /// Returns the bytes held of an incomplete event.
    pub(super) fn held(&self) -> usize {
        self.decoder.bytes_held()
    }

    /// Returns the error of the responses that a server on a channel owed when it was lost; see
    /// [`ResponseBody::lost`].
    pub(super) fn lost(&self) -> Option<ErrorCode> {
        self.body.lost()
    }

    /// Waits for the next piece of the body, or its end. Dropping the future loses nothing.
    pub(super) async fn next(&mut self) -> Result<Bytes, Ending> {
        loop {
            match self.body.frame().await {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        return Ok(data);
                    }
                }
                Some(Err(_)) => return Err(Ending::Broken),
                None if self.decoder.has_partial() => return Err(Ending::Broken),
                None => return Err(Ending::Clean),
            }
        }
    }

    /// Decodes `first` and all further pieces that are ready. In a burst it yields to the
    /// connection's task and tries again until that brings nothing.
    pub(super) async fn gather(&mut self, first: Bytes) -> GatherResult {
        let mut gathered = GatherResult::default();
        gathered.ending = self.decode_ready(first, |decoder| gathered.decode(decoder)).await;
        gathered
    }

    /// Does as [`Self::gather`], but goes on behind events over the limit. Returns the end of the
    /// body behind the items, or `None` if it goes on.
    pub(super) async fn gather_items(&mut self, first: Bytes) -> (Vec<sse::Item>, Option<Ending>) {
        let mut items = Vec::new();
        let decode = |decoder: &mut Decoder| {
            items.extend(std::iter::from_fn(|| decoder.poll_item()));
            true
        };
        let ending = self.decode_ready(first, decode).await;
        (items, ending)
    }

    /// Returns the data of the incomplete event.
    pub(super) fn partial_data(&self) -> &[u8] {
        self.decoder.partial_data()
    }

    /// Skips the rest of the incomplete event, whose end [`Self::gather_items`] returns.
    pub(super) fn cut(&mut self) -> sse::Cut {
        self.decoder.cut()
    }

    /// Feeds the decoder with `first` and all further pieces that are ready, and calls `decode`
    /// after each, until that returns false. Returns the end of the body if it has come.
    async fn decode_ready(&mut self, first: Bytes, mut decode: impl FnMut(&mut Decoder) -> bool) -> Option<Ending> {
        let mut gathered_bytes = first.len();
        let now = clock::now();
        let in_burst = self.last_piece.replace(now).is_some_and(|last| now - last < BURST);
        let mut may_yield = in_burst && !self.body.is_gathered();
        self.decoder.feed(first);
        let mut goes_on = decode(&mut self.decoder);
        while gathered_bytes < GATHER_MAX && goes_on {
            match poll_once(self.next()).await {
                Some(Ok(more)) => {
                    gathered_bytes += more.len();
                    may_yield = !self.body.is_gathered();
                    self.decoder.feed(more);
                    goes_on = decode(&mut self.decoder);
                }
                Some(Err(ending)) => return Some(ending),
                None if may_yield => {
                    may_yield = false;
                    tokio::task::yield_now().await;
                }
                None => break,
            }
        }
        None
    }
}

/// Returns the first message that is wanted in a response of JSON or of events, whose rest is not
/// read.
pub(super) async fn first_message(
    response: Response<ResponseBody>,
    limit: usize,
    is_wanted: impl Fn(&[u8]) -> bool,
) -> Option<Bytes> {
    if !headers::is_sse(response.headers()) {
        return collect(response.into_body(), limit).await.ok().filter(|message| is_wanted(message));
    }
    let mut reader = EventReader::new(response.into_body(), limit);
    loop {
        let piece = reader.next().await.ok()?;
        let gathered = reader.gather(piece).await;
        if let Some(event) = gathered.events.into_iter().find(|event| is_wanted(&event.data)) {
            return Some(event.data);
        }
        if gathered.error.is_some() || gathered.ending.is_some() {
            return None;
        }
    }
}

/// Result of one gather.
#[derive(Debug, Default)]
pub(super) struct GatherResult {
    pub(super) events: Vec<sse::Event>,
    /// Error of an event over the limit.
    pub(super) error: Option<sse::Error>,
    /// End of the body behind the events, or `None` if it goes on.
    pub(super) ending: Option<Ending>,
}

impl GatherResult {
    /// Takes the complete events. Returns false behind an error.
    fn decode(&mut self, decoder: &mut Decoder) -> bool {
        loop {
            match decoder.poll_event() {
                Ok(Some(event)) => self.events.push(event),
                Ok(None) => return true,
                Err(error) => {
                    self.error = Some(error);
                    return false;
                }
            }
        }
    }
}

/// Polls the future once, and returns its result if it is ready.
pub(super) async fn poll_once<F: Future>(future: F) -> Option<F::Output> {
    let mut future = std::pin::pin!(future);
    std::future::poll_fn(|cx| match future.as_mut().poll(cx) {
        std::task::Poll::Ready(value) => std::task::Poll::Ready(Some(value)),
        std::task::Poll::Pending => std::task::Poll::Ready(None),
    })
    .await
}
