//! The URL that clients type for the endpoint, and the metadata of the resource of that name.
//!
//! Absent: the requests for that metadata (`upstream/server/protected_resource.rs`).

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use http::header::AUTHORIZATION;
use http::uri::Authority;

use super::read::Reader;
use super::{Auth, Listen, PrincipalSource, Upstream, UpstreamUrl, UrlError};
use mcp_resume_protocol::access::{AllowedHosts, HostPattern, is_loopback};
use mcp_resume_protocol::protected_resource::metadata_path;

/// The URL of the endpoint for clients, which a proxy in front may map to the listener.
///
/// It is https, or http on a loopback host. It has no query, fragment, user or password. Its path
/// ends in a slash only if it is `/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicUrl {
    url: UpstreamUrl,
    /// The URL as the metadata of the resource names it.
    text: String,
}

/// A text is no public URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PublicUrlError {
    /// A character that clients write in another way.
    #[error(
        "has a character that clients write in another way: write it percent-encoded, as %C3%A4 for ä, and a host by its xn-- name"
    )]
    Unencoded,
    /// No URL.
    #[error("{0}")]
    Url(UrlError),
    /// http on a host that is not this machine.
    #[error("must begin with https://: tokens are sent to it; http is for localhost and loopback addresses alone")]
    Plain,
    /// A query.
    #[error("must not have a query (?…)")]
    Query,
    /// A slash at the end of a path.
    #[error("must not end in a slash: clients compare it with what they were given")]
    Slash,
}

impl PublicUrl {
    /// Returns `https` or `http`.
    pub fn scheme(&self) -> &'static str {
        self.url.scheme()
    }

    /// Returns the host, and the port if one was given.
    pub fn authority(&self) -> &Authority {
        self.url.authority()
    }

    /// Returns the port, by default that of the scheme.
    pub fn port(&self) -> u16 {
        self.authority().port_u16().unwrap_or(self.url.default_port())
    }

    /// Returns the origin, as [`UpstreamUrl::origin`] does.
    pub fn origin(&self) -> String {
        self.url.origin()
    }

    /// Returns the path, `/` at least.
    pub fn path(&self) -> &str {
        self.url.endpoint_path()
    }

    /// Returns the whole URL, as the metadata of the resource names it.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the URL of the metadata of the resource ([RFC 9728 §3.1]).
    ///
    /// [RFC 9728 §3.1]: https://www.rfc-editor.org/rfc/rfc9728#section-3.1
    pub fn metadata_url(&self) -> String {
        format!("{}{}", self.origin(), metadata_path(self.path()))
    }

    /// Returns true if `path` is the endpoint's, with or without a final slash.
    pub fn is_endpoint(&self, path: &str) -> bool {
        self.url.is_endpoint(path)
    }

    /// Returns true if a URL names this resource, with or without a final slash.
    pub fn is_named_by(&self, url: &str) -> bool {
        UpstreamUrl::parse(url, "/").is_ok_and(|url| {
            url.origin() == self.origin() && url.query().is_none() && self.is_endpoint(url.endpoint_path())
        })
    }
}

impl fmt::Display for PublicUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for PublicUrl {
    type Err = PublicUrlError;

    fn from_str(text: &str) -> Result<Self, PublicUrlError> {
        if !text.chars().all(is_sent_as_typed) {
            return Err(PublicUrlError::Unencoded);
        }
        let url = UpstreamUrl::parse(text, "/").map_err(PublicUrlError::Url)?;
        if text.contains('?') {
            return Err(PublicUrlError::Query);
        }
        if !url.is_https() && !is_loopback(url.authority().host()) {
            return Err(PublicUrlError::Plain);
        }
        let path = url.endpoint_path();
        if url.authority().host().contains('*') || path.split('/').any(|part| matches!(part, "." | "..")) {
            return Err(PublicUrlError::Url(UrlError::Malformed));
        }
        if path != "/" && path.ends_with('/') {
            return Err(PublicUrlError::Slash);
        }
        // A slash that was not typed is not part of the resource's name.
        let path = if path == "/" && !text.ends_with('/') { "" } else { path };
        let text = format!("{}{path}", url.origin());
        Ok(Self { url, text })
    }
}

