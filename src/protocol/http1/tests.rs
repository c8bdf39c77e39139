use bytes::BytesMut;
use http::header::HOST;
use http::{HeaderName, HeaderValue, Method, StatusCode};
use proptest::prelude::*;

use super::*;
use crate::headers::Lines;

/// A response read from pieces: its head and body, and what is left of the bytes behind it.
#[derive(Clone, Debug, PartialEq)]
struct Read {
    head: Head,
    body: Vec<u8>,
    left: usize,
}

/// Reads one response; the connection ends behind the last piece. `None`: it ended before the head.
fn read<'a>(method: &Method, pieces: impl IntoIterator<Item = &'a [u8]>) -> Result<Option<Read>, Error> {
    let mut pieces = pieces.into_iter();
    let mut reader = HeadReader::new(method);
    let (head, first) = loop {
        let Some(piece) = pieces.next() else { return Ok(None) };
        if let Some(found) = reader.handle_piece(piece)? {
            break found;
        }
    };
    let mut decoder = Decoder::new(head.framing);
    let (mut body, mut left) = (BytesMut::new(), 0);
    for piece in std::iter::once(first).chain(pieces) {
        left += piece.len() - decoder.decode(piece, &mut body)?;
    }
    decoder.handle_eof()?;
    assert!(decoder.is_complete());
    Ok(Some(Read { head, body: body.to_vec(), left }))
}

fn read_whole(bytes: &[u8]) -> Result<Option<Read>, Error> {
    read(&Method::POST, [bytes])
}

fn response(bytes: &[u8]) -> Read {
    read_whole(bytes).unwrap().unwrap()
}

#[test]
fn a_request_is_written_with_its_headers_and_one_host() {
    let mut lines = Lines::default();
    lines.push(&HeaderName::from_static("a"), &HeaderValue::from_static("b"));
    let head = encode_request(&Method::POST, "/mcp?a=b", "there:80", &lines, 2, 0);
    assert_eq!(head, b"POST /mcp?a=b HTTP/1.1\r\nhost: there:80\r\na: b\r\ncontent-length: 2\r\n\r\n");
    lines.push(&HOST, &HeaderValue::from_static("elsewhere"));
    let head = encode_request(&Method::GET, "/", "there:80", &lines, 0, 0);
    assert_eq!(head, b"GET / HTTP/1.1\r\na: b\r\nhost: elsewhere\r\n\r\n");
}

#[test]
fn a_lone_line_feed_is_told_as_soon_as_it_is_there() {
    for pieces in [
        &[b"HTTP/1.1 200 OK\n".as_slice()][..],
        &[b"HTTP/1.1 200 OK\r\nA: b\n"],
        &[b"HTTP/1.1 200 OK", b"\n"],
        &[b"HTTP/1.1 200 OK\r", b"\n\n"],
        &[b"\n"],
    ] {
        assert_eq!(read(&Method::POST, pieces.iter().copied()), Err(Error::Head), "{pieces:?}");
    }
    for pieces in [&[b"HTTP/1.1 200 OK\r".as_slice(), b"\n"][..], &[b"HTTP/1.1 200 OK\r\n"]] {
        assert_eq!(read(&Method::POST, pieces.iter().copied()), Ok(None), "{pieces:?}");
    }
}

