//! Streams of a dead process, and of a process that writes while another reads.

use super::*;
use crate::event_log::backing::schema::About;
use crate::protocol::error::ErrorCode;
use crate::protocol::ids::EventId;
use crate::protocol::stream::{CursorPlace, Phase};
use crate::store::test_store::TestStore;

/// Returns a log with this store, as a process of this name has it.
fn process(store: &Arc<TestStore>) -> Arc<EventLog> {
    Arc::new(log_with(Some(store.clone())))
}

pub(super) fn event_id(stream: &Stream, seq: u64) -> EventId {
    let mut text = String::new();
    ids::write_event_id(&mut text, stream.handle(), Seq(seq), None).unwrap();
    EventId::parse(text.as_bytes()).unwrap()
}

/// Ends the upstream's response.
pub(super) fn ended() -> impl FnOnce(&mut Machine, std::time::Instant) {
    |machine, now| machine.handle_upstream_end(crate::protocol::stream::Ending::Clean, now)
}

/// Resumes at `log` with this id; returns the events and the outcome of the read.
pub(super) async fn read_again(log: &Arc<EventLog>, id: &EventId) -> (String, Poll<ReadOutcome>) {
    log.restoration().restore(&log.verify(id).expect("an id of ours")).await.unwrap();
    let (stream, cursor) = log.find(log.verify(id).as_ref(), &binding()).expect("it is in the store");
    let mut client = Client::attach(&stream, cursor);
    let outcome = client.read_all();
    (client.text().to_owned(), outcome)
}

#[tokio::test(start_paused = true)]
async fn a_sealed_stream_is_read_after_a_restart_as_before() {
    let store = Arc::new(TestStore::default());
    let before = process(&store);
    let (stream, writer) = open(&before);
    for n in 0..3 {
        writer.update(says(&note(n))).await;
    }
    writer.update(says(RESPONSE)).await;
    writer.update(ended()).await;
    writer.seal().await;
    let ids: Vec<EventId> = (0..=4).map(|seq| event_id(&stream, seq)).collect();
    let texts: Vec<String> = (0..3).map(|n| wire(&stream, n + 1, &note(n as usize))).collect();
    let whole = texts.concat() + &wire(&stream, 4, RESPONSE);
    drop((stream, writer, before));

    let after = process(&store);
    assert_eq!(read_again(&after, &ids[0]).await, (whole.clone(), Poll::Ready(ReadOutcome::Ended)));
    let rest = whole.strip_prefix(&texts.concat()).unwrap().to_owned();
    assert_eq!(read_again(&after, &ids[3]).await, (rest, Poll::Ready(ReadOutcome::Ended)));
    let (stream, cursor) = after.find(after.verify(&ids[4]).as_ref(), &binding()).unwrap();
    assert_eq!(stream.with_machine(|machine| machine.locate(cursor)), CursorPlace::AtEnd);
    let stranger = Binding { principal: Principal::Known([1; 16]), ..binding() };
    assert!(after.find(after.verify(&ids[0]).as_ref(), &stranger).is_none());
}

