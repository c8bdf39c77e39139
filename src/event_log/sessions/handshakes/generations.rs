//! Generations of one session: its names at the server one after another, and the IDs of the
//! server's requests in them.
//!
//! A server numbers its requests from 0 in each session that it opens, and a client's response has
//! the ID of the request and nothing else. The client's session outlives the server's, so one ID
//! may name the requests of two generations. Owned here: the names, and the IDs of requests that
//! earlier generations have left without a response. A request that would have such an ID gets an
//! ID of the proxy's own, `mr-<generation>-<number>`. So do all requests of an ended generation.
//! The IDs end with the process. In a session that was restored from a store, each ID counts as
//! left by an earlier generation. Invariants: an ID that an earlier generation has left without a
//! response names no request of a later one, even after a late response. Of each kind the newest
//! are kept, and a request without a response outlives requests with a response. Absent: the
//! messages (`protocol/jsonrpc`), and the streams that carry them.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::protocol::headers::SessionId;
use crate::protocol::ids::SessionGeneration;
use crate::protocol::jsonrpc::RequestId;
use crate::random;
use crate::simulation::{self, Bug};

/// Beginning of a name that no server gives.
const OWN: &str = "mcp-resume-";
/// Limit of the kept names.
const NAMES_MAX: usize = 8;
/// Limit of the kept IDs of earlier generations, and of the proxy's own IDs for pings and for
/// requests with a response.
const IDS_MAX: usize = 64;
/// Limit of the proxy's own IDs that are kept for other requests: a client may still respond to
/// each of them.
const OUTSTANDING_MAX: usize = 1024;
/// Size limit of a kept ID, in bytes. A request with a longer one keeps it.
const ID_LEN_MAX: usize = 256;
/// Approximate size of a kept ID beside its bytes.
const ID_COST: usize = 64;

/// Name of a session at its server.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum UpstreamName {
    /// The clients' name, without an owner in front.
    Original,
    /// A name that only the server uses, or `None` if the server gave none to the revived session.
    Renamed(Option<SessionId>),
}

/// Returns a new name that no server gives.
pub(super) fn own_name() -> String {
    format!("{OWN}{:016x}", u64::from_be_bytes(random::bytes()))
}

impl UpstreamName {
    /// Returns a name that no server has. A session with it is refused, and opened again.
    pub(in crate::event_log) fn lost() -> Self {
        Self::Renamed(SessionId::parse(&own_name()))
    }

    /// Returns whether no server has the session: it must be opened again.
    pub fn is_lost(&self) -> bool {
        match self {
            Self::Original | Self::Renamed(None) => false,
            Self::Renamed(Some(name)) => name.as_str().starts_with(OWN),
        }
    }
}

/// Generations of one session.
#[derive(Debug)]
pub(super) struct Generations {
    /// The newest names. The last may belong to a handshake in progress.
    names: VecDeque<(SessionGeneration, UpstreamName)>,
    current: SessionGeneration,
    next: u32,
    /// IDs that generations before the newest have left without a response.
    unanswered: VecDeque<RequestId>,
    /// In the order of their numbers.
    renamed: VecDeque<Renamed>,
    /// Number of requests that were renamed.
    count: u64,
    /// Generation that was restored from a store, or `None` if all requests came here. It and
    /// earlier ones may have left any ID.
    restored: Option<SessionGeneration>,
}

/// A request of the server that clients know under an ID of the proxy's own.
#[derive(Debug)]
struct Renamed {
    generation: SessionGeneration,
    server_id: RequestId,
    id: RequestId,
    /// Number in `id`.
    number: u64,
    is_ping: bool,
    /// A response is on its way to the server, or has arrived there.
    is_answered: bool,
}

impl Renamed {
    /// Returns whether the request may be forgotten before others. The response to a ping comes at
    /// once, and people take their time with an elicitation.
    fn is_settled(&self) -> bool {
        self.is_ping || self.is_answered
    }
}

