//! Listeners of one session: its clients' subscriptions to changes.
//!
//! Absent: subscriptions of sessions that share a server on a channel
//! (`protocol/channel/shared_state.rs`). There each client sends requests of its own, which the
//! server may refuse one by one. Here the bridge sends the requests, and a count of the listeners
//! of a resource suffices.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::Stream;
use serde_json::Value;
use tokio::sync::mpsc;

use crate::protocol::bridge::modern_clients::listen::{self, Filter};
use crate::protocol::jsonrpc::RequestId;
use crate::sync;
use crate::upstream::bridge::outbox::Outbox;

/// Maximum number of subscriptions of one session.
const MAX_LISTENERS: usize = 64;
/// Maximum number of messages that wait for the reader of a subscription, besides its result.
/// Beyond it the subscription ends.
const QUEUE: usize = 256;

/// The subscriptions. They outlive a forgotten session and continue in its replacement.
#[derive(Default)]
pub(super) struct Listeners(Mutex<State>);

#[derive(Default)]
struct State {
    next: u64,
    listeners: HashMap<u64, Listener>,
    /// Number of subscriptions to each resource.
    resources: HashMap<String, usize>,
}

struct Listener {
    id: RequestId,
    filter: Filter,
    outbox: Arc<Outbox>,
}

/// Resources that one subscription keeps subscribed at the server. Dropping it releases them.
pub(super) struct HeldResources {
    listeners: Arc<Listeners>,
    held: Vec<String>,
    on_release: Option<OnRelease>,
}

/// Action for resources that no subscription uses any more.
type OnRelease = Box<dyn FnOnce(Vec<String>) + Send>;

/// Stream of a subscription. Dropping it ends the subscription.
pub(super) struct Listening {
    listeners: Arc<Listeners>,
    number: u64,
    receiver: mpsc::Receiver<Bytes>,
    _resources: HeldResources,
}

impl Listeners {
    /// Adds a subscription, which begins with its acknowledgement. Returns `None` beyond
    /// [`MAX_LISTENERS`].
    pub(super) fn add(self: &Arc<Self>, id: &RequestId, filter: Filter, resources: HeldResources) -> Option<Listening> {
        let (outbox, receiver) = Outbox::new(QUEUE + 1);
        let mut state = sync::lock(&self.0);
        if state.listeners.len() >= MAX_LISTENERS {
            return None;
        }
        // The queue is empty.
        outbox.send(listen::acknowledged(id, &filter));
        let number = state.next;
        state.next += 1;
        state.listeners.insert(number, Listener { id: id.clone(), filter, outbox });
        drop(state);
        Some(Listening { listeners: self.clone(), number, receiver, _resources: resources })
    }

    /// Begins to hold resources for a subscription.
    pub(super) fn hold(self: &Arc<Self>, on_release: OnRelease) -> HeldResources {
        HeldResources { listeners: self.clone(), held: Vec::new(), on_release: Some(on_release) }
    }

    /// Returns true if there is room for a further subscription.
    pub(super) fn has_room(&self) -> bool {
        sync::lock(&self.0).listeners.len() < MAX_LISTENERS
    }

    pub(super) fn is_empty(&self) -> bool {
        sync::lock(&self.0).listeners.is_empty()
    }

    /// Returns the resources of all subscriptions.
    pub(super) fn resources(&self) -> Vec<String> {
        sync::lock(&self.0).resources.keys().cloned().collect()
    }

    /// Sends a notification to the matching subscriptions.
    pub(super) fn notify(&self, method: &str, message: &[u8]) {
        self.notify_each(|filter| if filter.matches(method, message) { vec![message.to_vec()] } else { Vec::new() });
    }

    /// Waits briefly for readers that are behind.
    pub(super) async fn wait_for_readers(&self) {
        let outboxes: Vec<_> = sync::lock(&self.0).listeners.values().map(|listener| listener.outbox.clone()).collect();
        for outbox in outboxes {
            outbox.wait_for_reader().await;
        }
    }

    /// Notifies each subscription that its lists may have changed.
    pub(super) fn notify_all_changed(&self) {
        self.notify_each(|filter| filter.list_changes().collect());
    }

    /// Ends all subscriptions, each with its result.
    pub(super) fn end_all(&self, server_info: Option<&Value>) {
        for (_, listener) in sync::lock(&self.0).listeners.drain() {
            listener.outbox.send(listen::ended(&listener.id, server_info));
        }
    }

    /// Releases resources. Returns the resources that no subscription uses any more.
    fn release(&self, resources: &[String]) -> Vec<String> {
        let mut state = sync::lock(&self.0);
        let is_gone = |uri: &&String| match state.resources.get_mut(*uri) {
            Some(count) if *count > 1 => {
                *count -= 1;
                false
            }
            Some(_) | None => state.resources.remove(*uri).is_some(),
        };
        resources.iter().filter(is_gone).cloned().collect()
    }

