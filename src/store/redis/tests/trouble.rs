//! A Redis that stops, returns, is empty, is full, or is slow.

use super::*;
use crate::Coordination;

const APPEND_ONLY: [&str; 6] = ["--save", "", "--appendonly", "yes", "--appendfsync", "always"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_returns_with_its_data_is_used_again() {
    let mut server = Server::with(&APPEND_ONLY);
    let store = connect(&options(&server.url()), 1).await;
    let (stream, epoch) = create(&store).await;
    assert_eq!(append(&store, stream, epoch, 0).await.unwrap(), Appended::Ok);
    let contents = store.epoch();
    let following = store.subscribe(stream).wait().await.unwrap();
    server.kill();
    unreachable(&store).await;
    assert!(matches!(append(&store, stream, epoch, 1).await, Err(Error::Unavailable(_))));
    server.begin();
    ready(&store).await;
    assert_eq!(store.epoch(), contents);
    assert_eq!(append(&store, stream, epoch, 1).await.unwrap(), Appended::Ok);
    assert_eq!(count(&store, stream, 0).await, 2);
    tokio::time::timeout(PATIENCE, following.changed()).await.expect("a follower is told");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_returns_empty_gets_the_same_keys_and_another_epoch() {
    let mut server = Server::start();
    let options = options(&server.url());
    let (one, two) = (connect(&options, 1).await, connect(&options, 2).await);
    let (keys, before) = (one.core.keys(), one.epoch());
    let (stream, epoch) = create(&one).await;
    server.kill();
    unreachable(&one).await;
    server.begin();
    for store in [&one, &two] {
        until("there is another epoch", async || store.epoch() != before).await;
        ready(store).await;
    }
    until("both have the same one", async || one.epoch() == two.epoch()).await;
    assert!(matches!(append(&one, stream, epoch, 0).await, Err(Error::Gone)));
    let opened = Redis::connect(options, Owner(3)).await.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!((opened.keys.signing, opened.keys.principal), (keys.signing, keys.principal));
    assert_eq!(opened.keys.epoch, one.epoch());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contents_that_are_dropped_are_missed_without_a_word() {
    let server = Server::start();
    let store = connect(&options(&server.url()), 1).await;
    let (before, stream) = (store.epoch(), name());
    let following = store.subscribe(stream).wait().await.unwrap();
    server.admin().await.say("FLUSHALL").await;
    until("there is another epoch", async || store.epoch() != before).await;
    tokio::time::timeout(PATIENCE, following.changed()).await.expect("a follower is told");
    // The registration is in the store again.
    until("it is registered", async || {
        let key = &store.core.names.stream(stream)[2];
        server.admin().await.text(&format!("ZCARD {key}")).await == "int(1)"
    })
    .await;
}

/// The first reader after a loss reports the loss, not a missing stream.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_that_was_lost_is_not_reported_as_gone() {
    let server = Server::start();
    let (mut admin, options) = (server.admin().await, options(&server.url()));
    let store = connect(&options, 1).await;
    store.renew(KEEP).wait().await.unwrap();
    for looks_for in ["a stream", "its events", "a record", "a group", "replicas", "other replicas"] {
        let (before, (stream, epoch)) = (store.epoch(), create(&store).await);
        append(&store, stream, epoch, 0).await.unwrap();
        assert!(store.get(b"unknown").wait().await.unwrap().is_none());
        // After a probe, and a second before the next one.
        let probes = async |admin: &mut Admin| admin.text("INFO commandstats").await;
        let seen = probes(&mut admin).await;
        until("it is probed", async || publishes(&probes(&mut admin).await) > publishes(&seen)).await;
        admin.say("FLUSHALL").await;
        let error = match looks_for {
            "a stream" => store.load(stream).wait().await.map(drop),
            "its events" => store.read(stream, Seq(0), usize::MAX).wait().await.map(drop),
            "a record" => store.get(b"key").wait().await.map(drop),
            "a group" => store.members(b"group").wait().await.map(drop),
            "replicas" => store.live_replicas().wait().await.map(drop),
            _ => {
                store.renew(KEEP).wait().await.unwrap();
                store.live_replicas().wait().await.map(drop)
            }
        };
        assert!(matches!(error, Err(Error::Unavailable(_))), "{looks_for}: {error:?}");
        until("there is another epoch", async || store.epoch() != before).await;
        assert!(store.load(stream).wait().await.unwrap().is_none());
    }
}

/// Returns the number of publications that Redis has counted.
fn publishes(stats: &str) -> u64 {
    let count = stats.split_once("cmdstat_publish:calls=").map(|(_, rest)| rest.split(',').next());
    count.flatten().map_or(0, |count| count.parse().expect("a number"))
}

/// Earlier replicas may need a moment to reconnect.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_replica_at_an_empty_server_waits_for_the_keys_of_the_others() {
    let mut server = Server::start();
    let options = options(&server.url());
    let one = connect(&options, 1).await;
    let (keys, before) = (one.core.keys(), one.epoch());
    server.kill();
    unreachable(&one).await;
    server.begin();
    let newcomer = Redis::connect(Options { key_wait: PATIENCE, ..options }, Owner(2)).await;
    let newcomer = newcomer.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!((newcomer.keys.signing, newcomer.keys.principal), (keys.signing, keys.principal));
    until("both have the same epoch", async || one.epoch() == newcomer.keys.epoch).await;
    assert_ne!(one.epoch(), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_are_cut_are_made_again() {
    let server = Server::start();
    let store = connect(&options(&server.url()), 1).await;
    let (stream, epoch) = create(&store).await;
    let mut admin = server.admin().await;
    let receiver = tokio::spawn({
        let store = store.clone();
        async move { store.receive().wait().await.unwrap() }
    });
    for (round, kind) in ["normal", "pubsub", "normal", "pubsub"].into_iter().enumerate() {
        let following = store.subscribe(stream).wait().await.unwrap();
        let clients = server.admin().await.text("CLIENT LIST").await.lines().count();
        assert!(clients >= 3, "{clients}");
        admin.say(&format!("CLIENT KILL TYPE {kind} SKIPME yes")).await;
        tokio::time::timeout(PATIENCE, following.changed()).await.expect("a follower is told");
        until("it goes on", async || matches!(append(&store, stream, epoch, round as u64).await, Ok(Appended::Ok)))
            .await;
        until("the follower hears again", async || {
            append(&store, stream, epoch, round as u64).await.unwrap();
            tokio::time::timeout(Duration::from_secs(1), following.changed()).await.is_ok()
        })
        .await;
    }
    store.send(Owner(1), b"message", KEEP).wait().await.unwrap();
    let received = tokio::time::timeout(PATIENCE, receiver).await.expect("who waits is told").unwrap();
    assert_eq!(received, ["message"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_server_refuses_new_data_and_releases_old_data() {
    let server = Server::start();
    let store = connect(&options(&server.url()), 1).await;
    let mut admin = server.admin().await;
    let (stream, epoch) = create(&store).await;
    for after in 0..3 {
        append(&store, stream, epoch, after).await.unwrap();
    }
    admin.say("CONFIG SET maxmemory 1").await;
    let full = append(&store, stream, epoch, 3).await;
    assert!(matches!(full, Err(Error::Full(_))), "{full:?}");
    assert_eq!(store.health(), StoreHealth::Full);
    assert!(matches!(store.create(name(), b"", Seq(0), KEEP).wait().await, Err(Error::Full(_))));
    assert!(matches!(store.put(b"key", b"value", KEEP).wait().await, Err(Error::Full(_))));
    assert!(matches!(store.claim(b"key", b"value", KEEP).wait().await, Err(Error::Full(_))));
    assert_eq!(count(&store, stream, 0).await, 3, "nothing was half done");
    store.trim(stream, epoch, Seq(2)).wait().await.unwrap();
    assert_eq!(count(&store, stream, 2).await, 1);
    store.expire(stream).wait().await.unwrap();
    assert_eq!(store.load(stream).wait().await.unwrap(), None);
    until("it is seen without a call", async || store.health() == StoreHealth::Full).await;
    admin.say("CONFIG SET maxmemory 0").await;
    ready(&store).await;
    create(&store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_only_follows_another_is_not_written_to() {
    let server = Server::start();
    let store = connect(&options(&server.url()), 1).await;
    let (stream, epoch) = create(&store).await;
    let mut admin = server.admin().await;
    admin.say("REPLICAOF 127.0.0.1 1").await;
    let failed = append(&store, stream, epoch, 0).await;
    assert!(matches!(failed, Err(Error::Unavailable(_))), "{failed:?}");
    assert_eq!(store.health(), StoreHealth::Unreachable);
    admin.say("REPLICAOF NO ONE").await;
    ready(&store).await;
    assert_eq!(append(&store, stream, epoch, 0).await.unwrap(), Appended::Ok);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_does_not_answer_in_time_is_unreachable() {
    let server = Server::start();
    let store = connect(&Options { response_timeout: Duration::from_millis(300), ..options(&server.url()) }, 1).await;
    let (stream, epoch) = create(&store).await;
    let mut admin = server.admin().await;
    admin.say("CLIENT PAUSE 600000 WRITE").await;
    let failed = append(&store, stream, epoch, 0).await;
    assert!(matches!(failed, Err(Error::Unavailable(_))), "{failed:?}");
    unreachable(&store).await;
    admin.say("CLIENT UNPAUSE").await;
    ready(&store).await;
    // Whether the first one took effect is open; to repeat it is safe.
    assert_eq!(append(&store, stream, epoch, 0).await.unwrap(), Appended::Ok);
    assert_eq!(count(&store, stream, 0).await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_without_one_of_its_masters_is_unreachable_until_it_is_back() {
    let mut cluster = Cluster::start();
    cluster.meet().await;
    let store = connect(&options(&cluster.url()), 1).await;
    let (stream, epoch) = create(&store).await;
    let following = store.subscribe(stream).wait().await.unwrap();
    cluster.node(2).kill();
    unreachable(&store).await;
    cluster.node(2).begin();
    // A stream on that node is lost with it.
    until("the Cluster is whole", async || {
        store.health() == StoreHealth::Ready
            && matches!(append(&store, stream, epoch, 0).await, Ok(Appended::Ok) | Err(Error::Gone))
    })
    .await;
    tokio::time::timeout(PATIENCE, following.changed()).await.expect("a follower is told");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_index_forgets_removed_streams_but_not_those_about_to_be_created() {
    let server = Server::start();
    let store = connect(&options(&server.url()), 1).await;
    let mut admin = server.admin().await;
    let index = store.core.names.index(Owner(1));
    admin.say(&format!("ZADD {index} 1 twelve-bytes 99999999999999 twelve-later")).await;
    assert_eq!(store.open_streams(Owner(1)).wait().await.unwrap(), []);
    until("the old one is forgotten", async || admin.text(&format!("ZSCORE {index} twelve-bytes")).await == "nil")
        .await;
    assert_ne!(admin.text(&format!("ZSCORE {index} twelve-later")).await, "nil");
}
