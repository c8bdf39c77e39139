//! Registrations of replicas for sessions: by these, each replica finds the others.

use super::replicas::{LEASE, Replica, settle};
use super::*;
use crate::protocol::headers::{ProtocolVersion, SessionId};
use crate::store::Coordination;

fn session_id() -> SessionId {
    SessionId::parse("s").unwrap()
}

fn opened() -> Opened {
    Opened {
        version: ProtocolVersion::DEFAULT,
        logging: false,
        declared: Default::default(),
        rules: Default::default(),
        has_tasks: false,
        initialize_id: None,
    }
}

/// Records that the session was opened at `replica`.
async fn open_at(replica: &Replica) {
    let (id, principal) = (session_id(), binding().principal);
    replica.log.sessions().record(id.clone(), principal, opened());
    replica.log.stored_sessions().save_opened(&id, &principal, &opened()).await;
}

/// Returns a store, and a replica that has opened the session.
async fn opener() -> (TestStore, Replica) {
    let store = TestStore::default();
    let one = Replica::of(&store, 1).await;
    settle().await;
    open_at(&one).await;
    (store, one)
}

/// Uses the session at `replica`. Returns whether a registration was due.
async fn use_at(replica: &Replica) -> bool {
    use_as(replica, binding().principal).await
}

/// Uses the session at `replica` as another caller.
async fn use_as(replica: &Replica, principal: Principal) -> bool {
    let session = replica.log.sessions().find_or_record(&session_id(), &principal);
    session.begin_registration() && replica.log.stored_sessions().register(&session_id(), &session).await
}

/// Returns the other replicas that `replica` finds registered for the session.
async fn others_at(replica: &Replica) -> Vec<Owner> {
    let mut others = replica.replicas.requests().members(&session_id()).await.unwrap();
    others.sort_by_key(|owner| owner.0);
    others
}

/// Renews the registrations of `replica`, until aborted.
fn keep_registrations(replica: &Replica) -> tokio::task::JoinHandle<()> {
    let log = replica.log.clone();
    tokio::spawn(async move { log.stored_sessions().keep_registrations().await })
}

