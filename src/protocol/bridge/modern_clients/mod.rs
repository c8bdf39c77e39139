//! Messages between a client of 2026-07-28 and a server of the revisions with sessions.

pub mod listen;
mod request;
mod response;

pub use request::{
    Envelope, Kind, abandoned_response, client_response, initialize, initialized, roots_changed, translated,
};
pub use response::{
    ListHints, UrlElicitations, discovered, input_request_of, input_required, modern_error, progress_as, result_as,
    status_of, too_many_waiting, url_elicitation_missing,
};

use crate::jsonrpc::code;

pub use super::{Declared, LEGACY, LogLevel, MAX_ROUNDS, MODERN};

/// Error for a server request outside a call: code and text.
pub const OUTSIDE_CALL: (i64, &str) = (code::METHOD_NOT_FOUND, "no client can be asked outside a call");