impl Generations {
    /// Creates the first generation, which has this name.
    pub(super) fn new(name: UpstreamName) -> Self {
        Self {
            names: VecDeque::from([(SessionGeneration(0), name)]),
            current: SessionGeneration(0),
            next: 1,
            unanswered: VecDeque::new(),
            renamed: VecDeque::new(),
            count: 0,
            restored: None,
        }
    }

    /// Restores the present generation of a session from a store. The IDs of its requests, and of
    /// those before it, are not known.
    pub(super) fn restored(generation: SessionGeneration, name: UpstreamName) -> Self {
        Self {
            names: VecDeque::from([(generation, name)]),
            current: generation,
            next: generation.0.saturating_add(1),
            // A client may still have IDs of the process before.
            count: u64::from(u32::from_be_bytes(random::bytes())),
            restored: Some(generation),
            ..Self::new(UpstreamName::Original)
        }
    }

    /// Returns the generation of the session's present name.
    pub(super) fn current(&self) -> SessionGeneration {
        self.current
    }

    /// Begins the next generation. Until [`Self::adopt`] it belongs to a handshake in progress.
    pub(super) fn begin(&mut self, name: Option<SessionId>) {
        self.drop_begun();
        if self.names.len() == NAMES_MAX {
            self.names.pop_front();
        }
        self.names.push_back((SessionGeneration(self.next), UpstreamName::Renamed(name)));
        self.next += 1;
    }

    /// Makes the generation of a complete handshake, which has this name, the current one.
    pub(super) fn adopt(&mut self, name: &Option<SessionId>) {
        if self.newest() == self.current {
            self.begin(name.clone());
        }
        self.current = self.newest();
    }

    /// Drops the generation of a handshake that has failed, if there is one.
    pub(super) fn drop_begun(&mut self) {
        let current = self.current;
        self.names.retain(|(generation, _)| *generation <= current);
    }

    /// Returns whether the session has had several generations.
    pub(super) fn are_several(&self) -> bool {
        self.next > 1
    }

    /// Returns the newest generation: of the handshake in progress, if there is one.
    pub(super) fn newest(&self) -> SessionGeneration {
        self.names.back().map_or(self.current, |(generation, _)| *generation)
    }

    /// Returns the newest generation with this name at the server, as requests have it; the first
    /// for an unknown name.
    pub(super) fn named(&self, name: Option<&[u8]>) -> SessionGeneration {
        let is_named = |known: &UpstreamName| match known {
            UpstreamName::Original => false,
            UpstreamName::Renamed(known) => known.as_ref().map(|known| known.as_str().as_bytes()) == name,
        };
        let found = self.names.iter().rev().find(|(_, known)| is_named(known));
        found.map_or(SessionGeneration(0), |(generation, _)| *generation)
    }

    /// Returns the name of a generation, or `None` if it is no longer known.
    pub(super) fn name_in(&self, wanted: SessionGeneration) -> Option<UpstreamName> {
        self.names.iter().find(|(generation, _)| *generation == wanted).map(|(_, name)| name.clone())
    }

    /// Keeps the IDs of requests that have no response, before the first request of the newest
    /// generation comes.
    pub(super) fn leave_unanswered(&mut self, ids: impl IntoIterator<Item = RequestId>) {
        for id in ids {
            // The proxy's own IDs are never used again.
            let is_own = self.position_of(&id).is_some();
            if id.text().len() > ID_LEN_MAX || is_own || self.unanswered.contains(&id) {
                continue;
            }
            if self.unanswered.len() == IDS_MAX {
                self.unanswered.pop_front();
            }
            self.unanswered.push_back(id);
        }
    }

    /// Returns whether a response with this ID may be late: one for a request of an earlier
    /// generation.
    pub(super) fn have_left_unanswered(&self, id: &RequestId) -> bool {
        let may_be_unknown = self.restored.is_some_and(|restored| restored < self.newest());
        self.unanswered.contains(id) || (may_be_unknown && id.text().len() <= ID_LEN_MAX)
    }

