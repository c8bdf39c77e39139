//! Heads: writes that of a request, and parses that of a response.

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

    /// Returns the bytes of `piece` that belong to the head that it completes. Only the last bytes
    /// before it are examined again, so a head in small pieces costs no more than one that comes
    /// whole.
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
    let mut headers = header_map(bytes, response.headers)?;
    let framing = framing(status, has_no_body, is_http11, &mut headers)?;
    let can_keep_alive = is_http11 && framing != Framing::UntilClose && !has_close(&headers);
    Ok(Some(Head { status, headers, framing, can_keep_alive }))
}

/// Returns true if a line of `bytes`, behind the byte `before`, ends without a carriage return.
fn has_lone_line_feed(before: Option<u8>, bytes: &[u8]) -> bool {
    let ahead_of = |at: usize| if at == 0 { before } else { Some(bytes[at - 1]) };
    memchr::memchr_iter(b'\n', bytes).any(|at| ahead_of(at) != Some(b'\r'))
}

fn header_map(bytes: &[u8], lines: &[httparse::Header<'_>]) -> Result<HeaderMap, Error> {
    let shared = Bytes::copy_from_slice(bytes);
    let mut headers = HeaderMap::with_capacity(lines.len());
    for line in lines {
        let name = HeaderName::from_bytes(line.name.as_bytes()).map_err(|_| Error::Head)?;
        let at = line.value.as_ptr().addr() - bytes.as_ptr().addr();
        let value = shared.slice(at..at + line.value.len());
        headers.append(name, HeaderValue::from_maybe_shared(value).map_err(|_| Error::Head)?);
    }
    Ok(headers)
}

/// Returns the framing by [RFC 9112 §6.3](https://www.rfc-editor.org/rfc/rfc9112#section-6.3), and
/// refuses every ambiguous case.
fn framing(status: StatusCode, has_no_body: bool, is_http11: bool, headers: &mut HeaderMap) -> Result<Framing, Error> {
    let (length, is_chunked) = checked_length(status, headers)?;
    if is_chunked && !is_http11 {
        return Err(Error::Framing);
    }
    if has_no_body || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED) {
        return Ok(Framing::Length(0));
    }
    Ok(match length {
        _ if is_chunked => Framing::Chunked,
        Some(length) => Framing::Length(length),
        None => Framing::UntilClose,
    })
}

/// Refuses a head from another parser that [`HeadReader`] would refuse, and reduces several equal
/// lengths to one, because the next reader could misunderstand a second line ([RFC 9110 §8.6]).
///
/// # Errors
/// [`Error::Framing`] if the length of the body is declared in two ways, or in an unknown one.
///
/// [RFC 9110 §8.6]: https://www.rfc-editor.org/rfc/rfc9110#section-8.6
pub fn check_length(status: StatusCode, headers: &mut HeaderMap) -> Result<(), Error> {
    checked_length(status, headers).map(|_| ())
}

/// Checks the length as [`check_length`] does, and returns it as [`declared_length`] does.
fn checked_length(status: StatusCode, headers: &mut HeaderMap) -> Result<(Option<u64>, bool), Error> {
    let (length, is_chunked) = declared_length(status, headers)?;
    if let Some(length) = length
        && headers.get_all(CONTENT_LENGTH).iter().nth(1).is_some()
    {
        headers.insert(CONTENT_LENGTH, length.into());
    }
    Ok((length, is_chunked))
}

/// Returns the length that a head declares, and true if the body is chunked. Refuses a 204 that
/// declares a body, since readers differ in its framing.
fn declared_length(status: StatusCode, headers: &HeaderMap) -> Result<(Option<u64>, bool), Error> {
    let declared = (content_length(headers)?, is_chunked(headers)?);
    match declared {
        (Some(_), true) => Err(Error::Framing),
        (Some(1..), false) if status == StatusCode::NO_CONTENT => Err(Error::Framing),
        _ => Ok(declared),
    }
}

/// Returns the length in `Content-Length`, or `None` without one. Several lines must have the same
/// number.
fn content_length(headers: &HeaderMap) -> Result<Option<u64>, Error> {
    let mut found = None;
    for value in headers.get_all(CONTENT_LENGTH) {
        let text = value.to_str().map_err(|_| Error::Framing)?;
        let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let length: u64 =
            if is_number { text.parse().map_err(|_| Error::Framing)? } else { return Err(Error::Framing) };
        if found.replace(length).is_some_and(|earlier| earlier != length) {
            return Err(Error::Framing);
        }
    }
    Ok(found)
}

fn is_chunked(headers: &HeaderMap) -> Result<bool, Error> {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    match (codings.next(), codings.next()) {
        (None, _) => Ok(false),
        (Some(only), None) if only.as_bytes().eq_ignore_ascii_case(b"chunked") => Ok(true),
        (Some(_), _) => Err(Error::Framing),
    }
}

fn has_close(headers: &HeaderMap) -> bool {
    let values = headers.get_all(CONNECTION).iter();
    values.filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(',')).any(|option| {
        let option = option.trim();
        option.eq_ignore_ascii_case("close")
    })
}
