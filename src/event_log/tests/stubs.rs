//! Calls that are over and proven to be delivered: the size of their stubs, their retention, and that they refuse no
//! caller.

use super::quotas::{finish, is_kept, open_of, tight, write};
use super::retention::{cursor_of, settle, sweeping};
use super::*;
use crate::event_log::stream::stub::Stub;
use crate::event_log::writer::stream_table::StreamEntry;
use crate::protocol::ids::EventId;
use crate::protocol::stream::CursorPlace;

/// Runs a call to its end: `notes` events and its response, all read by its client.
fn ended(log: &EventLog, caller: u8, notes: usize) -> Arc<Stream> {
    let (stream, writer) = open_of(log, caller);
    (0..notes).for_each(|n| ready(writer.update(says(&note(n)))));
    finish(log, &stream, &writer);
    let mut client = Client::attach(&stream, Seq(0));
    assert_eq!(client.read_all(), Poll::Ready(ReadOutcome::Ended));
    stream
}

/// Ends a call and proves its delivery; returns the ids of its events from 0 on. The stream has no other owner.
fn proven(log: &EventLog, caller: u8, notes: usize) -> Vec<EventId> {
    let stream = ended(log, caller, notes);
    let ids = (0..=notes as u64 + 1).map(|seq| cursor_of(&stream, Seq(seq))).collect();
    log.note_delivered(&stream, DeliveryCertainty::Proven);
    ids
}

fn place(log: &EventLog, id: &EventId) -> Option<CursorPlace> {
    log.find(log.verify(id).as_ref(), &binding())
        .map(|(stream, cursor)| stream.with_machine(|machine| machine.locate(cursor)))
}

fn stubs(log: &EventLog) -> usize {
    log.streams.entries.iter().filter(|entry| matches!(entry.value(), StreamEntry::Stub(_))).count()
}

#[tokio::test(start_paused = true)]
async fn a_stub_has_the_end_and_for_a_while_the_last_response() {
    let log = Arc::new(log_with(None));
    let sweeper = sweeping(&log);
    let ids = proven(&log, 0, 3);
    assert_eq!((stubs(&log), log.len()), (1, 1));
    assert_eq!(place(&log, &ids[4]), Some(CursorPlace::AtEnd));
    assert_eq!(place(&log, &ids[2]), Some(CursorPlace::Lost));
    let (stream, cursor) = log.find(log.verify(&ids[3]).as_ref(), &binding()).unwrap();
    let mut back = Client::attach(&stream, cursor);
    assert_eq!(back.read_all(), Poll::Ready(ReadOutcome::Ended));
    assert!(
        back.text().contains(RESPONSE) && back.text().contains(&format!("id: {}", stream.handle().as_str())),
        "{}",
        back.text()
    );
    assert_eq!(back.text().matches("\n\n").count(), 1);
    drop((back, stream));
    assert_eq!(stubs(&log), 0);
    settle().await;
    tokio::time::advance(Duration::from_secs(31)).await;
    settle().await;
    assert_eq!(stubs(&log), 1, "it went back");
    assert_eq!(place(&log, &ids[3]), Some(CursorPlace::After(Seq(3))));
    tokio::time::advance(RETENTION * 2).await;
    settle().await;
    assert!(log.is_empty());
    assert_eq!(quota(&log, 0).bytes(), 0);
    sweeper.abort();
}

#[tokio::test(start_paused = true)]
async fn the_last_response_is_dropped_when_its_time_is_over() {
    let log = Arc::new(log_with(None));
    let sweeper = sweeping(&log);
    let ids = proven(&log, 0, 3);
    settle().await;
    let before = quota(&log, 0).bytes();
    tokio::time::advance(Duration::from_secs(31)).await;
    settle().await;
    assert!(quota(&log, 0).bytes() <= 512 && quota(&log, 0).bytes() < before);
    assert_eq!(place(&log, &ids[3]), Some(CursorPlace::Lost));
    assert_eq!(place(&log, &ids[4]), Some(CursorPlace::AtEnd));
    assert_eq!(stubs(&log), 1, "it stays what it is");
    sweeper.abort();
}

