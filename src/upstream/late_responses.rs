//! Late responses: server responses after a commit that an event cannot carry in full.
//!
//! Owned here: the sources of such responses (caller, method and tool), and the rule which
//! responses count. The proxy does not commit for an equal call then: its client gets the server's
//! own response, however late. Invariant: at most [`MAX_CALLS`] sources are kept. Absent: the trust
//! in credentials ([`super::observed`]).

use std::net::IpAddr;
use std::time::{Duration, Instant};

use dashmap::DashMap;
use http::StatusCode;

use super::observed::Credentials;
use crate::eviction::evict_if_full;
use crate::protocol::call_name::CallName;

/// Validity of a recorded late response.
const RECORD_TTL: Duration = Duration::from_secs(600);
/// Maximum number of remembered sources. The oldest are evicted first.
const MAX_CALLS: usize = 1024;
/// Size in bytes above which a JSON response should not become an event: clients limit the size of
/// an event.
const MAX_EVENT: usize = 512 * 1024;

/// Source of a response: a caller with a method and its tool. Names are cut as in the log.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Source {
    /// Credentials of the caller.
    pub(super) credentials: Credentials,
    /// Address of a caller without credentials, or `None` for other callers.
    pub(super) address: Option<IpAddr>,
    /// Method and tool of the call.
    pub(super) name: CallName,
}

/// Sources of responses that a commit made incomplete, or would.
#[derive(Debug, Default)]
pub(super) struct LateResponses {
    recorded: DashMap<Source, Instant>,
}

impl LateResponses {
    /// Records a late response to `source`.
    pub(super) fn record(&self, source: Source, now: Instant) {
        if !self.recorded.contains_key(&source) {
            evict_if_full(&self.recorded, MAX_CALLS, |at| *at, |_| {});
        }
        self.recorded.insert(source, now);
    }

    /// Returns true if the last late response to `source` was less than ten minutes before `now`.
    pub(super) fn has(&self, source: &Source, now: Instant) -> bool {
        self.recorded.get(source).is_some_and(|at| now.saturating_duration_since(*at) < RECORD_TTL)
    }
}

/// Returns true if a client acts on this status, and could not after a commit. Such a status
/// redirects, requires credentials, names a forgotten session, limits the rate, or announces a
/// response elsewhere.
pub(super) fn matters(status: StatusCode) -> bool {
    const ACTED_ON: [StatusCode; 6] = [
        StatusCode::ACCEPTED,
        StatusCode::NO_CONTENT,
        StatusCode::UNAUTHORIZED,
        StatusCode::FORBIDDEN,
        StatusCode::NOT_FOUND,
        StatusCode::TOO_MANY_REQUESTS,
    ];
    status.is_redirection() || ACTED_ON.contains(&status)
}

/// Returns true if a JSON response of this many bytes may be too large for a client as an event.
pub(super) fn is_large(bytes: usize) -> bool {
    bytes > MAX_EVENT
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;
    use crate::event_log::Principal;

    fn source(caller: u128, tool: &str, address: Option<&str>) -> Source {
        let presented = Principal::Known(caller.to_be_bytes());
        Source {
            credentials: Credentials { presented, principal: presented },
            address: address.map(|address| address.parse().expect("an address")),
            name: CallName { method: "tools/call".into(), tool: Some(tool.into()) },
        }
    }

    #[test]
    fn a_response_counts_for_its_caller_and_tool_and_for_ten_minutes() {
        let (late, now) = (LateResponses::default(), clock::now());
        late.record(source(1, "a", None), now);
        let last = now + RECORD_TTL - Duration::from_nanos(1);
        assert!(late.has(&source(1, "a", None), last));
        for other in [source(2, "a", None), source(1, "b", None), source(1, "a", Some("192.0.2.1"))] {
            assert!(!late.has(&other, now), "{other:?}");
        }
        assert!(!late.has(&source(1, "a", None), now + RECORD_TTL));
        late.record(source(1, "a", None), last);
        assert!(late.has(&source(1, "a", None), last + RECORD_TTL - Duration::from_nanos(1)), "counted from the last");
    }

    #[test]
    fn the_oldest_go_first_and_the_number_is_bounded() {
        let (late, start) = (LateResponses::default(), clock::now());
        let at = |number: usize| start + Duration::from_millis(number as u64);
        for number in 0..3 * MAX_CALLS {
            late.record(source(number as u128, "t", None), at(number));
            assert!(late.recorded.len() <= MAX_CALLS);
            assert!(late.has(&source(number as u128, "t", None), at(number)));
        }
        let known: Vec<bool> =
            (0..3 * MAX_CALLS).map(|number| late.has(&source(number as u128, "t", None), at(3 * MAX_CALLS))).collect();
        let first = known.iter().position(|is_known| *is_known).expect("some are known");
        assert!(known[first..].iter().all(|is_known| *is_known), "an older one is kept");
        assert!(known.len() - first > MAX_CALLS / 2);
    }

    #[test]
    fn statuses_on_which_clients_act_matter() {
        for status in [202, 204, 301, 302, 307, 308, 401, 403, 404, 429] {
            assert!(matters(StatusCode::from_u16(status).unwrap()), "{status}");
        }
        for status in [200, 201, 206, 400, 405, 406, 409, 410, 500, 502, 503] {
            assert!(!matters(StatusCode::from_u16(status).unwrap()), "{status}");
        }
        assert!(!is_large(MAX_EVENT) && is_large(MAX_EVENT + 1));
    }
}
