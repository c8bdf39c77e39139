//! The event codec: `text/event-stream` bytes to [`Event`]s and back.
//!
//! The [`Decoder`] follows the parsing rules of the [WHATWG event stream]: a leading byte order mark, lines that end
//! in CR, LF or CRLF, comments, repeated `data` fields, an `id` with NUL ignored, `retry` of digits only. Its results do not
//! depend on the cuts of the input, and its memory is bounded by its limit.
//!
//! Deliberately absent: the meaning of an event. Field values are bytes and stay unchanged, invalid UTF-8 included. The last event ID,
//! reconnection and the dropping of events with empty data belong to the callers.
//!
//! [WHATWG event stream]: https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation

use std::borrow::Cow;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use memchr::{memchr, memchr2};

#[cfg(test)]
mod tests;

/// Length of the longest field names (`event`, `retry`). A line without a colon within or right behind this number of bytes is no known
/// field.
const MAX_FIELD_NAME: usize = 5;

/// Limit for `retry`, in milliseconds (about 50 days). Longer ones count as this value, so that sums of instants and durations do not
/// overflow.
const MAX_RETRY_MS: u64 = u32::MAX as u64;

/// Bytes of an encoded event beside its name and its data of one line.
pub const EVENT_OVERHEAD: usize = b"event: \ndata: \n\n".len();
const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

/// The name of almost every event, which needs no allocation.
const MESSAGE: &[u8] = b"message";

/// One event: a block of fields up to a blank line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// The value of the last `event` field, or empty without one.
    pub name: Bytes,
    /// Values of all `data` fields, joined with LF. May be a slice of the input, which keeps the whole input in memory: long-lived holders
    /// make a copy.
    pub data: Bytes,
    /// The value of the last `id` field without a NUL, which may be empty.
    pub id: Option<Bytes>,
    /// The value of the last `retry` field of digits.
    pub retry: Option<Duration>,
}

/// Error that ends the decoding of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The values of one event's fields are larger than the limit. The event need not have ended.
    #[error("an event is larger than {limit} bytes")]
    TooLarge {
        /// The limit in bytes.
        limit: usize,
    },
}

/// An incremental decoder of one event stream.
///
/// Callers feed the bytes of a read, then poll until they get `None`. Between such rounds the decoder holds less than its limit and a small
/// constant; during a round also the chunk.
#[derive(Debug)]
pub struct Decoder {
    input: Input,
    line: Line,
    block: Block,
    is_at_start: bool,
    /// True if a CR ended the last line: a following LF belongs to it.
    should_skip_lf: bool,
    failed: Option<Error>,
}

impl Decoder {
    /// Creates a decoder for the beginning of a stream. The field values of one event may have `max_event_bytes` in all. Comments and unknown
    /// fields are neither held nor counted.
    pub fn new(max_event_bytes: usize) -> Self {
        Self {
            input: Input::default(),
            line: Line::Start,
            block: Block::new(max_event_bytes),
            is_at_start: true,
            should_skip_lf: false,
            failed: None,
        }
    }

    /// Takes the next bytes of the stream, cut anywhere. Drops them after an error.
    pub fn feed(&mut self, chunk: Bytes) {
        if self.failed.is_none() {
            self.input.push(chunk);
        }
    }

