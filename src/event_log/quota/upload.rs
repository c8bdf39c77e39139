//! Uploads: POSTs without requests in flight to the upstream. Small ones pass a full quota.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::event_log::quota::account::Quota;
use crate::event_log::quota::reservation::Reservation;

/// Approximate cost of one upload beside its bytes: its task, and its part of an upstream
/// connection.
const COST: usize = 4096;
/// Largest upload that needs no capacity while at most [`FEW`] are in flight. Such a message may
/// end a call and so free memory.
const SLIGHT: usize = COST + 64 * 1024;
const FEW: usize = 16;

/// Reservation of a POST without requests: counts the POST and its bytes for the life of this
/// value.
#[derive(Debug)]
pub struct UploadReservation {
    reservation: Reservation,
}

impl Quota {
    /// Reserves `bytes` for a POST to the upstream.
    pub fn reserve_upload(self: &Arc<Self>, bytes: usize) -> UploadReservation {
        self.uploads.fetch_add(1, Ordering::Relaxed);
        UploadReservation { reservation: self.reserve(COST + bytes) }
    }
}

impl UploadReservation {
    /// Returns the reservation of the bytes.
    pub fn reservation(&self) -> &Reservation {
        &self.reservation
    }

    /// Returns whether the upload must wait for capacity in its quota.
    pub fn needs_capacity(&self) -> bool {
        self.reservation.bytes() > SLIGHT || self.reservation.quota().uploads.load(Ordering::Relaxed) > FEW
    }
}

impl Drop for UploadReservation {
    fn drop(&mut self) {
        self.reservation.quota().uploads.fetch_sub(1, Ordering::Relaxed);
    }
}
