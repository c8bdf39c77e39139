//! Coordination through Redis: each clause of the contract on a server and on a Cluster.

use super::*;
use crate::{Coordination, Renewal};

const LEASE: Duration = Duration::from_secs(600);
/// A time that expires at once.
const MOMENT: Duration = Duration::from_millis(1);

/// Two replicas with one store.
struct Two {
    one: Arc<Redis>,
    two: Arc<Redis>,
    options: Options,
}

impl Two {
    async fn at(url: &str) -> Self {
        let options = options(url);
        Self { one: connect(&options, 1).await, two: connect(&options, 2).await, options }
    }
}

macro_rules! both {
    ($($clause:ident)+) => { $(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $clause() {
            let place = SERVER.get(Server::start);
            clause::$clause(Two::at(&place.url()).await).await;
            let place = CLUSTER.get(Cluster::start);
            place.meet().await;
            clause::$clause(Two::at(&place.url()).await).await;
        }
    )+ };
}

both! {
    a_lease_is_held_or_begins_anew_or_is_anothers
    a_lease_that_is_not_renewed_is_expired_until_it_is_dismissed
    a_replica_that_leaves_is_neither_living_nor_expired
    one_that_is_expected_expires_unless_it_is_heard_of
    messages_come_in_order_each_once
    messages_of_several_threads_all_arrive
    messages_wait_for_an_absent_replica_until_they_are_too_old
    members_are_those_that_joined_and_were_not_dismissed
    replicas_agree_on_the_keys
    a_stream_moves_with_its_writer
    a_follower_elsewhere_hears_of_every_change
    a_stream_is_followed_before_it_is_there
}

mod clause {
    use super::*;

    async fn renew(store: &Redis, lease: Duration) -> Renewal {
        store.renew(lease).wait().await.unwrap()
    }

    async fn living(store: &Redis) -> Vec<u32> {
        sorted(store.live_replicas().wait().await.unwrap())
    }

    async fn expired(store: &Redis) -> Vec<u32> {
        sorted(store.expired_leases().wait().await.unwrap())
    }

    fn sorted(owners: Vec<Owner>) -> Vec<u32> {
        let mut owners: Vec<_> = owners.into_iter().map(|owner| owner.0).collect();
        owners.sort_unstable();
        owners
    }

    async fn receive(store: &Redis) -> Vec<bytes::Bytes> {
        tokio::time::timeout(PATIENCE, store.receive().wait()).await.expect("there are messages").unwrap()
    }

    pub(super) async fn a_lease_is_held_or_begins_anew_or_is_anothers(two: Two) {
        assert_eq!(renew(&two.one, LEASE).await, Renewal::Acquired);
        assert_eq!(renew(&two.one, LEASE).await, Renewal::Extended);
        let double = connect(&two.options, 1).await;
        assert_eq!(renew(&double, LEASE).await, Renewal::HeldByAnother);
        assert_eq!(renew(&two.one, MOMENT).await, Renewal::Extended);
        until("the lease expires", async || expired(&two.one).await == [1]).await;
        assert_eq!(renew(&double, LEASE).await, Renewal::Acquired);
        assert_eq!(renew(&two.one, LEASE).await, Renewal::HeldByAnother);
        assert_eq!(renew(&two.two, LEASE).await, Renewal::Acquired);
    }

    pub(super) async fn a_lease_that_is_not_renewed_is_expired_until_it_is_dismissed(two: Two) {
        renew(&two.one, MOMENT).await;
        renew(&two.two, LEASE).await;
        until("the lease expires", async || expired(&two.two).await == [1]).await;
        assert_eq!(living(&two.two).await, [2]);
        two.two.forget(Owner(2)).wait().await.unwrap();
        assert_eq!(living(&two.two).await, [2], "one that lives is not dismissed");
        assert_eq!(renew(&two.one, LEASE).await, Renewal::Acquired);
        two.two.forget(Owner(1)).wait().await.unwrap();
        assert_eq!(living(&two.two).await, [1, 2], "nor one that has renewed");
        renew(&two.one, MOMENT).await;
        until("the lease expires again", async || expired(&two.two).await == [1]).await;
        for _ in 0..2 {
            two.two.forget(Owner(1)).wait().await.unwrap();
            assert_eq!((expired(&two.two).await, living(&two.two).await), (vec![], vec![2]));
        }
        assert_eq!(renew(&two.one, LEASE).await, Renewal::Acquired);
    }

