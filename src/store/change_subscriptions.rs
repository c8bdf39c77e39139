//! Followers of streams: the tasks of this process that wait for changes to a stream.
//!
//! Owned here: one [`Notify`] for each subscription, by stream. Absent: the source of the changes. The store reports each
//! change with [`Followers::notify`].

use std::sync::Arc;

use dashmap::DashMap;
use tokio::sync::Notify;

use crate::protocol::ids::StreamId;

/// The registry of one store. Clones share it.
#[derive(Clone, Default)]
pub(super) struct Followers(Arc<DashMap<StreamId, Vec<Arc<Notify>>>>);

/// A subscription to the changes of one stream, until dropped.
pub struct ChangeSubscription {
    followers: Followers,
    stream: StreamId,
    changed: Arc<Notify>,
}

impl Followers {
    /// Adds a follower of the stream. Every change from now on reaches the subscription.
    pub(super) fn follow(&self, stream: StreamId) -> ChangeSubscription {
        let changed = Arc::new(Notify::new());
        self.0.entry(stream).or_default().push(changed.clone());
        ChangeSubscription { followers: self.clone(), stream, changed }
    }

    /// Wakes the followers of the stream.
    pub(super) fn notify(&self, stream: StreamId) {
        if let Some(followers) = self.0.get(&stream) {
            followers.iter().for_each(|changed| changed.notify_one());
        }
    }

    /// Wakes every follower, after an event that may have changed any stream.
    pub(super) fn notify_all(&self) {
        self.0.iter().for_each(|followers| followers.iter().for_each(|changed| changed.notify_one()));
    }

    /// Returns the streams that have followers.
    pub(super) fn streams(&self) -> Vec<StreamId> {
        self.0.iter().map(|followers| *followers.key()).collect()
    }
}

impl ChangeSubscription {
    /// Waits until the stream may have grown, been trimmed, ended, expired or changed its writer since the last call. No
    /// change is missed; several changes may be reported as one, and a report may have no change behind it. Cancel-safe.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }
}

impl Drop for ChangeSubscription {
    fn drop(&mut self) {
        let Followers(followers) = &self.followers;
        if let Some(mut others) = followers.get_mut(&self.stream) {
            others.retain(|other| !Arc::ptr_eq(other, &self.changed));
        }
        followers.remove_if(&self.stream, |_, others| others.is_empty());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_follower_is_notified_until_it_is_dropped() {
        let followers = Followers::default();
        let stream = StreamId::from_bytes([1; 12]);
        let (one, other) = (followers.follow(stream), followers.follow(stream));
        followers.notify(stream);
        one.changed().await;
        followers.notify_all();
        one.changed().await;
        other.changed().await;
        drop(one);
        assert_eq!(followers.streams(), [stream]);
        drop(other);
        assert_eq!(followers.streams(), []);
    }
}
