//! The HTTP headers of MCP as types, and the changes to a head that passes the proxy.
//!
//! Everything here is a function of a [`HeaderMap`]. Deliberately absent: `Host`, `Forwarded` and
//! `X-Forwarded-*` of the upstream request, which need the addresses of a connection, and any
//! decision that needs a body.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::BytesMut;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use serde::{Deserialize, Serialize};

use super::client_address;

mod elements;
mod lines;
mod request_facts;
mod response_facts;
#[cfg(test)]
mod tests;

pub use elements::elements;
pub use lines::Lines;
pub use request_facts::{Present, RequestFacts};
pub use response_facts::ResponseFacts;

/// Header names that the `http` crate does not have.
pub mod names {
    use http::HeaderName;

    /// Names the session, in revisions with sessions.
    pub const MCP_SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
    /// Names the protocol revision of a request.
    pub const MCP_PROTOCOL_VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
    /// Repeats the method of a modern request, for routing by headers.
    pub const MCP_METHOD: HeaderName = HeaderName::from_static("mcp-method");
    /// Repeats the name of the tool, resource or prompt of a modern request.
    pub const MCP_NAME: HeaderName = HeaderName::from_static("mcp-name");
    /// The last event that a client has of a stream.
    pub const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
    /// Marks a POST that must run once, even if it is sent several times.
    pub const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
    /// In a request from a balancer, the owner that it addresses. In the refusal of a misdirected
    /// request, the owner of the sidecar.
    pub const MCP_RESUME_OWNER: HeaderName = HeaderName::from_static("mcp-resume-owner");
    /// Tells a balancer that a failure belongs to the call alone, and not to the sidecar or its
    /// server.
    pub const MCP_RESUME_FAILURE: HeaderName = HeaderName::from_static("mcp-resume-failure");
    /// In a request from a balancer to a replica in place of another, the home of the session as
    /// far as the balancer knows, which does not answer. In the refusal of a request, the home of
    /// the session: the replica whose server has it.
    pub const MCP_RESUME_HOME: HeaderName = HeaderName::from_static("mcp-resume-home");
    /// Marks a HEAD request by which a balancer asks a replica for the home of a session, before it
    /// sends a body that it cannot send twice.
    pub const MCP_RESUME_LOCATE: HeaderName = HeaderName::from_static("mcp-resume-locate");
    /// In a response, the promise to join requests that are sent again: `promise.rs`.
    pub const MCP_RESUME: HeaderName = HeaderName::from_static("mcp-resume");
    /// In a request that is sent again, the epoch of the promise.
    pub const MCP_RESUME_EPOCH: HeaderName = HeaderName::from_static("mcp-resume-epoch");
    /// In a request, the seconds that its call is kept without a reader.
    pub const MCP_RESUME_HOLD: HeaderName = HeaderName::from_static("mcp-resume-hold");
    /// Proof of a key for one request ([RFC 9449]). A second request with it is refused.
    ///
    /// [RFC 9449]: https://www.rfc-editor.org/rfc/rfc9449
    pub const DPOP: HeaderName = HeaderName::from_static("dpop");
    /// Credential that many servers accept in place of `Authorization`, or beside it.
    pub const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");
    /// Keeps nginx and similar proxies from buffering a response.
    pub const X_ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");
    /// Parameters of one connection, from before HTTP/1.1.
    pub const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
    /// Header that some clients send to a proxy in place of `Connection`.
    pub const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
}

/// Limit for `MCP-Protocol-Version`, in bytes. Real ones have ten.
const MAX_VERSION_BYTES: usize = 64;
/// Limit for `Mcp-Session-Id`, in bytes.
const MAX_SESSION_ID_BYTES: usize = 1024;

/// The revisions with sessions, and with streams that outlive their connection.
const LEGACY_VERSIONS: [&str; 4] = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"];

/// A revision of the protocol, known or not.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct ProtocolVersion(Cow<'static, str>);

/// The two families of revisions.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Era {
    /// Up to 2025-11-25: a client that disconnects has not cancelled.
    Legacy,
    /// 2026-07-28, later and unknown ones: a client that disconnects has cancelled, unless it
    /// reconnects.
    Modern,
}

