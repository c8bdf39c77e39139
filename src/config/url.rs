//! The upstream's URL, parsed once.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use http::Uri;
use http::uri::Authority;
use mcp_resume_protocol::origin;

const DEFAULT_PATH: &str = "/mcp";
const DEFAULT_SSE_PATH: &str = "/sse";
const LOOPBACK_V4: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const LOOPBACK_V6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);

/// Endpoint of the MCP server. Its query may hold a key, so neither `Display` nor `Debug` shows it.
#[derive(Clone, PartialEq, Eq)]
pub struct UpstreamUrl {
    is_https: bool,
    authority: Authority,
    path: String,
    query: Option<String>,
}

/// A text is no upstream URL. The message quotes nothing of it: it may hold a password.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// An empty text.
    #[error("is empty; give the MCP server's URL, such as http://127.0.0.1:3000/mcp")]
    Empty,
    /// Another scheme, or none.
    #[error("must begin with http:// or https://, as in http://127.0.0.1:3000/mcp")]
    Scheme,
    /// User name or password.
    #[error("must not hold a user name or password; clients send their own credentials")]
    UserInfo,
    /// A fragment, which never reaches a server.
    #[error("must not have a fragment (#…)")]
    Fragment,
    /// Port 0, above 65535, or a colon without a number.
    #[error("has a port that is not between 1 and 65535")]
    Port,
    /// Any other text.
    #[error("is not a URL, such as http://127.0.0.1:3000/mcp")]
    Malformed,
}

impl UpstreamUrl {
    /// Returns true if the upstream uses TLS.
    pub fn is_https(&self) -> bool {
        self.is_https
    }

    /// Returns `http` or `https`.
    pub fn scheme(&self) -> &'static str {
        if self.is_https { "https" } else { "http" }
    }

    /// Returns the port of the scheme.
    pub fn default_port(&self) -> u16 {
        if self.is_https { 443 } else { 80 }
    }

    /// Returns the same URL on https, on its default port.
    pub fn to_https(&self) -> Self {
        let host = self.authority.host().parse().unwrap_or_else(|_| self.authority.clone());
        Self { is_https: true, authority: host, ..self.clone() }
    }

    /// Returns the host, and the port if one was given.
    pub fn authority(&self) -> &Authority {
        &self.authority
    }

    /// Returns the path as configured, or `/mcp` for a URL without a path and a slash. It may end
    /// in a slash, which [`is_endpoint`](Self::is_endpoint) ignores.
    pub fn endpoint_path(&self) -> &str {
        &self.path
    }

    /// Returns true if `path` is the endpoint's, with or without a final slash.
    pub fn is_endpoint(&self, path: &str) -> bool {
        without_slash(path) == without_slash(&self.path)
    }

    /// Returns the query without its question mark. It may hold a key, and must not be logged.
    pub fn query(&self) -> Option<&str> {
        self.query.as_deref()
    }

    /// Returns true if a connection to this URL reaches a listener of this machine at `address`, as
    /// far as the texts show. Names other than `localhost` are not resolved, and the addresses of
    /// network interfaces are not known.
    pub fn reaches(&self, address: SocketAddr) -> bool {
        let port = self.authority.port_u16().unwrap_or(self.default_port());
        if address.port() == 0 || port != address.port() {
            return false;
        }
        let listens = address.ip();
        let host = self.authority.host().trim_matches(['[', ']']);
        if host.eq_ignore_ascii_case("localhost") {
            return listens.is_unspecified() || [LOOPBACK_V4, LOOPBACK_V6].contains(&listens);
        }
        host.parse::<IpAddr>().is_ok_and(|host| {
            let is_here = host.is_loopback() || host.is_unspecified();
            // A listener on [::] accepts IPv4 as well, unless the system says otherwise.
            let accepts_family = listens.is_unspecified() && (listens.is_ipv6() || host.is_ipv4());
            host == listens || (is_here && accepts_family) || (host.is_unspecified() && listens.is_loopback())
        })
    }

    /// Returns the origin of the URL, as [`origin::of`] does.
    pub fn origin(&self) -> String {
        origin::serialised(self.scheme(), self.authority.host(), self.authority.port_u16())
    }
}

