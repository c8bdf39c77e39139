//! Lines of the stdio transport: one message each, ended by LF.
//!
//! A line end inside a message is a second message to the server, which executes it. JSON has raw
//! CR and LF between tokens only, so both become blanks. Some servers also end lines at U+0085,
//! U+2028 and U+2029, whose escapes take their places. No other byte changes, in either direction.

use bytes::{Buf, Bytes, BytesMut};
use memchr::{memchr, memchr2};

use crate::error::ErrorCode;
use crate::excerpt::{EXCERPT, LastBytes};
use crate::unicode_line_ends;

/// Makes one line of a message that is valid JSON in UTF-8, without the LF at its end. Copies only
/// a message that needs a change.
pub fn to_line(message: Bytes) -> Bytes {
    let Some(first) = next_break(&message, 0) else { return message };
    let mut line = Vec::with_capacity(message.len() + 16);
    let (mut copied, mut at) = (0, Some(first));
    while let Some((place, length, replacement)) = at {
        line.extend_from_slice(&message[copied..place]);
        line.extend_from_slice(replacement.as_bytes());
        copied = place + length;
        at = next_break(&message, copied);
    }
    line.extend_from_slice(&message[copied..]);
    line.into()
}

/// Returns the place, length and replacement of the first line end at or after `from`.
fn next_break(message: &[u8], from: usize) -> Option<(usize, usize, &'static str)> {
    let plain = memchr2(b'\r', b'\n', &message[from..]).map(|at| (from + at, 1, " "));
    let end = plain.map_or(message.len(), |(at, ..)| at);
    let other = unicode_line_ends::first(&message[from..end]);
    other.map(|(at, length, escape)| (from + at, length, escape)).or(plain)
}

/// Largest capacity of the buffer that is kept behind a line, in bytes.
const KEPT_CAPACITY: usize = 128 * 1024;

/// A line of a server, or a part of a dropped line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Line {
    /// The bytes of a line without its end. A raw CR inside became a blank: in an event it would be
    /// a line end.
    Whole(Bytes),
    /// A line is dropped from here on to its end.
    Cut {
        /// The first bytes, at most [`EXCERPT`].
        first: Bytes,
        /// The error of the call that waits for it.
        code: ErrorCode,
    },
    /// The end of the line that was cut, with its last bytes, at most [`EXCERPT`]. They may include
    /// the first ones.
    CutEnd(Bytes),
}

/// Splits the output of a server into lines. Empty lines are skipped. Each byte is searched once,
/// in any slicing.
#[derive(Debug)]
pub struct LineReader {
    buffer: BytesMut,
    /// Bytes of the buffer that were searched for LF.
    searched: usize,
    limit: usize,
    /// Last bytes of a line whose rest is dropped, or `None`.
    dropped: Option<LastBytes>,
}

impl LineReader {
    /// Creates a reader of lines of at most `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self { buffer: BytesMut::new(), searched: 0, limit, dropped: None }
    }

    /// Returns the buffer for the next bytes of the server.
    pub fn buffer(&mut self) -> &mut BytesMut {
        &mut self.buffer
    }

    /// Returns the bytes held of an incomplete line. Empty while the rest of a line is dropped.
    pub fn partial(&self) -> &[u8] {
        &self.buffer
    }

    /// Returns the next complete line, or the part of a dropped line.
    pub fn next_line(&mut self) -> Option<Line> {
        loop {
            let end = memchr(b'\n', &self.buffer[self.searched..]).map(|at| self.searched + at);
            let length = end.unwrap_or(self.buffer.len());
            self.searched = length;
            if let Some(last) = &mut self.dropped {
                last.push(&self.buffer[..length]);
                self.consume(length + usize::from(end.is_some()), length);
                end?;
                return self.dropped.take().map(|last| Line::CutEnd(last.into()));
            }
            if length > self.limit {
                return Some(self.cut(ErrorCode::EventTooLarge));
            }
            let line = self.buffer.split_to(end?);
            self.consume(1, length);
            let line = without_cr(line);
            if !line.trim_ascii().is_empty() {
                return Some(Line::Whole(line));
            }
        }
    }

    /// Drops the incomplete line to its end, which [`Self::next_line`] reports.
    pub fn cut(&mut self, code: ErrorCode) -> Line {
        let first = &self.buffer[..self.buffer.len().min(self.limit).min(EXCERPT)];
        self.dropped = Some(LastBytes::default());
        Line::Cut { first: Bytes::copy_from_slice(first), code }
    }

    /// Consumes `count` bytes of the buffer, the end of `length` bytes of a line. The memory of a
    /// large line is not kept for the next one.
    fn consume(&mut self, count: usize, length: usize) {
        self.buffer.advance(count);
        self.searched = 0;
        if length > KEPT_CAPACITY || self.buffer.capacity() > KEPT_CAPACITY {
            self.buffer = BytesMut::from(&self.buffer[..]);
        }
    }
}