impl ProtocolVersion {
    /// The revisions with sessions, oldest first.
    pub const LEGACY: [&str; 4] = LEGACY_VERSIONS;
    /// Revision of a request that names none ([2025-06-18, protocol version header]).
    ///
    /// [2025-06-18, protocol version header]: https://modelcontextprotocol.io/specification/2025-06-18/basic/transports#protocol-version-header
    pub const DEFAULT: Self = Self(Cow::Borrowed("2025-03-26"));

    /// Parses any visible ASCII of 1 to 64 bytes, since revisions that are not known yet must pass.
    pub fn parse(text: &str) -> Option<Self> {
        if let Some(known) = LEGACY_VERSIONS.into_iter().find(|known| *known == text) {
            return Some(Self(Cow::Borrowed(known)));
        }
        if is_visible_ascii(text, MAX_VERSION_BYTES) { Some(Self(Cow::Owned(text.to_owned()))) } else { None }
    }

    /// Returns the revision in `MCP-Protocol-Version`, or `None` if the header is absent, malformed
    /// or repeated.
    pub fn from_headers(headers: &HeaderMap) -> Option<Self> {
        Self::parse(only(headers, names::MCP_PROTOCOL_VERSION)?)
    }

    /// Returns the text as it was sent.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the era: legacy for four known revisions, modern for all others.
    pub fn era(&self) -> Era {
        if LEGACY_VERSIONS.contains(&self.as_str()) { Era::Legacy } else { Era::Modern }
    }

    /// Returns true if this is the revision `date` or a later one. Dates order as text. A revision
    /// that is not a date is below all dates, so that no client is credited with abilities it may
    /// not have.
    pub fn is_at_least(&self, date: &str) -> bool {
        is_date(self.as_str()) && self.as_str() >= date
    }
}

fn is_date(text: &str) -> bool {
    let shape = |(at, byte): (usize, u8)| match at {
        4 | 7 => byte == b'-',
        _ => byte.is_ascii_digit(),
    };
    text.len() == "2025-11-25".len() && text.bytes().enumerate().all(shape)
}

/// A session ID, as the server assigned it.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct SessionId(Arc<str>);

impl From<SessionId> for String {
    fn from(id: SessionId) -> Self {
        id.as_str().to_owned()
    }
}

impl TryFrom<String> for SessionId {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Self::parse(&text).ok_or("not the name of a session")
    }
}

impl SessionId {
    /// Parses visible ASCII of 1 to 1024 bytes, which the specification demands.
    pub fn parse(text: &str) -> Option<Self> {
        if is_visible_ascii(text, MAX_SESSION_ID_BYTES) { Some(Self(text.into())) } else { None }
    }

    /// Returns the session ID in `Mcp-Session-Id`, or `None` if the header is absent or malformed,
    /// or names several sessions. A header that repeats one value is that value: some clients write
    /// it twice, in two lines or in one with a comma and a blank.
    pub fn from_headers(headers: &HeaderMap) -> Option<Self> {
        let mut lines = headers.get_all(names::MCP_SESSION_ID).iter();
        let first = lines.next()?.to_str().ok()?;
        match lines.next() {
            None if !first.contains(' ') => Self::parse(first),
            None | Some(_) => Self::repeated(headers),
        }
    }

    /// Returns the session ID that a header repeats, or `None` if its values differ.
    fn repeated(headers: &HeaderMap) -> Option<Self> {
        let lines = headers.get_all(names::MCP_SESSION_ID).iter();
        let mut values = lines.flat_map(|line| line.to_str().unwrap_or_default().split(", ")).map(str::trim);
        let first = values.next()?;
        if values.all(|value| value == first) { Self::parse(first) } else { None }
    }

    /// Returns the text as it was sent.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Masked: the bearer of a session ID may use the session.
impl std::fmt::Debug for SessionId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SessionId(..)")
    }
}

