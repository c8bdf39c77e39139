//! Headers that name the client of a forwarded request: `Forwarded` ([RFC 7239]) and the older
//! `X-Forwarded-*`.
//!
//! A trusted proxy's values are sent on, with this proxy's element appended to the lists. Values of
//! other peers are dropped.
//!
//! [RFC 7239]: https://www.rfc-editor.org/rfc/rfc7239

use std::net::IpAddr;

use http::header::FORWARDED;
use http::{HeaderName, HeaderValue};

use crate::protocol::client_address::describes_client;
use crate::protocol::headers::{Line, Lines};

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

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
}

impl Forwarded {
    /// Creates the headers for requests from `peer` by `scheme`. A peer that `is_trusted` is a
    /// proxy that may speak for its clients.
    pub fn new(peer: IpAddr, scheme: &'static str, is_trusted: bool) -> Self {
        let element = match peer {
            IpAddr::V4(_) => format!("for={peer};proto={scheme}"),
            IpAddr::V6(_) => format!("for=\"[{peer}]\";proto={scheme}"),
        };
        let address = HeaderValue::from_str(&peer.to_string()).expect("an IP address is visible ASCII");
        Self { address, element, scheme, is_trusted }
    }

    /// Collects a client header into `received`. Returns false if the header must be sent on
    /// unchanged.
    pub(super) fn collects<'a>(&self, line: Line<'a>, received: &mut ReceivedHeaders<'a>) -> bool {
        describes_client(line.0) && (!self.is_trusted || received.collect(line))
    }

    /// Appends the headers to `lines`, after the values `received` from earlier proxies. `host` is
    /// the host in the client's request.
    pub(super) fn append_to(&self, received: &ReceivedHeaders<'_>, host: Option<&HeaderValue>, lines: &mut Lines) {
        match received.addresses.as_slice() {
            [] => lines.push(&X_FORWARDED_FOR, &self.address),
            before => push_list(lines, &X_FORWARDED_FOR, before, &[self.address.as_bytes()]),
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