#[tokio::test(start_paused = true)]
async fn the_replicas_that_open_or_use_a_session_find_each_other() {
    let (store, one) = opener().await;
    let (two, three) = (Replica::of(&store, 2).await, Replica::of(&store, 3).await);
    settle().await;
    open_at(&two).await;
    assert!(use_at(&three).await);
    assert_eq!(others_at(&one).await, [Owner(2), Owner(3)]);
    assert_eq!(others_at(&two).await, [Owner(1), Owner(3)]);
    assert_eq!(others_at(&three).await, [Owner(1), Owner(2)]);
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_used_the_session_before_it_was_opened_is_found() {
    let store = TestStore::default();
    let (one, two) = (Replica::of(&store, 1).await, Replica::of(&store, 2).await);
    settle().await;
    assert!(use_at(&two).await);
    open_at(&one).await;
    assert_eq!((others_at(&one).await, others_at(&two).await), (vec![Owner(2)], vec![Owner(1)]));
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_uses_an_unknown_session_registers_again_before_its_registration_ends() {
    let store = TestStore::default();
    let (one, two) = (Replica::of(&store, 1).await, Replica::of(&store, 2).await);
    settle().await;
    assert!(use_at(&two).await);
    tokio::time::sleep(Duration::from_secs(299)).await;
    assert!(!use_at(&two).await);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(use_at(&two).await);
    // The renewed registration lasts beyond the first.
    tokio::time::sleep(Duration::from_secs(299 + 5)).await;
    assert_eq!(others_at(&one).await, [Owner(2)]);
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert_eq!(others_at(&one).await, []);
}

#[tokio::test(start_paused = true)]
async fn a_caller_with_another_token_leaves_the_registration_of_an_opened_session_as_it_is() {
    let (store, one) = opener().await;
    let two = Replica::of(&store, 2).await;
    settle().await;
    assert!(use_as(&one, Principal::Known([1; 16])).await);
    tokio::time::sleep(Duration::from_secs(601)).await;
    assert!(use_at(&two).await);
    assert_eq!(others_at(&two).await, [Owner(1)]);
    // A replica is found once, however many of its records are registered.
    assert!(use_as(&one, Principal::Known([2; 16])).await);
    assert_eq!((others_at(&one).await, others_at(&two).await), (vec![Owner(2)], vec![Owner(1)]));
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_was_forgotten_with_its_lease_is_found_again_once_it_has_one() {
    let store = TestStore::default();
    let (one, two) = (Replica::of(&store, 1).await, Replica::of(&store, 2).await);
    let keeping = keep_registrations(&two);
    settle().await;
    assert!(use_at(&two).await);
    store.set_away(true);
    tokio::time::sleep(LEASE * 2).await;
    store.set_away(false);
    store.forget(Owner(2)).wait().await.unwrap();
    assert_eq!(others_at(&one).await, []);
    tokio::time::sleep(Duration::from_secs(1)).await;
    settle().await;
    assert_eq!(others_at(&one).await, [Owner(2)]);
    keeping.abort();
}

#[tokio::test(start_paused = true)]
async fn a_replica_renews_its_registrations_for_as_long_as_it_knows_the_sessions() {
    let (store, one) = opener().await;
    let (two, three) = (Replica::of(&store, 2).await, Replica::of(&store, 3).await);
    let keeping = [keep_registrations(&one), keep_registrations(&two)];
    settle().await;
    // As with one call alone, which keeps the record, at a replica that does not know the session.
    assert!(use_at(&two).await);
    tokio::time::sleep(Duration::from_secs(11 * 60)).await;
    assert_eq!(others_at(&three).await, [Owner(1), Owner(2)]);
    tokio::time::sleep(Duration::from_secs(25 * 3600)).await;
    assert_eq!(others_at(&three).await, [Owner(1), Owner(2)]);
    let (id, principal) = (session_id(), binding().principal);
    assert!(three.log.stored_sessions().load(&id, &principal).await.unwrap().is_some(), "the record is renewed too");
    two.log.sessions().remove(&id, &principal);
    tokio::time::sleep(Duration::from_secs(11 * 60)).await;
    assert_eq!(others_at(&three).await, [Owner(1)]);
    keeping.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test(start_paused = true)]
async fn a_registration_that_the_store_refused_is_repeated() {
    let store = TestStore::default();
    let (one, two) = (Replica::of(&store, 1).await, Replica::of(&store, 2).await);
    let keeping = keep_registrations(&one);
    settle().await;
    store.set_away(true);
    open_at(&one).await;
    store.set_away(false);
    assert_eq!(others_at(&two).await, []);
    tokio::time::sleep(Duration::from_secs(61)).await;
    assert_eq!(others_at(&two).await, [Owner(1)]);
    keeping.abort();
}

#[tokio::test(start_paused = true)]
async fn a_replica_whose_lease_expires_again_and_again_renews_its_registrations_one_at_a_time() {
    let store = TestStore::default();
    let one = Replica::of(&store, 1).await;
    let keeping = keep_registrations(&one);
    settle().await;
    for number in 0..5 {
        let id = SessionId::parse(&format!("s{number}")).unwrap();
        one.log.sessions().record(id.clone(), binding().principal, opened());
        one.log.stored_sessions().save_opened(&id, &binding().principal, &opened()).await;
    }
    store.set_slow_joins(true);
    // Five renewals take longer than the interval between two leases.
    for _ in 0..6 {
        store.as_of(Owner(1)).release().wait().await.unwrap();
        tokio::time::sleep(LEASE / 3).await;
    }
    assert_eq!(store.joins_peak(), 1);
    tokio::time::sleep(Duration::from_secs(20)).await;
    let term = one.log.context.backing.as_ref().and_then(|backing| backing.term()).expect("a lease");
    assert!(one.log.sessions().due_registrations(term).is_empty(), "all are renewed in the last lease");
    keeping.abort();
}

/// Lets the first replica lose its lease and begin to renew the registration of its only session,
/// which the store takes a second later.
async fn begin_renewal(store: &TestStore) {
    settle().await;
    store.set_slow_joins(true);
    store.as_of(Owner(1)).release().wait().await.unwrap();
    tokio::time::sleep(LEASE / 3 + Duration::from_secs(1)).await;
    assert_eq!(store.joins_peak(), 1, "a renewal has begun");
    store.set_slow_joins(false);
}

#[tokio::test(start_paused = true)]
async fn a_session_that_ends_during_its_renewal_leaves_nothing_in_the_store() {
    let (store, one) = opener().await;
    let two = Replica::of(&store, 2).await;
    let keeping = keep_registrations(&one);
    let (id, principal) = (session_id(), binding().principal);
    begin_renewal(&store).await;
    assert!(one.log.stored_sessions().forget(&id, &principal).await.is_some());
    tokio::time::sleep(Duration::from_secs(2)).await;
    settle().await;
    assert!(two.log.stored_sessions().load(&id, &principal).await.unwrap().is_none());
    tokio::time::sleep(Duration::from_secs(61)).await;
    assert_eq!(others_at(&two).await, [], "its registration expires soon as well");
    keeping.abort();
}

#[tokio::test(start_paused = true)]
async fn a_session_that_is_opened_again_during_its_renewal_has_its_new_record_in_the_store() {
    let (store, one) = opener().await;
    let two = Replica::of(&store, 2).await;
    let keeping = keep_registrations(&one);
    let (id, principal) = (session_id(), binding().principal);
    begin_renewal(&store).await;
    one.log.stored_sessions().forget(&id, &principal).await;
    let again = Opened { logging: true, ..opened() };
    one.log.sessions().record(id.clone(), principal, again.clone());
    one.log.stored_sessions().save_opened(&id, &principal, &again).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    settle().await;
    assert!(two.log.stored_sessions().load(&id, &principal).await.unwrap().expect("a record").logs());
    keeping.abort();
}

#[tokio::test(start_paused = true)]
async fn a_session_whose_record_is_evicted_during_its_renewal_stays_in_the_store() {
    let store = TestStore::default();
    let one = Replica::limited(&store, 1, QuotaLimits { max_sessions: 1, ..allowance() }).await;
    let two = Replica::of(&store, 2).await;
    let keeping = keep_registrations(&one);
    settle().await;
    open_at(&one).await;
    let (id, principal) = (session_id(), binding().principal);
    begin_renewal(&store).await;
    one.log.sessions().record(SessionId::parse("next").unwrap(), principal, opened());
    assert!(one.log.sessions().find(&id, &principal).is_none());
    tokio::time::sleep(Duration::from_secs(2)).await;
    settle().await;
    assert!(two.log.stored_sessions().load(&id, &principal).await.unwrap().is_some());
    keeping.abort();
}