/// Returns true for a character of a URL that clients neither encode nor replace
/// ([URL Standard §1.3]).
///
/// [URL Standard §1.3]: https://url.spec.whatwg.org/#percent-encoded-bytes
fn is_sent_as_typed(character: char) -> bool {
    character.is_ascii_graphic() && !r#""<>\^`{}"#.contains(character)
}

/// Reads an optional public URL.
pub(super) fn public_url(text: &str) -> Result<Option<Arc<PublicUrl>>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    text.parse().map(|url| Some(Arc::new(url))).map_err(|error: PublicUrlError| error.to_string())
}

/// Adds the host of the public URL to the hosts that requests may name.
pub(super) fn with_public_host(hosts: AllowedHosts, public: Option<&Arc<PublicUrl>>) -> AllowedHosts {
    // Proxies in front leave out a port, or write their own.
    let host = public.and_then(|public| public.authority().host().parse::<HostPattern>().ok());
    let with = |mut patterns: Vec<HostPattern>| {
        patterns.extend(host.clone());
        patterns
    };
    match hosts {
        AllowedHosts::Loopback => match host {
            Some(host) => AllowedHosts::LoopbackAnd(vec![host]),
            None => AllowedHosts::Loopback,
        },
        AllowedHosts::Listed(patterns) => AllowedHosts::Listed(with(patterns)),
        AllowedHosts::LoopbackAnd(patterns) => AllowedHosts::LoopbackAnd(with(patterns)),
        AllowedHosts::Any => AllowedHosts::Any,
    }
}

/// Reports a `listen.resource_metadata` that no one could check tokens for, or that the server's
/// own document would contradict.
pub(super) fn refuse_unchecked_metadata(reader: &mut Reader, listen: &Listen, upstream: &Upstream, auth: &Auth) {
    const KEY: (&str, &str) = ("listen", "resource_metadata");
    if listen.resource_metadata.is_none() {
        return;
    }
    if listen.public_url.is_none() {
        let text = "describes the resource of listen.public_url, which is missing: give the URL that clients type";
        reader.conflict([KEY, ("listen", "public_url")], text.to_owned());
    }
    if !upstream.is_channel() {
        let text = "is for servers on stdio and HTTP+SSE: a server on HTTP has a document of its own, which the proxy passes on";
        reader.conflict([KEY, ("upstream", "url")], text.to_owned());
    }
    let is_checked_in_front = matches!(auth.principal, PrincipalSource::Header(_));
    if listen.trusted_proxies.is_empty() || !is_checked_in_front {
        let text = "invites clients to send tokens, which the proxy does not check: put a proxy that checks them in front, and name it \
                    in listen.trusted_proxies and its header in auth.principal, as \"header:X-User\"";
        reader.conflict([KEY, ("auth", "principal")], text.to_owned());
    }
}

/// Reports credentials of the operator, and tokens that become variables, beside a public URL:
/// clients send tokens of their own there, for the server.
pub(super) fn refuse_credentials_beside(reader: &mut Reader, listen: &Listen, upstream: &Upstream) {
    if listen.public_url.is_none() {
        return;
    }
    if let Some(name) = upstream.static_credentials().next() {
        let text = format!(
            "has the credential {name}, and clients of listen.public_url send tokens of their own: remove one of the two"
        );
        reader.conflict([("upstream", "headers"), ("listen", "public_url")], text);
    }
    let variables = upstream.command.iter().flat_map(|command| &command.env_from_headers);
    if variables.into_iter().any(|client| client.header == AUTHORIZATION) {
        let text = "passes the tokens of clients on to a program, and they are for listen.public_url alone: remove one of the two";
        reader.conflict([("upstream", "env_from_headers"), ("listen", "public_url")], text.to_owned());
    }
}

