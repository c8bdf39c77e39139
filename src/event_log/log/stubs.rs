//! Stubs in the log: a stream with a proven delivery is replaced by its stub, and a resume expands it again.

use std::sync::Arc;
use std::time::Instant;

use crate::clock;
use crate::event_log::log::EventLog;
use crate::event_log::stream::Stream;
use crate::event_log::stream::delivery_certainty::DeliveryCertainty;
use crate::event_log::sweeper::Verdict;
use crate::event_log::writer::stream_table::StreamEntry;
use crate::protocol::ids::StreamId;
use crate::simulation::{self, Bug};

impl EventLog {
    /// Replaces a stream with a proven delivery by its stub, if the stub has all that may still be read.
    pub(in crate::event_log) fn reduce_to_stub(&self, stream: &Arc<Stream>) {
        if !stream.is_proven() || !self.streams.has(stream) {
            return;
        }
        let now = clock::now();
        if let Some(stub) = stream.to_stub(now)
            && self.streams.replace(stream, stub.enter())
        {
            // A delivered call cannot be retried.
            stream.forget_retries();
            self.sweeper.schedule(now + self.streams.quotas.global().allowance.delivered_retention, stream.id());
        }
    }

    /// Returns the stream, rebuilt from its stub if need be. A stub without a response stays in place, because its
    /// stream has no events to read; its retention begins anew.
    pub(in crate::event_log) fn expand(&self, id: StreamId) -> Option<Arc<Stream>> {
        let now = clock::now();
        let mut known = self.streams.entries.get_mut(&id)?;
        let stub = match known.value_mut() {
            StreamEntry::Stream(stream) => return Some(stream.clone()),
            StreamEntry::Stub(stub) => stub,
        };
        stub.left_at = now;
        let response = stub.response.take();
        let has_response = response.is_some();
        let stream =
            Arc::new(Stream::from_stub(stub, response, self.identity.clone(), self.bounds, self.backing.clone()));
        stream.publish_first();
        if has_response {
            let stub = std::mem::replace(known.value_mut(), StreamEntry::Stream(stream.clone()));
            // In this order; see the locks of `StreamTable`.
            drop(known);
            drop(stub);
            stream.note_delivered(DeliveryCertainty::Proven);
            self.sweeper.schedule(now + self.streams.quotas.global().allowance.delivered_retention, id);
        }
        Some(stream)
    }

    /// Checks a stub whose time may have come. Returns `None` if there is none of this id.
    pub(in crate::event_log) fn check_stub(&self, id: StreamId, now: Instant) -> Option<Verdict> {
        let mut known = self.streams.entries.get_mut(&id)?;
        let StreamEntry::Stub(stub) = known.value_mut() else { return None };
        let until = stub.readable_until();
        if until <= now || simulation::has(Bug::ForgetsTheLastReader) {
            // The removal locks the entry again.
            drop(known);
            self.streams.entries.remove_if(&id, |_, known| known.stream().is_none());
            return Some(Verdict::Gone);
        }
        // The end of retention is scheduled since the stream was sealed.
        let is_early = stub.drop_response(now);
        // Free before the store is called.
        drop(known);
        if !is_early {
            self.keep_for(id, Some(until), now);
        }
        Some(if is_early { Verdict::Gone } else { Verdict::Until(Some(until)) })
    }
}
