//! Late responses: what the server has sent after the proxy had begun the response to a call, and
//! what no event carries as well as a response of its own.
//!
//! Owned here: the calls for which such a response came lately, as their caller, method and tool,
//! and the rule which responses count. The proxy does not begin the response to an equal call then:
//! its client gets the server's own, however late. Invariant: at most [`MAX_CALLS`] calls are kept.
//! Absent: the trust in credentials ([`super::observed`]).

use std::net::IpAddr;
use std::time::{Duration, Instant};

use dashmap::DashMap;
use http::StatusCode;

use super::observed::Credentials;
use crate::eviction::evict_if_full;
use crate::protocol::call_name::CallName;

/// Time for which a late response counts.
const LEARNT_FOR: Duration = Duration::from_secs(600);
/// Limit of remembered calls. The oldest go first.
const MAX_CALLS: usize = 1024;
/// Size above which a JSON response, in bytes, is better off as a response of its own: clients
/// limit the size of an event.
const MAX_EVENT: usize = 512 * 1024;

/// Source of a response: a caller with a method and its tool. Names are cut as in the log.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Source {
    /// Credentials of the caller.
    pub(super) credentials: Credentials,
    /// Address of a caller that shows no credentials, or `None` for others.
    pub(super) address: Option<IpAddr>,
    /// Method and tool of the call.
    pub(super) name: CallName,
}

/// Calls for which a late response was lost in part, or would be.
#[derive(Debug, Default)]
pub(super) struct LateResponses {
    learnt: DashMap<Source, Instant>,
}

impl LateResponses {
    /// Notes such a response to `source`.
    pub(super) fn note(&self, source: Source, now: Instant) {
        if !self.learnt.contains_key(&source) {
            evict_if_full(&self.learnt, MAX_CALLS, |at| *at, |_| {});
        }
        self.learnt.insert(source, now);
    }

    /// Returns true if the last such response to `source` came less than ten minutes before `now`.
    pub(super) fn has(&self, source: &Source, now: Instant) -> bool {
        self.learnt.get(source).is_some_and(|at| now.saturating_duration_since(*at) < LEARNT_FOR)
    }
}

/// Returns true if a client acts on this status, and could not if it came late: it redirects, asks
/// for credentials, names a session that is gone, asks for a pause, or says that the response comes
/// elsewhere.
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
        late.note(source(1, "a", None), now);
        let last = now + LEARNT_FOR - Duration::from_nanos(1);
        assert!(late.has(&source(1, "a", None), last));
        for other in [source(2, "a", None), source(1, "b", None), source(1, "a", Some("192.0.2.1"))] {
            assert!(!late.has(&other, now), "{other:?}");
        }
        assert!(!late.has(&source(1, "a", None), now + LEARNT_FOR));
        late.note(source(1, "a", None), last);
        assert!(late.has(&source(1, "a", None), last + LEARNT_FOR - Duration::from_nanos(1)), "counted from the last");
    }

    #[test]
    fn the_oldest_go_first_and_the_number_is_bounded() {
        let (late, start) = (LateResponses::default(), clock::now());
        let at = |number: usize| start + Duration::from_millis(number as u64);
        for number in 0..3 * MAX_CALLS {
            late.note(source(number as u128, "t", None), at(number));
            assert!(late.learnt.len() <= MAX_CALLS);
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
