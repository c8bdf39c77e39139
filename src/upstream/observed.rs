//! Facts observed in upstream responses. The proxy needs them before it may write a response head
//! of its own.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dashmap::DashMap;
use http::header::{ACCESS_CONTROL_ALLOW_ORIGIN, AUTHORIZATION, COOKIE};
use http::{HeaderMap, HeaderValue, StatusCode};

use super::token_subjects::TokenSubjects;
use crate::event_log::Principal;
use crate::eviction::evict_if_full;
use crate::protocol::headers::{self, Lines, names};
use crate::protocol::jwt;
use crate::protocol::tasks::Discovery;
use crate::sync;

/// Trust after a 2xx: the upstream is expected to accept the same credentials.
const TRUST: Duration = Duration::from_secs(600);
/// Trust after a 2xx in credentials without a known expiry, before a response head of the proxy's
/// own.
const OPAQUE_TRUST: Duration = Duration::from_secs(120);
/// Minimum time before the expiry of a token for such a head: the clocks of proxy and server
/// differ.
const EXPIRY_MARGIN: Duration = Duration::from_secs(30);
/// Maximum number of remembered credentials. The least recently confirmed are evicted first. Their
/// callers then get the upstream's own heads, late or not, until the next acceptance.
const MAX_CREDENTIALS: usize = 65_536;
/// Pause between two discoveries by the proxy with the same credentials. Each takes at most five
/// seconds.
const DISCOVERY_PAUSE: Duration = Duration::from_secs(5);
/// Maximum number of discoveries in this time. Each is for a waiting call.
const MAX_DISCOVERIES: usize = 1024;
/// Maximum number of remembered origins, with their CORS headers.
const MAX_ORIGINS: usize = 4096;
/// Size limit of an origin with its CORS headers. Real ones have a few hundred bytes.
const MAX_ORIGIN_BYTES: usize = 4096;

/// Credentials of a caller, as the upstream may compare them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Credentials {
    /// Hash of all headers that usually are credentials.
    pub presented: Principal,
    /// Principal by the operator's rule for distinguishing callers.
    pub principal: Principal,
}

impl Credentials {
    /// Returns true if the caller shows no credentials.
    pub fn are_absent(&self) -> bool {
        self.presented.is_anonymous() && self.principal.is_anonymous()
    }
}

/// Kind of credentials, which decides how long an acceptance counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CredentialKind {
    /// No credentials.
    None,
    /// A token that expires at this time since 1970.
    Expiring(Duration),
    /// Credentials that may be revoked or expire at any time.
    Opaque,
}

impl CredentialKind {
    /// Returns the kind of the credentials of a request with these headers and this query. A JWT
    /// beside a cookie counts as the credential; one beside anything else does not.
    pub fn of(credentials: &Credentials, headers: &HeaderMap, query: Option<&str>) -> Self {
        let mut authorizations = headers.get_all(AUTHORIZATION).iter().filter(|value| !value.is_empty());
        let only = authorizations.next().filter(|_| authorizations.next().is_none());
        let has_key = headers.contains_key(names::X_API_KEY) || query.is_some_and(|query| !query.is_empty());
        match only.and_then(jwt::expires_at) {
            Some(expires_at) if !has_key => Self::Expiring(expires_at),
            None if credentials.are_absent() && !has_key && !headers.contains_key(COOKIE) => Self::None,
            Some(_) | None => Self::Opaque,
        }
    }

    /// Returns how long an acceptance counts, or `None` if the token expires too soon. `wall` is
    /// the time since 1970.
    fn trust(self, wall: Duration) -> Option<Duration> {
        match self {
            Self::None => Some(TRUST),
            Self::Expiring(at) if wall + EXPIRY_MARGIN <= at => Some(TRUST),
            Self::Expiring(_) => None,
            Self::Opaque => Some(OPAQUE_TRUST),
        }
    }
}

