//! The way to the server through networks of others, as `connect` takes it. `serve`
//! stands beside its server, and has the default.

use std::fmt;
use std::time::Duration;

use http::HeaderValue;
use http::uri::Authority;

/// Way to the server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Way {
    /// Proxies on the way.
    pub proxies: Proxies,
    /// True if only addresses of IPv4 are used.
    pub ipv4_only: bool,
    /// Detection of connections that are dead.
    pub liveness: Liveness,
    /// True if something else than the server may answer: a portal, an edge, a proxy. Web pages and
    /// refused certificates are then errors in words. A redirect to the https form is followed.
    pub has_strangers: bool,
}

/// Proxies on the way to one host, by the scheme of the URL.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Proxies {
    /// Proxy for http, which gets requests in absolute form.
    pub http: Option<Proxy>,
    /// Proxy for https, which opens a tunnel.
    pub https: Option<Proxy>,
}

/// An HTTP proxy. `Debug` does not show its credentials.
#[derive(Clone, PartialEq, Eq)]
pub struct Proxy {
    /// Host and port.
    pub authority: Authority,
    /// Value of `Proxy-Authorization`.
    pub authorization: Option<HeaderValue>,
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxy").field("authority", &self.authority).finish_non_exhaustive()
    }
}

/// Detection of dead connections, without traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Liveness {
    /// Silence before the kernel sends the first probe.
    pub idle: Duration,
    /// Interval of the probes.
    pub interval: Duration,
    /// Number of unanswered probes after which the connection counts as dead.
    pub retries: u32,
    /// Limit for unacknowledged data. Linux counts a server that does not read a request as well.
    pub user_timeout: Duration,
    /// Silence of an HTTP/2 connection in use before a ping.
    pub ping_after: Duration,
    /// Time limit for the response to a ping.
    pub ping_timeout: Duration,
    /// True if connections are probed at once after the machine has slept.
    pub probes_after_sleep: bool,
}

impl Default for Liveness {
    fn default() -> Self {
        Self {
            idle: Duration::from_secs(30),
            interval: Duration::from_secs(5),
            retries: 6,
            // As nginx has it (`proxy_send_timeout`).
            user_timeout: Duration::from_secs(60),
            ping_after: Duration::from_secs(30),
            ping_timeout: Duration::from_secs(15),
            probes_after_sleep: false,
        }
    }
}

impl Liveness {
    /// Returns the detection on ways that are cut without a word: dead after half a minute.
    pub fn of_strangers() -> Self {
        Self {
            idle: Duration::from_secs(15),
            interval: Duration::from_secs(5),
            retries: 3,
            user_timeout: Duration::from_secs(30),
            ping_after: Duration::from_secs(15),
            ping_timeout: Duration::from_secs(15),
            probes_after_sleep: true,
        }
    }
}
