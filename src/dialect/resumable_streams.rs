//! Resumable streams, [#899]: streams that announce their beginning and end, the standalone one
//! included.
//!
//! [#899]: https://github.com/modelcontextprotocol/modelcontextprotocol/pull/899

use std::sync::Arc;

use super::Resumption;
use crate::event_log::Stream;
use crate::protocol::dialect::{self, Waits};
use crate::protocol::ids::Seq;
use crate::protocol::jsonrpc::RequestId;
use crate::protocol::stream::Announcements;

/// Announces the stream's name and token first, and its end last. A stream of several requests, or
/// of none, names none.
pub(super) fn announce(announcements: &mut Announcements, stream: &Stream, waits: Waits) {
    let requests: Vec<RequestId> = stream.with_machine(|machine| machine.owed_responses().ids().cloned().collect());
    let request = match requests.as_slice() {
        [only] => Some(only),
        [] | [_, _, ..] => None,
    };
    let name = stream.id().to_string();
    announcements.opening.push(dialect::stream_create(&name, &stream.handles().resume_token(), request, waits));
    announcements.closing = Some(dialect::stream_end(&name));
}

/// Serves `stream/resume` under `id`: the messages after `cursor`, or after the last confirmed one,
/// up to the stream's end. The empty result of this request follows.
pub fn resume(stream: Arc<Stream>, id: &RequestId, name: &str, cursor: Option<Seq>) -> Option<Resumption> {
    if !is_named(&stream, name) {
        return None;
    }
    Some(Resumption::new(stream, cursor, Some(dialect::resumed(id))))
}

/// Serves `stream/poll` under `id` for a client that has everything up to `cursor`. Fetches and
/// confirms nothing.
pub fn poll(stream: &Stream, id: &RequestId, name: &str, cursor: Option<Seq>) -> Option<Vec<u8>> {
    if !is_named(stream, name) {
        return None;
    }
    Some(dialect::stream_status(id, name, stream.status(cursor)))
}

fn is_named(stream: &Stream, name: &str) -> bool {
    stream.id().to_string() == name
}
