//! Store before delivery: the view of a reader while the store works, and when it refuses.

use super::slow::Slow;
use super::*;
use crate::protocol::error::ErrorCode;
use crate::protocol::stream::Ending;
use crate::store::Read;

/// Creates a stream with a record in `store`.
fn open_with(store: &Arc<Slow>) -> (Arc<Stream>, Writer) {
    let log = log_with(Some(store.clone()));
    let (stream, writer) = open(&log);
    (stream, writer)
}

fn stored_events(store: &Slow, stream: &Stream) -> usize {
    match ready(store.behind.read(stream.id(), Seq(0), usize::MAX).wait()).unwrap() {
        Read::Events(events) => events.len(),
        other => panic!("the stream is there: {other:?}"),
    }
}

#[test]
fn an_event_reaches_its_reader_after_the_store_has_it_and_not_before() {
    let store = Slow::new();
    let (stream, writer) = open_with(&store);
    let mut client = Client::attach(&stream, Seq(0));
    assert!(client.read_all().is_pending());

    let message = note(1);
    let mut update = ByHand::new(writer.update(says(&message)));
    assert!(update.poll().is_pending());
    assert_eq!((client.bell.rings(), stored_events(&store, &stream)), (0, 0));
    assert!(client.read_all().is_pending());
    assert_eq!(client.text(), "");
    assert!(Client::attach(&stream, Seq(0)).read_all().is_pending(), "nor does a new one get it");

    let mut client = Client::attach(&stream, Seq(0));
    assert!(client.read_all().is_pending());
    store.let_one_through();
    assert_eq!((update.bell.rings(), client.bell.rings()), (1, 0), "the store tells the writer");
    assert!(update.poll().is_ready());
    assert_eq!((client.bell.rings(), stored_events(&store, &stream)), (1, 1), "the writer tells the reader");
    assert!(client.read_all().is_pending());
    assert_eq!(client.text(), wire(&stream, 1, &message));
}

#[test]
fn events_during_a_store_call_are_the_next_batch_and_the_seal_waits_for_it() {
    let store = Slow::new();
    let (stream, writer) = open_with(&store);
    let mut client = Client::attach(&stream, Seq(0));
    let message = note(1);
    let mut update = ByHand::new(writer.update(says(&message)));
    assert!(update.poll().is_pending());
    stream.expire(ErrorCode::Abandoned);
    store.let_one_through();
    assert!(update.poll().is_pending(), "the error is with the store");
    assert!(client.read_all().is_pending());
    assert_eq!(client.text(), wire(&stream, 1, &message));
    assert!(!stream.with_machine(|machine| machine.lifecycle().is_sealed()));

    store.let_one_through();
    assert!(update.poll().is_ready());
    assert_eq!(client.bell.rings(), 1);
    assert_eq!(client.read_all(), Poll::Ready(ReadOutcome::Ended));
    assert!(client.text().contains("-32011"), "{}", client.text());
    assert_eq!((client.cursor, stored_events(&store, &stream)), (Seq(2), 2));
}

#[test]
fn an_answer_counts_once_the_store_has_it() {
    let store = Slow::new();
    let (stream, writer) = open_with(&store);
    let client = Client::attach(&stream, Seq(0));
    let mut answered = ByHand::new(std::future::poll_fn(|cx| client.attachment.poll_all_responses(cx)));
    let mut update = ByHand::new(writer.update(says(RESPONSE)));
    assert!(update.poll().is_pending() && answered.poll().is_pending());
    assert!(stream.delivery().collect().is_none());
    store.let_one_through();
    assert!(update.poll().is_ready());
    assert_eq!(answered.bell.rings(), 1);
    assert!(answered.poll().is_ready());
    assert_eq!(stream.delivery().collect().unwrap().body, RESPONSE);
}

#[test]
fn a_fenced_writer_ends_its_reader_and_shows_no_refused_event() {
    let store = Slow::new();
    let (stream, writer) = open_with(&store);
    let mut client = Client::attach(&stream, Seq(0));
    let message = note(1);
    store.let_one_through();
    ready(writer.update(says(&message)));
    assert!(client.read_all().is_pending());

    let refused = note(2);
    let mut update = ByHand::new(writer.update(says(&refused)));
    assert!(update.poll().is_pending());
    ready(store.behind.take_over(stream.id()).wait()).unwrap();
    store.let_one_through();
    assert!(update.poll().is_ready(), "nothing more is sent to a store that refuses");
    assert_eq!(client.bell.rings(), 1);
    assert_eq!(client.read_all(), Poll::Ready(ReadOutcome::Moved(Duration::from_secs(1))));
    assert_eq!(client.text(), wire(&stream, 1, &message));
    assert_eq!(stream.with_machine(|machine| machine.numbering().tail()), Seq(1));
    assert_eq!(stored_events(&store, &stream), 1);
}

