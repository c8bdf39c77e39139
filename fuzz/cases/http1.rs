//! The HTTP/1.1 response reader. Input: the bytes of a server on a connection.
//!
//! Any slicing of the bytes gives the same response. A response never consumes a byte behind its
//! end. A body is complete only if its framing says so.

use bytes::BytesMut;
use http::Method;
use mcp_resume::protocol::http1::{Decoder, Error, Framing, Head, HeadReader};

const SLICES: [usize; 6] = [1, 2, 3, 5, 17, 256];

/// Runs one input.
pub(crate) fn run(bytes: &[u8]) {
    for method in [Method::POST, Method::HEAD] {
        let whole = read(&method, [bytes]);
        for size in SLICES {
            assert_eq!(read(&method, bytes.chunks(size)), whole, "in pieces of {size}");
        }
        if let Ok(Some(response)) = whole {
            ends_where_it_ends(&method, bytes, &response);
        }
    }
}

#[derive(Debug, PartialEq)]
struct Response {
    head: Head,
    body: BytesMut,
    behind: usize,
}

fn read<'a>(method: &Method, pieces: impl IntoIterator<Item = &'a [u8]>) -> Result<Option<Response>, Error> {
    let mut pieces = pieces.into_iter();
    let mut reader = HeadReader::new(method);
    let (head, first) = loop {
        let Some(piece) = pieces.next() else { return Ok(None) };
        if let Some(found) = reader.handle_piece(piece)? {
            break found;
        }
    };
    let mut decoder = Decoder::new(head.framing);
    let (mut body, mut behind) = (BytesMut::new(), 0);
    for piece in std::iter::once(first).chain(pieces) {
        let taken = decoder.decode(piece, &mut body)?;
        assert!(taken == piece.len() || decoder.is_complete());
        behind += piece.len() - taken;
    }
    decoder.handle_eof()?;
    Ok(Some(Response { head, body, behind }))
}

fn ends_where_it_ends(method: &Method, bytes: &[u8], response: &Response) {
    match response.head.framing {
        Framing::Length(length) => assert_eq!(response.body.len() as u64, length),
        Framing::UntilClose => return assert_eq!(response.behind, 0),
        Framing::Chunked => {}
    }
    let alone = read(method, [&bytes[..bytes.len() - response.behind]]);
    let alone = alone.expect("it is a response without what lies behind it").expect("and all of one");
    assert_eq!((&alone.head, &alone.body, alone.behind), (&response.head, &response.body, 0));
}
