//! Keeps the connection: serves calls over it, sees that it works, and makes another one when it does not.

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
use crate::backoff::Backoff;
use crate::clock;
use crate::random;
use crate::store::StoreHealth;

/// Interval of the probes that Redis replies, accepts writes, and has its contents.
const PROBE_EVERY: Duration = Duration::from_secs(1);
/// Expiry of a probe's key.
const PROBE_KEPT_MS: &[u8] = b"10000";
/// Pauses before another connection is tried.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_millis(500));

/// Serves calls until the store is gone, over one connection after the other.
pub(super) async fn keep(core: Arc<Core>, connector: Arc<Connector>, mut link: Link, mut calls: mpsc::Receiver<Call>) {
    loop {
        let why = match link {
            Link::Line(connection, pushed) => pipeline::serve(&core, connection, pushed, &mut calls).await,
            Link::Cluster(connection) => cluster::serve(&core, connection, &mut calls).await,
        };
        let Some(why) = why else { return };
        core.stand(StoreHealth::Unreachable);
        warn!(%why, "the connection to Redis is lost");
        let Some(again) = reconnect(&core, &connector, &mut calls).await else { return };
        link = again;
        info!("Redis is reached again");
        core.regain();
    }
}

/// Tries until it succeeds; calls fail meanwhile. `None` when the store is gone.
async fn reconnect(core: &Core, connector: &Connector, calls: &mut mpsc::Receiver<Call>) -> Option<Link> {
    let trying = async {
        let mut backoff = BACKOFF;
        let mut said = String::new();
        loop {
            clock::sleep(backoff.next_pause_with_jitter(u16::from_be_bytes(random::bytes()))).await;
            let opened = tokio::time::timeout(connector.patience(), open(core, connector)).await;
            match opened.unwrap_or_else(|_| Err(Failure::lost("Redis did not reply in time"))) {
                Ok(link) => return link,
                Err(why) if why.to_string() == said => {}
                Err(why) => {
                    warn!(%why, "Redis cannot be reached");
                    said = why.to_string();
                }
            }
        }
    };
    tokio::pin!(trying);
    loop {
        tokio::select! {
            link = &mut trying => return Some(link),
            call = calls.recv() => call?.answer(Err(Failure::lost("Redis cannot be reached"))),
        }
    }
}

/// A connection that has been seen to work.
async fn open(core: &Core, connector: &Connector) -> Result<Link, Failure> {
    let mut link = connector.open().await?;
    ready(core, &mut link).await?;
    Ok(link)
}

/// Makes a connection fit for calls, and sees that it works.
pub(super) async fn ready(core: &Core, link: &mut Link) -> Result<(), Failure> {
    let probed = match link {
        Link::Line(connection, _) => {
            pipeline::load_scripts(connection).await?;
            probe(core, connection).await
        }
        Link::Cluster(connection) => probe(core, connection).await,
    };
    judge(core, probed)
}

/// Checks that Redis has the known contents and accepts writes, and publishes a heartbeat to this replica's own subscription.
async fn probe(core: &Core, connection: &mut impl ConnectionLike) -> Result<(), Failure> {
    look_at_contents(core, connection).await?;
    let name = core.names.probe(core.owner);
    ask(connection, &cmd(&[b"SET", name.as_bytes(), b"", b"PX", PROBE_KEPT_MS])).await?;
    ask(connection, &cmd(&[b"PUBLISH", core.names.channel(core.owner).as_bytes(), HEARTBEAT])).await?;
    Ok(())
}

/// Compares the generation in Redis with the known one. If the contents were lost, the replica that first writes the
/// signing keys again begins a new store epoch.
async fn look_at_contents(core: &Core, connection: &mut impl ConnectionLike) -> Result<(), Failure> {
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
            error!(key = name, "a key of ours in Redis holds what is not ours");
            return Ok(());
        }
    };
    if found.epoch != known.epoch {
        warn!("Redis has lost its contents: a new store epoch begins");
        core.set_epoch(found.epoch);
        core.regain();
    }
    if (found.signing, found.principal) != (known.signing, known.principal) {
        error!("the keys in Redis are not those of this replica: it keeps its own until it is started again");
    }
    Ok(())
}

/// Sets the store's health by a probe's result. Returns a failure that ends the connection.
fn judge(core: &Core, probed: Result<(), Failure>) -> Result<(), Failure> {
    match probed {
        Ok(()) => core.stand(StoreHealth::Ready),
        Err(Failure::Full(_)) => core.stand(StoreHealth::Full),
        Err(failure) if failure.breaks() => return Err(failure),
        Err(failure) => warn!(why = %failure, "Redis refuses what the store cannot do without"),
    }
    Ok(())
}
