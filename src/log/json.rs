//! JSON format of the log: the lines of `tracing_subscriber` with further escapes.
//!
//! JSON leaves the control characters U+0080 to U+009F and the marks that turn the direction of
//! text as they are, and a terminal that shows such a line obeys them. Both can only be in strings,
//! so each becomes an escape. Absent: all other parts of a line.

use std::io::{self, Write};

use tracing_subscriber::fmt::MakeWriter;

use super::Lines;

/// Lines in JSON.
#[derive(Clone, Debug)]
pub struct JsonLines(pub Lines);

/// A line in progress; it is queued as a whole when dropped.
#[derive(Debug)]
pub struct JsonLine<'a> {
    lines: &'a Lines,
    text: Vec<u8>,
}

impl Write for JsonLine<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for JsonLine<'_> {
    fn drop(&mut self) {
        if self.text.is_ascii() {
            if !self.text.is_empty() {
                self.lines.queue(&self.text);
            }
            return;
        }
        self.lines.queue(escaped(&String::from_utf8_lossy(&self.text)).as_bytes());
    }
}

impl<'a> MakeWriter<'a> for JsonLines {
    type Writer = JsonLine<'a>;

    fn make_writer(&'a self) -> JsonLine<'a> {
        JsonLine { lines: &self.0, text: Vec::new() }
    }
}

/// Returns a line with escapes for the characters that a terminal would obey.
fn escaped(line: &str) -> String {
    let mut text = String::with_capacity(line.len() + 16);
    for c in line.chars() {
        if is_obeyed(c) { text.push_str(&format!("\\u{:04x}", u32::from(c))) } else { text.push(c) }
    }
    text
}

/// Returns true for control characters above ASCII, for line ends that are no line feed, and for
/// marks of direction.
fn is_obeyed(c: char) -> bool {
    matches!(
        c,
        '\u{7f}'..='\u{9f}'
            | '\u{61c}'
            | '\u{200e}'
            | '\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2066}'..='\u{2069}'
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_that_a_terminal_obeys_are_escapes_and_others_stay() {
        let obeyed =
            ['\u{80}', '\u{85}', '\u{9b}', '\u{9f}', '\u{61c}', '\u{200e}', '\u{202a}', '\u{202e}', '\u{2066}'];
        let text: String = obeyed.iter().collect();
        let line = format!(r#"{{"a":"{text} ü é 漢 🦀 \n"}}"#);
        let safe = escaped(&line);
        assert!(!safe.chars().any(|c| obeyed.contains(&c)), "{safe}");
        let read = |line: &str| serde_json::from_str::<serde_json::Value>(line).expect("JSON");
        assert_eq!(read(&safe), read(&line));
        assert!(safe.contains("ü é 漢 🦀"));
    }
}
