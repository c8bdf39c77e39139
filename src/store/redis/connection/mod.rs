//! The connection for calls: serves calls over it, probes it, and replaces it when it fails.

mod cluster;
mod pipeline;

use std::sync::Arc;
use std::time::Duration;

use ::redis::aio::ConnectionLike;
use tokio::sync::mpsc;
use tracing::{error, info, warn};

use super::command::{Call, ask, cmd};
use super::connector::{Connector, Link};
use super::core::Core;
use super::failure::Failure;
use super::generation::{self, Unusable};
use super::pubsub::HEARTBEAT;
use crate::StoreHealth;
use mcp_resume_base::backoff::Backoff;
use mcp_resume_base::clock;
use mcp_resume_base::random;

/// Interval of the probes that Redis replies, accepts writes, and has its contents.
const PROBE_EVERY: Duration = Duration::from_secs(1);
/// Expiry of a probe's key.
const PROBE_KEPT_MS: &[u8] = b"10000";
/// Pauses before another connection is tried.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_millis(500));

/// Serves calls until the store is dropped, over one connection after the other.
pub(super) async fn run(core: Arc<Core>, connector: Arc<Connector>, mut link: Link, mut calls: mpsc::Receiver<Call>) {
    loop {
        let why = match link {
            Link::Server(connection, pushed) => pipeline::serve(&core, connection, pushed, &mut calls).await,
            Link::Cluster(connection) => cluster::serve(&core, connection, &mut calls).await,
        };
        let Some(why) = why else { return };
        core.set_health(StoreHealth::Unreachable);
        warn!(%why, "the connection to Redis is lost");
        let Some(again) = reconnect(&core, &connector, &mut calls).await else { return };
        link = again;
        info!("Redis is reachable again");
        core.note_possible_loss();
    }
}

/// Tries to connect until it succeeds; calls fail meanwhile. Returns `None` if the store is
/// dropped.
async fn reconnect(core: &Core, connector: &Connector, calls: &mut mpsc::Receiver<Call>) -> Option<Link> {
    let trying = async {
        let mut backoff = BACKOFF;
        let mut last_failure = String::new();
        loop {
            clock::sleep(backoff.next_pause_with_jitter(u16::from_be_bytes(random::bytes()))).await;
            let opened = tokio::time::timeout(connector.patience(), open(core, connector)).await;
            match opened.unwrap_or_else(|_| Err(Failure::lost("Redis did not reply in time"))) {
                Ok(link) => return link,
                Err(why) if why.to_string() == last_failure => {}
                Err(why) => {
                    warn!(%why, "Redis cannot be reached");
                    last_failure = why.to_string();
                }
            }
        }
    };
    tokio::pin!(trying);
    loop {
        tokio::select! {
            link = &mut trying => return Some(link),
            call = calls.recv() => call?.complete_with(Err(Failure::lost("Redis cannot be reached"))),
        }
    }
}

/// Opens a connection and probes it.
async fn open(core: &Core, connector: &Connector) -> Result<Link, Failure> {
    let mut link = connector.open().await?;
    prepare(core, &mut link).await?;
    Ok(link)
}

/// Prepares a connection for calls, and probes it.
pub(super) async fn prepare(core: &Core, link: &mut Link) -> Result<(), Failure> {
    let probed = match link {
        Link::Server(connection, _) => {
            pipeline::load_scripts(connection).await?;
            probe(core, connection).await
        }
        Link::Cluster(connection) => probe(core, connection).await,
    };
    apply_probe(core, probed)
}

/// Checks that Redis has the known contents and accepts writes, and publishes a heartbeat to this
/// replica's own subscription.
async fn probe(core: &Core, connection: &mut impl ConnectionLike) -> Result<(), Failure> {
    check_generation(core, connection).await?;
    let name = core.names.probe(core.owner);
    ask(connection, &cmd(&[b"SET", name.as_bytes(), b"", b"PX", PROBE_KEPT_MS])).await?;
    ask(connection, &cmd(&[b"PUBLISH", core.names.channel(core.owner).as_bytes(), HEARTBEAT])).await?;
    Ok(())
}

/// Compares the generation in Redis with the known one. If the contents were lost, the replica that
/// first writes the signing keys again begins a new store epoch.
async fn check_generation(core: &Core, connection: &mut impl ConnectionLike) -> Result<(), Failure> {
    let known = core.keys();
    let name = core.names.contents();
    let found = match generation::agree(connection, name.as_bytes(), || generation::renewed(&known)).await {
        Ok(found) => found,
        Err(Unusable::Failed(failure)) => return Err(failure),
        Err(Unusable::Newer(version)) => {
            error!(version, "a later version has written to this Redis: replace this one too");
            return Ok(());
        }
        Err(Unusable::Foreign) => {
            error!(key = name, "a key with our prefix in Redis holds data of another program");
            return Ok(());
        }
    };
    if found.epoch != known.epoch {
        warn!("Redis has lost its contents: a new store epoch begins");
        core.set_epoch(found.epoch);
        core.note_possible_loss();
    }
    if (found.signing, found.principal) != (known.signing, known.principal) {
        error!("the keys in Redis are not those of this replica: it keeps its own until it is started again");
    }
    Ok(())
}

/// Sets the store's health by a probe's result. Returns a failure that ends the connection.
fn apply_probe(core: &Core, probed: Result<(), Failure>) -> Result<(), Failure> {
    match probed {
        Ok(()) => core.set_health(StoreHealth::Ready),
        Err(Failure::Full(_)) => core.set_health(StoreHealth::Full),
        Err(failure) if failure.breaks_connection() => return Err(failure),
        Err(failure) => warn!(why = %failure, "Redis refuses a command that the store needs"),
    }
    Ok(())
}
