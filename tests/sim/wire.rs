//! HTTP/1.1 and SSE as the two ends of a simulation read them: in any slicing, and strictly.

/// Part of an HTTP message on a connection.
pub(crate) enum Part {
    Head(Head),
    Data(Vec<u8>),
    End,
}

/// The first line and the headers, names in lower case.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    pub(crate) line: String,
    headers: Vec<(String, String)>,
}

impl Head {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// Of a response.
    pub(crate) fn status(&self) -> u16 {
        self.line.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0)
    }
}

/// Reads the messages of one direction.
#[derive(Default)]
pub(crate) struct Parser {
    bytes: Vec<u8>,
    state: State,
}

#[derive(Default)]
enum State {
    #[default]
    Head,
    Length(usize),
    ChunkSize,
    Chunk(usize),
    ChunkEnd {
        last: bool,
    },
}

impl Parser {
    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next part, if it is complete (of data: what there is).
    pub(crate) fn next(&mut self) -> Option<Part> {
        loop {
            match self.state {
                State::Head => return self.take_head().map(Part::Head),
                State::Length(0) => {
                    self.state = State::Head;
                    return Some(Part::End);
                }
                State::Length(left) | State::Chunk(left) if self.bytes.is_empty() && left > 0 => return None,
                State::Length(left) => {
                    let data = self.take(left);
                    self.state = State::Length(left - data.len());
                    return Some(Part::Data(data));
                }
                State::ChunkSize => {
                    let line = self.take_until(b"\r\n")?;
                    let size = usize::from_str_radix(line.trim_ascii(), 16).expect("the size of a chunk");
                    self.state = if size == 0 { State::ChunkEnd { last: true } } else { State::Chunk(size) };
                }
                State::Chunk(left) => {
                    let data = self.take(left);
                    let left = left - data.len();
                    self.state = if left == 0 { State::ChunkEnd { last: false } } else { State::Chunk(left) };
                    return Some(Part::Data(data));
                }
                State::ChunkEnd { last } => {
                    let line = self.take_until(b"\r\n")?;
                    assert!(line.is_empty(), "a chunk ends with its line");
                    self.state = if last { State::Head } else { State::ChunkSize };
                    if last {
                        return Some(Part::End);
                    }
                }
            }
        }
    }

    fn take_head(&mut self) -> Option<Head> {
        let text = self.take_until(b"\r\n\r\n")?;
        let mut lines = text.split("\r\n");
        let line = lines.next().unwrap_or_default().to_owned();
        let fields = lines.filter_map(|line| line.split_once(':'));
        let headers = fields.map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned())).collect();
        let head = Head { line, headers };
        self.state = match head.header("transfer-encoding") {
            Some(_) => State::ChunkSize,
            None => State::Length(head.header("content-length").map_or(0, |length| length.parse().expect("a length"))),
        };
        Some(head)
    }

    fn take_until(&mut self, end: &[u8]) -> Option<String> {
        let at = memchr::memmem::find(&self.bytes, end)?;
        let taken = String::from_utf8(self.bytes[..at].to_vec()).expect("a head in ASCII");
        self.bytes.drain(..at + end.len());
        Some(taken)
    }

    fn take(&mut self, most: usize) -> Vec<u8> {
        let taken = most.min(self.bytes.len());
        self.bytes.drain(..taken).collect()
    }
}

/// One server-sent event, or a comment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) id: Option<String>,
    pub(crate) retry: Option<u64>,
    pub(crate) data: String,
    pub(crate) is_comment: bool,
}

/// Reads events out of a body.
#[derive(Default)]
pub(crate) struct Events {
    bytes: Vec<u8>,
}

impl Events {
    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    pub(crate) fn next(&mut self) -> Option<Event> {
        let at = memchr::memmem::find(&self.bytes, b"\n\n")?;
        let block: Vec<u8> = self.bytes.drain(..at + 2).collect();
        let text = String::from_utf8(block).expect("events in UTF-8");
        let mut event = Event::default();
        for line in text.lines().filter(|line| !line.is_empty()) {
            match line.split_once(':').map(|(name, value)| (name, value.strip_prefix(' ').unwrap_or(value))) {
                Some(("id", value)) => event.id = Some(value.to_owned()),
                Some(("retry", value)) => event.retry = Some(value.parse().expect("a retry in milliseconds")),
                Some(("data", value)) => event.data.push_str(value),
                Some(("", _)) => event.is_comment = true,
                // The priming event has a type of its own for clients of earlier revisions.
                Some(("event", "message" | "prime")) => {}
                _ => panic!("an unknown line in an event: {line:?}"),
            }
        }
        Some(event)
    }
}
