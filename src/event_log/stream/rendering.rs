//! Rendering: the events of the tail as a reader gets them, each with its id and in the names of
//! the reader's slice.

use bytes::BytesMut;

use crate::event_log::stream::partial_results::{Edits, RenamedEvent, Slice};
use crate::event_log::stream::state::Inner;
use crate::protocol::ids::{self, AttachId, Handle, Seq};
use crate::protocol::tail::ID_LINE;

/// Result of one read.
pub(in crate::event_log) struct Written {
    /// Last sequence number that was handled.
    pub(in crate::event_log) last: Seq,
    /// Number of events written.
    pub(in crate::event_log) events: u64,
    /// True if the next event would exceed the budget.
    pub(in crate::event_log) is_full: bool,
    /// Next event, if it goes out in pieces; its id line is written.
    pub(in crate::event_log) large: Option<Large>,
}

/// An event larger than one piece.
pub(in crate::event_log) struct Large {
    pub(in crate::event_log) seq: Seq,
    /// Replacements of parts of the event for this reader.
    pub(in crate::event_log) edits: Edits,
}

impl Inner {
    /// Writes the events after `cursor` to `out`, up to about `budget` bytes. Settled
    /// server→client requests are skipped; a cursor may still point to them. An event larger than
    /// `budget` is left to the caller, which writes it in pieces.
    pub(in crate::event_log) fn write_events(
        &self,
        handle: &Handle,
        adopted_after: Option<Seq>,
        slice: Option<&Slice>,
        cursor: Seq,
        out: &mut BytesMut,
        budget: usize,
    ) -> Written {
        let mut done = Written { last: cursor, events: 0, is_full: false, large: None };
        for (seq, event) in self.tail.events_after(cursor) {
            done.is_full = !out.is_empty() && out.len() + ID_LINE + event.len() > budget;
            if done.is_full || seq > self.machine.numbering().tail() {
                break;
            }
            if !self.machine.server_requests().is_spent(seq) {
                let renamed = slice.map_or(RenamedEvent::Unchanged, |slice| slice.rename_event(event));
                let edits = match renamed {
                    RenamedEvent::Unchanged => Some(Edits::new()),
                    RenamedEvent::Changed(edits) => Some(edits),
                    RenamedEvent::Omitted => None,
                };
                if let Some(edits) = edits {
                    let is_large = out.is_empty() && ID_LINE + event.len() > budget;
                    write_id_line(out, handle, seq, None, adopted_after);
                    if is_large {
                        done.large = Some(Large { seq, edits });
                        break;
                    }
                    // Most events are unchanged.
                    if edits.is_empty() {
                        out.extend_from_slice(event);
                    } else {
                        write_edited(out, event, &edits);
                    }
                    done.events += 1;
                }
            }
            done.last = seq;
        }
        done
    }
}

fn write_edited(out: &mut BytesMut, event: &[u8], edits: &Edits) {
    let mut written = 0;
    for (place, text) in edits {
        out.extend_from_slice(&event[written..place.start]);
        out.extend_from_slice(text.as_bytes());
        written = place.end;
    }
    out.extend_from_slice(&event[written..]);
}

/// Writes the line of an event ID; with `attach` if that differs from the event's own. Events after
/// `adopted_after` are those of another writer.
#[inline]
pub(in crate::event_log) fn write_id_line(
    out: &mut BytesMut,
    handle: &Handle,
    seq: Seq,
    attach: Option<AttachId>,
    adopted_after: Option<Seq>,
) {
    out.extend_from_slice(b"id: ");
    let written = if adopted_after.is_some_and(|after| seq > after) {
        ids::write_adopted_id(out, handle, seq, attach)
    } else {
        ids::write_event_id(out, handle, seq, attach)
    };
    written.expect("a BytesMut grows as it is written to");
    out.extend_from_slice(b"\n");
}
