//! Events larger than a piece: they go out in parts, and a connection holds no more than one part.

use super::*;
use crate::protocol::dialect::resume_tokens::{CallDigest, Form, Names};
use crate::protocol::stream::Ending;

const PIECE: usize = 16 * 1024;
const LARGE: usize = 500_000;

fn large() -> String {
    format!(r#"{{"jsonrpc":"2.0","method":"n","params":"{}"}}"#, "x".repeat(LARGE))
}

/// Reads until a part of an event was written and the rest was not.
fn begin_event(client: &mut Client) {
    while !client.attachment.is_within_event() {
        assert!(client.read(PIECE).is_ready());
    }
}

/// Reads piece by piece until it has to wait or is done; returns the last outcome.
fn read_pieces(client: &mut Client) -> Poll<ReadOutcome> {
    loop {
        let before = client.text.len();
        let outcome = client.read(PIECE);
        assert!(client.text.len() - before <= PIECE, "{} bytes", client.text.len() - before);
        match outcome {
            Poll::Ready(ReadOutcome::Events { .. } | ReadOutcome::Part { .. }) => {}
            other => return other,
        }
    }
}

#[test]
fn a_large_event_goes_out_in_pieces_between_its_neighbours() {
    let log = log_with(None);
    let (stream, writer) = open(&log);
    for message in [note(1), large(), note(3)] {
        ready(writer.update(says(&message)));
    }
    let mut client = Client::attach(&stream, Seq(0));
    assert!(read_pieces(&mut client).is_pending());
    let whole = [wire(&stream, 1, &note(1)), wire(&stream, 2, &large()), wire(&stream, 3, &note(3))].concat();
    assert!(client.text() == whole, "{} bytes", client.text.len());
    assert_eq!(client.cursor, Seq(3));
}

#[test]
fn an_event_counts_as_written_once_all_of_it_was() {
    let log = log_with(None);
    let (stream, writer) = open(&log);
    ready(writer.update(says(&large())));
    let mut client = Client::attach(&stream, Seq(0));
    begin_event(&mut client);
    assert_eq!((client.cursor, stream.with_machine(|machine| machine.reader().written())), (Seq(0), Seq(0)));
    assert!(read_pieces(&mut client).is_pending());
    assert_eq!((client.cursor, stream.with_machine(|machine| machine.reader().written())), (Seq(1), Seq(1)));
}

#[test]
fn a_reader_that_is_taken_over_finishes_the_event_it_has_begun() {
    let log = log_with(None);
    let (stream, writer) = open(&log);
    ready(writer.update(says(&large())));
    ready(writer.update(says(&note(2))));
    let mut older = Client::attach(&stream, Seq(0));
    begin_event(&mut older);
    let mut newer = Client::attach(&stream, Seq(0));
    begin_event(&mut newer);
    assert!(matches!(read_pieces(&mut older), Poll::Ready(ReadOutcome::TakenOver(_))));
    assert!(older.text() == wire(&stream, 1, &large()));
    assert_eq!(stream.with_machine(|machine| machine.reader().written()), Seq(0), "the newer one's place is its own");
    assert!(read_pieces(&mut newer).is_pending());
    assert!(newer.text() == wire(&stream, 1, &large()) + &wire(&stream, 2, &note(2)));
}

#[test]
fn an_event_that_goes_while_an_older_reader_is_given_it_cuts_that_reader_off() {
    let log = log_with(None);
    let (stream, writer) = open(&log);
    ready(writer.update(says(&large())));
    let mut older = Client::attach(&stream, Seq(0));
    begin_event(&mut older);
    let _newer = Client::attach(&stream, Seq(1));
    stream.resume_by_token(Some(Seq(1)));
    assert_eq!(read_pieces(&mut older), Poll::Ready(ReadOutcome::Cut));
}

#[test]
fn a_stream_that_never_pauses_stays_within_its_bounds_and_cuts_off_a_reader_that_is_too_slow() {
    let log = log_with(None);
    let reservation = log.admit(quota(&log, 0).reserve(0), 0).unwrap();
    let policy = Policy { can_pause: false, ..spec().policy };
    let stream = log.create(Spec { policy, ids: Vec::new(), ..spec() }, reservation);
    let writer = log.writer(&stream);
    ready(writer.update(|machine, _| machine.handle_stream_head()));
    ready(writer.update(says(&large())));
    let mut client = Client::attach(&stream, Seq(0));
    begin_event(&mut client);
    for _ in 0..3 {
        ready(writer.update(says(&large())));
    }
    assert!(stream.summary(clock::now()).kept_bytes <= 1 << 20);
    assert_eq!(read_pieces(&mut client), Poll::Ready(ReadOutcome::Cut));
    // The client resumes, and learns of the gap.
    let mut back = Client::attach(&stream, Seq(0));
    assert!(matches!(read_pieces(&mut back), Poll::Ready(ReadOutcome::Trimmed(_))));
}

#[tokio::test(start_paused = true)]
async fn a_full_stream_whose_reader_takes_a_large_event_slowly_does_not_fail() {
    let log = log_with(None);
    let (stream, writer) = open(&log);
    let mut client = Client::attach(&stream, Seq(0));
    for _ in 0..3 {
        ready(writer.update(says(&large())));
    }
    begin_event(&mut client);
    // A full stream waits thirty seconds for a reader that reads nothing.
    for _ in 0..4 {
        tokio::time::advance(Duration::from_secs(20)).await;
        assert!(client.read(PIECE).is_ready());
        ready(writer.update(|machine, now| machine.handle_timeout(now)));
        assert!(!stream.with_machine(|machine| machine.lifecycle().is_sealed()));
    }
    tokio::time::advance(Duration::from_secs(31)).await;
    ready(writer.update(|machine, now| machine.handle_timeout(now)));
    ready(writer.update(|machine, now| machine.handle_upstream_end(Ending::Clean, now)));
    assert!(stream.with_machine(|machine| machine.lifecycle().is_sealed()));
}

#[test]
fn a_piece_counts_until_it_is_dropped() {
    let log = log_with(None);
    let (stream, _writer) = open(&log);
    let client = Client::attach(&stream, Seq(0));
    let mine = quota(&log, 0);
    let before = mine.bytes();
    let piece = client.attachment.counted(BytesMut::from(&vec![b'x'; PIECE][..]));
    assert_eq!(mine.bytes() - before, PIECE);
    let slice = piece.slice(..1);
    drop((piece, client));
    assert_eq!(mine.bytes() - before, PIECE, "the slice keeps the whole");
    drop(slice);
    assert_eq!(mine.bytes(), before);
}

#[test]
fn a_large_event_under_another_name_goes_out_in_pieces_and_is_not_copied() {
    let log = log_with(None);
    let names = |id: &str| Names { id: RequestId::Number(id.into()), progress: None };
    let sameness = CallDigest::of(b"{}", "m").unwrap();
    let slicing = Slicing { sameness, form: Form::Bare, length: Duration::from_secs(60), first: names("1") };
    let reservation = log.admit(quota(&log, 0).reserve(0), 0).unwrap();
    let stream = log.create(Spec { slicing: Some(slicing), ..spec() }, reservation);
    let writer = log.writer(&stream);
    ready(writer.update(|machine, _| machine.handle_stream_head()));
    let text = "x".repeat(LARGE);
    let response = |id: &str| {
        [
            format!("{{\"jsonrpc\":\"2.0\",\n \"id\":{id},\n \"result\":[]}}"),
            format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{{\"text\":\"{text}\"}}}}"),
            format!("{{\"result\":{{\"text\":\"{text}\"}},\n\"jsonrpc\":\"2.0\",\n\"id\":{id}}}"),
        ]
    };
    response("1").iter().for_each(|message| ready(writer.update(says(message))));

    let slice = stream.begin_slice(names("22222"));
    let attachment = stream.attach(new_attach(), Seq(0)).with_slice(slice);
    let mut client = Client { attachment, cursor: Seq(0), text: BytesMut::new(), bell: Arc::default() };
    let before = quota(&log, 0).bytes();
    begin_event(&mut client);
    assert_eq!(quota(&log, 0).bytes(), before);
    assert!(read_pieces(&mut client).is_pending());
    let mut whole = String::new();
    for (seq, message) in (1..).zip(response("22222")) {
        let mut id = String::new();
        ids::write_event_id(&mut id, client.attachment.handle(), Seq(seq), None).unwrap();
        whole += &format!("id: {id}\nevent: message\ndata: {}\n\n", message.replace('\n', "\ndata: "));
    }
    assert!(client.text() == whole, "{} bytes", client.text.len());
}

#[test]
fn connections_that_take_no_stream_share_one_copy_of_the_response() {
    let log = log_with(None);
    let (stream, writer) = open(&log);
    let response = format!(r#"{{"jsonrpc":"2.0","id":1,"result":{{"text":"{}"}}}}"#, "x".repeat(LARGE));
    ready(writer.update(says(&response)));
    let before = quota(&log, 0).bytes();
    let bodies: Vec<_> = (0..30).map(|_| stream.delivery().collect().unwrap().body).collect();
    assert!(bodies.iter().all(|body| *body == response));
    let more = quota(&log, 0).bytes() - before;
    assert!((LARGE..LARGE + 1000).contains(&more), "{more} bytes");
    drop(bodies);
    assert_eq!(quota(&log, 0).bytes(), before);
    assert_eq!(stream.delivery().collect().unwrap().body, response, "a new copy");
}