/// The upstream's last response to credentials that it has once accepted.
#[derive(Clone, Copy, Debug)]
struct CredentialStatus {
    /// Time of the last 2xx or refusal.
    at: Instant,
    /// True after a 2xx, false after a refusal.
    is_accepted: bool,
}

/// Accepted credentials, CORS headers by origin, and tools whose results have a schema.
#[derive(Debug, Default)]
pub struct Observed {
    /// Holds only credentials that the upstream has once accepted.
    credentials: DashMap<Credentials, CredentialStatus>,
    /// True if the upstream has refused any credentials since the start.
    has_refused: AtomicBool,
    cors: DashMap<HeaderValue, (HeaderMap, Instant)>,
    tokens: TokenSubjects,
    /// For each tool with possible partial results: true if any list has shown an `outputSchema`.
    structured: DashMap<String, bool>,
    /// Last response to `server/discover`, with its expiry.
    discovery: Mutex<Option<(Discovery, Instant)>>,
    /// True if tasks could be added to the result of the last `initialize` at 2025-11-25. `None`
    /// before the first.
    can_have_tasks: Mutex<Option<bool>>,
    /// Credentials and times of the proxy's last discoveries.
    discoveries: Mutex<HashMap<Credentials, Instant>>,
}

impl Observed {
    /// Returns the facts about tokens.
    pub fn tokens(&self) -> &TokenSubjects {
        &self.tokens
    }

    /// Records the status of a response to a request with these credentials, which began at
    /// `began`. A 2xx does not end a refusal if its request began before the refusal: the server
    /// may have checked the credentials earlier.
    pub fn record_status(&self, credentials: Credentials, status: StatusCode, began: Instant, now: Instant) {
        let is_accepted = status.is_success();
        if !is_accepted && !is_refusal(status) {
            return;
        }
        let status = CredentialStatus { at: now, is_accepted };
        if let Some(mut known) = self.credentials.get_mut(&credentials) {
            if !is_accepted || known.is_accepted || began >= known.at {
                *known = status;
            }
        } else if is_accepted {
            evict_if_full(&self.credentials, MAX_CREDENTIALS, |status| status.at, |_| {});
            self.credentials.insert(credentials, status);
        }
    }

    /// Records the status of any response.
    pub fn record_any_status(&self, status: StatusCode) {
        if is_refusal(status) {
            self.has_refused.store(true, Ordering::Relaxed);
        }
    }

    /// Returns true if the upstream accepted the credentials within [`TRUST`], and has not refused
    /// them since.
    pub fn has_accepted(&self, credentials: &Credentials, now: Instant) -> bool {
        self.has_accepted_within(TRUST, credentials, now)
    }

    /// Returns true if the upstream can be expected to accept the credentials. It has accepted them
    /// lately, has not refused them since, and they do not expire soon. `wall` is the time since
    /// 1970.
    pub fn is_trusted(&self, credentials: &Credentials, kind: CredentialKind, now: Instant, wall: Duration) -> bool {
        kind.trust(wall).is_some_and(|trust| self.has_accepted_within(trust, credentials, now))
    }

    fn has_accepted_within(&self, trust: Duration, credentials: &Credentials, now: Instant) -> bool {
        let is_fresh = |at| now.saturating_duration_since(at) < trust;
        self.credentials.get(credentials).is_some_and(|status| status.is_accepted && is_fresh(status.at))
    }

    /// Returns true if the upstream has ever accepted the credentials and is known to refuse
    /// others. Such credentials were not made up.
    pub fn has_proven(&self, credentials: &Credentials) -> bool {
        self.has_refused.load(Ordering::Relaxed) && self.credentials.contains_key(credentials)
    }

    /// Records the tools of a list, each with true if it has an `outputSchema`. A tool that had a
    /// schema for any caller keeps it.
    pub fn record_tools(&self, tools: Vec<(String, bool)>) {
        for (tool, is_structured) in tools {
            *self.structured.entry(tool).or_default() |= is_structured;
        }
    }

