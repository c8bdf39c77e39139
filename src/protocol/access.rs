//! The allowed hosts of the proxy, and the web origins that it serves.
//!
//! A browser sends the requests of any page to any address. `Host` is the proxy's name in the
//! page's request: a page whose own name suddenly resolves to 127.0.0.1 attempts DNS rebinding.
//! `Origin` is the origin of the page. Two pure functions decide: [`AllowedHosts::admit`] and
//! [`AllowedOrigins::admit`]. Absent: the identity of the caller, since a program that is no
//! browser can send any header.

use std::net::IpAddr;
use std::str::FromStr;

use http::header::{HOST, ORIGIN};
use http::uri::Authority;
use http::{HeaderMap, HeaderValue, Uri};

/// The hosts that a request may name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllowedHosts {
    /// Every host.
    Any,
    /// `localhost` and the loopback addresses alone, at any port.
    Loopback,
    /// The hosts of these patterns.
    Listed(Vec<HostPattern>),
    /// The hosts of [`AllowedHosts::Loopback`] and of these patterns.
    LoopbackAnd(Vec<HostPattern>),
}

/// The origins that a request with an `Origin` may name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllowedOrigins {
    /// Every origin.
    Any,
    /// Pages of `localhost` and of the loopback addresses alone, at any port.
    Loopback,
    /// Pages of the host that the request names.
    OwnHost,
    /// The origins of these patterns.
    Listed(Vec<OriginPattern>),
}

/// One entry of `listen.allowed_hosts`: `*`, or a name or address, `*.` for any name below one,
/// with or without a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPattern {
    name: Name,
    /// The port, or `None` for any.
    port: Option<u16>,
}

/// One entry of `listen.allowed_origins`: `*`, `null`, or `scheme://` and a host as in
/// [`HostPattern`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OriginPattern {
    /// Every origin.
    Any,
    /// The value `null`, sent by pages without an origin of their own.
    Null,
    /// Pages of this scheme, host and port.
    Page {
        /// The scheme, in lower case.
        scheme: String,
        /// The host.
        name: Name,
        /// The port, or `None` for any.
        port: Option<u16>,
    },
}

/// The host of a pattern, in lower case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Name {
    /// Every host.
    Any,
    /// This host alone.
    Exact(String),
    /// Every name below this suffix, which begins with a dot.
    Below(String),
}

impl AllowedHosts {
    /// Returns true if a request for `uri` with `headers` is allowed: it names a host, and every
    /// host that it names is allowed. A request names hosts in its target, which is HTTP/2's
    /// `:authority`, and in `Host`.
    pub fn admit(&self, uri: &Uri, headers: &HeaderMap) -> bool {
        if *self == AllowedHosts::Any {
            return true;
        }
        let mut named = headers.get_all(HOST).iter();
        let (host, second) = (named.next(), named.next());
        let admits_target = uri.authority().is_none_or(|target| self.admits_authority(target));
        let admits_header = host.is_none_or(|host| match plain_host(host) {
            Some((host, port)) => self.admits_host(host, port),
            None => authority(host).is_some_and(|host| self.admits_authority(&host)),
        });
        second.is_none() && (host.is_some() || uri.authority().is_some()) && admits_target && admits_header
    }

    fn admits_authority(&self, authority: &Authority) -> bool {
        // Credentials belong to no host, and an invalid port would pass for any.
        host_and_port(authority).is_some_and(|(host, port)| self.admits_host(host, port))
    }

    fn admits_host(&self, host: &str, port: Option<u16>) -> bool {
        let listed = |patterns: &[HostPattern]| patterns.iter().any(|pattern| pattern.matches(host, port));
        match self {
            AllowedHosts::Any => true,
            AllowedHosts::Loopback => is_loopback(host),
            AllowedHosts::Listed(patterns) => listed(patterns),
            AllowedHosts::LoopbackAnd(patterns) => is_loopback(host) || listed(patterns),
        }
    }
}

impl AllowedOrigins {
    /// Returns true if a request for `uri` with `headers` is allowed: it has no `Origin`, or an
    /// allowed one.
    pub fn admit(&self, uri: &Uri, headers: &HeaderMap) -> bool {
        let mut origins = headers.get_all(ORIGIN).iter();
        let (Some(origin), second) = (origins.next(), origins.next()) else { return true };
        if *self == AllowedOrigins::Any {
            return true;
        }
        let Ok(origin) = origin.to_str() else { return false };
        second.is_none() && self.admits_origin(origin, uri, headers)
    }

