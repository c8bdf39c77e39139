//! Output of the demo: a line for each message sent or received, with the time since the start
//! before it.
//!
//! Colours are used at a terminal only, never in a file or a pipe.

use std::io::{self, IsTerminal, Write};
use std::time::Instant;

use super::server::SESSION_HEADER;
use crate::clock;
use crate::protocol::sse::Event;
use hyper::Response;
use hyper::header::CONTENT_TYPE;
use serde_json::Value;

/// Characters shown of a payload that is neither progress nor a result.
const MAX_SHOWN: usize = 60;

const BOLD: &str = "1";
const DIM: &str = "2";
const RED: &str = "31";
const GREEN: &str = "32";
const CYAN: &str = "36";

/// A transcript that is being written.
pub(super) struct Transcript {
    out: Box<dyn Write + Send>,
    has_colours: bool,
    start: Instant,
}

impl Transcript {
    /// Creates a transcript on stdout.
    pub(super) fn on_stdout() -> Self {
        let stdout = io::stdout();
        let has_colours = stdout.is_terminal();
        Self { out: Box::new(stdout), has_colours, start: clock::now() }
    }

    /// Returns a transcript without output.
    #[cfg(test)]
    pub(super) fn discarded() -> Self {
        Self { out: Box::new(io::sink()), has_colours: false, start: clock::now() }
    }

    /// Prints the title of a part.
    pub(super) fn title(&mut self, text: &str) -> io::Result<()> {
        let text = self.paint(BOLD, text);
        writeln!(self.out, "\n{text}\n")
    }

    /// Prints text unchanged.
    pub(super) fn text(&mut self, text: &str) -> io::Result<()> {
        writeln!(self.out, "{text}")
    }

    /// Prints a remark between the messages.
    pub(super) fn note(&mut self, text: &str) -> io::Result<()> {
        let text = self.paint(DIM, text);
        self.line(" ", &text)
    }

    /// Prints the outcome of a part.
    pub(super) fn verdict(&mut self, is_good: bool, text: &str) -> io::Result<()> {
        let (sign, colour) = if is_good { ("✓", GREEN) } else { ("✗", RED) };
        let text = self.paint(colour, &format!("{sign} {text}"));
        writeln!(self.out, "\n{text}")
    }

    /// Prints a request's head, already shortened.
    pub(super) fn request(&mut self, head: &str) -> io::Result<()> {
        self.line("→", head)
    }

    /// Prints a response's head: its status and the headers that matter here.
    pub(super) fn response<B>(&mut self, response: &Response<B>) -> io::Result<()> {
        let mut head = response.status().to_string();
        for name in [CONTENT_TYPE.as_str(), SESSION_HEADER] {
            if let Some(value) = response.headers().get(name).and_then(|value| value.to_str().ok()) {
                head.push_str(&format!("   {name}: {}", shorten(value)));
            }
        }
        self.line("←", &head)
    }

    /// Prints an event.
    pub(super) fn event(&mut self, event: &Event) -> io::Result<()> {
        let mut text = describe(&event.data);
        if let Some(id) = &event.id {
            let id = shorten(&String::from_utf8_lossy(id));
            text = format!("{}   {text}", self.paint(CYAN, &format!("id: {id:<16}")));
        }
        if let Some(retry) = event.retry {
            text.push_str(&format!("   retry: {}", retry.as_millis()));
        }
        self.line("←", &text)
    }

    /// Prints the end of a connection in the middle of a response.
    pub(super) fn cut(&mut self, how: &str) -> io::Result<()> {
        let text = self.paint(RED, how);
        self.line("✂", &text)
    }

    fn line(&mut self, sign: &str, text: &str) -> io::Result<()> {
        let at = self.paint(DIM, &format!("{:5.2}s", (clock::now() - self.start).as_secs_f64()));
        writeln!(self.out, "{at}  {sign} {text}")
    }

    fn paint(&self, style: &str, text: &str) -> String {
        if self.has_colours { format!("\x1b[{style}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// Shortens an event ID in the middle of its long part, which no reader compares. The part before
/// the dot names the stream, and the part after it the event.
pub(super) fn shorten(id: &str) -> String {
    let (handle, place) = id.split_at(id.find('.').unwrap_or(id.len()));
    match (handle.get(..4), handle.get(handle.len().saturating_sub(4)..)) {
        (Some(first), Some(last)) if handle.len() > 40 => format!("{first}…{last}{place}"),
        _ => id.to_owned(),
    }
}

fn describe(data: &[u8]) -> String {
    let message = serde_json::from_slice::<Value>(data).unwrap_or_default();
    let params = &message["params"];
    if data.is_empty() {
        "(no data)".to_owned()
    } else if let (Some(progress), Some(total)) = (params["progress"].as_u64(), params["total"].as_u64()) {
        format!("progress {progress} of {total}")
    } else if let Some(text) = message["result"]["content"][0]["text"].as_str() {
        format!("result: {text}")
    } else if let Some(text) = message["error"]["message"].as_str() {
        format!("error {}: {text}", message["error"]["code"])
    } else {
        String::from_utf8_lossy(data).chars().take(MAX_SHOWN).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_ids_keep_what_a_reader_compares() {
        let handle = format!("AbCd{}wXyZ", "0".repeat(60));
        assert_eq!(shorten(&format!("{handle}.12")), "AbCd…wXyZ.12");
        assert_eq!(shorten("demo-1"), "demo-1");
    }

    #[test]
    fn messages_are_described_briefly() {
        assert_eq!(describe(b""), "(no data)");
        assert_eq!(describe(br#"{"params":{"progress":3,"total":8}}"#), "progress 3 of 8");
        assert_eq!(describe(br#"{"result":{"content":[{"text":"done"}]}}"#), "result: done");
        assert_eq!(describe(br#"{"error":{"code":-32010,"message":"gone"}}"#), "error -32010: gone");
        assert_eq!(describe(b"not JSON"), "not JSON");
    }
}
