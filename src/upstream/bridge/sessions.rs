//! Sessions that the bridge keeps, for clients and at servers: their bounds, their use, and their
//! idle end.
//!
//! Absent: the sessions of a channel. There the processes of servers are bounded, and the rate of
//! their starts (`channel/pool.rs`). A start may wait for its turn, which no session of the bridge
//! does.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::upstream::server::request::Template;
use crate::{clock, sync};

/// Maximum number of sessions of all callers. At a server that checks no credentials, each made-up
/// credential is a separate caller.
const MAX_SESSIONS: usize = 4096;

/// A session of a bounded table.
pub(super) trait Session {
    /// Returns the time since which the session is idle, or `None` while it is in use.
    fn idle_since(&self) -> Option<Instant>;
}

/// All sessions of a bounded table are in use.
#[derive(Debug)]
pub(super) struct AllInUse;

/// Makes room for a further session in a table. Takes out the session that is idle longest: of the
/// caller if it has `most` sessions, or of all callers at [`MAX_SESSIONS`].
///
/// # Errors
/// If all of these sessions are in use.
pub(super) fn make_room<K: Clone + Eq + Hash, V, S: Session>(
    table: &mut HashMap<K, V>,
    most: usize,
    is_of_caller: impl Fn(&K, &V) -> bool,
    session_in: impl Fn(&V) -> Option<Arc<S>>,
) -> Result<Option<(V, Arc<S>)>, AllInUse> {
    let is_caller_full = table.iter().filter(|(key, value)| is_of_caller(key, value)).count() >= most;
    if !is_caller_full && table.len() < MAX_SESSIONS {
        return Ok(None);
    }
    let concerned = table.iter().filter(|(key, value)| !is_caller_full || is_of_caller(key, value));
    let idle = concerned.filter_map(|(key, value)| {
        let session = session_in(value)?;
        Some((session.idle_since()?, key, session))
    });
    let (_, key, session) = idle.min_by_key(|(since, ..)| *since).ok_or(AllInUse)?;
    let key = key.clone();
    Ok(table.remove(&key).map(|value| (value, session)))
}

/// Waits until a session is idle for this long. Returns `None` once it was dropped.
pub(super) async fn until_idle<S: Session>(session: Weak<S>, idle: Duration) -> Option<Arc<S>> {
    loop {
        let since = session.upgrade()?.idle_since();
        clock::sleep_until(since.unwrap_or_else(clock::now) + idle).await;
        let session = session.upgrade()?;
        if session.idle_since().is_some_and(|since| since + idle <= clock::now()) {
            return Some(session);
        }
    }
}

/// Use of a session: the numbers of its requests, and the last request of its caller.
pub(super) struct Usage {
    next: AtomicU64,
    /// Time of the last use, and the last request without its body: its credentials are the newest.
    last: Mutex<(Instant, Template)>,
}

impl Usage {
    /// Begins with the request that opens the session.
    pub(super) fn of(request: &Template) -> Self {
        Self { next: AtomicU64::new(1), last: Mutex::new((clock::now(), request.with_body(Bytes::new()))) }
    }

    /// Returns a new number for a request.
    pub(super) fn next_number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns a new ID, for a request to the server and its progress token.
    pub(super) fn next_id(&self) -> String {
        format!("bridge-{}", self.next_number())
    }

    /// Records a use of the session, such as the end of a call.
    pub(super) fn touch(&self) {
        sync::lock(&self.last).0 = clock::now();
    }

    /// Records a request of the caller: it is the last use, with the newest credentials.
    pub(super) fn record_request(&self, request: &Template) {
        *sync::lock(&self.last) = (clock::now(), request.with_body(Bytes::new()));
    }

    /// Returns the last request of the caller, for its credentials.
    pub(super) fn last_request(&self) -> Template {
        sync::lock(&self.last).1.clone()
    }

    /// Returns the time of the last use.
    pub(super) fn last_use(&self) -> Instant {
        sync::lock(&self.last).0
    }
}
