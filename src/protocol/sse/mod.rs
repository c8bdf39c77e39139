//! The event codec: `text/event-stream` bytes to [`Event`]s and back.
//!
//! The [`Decoder`] follows the parsing rules of the [WHATWG event stream]: a leading byte order mark, lines that end
//! in CR, LF or CRLF, comments, repeated `data` fields, an `id` with NUL ignored, `retry` of digits only. How the
//! bytes were cut on the wire never shows in what it yields, and what it holds is bounded by its limit.
//!
//! Deliberately absent: what an event means. Field values are bytes and leave as they came, invalid UTF-8 included;
//! the remembered last event ID, reconnection and the dropping of events with empty data belong to the callers.
//!
//! [WHATWG event stream]: https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation

use std::borrow::Cow;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use memchr::{memchr, memchr2};

#[cfg(test)]
mod tests;

/// The longest field name there is (`event`, `retry`); a line that has no colon right behind this many bytes, or
/// before, is no field of ours.
const MAX_FIELD_NAME: usize = 5;

/// The longest `retry` that is believed, in milliseconds (about 50 days); longer ones count as this. It keeps sums of
/// instants and durations from overflowing.
const MAX_RETRY_MS: u64 = u32::MAX as u64;

const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

/// Almost every event is named so; this one needs no allocation.
const MESSAGE: &[u8] = b"message";

/// One block of fields that a blank line ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// The value of the last `event` field; empty when there was none.
    pub name: Bytes,
    /// Values of all `data` fields, joined with LF. May be a slice of the bytes that were fed, which keeps all of
    /// those: a long-lived holder makes a copy.
    pub data: Bytes,
    /// The value of the last `id` field without a NUL; empty is a value.
    pub id: Option<Bytes>,
    /// The value of the last `retry` field made of digits.
    pub retry: Option<Duration>,
}

/// Why a byte stream cannot be decoded any further.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The values of one event's fields are larger than the limit, whether or not the event has ended.
    #[error("an event is larger than {limit} bytes")]
    TooLarge {
        /// The limit in bytes.
        limit: usize,
    },
}

/// An incremental decoder of one event stream.
///
/// Feed it what was read, then poll until it answers `None`. Between such rounds it holds less than its limit and a
/// small constant; during one, also the chunk.
#[derive(Debug)]
pub struct Decoder {
    input: Input,
    line: Line,
    block: Block,
    is_at_start: bool,
    /// A CR ended the last line: an LF that follows belongs to it.
    should_skip_lf: bool,
    failed: Option<Error>,
}

impl Decoder {
    /// A decoder at the start of a stream. The field values of one event may take `max_event_bytes` in all;
    /// comments and unknown fields are not held, and not counted.
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

    /// Takes the next bytes of the stream, cut anywhere. After an error they are dropped.
    pub fn feed(&mut self, chunk: Bytes) {
        if self.failed.is_none() {
            self.input.push(chunk);
        }
    }

    /// The next complete event; `None` until more is fed. Blocks without any of the four fields yield nothing.
    ///
    /// # Errors
    /// [`Error::TooLarge`], and then the same for ever: the rest of the stream has no known framing.
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

    /// Bytes of memory that it holds of an event that has begun.
    pub fn bytes_held(&self) -> usize {
        self.input.rest().len() + self.block.byte_len()
    }

    /// Returns true if an event has begun that no blank line has ended, or if bytes are held that may begin one. They
    /// are lost if the stream ends now. Comments do not count.
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

    /// Consumes a byte order mark at the very start; false while the bytes so far may be a piece of one.
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

    /// Consumes the line up to and with its terminator, which is `end` bytes away.
    fn end_line(&mut self, end: usize) {
        self.should_skip_lf = self.input.rest()[end] == b'\r';
        self.input.consume(end + 1);
        self.line = Line::Start;
    }
}

