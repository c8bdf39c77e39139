//! The resumption proposals beside the specification's own, as thin adapters over the event log and
//! delivery.
//!
//! A dialect turns a request into a stream, a cursor and a plan of delivery, or into a status. It
//! also writes the announcements on the streams of clients that declared it. No dialect stores
//! anything, sets a timer or decides a policy. All share the stream's one cursor, its confirmations
//! and its timers, so that a client may change between dialects. Absent: HTTP (ingress), the wire
//! forms ([`crate::protocol::dialect`], [`crate::protocol::stream_url`]), and the specification's
//! own resumption by `Last-Event-ID`, which needs no adapter.

pub mod resumable_requests;
pub mod resumable_streams;
pub mod resume_tokens;
pub mod stream_url;

use std::sync::Arc;

use crate::event_log::{Slice, Stream};
use crate::protocol::dialect::{Declared, Waits};
use crate::protocol::ids::Seq;
use crate::protocol::stream::Announcements;

/// Resumption of a stream by a dialect's request. `None` in its place is a refusal that gives no
/// reason.
#[derive(Debug)]
pub struct Resumption {
    /// Stream to resume.
    pub stream: Arc<Stream>,
    /// Cursor of the client.
    pub after: Seq,
    /// True if events after the client's last confirmed one are lost.
    pub has_gap: bool,
    /// Message behind the stream's last one, on this connection alone.
    pub closing: Option<Vec<u8>>,
    /// Slice that reads the stream, or `None` if it is not read in slices.
    pub slice: Option<Arc<Slice>>,
}

impl Resumption {
    /// Resumes the stream for a client that confirms `cursor` by this request: earlier events are
    /// released.
    fn new(stream: Arc<Stream>, cursor: Option<Seq>, closing: Option<Vec<u8>>) -> Self {
        let after = stream.resume_by_token(cursor);
        Self { closing, ..Self::after(stream, after) }
    }

    /// Resumes the stream after the events that its client has confirmed.
    fn after(stream: Arc<Stream>, after: Seq) -> Self {
        let has_gap = stream.with_machine(|machine| machine.numbering().trimmed() > machine.reader().confirmed());
        Self { stream, after, has_gap, closing: None, slice: None }
    }
}

/// Announces on a new stream the ways to resume it, to a client that declared at least one dialect.
pub fn announce(stream: &Stream, declared: Declared, waits: Waits) {
    let mut announcements = Announcements::default();
    if declared.resumable_requests {
        resumable_requests::announce(&mut announcements, stream, waits);
    }
    if declared.resumable_streams {
        resumable_streams::announce(&mut announcements, stream, waits);
    }
    stream.change(|machine, _| machine.lifecycle_mut().set_announcements(announcements));
}
