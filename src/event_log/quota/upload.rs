//! POSTs without requests on their way up: what they take of a share, and which of them need no room.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::event_log::quota::{Quota, Reservation};

/// Approximate cost of one beside its bytes: its task, and its part in a connection to the upstream.
const COST: usize = 4096;
/// One up to this size needs no room, where no more than [`FEW`] are on their way: what a client says may be what ends a call and makes
/// room.
const SLIGHT: usize = COST + 64 * 1024;
const FEW: usize = 16;

/// A POST without requests on its way up: its bytes are held, and it is counted, for as long as this lives.
#[derive(Debug)]
pub struct UploadReservation {
    reservation: Reservation,
}

impl Quota {
    /// Holds `bytes` of a POST that goes up.
    pub fn reserve_upload(self: &Arc<Self>, bytes: usize) -> UploadReservation {
        self.carried.fetch_add(1, Ordering::Relaxed);
        UploadReservation { reservation: self.reserve(COST + bytes) }
    }
}

impl UploadReservation {
    /// What it holds.
    pub fn reservation(&self) -> &Reservation {
        &self.reservation
    }

    /// Whether it goes up only where its share has room for it.
    pub fn needs_capacity(&self) -> bool {
        self.reservation.bytes > SLIGHT || self.reservation.quota.carried.load(Ordering::Relaxed) > FEW
    }
}

impl Drop for UploadReservation {
    fn drop(&mut self) {
        self.reservation.quota.carried.fetch_sub(1, Ordering::Relaxed);
    }
}
