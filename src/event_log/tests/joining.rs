//! Deferred claims: calls in a session that one replica alone serves, until another joins it.

use super::quotas::finish;
use super::replicas::{LEASE, Replica, settle};
use super::*;
use crate::event_log::{CallClaim, ClaimOutcome, ClaimRequest, Match};
use crate::protocol::headers::{ProtocolVersion, SessionId};
use crate::protocol::request_ids::IdUse;
use crate::store::Coordination;

const CLAIM: ClaimRequest = ClaimRequest { retention: RETENTION, body: None };

fn in_session() -> Binding {
    Binding { session: SessionId::parse("s"), ..binding() }
}

fn opened() -> Opened {
    Opened {
        version: ProtocolVersion::DEFAULT,
        logging: false,
        declared: Default::default(),
        has_no_beats: false,
        has_tasks: false,
        initialize_id: None,
    }
}

/// Records the session as one that was opened at `replica`.
async fn open_at(replica: &Replica) {
    let (id, principal) = (in_session().session.unwrap(), in_session().principal);
    replica.log.sessions().record(id.clone(), principal, opened());
    replica.log.save_opened_session(&id, &principal, &opened()).await;
}

async fn solo() -> (TestStore, Replica) {
    let store = TestStore::default();
    let one = Replica::of(&store, 1).await;
    settle().await;
    open_at(&one).await;
    (store, one)
}

fn call(n: u8) -> Fingerprint {
    Fingerprint::of_call(&in_session(), "", &[n])
}

/// Begins a call without a look-up, or returns `None` if that is not permitted.
fn begin(replica: &Replica, n: u8) -> Option<Arc<Stream>> {
    let log = &replica.log;
    let session = log.sessions().find(&in_session().session.unwrap(), &in_session().principal)?;
    log.begin_as_sole(&session, || {
        let reservation = log.admit(&quota(log, 0), 0).unwrap();
        let stream = log.create(Spec { binding: in_session(), ..spec() }, reservation);
        let registered = log.find_or_register(call(n), IdUse::Unique, |_| false, || Ok::<_, ()>(stream.clone()));
        let Ok(Match::New(_, registration)) = registered else { panic!("it is registered already") };
        stream.retries().register(registration.with_claim(CallClaim::Deferred));
        session.add_stream(&stream);
        log.defer_claim(&stream);
        stream
    })
}

/// Writes the deferred claims of `replica`, until aborted.
fn write_claims(replica: &Replica) -> tokio::task::JoinHandle<()> {
    let log = replica.log.clone();
    tokio::spawn(async move { log.write_deferred_claims().await })
}

