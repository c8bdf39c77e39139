//! Settings of a store in Redis.

use std::path::PathBuf;
use std::time::Duration;

/// Default of [`Options::key_wait`]. A replica that has lost its connection tries again after half
/// a second at the latest.
const KEY_WAIT: Duration = Duration::from_secs(2);

/// Address of Redis, and the way to connect.
#[derive(Clone)]
pub struct Options {
    /// `redis://[user:password@]host[:port][/database]`,
    /// `redis+sentinel://…host[:port],host[:port]/master[/database]` (user and password of the
    /// master), `redis+cluster://…host[:port],host[:port]`; with `rediss` for TLS.
    pub url: String,
    /// Prefix of every key and channel: several deployments may share one Redis.
    pub prefix: String,
    /// Longest wait for a reply. After it, Redis counts as unreachable.
    pub response_timeout: Duration,
    /// Longest time to connect.
    pub connect_timeout: Duration,
    /// Time to wait, at a Redis without signing keys, for replicas that lost their connection and
    /// hold the keys. Then new keys are made. Without the wait, replicas with different keys would
    /// refuse each other's event IDs.
    pub key_wait: Duration,
    /// File of the trusted certificate authorities, in PEM form; `None` for the authorities of the
    /// system.
    pub ca: Option<PathBuf>,
    /// Client certificate presented to Redis.
    pub identity: Option<Identity>,
    /// User and password for the sentinels, or `None` if they need none.
    pub sentinel_login: Option<(String, String)>,
}

impl Options {
    /// Returns the defaults for this URL.
    pub fn new(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            prefix: "mr:".to_owned(),
            response_timeout: Duration::from_secs(2),
            connect_timeout: Duration::from_secs(2),
            key_wait: KEY_WAIT,
            ca: None,
            identity: None,
            sentinel_login: None,
        }
    }
}

/// PEM files of a client certificate.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The certificate, followed by its intermediate authorities.
    pub cert: PathBuf,
    /// The private key.
    pub key: PathBuf,
}