#[test]
fn a_length_ends_a_body() {
    let read = response(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nX-A: b\r\n\r\nabcHTTP/1.1");
    assert_eq!(
        (read.head.status, read.head.framing, read.head.can_keep_alive),
        (StatusCode::OK, Framing::Length(3), true)
    );
    assert_eq!((read.body.as_slice(), read.left), (b"abc".as_slice(), 8));
    assert_eq!(read.head.headers["x-a"], "b");
}

#[test]
fn the_last_chunk_ends_a_body() {
    let read = response(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n\
          3\r\nabc\r\n0A ;ext=\"1\"\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\nleft",
    );
    assert_eq!((read.body.as_slice(), read.left), (b"abc0123456789".as_slice(), 4));
    assert!(read.head.can_keep_alive && read.head.framing == Framing::Chunked);
}

#[test]
fn without_a_length_the_connection_ends_a_body() {
    let read = response(b"HTTP/1.1 200 OK\r\n\r\nall there is");
    assert_eq!((read.head.framing, read.head.can_keep_alive), (Framing::UntilClose, false));
    assert_eq!(read.body, b"all there is");
}

#[test]
fn some_responses_have_no_body_even_if_they_declare_one() {
    for (method, status, length) in [(Method::HEAD, "200", 10), (Method::POST, "204", 0), (Method::GET, "304", 10)] {
        let bytes = format!("HTTP/1.1 {status} x\r\nContent-Length: {length}\r\n\r\n");
        let read = read(&method, [bytes.as_bytes()]).unwrap().unwrap();
        assert_eq!((read.head.framing, read.head.can_keep_alive), (Framing::Length(0), true), "{method} {status}");
    }
}

#[test]
fn interim_responses_are_read_over_and_bounded() {
    let interim = b"HTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\n";
    let end = b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n";
    let few = [interim.repeat(MAX_INTERIM_HEADS), end.to_vec()].concat();
    assert_eq!(response(&few).head.status, StatusCode::ACCEPTED);
    let many = [interim.repeat(MAX_INTERIM_HEADS + 1), end.to_vec()].concat();
    assert_eq!(read_whole(&many), Err(Error::Head));
    assert_eq!(read_whole(b"HTTP/1.1 101 x\r\nUpgrade: h2c\r\n\r\n"), Err(Error::Switched));
}

#[test]
fn a_connection_is_kept_only_where_both_sides_want_it() {
    for (head, keeps) in [
        ("HTTP/1.1 200 OK\r\nContent-Length: 0", true),
        ("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: keep-alive", true),
        ("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: Close", false),
        ("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: foo, close", false),
        ("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: foo\r\nConnection: close", false),
        ("HTTP/1.0 200 OK\r\nContent-Length: 0\r\nConnection: keep-alive", false),
    ] {
        assert_eq!(response(format!("{head}\r\n\r\n").as_bytes()).head.can_keep_alive, keeps, "{head}");
    }
}

/// Responses that two readers could take apart differently, each with what is wrong with it.
const SMUGGLED: [(&str, Error); 31] = [
    ("HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", Error::Framing),
    ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n", Error::Framing),
    ("HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", Error::Framing),
    ("HTTP/1.1 200 OK\r\nContent-Length: 3, 4\r\n\r\nabcd", Error::Framing),
    ("HTTP/1.1 200 OK\r\nContent-Length: 3, 3\r\n\r\nabc", Error::Framing),
    ("HTTP/1.1 200 OK\r\nContent-Length: +3\r\n\r\nabc", Error::Framing),
    ("HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", Error::Framing),
    ("HTTP/1.1 200 OK\r\nContent-Length: 0x3\r\n\r\nabc", Error::Framing),
    ("HTTP/1.1 200 OK\r\nContent-Length: 3 3\r\n\r\nabc", Error::Framing),
    ("HTTP/1.1 200 OK\r\nContent-Length:\r\n\r\nabc", Error::Framing),
    ("HTTP/1.1 200 OK\r\nContent-Length: 18446744073709551616\r\n\r\nabc", Error::Framing),
    ("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", Error::Framing),
    ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n", Error::Framing),
    ("HTTP/1.1 200 OK\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", Error::Framing),
    ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", Error::Framing),
    ("HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", Error::Framing),
    ("HTTP/1.1 204 x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\nabc", Error::Framing),
    ("HTTP/1.1 204 x\r\nContent-Length: 3\r\n\r\nabc", Error::Framing),
    ("HTTP/1.1 200 OK\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n", Error::Head),
    ("HTTP/1.1 200 OK\r\nTransfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n", Error::Head),
    ("HTTP/1.1 200 OK\r\nX: y\nContent-Length: 3\r\n\r\nabc", Error::Head),
    ("HTTP/1.1 200 OK\r\nX: y\0z\r\n\r\n", Error::Head),
    ("\r\nHTTP/1.1 200 OK\r\nContent-Length: 3\n\r\n\r\nabc", Error::Head),
    ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\nabc\r\n0\r\n\r\n", Error::Chunk),
    ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc0\r\n\r\n", Error::Chunk),
    ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0x3\r\nabc\r\n0\r\n\r\n", Error::Chunk),
    ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-3\r\nabc\r\n0\r\n\r\n", Error::Chunk),
    ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n 3\r\nabc\r\n0\r\n\r\n", Error::Chunk),
    ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;a\nb\r\nabc\r\n0\r\n\r\n", Error::Chunk),
    ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n10000000000000003\r\nabc\r\n0\r\n\r\n", Error::Chunk),
    ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: y\n\r\n", Error::Chunk),
];

#[test]
fn what_can_be_read_in_two_ways_is_refused() {
    for (bytes, error) in SMUGGLED {
        assert_eq!(read_whole(bytes.as_bytes()), Err(error), "{bytes:?}");
    }
}

#[test]
fn a_body_cut_short_is_never_whole() {
    for bytes in [
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab".as_slice(),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    ] {
        let head = memchr::memmem::find(bytes, b"\r\n\r\n").unwrap() + 4;
        for end in head..bytes.len() {
            assert_eq!(read_whole(&bytes[..end]), Err(Error::Short), "{end}");
        }
    }
}

#[test]
fn heads_and_chunk_lines_are_bounded() {
    let long = |line: &str, times: usize| format!("HTTP/1.1 200 OK\r\n{}\r\n", line.repeat(times));
    assert!(read_whole(long("a: b\r\n", MAX_HEADERS).as_bytes()).is_ok());
    assert_eq!(read_whole(long("a: b\r\n", MAX_HEADERS + 1).as_bytes()), Err(Error::Head));
    let endless = vec![b'x'; MAX_HEAD_BYTES + 1];
    assert_eq!(read_whole(&endless), Err(Error::Head));
    assert_eq!(read(&Method::GET, endless.chunks(1000)), Err(Error::Head));
    for part in ["1;", "0\r\na"] {
        let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        let bytes = format!("{head}{part}{}", "x".repeat(MAX_CHUNK_LINE_BYTES));
        assert_eq!(read_whole(bytes.as_bytes()), Err(Error::Chunk), "{part:?}");
    }
}

/// A body in chunks of these sizes.
fn chunked(body: &[u8], sizes: &[usize]) -> Vec<u8> {
    let mut bytes = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
    let (mut rest, mut sizes) = (body, sizes.iter().cycle());
    while !rest.is_empty() {
        let (chunk, behind) = rest.split_at((*sizes.next().unwrap()).min(rest.len()));
        bytes.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
        bytes.extend_from_slice(chunk);
        bytes.extend_from_slice(b"\r\n");
        rest = behind;
    }
    bytes.extend_from_slice(b"0\r\n\r\n");
    bytes
}

/// Bytes that are nearly a response.
fn nearly() -> impl Strategy<Value = Vec<u8>> {
    let tokens = prop::sample::select(vec![
        "HTTP/1.1 200 OK\r\n",
        "HTTP/1.1 100 x\r\n",
        "Transfer-Encoding: chunked\r\n",
        "Content-Length: 7\r\n",
        "\r\n",
        "\n",
        "\r",
        "0",
        "3",
        "a",
        ";",
        " ",
        "abc",
        "0\r\n\r\n",
        "3\r\nabc\r\n",
        "Connection: close\r\n",
        "\0",
    ]);
    prop::collection::vec(tokens, 0..12).prop_map(|tokens| tokens.concat().into_bytes())
}

proptest! {
    #[test]
    fn any_slicing_equals_one_piece(bytes in nearly(), begun in any::<bool>(), size in 1usize..9) {
        let head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        let bytes = if begun { [head.as_slice(), &bytes].concat() } else { bytes };
        prop_assert_eq!(read(&Method::GET, bytes.chunks(size)), read_whole(&bytes));
    }

    #[test]
    fn a_chunked_body_comes_back(body in prop::collection::vec(any::<u8>(), 0..600),
                                 sizes in prop::collection::vec(1usize..200, 1..5),
                                 size in 1usize..50, behind in prop::collection::vec(any::<u8>(), 0..20)) {
        let bytes = [chunked(&body, &sizes), behind.clone()].concat();
        let read = read(&Method::GET, bytes.chunks(size)).unwrap().unwrap();
        prop_assert_eq!((read.body, read.left), (body, behind.len()));
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), size in 1usize..40) {
        let whole = read_whole(&bytes);
        prop_assert_eq!(read(&Method::GET, bytes.chunks(size)), whole);
    }
}
