//! Response to a well-formed event ID without a stream: exactly one event.

use bytes::{Bytes, BytesMut};

use crate::protocol::error::{ErrorCode, Failure, Subject};
use crate::protocol::ids::{self, EventId, Handle, Requests};
use crate::protocol::sse;

/// Returns a JSON-RPC error for the request in the id's handle, read unverified, under the id
/// `<handle>.end`. Forged, foreign, unknown, expired and trimmed ids give the same bytes.
///
/// # Panics
/// Never: a `BytesMut` grows as it is written to.
pub fn lost_event(id: &EventId) -> Bytes {
    lost(id.handle_text(), id.unverified_requests())
}

/// Returns the same event for a stream with this handle.
pub(super) fn stream_lost_event(handle: &Handle) -> Bytes {
    let id = EventId::parse(format!("{}.0", handle.as_str()).as_bytes());
    lost(handle.as_str(), id.map_or(Requests::Unknown, |id| id.unverified_requests()))
}

fn lost(handle: &str, requests: Requests) -> Bytes {
    let failure = Failure::after_send(ErrorCode::StreamLost);
    // An event ID does not name the method.
    let subject = Subject::Request;
    let data = match requests {
        Requests::One(request) => failure.to_body(&[request], false, subject),
        Requests::Unknown => failure.to_body(&[], false, subject),
        Requests::Batch(requests) => failure.to_body(&requests, true, subject),
    };
    let mut event = BytesMut::from(&b"id: "[..]);
    ids::write_end_id(&mut event, handle).expect("a BytesMut grows as it is written to");
    event.extend_from_slice(b"\n");
    sse::encode_event(&mut event, b"message", &data);
    event.freeze()
}
