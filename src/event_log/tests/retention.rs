//! Lookup of streams, by caller and over time. Time is paused and moved by hand.

use super::*;
use crate::protocol::ids::{EventId, Verified};
use crate::protocol::request_ids::IdUse;

/// Creates a finished stream that the log keeps, with the event ID of a client that has no event of
/// it.
fn ended(log: &EventLog) -> (Arc<Stream>, EventId) {
    let (stream, writer) = open(log);
    ready(writer.update(|machine, now| {
        machine.handle_message(b"message", RESPONSE.as_bytes(), now);
        machine.handle_upstream_end(crate::protocol::stream::Ending::Clean, now);
    }));
    log.retention().retain(&stream);
    let id = cursor_of(&stream, Seq(0));
    (stream, id)
}

/// Returns the event ID of a client that has all events up to `seq`.
pub(super) fn cursor_of(stream: &Stream, seq: Seq) -> EventId {
    let mut text = String::new();
    ids::write_event_id(&mut text, stream.handle(), seq, None).unwrap();
    EventId::parse(text.as_bytes()).unwrap()
}

/// Lets the sweeper do what is due.
pub(super) async fn settle() {
    for _ in 0..4 {
        tokio::task::yield_now().await;
    }
}

pub(super) fn sweeping(log: &Arc<EventLog>) -> tokio::task::JoinHandle<()> {
    let log = log.clone();
    tokio::spawn(async move { log.retention().sweep().await })
}

const TICK: Duration = Duration::from_millis(2);

#[tokio::test(start_paused = true)]
async fn a_sealed_stream_is_found_until_its_retention_ends() {
    let log = Arc::new(log_with(None));
    let sweeper = sweeping(&log);
    let (_, id) = ended(&log);
    settle().await;
    tokio::time::advance(RETENTION - TICK).await;
    settle().await;
    assert!(log.find(log.verify(&id).as_ref(), &binding()).is_some());
    tokio::time::advance(TICK * 2).await;
    settle().await;
    assert!(log.find(log.verify(&id).as_ref(), &binding()).is_none());
    assert!(log.is_empty());
    sweeper.abort();
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_is_read_again_is_kept_from_its_last_reader_on() {
    let log = Arc::new(log_with(None));
    let sweeper = sweeping(&log);
    let (stream, id) = ended(&log);
    settle().await;
    tokio::time::advance(RETENTION / 2).await;
    let mut client = Client::attach(&stream, Seq(0));
    tokio::time::advance(RETENTION * 3).await;
    settle().await;
    assert!(log.find(log.verify(&id).as_ref(), &binding()).is_some(), "it is being read");
    assert_eq!(client.read_all(), Poll::Ready(ReadOutcome::Ended));
    drop(client);
    tokio::time::advance(RETENTION - TICK).await;
    settle().await;
    assert!(log.find(log.verify(&id).as_ref(), &binding()).is_some());
    // A stream with a reader is checked again after half a minute.
    for _ in 0..4 {
        tokio::time::advance(RETENTION / 2).await;
        settle().await;
    }
    assert!(log.is_empty());
    sweeper.abort();
}

#[tokio::test(start_paused = true)]
async fn a_stream_is_found_by_its_owner() {
    let log = log_with(None);
    let (stream, id) = ended(&log);
    let (found, cursor) = log.find(log.verify(&id).as_ref(), &binding()).unwrap();
    assert!(Arc::ptr_eq(&found, &stream));
    assert_eq!(cursor, Seq(0));
    let other = Binding { principal: Principal::Known([1; 16]), subject: None, session: None };
    assert!(log.find(log.verify(&id).as_ref(), &other).is_none());
    let foreign = log_with(None);
    assert!(foreign.find(foreign.verify(&id).as_ref(), &binding()).is_none(), "another log has no such stream");
}

#[tokio::test(start_paused = true)]
async fn the_reason_for_a_missing_task_is_known() {
    let log = log_with(None);
    let (_stream, id) = ended(&log);
    let verified = log.verify(&id);
    let other = Binding { principal: Principal::Known([1; 16]), subject: None, session: None };
    assert_eq!(log.missing_task(None, &binding()), "the ID is forged, or signed with another key");
    assert_eq!(log.missing_task(verified.as_ref(), &other), "the task belongs to another caller");
    assert_eq!(log.missing_task(verified.as_ref(), &binding()), "the stream is no task, or has moved");
    let foreign = log_with(None);
    assert_eq!(foreign.missing_task(verified.as_ref(), &binding()), "the task has expired, or its stream was lost");
    let restarted = verified.map(|verified| Verified { epoch: StoreEpoch(2), ..verified });
    let reason = "the task belongs to an earlier process or store";
    assert_eq!(foreign.missing_task(restarted.as_ref(), &binding()), reason);
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_is_forgotten_during_a_retrys_lookup_blocks_no_task() {
    let log = log_with(None);
    let fingerprint = Fingerprint::of_body("", b"{}");
    let create = || Ok::<_, ErrorCode>(create(&log, 0));
    let Ok(Match::New(stream, registration)) = log.find_or_register(fingerprint, IdUse::Unique, |_| false, create)
    else {
        panic!("nothing is registered yet")
    };
    stream.retries().register(registration);
    let mut only = Some(stream);
    let again = log.find_or_register(
        fingerprint,
        IdUse::Unique,
        |_| {
            only.take();
            false
        },
        create,
    );
    let Ok(Match::New(stream, registration)) = again else { panic!("the old one did not match") };
    stream.retries().register(registration);
    assert_eq!(log.retry_index().len(), 1);
    let same = log.find_call(&fingerprint).unwrap();
    assert!(Arc::ptr_eq(&same, &stream), "the old one's end took nothing of the new one's");
}
