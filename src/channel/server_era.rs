//! The last known era of a server, with its validity.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::backoff::Backoff;
use crate::protocol::headers::Era;
use crate::protocol::jsonrpc::{code, error_code};
use crate::{clock, sync};

/// Pauses after a server that ended during discovery.
const PAUSES: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));

/// Last known era of a server.
#[derive(Debug)]
pub(crate) struct ServerEra(Mutex<State>);

#[derive(Debug)]
struct State {
    known: Option<KnownEra>,
    pauses: Backoff,
}

/// An era, as a discovery has found it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KnownEra {
    pub(crate) era: Era,
    /// Time of discovery.
    pub(crate) since: Instant,
    /// Expiry: the era must be discovered again after it. `None` for an era that does not expire.
    until: Option<Instant>,
    /// True if the server has ended in place of a response.
    is_by_end: bool,
}

impl KnownEra {
    /// Creates an era that was found now, and is valid for `ttl`.
    fn new(era: Era, ttl: Option<Duration>) -> Self {
        let since = clock::now();
        Self { era, since, until: ttl.map(|ttl| since + ttl), is_by_end: false }
    }

    /// Returns true before the expiry of the era.
    pub(crate) fn is_valid(&self) -> bool {
        self.until.is_none_or(|until| clock::now() < until)
    }
}

impl ServerEra {
    /// Creates the era of a server. A known era needs no discovery.
    pub(crate) fn of(known: Option<Era>) -> Self {
        Self(Mutex::new(State { known: known.map(|era| KnownEra::new(era, None)), pauses: PAUSES }))
    }

    /// Returns the last known era, which may have expired, or `None` if none was found.
    pub(crate) fn last(&self) -> Option<KnownEra> {
        sync::lock(&self.0).known
    }

    /// Returns the era while it is valid.
    pub(super) fn valid(&self) -> Option<Era> {
        self.last().filter(KnownEra::is_valid).map(|known| known.era)
    }

    /// Returns true if the server has ended during the last discovery.
    pub(super) fn is_by_end(&self) -> bool {
        self.last().is_some_and(|known| known.is_by_end)
    }

    /// Sets the era. It does not expire without a `ttl`.
    pub(crate) fn set(&self, era: Era, ttl: Option<Duration>) {
        sync::lock(&self.0).known = Some(KnownEra::new(era, ttl));
    }

    /// Extends the validity of the last known era to this time from now, unless it is longer.
    pub(crate) fn extend(&self, ttl: Duration) {
        if let Some(KnownEra { until: Some(until), .. }) = &mut sync::lock(&self.0).known {
            *until = (*until).max(clock::now() + ttl);
        }
    }

    /// Handles the end of the server during the discovery: it counts as legacy until the next one.
    /// Such an end shows nothing about the era, because the server may have failed for any reason.
    pub(super) fn handle_end(&self) {
        let mut state = sync::lock(&self.0);
        let pause = state.pauses.next_pause();
        state.known = Some(KnownEra { is_by_end: true, ..KnownEra::new(Era::Legacy, Some(pause)) });
    }

    /// Forgets the era: another server may be there.
    pub(super) fn forget(&self) {
        *sync::lock(&self.0) = State { known: None, pauses: PAUSES };
    }

    /// Handles the server's refusal of `initialize` with this error. If the server speaks no
    /// revision with sessions, its era becomes unknown: the server may have failed, or responded
    /// too slowly.
    pub(super) fn handle_refused_handshake(&self, error: &[u8]) {
        if error_code(error) == Some(code::UNSUPPORTED_VERSION) {
            self.forget();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_without_handshakes_is_asked_again() {
        let era = ServerEra::of(None);
        era.set(Era::Legacy, None);
        era.handle_refused_handshake(br#"{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":""}}"#);
        assert_eq!(era.valid(), Some(Era::Legacy));
        era.handle_refused_handshake(br#"{"jsonrpc":"2.0","id":1,"error":{"code":-32022,"message":""}}"#);
        assert_eq!(era.valid(), None);
    }
}
