//! Records of sessions: the ones that a flood of invented ids may evict, and the ones that go where
//! too many were opened.

use super::*;
use crate::protocol::dialect::Declared;
use crate::protocol::headers::{ProtocolVersion, SessionId};

/// Number of sessions opened elsewhere that may have a record beside those in use.
const BOUND: usize = 16_384;

fn name(text: &str) -> SessionId {
    SessionId::parse(text).unwrap()
}

/// Records `many` made-up sessions, each different from any before `from`.
fn flood(log: &EventLog, from: usize, many: usize) {
    (from..from + many).for_each(|n| drop(log.sessions().find_or_record(&name(&format!("made-up-{n}")), &someone())));
}

fn someone() -> Principal {
    Principal::Known([1; 16])
}

fn is_known(log: &EventLog, text: &str) -> bool {
    log.sessions().find(&name(text), &someone()).is_some()
}

#[test]
fn made_up_sessions_have_a_bound_and_the_oldest_go_first() {
    let log = log_with(None);
    flood(&log, 0, BOUND);
    assert_eq!(log.sessions().len(), BOUND);
    assert!(is_known(&log, "made-up-0"), "used again, and so the newest");
    for round in 1..=10 {
        flood(&log, round * BOUND, BOUND);
        assert!(log.sessions().len() <= BOUND, "{}", log.sessions().len());
    }
    assert!(is_known(&log, &format!("made-up-{}", 11 * BOUND - 1)));
    assert!(!is_known(&log, "made-up-1"));
}

#[test]
fn a_session_that_was_used_again_outlives_older_ones() {
    let log = log_with(None);
    flood(&log, 0, BOUND);
    assert!(is_known(&log, "made-up-7"));
    flood(&log, BOUND, 1);
    assert!(log.sessions().len() < BOUND, "{}", log.sessions().len());
    assert!(is_known(&log, "made-up-7"));
    assert!(!is_known(&log, "made-up-6") && !is_known(&log, "made-up-8"));
}

/// Opens a session of this caller.
fn open_of(sessions: &Sessions, text: &str, caller: u8) {
    let opened = Opened {
        version: ProtocolVersion::parse("2025-11-25").unwrap(),
        logging: false,
        declared: Declared::default(),
        rules: Default::default(),
        has_tasks: false,
        initialize_id: None,
    };
    sessions.record(name(text), Principal::Known([caller; 16]), opened);
}

#[test]
fn a_caller_that_opens_sessions_without_end_loses_its_own_records() {
    const MOST: usize = 8;
    let metrics = Arc::new(Metrics::new(&Registrar::default()).unwrap());
    let sessions = Sessions::new(metrics, MOST);
    let is_there = |text: &str, caller: u8| sessions.find(&name(text), &Principal::Known([caller; 16])).is_some();
    for caller in 1..=3 {
        open_of(&sessions, "early", caller);
    }
    for n in 0..100 {
        open_of(&sessions, &format!("many-{n}"), 9);
        assert!(sessions.len() <= MOST);
    }
    assert!((1..=3).all(|caller| is_there("early", caller)));
    assert!(is_there("many-99", 9) && is_there("many-95", 9) && !is_there("many-94", 9));
    // Another caller with few records takes the place of the oldest one.
    open_of(&sessions, "late", 4);
    assert!(is_there("late", 4) && sessions.len() <= MOST);
    // One caller alone has all the room.
    for n in 0..100 {
        open_of(&sessions, &format!("others-{n}"), (n % 50) as u8 + 10);
    }
    assert!(sessions.len() <= MOST && is_there("others-99", 59));
}

#[test]
fn no_flood_costs_a_session_that_was_opened_here_or_is_in_use() {
    let log = log_with(None);
    let version = ProtocolVersion::parse("2025-11-25").unwrap();
    log.sessions().record(
        name("opened"),
        someone(),
        Opened {
            version: version.clone(),
            logging: true,
            declared: Declared::default(),
            rules: Default::default(),
            has_tasks: false,
            initialize_id: None,
        },
    );
    let held = log.sessions().find_or_record(&name("held"), &someone());
    let stream = create(&log, 0);
    log.sessions().find_or_record(&name("with-a-stream"), &someone()).add_stream(&stream);
    let standalone = create(&log, 0);
    drop(log.sessions().find_or_record(&name("listening"), &someone()));
    assert!(log.sessions().set_standalone(&name("listening"), &someone(), &standalone).is_none());
    flood(&log, 0, 3 * BOUND);
    assert_eq!(log.sessions().find(&name("opened"), &someone()).unwrap().version(), Some(&version));
    assert!(Arc::ptr_eq(&held, &log.sessions().find(&name("held"), &someone()).unwrap()));
    assert_eq!(log.sessions().find(&name("with-a-stream"), &someone()).unwrap().streams().len(), 1);
    assert!(is_known(&log, "listening"));
}

