//! The section `[upstream]`: the MCP server of a sidecar, and the connections to it.

use std::path::PathBuf;
use std::time::Duration;

use http::{HeaderName, HeaderValue};

use super::{Command, KeyPair, StaticHeaders, UpstreamUrl, Way};
use mcp_resume_protocol::session_cookies::CookieName;

/// Connections to the MCP server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upstream {
    /// Endpoint of the server; its path is also the proxy's.
    pub url: UpstreamUrl,
    /// `Host` header sent to the server.
    pub host: HostHeader,
    /// True for HTTP/2 with prior knowledge. With TLS, the two sides negotiate the version in any
    /// case.
    pub http2: bool,
    /// Authorities and client certificate; unused without `https`.
    pub tls: UpstreamTls,
    /// Longest wait for a TCP connection.
    pub connect_timeout: Duration,
    /// Longest wait of a call for a server that accepts no connections, from its first attempt;
    /// zero = not at all.
    pub wait: Duration,
    /// Time that connections must have failed before the proxy is not ready.
    pub unready: Duration,
    /// Most connections to the server at once; at least 1. Derived from the limit of open files,
    /// without a key.
    pub connections: usize,
    /// Longest wait for a response's head, or `None` without limit.
    pub header_timeout: Option<Duration>,
    /// Longest time that an idle connection may be reused.
    pub pool_idle: Duration,
    /// True if the proxy resumes upstream streams also after a broken connection, not only after a
    /// deliberate close.
    pub resume: bool,
    /// Time to resume the response of a call again and again after a break, or `None` for the rules
    /// of [`Self::resume`]. Without a key.
    pub resume_for: Option<Duration>,
    /// Headers that are added to each request to the endpoint, in place of the client's.
    pub headers: StaticHeaders,
    /// Cookies of a load balancer before the server, which are kept for each session.
    pub session_cookies: SessionCookies,
    /// Pings of the server that get a response of the proxy.
    pub answer_pings: AnswerPings,
    /// Longest time without a message in a session with a running call before a ping to the server,
    /// or `None` for no pings.
    pub keepalive: Option<Duration>,
    /// Way to the server. Without a key.
    pub way: Way,
    /// Server on stdio, or `None` for one on HTTP. [`Self::url`] then names no server.
    pub command: Option<Command>,
    /// Server on HTTP+SSE, or `None` for another. [`Self::url`] is then the proxy's endpoint at the
    /// server's origin.
    pub sse: Option<SseServer>,
    /// Server at [`Self::url`] if it turns out to be on HTTP+SSE, or `None` if a command or a URL
    /// of that transport is given.
    pub recognisable: Option<SseServer>,
}

impl Upstream {
    /// Returns the name of the program, or the URL without its query, for the log.
    pub fn place(&self) -> String {
        match (&self.command, &self.sse) {
            (Some(command), _) => command.name().to_owned(),
            (None, Some(sse)) => sse.url.to_string(),
            (None, None) => self.url.to_string(),
        }
    }

    /// Returns the static headers that are credentials.
    pub(super) fn static_credentials(&self) -> impl Iterator<Item = &HeaderName> {
        self.headers.credentials(&self.session_cookies.credentials)
    }

    /// Returns true if the server gets credentials of the operator.
    pub fn has_static_credentials(&self) -> bool {
        self.static_credentials().next().is_some()
    }

    /// Returns true if the server is not on Streamable HTTP.
    pub fn is_channel(&self) -> bool {
        self.command.is_some() || self.sse.is_some()
    }
}

/// Cookies that are kept for each session and caller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionCookies {
    /// Names of the cookies.
    pub names: Vec<CookieName>,
    /// Headers whose values distinguish callers.
    pub credentials: Vec<HeaderName>,
}

/// A server on HTTP+SSE, the transport of revision 2024-11-05.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SseServer {
    /// URL of the event stream.
    pub url: UpstreamUrl,
    /// Longest time without a call, server request or GET of its client before the connection of a
    /// session is closed, or `None` for no limit.
    pub idle: Option<Duration>,
    /// Longest time from `initialize` to its response.
    pub start: Duration,
}

/// Pings of the server that get a response of the proxy in its clients' place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerPings {
    /// All pings without a client that can respond.
    Absent,
    /// None.
    Never,
}

/// TLS to the upstream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UpstreamTls {
    /// PEM file with the trusted authorities, or `None` for the system's.
    pub ca: Option<PathBuf>,
    /// The client certificate.
    pub identity: Option<KeyPair>,
    /// Authorities beside the system's, which are the only ones otherwise. Without a key.
    pub further: Option<FurtherRoots>,
}

/// Authorities that are trusted beside the system's, as far as their files can be used. A refusal
/// names the authority that it refused.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FurtherRoots {
    /// PEM files.
    pub files: Vec<PathBuf>,
    /// Folders of PEM files.
    pub folders: Vec<PathBuf>,
}

/// The `Host` header sent upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostHeader {
    /// The authority of the upstream's URL.
    Upstream,
    /// The client's own header.
    Client,
    /// This value, which is a valid `host` or `host:port`.
    Name(HeaderValue),
}