    pub(super) async fn one_that_is_expected_expires_unless_it_is_heard_of(two: Two) {
        let expect = async |owners: &[u32], lease| {
            let owners: Vec<_> = owners.iter().copied().map(Owner).collect();
            two.two.grant_grace(&owners, lease).wait().await.unwrap();
        };
        renew(&two.two, LEASE).await;
        expect(&[], LEASE).await;
        expect(&[1, 2, 3], LEASE).await;
        assert_eq!(living(&two.two).await, [1, 2, 3]);
        // The incarnation that takes the name over holds the lease; the earlier one does not.
        assert_eq!(renew(&two.one, LEASE).await, Renewal::Acquired);
        assert_eq!(renew(&two.one, LEASE).await, Renewal::Extended);
        let double = connect(&two.options, 1).await;
        expect(&[1], LEASE).await;
        assert_eq!(renew(&double, LEASE).await, Renewal::HeldByAnother);
        expect(&[4], MOMENT).await;
        expect(&[4], LEASE).await;
        until("it expires", async || expired(&two.two).await == [4]).await;
        two.two.forget(Owner(4)).wait().await.unwrap();
        assert_eq!((expired(&two.two).await, living(&two.two).await), (vec![], vec![1, 2, 3]));
    }

    pub(super) async fn a_replica_that_leaves_is_neither_living_nor_expired(two: Two) {
        renew(&two.one, LEASE).await;
        let double = connect(&two.options, 1).await;
        double.release().wait().await.unwrap();
        assert_eq!(living(&two.two).await, [1], "no replica releases another's lease");
        for _ in 0..2 {
            two.one.release().wait().await.unwrap();
            assert_eq!((expired(&two.two).await, living(&two.two).await), (vec![], vec![]));
        }
        assert_eq!(renew(&double, LEASE).await, Renewal::Acquired);
    }

    pub(super) async fn messages_come_in_order_each_once(two: Two) {
        // More messages than are taken at once: to another replica and to itself, before and during
        // its wait.
        let texts = |from: &str| (0..300).map(|number| format!("{from} {number} \0").into_bytes()).collect::<Vec<_>>();
        let receiver = tokio::spawn({
            let two = two.two.clone();
            async move {
                let mut got = Vec::new();
                while got.len() < 600 {
                    got.extend(receive(&two).await);
                }
                got
            }
        });
        for (mine, own) in texts("one").iter().zip(&texts("two")) {
            two.one.send(Owner(2), mine, KEEP).wait().await.unwrap();
            two.two.send(Owner(2), own, KEEP).wait().await.unwrap();
        }
        let got = receiver.await.unwrap();
        for from in ["one", "two"] {
            let of: Vec<_> = got.iter().filter(|message| message.starts_with(from.as_bytes())).cloned().collect();
            assert_eq!(of, texts(from));
        }
        two.one.send(Owner(2), b"last", KEEP).wait().await.unwrap();
        assert_eq!(receive(&two.two).await, [&b"last"[..]], "each is taken once");
    }

    pub(super) async fn messages_of_several_threads_all_arrive(two: Two) {
        const EACH: usize = 500;
        let threads = ["a", "b", "c"].map(|from| {
            let store = two.one.clone();
            tokio::spawn(async move {
                for number in 0..EACH {
                    store.send(Owner(2), format!("{from} {number}").as_bytes(), KEEP).wait().await.unwrap();
                }
            })
        });
        let mut got = Vec::new();
        while got.len() < 3 * EACH {
            got.extend(receive(&two.two).await);
        }
        for thread in threads {
            thread.await.unwrap();
        }
    }

    pub(super) async fn messages_wait_for_an_absent_replica_until_they_are_too_old(two: Two) {
        two.one.send(Owner(3), b"old", MOMENT).wait().await.unwrap();
        two.one.send(Owner(3), b"first", KEEP).wait().await.unwrap();
        two.one.send(Owner(3), b"second", KEEP).wait().await.unwrap();
        let three = connect(&two.options, 3).await;
        // The old message may be kept until it expires.
        let mut got = receive(&three).await;
        got.retain(|message| message != "old");
        assert_eq!(got, ["first", "second"]);
    }

    pub(super) async fn members_are_those_that_joined_and_were_not_dismissed(two: Two) {
        let members = async |group: &[u8]| sorted(two.two.members(group).wait().await.unwrap());
        assert!(members(b"a").await.is_empty());
        two.one.join(b"a", KEEP).wait().await.unwrap();
        two.two.join(b"a", KEEP).wait().await.unwrap();
        two.two.join(b"b", KEEP).wait().await.unwrap();
        assert_eq!((members(b"a").await, members(b"b").await), (vec![1, 2], vec![2]));
        renew(&two.one, MOMENT).await;
        until("the lease expires", async || expired(&two.two).await == [1]).await;
        assert_eq!(members(b"a").await, [1, 2]);
        two.two.forget(Owner(1)).wait().await.unwrap();
        assert_eq!(members(b"a").await, [2]);
        renew(&two.one, LEASE).await;
        assert_eq!(members(b"a").await, [2], "it has not joined since");
        two.one.join(b"a", KEEP).wait().await.unwrap();
        assert_eq!(members(b"a").await, [1, 2]);
        two.one.join(b"a", MOMENT).wait().await.unwrap();
        until("the time is over", async || members(b"a").await == [2]).await;
    }

