//! Translation between the eras, message by message.
//!
//! Owned here: the bytes of each message on either side. Members that mean the same on both sides
//! pass unchanged. Absent: sessions, and calls that wait for client responses (`upstream/bridge/`).

mod client_facts;
mod declared;
pub mod legacy_clients;
mod log_level;
pub mod modern_clients;

pub use declared::Declared;
pub use log_level::LogLevel;

use serde_json::Value;

pub use crate::era::REVISION as MODERN;
use crate::era::{CAPABILITIES, CLIENT_INFO, VERSION};
use crate::jsonrpc::RequestId;

const META: &str = "_meta";
// Members of `_meta` that the revision without sessions has.
const LOG_LEVEL: &str = "io.modelcontextprotocol/logLevel";
const SERVER_INFO: &str = "io.modelcontextprotocol/serverInfo";
const SUBSCRIPTION_ID: &str = "io.modelcontextprotocol/subscriptionId";
/// Extension that the proxy has itself.
const TASKS: &str = "io.modelcontextprotocol/tasks";
/// Kinds of lists: capability of the server, member of the filter of a subscription, and
/// notification.
const LISTS: [(&str, &str, &str); 3] = [
    ("tools", "toolsListChanged", "notifications/tools/list_changed"),
    ("prompts", "promptsListChanged", "notifications/prompts/list_changed"),
    ("resources", "resourcesListChanged", "notifications/resources/list_changed"),
];
/// Member of the filter of a subscription that names resources.
const RESOURCE_SUBSCRIPTIONS: &str = "resourceSubscriptions";

/// Maximum number of input rounds in one call. Clients abandon a call after as many.
pub const MAX_ROUNDS: u32 = 10;
/// Newest revision with sessions.
pub const LEGACY: &str = "2025-11-25";

/// Returns an ID as a value.
fn json_of(id: &RequestId) -> Value {
    serde_json::from_str(&id.to_json()).unwrap_or(Value::Null)
}