/// Writes one event without an id: an `event` line if `name` is not empty, a `data` line for each line of `data`, and
/// the blank line that ends it.
///
/// CR and CRLF in `data` are line ends too, and reach the reader as LF; a decoded event has none, and between the
/// tokens of JSON they mean the same. A `name` ends at its first line end.
pub fn encode_event(out: &mut BytesMut, name: &[u8], data: &[u8]) {
    out.reserve(name.len() + data.len() + b"event: \ndata: \n\n".len());
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

/// The data of an event that [`encode_event`] has written. Of one line it is no copy.
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

/// Writes an event with empty data and no name: it moves a client's cursor to `id` and sets its reconnection time
/// (in whole milliseconds) without telling it a message.
pub fn encode_empty(out: &mut BytesMut, id: Option<&str>, retry: Option<Duration>) {
    if let Some(id) = id {
        encode_id(out, id);
    }
    if let Some(retry) = retry {
        put_line(out, b"retry: ", retry.as_millis().to_string().as_bytes());
    }
    out.put_slice(b"data: \n\n");
}

/// Writes a `retry` and nothing that a client could take for an event.
pub fn encode_retry(out: &mut BytesMut, retry: Duration) {
    put_line(out, b"retry: ", retry.as_millis().to_string().as_bytes());
    out.put_u8(b'\n');
}

/// Writes a comment in a block of its own: a heartbeat, or a note for readers of the raw stream.
pub fn encode_comment(out: &mut BytesMut, text: &str) {
    put_line(out, b": ", text.as_bytes());
    out.put_u8(b'\n');
}

/// One line; what follows a line end inside `value` is left out, so that no value can write lines of its own.
fn put_line(out: &mut BytesMut, label: &[u8], value: &[u8]) {
    let end = memchr2(b'\r', b'\n', value).unwrap_or(value.len());
    put(out, label, &value[..end]);
}

/// One line of a value that has no line end.
fn put(out: &mut BytesMut, label: &[u8], value: &[u8]) {
    out.put_slice(label);
    out.put_slice(value);
    out.put_u8(b'\n');
}

/// Bytes that were fed and are not consumed yet.
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

    /// All events were taken: keeps the start of a line that may be left, and not what it came with.
    fn release(&mut self) {
        self.0 = Bytes::copy_from_slice(&self.0);
    }

    /// The event that the input begins with, and its length, if all of it is there in one of the usual forms: lines with a space behind
    /// the colon, no field twice, LF or CRLF. Anything else is read line by line, and so is what is over the limit.
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

/// The field that a line begins with, in the usual form, and what is behind that.
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
    /// At its first byte, or too few bytes are there to tell what it is.
    Start,
    /// In the value of a field.
    Value(Field),
    /// In a comment, or a field that has no meaning.
    Skip,
}

#[derive(Clone, Copy, Debug)]
enum Field {
    Event,
    Data,
    Id,
    Retry,
}

/// Returns the kind of the non-empty line at the start of `rest`, and the bytes before its value. `None` while the kind
/// is open, which takes at most [`MAX_FIELD_NAME`] + 1 bytes.
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
        // One space behind the colon is not part of the value, so the byte behind it must be there.
        Some(colon) => match rest.get(colon + 1)? {
            b' ' => Some((line, colon + 2)),
            _ => Some((line, colon + 1)),
        },
    }
}

/// The fields of the event that is being read.
#[derive(Debug)]
struct Block {
    limit: usize,
    /// True once any of the four fields was seen.
    has_begun: bool,
    name: Bytes,
    data: BytesMut,
    has_data: bool,
    id: Option<Bytes>,
    retry: Option<Duration>,
    /// The value so far of a field other than `data` whose line was cut.
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

    /// Bytes of memory, those that are reserved included.
    fn byte_len(&self) -> usize {
        let id = self.id.as_ref().map_or(0, Bytes::len);
        self.name.len() + self.data.capacity() + id + self.cut_value.capacity()
    }

    /// A line with this field begins.
    fn begin(&mut self, field: Field) -> Result<(), Error> {
        self.has_begun = true;
        match field {
            Field::Data if std::mem::replace(&mut self.has_data, true) => self.extend(field, b"\n")?,
            Field::Data => {}
            Field::Event | Field::Id | Field::Retry => {}
        }
        Ok(())
    }

    /// The next piece of the field's value.
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

    /// The last piece of the field's value.
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

    /// The event, at the blank line that ends it.
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

/// The capacity to grow to where `needed` is more than there is: doubling, as a vector does, but never beyond the limit.
fn grown(capacity: usize, needed: usize, limit: usize) -> Option<usize> {
    if needed > capacity { Some(needed.max((capacity * 2).min(limit))) } else { None }
}

/// Digits and nothing else, as milliseconds.
fn parse_retry(value: &[u8]) -> Option<Duration> {
    if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let millis = value.iter().fold(0u64, |sum, digit| (sum * 10 + u64::from(digit - b'0')).min(MAX_RETRY_MS));
    Some(Duration::from_millis(millis))
}
