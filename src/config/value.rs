//! Values that several sections share: bounds of durations, and parsers of texts.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use http::uri::Authority;
use http::{HeaderName, HeaderValue};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use super::read::Reader;
use super::{HostHeader, KeyPair, PrincipalSource};

/// Longest duration in seconds, a year: sums of durations do not overflow.
pub(super) const YEAR: u64 = 365 * 24 * 60 * 60;
/// Longest duration in milliseconds, a day: JavaScript timers of more than 24 days fire at once.
pub(super) const DAY_MS: u64 = 24 * 60 * 60 * 1000;

/// Reads `cert` and `key` of a section: both or none.
pub(super) fn key_pair(reader: &mut Reader, section: &'static str) -> Option<KeyPair> {
    let mut s = reader.section(section);
    let (cert, key) = (s.text("cert", file).flatten(), s.text("key", file).flatten());
    match (cert, key) {
        (Some(cert), Some(key)) => Some(KeyPair { cert, key }),
        (None, None) => None,
        (Some(_), None) | (None, Some(_)) => {
            let text = "a certificate and its key go together: give both or none".to_owned();
            reader.conflict([(section, "cert"), (section, "key")], text);
            None
        }
    }
}

/// Converts a duration; 0 is `None`.
pub(super) fn none_if_zero(wait: Duration) -> Option<Duration> {
    if wait.is_zero() { None } else { Some(wait) }
}

/// Parses a path; an empty text means none.
pub(super) fn file(text: &str) -> Result<Option<PathBuf>, String> {
    Ok(if text.is_empty() { None } else { Some(text.into()) })
}

/// Takes a text as it is; an empty one means none.
pub(super) fn non_empty(text: &str) -> Result<Option<String>, String> {
    Ok(if text.is_empty() { None } else { Some(text.to_owned()) })
}

pub(super) fn socket_address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| format!("must be an IP address and a port, as 127.0.0.1:8080 or [::]:8080, not {text:?}"))
}

pub(super) fn host(text: &str) -> Result<HostHeader, String> {
    match text {
        "upstream" => Ok(HostHeader::Upstream),
        "client" => Ok(HostHeader::Client),
        name => {
            let authority = name.parse::<Authority>().ok();
            authority
                .filter(|authority| !authority.as_str().contains('@'))
                .and_then(|authority| HeaderValue::from_str(authority.as_str()).ok())
                .map(HostHeader::Name)
                .ok_or_else(|| "must be \"upstream\", \"client\", or a host name with or without a port".to_owned())
        }
    }
}

pub(super) fn principal(text: &str) -> Result<PrincipalSource, String> {
    let source = match text.split_once(':') {
        None if text == "auto" => Some(PrincipalSource::Auto),
        None if text == "none" => Some(PrincipalSource::None),
        None if text == "sigv4" => Some(PrincipalSource::SigV4),
        Some(("header", name)) => name.parse().ok().map(PrincipalSource::Header),
        // Cookie names and header names have the same characters (RFC 6265 §4.1.1).
        Some(("cookie", name)) => {
            if name.parse::<HeaderName>().is_ok() {
                Some(PrincipalSource::Cookie(name.to_owned()))
            } else {
                None
            }
        }
        _ => None,
    };
    source.ok_or_else(|| {
        format!("must be \"auto\", \"none\", \"sigv4\", \"header:NAME\" or \"cookie:NAME\", not {text:?}")
    })
}

pub(super) fn log_level(text: &str) -> Result<String, String> {
    // The filter takes an unknown word for a module, and would log nothing else. It takes an empty
    // text for "error".
    let is_named =
        |part: &str| part.contains(['=', '[']) || (!part.is_empty() && part.trim().parse::<LevelFilter>().is_ok());
    if text.split(',').all(is_named) && EnvFilter::try_new(text).is_ok() {
        return Ok(text.to_owned());
    }
    Err(format!(
        "must be off, error, warn, info, debug or trace, or such with exceptions \
         as in \"warn,mcp_resume=debug\", not {text:?}"
    ))
}

/// Checks the scheme of a Redis URL; the store checks the rest. An empty text means none.
pub(super) fn redis_url(text: &str) -> Result<Option<String>, String> {
    const SCHEMES: [&str; 6] =
        ["redis://", "rediss://", "redis+sentinel://", "rediss+sentinel://", "redis+cluster://", "rediss+cluster://"];
    if text.is_empty() || SCHEMES.iter().any(|scheme| text.starts_with(scheme)) {
        return non_empty(text);
    }
    Err(format!("must begin with {}", SCHEMES.join(", ")))
}

/// Checks a key prefix. Braces would change the slot of a key.
pub(super) fn redis_prefix(text: &str) -> Result<String, String> {
    if text.is_empty() || text.contains(['{', '}']) || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("must be visible ASCII without braces, and not empty".to_owned());
    }
    Ok(text.to_owned())
}