fn is_visible_ascii(text: &str, max_bytes: usize) -> bool {
    (1..=max_bytes).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Returns the value of a header, or `None` if the header is absent, repeated or no text.
pub(super) fn only(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?;
    if values.next().is_some() {
        return None;
    }
    value.to_str().ok()
}

/// Forms of response that a client accepts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Accept {
    /// `application/json`.
    pub json: bool,
    /// `text/event-stream`.
    pub sse: bool,
    /// True if the client names `text/event-stream` itself, not by a wildcard. This distinguishes a
    /// client that wants a stream from one that takes anything.
    pub names_sse: bool,
}

/// The `Accept` that the specification demands of every POST.
const BOTH_TYPES: &str = "application/json, text/event-stream";

/// Media type of an event stream.
const SSE: &str = "text/event-stream";

/// Sets these headers in place of all others of the same names, in any spelling.
pub fn replace(headers: &mut HeaderMap, set: &[(HeaderName, HeaderValue)]) {
    let is_replaced = |own: &&HeaderName| set.iter().any(|(name, _)| are_alike(own, name));
    let replaced: Vec<_> = headers.keys().filter(is_replaced).cloned().collect();
    for own in replaced {
        headers.remove(own);
    }
    for (name, value) in set {
        headers.insert(name, value.clone());
    }
}

/// Returns true for two spellings of one name: CGI and its successors read `x_key` as `x-key` (RFC
/// 3875 §4.1.18).
pub fn are_alike(one: &HeaderName, other: &HeaderName) -> bool {
    let (one, other) = (one.as_str().bytes(), other.as_str().bytes());
    let dashed = |byte| if byte == b'_' { b'-' } else { byte };
    one.len() == other.len() && one.map(dashed).eq(other.map(dashed))
}

/// Parses `Accept` ([RFC 9110 §12.5.1]): the most specific range that matches a type decides, and a
/// weight of 0 excludes it. A request without `Accept`, or with an empty one, accepts both types.
///
/// [RFC 9110 §12.5.1]: https://www.rfc-editor.org/rfc/rfc9110#section-12.5.1
pub fn accept(headers: &HeaderMap) -> Accept {
    // The value that every SDK sends.
    if headers.get(header::ACCEPT).is_some_and(|value| value == BOTH_TYPES)
        && headers.get_all(header::ACCEPT).iter().nth(1).is_none()
    {
        return Accept { json: true, sse: true, names_sse: true };
    }
    let ranges: Vec<_> = list(headers, header::ACCEPT).map(MediaRange::parse).collect();
    let takes = |range_of_type, media_type| {
        let specificity = |range: &&MediaRange<'_>| {
            let names = [media_type, range_of_type, "*/*"];
            names.iter().rev().position(|name| range.name.eq_ignore_ascii_case(name))
        };
        let best = ranges.iter().filter(|range| specificity(range).is_some()).max_by_key(specificity);
        ranges.is_empty() || best.is_some_and(|range| range.is_accepted)
    };
    Accept {
        json: takes("application/*", "application/json"),
        sse: takes("text/*", SSE),
        names_sse: ranges.iter().any(MediaRange::names_sse),
    }
}

/// Returns true if `Accept` names SSE itself, not by a wildcard. This distinguishes a client that
/// wants a stream from a browser.
pub fn names_sse(headers: &HeaderMap) -> bool {
    list(headers, header::ACCEPT).map(MediaRange::parse).any(|range| range.names_sse())
}

struct MediaRange<'a> {
    name: &'a str,
    is_accepted: bool,
}

impl<'a> MediaRange<'a> {
    fn parse(text: &'a str) -> Self {
        let mut parts = text.split(';').map(str::trim);
        let name = parts.next().unwrap_or_default();
        let weight = parts.filter_map(|parameter| parameter.split_once('=')).find_map(|(key, value)| {
            let is_weight = key.trim().eq_ignore_ascii_case("q");
            if is_weight { Some(value.trim().parse::<f32>().unwrap_or(1.0)) } else { None }
        });
        Self { name, is_accepted: weight.unwrap_or(1.0) > 0.0 }
    }

