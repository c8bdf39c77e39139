//! Form of the priming event, by the revision and the program of a client.
//!
//! Revision 2025-11-25 specifies an event with an ID and empty data. Some clients of earlier
//! revisions parse the data of each untyped event, and drop the connection at the empty one. They
//! skip events of other types, and still take their IDs. Absent: the choice to prime a client at
//! all (`stream_response.rs`), and the bytes (`delivery`).

use http::HeaderMap;
use http::header::USER_AGENT;

use crate::delivery::EmptyEvents;
use crate::event_log::Session;
use crate::protocol::headers::{ProtocolVersion, RequestFacts};

/// First revision that specifies the priming event.
const SPECIFIED_SINCE: &str = "2025-11-25";
/// Beginning of the `User-Agent` of clients in Go. Until version 1.3 the official SDK speaks no
/// later revision than 2025-06-18. Version 1.1 parses the data of events of every type, and 1.2 and
/// 1.3 also take a block with `retry` alone for an event.
const GO: &[u8] = b"Go-http-client";

/// Returns the client's form of events with empty data. The revision is the session's, else
/// `MCP-Protocol-Version`, else 2025-03-26.
pub(super) fn empty_events(session: Option<&Session>, facts: &RequestFacts, headers: &HeaderMap) -> EmptyEvents {
    let is_specified = |version: &ProtocolVersion| version.is_at_least(SPECIFIED_SINCE);
    let is_specified = match session.and_then(Session::version) {
        Some(version) => is_specified(version),
        None => facts.version.as_ref().is_some_and(is_specified),
    };
    if is_specified {
        EmptyEvents::Untyped
    } else if headers.get(USER_AGENT).is_some_and(|agent| agent.as_bytes().starts_with(GO)) {
        EmptyEvents::Absent
    } else {
        EmptyEvents::Typed
    }
}
