//! 6. The resumption proposals beside the specification's own, as thin adapters over the event log and delivery.
//!
//! A dialect turns a request into a stream, a place in it and a way to deliver, or into a status; and it says what is announced
//! on the streams of clients that declared it. Nothing here stores anything, sets a timer or decides a policy: every dialect
//! shares the stream's one cursor, its confirmations and its timers, so that a client may change between them. Absent: HTTP
//! (ingress), the wire forms ([`crate::protocol::dialect`], [`crate::protocol::stream_url`]), and the specification's own
//! resumption by `Last-Event-ID`, which needs no adapter.

pub mod resumable_requests;
pub mod resumable_streams;
pub mod resume_tokens;
pub mod stream_url;

use std::sync::Arc;

use crate::event_log::{Slice, Stream};
use crate::protocol::dialect::{Declared, Waits};
use crate::protocol::ids::Seq;
use crate::protocol::stream::Announcements;

/// A request that a dialect serves with a stream: `None` in its place is a refusal that says nothing of the reason.
#[derive(Debug)]
pub struct Resumption {
    /// The stream.
    pub stream: Arc<Stream>,
    /// Where the client goes on.
    pub after: Seq,
    /// Events behind the client's last confirmed one are gone.
    pub has_gap: bool,
    /// What follows the stream's last message on this connection alone.
    pub closing: Option<Vec<u8>>,
    /// The call that reads it, where it is read in slices.
    pub slice: Option<Arc<Slice>>,
}

impl Resumption {
    /// The stream goes on for a client that confirms `cursor` by this request: what precedes it is let go.
    fn new(stream: Arc<Stream>, cursor: Option<Seq>, closing: Option<Vec<u8>>) -> Self {
        let after = stream.note_return_by_token(cursor);
        Self { closing, ..Self::after(stream, after) }
    }

    /// The stream goes on behind what its client has confirmed.
    fn after(stream: Arc<Stream>, after: Seq) -> Self {
        let has_gap = stream.look(|machine| machine.trimmed() > machine.reader().confirmed());
        Self { stream, after, has_gap, closing: None, slice: None }
    }
}

/// Announces on a new stream how it may be resumed, to a client that declared at least one dialect.
pub fn announce(stream: &Stream, declared: Declared, waits: Waits) {
    let mut frame = Announcements::default();
    if declared.resumable_requests {
        resumable_requests::announce(&mut frame, stream, waits);
    }
    if declared.resumable_streams {
        resumable_streams::announce(&mut frame, stream, waits);
    }
    stream.frame(frame);
}
