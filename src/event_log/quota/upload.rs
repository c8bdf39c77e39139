//! POSTs without requests on their way up: what they take of a share, and which of them need no room.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::event_log::quota::{Holding, Share};

/// Approximate cost of one beside its bytes: its task, and its part in a connection to the upstream.
const COST: usize = 4096;
/// One up to this size needs no room, where no more than [`FEW`] are on their way: what a client says may be what ends a call and makes
/// room.
const SLIGHT: usize = COST + 64 * 1024;
const FEW: usize = 16;

/// A POST without requests on its way up: its bytes are held, and it is counted, for as long as this lives.
#[derive(Debug)]
pub struct Carried {
    holding: Holding,
}

impl Share {
    /// Holds `bytes` of a POST that goes up.
    pub fn carry(self: &Arc<Self>, bytes: usize) -> Carried {
        self.carried.fetch_add(1, Ordering::Relaxed);
        Carried { holding: self.hold(COST + bytes) }
    }
}

impl Carried {
    /// What it holds.
    pub fn holding(&self) -> &Holding {
        &self.holding
    }

    /// Whether it goes up only where its share has room for it.
    pub fn needs_room(&self) -> bool {
        self.holding.bytes > SLIGHT || self.holding.share.carried.load(Ordering::Relaxed) > FEW
    }
}

impl Drop for Carried {
    fn drop(&mut self) {
        self.holding.share.carried.fetch_sub(1, Ordering::Relaxed);
    }
}
