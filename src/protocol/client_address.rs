//! The client of a request, and the headers of proxies that describe it.
//!
//! Any sender can write `X-Forwarded-For`, so it counts only as far as its writers are trusted. It
//! is read from the right, over trusted addresses, to the first that is not trusted. All functions
//! are pure. Absent: `Forwarded`, which is passed on or dropped and never read, and hosts and
//! schemes, which are in the request itself.

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue};
use ipnet::{IpNet, Ipv4Net};

/// Header with the addresses that a request has passed, the oldest first.
pub const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The networks of trusted proxies, whose statements about other addresses count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trust(Arc<[IpNet]>);

/// A network, or a single address as a network of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network(IpNet);

impl FromStr for Network {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let network = text.parse().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from));
        network.map(Self).ok_or("must be an IP address or a network, as 127.0.0.1, 10.0.0.0/8 or fd00::/8")
    }
}

impl From<Network> for IpNet {
    fn from(Network(network): Network) -> Self {
        network
    }
}

/// Returns true if proxies describe the client in this header: `Forwarded`, `X-Forwarded`,
/// `X-Forwarded-*` or `X-Real-IP`. Servers that read headers as CGI variables do not distinguish
/// `_` from `-`, and neither does this function.
pub fn describes_client(name: &HeaderName) -> bool {
    const X_FORWARDED: &[u8] = b"x-forwarded";
    let is = |name: &[u8], known: &[u8]| {
        name.len() == known.len()
            && name.iter().zip(known).all(|(byte, known)| byte == known || (*byte, *known) == (b'_', b'-'))
    };
    match name.as_str().as_bytes() {
        name @ [b'f', ..] => name == b"forwarded",
        name @ [b'x', b'-' | b'_', ..] => match name.split_at_checked(X_FORWARDED.len()) {
            Some((begin, [] | [b'-' | b'_', ..])) if is(begin, X_FORWARDED) => true,
            Some(_) | None => is(name, b"x-real-ip"),
        },
        _ => false,
    }
}

/// The sender of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
    /// The nearest address that is not trusted, or the farthest trusted one; never IPv4 written as
    /// IPv6.
    pub address: IpAddr,
    /// The value of [`X_FORWARDED_FOR`] for the upstream: the value from the peer if it is trusted,
    /// and the peer.
    pub forwarded_for: HeaderValue,
    /// True if the peer is trusted. Otherwise the headers that [`describes_client`] names are
    /// dropped.
    pub is_behind_trusted: bool,
}

impl Trust {
    /// Trusts `networks`. A network of IPv4 addresses written as IPv6 contains the IPv4 addresses.
    pub fn new(networks: impl IntoIterator<Item = IpNet>) -> Self {
        Self(networks.into_iter().map(canonical).collect())
    }

    /// Returns true if no peer is trusted.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns true if `address` is in one of the networks.
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.0.iter().any(|network| network.contains(&address))
    }

    /// Returns the [`Client::address`] of a request with `headers` over a connection from `peer`.
    pub fn address(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        let peer = peer.to_canonical();
        if !self.contains(peer) {
            return peer;
        }
        let lists = headers.get_all(X_FORWARDED_FOR).iter().map(HeaderValue::as_bytes);
        self.farthest(peer, lists.rev().flat_map(|list| list.rsplit(|byte| *byte == b',')))
    }

    /// Returns the sender of a request with `headers` over a connection from `peer`.
    pub fn client(&self, peer: IpAddr, headers: &HeaderMap) -> Client {
        let peer = peer.to_canonical();
        if !self.contains(peer) {
            return Client {
                address: peer,
                forwarded_for: value(peer.to_string().as_bytes()),
                is_behind_trusted: false,
            };
        }
        let lists = headers.get_all(X_FORWARDED_FOR).iter().map(HeaderValue::as_bytes);
        let mut sent_on = lists.filter(|list| !list.trim_ascii().is_empty()).collect::<Vec<_>>();
        let own = peer.to_string();
        sent_on.push(own.as_bytes());
        Client {
            address: self.address(peer, headers),
            forwarded_for: value(&sent_on.join(b", ".as_slice())),
            is_behind_trusted: true,
        }
    }

    /// Walks `entries`, the newest first, from the trusted `peer` to the first address that is not
    /// trusted. Ends before an entry that is no address.
    fn farthest<'a>(&self, peer: IpAddr, entries: impl Iterator<Item = &'a [u8]>) -> IpAddr {
        let mut farthest = peer;
        // RFC 9110 §5.6.1.2: an empty element of a list is ignored.
        for entry in entries.map(<[u8]>::trim_ascii).filter(|entry| !entry.is_empty()) {
            let Some(address) = address(entry) else { return farthest };
            farthest = address;
            if !self.contains(address) {
                return farthest;
            }
        }
        farthest
    }
}

