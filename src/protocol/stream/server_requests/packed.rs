//! Server→client requests of an ended stream, in short: the same records in one allocation, without
//! the indexes of a running stream.

use std::collections::HashSet;
use std::time::Instant;

use super::{Ledger, ServerRequest, ServerRequests};
use crate::ids::Seq;
use crate::jsonrpc::RequestId;
use crate::stream::event_set::EventSet;

/// Server→client requests of an ended stream. Most streams have none.
#[derive(Debug, Default)]
pub(in crate::stream) struct PackedRequests(Option<Box<Packed>>);

#[derive(Debug)]
struct Packed {
    /// The remembered requests in the order of their arrival.
    requests: Box<[PackedRequest]>,
    /// The spent events if the requests do not determine them.
    spent: Option<EventSet>,
    unspendable: Seq,
    changes: u64,
    /// The last event that the log has dropped.
    trimmed: Seq,
}

#[derive(Debug)]
struct PackedRequest {
    id: RequestId,
    seq: Seq,
    at: Instant,
    is_alone: bool,
    is_ping: bool,
    is_answered: bool,
}

impl PackedRequests {
    /// Packs `requests` of a stream whose events up to `trimmed` the log has dropped.
    pub(in crate::stream) fn of(requests: ServerRequests, trimmed: Seq) -> Self {
        let Some(ledger) = requests.0 else { return Self(None) };
        let Ledger { waiting, answered, spent, has_forgotten, unspendable, changes, .. } = *ledger;
        let pack = |request: ServerRequest, is_answered| {
            let ServerRequest { id, seq, at, is_alone, is_ping } = request;
            PackedRequest { id: (*id).clone(), seq, at, is_alone, is_ping, is_answered }
        };
        let waiting = waiting.into_iter().map(|(index, request)| (index, pack(request, false)));
        let answered = answered.into_iter().map(|(index, request)| (index, pack(request, true)));
        let mut requests: Vec<_> = waiting.chain(answered).collect();
        requests.sort_unstable_by_key(|(index, _)| *index);
        Self(Some(Box::new(Packed {
            requests: requests.into_iter().map(|(_, request)| request).collect(),
            spent: if has_forgotten { Some(spent) } else { None },
            unspendable,
            changes,
            trimmed,
        })))
    }

    /// Returns the requests as [`Self::of`] got them.
    pub(in crate::stream) fn unpack(self) -> ServerRequests {
        let Some(packed) = self.0 else { return ServerRequests(None) };
        let Packed { requests, spent, unspendable, changes, trimmed } = *packed;
        let has_forgotten = spent.is_some();
        let mut ledger = Ledger { has_forgotten, spent: spent.unwrap_or_default(), ..Ledger::default() };
        for PackedRequest { id, seq, at, is_alone, is_ping, is_answered } in requests {
            ledger.add(id.clone(), seq, is_alone, at);
            if is_ping {
                ledger.mark_ping(&id);
            }
            if is_answered {
                ledger.answer(&id);
            }
        }
        ledger.spent.drop_upto(trimmed);
        (ledger.unspendable, ledger.changes) = (unspendable, changes);
        ServerRequests(Some(Box::new(ledger)))
    }

    /// The log has dropped its events up to `seq`.
    pub(in crate::stream) fn handle_trimmed(&mut self, seq: Seq) {
        if let Some(packed) = &mut self.0 {
            packed.trimmed = packed.trimmed.max(seq);
        }
    }

    /// Returns the memory beside the value itself, in bytes.
    pub(in crate::stream) fn byte_len(&self) -> usize {
        let Some(packed) = &self.0 else { return 0 };
        let ids: usize = packed.requests.iter().map(|request| request.id.text().len()).sum();
        let spent = packed.spent.as_ref().map_or(0, EventSet::byte_len);
        size_of::<Packed>() + size_of_val(&*packed.requests) + ids + spent
    }

    /// Returns true if there was never a request.
    pub(in crate::stream) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Returns true if a request of one of these ids is remembered.
    pub(in crate::stream) fn knows_any(&self, ids: &HashSet<&RequestId>) -> bool {
        self.requests().any(|request| ids.contains(&request.id))
    }

    /// Returns the ids of the pending requests, in the order of their arrival.
    pub(in crate::stream) fn outstanding(&self) -> impl Iterator<Item = &RequestId> {
        self.requests().filter(|request| !request.is_answered).map(|request| &request.id)
    }

    fn requests(&self) -> impl Iterator<Item = &PackedRequest> {
        self.0.iter().flat_map(|packed| &packed.requests)
    }
}
