//! Translation between the eras, message by message.
//!
//! Owned here: the bytes of each message on either side. Members that mean the same on both sides pass unchanged. Absent: sessions, and calls that wait for
//! the answers of their client (`upstream/bridge/`).

mod declared;
pub mod legacy_clients;
pub mod modern_clients;

pub use declared::Declared;

use serde_json::Value;

use crate::protocol::jsonrpc::RequestId;

/// Revision without sessions.
pub const MODERN: &str = "2026-07-28";
/// Newest revision with sessions.
pub const LEGACY: &str = "2025-11-25";

/// Writes a response with this one member, a result or an error.
fn response(id: &RequestId, member: &str, value: &Value) -> Vec<u8> {
    format!(r#"{{"jsonrpc":"2.0","id":{},"{member}":{value}}}"#, id.to_json()).into_bytes()
}
