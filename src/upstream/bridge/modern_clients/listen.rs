//! `subscriptions/listen`: change notifications of the server, for a client that has subscribed.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream;
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::request::{ClientRequest, refusal};
use super::session::{Key, LegacySession};
use super::{Called, ModernClients};
use crate::protocol::bridge::modern_clients::listen::{self, Filter};
use crate::protocol::bridge::modern_clients::too_many_waiting;
use crate::protocol::jsonrpc::{self, code};
use crate::upstream::bridge::responses::{event_stream, json_response};
use crate::upstream::server::exchange::Unanswered;
use crate::upstream::server::request::Template;
use crate::upstream::server::response_body::Messages;
use crate::upstream::server::synthetic;

/// Number of resource subscriptions that begin at the same time, and time limit for all of them.
const AT_ONCE: usize = 8;
const ALL_WAIT: Duration = Duration::from_secs(10);

impl ModernClients {
    /// Returns a stream of the requested changes that the server can announce.
    pub(super) async fn listen(
        self: &Arc<Self>,
        key: &Key,
        session: &Arc<LegacySession>,
        request: &ClientRequest,
    ) -> Result<Called, Unanswered> {
        let Some(mut filter) = Filter::of(request.template.body(), &session.capabilities()) else {
            let text = "Invalid params: notifications is no valid filter";
            return Ok(refusal(Some(&request.id), code::INVALID_PARAMS, text, Value::Null).into());
        };
        session.wait_for_stream().await;
        let (clients, of_key) = (Arc::downgrade(self), key.clone());
        let mut held = session.listeners.hold(Box::new(move |gone| {
            if tokio::runtime::Handle::try_current().is_ok() {
                tokio::spawn(async move {
                    let Some(clients) = clients.upgrade() else { return };
                    let Some(session) = clients.sessions.current(&of_key) else { return };
                    for uri in gone {
                        subscribe(&session, &session.usage.last_request(), &uri, false).await;
                    }
                });
            }
        }));
        if !session.listeners.has_room() {
            return Ok(json_response(http::StatusCode::OK, too_many_waiting(&request.id)).into());
        }
        let new: Vec<String> = filter.resources().iter().filter(|uri| held.add(uri)).cloned().collect();
        for uri in subscribe_all(session, &request.template, new).await {
            held.remove(&uri);
            filter.remove_resource(&uri);
        }
        let messages = if filter.is_empty() {
            // The server announces no change of this kind.
            let first = listen::acknowledged(&request.id, &filter);
            let last = listen::ended(&request.id, session.server_info.as_ref());
            Messages::of(stream::iter([first.into(), last.into()]))
        } else {
            match session.listeners.add(&request.id, filter, held) {
                Some(listening) => Messages::of(listening),
                None => return Ok(json_response(http::StatusCode::OK, too_many_waiting(&request.id)).into()),
            }
        };
        Ok(event_stream(messages).into())
    }
}

/// Begins resource subscriptions at the server, several at the same time. Returns the resources
/// that the server refuses, or does not confirm within ten seconds.
pub(super) async fn subscribe_all(
    session: &Arc<LegacySession>,
    template: &Template,
    uris: Vec<String>,
) -> HashSet<String> {
    let turns = Arc::new(Semaphore::new(AT_ONCE));
    let mut subscribing = JoinSet::new();
    for uri in uris.clone() {
        let (session, template, turns) = (session.clone(), template.clone(), turns.clone());
        subscribing.spawn(async move {
            let _turn = turns.acquire().await;
            subscribe(&session, &template, &uri, true).await.then_some(uri)
        });
    }
    let mut refused: HashSet<String> = uris.into_iter().collect();
    let all = async {
        while let Some(subscribed) = subscribing.join_next().await {
            if let Ok(Some(uri)) = subscribed {
                refused.remove(&uri);
            }
        }
    };
    drop(tokio::time::timeout(ALL_WAIT, all).await);
    refused
}

/// Begins or ends a resource subscription at the server. Returns true if the server agrees.
async fn subscribe(session: &LegacySession, template: &Template, uri: &str, begins: bool) -> bool {
    let request = listen::subscription(&synthetic::own_id(), uri, begins);
    match session.request(template, request).await {
        Some(message) => jsonrpc::error_in(&message).is_none(),
        None => false,
    }
}
