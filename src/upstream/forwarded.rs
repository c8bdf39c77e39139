//! For whom a request is made: `Forwarded` ([RFC 7239]) and the older `X-Forwarded-*`.
//!
//! What a trusted proxy says is sent on, with our part behind the lists. What any other peer says is dropped.
//!
//! [RFC 7239]: https://www.rfc-editor.org/rfc/rfc7239

use std::net::IpAddr;

use http::header::FORWARDED;
use http::{HeaderName, HeaderValue};

use crate::protocol::client::describes_client;
use crate::protocol::headers::{Line, Lines};

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// What a connection's requests have in common of those headers; made once a connection.
#[derive(Clone, Debug)]
pub struct Forwarded {
    /// The only element of `X-Forwarded-For`, where no proxy before us said one.
    address: HeaderValue,
    /// All of the `Forwarded` element but the host.
    element: String,
    /// How the client spoke to us.
    scheme: &'static str,
    /// Whether the peer's own word on its client is sent on.
    is_trusted: bool,
}

impl Forwarded {
    /// For requests from `peer` by `scheme`. A peer that `is_trusted` is a proxy that may speak for others.
    pub fn new(peer: IpAddr, scheme: &'static str, is_trusted: bool) -> Self {
        let element = match peer {
            IpAddr::V4(_) => format!("for={peer};proto={scheme}"),
            IpAddr::V6(_) => format!("for=\"[{peer}]\";proto={scheme}"),
        };
        let address = HeaderValue::from_str(&peer.to_string()).expect("an IP address is visible ASCII");
        Self { address, element, scheme, is_trusted }
    }

    /// Takes a header of the client's into `said`. False for one that is to be sent on as it is.
    pub(super) fn takes<'a>(&self, line: Line<'a>, said: &mut Said<'a>) -> bool {
        describes_client(line.0) && (!self.is_trusted || said.take(line))
    }

    /// Says so in `lines`, behind what proxies before us `said`. `host` is the one the client asked for.
    pub(super) fn say(&self, said: &Said<'_>, host: Option<&HeaderValue>, lines: &mut Lines) {
        match said.addresses.as_slice() {
            [] => lines.push(&X_FORWARDED_FOR, &self.address),
            before => push_list(lines, &X_FORWARDED_FOR, before, &[self.address.as_bytes()]),
        }
        match host.map(HeaderValue::as_bytes) {
            Some(name) if !name.iter().any(|byte| matches!(byte, b'"' | b'\\')) => {
                push_list(lines, &FORWARDED, &said.elements, &[self.element.as_bytes(), b";host=\"", name, b"\""]);
            }
            Some(_) | None => push_list(lines, &FORWARDED, &said.elements, &[self.element.as_bytes()]),
        }
        if !said.has_scheme {
            lines.push(&X_FORWARDED_PROTO, &HeaderValue::from_static(self.scheme));
        }
        if let Some(host) = host.filter(|_| !said.has_host) {
            lines.push(&X_FORWARDED_HOST, host);
        }
    }
}

/// What proxies before us said of for whom a request is made.
#[derive(Default)]
pub(super) struct Said<'a> {
    addresses: Vec<&'a HeaderValue>,
    elements: Vec<&'a HeaderValue>,
    has_scheme: bool,
    has_host: bool,
}

impl<'a> Said<'a> {
    /// Notes a header. True when it is a list that [`Forwarded::say`] says with our part behind.
    fn take(&mut self, (name, value): Line<'a>) -> bool {
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
