//! Name and span of a stream's call. Absent: the end of the span (`trace.rs`).

use std::sync::{Arc, OnceLock};

use crate::otel::CallSpan;
use crate::protocol::call_name::CallName;

/// Name and span of a call.
pub struct CallTrace {
    /// Boxed, because a prompt JSON response needs no name.
    pub(super) name: OnceLock<Arc<CallName>>,
    /// Span of the call, or `None` if the call is not traced.
    pub(super) span: Option<Arc<CallSpan>>,
}

impl CallTrace {
    pub(super) fn new(span: Option<Arc<CallSpan>>) -> Self {
        Self { name: OnceLock::new(), span }
    }

    /// Names the call by `name`, unless it has a name.
    pub fn set_name(&self, name: impl FnOnce() -> CallName) {
        self.name.get_or_init(|| Arc::new(name()));
    }

    /// Returns the name of the call, or `None` if it has no name yet.
    pub fn name(&self) -> Option<&CallName> {
        self.name.get().map(|name| &**name)
    }

    /// Returns the span of the call, or `None` if the call is not traced.
    pub fn span(&self) -> Option<&Arc<CallSpan>> {
        self.span.as_ref()
    }
}