    /// Returns the next complete event, or `None` until more bytes are fed. Blocks without any of the four fields are skipped.
    ///
    /// # Errors
    /// [`Error::TooLarge`], on this call and all later ones: the framing of the rest is unknown.
    pub fn poll_event(&mut self) -> Result<Option<Event>, Error> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let polled = self.parse();
        if let Err(error) = polled {
            self.failed = Some(error);
            self.input = Input::default();
            self.block = Block::new(self.block.limit);
        }
        if let Ok(None) = polled {
            self.input.release();
        }
        polled
    }

    /// Returns the memory that an incomplete event takes, in bytes.
    pub fn bytes_held(&self) -> usize {
        self.input.rest().len() + self.block.byte_len()
    }

    /// Returns true if an event is incomplete, or if held bytes may begin one. They are lost if the stream ends now. Comments do not
    /// count.
    pub fn has_partial(&self) -> bool {
        self.block.has_begun || matches!(self.line, Line::Value(_)) || !self.input.rest().is_empty()
    }

    fn parse(&mut self) -> Result<Option<Event>, Error> {
        if !self.pass_byte_order_mark() {
            return Ok(None);
        }
        loop {
            self.pass_lf();
            let rest = self.input.rest();
            if rest.is_empty() {
                return Ok(None);
            }
            match self.line {
                Line::Start if matches!(rest[0], b'\r' | b'\n') => {
                    self.end_line(0);
                    if let Some(event) = self.block.take() {
                        return Ok(Some(event));
                    }
                }
                Line::Start
                    if !self.block.has_begun
                        && let Some((event, consumed)) = self.input.whole_event(self.block.limit) =>
                {
                    self.input.consume(consumed);
                    return Ok(Some(event));
                }
                Line::Start => match begin_line(rest) {
                    None => return Ok(None),
                    Some((line, consumed)) => {
                        self.input.consume(consumed);
                        if let Line::Value(field) = line {
                            self.block.begin(field)?;
                        }
                        self.line = line;
                    }
                },
                Line::Skip => match memchr2(b'\r', b'\n', rest) {
                    None => self.input.consume(rest.len()),
                    Some(end) => self.end_line(end),
                },
                Line::Value(field) => match memchr2(b'\r', b'\n', rest) {
                    None => {
                        self.block.extend(field, rest)?;
                        self.input.consume(rest.len());
                    }
                    Some(end) => {
                        self.block.finish(field, &rest[..end])?;
                        self.end_line(end);
                    }
                },
            }
        }
    }

    /// Consumes a byte order mark at the beginning. Returns false while the bytes so far may be a part of one.
    fn pass_byte_order_mark(&mut self) -> bool {
        if self.is_at_start {
            let rest = self.input.rest();
            if rest.starts_with(BYTE_ORDER_MARK) {
                self.input.consume(BYTE_ORDER_MARK.len());
            } else if BYTE_ORDER_MARK.starts_with(rest) {
                return false;
            }
            self.is_at_start = false;
        }
        true
    }

    /// Consumes the second half of a CRLF.
    fn pass_lf(&mut self) {
        if self.should_skip_lf && !self.input.rest().is_empty() {
            self.should_skip_lf = false;
            if self.input.rest()[0] == b'\n' {
                self.input.consume(1);
            }
        }
    }

    /// Consumes the line and its terminator, which begins at `end`.
    fn end_line(&mut self, end: usize) {
        self.should_skip_lf = self.input.rest()[end] == b'\r';
        self.input.consume(end + 1);
        self.line = Line::Start;
    }
}

/// Writes one event without an id: an `event` line if `name` is not empty, a `data` line for each line of `data`, and
/// the blank line that ends it.
///
/// CR and CRLF in `data` are line ends too, and arrive as LF. A decoded event has none, and between tokens of JSON all mean the same. A
/// `name` ends at its first line end.
pub fn encode_event(out: &mut impl BufMut, name: &[u8], data: &[u8]) {
    if !name.is_empty() {
        put_line(out, b"event: ", name);
    }
    let mut rest = data;
    while let Some(end) = memchr2(b'\r', b'\n', rest) {
        put(out, b"data: ", &rest[..end]);
        let crlf = rest[end..].starts_with(b"\r\n");
        rest = &rest[end + if crlf { 2 } else { 1 }..];
    }
    put(out, b"data: ", rest);
    out.put_u8(b'\n');
}

/// Returns a JSON-RPC message as an event without an id.
pub fn message_event(message: &[u8]) -> Bytes {
    let mut out = BytesMut::new();
    encode_event(&mut out, b"message", message);
    out.freeze()
}

/// Writes an event as [`encode_event`] does, behind `start` and in pieces. `data` are pieces of its data; one without a line end is not copied.
pub fn encode_apart(mut start: BytesMut, name: &[u8], data: impl IntoIterator<Item = Bytes>) -> Vec<Bytes> {
    put_line(&mut start, b"event: ", name);
    start.put_slice(b"data: ");
    let mut pieces = vec![start.freeze()];
    for piece in data {
        if memchr2(b'\r', b'\n', &piece).is_none() {
            pieces.push(piece);
            continue;
        }
        let mut lines = BytesMut::with_capacity(piece.len() + 64);
        encode_event(&mut lines, b"", &piece);
        // The label of the first line and the end of the last are those of the whole data.
        lines.truncate(lines.len() - 2);
        pieces.push(lines.freeze().slice(b"data: ".len()..));
    }
    pieces.push(Bytes::from_static(b"\n\n"));
    pieces
}

