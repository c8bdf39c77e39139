//! A sidecar whose Redis is away when it starts: it listens, says that it is not ready, and tries again until the store is open.
//!
//! Without an answer on the admin listener an orchestrator would start the process again and again, and the server beside it never.
//! Invariant: what comes on the data listener meanwhile is refused before anything of it runs. Absent: stores that are refused for good, as a
//! wrong password to come is not, but a Redis of a later version is; those end the start.

use std::future::{Future, pending};
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use http::Request;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};
use tracing::{info, warn};

use super::lifecycle::admin_connections;
use super::{Bound, Error, Metrics, Rest};
use crate::admin;
use crate::backoff::Backoff;
use crate::body::Incoming;
use crate::clock;
use crate::config::Config;
use crate::protocol::error::ErrorCode;
use crate::server::listener::stopped;
use crate::server::{self, Accept, ConnectionLimit, Handler, ListenerConfig, Protocols, respond};
use crate::store::redis;

/// Pauses between two attempts to open the store.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(5));
/// The log says so often that there is still no store.
const SAID_AGAIN: Duration = Duration::from_secs(60);

/// Opens the store, and waits for one that cannot be reached yet; `waits` is called once before.
pub(super) async fn open(
    bound: Bound,
    config: &Config,
    name: &str,
    metrics: &Metrics,
    waits: impl FnOnce(),
) -> Result<(Bound, Rest), Error> {
    let error = match super::open(config, name, metrics).await {
        Ok(rest) => return Ok((bound, rest)),
        Err(error) if is_away(&error) => error,
        Err(error) => return Err(error),
    };
    warn!(%error, "the store is away: waiting for it, not ready until it is there");
    waits();
    let room = Room::open(bound, config, metrics);
    let (mut backoff, mut said) = (BACKOFF, clock::now());
    let rest = loop {
        clock::sleep(backoff.next_pause()).await;
        match super::open(config, name, metrics).await {
            Err(error) if is_away(&error) => {
                if clock::now().saturating_duration_since(said) >= SAID_AGAIN {
                    said = clock::now();
                    warn!(%error, "the store is still away");
                }
            }
            opened => break opened?,
        }
    };
    info!("the store is there");
    Ok((room.close().await?, rest))
}

fn is_away(error: &Error) -> bool {
    matches!(error, Error::Redis(redis::OpenError::Unreachable(_)))
}

/// The listeners while there is no store.
struct Room {
    stop: watch::Sender<bool>,
    data: oneshot::Receiver<TcpListener>,
    admin: Option<oneshot::Receiver<TcpListener>>,
    /// Everything else of what was bound.
    rest: (SocketAddr, Option<SocketAddr>, super::Monitored, super::Proof),
}

impl Room {
    fn open(bound: Bound, config: &Config, metrics: &Metrics) -> Self {
        let Bound { listener, local_addr, admin, monitored, certificates } = bound;
        let stop = watch::channel(false).0;
        let listener_config = |protocols, connections| ListenerConfig {
            protocols,
            header_bytes: config.limits.header_bytes,
            limit: ConnectionLimit::new(connections),
            metrics: Some(metrics.ingress.server.clone()),
        };
        let protocols = certificates.clone().map_or(Protocols::Plain, Protocols::Tls);
        let (data, back) = Lent::new(listener);
        let errors = metrics.ingress.errors.clone();
        let refuse = move |_: Request<Incoming>| {
            errors.observe_reject(ErrorCode::StoreFailed);
            std::future::ready(respond::refusal(ErrorCode::StoreFailed))
        };
        let until = || stopped(&stop.subscribe());
        spawn(data, listener_config(protocols, config.limits.connections), refuse, until());
        let admin_addr = admin.as_ref().map(|(_, address)| *address);
        let admin = admin.map(|(listener, _)| {
            let (lent, back) = Lent::new(listener);
            let (hosts, counted) = (config.admin.allowed_hosts.clone(), metrics.admin.clone());
            let answer = move |request: Request<Incoming>| {
                std::future::ready(admin::waiting::answer(&request, &hosts, &counted))
            };
            spawn(lent, listener_config(Protocols::Http1, admin_connections(config)), answer, until());
            back
        });
        Self { stop, data: back, admin, rest: (local_addr, admin_addr, monitored, certificates) }
    }

    /// Answers nothing more here. Connections that are open end after what is being answered on them.
    async fn close(self) -> Result<Bound, Error> {
        let _ = self.stop.send(true);
        let (local_addr, admin_addr, monitored, certificates) = self.rest;
        let listener = self.data.await.map_err(|_| Error::Opening)?;
        let admin = match self.admin {
            Some(back) => Some(back.await.map_err(|_| Error::Opening)?),
            None => None,
        };
        Ok(Bound { listener, local_addr, admin: admin.zip(admin_addr), monitored, certificates })
    }
}

fn spawn(
    listener: Lent,
    config: ListenerConfig,
    handler: impl Handler + Sync,
    until: impl Future<Output = ()> + Send + 'static,
) {
    tokio::spawn(server::serve(listener, config, handler, pending(), until));
}

/// A listener that is given back when nobody accepts on it any more.
struct Lent {
    listener: Option<TcpListener>,
    back: Option<oneshot::Sender<TcpListener>>,
}

impl Lent {
    fn new(listener: TcpListener) -> (Self, oneshot::Receiver<TcpListener>) {
        let (back, given) = oneshot::channel();
        (Self { listener: Some(listener), back: Some(back) }, given)
    }
}

impl Accept for Lent {
    type Io = TcpStream;

    async fn accept(&mut self) -> io::Result<(TcpStream, SocketAddr)> {
        match &mut self.listener {
            Some(listener) => Accept::accept(listener).await,
            None => pending().await,
        }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let (Some(listener), Some(back)) = (self.listener.take(), self.back.take()) {
            // Who does not want it back closes it.
            let _ = back.send(listener);
        }
    }
}
