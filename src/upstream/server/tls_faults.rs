//! Log lines about TLS between the proxy and the server: a handshake that fails, and a URL with the
//! other scheme.
//!
//! Each call and each readiness check may meet the same fault, so the lines of one server have a
//! pause in between. Absent: the handshake ([`super::connect`]), and the error of a call.

use std::io;
use std::time::Duration;

use tracing::warn;

use super::log_pause::LogPause;
use crate::tls;

/// Pause between two lines.
const PAUSE: Duration = Duration::from_secs(10);

/// The lines about one server.
#[derive(Debug)]
pub(super) struct TlsFaults(LogPause);

impl TlsFaults {
    /// Creates the lines about a server without a fault yet.
    pub(super) fn new() -> Self {
        Self(LogPause::new(PAUSE))
    }

    /// Reports a handshake that failed.
    pub(super) fn report_failed(&self, error: &io::Error) {
        if self.0.may_log() {
            warn!(error = tls::explain(error), "the TLS handshake with the upstream failed");
        }
    }

    /// Reports a handshake that the server left without a response.
    pub(super) fn report_silent(&self) {
        if self.0.may_log() {
            warn!(
                "the upstream accepts connections and leaves the TLS handshake without a response: \
                 if it speaks no TLS, give upstream.url with http://"
            );
        }
    }

    /// Reports a server without TLS in its URL that has never responded, and closed the connection
    /// of a request or sent bytes that are no HTTP.
    pub(super) fn report_no_http(&self) {
        if self.0.may_log() {
            warn!(
                "the upstream accepts connections and closes them without an HTTP response: \
                 if it speaks TLS, give upstream.url with https://"
            );
        }
    }
}