    fn names_sse(&self) -> bool {
        self.is_accepted && self.name.eq_ignore_ascii_case(SSE)
    }
}

/// Copies headers that are kept, so that they do not hold the buffer from which they were parsed.
pub fn unpinned(headers: &HeaderMap) -> HeaderMap {
    let mut all = BytesMut::with_capacity(headers.values().map(HeaderValue::len).sum());
    for value in headers.values() {
        all.extend_from_slice(value.as_bytes());
    }
    let mut all = all.freeze();
    let mut copies = HeaderMap::with_capacity(headers.len());
    for (name, value) in headers {
        if let Ok(copy) = HeaderValue::from_maybe_shared(all.split_to(value.len())) {
            copies.append(name, copy);
        }
    }
    copies
}

/// Returns the trimmed, non-empty elements of a comma-separated header, over all its lines.
fn list(headers: &HeaderMap, name: HeaderName) -> impl Iterator<Item = &str> {
    let lines = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    lines.flat_map(|line| line.split(',')).map(str::trim).filter(|element| !element.is_empty())
}

/// Returns true if the body is `application/json`, with any parameters.
pub fn is_json(headers: &HeaderMap) -> bool {
    content_type_is(headers, "application/json")
}

/// Returns true if clients read the body as JSON: they look at the beginning of the type alone,
/// such as that of `application/json-rpc`.
pub fn is_read_as_json(headers: &HeaderMap) -> bool {
    headers.get(header::CONTENT_TYPE).is_some_and(is_json_to_clients)
}

fn is_json_to_clients(content_type: &HeaderValue) -> bool {
    const JSON: &[u8] = b"application/json";
    content_type.as_bytes().trim_ascii_start().get(..JSON.len()).is_some_and(|start| start.eq_ignore_ascii_case(JSON))
}

/// Returns true if the body is `text/event-stream`, with any parameters.
pub fn is_sse(headers: &HeaderMap) -> bool {
    content_type_is(headers, SSE)
}

fn content_type_is(headers: &HeaderMap, media_type: &str) -> bool {
    headers.get(header::CONTENT_TYPE).is_some_and(|value| is_media_type(value, media_type))
}

fn is_media_type(content_type: &HeaderValue, media_type: &str) -> bool {
    let essence = content_type.as_bytes().split(|&byte| byte == b';').next().unwrap_or_default();
    essence.trim_ascii().eq_ignore_ascii_case(media_type.as_bytes())
}

/// Removes the headers of one connection: the fields of [RFC 9110 §7.6.1], those that `Connection`
/// names, credentials for a proxy, and the headers between a balancer and its sidecars.
/// `Connection` cannot name headers that identify the client: otherwise a client could show a
/// credential to the proxy alone, or remove the statements of an earlier proxy about it.
///
/// [RFC 9110 §7.6.1]: https://www.rfc-editor.org/rfc/rfc9110#section-7.6.1
pub fn remove_hop_by_hop(headers: &mut HeaderMap) {
    if !headers.contains_key(header::CONNECTION) {
        return remove_where(headers, is_always_hop_by_hop);
    }
    let named = named_by_connection(headers);
    let found: Vec<_> = headers.keys().filter(|name| is_hop_by_hop(name, &named)).cloned().collect();
    for name in found {
        headers.remove(name);
    }
}

fn named_by_connection(headers: &HeaderMap) -> Vec<&str> {
    list(headers, header::CONNECTION).collect()
}

fn is_hop_by_hop(name: &HeaderName, named: &[&str]) -> bool {
    let is_named = || named.iter().any(|named| named.eq_ignore_ascii_case(name.as_str()));
    is_always_hop_by_hop(name) || (is_named() && !identifies_client(name))
}

fn identifies_client(name: &HeaderName) -> bool {
    matches!(name.as_str(), "authorization" | "cookie" | "x-api-key") || client_address::describes_client(name)
}