#[test]
fn a_writer_that_is_fenced_while_the_stream_ends_still_ends_it() {
    let store = Slow::new();
    let (stream, writer) = open_with(&store);
    let mut update = ByHand::new(writer.update(says(RESPONSE)));
    assert!(update.poll().is_pending());
    stream.expire(ErrorCode::Abandoned);
    ready(store.behind.take_over(stream.id()).wait()).unwrap();
    store.let_one_through();
    assert!(update.poll().is_ready());
    assert!(stream.with_machine(|machine| machine.lifecycle().is_sealed()));
    let moved = ReadOutcome::Moved(Duration::from_secs(1));
    assert_eq!(Client::attach(&stream, Seq(0)).read_all(), Poll::Ready(moved));
}

#[test]
fn a_store_that_cannot_be_reached_leaves_the_events_to_memory() {
    let store = Slow::broken();
    let (stream, writer) = open_with(&store);
    let mut client = Client::attach(&stream, Seq(0));
    let message = note(1);
    ready(writer.update(says(&message)));
    assert!(client.read_all().is_pending());
    assert_eq!(client.text(), wire(&stream, 1, &message));
}

#[test]
fn the_seal_is_in_the_store_and_a_later_append_is_refused_there() {
    let store = Slow::new();
    let (stream, writer) = open_with(&store);
    store.let_one_through();
    ready(writer.update(says(RESPONSE)));
    ready(writer.seal());
    let epoch = ready(store.behind.take_over(stream.id()).wait()).unwrap();
    let mut batch = crate::protocol::stream::Batch::starting_at(Seq(2));
    batch.push(b"", b"late");
    let appended = ready(store.behind.append(stream.id(), epoch, Seq(1), &batch, None).wait()).unwrap();
    assert_eq!(appended, crate::store::Appended::Sealed);
}

#[test]
fn a_response_that_is_there_as_a_whole_is_sealed_with_its_first_write() {
    let store = Slow::new();
    let log = log_with(Some(store.clone()));
    let stream = create(&log, 0);
    let writer = log.writer(&stream);
    let mut update = ByHand::new(writer.update(|machine, now| {
        machine.handle_stream_head();
        machine.handle_message(b"message", note(1).as_bytes(), now);
        machine.handle_message(b"message", RESPONSE.as_bytes(), now);
        machine.handle_upstream_end(Ending::Clean, now);
    }));
    assert!(update.poll().is_pending());
    let mut client = Client::attach(&stream, Seq(0));
    assert!(client.read_all().is_pending(), "the store does not have it yet");
    store.let_one_through();
    assert!(update.poll().is_ready());
    assert_eq!(client.read_all(), Poll::Ready(ReadOutcome::Ended));
    let stored = ready(store.behind.load(stream.id()).wait()).unwrap().expect("the stream is there");
    assert_eq!((stored.tail, stored.sealed, stored_events(&store, &stream)), (Seq(2), true, 2));
    let before = stored.state;
    let _no_seal = store.hold_seals();
    ready(writer.seal());
    let stored = ready(store.behind.load(stream.id()).wait()).unwrap().expect("the stream is there");
    assert_eq!(stored.state, before, "the seal writes nothing more");
}

#[test]
fn a_whole_response_that_the_store_refuses_is_written_with_its_seal_later() {
    let store = Slow::new();
    let log = log_with(Some(store.clone()));
    let stream = create(&log, 0);
    let writer = log.writer(&stream);
    store.set_broken(true);
    ready(writer.update(|machine, now| {
        machine.handle_stream_head();
        machine.handle_message(b"message", RESPONSE.as_bytes(), now);
        machine.handle_upstream_end(Ending::Clean, now);
    }));
    assert_eq!(Client::attach(&stream, Seq(0)).read_all(), Poll::Ready(ReadOutcome::Ended), "memory has it");
    store.set_broken(false);
    store.open();
    ready(writer.seal());
    let stored = ready(store.behind.load(stream.id()).wait()).unwrap().expect("the stream is there");
    assert_eq!((stored.tail, stored.sealed, stored_events(&store, &stream)), (Seq(1), true, 1));
}
