//! Translation between the eras, message by message: a client of 2026-07-28 and a server of the revisions with sessions.
//!
//! Owned here: the bytes of each message on either side. Members that mean the same on both sides pass unchanged. Absent: sessions, and calls that wait for
//! the answers of their client (`upstream/bridge/`).

mod request;
mod response;

pub use request::{Declared, Envelope, Kind, LogLevel, initialize, initialized, translated};
pub use response::{
    ListHints, discovered, input_required, method_not_found, modern_error, progress_as, question_of, result_as,
    status_of,
};

/// Revision that clients speak.
pub const MODERN: &str = "2026-07-28";
/// Error for a request of the server that no client can be asked: code and text.
pub const NOT_ASKED: (i64, &str) = (-32601, "no client can be asked outside a call");

/// Newest revision that is offered to servers.
pub const LEGACY: &str = "2025-11-25";
