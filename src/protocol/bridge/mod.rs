//! Translation between the eras, message by message.
//!
//! Owned here: the bytes of each message on either side. Members that mean the same on both sides pass unchanged. Absent: sessions, and calls that wait for
//! the answers of their client (`upstream/bridge/`).

mod declared;
pub mod legacy_clients;
pub mod modern_clients;

pub use declared::Declared;

use serde_json::Value;

use crate::protocol::jsonrpc::{self, RequestId};

/// Size limit of what a client says of itself, in bytes of JSON: the proxy keeps it for each session.
pub const MAX_CLIENT_FACTS: usize = 64 * 1024;
/// Revision without sessions.
pub const MODERN: &str = "2026-07-28";
/// Newest revision with sessions.
pub const LEGACY: &str = "2025-11-25";

/// Returns the error of a response, or `None` if there is none: some servers write `null` beside a result.
fn error_in(message: &[u8]) -> Option<&str> {
    jsonrpc::member(message, &["error"]).filter(|error| *error != "null")
}

/// Writes a response with this one member, a result or an error.
fn response(id: &RequestId, member: &str, value: &Value) -> Vec<u8> {
    format!(r#"{{"jsonrpc":"2.0","id":{},"{member}":{value}}}"#, id.to_json()).into_bytes()
}
