//! Facts that servers state in handshakes: in the answer to the host, and at the far side.

use std::sync::Mutex;

use crate::protocol::jsonrpc::ServerFacts;

/// Facts of the server.
#[derive(Default)]
pub(super) struct Facts {
    /// In the answer to the host.
    pub(super) told: Mutex<Option<ServerFacts>>,
    /// In the handshake of the far side.
    pub(super) opened: Mutex<Option<ServerFacts>>,
}
