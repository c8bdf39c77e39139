//! Bodies of requests: the search for an owner, and the part that can be sent a second time.
//!
//! Pingora keeps the first 64 KiB of a body for further attempts, and drops what is beyond. Absent:
//! the routing by what is found.

use bytes::{Bytes, BytesMut};
use http::Method;
use http::header::{CONTENT_LENGTH, EXPECT};
use pingora_core::Result;
use pingora_http::RequestHeader;
use pingora_proxy::Session;

use super::write_buffer::READ_MAX;
use mcp_resume_protocol::headers;

/// Longest body that is searched for an owner: Pingora keeps no more of a body for a retry.
const PEEK_MAX: usize = 64 * 1024;
/// Maximum length that is read of a body of unknown length. Another piece may not fit, and Pingora
/// drops the bytes that it does not keep.
const PEEK_UNKNOWN_MAX: usize = PEEK_MAX - READ_MAX;

/// Length of a body as its head states it.
enum Length {
    Unknown,
    /// At most [`PEEK_MAX`].
    Short,
    /// More than that, or unreadable.
    Long,
}

fn length(head: &RequestHeader) -> Length {
    match head.headers.get(CONTENT_LENGTH).map(|length| length.to_str().ok()?.parse::<usize>().ok()) {
        None => Length::Unknown,
        Some(Some(length)) if length <= PEEK_MAX => Length::Short,
        Some(_) => Length::Long,
    }
}

/// Returns the whole body of a request that is searched for an owner, else nothing.
///
/// # Errors
/// If the body cannot be read.
pub(super) async fn peek(session: &mut Session) -> Result<Bytes> {
    let head = session.req_header();
    let most = match length(head) {
        Length::Unknown => PEEK_UNKNOWN_MAX,
        Length::Short => PEEK_MAX,
        Length::Long => 0,
    };
    // A client that expects `100 Continue` before its body waits for the sidecar's.
    if head.method != Method::POST || !headers::is_json(&head.headers) || most == 0 || head.headers.contains_key(EXPECT)
    {
        return Ok(Bytes::new());
    }
    // Pingora keeps the pieces read from here on, and sends them to the backend.
    session.as_mut().enable_retry_buffering();
    let mut body = BytesMut::new();
    while body.len() <= most
        && let Some(piece) = session.read_request_body().await?
    {
        body.extend_from_slice(&piece);
    }
    Ok(body.freeze())
}

/// Returns true if Pingora may not keep the whole body of a POST for another attempt.
pub(super) fn is_long(session: &mut Session) -> bool {
    let head = session.req_header();
    head.method == Method::POST && !matches!(length(head), Length::Short) && !session.as_mut().is_body_done()
}
