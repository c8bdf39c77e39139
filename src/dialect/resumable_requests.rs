//! Resumable requests, [SEP-975]: a token for each request, and a status without the messages.
//!
//! [SEP-975]: https://github.com/modelcontextprotocol/modelcontextprotocol/pull/925

use std::sync::Arc;

use super::Resumption;
use crate::event_log::Stream;
use crate::protocol::dialect::{self, Waits};
use crate::protocol::ids::Seq;
use crate::protocol::jsonrpc::RequestId;
use crate::protocol::stream::Announcements;

/// Announces the policy of every request of the stream, before anything else. The standalone stream
/// has no requests and gets none.
pub(super) fn announce(announcements: &mut Announcements, stream: &Stream, waits: Waits) {
    let requests: Vec<RequestId> = stream.with_machine(|machine| machine.owed_responses().ids().cloned().collect());
    let token = stream.handles().resume_token();
    announcements.opening.extend(requests.iter().map(|request| dialect::resume_policy(request, &token, waits)));
}

/// Serves `requests/resume` under `id`, the ID of the original request. The response has the
/// messages after `cursor`, or after the last confirmed one, up to the original response.
pub fn resume(stream: Arc<Stream>, id: &RequestId, cursor: Option<Seq>) -> Option<Resumption> {
    if !has_request(&stream, id) {
        return None;
    }
    Some(Resumption::new(stream, cursor, None))
}

/// Serves `requests/getStatus` under `id` for a client that has everything up to `cursor`. Fetches
/// and confirms nothing.
pub fn status(stream: &Stream, id: &RequestId, request: &RequestId, cursor: Option<Seq>) -> Option<Vec<u8>> {
    if !has_request(stream, request) {
        return None;
    }
    Some(dialect::request_status(id, request, stream.status(cursor)))
}

fn has_request(stream: &Stream, request: &RequestId) -> bool {
    stream.with_machine(|machine| machine.owed_responses().ids().any(|id| id == request))
}