    fn notify_each(&self, messages: impl Fn(&Filter) -> Vec<Vec<u8>>) {
        sync::lock(&self.0).listeners.retain(|_, listener| {
            let messages = messages(&listener.filter);
            let tagged = messages.iter().filter_map(|message| listen::tagged(message, &listener.id));
            let mut is_delivered = true;
            for message in tagged {
                is_delivered = listener.outbox.room() > 1 && listener.outbox.send(message);
                if !is_delivered {
                    // A subscription with a slow reader ends: its client subscribes again.
                    listener.outbox.send(listen::ended(&listener.id, None));
                    break;
                }
            }
            is_delivered
        });
    }
}

impl HeldResources {
    /// Holds a further resource. Returns true if no other subscription uses it, so that the server
    /// needs a subscription.
    pub(super) fn add(&mut self, uri: &str) -> bool {
        self.held.push(uri.to_owned());
        let mut state = sync::lock(&self.listeners.0);
        let count = state.resources.entry(uri.to_owned()).or_default();
        *count += 1;
        *count == 1
    }

    /// Releases a resource that the server has refused.
    pub(super) fn remove(&mut self, uri: &str) {
        if let Some(at) = self.held.iter().position(|held| held == uri) {
            let uri = self.held.swap_remove(at);
            self.listeners.release(&[uri]);
        }
    }
}

impl Drop for HeldResources {
    fn drop(&mut self) {
        let gone = self.listeners.release(&self.held);
        if let (Some(on_release), false) = (self.on_release.take(), gone.is_empty()) {
            on_release(gone);
        }
    }
}

impl Stream for Listening {
    type Item = Bytes;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        self.receiver.poll_recv(cx)
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        sync::lock(&self.listeners.0).listeners.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt;
    use serde_json::json;

    use super::*;

    fn filter(wanted: &Value) -> Filter {
        let body = json!({"params": {"notifications": wanted}}).to_string();
        let declared = json!({"tools": {"listChanged": true}, "resources": {"subscribe": true}});
        Filter::of(body.as_bytes(), &declared).expect("a filter")
    }

    async fn next(listening: &mut Listening) -> Value {
        serde_json::from_slice(&listening.next().await.expect("a message")).expect("JSON")
    }

    #[tokio::test]
    async fn each_hears_of_what_it_asked_for() {
        let listeners = Arc::new(Listeners::default());
        let id = RequestId::Number("7".into());
        let held = listeners.hold(Box::new(drop));
        let mut listening = listeners.add(&id, filter(&json!({"toolsListChanged": true})), held).expect("room");
        assert_eq!(next(&mut listening).await["method"], "notifications/subscriptions/acknowledged");
        listeners.notify("notifications/prompts/list_changed", b"{}");
        listeners.notify_all_changed();
        let notification = next(&mut listening).await;
        assert_eq!(notification["method"], "notifications/tools/list_changed");
        assert_eq!(notification["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"], 7);
        drop(listening);
        assert!(listeners.is_empty());
    }

    #[tokio::test]
    async fn a_subscription_that_is_not_read_ends() {
        let listeners = Arc::new(Listeners::default());
        let id = RequestId::Number("7".into());
        let held = listeners.hold(Box::new(drop));
        let mut listening = listeners.add(&id, filter(&json!({"toolsListChanged": true})), held).expect("room");
        for _ in 0..=QUEUE {
            listeners.notify_all_changed();
        }
        assert!(listeners.is_empty());
        for _ in 0..QUEUE {
            assert!(next(&mut listening).await["method"].is_string());
        }
        assert_eq!(next(&mut listening).await["id"], 7);
        assert!(listening.next().await.is_none());
    }

    #[test]
    fn resources_are_counted() {
        let listeners = Arc::new(Listeners::default());
        let (sender, receiver) = std::sync::mpsc::channel();
        let hold = || {
            let sender = sender.clone();
            listeners.hold(Box::new(move |gone| sender.send(gone).expect("a receiver")))
        };
        let (mut one, mut two) = (hold(), hold());
        assert_eq!([one.add("a"), two.add("a"), two.add("b"), two.add("c")], [true, false, true, true]);
        two.remove("c");
        drop(one);
        assert!(receiver.try_recv().is_err(), "the other has it");
        assert_eq!(listeners.resources().len(), 2);
        drop(two);
        assert_eq!(receiver.try_recv(), Ok(vec!["a".to_owned(), "b".to_owned()]));
    }

    #[test]
    fn subscriptions_of_a_session_are_bounded() {
        let listeners = Arc::new(Listeners::default());
        let id = RequestId::Number("7".into());
        let add = || listeners.add(&id, filter(&json!({"toolsListChanged": true})), listeners.hold(Box::new(drop)));
        let all: Vec<_> = (0..MAX_LISTENERS).map_while(|_| add()).collect();
        assert_eq!((all.len(), add().is_none()), (MAX_LISTENERS, true));
    }
}