fn without_slash(path: &str) -> &str {
    path.strip_suffix('/').unwrap_or(path)
}

impl FromStr for UpstreamUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        UpstreamUrl::parse(text, DEFAULT_PATH)
    }
}

impl UpstreamUrl {
    /// Parses the URL of a server on HTTP+SSE. Its path is `/sse` by default.
    ///
    /// # Errors
    /// As for any URL.
    pub fn parse_sse(text: &str) -> Result<Self, UrlError> {
        UpstreamUrl::parse(text, DEFAULT_SSE_PATH)
    }

    /// Returns the endpoint `/mcp` of the same origin, without a query.
    pub fn to_default_endpoint(&self) -> Self {
        Self { path: DEFAULT_PATH.to_owned(), query: None, ..self.clone() }
    }

    pub(super) fn parse(text: &str, default_path: &str) -> Result<Self, UrlError> {
        if text.is_empty() {
            return Err(UrlError::Empty);
        }
        let (scheme, rest) = text.split_once("://").ok_or(UrlError::Scheme)?;
        let is_https = scheme.eq_ignore_ascii_case("https");
        if !is_https && !scheme.eq_ignore_ascii_case("http") {
            return Err(UrlError::Scheme);
        }
        // `Uri` drops a fragment silently.
        if rest.contains('#') {
            return Err(UrlError::Fragment);
        }
        if rest.split(['/', '?']).next().is_some_and(|authority| authority.contains('@')) {
            return Err(UrlError::UserInfo);
        }
        let uri: Uri = text.parse().map_err(|_| UrlError::Malformed)?;
        let authority = uri.authority().ok_or(UrlError::Malformed)?.clone();
        check_authority(&authority)?;
        // `Uri` turns a missing path into a slash; a slash that was given counts.
        let is_written = rest.split(['?']).next().is_some_and(|rest| rest.contains('/'));
        let path = if is_written { uri.path() } else { default_path };
        Ok(Self {
            is_https,
            authority,
            path: path.to_owned(),
            query: uri.query().filter(|query| !query.is_empty()).map(str::to_owned),
        })
    }
}

/// Checks the parts that `Authority` does not: brackets within a host, and a sign before a port.
fn check_authority(authority: &Authority) -> Result<(), UrlError> {
    let host = authority.host();
    let is_literal = host.starts_with('[') && host.ends_with(']');
    if host.is_empty() || (!is_literal && host.contains(['[', ']'])) {
        return Err(UrlError::Malformed);
    }
    let behind = &authority.as_str()[host.len()..];
    match behind.strip_prefix(':') {
        None if behind.is_empty() => Ok(()),
        None => Err(UrlError::Malformed),
        Some(port) => {
            let is_number = port.bytes().all(|byte| byte.is_ascii_digit());
            let is_port = is_number && matches!(port.parse::<u16>(), Ok(1..));
            if is_port { Ok(()) } else { Err(UrlError::Port) }
        }
    }
}

impl fmt::Display for UpstreamUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.origin(), self.path)
    }
}

