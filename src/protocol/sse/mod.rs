//! The event codec: `text/event-stream` bytes to [`Event`]s and back.
//!
//! The [`Decoder`] follows the parsing rules of the [WHATWG event stream]. It skips a leading byte
//! order mark and comments. Lines end in CR, LF or CRLF, and `data` fields may be repeated. An `id`
//! with NUL is ignored, and so is a `retry` with other characters than digits. Its results do not
//! depend on the cuts of the input, and its memory is bounded by its limit. An event over the limit
//! ends the stream, or is skipped.
//!
//! Deliberately absent: the meaning of an event. Field values are bytes and stay unchanged, invalid
//! UTF-8 included. The last event ID, reconnection and the dropping of events with empty data
//! belong to the callers.
//!
//! [WHATWG event stream]: https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation

use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use memchr::{memchr, memchr2};

use crate::excerpt::{EXCERPT, LastBytes};

mod encode;
#[cfg(test)]
mod tests;

pub use encode::{
    EVENT_OVERHEAD, encode_apart, encode_comment, encode_empty, encode_event, encode_id, encode_retry,
    encode_retry_line, encoded_data, encoded_place, is_encoded_message, message_event,
};

/// Length of the longest field names (`event`, `retry`). A line without a colon within or right
/// behind this number of bytes is no known field.
const MAX_FIELD_NAME: usize = 5;

/// Limit for `retry`, in milliseconds (about 50 days). Longer ones count as this value, so that
/// sums of instants and durations do not overflow.
const MAX_RETRY_MS: u64 = u32::MAX as u64;

const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

/// The name of almost every event, which needs no allocation.
const MESSAGE: &[u8] = b"message";

/// One event: a block of fields up to a blank line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// The value of the last `event` field, or empty without one.
    pub name: Bytes,
    /// Values of all `data` fields, joined with LF. May be a slice of the input, which keeps the
    /// whole input in memory: long-lived holders make a copy.
    pub data: Bytes,
    /// The value of the last `id` field without a NUL, which may be empty.
    pub id: Option<Bytes>,
    /// The value of the last `retry` field of digits.
    pub retry: Option<Duration>,
}

impl Event {
    /// Returns a JSON-RPC message as an event without an ID.
    pub fn message(data: Bytes) -> Self {
        Self { name: Bytes::from_static(b"message"), data, id: None, retry: None }
    }
}

/// An event, or a part of an event that is skipped: see [`Decoder::poll_item`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// A complete event.
    Event(Event),
    /// An event over the limit is skipped from here on to its end.
    Cut(Cut),
    /// The end of the event that was cut, with the last bytes of its data, at most [`EXCERPT`].
    CutEnd(Bytes),
}

