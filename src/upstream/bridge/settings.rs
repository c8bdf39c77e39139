//! Settings of the bridge, and its link to the server.

use std::sync::Arc;
use std::time::Duration;

use crate::config;
use crate::protocol::ids::Owner;
use crate::upstream::server::Server;

/// Settings of the bridge.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Section `bridge` of the configuration.
    pub config: config::Bridge,
    /// Maximum wait of a call for client responses.
    pub max_wait: Duration,
    /// Maximum wait of a call that may have become a task, if longer than `max_wait`.
    /// `None`: calls do not become tasks.
    pub task_wait: Option<Duration>,
    /// Time after the last server request until the client gets the input round.
    pub input_grace: Duration,
    /// Maximum wait of a request while the server accepts no connections.
    pub connect_wait: Duration,
    /// True if the proxy listens on a loopback address. All callers without credentials are then
    /// one user.
    pub is_loopback: bool,
    /// Size limit of a message.
    pub max_event_bytes: usize,
    /// This replica. The `requestState` of a parked call names it.
    pub owner: Owner,
}

/// The server and the settings, which all parts of the bridge share.
pub(super) struct Link {
    pub(super) settings: Settings,
    /// Connections for the bridge's own requests.
    pub(super) server: Arc<Server>,
}
