//! Replay, follow and takeover of one stream.

use super::*;
use crate::protocol::stream::{ClientResponse, Phase};

/// Writes `count` notes, one per update.
fn say_notes(writer: &Writer, numbers: std::ops::RangeInclusive<usize>) {
    for n in numbers {
        ready(writer.update(says(&note(n))));
    }
}

/// Returns the notes as a client gets them, each at its position.
fn notes(stream: &Stream, numbers: std::ops::RangeInclusive<usize>) -> String {
    numbers.map(|n| wire(stream, n as u64, &note(n))).collect()
}

#[test]
fn a_reader_at_the_tail_is_woken_once_for_all_that_came_together() {
    let log = log_with(None);
    let (stream, writer) = open(&log);
    let mut client = Client::attach(&stream, Seq(0));
    assert!(client.read_all().is_pending());
    ready(writer.update(|machine, now| {
        for n in 1..=3 {
            machine.handle_message(b"message", note(n).as_bytes(), now);
        }
    }));
    assert_eq!(client.bell.rings(), 1);
    assert!(client.read_all().is_pending());
    assert_eq!(client.text(), notes(&stream, 1..=3));
}

#[test]
fn a_piece_stays_within_its_budget_and_its_buffer_does_not_grow() {
    const BUDGET: usize = 4096;
    let log = log_with(None);
    let (stream, writer) = open(&log);
    say_notes(&writer, 1..=100);
    let mut attachment = stream.attach(new_attach(), Seq(0));
    let (mut cursor, mut pieces) = (Seq(0), 0);
    loop {
        let mut out = BytesMut::new();
        let outcome = attachment.poll_read(&mut Context::from_waker(Waker::noop()), cursor, &mut out, BUDGET);
        let Poll::Ready(ReadOutcome::Events { last, is_full, .. }) = outcome else { panic!("{outcome:?}") };
        assert!(out.len() <= BUDGET && out.capacity() <= BUDGET, "{} in {}", out.len(), out.capacity());
        (cursor, pieces) = (last, pieces + 1);
        if !is_full {
            break;
        }
    }
    assert_eq!(cursor, Seq(100));
    assert!(pieces > 2);
}

#[test]
fn a_reader_in_the_middle_of_its_replay_gets_live_events_once() {
    /// Limit with room for one event, and not for two.
    const ONE_EVENT: usize = 256;
    let log = log_with(None);
    let (stream, writer) = open(&log);
    say_notes(&writer, 1..=10);
    let mut client = Client::attach(&stream, Seq(0));
    let mut said = 10;
    while said < 40 {
        let next = Seq(client.cursor.0 + 1);
        let is_full = next.0 < said as u64;
        let outcome = ReadOutcome::Events { last: next, written: 1, is_full, waited: None };
        assert_eq!(client.read(ONE_EVENT), Poll::Ready(outcome));
        say_notes(&writer, said + 1..=said + 2);
        said += 2;
    }
    assert!(client.read_all().is_pending());
    assert_eq!(client.text(), notes(&stream, 1..=said));
}

#[test]
fn any_cursor_is_answered_with_exactly_the_later_bytes() {
    let log = log_with(None);
    let (stream, writer) = open(&log);
    say_notes(&writer, 1..=20);
    for cursor in 0..=20 {
        let mut client = Client::attach(&stream, Seq(cursor as u64));
        assert!(client.read_all().is_pending());
        assert_eq!(client.text(), notes(&stream, cursor + 1..=20), "after {cursor}");
    }
}

#[test]
fn a_takeover_wakes_and_ends_the_older_reader_which_gets_nothing_more() {
    let log = log_with(None);
    let (stream, writer) = open(&log);
    let mut older = Client::attach(&stream, Seq(0));
    assert!(older.read_all().is_pending());
    say_notes(&writer, 1..=1);
    assert!(older.read_all().is_pending());
    older.bell.rings();

    let mut newer = Client::attach(&stream, Seq(1));
    assert_eq!(older.bell.rings(), 1);
    say_notes(&writer, 2..=2);
    let farewell = ReadOutcome::TakenOver(Duration::from_secs(2));
    assert_eq!(older.read_all(), Poll::Ready(farewell));
    assert!(newer.read_all().is_pending());
    assert_eq!((older.text(), newer.text()), (notes(&stream, 1..=1).as_str(), notes(&stream, 2..=2).as_str()));

    drop(older);
    assert!(stream.with_machine(|machine| machine.reader().is_attached()), "the end of the older one is no disconnect");
    say_notes(&writer, 3..=3);
    assert_eq!(newer.bell.rings(), 1);
}

#[test]
fn a_reader_that_leaves_starts_a_timer_and_changes_nothing_else() {
    let log = log_with(None);
    let (stream, writer) = open(&log);
    let client = Client::attach(&stream, Seq(0));
    say_notes(&writer, 1..=2);
    assert_eq!(schedule(&writer).0, None);
    drop(client);
    assert!(schedule(&writer).0.is_some());
    assert_eq!(
        stream.with_machine(|machine| (machine.lifecycle().phase(), machine.numbering().tail())),
        (Phase::Open, Seq(2))
    );
    assert!(matches!(writer.poll_next(), Next::Input { .. }));
    say_notes(&writer, 3..=3);
    let mut back = Client::attach(&stream, Seq(0));
    assert!(back.read_all().is_pending());
    assert_eq!(back.text(), notes(&stream, 1..=3));
}

#[test]
fn an_answered_request_is_not_replayed_and_its_number_is_a_cursor_all_the_same() {
    let log = log_with(None);
    let (stream, writer) = open(&log);
    let ask = r#"{"jsonrpc":"2.0","id":1,"method":"roots/list"}"#;
    ready(writer.update(says(ask)));
    say_notes(&writer, 2..=2);
    let mut first = Client::attach(&stream, Seq(0));
    assert!(first.read_all().is_pending());
    assert_eq!(first.text(), wire(&stream, 1, ask) + &notes(&stream, 2..=2));
    assert_eq!(stream.change(|machine, now| machine.handle_client_response(&id(), now)), ClientResponse::First);
    assert_eq!(stream.change(|machine, now| machine.handle_client_response(&id(), now)), ClientResponse::Duplicate);
    for cursor in [0, 1] {
        let mut client = Client::attach(&stream, Seq(cursor));
        assert!(client.read_all().is_pending());
        assert_eq!(client.text(), notes(&stream, 2..=2), "after {cursor}");
    }
    stream.handle_client_response_lost(&id());
    let mut again = Client::attach(&stream, Seq(0));
    assert!(again.read_all().is_pending());
    assert_eq!(again.text(), first.text(), "it is outstanding again");
}

#[test]
fn a_reader_that_waits_for_the_head_is_woken_by_it_or_by_a_takeover() {
    let log = log_with(None);
    let stream = create(&log, 0);
    let (first, second) = (Client::attach(&stream, Seq(0)), Client::attach(&stream, Seq(0)));
    let mut of_first = ByHand::new(std::future::poll_fn(|cx| first.attachment.poll_head(cx)));
    assert!(matches!(of_first.poll(), Poll::Ready(Head::TakenOver)));
    let mut of_second = ByHand::new(std::future::poll_fn(|cx| second.attachment.poll_head(cx)));
    assert!(of_second.poll().is_pending());
    stream.commit();
    assert_eq!(of_second.bell.rings(), 1);
    assert!(matches!(of_second.poll(), Poll::Ready(Head::Committed)));
}
