//! Servers on HTTP+SSE: the channels of a sidecar are GETs of their own.

use std::sync::Arc;

use tokio::runtime::Handle;

use crate::channel::{self, Channels, Sharing};
use crate::config::{self, AnswerPings, Config};
use crate::protocol::ids::Owner;
use crate::tls;
use crate::upstream::{Recognition, SseServer};

/// Returns the channels of a sidecar. Connects nothing yet.
///
/// # Errors
/// If the TLS files cannot be loaded.
pub(super) fn channels(
    config: &Config,
    server: &config::SseServer,
    metrics: &Arc<channel::Metrics>,
) -> Result<Arc<Channels>, tls::Error> {
    let own = config::Upstream { url: server.url.clone(), ..config.upstream.clone() };
    let message_bytes = config.streams.max_event_bytes;
    let settings = channel::Settings {
        message_bytes,
        unclaimed_bytes: config.streams.max_bytes_per_principal,
        outgoing_bytes: config.streams.max_bytes,
        batch: config.limits.batch,
        // Without revival the end of a channel is the end of its session.
        idle: server.idle.filter(|_| config.sessions.revive),
        start: server.start,
        keep: server.start,
        // The server runs already, and bounds its own connections.
        bounds: None,
        sharing: Sharing::Off,
        answers_pings: config.upstream.answer_pings == AnswerPings::Absent,
        keeps_asked: false,
    };
    let open = SseServer::new(own, message_bytes)?;
    Ok(Channels::new(Box::new(open), settings, metrics.clone()))
}

/// Returns the search for the transport of a server that is configured as one on Streamable HTTP.
/// The channels will be on the caller's runtime.
pub(super) fn recognition(
    config: &Config,
    server: &config::SseServer,
    owner: Owner,
    metrics: &Arc<channel::Metrics>,
) -> Recognition {
    let (config, server, metrics, runtime) = (config.clone(), server.clone(), metrics.clone(), Handle::current());
    Recognition::new(owner, move || {
        let _entered = runtime.enter();
        channels(&config, &server, &metrics)
    })
}
