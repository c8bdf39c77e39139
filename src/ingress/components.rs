//! Components of the sidecar that the handlers of requests use.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use bytes::Bytes;

use super::metrics::Metrics;
use super::promise::Promises;
use crate::cluster::Replicas;
use crate::config::Config;
use crate::event_log::{EventLog, Principals};
use crate::lifecycle::drain::Drain;
use crate::upstream::{PublicName, Upstream};

/// Components of the sidecar below the ingress, shared by all handlers of requests.
#[derive(Clone)]
pub struct Components {
    /// Configuration of the sidecar.
    pub config: Arc<Config>,
    /// Log of all streams.
    pub log: Arc<EventLog>,
    /// The MCP server.
    pub upstream: Arc<Upstream>,
    /// Identifies callers, as the owners of streams and sessions.
    pub principals: Principals,
    /// Identifies callers by their credentials.
    pub credentials: Principals,
    /// Metrics of the sidecar.
    pub metrics: Arc<Metrics>,
    /// Drain of the process.
    pub drain: Arc<Drain>,
    /// Replicas that share the store, or `None` if the store is not shared.
    pub replicas: Option<Arc<Replicas>>,
    /// Random number that distinguishes this process from others of the same name.
    pub instance: u64,
    /// Name of the endpoint for clients, or `None` for the host that each names.
    pub public_name: Option<Arc<PublicName>>,
    /// The operator's metadata of the server as a resource, or `None` for the server's own.
    pub resource_document: Option<Bytes>,
    /// Promise to join requests that are sent again.
    pub promises: Arc<Promises>,
    /// True once the log has warned of MCP traffic that passes unprotected.
    pub has_warned_unprotected: Arc<AtomicBool>,
}
