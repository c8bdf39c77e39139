//! Headers of pings in sessions whose own headers were refused.
//!
//! Pings and responses to pings have the headers of the request that opened their stream. After a
//! refusal of these headers with 401 or 403, no ping is sent until the principal's next request in
//! the session. Its headers then replace them.
//!
//! Owned here: the sessions that wait for such a request, and the headers of sessions that have had
//! one. Nothing is kept for other sessions. A request costs one check of a counter while no session
//! waits. Absent: the decision that a status is a refusal (`pings`).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use dashmap::DashMap;

use super::server::request::Template;
use crate::event_log::{Binding, Principal};
use crate::protocol::headers::SessionId;

/// Maximum number of kept sessions. A refused session beyond it gets no more pings.
const MAX_SESSIONS: usize = 4096;

/// Sessions whose headers were refused.
#[derive(Debug, Default)]
pub struct PingHeaders {
    sessions: DashMap<(SessionId, Principal), Known>,
    /// Number of sessions that wait for headers.
    awaited: AtomicUsize,
}

#[derive(Debug)]
enum Known {
    /// The headers were refused, and no request has arrived since.
    Awaited,
    /// Headers of the last request since.
    Renewed(Arc<Template>),
}

impl PingHeaders {
    /// Returns the request whose headers a ping takes: `own`, or a later request if `own` was
    /// refused. Returns `None` while no later request has arrived.
    pub(super) fn find(&self, binding: &Binding, own: &Arc<Template>, is_refused: bool) -> Option<Arc<Template>> {
        let Some(id) = binding.session.clone() else { return Some(own.clone()).filter(|_| !is_refused) };
        let key = (id, binding.principal);
        match self.sessions.get(&key).as_deref() {
            Some(Known::Renewed(call)) => return Some(call.clone()),
            Some(Known::Awaited) => return None,
            None if !is_refused => return Some(own.clone()),
            None => {}
        }
        // Another stream of the session had waited as well, and has ended.
        self.wait(key);
        None
    }

    /// Records that the server has refused the headers of `call`.
    pub(super) fn record_refusal(&self, binding: &Binding, call: &Arc<Template>) {
        let Some(id) = binding.session.clone() else { return };
        let key = (id, binding.principal);
        let has_newer =
            matches!(self.sessions.get(&key).as_deref(), Some(Known::Renewed(newer)) if !Arc::ptr_eq(newer, call));
        if !has_newer {
            self.wait(key);
        }
    }

    fn wait(&self, key: (SessionId, Principal)) {
        if self.sessions.len() >= MAX_SESSIONS && !self.sessions.contains_key(&key) {
            return;
        }
        if !matches!(self.sessions.insert(key, Known::Awaited), Some(Known::Awaited)) {
            self.awaited.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Takes the headers of a request, if its session waits for headers.
    pub fn renew(&self, binding: &Binding, call: impl FnOnce() -> Template) {
        if self.awaited.load(Ordering::Relaxed) == 0 {
            return;
        }
        let Some(id) = binding.session.clone() else { return };
        if let Some(mut known) = self.sessions.get_mut(&(id, binding.principal))
            && matches!(*known, Known::Awaited)
        {
            *known = Known::Renewed(Arc::new(call()));
            self.awaited.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Removes a session. If its other streams still need headers, it begins to wait again.
    pub(super) fn forget(&self, binding: &Binding) {
        let Some(id) = binding.session.clone() else { return };
        if let Some((_, Known::Awaited)) = self.sessions.remove(&(id, binding.principal)) {
            self.awaited.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