fn without_cr(mut line: BytesMut) -> Bytes {
    if line.ends_with(b"\r") {
        line.truncate(line.len() - 1);
    }
    let mut from = 0;
    while let Some(at) = memchr(b'\r', &line[from..]) {
        line[from + at] = b' ';
        from += at + 1;
    }
    line.freeze()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn line(message: &str) -> String {
        String::from_utf8(to_line(Bytes::copy_from_slice(message.as_bytes())).to_vec()).expect("UTF-8")
    }

    #[test]
    fn line_ends_between_tokens_become_blanks() {
        assert_eq!(line("{\r\n\"id\":\n1}"), "{  \"id\": 1}");
    }

    #[test]
    fn line_ends_in_strings_become_escapes() {
        assert_eq!(
            line("\"a\u{85}b\u{2028}c\u{2029}d\u{2027}e\u{e9}\""),
            "\"a\\u0085b\\u2028c\\u2029d\u{2027}e\u{e9}\""
        );
    }

    #[test]
    fn a_message_without_line_ends_is_not_copied() {
        let message = Bytes::from_static("{\"text\":\"caf\u{e9} \u{20ac} \u{1f600}\"}".as_bytes());
        assert_eq!(to_line(message.clone()).as_ptr(), message.as_ptr());
    }

    fn cut(first: &str) -> Line {
        Line::Cut { first: Bytes::copy_from_slice(first.as_bytes()), code: ErrorCode::EventTooLarge }
    }

    /// Reads all lines of `output` in pieces of `size`.
    fn read(output: &[u8], size: usize, limit: usize) -> Vec<Line> {
        let mut reader = LineReader::new(limit);
        let mut lines = Vec::new();
        for piece in output.chunks(size) {
            reader.buffer().extend_from_slice(piece);
            lines.extend(std::iter::from_fn(|| reader.next_line()));
            assert!(reader.partial().len() <= limit, "{} bytes are held", reader.partial().len());
        }
        lines
    }

    #[test]
    fn a_line_over_the_limit_is_dropped_to_its_end() {
        let whole = |text: &'static str| Line::Whole(Bytes::from_static(text.as_bytes()));
        for size in 1..12 {
            let lines = read(b"one\nlonger than ten\ntwo\r\n\n \nten bytes.\nhalf", size, 10);
            let cut = [cut("longer tha"), Line::CutEnd("longer than ten".into())];
            let expected = [vec![whole("one")], cut.into(), vec![whole("two"), whole("ten bytes.")]].concat();
            assert_eq!(lines, expected, "pieces of {size}");
        }
    }

    #[test]
    fn a_line_is_dropped_to_its_end_on_demand() {
        let mut reader = LineReader::new(100);
        reader.buffer().extend_from_slice(b"one");
        assert_eq!(reader.next_line(), None);
        assert_eq!(reader.cut(ErrorCode::ShareFull), Line::Cut { first: "one".into(), code: ErrorCode::ShareFull });
        assert_eq!(reader.next_line(), None);
        reader.buffer().extend_from_slice(b" and more\ntwo\n");
        assert_eq!(reader.next_line(), Some(Line::CutEnd("one and more".into())));
        assert_eq!(reader.next_line(), Some(Line::Whole("two".into())));
    }

    #[test]
    fn a_line_without_end_holds_no_memory() {
        const LIMIT: usize = 1 << 20;
        let mut reader = LineReader::new(LIMIT);
        let mut lines = Vec::new();
        for _ in 0..300 {
            reader.buffer().extend_from_slice(&[b'x'; 16 * 1024]);
            lines.extend(std::iter::from_fn(|| reader.next_line()));
            assert!(reader.buffer().capacity() <= 2 * LIMIT + KEPT_CAPACITY);
        }
        assert_eq!(lines, [cut(&"x".repeat(EXCERPT))]);
        assert!(reader.buffer().capacity() <= 2 * KEPT_CAPACITY, "the memory of the beginning is free");
    }

    #[test]
    fn a_cr_inside_a_line_becomes_a_blank() {
        assert_eq!(read(b"{\r\"id\":1}\r\n", 100, 100), [Line::Whole(Bytes::from_static(b"{ \"id\":1}"))]);
    }

    proptest! {
        #[test]
        fn a_line_has_the_value_of_its_message_and_one_end(text in "\\PC*[\u{85}\u{2028}\u{2029}\r\n]*\\PC*", pretty: bool) {
            let value = serde_json::json!({"jsonrpc": "2.0", "method": text, "params": {"deep": [1, text]}});
            let message = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) };
            let line = line(&message.expect("JSON"));
            let ends = ['\r', '\n', '\u{b}', '\u{c}', '\u{1c}', '\u{1d}', '\u{1e}', '\u{85}', '\u{2028}', '\u{2029}'];
            prop_assert!(!line.contains(ends), "a line end is left");
            prop_assert_eq!(serde_json::from_str::<serde_json::Value>(&line).expect("JSON"), value);
        }

        #[test]
        fn lines_do_not_depend_on_the_pieces(output in "[ab\r\n]{0,60}", size in 1..20usize) {
            prop_assert_eq!(read(output.as_bytes(), size, 8), read(output.as_bytes(), 60, 8));
        }
    }
}
