//! Messages between a client of 2026-07-28 and a server of the revisions with sessions.

mod request;
mod response;

pub use request::{Declared, Envelope, Kind, LogLevel, initialize, initialized, translated};
pub use response::{
    ListHints, discovered, input_required, method_not_found, modern_error, progress_as, question_of, result_as,
    status_of,
};

pub use super::{LEGACY, MODERN};

/// Error for a request of the server that no client can be asked: code and text.
pub const NOT_ASKED: (i64, &str) = (-32601, "no client can be asked outside a call");
