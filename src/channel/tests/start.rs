//! Starts of sessions, with the clock moved by hand.

use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::json;

use super::{KEEP, START, Setup, give_up, outcome};
use crate::clock;

#[tokio::test(start_paused = true)]
async fn a_start_that_its_client_gives_up_goes_on_for_the_next_equal_initialize() {
    let mut setup = Setup::new(|_| {});
    let first = setup.initialize(1, 1, "a");
    let mut server = setup.server().await;
    give_up(first).await;
    let others = [setup.initialize(2, 2, "a"), setup.initialize(3, 1, "b")];
    let mut of_others = [setup.server().await, setup.server().await];
    let second = setup.initialize(4, 1, "a");
    assert_eq!(server.accept().await, 1);
    let outcome_of_second = outcome(second).await;
    assert_eq!((outcome_of_second.status, &outcome_of_second.body["id"]), (200, &json!(4)));
    assert!(outcome_of_second.session.is_some());
    for server in &mut of_others {
        server.accept().await;
    }
    for other in others {
        assert_eq!(outcome(other).await.status, 200, "another caller, or another client, has a server of its own");
    }
    setup.starts_none();
}

#[tokio::test(start_paused = true)]
async fn a_server_that_answered_too_late_is_kept() {
    let mut setup = Setup::new(|_| {});
    let first = setup.initialize(1, 1, "a");
    let mut server = setup.server().await;
    give_up(first).await;
    server.accept().await;
    clock::sleep(Duration::from_secs(100)).await;
    let second = outcome(setup.initialize(2, 1, "a")).await;
    assert_eq!((second.status, &second.body["id"]), (200, &json!(2)));
    setup.starts_none();
    // The session has a client now: it is neither ended nor given away.
    let third = setup.initialize(3, 1, "a");
    let mut other = setup.server().await;
    other.accept().await;
    assert_ne!(outcome(third).await.session, second.session);
    clock::sleep(2 * KEEP).await;
    assert!(!server.has_ended());
}

#[tokio::test(start_paused = true)]
async fn a_start_that_two_clients_want_is_not_taken_from_the_first() {
    let mut setup = Setup::new(|_| {});
    let (first, second) = (setup.initialize(1, 1, "a"), setup.initialize(2, 1, "a"));
    let mut servers = [setup.server().await, setup.server().await];
    for server in &mut servers {
        server.accept().await;
    }
    let (first, second) = (outcome(first).await, outcome(second).await);
    assert_eq!((&first.body["id"], &second.body["id"]), (&json!(1), &json!(2)));
    assert_ne!(first.session, second.session);
}

#[tokio::test(start_paused = true)]
async fn a_start_that_takes_too_long_goes_on() {
    let mut setup = Setup::new(|_| {});
    let begun = clock::now();
    let first = setup.initialize(1, 1, "a");
    let mut server = setup.server().await;
    server.say("Installing…").await;
    let first = outcome(first).await;
    assert_eq!((first.status, clock::now() - begun), (504, START));
    assert_eq!((&first.body["id"], &first.body["error"]["data"]["mayHaveRun"]), (&json!(1), &json!(false)));
    assert!(
        first.message().contains("within 55 s") && first.message().contains("no JSON-RPC: 1 "),
        "{}",
        first.message()
    );
    let second = setup.initialize(2, 1, "a");
    server.accept().await;
    assert_eq!(outcome(second).await.status, 200);
    setup.starts_none();
}

#[tokio::test(start_paused = true)]
async fn a_server_that_no_client_wants_any_more_is_ended() {
    let mut setup = Setup::new(|_| {});
    let begun = clock::now();
    let starting = setup.initialize(1, 1, "a");
    let slow = setup.server().await;
    give_up(starting).await;
    let starting = setup.initialize(2, 2, "a");
    let mut late = setup.server().await;
    give_up(starting).await;
    late.accept().await;
    slow.end().await;
    late.end().await;
    assert_eq!((clock::now() - begun).as_secs(), KEEP.as_secs());
}

