//! HTTP server: the common floor of the sidecar, the admin listeners and the balancer.
//!
//! [`serve`] accepts connections and passes their requests to a [`Handler`]. Owned here: TLS, the
//! choice of the HTTP version, the connection limit, timeouts of connections, worker threads, and
//! the error responses ([`respond`]). Absent: the meaning of a request.

mod accept;
pub mod body;
mod connection;
mod connection_limit;
mod handler;
mod http1;
mod http2;
pub mod listener;
mod metrics;
mod prefixed_io;
pub mod respond;
mod workers;

use std::time::Duration;

pub use accept::{Accept, ListenerConfig, Protocols, serve};
pub use connection_limit::{ConnectionLimit, ConnectionPermit};
pub use handler::{ClosedBy, ConnectionState, Handler, Peer};
pub use metrics::Metrics;
pub use workers::{AcceptedConnection, distribute, distribute_waiting, start_worker};

/// Time for a client to send a head, from its first byte. After it, the connection is closed.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest time that a client may take nothing of its response, as nginx's `send_timeout`. After
/// it, its connection is closed, or its stream on HTTP/2.
const SEND_TIMEOUT: Duration = Duration::from_secs(60);
/// Send timeout of a response that another connection has taken over. A blocked connection checks
/// for that at this interval.
const TAKEN_OVER_TIMEOUT: Duration = Duration::from_secs(1);
