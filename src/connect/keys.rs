//! Keys of calls at a `serve`, which joins a call that is sent again (`protocol/promise.rs`).

use std::time::Duration;

use http::{HeaderMap, HeaderValue};

use crate::protocol::headers::names;
use crate::protocol::promise::{Promise, hold_value};
use crate::random;

/// Key of one call, and the promise that holds for it.
pub(super) struct CallKey {
    pub(super) value: HeaderValue,
    /// Revision of a call outside sessions, or `None` for a call in a session.
    pub(super) revision: Option<Box<str>>,
    epoch: HeaderValue,
    /// Time within which a repetition joins the call.
    pub(super) hold: Duration,
}

impl CallKey {
    /// Returns a new key under this promise. `revision` is that of a call outside sessions.
    pub(super) fn new(promise: Promise, revision: Option<Box<str>>) -> Self {
        let key = format!("{:032x}", u128::from_be_bytes(random::bytes()));
        let text = |text: String| HeaderValue::try_from(text).expect("visible ASCII");
        Self { value: text(key), revision, epoch: text(promise.epoch), hold: promise.hold }
    }

    /// Returns the headers of the call, or of its repetition. The call is kept for `max_wait`: at a
    /// revision without sessions the end of its connection is a cancel otherwise. At others the
    /// header says that no rule for clients with the host's name is for this one.
    pub(super) fn headers(&self, max_wait: Duration, is_repetition: bool) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(names::IDEMPOTENCY_KEY, self.value.clone());
        headers.insert(names::MCP_RESUME_HOLD, hold_value(max_wait));
        if is_repetition {
            headers.insert(names::MCP_RESUME_EPOCH, self.epoch.clone());
        }
        headers
    }
}
