//! Finished calls of a session in the log: the searches by session, which find stubs too.

use std::collections::HashSet;
use std::sync::Arc;

use crate::event_log::identity::principal::Principal;
use crate::event_log::log::EventLog;
use crate::event_log::sessions::Session;
use crate::event_log::stream::Stream;
use crate::protocol::error::ErrorCode;
use crate::protocol::headers::SessionId;
use crate::protocol::jsonrpc::{Message, RequestId};

impl EventLog {
    /// Returns the streams of a session on which the server has sent requests: all that are whole, and of the finished calls those that
    /// know a request which one of `messages` answers.
    pub fn asking_streams(&self, id: &SessionId, session: &Session, messages: &[Message]) -> Vec<Arc<Stream>> {
        let mut asking = self.sessions.streams_with_server_requests(id, session);
        asking.extend(self.answered_streams(session, messages));
        asking
    }

    /// Returns the finished calls of a session that know a request of the server which one of `messages` answers.
    pub fn answered_streams(&self, session: &Session, messages: &[Message]) -> Vec<Arc<Stream>> {
        let finished = session.finished();
        if finished.is_empty() {
            return Vec::new();
        }
        let ids: HashSet<&RequestId> = messages.iter().filter_map(answered).collect();
        let knows = |id: &_| {
            let known = self.streams.entries.get(id);
            known.is_some_and(|known| known.value().stub().is_none_or(|stub| stub.knows_request(&ids)))
        };
        finished.into_iter().filter(knows).filter_map(|id| self.expand(id)).collect()
    }

    /// Returns the ids of the server's requests that no client has answered, of the finished calls of a session under these principals.
    pub fn unanswered_requests(&self, id: &SessionId, principals: &[Principal]) -> Vec<RequestId> {
        let finished = self.sessions.finished_of(id, principals);
        let of =
            |id| self.streams.entries.get(&id).map(|known| known.value().stub().map(|stub| stub.unanswered_requests()));
        finished.into_iter().filter_map(of).flatten().flatten().collect()
    }

    /// Ends the finished calls of a session that was deleted: their tokens open them no more.
    pub fn expire_finished(&self, session: &Session) {
        for id in session.finished() {
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
