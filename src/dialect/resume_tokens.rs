//! Resume tokens, [#1003]: a long call gets its result in slices, each but the last with a token
//! for the next.
//!
//! [#1003]: https://github.com/modelcontextprotocol/modelcontextprotocol/pull/1003

use std::sync::Arc;

use super::Resumption;
use crate::delivery::Interim;
use crate::event_log::{Slice, Stream};
use crate::protocol::dialect::Waits;
use crate::protocol::dialect::resume_tokens::{self, CallDigest, Form, Names};
use crate::protocol::ids::Seq;

/// Returns the interim result of a connection that reads `slice`. Returns `None` for a stream
/// without partial results.
pub fn interim(stream: &Stream, slice: &Slice) -> Option<Interim> {
    let form = Some(stream.slices()?.slicing.form).filter(|form| *form != Form::Task)?;
    let max_wait = stream.with_machine(|machine| machine.policy().max_wait);
    let ttl = Waits::new(std::time::Duration::ZERO, max_wait).max;
    let message = resume_tokens::interim_result(&slice.names().id, form, &stream.handles().resume_token(), ttl);
    Some(Interim { at: slice.ends_at(), message })
}

/// Resumes a call that is sent again under `names`. It continues after `cursor`, or after the
/// events confirmed by receipt of the interim result with the token. Returns `None` if the call is
/// another one, or has its final result.
pub fn resume(stream: Arc<Stream>, call: Option<CallDigest>, names: Names, cursor: Option<Seq>) -> Option<Resumption> {
    let is_same = stream.slices().is_some_and(|slices| Some(slices.slicing.sameness) == call);
    let after = if is_same { stream.resume_slice(cursor) } else { None }?;
    let slice = stream.begin_slice(names);
    Some(Resumption { slice, ..Resumption::after(stream, after) })
}