/// Returns the data of an event that [`encode_event`] has written. Data of one line is not copied.
pub fn encoded_data(event: &[u8]) -> Cow<'_, [u8]> {
    let mut lines = data_lines(event);
    let first = lines.next().unwrap_or_default();
    let Some(second) = lines.next() else { return Cow::Borrowed(first) };
    let mut data = Vec::with_capacity(event.len());
    data.extend_from_slice(first);
    for line in std::iter::once(second).chain(lines) {
        data.push(b'\n');
        data.extend_from_slice(line);
    }
    Cow::Owned(data)
}

/// Returns the offset in an event written by [`encode_event`] of the byte `at` of its data. The end of a line counts to
/// that line.
pub fn encoded_place(event: &[u8], at: usize) -> usize {
    let mut left = at;
    for line in data_lines(event) {
        if left <= line.len() {
            return line.as_ptr().addr() - event.as_ptr().addr() + left;
        }
        left -= line.len() + 1;
    }
    event.len()
}

fn data_lines(event: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = event;
    std::iter::from_fn(move || {
        loop {
            let end = memchr(b'\n', rest)?;
            let line = &rest[..end];
            rest = &rest[end + 1..];
            if let Some(data) = line.strip_prefix(b"data: ") {
                return Some(data);
            }
        }
    })
}

/// Writes an `id` line, to stand before the lines of [`encode_event`].
pub fn encode_id(out: &mut BytesMut, id: &str) {
    put_line(out, b"id: ", id.as_bytes());
}

/// Writes an event with empty data and, if there is one, the type `event`, which has no line end. It moves a client's cursor to `id` and sets its reconnection
/// time (in whole milliseconds), without a message.
pub fn encode_empty(out: &mut BytesMut, event: Option<&str>, id: Option<&str>, retry: Option<Duration>) {
    if let Some(id) = id {
        encode_id(out, id);
    }
    if let Some(event) = event {
        put_line(out, b"event: ", event.as_bytes());
    }
    if let Some(retry) = retry {
        put_retry(out, retry);
    }
    out.put_slice(b"data: \n\n");
}

/// Writes a `retry` alone, which is no event.
pub fn encode_retry(out: &mut BytesMut, retry: Duration) {
    put_retry(out, retry);
    out.put_u8(b'\n');
}

fn put_retry(out: &mut BytesMut, retry: Duration) {
    let millis = u64::try_from(retry.as_millis()).unwrap_or(u64::MAX);
    put(out, b"retry: ", itoa::Buffer::new().format(millis).as_bytes());
}

/// Writes a comment as a block: a heartbeat, or a note for readers of the raw stream.
pub fn encode_comment(out: &mut BytesMut, text: &str) {
    put_line(out, b": ", text.as_bytes());
    out.put_u8(b'\n');
}

/// Writes one line. The value ends at its first line end, so that no value can write further lines.
fn put_line(out: &mut impl BufMut, label: &[u8], value: &[u8]) {
    let end = memchr2(b'\r', b'\n', value).unwrap_or(value.len());
    put(out, label, &value[..end]);
}

/// Writes one line whose value has no line end.
fn put(out: &mut impl BufMut, label: &[u8], value: &[u8]) {
    out.put_slice(label);
    out.put_slice(value);
    out.put_u8(b'\n');
}

/// Input that is not consumed yet.
#[derive(Debug, Default)]
struct Input(Bytes);

impl Input {
    fn push(&mut self, chunk: Bytes) {
        self.0 = if self.0.is_empty() { chunk } else { [&self.0[..], &chunk].concat().into() };
    }

    fn rest(&self) -> &[u8] {
        &self.0
    }

    fn consume(&mut self, count: usize) {
        self.0.advance(count);
    }

