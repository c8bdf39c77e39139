//! Finished calls of a session in the log: the searches by session, which find stubs too.

use std::collections::HashSet;
use std::ops::Deref;
use std::sync::Arc;

use crate::event_log::retention::Retention;
use crate::event_log::sessions::Session;
use crate::event_log::stream::Stream;
use crate::event_log::writer::stream_table::StreamEntry;
use crate::identity::Principal;
use crate::protocol::error::ErrorCode;
use crate::protocol::headers::SessionId;
use crate::protocol::jsonrpc::{Message, RequestId};

/// Number of finished calls of a session that are ended before other tasks run.
const EXPIRED_AT_ONCE: usize = 64;

/// Streams that a search by session has found. Each is released when this is dropped. So a stream
/// that was made of its stub for the search becomes a stub again.
pub struct FoundStreams<'a> {
    retention: &'a Retention,
    streams: Vec<Arc<Stream>>,
}

impl Deref for FoundStreams<'_> {
    type Target = [Arc<Stream>];

    fn deref(&self) -> &Self::Target {
        &self.streams
    }
}

impl Drop for FoundStreams<'_> {
    fn drop(&mut self) {
        for stream in self.streams.drain(..) {
            self.retention.release(stream);
        }
    }
}

impl Retention {
    /// Returns the streams of a session that may have server requests: all whole streams, and the
    /// finished calls with a request that any of `messages` responds to.
    pub fn asking_streams(&self, id: &SessionId, session: &Session, messages: &[Message]) -> FoundStreams<'_> {
        self.with_answered(self.sessions.streams_with_server_requests(id, session), session, messages)
    }

    /// Returns every live stream of a session, and its finished calls with a request that any of
    /// `messages` responds to.
    pub fn concerned_streams(&self, id: &SessionId, session: &Session, messages: &[Message]) -> FoundStreams<'_> {
        self.with_answered(self.sessions.streams(id, session), session, messages)
    }

    /// Adds the finished calls of a session with a server request that any of `messages` responds
    /// to.
    fn with_answered(
        &self,
        mut streams: Vec<Arc<Stream>>,
        session: &Session,
        messages: &[Message],
    ) -> FoundStreams<'_> {
        let finished = session.finished();
        if !finished.is_empty() {
            let ids: HashSet<&RequestId> = messages.iter().filter_map(answered).collect();
            let knows = |id: &_| {
                let known = self.streams.entries.get(id);
                known.is_some_and(|known| known.value().stub().is_none_or(|stub| stub.knows_request(&ids)))
            };
            streams.extend(finished.into_iter().filter(knows).filter_map(|id| self.expand(id)));
        }
        FoundStreams { retention: self, streams }
    }

    /// Returns the ids of the server requests without a client response, of the finished calls
    /// of a session under these principals.
    pub fn unanswered_requests(&self, id: &SessionId, principals: &[Principal]) -> Vec<RequestId> {
        let finished = self.sessions.finished_of(id, principals);
        let of = |id| {
            Some(match self.streams.entries.get(&id)?.value() {
                StreamEntry::Stub(stub) => stub.unanswered_requests(),
                // Rebuilt from its stub, and in no record as a stream.
                StreamEntry::Stream(stream) => {
                    stream.with_machine(|machine| machine.server_requests().outstanding().cloned().collect())
                }
            })
        };
        finished.into_iter().filter_map(of).flatten().collect()
    }

    /// Ends the finished calls of a session that was deleted: their tokens open them no more.
    pub async fn expire_finished(&self, session: &Session) {
        for (index, id) in session.finished().into_iter().enumerate() {
            if index % EXPIRED_AT_ONCE == EXPIRED_AT_ONCE - 1 {
                tokio::task::yield_now().await;
            }
            // One stub at a time is a stream meanwhile.
            let Some((stream, _)) = self.expand_briefly(id) else { continue };
            stream.expire(ErrorCode::Abandoned);
            self.release(stream);
        }
    }
}

fn answered(message: &Message) -> Option<&RequestId> {
    match message {
        Message::Response { id, .. } => id.as_ref(),
        Message::Request { .. } | Message::Notification { .. } => None,
    }
}
