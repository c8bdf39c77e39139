//! Readiness: the decision whether this process takes new calls, the same on all listeners.

use crate::cluster::Replicas;
use crate::event_log::EventLog;
use crate::lifecycle::drain::Drain;
use crate::store::StoreHealth;
use crate::upstream::{Reachability, Upstream};

/// Readiness for new calls, with the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// New calls are taken.
    Ready,
    /// New calls are taken, and the store has nothing of them until it is back.
    WithoutStore,
    /// The process drains.
    Draining,
    /// The store takes no more data.
    StoreFull,
    /// The store cannot be reached, and the configuration refuses calls without it.
    StoreUnreachable,
    /// Another process has taken this replica's name.
    NameTaken,
    /// The upstream has not accepted a connection yet.
    NoUpstream,
    /// The upstream no longer accepts connections.
    UpstreamLost,
}

impl Readiness {
    /// Returns the current readiness. Tries a connection to the upstream, at most once a second.
    pub async fn of(drain: &Drain, log: &EventLog, replicas: Option<&Replicas>, upstream: &Upstream) -> Self {
        if drain.has_begun() {
            return Self::Draining;
        }
        match log.store_health() {
            StoreHealth::Full => return Self::StoreFull,
            StoreHealth::Unreachable if !log.can_take_calls() => return Self::StoreUnreachable,
            StoreHealth::Ready | StoreHealth::Unreachable => {}
        }
        if replicas.is_some_and(Replicas::is_name_taken) {
            return Self::NameTaken;
        }
        match upstream.server().reachability().await {
            Reachability::Unknown => return Self::NoUpstream,
            Reachability::Lost => return Self::UpstreamLost,
            Reachability::Accepting => {}
        }
        match log.store_health() {
            StoreHealth::Unreachable => Self::WithoutStore,
            StoreHealth::Ready | StoreHealth::Full => Self::Ready,
        }
    }

    /// Returns true if new calls are taken.
    pub fn can_take_calls(self) -> bool {
        match self {
            Self::Ready | Self::WithoutStore => true,
            Self::Draining | Self::StoreFull | Self::StoreUnreachable | Self::NameTaken => false,
            Self::NoUpstream | Self::UpstreamLost => false,
        }
    }

    /// Returns a line of text for people.
    pub fn text(self) -> &'static str {
        match self {
            Self::Ready => "ready\n",
            Self::WithoutStore => "ready, but the store cannot be reached: memory stands for it\n",
            Self::Draining => "draining\n",
            Self::StoreFull => "the store is full\n",
            Self::StoreUnreachable => "the store cannot be reached\n",
            Self::NameTaken => "another process has this replica's name\n",
            Self::NoUpstream => "the upstream has not accepted a connection yet\n",
            Self::UpstreamLost => "the upstream accepts no connections\n",
        }
    }
}
