//! Notification of followers, through what Redis publishes on the one channel of this replica.
//!
//! No change is missed. After each new connection, when messages may be lost, every follower is woken and reads. Each
//! follower is woken too when its registration is renewed, since a published message may be lost on its way.

use std::sync::Arc;
use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use ::redis::{PushInfo, PushKind, Value};
use tokio::sync::mpsc;
use tracing::{debug, warn};

use super::connector::Connector;
use super::core::Core;
use super::failure::Failure;
use super::keys;
use super::scripts;
use crate::clock;
use crate::protocol::ids::StreamId;
use crate::store::{Error, Pending};

/// Message by which a replica checks that its subscription works.
pub(super) const HEARTBEAT: &[u8] = b"heartbeat";
/// Message that announces mail.
pub(super) const MAIL: &[u8] = b"mail";

/// Longest silence of a working subscription: five heartbeats.
const SILENCE: Duration = Duration::from_secs(5);
/// Expiry of a registration in Redis, and the interval of its renewal.
const REGISTERED: Duration = Duration::from_secs(30);
const RENEW_EVERY: Duration = Duration::from_secs(10);
/// The wait before another connection is tried.
const RETRY: Duration = Duration::from_millis(250);

/// A connection on which this replica's channel is heard.
pub(super) struct Ears {
    /// Closed when dropped.
    _connection: MultiplexedConnection,
    heard: mpsc::UnboundedReceiver<PushInfo>,
}

impl Ears {
    pub(super) async fn open(core: &Core, connector: &Connector) -> Result<Self, Failure> {
        let (mut connection, heard) = connector.listen().await?;
        let subscribed = connection.subscribe(core.names.channel(core.owner)).await;
        subscribed.map_err(|error| Failure::of(&error))?;
        Ok(Self { _connection: connection, heard })
    }
}

/// Tells who must be told, over one connection after the other.
pub(super) async fn listen(core: Arc<Core>, connector: Arc<Connector>, mut ears: Ears) {
    loop {
        hear(&core, &mut ears).await;
        ears = loop {
            let opened = tokio::time::timeout(connector.patience(), Ears::open(&core, &connector)).await;
            match opened.unwrap_or_else(|_| Err(Failure::lost("Redis did not answer in time"))) {
                Ok(ears) => break ears,
                Err(why) => debug!(%why, "Redis cannot be listened to"),
            }
            clock::sleep(RETRY).await;
        };
        core.followers.notify_all();
        core.mail.notify_one();
    }
}

/// Until nothing is heard any more.
async fn hear(core: &Core, ears: &mut Ears) {
    while let Ok(Some(push)) = tokio::time::timeout(SILENCE, ears.heard.recv()).await {
        match (push.kind, push.data.get(1)) {
            (PushKind::Disconnection, _) => break,
            (PushKind::Message, Some(Value::BulkString(said))) => match said.as_slice() {
                HEARTBEAT => {}
                MAIL => core.mail.notify_one(),
                stream => {
                    if let Ok(bytes) = stream.try_into() {
                        core.followers.notify(StreamId::from_bytes(bytes));
                    }
                }
            },
            _ => {}
        }
    }
}

/// Has Redis publish changes of the stream to this replica for a while.
pub(super) fn register(core: &Core, stream: StreamId) -> Pending<Result<(), Error>> {
    let mut cmd = core.names.on(&scripts::FOLLOW, stream);
    cmd.arg(keys::of(core.owner)).arg(REGISTERED.as_millis() as u64);
    core.call(stream, vec![cmd], |_| Ok(()))
}

/// Renews the registrations. After a loss it makes all of them anew, then wakes every follower.
pub(super) async fn renew(core: Arc<Core>) {
    loop {
        tokio::select! {
            () = clock::sleep(RENEW_EVERY) => {}
            () = core.rejoin.notified() => {}
        }
        let registering: Vec<_> =
            core.followers.streams().into_iter().map(|stream| (stream, register(&core, stream))).collect();
        for (stream, registered) in registering {
            if let Err(error) = registered.wait().await {
                warn!(stream.id = %stream, %error, "a stream cannot be followed");
            }
            // Also where nothing was lost that we know of: a stream that expires says nothing, and what is published in a
            // Cluster is lost with a link between two nodes.
            core.followers.notify(stream);
        }
        core.mail.notify_one();
    }
}
