//! Subscription of a session at the server. The client gets its notifications on the session's
//! standalone stream.

use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use http::Response;

use super::clients::LegacyClients;
use super::request::modern;
use super::session::{Session, Subscription};
use crate::backoff::Backoff;
use crate::clock;
use crate::protocol::bridge::legacy_clients as bridge;
use crate::protocol::headers;
use crate::protocol::jsonrpc::{self, Message};
use crate::upstream::server::exchange::Exchange;
use crate::upstream::server::request::Template;
use crate::upstream::server::response_body::ResponseBody;
use crate::upstream::server::sse_reader::EventReader;
use crate::upstream::server::synthetic;

const LISTEN: &str = "subscriptions/listen";
const ACKNOWLEDGED: &str = "notifications/subscriptions/acknowledged";
/// Time limit for the acknowledgement. Requests of the client wait meanwhile.
const WAIT: Duration = Duration::from_secs(10);
/// Pauses before a lost subscription is made again.
const PAUSES: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));

impl LegacyClients {
    /// Replaces the subscription by a subscription to all that the session needs now, with the
    /// headers of this request. The previous subscription ends once the new one is acknowledged.
    /// Returns false if the server does not agree.
    pub(super) async fn subscribe(self: &Arc<Self>, session: &Arc<Session>, template: &Template) -> bool {
        let _changing = session.subscribing.lock().await;
        self.subscribe_anew(session, template).await
    }

    /// As [`Self::subscribe`], for a caller that holds the lock of the session's subscription.
    pub(super) async fn subscribe_anew(self: &Arc<Self>, session: &Arc<Session>, template: &Template) -> bool {
        let resources = session.resources();
        let lists = session.server.announced_lists();
        let wants_lists = session.has_stream() && !lists.is_empty();
        let wanted = (wants_lists, resources);
        if session.is_subscribed_to(&wanted) {
            return true;
        }
        if wanted == Default::default() {
            session.set_subscription(None, wanted);
            return true;
        }
        let body = bridge::listen(&session.usage.next_id(), &session.client, &lists, &wanted.1);
        let post = modern(&synthetic::post(template, body), LISTEN);
        let opening = async {
            let response = self.link.server.exchange(&post, None).await.ok()?;
            let is_stream = response.status().is_success() && headers::is_sse(response.headers());
            if is_stream { acknowledged(response, self.link.settings.max_event_bytes).await } else { None }
        };
        let Ok(Some((reader, rest))) = tokio::time::timeout(WAIT, opening).await else { return false };
        for (method, text) in &rest {
            notify(session, method, text);
        }
        let task = read(Arc::downgrade(self), Arc::downgrade(session), reader);
        session.set_subscription(Some(Subscription(tokio::spawn(task).abort_handle())), wanted);
        true
    }
}

/// Reads the acknowledgement. Returns the notifications after it that were read with it.
async fn acknowledged(response: Response<ResponseBody>, limit: usize) -> Option<(EventReader, Vec<(String, String)>)> {
    let mut reader = EventReader::new(response.into_body(), limit);
    loop {
        let events = reader.batch().await?;
        let mut notifications = events.iter().flat_map(|event| notifications(&event.data)).collect::<Vec<_>>();
        if let Some(at) = notifications.iter().position(|(method, _)| method == ACKNOWLEDGED) {
            return Some((reader, notifications.split_off(at + 1)));
        }
    }
}

/// Reads a subscription to its end, then makes it again for as long as the session lives.
async fn read(clients: Weak<LegacyClients>, session: Weak<Session>, mut reader: EventReader) {
    while let Some(events) = reader.batch().await {
        let Some(session) = session.upgrade() else { return };
        for event in &events {
            for (method, text) in notifications(&event.data) {
                notify(&session, &method, &text);
                session.wait_for_reader().await;
            }
        }
    }
    drop(reader);
    // A separate task makes the new subscription, because that ends the task of the previous one.
    tokio::spawn(renewed(clients, session));
}

/// Makes a lost subscription again. Boxed, since the task of the new subscription may do the same.
fn renewed(clients: Weak<LegacyClients>, session: Weak<Session>) -> Pin<Box<dyn Future<Output = ()> + Send>> {
    Box::pin(async move {
        let mut pauses = PAUSES;
        loop {
            clock::sleep(pauses.next_pause()).await;
            let (Some(clients), Some(session)) = (clients.upgrade(), session.upgrade()) else { return };
            let latest = session.usage.last_request();
            if session.has_subscription() || clients.subscribe(&session, &latest).await {
                return;
            }
        }
    })
}

/// Returns method and text of each notification in an event.
fn notifications(data: &[u8]) -> Vec<(String, String)> {
    let Ok(body) = jsonrpc::peek(data) else { return Vec::new() };
    let texts = body.messages().iter().zip(jsonrpc::messages(data));
    let notification = |(message, text): (&Message, &str)| match message {
        Message::Notification { method } => Some((method.to_string(), text.to_owned())),
        Message::Request { .. } | Message::Response { .. } => None,
    };
    texts.filter_map(notification).collect()
}

/// Sends a notification to the client without the subscription's ID.
fn notify(session: &Session, method: &str, text: &str) {
    if method == ACKNOWLEDGED {
        return;
    }
    if let Some(untagged) = bridge::untagged(text.as_bytes()) {
        session.notify(&untagged);
    }
}