    /// Returns the ID of the proxy's own for a request of the server, or `None` if the request
    /// keeps its ID.
    pub(super) fn rename(&mut self, generation: SessionGeneration, id: &RequestId, is_ping: bool) -> Option<RequestId> {
        let is_new = (generation == self.newest() && !self.have_left_unanswered(id)) || simulation::has(Bug::ReusesIds);
        if is_new || !self.are_several() || id.text().len() > ID_LEN_MAX {
            return None;
        }
        self.make_room();
        let number = self.count;
        let own = RequestId::String(format!("mr-{}-{number}", generation.0).into());
        self.count += 1;
        let (server_id, id) = (id.clone(), own.clone());
        self.renamed.push_back(Renamed { generation, server_id, id, number, is_ping, is_answered: false });
        Some(own)
    }

    /// Forgets the oldest IDs of the proxy's own beyond the limits, before another one is kept.
    fn make_room(&mut self) {
        let settled = self.renamed.iter().filter(|renamed| renamed.is_settled()).count();
        let mut settled_excess = (settled + 1).saturating_sub(IDS_MAX);
        let mut excess = (self.renamed.len() - settled + 1).saturating_sub(OUTSTANDING_MAX);
        if settled_excess + excess == 0 {
            return;
        }
        self.renamed.retain(|renamed| {
            let excess = if renamed.is_settled() { &mut settled_excess } else { &mut excess };
            let is_kept = *excess == 0;
            *excess = excess.saturating_sub(1);
            is_kept
        });
    }

    /// Returns the ID of the proxy's own for the newest request with this ID of the server, or
    /// `None` if it kept its ID.
    pub(super) fn id_of(&self, generation: SessionGeneration, server_id: &RequestId) -> Option<RequestId> {
        let is_it = |renamed: &&Renamed| renamed.generation == generation && renamed.server_id == *server_id;
        self.renamed.iter().rev().find(is_it).map(|renamed| renamed.id.clone())
    }

    /// Returns the generation of a request with an ID of the proxy's own, and its ID at the server.
    pub(super) fn server_id_of(&self, id: &RequestId) -> Option<(SessionGeneration, RequestId)> {
        let renamed = self.renamed.get(self.position_of(id)?)?;
        Some((renamed.generation, renamed.server_id.clone()))
    }

    /// Notes that a request with an ID of the proxy's own gets a response. Returns its ID at the
    /// server.
    pub(super) fn answer(&mut self, id: &RequestId) -> Option<RequestId> {
        let at = self.position_of(id)?;
        let renamed = self.renamed.get_mut(at)?;
        renamed.is_answered = true;
        Some(renamed.server_id.clone())
    }

    /// Returns the position of a request with an ID of the proxy's own.
    fn position_of(&self, id: &RequestId) -> Option<usize> {
        let number: u64 = id.text().rsplit_once('-')?.1.parse().ok()?;
        let at = self.renamed.binary_search_by_key(&number, |renamed| renamed.number).ok()?;
        self.renamed.get(at).filter(|renamed| renamed.id == *id).map(|_| at)
    }

    /// Returns the approximate bytes of the kept IDs.
    pub(super) fn byte_len(&self) -> usize {
        let cost = |id: &RequestId| ID_COST + id.text().len();
        let unanswered: usize = self.unanswered.iter().map(cost).sum();
        let renamed: usize = self.renamed.iter().map(|renamed| cost(&renamed.server_id) + cost(&renamed.id)).sum();
        unanswered + renamed
    }

