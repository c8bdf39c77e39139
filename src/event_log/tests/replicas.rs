//! Two replicas with one store: clients of each read what the other writes.

use super::restoring::{ended, event_id, read_again};
use super::slow::Slow;
use super::*;
use crate::cluster::{Absence, Replicas};
use crate::protocol::cluster::Reader;
use crate::protocol::error::ErrorCode;
use crate::protocol::ids::EventId;
use crate::protocol::stream::{Batch, CursorPlace, Resume};
use crate::store::test_store::TestStore;
use crate::store::{Appended, Coordination, Read, Renewal};

pub(super) const LEASE: Duration = Duration::from_secs(15);

/// A replica with its messages.
pub(super) struct Replica {
    pub(super) log: Arc<EventLog>,
    pub(super) replicas: Arc<Replicas>,
    store: Arc<TestStore>,
    running: tokio::task::JoinHandle<()>,
}

impl Replica {
    pub(super) async fn of(store: &TestStore, owner: u32) -> Self {
        Self::limited(store, owner, allowance()).await
    }

    pub(super) async fn limited(store: &TestStore, owner: u32, allowance: QuotaLimits) -> Self {
        let store = Arc::new(store.as_of(Owner(owner)));
        let log = Arc::new(limited_log_of(Owner(owner), store.clone(), allowance));
        let coordination = log.coordination().unwrap();
        let replicas = Replicas::begin(coordination, log.clone(), LEASE).await.unwrap();
        let running = tokio::spawn({
            let replicas = replicas.clone();
            async move { replicas.run(|_| async { None }).await }
        });
        Self { log, replicas, store, running }
    }

    /// Stops all tasks of the replica at once, without a message to the others.
    pub(super) fn kill(&self) {
        self.running.abort();
    }

    /// Resumes at this replica with an event ID.
    async fn resume(&self, id: &EventId) -> Client {
        self.log.restoration().restore(&self.log.verify(id).expect("an id of ours")).await.unwrap();
        let (stream, cursor) = self.log.find(self.log.verify(id).as_ref(), &binding()).expect("it is in the store");
        stream.resume(Resume::ByCursor, Some(cursor));
        Client::attach(&stream, cursor)
    }
}

/// Lets every task run as far as it can.
pub(super) async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

fn is_read(stream: &Stream) -> bool {
    stream.with_machine(|machine| machine.reader().is_attached())
}

