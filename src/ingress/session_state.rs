//! State that a client sets in its session at the server, kept for the case that the server forgets
//! the session.
//!
//! Owned here: which messages set such state. Absent: the record (`event_log`), and its use
//! (`upstream/revival`).

use std::sync::Arc;

use super::components::Components;
use super::context::RequestContext;
use crate::event_log::{EventLog, Handshake};
use crate::protocol::classify;
use crate::protocol::jsonrpc::{self, InitializeParams, Message, SessionChange};
use crate::upstream::Upstream;

/// Keeps the state of sessions.
pub(super) struct SessionStates {
    log: Arc<EventLog>,
    upstream: Arc<Upstream>,
}

impl SessionStates {
    pub(super) fn new(components: &Components) -> Self {
        let Components { log, upstream, .. } = components;
        Self { log: log.clone(), upstream: upstream.clone() }
    }

    /// Returns the parameters to reopen the session that a call opens. Returns `None` if it opens
    /// no session that can be opened again.
    pub(super) fn params_of(&self, call: &classify::Call, body: &[u8]) -> Option<InitializeParams> {
        let opens = self.upstream.revives_sessions() && call.has_initialize() && !call.is_batch;
        if opens { InitializeParams::of(body) } else { None }
    }

    /// Records the log level and the subscriptions that a call changes.
    pub(super) fn apply_call(&self, context: &RequestContext, call: &classify::Call, body: &[u8]) {
        if !call.changes_session() {
            return;
        }
        let Some(handshake) = self.handshake(context) else { return };
        match jsonrpc::session_change(body) {
            Some(SessionChange::LogLevel(level)) => handshake.note_log_level(&level),
            Some(SessionChange::Subscribed(uri)) => handshake.note_subscription(&uri),
            Some(SessionChange::Unsubscribed(uri)) => handshake.note_subscription_end(&uri),
            None => {}
        }
    }

    /// Records that the client has completed the handshake.
    pub(super) fn apply_notifications(&self, context: &RequestContext, messages: &[Message]) {
        let is_initialized = |message: &Message| matches!(message, Message::Notification { method } if **method == *"notifications/initialized");
        if messages.iter().any(is_initialized)
            && let Some(handshake) = self.handshake(context)
        {
            handshake.note_initialized();
        }
    }

    fn handshake(&self, context: &RequestContext) -> Option<Arc<Handshake>> {
        let handshake = self.log.sessions().handshakes().find(context.binding.session.as_ref()?)?;
        // Another caller may know the name of the session.
        Some(handshake).filter(|handshake| handshake.may_revive(&context.binding.principal))
    }
}
