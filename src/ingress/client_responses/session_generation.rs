//! Client responses and cancels in a revived session: the generation of the session that each
//! concerns.
//!
//! A response goes to the generation of its server request, and a cancel to the generation of the
//! cancelled request. Owned here: the choice of one generation for a POST, and the responses that
//! are dropped since their request is gone. A batch for several generations goes to the newest of
//! them; its responses to the others are dropped. Absent: the names and the IDs of generations
//! (`event_log`).

use std::sync::Arc;

use bytes::Bytes;
use tracing::debug;

use crate::event_log::{EventLog, Handshake, Session, Stream};
use crate::protocol::headers::SessionId;
use crate::protocol::ids::SessionGeneration;
use crate::protocol::jsonrpc::{self, Message, RequestId};
use crate::upstream::{Template, Upstream, reopened_session};

/// Way of a POST in a revived session.
pub(super) struct GenerationRoute {
    handshake: Arc<Handshake>,
    /// Generation of the POST, or `None` if it concerns no particular one.
    generation: Option<SessionGeneration>,
    /// Indexes of the responses that are dropped, in order.
    dropped: Vec<usize>,
}

impl GenerationRoute {
    /// Chooses the way of a POST with responses to these requests, by the indexes of its messages.
    /// `requesting` are the streams of the session with server requests, and `cancelled` the
    /// streams of the calls that the POST cancels. Returns `None` for a session that was never
    /// opened again.
    pub(super) fn choose<'a>(
        log: &EventLog,
        id: &SessionId,
        responses: impl Iterator<Item = (usize, &'a RequestId)>,
        requesting: impl FnOnce() -> Vec<Arc<Stream>>,
        cancelled: impl FnOnce() -> Vec<Arc<Stream>>,
    ) -> Option<Self> {
        let handshake = reopened_session(log, id)?;
        let requesting = requesting();
        let wanted: Vec<_> = responses.map(|(index, id)| (index, generation_of(&handshake, &requesting, id))).collect();
        let cancelled = cancelled().into_iter().map(|stream| stream.upstream().session_generation());
        let generation = wanted.iter().filter_map(|(_, generation)| *generation).chain(cancelled).max();
        let is_dropped = |(index, wanted): (usize, Option<SessionGeneration>)| {
            if wanted.is_none() || wanted != generation { Some(index) } else { None }
        };
        let dropped: Vec<_> = wanted.into_iter().filter_map(is_dropped).collect();
        if !dropped.is_empty() {
            debug!(
                responses = dropped.len(),
                "client responses are dropped: the server has lost the session in which it asked"
            );
        }
        Some(Self { handshake, generation, dropped })
    }

    /// Returns the indexes of the responses that are dropped, in order.
    pub(super) fn dropped(&self) -> &[usize] {
        &self.dropped
    }

    /// Returns the body with the server's own IDs of its requests.
    pub(super) fn restore_ids(&self, body: Bytes) -> Bytes {
        let restored = jsonrpc::rename_ids(&body, |message, id| match message {
            Message::Response { .. } => self.handshake.answer(id),
            Message::Request { .. } | Message::Notification { .. } => None,
        });
        restored.map_or(body, Bytes::from)
    }

    /// Returns the POST under the name of its generation, or `None` if the server cannot know that
    /// one any more.
    pub(super) fn name(
        &self,
        template: Template,
        upstream: &Upstream,
        log: &EventLog,
        id: &SessionId,
    ) -> Option<Template> {
        upstream.in_generation(template, log, id, &self.handshake, self.generation)
    }
}

/// Returns the generation of a response's request, or `None` if the request is gone with its
/// generation. An unknown request belongs to the newest generation, which decides.
fn generation_of(handshake: &Handshake, requesting: &[Arc<Stream>], id: &RequestId) -> Option<SessionGeneration> {
    let since = |stream: &Arc<Stream>| stream.with_machine(|machine| machine.awaits_response_since(id));
    let oldest = requesting.iter().filter_map(|stream| Some((since(stream)?, stream))).min_by_key(|(since, _)| *since);
    let awaiting = oldest.map(|(_, stream)| stream.upstream().session_generation());
    let newest = handshake.newest_generation();
    let requested = match handshake.server_id_of(id) {
        Some((generation, _)) => generation,
        // Later requests with this ID have an ID of the proxy's own.
        None if handshake.has_left_unanswered(id) => return awaiting.filter(|generation| *generation < newest),
        None => awaiting.unwrap_or(newest),
    };
    if requested == newest || awaiting == Some(requested) { Some(requested) } else { None }
}

/// Returns the streams of these records with server requests.
pub(super) fn requesting_streams<'a>(
    log: &EventLog,
    id: &SessionId,
    records: impl Iterator<Item = &'a Arc<Session>>,
) -> Vec<Arc<Stream>> {
    records.flat_map(|session| log.sessions().streams_with_server_requests(id, session)).collect()
}