    fn admits_origin(&self, origin: &str, uri: &Uri, headers: &HeaderMap) -> bool {
        let page = Page::parse(origin);
        match self {
            AllowedOrigins::Any => true,
            AllowedOrigins::Loopback => page.is_some_and(|page| page.is_web() && is_loopback(page.authority.host())),
            AllowedOrigins::OwnHost => {
                let own = uri.authority().cloned().or_else(|| authority(headers.get(HOST)?));
                page.zip(own).is_some_and(|(page, own)| page.is_web() && page.is_of(&own))
            }
            AllowedOrigins::Listed(patterns) => patterns.iter().any(|pattern| match pattern {
                OriginPattern::Any => true,
                OriginPattern::Null => origin == "null",
                OriginPattern::Page { scheme, name, port } => page.as_ref().is_some_and(|page| {
                    *scheme == page.scheme
                        && name.matches(page.authority.host())
                        && port.is_none_or(|port| Some(port) == page.port)
                }),
            }),
        }
    }
}

/// Longest host or origin, in bytes, that a refusal repeats to its sender.
const REPEATED: usize = 100;

/// Returns the detail of a refusal because of the host: the host, and the configuration key that
/// would allow it.
pub fn host_refused(uri: &Uri, headers: &HeaderMap) -> String {
    let host =
        uri.authority().map(|target| target.as_str().as_bytes()).or(headers.get(HOST).map(HeaderValue::as_bytes));
    match host {
        Some(host) => format!("{} is not in listen.allowed_hosts", repeated(host)),
        None => "the request names none".to_owned(),
    }
}

/// Returns the detail of a refusal because of the origin: the origin, and the configuration key
/// that would allow it.
pub fn origin_refused(headers: &HeaderMap) -> String {
    let origin = headers.get(ORIGIN).map(HeaderValue::as_bytes).unwrap_or_default();
    format!("{} is not in listen.allowed_origins", repeated(origin))
}

/// Quotes a name as it was sent: bounded, and with control characters escaped.
fn repeated(name: &[u8]) -> String {
    let text = String::from_utf8_lossy(&name[..name.len().min(REPEATED)]).into_owned();
    format!("{text:?}")
}

/// The origin of a page.
struct Page {
    scheme: String,
    authority: Authority,
    /// Explicit port, else the default port of the scheme.
    port: Option<u16>,
}

impl Page {
    fn parse(origin: &str) -> Option<Self> {
        let (scheme, rest) = origin.split_once("://")?;
        let scheme = scheme.to_ascii_lowercase();
        let authority: Authority = rest.parse().ok()?;
        let port = port_of(&authority)?.or_else(|| default_port(&scheme));
        Some(Self { scheme, authority, port })
    }

    fn is_web(&self) -> bool {
        matches!(self.scheme.as_str(), "http" | "https")
    }

    /// Returns true if `host` serves the page. A host without a port has the default port of the
    /// page's scheme, since TLS may end before the proxy.
    fn is_of(&self, host: &Authority) -> bool {
        let Some(port) = port_of(host) else { return false };
        self.authority.host().eq_ignore_ascii_case(host.host())
            && port.or_else(|| default_port(&self.scheme)) == self.port
    }
}

impl HostPattern {
    fn matches(&self, host: &str, port: Option<u16>) -> bool {
        self.name.matches(host) && self.port.is_none_or(|wanted| Some(wanted) == port)
    }

    /// Returns true for the pattern `*`.
    pub fn is_any(&self) -> bool {
        self.name == Name::Any && self.port.is_none()
    }
}

impl Name {
    fn matches(&self, host: &str) -> bool {
        match self {
            Name::Any => true,
            Name::Exact(name) => host.eq_ignore_ascii_case(name),
            Name::Below(suffix) => host.len() > suffix.len() && host.to_ascii_lowercase().ends_with(suffix.as_str()),
        }
    }
}