fn is_always_hop_by_hop(name: &HeaderName) -> bool {
    matches!(
        name.as_str(),
        "connection"
            | "keep-alive"
            | "mcp-resume-owner"
            | "mcp-resume-failure"
            | "mcp-resume-home"
            | "mcp-resume-locate"
            | "proxy-connection"
            | "proxy-authenticate"
            | "proxy-authorization"
            | "te"
            | "trailer"
            | "transfer-encoding"
            | "upgrade"
    )
}

/// One header.
pub type Line<'a> = (&'a HeaderName, &'a HeaderValue);

/// Replaces a session header that repeats one value by that value. Other values stay.
pub fn unite_session(headers: &mut HeaderMap) {
    let session = SessionId::from_headers(headers);
    if let Some(session) = session.and_then(|session| HeaderValue::from_str(session.as_str()).ok()) {
        headers.insert(names::MCP_SESSION_ID, session);
    }
}

/// Returns true if `Accept` names both types that the specification demands.
fn names_both_types(headers: &HeaderMap) -> bool {
    let names_json = |range: MediaRange<'_>| range.is_accepted && range.name.eq_ignore_ascii_case("application/json");
    headers.get(header::ACCEPT).is_some_and(|value| value == BOTH_TYPES)
        || (names_sse(headers) && list(headers, header::ACCEPT).map(MediaRange::parse).any(names_json))
}

/// Returns true if `Accept-Encoding` allows no coding.
fn allows_no_coding(headers: &HeaderMap) -> bool {
    let is_identity = |coding: &MediaRange<'_>| coding.name.eq_ignore_ascii_case("identity");
    let codings: Vec<_> = list(headers, header::ACCEPT_ENCODING).map(MediaRange::parse).collect();
    codings.iter().any(is_identity) && codings.iter().all(|coding| is_identity(coding) == coding.is_accepted)
}

/// Returns the headers of the upstream call that a client's request to the MCP endpoint becomes.
///
/// `Accept` names both types, since servers answer 406 to less. The response must be uncompressed,
/// and a missing `Accept-Encoding` would allow every coding. Values of the client's that serve stay
/// as they are: they may be signed. `Last-Event-ID` names an event of the
/// proxy, and some servers answer it with 500. Body and connection are new: the caller sets
/// `Content-Length` and `Host`, and `100 Continue` is not awaited.
pub fn to_upstream(headers: &HeaderMap) -> impl Iterator<Item = Line<'_>> {
    static BOTH: HeaderValue = HeaderValue::from_static(BOTH_TYPES);
    static IDENTITY: HeaderValue = HeaderValue::from_static("identity");
    // A header that `Connection` names ends here.
    let ends_here =
        |name: &HeaderName| list(headers, header::CONNECTION).any(|named| named.eq_ignore_ascii_case(name.as_str()));
    let keeps_accept = names_both_types(headers) && !ends_here(&header::ACCEPT);
    let keeps_encoding = allows_no_coding(headers) && !ends_here(&header::ACCEPT_ENCODING);
    let kept = to_endpoint(headers).filter(move |(name, _)| match name.as_str() {
        "accept" => keeps_accept,
        "accept-encoding" => keeps_encoding,
        _ => true,
    });
    let own = [(keeps_accept, (&header::ACCEPT, &BOTH)), (keeps_encoding, (&header::ACCEPT_ENCODING, &IDENTITY))];
    kept.chain(own.into_iter().filter(|(is_kept, _)| !is_kept).map(|(_, line)| line))
}

/// Returns the headers of a request to the endpoint that passes: all end-to-end headers without
/// those that [`to_upstream`] drops.
pub fn to_endpoint(headers: &HeaderMap) -> impl Iterator<Item = Line<'_>> {
    let is_ours = |name: &HeaderName| matches!(name.as_str(), "content-length" | "expect" | "last-event-id");
    end_to_end(headers).filter(move |(name, _)| !is_ours(name))
}

/// Returns the headers of a request that passes: all but `Host` and those that
/// [`remove_hop_by_hop`] removes.
pub fn end_to_end(headers: &HeaderMap) -> impl Iterator<Item = Line<'_>> {
    let named = named_by_connection(headers);
    headers.iter().filter(move |(name, _)| **name != header::HOST && !is_hop_by_hop(name, &named))
}

