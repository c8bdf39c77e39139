//! The pooled clients.
//!
//! Over HTTP/1.1 every call has a connection of its own, and one client pools them all. Over HTTP/2 calls share a connection, and
//! servers allow so many on one; a call beyond that would wait in silence behind streams that may last for hours. So there are
//! as many clients as it takes for none to have more calls than a connection carries.

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::{Request, Response};
use hyper_util::client::legacy::{Client, Error};
use hyper_util::rt::{TokioExecutor, TokioTimer};

use super::connect::Connector;
use super::request::Body;
use crate::incoming::{Incoming, Slot};

/// Calls on one HTTP/2 connection. Servers are asked to allow no fewer ([RFC 9113 §6.5.2]).
///
/// [RFC 9113 §6.5.2]: https://www.rfc-editor.org/rfc/rfc9113#section-6.5.2
const CALLS_PER_CONNECTION: usize = 100;
/// What a server may send of one answer before it is read.
const STREAM_WINDOW: u32 = 256 * 1024;
/// The same for a connection: answers that are not read (their streams are full) never stop the others.
const CONNECTION_WINDOW: u32 = STREAM_WINDOW * CALLS_PER_CONNECTION as u32;
/// An HTTP/2 connection with calls on it that is silent for this long is asked whether it is there.
const PING_AFTER: Duration = Duration::from_secs(30);
/// One that does not answer within this time is gone.
const PING_TIMEOUT: Duration = Duration::from_secs(15);

/// How a client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    Http1,
    /// By prior knowledge.
    Http2,
    /// As the TLS handshake decides.
    Agreed,
}

/// All clients of one upstream.
pub(super) struct Lanes {
    connector: Connector,
    version: Version,
    pool_idle: Duration,
    first: Lane,
    more: Mutex<Vec<Lane>>,
}

#[derive(Clone)]
struct Lane {
    client: Client<Connector, Body>,
    calls: Arc<AtomicUsize>,
}

impl Lanes {
    /// Nothing is connected yet.
    pub(super) fn new(connector: Connector, version: Version, pool_idle: Duration) -> Self {
        let first = lane(&connector, version, pool_idle);
        Self { connector, version, pool_idle, first, more: Mutex::default() }
    }

    /// Whether a request may go out as HTTP/2.
    pub(super) fn may_be_http2(&self) -> bool {
        self.version != Version::Http1
    }

    /// Sends a request and waits for the head.
    pub(super) async fn request(&self, request: Request<Body>) -> Result<Response<Incoming>, Error> {
        let (client, slot) = match self.version {
            Version::Http1 => (self.first.client.clone(), None),
            Version::Http2 | Version::Agreed => self.free_client(),
        };
        Ok(Incoming::of_response(client.request(request).await?, slot))
    }

    fn free_client(&self) -> (Client<Connector, Body>, Option<Slot>) {
        let take = |lane: &Lane| Some((lane.client.clone(), Some(Slot::take(&lane.calls, CALLS_PER_CONNECTION)?)));
        if let Some(found) = take(&self.first) {
            return found;
        }
        let mut more = self.more.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = more.iter().find_map(take) {
            return found;
        }
        let lane = lane(&self.connector, self.version, self.pool_idle);
        let slot = Slot::take(&lane.calls, CALLS_PER_CONNECTION);
        more.push(lane.clone());
        (lane.client, slot)
    }
}

fn lane(connector: &Connector, version: Version, pool_idle: Duration) -> Lane {
    let mut builder = Client::builder(TokioExecutor::new());
    builder.pool_timer(TokioTimer::new()).pool_idle_timeout(pool_idle);
    if version != Version::Http1 {
        builder
            .timer(TokioTimer::new())
            .http2_initial_stream_window_size(STREAM_WINDOW)
            .http2_initial_connection_window_size(CONNECTION_WINDOW)
            .http2_keep_alive_interval(PING_AFTER)
            .http2_keep_alive_timeout(PING_TIMEOUT)
            .http2_only(version == Version::Http2);
    }
    Lane { client: builder.build(connector.clone()), calls: Arc::default() }
}