impl FromStr for HostPattern {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, port) = name_and_port(text)
            .ok_or("must be a host as in \"mcp.example.com\", \"*.example.com\" or \"[::1]:8080\", or \"*\"")?;
        Ok(Self { name, port: port.flatten() })
    }
}

impl FromStr for OriginPattern {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const WANTED: &str = "must be an origin as in \"https://app.example.com\", \"https://*.example.com\" or \"http://localhost:*\", \"null\" or \"*\"";
        match text {
            "*" => return Ok(OriginPattern::Any),
            "null" => return Ok(OriginPattern::Null),
            _ => {}
        }
        let (scheme, rest) = text.split_once("://").ok_or(WANTED)?;
        let is_scheme = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
        if scheme.is_empty() || !scheme.bytes().all(is_scheme) {
            return Err(WANTED);
        }
        let scheme = scheme.to_ascii_lowercase();
        let (name, port) = name_and_port(rest).ok_or(WANTED)?;
        // A pattern without a port means the default port, which an origin leaves out. An unknown
        // scheme has none.
        let port = port.unwrap_or_else(|| default_port(&scheme));
        Ok(OriginPattern::Page { scheme, name, port })
    }
}

/// Parses the host of a pattern and its port: `None` without one, `Some(None)` for any.
fn name_and_port(text: &str) -> Option<(Name, Option<Option<u16>>)> {
    let (text, port) = match text.strip_suffix(":*") {
        Some(host) => (host, Some(None)),
        None => (text, None),
    };
    if text == "*" {
        return Some((Name::Any, port));
    }
    let (is_below, rest) = match text.strip_prefix("*.") {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let authority: Authority = rest.parse().ok()?;
    let explicit_port = port_of(&authority)?;
    // `h:1:*` is no pattern, and a star anywhere else makes none either.
    if authority.host().is_empty() || authority.host().contains('*') || (port.is_some() && explicit_port.is_some()) {
        return None;
    }
    let host = authority.host().to_ascii_lowercase();
    let name = if is_below { Name::Below(format!(".{host}")) } else { Name::Exact(host) };
    Some((name, port.or(explicit_port.map(Some))))
}

fn authority(host: &HeaderValue) -> Option<Authority> {
    host.to_str().ok()?.parse().ok()
}

/// Returns the result of [`host_and_port`] for a name or IPv4 address, with or without a port. This
/// costs a tenth of parsing an authority. Nearly every request has such a host. Returns `None` for
/// all others, valid or not.
fn plain_host(host: &HeaderValue) -> Option<(&str, Option<u16>)> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-');
    let text = host.to_str().ok()?;
    let (name, port) = match text.split_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => (name, Some(port.parse().ok()?)),
        Some(_) => return None,
        None => (text, None),
    };
    if !name.is_empty() && name.bytes().all(is_plain) { Some((name, port)) } else { None }
}

/// Returns the host and the explicit port, or `None` if the authority is anything but a host with
/// or without a port.
fn host_and_port(authority: &Authority) -> Option<(&str, Option<u16>)> {
    // Computed once: each call of `host` searches the authority again.
    let host = authority.host();
    let rest = authority.as_str().strip_prefix(host)?;
    match rest.strip_prefix(':') {
        None if rest.is_empty() => Some((host, None)),
        None => None,
        Some(port) => Some((host, Some(port.parse().ok()?))),
    }
}

fn port_of(authority: &Authority) -> Option<Option<u16>> {
    host_and_port(authority).map(|(_, port)| port)
}

fn default_port(scheme: &str) -> Option<u16> {
    match scheme {
        "http" => Some(80),
        "https" => Some(443),
        _ => None,
    }
}

