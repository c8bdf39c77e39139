//! Readers of event streams: gather the ready bytes of a server on HTTP, or the ready messages of
//! this process, and return complete events. Absent: the error of the call after an unreadable
//! event (`pump`).

use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::Response;
use http_body_util::BodyExt;

use super::body::collect;
use super::response_body::{Broken, Messages, ResponseBody};
use crate::clock;
use crate::protocol::error::ErrorCode;
use crate::protocol::headers;
use crate::protocol::sse::{self, Decoder};
use crate::protocol::stream::Ending;

/// Size that ends a gather. With the last piece it has less than twice this size.
const GATHER_MAX: usize = 64 * 1024;
/// Interval between two pieces of a burst. Within a burst the reader yields once more for the next
/// piece. hyper passes one piece at a time through another task, which has to run in between. A
/// lone event is not delayed.
const BURST: Duration = Duration::from_micros(200);

/// Body of one SSE response.
#[derive(Debug)]
pub(in crate::upstream) struct SseReader {
    body: ResponseBody,
    decoder: Decoder,
    last_piece: Option<Instant>,
}

impl SseReader {
    pub(in crate::upstream) fn new(body: ResponseBody, max_event_bytes: usize) -> Self {
        Self { body, decoder: Decoder::new(max_event_bytes), last_piece: None }
    }

