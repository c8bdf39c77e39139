//! Writers of JSON-RPC responses, each on one line, so that it fits an SSE event.

use std::fmt::Display;

use serde_json::Value;
use serde_json::value::RawValue;

use super::{RequestId, code};

/// Writes a response with this result, which is JSON text on one line.
pub fn result(id: &RequestId, result: impl Display) -> Vec<u8> {
    format!(r#"{{"jsonrpc":"2.0","id":{},"result":{result}}}"#, id.to_json()).into_bytes()
}

/// Writes a response with an empty result.
pub fn empty(id: &RequestId) -> Vec<u8> {
    result(id, "{}")
}

/// Writes an error response without data.
pub fn error(id: &RequestId, code: i64, message: &str) -> Vec<u8> {
    error_with_data(Some(id), code, message, Value::Null)
}

/// Writes the error for an unknown method.
pub fn method_not_found(id: &RequestId) -> Vec<u8> {
    error(id, code::METHOD_NOT_FOUND, "Method not found")
}

/// Writes an error response. An `id` of `None` becomes null, and a `data` of null is left out.
pub fn error_with_data(id: Option<&RequestId>, code: i64, message: &str, data: Value) -> Vec<u8> {
    let mut error = serde_json::json!({"code": code, "message": message});
    if !data.is_null() {
        error["data"] = data;
    }
    let id = id.map_or_else(|| "null".to_owned(), RequestId::to_json);
    error_under(&id, error)
}

/// Writes an error response with this error object, which is JSON text on one line.
pub fn error_object(id: &RequestId, error: impl Display) -> Vec<u8> {
    error_under(&id.to_json(), error)
}

/// Returns an error response under another id, with the same error object byte for byte, or `None`
/// if `message` has no error.
pub fn readdressed(message: &[u8], id: &RequestId) -> Option<Vec<u8>> {
    #[derive(serde::Deserialize)]
    struct Addressed<'a> {
        #[serde(borrow)]
        error: &'a RawValue,
    }
    let Addressed { error } = serde_json::from_slice(message).ok()?;
    Some(error_object(id, error))
}

fn error_under(id: &str, error: impl Display) -> Vec<u8> {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}"#).into_bytes()
}