/// Returns true for `localhost` and for loopback addresses.
/// Returns true for `localhost` and the loopback addresses, also in brackets.
pub fn is_loopback(host: &str) -> bool {
    let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    host.eq_ignore_ascii_case("localhost") || address.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Returns true for an address that servers listen at for all addresses: `0.0.0.0` or `[::]`. No
/// client can be sent there.
pub fn is_unspecified(host: &str) -> bool {
    host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok_and(|address| address.is_unspecified())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(http::HeaderName, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.clone(), HeaderValue::from_str(value).unwrap())).collect()
    }

    fn asks(hosts: &AllowedHosts, target: &str, named: &[&str]) -> bool {
        let mut all = HeaderMap::new();
        for host in named {
            all.append(HOST, HeaderValue::from_str(host).unwrap());
        }
        hosts.admit(&target.parse().unwrap(), &all)
    }

    fn comes_from(origins: &AllowedOrigins, host: &str, origin: &str) -> bool {
        origins.admit(&Uri::from_static("/mcp"), &headers(&[(HOST, host), (ORIGIN, origin)]))
    }

    fn hosts(patterns: &[&str]) -> Vec<HostPattern> {
        patterns.iter().map(|pattern| pattern.parse().unwrap()).collect()
    }

    fn origins(patterns: &[&str]) -> AllowedOrigins {
        AllowedOrigins::Listed(patterns.iter().map(|pattern| pattern.parse().unwrap()).collect())
    }

    #[test]
    fn loopback_is_asked_for_by_its_own_names_at_any_port() {
        for good in ["localhost", "LocalHost:1", "127.0.0.1", "127.0.0.1:8080", "127.8.9.1:80", "[::1]", "[::1]:65535"]
        {
            assert!(asks(&AllowedHosts::Loopback, "/mcp", &[good]), "{good}");
        }
        for bad in [
            "evil.example",
            "evil.example:8080",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "127.1",
            "0.0.0.0",
            "[::]",
            "192.168.0.1",
            "::1",
            "localhost:",
            "localhost:x",
            "localhost:99999",
            "user@localhost",
            "localhost@evil.example",
            "localhost, evil.example",
            "localhost/",
            "",
        ] {
            assert!(!asks(&AllowedHosts::Loopback, "/mcp", &[bad]), "{bad}");
        }
    }

    #[test]
    fn every_host_a_request_names_must_be_allowed_and_it_must_name_one() {
        let loopback = AllowedHosts::Loopback;
        assert!(asks(&loopback, "http://localhost/mcp", &[]), "as HTTP/2 does");
        assert!(asks(&loopback, "http://127.0.0.1/mcp", &["localhost"]));
        assert!(!asks(&loopback, "http://evil.example/mcp", &["localhost"]));
        assert!(!asks(&loopback, "http://localhost/mcp", &["evil.example"]));
        assert!(!asks(&loopback, "/mcp", &["localhost", "localhost"]));
        assert!(!asks(&loopback, "/mcp", &[]));
        assert!(asks(&AllowedHosts::Any, "/mcp", &[]));
        assert!(asks(&AllowedHosts::Any, "/mcp", &["evil.example"]));
    }

    #[test]
    fn hosts_can_be_listed() {
        let listed =
            AllowedHosts::Listed(hosts(&["mcp.example.com", "*.dev.example.com:8443", "[2001:db8::1]", "H:*"]));
        for good in [
            "mcp.example.com",
            "MCP.example.com:444",
            "a.dev.example.com:8443",
            "a.b.dev.example.com:8443",
            "[2001:db8::1]:9",
            "h:1",
        ] {
            assert!(asks(&listed, "/", &[good]), "{good}");
        }
        for bad in [
            "localhost",
            "example.com",
            "a.mcp.example.com",
            "a.dev.example.com",
            "dev.example.com:8443",
            "xdev.example.com:8443",
        ] {
            assert!(!asks(&listed, "/", &[bad]), "{bad}");
        }
        let both = AllowedHosts::LoopbackAnd(hosts(&["mcp.example.com"]));
        assert!(asks(&both, "/", &["localhost:1"]) && asks(&both, "/", &["mcp.example.com"]));
        assert!(!asks(&both, "/", &["evil.example"]));
        assert!(asks(&AllowedHosts::Listed(hosts(&["*"])), "/", &["any"]));
    }

    #[test]
    fn a_request_without_an_origin_comes_from_no_page() {
        let host = headers(&[(HOST, "evil.example")]);
        for allowed in [AllowedOrigins::Any, AllowedOrigins::Loopback, AllowedOrigins::OwnHost, origins(&[])] {
            assert!(allowed.admit(&Uri::from_static("/mcp"), &host), "{allowed:?}");
        }
    }

    #[test]
    fn pages_of_this_machine() {
        for good in ["http://localhost", "http://localhost:6274", "https://127.0.0.1:1", "http://[::1]:3000"] {
            assert!(comes_from(&AllowedOrigins::Loopback, "localhost:8080", good), "{good}");
        }
        for bad in [
            "http://evil.example",
            "http://localhost.evil.example",
            "null",
            "file://",
            "vscode-webview://localhost",
            "localhost",
            "http://localhost:x",
            "http://user@localhost",
            "http://localhost/path",
            "http://localhost http://evil.example",
            "",
        ] {
            assert!(!comes_from(&AllowedOrigins::Loopback, "localhost:8080", bad), "{bad}");
        }
    }

    #[test]
    fn pages_of_the_host_that_is_asked() {
        let own = AllowedOrigins::OwnHost;
        for (host, origin) in [
            ("mcp.example.com", "https://mcp.example.com"),
            ("mcp.example.com", "http://mcp.example.com"),
            ("mcp.example.com", "https://MCP.example.com:443"),
            ("mcp.example.com:443", "https://mcp.example.com"),
            ("10.0.0.1:8080", "http://10.0.0.1:8080"),
        ] {
            assert!(comes_from(&own, host, origin), "{host} {origin}");
        }
        for (host, origin) in [
            ("mcp.example.com", "https://example.com"),
            ("mcp.example.com", "https://mcp.example.com:8443"),
            ("mcp.example.com:8080", "http://mcp.example.com"),
            ("mcp.example.com", "app://mcp.example.com"),
            ("mcp.example.com", "null"),
        ] {
            assert!(!comes_from(&own, host, origin), "{host} {origin}");
        }
    }

    #[test]
    fn origins_can_be_listed() {
        let listed = origins(&[
            "https://app.example.com",
            "https://*.pages.example.com",
            "http://localhost:*",
            "vscode-webview://*",
            "http://h:81",
        ]);
        for good in [
            "https://app.example.com",
            "HTTPS://App.Example.com",
            "https://app.example.com:443",
            "https://a.b.pages.example.com",
            "http://localhost:6274",
            "http://localhost",
            "vscode-webview://1a2b3c",
            "http://h:81",
        ] {
            assert!(comes_from(&listed, "h", good), "{good}");
        }
        for bad in [
            "http://app.example.com",
            "https://app.example.com:8443",
            "https://pages.example.com",
            "https://evilpages.example.com",
            "https://a.pages.example.com:444",
            "http://h",
            "null",
        ] {
            assert!(!comes_from(&listed, "h", bad), "{bad}");
        }
        assert!(comes_from(&origins(&["null"]), "h", "null"));
        assert!(comes_from(&origins(&["*"]), "h", "null"));
        assert!(!comes_from(&origins(&[]), "h", "http://h"));
        let twice = [HeaderValue::from_static("http://h:81"), HeaderValue::from_static("http://evil.example")];
        let mut both = headers(&[(HOST, "h")]);
        for origin in twice {
            both.append(ORIGIN, origin);
        }
        assert!(!listed.admit(&Uri::from_static("/"), &both));
        assert!(AllowedOrigins::Any.admit(&Uri::from_static("/"), &both));
    }

    #[test]
    fn patterns_that_mean_nothing_are_refused() {
        for bad in ["", "a b", "h:x", "h:1:*", "*.", "a.*.b", "https://h", "u@h", "h/", "**"] {
            assert!(bad.parse::<HostPattern>().is_err(), "{bad}");
        }
        for bad in
            ["", "h", "https://", "https://h/", "https://h:x", "https://a.*.b", "ht tp://h", "https:/h", "://h", "NULL"]
        {
            assert!(bad.parse::<OriginPattern>().is_err(), "{bad}");
        }
        assert!("*".parse::<HostPattern>().unwrap().is_any());
    }

    proptest::proptest! {
        #[test]
        fn a_plain_host_is_read_as_an_authority_would_be(text in "[a-z0-9.:@\\[\\]%_-]{0,12}|[a-zA-Z0-9.-]{1,6}(:[0-9]{0,6})?") {
            let host = HeaderValue::from_str(&text).unwrap();
            if let Some(read) = plain_host(&host) {
                let authority = authority(&host).unwrap();
                proptest::prop_assert_eq!(Some(read), host_and_port(&authority));
            }
        }
    }
}
