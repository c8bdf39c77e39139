//! Clients that count the broken connections of a call.
//!
//! Python's SDKs give a call up at its third break, however far apart the breaks are. Their count
//! is reset only by a response that ends in order. The first response to such a client after a
//! break therefore ends in order behind the stored events, with a short `retry`. The configuration
//! names further clients, whose calls have a note of it in their policy.
//! Absent: the end itself (`delivery`), and the knowledge of the break (the stream's machine).

use http::HeaderMap;
use http::header::USER_AGENT;

use crate::event_log::Stream;

/// Beginning of the `User-Agent` of both HTTP clients of Python's SDKs.
const PYTHON: &[u8] = b"python-httpx";

/// Returns true if the client of `call` counts breaks, by its name or its program.
pub(super) fn are_counted(call: &Stream, headers: &HeaderMap) -> bool {
    call.with_machine(|machine| machine.policy().counts_breaks) || is_python(headers)
}

/// Returns true if the client uses the HTTP client of Python's SDKs.
pub(super) fn is_python(headers: &HeaderMap) -> bool {
    headers.get(USER_AGENT).is_some_and(|agent| agent.as_bytes().starts_with(PYTHON))
}
