//! Stores that outlive the process, against processes that die.
//!
//! The binary runs unmodified under load, and is killed, frozen and drained at random moments; so
//! is the Redis it uses. An event that a client has seen must never change. `CRASH_SEED=N` repeats
//! the decisions of a run, though not its timing. `CRASH_ROUNDS=N` sets the number of rounds of
//! each test. `CRASH_SECS=N` sets the longest duration of each test.

// A test's way to fail.
#![allow(clippy::unwrap_used, clippy::panic)]

mod caller;
mod checker;
mod faults;
mod http;
mod process;
#[path = "../sim/rng.rs"]
mod rng;
mod run;
mod script;
#[allow(dead_code, reason = "shared with other tests, which use more of it")]
#[path = "../it/support/sse.rs"]
mod sse;
mod upstream;
#[path = "../it/support/wire.rs"]
mod wire;
mod world;

use faults::Fault;
use process::Appends;
use run::Run;
use world::Allowed;

// ── disk ─────────────────────────────────────────────────────────────────────────────────────────

#[tokio::test]
async fn a_disk_with_fsync_always_survives_kills() {
    disk_survives_kills("disk, always", "always").await;
}

#[tokio::test]
async fn a_disk_with_fsync_at_intervals_survives_kills() {
    disk_survives_kills("disk, interval", "interval").await;
}

async fn disk_survives_kills(name: &'static str, fsync: &str) {
    let mut run = Run::prepare(name).await;
    let store = format!("{}/store", run.directory.display());
    let settings = [("STORE__KIND", "disk".to_owned()), ("STORE__PATH", store), ("STORE__FSYNC", fsync.to_owned())];
    run.begin(1, &settings, Allowed { unanswered: true, ..Allowed::default() }).await;
    while run.should_continue(16) {
        run.inject(&[(80, Fault::Kill), (20, Fault::KillTwice)]).await;
    }
    run.end().await;
}

// ── Redis ────────────────────────────────────────────────────────────────────────────────────────

#[tokio::test]
async fn a_redis_survives_the_loss_of_replicas() {
    let mut run = Run::prepare("redis, replicas").await;
    run.begin_with_redis(
        Appends::Always,
        "degrade",
        Allowed { refusals: true, unanswered: true, ..Allowed::default() },
    )
    .await;
    while run.should_continue(8) {
        let faults = [(40, Fault::Kill), (10, Fault::KillTwice), (20, Fault::KillAll), (30, Fault::LeaveDead)];
        run.inject(&faults).await;
    }
    run.end().await;
}

#[tokio::test]
async fn a_replica_that_was_frozen_past_its_lease_serves_nothing_stale() {
    let mut run = Run::prepare("redis, frozen").await;
    run.begin_with_redis(
        Appends::Always,
        "degrade",
        // A session that is opened as the replica wakes is known there alone until the store is
        // reached again.
        Allowed { refusals: true, unanswered: true, forgotten_sessions: true },
    )
    .await;
    while run.should_continue(3) {
        run.inject(&[(1, Fault::Freeze)]).await;
    }
    run.end().await;
}

#[tokio::test]
async fn a_redis_that_is_killed_loses_nothing_where_replicas_serve_on() {
    // What was begun without the store is known to its owner alone until the store is back.
    let allowed = Allowed { refusals: true, forgotten_sessions: true, ..Allowed::default() };
    redis_is_killed("redis killed, degrade", Appends::Everysec, "degrade", allowed, &[(1, Fault::KillRedis)]).await;
}

#[tokio::test]
async fn a_redis_that_is_killed_loses_nothing_where_replicas_wait() {
    let allowed = Allowed { refusals: true, ..Allowed::default() };
    redis_is_killed("redis killed, refuse", Appends::Always, "refuse", allowed, &[(1, Fault::KillRedis)]).await;
}

#[tokio::test]
async fn a_redis_and_its_replicas_may_die_together_where_replicas_wait() {
    let allowed = Allowed { refusals: true, unanswered: true, ..Allowed::default() };
    let faults = [(1, Fault::KillRedis), (1, Fault::KillRedisAndReplica), (1, Fault::Kill)];
    redis_is_killed("redis and replicas killed", Appends::Everysec, "refuse", allowed, &faults).await;
}

async fn redis_is_killed(
    name: &'static str,
    appends: Appends,
    on_unreachable: &str,
    allowed: Allowed,
    faults: &[(usize, Fault)],
) {
    let mut run = Run::prepare(name).await;
    run.begin_with_redis(appends, on_unreachable, allowed).await;
    while run.should_continue(4) {
        run.inject(faults).await;
    }
    run.end().await;
}

// ── drain ────────────────────────────────────────────────────────────────────────────────────────

#[tokio::test]
async fn a_drain_loses_no_call() {
    let mut run = Run::prepare("drain").await;
    // No process dies here: a call that ends with an error is lost, and so is one that ran and was
    // not answered.
    run.begin_with_redis(Appends::Always, "degrade", Allowed::default()).await;
    while run.should_continue(3) {
        run.inject(&[(1, Fault::Drain)]).await;
    }
    run.end().await;
}