/// Parses an address, with or without a port, which some proxies add.
fn address(entry: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(entry).ok()?;
    let bracketed = || text.strip_prefix('[')?.strip_suffix(']')?.parse().ok().map(IpAddr::V6);
    let with_port = || text.parse::<SocketAddr>().ok().map(|address| address.ip());
    let address = text.parse().ok().or_else(bracketed).or_else(with_port)?;
    Some(address.to_canonical())
}

fn canonical(network: IpNet) -> IpNet {
    const MAPPED_BITS: u8 = 96;
    let IpNet::V6(v6) = network else { return network };
    match (v6.addr().to_ipv4_mapped(), v6.prefix_len().checked_sub(MAPPED_BITS)) {
        (Some(v4), Some(bits)) => Ipv4Net::new(v4, bits).map_or(network, IpNet::V4),
        (None, _) | (_, None) => network,
    }
}

fn value(bytes: &[u8]) -> HeaderValue {
    HeaderValue::from_bytes(bytes).expect("header values and addresses, joined, are a header value")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trust() -> Trust {
        Trust::new(["10.0.0.0/8", "fd00::/8", "::ffff:192.168.0.0/112"].map(|network| network.parse().unwrap()))
    }

    fn client(peer: &str, lists: &[&str]) -> Client {
        let mut headers = HeaderMap::new();
        for list in lists {
            headers.append(X_FORWARDED_FOR, HeaderValue::from_bytes(list.as_bytes()).unwrap());
        }
        trust().client(peer.parse().unwrap(), &headers)
    }

    #[test]
    fn a_peer_that_is_not_trusted_is_the_client() {
        for lists in [&[][..], &["10.1.1.1"], &["7.7.7.7", "10.0.0.2"], &["garbage"]] {
            let client = client("8.8.8.8", lists);
            assert_eq!(client.address.to_string(), "8.8.8.8");
            assert_eq!(client.forwarded_for, "8.8.8.8");
            assert!(!client.is_behind_trusted);
        }
    }

    #[test]
    fn behind_trusted_peers_the_nearest_untrusted_address_is_the_client() {
        for (lists, address) in [
            (&[][..], "10.0.0.1"),
            (&["7.7.7.7"], "7.7.7.7"),
            (&["7.7.7.7, 8.8.8.8"], "8.8.8.8"),
            (&["7.7.7.7,10.0.0.3 ,\t10.0.0.2"], "7.7.7.7"),
            (&["6.6.6.6, 7.7.7.7", "10.0.0.3"], "7.7.7.7"),
            (&["6.6.6.6", "7.7.7.7, fd00::1"], "7.7.7.7"),
            (&["10.0.0.4, 10.0.0.3"], "10.0.0.4"),
            (&["7.7.7.7, , 10.0.0.2,"], "7.7.7.7"),
            (&[""], "10.0.0.1"),
            (&["2001:db8::1, 192.168.7.1"], "2001:db8::1"),
        ] {
            assert_eq!(client("10.0.0.1", lists).address.to_string(), address, "{lists:?}");
        }
    }

    #[test]
    fn ipv4_written_as_ipv6_is_ipv4() {
        for (peer, list, address) in [
            ("::ffff:10.0.0.1", "::ffff:7.7.7.7", "7.7.7.7"),
            ("::ffff:10.0.0.1", "7.7.7.7, ::ffff:10.0.0.9", "7.7.7.7"),
            ("::ffff:8.8.8.8", "7.7.7.7", "8.8.8.8"),
            ("::ffff:192.168.1.1", "::ffff:192.169.1.1", "192.169.1.1"),
        ] {
            let client = client(peer, &[list]);
            assert_eq!(client.address.to_string(), address, "{peer} {list}");
            assert!(!client.forwarded_for.to_str().unwrap().ends_with(peer), "{peer} {list}");
        }
    }

    #[test]
    fn ports_are_skipped() {
        for (entry, address) in
            [("7.7.7.7:50000", "7.7.7.7"), ("[2001:db8::1]:50000", "2001:db8::1"), ("[2001:db8::1]", "2001:db8::1")]
        {
            assert_eq!(client("10.0.0.1", &[entry]).address.to_string(), address, "{entry}");
        }
    }

    #[test]
    fn garbage_ends_the_walk_at_the_last_good_address() {
        for garbage in
            ["unknown", "_hidden", "7.7.7", "7.7.7.7:x", "[7.7.7.7]", "fe80::1%eth0", "\"7.7.7.7\"", "é", "a b"]
        {
            let list = format!("7.7.7.7, {garbage}, 10.0.0.2");
            assert_eq!(client("10.0.0.1", &[&list]).address.to_string(), "10.0.0.2", "{garbage}");
            assert_eq!(client("10.0.0.1", &[garbage]).address.to_string(), "10.0.0.1", "{garbage}");
        }
    }

    #[test]
    fn a_trusted_peers_list_is_sent_on_as_it_is_with_the_peer_behind_it() {
        for (lists, sent_on) in [
            (&[][..], "10.0.0.1"),
            (&[" "], "10.0.0.1"),
            (&["7.7.7.7"], "7.7.7.7, 10.0.0.1"),
            (&["unknown, 7.7.7.7", "10.0.0.2"], "unknown, 7.7.7.7, 10.0.0.2, 10.0.0.1"),
        ] {
            let client = client("10.0.0.1", lists);
            assert_eq!(client.forwarded_for, sent_on, "{lists:?}");
            assert!(client.is_behind_trusted);
        }
        assert_eq!(client("fd00::5", &["7.7.7.7"]).forwarded_for, "7.7.7.7, fd00::5");
    }

    #[test]
    fn headers_that_describe_a_client_are_known_in_every_spelling() {
        for name in [
            "Forwarded",
            "X-Forwarded",
            "X-Forwarded-For",
            "X-Forwarded-Host",
            "X-Forwarded-Port",
            "X-Forwarded-Prefix",
            "X-Forwarded-User",
            "X-Forwarded-Ssl",
            "X-FORWARDED-CLIENT-CERT",
            "x-forwarded-",
            "X_Forwarded_For",
            "X-Forwarded_Host",
            "x_forwarded",
            "X-Real-IP",
            "x_real_ip",
        ] {
            assert!(describes_client(&HeaderName::from_bytes(name.as_bytes()).unwrap()), "{name}");
        }
        for name in [
            "forward",
            "forwarded-for",
            "x-forwardedfor",
            "x-forward",
            "x-real-ip-2",
            "x-real",
            "from",
            "x-",
            "x-api-key",
        ] {
            assert!(!describes_client(&HeaderName::from_bytes(name.as_bytes()).unwrap()), "{name}");
        }
    }

    #[test]
    fn a_network_may_be_a_single_address() {
        let trust = |text: &str| text.parse::<Network>().map(|network| Trust::new([network.into()]));
        let contains = |text: &str, address: &str| trust(text).unwrap().contains(address.parse().unwrap());
        assert!(contains("127.0.0.1", "127.0.0.1") && !contains("127.0.0.1", "127.0.0.2"));
        assert!(contains("::1", "::1") && !contains("::1", "::2"));
        assert!(contains("::ffff:10.0.0.1", "10.0.0.1") && contains("10.0.0.0/8", "::ffff:10.9.9.9"));
        for text in ["", "10.0.0.0/33", "localhost", "10.0.0.1:80", "10.0.0.0/8,127.0.0.1"] {
            assert!(trust(text).is_err(), "{text}");
        }
    }

    #[test]
    fn no_peer_is_trusted_by_default() {
        let mut headers = HeaderMap::new();
        headers.insert(X_FORWARDED_FOR, HeaderValue::from_static("7.7.7.7"));
        let client = Trust::default().client("127.0.0.1".parse().unwrap(), &headers);
        assert_eq!((client.address.to_string().as_str(), client.is_behind_trusted), ("127.0.0.1", false));
    }
}
