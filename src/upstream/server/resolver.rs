//! Addresses of the server's name: the system's, and both loopback addresses for `localhost` and
//! the names below it.
//!
//! Some systems know one family for `localhost`, and no name below it at all ([RFC 6761 §6.3]). A
//! server may listen on the other.
//!
//! [RFC 6761 §6.3]: https://www.rfc-editor.org/rfc/rfc6761#section-6.3

use std::future::Future;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper_util::client::legacy::connect::dns::{GaiResolver, Name};
use tower_service::Service;

/// Resolver of the server's name.
#[derive(Clone)]
pub(super) struct Resolver {
    system: GaiResolver,
    ipv4_only: bool,
}

impl Resolver {
    /// Creates a resolver that returns addresses of IPv4 alone if `ipv4_only`.
    pub(super) fn new(ipv4_only: bool) -> Self {
        Self { system: GaiResolver::new(), ipv4_only }
    }
}

impl Service<Name> for Resolver {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.system.poll_ready(cx)
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let is_local = is_localhost(name.as_str());
        let (resolving, ipv4_only) = (self.system.call(name), self.ipv4_only);
        let is_used = move |address: &SocketAddr| !ipv4_only || address.is_ipv4();
        Box::pin(async move {
            let resolved = resolving.await;
            if !is_local {
                return resolved.map(|addresses| addresses.filter(is_used).collect::<Vec<_>>().into_iter());
            }
            let mut addresses: Vec<SocketAddr> = resolved.map(Iterator::collect).unwrap_or_default();
            for loopback in [SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), SocketAddr::from((Ipv6Addr::LOCALHOST, 0))] {
                if !addresses.iter().any(|address| address.ip() == loopback.ip()) {
                    addresses.push(loopback);
                }
            }
            addresses.retain(is_used);
            Ok(addresses.into_iter())
        })
    }
}

fn is_localhost(name: &str) -> bool {
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    name == "localhost" || name.ends_with(".localhost")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn addresses_of_one_family_can_be_left_out() {
        for ipv4_only in [false, true] {
            let resolving = Resolver::new(ipv4_only).call("a.localhost".parse().unwrap());
            let addresses: Vec<SocketAddr> = resolving.await.unwrap().collect();
            assert!(addresses.iter().any(SocketAddr::is_ipv4));
            assert_eq!(addresses.iter().any(SocketAddr::is_ipv6), !ipv4_only, "{addresses:?}");
        }
    }

    #[test]
    fn only_localhost_and_names_below_it_are_local() {
        for name in ["localhost", "LOCALHOST", "localhost.", "a.b.localhost"] {
            assert!(is_localhost(name), "{name}");
        }
        for name in ["localhost.example", "mylocalhost", "", "127.0.0.1"] {
            assert!(!is_localhost(name), "{name}");
        }
    }
}
