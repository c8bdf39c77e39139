//! State that a client sets in its session at the server. It is kept in case the server forgets the
//! session.
//!
//! Owned here: which messages set such state. Absent: the record (`event_log`), and its use
//! (`upstream/revival`).

use std::sync::Arc;

use super::components::Components;
use super::context::RequestContext;
use crate::event_log::Handshake;
use crate::protocol::classify;
use crate::protocol::headers::SessionId;
use crate::protocol::jsonrpc::{self, InitializeParams, Message, SessionChange};
use crate::protocol::lists::Page;

/// Returns the parameters to reopen the session that a call opens. Returns `None` if it opens
/// no session that can be opened again.
pub(super) fn params_of(components: &Components, call: &classify::Call, body: &[u8]) -> Option<InitializeParams> {
    let opens = components.upstream.revives_sessions() && call.has_initialize() && !call.is_batch;
    if opens { InitializeParams::of(body) } else { None }
}

/// Records the log level and the subscriptions that a call changes.
pub(super) fn apply_call(components: &Components, context: &RequestContext, call: &classify::Call, body: &[u8]) {
    if !call.changes_session() {
        return;
    }
    let Some(handshake) = handshake(components, context) else { return };
    match jsonrpc::session_change(body) {
        Some(SessionChange::LogLevel(level)) => handshake.note_log_level(&level),
        Some(SessionChange::Subscribed(uri)) => handshake.note_subscription(&uri),
        Some(SessionChange::Unsubscribed(uri)) => handshake.note_subscription_end(&uri),
        None => {}
    }
}

/// Records that the client has completed the handshake.
pub(super) fn apply_notifications(components: &Components, context: &RequestContext, messages: &[Message]) {
    let is_initialized = |message: &Message| matches!(message, Message::Notification { method } if **method == *"notifications/initialized");
    if messages.iter().any(is_initialized)
        && let Some(handshake) = handshake(components, context)
    {
        handshake.note_initialized();
    }
}

/// Returns the page of a list that a call reads, with its session, if changes of that list
/// are announced.
pub(super) fn list_page_of(
    components: &Components,
    context: &RequestContext,
    call: &classify::Call,
    body: &[u8],
) -> Option<(SessionId, Page)> {
    let page = Page::of(&call.method, body)?;
    let is_announced = |handshake: &Arc<Handshake>| {
        components.config.sessions.front.announces_undeclared
            || handshake.server.list_changes().any(|notification| notification == page.list().notification())
    };
    handshake(components, context).filter(is_announced)?;
    Some((context.binding.session.clone()?, page))
}

fn handshake(components: &Components, context: &RequestContext) -> Option<Arc<Handshake>> {
    let handshake = components.log.sessions().handshakes().find(context.binding.session.as_ref()?)?;
    // Another caller may know the name of the session.
    Some(handshake).filter(|handshake| handshake.may_revive(&context.binding.principal))
}
