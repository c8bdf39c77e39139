//! Calls that have ended and are proven to be delivered: the size of their stubs, their retention,
//! and that no caller is refused because of them.

use super::quotas::{finish, is_kept, open_of, tight, write};
use super::retention::{cursor_of, settle, sweeping};
use super::*;
use crate::event_log::backing::schema::Slicing;
use crate::event_log::sessions::{Session, Sessions};
use crate::event_log::stream::response_head::Plain;
use crate::event_log::stream::stub::Stub;
use crate::event_log::writer::stream_table::StreamEntry;
use crate::protocol::call_name::CallName;
use crate::protocol::dialect::resume_tokens::{CallDigest, Form, Names};
use crate::protocol::headers::SessionId;
use crate::protocol::ids::EventId;
use crate::protocol::jsonrpc::Message;
use crate::protocol::request_ids::IdUse;
use crate::protocol::stream::{ClientResponse, CursorPlace, Phase};

/// Runs a call to its end: `notes` events and its response, all read by its client.
fn ended(log: &EventLog, caller: u8, notes: usize) -> Arc<Stream> {
    let (stream, writer) = open_of(log, caller);
    (0..notes).for_each(|n| ready(writer.update(says(&note(n)))));
    finish(log, &stream, &writer);
    let mut client = Client::attach(&stream, Seq(0));
    assert_eq!(client.read_all(), Poll::Ready(ReadOutcome::Ended));
    stream
}

/// Ends a call and proves its delivery; returns the ids of its events from 0 on. The stream has no
/// other owner.
fn proven(log: &EventLog, caller: u8, notes: usize) -> Vec<EventId> {
    let stream = ended(log, caller, notes);
    let ids = (0..=notes as u64 + 1).map(|seq| cursor_of(&stream, Seq(seq))).collect();
    log.retention().note_delivered(stream, DeliveryCertainty::Proven);
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
    stream.trace().set_name(|| CallName { method: "tools/call".into(), tool: Some("slow".into()) });
    let id = cursor_of(&stream, Seq(0));
    let name = stream.trace().name().cloned();
    log.retention().note_delivered(stream, DeliveryCertainty::Proven);
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
    log.retention().retain(&stream);
    drop(writer);
    log.retention().note_delivered(stream, DeliveryCertainty::Proven);
    assert_eq!(stubs(&log), 1);
    assert!(quota(&log, 0).bytes() <= 512 + 460 + text.len(), "{} bytes", quota(&log, 0).bytes());
    // A boxed stub, the id of its session, its entry in a map that has just grown, and its entries
    // in the lists by time.
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
        log.retention().note_delivered(ended(&log, 1, 1), DeliveryCertainty::Likely);
    }
    assert!(quota(&log, 1).bytes() <= 100_000);
}

