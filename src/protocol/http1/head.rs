//! Heads: writes the head of a request, and parses the head of a response.

use std::mem::MaybeUninit;
use std::sync::LazyLock;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, HOST, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use httparse::ParserConfig;
use memchr::memmem::Finder;

use super::{Error, Framing, MAX_HEAD_BYTES, MAX_HEADERS, MAX_INTERIM_HEADS};
use crate::headers::Lines;

/// Writes the head of a request to `target` with a body of `body` bytes, and reserves `room` bytes
/// behind it. Names `host` if `lines` have no `Host`.
pub fn encode_request(method: &Method, target: &str, host: &str, lines: &Lines, body: usize, room: usize) -> Vec<u8> {
    // The version, the length of the body, and the ends of lines.
    const MORE: usize = 64;
    let mut head = Vec::with_capacity(target.len() + host.len() + lines.as_bytes().len() + MORE + room);
    let mut write = |piece: &[u8]| head.extend_from_slice(piece);
    for piece in [method.as_str(), " ", target, " HTTP/1.1\r\n"] {
        write(piece.as_bytes());
    }
    if !lines.contains(&HOST) {
        for piece in [HOST.as_str(), ": ", host, "\r\n"] {
            write(piece.as_bytes());
        }
    }
    write(lines.as_bytes());
    if body > 0 {
        for piece in [CONTENT_LENGTH.as_str(), ": ", itoa::Buffer::new().format(body), "\r\n"] {
            write(piece.as_bytes());
        }
    }
    write(b"\r\n");
    head
}

/// The head of a final response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The status code.
    pub status: StatusCode,
    /// Every header line, in order, with one length at most. The values share one allocation of the
    /// head's size.
    pub headers: HeaderMap,
    /// Framing of the body.
    pub framing: Framing,
    /// True if the connection may carry another request after the body.
    pub can_keep_alive: bool,
}

/// Parses the head of a response from pieces of any size. Interim heads (1xx) before it are
/// skipped.
#[derive(Debug)]
pub struct HeadReader {
    /// True for the response to a HEAD, which has no body even if it declares one.
    has_no_body: bool,
    /// The beginning of an incomplete head.
    begun: Vec<u8>,
    /// Number of interim heads that were skipped.
    interim: usize,
}

impl HeadReader {
    /// Creates a reader of the response to a request of this method.
    pub fn new(method: &Method) -> Self {
        Self { has_no_body: method == Method::HEAD, begun: Vec::new(), interim: 0 }
    }

    /// Takes `piece`. Returns the head and the bytes of the piece behind it, or `None` if more
    /// bytes are needed.
    ///
    /// # Errors
    /// If the bytes are no head of a response. No more bytes may be passed then.
    pub fn handle_piece<'a>(&mut self, piece: &'a [u8]) -> Result<Option<(Head, &'a [u8])>, Error> {
        let mut rest = piece;
        loop {
            let Some(length) = self.end_of_head(rest) else {
                // No later byte could end a head with a lone line feed, so the wait would never
                // end.
                if has_lone_line_feed(self.begun.last().copied(), rest) {
                    return Err(Error::Head);
                }
                self.begun.extend_from_slice(rest);
                return if self.begun.len() > MAX_HEAD_BYTES { Err(Error::Head) } else { Ok(None) };
            };
            let (ours, behind) = rest.split_at(length);
            let head = if self.begun.is_empty() {
                parse(ours, self.has_no_body)?
            } else {
                self.begun.extend_from_slice(ours);
                parse(&std::mem::take(&mut self.begun), self.has_no_body)?
            };
            match head {
                Some(head) => return Ok(Some((head, behind))),
                None if self.interim == MAX_INTERIM_HEADS => return Err(Error::Head),
                None => (self.interim, rest) = (self.interim + 1, behind),
            }
        }
    }

    /// Returns the number of bytes of `piece` that complete the head. Only the last bytes before it
    /// are examined again, so a head in small pieces costs no more than a whole one.
    fn end_of_head(&self, piece: &[u8]) -> Option<usize> {
        const END: &[u8] = b"\r\n\r\n";
        static FINDER: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(END));
        let within = |piece| FINDER.find(piece).map(|at| at + END.len());
        if self.begun.is_empty() {
            return within(piece);
        }
        let overlap = self.begun.len().min(END.len() - 1);
        let mut seam = [0; 2 * (END.len() - 1)];
        let ahead = piece.len().min(END.len() - 1);
        seam[..overlap].copy_from_slice(&self.begun[self.begun.len() - overlap..]);
        seam[overlap..overlap + ahead].copy_from_slice(&piece[..ahead]);
        let across = within(&seam[..overlap + ahead]).map(|end| end - overlap);
        across.or_else(|| within(piece))
    }
}

