//! Use of request IDs in a session, which distinguishes a repeated POST from a new call.
//!
//! The specification forbids a client to use an ID twice in a session ([2025-06-18, requests]).
//! Then a POST with an ID of before is a retry. Some clients give each request the same ID: their
//! equal POSTs are calls of their own. Owned here: the evidence for such a client. Absent: the
//! calls that a POST may retry, and the rule for each use (`stream/repetition.rs`).
//!
//! [2025-06-18, requests]: https://modelcontextprotocol.io/specification/2025-06-18/basic#requests

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::jsonrpc::RequestId;

/// Number of requests whose IDs are remembered. Only a call that is not known to be delivered can
/// be mistaken for another, so a few suffice.
const REMEMBERED: usize = 8;

/// Use of request IDs by a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IdUse {
    /// An ID names one request, as far as is known.
    #[default]
    Unique,
    /// An ID has named several requests.
    Free,
}

/// Digest of a request ID. Records of sessions in stores have it. Two IDs with equal digests are
/// taken for one. This costs their session no more than the retries of attached calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct IdDigest(u32);

impl From<&RequestId> for IdDigest {
    /// Returns the digest of an ID with its type: `1` and `"1"` differ.
    fn from(id: &RequestId) -> Self {
        let (kind, text) = match id {
            RequestId::Number(text) => (0, text),
            RequestId::String(text) => (1, text),
        };
        Self(xxh3_64(text.as_bytes()) as u32 ^ kind)
    }
}

/// IDs that the requests of a session have used.
#[derive(Clone, Debug, Default)]
pub struct UsedIds {
    initialize: Option<IdDigest>,
    recent: [(IdDigest, u32); REMEMBERED],
    /// Number of requests so far, up to [`REMEMBERED`].
    len: u8,
    /// Place of the next request in `recent`.
    next: u8,
    id_use: IdUse,
}

impl UsedIds {
    /// Begins with the ID of the session's `initialize`, or `None` if that is unknown.
    pub fn new(initialize: Option<IdDigest>) -> Self {
        Self { initialize, ..Self::default() }
    }

    /// Notes a request. `contents` is a digest of its POST: equal for a retry, different for
    /// another method or other params.
    pub fn note(&mut self, id: IdDigest, contents: u32) -> IdUse {
        if self.id_use == IdUse::Free {
            return IdUse::Free;
        }
        let known = &self.recent[..usize::from(self.len)];
        let mut same = known.iter().filter(|(known, _)| *known == id).map(|(_, contents)| *contents);
        match same.next() {
            Some(known) if known == contents => return IdUse::Unique,
            Some(_) => self.id_use = IdUse::Free,
            None if self.initialize == Some(id) => self.id_use = IdUse::Free,
            None => self.remember(id, contents),
        }
        self.id_use
    }

    /// Returns the use as known so far.
    pub fn id_use(&self) -> IdUse {
        self.id_use
    }

    /// Adds what an earlier record of the same session has seen.
    pub fn follow(&mut self, before: &Self) {
        *self = Self { initialize: self.initialize.or(before.initialize), ..before.clone() };
    }

    fn remember(&mut self, id: IdDigest, contents: u32) {
        self.recent[usize::from(self.next)] = (id, contents);
        self.next = (self.next + 1) % REMEMBERED as u8;
        self.len = (self.len + 1).min(REMEMBERED as u8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(json: &str) -> IdDigest {
        IdDigest::from(&RequestId::from_json(json).unwrap())
    }

    #[test]
    fn an_id_of_other_contents_shows_a_free_use_for_good() {
        let mut used = UsedIds::default();
        assert_eq!(used.note(id("1"), 10), IdUse::Unique);
        assert_eq!(used.note(id("1"), 10), IdUse::Unique, "a retry");
        assert_eq!(used.note(id("2"), 10), IdUse::Unique, "the same call under another ID");
        assert_eq!(used.note(id("\"1\""), 11), IdUse::Unique, "an ID of another type");
        assert_eq!(used.note(id("1"), 11), IdUse::Free);
        assert_eq!(used.note(id("9"), 10), IdUse::Free);
    }

    #[test]
    fn the_id_of_initialize_counts() {
        let mut used = UsedIds::new(Some(id("1")));
        assert_eq!(used.note(id("0"), 10), IdUse::Unique);
        assert_eq!(used.note(id("1"), 10), IdUse::Free);
    }

    #[test]
    fn a_session_s_next_record_knows_what_the_one_before_it_has_seen() {
        let mut before = UsedIds::new(Some(id("0")));
        before.note(id("1"), 10);
        let mut later = UsedIds::default();
        later.follow(&before);
        assert_eq!(later.clone().note(id("1"), 11), IdUse::Free);
        assert_eq!(later.note(id("0"), 10), IdUse::Free);
    }

    #[test]
    fn clients_that_count_never_look_free() {
        let mut used = UsedIds::new(Some(id("0")));
        for number in 1..1000_u32 {
            let request = id(&number.to_string());
            // A retry may come after later requests.
            assert_eq!(used.note(request, number), IdUse::Unique);
            let retried = number.saturating_sub(5).max(1);
            assert_eq!(used.note(id(&retried.to_string()), retried), IdUse::Unique);
        }
    }

    #[test]
    fn a_small_set_of_ids_is_found_out() {
        for ids in 1..=REMEMBERED as u32 {
            let mut used = UsedIds::default();
            let last = (0..=ids).map(|call| used.note(id(&(call % ids).to_string()), call)).last();
            assert_eq!(last, Some(IdUse::Free), "{ids} IDs");
        }
    }
}
