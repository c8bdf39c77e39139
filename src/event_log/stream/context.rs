//! Context of all streams of a log.

use std::sync::Arc;

use crate::event_log::backing::Backing;
use crate::event_log::identity::Identity;
use crate::event_log::quota::TailLimits;
use crate::otel::Traces;

/// Values that all streams of a log share.
pub(in crate::event_log) struct StreamContext {
    pub(in crate::event_log) identity: Arc<Identity>,
    pub(in crate::event_log) bounds: TailLimits,
    /// Store behind the log, or `None` if memory is the store.
    pub(in crate::event_log) backing: Option<Arc<Backing>>,
    /// Traces of calls, or `None` if calls are not traced.
    pub(in crate::event_log) traces: Option<Arc<Traces>>,
}
