//! Selection of a replica for a request: a pure function of the request, the replicas, and the
//! attempts so far.
//!
//! A stream has an owner, and so has a session whose server is behind one replica. Clients name the
//! owner without knowing it ([`mcp_resume_protocol::routing`]). A request with an owner goes to the
//! owner, regardless of load. Other requests go to the least loaded replica that takes new calls.
//! With an idempotency key they go to the replica that the key hashes to, so that a repeated call
//! meets the first. Where replicas keep sessions for callers without sessions, they go to the
//! replica that the caller hashes to. Balancers that see the same replicas make the same decision,
//! and none keeps state. Absent: the state of the replicas ([`super::table`]), and HTTP.

use std::net::SocketAddr;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use mcp_resume_protocol::ids::Owner;

/// A snapshot of a replica.
#[derive(Clone, Debug, PartialEq)]
pub struct Replica {
    /// Address of the replica.
    pub address: SocketAddr,
    /// Owner that the replica reports.
    pub owner: Owner,
    /// Condition of the replica.
    pub condition: Condition,
    /// Scope of its store.
    pub store: StoreScope,
    /// Requests in flight and recent failures.
    pub load: usize,
    /// Share of new calls, at most 1: its configured weight, reduced during slow start.
    pub weight: f64,
    /// Priority: new calls go to the replicas of the lowest number that has an available one.
    pub priority: usize,
}

/// Scope of a replica's store: the processes that can serve its streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreScope {
    /// The process: its streams end with it.
    Process,
    /// The replica: its streams outlive the process, and its next process may have them.
    Replica,
    /// Every replica with this store.
    Shared,
}

/// Condition of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Takes all requests.
    Ready,
    /// Passes its health checks, but requests to it failed: takes no new calls for a while.
    Ejected,
    /// Takes requests for its streams and sessions, but no new calls: it drains, or cannot reach a
    /// dependency. Operators see it as `closing`.
    NoNewCalls,
    /// Does not respond to health checks.
    Down,
}

/// Properties of a request that decide the selection.
#[derive(Clone, Copy, Debug, Default)]
pub struct Criteria<'a> {
    /// Owner that the request names.
    pub owner: Option<Owner>,
    /// Session, which decides between the replicas in place of its home.
    pub session: Option<&'a [u8]>,
    /// Idempotency key.
    pub key: Option<&'a [u8]>,
    /// Digest of the caller. It decides before the key: a call and its retry have one caller.
    pub caller: Option<&'a [u8]>,
    /// True if every replica was checked after the request arrived.
    pub has_rechecked: bool,
    /// Addresses tried before. No part of the request has run there.
    pub tried: &'a [SocketAddr],
    /// An arbitrary number that decides between equals.
    pub tie_breaker: usize,
}

/// Outcome of a selection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Selection<'a> {
    /// The replica of the named owner; for a request that names none, any replica for new calls.
    /// The request carries its owner along.
    Chosen(&'a Replica),
    /// A replica in place of an owner that is gone: it serves from the shared store, or responds
    /// with an error. The request carries no owner along.
    StandIn(&'a Replica),
    /// No replica has this owner: all replicas must be checked first.
    Recheck,
    /// No replica can take the request now; a later one may succeed.
    Nowhere,
}

/// Selects a replica.
pub fn select<'a>(criteria: &Criteria<'_>, replicas: &'a [Replica]) -> Selection<'a> {
    match criteria.owner {
        None => select_for_new_call(criteria, replicas).map_or(Selection::Nowhere, Selection::Chosen),
        Some(owner) => select_owner(owner, criteria, replicas),
    }
}

fn select_owner<'a>(owner: Owner, criteria: &Criteria<'_>, replicas: &'a [Replica]) -> Selection<'a> {
    let named = || replicas.iter().filter(|replica| replica.owner == owner);
    let up = named().filter(|replica| replica.condition != Condition::Down && is_untried(criteria, replica));
    // Two replicas of one owner are a configuration error. Every balancer sends all their requests
    // to the same one.
    if let Some(replica) = up.min_by_key(|replica| replica.address) {
        return Selection::Chosen(replica);
    }
    // Replicas that are down are checked all the time: another check would only delay the request.
    if !criteria.has_rechecked && !named().any(|replica| replica.condition == Condition::Down) {
        return Selection::Recheck;
    }
    // Streams on a disk return with their replica, and no other replica has them.
    if named().any(|replica| replica.store == StoreScope::Replica) {
        return Selection::Nowhere;
    }
    stand_in(criteria, replicas).map_or(Selection::Nowhere, Selection::StandIn)
}

/// Returns the replica that responds in place of a lost owner. A replica that shares its store and
/// takes new calls is preferred. Among equals, a session goes to the replica that its name hashes
/// to.
fn stand_in<'a>(criteria: &Criteria<'_>, replicas: &'a [Replica]) -> Option<&'a Replica> {
    let up = replicas.iter().filter(|replica| replica.condition != Condition::Down && is_untried(criteria, replica));
    up.min_by(|a, b| {
        let priority = |replica: &Replica| (replica.store != StoreScope::Shared, replica.condition as u8);
        let by_session_or_load = || match criteria.session {
            // The replica takes the session over: every balancer sends it to the same one.
            Some(session) => rendezvous(session, b).cmp(&rendezvous(session, a)),
            None => relative_load(a).total_cmp(&relative_load(b)),
        };
        priority(a).cmp(&priority(b)).then_with(by_session_or_load)
    })
}

/// Returns the weight of a replica for `key`. The replica with the highest is chosen: if one
/// leaves, only its keys move.
fn rendezvous(key: &[u8], replica: &Replica) -> (u64, Owner) {
    (xxh3_64_with_seed(key, replica.owner.0.into()), replica.owner)
}

fn select_for_new_call<'a>(criteria: &Criteria<'_>, replicas: &'a [Replica]) -> Option<&'a Replica> {
    let of = |condition: Condition| -> Vec<&Replica> {
        let are = replicas.iter().filter(|replica| replica.condition == condition && is_untried(criteria, replica));
        are.collect()
    };
    let mut among = of(Condition::Ready);
    if among.is_empty() {
        // A replica that may fail is better than none.
        among = of(Condition::Ejected);
    }
    let first = among.iter().map(|replica| replica.priority).min();
    among.retain(|replica| Some(replica.priority) == first);
    match criteria.caller.or(criteria.key) {
        Some(key) => among.into_iter().max_by_key(|replica| rendezvous(key, replica)),
        None => select_least_loaded(&among, criteria.tie_breaker),
    }
}

/// Returns the first of the least loaded replicas, counted from a position that depends on
/// `tie_breaker`.
fn select_least_loaded<'a>(among: &[&'a Replica], tie_breaker: usize) -> Option<&'a Replica> {
    let begin = tie_breaker.checked_rem(among.len())?;
    let (late, early) = among.split_at(begin);
    early.iter().chain(late).copied().min_by(|a, b| relative_load(a).total_cmp(&relative_load(b)))
}