#[tokio::test(start_paused = true)]
async fn a_client_reads_at_one_replica_a_stream_that_another_writes() {
    let store = TestStore::default();
    let (one, two) = (Replica::of(&store, 1).await, Replica::of(&store, 2).await);
    let (stream, writer) = open(&one.log);
    one.log.publish_once(&stream);
    writer.update(says(&note(0))).await;
    let mut client = two.resume(&event_id(&stream, 0)).await;
    assert!(client.read_all().is_pending());
    assert_eq!(client.text(), wire(&stream, 1, &note(0)));
    for n in 1..4 {
        writer.update(says(&note(n))).await;
        settle().await;
        assert!(client.read_all().is_pending());
        assert!(client.text().ends_with(&wire(&stream, n as u64 + 1, &note(n))));
    }
    writer.update(says(RESPONSE)).await;
    writer.update(ended()).await;
    writer.seal().await;
    settle().await;
    assert_eq!(client.read_all(), Poll::Ready(ReadOutcome::Ended));
    let whole: String = (0..4).map(|n| wire(&stream, n + 1, &note(n as usize))).collect();
    assert_eq!(client.text(), whole + &wire(&stream, 5, RESPONSE));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_resumes_before_the_follower_has_its_event_waits_for_it() {
    let store = TestStore::default();
    let (one, two) = (Replica::of(&store, 1).await, Replica::of(&store, 2).await);
    let (stream, writer) = open(&one.log);
    one.log.publish_once(&stream);
    writer.update(says(&note(0))).await;
    drop(two.resume(&event_id(&stream, 0)).await);
    settle().await;
    writer.update(says(&note(1))).await;
    // The event is in the store, and unknown here: no task of this replica has run since.
    let id = event_id(&stream, 2);
    assert!(two.log.restoration().may_be_ahead(&two.log.verify(&id).expect("an id of ours")).is_some());
    let mut client = two.resume(&id).await;
    assert_eq!(two.log.restoration().may_be_ahead(&two.log.verify(&id).expect("an id of ours")), None);
    writer.update(says(&note(2))).await;
    settle().await;
    assert!(client.read_all().is_pending());
    assert_eq!(client.text(), wire(&stream, 3, &note(2)));
    // An event that no replica has stored is not awaited.
    let began = crate::clock::now();
    let ahead = event_id(&stream, 9);
    two.log.restoration().restore(&two.log.verify(&ahead).expect("an id of ours")).await.unwrap();
    assert!(
        two.log.restoration().may_be_ahead(&two.log.verify(&ahead).expect("an id of ours")).is_some()
            && crate::clock::now() == began
    );
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_was_adopted_before_a_lookup_is_found_at_its_new_owner() {
    let store = TestStore::default();
    let (one, two) = (Replica::of(&store, 1).await, Replica::of(&store, 2).await);
    let (stream, writer) = open(&one.log);
    writer.update(says(&note(0))).await;
    two.log.adoption().adopt(stream.id()).await.unwrap();
    writer.update(says(&note(1))).await;
    assert!(stream.replica().has_moved());
    // As when its response begins, and when its call ends.
    one.log.publish_once(&stream);
    one.log.retention().retain(&stream);
    let mut client = one.resume(&event_id(&stream, 0)).await;
    assert_eq!(client.read_all(), Poll::Ready(ReadOutcome::Ended));
    assert!(client.text().contains(&ErrorCode::OwnerDied.json_rpc().to_string()));
}

#[tokio::test(start_paused = true)]
async fn a_reader_at_another_replica_keeps_the_call_and_its_absence_does_not() {
    let store = TestStore::default();
    let (one, two) = (Replica::of(&store, 1).await, Replica::of(&store, 2).await);
    let (stream, writer) = open(&one.log);
    one.log.publish_once(&stream);
    writer.update(says(&note(0))).await;
    let abandoned_at = || stream.with_machine(|machine| machine.lifecycle().poll_timeout());
    assert!(abandoned_at().is_some(), "it has no reader");
    let client = two.resume(&event_id(&stream, 0)).await;
    settle().await;
    assert!(is_read(&stream) && abandoned_at().is_none());
    // The report is renewed while it reads.
    tokio::time::sleep(Duration::from_secs(3600)).await;
    settle().await;
    assert!(is_read(&stream));
    drop(client);
    settle().await;
    assert!(!is_read(&stream) && abandoned_at().is_some());
    // A stream of a dead replica is not awaited.
    let client = two.resume(&event_id(&stream, 0)).await;
    settle().await;
    assert!(is_read(&stream));
    two.kill();
    std::mem::forget(client);
    store.set_away(true);
    tokio::time::sleep(Duration::from_secs(30)).await;
    settle().await;
    assert!(!is_read(&stream));
}

#[tokio::test(start_paused = true)]
async fn the_newest_reader_displaces_the_others_at_every_replica() {
    let store = TestStore::default();
    let (one, two, three) = (Replica::of(&store, 1).await, Replica::of(&store, 2).await, Replica::of(&store, 3).await);
    let (stream, writer) = open(&one.log);
    one.log.publish_once(&stream);
    writer.update(says(&note(0))).await;
    let id = event_id(&stream, 0);
    let mut here = Client::attach(&stream, Seq(0));
    assert!(here.read_all().is_pending());

    let mut at_two = two.resume(&id).await;
    settle().await;
    assert!(matches!(here.read_all(), Poll::Ready(ReadOutcome::TakenOver(_))));
    assert!(at_two.read_all().is_pending());

    let mut at_three = three.resume(&id).await;
    settle().await;
    assert!(matches!(at_two.read_all(), Poll::Ready(ReadOutcome::TakenOver(_))));
    assert!(at_three.read_all().is_pending());

    let mut again = Client::attach(&stream, Seq(0));
    settle().await;
    assert!(matches!(at_three.read_all(), Poll::Ready(ReadOutcome::TakenOver(_))));
    writer.update(says(&note(1))).await;
    settle().await;
    assert!(again.read_all().is_pending());
    assert_eq!(again.text(), wire(&stream, 1, &note(0)) + &wire(&stream, 2, &note(1)));
    // Late reports of displaced readers change nothing.
    drop((at_two, at_three, here));
    tokio::time::sleep(Duration::from_secs(20)).await;
    settle().await;
    assert!(again.read_all().is_pending());
}

#[tokio::test(start_paused = true)]
async fn the_streams_of_a_dead_replica_end_once_its_lease_has_expired() {
    let store = TestStore::default();
    let (one, two) = (Replica::of(&store, 1).await, Replica::of(&store, 2).await);
    // Long enough for two to have seen the store for a lease.
    tokio::time::sleep(LEASE * 2).await;
    let (stream, writer) = open(&one.log);
    one.log.publish_once(&stream);
    writer.update(says(&note(0))).await;
    let mut client = two.resume(&event_id(&stream, 0)).await;
    assert!(client.read_all().is_pending());
    one.kill();
    tokio::time::sleep(LEASE + LEASE / 2).await;
    settle().await;
    assert_eq!(client.read_all(), Poll::Ready(ReadOutcome::Ended));
    assert!(client.text().contains("-32011"), "{}", client.text());

    // The old owner was only frozen: it adds nothing to the stream, and its readers are sent away.
    let mut late = Client::attach(&stream, Seq(1));
    assert!(late.read_all().is_pending());
    writer.update(says(RESPONSE)).await;
    assert!(matches!(late.read_all(), Poll::Ready(ReadOutcome::Moved(_))));
    let (text, _) = read_again(&two.log, &event_id(&stream, 1)).await;
    assert!(text.contains("-32011") && !text.contains("result"), "{text}");
}

/// Returns whether the store has the end of `stream`.
async fn is_sealed(store: &TestStore, stream: &Stream) -> bool {
    store.load(stream.id()).wait().await.unwrap().expect("the stream is there").sealed
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_was_cut_off_keeps_the_streams_that_no_client_requested_elsewhere() {
    let store = TestStore::default();
    let (one, two) = (Replica::of(&store, 1).await, Replica::of(&store, 2).await);
    tokio::time::sleep(LEASE * 2).await;
    let (kept, writer) = open(&one.log);
    let (asked, _) = open(&one.log);
    let (left, _) = open(&one.log);
    for stream in [&kept, &asked, &left] {
        one.log.publish_once(stream);
        Writer::new(stream.clone(), one.log.streams.clone()).update(says(&note(0))).await;
    }
    let mut client = Client::attach(&kept, Seq(1));
    one.kill();
    tokio::time::sleep(LEASE * 3).await;
    settle().await;
    assert!(!is_sealed(&store, &asked).await, "no client has asked for it");
    // A client that resumes has the end at once, and its disconnect changes nothing.
    let id = event_id(&asked, 0);
    let verified = two.log.verify(&id).expect("an id of ours");
    let mut asking = ByHand::new(two.log.restoration().restore(&verified));
    let _ = asking.poll();
    drop(asking);
    settle().await;
    assert!(is_sealed(&store, &asked).await);
    let (text, outcome) = read_again(&two.log, &event_id(&asked, 0)).await;
    assert!(text.contains("-32011") && outcome == Poll::Ready(ReadOutcome::Ended), "{text}");

    // The lease is renewed, as after the repair of a network.
    one.store.renew(LEASE).wait().await.unwrap();
    tokio::time::sleep(LEASE / 2).await;
    one.log.adoption().drop_taken_over().await.unwrap();
    writer.update(says(RESPONSE)).await;
    writer.update(ended()).await;
    writer.seal().await;
    assert_eq!(client.read_all(), Poll::Ready(ReadOutcome::Ended));
    let (text, _) = read_again(&two.log, &event_id(&kept, 1)).await;
    assert!(text.contains("result") && !text.contains("-32011"), "{text}");

    // The lease expires for good.
    tokio::time::sleep(LEASE * 3).await;
    settle().await;
    assert!(!is_sealed(&store, &left).await);
    tokio::time::sleep(Duration::from_secs(600)).await;
    settle().await;
    assert!(is_sealed(&store, &left).await);
    assert_eq!(two.store.expired_leases().wait().await.unwrap(), []);
}

#[tokio::test(start_paused = true)]
async fn the_end_reaches_a_client_that_read_more_than_the_store_had_when_the_writer_died() {
    for brought_back in 0..=3 {
        let store = TestStore::default();
        let (one, two) = (Replica::of(&store, 1).await, Replica::of(&store, 2).await);
        let (stream, writer) = open(&one.log);
        one.log.publish_once(&stream);
        for n in 0..3 {
            writer.update(says(&note(n))).await;
        }
        let mut client = two.resume(&event_id(&stream, 0)).await;
        assert!(client.read_all().is_pending());
        // The store loses the stream, and gets some of it again before the writer dies.
        let Read::Events(events) = store.read(stream.id(), Seq(0), 1024 * 1024).wait().await.unwrap() else { panic!() };
        let epoch = one.store.create(stream.id(), &stream.about().encode(), Seq(0), LEASE).wait().await.unwrap();
        let mut batch = Batch::starting_at(Seq(1));
        events.iter().take(brought_back).for_each(|(_, event)| batch.push_encoded(event));
        assert_eq!(one.store.append(stream.id(), epoch, Seq(0), &batch, None).wait().await.unwrap(), Appended::Ok);
        two.log.adoption().adopt(stream.id()).await.unwrap();
        settle().await;
        let is_whole = brought_back == 3;
        match client.read_all() {
            Poll::Ready(ReadOutcome::Moved(_)) => assert!(!is_whole),
            outcome => assert!(is_whole && outcome == Poll::Ready(ReadOutcome::Ended), "{brought_back}: {outcome:?}"),
        }
        assert_eq!(client.text().contains("-32011"), is_whole, "{}", client.text());

        // At every replica, the named place precedes the end, and the end follows it.
        let three = Replica::of(&store, 3).await;
        for replica in [&two, &three] {
            for seq in brought_back as u64..=3 {
                let (text, outcome) = read_again(&replica.log, &event_id(&stream, seq)).await;
                assert_eq!(outcome, Poll::Ready(ReadOutcome::Ended));
                assert!(text.contains("-32011") && !text.contains("progress"), "{brought_back} {seq}: {text}");
                let id = text.lines().find_map(|line| line.strip_prefix("id: ")).expect("an id");
                let (stream, cursor) = replica
                    .log
                    .find(replica.log.verify(&EventId::parse(id.as_bytes()).unwrap()).as_ref(), &binding())
                    .unwrap();
                assert_eq!(stream.with_machine(|machine| machine.locate(cursor)), CursorPlace::AtEnd, "{id}");
                // So are the positions named by a connection's first, empty event.
                let attachment = stream.attach(new_attach(), cursor);
                for (place, found) in [(cursor, cursor), (Seq(cursor.0 - 1), Seq(cursor.0 - 1))] {
                    let mut line = BytesMut::new();
                    attachment.write_id_of_place(&mut line, place, Some(attachment.id()));
                    let id = line.strip_prefix(b"id: ").and_then(|line| line.strip_suffix(b"\n"));
                    let id = id.and_then(EventId::parse).expect("an id of ours");
                    assert_eq!(replica.log.find(replica.log.verify(&id).as_ref(), &binding()).unwrap().1, found);
                }
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_read_an_adopted_end_finds_it_also_at_the_old_writer() {
    let store = TestStore::default();
    let (one, two) = (Replica::of(&store, 1).await, Replica::of(&store, 2).await);
    let (stream, writer) = open(&one.log);
    one.log.publish_once(&stream);
    writer.update(says(&note(0))).await;
    writer.update(says(RESPONSE)).await;
    writer.update(ended()).await;
    writer.seal().await;
    one.log.retention().retain(&stream);
    // The store returns with its contents from before the first event, and the replica is declared
    // dead.
    one.store.create(stream.id(), &stream.about().encode(), Seq(0), LEASE).wait().await.unwrap();
    two.log.adoption().adopt(stream.id()).await.unwrap();
    let (text, _) = read_again(&two.log, &event_id(&stream, 0)).await;
    assert!(text.contains("-32011") && text.contains(".1.adopted\n"), "{text}");
    let id = text.lines().find_map(|line| line.strip_prefix("id: ")).expect("an id");
    let id = EventId::parse(id.as_bytes()).expect("an id of ours");
    for replica in [&two, &one] {
        replica.log.restoration().restore(&replica.log.verify(&id).expect("an id of ours")).await.unwrap();
        let (stream, cursor) =
            replica.log.find(replica.log.verify(&id).as_ref(), &binding()).expect("it is in the store");
        assert_eq!(stream.with_machine(|machine| machine.locate(cursor)), CursorPlace::AtEnd);
    }
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_dies_after_a_data_loss_expires_by_its_grace_period() {
    let store = TestStore::default();
    let (one, two) = (Replica::of(&store, 1).await, Replica::of(&store, 2).await);
    tokio::time::sleep(LEASE).await;
    one.kill();
    store.lose();
    // The last event of the replica, which has no lease any more.
    let (stream, writer) = open(&one.log);
    one.log.publish_once(&stream);
    writer.update(says(&note(0))).await;
    assert_eq!(two.store.live_replicas().wait().await.unwrap(), []);
    settle().await;
    let mut client = two.resume(&event_id(&stream, 0)).await;
    tokio::time::sleep(LEASE * 2).await;
    settle().await;
    assert_eq!(client.read_all(), Poll::Ready(ReadOutcome::Ended));
    assert!(client.text().contains("-32011"), "{}", client.text());
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_wakes_leaves_the_streams_that_others_have_adopted() {
    let store = TestStore::default();
    let (one, two) = (Replica::of(&store, 1).await, Replica::of(&store, 2).await);
    let (stream, writer) = open(&one.log);
    one.log.publish_once(&stream);
    writer.update(says(&note(0))).await;
    let mut client = Client::attach(&stream, Seq(1));
    assert!(client.read_all().is_pending());
    two.log.adoption().adopt(stream.id()).await.unwrap();
    // The next renewal shows that the lease had expired.
    one.store.release().wait().await.unwrap();
    tokio::time::sleep(LEASE).await;
    settle().await;
    assert!(matches!(client.read_all(), Poll::Ready(ReadOutcome::Moved(_))));
    let (text, outcome) = read_again(&one.log, &event_id(&stream, 1)).await;
    assert_eq!(outcome, Poll::Ready(ReadOutcome::Ended));
    assert!(text.contains("-32011"), "{text}");
}

#[test]
fn no_replica_is_notified_of_a_reader_that_displaces_none_there() {
    let log = Arc::new(log_of(Owner(1), Arc::new(TestStore::default().as_of(Owner(1)))));
    let (stream, _writer) = open(&log);
    log.publish_once(&stream);
    let mut told = ByHand::new(log.remote_readers().wait_for_displaced());
    let _first = Client::attach(&stream, Seq(0));
    let _second = Client::attach(&stream, Seq(0));
    assert!(told.poll().is_pending());
    let attach = new_attach();
    let elsewhere = Reader {
        stream: stream.id(),
        from: Owner(2),
        attach: Some(attach),
        written: Seq(0),
        confirmed: Seq(0),
        returned: false,
        touches: 0,
    };
    assert_eq!(log.remote_readers().note_report(&elsewhere), []);
    assert!(told.poll().is_pending());
    let _third = Client::attach(&stream, Seq(0));
    assert!(told.poll().is_ready());
    assert_eq!(log.remote_readers().take_displaced(), [(Owner(2), stream.id(), attach)]);
}

/// Returns the number of streams that the replica has adopted.
fn adopted(log: &EventLog) -> u64 {
    log.context.backing.as_ref().expect("a store").metrics.adopted()
}

#[test]
fn a_stream_that_two_replicas_adopt_is_counted_by_the_one_that_ends_it() {
    for has_appended in [false, true] {
        let store = TestStore::default();
        let (stream, writer) = open(&log_of(Owner(1), Arc::new(store.as_of(Owner(1)))));
        ready(writer.update(says(&note(0))));
        let slow = Slow::before(store.as_of(Owner(2)));
        let two = Arc::new(log_with(Some(slow.clone())));
        let three = Arc::new(log_of(Owner(3), Arc::new(store.as_of(Owner(3)))));
        // The replica has adopted the stream, and is about to append or to seal.
        let held = slow.hold_seals();
        if has_appended {
            slow.let_one_through();
        }
        let mut adopting = ByHand::new(two.adoption().adopt(stream.id()));
        assert!(adopting.poll().is_pending());
        ready(three.adoption().adopt(stream.id())).unwrap();
        drop(held);
        slow.open();
        assert!(matches!(adopting.poll(), Poll::Ready(Ok(()))));
        assert_eq!((adopted(&two), adopted(&three)), (0, 1), "{has_appended}");
        let stored = ready(store.load(stream.id()).wait()).unwrap().expect("it is there");
        assert!(stored.sealed && stored.owner == Owner(3));
        assert_eq!(stored.tail, Seq(2), "one error is in it");
    }
}

#[test]
fn of_two_concurrent_adoptions_the_last_one_ends_the_stream() {
    let store = TestStore::default();
    let (stream, writer) = open(&log_of(Owner(1), Arc::new(store.as_of(Owner(1)))));
    ready(writer.update(says(&note(0))));
    let slow = [2, 3].map(|owner| Slow::before(store.as_of(Owner(owner))));
    let logs = slow.clone().map(|slow| Arc::new(log_with(Some(slow))));
    let held = slow.clone().map(|slow| slow.hold_loads());
    let mut adopting = logs.each_ref().map(|log| ByHand::new(log.adoption().adopt(stream.id())));
    assert!(adopting.iter_mut().all(|adopting| adopting.poll().is_pending()));
    drop(held);
    // Both look before either writes.
    assert!(adopting[0].poll().is_ready(), "it leaves that to the other");
    assert!(adopting[1].poll().is_pending());
    slow[1].open();
    assert!(adopting[1].poll().is_ready());
    let counted = logs.each_ref().map(|log| adopted(log));
    assert_eq!(counted, [0, 1]);
    let stored = ready(store.load(stream.id()).wait()).unwrap().expect("it is there");
    assert!(stored.sealed && stored.owner == Owner(3));
    assert_eq!(stored.tail, Seq(2), "one error is in it");
}

#[tokio::test(start_paused = true)]
async fn an_adopted_stream_is_ended_when_the_store_is_reachable_again() {
    let store = TestStore::default();
    let (stream, writer) = open(&log_of(Owner(1), Arc::new(store.as_of(Owner(1)))));
    writer.update(says(&note(0))).await;
    let slow = Slow::before(store.as_of(Owner(2)));
    let two = Arc::new(log_with(Some(slow.clone())));
    slow.open();
    slow.set_broken(true);
    assert!(two.adoption().adopt(stream.id()).await.is_err());
    tokio::time::sleep(LEASE).await;
    assert_eq!(adopted(&two), 0);
    slow.set_broken(false);
    tokio::time::sleep(LEASE).await;
    assert_eq!(adopted(&two), 1);
    let stored = store.load(stream.id()).wait().await.unwrap().expect("it is there");
    assert!(stored.sealed && stored.owner == Owner(2));
}

#[tokio::test(start_paused = true)]
async fn an_outage_of_the_store_declares_no_replica_dead() {
    let store = TestStore::default();
    let (one, _two) = (Replica::of(&store, 1).await, Replica::of(&store, 2).await);
    tokio::time::sleep(LEASE * 2).await;
    let (stream, writer) = open(&one.log);
    one.log.publish_once(&stream);
    writer.update(says(&note(0))).await;
    store.set_away(true);
    tokio::time::sleep(LEASE * 4).await;
    writer.update(says(&note(1))).await;
    store.set_away(false);
    tokio::time::sleep(LEASE * 4).await;
    settle().await;
    writer.update(says(RESPONSE)).await;
    assert_eq!(
        stream.with_machine(|machine| machine.lifecycle().failure()).map(|failure| failure.code),
        None::<ErrorCode>
    );
    assert_eq!(stream.with_machine(|machine| machine.numbering().tail()), Seq(3));
}

#[tokio::test(start_paused = true)]
async fn a_name_is_free_once_the_earlier_lease_has_expired() {
    let store = TestStore::default();
    let before = Replica::of(&store, 1).await;
    let (stream, writer) = open(&before.log);
    writer.update(says(&note(0))).await;
    before.kill();
    let began = crate::clock::now();
    let after = Replica::of(&store, 1).await;
    assert!(crate::clock::now() - began >= LEASE);
    let (text, _) = read_again(&after.log, &event_id(&stream, 0)).await;
    assert!(text.contains("-32011"), "{text}");
    // A live owner keeps it.
    let twin = Arc::new(store.as_of(Owner(1)));
    let log = Arc::new(log_of(Owner(1), twin.clone()));
    let coordination = log.coordination().unwrap();
    assert!(Replicas::begin(coordination, log, LEASE).await.is_err());
    assert_eq!(twin.renew(LEASE).wait().await.unwrap(), Renewal::HeldByAnother);
}

#[tokio::test(start_paused = true)]
async fn an_adopted_stream_with_a_stored_result_ends_with_it_however_old_its_state_is() {
    let store = TestStore::default();
    let (one, two) = (Replica::of(&store, 1).await, Replica::of(&store, 2).await);
    let (stream, writer) = open(&one.log);
    one.log.publish_once(&stream);
    writer.update(says(&note(0))).await;
    // As events are rewritten after an outage of the store: the state follows them.
    let mut batch = Batch::starting_at(Seq(2));
    for text in [note(1).as_str(), RESPONSE, note(2).as_str()] {
        batch.push(b"message", text.as_bytes());
    }
    let epoch = store.load(stream.id()).wait().await.unwrap().expect("it is there").epoch;
    assert_eq!(one.store.append(stream.id(), epoch, Seq(1), &batch, None).wait().await.unwrap(), Appended::Ok);
    one.kill();
    two.log.adoption().adopt(stream.id()).await.unwrap();
    let stored = store.load(stream.id()).wait().await.unwrap().expect("it is there");
    assert_eq!((stored.sealed, stored.tail), (true, Seq(4)), "nothing follows the result");
    let (text, outcome) = read_again(&two.log, &event_id(&stream, 1)).await;
    assert_eq!(outcome, Poll::Ready(ReadOutcome::Ended));
    assert!(text.contains("result") && !text.contains("-32011"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn an_expired_replica_that_lives_may_have_events_that_the_store_lacks() {
    let store = TestStore::default();
    let one = Replica::of(&store, 1).await;
    let own = Arc::new(store.as_of(Owner(2)));
    let log = Arc::new(log_of(Owner(2), own.clone()));
    let two = Replicas::begin(own.clone(), log, LEASE).await.unwrap();
    let running = tokio::spawn({
        let two = two.clone();
        async move { two.run(|_| async { None }).await }
    });
    tokio::time::sleep(LEASE * 2).await;
    let stream = StreamId::from_bytes([5; 12]);
    assert_eq!(two.requests().position_at(Owner(9), stream).await.unwrap(), None, "no replica knows that one");
    // The replica no longer reaches the store, and lives: for example in an outage of its network.
    one.kill();
    tokio::time::sleep(LEASE * 2).await;
    assert_eq!(own.expired_leases().wait().await.unwrap(), [Owner(1)]);
    assert_eq!(two.requests().absence(Owner(1)).await.unwrap(), Absence::CutOff, "two has noted that");
    assert!(two.requests().position_at(Owner(1), stream).await.is_err(), "it may have the stream");
    tokio::time::sleep(LEASE * 60).await;
    assert_eq!(own.expired_leases().wait().await.unwrap(), []);
    assert_eq!(two.requests().position_at(Owner(1), stream).await.unwrap(), None);
    assert_eq!(two.requests().absence(Owner(1)).await.unwrap(), Absence::Gone);
    running.abort();
}

#[tokio::test(start_paused = true)]
async fn a_full_store_does_not_delay_the_end_of_a_dead_replicas_streams() {
    let store = TestStore::default();
    let (one, two) = (Replica::of(&store, 1).await, Replica::of(&store, 2).await);
    let (stream, writer) = open(&one.log);
    one.log.publish_once(&stream);
    writer.update(says(&note(0))).await;
    let mut client = two.resume(&event_id(&stream, 0)).await;
    store.set_full(true);
    one.kill();
    tokio::time::sleep(LEASE * 4).await;
    assert_eq!(client.read_all(), Poll::Ready(ReadOutcome::Ended));
    assert!(client.text().contains(&ErrorCode::OwnerDied.json_rpc().to_string()));
    assert_eq!(two.replicas.requests().absence(Owner(1)).await.unwrap(), Absence::CutOff);
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_cannot_be_adopted_keeps_no_other_one_open() {
    const MANY: usize = 20;
    let store = TestStore::default();
    let (one, two) = (Replica::of(&store, 1).await, Replica::of(&store, 2).await);
    let mut clients = Vec::new();
    for _ in 0..MANY {
        let (stream, writer) = open(&one.log);
        one.log.publish_once(&stream);
        writer.update(says(&note(0))).await;
        clients.push(two.resume(&event_id(&stream, 0)).await);
        if clients.len() == MANY / 2 {
            store.refuse(stream.id());
        }
    }
    one.kill();
    tokio::time::sleep(LEASE * 4).await;
    let mut ended = clients.iter_mut().map(|client| client.read_all().is_ready());
    assert_eq!(ended.by_ref().filter(|ended| *ended).count(), MANY - 1);
}

/// Leaves an open stream of a replica whose lease expires.
async fn left_open(store: &TestStore) -> (Replica, Arc<Stream>) {
    let one = Replica::of(store, 1).await;
    let (stream, writer) = open(&one.log);
    one.log.publish_once(&stream);
    writer.update(says(&note(0))).await;
    one.kill();
    (one, stream)
}

/// Returns whether `stream` is sealed, or was forgotten after its end.
async fn is_over(store: &TestStore, stream: &Stream) -> bool {
    store.load(stream.id()).wait().await.unwrap().is_none_or(|stored| stored.sealed)
}

#[tokio::test(start_paused = true)]
async fn the_ten_minutes_continue_when_every_other_replica_restarts() {
    let store = TestStore::default();
    let mut two = Replica::of(&store, 2).await;
    let (_one, stream) = left_open(&store).await;
    for minutes in [0, 5, 10, 15] {
        assert_eq!(is_over(&store, &stream).await, minutes > 10, "after {minutes} minutes");
        tokio::time::sleep(Duration::from_secs(5 * 60)).await;
        two.kill();
        two = Replica::of(&store, 2).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_ten_minutes_start_again_for_a_replica_that_has_renewed_its_lease() {
    let store = TestStore::default();
    let mut two = Replica::of(&store, 2).await;
    let (one, stream) = left_open(&store).await;
    tokio::time::sleep(Duration::from_secs(9 * 60)).await;
    one.store.renew(LEASE).wait().await.unwrap();
    tokio::time::sleep(LEASE / 2).await;
    // A replica with an empty memory.
    two.kill();
    two = Replica::of(&store, 2).await;
    tokio::time::sleep(Duration::from_secs(9 * 60)).await;
    assert!(!is_over(&store, &stream).await, "it was not heard of for nine minutes");
    tokio::time::sleep(Duration::from_secs(2 * 60)).await;
    assert!(is_over(&store, &stream).await);
    two.kill();
}

/// Runs a call to its end at this replica, where no task uses it any more; returns the id of its
/// beginning, and its events.
async fn finished(replica: &Replica) -> (EventId, String) {
    let (stream, writer) = open(&replica.log);
    replica.log.publish_once(&stream);
    writer.update(says(&note(0))).await;
    writer.update(says(RESPONSE)).await;
    writer.update(ended()).await;
    writer.seal().await;
    replica.log.retention().retain(&stream);
    let (id, text) = (event_id(&stream, 0), [wire(&stream, 1, &note(0)), wire(&stream, 2, RESPONSE)].concat());
    drop(writer);
    replica.log.retention().release(stream);
    (id, text)
}

fn stubs(replica: &Replica) -> usize {
    replica.log.streams.unproven_stubs().len()
}

#[tokio::test(start_paused = true)]
async fn the_stubs_of_finished_calls_are_rewritten_after_a_data_loss() {
    for rewrite in [Resync::rewrite_all, Resync::verify_and_rewrite] {
        let store = TestStore::default();
        let (one, two) = (Replica::of(&store, 1).await, Replica::of(&store, 2).await);
        let calls = [finished(&one).await, finished(&one).await];
        assert_eq!(stubs(&one), 2);
        one.kill();
        store.lose();
        rewrite(one.log.resync());
        settle().await;
        assert_eq!(stubs(&one), 2, "they are stubs again");
        for (id, text) in &calls {
            let mut client = two.resume(id).await;
            assert_eq!((client.read_all(), client.text()), (Poll::Ready(ReadOutcome::Ended), &**text));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_stub_serves_its_clients_while_the_store_is_unreachable() {
    let store = TestStore::default();
    let one = Replica::of(&store, 1).await;
    let (id, text) = finished(&one).await;
    store.set_away(true);
    for _ in 0..2 {
        let mut client = one.resume(&id).await;
        assert_eq!((client.read_all(), client.text()), (Poll::Ready(ReadOutcome::Ended), &*text));
        let stream = client.attachment.stream().clone();
        drop(client);
        one.log.retention().release(stream);
        assert_eq!(stubs(&one), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn the_claim_of_a_stub_is_rewritten_after_a_data_loss() {
    let store = TestStore::default();
    let one = Replica::of(&store, 1).await;
    let (call, stream) = claims::run(&one.log).await;
    stream.upstream().set_sent();
    let writer = one.log.writer(&stream);
    writer.update(|machine, _| machine.handle_stream_head()).await;
    one.log.publish_once(&stream);
    writer.update(says(RESPONSE)).await;
    writer.update(ended()).await;
    writer.seal().await;
    one.log.retention().retain(&stream);
    drop(writer);
    one.log.retention().release(stream);
    let is_claimed =
        async || matches!(one.log.claims().claim(&call, claims::claim(), true).await, Ok(ClaimOutcome::Existing(..)));
    assert!(stubs(&one) == 1 && is_claimed().await);
    store.lose();
    assert!(!is_claimed().await);
    one.log.resync().rewrite_all();
    settle().await;
    assert!(stubs(&one) == 1 && is_claimed().await);
    one.log.find_call(&call).expect("it is kept").retries().forget();
    settle().await;
    assert!(!is_claimed().await, "no retry may match it any more");
}
