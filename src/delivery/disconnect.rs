//! Report of a client that disconnects before its response has ended.

use tracing::info;

use super::metrics::{Left, Metrics};
use crate::event_log::Stream;
use crate::protocol::ids::Seq;

/// Reports to log and metrics that the client of `stream` disconnected. `cursor` is the last event
/// that was written to it, or `None` if its response had not begun.
pub(super) fn report(metrics: &Metrics, stream: &Stream, left: Left, cursor: Option<Seq>, message: &'static str) {
    metrics.observe_disconnect(left);
    let name = stream.trace().name();
    info!(
        stream.id = %stream.id(),
        session = stream.binding().session_hash().as_deref(),
        method = name.map(|name| &*name.method),
        tool = name.and_then(|name| name.tool.as_deref()),
        cursor = cursor.map(|cursor| cursor.0),
        can_resume = matches!(left, Left::Resumable),
        "{message}"
    );
}
