//! HTTP/1.1 as a client speaks it: the head of a request out, the head and the body of its response in.
//!
//! Small on purpose, and strict: of two readings of a response it takes neither, because a proxy and a server that disagree
//! about where a body ends hand one caller's bytes to another ([RFC 9112 §6.3], [§11.1]). Deliberately absent: pipelining,
//! upgrades, request bodies without a length, transfer codings other than `chunked`, trailers (read over), folded lines, lone
//! line feeds, and HTTP/1.0 connections that are kept.
//!
//! [RFC 9112 §6.3]: https://www.rfc-editor.org/rfc/rfc9112#section-6.3
//! [§11.1]: https://www.rfc-editor.org/rfc/rfc9112#section-11.1

mod body;
mod head;
#[cfg(test)]
mod tests;

pub use body::Decoder;
pub use head::{Head, HeadReader, check_length, encode_request};

/// The longest head of a response; each interim one has the same bound.
pub const MAX_HEAD_BYTES: usize = 64 * 1024;
/// The most interim heads (1xx) before a response.
pub const MAX_INTERIM_HEADS: usize = 16;
/// The most header lines of a response.
pub const MAX_HEADERS: usize = 128;
/// The longest line of a chunk's size, extensions included, and the longest trailer section.
pub const MAX_CHUNK_LINE_BYTES: usize = 16 * 1024;

/// Violation that makes bytes no response. Their connection is of no further use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The head does not parse, or is larger than [`MAX_HEAD_BYTES`] or [`MAX_HEADERS`] allow.
    #[error("the head of the response is malformed or too large")]
    Head,
    /// The server switched to another protocol without a request to.
    #[error("the connection was switched to another protocol")]
    Switched,
    /// The length of the body is declared in two ways, or in an unknown one.
    #[error("the length of the body is ambiguous")]
    Framing,
    /// A chunk does not begin or end as it must.
    #[error("a chunk is malformed")]
    Chunk,
    /// The connection ended before the body did.
    #[error("the connection ended before the body")]
    Short,
}

/// End of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// After so many bytes; 0: there is none.
    Length(u64),
    /// After the chunk of size 0 and the trailers.
    Chunked,
    /// With the connection.
    UntilClose,
}
