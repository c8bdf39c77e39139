//! Headers that name the client of a forwarded request: `Forwarded` ([RFC 7239]) and the older
//! `X-Forwarded-*`.
//!
//! A trusted proxy's values are sent on, with this proxy's element appended to the lists. Values of
//! other peers are dropped. If `listen.public_url` is given, host, scheme and port are those of
//! that URL alone.
//!
//! [RFC 7239]: https://www.rfc-editor.org/rfc/rfc7239

use std::fmt::Write;
use std::net::IpAddr;
use std::sync::Arc;

use http::header::FORWARDED;
use http::{HeaderName, HeaderValue};

use crate::config::PublicUrl;
use crate::protocol::client_address::describes_client;
use crate::protocol::headers::{self, Line, Lines, elements};

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const X_FORWARDED_PORT: HeaderName = HeaderName::from_static("x-forwarded-port");
/// Parameters of `Forwarded` that the public URL replaces.
const OF_PUBLIC: [&str; 2] = ["host", "proto"];

/// Name of the endpoint for clients, in the forms of the forwarding headers.
#[derive(Debug)]
pub struct PublicName {
    host: HeaderValue,
    scheme: HeaderValue,
    port: HeaderValue,
    /// Parameters of `Forwarded`.
    parameters: String,
}

impl PublicName {
    /// Returns the name in this URL.
    pub fn of(url: &PublicUrl) -> Arc<Self> {
        let (host, scheme) = (url.authority().as_str(), url.scheme());
        Arc::new(Self {
            host: HeaderValue::from_str(host).expect("a host of a URL is visible ASCII"),
            scheme: HeaderValue::from_static(scheme),
            port: url.port().into(),
            parameters: format!("proto={scheme};host=\"{host}\""),
        })
    }
}

/// Parts of these headers that all requests of a connection share. Made once for a connection.
#[derive(Clone, Debug)]
pub struct Forwarded {
    /// This proxy's element of `X-Forwarded-For`.
    address: HeaderValue,
    /// This proxy's element of `Forwarded`, without the host.
    element: String,
    /// Scheme of the client's connection.
    scheme: &'static str,
    /// True if the peer's own values are sent on.
    is_trusted: bool,
    /// Name of the endpoint for clients, in place of the requested host.
    public: Option<Arc<PublicName>>,
    /// True if requests get no such headers: their client is in this process.
    is_absent: bool,
}

impl Forwarded {
    /// Creates the headers for requests from `peer` by `scheme`. A peer that `is_trusted` is a
    /// proxy that may speak for its clients. `public` is the name of the endpoint for clients.
    pub fn new(peer: IpAddr, scheme: &'static str, is_trusted: bool, public: Option<Arc<PublicName>>) -> Self {
        let mut element = match peer {
            IpAddr::V4(_) => format!("for={peer};"),
            IpAddr::V6(_) => format!("for=\"[{peer}]\";"),
        };
        let _ = match &public {
            Some(public) => element.write_str(&public.parameters),
            None => write!(element, "proto={scheme}"),
        };
        let address = HeaderValue::from_str(&peer.to_string()).expect("an IP address is visible ASCII");
        Self { address, element, scheme, is_trusted, public, is_absent: false }
    }

    /// Creates no headers, for the requests of a client in this process.
    pub fn absent() -> Self {
        Self { is_absent: true, ..Self::new(IpAddr::from([127, 0, 0, 1]), "http", false, None) }
    }

