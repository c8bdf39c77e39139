//! Key of a quota: the holder that a request counts for.

use std::net::{IpAddr, Ipv6Addr};

use crate::identity::Principal;
use crate::protocol::headers::SessionId;

/// Holder of a quota.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum QuotaKey {
    /// A principal with a credential.
    Known([u8; 16]),
    /// An anonymous session that was opened here.
    Session(SessionId),
    /// Any other caller at this address.
    Peer(IpAddr),
}

impl QuotaKey {
    /// Returns the key for a principal; `is_proven` says that the server has accepted its
    /// credential. Any caller can invent a credential. So a caller with an unproven credential
    /// counts like a caller without one: by its session if that was opened here, else by its
    /// address. An IPv6 address counts by its /64 network, because a host has as many addresses as
    /// it likes.
    pub fn of(principal: &Principal, is_proven: bool, opened: Option<&SessionId>, address: IpAddr) -> Self {
        const HOST: u128 = u64::MAX as u128;
        match (principal, opened, address.to_canonical()) {
            (Principal::Known(known), _, _) if is_proven => QuotaKey::Known(*known),
            (_, Some(session), _) => QuotaKey::Session(session.clone()),
            (_, None, IpAddr::V6(v6)) => QuotaKey::Peer(Ipv6Addr::from_bits(v6.to_bits() & !HOST).into()),
            (_, None, v4) => QuotaKey::Peer(v4),
        }
    }
}
