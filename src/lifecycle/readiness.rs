//! Whether this process takes new calls: one answer, for whoever asks on whichever listener.

use crate::cluster::Replicas;
use crate::event_log::EventLog;
use crate::lifecycle::drain::Drain;
use crate::store::Standing;
use crate::upstream::{Reachability, Upstream};

/// Whether new calls are taken, and why not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// They are.
    Ready,
    /// They are, and the store has nothing of them until it is back.
    WithoutStore,
    /// The process is on its way out.
    Draining,
    /// The store takes nothing more.
    StoreFull,
    /// The store cannot be reached, and nothing is to begin without it.
    StoreUnreachable,
    /// Another process has taken this replica's name.
    NameTaken,
    /// Nothing has accepted a connection yet.
    NoUpstream,
    /// The upstream accepts no connections any more.
    UpstreamLost,
}

impl Readiness {
    /// That of a process with these parts, now. Tries a connection to the upstream, once a second at most.
    pub async fn of(drain: &Drain, log: &EventLog, replicas: Option<&Replicas>, upstream: &Upstream) -> Self {
        if drain.has_begun() {
            return Self::Draining;
        }
        match log.store_standing() {
            Standing::Full => return Self::StoreFull,
            Standing::Unreachable if !log.takes_calls() => return Self::StoreUnreachable,
            Standing::Ready | Standing::Unreachable => {}
        }
        if replicas.is_some_and(Replicas::is_taken) {
            return Self::NameTaken;
        }
        match upstream.reachability().await {
            Reachability::Unknown => return Self::NoUpstream,
            Reachability::Lost => return Self::UpstreamLost,
            Reachability::Accepting => {}
        }
        match log.store_standing() {
            Standing::Unreachable => Self::WithoutStore,
            Standing::Ready | Standing::Full => Self::Ready,
        }
    }

    /// Whether new calls are taken.
    pub fn takes_calls(self) -> bool {
        match self {
            Self::Ready | Self::WithoutStore => true,
            Self::Draining | Self::StoreFull | Self::StoreUnreachable | Self::NameTaken => false,
            Self::NoUpstream | Self::UpstreamLost => false,
        }
    }

    /// The same for people, as a line.
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
