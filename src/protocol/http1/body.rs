//! Bodies: separates the body of a response from its framing, and finds its end.

use bytes::BytesMut;

use super::{Error, Framing, MAX_CHUNK_LINE_BYTES};

/// Removes the framing from a body. Its input may be cut anywhere. It never consumes a byte behind
/// the body's end.
#[derive(Debug)]
pub struct Decoder {
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Number of missing bytes of a body with a known length.
    Length(u64),
    UntilClose,
    /// Within the line before a chunk.
    Size(SizeLine),
    /// Number of missing bytes of a chunk, never 0.
    Chunk(u64),
    /// Behind a chunk, before its CRLF or within it.
    ChunkEnd {
        has_cr: bool,
    },
    /// Within the lines behind the last chunk.
    Trailers(TrailerLine),
    Done,
}

/// The line with a chunk's size and its extensions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct SizeLine {
    size: u64,
    digits: u8,
    length: usize,
    place: SizePlace,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum SizePlace {
    #[default]
    Digits,
    /// Blanks before an extension or before the end.
    Blank,
    Extension,
    Cr,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct TrailerLine {
    /// Length of all lines together.
    length: usize,
    is_begun: bool,
    has_cr: bool,
}

impl Decoder {
    /// Creates a decoder of a body with this framing.
    pub fn new(framing: Framing) -> Self {
        let state = match framing {
            Framing::Length(0) => State::Done,
            Framing::Length(length) => State::Length(length),
            Framing::Chunked => State::Size(SizeLine::default()),
            Framing::UntilClose => State::UntilClose,
        };
        Self { state }
    }

    /// Returns true if the body is complete.
    pub fn is_complete(&self) -> bool {
        self.state == State::Done
    }

    /// Appends the bytes of the body in `input` to `out`. Returns the number of consumed bytes,
    /// which is smaller than `input` only if the body is complete.
    ///
    /// # Errors
    /// If the framing is broken. Bytes before the break have been appended, and no more input may
    /// be passed.
    pub fn decode(&mut self, input: &[u8], out: &mut BytesMut) -> Result<usize, Error> {
        let mut at = 0;
        while at < input.len() {
            let rest = &input[at..];
            let (next, taken) = match self.state {
                State::Done => break,
                State::UntilClose => {
                    out.extend_from_slice(rest);
                    (State::UntilClose, rest.len())
                }
                State::Length(left) => {
                    let taken = take(left, rest, out);
                    let left = left - taken as u64;
                    (if left == 0 { State::Done } else { State::Length(left) }, taken)
                }
                State::Chunk(left) => {
                    let taken = take(left, rest, out);
                    let left = left - taken as u64;
                    (if left == 0 { State::ChunkEnd { has_cr: false } } else { State::Chunk(left) }, taken)
                }
                State::ChunkEnd { has_cr: false } if rest.starts_with(b"\r\n") => (State::Size(SizeLine::default()), 2),
                State::ChunkEnd { has_cr } => (chunk_end(has_cr, rest[0])?, 1),
                State::Size(line) => line.take(rest)?,
                State::Trailers(line) => (line.handle(rest[0])?, 1),
            };
            self.state = next;
            at += taken;
        }
        Ok(at)
    }

    /// Notes the end of the connection.
    ///
    /// # Errors
    /// If the body is incomplete.
    pub fn handle_eof(&mut self) -> Result<(), Error> {
        match self.state {
            State::Done => Ok(()),
            State::UntilClose => {
                self.state = State::Done;
                Ok(())
            }
            State::Length(_) | State::Chunk(_) | State::ChunkEnd { .. } | State::Size(_) | State::Trailers(_) => {
                Err(Error::Short)
            }
        }
    }

    /// Returns the number of missing bytes, or `None` if the length is unknown.
    pub fn left(&self) -> Option<u64> {
        match self.state {
            State::Length(left) => Some(left),
            State::Done => Some(0),
            State::UntilClose | State::Size(_) | State::Chunk(_) | State::ChunkEnd { .. } | State::Trailers(_) => None,
        }
    }
}

fn take(left: u64, rest: &[u8], out: &mut BytesMut) -> usize {
    let taken = usize::try_from(left).map_or(rest.len(), |left| left.min(rest.len()));
    out.extend_from_slice(&rest[..taken]);
    taken
}

fn chunk_end(has_cr: bool, byte: u8) -> Result<State, Error> {
    match (has_cr, byte) {
        (false, b'\r') => Ok(State::ChunkEnd { has_cr: true }),
        (true, b'\n') => Ok(State::Size(SizeLine::default())),
        (false | true, _) => Err(Error::Chunk),
    }
}

impl SizeLine {
    /// Parses the line, or a part of it, at the beginning of `rest`. Returns the next state and the
    /// number of consumed bytes. A usual line is parsed at once, any other byte by byte.
    fn take(self, rest: &[u8]) -> Result<(State, usize), Error> {
        if self.length == 0
            && let Some((line, taken)) = Self::usual(rest)
        {
            return Ok((line.next(), taken));
        }
        Ok((self.handle(rest[0])?, 1))
    }

    /// Returns the complete line at the beginning of `rest` and its length, if it has nothing but
    /// up to fifteen digits.
    fn usual(rest: &[u8]) -> Option<(Self, usize)> {
        let mut size = 0;
        for (at, byte) in rest.iter().take(16).enumerate() {
            if byte.is_ascii_hexdigit() {
                size = size << 4 | u64::from(hex(*byte));
            } else {
                let is_over = at > 0 && rest[at..].starts_with(b"\r\n");
                return if is_over { Some((Self { size, ..Self::default() }, at + 2)) } else { None };
            }
        }
        None
    }

    /// Parses one byte of hexadecimal digits, blanks, an extension and CRLF. A lone CR or LF is
    /// refused, since readers differ in its meaning.
    fn handle(mut self, byte: u8) -> Result<State, Error> {
        self.length += 1;
        if self.length > MAX_CHUNK_LINE_BYTES {
            return Err(Error::Chunk);
        }
        self.place = match (self.place, byte) {
            (SizePlace::Cr, b'\n') => return Ok(self.next()),
            (SizePlace::Digits, _) if byte.is_ascii_hexdigit() => {
                // More than sixteen digits do not fit.
                self.digits = Some(self.digits + 1).filter(|digits| *digits <= 16).ok_or(Error::Chunk)?;
                self.size = self.size << 4 | u64::from(hex(byte));
                SizePlace::Digits
            }
            (_, _) if self.digits == 0 => return Err(Error::Chunk),
            (SizePlace::Digits | SizePlace::Blank | SizePlace::Extension, b'\r') => SizePlace::Cr,
            (SizePlace::Digits | SizePlace::Blank, b' ' | b'\t') => SizePlace::Blank,
            (SizePlace::Digits | SizePlace::Blank, b';') => SizePlace::Extension,
            (SizePlace::Extension, b'\t' | b' '..=b'~' | 0x80..) => SizePlace::Extension,
            (SizePlace::Digits | SizePlace::Blank | SizePlace::Extension | SizePlace::Cr, _) => {
                return Err(Error::Chunk);
            }
        };
        Ok(State::Size(self))
    }

    fn next(self) -> State {
        match self.size {
            0 => State::Trailers(TrailerLine::default()),
            size => State::Chunk(size),
        }
    }
}

impl TrailerLine {
    /// Skips one byte of the trailer lines, which end with an empty line.
    fn handle(mut self, byte: u8) -> Result<State, Error> {
        self.length += 1;
        if self.length > MAX_CHUNK_LINE_BYTES {
            return Err(Error::Chunk);
        }
        match (self.has_cr, byte) {
            (true, b'\n') if !self.is_begun => return Ok(State::Done),
            (true, b'\n') => (self.is_begun, self.has_cr) = (false, false),
            (true, _) | (false, b'\n' | 0) => return Err(Error::Chunk),
            (false, b'\r') => self.has_cr = true,
            (false, _) => self.is_begun = true,
        }
        Ok(State::Trailers(self))
    }
}

fn hex(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        b'a'..=b'f' => digit - b'a' + 10,
        _ => digit - b'A' + 10,
    }
}