    /// Collects a client header into `received`. Returns false if the header must be sent on
    /// unchanged.
    pub(super) fn collects<'a>(&self, line: Line<'a>, received: &mut ReceivedHeaders<'a>) -> bool {
        describes_client(line.0)
            && (!self.is_trusted || self.public.is_some() && is_of_public(line.0) || received.collect(line))
    }

    /// Appends the headers to `lines`, after the values `received` from earlier proxies. `host` is
    /// the host in the client's request.
    pub(super) fn append_to(&self, received: &ReceivedHeaders<'_>, host: Option<&HeaderValue>, lines: &mut Lines) {
        if self.is_absent {
            return;
        }
        match received.addresses.as_slice() {
            [] => lines.push(&X_FORWARDED_FOR, &self.address),
            before => push_list(lines, &X_FORWARDED_FOR, before, &[self.address.as_bytes()]),
        }
        if let Some(public) = &self.public {
            return self.append_public(public, received, lines);
        }
        match host.map(HeaderValue::as_bytes) {
            Some(name) if !name.iter().any(|byte| matches!(byte, b'"' | b'\\')) => {
                push_list(lines, &FORWARDED, &received.elements, &[self.element.as_bytes(), b";host=\"", name, b"\""]);
            }
            Some(_) | None => push_list(lines, &FORWARDED, &received.elements, &[self.element.as_bytes()]),
        }
        if !received.has_scheme {
            lines.push(&X_FORWARDED_PROTO, &HeaderValue::from_static(self.scheme));
        }
        if let Some(host) = host
            && !received.has_host
        {
            lines.push(&X_FORWARDED_HOST, host);
        }
    }

    fn append_public(&self, public: &PublicName, received: &ReceivedHeaders<'_>, lines: &mut Lines) {
        let before: Vec<HeaderValue> =
            received.elements.iter().filter_map(|value| public.renamed(value.to_str().ok()?)).collect();
        push_list(lines, &FORWARDED, &before.iter().collect::<Vec<_>>(), &[self.element.as_bytes()]);
        lines.push(&X_FORWARDED_PROTO, &public.scheme);
        lines.push(&X_FORWARDED_HOST, &public.host);
        lines.push(&X_FORWARDED_PORT, &public.port);
    }
}

impl PublicName {
    /// Returns a list of `Forwarded` elements of earlier proxies with this host and scheme in each,
    /// or `None` for a malformed list: a server may find another host in it.
    fn renamed(&self, list: &str) -> Option<HeaderValue> {
        let mut renamed = String::new();
        for element in elements(list, b',').into_iter().map(|at| &list[at]) {
            if !renamed.is_empty() {
                renamed.push_str(", ");
            }
            for parameter in elements(element, b';').into_iter().map(|at| &element[at]) {
                let (name, value) = parameter.split_once('=')?;
                if !is_token(name) || !is_token(value) && !is_quoted(value) {
                    return None;
                }
                if !OF_PUBLIC.iter().any(|own| own.eq_ignore_ascii_case(name)) {
                    renamed.push_str(parameter);
                    renamed.push(';');
                }
            }
            renamed.push_str(&self.parameters);
        }
        HeaderValue::try_from(renamed).ok()
    }
}

fn is_token(text: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~:[]".contains(&byte);
    !text.is_empty() && text.bytes().all(is_part)
}

/// Returns true for a quoted string that is closed at its end.
fn is_quoted(text: &str) -> bool {
    let Some(inner) = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')) else { return false };
    !inner.contains(['"', '\\'])
}

/// Returns true for a header whose value the public URL gives, by any of its spellings.
fn is_of_public(name: &HeaderName) -> bool {
    [X_FORWARDED_HOST, X_FORWARDED_PROTO, X_FORWARDED_PORT].iter().any(|own| headers::are_alike(own, name))
}

/// Forwarding headers received from earlier proxies.
#[derive(Default)]
pub(super) struct ReceivedHeaders<'a> {
    addresses: Vec<&'a HeaderValue>,
    elements: Vec<&'a HeaderValue>,
    has_scheme: bool,
    has_host: bool,
}

impl<'a> ReceivedHeaders<'a> {
    /// Collects a header. Returns true if it is a list that [`Forwarded::append_to`] extends.
    fn collect(&mut self, (name, value): Line<'a>) -> bool {
        match name.as_str() {
            "x-forwarded-for" => self.addresses.push(value),
            "forwarded" => self.elements.push(value),
            "x-forwarded-proto" => {
                self.has_scheme = true;
                return false;
            }
            "x-forwarded-host" => {
                self.has_host = true;
                return false;
            }
            _ => return false,
        }
        true
    }
}

fn push_list(lines: &mut Lines, name: &HeaderName, before: &[&HeaderValue], element: &[&[u8]]) {
    let before = before.iter().flat_map(|value| [value.as_bytes(), b", "]);
    lines.push_pieces(name, before.chain(element.iter().copied()));
}
