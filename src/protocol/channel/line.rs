//! Lines of the stdio transport: one message each, ended by LF.
//!
//! A line end inside a message is a second message to the server, which executes it. JSON has raw CR and LF between tokens only, so both become
//! blanks. Some servers also end lines at U+0085, U+2028 and U+2029 (`str.splitlines` of Python, `readline` of newer Node). JSON has these in
//! strings only, so their escapes take their places. No other byte changes, in either direction.

use bytes::{Buf, Bytes, BytesMut};
use memchr::{memchr, memchr2};

/// Bytes with which the other line ends of Unicode begin in UTF-8.
const NEL: &[u8] = &[0xC2, 0x85];
const LS: &[u8] = &[0xE2, 0x80, 0xA8];
const PS: &[u8] = &[0xE2, 0x80, 0xA9];

/// Makes one line of a message that is valid JSON in UTF-8, without the LF at its end. Copies only a message that needs a change.
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
    let mut from = from;
    while let Some(at) = memchr2(NEL[0], LS[0], &message[from..end]).map(|at| from + at) {
        let rest = &message[at..];
        match () {
            () if rest.starts_with(NEL) => return Some((at, NEL.len(), r"\u0085")),
            () if rest.starts_with(LS) => return Some((at, LS.len(), r"\u2028")),
            () if rest.starts_with(PS) => return Some((at, PS.len(), r"\u2029")),
            () => from = at + 1,
        }
    }
    plain
}

/// A line of a server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Line {
    /// The bytes of a line without its end. A raw CR inside became a blank: in an event it would be a line end.
    Whole(Bytes),
    /// A line that was longer than the limit, and is dropped.
    TooLong,
}

/// Splits the output of a server into lines. Empty lines are skipped.
#[derive(Debug)]
pub struct LineReader {
    buffer: BytesMut,
    /// Bytes of the buffer in which no LF was found.
    searched: usize,
    limit: usize,
    /// True while the rest of a line over the limit is dropped.
    is_skipping: bool,
}

impl LineReader {
    /// Creates a reader of lines of at most `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self { buffer: BytesMut::new(), searched: 0, limit, is_skipping: false }
    }

    /// Returns the buffer for the next bytes of the server.
    pub fn buffer(&mut self) -> &mut BytesMut {
        &mut self.buffer
    }

    /// Returns the bytes held of an incomplete line.
    pub fn held(&self) -> usize {
        self.buffer.len()
    }

    /// Returns the next line that is complete.
    pub fn next_line(&mut self) -> Option<Line> {
        loop {
            let Some(end) = memchr(b'\n', &self.buffer[self.searched..]).map(|at| self.searched + at) else {
                self.searched = self.buffer.len();
                if self.is_skipping || self.searched > self.limit {
                    self.buffer.clear();
                    self.searched = 0;
                    return if std::mem::replace(&mut self.is_skipping, true) { None } else { Some(Line::TooLong) };
                }
                return None;
            };
            self.searched = 0;
            let line = self.buffer.split_to(end);
            self.buffer.advance(1);
            if std::mem::take(&mut self.is_skipping) {
                continue;
            }
            if line.len() > self.limit {
                return Some(Line::TooLong);
            }
            let line = without_cr(line);
            if !line.trim_ascii().is_empty() {
                return Some(Line::Whole(line));
            }
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

    /// Reads all lines of `output` in pieces of `size`.
    fn read(output: &[u8], size: usize, limit: usize) -> Vec<Line> {
        let mut reader = LineReader::new(limit);
        let mut lines = Vec::new();
        for piece in output.chunks(size) {
            reader.buffer().extend_from_slice(piece);
            lines.extend(std::iter::from_fn(|| reader.next_line()));
            assert!(reader.held() <= limit, "{} bytes are held", reader.held());
        }
        lines
    }

    #[test]
    fn a_line_over_the_limit_is_dropped_to_its_end() {
        let whole = |text: &'static str| Line::Whole(Bytes::from_static(text.as_bytes()));
        for size in 1..12 {
            let lines = read(b"one\nlonger than ten\ntwo\r\n\n \nten bytes.\nhalf", size, 10);
            assert_eq!(lines, [whole("one"), Line::TooLong, whole("two"), whole("ten bytes.")], "pieces of {size}");
        }
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