    pub(super) async fn replicas_agree_on_the_keys(two: Two) {
        let openings: Vec<_> = {
            let options = options(&two.options.url);
            (0..8).map(|owner| tokio::spawn(Redis::connect(options.clone(), Owner(owner)))).collect()
        };
        let mut all = Vec::new();
        for opening in openings {
            let Opened { store, keys } = opening.await.unwrap().unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(store.epoch(), keys.epoch);
            all.push((keys.epoch, keys.signing, keys.principal));
        }
        assert!(all.iter().all(|keys| *keys == all[0]));
        assert_ne!((all[0].0, all[0].1), (two.one.epoch(), all[0].2), "and another prefix has others");
    }

    pub(super) async fn a_stream_moves_with_its_writer(two: Two) {
        let open = async |store: &Redis, owner| store.open_streams(Owner(owner)).wait().await.unwrap();
        let (stream, old) = create(&two.one).await;
        assert_eq!(append(&two.one, stream, old, 0).await.unwrap(), Appended::Ok);
        assert_eq!(open(&two.two, 1).await, [stream]);
        let new = two.two.take_over(stream).wait().await.unwrap();
        assert!(new > old);
        let now = two.one.load(stream).wait().await.unwrap().unwrap();
        assert_eq!((now.owner, now.epoch, now.tail), (Owner(2), new, Seq(1)));
        assert_eq!((open(&two.one, 1).await, open(&two.one, 2).await), (vec![], vec![stream]));
        // The earlier writer wakes up.
        assert_eq!(append(&two.one, stream, old, 1).await.unwrap(), Appended::Fenced);
        let sealed = two.one.seal(stream, old, b"", KEEP).wait().await.unwrap();
        assert_eq!(sealed, Appended::Fenced);
        assert_eq!(open(&two.one, 2).await, [stream]);
        // The earlier writer takes the stream back.
        let again = two.one.take_over(stream).wait().await.unwrap();
        assert_eq!(append(&two.two, stream, new, 1).await.unwrap(), Appended::Fenced);
        assert_eq!(append(&two.one, stream, again, 1).await.unwrap(), Appended::Ok);
        assert_eq!((open(&two.two, 1).await, open(&two.two, 2).await), (vec![stream], vec![]));
        assert_eq!(two.one.seal(stream, again, b"", KEEP).wait().await.unwrap(), Appended::Ok);
        assert_eq!(open(&two.two, 1).await, []);
    }

    pub(super) async fn a_follower_elsewhere_hears_of_every_change(two: Two) {
        const LAST: u64 = 50;
        let (stream, epoch) = create(&two.one).await;
        let following = two.two.subscribe(stream).wait().await.unwrap();
        let follower = tokio::spawn({
            let two = two.two.clone();
            async move {
                let mut seen = 0;
                while seen < LAST as usize {
                    seen += count(&two, stream, seen as u64).await;
                    if seen < LAST as usize {
                        following.changed().await;
                    }
                }
            }
        });
        for after in 0..LAST {
            assert_eq!(append(&two.one, stream, epoch, after).await.unwrap(), Appended::Ok);
        }
        tokio::time::timeout(PATIENCE, follower).await.expect("a change is never missed").unwrap();
    }

    pub(super) async fn a_stream_is_followed_before_it_is_there(two: Two) {
        let stream = name();
        let following = two.two.subscribe(stream).wait().await.unwrap();
        assert_eq!(two.two.load(stream).wait().await.unwrap(), None);
        two.one.create(stream, b"", Seq(0), KEEP).wait().await.unwrap();
        tokio::time::timeout(PATIENCE, following.changed()).await.expect("it is told");
        assert!(two.two.load(stream).wait().await.unwrap().is_some());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_lasts_as_long_as_the_last_of_its_members() {
    const SHORT: Duration = Duration::from_secs(60);
    let server = Server::start();
    let two = Two::at(&server.url()).await;
    let mut admin = server.admin().await;
    let ask = format!("PTTL {}group:a", two.options.prefix);
    let mut lasts = async || {
        let answer = admin.text(&ask).await;
        let left = answer.strip_prefix("int(").and_then(|left| left.strip_suffix(')')?.parse().ok());
        Duration::from_millis(left.unwrap_or_else(|| panic!("{answer}")))
    };
    two.one.join(b"a", KEEP).wait().await.unwrap();
    two.two.join(b"a", SHORT).wait().await.unwrap();
    assert!(lasts().await > KEEP - SHORT);
    two.one.join(b"a", SHORT).wait().await.unwrap();
    assert!(lasts().await <= SHORT);
    assert_eq!(two.two.members(b"a").wait().await.unwrap().len(), 2);
    two.two.join(b"a", KEEP).wait().await.unwrap();
    assert!(lasts().await > KEEP - SHORT);
}
