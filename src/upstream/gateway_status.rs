//! Responses of a gateway in front of the server, while no server is behind it.
//!
//! Owned here: the signs of such a response, the pause before the next attempt, and the attempts of
//! the proxy's own `initialize`. Absent: the attempts of clients' requests
//! ([`super::gateway_errors`]).

use std::time::{Duration, Instant, UNIX_EPOCH};

use http::header::RETRY_AFTER;
use http::{HeaderMap, Response, StatusCode};

use super::server::body::begun;
use super::server::exchange::{Exchange, Exchanged};
use super::server::request::Template;
use super::server::response_body::ResponseBody;
use crate::backoff::Backoff;
use crate::clock;
use crate::protocol::headers;
use crate::protocol::jsonrpc;

/// Pauses before further attempts, if the response names no time.
pub(super) const PAUSES: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(4));
/// Shortest pause: a response can name no shorter one, and the rest of the time is not used for a
/// last attempt if it is shorter.
const SHORTEST: Duration = Duration::from_millis(100);
/// Size limit of a body that can be a JSON-RPC error, in bytes. A larger body in JSON passes.
const BODY_MAX: usize = 64 * 1024;
/// Longest wait for such a body.
const BODY_WAIT: Duration = Duration::from_secs(1);

/// Returns true for a status of a gateway without a server.
pub(super) fn is_gateway_status(response: &Response<ResponseBody>) -> bool {
    let statuses = [StatusCode::BAD_GATEWAY, StatusCode::SERVICE_UNAVAILABLE, StatusCode::GATEWAY_TIMEOUT];
    statuses.contains(&response.status()) && !headers::is_sse(response.headers())
}

/// Sends an `initialize` of the proxy's own. Sends it again while the response is a gateway's, for
/// `wait` at most. A session that the server has opened for an earlier one ends by itself.
///
/// # Errors
/// As [`Exchange::exchange`], and without a further attempt.
pub(super) async fn initialize(server: &impl Exchange, template: &Template, wait: Duration) -> Exchanged {
    let (until, mut pauses) = (clock::now() + wait, PAUSES);
    loop {
        let response = server.exchange(template, None).await?;
        if !is_gateway_status(&response) || template.has_proof() {
            return Ok(response);
        }
        let (response, is_gateway) = examine(response).await;
        let pause = pause_before(until, response.headers(), &mut pauses);
        let Some(pause) = pause.filter(|_| is_gateway) else { return Ok(response) };
        clock::sleep(pause).await;
    }
}

/// Reads a response far enough to know whether it is a gateway's. The returned response has its
/// whole body.
pub(super) async fn examine(response: Response<ResponseBody>) -> (Response<ResponseBody>, bool) {
    if !headers::is_read_as_json(response.headers()) {
        return (response, true);
    }
    let (response, body) = begun(response, BODY_MAX, BODY_WAIT).await;
    let is_gateway = body.is_some_and(|body| jsonrpc::peek_any(&body).is_err());
    (response, is_gateway)
}

/// Returns the pause before the next attempt, after a response with these headers, or `None` after
/// the last. Attempts end at `until`.
pub(super) fn pause_before(until: Instant, headers: &HeaderMap, pauses: &mut Backoff) -> Option<Duration> {
    let left = until.saturating_duration_since(clock::now());
    pause_within(left, named_pause(headers, clock::wall()), pauses)
}

/// Returns the pause before the next attempt, or `None` after the last. A pause that the response
/// names is kept or is the end. Of the proxy's own pauses the last one ends with the time that is
/// left.
fn pause_within(left: Duration, named: Option<Duration>, pauses: &mut Backoff) -> Option<Duration> {
    match named {
        Some(pause) => Some(pause).filter(|pause| *pause <= left),
        None => Some(pauses.next_pause().min(left)).filter(|pause| *pause >= SHORTEST),
    }
}

/// Returns the pause of `Retry-After`, at least [`SHORTEST`]: its seconds, or the time until its
/// date ([RFC 9110 §10.2.3]). `now` is the time since 1970. Returns `None` for any other value.
///
/// [RFC 9110 §10.2.3]: https://www.rfc-editor.org/rfc/rfc9110#section-10.2.3
fn named_pause(headers: &HeaderMap, now: Duration) -> Option<Duration> {
    let value = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let pause = if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) {
        Duration::from_secs(value.parse().unwrap_or(u64::MAX))
    } else {
        let date = httpdate::parse_http_date(value).ok()?;
        date.duration_since(UNIX_EPOCH).unwrap_or_default().saturating_sub(now)
    };
    Some(pause.max(SHORTEST))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_names_a_pause_in_seconds_or_by_a_date() {
        // Sun, 06 Nov 1994 08:49:37 GMT
        let now = Duration::from_secs(784_111_777);
        let pause = |value: &str| {
            let headers = HeaderMap::from_iter([(RETRY_AFTER, value.parse().unwrap())]);
            named_pause(&headers, now)
        };
        let secs = |secs| Some(Duration::from_secs(secs));
        for (value, expected) in [
            ("7", secs(7)),
            (" 120 ", secs(120)),
            ("0", Some(SHORTEST)),
            ("4294967296", secs(1 << 32)),
            ("99999999999999999999999999", secs(u64::MAX)),
            ("Sun, 06 Nov 1994 08:49:39 GMT", secs(2)),
            ("Sunday, 06-Nov-94 08:49:47 GMT", secs(10)),
            ("Sun Nov  6 08:50:37 1994", secs(60)),
            ("Sun, 06 Nov 1994 08:49:36 GMT", Some(SHORTEST)),
            ("Fri, 31 Dec 9999 23:59:59 GMT", secs(253_402_300_799 - 784_111_777)),
            ("", None),
            ("-1", None),
            ("1.5", None),
            ("soon", None),
            ("Sun, 06 Nov 1994", None),
        ] {
            assert_eq!(pause(value), expected, "{value:?}");
        }
        assert_eq!(named_pause(&HeaderMap::new(), now), None);
    }

    #[test]
    fn the_last_attempt_is_at_the_end_of_the_time() {
        let attempts = |wait: Duration, named: Option<Duration>| {
            let (mut pauses, mut now, mut attempts) = (PAUSES, Duration::ZERO, Vec::new());
            while let Some(pause) = pause_within(wait.saturating_sub(now), named, &mut pauses) {
                now += pause;
                attempts.push(now.as_millis());
            }
            attempts
        };
        let secs = Duration::from_secs;
        assert_eq!(attempts(secs(6), None), [500, 1500, 3500, 6000]);
        assert_eq!(attempts(Duration::from_millis(7550), None), [500, 1500, 3500, 7500]);
        assert_eq!(attempts(Duration::ZERO, None), [0; 0]);
        // The server has said that it is not there earlier.
        assert_eq!(attempts(secs(6), Some(secs(4))), [4000]);
        assert_eq!(attempts(secs(6), Some(secs(u64::MAX))), [0; 0]);
    }
}
