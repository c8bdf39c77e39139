//! Line ends of Unicode beyond ASCII: U+0085, U+2028 and U+2029.
//!
//! Some readers end a line there, of a program's input (`str.splitlines` of Python, `readline` of
//! newer Node) or of an event stream (`httpx-sse` up to 0.4.1). JSON has them only in strings, so
//! escapes can replace them.

use bytes::Bytes;
use memchr::memchr2;

/// The line ends in UTF-8, each with its escape in JSON.
const LINE_ENDS: [(&[u8], &str); 3] =
    [(&[0xC2, 0x85], r"\u0085"), (&[0xE2, 0x80, 0xA8], r"\u2028"), (&[0xE2, 0x80, 0xA9], r"\u2029")];

/// Returns the place, the length and the escape of the first such line end.
pub(crate) fn first(text: &[u8]) -> Option<(usize, usize, &'static str)> {
    let mut from = 0;
    while let Some(at) = memchr2(0xC2, 0xE2, &text[from..]).map(|at| from + at) {
        let rest = &text[at..];
        if let Some((line_end, escape)) = LINE_ENDS.into_iter().find(|(line_end, _)| rest.starts_with(line_end)) {
            return Some((at, line_end.len(), escape));
        }
        from = at + 1;
    }
    None
}

/// Returns JSON with escapes in place of such line ends. Copies only a text that has one.
pub fn escaped(text: Bytes) -> Bytes {
    let Some(found) = first(&text) else { return text };
    let mut escaped = Vec::with_capacity(text.len() + 16);
    let (mut copied, mut next) = (0, Some(found));
    while let Some((at, length, escape)) = next {
        escaped.extend_from_slice(&text[copied..copied + at]);
        escaped.extend_from_slice(escape.as_bytes());
        copied += at + length;
        next = first(&text[copied..]);
    }
    escaped.extend_from_slice(&text[copied..]);
    escaped.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_end_becomes_its_escape() {
        for (text, expected) in [
            ("", ""),
            ("\"a\u{e9}\u{2027}\r\n\"", "\"a\u{e9}\u{2027}\r\n\""),
            ("\u{85}", r"\u0085"),
            ("\"a\u{85}b\u{2028}\u{2029}c\"", r#""a\u0085b\u2028\u2029c""#),
        ] {
            assert_eq!(escaped(Bytes::from(text)), expected);
        }
    }

    #[test]
    fn a_text_without_line_ends_is_not_copied() {
        let text = Bytes::from("\u{e9}\u{2027}".repeat(10));
        assert_eq!(escaped(text.clone()).as_ptr(), text.as_ptr());
        let cut = Bytes::from_static(&[0xE2, 0x80]);
        assert_eq!(escaped(cut.clone()), cut);
    }
}