/// The beginning of an event that is skipped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The value of its `event` field, or empty if that has not come.
    pub name: Bytes,
    /// The first bytes of its data, at most [`EXCERPT`].
    pub first: Bytes,
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
/// Callers feed the bytes of a read, then poll until they get `None`. Between such rounds the
/// decoder holds less than its limit and a small constant; during a round also the chunk.
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
    /// Creates a decoder for the beginning of a stream. The field values of one event may have
    /// `max_event_bytes` in all. Comments and unknown fields are neither held nor counted.
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

    /// Returns the next complete event, or `None` until more bytes are fed. Blocks without any of
    /// the four fields are skipped.
    ///
    /// # Errors
    /// [`Error::TooLarge`], on this call and all later ones: the framing of the rest is unknown.
    pub fn poll_event(&mut self) -> Result<Option<Event>, Error> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        loop {
            match self.parse() {
                Ok(Some(Item::Event(event))) => return Ok(Some(event)),
                Ok(Some(Item::Cut(_) | Item::CutEnd(_))) => {}
                Ok(None) => {
                    self.input.release();
                    return Ok(None);
                }
                Err(error) => {
                    self.failed = Some(error);
                    self.input = Input::default();
                    self.block = Block::new(self.block.limit);
                    return Err(error);
                }
            }
        }
    }

    /// Does as [`Self::poll_event`], but continues behind an event over the limit. Returns the
    /// beginning of such an event once it exceeds the limit, and later its end. The rest takes no
    /// memory.
    pub fn poll_item(&mut self) -> Option<Item> {
        match self.parse() {
            Ok(None) => {
                self.input.release();
                None
            }
            Ok(item) => item,
            Err(Error::TooLarge { .. }) => Some(Item::Cut(self.cut())),
        }
    }

    /// Skips the rest of the incomplete event, whose end [`Self::poll_item`] returns.
    pub fn cut(&mut self) -> Cut {
        self.block.cut()
    }

    /// Returns the data of the incomplete event. Empty while one is skipped.
    pub fn partial_data(&self) -> &[u8] {
        &self.block.data
    }

    /// Returns the memory that an incomplete event takes, in bytes.
    pub fn bytes_held(&self) -> usize {
        self.input.rest().len() + self.block.byte_len()
    }

    /// Returns true if an event is incomplete, or if held bytes may begin one. They are lost if the
    /// stream ends now. Comments do not count.
    pub fn has_partial(&self) -> bool {
        self.block.has_begun || matches!(self.line, Line::Value(_)) || !self.input.rest().is_empty()
    }

    fn parse(&mut self) -> Result<Option<Item>, Error> {
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
                    if let Some(item) = self.block.take() {
                        return Ok(Some(item));
                    }
                }
                Line::Start
                    if !self.block.has_begun
                        && let Some((event, consumed)) = self.input.whole_event(self.block.limit) =>
                {
                    self.input.consume(consumed);
                    return Ok(Some(Item::Event(event)));
                }
                Line::Start => match begin_line(rest) {
                    None => return Ok(None),
                    Some((line, consumed)) => {
                        self.input.consume(consumed);
                        // An event that exceeds the limit here can be skipped.
                        self.line = line;
                        if let Line::Value(field) = line {
                            self.block.begin(field)?;
                        }
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

    /// Consumes a byte order mark at the beginning. Returns false while the bytes so far may be a
    /// part of one.
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

    /// Keeps a copy of the rest, the beginning of a line, so that the input it came with can be
    /// freed.
    fn release(&mut self) {
        self.0 = Bytes::copy_from_slice(&self.0);
    }

    /// Returns the event at the beginning of the input and its length, if the event is complete and
    /// in a usual form. Its lines have a space behind the colon, no field is repeated, and lines
    /// end in LF or CRLF. Other events, and events over the limit, are parsed line by line.
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

/// Returns the kind of the non-empty line at the beginning of `rest`, and the number of bytes
/// before its value. Returns `None` while the kind is unknown, for at most [`MAX_FIELD_NAME`] + 1
/// bytes.
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
        // One space behind the colon is not part of the value, so the byte behind the colon must
        // have arrived.
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
    /// Last bytes of the data of an event that is skipped, or `None` if none is.
    skipped: Option<LastBytes>,
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
            skipped: None,
        }
    }

    /// Skips the rest of the event. Frees the memory of its fields.
    fn cut(&mut self) -> Cut {
        let mut last = LastBytes::default();
        last.push(&self.data);
        self.skipped = Some(last);
        (self.id, self.cut_value) = (None, Vec::new());
        let data = std::mem::take(&mut self.data);
        let first = Bytes::copy_from_slice(&data[..data.len().min(EXCERPT)]);
        Cut { name: std::mem::take(&mut self.name), first }
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
        if let Some(last) = &mut self.skipped {
            if matches!(field, Field::Data) {
                last.push(piece);
            }
            return Ok(());
        }
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
        if self.skipped.is_some() {
            return self.extend(field, piece);
        }
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

    /// Returns the event at the blank line that ends it, or the end of a skipped event. Returns
    /// `None` if no field has begun.
    fn take(&mut self) -> Option<Item> {
        if !std::mem::take(&mut self.has_begun) {
            return None;
        }
        self.has_data = false;
        let event = Event {
            name: std::mem::take(&mut self.name),
            data: std::mem::take(&mut self.data).freeze(),
            id: self.id.take(),
            retry: self.retry.take(),
        };
        match self.skipped.take() {
            None => Some(Item::Event(event)),
            Some(last) => Some(Item::CutEnd(last.into())),
        }
    }
}

/// Returns the new capacity if `needed` is more than `capacity`: doubled, as a vector does, but
/// never beyond the limit.
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
