//! HTTP/1.1 as bytes: heads, body framing. Written apart from the proxy's own code on purpose, so
//! that a mistake in one is not repeated in the other.

/// The first line and the headers of a message, in the order and spelling of the wire.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    pub(crate) first: String,
    pub(crate) headers: Vec<(String, String)>,
}

impl Head {
    /// Takes a whole head off the front of `input`; `None` while it is incomplete.
    pub(crate) fn take(input: &mut Vec<u8>) -> Option<Head> {
        let end = find(input, b"\r\n\r\n")? + 4;
        let text = String::from_utf8_lossy(&input[..end - 4]).into_owned();
        input.drain(..end);
        let mut lines = text.split("\r\n");
        let first = lines.next().unwrap_or_default().to_owned();
        let headers = lines
            .map(|line| {
                let (name, value) = line.split_once(':').expect("a header has a colon");
                (name.to_owned(), value.trim().to_owned())
            })
            .collect();
        Some(Head { first, headers })
    }

    /// The value of the only header of this name.
    ///
    /// Panics if there are several: a test that expects that asks [`Head::all`].
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        let all = self.all(name);
        assert!(all.len() < 2, "{name} came {} times: {all:?}", all.len());
        all.first().copied()
    }

    pub(crate) fn all(&self, name: &str) -> Vec<&str> {
        self.headers.iter().filter(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str()).collect()
    }

    /// Returns true if a comma-separated header names `token`.
    pub(crate) fn lists(&self, name: &str, token: &str) -> bool {
        self.all(name)
            .iter()
            .flat_map(|value| value.split(','))
            .any(|item| item.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case(token))
    }
}

/// Framing of a body, and the progress of reading it.
#[derive(Debug)]
pub(crate) enum Framing {
    Length(usize),
    Chunked(Chunk),
    /// Until the connection ends.
    Close,
}

/// State of a chunked body.
#[derive(Debug)]
pub(crate) enum Chunk {
    Size,
    Data(usize),
    /// The CRLF after a chunk's data.
    Seam,
    Trailer,
    Done,
}

impl Framing {
    pub(crate) fn of_request(head: &Head) -> Framing {
        Framing::named(head).unwrap_or(Framing::Length(0))
    }

    pub(crate) fn of_response(head: &Head, status: u16) -> Framing {
        match status {
            100..=199 | 204 | 304 => Framing::Length(0),
            _ => Framing::named(head).unwrap_or(Framing::Close),
        }
    }

    fn named(head: &Head) -> Option<Framing> {
        if head.lists("transfer-encoding", "chunked") {
            return Some(Framing::Chunked(Chunk::Size));
        }
        let length = head.get("content-length")?;
        Some(Framing::Length(length.parse().expect("a length")))
    }

    /// Moves what `input` holds of the body to `body`.
    pub(crate) fn decode(&mut self, input: &mut Vec<u8>, body: &mut Vec<u8>) {
        match self {
            Framing::Length(left) => {
                let now = input.len().min(*left);
                body.extend(input.drain(..now));
                *left -= now;
            }
            Framing::Chunked(chunk) => while chunk.step(input, body) {},
            Framing::Close => body.append(input),
        }
    }

    /// Returns true if the body has been read to its declared end.
    pub(crate) fn done(&self) -> bool {
        matches!(self, Framing::Length(0) | Framing::Chunked(Chunk::Done))
    }
}

impl Chunk {
    /// One step; false when more input is needed or nothing is left to do.
    fn step(&mut self, input: &mut Vec<u8>, body: &mut Vec<u8>) -> bool {
        match self {
            Chunk::Size => {
                let Some(line) = take_line(input) else {
                    return false;
                };
                let digits = line.split(';').next().unwrap_or_default().trim();
                let size = usize::from_str_radix(digits, 16).expect("a chunk size");
                *self = if size == 0 { Chunk::Trailer } else { Chunk::Data(size) };
                true
            }
            Chunk::Data(left) => {
                let now = input.len().min(*left);
                body.extend(input.drain(..now));
                *left -= now;
                if *left == 0 {
                    *self = Chunk::Seam;
                }
                now > 0
            }
            Chunk::Seam => match take_line(input) {
                Some(line) => {
                    assert!(line.is_empty(), "a chunk ends with CRLF, not {line:?}");
                    *self = Chunk::Size;
                    true
                }
                None => false,
            },
            Chunk::Trailer => match take_line(input) {
                Some(line) => {
                    if line.is_empty() {
                        *self = Chunk::Done;
                    }
                    true
                }
                None => false,
            },
            Chunk::Done => false,
        }
    }
}

fn take_line(input: &mut Vec<u8>) -> Option<String> {
    let end = find(input, b"\r\n")?;
    let line = String::from_utf8_lossy(&input[..end]).into_owned();
    input.drain(..end + 2);
    Some(line)
}

pub(crate) fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|w| w == needle)
}