#[tokio::test(start_paused = true)]
async fn a_stub_that_is_asked_for_stays_for_its_retention_again() {
    let log = Arc::new(log_with(None));
    let sweeper = sweeping(&log);
    let ids = proven(&log, 0, 0);
    settle().await;
    tokio::time::advance(RETENTION - Duration::from_secs(1)).await;
    settle().await;
    assert_eq!(place(&log, &ids[1]), Some(CursorPlace::AtEnd));
    tokio::time::advance(RETENTION - Duration::from_secs(1)).await;
    settle().await;
    assert_eq!(log.len(), 1);
    tokio::time::advance(Duration::from_secs(2)).await;
    settle().await;
    assert!(log.is_empty());
    sweeper.abort();
}

#[tokio::test(start_paused = true)]
async fn a_stub_has_the_name_of_its_call_and_the_number_of_its_connections() {
    let log = log_with(None);
    let stream = ended(&log, 0, 0);
    stream.name_call(br#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"slow"}}"#);
    let id = cursor_of(&stream, Seq(0));
    log.note_delivered(&stream, DeliveryCertainty::Proven);
    let name = stream.call_name().cloned();
    drop(stream);
    assert_eq!((stubs(&log), name.as_ref().and_then(|name| name.tool.as_deref())), (1, Some("slow")));
    let told = |log: &EventLog| {
        let summary = log.summaries().pop().expect("it is listed");
        (summary.name.as_deref().cloned(), summary.connections)
    };
    assert_eq!(told(&log), (name.clone(), 1));
    let (stream, cursor) = log.find(log.verify(&id).as_ref(), &binding()).expect("it is kept");
    let mut back = Client::attach(&stream, cursor);
    assert_eq!(back.read_all(), Poll::Ready(ReadOutcome::Ended));
    assert_eq!(told(&log), (name, 2));
}

#[tokio::test(start_paused = true)]
async fn a_stub_is_its_callers_alone() {
    let log = log_with(None);
    let ids = proven(&log, 0, 1);
    let other = Binding { principal: Principal::Known([9; 16]), ..binding() };
    assert!(ids.iter().all(|id| log.find(log.verify(id).as_ref(), &other).is_none()));
    assert_eq!(stubs(&log), 1, "and is not touched by another");
}

#[tokio::test(start_paused = true)]
async fn a_stub_is_as_small_as_it_is_counted() {
    let log = log_with(None);
    let text = r#"{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"TEXT"}]}}"#;
    let text = text.replace("TEXT", &"x".repeat(250 - text.len()));
    let (stream, writer) = open_of(&log, 0);
    (0..10).for_each(|n| ready(writer.update(says(&note(n)))));
    ready(writer.update(says(&text)));
    ready(writer.update(|machine, now| machine.handle_upstream_end(crate::protocol::stream::Ending::Clean, now)));
    log.retain(&stream);
    log.note_delivered(&stream, DeliveryCertainty::Proven);
    drop((stream, writer));
    assert_eq!(stubs(&log), 1);
    assert!(quota(&log, 0).bytes() <= 512 + 460 + text.len(), "{} bytes", quota(&log, 0).bytes());
    // A boxed stub, the id of its session, its entry in a map that has just grown, and its entries in the lists by
    // time.
    const ALLOCATION: usize = 16;
    let places =
        2 * (size_of::<(StreamId, StreamEntry)>() + 1) + 2 * size_of::<(std::time::Instant, StreamId)>() + 2 * 32;
    let session = 16 + 36 + ALLOCATION;
    assert!(size_of::<Stub>() + ALLOCATION + session + places <= 512, "{} bytes", size_of::<Stub>());
}

#[tokio::test(start_paused = true)]
async fn short_calls_that_have_arrived_never_keep_the_next_one_out() {
    let log = tight(|allowance| {
        allowance.max_streams = 2;
        allowance.max_bytes = 100_000;
    });
    for _ in 0..20_000 {
        drop(proven(&log, 1, 1));
    }
    assert!(log.len() > 50, "{} are kept", log.len());
    assert!(quota(&log, 1).bytes() <= 100_000);
    // A delivery without a proof does not either.
    for _ in 0..2000 {
        let stream = ended(&log, 1, 1);
        log.note_delivered(&stream, DeliveryCertainty::Likely);
    }
    assert!(quota(&log, 1).bytes() <= 100_000);
}

#[tokio::test(start_paused = true)]
async fn stubs_go_before_streams_that_have_arrived_and_the_oldest_of_them_first() {
    let log = tight(|allowance| allowance.max_bytes = 60_000);
    let likely = ended(&log, 1, 10);
    log.note_delivered(&likely, DeliveryCertainty::Likely);
    let mut ids = Vec::new();
    for _ in 0..20 {
        tokio::time::advance(Duration::from_secs(1)).await;
        ids.push(proven(&log, 1, 0).remove(1));
    }
    let (_stream, writer) = open_of(&log, 1);
    while stubs(&log) == 20 {
        write(&writer, 1000);
    }
    let kept: Vec<bool> = ids.iter().map(|id| log.find(log.verify(id).as_ref(), &binding()).is_some()).collect();
    assert!(!kept[0] && kept[19], "{kept:?}");
    assert!(kept.is_sorted(), "{kept:?}");
    assert!(is_kept(&log, &likely));
    while is_kept(&log, &likely) {
        write(&writer, 1000);
    }
    assert_eq!(stubs(&log), 0);
    // Then it is its turn, without a wait for its time.
    assert!(writer.schedule().1, "that was room enough");
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_a_stub_could_not_serve_stays_whole() {
    let log = log_with(None);
    // The delivery is only likely.
    let likely = ended(&log, 0, 1);
    log.note_delivered(&likely, DeliveryCertainty::Likely);
    // A key may ask for it.
    let reservation = log.admit(&quota(&log, 0), 0).unwrap();
    let policy = Policy { has_idempotency_key: true, ..spec().policy };
    let keyed = log.create(Spec { policy, ..spec() }, reservation);
    let keyed_writer = log.writer(&keyed);
    ready(keyed_writer.update(|machine, _| machine.handle_stream_head()));
    log.publish_once(&keyed);
    finish(&log, &keyed, &keyed_writer);
    log.note_delivered(&keyed, DeliveryCertainty::Proven);
    // The server request may be answered once more.
    let (asked, asked_writer) = open_of(&log, 0);
    ready(asked_writer.update(says(r#"{"jsonrpc":"2.0","id":"q","method":"roots/list"}"#)));
    finish(&log, &asked, &asked_writer);
    log.note_delivered(&asked, DeliveryCertainty::Proven);
    // The stream has a reader again.
    let read = ended(&log, 0, 1);
    let reader = Client::attach(&read, Seq(0));
    log.note_delivered(&read, DeliveryCertainty::Proven);
    for stream in [&likely, &keyed, &asked, &read] {
        assert!(is_kept(&log, stream));
    }
    assert_eq!(stubs(&log), 0);
    drop(reader);
}

#[tokio::test(start_paused = true)]
async fn a_large_response_moves_into_its_stub() {
    let log = log_with(None);
    let (stream, writer) = open_of(&log, 0);
    let large = format!(r#"{{"jsonrpc":"2.0","id":1,"result":"{}"}}"#, "x".repeat(200_000));
    ready(writer.update(says(&note(1))));
    ready(writer.update(says(&large)));
    ready(writer.update(|machine, now| machine.handle_upstream_end(crate::protocol::stream::Ending::Clean, now)));
    log.retain(&stream);
    let before = cursor_of(&stream, Seq(1));
    log.note_delivered(&stream, DeliveryCertainty::Proven);
    assert!(stream.with_machine(|machine| machine.trimmed()) == Seq(2), "it is in one place");
    drop((stream, writer));
    let (stream, cursor) = log.find(log.verify(&before).as_ref(), &binding()).unwrap();
    let mut back = Client::attach(&stream, cursor);
    assert_eq!(back.read_all(), Poll::Ready(ReadOutcome::Ended));
    assert!(back.text().contains(&large));
}

#[tokio::test(start_paused = true)]
async fn a_stub_enters_the_eviction_queue_after_the_table() {
    let log = log_with(None);
    let stream = ended(&log, 0, 1);
    stream.note_delivered(DeliveryCertainty::Proven);
    let stub = stream.to_stub(clock::now()).expect("it is spent").enter();
    // Another thread evicts now.
    assert_eq!(quota(&log, 0).evictable().pop_stub(), None);
    assert!(log.streams.replace(&stream, stub));
    assert_eq!(quota(&log, 0).evictable().pop_stub(), Some(stream.id()));
}