    /// Keeps a copy of the rest, the beginning of a line, so that the input it came with can be freed.
    fn release(&mut self) {
        self.0 = Bytes::copy_from_slice(&self.0);
    }

    /// Returns the event at the beginning of the input and its length, if it is complete and in a usual form: lines with a space behind the
    /// colon, no repeated field, LF or CRLF. Other events are parsed line by line, and so are those over the limit.
    fn whole_event(&self, limit: usize) -> Option<(Event, usize)> {
        let mut event = Event::default();
        let mut data = None;
        let mut rest = self.rest();
        let mut left = limit;
        while let Some((field, line)) = usual_field(rest) {
            let end = memchr2(b'\r', b'\n', line)?;
            let value = &line[..end];
            left = left.checked_sub(end)?;
            match field {
                Field::Data if data.is_none() => data = Some(self.0.slice_ref(value)),
                Field::Event if value == MESSAGE && event.name.is_empty() => event.name = Bytes::from_static(MESSAGE),
                Field::Event if event.name.is_empty() => event.name = Bytes::copy_from_slice(value),
                Field::Id if event.id.is_none() && memchr(0, value).is_none() => {
                    event.id = Some(Bytes::copy_from_slice(value));
                }
                _ => return None,
            }
            rest = behind_line_end(&line[end..])?;
        }
        let rest = behind_line_end(rest)?;
        event.data = data.unwrap_or_default();
        Some((event, self.rest().len() - rest.len()))
    }
}

/// Returns the field at the beginning of a line in the usual form, and the bytes behind its label.
fn usual_field(line: &[u8]) -> Option<(Field, &[u8])> {
    let fields = [(Field::Data, &b"data: "[..]), (Field::Event, b"event: "), (Field::Id, b"id: ")];
    fields.into_iter().find_map(|(field, label)| Some((field, line.strip_prefix(label)?)))
}

/// Returns the bytes behind an LF or a CRLF. A CR alone may be half of a line end.
fn behind_line_end(rest: &[u8]) -> Option<&[u8]> {
    rest.strip_prefix(b"\n").or_else(|| rest.strip_prefix(b"\r\n"))
}

/// Position of the decoder in a line.
#[derive(Clone, Copy, Debug)]
enum Line {
    /// At the first byte, or with too few bytes to know the kind of the line.
    Start,
    /// Within the value of a field.
    Value(Field),
    /// Within a comment or an unknown field.
    Skip,
}

#[derive(Clone, Copy, Debug)]
enum Field {
    Event,
    Data,
    Id,
    Retry,
}

/// Returns the kind of the non-empty line at the beginning of `rest`, and the number of bytes before its value. Returns `None` while the
/// kind is unknown, for at most [`MAX_FIELD_NAME`] + 1 bytes.
fn begin_line(rest: &[u8]) -> Option<(Line, usize)> {
    let head = &rest[..rest.len().min(MAX_FIELD_NAME + 1)];
    let line_end = memchr2(b'\r', b'\n', head);
    let colon = memchr(b':', &head[..line_end.unwrap_or(head.len())]);
    let (name, colon_at) = match (colon, line_end) {
        (Some(colon), _) => (&head[..colon], Some(colon)),
        (None, Some(end)) => (&head[..end], None),
        (None, None) if head.len() > MAX_FIELD_NAME => return Some((Line::Skip, 0)),
        (None, None) => return None,
    };
    let line = match name {
        b"event" => Line::Value(Field::Event),
        b"data" => Line::Value(Field::Data),
        b"id" => Line::Value(Field::Id),
        b"retry" => Line::Value(Field::Retry),
        _ => return Some((Line::Skip, 0)),
    };
    match colon_at {
        None => Some((line, name.len())),
        // One space behind the colon is not part of the value, so the byte behind the colon must have arrived.
        Some(colon) => match rest.get(colon + 1)? {
            b' ' => Some((line, colon + 2)),
            _ => Some((line, colon + 1)),
        },
    }
}

/// The fields of the incomplete event.
#[derive(Debug)]
struct Block {
    limit: usize,
    /// True if any of the four fields has begun.
    has_begun: bool,
    name: Bytes,
    data: BytesMut,
    has_data: bool,
    id: Option<Bytes>,
    retry: Option<Duration>,
    /// The beginning of the value of a field other than `data`, if its line was cut.
    cut_value: Vec<u8>,
}

