//! The client's side of HTTP/1.1: writes the head of a request, and parses the head and the body of
//! its response.
//!
//! Small on purpose, and strict: an ambiguous response is refused. A proxy and a server that
//! disagree about the end of a body give the bytes of one caller to another ([RFC 9112 §6.3],
//! [§11.1]). Deliberately absent: pipelining, upgrades, request bodies without a length, transfer
//! codings other than `chunked`, trailers (skipped), folded lines, lone line feeds, and keep-alive
//! of HTTP/1.0.
//!
//! [RFC 9112 §6.3]: https://www.rfc-editor.org/rfc/rfc9112#section-6.3
//! [§11.1]: https://www.rfc-editor.org/rfc/rfc9112#section-11.1

mod body;
mod head;
#[cfg(test)]
mod tests;

pub use body::Decoder;
pub use head::{Head, HeadReader, check_length, encode_request};

/// Limit for the head of a response, and for each interim head, in bytes.
pub const MAX_HEAD_BYTES: usize = 64 * 1024;
/// Limit for the number of interim heads (1xx) before a response.
pub const MAX_INTERIM_HEADS: usize = 16;
/// Limit for the number of header lines of a response.
pub const MAX_HEADERS: usize = 128;
/// Limit for the line with a chunk's size, extensions included, and for the trailer section, in
/// bytes.
pub const MAX_CHUNK_LINE_BYTES: usize = 16 * 1024;

/// Violation of the protocol in a response. Its connection cannot be used any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The head does not parse, or is larger than [`MAX_HEAD_BYTES`] or [`MAX_HEADERS`] allow.
    #[error("the head of the response is malformed or too large")]
    Head,
    /// The server switched to another protocol, which was not requested.
    #[error("the connection was switched to another protocol")]
    Switched,
    /// The length of the body is declared in two ways, or in an unknown one.
    #[error("the length of the body is ambiguous")]
    Framing,
    /// A chunk has a malformed beginning or end.
    #[error("a chunk is malformed")]
    Chunk,
    /// The connection ended before the body did.
    #[error("the connection ended before the body")]
    Short,
}

/// End of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// After this number of bytes. With 0 there is no body.
    Length(u64),
    /// After the chunk of size 0 and the trailers.
    Chunked,
    /// With the connection.
    UntilClose,
}
