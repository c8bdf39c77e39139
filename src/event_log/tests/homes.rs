//! Records of handshakes in a store that replicas share, and the home of a session.

use super::replicas::{LEASE, Replica, settle};
use super::*;
use crate::protocol::headers::{ProtocolVersion, SessionId};
use crate::protocol::jsonrpc::{InitializeParams, ServerFacts};

/// Time until a replica may count others as gone, with the intervals between reads of leases.
const KNOWS: Duration = Duration::from_secs(21);
const KEEP: Duration = Duration::from_secs(3600);

fn session() -> SessionId {
    SessionId::parse("s").unwrap()
}

fn caller() -> Principal {
    Principal::Known([1; 16])
}

fn handshake() -> Arc<Handshake> {
    let params = InitializeParams::of(br#"{"params":{"capabilities":{},"clientInfo":{"name":"c"}}}"#).unwrap();
    let server = ServerFacts::of(br#"{"result":{"capabilities":{"tools":{}}}}"#).unwrap();
    Handshake::new(params, ProtocolVersion::DEFAULT, server, caller(), KEEP)
}

/// A replica that writes the changes of its records.
struct Keeping {
    replica: Replica,
    keeping: tokio::task::JoinHandle<()>,
}

impl Keeping {
    async fn of(store: &TestStore, owner: u32) -> Self {
        let replica = Replica::of(store, owner).await;
        let log = replica.log.clone();
        let keeping = tokio::spawn(async move { log.homes().keep_saved().await });
        settle().await;
        Self { replica, keeping }
    }

    fn log(&self) -> &EventLog {
        &self.replica.log
    }

    async fn open(&self) -> Arc<Handshake> {
        let handshake = handshake();
        self.log().sessions().handshakes().record(session(), handshake.clone());
        assert_eq!(self.log().homes().save(&session()).await, Saved::Ok);
        handshake
    }

    fn kill(&self) {
        self.replica.kill();
        self.keeping.abort();
    }

    /// Describes the home of the session as this replica finds it.
    async fn home(&self) -> String {
        describe(self.log().homes().find(&session()).await.unwrap())
    }

    async fn take_over(&self, principal: Principal) -> String {
        describe(self.log().homes().take_over(&session(), &principal).await.unwrap())
    }
}

fn describe(home: Home) -> String {
    match home {
        Home::Here(handshake) => format!("here {:?}", handshake.name().is_lost()),
        Home::Elsewhere(owner) => format!("elsewhere {}", owner.0),
        Home::Gone(owner) => format!("gone {}", owner.0),
        Home::Unknown => "unknown".to_owned(),
    }
}

#[tokio::test(start_paused = true)]
async fn a_record_has_all_that_a_later_handshake_repeats() {
    let store = TestStore::default();
    let (one, two) = (Keeping::of(&store, 1).await, Keeping::of(&store, 2).await);
    let handshake = one.open().await;
    handshake.note_initialized();
    handshake.note_log_level("debug");
    for uri in ["file:///a", "file:///b"] {
        handshake.note_subscription(uri);
    }
    handshake.note_subscription_end("file:///a");
    handshake.note_accepted(Principal::Anonymous);
    tokio::time::sleep(KNOWS).await;
    assert_eq!(two.home().await, "elsewhere 1");
    one.kill();
    tokio::time::sleep(KNOWS).await;
    assert_eq!(two.home().await, "gone 1");
    let Ok(Home::Here(restored)) = two.log().homes().take_over(&session(), &caller()).await else {
        panic!("no other replica takes it over")
    };
    assert_eq!(restored.params, handshake.params);
    assert_eq!((&restored.version, &restored.server), (&handshake.version, &handshake.server));
    assert!(restored.is_initialized());
    assert_eq!((restored.log_level().as_deref(), restored.subscriptions()), (Some("debug"), vec!["file:///b".into()]));
    assert_eq!(restored.principals(), [caller(), Principal::Anonymous]);
    assert!(restored.name().is_lost(), "the server here does not have it");
    assert_eq!(
        (restored.to_stored(Owner(2), None).generation.0, handshake.to_stored(Owner(1), None).generation.0),
        (1, 0)
    );
}

#[tokio::test(start_paused = true)]
async fn a_change_that_is_being_written_at_the_end_is_written() {
    for is_aborted in [false, true] {
        let store = TestStore::default();
        let (one, two) = (Keeping::of(&store, 1).await, Keeping::of(&store, 2).await);
        let handshake = handshake();
        // The first write waits for its result, and the second for the first.
        store.set_slow(true);
        one.log().sessions().handshakes().record(session(), handshake.clone());
        handshake.note_log_level("debug");
        settle().await;
        handshake.note_initialized();
        settle().await;
        if is_aborted {
            one.keeping.abort();
            settle().await;
        }
        one.log().homes().flush().await;
        store.set_slow(false);
        one.kill();
        tokio::time::sleep(KNOWS).await;
        let Ok(Home::Here(restored)) = two.log().homes().take_over(&session(), &caller()).await else {
            panic!("no other replica takes it over")
        };
        assert!(restored.is_initialized(), "aborted: {is_aborted}");
    }
}

#[tokio::test(start_paused = true)]
async fn one_of_several_replicas_becomes_the_home() {
    let store = TestStore::default();
    let one = Keeping::of(&store, 1).await;
    let others = [Keeping::of(&store, 2).await, Keeping::of(&store, 3).await, Keeping::of(&store, 4).await];
    let _record = one.open().await;
    tokio::time::sleep(KNOWS).await;
    assert_eq!(others[0].take_over(caller()).await, "elsewhere 1", "its lease runs");
    one.kill();
    tokio::time::sleep(KNOWS).await;
    assert_eq!(others[0].take_over(Principal::Anonymous).await, "unknown", "a stranger");
    let (a, b, c) =
        tokio::join!(others[0].take_over(caller()), others[1].take_over(caller()), others[2].take_over(caller()));
    let all = [a, b, c];
    let winner = all.iter().position(|home| home == "here true").expect("a winner");
    for (n, home) in all.iter().enumerate().filter(|(n, _)| *n != winner) {
        assert_eq!(*home, format!("elsewhere {}", winner + 2), "{n}: {all:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_home_that_others_counted_as_gone_finds_that_out_with_its_next_lease() {
    let store = TestStore::default();
    let (one, two) = (Keeping::of(&store, 1).await, Keeping::of(&store, 2).await);
    let record = one.open().await;
    assert_eq!(one.home().await, "here false");
    tokio::time::sleep(KNOWS).await;
    // As when its process is frozen.
    one.kill();
    tokio::time::sleep(KNOWS).await;
    assert_eq!(two.take_over(caller()).await, "here true");
    assert_eq!(one.log().homes().save(&session()).await, Saved::Displaced(Owner(2)));
    assert!(record.is_over());
    assert_eq!(two.home().await, "here true");
    // Its process continues.
    let back = Keeping::of(&store, 1).await;
    assert_eq!(back.home().await, "elsewhere 2");
}

#[tokio::test(start_paused = true)]
async fn a_session_that_has_ended_has_no_record_and_gets_none_by_a_late_write() {
    let store = TestStore::default();
    let (one, two) = (Keeping::of(&store, 1).await, Keeping::of(&store, 2).await);
    let record = one.open().await;
    record.note_log_level("debug");
    one.log().sessions().handshakes().forget(&session());
    record.note_initialized();
    settle().await;
    assert_eq!((one.home().await, two.home().await), ("unknown".to_owned(), "unknown".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn changes_that_the_store_did_not_take_are_written_later() {
    let store = TestStore::default();
    let (one, two) = (Keeping::of(&store, 1).await, Keeping::of(&store, 2).await);
    let record = one.open().await;
    store.set_away(true);
    record.note_log_level("debug");
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(one.log().homes().find(&session()).await.is_ok(), "it knows its own");
    store.set_away(false);
    tokio::time::sleep(Duration::from_secs(2)).await;
    one.kill();
    tokio::time::sleep(2 * KNOWS).await;
    let Ok(Home::Here(restored)) = two.log().homes().take_over(&session(), &caller()).await else {
        panic!("its home is gone")
    };
    assert_eq!(restored.log_level().as_deref(), Some("debug"));
    assert!(LEASE < KNOWS);
}

#[tokio::test(start_paused = true)]
async fn an_outage_of_the_store_moves_no_session() {
    let store = TestStore::default();
    let (one, two) = (Keeping::of(&store, 1).await, Keeping::of(&store, 2).await);
    let _record = one.open().await;
    tokio::time::sleep(KNOWS).await;
    store.set_away(true);
    tokio::time::sleep(2 * LEASE).await;
    store.set_away(false);
    // Each of them may be the first to renew its lease.
    for _ in 0..40 {
        tokio::time::sleep(LEASE / 20).await;
        let home = two.take_over(caller()).await;
        assert_eq!(home, "elsewhere 1");
    }
    assert_eq!(one.home().await, "here false");
}

/// As when its process was frozen for as long as its lease, and another replica has read the record
/// already.
#[tokio::test(start_paused = true)]
async fn a_home_that_confirms_itself_cannot_be_replaced_by_what_was_read_before() {
    let store = TestStore::default();
    let (one, two) = (Keeping::of(&store, 1).await, Keeping::of(&store, 2).await);
    let _record = one.open().await;
    let key = b"handshake\0s";
    let before = store.get(key).wait().await.unwrap().unwrap();
    one.kill();
    tokio::time::sleep(KNOWS).await;
    assert_eq!(two.home().await, "gone 1");
    let back = Keeping::of(&store, 1).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(back.home().await, "here false");
    assert!(!store.replace(key, &before, b"taken over", KEEP).wait().await.unwrap());
    assert_eq!(two.take_over(caller()).await, "elsewhere 1");
}

#[tokio::test(start_paused = true)]
async fn a_session_that_ended_at_its_new_home_is_not_revived_by_the_old_one() {
    let store = TestStore::default();
    let (one, two) = (Keeping::of(&store, 1).await, Keeping::of(&store, 2).await);
    let record = one.open().await;
    one.kill();
    tokio::time::sleep(2 * KNOWS).await;
    assert_eq!(two.take_over(caller()).await, "here true");
    two.log().sessions().handshakes().forget(&session());
    assert_eq!(two.log().homes().save(&session()).await, Saved::Ended);
    record.note_log_level("debug");
    assert_eq!(one.log().homes().save(&session()).await, Saved::Ended);
    assert_eq!((one.home().await, two.home().await), ("unknown".to_owned(), "unknown".to_owned()));
    assert!(record.is_over());
    // The server may give the name again.
    let _new = one.open().await;
    assert_eq!(one.log().homes().save(&session()).await, Saved::Ok);
}

#[tokio::test(start_paused = true)]
async fn the_home_of_most_takeovers_is_the_home_however_often_the_other_has_opened_the_session() {
    let store = TestStore::default();
    let (one, two) = (Keeping::of(&store, 1).await, Keeping::of(&store, 2).await);
    let record = one.open().await;
    one.kill();
    tokio::time::sleep(2 * KNOWS).await;
    assert_eq!(two.take_over(caller()).await, "here true");
    for number in 0..5 {
        let name = SessionId::parse(&format!("n{number}"));
        assert!(one.log().sessions().handshakes().rename(&session(), &record, name.clone(), name.as_ref()));
    }
    assert_eq!(one.log().homes().save(&session()).await, Saved::Displaced(Owner(2)));
}

#[tokio::test(start_paused = true)]
async fn servers_that_give_the_same_names_are_noticed_once_while_both_replicas_live() {
    let store = TestStore::default();
    let (one, two) = (Keeping::of(&store, 1).await, Keeping::of(&store, 2).await);
    let has_warned = |replica: &Keeping| replica.log().homes().has_warned_of_names.load(Ordering::Relaxed);
    let _first = one.open().await;
    // As after a restart of its server.
    let _again = one.open().await;
    assert!(!has_warned(&one), "its own name");
    tokio::time::sleep(KNOWS).await;
    let _other = two.open().await;
    assert!(has_warned(&two));
    two.kill();
    tokio::time::sleep(KNOWS).await;
    let _last = one.open().await;
    assert!(!has_warned(&one), "the other is gone");
}