/// Turns the end-to-end headers of an upstream SSE response into the head of the client's response.
///
/// The proxy's body has other bytes than the upstream's; see [`remove_body_facts`]. A
/// `Content-Encoding` of `identity` is removed too. Any other coding stays for the caller, who must
/// not decode that body as events. No intermediary before the client may store, change or delay the
/// response. `facts` are those of the headers.
pub fn sse_downstream(headers: &mut HeaderMap, facts: &ResponseFacts) {
    if facts.describes_body {
        remove_body_facts(headers);
    }
    if facts.has_encoding
        && list(headers, header::CONTENT_ENCODING).all(|coding| coding.eq_ignore_ascii_case("identity"))
    {
        headers.remove(header::CONTENT_ENCODING);
    }
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, no-transform"));
    headers.insert(names::X_ACCEL_BUFFERING, HeaderValue::from_static("no"));
}

/// Removes the headers that describe the bytes of a body: its length, digests, validators and
/// ranges. Each change of a body calls it, or a client reads other bytes than the head announces.
pub fn remove_body_facts(headers: &mut HeaderMap) {
    remove_where(headers, |name| describes_body(name.as_str()));
}

/// Returns true for a header that [`remove_body_facts`] removes.
fn describes_body(name: &str) -> bool {
    matches!(
        name,
        "content-length"
            | "content-range"
            | "accept-ranges"
            | "etag"
            | "last-modified"
            | "content-digest"
            | "repr-digest"
            | "digest"
            | "content-md5"
    )
}

/// Removes the headers with one of the few names that `goes` accepts. Few heads have any: a search
/// costs less than the removal of absent headers.
fn remove_where(headers: &mut HeaderMap, goes: impl Fn(&HeaderName) -> bool) {
    while let Some(name) = headers.keys().find(|name| goes(name)).cloned() {
        headers.remove(name);
    }
}

/// Returns the upstream's CORS headers (`Access-Control-*` and `Vary`) for heads of the proxy's
/// own. Without them a browser hides the response from its page.
pub fn cors_of(upstream: &HeaderMap) -> HeaderMap {
    let is_cors = |name: &HeaderName| name.as_str().starts_with("access-control-") || name == header::VARY;
    let kept = upstream.iter().filter(|(name, _)| is_cors(name));
    kept.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// Opens the headers that the proxy adds to pages in browsers, if the server supports CORS: they
/// may read `Mcp-Session-Id`, `Link` and `WWW-Authenticate`, and (in a response to a preflight that
/// lists request headers) send `Last-Event-ID` and `Idempotency-Key`. Does nothing without
/// `Access-Control-Allow-Origin`; a list with `*` stays unchanged.
pub fn expose_ours(headers: &mut HeaderMap) {
    if !headers.contains_key(header::ACCESS_CONTROL_ALLOW_ORIGIN) {
        return;
    }
    let readable = ["Mcp-Session-Id", "Link", "WWW-Authenticate"];
    extend_list(headers, header::ACCESS_CONTROL_EXPOSE_HEADERS, &readable);
    if headers.contains_key(header::ACCESS_CONTROL_ALLOW_HEADERS) {
        let sendable = ["Last-Event-ID", "Idempotency-Key"];
        extend_list(headers, header::ACCESS_CONTROL_ALLOW_HEADERS, &sendable);
    }
}

/// Adds the missing elements to a list, as one line. A list that is no text stays unchanged.
fn extend_list(headers: &mut HeaderMap, name: HeaderName, ours: &[&'static str]) {
    let readable = headers.get_all(&name).iter().all(|value| value.to_str().is_ok());
    let mut all: Vec<&str> = list(headers, name.clone()).collect();
    if !readable || all.contains(&"*") {
        return;
    }
    for &our in ours {
        if !all.iter().any(|there| there.eq_ignore_ascii_case(our)) {
            all.push(our);
        }
    }
    if let Ok(value) = HeaderValue::from_str(&all.join(", ")) {
        headers.insert(name, value);
    }
}
