//! Header lines in the form of HTTP/1.1.

use bytes::Bytes;
use http::header::{HeaderMap, HeaderName, HeaderValue};

/// Header lines as HTTP/1.1 writes them: the kept form of a head that is forwarded. They share no
/// memory with their source, and need one allocation where a map needs several.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lines(Vec<u8>);

const COLON: &[u8] = b": ";
const END: &[u8] = b"\r\n";

impl Lines {
    /// Creates an empty list with capacity for `bytes` bytes.
    pub fn with_capacity(bytes: usize) -> Self {
        Self(Vec::with_capacity(bytes))
    }

    /// Returns the size of the line with this name and value, in bytes.
    pub fn len_of(name: &HeaderName, value: &HeaderValue) -> usize {
        name.as_str().len() + COLON.len() + value.len() + END.len()
    }

    /// Returns the size of all lines, in bytes.
    pub fn size(&self) -> usize {
        self.0.len()
    }

    /// Adds a line.
    pub fn push(&mut self, name: &HeaderName, value: &HeaderValue) {
        for piece in [name.as_str().as_bytes(), COLON, value.as_bytes(), END] {
            self.0.extend_from_slice(piece);
        }
    }

    /// Adds a line whose value is given in pieces. Adds none if they contain a line end or a zero
    /// byte.
    pub fn push_pieces<'a>(&mut self, name: &HeaderName, pieces: impl IntoIterator<Item = &'a [u8]>) {
        let before = self.0.len();
        self.0.extend_from_slice(name.as_str().as_bytes());
        self.0.extend_from_slice(COLON);
        let value = self.0.len();
        for piece in pieces {
            self.0.extend_from_slice(piece);
        }
        if memchr::memchr3(b'\r', b'\n', 0, &self.0[value..]).is_some() {
            return self.0.truncate(before);
        }
        self.0.extend_from_slice(END);
    }

    /// Returns true if there is a line of this name. The search is linear.
    pub fn contains(&self, name: &HeaderName) -> bool {
        lines(&self.0).any(|(other, _)| other == name.as_str().as_bytes())
    }

    /// Returns the value of the first line of this name. The search is linear.
    pub fn get(&self, name: &HeaderName) -> Option<&[u8]> {
        lines(&self.0).find(|(other, _)| *other == name.as_str().as_bytes()).map(|(_, value)| value)
    }

    /// Returns the lines as a map.
    pub fn to_map(&self) -> HeaderMap {
        let shared = Bytes::copy_from_slice(&self.0);
        let mut map = HeaderMap::new();
        for (name, value) in lines(&shared) {
            let value = HeaderValue::from_maybe_shared(shared.slice_ref(value));
            if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name), value) {
                map.append(name, value);
            }
        }
        map
    }

    /// Returns the bytes of all lines, each with its end.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl From<&HeaderMap> for Lines {
    fn from(headers: &HeaderMap) -> Self {
        let mut lines = Self::with_capacity(headers.iter().map(|(name, value)| Self::len_of(name, value)).sum());
        for (name, value) in headers {
            lines.push(name, value);
        }
        lines
    }
}

/// Returns name and value of each line.
fn lines(bytes: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        // No name contains a colon, and no value a line feed.
        let colon = memchr::memchr(b':', rest)?;
        let end = colon + memchr::memchr(b'\n', &rest[colon..])?;
        let line = (&rest[..colon], &rest[colon + COLON.len()..=end - END.len()]);
        rest = &rest[end + 1..];
        Some(line)
    })
}
