//! The stream URL, [SEP-1335]: a link for each stream, and turns in place of connections that wait
//! for the client.
//!
//! [SEP-1335]: https://github.com/modelcontextprotocol/modelcontextprotocol/issues/1335

use std::sync::Arc;

use bytes::Bytes;

use super::Resumption;
use crate::event_log::Stream;
use crate::protocol::ids::Seq;
use crate::protocol::jsonrpc::RequestId;
use crate::protocol::stream::{ClientResponse, CursorPlace, Resume};

/// Result of a resumption by URL.
#[derive(Debug)]
pub enum UrlResumption {
    /// The stream has messages for the client, or may get them.
    Open(Resumption),
    /// The client has everything: the stream has ended, or waits for client responses.
    AtEnd,
    /// The cursor cannot be located any more.
    Lost,
}

/// Resumes a stream by the URL with this handle, for a client that has everything up to `cursor`.
/// Without a cursor the client has everything up to the beginning of its last turn, or nothing.
/// With `should_notify_turn` the client is notified of its turn.
pub fn resume(stream: &Arc<Stream>, handle: &str, cursor: Option<Seq>, should_notify_turn: bool) -> UrlResumption {
    let slice = stream.slices().and_then(|slices| slices.find(handle));
    if slice.is_none() && stream.slices().is_some() {
        return UrlResumption::Lost;
    }
    let (wanted, trimmed, place) = stream.with_machine(|machine| {
        let wanted = cursor.or_else(|| machine.input_turn().began_at()).unwrap_or_default();
        (wanted, machine.numbering().trimmed(), machine.locate(wanted))
    });
    if cursor.is_some() && place == CursorPlace::Lost {
        return UrlResumption::Lost;
    }
    stream.resume(Resume::ByUrl, cursor);
    if place == CursorPlace::AtEnd
        || (should_notify_turn && stream.change(|machine, now| machine.handle_input_turn(wanted, now)))
    {
        return UrlResumption::AtEnd;
    }
    let after = wanted.max(trimmed);
    UrlResumption::Open(Resumption { stream: stream.clone(), after, has_gap: wanted < trimmed, closing: None, slice })
}

/// Client responses for a stream, sorted by their next step.
#[derive(Debug, Default)]
pub struct SortedResponses {
    /// Responses to forward to the upstream, in order. Each has the request of this stream that it
    /// is the first to respond to, or `None`.
    pub to_forward: Vec<(Bytes, Option<RequestId>)>,
    /// Number of responses that were sent before.
    pub repeated: usize,
}

/// Notes the client responses to requests of this stream, even if other streams have requests with
/// the same ids.
pub fn note_responses(stream: &Stream, responses: Vec<(Bytes, RequestId)>) -> SortedResponses {
    let mut sorted = SortedResponses::default();
    for (message, id) in responses {
        match stream.change(|machine, now| machine.handle_client_response(&id, now)) {
            ClientResponse::First => sorted.to_forward.push((message, Some(id))),
            // Not of this stream: the upstream decides.
            ClientResponse::Unknown => sorted.to_forward.push((message, None)),
            ClientResponse::Duplicate | ClientResponse::Late => sorted.repeated += 1,
        }
    }
    sorted
}

/// Returns the result of [`note_responses`] without a change.
pub fn preview_responses(stream: &Stream, responses: Vec<(Bytes, RequestId)>) -> SortedResponses {
    let mut sorted = SortedResponses::default();
    for (message, id) in responses {
        let (is_outstanding, is_known) = stream.with_machine(|machine| {
            (machine.server_requests().outstanding_since(&id).is_some(), machine.server_requests().knows(&id))
        });
        match (is_outstanding, is_known) {
            (true, _) => sorted.to_forward.push((message, Some(id))),
            (false, false) => sorted.to_forward.push((message, None)),
            (false, true) => sorted.repeated += 1,
        }
    }
    sorted
}