#[test]
fn records_in_use_take_no_space_from_the_others() {
    let log = log_with(None);
    let in_use: Vec<_> =
        (0..BOUND).map(|n| log.sessions().find_or_record(&name(&format!("used-{n}")), &someone())).collect();
    flood(&log, 0, BOUND / 2);
    assert!(is_known(&log, "made-up-0"));
    flood(&log, BOUND, 3 * BOUND);
    assert!(log.sessions().len() <= 2 * BOUND, "{}", log.sessions().len());
    drop(in_use);
    log.sessions().sweep(clock::now());
    flood(&log, 5 * BOUND, 3 * BOUND);
    assert!(log.sessions().len() <= BOUND + BOUND / 2, "{}", log.sessions().len());
}

fn opened() -> Opened {
    let version = ProtocolVersion::parse("2025-11-25").unwrap();
    Opened {
        version,
        logging: true,
        declared: Declared::default(),
        rules: Default::default(),
        has_tasks: false,
        initialize_id: None,
    }
}

fn open(log: &EventLog, text: &str) {
    log.sessions().record(name(text), someone(), opened());
}

fn log_for(sessions: usize) -> EventLog {
    let identity = Identity { owner: Owner(1), epoch: StoreEpoch(1), keys: Keyring::new([7; 32], Vec::new()) };
    let bounds = TailLimits { max_bytes: 1 << 20, max_events: 10_000 };
    let allowance = QuotaLimits { max_sessions: sessions, ..allowance() };
    EventLog::new(identity, bounds, allowance, Arc::new(Metrics::new(&Registrar::default()).unwrap()), None, None)
}

#[tokio::test(start_paused = true)]
async fn of_too_many_sessions_those_that_were_used_longest_ago_go() {
    let log = log_for(4);
    for text in ["a", "b", "c", "d"] {
        open(&log, text);
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    assert!(is_known(&log, "a"), "used again");
    let running = create(&log, 0);
    log.sessions().find(&name("b"), &someone()).unwrap().add_stream(&running);
    open(&log, "e");
    open(&log, "f");
    assert_eq!(log.sessions().len(), 4);
    let known: Vec<_> = ["a", "b", "c", "d", "e", "f"].into_iter().filter(|text| is_known(&log, text)).collect();
    assert_eq!(known, ["a", "b", "e", "f"]);
}

#[tokio::test(start_paused = true)]
async fn if_all_sessions_are_in_use_the_oldest_is_forgotten() {
    let log = log_for(100);
    let mut streams = Vec::new();
    for n in 0..200 {
        open(&log, &n.to_string());
        let stream = create(&log, 0);
        log.sessions().find(&name(&n.to_string()), &someone()).unwrap().add_stream(&stream);
        streams.push(stream);
        assert!(log.sessions().len() <= 100);
    }
}

#[test]
fn sessions_that_come_and_go_leave_nothing_behind() {
    let log = log_for(10);
    for n in 0..10_000 {
        let text = n.to_string();
        open(&log, &text);
        open(&log, &text);
        if n % 2 == 0 {
            assert!(log.sessions().remove(&name(&text), &someone()).is_some());
        } else {
            log.sessions().find_or_open(&name(&text), &someone(), opened());
        }
        assert!(log.sessions().len() <= 10);
        assert!(log.sessions().queue_len() <= 21, "{}", log.sessions().queue_len());
    }
    assert_eq!(log.sessions().len(), 10);
}

#[test]
fn streams_that_are_gone_are_looked_for_once_for_each_doubling_of_those_that_live() {
    const LIVE: usize = 1000;
    let log = log_with(None);
    let session = log.sessions().find_or_record(&name("busy"), &someone());
    let add = || {
        let stream = create(&log, 1);
        session.add_stream(&stream);
        stream
    };
    let living: Vec<_> = (0..LIVE - 1).map(|_| add()).collect();
    let (mut looks, mut most) = (0, 0);
    for _ in 0..4 * LIVE {
        let before = session.stream_refs();
        drop(add());
        looks += usize::from(session.stream_refs() <= before);
        most = most.max(session.stream_refs());
    }
    assert!(looks <= 5, "{looks} times");
    assert!(most <= 2 * LIVE + 1, "{most} places");
    assert_eq!(session.streams().len(), living.len());
}