    /// Waits for the next piece of the body, or its end. Dropping the future loses nothing.
    pub(in crate::upstream) async fn next(&mut self) -> Result<Bytes, Ending> {
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

    /// As [`EventReader::gather`], and continues after events over the limit. Returns the end of
    /// the body after the items, or `None` while there is more.
    pub(in crate::upstream) async fn gather_items(&mut self, first: Bytes) -> (Vec<sse::Item>, Option<Ending>) {
        let mut items = Vec::new();
        let decode = |decoder: &mut Decoder| {
            items.extend(std::iter::from_fn(|| decoder.poll_item()));
            true
        };
        let ending = self.decode_ready(first, decode).await;
        (items, ending)
    }

    /// Returns the data of the incomplete event.
    pub(in crate::upstream) fn partial_data(&self) -> &[u8] {
        self.decoder.partial_data()
    }

    /// Skips the rest of the incomplete event, whose end [`Self::gather_items`] returns.
    pub(in crate::upstream) fn cut(&mut self) -> sse::Cut {
        self.decoder.cut()
    }

    /// Feeds the decoder with `first` and all further pieces that are ready. Calls `decode` after
    /// each piece, until it returns false. In a burst it yields to the connection's task and tries
    /// again until no further piece arrives. Returns the end of the body once it has arrived.
    async fn decode_ready(&mut self, first: Bytes, mut decode: impl FnMut(&mut Decoder) -> bool) -> Option<Ending> {
        let mut gathered_bytes = first.len();
        let now = clock::now();
        let in_burst = self.last_piece.replace(now).is_some_and(|last| now - last < BURST);
        let mut may_yield = in_burst && !self.body.is_gathered();
        self.decoder.feed(first);
        let mut continues = decode(&mut self.decoder);
        while gathered_bytes < GATHER_MAX && continues {
            match poll_once(self.next()).await {
                Some(Ok(more)) => {
                    gathered_bytes += more.len();
                    may_yield = !self.body.is_gathered();
                    self.decoder.feed(more);
                    continues = decode(&mut self.decoder);
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

/// Events of one response.
#[derive(Debug)]
pub(in crate::upstream) enum EventReader {
    /// Bytes of a server on HTTP.
    Sse(Box<SseReader>),
    /// Messages of this process, each of at most `limit` bytes.
    Messages {
        messages: Messages,
        /// Size limit of one.
        limit: usize,
    },
}

impl EventReader {
    /// Creates the reader of an event stream with events of at most `limit` bytes.
    pub(in crate::upstream) fn new(body: ResponseBody, limit: usize) -> Self {
        match body {
            ResponseBody::Messages(messages) => Self::Messages { messages, limit },
            body => Self::Sse(Box::new(SseReader::new(body, limit))),
        }
    }

    /// Returns the bytes held of an incomplete event.
    pub(in crate::upstream) fn held(&self) -> usize {
        match self {
            Self::Sse(reader) => reader.decoder.bytes_held(),
            Self::Messages { .. } => 0,
        }
    }

    /// Returns the error of the responses owed by a lost server on a channel; see
    /// [`Messages::lost`].
    pub(in crate::upstream) fn lost(&self) -> Option<ErrorCode> {
        match self {
            Self::Sse(_) => None,
            Self::Messages { messages, .. } => messages.lost(),
        }
    }

    /// Waits for the next piece of the response, or its end. Dropping the future loses nothing.
    pub(in crate::upstream) async fn next(&mut self) -> Result<Bytes, Ending> {
        match self {
            Self::Sse(reader) => reader.next().await,
            Self::Messages { messages, .. } => match messages.next().await {
                Some(message) => message.map_err(|Broken| Ending::Broken),
                None => Err(Ending::Clean),
            },
        }
    }

    /// Returns the events of `first` and of all further pieces that are ready, up to 64 KiB and one
    /// piece.
    pub(in crate::upstream) async fn gather(&mut self, first: Bytes) -> GatherResult {
        let mut gathered = GatherResult::default();
        match self {
            Self::Sse(reader) => gathered.ending = reader.decode_ready(first, |decoder| gathered.decode(decoder)).await,
            Self::Messages { messages, limit } => {
                let (mut next, mut bytes) = (first, 0);
                loop {
                    bytes += next.len();
                    if !gathered.take(next, *limit) || bytes >= GATHER_MAX {
                        break;
                    }
                    next = match poll_once(messages.next()).await {
                        Some(Some(Ok(message))) => message,
                        Some(end) => {
                            gathered.ending = Some(if end.is_none() { Ending::Clean } else { Ending::Broken });
                            break;
                        }
                        None => break,
                    };
                }
            }
        }
        gathered
    }

    /// Waits for events, and returns all that are ready. Returns `None` after the end of the
    /// response, or after an event over the limit. Dropping the future may lose events.
    pub(in crate::upstream) async fn batch(&mut self) -> Option<Vec<sse::Event>> {
        let first = self.next().await.ok()?;
        let gathered = self.gather(first).await;
        if gathered.is_last() {
            *self = Self::Messages { messages: Messages::of(stream::empty()), limit: 0 };
        }
        Some(gathered.events)
    }
}

/// Returns the first wanted message in a response of JSON or of events. The rest of the response is
/// not read.
pub(in crate::upstream) async fn first_message(
    response: Response<ResponseBody>,
    limit: usize,
    is_wanted: impl Fn(&[u8]) -> bool,
) -> Option<Bytes> {
    if !headers::is_sse(response.headers()) {
        return collect(response.into_body(), limit).await.ok().filter(|message| is_wanted(message));
    }
    let mut reader = EventReader::new(response.into_body(), limit);
    loop {
        if let Some(event) = reader.batch().await?.into_iter().find(|event| is_wanted(&event.data)) {
            return Some(event.data);
        }
    }
}

/// Returns all messages of a response of JSON or of events, of at most `limit` bytes together.
/// Returns `None` if there is more, or if the response breaks off.
pub(in crate::upstream) async fn messages(response: Response<ResponseBody>, limit: usize) -> Option<Vec<Bytes>> {
    if !headers::is_sse(response.headers()) {
        return collect(response.into_body(), limit).await.ok().map(|body| vec![body]);
    }
    let mut reader = EventReader::new(response.into_body(), limit);
    let (mut messages, mut bytes) = (Vec::new(), 0);
    loop {
        match reader.next().await {
            Ok(first) => {
                let gathered = reader.gather(first).await;
                bytes += gathered.events.iter().map(|event| event.data.len()).sum::<usize>();
                if gathered.error.is_some() || bytes > limit {
                    return None;
                }
                messages.extend(gathered.events.into_iter().map(|event| event.data));
            }
            Err(ending) => return (ending == Ending::Clean).then_some(messages),
        }
    }
}

/// Result of one gather.
#[derive(Debug, Default)]
pub(in crate::upstream) struct GatherResult {
    pub(in crate::upstream) events: Vec<sse::Event>,
    /// Error of an event over the limit.
    pub(in crate::upstream) error: Option<sse::Error>,
    /// End of the response after the events, or `None` while there is more.
    pub(in crate::upstream) ending: Option<Ending>,
}

impl GatherResult {
    /// Returns true if no further event can be read.
    pub(in crate::upstream) fn is_last(&self) -> bool {
        self.error.is_some() || self.ending.is_some()
    }

    /// Takes the complete events. Returns false after an error.
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

    /// Takes a message of this process. Returns false after an error.
    fn take(&mut self, message: Bytes, limit: usize) -> bool {
        if message.len() > limit {
            self.error = Some(sse::Error::TooLarge { limit });
            return false;
        }
        self.events.push(sse::Event::message(message));
        true
    }
}

/// Polls the future once, and returns its result if it is ready.
pub(in crate::upstream) async fn poll_once<F: Future>(future: F) -> Option<F::Output> {
    let mut future = std::pin::pin!(future);
    std::future::poll_fn(|cx| match future.as_mut().poll(cx) {
        std::task::Poll::Ready(value) => std::task::Poll::Ready(Some(value)),
        std::task::Poll::Pending => std::task::Poll::Ready(None),
    })
    .await
}

#[cfg(test)]
mod tests {
    use futures_util::stream;
    use http::HeaderValue;
    use http::header::CONTENT_TYPE;

    use super::*;

    fn event_stream(messages: [Bytes; 3]) -> Response<ResponseBody> {
        let mut response = Response::new(ResponseBody::Messages(Messages::of(stream::iter(messages))));
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        response
    }

    #[tokio::test]
    async fn all_messages_of_a_response_share_one_limit() {
        let three = || [Bytes::from_static(b"{}"), Bytes::from_static(b"[1]"), Bytes::from_static(b"{}")];
        assert_eq!(messages(event_stream(three()), 7).await, Some(three().to_vec()));
        assert_eq!(messages(event_stream(three()), 6).await, None);
    }
}