#[tokio::test(start_paused = true)]
async fn starts_beyond_the_rate_wait_and_are_refused_in_time() {
    let mut setup = Setup::new(|settings| settings.bounds.as_mut().expect("bounds").starts_per_minute = Some(1));
    let begun = clock::now();
    let _first = setup.open(1).await;
    let refused = outcome(setup.initialize(2, 1, "a")).await;
    assert_eq!((refused.status, clock::now() - begun), (503, START));
    assert_eq!((&refused.body["id"], &refused.body["error"]["code"]), (&json!(2), &json!(-32013)));
    assert!(refused.retry_after.is_some() && refused.session.is_none());
    let admitted = setup.initialize(3, 1, "a");
    let mut next = setup.server().await;
    next.accept().await;
    assert_eq!((outcome(admitted).await.status, (clock::now() - begun).as_secs()), (200, 60));
}

/// Channels whose first start runs alone, and then two at once.
fn gated() -> Setup {
    Setup::new(|settings| {
        let bounds = settings.bounds.as_mut().expect("bounds");
        (bounds.first_alone, bounds.starts_at_once) = (Duration::from_secs(10), 2);
    })
}

#[tokio::test(start_paused = true)]
async fn the_first_start_runs_alone_until_it_has_a_response() {
    let mut setup = gated();
    let opening: Vec<_> = (1..=4).map(|caller| setup.initialize(1, caller, "a")).collect();
    let mut first = setup.server().await;
    clock::sleep(Duration::from_secs(3)).await;
    setup.starts_none();
    first.accept().await;
    let mut next = [setup.server().await, setup.server().await];
    clock::sleep(Duration::from_secs(3)).await;
    setup.starts_none();
    next[0].accept().await;
    let mut last = setup.server().await;
    for server in [&mut next[1], &mut last] {
        server.accept().await;
    }
    for opening in opening {
        assert_eq!(outcome(opening).await.status, 200);
    }
}

#[tokio::test(start_paused = true)]
async fn a_first_start_without_a_response_holds_others_for_ten_seconds() {
    let mut setup = gated();
    let begun = clock::now();
    let _slow = setup.initialize(1, 1, "a");
    let _first = setup.server().await;
    let second = setup.initialize(1, 2, "a");
    let mut server = setup.server().await;
    server.accept().await;
    assert_eq!(outcome(second).await.status, 200);
    assert_eq!((clock::now() - begun).as_secs(), 10);
}

#[tokio::test(start_paused = true)]
async fn a_failed_first_start_holds_no_other() {
    let mut setup = gated();
    let begun = clock::now();
    let failing = setup.initialize(1, 1, "a");
    setup.server().await.ended.send_replace(true);
    assert_eq!(outcome(failing).await.status, 502);
    let second = setup.initialize(1, 2, "a");
    let mut server = setup.server().await;
    server.accept().await;
    assert_eq!(outcome(second).await.status, 200);
    assert!((clock::now() - begun).as_secs() < 5);
}

#[tokio::test(start_paused = true)]
async fn a_server_without_a_call_makes_room() {
    let mut setup = Setup::new(|settings| settings.bounds.as_mut().expect("bounds").servers_per_caller = 2);
    let of_another = setup.open(2).await;
    let first = setup.open(1).await;
    let second = setup.open(1).await;
    let _third = setup.open(1).await;
    first.end().await;
    assert!(!second.has_ended() && !of_another.has_ended());
}

