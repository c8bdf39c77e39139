//! Response to a poll of a task that runs: it begins at once, and has its one event later.
//!
//! The first event is empty and has an ID, so that a client whose connection is cut resumes for the
//! response. Absent: the response itself, and the moment at which it is due (`ingress/tasks/`).

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame};

use crate::body::{BoxError, Pieces};
use crate::protocol::ids::{self, Handle, Seq};
use crate::protocol::sse;

/// Number of the empty event.
const PRIMING: Seq = Seq(0);
/// Number of the response's event.
pub const ANSWER: Seq = Seq(1);

/// Body of the response. The response is the JSON-RPC message of its event, in pieces.
pub struct HeldPoll<F> {
    handle: Handle,
    response: Option<Pin<Box<F>>>,
    /// Pieces that are to be written next.
    ready: Pieces,
}

impl<F: Future<Output = [Bytes; 3]>> HeldPoll<F> {
    /// Creates a body with event IDs of `handle`, with the reconnect delay `retry`.
    pub fn new(handle: Handle, retry: Duration, response: F) -> Self {
        let mut priming = BytesMut::new();
        sse::encode_empty(&mut priming, None, Some(&id_of(&handle, PRIMING)), Some(retry));
        Self { handle, response: Some(Box::pin(response)), ready: Pieces::from_iter([priming.freeze()]) }
    }
}

impl<F: Future<Output = [Bytes; 3]>> Body for HeldPoll<F> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if self.ready.is_end_stream()
            && let Some(response) = &mut self.response
        {
            let message = ready!(response.as_mut().poll(cx));
            self.response = None;
            let mut start = BytesMut::new();
            sse::encode_id(&mut start, &id_of(&self.handle, ANSWER));
            self.ready = sse::encode_apart(start, b"message", message).into_iter().collect();
        }
        Pin::new(&mut self.ready).poll_frame(cx)
    }
}

fn id_of(handle: &Handle, seq: Seq) -> String {
    let mut id = String::new();
    // A String grows as it is written to.
    let _ = ids::write_event_id(&mut id, handle, seq, None);
    id
}
