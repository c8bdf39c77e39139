//! Headers as they are written.

use bytes::Bytes;
use http::header::{HeaderMap, HeaderName, HeaderValue};

/// Header lines as HTTP/1.1 writes them: what is kept of a head that is sent on. They share no memory with what they were made
/// of, and cost one allocation, where a map costs one for each of its parts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lines(Vec<u8>);

const COLON: &[u8] = b": ";
const END: &[u8] = b"\r\n";

impl Lines {
    /// None, with room for so many bytes.
    pub fn with_capacity(bytes: usize) -> Self {
        Self(Vec::with_capacity(bytes))
    }

    /// Returns the bytes that a line of these takes.
    pub fn len_of(name: &HeaderName, value: &HeaderValue) -> usize {
        name.as_str().len() + COLON.len() + value.len() + END.len()
    }

    /// Adds a line.
    pub fn push(&mut self, name: &HeaderName, value: &HeaderValue) {
        for piece in [name.as_str().as_bytes(), COLON, value.as_bytes(), END] {
            self.0.extend_from_slice(piece);
        }
    }

    /// Adds a line whose value comes in pieces; none where they hold what would end it.
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

    /// Returns true if there is a line of this name. The search goes from the first line on.
    pub fn contains(&self, name: &HeaderName) -> bool {
        lines(&self.0).any(|(other, _)| other == name.as_str().as_bytes())
    }

    /// Returns a copy of the headers that can be changed.
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

    /// As they are written, each line with its end.
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

/// Name and value of each line.
fn lines(bytes: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        // No name has a colon in it, and no value a line feed.
        let colon = memchr::memchr(b':', rest)?;
        let end = colon + memchr::memchr(b'\n', &rest[colon..])?;
        let line = (&rest[..colon], &rest[colon + COLON.len()..=end - END.len()]);
        rest = &rest[end + 1..];
        Some(line)
    })
}
