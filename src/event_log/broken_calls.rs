//! Calls outside sessions whose connection broke lately, and that may come again.
//!
//! Some HTTP clients send a request again by themselves when its connection breaks, and some MCP
//! clients send the call again under another ID. In a session the retry index knows every call.
//! Outside sessions nothing shows that two requests are one call, except that break. So a call is
//! here from the break of its connection on, for as long as the caller of [`BrokenCalls::keep`]
//! wants, and an ordinary call costs no digest. Each entry keeps its stream alive. Absent: the end
//! of that time (`delivery/repetition.rs`), and the requests that may repeat a call
//! (`ingress/calls/repetition.rs` and `adoption.rs`).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::clock;
use crate::event_log::backing::fingerprint::Fingerprint;
use crate::event_log::retry_index::{Match, Registration, RetryIndex};
use crate::event_log::stream::Stream;
use crate::event_log::stream::response_head::{Head, Plain};
use crate::event_log::stream::retries::RetryMatch;
use crate::identity::Principal;
use crate::protocol::dialect::resume_tokens::CallDigest;
use crate::protocol::ids::StreamId;
use crate::random;

/// Limit of the calls that are expected again. Beyond it, a repetition is a new call.
const EXPECTED_MAX: usize = 4096;

/// Limit of the connections of one call, if the same request is to join it. A client that repeats a
/// request after each timeout must reach the server again in the end.
const CONNECTIONS_MAX: u32 = 4;

/// Size limit of a request that is kept behind the end of its call.
const SMALL: usize = 4096;

/// A request as the server gets it. Two requests with equal parts are the same bytes of one client.
pub trait SentRequest: Send + Sync {
    /// Query and headers, with the address of the client among them.
    fn head(&self) -> [&[u8]; 2];

    /// Body.
    fn body(&self) -> &[u8];
}

/// Way in which a call may come again after its connection broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Equal bytes, sent by the HTTP client.
    SameRequest,
    /// An equal call under another ID, sent by the MCP client.
    OtherId,
}

/// Request of a call that its client may send again.
pub struct Repeatable {
    request: Arc<dyn SentRequest>,
    /// Size of the client's head, which has headers that the server does not get.
    head_bytes: usize,
    ways: &'static [Way],
}

impl Repeatable {
    /// Creates the request of a client that sent `head_bytes` for its head. Returns `None` if there
    /// is no way in which it may come again.
    pub fn new(request: Arc<dyn SentRequest>, head_bytes: usize, ways: &'static [Way]) -> Option<Self> {
        if ways.is_empty() { None } else { Some(Self { request, head_bytes, ways }) }
    }

    /// Returns the ways in which the request may come again.
    pub fn ways(&self) -> &'static [Way] {
        self.ways
    }

    /// Returns the fingerprint of the request of `principal`. `None` if it cannot come again so.
    pub fn fingerprint(&self, way: Way, principal: &Principal) -> Option<Fingerprint> {
        let body = self.request.body();
        match way {
            Way::SameRequest => {
                let [query, lines] = self.request.head();
                let size = self.head_bytes.to_be_bytes();
                Some(Fingerprint::of_request(principal, &[query, lines, &size], body))
            }
            Way::OtherId => Some(Fingerprint::of_try(principal, &CallDigest::of_try(body)?)),
        }
    }

    /// Returns true if the request is small enough to outlive its call for a moment.
    pub fn is_small(&self) -> bool {
        let [query, lines] = self.request.head();
        query.len() + lines.len() + self.request.body().len() <= SMALL
    }
}

/// Calls whose connection broke, by the fingerprints of their requests.
#[derive(Debug, Default)]
pub struct BrokenCalls {
    index: Arc<RetryIndex<Stream>>,
    /// Number of the entries, to see at once that there are none.
    count: AtomicUsize,
}

/// A call that is expected again, until this is dropped.
pub struct BrokenCall {
    calls: Arc<BrokenCalls>,
    _registration: Registration<Stream>,
    _stream: Arc<Stream>,
}

impl Drop for BrokenCall {
    fn drop(&mut self) {
        self.calls.count.fetch_sub(1, Ordering::Relaxed);
    }
}

impl BrokenCalls {
    /// Returns true if no call is expected again.
    pub fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    /// Expects the request of `stream` again. Returns `None` if its last connection did not break,
    /// or at the limit.
    pub fn keep(self: &Arc<Self>, stream: &Arc<Stream>, request: &Repeatable, way: Way) -> Option<BrokenCall> {
        if !can_be_joined(stream, way) || self.count.load(Ordering::Relaxed) >= EXPECTED_MAX {
            return None;
        }
        let fingerprint = request.fingerprint(way, &stream.binding().principal)?;
        // A later break of the same call is an entry of its own.
        let create = || Ok::<_, ()>((StreamId::from_bytes(random::bytes()), stream.clone()));
        let registered = self.index.find_or_register(fingerprint, true, |_| None, |_| false, create);
        let Ok(Match::New(stream, registration)) = registered else { return None };
        self.count.fetch_add(1, Ordering::Relaxed);
        Some(BrokenCall { calls: self.clone(), _registration: registration, _stream: stream })
    }

    /// Takes the call that `request` of `principal` repeats, or returns `None` if there is none.
    pub fn take(&self, request: &Repeatable, way: Way, principal: &Principal) -> Option<Arc<Stream>> {
        self.index.take(&request.fingerprint(way, principal)?, |stream| can_be_joined(stream, way))
    }
}

/// Returns true if the last connection of a call broke before its client had the response, and the
/// response can be given again.
fn can_be_joined(stream: &Stream, way: Way) -> bool {
    let may_come = stream.with_machine(|machine| {
        let reader = machine.reader();
        let is_due = match way {
            Way::SameRequest => machine.was_cut(clock::now()) && reader.connections() < CONNECTIONS_MAX,
            Way::OtherId => reader.is_cut(),
        };
        is_due && !machine.lifecycle().is_revoked()
    });
    let is_kept = || match stream.head_now() {
        Head::Plain(plain) => plain.kept_body().is_some() && !Plain::shows_nothing_ran(plain.status),
        Head::Failed(_) => stream.upstream().is_sent(),
        Head::Waiting | Head::Committed | Head::Stream(..) | Head::TakenOver => true,
    };
    may_come && is_kept() && stream.retries().compare_again(None) == RetryMatch::Retry
}
