//! Claims of calls with an `Idempotency-Key`, which a retry finds at another replica.

use super::quotas::finish;
use super::*;
use crate::event_log::stream::response_head::Head;
use crate::event_log::{ClaimOutcome, ClaimRequest, Match};
use crate::protocol::cluster::RepeatedCall;
use crate::protocol::error::{ErrorCode, Failure};
use crate::protocol::request_ids::IdUse;

fn body() -> Fingerprint {
    Fingerprint::of_body("", b"{}")
}

pub(super) fn claim() -> ClaimRequest {
    ClaimRequest { retention: RETENTION, body: body() }
}

fn key() -> Fingerprint {
    Fingerprint::of_key(&binding(), b"key")
}

#[tokio::test(start_paused = true)]
async fn a_claim_whose_reply_was_lost_leaves_no_record_behind() {
    let store = TestStore::default();
    let [one, two] = [1, 2].map(|owner| log_of(Owner(owner), Arc::new(store.as_of(Owner(owner)))));
    let call = key();
    store.set_deaf(true);
    assert!(one.claims().claim(&call, claim(), false).await.is_err());
    // Later calls of the store are refused, but the claim was not.
    tokio::time::sleep(RETENTION / 4).await;
    store.set_deaf(false);
    let ClaimOutcome::Existing(run, _) = two.claims().claim(&call, claim(), false).await.unwrap() else {
        panic!("the store has it")
    };
    assert!(one.claims().has_released(run.stream));
    let lookup = async |run| one.claims().lookup_retry(&call.to_wire(), Some(run), &body().to_wire()).await;
    assert_eq!(lookup(run.stream).await, RepeatedCall::Another, "it never ran");
    let other = StreamId::from_bytes([1; 12]);
    assert_eq!(lookup(other).await, RepeatedCall::Nothing, "no replica knows that one");
    tokio::time::sleep(Duration::from_secs(1)).await;
    let claimed = two.claims().claim(&call, claim(), false).await.unwrap();
    assert!(matches!(claimed, ClaimOutcome::Claimed(_)), "{claimed:?}");
    tokio::time::sleep(RETENTION).await;
    assert!(!one.claims().has_released(run.stream), "nothing of it is kept");
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_is_left_stays_and_a_dropped_one_is_removed() {
    let store = TestStore::default();
    let log = log_of(Owner(1), Arc::new(store.as_of(Owner(1))));
    let call = key();
    for is_left in [false, true] {
        let ClaimOutcome::Claimed(hold) = log.claims().claim(&call, claim(), false).await.unwrap() else {
            panic!("no replica has it")
        };
        if is_left {
            hold.leave();
        }
        drop(hold);
        tokio::task::yield_now().await;
        assert_eq!(store.records().len(), usize::from(is_left));
    }
}

/// Claims and registers a call that `log` runs.
pub(super) async fn run(log: &EventLog) -> (Fingerprint, Arc<Stream>) {
    let call = key();
    let ClaimOutcome::Claimed(hold) = log.claims().claim(&call, claim(), false).await.unwrap() else {
        panic!("it is claimed already")
    };
    let reservation = log.admit(quota(log, 0).reserve(0), 0).unwrap();
    let policy = Policy { has_idempotency_key: true, ..spec().policy };
    let spec = Spec { body_fingerprint: Some(body()), policy, ..spec() };
    let stream = log.create_as(hold.stream(), spec, reservation);
    let registered = log.find_or_register(call, IdUse::Unique, |_| false, || Ok::<_, ()>(stream.clone()));
    let Ok(Match::New(_, registration)) = registered else { panic!("it is registered already") };
    stream.retries().register(registration.with_claim(Some(Arc::new(hold))));
    (call, stream)
}

#[tokio::test(start_paused = true)]
async fn a_response_that_the_store_refused_is_written_later() {
    let store = Arc::new(TestStore::default());
    let log = log_of(Owner(1), store.clone());
    let (_, stream) = run(&log).await;
    store.set_away(true);
    log.kept_responses().store(&stream, &Head::Failed(Failure::after_send(ErrorCode::CallTimedOut))).await;
    tokio::time::sleep(RETENTION / 4).await;
    store.set_away(false);
    assert!(log.kept_responses().find(stream.id()).await.unwrap().is_none());
    tokio::time::sleep(Duration::from_secs(1)).await;
    let kept = log.kept_responses().find(stream.id()).await.unwrap();
    assert!(matches!(kept, Some(RepeatedCall::Failed(failure)) if failure.code == ErrorCode::CallTimedOut), "{kept:?}");
    tokio::time::sleep(RETENTION * 3 / 4 + Duration::from_secs(2)).await;
    assert!(log.kept_responses().find(stream.id()).await.unwrap().is_none(), "and no longer than any other");
}

#[tokio::test(start_paused = true)]
async fn a_claim_outlives_the_process_and_ends_with_the_call() {
    for ends in [false, true] {
        let store = TestStore::default();
        let log = log_of(Owner(1), Arc::new(store.as_of(Owner(1))));
        let (call, stream) = run(&log).await;
        if ends {
            // The call never ran.
            stream.retries().forget();
            tokio::task::yield_now().await;
        }
        drop(log);
        drop(stream);
        tokio::task::yield_now().await;
        let after = log_of(Owner(1), Arc::new(store.as_of(Owner(1))));
        let claimed = after.claims().claim(&call, claim(), false).await.unwrap();
        assert_eq!(matches!(claimed, ClaimOutcome::Claimed(_)), ends, "{claimed:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_record_is_kept_for_as_long_as_its_call_is_known() {
    let store = TestStore::default();
    let log = Arc::new(log_of(Owner(1), Arc::new(store.as_of(Owner(1)))));
    let (call, stream) = run(&log).await;
    let keeping = tokio::spawn({
        let log = log.clone();
        async move { log.claims().keep().await }
    });
    tokio::time::sleep(RETENTION * 5).await;
    let claimed = log.claims().claim(&call, claim(), true).await.unwrap();
    assert!(matches!(claimed, ClaimOutcome::Existing(run, _) if run.body == body()), "{claimed:?}");
    keeping.abort();
    tokio::time::sleep(RETENTION * 5).await;
    assert!(matches!(log.claims().claim(&call, claim(), true).await.unwrap(), ClaimOutcome::Unclaimed));
    drop(stream);
}

#[tokio::test(start_paused = true)]
async fn a_removal_that_the_store_refused_is_made_later() {
    let store = TestStore::default();
    let log = log_of(Owner(1), Arc::new(store.as_of(Owner(1))));
    let call = key();
    let ClaimOutcome::Claimed(hold) = log.claims().claim(&call, claim(), false).await.unwrap() else {
        panic!("it is claimed already")
    };
    let run = hold.stream();
    store.set_away(true);
    drop(hold);
    tokio::time::sleep(RETENTION / 4).await;
    assert!(log.claims().has_released(run), "it is not forgotten before it is removed");
    assert_eq!(store.records().len(), 1);
    store.set_away(false);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(store.records().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_takes_effect_after_its_removal_is_removed_as_well() {
    let store = TestStore::default();
    let log = log_of(Owner(1), Arc::new(store.as_of(Owner(1))));
    let call = key();
    let ClaimOutcome::Claimed(hold) = log.claims().claim(&call, claim(), false).await.unwrap() else {
        panic!("it is claimed already")
    };
    let run = hold.stream();
    let key = store.records().remove(0);
    let value = store.get(&key).wait().await.unwrap().expect("the record");
    store.set_away(true);
    drop(hold);
    tokio::task::yield_now().await;
    store.set_away(false);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(store.records().len(), 0);
    store.claim(&key, &value, RETENTION).wait().await.unwrap();
    assert!(log.claims().has_released(run), "until it can be there no more");
    tokio::time::sleep(RETENTION / 2).await;
    assert_eq!((store.records().len(), log.claims().has_released(run)), (0, false));
}

/// Runs the call to its end, and notes a likely delivery.
async fn arrive(log: &EventLog, stream: &Arc<Stream>) {
    let writer = log.writer(stream);
    writer.update(|machine, _| machine.handle_stream_head()).await;
    log.publish_once(stream);
    finish(log, stream, &writer);
    writer.seal().await;
    assert_eq!(Client::attach(stream, Seq(0)).read_all(), Poll::Ready(ReadOutcome::Ended));
    log.retention().note_delivered(stream.clone(), DeliveryCertainty::Likely);
}

#[tokio::test(start_paused = true)]
async fn an_evicted_call_is_found_in_the_store_by_its_key() {
    let store = TestStore::default();
    let log = log_of(Owner(1), Arc::new(store.as_of(Owner(1))));
    let (call, stream) = run(&log).await;
    arrive(&log, &stream).await;
    let id = stream.id();
    assert_eq!((log.len(), log.retry_index().len()), (1, 1));
    let much = quota(&log, 0).reserve(allowance().max_bytes + 1);
    assert!(log.evict_for(&much).is_err());
    assert_eq!((log.len(), log.retry_index().len()), (0, 0), "its last user is still here");
    tokio::time::sleep(Duration::from_secs(1)).await;
    let claimed = log.claims().claim(&call, claim(), true).await.unwrap();
    let expected = |run: ClaimRecord| (run.stream, run.body) == (id, body());
    assert!(matches!(claimed, ClaimOutcome::Existing(run, _) if expected(run)), "{claimed:?}");
}

#[tokio::test(start_paused = true)]
async fn a_response_counts_in_the_quota_while_it_waits_for_the_store() {
    let store = Arc::new(TestStore::default());
    let log = log_of(Owner(1), store.clone());
    let (_, stream) = run(&log).await;
    let failed = Head::Failed(Failure::after_send(ErrorCode::CallTimedOut));
    log.kept_responses().store(&stream, &failed).await;
    let before = quota(&log, 0).bytes();
    store.set_away(true);
    log.kept_responses().store(&stream, &failed).await;
    assert!(quota(&log, 0).bytes() > before, "it waits");
    store.set_away(false);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(quota(&log, 0).bytes(), before);
    store.set_away(true);
    // More of them than are written at a time.
    for _ in 0..100 {
        log.kept_responses().store(&stream, &failed).await;
    }
    assert!(quota(&log, 0).bytes() > before);
    tokio::time::sleep(RETENTION + Duration::from_secs(1)).await;
    assert_eq!(quota(&log, 0).bytes(), before, "the time of all of them is over");
}