#[tokio::test(start_paused = true)]
async fn stubs_go_before_streams_that_have_arrived_and_the_oldest_of_them_first() {
    let log = tight(|allowance| allowance.max_bytes = 60_000);
    let likely = ended(&log, 1, 10);
    log.retention().note_delivered(likely.clone(), DeliveryCertainty::Likely);
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
    assert!(schedule(&writer).1, "that was room enough");
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_a_stub_could_not_serve_stays_whole() {
    let log = log_with(None);
    // A connection reads the stream.
    let read = ended(&log, 0, 1);
    let reader = Client::attach(&read, Seq(0));
    // The upstream has not ended.
    let (open, open_writer) = open_of(&log, 0);
    let ids = [&read, &open].map(|stream| stream.id());
    for stream in [read, open] {
        log.retention().note_delivered(stream.clone(), DeliveryCertainty::Likely);
        log.retention().release(stream);
    }
    assert!(ids.iter().all(|id| log.streams.get(*id).is_some()));
    assert_eq!(stubs(&log), 0);
    drop((reader, open_writer));
}

/// Reads the stream of `id` as a client that resumes; returns what it got. The stream is released.
fn resumed(log: &EventLog, id: &EventId) -> String {
    let (stream, cursor) = log.find(log.verify(id).as_ref(), &binding()).expect("it is kept");
    let mut back = Client::attach(&stream, cursor);
    assert_eq!(back.read_all(), Poll::Ready(ReadOutcome::Ended));
    let text = back.text().to_owned();
    drop(back);
    log.retention().release(stream);
    text
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_over_is_a_stub_with_all_events_until_its_delivery_is_proven() {
    let log = log_with(None);
    let stream = ended(&log, 0, 3);
    let ids: Vec<_> = (0..=4).map(|seq| cursor_of(&stream, Seq(seq))).collect();
    let id = stream.id();
    let whole = { Client::attach(&stream, Seq(0)) };
    let handle = stream.handle().as_str().to_owned();
    drop(whole);
    log.retention().release(stream);
    assert_eq!(stubs(&log), 1);
    for _ in 0..3 {
        let text = resumed(&log, &ids[0]);
        assert_eq!(text.matches("\n\n").count(), 4);
        assert!(
            text.contains(&note(2)) && text.contains(RESPONSE) && text.contains(&format!("id: {handle}")),
            "{text}"
        );
        assert_eq!(stubs(&log), 1, "and it is a stub again");
    }
    assert_eq!(resumed(&log, &ids[3]).matches("\n\n").count(), 1);
    let before = quota(&log, 0).bytes();
    log.retention().note_proven(id);
    log.retention().note_proven(id);
    assert!(quota(&log, 0).bytes() < before);
    assert_eq!(place(&log, &ids[2]), Some(CursorPlace::Lost));
    assert_eq!(resumed(&log, &ids[3]).matches("\n\n").count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_stub_is_kept_for_its_retention_from_its_last_reader_on() {
    let log = Arc::new(log_with(None));
    let sweeper = sweeping(&log);
    let stream = ended(&log, 0, 1);
    let id = cursor_of(&stream, Seq(0));
    log.retention().release(stream);
    settle().await;
    tokio::time::advance(RETENTION - Duration::from_secs(1)).await;
    settle().await;
    assert_eq!(resumed(&log, &id).matches("\n\n").count(), 2);
    tokio::time::advance(RETENTION - Duration::from_secs(1)).await;
    settle().await;
    assert_eq!((log.len(), stubs(&log)), (1, 1));
    tokio::time::advance(Duration::from_secs(2)).await;
    settle().await;
    assert!(log.is_empty());
    assert_eq!(quota(&log, 0).bytes(), 0);
    sweeper.abort();
}

/// Returns the stream of the call that a POST repeats, or `None` if the POST is a new call.
fn repeated(log: &EventLog, call: Fingerprint) -> Option<Arc<Stream>> {
    let matches = |stream: &Arc<Stream>| stream.retries().compare(None, IdUse::Unique) == RetryMatch::Retry;
    log.find_or_register(call, IdUse::Unique, matches, || Err(())).ok().map(|found| match found {
        Match::Found(stream) | Match::New(stream, _) => stream,
    })
}

#[tokio::test(start_paused = true)]
async fn a_retry_finds_the_stub_of_an_undelivered_call_with_its_head() {
    let log = Arc::new(log_with(None));
    let sweeper = sweeping(&log);
    let call = Fingerprint::of_body("", b"{}");
    let Ok(Match::New(stream, registration)) =
        log.find_or_register(call, IdUse::Unique, |_| false, || Ok::<_, ErrorCode>(create(&log, 0)))
    else {
        panic!("nothing is registered yet")
    };
    stream.retries().register(registration);
    stream.upstream().set_sent();
    let writer = log.writer(&stream);
    ready(writer.update(|machine, _| machine.handle_stream_head()));
    let headers = http::HeaderMap::from_iter([(http::header::DATE, http::HeaderValue::from_static("today"))]);
    writer.set_head(Head::Stream(http::StatusCode::ACCEPTED, Arc::new(headers.clone())));
    log.publish_once(&stream);
    finish(&log, &stream, &writer);
    drop(writer);
    let id = stream.id();
    log.retention().release(stream);
    assert_eq!(stubs(&log), 1);
    for _ in 0..2 {
        let again = repeated(&log, call).expect("it was not delivered");
        assert_eq!(again.id(), id);
        let Head::Stream(status, head) = again.head_now() else { panic!("the head is the upstream's") };
        assert_eq!((status, &*head), (http::StatusCode::ACCEPTED, &headers));
        log.retention().release(again);
        assert_eq!(stubs(&log), 1);
    }
    // Once it is delivered the same POST is a new call.
    let again = repeated(&log, call).expect("it was not delivered");
    log.retention().note_delivered(again, DeliveryCertainty::Likely);
    assert_eq!((stubs(&log), log.retry_index().len()), (1, 0));
    assert!(repeated(&log, call).is_none());
    settle().await;
    tokio::time::advance(RETENTION + Duration::from_secs(1)).await;
    settle().await;
    assert!(log.is_empty());
    sweeper.abort();
}

#[tokio::test(start_paused = true)]
async fn a_stub_leaves_the_retry_index_with_its_retention() {
    let log = Arc::new(log_with(None));
    let sweeper = sweeping(&log);
    let call = Fingerprint::of_body("", b"{}");
    let Ok(Match::New(stream, registration)) =
        log.find_or_register(call, IdUse::Unique, |_| false, || Ok::<_, ErrorCode>(open_of(&log, 0).0))
    else {
        panic!("nothing is registered yet")
    };
    stream.retries().register(registration);
    stream.upstream().set_sent();
    let writer = log.writer(&stream);
    finish(&log, &stream, &writer);
    drop(writer);
    log.retention().release(stream);
    assert_eq!((stubs(&log), log.retry_index().len()), (1, 1));
    settle().await;
    tokio::time::advance(RETENTION + Duration::from_secs(1)).await;
    settle().await;
    assert_eq!((log.len(), log.retry_index().len()), (0, 0));
    sweeper.abort();
}

#[tokio::test(start_paused = true)]
async fn a_drain_waits_for_the_client_of_a_stub() {
    let log = log_with(None);
    let patience = Duration::from_secs(3);
    let stream = ended(&log, 0, 1);
    log.retention().release(stream);
    assert_eq!((stubs(&log), log.unfetched(patience)), (1, 1));
    tokio::time::advance(patience).await;
    assert_eq!(log.unfetched(patience), 0);
    log.retention().note_delivered(ended(&log, 0, 1), DeliveryCertainty::Likely);
    assert_eq!((stubs(&log), log.unfetched(patience)), (2, 0));
}

#[test]
fn no_two_streams_stand_for_one_call_while_it_is_released_and_found() {
    const USERS: usize = 4;
    let log = log_with(None);
    let call = Fingerprint::of_body("", b"{}");
    let Ok(Match::New(stream, registration)) =
        log.find_or_register(call, IdUse::Unique, |_| false, || Ok::<_, ErrorCode>(open_of(&log, 0).0))
    else {
        panic!("nothing is registered yet")
    };
    stream.retries().register(registration);
    stream.upstream().set_sent();
    let writer = log.writer(&stream);
    (0..5).for_each(|n| ready(writer.update(says(&note(n)))));
    finish(&log, &stream, &writer);
    drop(writer);
    let id = cursor_of(&stream, Seq(0));
    log.retention().release(stream);
    let reduced = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for user in 0..USERS {
            let (log, id, reduced) = (&log, &id, &reduced);
            scope.spawn(move || {
                for turn in 0..3000 {
                    let by_retry = (user + turn) % 2 == 0;
                    let stream = if by_retry { log.find_call(&call) } else { None };
                    let stream = stream.or_else(|| Some(log.find(log.verify(id).as_ref(), &binding())?.0));
                    let stream = stream.expect("it is kept");
                    let same = log.find_call(&call).expect("it can be retried");
                    assert!(Arc::ptr_eq(&stream, &same), "another stream stands for the call");
                    drop(same);
                    let mut client = Client::attach(&stream, Seq(0));
                    match client.read_all() {
                        Poll::Ready(ReadOutcome::Ended) => assert_eq!(client.text().matches("\n\n").count(), 6),
                        outcome => assert!(matches!(outcome, Poll::Ready(ReadOutcome::TakenOver(_))), "{outcome:?}"),
                    }
                    drop(client);
                    log.retention().release(stream);
                    reduced.fetch_add(stubs(log), Ordering::Relaxed);
                }
            });
        }
    });
    assert!(reduced.load(Ordering::Relaxed) > 0, "it was never a stub in between");
    assert_eq!((log.len(), log.retry_index().len()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_large_response_moves_into_its_stub() {
    let log = log_with(None);
    let (stream, writer) = open_of(&log, 0);
    let large = format!(r#"{{"jsonrpc":"2.0","id":1,"result":"{}"}}"#, "x".repeat(200_000));
    ready(writer.update(says(&note(1))));
    ready(writer.update(says(&large)));
    ready(writer.update(|machine, now| machine.handle_upstream_end(crate::protocol::stream::Ending::Clean, now)));
    log.retention().retain(&stream);
    let before = cursor_of(&stream, Seq(1));
    drop(writer);
    let held = quota(&log, 0).bytes();
    log.retention().note_delivered(stream, DeliveryCertainty::Proven);
    assert!(quota(&log, 0).bytes() < held, "it is in one place");
    let (stream, cursor) = log.find(log.verify(&before).as_ref(), &binding()).unwrap();
    let mut back = Client::attach(&stream, cursor);
    assert_eq!(back.read_all(), Poll::Ready(ReadOutcome::Ended));
    assert!(back.text().contains(&large));
}

/// A running call in a session.
fn stream_in_session(log: &EventLog, session: &Arc<Session>) -> (Arc<Stream>, Writer) {
    let binding = Binding { session: Some(session.id().clone()), ..binding() };
    let reservation = log.admit(quota(log, 0).reserve(0), 0).unwrap();
    let stream = log.create(Spec { binding, ..spec() }, reservation);
    session.add_stream(&stream);
    let writer = log.writer(&stream);
    ready(writer.update(|machine, _| machine.handle_stream_head()));
    log.publish_once(&stream);
    (stream, writer)
}

/// A call in a session that has ended and left its stub, after `notes` events.
fn stub_in_session(log: &EventLog, session: &Arc<Session>, before: impl FnOnce(&Stream, &Writer)) -> StreamId {
    let (stream, writer) = stream_in_session(log, session);
    before(&stream, &writer);
    finish(log, &stream, &writer);
    drop(writer);
    let id = stream.id();
    log.retention().release(stream);
    assert!(log.streams.entries.get(&id).is_some_and(|known| known.stub().is_some()), "it is a stub");
    id
}

fn session_of(log: &EventLog) -> Arc<Session> {
    log.sessions().find_or_record(&SessionId::parse("s").unwrap(), &binding().principal)
}

#[tokio::test(start_paused = true)]
async fn a_deleted_session_revokes_the_token_of_a_stub() {
    let log = log_with(None);
    let session = session_of(&log);
    let mut token = String::new();
    stub_in_session(&log, &session, |stream, _| token = stream.handles().resume_token());
    let token = ResumeToken::parse(&token).unwrap();
    let handle = log.verify(token.handle());
    let finds = || {
        let found = log.find_by(StreamName::Token(&token, handle.as_ref()), &binding());
        found.map(|(stream, _)| log.retention().release(stream)).is_some()
    };
    assert!(finds() && finds());
    assert_eq!((stubs(&log), session.streams().len()), (1, 0));
    log.retention().expire_finished(&session).await;
    assert_eq!(stubs(&log), 1);
    assert!(!finds());
}

#[tokio::test(start_paused = true)]
async fn a_call_that_ends_while_its_session_is_deleted_stays_a_stream_until_its_token_is_revoked() {
    let log = log_with(None);
    let session = session_of(&log);
    let (stream, writer) = stream_in_session(&log, &session);
    let token = ResumeToken::parse(&stream.handles().resume_token()).unwrap();
    let handle = log.verify(token.handle());
    let removed = log.stored_sessions().forget(session.id(), &binding().principal).await.unwrap();
    finish(&log, &stream, &writer);
    drop(writer);
    log.retention().release(stream);
    assert_eq!((stubs(&log), removed.streams().len()), (0, 1), "the record finds it");
    for stream in removed.streams() {
        stream.expire(ErrorCode::Abandoned);
        log.retention().release(stream);
    }
    assert_eq!(stubs(&log), 1);
    assert!(log.find_by(StreamName::Token(&token, handle.as_ref()), &binding()).is_none());
}

#[tokio::test(start_paused = true)]
async fn a_client_response_finds_the_stub_whose_server_has_asked() {
    let log = log_with(None);
    let session = session_of(&log);
    let ask = |id: &str| format!(r#"{{"jsonrpc":"2.0","id":"{id}","method":"roots/list"}}"#);
    let id = |text: &str| RequestId::String(text.into());
    stub_in_session(&log, &session, |stream, writer| {
        ready(writer.update(says(&ask("answered"))));
        ready(writer.update(says(&ask("waiting"))));
        assert_eq!(
            stream.change(|machine, now| machine.handle_client_response(&id("answered"), now)),
            ClientResponse::First
        );
    });
    stub_in_session(&log, &session, |_, _| {});
    assert_eq!((stubs(&log), session.streams().len()), (2, 0));
    let respond = |text: &str| {
        let messages = [Message::Response { id: Some(id(text)), is_error: false }];
        let asking = log.retention().asking_streams(session.id(), &session, &messages);
        Sessions::match_client_response(&asking, &id(text)).0
    };
    let unanswered = || log.retention().unanswered_requests(session.id(), &[binding().principal]);
    assert_eq!(unanswered(), [id("waiting")]);
    let read = log.retention().concerned_streams(
        session.id(),
        &session,
        &[Message::Response { id: Some(id("answered")), is_error: false }],
    );
    assert_eq!((read.len(), stubs(&log)), (1, 1), "it is a stream while it is read");
    assert_eq!(unanswered(), [id("waiting")]);
    drop(read);
    assert_eq!(stubs(&log), 2);
    assert_eq!(respond("unknown"), ClientResponse::Unknown);
    assert_eq!(stubs(&log), 2, "none was made a stream for it");
    for expected in [ClientResponse::Duplicate; 2] {
        assert_eq!(respond("answered"), expected);
    }
    assert_eq!((respond("waiting"), respond("waiting")), (ClientResponse::Late, ClientResponse::Duplicate));
    assert_eq!(stubs(&log), 2);
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_was_a_stub_counts_the_requests_of_its_server_and_its_slices() {
    let log = log_with(None);
    let names = |n: usize| Names { id: RequestId::String(format!("{n:0>200}").into()), progress: None };
    let sameness = CallDigest::of(b"{}", "m").unwrap();
    let slicing = Slicing { sameness, form: Form::Bare, length: Duration::from_secs(60), first: names(0) };
    for (asks, slices) in [(200, 0), (0, 20)] {
        let reservation = log.admit(quota(&log, 0).reserve(0), 0).unwrap();
        let stream = log.create(Spec { slicing: Some(slicing.clone()), ..spec() }, reservation);
        let writer = log.writer(&stream);
        ready(writer.update(|machine, _| machine.handle_stream_head()));
        log.publish_once(&stream);
        for n in 0..asks {
            ready(writer.update(says(&format!(r#"{{"jsonrpc":"2.0","id":"{n:0>200}","method":"roots/list"}}"#))));
        }
        (1..=slices).for_each(|n| drop(stream.begin_slice(names(n))));
        finish(&log, &stream, &writer);
        drop(writer);
        let id = stream.id();
        log.retention().release(stream);
        assert_eq!(stubs(&log), 1);
        let before = quota(&log, 0).bytes();
        let (stream, _) = log.retention().expand_briefly(id).unwrap();
        let whole = quota(&log, 0).bytes();
        assert!(whole > before, "{whole} bytes, and {before} as a stub");
        log.retention().release(stream);
        assert_eq!(quota(&log, 0).bytes(), before);
        log.streams.entries.remove(&id);
        assert_eq!(quota(&log, 0).bytes(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_lists_a_stub_once_and_as_long_as_it_lives() {
    let log = Arc::new(log_with(None));
    let sweeper = sweeping(&log);
    let session = session_of(&log);
    let id = stub_in_session(&log, &session, |stream, _| drop(stream.handles().resume_token()));
    for _ in 0..3 {
        let (stream, _) = log.retention().expand_briefly(id).unwrap();
        session.join_stream(&stream);
        log.retention().release(stream);
    }
    assert_eq!(session.finished(), [id]);
    settle().await;
    tokio::time::advance(RETENTION * 2).await;
    settle().await;
    assert!(log.is_empty() && session.finished().is_empty() && !session.has_finished());
    sweeper.abort();
}

#[tokio::test(start_paused = true)]
async fn a_response_that_passed_through_is_a_stub_until_its_delivery_is_proven() {
    let log = log_with(None);
    let call = Fingerprint::of_body("", b"{}");
    let Ok(Match::New(stream, registration)) =
        log.find_or_register(call, IdUse::Unique, |_| false, || Ok::<_, ErrorCode>(create(&log, 0)))
    else {
        panic!("nothing is registered yet")
    };
    stream.retries().register(registration);
    stream.upstream().set_sent();
    let writer = log.writer(&stream);
    assert!(ready(writer.update(|machine, now| machine.handle_plain_head(now))));
    let headers = http::HeaderMap::from_iter([(http::header::DATE, http::HeaderValue::from_static("today"))]);
    let body = bytes::Bytes::from_static(br#"{"jsonrpc":"2.0","id":1,"result":{}}"#);
    writer.set_head(Head::Plain(Arc::new(Plain::kept(http::StatusCode::OK, headers.clone(), body.clone()))));
    log.retention().retain(&stream);
    drop(writer);
    let id = stream.id();
    log.retention().release(stream);
    assert_eq!(stubs(&log), 1);
    assert!(quota(&log, 0).bytes() <= 1536, "{} bytes", quota(&log, 0).bytes());
    for _ in 0..2 {
        let again = repeated(&log, call).expect("it was not delivered");
        let Head::Plain(plain) = again.head_now() else { panic!("the response passed through") };
        assert_eq!((plain.status, &plain.headers, plain.kept_body()), (http::StatusCode::OK, &headers, Some(&body)));
        assert_eq!(again.with_machine(|machine| machine.lifecycle().phase()), Phase::Passed);
        log.retention().note_delivered(again, DeliveryCertainty::Doubtful);
        assert_eq!(stubs(&log), 1, "a retry may still match it");
    }
    log.retention().note_proven(id);
    assert!(log.is_empty() && log.retry_index().is_empty());
    assert_eq!(quota(&log, 0).bytes(), 0);
}
