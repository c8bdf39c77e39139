//! Servers on HTTP+SSE: the channels of a sidecar are GETs of their own.

use std::sync::Arc;

use super::Metrics;
use crate::channel::{self, Channels, PartialMemory};
use crate::config::{self, Config};
use crate::tls;
use crate::upstream::{SseServer, Upstream};

/// Returns the channels of a sidecar. Connects nothing yet.
///
/// # Errors
/// If the TLS files cannot be loaded.
pub(super) fn channels(
    config: &Config,
    server: &config::SseServer,
    metrics: &Metrics,
) -> Result<Arc<Channels>, tls::Error> {
    let own = config::Upstream { url: server.url.clone(), sse: None, ..config.upstream.clone() };
    let message_bytes = config.streams.max_event_bytes;
    let settings = channel::Settings {
        message_bytes,
        outgoing_bytes: config.streams.max_bytes,
        batch: config.limits.batch,
        // Without revival the end of a channel is the end of its session.
        idle: server.idle.filter(|_| config.sessions.revive),
        start: server.start,
        keep: server.start,
        // The server runs already, and bounds its own connections.
        bounds: None,
    };
    let memory = PartialMemory::new(config.streams.max_bytes_per_principal);
    let open = SseServer::new(Upstream::new(own)?, message_bytes, memory);
    Ok(Channels::new(Box::new(open), settings, metrics.channel.clone()))
}
