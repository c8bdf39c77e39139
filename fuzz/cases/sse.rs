//! The event codec. Input: the bytes of an event stream.
//!
//! Any slicing of the bytes gives the same events. A decoded event that is encoded again decodes to
//! itself. Any input of the encoder becomes one event, never more.

use bytes::{Bytes, BytesMut};
use mcp_resume::protocol::sse::{Decoder, Error, Event, encode_comment, encode_empty, encode_event, encode_id};

const LIMITS: [usize; 3] = [1 << 16, 12, 0];
const SLICES: [usize; 6] = [1, 2, 3, 5, 17, 256];

/// Runs one input.
pub(crate) fn run(bytes: &[u8]) {
    for limit in LIMITS {
        let whole = decode(limit, [bytes]);
        for size in SLICES {
            assert_eq!(decode(limit, bytes.chunks(size)), whole, "in pieces of {size}, limit {limit}");
        }
        whole.events.iter().for_each(|event| bounded(event, limit));
        whole.events.iter().for_each(comes_back);
    }
    let (name, data) = bytes.split_at(bytes.len() / 2);
    one_event(name, data);
    one_line(&String::from_utf8_lossy(name), data);
}

#[derive(Debug, PartialEq)]
struct Decoded {
    events: Vec<Event>,
    error: Option<Error>,
    partial: bool,
}

fn decode<'a>(limit: usize, pieces: impl IntoIterator<Item = &'a [u8]>) -> Decoded {
    let mut decoder = Decoder::new(limit);
    let mut events = Vec::new();
    for piece in pieces {
        decoder.feed(Bytes::copy_from_slice(piece));
        loop {
            match decoder.poll_event() {
                Ok(Some(event)) => events.push(event),
                Ok(None) => break,
                Err(error) => {
                    decoder.feed(Bytes::from_static(b"data: late\n\n"));
                    assert_eq!(decoder.poll_event(), Err(error), "an error is final");
                    return Decoded { events, error: Some(error), partial: false };
                }
            }
        }
    }
    Decoded { events, error: None, partial: decoder.has_partial() }
}

fn only_event(bytes: &[u8]) -> Event {
    let mut decoded = decode(1 << 20, [bytes]);
    assert_eq!((decoded.events.len(), decoded.error, decoded.partial), (1, None, false));
    decoded.events.remove(0)
}

fn bounded(event: &Event, limit: usize) {
    assert!(event.name.len() + event.data.len() + event.id.as_ref().map_or(0, |id| id.len()) <= limit);
    assert!(!event.name.iter().any(is_line_end) && !event.data.contains(&b'\r'));
    assert!(!event.id.iter().flatten().any(|byte| is_line_end(byte) || *byte == 0));
}

fn is_line_end(byte: &u8) -> bool {
    matches!(byte, b'\r' | b'\n')
}

fn comes_back(event: &Event) {
    let mut out = BytesMut::new();
    let id = event.id.as_deref().and_then(|id| std::str::from_utf8(id).ok());
    if let Some(id) = id {
        encode_id(&mut out, id);
    }
    encode_event(&mut out, &event.name, &event.data);
    let back = only_event(&out);
    assert_eq!((&back.name, &back.data, back.id.as_deref()), (&event.name, &event.data, id.map(str::as_bytes)));

    for name in [None, Some("prime")] {
        let mut out = BytesMut::new();
        encode_empty(&mut out, name, id, event.retry);
        let back = only_event(&out);
        assert_eq!((back.id.as_deref(), back.retry), (id.map(str::as_bytes), event.retry));
        assert_eq!((&*back.name, &*back.data), (name.unwrap_or_default().as_bytes(), &b""[..]));
    }
}

/// The data comes back with LF line ends, the name up to its first line end.
fn one_event(name: &[u8], data: &[u8]) {
    let mut out = BytesMut::new();
    encode_event(&mut out, name, data);
    let event = only_event(&out);
    assert_eq!(event.name, first_line(name));
    let mut expected = Vec::new();
    for (at, &byte) in data.iter().enumerate() {
        match byte {
            b'\n' if at > 0 && data[at - 1] == b'\r' => {}
            b'\r' => expected.push(b'\n'),
            byte => expected.push(byte),
        }
    }
    assert_eq!(event.data, expected);
}

/// An id or a comment cannot add lines.
fn one_line(text: &str, data: &[u8]) {
    let mut out = BytesMut::new();
    encode_comment(&mut out, text);
    encode_id(&mut out, text);
    encode_event(&mut out, b"", data);
    let line = first_line(text.as_bytes());
    let event = only_event(&out);
    assert_eq!(event.id.as_deref(), (!line.contains(&0)).then_some(line));
    assert_eq!((event.name.len(), event.retry), (0, None));
}

fn first_line(bytes: &[u8]) -> &[u8] {
    bytes.split(is_line_end).next().unwrap_or_default()
}