/// Returns the host of a server that others may operate: a public address, or a name that is not
/// one of a private network. Behind `listen.public_url` such a server takes tokens for another
/// name.
pub fn public_host(url: &UpstreamUrl) -> Option<&str> {
    const PRIVATE: [&str; 8] =
        [".local", ".localhost", ".internal", ".lan", ".home.arpa", ".svc", ".cluster.local", ".test"];
    let host = url.authority().host();
    let name = host.trim_matches(['[', ']']).trim_end_matches('.').to_ascii_lowercase();
    let is_public = match name.parse::<IpAddr>() {
        Ok(address) => !mcp_resume_protocol::protected_resource::is_private(address),
        Err(_) => name.contains('.') && !PRIVATE.iter().any(|suffix| name.ends_with(suffix)),
    };
    is_public.then_some(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_public_url_is_kept_as_clients_type_it() {
        for (text, shown, path, metadata) in [
            (
                "https://a.example/mcp",
                "https://a.example/mcp",
                "/mcp",
                "https://a.example/.well-known/oauth-protected-resource/mcp",
            ),
            ("https://A.example", "https://a.example", "/", "https://a.example/.well-known/oauth-protected-resource"),
            ("https://a.example/", "https://a.example/", "/", "https://a.example/.well-known/oauth-protected-resource"),
            (
                "https://a.example:443/t/mcp",
                "https://a.example/t/mcp",
                "/t/mcp",
                "https://a.example/.well-known/oauth-protected-resource/t/mcp",
            ),
            (
                "http://localhost:8080/mcp",
                "http://localhost:8080/mcp",
                "/mcp",
                "http://localhost:8080/.well-known/oauth-protected-resource/mcp",
            ),
            (
                "http://[::1]:8080/mcp",
                "http://[::1]:8080/mcp",
                "/mcp",
                "http://[::1]:8080/.well-known/oauth-protected-resource/mcp",
            ),
            (
                "https://a.example/%C3%A4/a|b",
                "https://a.example/%C3%A4/a|b",
                "/%C3%A4/a|b",
                "https://a.example/.well-known/oauth-protected-resource/%C3%A4/a|b",
            ),
        ] {
            let url: PublicUrl = text.parse().unwrap();
            assert_eq!((url.as_str(), url.path(), url.metadata_url().as_str()), (shown, path, metadata), "{text}");
        }
    }

    #[test]
    fn each_invalid_public_url_has_its_error() {
        for (text, error) in [
            ("http://a.example/mcp", PublicUrlError::Plain),
            ("http://10.0.0.7/mcp", PublicUrlError::Plain),
            ("https://a.example/mcp?", PublicUrlError::Query),
            ("https://a.example/mcp?a=b", PublicUrlError::Query),
            ("https://a.example/mcp/", PublicUrlError::Slash),
            ("https://a.example/ä", PublicUrlError::Unencoded),
            ("https://ä.example/mcp", PublicUrlError::Unencoded),
            ("https://a.example/a b", PublicUrlError::Unencoded),
            ("https://a.example/{id}", PublicUrlError::Unencoded),
            ("https://a.example\\mcp", PublicUrlError::Unencoded),
            ("https://a.example/mcp#part", PublicUrlError::Url(UrlError::Fragment)),
            ("https://me:secret@a.example/mcp", PublicUrlError::Url(UrlError::UserInfo)),
            ("a.example/mcp", PublicUrlError::Url(UrlError::Scheme)),
            ("https://*.example/mcp", PublicUrlError::Url(UrlError::Malformed)),
            ("https://a.example/../mcp", PublicUrlError::Url(UrlError::Malformed)),
        ] {
            assert_eq!(text.parse::<PublicUrl>(), Err(error), "{text}");
        }
    }

    #[test]
    fn a_resource_is_named_with_any_spelling_of_its_origin() {
        let url: PublicUrl = "https://a.example/mcp".parse().unwrap();
        for named in ["https://a.example/mcp", "HTTPS://A.example:443/mcp/", "https://a.example/mcp/"] {
            assert!(url.is_named_by(named), "{named}");
        }
        for other in
            ["https://a.example", "http://a.example/mcp", "https://a.example:444/mcp", "https://b.example/mcp", "", "x"]
        {
            assert!(!url.is_named_by(other), "{other}");
        }
    }

    #[test]
    fn a_public_host_is_one_that_others_may_operate() {
        for (url, expected) in [
            ("https://mcp.example.com/mcp", Some("mcp.example.com")),
            ("https://8.8.8.8/mcp", Some("8.8.8.8")),
            ("http://10.1.2.3/mcp", None),
            ("http://127.0.0.1:3000/mcp", None),
            ("http://[fd00::1]/mcp", None),
            ("http://server/mcp", None),
            ("http://server.default.svc/mcp", None),
            ("http://server.default.svc.cluster.local/mcp", None),
        ] {
            assert_eq!(public_host(&url.parse().unwrap()), expected, "{url}");
        }
    }
}