/// Parses a complete head. Returns `None` for an interim one.
fn parse(bytes: &[u8], has_no_body: bool) -> Result<Option<Head>, Error> {
    if bytes.len() > MAX_HEAD_BYTES || has_lone_line_feed(None, bytes) {
        return Err(Error::Head);
    }
    // Not initialised: that would cost more than the few lines of most heads.
    let mut lines = [const { MaybeUninit::uninit() }; MAX_HEADERS];
    let mut response = httparse::Response::new(&mut []);
    match ParserConfig::default().parse_response_with_uninit_headers(&mut response, bytes, &mut lines) {
        Ok(httparse::Status::Complete(length)) if length == bytes.len() => {}
        Ok(_) | Err(_) => return Err(Error::Head),
    }
    let status = response.code.and_then(|code| StatusCode::from_u16(code).ok()).ok_or(Error::Head)?;
    let is_http11 = response.version == Some(1);
    match status {
        StatusCode::SWITCHING_PROTOCOLS => return Err(Error::Switched),
        status if status.is_informational() => return Ok(None),
        _ => {}
    }
    let mut declared = Declared::default();
    let mut headers = header_map(bytes, response.headers, &mut declared)?;
    declared.check(status)?;
    declared.reduce(&mut headers);
    let framing = framing(status, has_no_body, is_http11, &declared)?;
    let can_keep_alive = is_http11 && framing != Framing::UntilClose && !declared.has_close;
    Ok(Some(Head { status, headers, framing, can_keep_alive }))
}

/// Returns true if a line of `bytes`, behind the byte `before`, ends without a carriage return.
fn has_lone_line_feed(before: Option<u8>, bytes: &[u8]) -> bool {
    let ahead_of = |at: usize| if at == 0 { before } else { Some(bytes[at - 1]) };
    memchr::memchr_iter(b'\n', bytes).any(|at| ahead_of(at) != Some(b'\r'))
}

/// Headers that the proxy adds to most heads of event streams. The map has capacity for them.
const ADDED_HEADERS: usize = 3;

fn header_map(bytes: &[u8], lines: &[httparse::Header<'_>], declared: &mut Declared) -> Result<HeaderMap, Error> {
    let shared = Bytes::copy_from_slice(bytes);
    let mut headers = HeaderMap::with_capacity(lines.len() + ADDED_HEADERS);
    for line in lines {
        let name = HeaderName::from_bytes(line.name.as_bytes()).map_err(|_| Error::Head)?;
        declared.add(&name, line.value)?;
        let at = line.value.as_ptr().addr() - bytes.as_ptr().addr();
        let value = shared.slice(at..at + line.value.len());
        headers.append(name, HeaderValue::from_maybe_shared(value).map_err(|_| Error::Head)?);
    }
    Ok(headers)
}

/// Returns the framing by [RFC 9112 §6.3](https://www.rfc-editor.org/rfc/rfc9112#section-6.3), and
/// refuses every ambiguous case.
fn framing(status: StatusCode, has_no_body: bool, is_http11: bool, declared: &Declared) -> Result<Framing, Error> {
    if declared.is_chunked && !is_http11 {
        return Err(Error::Framing);
    }
    if has_no_body || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED) {
        return Ok(Framing::Length(0));
    }
    Ok(match declared.length {
        _ if declared.is_chunked => Framing::Chunked,
        Some(length) => Framing::Length(length),
        None => Framing::UntilClose,
    })
}

/// Refuses a head from another parser that [`HeadReader`] would refuse. Reduces several equal
/// lengths to one, because the next reader could misunderstand a second line ([RFC 9110 §8.6]).
///
/// # Errors
/// [`Error::Framing`] if the length of the body is declared in two ways, or in an unknown one.
///
/// [RFC 9110 §8.6]: https://www.rfc-editor.org/rfc/rfc9110#section-8.6
pub fn check_length(status: StatusCode, headers: &mut HeaderMap) -> Result<(), Error> {
    let mut declared = Declared::default();
    for (name, value) in &*headers {
        declared.add(name, value.as_bytes())?;
    }
    declared.check(status)?;
    declared.reduce(headers);
    Ok(())
}

/// Declarations of a head about its body and its connection.
#[derive(Default)]
struct Declared {
    /// Length in `Content-Length`.
    length: Option<u64>,
    /// True if several lines declare it.
    has_several_lengths: bool,
    is_chunked: bool,
    /// True if `Connection` has the option `close`.
    has_close: bool,
}

impl Declared {
    /// Adds a line. Several lengths must be the same number, and `chunked` must be the only coding.
    fn add(&mut self, name: &HeaderName, value: &[u8]) -> Result<(), Error> {
        if *name == CONTENT_LENGTH {
            let length = parse_length(value).ok_or(Error::Framing)?;
            self.has_several_lengths = self.length.is_some();
            if self.length.replace(length).is_some_and(|earlier| earlier != length) {
                return Err(Error::Framing);
            }
        } else if *name == TRANSFER_ENCODING {
            if self.is_chunked || !value.eq_ignore_ascii_case(b"chunked") {
                return Err(Error::Framing);
            }
            self.is_chunked = true;
        } else if *name == CONNECTION {
            let mut options = value.split(|byte| *byte == b',');
            self.has_close |= options.any(|option| option.trim_ascii().eq_ignore_ascii_case(b"close"));
        }
        Ok(())
    }

    /// Refuses two declarations of the body, and a 204 that declares one: readers differ in its
    /// framing.
    fn check(&self, status: StatusCode) -> Result<(), Error> {
        match self.length {
            Some(_) if self.is_chunked => Err(Error::Framing),
            Some(1..) if status == StatusCode::NO_CONTENT => Err(Error::Framing),
            Some(_) | None => Ok(()),
        }
    }

    /// Reduces several lengths to one.
    fn reduce(&self, headers: &mut HeaderMap) {
        if self.has_several_lengths
            && let Some(length) = self.length
        {
            headers.insert(CONTENT_LENGTH, length.into());
        }
    }
}

/// Parses a length: decimal digits alone.
fn parse_length(value: &[u8]) -> Option<u64> {
    if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
        return None;
    }
    str::from_utf8(value).ok()?.parse().ok()
}