impl Block {
    fn new(limit: usize) -> Self {
        Self {
            limit,
            has_begun: false,
            name: Bytes::new(),
            data: BytesMut::new(),
            has_data: false,
            id: None,
            retry: None,
            cut_value: Vec::new(),
        }
    }

    /// Returns the memory of the fields in bytes, reserved memory included.
    fn byte_len(&self) -> usize {
        let id = self.id.as_ref().map_or(0, Bytes::len);
        self.name.len() + self.data.capacity() + id + self.cut_value.capacity()
    }

    /// Begins a line with this field.
    fn begin(&mut self, field: Field) -> Result<(), Error> {
        self.has_begun = true;
        match field {
            Field::Data if std::mem::replace(&mut self.has_data, true) => self.extend(field, b"\n")?,
            Field::Data => {}
            Field::Event | Field::Id | Field::Retry => {}
        }
        Ok(())
    }

    /// Adds a piece of the field's value.
    fn extend(&mut self, field: Field, piece: &[u8]) -> Result<(), Error> {
        self.check_limit(piece.len())?;
        match field {
            Field::Data => {
                if let Some(capacity) = grown(self.data.capacity(), self.data.len() + piece.len(), self.limit) {
                    let mut data = BytesMut::with_capacity(capacity);
                    data.extend_from_slice(&self.data);
                    self.data = data;
                }
                self.data.extend_from_slice(piece);
            }
            Field::Event | Field::Id | Field::Retry => {
                let value = &mut self.cut_value;
                if let Some(capacity) = grown(value.capacity(), value.len() + piece.len(), self.limit) {
                    value.reserve_exact(capacity - value.len());
                }
                value.extend_from_slice(piece);
            }
        }
        Ok(())
    }

    /// Adds the last piece of the field's value.
    fn finish(&mut self, field: Field, piece: &[u8]) -> Result<(), Error> {
        if matches!(field, Field::Data) || !self.cut_value.is_empty() {
            self.extend(field, piece)?;
        } else {
            self.check_limit(piece.len())?;
        }
        let cut = std::mem::take(&mut self.cut_value);
        let value = if cut.is_empty() { piece } else { &cut };
        match field {
            Field::Data => {}
            Field::Event if value == MESSAGE => self.name = Bytes::from_static(MESSAGE),
            Field::Event => self.name = Bytes::copy_from_slice(value),
            Field::Id if memchr(0, value).is_some() => {}
            Field::Id => self.id = Some(Bytes::copy_from_slice(value)),
            Field::Retry => self.retry = parse_retry(value).or(self.retry),
        }
        Ok(())
    }

    fn check_limit(&self, more: usize) -> Result<(), Error> {
        let held = self.name.len() + self.data.len() + self.id.as_ref().map_or(0, Bytes::len) + self.cut_value.len();
        if more > self.limit.saturating_sub(held) {
            return Err(Error::TooLarge { limit: self.limit });
        }
        Ok(())
    }

    /// Returns the event at the blank line that ends it, or `None` if no field has begun.
    fn take(&mut self) -> Option<Event> {
        if !std::mem::take(&mut self.has_begun) {
            return None;
        }
        self.has_data = false;
        Some(Event {
            name: std::mem::take(&mut self.name),
            data: std::mem::take(&mut self.data).freeze(),
            id: self.id.take(),
            retry: self.retry.take(),
        })
    }
}

/// Returns the new capacity if `needed` is more than `capacity`: doubled, as a vector does, but never beyond the limit.
fn grown(capacity: usize, needed: usize, limit: usize) -> Option<usize> {
    if needed > capacity { Some(needed.max((capacity * 2).min(limit))) } else { None }
}

/// Parses digits alone, as milliseconds.
fn parse_retry(value: &[u8]) -> Option<Duration> {
    if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let millis = value.iter().fold(0u64, |sum, digit| (sum * 10 + u64::from(digit - b'0')).min(MAX_RETRY_MS));
    Some(Duration::from_millis(millis))
}