    /// Returns true if a list has shown this tool.
    pub fn has_listed(&self, tool: &str) -> bool {
        self.structured.contains_key(tool)
    }

    /// Returns true if this tool is known to have no `outputSchema`.
    pub fn is_plain(&self, tool: &str) -> bool {
        self.structured.get(tool).is_some_and(|is_structured| !*is_structured)
    }

    /// Records a response to `server/discover`.
    pub fn record_discovery(&self, discovery: Discovery, now: Instant) {
        *sync::lock(&self.discovery) = Some((discovery, now + discovery.ttl));
    }

    /// Records whether tasks of 2025-11-25 could be added to the result of an `initialize` for that
    /// revision.
    pub fn record_legacy_tasks(&self, can_have: bool) {
        *sync::lock(&self.can_have_tasks) = Some(can_have);
    }

    /// Returns false if the server is known to have its own tasks of 2025-11-25, or to speak
    /// another revision.
    pub fn may_have_legacy_tasks(&self) -> bool {
        sync::lock(&self.can_have_tasks).unwrap_or(true)
    }

    /// Returns true if the proxy may discover the server with these credentials now. The caller
    /// must then do so; further discoveries are denied for a few seconds.
    pub fn begin_discovery(&self, credentials: Credentials, now: Instant) -> bool {
        let mut discoveries = sync::lock(&self.discoveries);
        discoveries.retain(|_, at| now < *at + DISCOVERY_PAUSE);
        let is_allowed = discoveries.len() < MAX_DISCOVERIES && !discoveries.contains_key(&credentials);
        if is_allowed {
            discoveries.insert(credentials, now);
        }
        is_allowed
    }

    /// Returns the last response to `server/discover`, unless it has expired.
    pub fn discovery(&self, now: Instant) -> Option<Discovery> {
        sync::lock(&self.discovery).filter(|(_, until)| now < *until).map(|(discovery, _)| discovery)
    }

    /// Keeps the CORS headers of a response to `origin`.
    pub fn record_cors(&self, origin: &HeaderValue, response: &HeaderMap, now: Instant) {
        // An error from a component before the server's CORS layer has no CORS headers, and shows
        // nothing.
        if !response.contains_key(ACCESS_CONTROL_ALLOW_ORIGIN) {
            return;
        }
        let cors = headers::cors_of(response);
        let bytes: usize = cors.iter().map(|(name, value)| Lines::len_of(name, value)).sum();
        let Ok(origin) = HeaderValue::from_bytes(origin.as_bytes()) else { return };
        if origin.len() + bytes > MAX_ORIGIN_BYTES {
            return;
        }
        if !self.cors.contains_key(&origin) {
            evict_if_full(&self.cors, MAX_ORIGINS, |(_, at)| *at, |_| {});
        }
        self.cors.insert(origin, (headers::unpinned(&cors), now));
    }

    /// Returns the CORS headers to repeat for `origin`. They are empty without an origin, and
    /// `None` if unknown.
    pub fn cors(&self, origin: Option<&HeaderValue>) -> Option<HeaderMap> {
        match origin {
            None => Some(HeaderMap::new()),
            Some(origin) => self.cors.get(origin).map(|known| known.0.clone()),
        }
    }
}

