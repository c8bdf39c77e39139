//! Announcements of the dialects around a stream's messages, and the status of a stream.

use super::*;
use crate::protocol::dialect::Status;
use crate::protocol::error::ErrorCode;
use crate::protocol::stream::{Announcements, Ending, Resume};

fn frame() -> Announcements {
    Announcements { opening: vec![b"policy".to_vec(), b"create".to_vec()], closing: Some(b"end".to_vec()) }
}

/// Creates a stream with announcements whose upstream has begun to respond.
fn framed(log: &EventLog) -> (Arc<Stream>, Writer) {
    let stream = create(log, 0);
    stream.change(|machine, _| machine.lifecycle_mut().set_announcements(frame()));
    let writer = log.writer(&stream);
    ready(writer.update(|machine, _| machine.handle_stream_head()));
    (stream, writer)
}

fn say(writer: &Writer, message: &str) {
    ready(writer.update(|machine, now| machine.handle_message(b"message", message.as_bytes(), now)));
}

fn result() -> String {
    r#"{"jsonrpc":"2.0","id":1,"result":{}}"#.to_owned()
}

/// Returns the data of every readable event.
fn events(stream: &Arc<Stream>) -> Vec<String> {
    let mut attachment = stream.attach(new_attach(), Seq(0));
    let mut out = BytesMut::new();
    let _ = attachment.poll_read(&mut Context::from_waker(Waker::noop()), Seq(0), &mut out, 1 << 16);
    let text = String::from_utf8(out.to_vec()).unwrap();
    text.lines().filter_map(|line| line.strip_prefix("data: ")).map(str::to_owned).collect()
}

#[test]
fn a_frame_stands_around_everything_else() {
    let log = log_with(None);
    let (stream, writer) = framed(&log);
    assert_eq!(events(&stream), ["policy", "create"]);
    say(&writer, &note(1));
    say(&writer, &result());
    ready(writer.update(|machine, now| machine.handle_upstream_end(Ending::Clean, now)));
    assert_eq!(events(&stream), ["policy", "create", &note(1), &result(), "end"]);
}

#[test]
fn an_error_of_the_proxys_own_is_within_the_frame() {
    let log = log_with(None);
    let (stream, writer) = framed(&log);
    ready(writer.update(|machine, now| machine.handle_upstream_end(Ending::Broken, now)));
    let events = events(&stream);
    assert_eq!((events.len(), events[3].as_str()), (4, "end"));
    assert!(events[2].contains("-32010"), "{events:?}");
    let status = stream.status(None);
    assert_eq!((status.is_completed, status.has_failed, status.has_error, status.pending), (true, true, true, 1));
    let status = stream.status(Some(Seq(3)));
    assert_eq!((status.has_failed, status.has_error, status.pending), (true, false, 0));
}

#[test]
fn a_response_that_never_began_has_no_frame() {
    let log = log_with(None);
    let stream = create(&log, 0);
    stream.change(|machine, _| machine.lifecycle_mut().set_announcements(frame()));
    let writer = log.writer(&stream);
    assert!(ready(writer.update(|machine, now| machine.handle_plain_head(now))));
    stream.expire(ErrorCode::Abandoned);
    ready(writer.update(|_, _| ()));
    assert_eq!(events(&stream), [""; 0]);
}

#[test]
fn announcements_and_answered_questions_are_not_pending() {
    let log = log_with(None);
    let (stream, writer) = framed(&log);
    let quiet = Status {
        is_completed: false,
        has_failed: false,
        pending: 0,
        awaits_input: false,
        has_request: false,
        has_error: false,
    };
    assert_eq!(stream.status(None), quiet);
    say(&writer, &note(1));
    say(&writer, r#"{"jsonrpc":"2.0","id":"q","method":"roots/list"}"#);
    let asked = Status { pending: 2, awaits_input: true, has_request: true, ..quiet };
    assert_eq!(stream.status(None), asked);
    assert_eq!(stream.status(Some(Seq(3))), Status { pending: 1, ..asked });
    assert_eq!(stream.status(Some(Seq(4))), Status { pending: 0, has_request: false, ..asked });
    assert_eq!(stream.status(Some(Seq(5))), asked, "no client has an event that does not exist");
    stream.change(|machine, now| machine.handle_client_response(&RequestId::String("q".into()), now));
    assert_eq!(stream.status(None), Status { pending: 1, ..quiet });
}

#[test]
fn only_a_confirmation_by_post_lets_go() {
    let log = log_with(None);
    let (stream, writer) = framed(&log);
    say(&writer, &note(1));
    say(&writer, &note(2));
    stream.resume(Resume::ByCursor, Some(Seq(3)));
    assert_eq!(stream.with_machine(|machine| machine.numbering().trimmed()), Seq(0));
    assert_eq!(stream.resume_by_token(None), Seq(3), "a GET confirms as well");
    assert_eq!(stream.resume_by_token(Some(Seq(2))), Seq(3));
    assert_eq!(stream.with_machine(|machine| machine.numbering().trimmed()), Seq(2));
    assert_eq!(stream.resume_by_token(Some(Seq(9))), Seq(3), "no client has an event that does not exist");
    assert_eq!(stream.resume_by_token(Some(Seq(4))), Seq(4));
    assert_eq!(stream.with_machine(|machine| machine.numbering().trimmed()), Seq(4));
}

#[test]
fn a_token_opens_its_own_stream_for_its_own_caller_until_it_is_revoked() {
    let log = log_with(None);
    let (stream, writer) = framed(&log);
    let (other, _other_writer) = framed(&log);
    let bare = open(&log).0;
    [&stream, &other, &bare].into_iter().for_each(|stream| log.publish_once(stream));
    let (token, theirs) = (stream.handles().resume_token(), other.handles().resume_token());
    let find = |text: &str, binding: &Binding| {
        let token = ResumeToken::parse(text).unwrap();
        let found = log.find_by(StreamName::Token(&token, log.verify(token.handle()).as_ref()), binding);
        found.map(|(stream, _)| stream)
    };
    let found = |text: &str| find(text, &binding()).map(|stream| stream.id());
    assert_eq!((found(&token), found(&theirs)), (Some(stream.id()), Some(other.id())));
    let (handle, secret) = token.split_once('~').unwrap();
    let (their_handle, their_secret) = theirs.split_once('~').unwrap();
    for wrong in [
        format!("{handle}~{their_secret}"),
        format!("{their_handle}~{secret}"),
        format!("{handle}~AAAAAAAAAAAAAAAAAAAAAA"),
        format!("{}~{secret}", bare.handle().as_str()),
    ] {
        assert_eq!(found(&wrong), None, "{wrong}");
    }
    let stranger = Binding { principal: Principal::Known([9; 16]), ..binding() };
    assert!(find(&token, &stranger).is_none());
    let elsewhere = Binding { session: None, ..binding() };
    assert!(find(&token, &elsewhere).is_some(), "tokens outlive sessions");
    stream.expire(ErrorCode::Abandoned);
    ready(writer.update(|_, _| ()));
    assert_eq!(found(&token), None);
    assert!(other.cancel(&id()));
    assert_eq!(found(&theirs), None);
    for text in ["", "~", "a~b", &token[..token.len() - 1], handle] {
        assert!(ResumeToken::parse(text).is_none(), "{text}");
    }
}
