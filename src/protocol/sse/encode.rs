//! Events to bytes, and the data of events that were written here.

use std::borrow::Cow;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use memchr::{memchr, memchr2};

/// Bytes of an encoded event beside its name and its data of one line.
pub const EVENT_OVERHEAD: usize = b"event: \ndata: \n\n".len();

/// Writes one event without an id. It has an `event` line if `name` is not empty, a `data` line for
/// each line of `data`, and a blank line at the end.
///
/// CR and CRLF in `data` are line ends too, and arrive as LF. A decoded event has none, and between
/// tokens of JSON all mean the same. A `name` ends at its first line end.
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

/// Writes an event as [`encode_event`] does, behind `start` and in pieces. `data` are pieces of its
/// data. A piece without a line end is not copied.
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
        // The label of the first line and the end of the last line belong to the whole data.
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

/// Returns true if an event that [`encode_event`] has written has the type `message`, with or
/// without its name.
pub fn is_encoded_message(event: &[u8]) -> bool {
    event.starts_with(b"event: message\n") || !event.starts_with(b"event: ")
}

/// Returns the offset in an event written by [`encode_event`] of the byte `at` of its data. The end
/// of a line counts to that line.
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

/// Writes an event with empty data and, if there is one, the type `event`, which has no line end.
/// It moves a client's cursor to `id` and sets its reconnection time (in whole milliseconds),
/// without a message.
pub fn encode_empty(out: &mut BytesMut, event: Option<&str>, id: Option<&str>, retry: Option<Duration>) {
    if let Some(id) = id {
        encode_id(out, id);
    }
    if let Some(event) = event {
        put_line(out, b"event: ", event.as_bytes());
    }
    if let Some(retry) = retry {
        encode_retry_line(out, retry);
    }
    out.put_slice(b"data: \n\n");
}

/// Writes a `retry` alone, which is no event.
pub fn encode_retry(out: &mut BytesMut, retry: Duration) {
    encode_retry_line(out, retry);
    out.put_u8(b'\n');
}

/// Writes a `retry` line, in whole milliseconds, to stand before the lines of an event.
pub fn encode_retry_line(out: &mut BytesMut, retry: Duration) {
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