#[tokio::test(start_paused = true)]
async fn an_open_stream_of_a_process_that_died_ends_with_an_error() {
    let store = Arc::new(TestStore::default());
    let before = process(&store);
    let (stream, writer) = open(&before);
    writer.update(says(&note(0))).await;
    let id = event_id(&stream, 0);
    let first = wire(&stream, 1, &note(0));

    let after = process(&store);
    assert_eq!(after.adoption().recover().await.unwrap(), 1);
    let (text, outcome) = read_again(&after, &id).await;
    assert_eq!(outcome, Poll::Ready(ReadOutcome::Ended));
    let error = text.strip_prefix(&first).expect("what was logged is there");
    assert!(
        error.contains(r#""id":1,"#) && error.contains("-32011") && error.contains(r#""fault":"proxy""#),
        "{error}"
    );
    let (restored, _) = after.find(after.verify(&id).as_ref(), &binding()).unwrap();
    let failure = restored.with_machine(|machine| machine.lifecycle().failure()).map(|failure| failure.code);
    assert_eq!(failure, Some(ErrorCode::OwnerDied));
    assert_eq!(after.adoption().recover().await.unwrap(), 0, "once");

    // The old owner wakes: it can write nothing any more.
    let mut client = Client::attach(&stream, Seq(1));
    assert!(client.read_all().is_pending());
    writer.update(says(RESPONSE)).await;
    assert!(matches!(client.read_all(), Poll::Ready(ReadOutcome::Moved(_))));
    assert_eq!(client.text(), "");
    assert_eq!(read_again(&after, &id).await.0, text);
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_owed_nothing_any_more_is_completed() {
    let store = Arc::new(TestStore::default());
    let before = process(&store);
    let (stream, writer) = open(&before);
    writer.update(says(RESPONSE)).await;
    let id = event_id(&stream, 0);
    let whole = wire(&stream, 1, RESPONSE);

    let after = process(&store);
    after.adoption().recover().await.unwrap();
    assert_eq!(read_again(&after, &id).await, (whole, Poll::Ready(ReadOutcome::Ended)));
    let (restored, _) = after.find(after.verify(&id).as_ref(), &binding()).unwrap();
    let phase = restored.with_machine(|machine| machine.lifecycle().phase());
    assert!(matches!(phase, Phase::Sealed { outcome: crate::protocol::stream::Outcome::Completed, .. }), "{phase:?}");
}

#[tokio::test(start_paused = true)]
async fn a_question_that_was_answered_is_not_asked_again_after_a_restart() {
    const ASK: &str = r#"{"jsonrpc":"2.0","id":"q","method":"sampling/createMessage"}"#;
    let store = Arc::new(TestStore::default());
    let before = process(&store);
    let (stream, writer) = open(&before);
    writer.update(says(ASK)).await;
    stream.change(|machine, now| machine.handle_client_response(&RequestId::String("q".into()), now));
    writer.update(|_, _| ()).await;
    let id = event_id(&stream, 0);

    let after = process(&store);
    after.adoption().recover().await.unwrap();
    let (text, _) = read_again(&after, &id).await;
    assert!(!text.contains("sampling/createMessage") && text.contains("-32011"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_was_unreachable_has_the_whole_stream_in_the_end() {
    let store = super::slow::Slow::new();
    let log = Arc::new(log_with(Some(store.clone())));
    let (stream, writer) = open(&log);
    let id = event_id(&stream, 0);
    store.let_one_through();
    writer.update(says(&note(0))).await;
    store.set_broken(true);
    writer.update(says(&note(1))).await;
    let mut client = Client::attach(&stream, Seq(0));
    assert!(client.read_all().is_pending());
    assert_eq!(client.text(), wire(&stream, 1, &note(0)) + &wire(&stream, 2, &note(1)), "memory stands for it");
    store.set_broken(false);
    store.open();
    writer.update(says(RESPONSE)).await;
    writer.update(ended()).await;
    writer.seal().await;

    let after = process(&store.behind);
    let whole = client.text().to_owned() + &wire(&stream, 3, RESPONSE);
    assert_eq!(read_again(&after, &id).await, (whole, Poll::Ready(ReadOutcome::Ended)));
}

#[tokio::test]
async fn the_record_of_a_running_call_has_its_progress_tokens() {
    let log = log_with(None);
    let (stream, writer) = open(&log);
    let about = |stream: &Stream| -> serde_json::Value { serde_json::from_slice(&stream.about().encode()).unwrap() };
    assert!(about(&stream).get("progress").is_none());
    assert!(
        About::decode(&stream.about().encode()).unwrap().progress.is_none(),
        "as in a record of an earlier version"
    );
    let body = br#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"_meta":{"progressToken":"t"}}}"#;
    stream.keep_asking(AskingRequests { body: Arc::new(body), except: None });
    assert_eq!(about(&stream)["progress"]["tokens"], serde_json::json!([{ "request": 0, "token": "\"t\"" }]));
    let restored = About::decode(&stream.about().encode()).unwrap().progress.unwrap();
    assert_eq!(CallProgress::restore(restored).record(), stream.progress().unwrap().record());
    writer.update(says(RESPONSE)).await;
    writer.update(ended()).await;
    assert!(about(&stream).get("progress").is_none(), "nothing is written for a call that is over");
}
