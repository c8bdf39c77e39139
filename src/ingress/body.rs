//! Request bodies, read whole under a bound.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http::header::{CONTENT_LENGTH, EXPECT};
use http_body_util::BodyExt;
use hyper::body::Body;

use crate::incoming::Incoming;
use crate::protocol::error::ErrorCode;

/// A refused body is read on for so long, so that its sender gets to read the refusal before the connection closes.
const LINGER: Duration = Duration::from_secs(2);
/// And so far, in multiples of the bound.
const LINGER_BODIES: usize = 4;

/// The whole body of at most `limit` bytes.
///
/// # Errors
/// `BodyTooLarge`; `BadRequest` when it broke off, which nobody reads.
pub(super) async fn read(headers: &HeaderMap, mut body: Incoming, limit: usize) -> Result<Bytes, ErrorCode> {
    if body.size_hint().lower() > limit as u64 {
        // Whoever waits for `100 Continue` has sent nothing yet.
        if !headers.contains_key(EXPECT) {
            linger(body, limit).await;
        }
        return Err(ErrorCode::BodyTooLarge);
    }
    let expected = headers.get(CONTENT_LENGTH).map_or(0, |_| body.size_hint().lower() as usize);
    let mut whole = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|_| ErrorCode::BadRequest)?.into_data() else { continue };
        if whole.is_empty() && data.len() == expected {
            return Ok(data);
        }
        if whole.len() + data.len() > limit {
            linger(body, limit).await;
            return Err(ErrorCode::BodyTooLarge);
        }
        whole.extend_from_slice(&data);
    }
    Ok(whole.freeze())
}

async fn linger(mut body: Incoming, limit: usize) {
    let mut left = limit.saturating_mul(LINGER_BODIES);
    let drain = async {
        while let Some(Ok(frame)) = body.frame().await {
            match left.checked_sub(frame.data_ref().map_or(0, Bytes::len)) {
                Some(rest) => left = rest,
                None => return,
            }
        }
    };
    // Whether the sender stopped in time changes nothing.
    let _ = tokio::time::timeout(LINGER, drain).await;
}