fn is_refusal(status: StatusCode) -> bool {
    matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    fn known(number: usize) -> Credentials {
        let presented = Principal::Known((number as u128).to_be_bytes());
        Credentials { presented, principal: presented }
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn each_caller_s_question_waits_for_its_own_pause_alone() {
        let (observed, now) = (Observed::default(), clock::now());
        for caller in 0..MAX_DISCOVERIES {
            assert!(observed.begin_discovery(known(caller), now));
            assert!(!observed.begin_discovery(known(caller), now), "it is on its way");
        }
        assert!(!observed.begin_discovery(known(MAX_DISCOVERIES), now), "too many are");
        assert!(observed.begin_discovery(known(MAX_DISCOVERIES), now + DISCOVERY_PAUSE));
        assert!(observed.begin_discovery(known(0), now + DISCOVERY_PAUSE));
    }

    #[test]
    fn credentials_are_trusted_for_a_while_and_until_they_are_refused() {
        let (observed, now) = (Observed::default(), clock::now());
        assert!(!observed.has_accepted(&known(1), now));
        observed.record_status(known(1), StatusCode::ACCEPTED, now, now);
        assert!(observed.has_accepted(&known(1), now + TRUST - Duration::from_nanos(1)));
        assert!(!observed.has_accepted(&known(1), now + TRUST));
        assert!(!observed.has_accepted(&known(2), now), "another caller's");

        observed.record_status(known(1), StatusCode::OK, now + TRUST, now + TRUST);
        assert!(observed.has_accepted(&known(1), now + TRUST), "each 2xx is a new beginning");
        for says_nothing in [StatusCode::NOT_FOUND, StatusCode::BAD_REQUEST, StatusCode::BAD_GATEWAY] {
            observed.record_status(known(1), says_nothing, now + TRUST, now + TRUST);
            assert!(observed.has_accepted(&known(1), now + TRUST), "{says_nothing}");
        }
        observed.record_status(known(1), StatusCode::FORBIDDEN, now + TRUST, now + TRUST);
        assert!(!observed.has_accepted(&known(1), now + TRUST));
    }

    #[test]
    fn an_acceptance_counts_by_the_kind_of_the_credentials() {
        let (observed, now, wall) = (Observed::default(), clock::now(), Duration::from_secs(1_000_000));
        observed.record_status(known(1), StatusCode::OK, now, now);
        let is_trusted = |kind, after, wall| observed.is_trusted(&known(1), kind, now + after, wall);
        for (kind, trust) in [
            (CredentialKind::None, TRUST),
            (CredentialKind::Expiring(wall + EXPIRY_MARGIN), TRUST),
            (CredentialKind::Opaque, OPAQUE_TRUST),
        ] {
            assert!(is_trusted(kind, trust - Duration::from_nanos(1), wall), "{kind:?}");
            assert!(!is_trusted(kind, trust, wall), "{kind:?}");
        }
        let soon = CredentialKind::Expiring(wall + EXPIRY_MARGIN - Duration::from_nanos(1));
        assert!(!is_trusted(soon, Duration::ZERO, wall));
    }

    #[test]
    fn the_kind_of_credentials_is_that_of_the_only_one() {
        use base64::Engine;
        let payload = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(r#"{"exp":9}"#);
        let token = HeaderValue::from_str(&format!("Bearer e30.{payload}.c2ln")).unwrap();
        let opaque = HeaderValue::from_static("Bearer x");
        let absent = Credentials { presented: Principal::Anonymous, principal: Principal::Anonymous };
        let expiring = CredentialKind::Expiring(Duration::from_secs(9));
        let (key, cookie) = ((names::X_API_KEY, opaque.clone()), (COOKIE, opaque.clone()));
        let bearer = (AUTHORIZATION, token);
        for (pairs, query, credentials, kind) in [
            (vec![], None, absent, CredentialKind::None),
            (vec![], Some(""), absent, CredentialKind::None),
            (vec![], Some("a=b"), absent, CredentialKind::Opaque),
            (vec![cookie.clone()], None, absent, CredentialKind::Opaque),
            (vec![], None, known(1), CredentialKind::Opaque),
            (vec![bearer.clone()], None, known(1), expiring),
            (vec![bearer.clone(), cookie], None, known(1), expiring),
            (vec![bearer.clone(), key], None, known(1), CredentialKind::Opaque),
            (vec![bearer.clone()], Some("a=b"), known(1), CredentialKind::Opaque),
            (vec![bearer, (AUTHORIZATION, opaque)], None, known(1), CredentialKind::Opaque),
        ] {
            let mut headers = HeaderMap::new();
            for (name, value) in &pairs {
                headers.append(name.clone(), value.clone());
            }
            assert_eq!(CredentialKind::of(&credentials, &headers, query), kind, "{pairs:?} {query:?}");
        }
    }

    #[test]
    fn credentials_are_proven_by_one_2xx_of_a_server_that_refuses_others() {
        let (observed, now) = (Observed::default(), clock::now());
        observed.record_status(known(1), StatusCode::OK, now, now);
        assert!(!observed.has_proven(&known(1)), "the server may take anything");
        observed.record_any_status(StatusCode::NOT_FOUND);
        assert!(!observed.has_proven(&known(1)));
        observed.record_any_status(StatusCode::UNAUTHORIZED);
        observed.record_status(known(2), StatusCode::UNAUTHORIZED, now, now);
        assert!(observed.has_proven(&known(1)));
        assert!(!observed.has_proven(&known(2)));
        observed.record_status(known(1), StatusCode::FORBIDDEN, now, now);
        assert!(observed.has_proven(&known(1)), "one tool less does not make it another caller");
    }

    #[test]
    fn a_flood_of_credentials_evicts_no_returning_caller() {
        let (observed, start) = (Observed::default(), clock::now());
        let good = known(usize::MAX);
        observed.record_status(good, StatusCode::OK, start, start);
        for number in 0..3 * MAX_CREDENTIALS {
            let now = start + Duration::from_micros(number as u64);
            observed.record_status(known(number), StatusCode::OK, now, now);
            if number % 10_000 == 0 {
                assert!(observed.has_accepted(&good, now), "after {number}");
                observed.record_status(good, StatusCode::OK, now, now);
            }
            if number % 1000 == 0 {
                assert!(observed.credentials.len() <= MAX_CREDENTIALS);
            }
        }
        assert!(observed.has_accepted(&known(3 * MAX_CREDENTIALS - 1), start + SECOND), "the last one is remembered");
        // Credentials that were never accepted take no memory.
        let taken = observed.credentials.len();
        for number in 0..100 {
            observed.record_status(known(1 << 40 | number), StatusCode::UNAUTHORIZED, start, start);
        }
        assert_eq!(observed.credentials.len(), taken);
    }

    #[test]
    fn a_flood_of_origins_evicts_no_returning_page_and_takes_no_memory() {
        let (observed, start) = (Observed::default(), clock::now());
        let cors = |size: usize| {
            let value = HeaderValue::from_bytes(&vec![b'a'; size]).unwrap();
            HeaderMap::from_iter([(ACCESS_CONTROL_ALLOW_ORIGIN, value)])
        };
        let good = HeaderValue::from_static("https://good.example");
        for number in 0..3 * MAX_ORIGINS {
            let now = start + Duration::from_micros(number as u64);
            if number % 1000 == 0 {
                observed.record_cors(&good, &cors(10), now);
            }
            observed.record_cors(&HeaderValue::from(number as u64), &cors(10), now);
            assert!(observed.cors.len() <= MAX_ORIGINS);
            assert!(observed.cors(Some(&good)).is_some(), "after {number}");
        }
        let last = HeaderValue::from(3 * MAX_ORIGINS as u64 - 1);
        assert!(observed.cors(Some(&last)).is_some());
        let long = HeaderValue::from_bytes(&[b'o'; MAX_ORIGIN_BYTES]).unwrap();
        observed.record_cors(&long, &cors(10), start + SECOND);
        assert!(observed.cors(Some(&long)).is_none());
        observed.record_cors(
            &HeaderValue::from_static("https://other.example"),
            &cors(MAX_ORIGIN_BYTES),
            start + SECOND,
        );
        assert!(observed.cors(Some(&HeaderValue::from_static("https://other.example"))).is_none());
    }
}