    /// Forgets all IDs: later requests keep theirs.
    pub(super) fn forget_ids(&mut self) {
        self.unanswered = VecDeque::new();
        self.renamed = VecDeque::new();
        self.restored = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(number: u64) -> RequestId {
        RequestId::Number(number.to_string().into())
    }

    fn own(text: &str) -> Option<RequestId> {
        Some(RequestId::String(text.into()))
    }

    fn name(text: &str) -> Option<SessionId> {
        SessionId::parse(text)
    }

    const FIRST: SessionGeneration = SessionGeneration(0);
    const SECOND: SessionGeneration = SessionGeneration(1);

    fn opened_again(unanswered: impl IntoIterator<Item = RequestId>) -> Generations {
        let mut generations = Generations::new(UpstreamName::Original);
        generations.begin(name("b"));
        generations.leave_unanswered(unanswered);
        generations.adopt(&name("b"));
        generations
    }

    #[test]
    fn a_session_that_was_never_opened_again_renames_nothing() {
        let mut generations = Generations::new(UpstreamName::Original);
        generations.leave_unanswered([number(0)]);
        assert_eq!(generations.rename(FIRST, &number(0), false), None);
        assert!(!generations.are_several());
    }

    #[test]
    fn a_request_is_renamed_only_if_an_earlier_generation_has_left_its_id_unanswered() {
        let mut generations = opened_again([number(0), RequestId::String("1".into())]);
        assert_eq!(generations.rename(SECOND, &number(1), false), None, "another type");
        assert_eq!(generations.rename(SECOND, &number(2), false), None);
        assert_eq!(generations.rename(SECOND, &number(0), false), own("mr-1-0"));
        assert_eq!(generations.rename(SECOND, &RequestId::String("1".into()), false), own("mr-1-1"));
        assert_eq!(generations.server_id_of(&own("mr-1-0").unwrap()), Some((SECOND, number(0))));
        assert_eq!(generations.server_id_of(&own("mr-1-1").unwrap()), Some((SECOND, RequestId::String("1".into()))));
        assert_eq!(generations.id_of(SECOND, &number(0)), own("mr-1-0"));
        assert_eq!((generations.id_of(FIRST, &number(0)), generations.id_of(SECOND, &number(2))), (None, None));
        assert!(generations.have_left_unanswered(&number(0)) && !generations.have_left_unanswered(&number(2)));
    }

    #[test]
    fn each_request_of_a_generation_that_is_over_is_renamed() {
        let mut generations = opened_again([]);
        assert_eq!(generations.rename(FIRST, &number(5), false), own("mr-0-0"));
        assert_eq!(generations.rename(FIRST, &number(5), false), own("mr-0-1"));
        assert_eq!(generations.id_of(FIRST, &number(5)), own("mr-0-1"), "the newest");
        assert_eq!(generations.rename(SECOND, &number(5), false), None);
    }

    #[test]
    fn an_id_of_the_proxys_own_is_never_used_again() {
        let mut generations = opened_again([number(0)]);
        let first = generations.rename(SECOND, &number(0), false).unwrap();
        generations.begin(name("c"));
        generations.leave_unanswered([first.clone(), number(1)]);
        generations.adopt(&name("c"));
        assert!(!generations.have_left_unanswered(&first));
        assert_eq!(generations.rename(SessionGeneration(2), &number(1), false), own("mr-2-1"));
        assert_eq!(generations.server_id_of(&first), Some((SECOND, number(0))));
    }

    #[test]
    fn each_id_may_have_been_left_before_the_session_was_restored() {
        let mut generations = Generations::restored(SECOND, UpstreamName::Renamed(name("b")));
        assert_eq!(generations.rename(SECOND, &number(0), false), None, "the server goes on with its numbers");
        assert!(!generations.have_left_unanswered(&number(0)));
        generations.adopt(&name("c"));
        let third = SessionGeneration(2);
        let own = generations.rename(third, &number(0), false).expect("an ID of the proxy's own");
        assert_eq!(generations.server_id_of(&own), Some((third, number(0))));
        assert!(generations.have_left_unanswered(&number(0)), "a late response");
        let long = RequestId::String("x".repeat(300).into());
        assert!(generations.rename(third, &long, false).is_none() && !generations.have_left_unanswered(&long));
        generations.forget_ids();
        assert_eq!(generations.rename(third, &number(1), false), None);
    }

    #[test]
    fn pings_go_before_other_requests() {
        let mut generations = opened_again([]);
        let asked = generations.rename(FIRST, &number(0), false).unwrap();
        let first_ping = generations.rename(FIRST, &number(1), true).unwrap();
        for id in 2..100 {
            generations.rename(FIRST, &number(id), true);
        }
        assert_eq!(generations.server_id_of(&asked), Some((FIRST, number(0))));
        assert_eq!(generations.server_id_of(&first_ping), None);
    }

    #[test]
    fn requests_with_a_response_go_before_those_without() {
        let mut generations = opened_again([]);
        let mut ask = |id| generations.rename(FIRST, &number(id), false).unwrap();
        let (open, answered) = (ask(0), ask(1));
        assert_eq!(generations.answer(&answered), Some(number(1)));
        assert_eq!(generations.answer(&number(1)), None);
        let parallel: Vec<_> = (2..200).map(|id| generations.rename(FIRST, &number(id), false).unwrap()).collect();
        for (id, own) in (2..).zip(&parallel) {
            assert_eq!(generations.answer(own), Some(number(id)), "each of them is answered");
        }
        assert_eq!(generations.answer(&answered), Some(number(1)), "and may be once more");
        generations.rename(FIRST, &number(200), false);
        assert_eq!((generations.answer(&answered), generations.answer(&parallel[100])), (None, None));
        assert_eq!(generations.answer(&parallel[197]), Some(number(199)));
        assert_eq!(generations.answer(&open), Some(number(0)));
    }

    #[test]
    fn the_oldest_requests_without_a_response_go_beyond_their_limit() {
        let mut generations = opened_again([]);
        let asked: Vec<_> = (0..1100).map(|id| generations.rename(FIRST, &number(id), false).unwrap()).collect();
        let first_kept = asked.len() - OUTSTANDING_MAX;
        assert_eq!(generations.server_id_of(&asked[first_kept - 1]), None);
        assert!(generations.server_id_of(&asked[first_kept]).is_some());
        assert!(generations.byte_len() < 256 * 1024);
    }

    #[test]
    fn names_are_those_of_their_generations() {
        let mut generations = opened_again([]);
        let renamed = |text: &str| Some(UpstreamName::Renamed(name(text)));
        assert_eq!(
            (generations.name_in(FIRST), generations.name_in(SECOND)),
            (Some(UpstreamName::Original), renamed("b"))
        );
        assert_eq!((generations.named(Some(b"a")), generations.named(Some(b"b"))), (FIRST, SECOND));
        // A handshake that fails.
        generations.begin(None);
        assert_eq!((generations.newest(), generations.named(None)), (SessionGeneration(2), SessionGeneration(2)));
        generations.drop_begun();
        assert_eq!((generations.newest(), generations.name_in(SessionGeneration(2))), (SECOND, None));
        // And another, whose name the server has given before.
        generations.begin(name("b"));
        assert_eq!(generations.named(Some(b"b")), SessionGeneration(3));
    }

    #[test]
    fn the_oldest_names_and_ids_go_first() {
        let mut generations = opened_again((0..100).map(number));
        assert!(!generations.have_left_unanswered(&number(35)) && generations.have_left_unanswered(&number(36)));
        for id in 36..100 {
            let own = generations.rename(SECOND, &number(id), false).expect("an ID of the proxy's own");
            generations.answer(&own);
        }
        let bytes = generations.byte_len();
        assert!(generations.rename(SECOND, &number(99), false).is_some());
        assert!(generations.byte_len() <= bytes + 2 && bytes < 16 * 1024);
        assert_eq!(generations.server_id_of(&own("mr-1-0").unwrap()), None);
        assert!(generations.server_id_of(&own("mr-1-1").unwrap()).is_some());
        let long = RequestId::String("x".repeat(300).into());
        generations.leave_unanswered([long.clone()]);
        assert!(!generations.have_left_unanswered(&long));
        for number in 0..10 {
            generations.adopt(&name(&format!("n{number}")));
        }
        assert_eq!((generations.name_in(FIRST), generations.names.len()), (None, NAMES_MAX));
        generations.forget_ids();
        assert_eq!(generations.byte_len(), 0);
    }
}
