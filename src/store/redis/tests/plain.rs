//! Plain appends, and the appends that must be made by the script.

use super::server::Admin;
use super::*;
use crate::redis::connector::Connector;

/// A server for one test, with two stores that use it.
struct Place {
    server: Server,
    options: Options,
    admin: Admin,
    store: Arc<Redis>,
    other: Arc<Redis>,
}

impl Place {
    async fn new() -> Self {
        let server = Server::start();
        let options = options(&server.url());
        let (store, other) = (connect(&options, 1).await, connect(&options, 2).await);
        Self { admin: server.admin().await, server, options, store, other }
    }

    /// Creates a stream whose next event, the third, is a plain append.
    async fn held(&self) -> (StreamId, WriterEpoch) {
        let (stream, epoch) = create(&self.store).await;
        for after in 0..2 {
            self.append(stream, epoch, after).await;
        }
        (stream, epoch)
    }

    async fn append(&self, stream: StreamId, epoch: WriterEpoch, after: u64) {
        assert_eq!(append(&self.store, stream, epoch, after).await.unwrap(), Appended::Ok);
    }

    /// Returns the numbers of scripts and of additions so far.
    async fn made(&mut self) -> (u64, u64) {
        let stats = self.admin.text("INFO commandstats").await;
        let calls = |name: &str| {
            let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{name}:calls=")))?;
            line.split(',').next()?.parse::<u64>().ok()
        };
        (calls("evalsha").unwrap_or(0), calls("xadd").unwrap_or(0))
    }

