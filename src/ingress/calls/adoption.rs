//! Calls of 2026-07-28 that an MCP client sends again under another ID after its connection broke.
//!
//! Owned here: the requests for which that is believed (`delivery.adopt_for`), and the names under
//! which the later request reads the stream of the first: its ID and its `progressToken`. A caller
//! without credentials is never believed, since all of them look like one. Absent: the calls that
//! are expected (`event_log/broken_calls.rs`), and the renaming of messages (slices).

use std::sync::Arc;

use super::partial_results::names_of;
use super::request::CallRequest;
use crate::event_log::{Repeatable, Slice, Slicing, Stream, Way};
use crate::ingress::components::Components;
use crate::ingress::named_rules;
use crate::protocol::dialect::resume_tokens::{CallDigest, Form};
use crate::protocol::headers::Era;

/// Returns true if the client may send the call again under another ID.
pub(super) fn may_come_again(components: &Components, request: &CallRequest) -> bool {
    let CallRequest { context, call, body, .. } = request;
    !components.config.delivery.adopt_for.is_empty()
        && call.era() == Era::Modern
        && !context.binding.principal.is_anonymous()
        && !request.is_identified()
        && !call.is_opening()
        && !call.has_listen()
        && !call.is_batch
        && named_rules::sends_again(components, body)
}

/// Returns the description of the stream of such a call, which later requests read under their own
/// names.
pub(super) fn slicing(components: &Components, request: &CallRequest) -> Option<Slicing> {
    if !may_come_again(components, request) {
        return None;
    }
    let CallRequest { call, body, .. } = request;
    let length = components.config.call(request.tool.as_deref()).retention;
    Some(Slicing { sameness: CallDigest::of_try(body)?, form: Form::Task, length, first: names_of(call, body)? })
}

/// Returns the call that `request` adopts, and its reader under the new names: the same call, whose
/// client has lost its connection and has not been given up. A response that has not begun is an
/// event stream from then on.
pub(super) fn earlier_call(
    components: &Components,
    request: &CallRequest,
    repeatable: &Repeatable,
) -> Option<(Arc<Stream>, Arc<Slice>)> {
    if !repeatable.ways().contains(&Way::OtherId) {
        return None;
    }
    let names = names_of(&request.call, &request.body)?;
    let stream = components.log.broken_calls().take(repeatable, Way::OtherId, &request.context.binding.principal)?;
    stream.commit();
    let slice = stream.begin_slice(names)?;
    Some((stream, slice))
}