/// Returns the load of a replica after one more request, relative to its weight.
fn relative_load(replica: &Replica) -> f64 {
    (replica.load as f64 + 1.0) / replica.weight.max(f64::MIN_POSITIVE)
}

fn is_untried(criteria: &Criteria<'_>, replica: &Replica) -> bool {
    !criteria.tried.contains(&replica.address)
}

#[cfg(test)]
mod tests {
    use Condition::{Down, Ejected, NoNewCalls, Ready};

    use super::*;

    fn replica(number: u16, condition: Condition) -> Replica {
        Replica {
            address: SocketAddr::from(([127, 0, 0, 1], number)),
            owner: Owner(number.into()),
            condition,
            store: StoreScope::Process,
            load: 0,
            weight: 1.0,
            priority: 0,
        }
    }

    fn shared(number: u16, condition: Condition) -> Replica {
        Replica { store: StoreScope::Shared, ..replica(number, condition) }
    }

    fn loaded(number: u16, load: usize) -> Replica {
        Replica { load, ..replica(number, Ready) }
    }

    fn low_priority(number: u16, condition: Condition) -> Replica {
        Replica { priority: 1, ..replica(number, condition) }
    }

    /// Describes the selection, with the replica's port.
    fn selected(criteria: &Criteria<'_>, replicas: &[Replica]) -> String {
        match select(criteria, replicas) {
            Selection::Chosen(replica) => format!("chosen {}", replica.address.port()),
            Selection::StandIn(replica) => format!("stand-in {}", replica.address.port()),
            Selection::Recheck => "recheck".to_owned(),
            Selection::Nowhere => "nowhere".to_owned(),
        }
    }

    #[test]
    fn a_request_with_an_owner_goes_to_the_owner() {
        let of = |condition| vec![loaded(1, 0), Replica { condition, load: 99, ..replica(2, Ready) }];
        let disk = |condition| vec![replica(1, Ready), Replica { store: StoreScope::Replica, ..replica(2, condition) }];
        let least = Replica { weight: 0.01, load: 9, ..low_priority(2, Ready) };
        let duplicates = vec![Replica { owner: Owner(1), ..replica(3, Ready) }, replica(1, Ready)];
        let redis = |two| vec![shared(1, NoNewCalls), shared(2, two), shared(3, Ready)];
        for (what, owner, has_rechecked, replicas, expected) in [
            ("loaded", 2, false, of(Ready), "chosen 2"),
            ("lower priority and weight", 2, false, vec![replica(1, Ready), least], "chosen 2"),
            ("ejected", 2, false, of(Ejected), "chosen 2"),
            ("draining", 2, false, of(NoNewCalls), "chosen 2"),
            ("down: no recheck", 2, false, of(Down), "stand-in 1"),
            ("no replica of that owner", 7, false, of(Ready), "recheck"),
            ("down with a store in memory: any replica responds", 2, true, of(Down), "stand-in 1"),
            ("unknown owner: any replica responds", 7, true, of(Ready), "stand-in 1"),
            ("down with a store on disk: it may come back", 2, true, disk(Down), "nowhere"),
            ("down with a shared store: one that takes new calls", 2, true, redis(Down), "stand-in 3"),
            ("two replicas of one owner: always the same", 1, false, duplicates, "chosen 1"),
            ("no replicas", 2, true, vec![], "nowhere"),
            ("all down", 2, true, vec![replica(1, Down)], "nowhere"),
        ] {
            let criteria = Criteria { owner: Some(Owner(owner)), has_rechecked, ..Criteria::default() };
            assert_eq!(selected(&criteria, &replicas), expected, "{what}");
        }
    }

