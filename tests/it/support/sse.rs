//! A reader of `text/event-stream`, after the HTML specification's parsing rules, except that data
//! stays bytes and that blocks without data are handed out too (they carry ids and `retry`).

/// One block of the stream: everything up to a blank line.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Frame {
    pub(crate) id: Option<String>,
    /// The `event` line, if there was one.
    pub(crate) event: Option<String>,
    /// The data lines joined by line feeds; `None` without a data line.
    pub(crate) data: Option<Vec<u8>>,
    pub(crate) retry: Option<u64>,
    pub(crate) comments: Vec<String>,
    /// The block as it was on the wire.
    pub(crate) raw: Vec<u8>,
}

impl Frame {
    /// Returns true if a client's application would see the frame.
    pub(crate) fn is_event(&self) -> bool {
        self.data.as_ref().is_some_and(|data| !data.is_empty())
    }

    /// Returns true if the frame holds only comments.
    pub(crate) fn is_comment(&self) -> bool {
        *self == Frame { comments: self.comments.clone(), raw: self.raw.clone(), ..Frame::default() }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.data.as_deref().unwrap_or_default()
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(self.bytes())
            .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(self.bytes())))
    }

    pub(crate) fn id(&self) -> &str {
        self.id.as_deref().expect("the event has an id")
    }
}

/// Cuts a byte stream into frames.
#[derive(Debug, Default)]
pub(crate) struct Parser {
    input: Vec<u8>,
}

impl Parser {
    pub(crate) fn push(&mut self, bytes: &mut Vec<u8>) {
        self.input.append(bytes);
    }

    /// The next whole frame.
    pub(crate) fn next(&mut self) -> Option<Frame> {
        loop {
            let end = block_end(&self.input)?;
            let raw: Vec<u8> = self.input.drain(..end).collect();
            let frame = parse(&raw);
            if frame != (Frame { raw, ..Frame::default() }) {
                return Some(frame);
            }
        }
    }
}

/// The length of the first block with its blank line.
///
/// A CR at the very end of the input waits for the LF it may belong to.
fn block_end(input: &[u8]) -> Option<usize> {
    let mut at = 0;
    let mut line_empty = true;
    while at < input.len() {
        let length = match input[at] {
            b'\n' => 1,
            b'\r' => match input.get(at + 1) {
                Some(b'\n') => 2,
                Some(_) => 1,
                None => return None,
            },
            _ => {
                line_empty = false;
                at += 1;
                continue;
            }
        };
        at += length;
        if line_empty {
            return Some(at);
        }
        line_empty = true;
    }
    None
}

fn parse(raw: &[u8]) -> Frame {
    let mut frame = Frame { raw: raw.to_vec(), ..Frame::default() };
    for line in lines(raw) {
        let colon = line.iter().position(|b| *b == b':').unwrap_or(line.len());
        let name = &line[..colon];
        let value = line.get(colon + 1..).unwrap_or_default();
        let value = value.strip_prefix(b" ").unwrap_or(value);
        let text = || String::from_utf8_lossy(value).into_owned();
        match name {
            b"" if !line.is_empty() => frame.comments.push(text()),
            b"id" => frame.id = Some(text()),
            b"event" => frame.event = Some(text()),
            b"retry" => frame.retry = text().parse().ok(),
            b"data" => match &mut frame.data {
                Some(data) => {
                    data.push(b'\n');
                    data.extend_from_slice(value);
                }
                None => frame.data = Some(value.to_vec()),
            },
            _ => {}
        }
    }
    frame
}

fn lines(raw: &[u8]) -> Vec<&[u8]> {
    let mut lines = Vec::new();
    let mut rest = raw;
    while let Some(end) = rest.iter().position(|b| matches!(b, b'\r' | b'\n')) {
        lines.push(&rest[..end]);
        let seam = if rest[end..].starts_with(b"\r\n") { 2 } else { 1 };
        rest = &rest[end + seam..];
    }
    lines
}
