//! Turns of the starts that wait.

use super::*;
use crate::channel::start_queue;
use crate::clock;

/// Channels whose starts come one every 30 seconds after a burst of two.
fn slow_starts() -> Setup {
    Setup::new(|settings| settings.bounds.as_mut().expect("bounds").starts_per_minute = Some(2))
}

/// Servers that run.
type Running = Vec<Server>;

/// Name of the client whose session the next server is for, which opens it.
async fn next_client(setup: &mut Setup, running: &mut Running) -> String {
    let mut server = setup.server().await;
    let message = server.message().await;
    server.say(json!({"jsonrpc": "2.0", "id": message["id"], "result": {"protocolVersion": "2025-11-25"}})).await;
    running.push(server);
    message["params"]["clientInfo"]["name"].as_str().expect("a name").to_owned()
}

#[tokio::test(start_paused = true)]
async fn a_caller_with_many_starts_delays_no_other() {
    let (mut setup, mut running) = (slow_starts(), Running::new());
    let _many: Vec<_> = (0..60).map(|id| setup.initialize(id, 1, "a")).collect();
    assert_eq!([next_client(&mut setup, &mut running).await, next_client(&mut setup, &mut running).await], ["a", "a"]);
    let begun = clock::now();
    let one = setup.initialize(100, 2, "b");
    assert_eq!(next_client(&mut setup, &mut running).await, "b");
    assert_eq!((outcome(one).await.status, (clock::now() - begun).as_secs()), (200, 30));
}

#[tokio::test(start_paused = true)]
async fn a_session_that_existed_is_opened_before_new_ones() {
    let (mut setup, mut running) = (slow_starts(), Running::new());
    let _many: Vec<_> = (0..4).map(|id| setup.initialize(id, 1, "a")).collect();
    assert_eq!([next_client(&mut setup, &mut running).await, next_client(&mut setup, &mut running).await], ["a", "a"]);
    let _revival = setup.start(100, 1, "again", StartKind::Revival);
    assert_eq!(next_client(&mut setup, &mut running).await, "again");
}

#[tokio::test(start_paused = true)]
async fn a_start_whose_client_has_left_takes_no_turn() {
    let (mut setup, mut running) = (slow_starts(), Running::new());
    let _burst = [setup.initialize(1, 1, "a"), setup.initialize(2, 1, "a")];
    assert_eq!([next_client(&mut setup, &mut running).await, next_client(&mut setup, &mut running).await], ["a", "a"]);
    let begun = clock::now();
    let left = setup.initialize(3, 2, "left");
    let _next = setup.initialize(4, 3, "next");
    clock::sleep(Duration::from_secs(1)).await;
    give_up(left).await;
    assert_eq!(next_client(&mut setup, &mut running).await, "next");
    assert_eq!((clock::now() - begun).as_secs(), 30);
}

#[tokio::test(start_paused = true)]
async fn a_caller_with_too_many_starts_is_refused_at_once() {
    let (mut setup, mut running) = (slow_starts(), Running::new());
    let begun = clock::now();
    let _waiting: Vec<_> = (0..2 + start_queue::MAX_OF_CALLER as u64).map(|id| setup.initialize(id, 1, "a")).collect();
    assert_eq!([next_client(&mut setup, &mut running).await, next_client(&mut setup, &mut running).await], ["a", "a"]);
    let refused = outcome(setup.initialize(100, 1, "a")).await;
    assert_eq!((refused.status, clock::now() - begun), (503, Duration::ZERO));
    assert!(refused.retry_after.is_some() && refused.message().contains("too many starts"), "{}", refused.message());
    let _other = setup.initialize(101, 2, "b");
    assert_eq!(next_client(&mut setup, &mut running).await, "b");
}
