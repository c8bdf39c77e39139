//! The responses of a stream as single messages, for a client that takes no stream.

use std::collections::HashSet;

use bytes::Bytes;

use super::Stream;
use crate::protocol::error::{ErrorCode, Failure};
use crate::protocol::jsonrpc::{self, Message};
use crate::protocol::sse;
use crate::protocol::stream::Debt;

impl Stream {
    /// Each response the stream owes, in the order of the requests; those without one are left out. In place of one that was dropped for
    /// want of room stands the error that says so. An event that has several as an array is read once.
    pub fn responses(&self, max_event_bytes: usize) -> Vec<Bytes> {
        let inner = self.lock();
        let mut read = HashSet::new();
        let mut responses = Vec::new();
        for (id, debt) in inner.machine.debts().iter() {
            let Debt::Answered(seq) = debt else { continue };
            if seq <= inner.machine.trimmed() {
                responses.push(Failure::after_send(ErrorCode::BoundReached).to_message(Some(id)).into());
                continue;
            }
            let Some(event) = inner.tail.event(seq).filter(|_| read.insert(seq)) else { continue };
            let mut decoder = sse::Decoder::new(max_event_bytes.saturating_mul(2));
            decoder.feed(Bytes::copy_from_slice(event));
            if let Ok(Some(event)) = decoder.poll_event() {
                push_responses(&mut responses, event.data);
            }
        }
        responses
    }
}

/// A message as it is; of an array its responses.
fn push_responses(responses: &mut Vec<Bytes>, data: Bytes) {
    match jsonrpc::peek(&data) {
        Ok(jsonrpc::Body::Batch(messages)) => {
            let texts = messages.iter().zip(jsonrpc::messages(&data));
            let each = texts.filter(|(message, _)| matches!(message, Message::Response { .. }));
            responses.extend(each.map(|(_, text)| data.slice_ref(text.as_bytes())));
        }
        Ok(jsonrpc::Body::Single(_)) | Err(_) => responses.push(data),
    }
}
