//! Admission of new streams: the limits of their quota, and the reservation of their memory.
//!
//! A new stream may evict delivered ones (`eviction.rs`). Absent: the store's part in the decision
//! ([`EventLog::admit`](crate::event_log::log::EventLog::admit)), and the error response for a
//! refused request.

use std::sync::Arc;

use crate::event_log::quota::{Quota, Reservation, StreamReservation};
use crate::event_log::writer::stream_table::StreamTable;
use crate::protocol::error::ErrorCode;

impl StreamTable {
    /// Reserves memory for one more call with a request of this size. `held` are bytes that its
    /// request holds so far.
    pub(in crate::event_log) fn admit(
        &self,
        held: Reservation,
        request_bytes: usize,
    ) -> Result<StreamReservation, ErrorCode> {
        let quota = held.quota().clone();
        let allowance = &quota.global().allowance;
        if quota.detached() >= allowance.max_detached {
            return Err(ErrorCode::TooManyDetached);
        }
        self.ensure_within_limits(&quota)?;
        // Counted before the comparison, so that two concurrent calls do not both get the last
        // place.
        let mut reservation = held.into_stream(request_bytes);
        reservation.set_running(true);
        if quota.streams() > allowance.max_streams { Err(ErrorCode::TooManyStreams) } else { Ok(reservation) }
    }

    /// Reserves memory for a session's standalone stream. It is no call: only bytes limit it.
    pub(in crate::event_log) fn admit_standalone(
        &self,
        quota: &Arc<Quota>,
        request_bytes: usize,
    ) -> Result<StreamReservation, ErrorCode> {
        self.ensure_within_limits(quota)?;
        Ok(quota.reserve_stream(request_bytes))
    }
}
