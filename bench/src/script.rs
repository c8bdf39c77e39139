//! The instructions of a `tools/call` to the scripted upstream, written by the load tool and read
//! by the upstream.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The arguments of the upstream's only tool.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct Script {
    /// The form of the response.
    pub(crate) mode: Mode,
    /// Events before the response; 0 = until `duration_ms` has passed.
    pub(crate) events: u64,
    /// Bytes of JSON in an event (for `Short` also in the response), or of padding in a JSON
    /// response.
    pub(crate) bytes: usize,
    /// Milliseconds between two events; 0 = paced by `ack`, or at once.
    pub(crate) interval_ms: u64,
    /// Milliseconds after which the response is sent regardless of `events`; 0 = never.
    pub(crate) duration_ms: u64,
    /// The key under which the reader acknowledges events (one in flight); 0 = no acknowledgement.
    pub(crate) ack: u64,
    /// Bytes gathered into one write; 0 = a write for every event.
    pub(crate) gather: usize,
    /// Events sent at once, gathered into large writes, before the rest of the script.
    pub(crate) filled: u64,
}

/// The forms of a response.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Mode {
    /// A JSON body at once.
    #[default]
    Json,
    /// An event stream, then the response on it.
    Events,
    /// An event stream without pauses: the head with the first event, then each event a write of
    /// its own, the response last.
    Short,
    /// The head of an event stream, the `filled` events, then silence until the peer leaves.
    Idle,
}

/// One JSON-RPC request as the upstream reads it.
#[derive(Deserialize)]
pub(crate) struct Call {
    pub(crate) id: Option<u64>,
    pub(crate) method: String,
    #[serde(default)]
    pub(crate) params: Params,
}

/// The parameters of a message; each kind has some of them.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct Params {
    pub(crate) arguments: Script,
    #[serde(rename = "_meta")]
    pub(crate) meta: Meta,
    /// The protocol version that `initialize` requests.
    #[serde(rename = "protocolVersion")]
    pub(crate) protocol_version: Option<String>,
    /// The request that `notifications/cancelled` names.
    #[serde(rename = "requestId")]
    pub(crate) request_id: Option<u64>,
}

/// The metadata of a request.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct Meta {
    /// The token for its progress notifications: a string of the load tool, or any value that a
    /// bridge chose.
    #[serde(rename = "progressToken")]
    pub(crate) progress_token: Value,
}

/// The progress token of request `id`, unique in its session.
pub(crate) fn progress_token(id: u64) -> String {
    format!("b{id}")
}

/// The body of a `tools/call`.
pub(crate) fn call_body(id: u64, script: &Script) -> Result<Vec<u8>, serde_json::Error> {
    let (arguments, token) = (serde_json::to_string(script)?, progress_token(id));
    Ok(format!(
        r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"bench","arguments":{arguments},"_meta":{{"progressToken":"{token}"}}}}}}"#
    )
    .into_bytes())
}
