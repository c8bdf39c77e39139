//! Notification of subscribers, by the messages that Redis publishes on the one channel of this
//! replica.
//!
//! No change is missed. After each new connection, when messages may be lost, every subscriber is
//! woken and reads. Each subscriber is also woken when its registration is renewed, because a
//! published message may be lost on its way.

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
use crate::{Error, Pending};
use mcp_resume_base::clock;
use mcp_resume_protocol::ids::StreamId;

/// Message of a check that the subscription of a replica works.
pub(super) const HEARTBEAT: &[u8] = b"heartbeat";
/// Message that announces mail.
pub(super) const MAIL: &[u8] = b"mail";

/// Longest silence of a working subscription: five heartbeats.
const SILENCE: Duration = Duration::from_secs(5);
/// Expiry of a registration in Redis, and the interval of its renewal.
const REGISTERED: Duration = Duration::from_secs(30);
const RENEW_EVERY: Duration = Duration::from_secs(10);
/// Pause before the next attempt to connect.
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

/// Wakes the subscribers of changed streams, over one connection after the other.
pub(super) async fn listen(core: Arc<Core>, connector: Arc<Connector>, mut subscription: Subscription) {
    loop {
        receive(&core, &mut subscription).await;
        subscription = loop {
            let opened = tokio::time::timeout(connector.patience(), Subscription::open(&core, &connector)).await;
            match opened.unwrap_or_else(|_| Err(Failure::lost("Redis did not reply in time"))) {
                Ok(subscription) => break subscription,
                Err(why) => debug!(%why, "the channel in Redis cannot be subscribed to"),
            }
            clock::sleep(RETRY).await;
        };
        core.subscriptions.notify_all();
        core.mail.notify_one();
    }
}

/// Handles messages until the connection is silent for too long.
async fn receive(core: &Core, subscription: &mut Subscription) {
    while let Ok(Some(push)) = tokio::time::timeout(SILENCE, subscription.received.recv()).await {
        match (push.kind, push.data.get(1)) {
            (PushKind::Disconnection, _) => break,
            (PushKind::Message, Some(Value::BulkString(message))) => match message.as_slice() {
                HEARTBEAT => {}
                MAIL => core.mail.notify_one(),
                stream => {
                    if let Ok(bytes) = stream.try_into() {
                        core.subscriptions.notify(StreamId::from_bytes(bytes));
                    }
                }
            },
            _ => {}
        }
    }
}

/// Registers this replica for [`REGISTERED`]: Redis publishes changes of the stream to it.
pub(super) fn register(core: &Core, stream: StreamId) -> Pending<Result<(), Error>> {
    let mut cmd = core.names.on(&scripts::FOLLOW, stream);
    cmd.arg(keys::of(core.owner)).arg(REGISTERED.as_millis() as u64);
    core.call(stream, vec![cmd], |_| Ok(()))
}

/// Renews the registrations, and wakes every subscriber. After a loss all of them are made anew at
/// once.
pub(super) async fn renew(core: Arc<Core>) {
    loop {
        tokio::select! {
            () = clock::sleep(RENEW_EVERY) => {}
            () = core.resubscribe.notified() => {}
        }
        let registering: Vec<_> =
            core.subscriptions.streams().into_iter().map(|stream| (stream, register(&core, stream))).collect();
        for (stream, registered) in registering {
            if let Err(error) = registered.wait().await {
                warn!(stream.id = %stream, %error, "the changes of a stream cannot be subscribed to");
            }
            // Also without a known loss. The expiry of a stream is not published, and a message in
            // a Cluster is lost with the link between two nodes.
            core.subscriptions.notify(stream);
        }
        core.mail.notify_one();
    }
}