impl fmt::Debug for UpstreamUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}{}", if self.query.is_some() { "?…" } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> UpstreamUrl {
        text.parse().unwrap()
    }

    #[test]
    fn a_url_without_a_path_means_mcp() {
        for text in ["http://h:1", "http://h:1?", "http://h:1/mcp", "HTTP://h:1/mcp?"] {
            assert_eq!(parse(text).endpoint_path(), "/mcp", "{text}");
            assert_eq!(parse(text).query(), None, "{text}");
        }
        let url = parse("http://h:1?key=1");
        assert_eq!((url.endpoint_path(), url.query()), ("/mcp", Some("key=1")));
    }

    #[test]
    fn a_slash_alone_means_the_root() {
        for text in ["http://h:1/", "http://h:1/?"] {
            let url = parse(text);
            assert_eq!(url.endpoint_path(), "/", "{text}");
            assert!(url.is_endpoint("/") && !url.is_endpoint("/mcp"));
        }
    }

    #[test]
    fn the_path_is_kept_and_matches_with_or_without_a_final_slash() {
        for text in ["http://h/a/b", "http://h/a/b/"] {
            let url = parse(text);
            assert_eq!(url.to_string(), text);
            assert!(url.is_endpoint("/a/b") && url.is_endpoint("/a/b/"));
            for other in ["", "/", "/a", "/a/bc", "/a/b//", "/A/b"] {
                assert!(!url.is_endpoint(other), "{other}");
            }
        }
    }

    #[test]
    fn origins_are_comparable() {
        assert_eq!(parse("http://LocalHost:80/x").origin(), "http://localhost");
        assert_eq!(parse("http://a_b:3000").origin(), "http://a_b:3000");
        assert_eq!(parse("http://[::1]:3000").origin(), "http://[::1]:3000");
        assert_eq!(parse("http://[::1]").origin(), "http://[::1]");
        assert_eq!(parse("HTTPS://Host:443/x").origin(), "https://host");
        assert_eq!(parse("https://host:80/x").origin(), "https://host:80");
    }

    #[test]
    fn urls_of_listeners_of_this_machine_are_recognised() {
        for (url, address, reaches) in [
            ("http://127.0.0.1:8080/mcp", "127.0.0.1:8080", true),
            ("https://127.0.0.1:8080/mcp", "127.0.0.1:8080", true),
            ("http://localhost:8080", "127.0.0.1:8080", true),
            ("http://LOCALHOST:8080", "[::1]:8080", true),
            ("http://localhost:8080", "0.0.0.0:8080", true),
            ("http://127.0.0.1:8080", "0.0.0.0:8080", true),
            ("http://127.0.0.1:8080", "[::]:8080", true),
            ("http://[::1]:8080", "[::]:8080", true),
            ("http://0.0.0.0:8080", "127.0.0.1:8080", true),
            ("http://10.0.0.7:8080", "10.0.0.7:8080", true),
            ("http://localhost", "127.0.0.1:80", true),
            ("http://127.0.0.1:3000", "127.0.0.1:8080", false),
            ("http://127.0.0.2:8080", "127.0.0.1:8080", false),
            ("http://localhost:8080", "127.0.0.2:8080", false),
            ("http://[::1]:8080", "127.0.0.1:8080", false),
            ("http://[::1]:8080", "0.0.0.0:8080", false),
            ("http://10.0.0.7:8080", "0.0.0.0:8080", false),
            ("http://mcp.example.com:8080", "0.0.0.0:8080", false),
            ("http://127.0.0.1:8080", "127.0.0.1:0", false),
        ] {
            assert_eq!(parse(url).reaches(address.parse().unwrap()), reaches, "{url} {address}");
        }
    }

    #[test]
    fn the_query_is_shown_nowhere() {
        let url = parse("http://h:1/mcp?key=hunter2");
        assert_eq!(url.to_string(), "http://h:1/mcp");
        assert_eq!(format!("{url:?}"), "http://h:1/mcp?…");
    }

    #[test]
    fn each_invalid_url_has_its_error() {
        for (text, error) in [
            ("", UrlError::Empty),
            ("ftp://h/mcp", UrlError::Scheme),
            ("localhost:3000", UrlError::Scheme),
            ("/mcp", UrlError::Scheme),
            ("http://me:secret@h/mcp", UrlError::UserInfo),
            ("http://h/mcp#part", UrlError::Fragment),
            ("http://h:0/mcp", UrlError::Port),
            ("http://h:70000/mcp", UrlError::Port),
            ("http://h:/mcp", UrlError::Port),
            ("http://h:+80/mcp", UrlError::Port),
            ("http://", UrlError::Malformed),
            ("http:///mcp", UrlError::Malformed),
            ("http://:3000/mcp", UrlError::Malformed),
            ("http://a b/mcp", UrlError::Malformed),
            ("http://h[::1]:80/mcp", UrlError::Malformed),
            ("http://[::1]h:80/mcp", UrlError::Malformed),
        ] {
            assert_eq!(text.parse::<UpstreamUrl>(), Err(error), "{text}");
        }
    }
}