#[tokio::test(start_paused = true)]
async fn a_start_that_no_client_waits_for_makes_room() {
    let mut setup = Setup::new(|settings| settings.bounds.as_mut().expect("bounds").servers_per_caller = 1);
    let given_up = setup.initialize(1, 1, "a");
    let server = setup.server().await;
    give_up(given_up).await;
    let other = setup.initialize(2, 1, "b");
    let mut next = setup.server().await;
    next.accept().await;
    server.end().await;
    assert_eq!(outcome(other).await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn without_room_a_start_waits_and_is_refused_in_time() {
    let mut setup = Setup::new(|settings| {
        (settings.bounds.as_mut().expect("bounds").servers, settings.bounds.as_mut().expect("bounds").may_replace) =
            (1, false)
    });
    let begun = clock::now();
    let server = setup.open(1).await;
    let waiting = outcome(setup.initialize(2, 2, "a")).await;
    assert_eq!((waiting.status, &waiting.body["error"]["code"], clock::now() - begun), (503, &json!(-32013), START));
    let waiting = setup.initialize(3, 2, "a");
    clock::sleep(Duration::from_secs(5)).await;
    assert!(!server.has_ended(), "its session could not be opened again");
    drop(server);
    let mut next = setup.server().await;
    next.accept().await;
    assert_eq!(outcome(waiting).await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn a_caller_without_room_holds_up_no_other() {
    let mut setup = Setup::new(|settings| {
        (
            settings.bounds.as_mut().expect("bounds").servers_per_caller,
            settings.bounds.as_mut().expect("bounds").may_replace,
        ) = (1, false);
    });
    let begun = clock::now();
    let _first = setup.open(1).await;
    let blocked = setup.initialize(2, 1, "a");
    clock::sleep(Duration::from_secs(1)).await;
    let _other = setup.open(2).await;
    assert_eq!((clock::now() - begun).as_secs(), 1);
    assert_eq!(outcome(blocked).await.status, 503);
}

#[tokio::test(start_paused = true)]
async fn after_a_failed_start_the_next_one_waits() {
    let mut setup = Setup::new(|_| {});
    setup.is_missing.store(true, Ordering::Relaxed);
    let begun = clock::now();
    for at in [0, 1, 3, 7, 15, 31] {
        let failed = outcome(setup.initialize(1, 1, "a")).await;
        assert_eq!((failed.status, (clock::now() - begun).as_secs()), (502, at));
        assert!(failed.message().contains("not found"), "{}", failed.message());
        assert!(!setup.channels.is_available());
    }
    setup.is_missing.store(false, Ordering::Relaxed);
    setup.open(1).await;
    assert_eq!((clock::now() - begun).as_secs(), 61);
    assert!(setup.channels.is_available());
}

#[tokio::test(start_paused = true)]
async fn a_failed_start_does_not_make_the_proxy_unready_for_good() {
    let setup = Setup::new(|_| {});
    setup.is_missing.store(true, Ordering::Relaxed);
    assert_eq!(outcome(setup.initialize(1, 1, "a")).await.status, 502);
    assert!(!setup.channels.is_available());
    clock::sleep(Duration::from_secs(62)).await;
    assert!(setup.channels.is_available());
}

#[tokio::test(start_paused = true)]
async fn a_server_that_writes_no_messages_is_told_from_one_that_ends() {
    let mut setup = Setup::new(|_| {});
    let failed = setup.initialize(1, 1, "a");
    let mut server = setup.server().await;
    server.message().await;
    for line in ["Server listening on port 3000", "{\"not\": \"a message\"}"] {
        server.say(line).await;
    }
    server.ended.send_replace(true);
    drop(server);
    let failed = outcome(failed).await;
    assert_eq!(failed.status, 502);
    let message = failed.message();
    assert!(
        message.contains("exit code 7") && message.contains("no JSON-RPC: 2 ") && message.contains("stdout"),
        "{message}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_server_may_ask_before_its_answer() {
    let mut setup = Setup::new(|_| {});
    let opening = setup.initialize(1, 1, "a");
    let mut server = setup.server().await;
    server.message().await;
    server.say(r#"{"jsonrpc":"2.0","id":"p","method":"ping"}"#).await;
    assert_eq!(server.message().await, json!({"jsonrpc": "2.0", "id": "p", "result": {}}));
    server.say(r#"{"jsonrpc":"2.0","id":"r","method":"roots/list"}"#).await;
    assert_eq!(server.message().await["error"]["code"], -32600);
    server.say(r#"{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-11-25"}}"#).await;
    let opened = outcome(opening).await;
    assert_eq!((opened.status, &opened.body["result"]["protocolVersion"]), (200, &json!("2025-11-25")));
}