/// Returns whether the store has a claim of call `n` by the replica with `stream`.
async fn is_claimed(by: &Replica, n: u8, stream: &Stream) -> bool {
    match by.log.claim(&call(n), CLAIM, true).await.unwrap() {
        ClaimOutcome::Existing(run, _) => {
            assert_eq!((run.owner, run.stream, run.body), (Owner(1), stream.id(), None));
            true
        }
        _ => false,
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_is_claimed_when_it_is_no_longer_young() {
    let (_, one) = solo().await;
    let claiming = write_claims(&one);
    let stream = begin(&one, 1).expect("no other replica serves the session");
    settle().await;
    tokio::time::sleep(Duration::from_millis(14)).await;
    assert!(!is_claimed(&one, 1, &stream).await);
    // Claimed together with the first, at an age of 16 ms.
    let second = begin(&one, 2).unwrap();
    tokio::time::sleep(Duration::from_millis(7)).await;
    settle().await;
    assert!(is_claimed(&one, 1, &stream).await && !is_claimed(&one, 2, &second).await);
    tokio::time::sleep(Duration::from_millis(14)).await;
    settle().await;
    assert!(is_claimed(&one, 2, &second).await);
    // As when no retry can match it any more.
    stream.retries().forget();
    settle().await;
    assert!(!is_claimed(&one, 1, &stream).await);
    claiming.abort();
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_a_full_store_has_refused_is_written_once_there_is_room() {
    let (store, one) = solo().await;
    let two = Replica::of(&store, 2).await;
    let claiming = write_claims(&one);
    let stream = begin(&one, 1).unwrap();
    store.set_full(true);
    tokio::time::sleep(Duration::from_secs(20)).await;
    settle().await;
    let (binding, other) = (in_session(), call(2));
    let mut joining = ByHand::new(two.replicas.requests().join_session(Owner(1), &binding, &other));
    assert!(joining.poll().is_pending());
    settle().await;
    assert!(joining.poll().is_pending(), "the store has no claim");
    assert!(!is_claimed(&one, 1, &stream).await);
    store.set_full(false);
    tokio::time::sleep(Duration::from_secs(1)).await;
    settle().await;
    assert!(is_claimed(&one, 1, &stream).await);
    claiming.abort();
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_delivered_while_it_is_young_is_never_claimed() {
    let (store, one) = solo().await;
    let before = store.records().len();
    let claiming = write_claims(&one);
    let stream = begin(&one, 1).unwrap();
    let writer = one.log.writer(&stream);
    writer.update(|machine, _| machine.handle_stream_head()).await;
    one.log.publish_once(&stream);
    finish(&one.log, &stream, &writer);
    writer.seal().await;
    assert_eq!(Client::attach(&stream, Seq(0)).read_all(), Poll::Ready(ReadOutcome::Ended));
    one.log.note_delivered(stream.clone(), DeliveryCertainty::Likely);
    tokio::time::sleep(Duration::from_millis(100)).await;
    settle().await;
    stream.retries().handle_disconnect();
    assert_eq!(store.records().len(), before);
    drop(stream);
    settle().await;
    claiming.abort();
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_over_while_it_is_young_is_claimed_unless_it_is_delivered() {
    let (_, one) = solo().await;
    let claiming = write_claims(&one);
    let stream = begin(&one, 1).unwrap();
    let writer = one.log.writer(&stream);
    writer.update(|machine, _| machine.handle_stream_head()).await;
    one.log.publish_once(&stream);
    finish(&one.log, &stream, &writer);
    writer.seal().await;
    one.log.retain(&stream);
    drop(writer);
    // No task uses it any more.
    one.log.release(stream);
    tokio::time::sleep(Duration::from_millis(30)).await;
    settle().await;
    assert!(matches!(one.log.claim(&call(1), CLAIM, true).await.unwrap(), ClaimOutcome::Existing(..)));
    claiming.abort();
}

#[tokio::test(start_paused = true)]
async fn a_call_is_claimed_when_its_client_disconnects() {
    let (_, one) = solo().await;
    let stream = begin(&one, 1).unwrap();
    stream.retries().handle_disconnect();
    assert!(is_claimed(&one, 1, &stream).await);
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_joins_a_session_finds_the_claim_of_each_call_in_it() {
    let (store, one) = solo().await;
    let two = Replica::of(&store, 2).await;
    let stream = begin(&one, 1).unwrap();
    assert!(!is_claimed(&two, 1, &stream).await);
    let joined = two.replicas.requests().join_session(Owner(1), &in_session(), &call(2)).await;
    assert_eq!(joined.unwrap(), Some(()));
    assert!(is_claimed(&two, 1, &stream).await);
    assert!(begin(&one, 3).is_none(), "from now on each call is claimed first");
    // Another caller's session of this name is another session.
    let stranger = Binding { principal: Principal::Known([1; 16]), ..in_session() };
    assert!(two.replicas.requests().join_session(Owner(1), &stranger, &call(2)).await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_joins_waits_until_the_claims_are_in_the_store() {
    let (store, one) = solo().await;
    let two = Replica::of(&store, 2).await;
    let stream = begin(&one, 1).unwrap();
    let (binding, call) = (in_session(), call(1));
    let mut joining = ByHand::new(two.replicas.requests().join_session(Owner(1), &binding, &call));
    store.set_slow(true);
    assert!(joining.poll().is_pending());
    settle().await;
    assert!(joining.poll().is_pending(), "it would run the call");
    tokio::time::sleep(LEASE).await;
    let Poll::Ready(joined) = joining.poll() else { panic!("the store has the claim") };
    assert!(joined.unwrap().is_some());
    assert!(is_claimed(&two, 1, &stream).await);
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_others_may_have_counted_as_dead_claims_each_call_first() {
    let (store, one) = solo().await;
    assert!(begin(&one, 1).is_some());
    one.kill();
    tokio::time::sleep(LEASE).await;
    assert!(begin(&one, 2).is_none(), "the lease has expired");
    let again = Replica::of(&store, 1).await;
    settle().await;
    open_at(&again).await;
    assert!(begin(&again, 1).is_some());
    again.log.note_lease_acquired();
    assert!(begin(&again, 2).is_none(), "the lease had expired");
}

#[tokio::test(start_paused = true)]
async fn a_replica_whose_store_may_have_lost_data_claims_each_call_first() {
    let (store, one) = solo().await;
    assert!(begin(&one, 1).is_some());
    store.set_away(true);
    assert!(begin(&one, 2).is_none());
    store.set_away(false);
    store.lose();
    assert!(begin(&one, 2).is_none());
}

#[tokio::test(start_paused = true)]
async fn of_two_replicas_that_open_one_session_the_later_claims_each_call_first() {
    let (store, one) = solo().await;
    let two = Replica::of(&store, 2).await;
    settle().await;
    open_at(&two).await;
    assert!(begin(&two, 1).is_none() && begin(&one, 1).is_some());
}

/// Returns the record of the session at `replica` for `principal`.
fn record_at(replica: &Replica, principal: Principal) -> Arc<Session> {
    replica.log.sessions().find_or_record(&in_session().session.unwrap(), &principal)
}

/// Uses the session at `replica`, which then asks the other replicas that are registered for it.
/// Returns those.
async fn use_at(replica: &Replica) -> Vec<Owner> {
    use_as(replica, in_session().principal).await
}

/// Uses the session at `replica` as another caller.
async fn use_as(replica: &Replica, principal: Principal) -> Vec<Owner> {
    let session = record_at(replica, principal);
    let announcement = replica.log.begin_announcement(&session).expect("the others do not know");
    assert!(replica.log.ensure_registered(&in_session().session.unwrap(), &session).await);
    let others = others_at(replica).await;
    session.note_announced(announcement);
    others
}

/// Returns the other replicas that `replica` finds registered for the session.
async fn others_at(replica: &Replica) -> Vec<Owner> {
    replica.replicas.requests().members(&in_session().session.unwrap()).await.unwrap()
}

/// Returns whether the other replicas know that `replica` uses the session.
fn is_announced(replica: &Replica) -> bool {
    replica.log.begin_announcement(&record_at(replica, in_session().principal)).is_none()
}

/// Renews the registrations of `replica`, until aborted.
fn keep_registrations(replica: &Replica) -> tokio::task::JoinHandle<()> {
    let log = replica.log.clone();
    tokio::spawn(async move { log.keep_registrations().await })
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_used_the_session_before_it_was_opened_is_found() {
    let store = TestStore::default();
    let (one, two) = (Replica::of(&store, 1).await, Replica::of(&store, 2).await);
    settle().await;
    assert_eq!(use_at(&two).await, []);
    open_at(&one).await;
    assert!(begin(&one, 1).is_none(), "the other replica may have run the call");
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_uses_an_unknown_session_asks_again_before_its_registration_ends() {
    let store = TestStore::default();
    let (one, two) = (Replica::of(&store, 1).await, Replica::of(&store, 2).await);
    settle().await;
    assert_eq!(use_at(&two).await, []);
    tokio::time::sleep(Duration::from_secs(299)).await;
    assert!(is_announced(&two));
    open_at(&one).await;
    assert!(begin(&one, 1).is_none());
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(use_at(&two).await, [Owner(1)]);
    // The renewed registration lasts beyond the first.
    tokio::time::sleep(Duration::from_secs(299 + 5)).await;
    open_at(&one).await;
    assert!(begin(&one, 1).is_none());
}

#[tokio::test(start_paused = true)]
async fn calls_of_a_session_that_is_opened_again_are_claimed_when_another_replica_joins() {
    let (store, one) = solo().await;
    let two = Replica::of(&store, 2).await;
    let stream = begin(&one, 1).unwrap();
    open_at(&one).await;
    let later = begin(&one, 2).expect("no other replica serves the session");
    let joined = two.replicas.requests().join_session(Owner(1), &in_session(), &call(3)).await;
    assert_eq!(joined.unwrap(), Some(()));
    assert!(is_claimed(&two, 1, &stream).await && is_claimed(&two, 2, &later).await);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_has_found_a_record_before_the_session_is_opened_again_is_claimed_first() {
    let (_store, one) = solo().await;
    let (id, principal) = (in_session().session.unwrap(), in_session().principal);
    let before = one.log.sessions().find(&id, &principal).unwrap();
    open_at(&one).await;
    assert!(one.log.begin_as_sole(&before, || ()).is_none());
}

#[tokio::test(start_paused = true)]
async fn calls_of_an_evicted_session_are_claimed_when_another_replica_joins() {
    let store = TestStore::default();
    let one = Replica::limited(&store, 1, QuotaLimits { max_sessions: 1, ..allowance() }).await;
    let two = Replica::of(&store, 2).await;
    settle().await;
    open_at(&one).await;
    let (id, principal) = (in_session().session.unwrap(), in_session().principal);
    let before = one.log.sessions().find(&id, &principal).unwrap();
    let stream = begin(&one, 1).unwrap();
    one.log.sessions().record(SessionId::parse("next").unwrap(), principal, opened());
    assert!(one.log.sessions().find(&id, &principal).is_none());
    assert!(one.log.begin_as_sole(&before, || ()).is_none(), "each later call is claimed first");
    assert_eq!(one.log.sessions().unclaimed_len(), 1);
    let joined = two.replicas.requests().join_session(Owner(1), &in_session(), &call(2)).await;
    assert_eq!(joined.unwrap(), Some(()));
    assert!(is_claimed(&two, 1, &stream).await);
    one.log.sessions().sweep(clock::now());
    assert_eq!(one.log.sessions().unclaimed_len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_caller_with_another_token_leaves_the_registration_of_an_opened_session_as_it_is() {
    let (store, one) = solo().await;
    let two = Replica::of(&store, 2).await;
    settle().await;
    assert_eq!(use_as(&one, Principal::Known([1; 16])).await, []);
    tokio::time::sleep(Duration::from_secs(601)).await;
    let stream = begin(&one, 1).expect("no other replica serves the session");
    assert_eq!(use_at(&two).await, [Owner(1)]);
    let joined = two.replicas.requests().join_session(Owner(1), &in_session(), &call(2)).await;
    assert_eq!(joined.unwrap(), Some(()));
    assert!(is_claimed(&two, 1, &stream).await);
    // A replica is found once, however many of its records are registered.
    assert_eq!(use_as(&one, Principal::Known([2; 16])).await, [Owner(2)]);
    assert_eq!(others_at(&two).await, [Owner(1)]);
}

#[tokio::test(start_paused = true)]
async fn a_session_that_is_opened_again_while_its_members_are_read_and_another_replica_joins_is_shared() {
    let store = TestStore::default();
    let (one, two) = (Replica::of(&store, 1).await, Replica::of(&store, 2).await);
    settle().await;
    store.set_slow(true);
    let mut opening = ByHand::new(open_at(&one));
    assert!(opening.poll().is_pending(), "its members are read");
    let joined = two.replicas.requests().join_session(Owner(1), &in_session(), &call(1)).await;
    assert_eq!(joined.unwrap(), Some(()));
    one.log.sessions().record(in_session().session.unwrap(), in_session().principal, opened());
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(opening.poll().is_ready());
    assert!(begin(&one, 1).is_none(), "the replica that joined does not ask again");
}

#[tokio::test(start_paused = true)]
async fn no_replica_is_the_only_one_within_a_lease_of_a_loss() {
    let store = TestStore::default();
    let one = Replica::of(&store, 1).await;
    settle().await;
    store.lose();
    // Before and after the loss is noted: another replica may not be registered again.
    for pause in [Duration::ZERO, LEASE - Duration::from_secs(1)] {
        tokio::time::sleep(pause).await;
        settle().await;
        open_at(&one).await;
        assert!(begin(&one, 1).is_none());
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    open_at(&one).await;
    assert!(begin(&one, 1).is_some());
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_was_forgotten_with_its_lease_is_found_again_once_it_has_one() {
    let store = TestStore::default();
    let (one, two) = (Replica::of(&store, 1).await, Replica::of(&store, 2).await);
    let keeping = keep_registrations(&two);
    settle().await;
    assert_eq!(use_at(&two).await, []);
    store.set_away(true);
    tokio::time::sleep(LEASE * 2).await;
    assert!(!is_announced(&two), "its lease has expired");
    store.set_away(false);
    store.forget(Owner(2)).wait().await.unwrap();
    assert_eq!(others_at(&one).await, []);
    tokio::time::sleep(Duration::from_secs(1)).await;
    settle().await;
    assert!(!is_announced(&two), "another replica may have opened the session meanwhile");
    assert_eq!(others_at(&one).await, [Owner(2)]);
    open_at(&one).await;
    assert!(begin(&one, 1).is_none());
    assert_eq!(use_at(&two).await, [Owner(1)]);
    keeping.abort();
}

#[tokio::test(start_paused = true)]
async fn a_replica_renews_its_registrations_for_as_long_as_it_knows_the_sessions() {
    let (store, one) = solo().await;
    let (two, three) = (Replica::of(&store, 2).await, Replica::of(&store, 3).await);
    let keeping = [keep_registrations(&one), keep_registrations(&two)];
    settle().await;
    // As with one call alone, which keeps the record, at a replica that does not know the session.
    assert_eq!(use_at(&two).await, [Owner(1)]);
    tokio::time::sleep(Duration::from_secs(11 * 60)).await;
    assert_eq!(others_at(&three).await, [Owner(1), Owner(2)]);
    tokio::time::sleep(Duration::from_secs(25 * 3600)).await;
    assert_eq!(others_at(&three).await, [Owner(1), Owner(2)]);
    let (id, principal) = (in_session().session.unwrap(), in_session().principal);
    assert!(three.log.load_session(&id, &principal).await.unwrap().is_some(), "the record is renewed too");
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
        one.log.sessions().record(id.clone(), in_session().principal, opened());
        one.log.save_opened_session(&id, &in_session().principal, &opened()).await;
    }
    store.set_slow_joins(true);
    // Five renewals take longer than the interval between two leases.
    for _ in 0..6 {
        store.as_of(Owner(1)).release().wait().await.unwrap();
        tokio::time::sleep(LEASE / 3).await;
    }
    assert_eq!(store.joins_peak(), 1);
    tokio::time::sleep(Duration::from_secs(20)).await;
    let term = one.log.backing.as_ref().and_then(|backing| backing.term()).expect("a lease");
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
    let (store, one) = solo().await;
    let two = Replica::of(&store, 2).await;
    let keeping = keep_registrations(&one);
    let (id, principal) = (in_session().session.unwrap(), in_session().principal);
    begin_renewal(&store).await;
    assert!(one.log.forget_session(&id, &principal).await.is_some());
    tokio::time::sleep(Duration::from_secs(2)).await;
    settle().await;
    assert!(two.log.load_session(&id, &principal).await.unwrap().is_none());
    tokio::time::sleep(Duration::from_secs(61)).await;
    assert_eq!(others_at(&two).await, [], "its registration expires soon as well");
    keeping.abort();
}

#[tokio::test(start_paused = true)]
async fn a_session_that_is_opened_again_during_its_renewal_has_its_new_record_in_the_store() {
    let (store, one) = solo().await;
    let two = Replica::of(&store, 2).await;
    let keeping = keep_registrations(&one);
    let (id, principal) = (in_session().session.unwrap(), in_session().principal);
    begin_renewal(&store).await;
    one.log.forget_session(&id, &principal).await;
    let again = Opened { logging: true, ..opened() };
    one.log.sessions().record(id.clone(), principal, again.clone());
    one.log.save_opened_session(&id, &principal, &again).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    settle().await;
    assert!(two.log.load_session(&id, &principal).await.unwrap().expect("a record").logs());
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
    let (id, principal) = (in_session().session.unwrap(), in_session().principal);
    begin_renewal(&store).await;
    one.log.sessions().record(SessionId::parse("next").unwrap(), principal, opened());
    assert!(one.log.sessions().find(&id, &principal).is_none());
    tokio::time::sleep(Duration::from_secs(2)).await;
    settle().await;
    assert!(two.log.load_session(&id, &principal).await.unwrap().is_some());
    keeping.abort();
}
