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

/// Connection that receives the messages on this replica's channel.
pub(super) struct Subscription {
    /// Closed when dropped.
    _connection: MultiplexedConnection,
    received: mpsc::UnboundedReceiver<PushInfo>,
}

impl Subscription {
    pub(super) async fn open(core: &Core, connector: &Connector) -> Result<Self, Failure> {
        let (mut connection, received) = connector.listen().await?;
        let subscribed = connection.subscribe(core.names.channel(core.owner)).await;
        subscribed.map_err(|error| Failure::of(&error))?;
        Ok(Self { _connection: connection, received })
    }
}

/// Tells who must be told, over one connection after the other.
pub(super) async fn listen(core: Arc<Core>, connector: Arc<Connector>, mut subscription: Subscription) {
    loop {
        receive(&core, &mut subscription).await;
        subscription = loop {
            let opened = tokio::time::timeout(connector.patience(), Subscription::open(&core, &connector)).await;
            match opened.unwrap_or_else(|_| Err(Failure::lost("Redis did not reply in time"))) {
                Ok(subscription) => break subscription,
                Err(why) => debug!(%why, "Redis cannot be listened to"),
            }
            clock::sleep(RETRY).await;
        };
        core.followers.notify_all();
        core.mail.notify_one();
    }
}

/// Handles messages until the connection is silent for too long.
async fn receive(core: &Core, subscription: &mut Subscription) {
    while let Ok(Some(push)) = tokio::time::timeout(SILENCE, subscription.received.recv()).await {
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
