//! Who the client is, and what its sidecar is told of that.
//!
//! Everybody can write `X-Forwarded-For`, so it counts only as far as those who wrote it are trusted: from the right, over trusted
//! addresses, to the first that is not. Pure. Absent: `Forwarded`, which is passed on or dropped and never read; hosts and schemes, which
//! are in the request itself.

use std::net::{IpAddr, SocketAddr};

use http::{HeaderMap, HeaderName, HeaderValue};
use ipnet::{IpNet, Ipv4Net};

/// The addresses a request has come by, the oldest first.
pub const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The networks whose word on other addresses is believed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trust(Vec<IpNet>);

/// Who sent a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
    /// The nearest address that nobody trusted vouches for another by; never IPv4 written as IPv6.
    pub address: IpAddr,
    /// What is sent on as [`X_FORWARDED_FOR`]: what the peer sent if it is trusted, and the peer.
    pub forwarded_for: HeaderValue,
    /// Whether the peer is trusted. Else what it sent as `Forwarded` or `X-Forwarded-` anything is dropped.
    pub is_behind_trusted: bool,
}

impl Trust {
    /// Trusts `networks`. One of IPv4 addresses that are written as IPv6 holds the IPv4 addresses.
    pub fn new(networks: impl IntoIterator<Item = IpNet>) -> Self {
        Self(networks.into_iter().map(canonical).collect())
    }

    /// Whether `address` is in one of the networks.
    pub fn holds(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.0.iter().any(|network| network.contains(&address))
    }

    /// Who sent a request with `headers` over a connection from `peer`.
    pub fn client(&self, peer: IpAddr, headers: &HeaderMap) -> Client {
        let peer = peer.to_canonical();
        if !self.holds(peer) {
            return Client {
                address: peer,
                forwarded_for: value(peer.to_string().as_bytes()),
                is_behind_trusted: false,
            };
        }
        let lists = || headers.get_all(X_FORWARDED_FOR).iter().map(HeaderValue::as_bytes);
        let entries = lists().rev().flat_map(|list| list.rsplit(|byte| *byte == b','));
        let mut sent_on = lists().filter(|list| !list.trim_ascii().is_empty()).collect::<Vec<_>>();
        let own = peer.to_string();
        sent_on.push(own.as_bytes());
        Client {
            address: self.farthest(peer, entries),
            forwarded_for: value(&sent_on.join(b", ".as_slice())),
            is_behind_trusted: true,
        }
    }

    /// Walks `entries`, the newest first, from the trusted `peer` to the first address that is not trusted, or to the last one before
    /// something that is none.
    fn farthest<'a>(&self, peer: IpAddr, entries: impl Iterator<Item = &'a [u8]>) -> IpAddr {
        let mut farthest = peer;
        // RFC 9110 §5.6.1.2: an empty element of a list is nothing.
        for entry in entries.map(<[u8]>::trim_ascii).filter(|entry| !entry.is_empty()) {
            let Some(address) = address(entry) else { return farthest };
            farthest = address;
            if !self.holds(address) {
                return farthest;
            }
        }
        farthest
    }
}

/// With or without a port, which some proxies add.
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
    HeaderValue::from_bytes(bytes).expect("values of headers and addresses, joined, are a value")
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
    fn a_peer_that_is_not_trusted_is_the_client_whatever_it_says() {
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
    fn ports_are_read_over() {
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
    fn nobody_is_trusted_by_default() {
        let mut headers = HeaderMap::new();
        headers.insert(X_FORWARDED_FOR, HeaderValue::from_static("7.7.7.7"));
        let client = Trust::default().client("127.0.0.1".parse().unwrap(), &headers);
        assert_eq!((client.address.to_string().as_str(), client.is_behind_trusted), ("127.0.0.1", false));
    }
}
