//! Rebuilding: a stream from its records in the store, without its events.

use std::net::Ipv4Addr;

use tracing::warn;

use crate::clock;
use crate::event_log::backing::StoreProgress;
use crate::event_log::backing::schema::{About, State};
use crate::event_log::quota::{QuotaKey, Quotas, StreamReservation};
use crate::event_log::stream::Stream;
use crate::event_log::stream::context::StreamContext;
use crate::event_log::stream::restored::Restored;
use crate::identity::Principal;
use crate::protocol::ids::{Seq, StreamId};
use crate::store::Stored;

/// Rebuilds a stream from its records, without events. Returns `None` if the records cannot be
/// read.
pub(super) fn rebuild(
    context: &StreamContext,
    quotas: &Quotas,
    id: StreamId,
    stored: &Stored,
    tail: Seq,
) -> Option<Stream> {
    let records = About::decode(&stored.about).and_then(|about| Ok((about, State::decode(&stored.state)?)));
    let (about, state) = match records {
        Ok(records) => records,
        Err(error) => {
            warn!(stream.id = %id, %error, "a stream is lost");
            return None;
        }
    };
    // Events that are missing here are not trimmed in the store.
    let store_progress = StoreProgress { is_created: true, upto: tail, trimmed: tail, ..StoreProgress::default() };
    let span = context.traces.as_ref().zip(about.trace.clone()).map(|(traces, record)| traces.restore_call(record));
    let restored = Restored { id, about, state, epoch: stored.epoch, tail, store_progress, span };
    let reservation = reserve(quotas, &restored.about);
    Some(Stream::restored(restored, context, reservation, clock::now()))
}

/// Reserves memory in the quota of the stream's principal, which may not be the caller. Never
/// refused: the stream exists, and a client waits.
fn reserve(quotas: &Quotas, about: &About) -> StreamReservation {
    let key = match (&about.binding.principal, &about.binding.session) {
        (Principal::Known(known), _) => QuotaKey::Known(*known),
        (Principal::Anonymous | Principal::AnonymousAt(_), Some(session)) => QuotaKey::Session(session.clone()),
        (Principal::Anonymous | Principal::AnonymousAt(_), None) => QuotaKey::Peer(Ipv4Addr::UNSPECIFIED.into()),
    };
    quotas.of(key).reserve_stream(0)
}
