//! For whom a request is made: `Forwarded` ([RFC 7239]) and the older `X-Forwarded-*`.
//!
//! [RFC 7239]: https://www.rfc-editor.org/rfc/rfc7239

use std::net::IpAddr;

use http::header::FORWARDED;
use http::{HeaderMap, HeaderName, HeaderValue};

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
}

impl Forwarded {
    /// For requests from `peer` by `scheme`.
    pub fn new(peer: IpAddr, scheme: &'static str) -> Self {
        let element = match peer {
            IpAddr::V4(_) => format!("for={peer};proto={scheme}"),
            IpAddr::V6(_) => format!("for=\"[{peer}]\";proto={scheme}"),
        };
        let address = HeaderValue::from_str(&peer.to_string()).expect("an IP address is visible ASCII");
        Self { address, element, scheme }
    }

    /// Says so in `headers`, behind what proxies before us said. `host` is the one the client asked for.
    pub(super) fn add_to(&self, headers: &mut HeaderMap, host: Option<&HeaderValue>) {
        match headers.contains_key(X_FORWARDED_FOR) {
            true => append_list(headers, X_FORWARDED_FOR, &[self.address.as_bytes()]),
            false => drop(headers.insert(X_FORWARDED_FOR, self.address.clone())),
        }
        match host.map(|host| host.as_bytes()) {
            Some(name) if !name.iter().any(|byte| matches!(byte, b'"' | b'\\')) => {
                append_list(headers, FORWARDED, &[self.element.as_bytes(), b";host=\"", name, b"\""]);
            }
            Some(_) | None => append_list(headers, FORWARDED, &[self.element.as_bytes()]),
        }
        headers.entry(X_FORWARDED_PROTO).or_insert(HeaderValue::from_static(self.scheme));
        if let Some(host) = host {
            headers.entry(X_FORWARDED_HOST).or_insert_with(|| host.clone());
        }
    }
}

fn append_list(headers: &mut HeaderMap, name: HeaderName, element: &[&[u8]]) {
    let mut list: Vec<u8> = Vec::with_capacity(element.iter().map(|part| part.len()).sum());
    for value in headers.get_all(&name) {
        list.extend_from_slice(value.as_bytes());
        list.extend_from_slice(b", ");
    }
    element.iter().for_each(|part| list.extend_from_slice(part));
    if let Ok(value) = HeaderValue::from_maybe_shared(bytes::Bytes::from(list)) {
        headers.insert(name, value);
    }
}