    /// Returns the number of appends after `behind` that needed a script.
    async fn scripts_of(&mut self, stream: StreamId, epoch: WriterEpoch, behind: std::ops::Range<u64>) -> u64 {
        let (scripts, additions) = self.made().await;
        let count = behind.end - behind.start;
        for after in behind {
            self.append(stream, epoch, after).await;
        }
        let (later, added) = self.made().await;
        assert!(added - additions >= count);
        later - scripts
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_script_is_needed_for_the_first_event_and_no_more() {
    let mut place = Place::new().await;
    let (stream, epoch) = create(&place.store).await;
    assert_eq!(place.scripts_of(stream, epoch, 0..1).await, 1);
    assert_eq!(place.scripts_of(stream, epoch, 1..20).await, 0);
    let with_state = place.store.append(stream, epoch, Seq(20), &batch(20, "event"), Some(b"state")).wait().await;
    assert_eq!(with_state.unwrap(), Appended::Ok);
    place.store.trim(stream, epoch, Seq(21)).wait().await.unwrap();
    assert_eq!(place.scripts_of(stream, epoch, 21..30).await, 0);
    for store in [&place.store, &place.other] {
        let now = store.load(stream).wait().await.unwrap().unwrap();
        assert_eq!((now.trimmed, now.tail, &now.state[..]), (Seq(21), Seq(30), &b"state"[..]));
        assert_eq!(count(store, stream, 21).await, 9);
        assert_eq!(count(store, stream, 30).await, 0);
    }
    // The same append again: the event is stored already.
    place.append(stream, epoch, 29).await;
    let other = place.store.append(stream, epoch, Seq(29), &batch(29, "another"), None).wait().await.unwrap();
    assert_eq!(other, Appended::Conflict { tail: Seq(30) });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_that_was_fenced_adds_nothing() {
    let place = Place::new().await;
    let (stream, old) = place.held().await;
    let new = place.other.take_over(stream).wait().await.unwrap();
    assert_eq!(append(&place.store, stream, old, 2).await.unwrap(), Appended::Fenced);
    let taken = place.other.append(stream, new, Seq(2), &batch(2, "new"), None).wait().await.unwrap();
    assert_eq!(taken, Appended::Ok);
    assert_eq!(append(&place.store, stream, old, 2).await.unwrap(), Appended::Fenced);
    assert_eq!(append(&place.other, stream, new, 3).await.unwrap(), Appended::Ok);
    let Read::Events(all) = place.store.read(stream, Seq(0), usize::MAX).wait().await.unwrap() else { panic!() };
    assert_eq!(all.len(), 4);
    assert_eq!(&all[2].1[..], batch(2, "new").events().next().unwrap());
    // And back.
    let again = place.store.take_over(stream).wait().await.unwrap();
    assert_eq!(append(&place.other, stream, new, 4).await.unwrap(), Appended::Fenced);
    place.append(stream, again, 4).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_plain_addition_notices_the_changes_of_other_writers() {
    let place = Place::new().await;
    let (stream, epoch) = place.held().await;
    assert_eq!(place.other.seal(stream, epoch, b"end", KEEP).wait().await.unwrap(), Appended::Ok);
    assert_eq!(append(&place.store, stream, epoch, 2).await.unwrap(), Appended::Sealed);

    let (stream, epoch) = place.held().await;
    place.other.expire(stream).wait().await.unwrap();
    assert!(matches!(append(&place.store, stream, epoch, 2).await, Err(Error::Gone)));

    let (stream, epoch) = place.held().await;
    place.other.create(stream, b"", Seq(2), KEEP).wait().await.unwrap();
    assert_eq!(append(&place.store, stream, epoch, 2).await.unwrap(), Appended::Fenced);
    assert_eq!(place.other.load(stream).wait().await.unwrap().unwrap().tail, Seq(2));

    // Another connection of the same writer: one of the two makes plain appends.
    let (stream, epoch) = place.held().await;
    for after in 2..4 {
        assert_eq!(append(&place.other, stream, epoch, after).await.unwrap(), Appended::Ok);
    }
    let late = place.store.append(stream, epoch, Seq(2), &batch(2, "late"), None).wait().await.unwrap();
    assert_eq!(late, Appended::Conflict { tail: Seq(4) });
    assert_eq!(append(&place.other, stream, epoch, 4).await.unwrap(), Appended::Ok);
    assert_eq!(count(&place.store, stream, 0).await, 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_registered_between_two_additions_is_notified_of_the_second() {
    let mut place = Place::new().await;
    let (stream, epoch) = place.held().await;
    let connector = Connector::new(place.options.url.parse().unwrap(), place.options.clone());
    let (mut ear, mut heard) = connector.listen().await.unwrap();
    ear.subscribe(place.other.core.names.channel(Owner(2))).await.unwrap();
    let following = place.other.subscribe(stream).wait().await.unwrap();
    // A renewed registration counts as another one.
    assert!(place.scripts_of(stream, epoch, 2..3).await >= 1, "the addition was refused");
    let told = async {
        let told = ::redis::Value::BulkString(stream.as_bytes().to_vec());
        while heard.recv().await.expect("the connection lives").data.get(1) != Some(&told) {}
    };
    tokio::time::timeout(PATIENCE, told).await.expect("it is published");
    assert_eq!(count(&place.other, stream, 2).await, 1);
    assert!(place.scripts_of(stream, epoch, 3..6).await >= 3, "while the stream has a follower");
    drop(following);
    let followers = &place.store.core.names.stream(stream)[2];
    place.admin.say(&format!("DEL {followers}")).await;
    assert_eq!(place.scripts_of(stream, epoch, 6..7).await, 1, "the script that finds no follower");
    assert_eq!(place.scripts_of(stream, epoch, 7..9).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_after_a_refused_addition_wait_for_its_script() {
    let place = Place::new().await;
    let (stream, epoch) = place.held().await;
    let _following = place.other.subscribe(stream).wait().await.unwrap();
    let (next, later) = (batch(2, "event"), batch(3, "event"));
    let adding = place.store.append(stream, epoch, Seq(2), &next, None);
    let again = place.store.append(stream, epoch, Seq(3), &later, None);
    let sealing = place.store.seal(stream, epoch, b"end", KEEP);
    let loading = place.store.load(stream);
    for appended in [adding.wait().await, again.wait().await, sealing.wait().await] {
        assert_eq!(appended.unwrap(), Appended::Ok);
    }
    let found = loading.wait().await.unwrap().unwrap();
    assert_eq!((found.tail, found.sealed), (Seq(4), true));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_without_its_events_is_gone() {
    let mut place = Place::new().await;
    let (stream, epoch) = place.held().await;
    let events = place.store.core.names.stream(stream)[1].clone();
    assert_eq!(place.admin.text(&format!("DEL {events}")).await, "int(1)");
    assert!(matches!(append(&place.store, stream, epoch, 2).await, Err(Error::Gone)));
    assert_eq!(place.admin.text(&format!("EXISTS {events}")).await, "int(0)", "no other one begins");
    assert_eq!(place.store.load(stream).wait().await.unwrap(), None);
    assert_eq!(place.store.read(stream, Seq(1), usize::MAX).wait().await.unwrap(), Read::Gone);
    let epoch = place.store.create(stream, b"", Seq(2), KEEP).wait().await.unwrap();
    for after in 2..4 {
        place.append(stream, epoch, after).await;
    }
    assert_eq!(place.store.read(stream, Seq(1), 999).wait().await.unwrap(), Read::Trimmed { upto: Seq(2) });
    assert_eq!(count(&place.store, stream, 2).await, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_connection_begins_with_a_script() {
    let mut place = Place::new().await;
    let (stream, epoch) = place.held().await;
    place.admin.say("CLIENT KILL TYPE normal SKIPME yes").await;
    unreachable(&place.store).await;
    ready(&place.store).await;
    assert_eq!(place.scripts_of(stream, epoch, 2..3).await, 1);
    assert_eq!(place.scripts_of(stream, epoch, 3..5).await, 0);
    assert_eq!(count(&place.store, stream, 0).await, 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_that_redis_has_lost_are_missed() {
    let mut place = Place::new().await;
    let (stream, epoch) = place.held().await;
    let (trimmed, first) = place.held().await;
    place.store.trim(trimmed, first, Seq(2)).wait().await.unwrap();
    place.admin.say("SAVE").await;
    place.append(stream, epoch, 2).await;
    place.append(stream, epoch, 3).await;
    place.server.kill();
    unreachable(&place.store).await;
    place.server.begin();
    ready(&place.store).await;
    let lost = append(&place.store, stream, epoch, 4).await.unwrap();
    assert_eq!(lost, Appended::Conflict { tail: Seq(2) });
    for after in 2..5 {
        place.append(stream, epoch, after).await;
    }
    assert_eq!(count(&place.store, stream, 0).await, 5);
    let empty = place.store.load(trimmed).wait().await.unwrap().unwrap();
    assert_eq!((empty.trimmed, empty.tail), (Seq(2), Seq(2)), "numbers go on where no event is left");
    place.append(trimmed, first, 2).await;
}
