//! Responses of a stream as one body, for a client that takes no stream.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;

use bytes::Bytes;

use crate::event_log::stream::delivery::Delivery;
use crate::event_log::stream::in_flight::Copied;
use crate::event_log::stream::state::Inner;
use crate::protocol::error::{ErrorCode, Failure};
use crate::protocol::ids::Seq;
use crate::protocol::jsonrpc::{self, Message};
use crate::protocol::sse;
use crate::protocol::stream::OwedResponse;

/// Responses of a stream.
pub struct Collected {
    /// Number of responses.
    pub responses: usize,
    /// All responses; an array if the requests came as one.
    pub body: Bytes,
}

impl Delivery<'_> {
    /// Returns the responses in the order of the requests, or `None` without a response. Missing
    /// responses are left out; a trimmed one is replaced by an error that says so. An event with
    /// several responses as an array is read once.
    ///
    /// Connections that are given the body at the same time share one copy, which counts in the
    /// principal's quota until the last of them releases it.
    pub fn collect(&self) -> Option<Collected> {
        let inner = &mut *self.0.lock();
        let answered = inner.machine.owed_responses().answered_len();
        let known = inner.collected.upgrade().filter(|copied| copied.answered == answered);
        let copied = match known {
            Some(copied) => copied,
            None => {
                let copied = Arc::new(self.copy_responses(inner)?);
                inner.collected = Arc::downgrade(&copied);
                copied
            }
        };
        Some(Collected { responses: copied.responses, body: copied.into_bytes() })
    }

    /// Returns the bytes of the response as an event, if it is the first event, and no other
    /// response is owed. Returns `None` for any other stream.
    pub fn only_response_len(&self) -> Option<usize> {
        let inner = self.0.lock();
        let mut owed = inner.machine.owed_responses().iter();
        match (owed.next(), owed.next()) {
            (Some((_, OwedResponse::Answered(Seq(1)))), None) => inner.tail.event(Seq(1)).map(<[u8]>::len),
            _ => None,
        }
    }

    fn copy_responses(&self, inner: &Inner) -> Option<Copied> {
        let mut read = HashSet::new();
        let mut texts: Vec<Cow<'_, [u8]>> = Vec::new();
        for (id, owed) in inner.machine.owed_responses().iter() {
            let OwedResponse::Answered(seq) = owed else { continue };
            if seq <= inner.machine.numbering().trimmed() {
                let failure = Failure::after_send(ErrorCode::BoundReached);
                texts.push(Cow::Owned(failure.to_message(Some(id), inner.machine.policy().subject())));
            } else if let Some(event) = inner.tail.event(seq)
                && read.insert(seq)
            {
                push_responses(&mut texts, sse::encoded_data(event));
            }
        }
        if texts.is_empty() {
            return None;
        }
        let bytes_of_array = texts.iter().map(|text| text.len() + 1).sum::<usize>() + 1;
        let held = self.0.quota.reserve(bytes_of_array);
        let is_array = self.0.is_batch || texts.len() > 1;
        let bytes = if is_array { array_of(&texts, bytes_of_array) } else { texts[0].to_vec() };
        Some(Copied {
            answered: inner.machine.owed_responses().answered_len(),
            responses: texts.len(),
            bytes,
            _held: held,
        })
    }
}

fn array_of(texts: &[Cow<'_, [u8]>], bytes: usize) -> Vec<u8> {
    let mut array = Vec::with_capacity(bytes);
    for text in texts {
        array.push(if array.is_empty() { b'[' } else { b',' });
        array.extend_from_slice(text);
    }
    array.push(b']');
    array
}

/// Appends a message, or the responses of an array.
fn push_responses<'a>(texts: &mut Vec<Cow<'a, [u8]>>, data: Cow<'a, [u8]>) {
    let Ok(jsonrpc::Body::Batch(messages)) = jsonrpc::peek(&data) else { return texts.push(data) };
    match data {
        Cow::Borrowed(data) => texts.extend(responses_of(&messages, data).map(Cow::Borrowed)),
        Cow::Owned(data) => texts.extend(responses_of(&messages, &data).map(|text| Cow::Owned(text.to_vec()))),
    }
}

fn responses_of<'a>(messages: &[Message], data: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
    let texts = messages.iter().zip(jsonrpc::messages(data));
    texts.filter(|(message, _)| matches!(message, Message::Response { .. })).map(|(_, text)| text.as_bytes())
}
