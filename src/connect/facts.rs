//! Facts of a server by its handshake: as the host was told, and as the session was opened.

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
