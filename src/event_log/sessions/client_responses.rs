//! Client responses in a session: the stream with the server request of each.
//!
//! Absent: finished calls that are stubs (`retention/finished.rs`).

use std::sync::Arc;

use crate::event_log::sessions::{Session, Sessions};
use crate::event_log::stream::Stream;
use crate::protocol::headers::SessionId;
use crate::protocol::jsonrpc::RequestId;
use crate::protocol::stream::ClientResponse;

impl Sessions {
    /// Returns the streams of a session that have server requests.
    pub fn streams_with_server_requests(&self, id: &SessionId, session: &Session) -> Vec<Arc<Stream>> {
        let mut asking = self.streams(id, session);
        asking.retain(|stream| stream.with_machine(|machine| !machine.server_requests().is_empty()));
        asking
    }

    /// Matches a client response with the oldest outstanding request of this id on `streams`, and
    /// returns the stream. A finished stream comes last, because nothing there waits for it.
    pub fn match_client_response(
        streams: &[Arc<Stream>],
        request: &RequestId,
    ) -> (ClientResponse, Option<Arc<Stream>>) {
        let since = |stream: &Arc<Stream>| stream.with_machine(|machine| machine.awaits_response_since(request));
        let mut waiting: Vec<_> = streams.iter().filter_map(|stream| Some((since(stream)?, stream))).collect();
        waiting.sort_by_key(|(since, _)| *since);
        // Another client response may be faster: then the next request is tried.
        for (_, stream) in waiting {
            if stream.change(|machine, now| machine.handle_client_response(request, now)) == ClientResponse::First {
                return (ClientResponse::First, Some(stream.clone()));
            }
        }
        if let Some(stream) =
            streams.iter().find(|stream| stream.with_machine(|machine| machine.server_requests().has_answered(request)))
        {
            return (ClientResponse::Duplicate, Some(stream.clone()));
        }
        for stream in streams {
            let response = stream.change(|machine, now| machine.handle_client_response(request, now));
            if response != ClientResponse::Unknown {
                return (response, Some(stream.clone()));
            }
        }
        (ClientResponse::Unknown, None)
    }
}