    #[test]
    fn a_request_without_an_owner_goes_to_the_least_loaded() {
        let new = Replica { weight: 0.1, ..loaded(2, 0) };
        for (what, replicas, tried, expected) in [
            ("fewest requests", vec![loaded(1, 3), loaded(2, 2), loaded(3, 3)], vec![], "chosen 2"),
            ("a new replica counts as loaded", vec![loaded(1, 3), new.clone()], vec![], "chosen 1"),
            ("a new replica gets some calls", vec![loaded(1, 30), new], vec![], "chosen 2"),
            (
                "a lower weight counts as load",
                vec![loaded(1, 3), Replica { weight: 0.5, ..loaded(2, 2) }],
                vec![],
                "chosen 1",
            ),
            (
                "a lower weight gets its share",
                vec![loaded(1, 4), Replica { weight: 0.5, ..loaded(2, 1) }],
                vec![],
                "chosen 2",
            ),
            ("a lower priority waits", vec![low_priority(1, Ready), loaded(2, 99)], vec![], "chosen 2"),
            (
                "until none of a higher priority is ready",
                vec![low_priority(1, Ready), replica(2, NoNewCalls)],
                vec![],
                "chosen 1",
            ),
            ("or it is ejected", vec![low_priority(1, Ready), replica(2, Ejected)], vec![], "chosen 1"),
            ("or it was tried", vec![low_priority(1, Ready), replica(2, Ready)], vec![2], "chosen 1"),
            (
                "priorities hold among ejected ones",
                vec![low_priority(1, Ejected), replica(2, Ejected)],
                vec![],
                "chosen 2",
            ),
            ("no replica twice", vec![loaded(1, 0), loaded(2, 9)], vec![1], "chosen 2"),
            ("none without new calls", vec![replica(1, NoNewCalls), loaded(2, 9)], vec![], "chosen 2"),
            ("no ejected one", vec![replica(1, Ejected), loaded(2, 9)], vec![], "chosen 2"),
            ("an ejected one rather than none", vec![replica(1, Ejected), replica(2, Down)], vec![], "chosen 1"),
            ("never one without new calls", vec![replica(1, NoNewCalls), replica(2, Down)], vec![], "nowhere"),
            ("no replicas", vec![], vec![], "nowhere"),
        ] {
            let tried: Vec<_> = tried.into_iter().map(|port| SocketAddr::from(([127, 0, 0, 1], port))).collect();
            for tie_breaker in 0..4 {
                let criteria = Criteria { tried: &tried, tie_breaker, ..Criteria::default() };
                assert_eq!(selected(&criteria, &replicas), expected, "{what}");
            }
        }
    }

    #[test]
    fn equally_loaded_replicas_take_turns() {
        let replicas = [loaded(1, 0), loaded(2, 0), loaded(3, 0)];
        let turns: Vec<_> =
            (0..4).map(|tie_breaker| selected(&Criteria { tie_breaker, ..Criteria::default() }, &replicas)).collect();
        assert_eq!(turns, ["chosen 1", "chosen 2", "chosen 3", "chosen 1"]);
    }

    #[test]
    fn a_key_hashes_to_the_same_replica_in_any_order_and_subset() {
        let three = [loaded(1, 9), loaded(2, 0), loaded(3, 4)];
        let turned = [three[2].clone(), three[0].clone(), three[1].clone()];
        let two = [three[0].clone(), three[1].clone()];
        let (mut counts, mut moved) = ([0; 4], 0);
        for number in 0..3000_u32 {
            let key = number.to_be_bytes();
            let of = |replicas: &[Replica]| match select(&Criteria { key: Some(&key), ..Criteria::default() }, replicas)
            {
                Selection::Chosen(replica) => replica.owner.0 as usize,
                other => panic!("{other:?}"),
            };
            let first = of(&three);
            assert_eq!(of(&turned), first, "in any order");
            counts[first] += 1;
            if first != 3 {
                assert_eq!(of(&two), first, "the keys of other replicas stay");
                let of_caller = Criteria { key: Some(b"other"), caller: Some(&key), ..Criteria::default() };
                assert_eq!(select(&of_caller, &three), Selection::Chosen(&three[first - 1]));
            } else {
                moved += 1;
            }
        }
        assert_eq!(moved, counts[3]);
        assert!(counts[1..].iter().all(|count| (900..1100).contains(count)), "{counts:?}");
    }
}
