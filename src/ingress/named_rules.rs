//! Rules for a client by the name in its `initialize`.

use super::components::Components;
use crate::protocol::jsonrpc;
use crate::protocol::named_rules::NamedRules;

/// Returns the rules for the client that sends this `initialize`. A client without a name gets the
/// rules of none.
pub(super) fn of_initialize(components: &Components, body: &[u8]) -> NamedRules {
    let Some(name) = jsonrpc::client_name(body) else { return NamedRules::default() };
    let delivery = &components.config.delivery;
    NamedRules {
        has_no_beats: delivery.progress.as_ref().is_some_and(|progress| progress.except.has(&name)),
        by_get: delivery.by_get.has(&name),
        counts_breaks: delivery.graceful_for.has(&name),
    }
}

/// Returns true if the client of a request of 2026-07-28 sends a call again under another ID, by
/// the name in the request.
pub(super) fn sends_again(components: &Components, body: &[u8]) -> bool {
    let names = &components.config.delivery.adopt_for;
    !names.is_empty() && jsonrpc::meta_client_name(body).is_some_and(|name| names.has(&name))
}

/// Returns true if the client of a request of 2026-07-28 counts broken connections, by the name in
/// the request.
pub(super) fn counts_breaks(components: &Components, body: &[u8]) -> bool {
    let names = &components.config.delivery.graceful_for;
    !names.is_empty() && jsonrpc::meta_client_name(body).is_some_and(|name| names.has(&name))
}
