//! The stream URL, [SEP-1335]: a link for each stream, and turns in place of connections that wait for the client.
//!
//! [SEP-1335]: https://github.com/modelcontextprotocol/modelcontextprotocol/issues/1335

use std::sync::Arc;

use bytes::Bytes;

use super::Resumption;
use crate::event_log::Stream;
use crate::protocol::ids::Seq;
use crate::protocol::jsonrpc::RequestId;
use crate::protocol::stream::{ClientResponse, Place};

/// Where a client comes back to.
#[derive(Debug)]
pub enum Return {
    /// There is something for it, or there may be.
    To(Resumption),
    /// It has everything: the stream is over, or waits for its answers.
    AtEnd,
    /// That place is gone.
    Lost,
}

/// A client comes back by the URL with this handle. It has everything up to `cursor`; where it does not say, up to where its last turn
/// began, else nothing. `takes_turns`: it is told so when it is its turn.
pub fn come_back(stream: &Arc<Stream>, handle: &str, cursor: Option<Seq>, takes_turns: bool) -> Return {
    let slice = stream.find_slice(handle);
    if slice.is_none() && stream.slicing().is_some() {
        return Return::Lost;
    }
    let (wanted, trimmed, place) = stream.look(|machine| {
        let wanted = cursor.or_else(|| machine.last_input_turn()).unwrap_or_default();
        (wanted, machine.trimmed(), machine.locate(wanted))
    });
    if cursor.is_some() && place == Place::Lost {
        return Return::Lost;
    }
    stream.note_return_by_url(cursor);
    if place == Place::AtEnd || (takes_turns && stream.begin_turn(wanted)) {
        return Return::AtEnd;
    }
    let after = wanted.max(trimmed);
    Return::To(Resumption { stream: stream.clone(), after, has_gap: wanted < trimmed, closing: None, slice })
}

/// What becomes of the answers that a client gives to a stream.
#[derive(Debug, Default)]
pub struct Answers {
    /// To be given to the upstream, in order; with the request of this stream that each answers for the first time, where there is
    /// one.
    pub given: Vec<(Bytes, Option<RequestId>)>,
    /// Given before.
    pub repeated: usize,
}

/// Notes the answers to requests of this stream, whatever others of the same ids there are elsewhere.
pub fn note_answers(stream: &Stream, answers: Vec<(Bytes, RequestId)>) -> Answers {
    let mut noted = Answers::default();
    for (message, id) in answers {
        match stream.answer(&id) {
            ClientResponse::First => noted.given.push((message, Some(id))),
            // Not of this stream: the upstream's to judge.
            ClientResponse::Unknown => noted.given.push((message, None)),
            ClientResponse::Duplicate | ClientResponse::Late => noted.repeated += 1,
        }
    }
    noted
}

/// What [`note_answers`] would do. Changes nothing.
pub fn look_at_answers(stream: &Stream, answers: Vec<(Bytes, RequestId)>) -> Answers {
    let mut found = Answers::default();
    for (message, id) in answers {
        let (waits, is_known) = stream.look(|machine| {
            (machine.server_requests().outstanding_since(&id).is_some(), machine.server_requests().knows(&id))
        });
        match (waits, is_known) {
            (true, _) => found.given.push((message, Some(id))),
            (false, false) => found.given.push((message, None)),
            (false, true) => found.repeated += 1,
        }
    }
    found
}
