//! Change subscriptions: the tasks of this process that wait for changes to a stream.
//!
//! Owned here: one [`Notify`] for each subscription, by stream. Absent: the source of the changes.
//! The store reports each change with [`ChangeSubscriptions::notify`].

use std::sync::Arc;

use dashmap::DashMap;
use tokio::sync::Notify;

use mcp_resume_protocol::ids::StreamId;

/// The registry of one store. Clones share it.
#[derive(Clone, Default)]
pub(super) struct ChangeSubscriptions(Arc<DashMap<StreamId, Vec<Arc<Notify>>>>);

/// A subscription to the changes of one stream, until dropped.
pub struct ChangeSubscription {
    registry: ChangeSubscriptions,
    stream: StreamId,
    changed: Arc<Notify>,
}

impl ChangeSubscriptions {
    /// Subscribes to the stream. Every change from now on reaches the subscription.
    pub(super) fn subscribe(&self, stream: StreamId) -> ChangeSubscription {
        let changed = Arc::new(Notify::new());
        self.0.entry(stream).or_default().push(changed.clone());
        ChangeSubscription { registry: self.clone(), stream, changed }
    }

    /// Wakes the subscribers of the stream.
    pub(super) fn notify(&self, stream: StreamId) {
        if let Some(subscribers) = self.0.get(&stream) {
            for changed in subscribers.iter() {
                changed.notify_one();
            }
        }
    }

    /// Wakes every subscriber, after an event that may have changed any stream.
    pub(super) fn notify_all(&self) {
        for subscribers in self.0.iter() {
            for changed in subscribers.iter() {
                changed.notify_one();
            }
        }
    }

    /// Returns the streams that have subscribers.
    pub(super) fn streams(&self) -> Vec<StreamId> {
        self.0.iter().map(|subscribers| *subscribers.key()).collect()
    }
}

impl ChangeSubscription {
    /// Waits until the stream may have grown, been trimmed, ended, expired or changed its writer
    /// since the last call. No change is missed; several changes may be reported as one, and a
    /// report may have no change behind it. Cancel-safe.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }
}

impl Drop for ChangeSubscription {
    fn drop(&mut self) {
        let ChangeSubscriptions(streams) = &self.registry;
        if let Some(mut others) = streams.get_mut(&self.stream) {
            others.retain(|other| !Arc::ptr_eq(other, &self.changed));
        }
        streams.remove_if(&self.stream, |_, others| others.is_empty());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_subscriber_is_notified_until_it_is_dropped() {
        let subscriptions = ChangeSubscriptions::default();
        let stream = StreamId::from_bytes([1; 12]);
        let (one, other) = (subscriptions.subscribe(stream), subscriptions.subscribe(stream));
        subscriptions.notify(stream);
        one.changed().await;
        subscriptions.notify_all();
        one.changed().await;
        other.changed().await;
        drop(one);
        assert_eq!(subscriptions.streams(), [stream]);
        drop(other);
        assert_eq!(subscriptions.streams(), []);
    }
}
