//! Who hears of changes to a stream: followers in this process, the only ones a directory has.

use std::sync::Arc;

use dashmap::DashMap;
use tokio::sync::Notify;

use crate::protocol::ids::StreamId;
use crate::store::ChangeSubscription;

#[derive(Clone, Default)]
pub(super) struct Followers(Arc<DashMap<StreamId, Vec<Arc<Notify>>>>);

/// Takes the follower from the list.
struct Registration {
    followers: Followers,
    stream: StreamId,
    changed: Arc<Notify>,
}

impl Drop for Registration {
    fn drop(&mut self) {
        let Followers(followers) = &self.followers;
        if let Some(mut others) = followers.get_mut(&self.stream) {
            others.retain(|other| !Arc::ptr_eq(other, &self.changed));
        }
        followers.remove_if(&self.stream, |_, others| others.is_empty());
    }
}

impl Followers {
    pub(super) fn follow(&self, stream: StreamId) -> ChangeSubscription {
        let changed = Arc::new(Notify::new());
        self.0.entry(stream).or_default().push(changed.clone());
        ChangeSubscription::new(changed.clone(), Registration { followers: self.clone(), stream, changed })
    }

    pub(super) fn tell(&self, stream: StreamId) {
        self.0.get(&stream).iter().flat_map(|entry| entry.value()).for_each(|changed| changed.notify_one());
    }

    /// For when anything may have changed.
    pub(super) fn tell_all(&self) {
        self.0.iter().for_each(|entry| entry.value().iter().for_each(|changed| changed.notify_one()));
    }
}
