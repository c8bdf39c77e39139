//! `subscriptions/listen`: the server's notifications of changes, for a client that asked for them.

use std::sync::Arc;

use bytes::Bytes;
use http_body_util::BodyExt;
use serde_json::Value;

use super::session::{Key, LegacySession};
use super::{Called, ClientRequest, INVALID_PARAMS, ModernClients, refusal};
use crate::body::BoxBody;
use crate::protocol::bridge::modern_clients::listen::{self, Filter};
use crate::protocol::bridge::modern_clients::too_many_waiting;
use crate::protocol::sse;
use crate::upstream::bridge::{event_stream, json_response};
use crate::upstream::{ResponseBody, Template, Unanswered, synthetic};

impl ModernClients {
    /// Answers with a stream of the changes that the client asks for and that the server tells.
    pub(super) async fn listen(
        self: &Arc<Self>,
        key: &Key,
        session: &Arc<LegacySession>,
        request: &ClientRequest,
    ) -> Result<Called, Unanswered> {
        let Some(mut filter) = Filter::of(request.template.body(), &session.capabilities()) else {
            let text = "Invalid params: notifications is no valid filter";
            return Ok(refusal(Some(&request.id), INVALID_PARAMS, text, Value::Null).into());
        };
        session.wait_for_stream().await;
        let (clients, of_key, template) = (Arc::downgrade(self), key.clone(), request.template.clone());
        let mut held = session.listeners.hold(Box::new(move |gone| {
            if tokio::runtime::Handle::try_current().is_ok() {
                tokio::spawn(async move {
                    let Some(clients) = clients.upgrade() else { return };
                    let Some(session) = clients.sessions.current(&of_key) else { return };
                    for uri in gone {
                        clients.subscribe(&session, &template, &uri, false).await;
                    }
                });
            }
        }));
        for uri in filter.resources().to_vec() {
            if held.add(&uri) && !self.subscribe(session, &request.template, &uri, true).await {
                held.undo();
                filter.remove_resource(&uri);
            }
        }
        let body: BoxBody = if filter.is_empty() {
            // Nothing will be told.
            let first = sse::message_event(&listen::acknowledged(&request.id, &filter));
            let last = sse::message_event(&listen::ended(&request.id, session.server_info.as_ref()));
            let both = Bytes::from([first, last].concat());
            http_body_util::Full::new(both).map_err(|never| match never {}).boxed_unsync()
        } else {
            match session.listeners.add(&request.id, filter, held) {
                Some(listening) => listening.boxed_unsync(),
                None => return Ok(json_response(http::StatusCode::OK, too_many_waiting(&request.id)).into()),
            }
        };
        Ok(event_stream(ResponseBody::Translated(body)).into())
    }

    /// Begins or ends the subscription to a resource at the server. Returns true if the server agrees.
    pub(super) async fn subscribe(
        &self,
        session: &LegacySession,
        template: &Template,
        uri: &str,
        begins: bool,
    ) -> bool {
        let request = listen::subscription(&synthetic::own_id(), uri, begins);
        match self.ask(session, template, request).await {
            Some(message) => crate::protocol::jsonrpc::member(&message, &["result"]).is_some(),
            None => false,
        }
    }
}
