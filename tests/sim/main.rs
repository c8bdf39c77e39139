//! Seeded simulations: the whole of `serve` over pipes in memory, on a paused clock and one thread.
//!
//! A seed draws a run: configuration, clients, faults of their connections, behaviour of the
//! upstream. All received bytes go into a trace; a seed always gives the same trace. A slow model
//! states the events that each client may have seen.
//!
//! `SIM_SEEDS=100000 SIM_FROM=0 cargo test --test sim no_seed` runs more seeds,
//! `SIM_SEEDS=1 SIM_FROM=17` seed 17 alone and prints its plan and its trace.

// A test's way to fail.
#![allow(clippy::unwrap_used, clippy::panic)]

mod client;
mod model;
mod network;
mod plan;
mod rng;
mod sessions;
mod tasks;
mod upstream;
mod wire;
mod world;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use mcp_resume::sidecar::Sidecar;
use mcp_resume::simulation::{self, Bug};
use tokio::runtime;

use network::{Refusing, network};
use plan::{Call, Client, Ending, Form, Plan, Step};
use rng::Rng;
use world::{Report, World};

/// Seeds of an ordinary test run.
const SEEDS: u64 = 2000;
/// Of so many seeds one is run twice.
const TWICE: u64 = 20;

/// A failure names so many seeds.
const FAULTS_MAX: usize = 12;

/// Runs one seed from the beginning to an empty proxy.
fn simulate(seed: u64, bug: Option<Bug>) -> Report {
    simulate_plan(Plan::draw(seed), bug)
}

fn simulate_plan(plan: Plan, bug: Option<Bug>) -> Report {
    simulation::seed(plan.seed);
    simulation::plant(bug);
    let runtime = runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let report = runtime.block_on(run(plan));
    drop(runtime);
    simulation::plant(None);
    report
}

async fn run(plan: Plan) -> Report {
    let mut rng = Rng::new(!plan.seed);
    let (dialer, listener) = network(plan.pipes.0);
    let (to_upstream, upstream) = network(plan.pipes.1);
    let world = Arc::new(World::new(plan));
    let to_upstream = Arc::new(Refusing(world.clone(), to_upstream));
    let sidecar = Sidecar::new(world.plan.config.clone(), to_upstream).unwrap();
    let (log, metrics) = (sidecar.log(), sidecar.metrics());
    let proxy = tokio::spawn(sidecar.run(listener, drain(world.clone())));
    let upstream = tokio::spawn(upstream::serve(world.clone(), upstream));
    let jumping = tokio::spawn(jump(world.clone()));
    let restarting = tokio::spawn(restart(world.clone()));

    let mut clients = tokio::task::JoinSet::new();
    for client in 0..world.plan.clients.len() {
        clients.spawn(client::run(world.clone(), dialer.clone(), client, rng.fork()));
    }
    while let Some(ended) = clients.join_next().await {
        if let Err(error) = ended {
            world.blame(format!("a client broke: {error}"));
        }
    }
    jumping.abort();
    restarting.abort();

    // All clients have left, so the calls that still run are abandoned.
    let streams = &world.plan.config.streams;
    let wait = streams.max_wait.unwrap_or_default() + Duration::from_secs(100);
    world.sleep(wait).await;
    let open = world.model().open();
    if streams.max_wait.is_some() && !open.is_empty() && !world.is_draining() {
        world.blame(format!("calls without a client still run: {open:?}"));
    }
    let outliving = world.sessions().outliving();
    if !outliving.is_empty() {
        world.blame(format!("sessions that their clients have ended go on at the server: {outliving:?}"));
    }
    world.model().is_over = true;
    upstream.abort();
    if world.is_draining() {
        // The process is gone, and all that it knew.
        proxy.abort();
        return world.report();
    }
    world.sleep(wait + streams.retention + Duration::from_secs(4000)).await;
    if !log.is_empty() || !log.retry_index().is_empty() || !log.sessions().is_empty() {
        let (streams, calls, sessions) = (log.len(), log.retry_index().len(), log.sessions().len());
        world.blame(format!("not forgotten: {streams} streams, {calls} calls for a retry, {sessions} sessions"));
    }
    let page = String::from_utf8(metrics.render()).unwrap();
    for gauge in ["streams_open", "streams_attached", "connections"] {
        let line = page.lines().find(|line| line.starts_with(&format!("mcp_resume_{gauge} ")));
        if line.is_none_or(|line| !line.ends_with(" 0")) {
            world.blame(format!("at the end: {line:?}"));
        }
    }
    proxy.abort();
    world.report()
}

/// Moves the clock as if the machine had slept.
async fn jump(world: Arc<World>) {
    for (at, by) in &world.plan.jumps {
        world.sleep(*at).await;
        tokio::time::advance(*by).await;
        world.reach("a clock that jumped");
    }
}

/// Returns when the proxy is to drain.
async fn drain(world: Arc<World>) {
    let Some(at) = world.plan.drains else { return std::future::pending().await };
    world.sleep(at).await;
    world.reach("a drain");
    if (0..world.plan.clients.len()).any(|client| world.sessions().is_being_opened_again(client)) {
        world.reach("a drain while a session was being opened again");
    }
}

/// Restarts the server.
async fn restart(world: Arc<World>) {
    for at in &world.plan.restarts {
        world.sleep(at.saturating_sub(world.elapsed())).await;
        world.restart();
        world.reach("a server that restarted");
    }
}

/// The first seeds of `from..to`, at least `most` if there are so many, for which `test` finds
/// something, on as many threads as there are processors.
fn survey<T: Send>(from: u64, to: u64, most: usize, test: impl Fn(u64) -> Option<T> + Sync) -> Vec<(u64, T)> {
    let next = AtomicU64::new(from);
    let found = Mutex::new(Vec::new());
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= to || found.lock().unwrap().len() >= most {
                return;
            }
            if let Some(fault) = test(seed) {
                found.lock().unwrap().push((seed, fault));
            }
        }
    };
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    let mut found = found.into_inner().unwrap();
    found.sort_by_key(|(seed, _)| *seed);
    found
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

#[test]
fn no_seed_shows_a_lost_doubled_or_late_event() {
    let from = number("SIM_FROM").unwrap_or(0);
    let seeds = number("SIM_SEEDS").unwrap_or(SEEDS);
    if seeds == 1 {
        println!("{:#?}\n{}", Plan::draw(from), simulate(from, None).trace);
    }
    let faults = survey(from, from + seeds, FAULTS_MAX, |seed| {
        let report = simulate(seed, None);
        if seed.is_multiple_of(TWICE) && report.trace != simulate(seed, None).trace {
            return Some("two runs gave two traces".to_owned());
        }
        report.blames.into_iter().next()
    });
    let told: Vec<_> = faults.iter().map(|(seed, fault)| format!("seed {seed}: {fault}")).collect();
    if let Some((seed, _)) = faults.first() {
        let told = told.join("\n");
        panic!("{told}\nto see one: SIM_FROM={seed} SIM_SEEDS=1 cargo test --test sim no_seed -- --nocapture");
    }
}

#[test]
fn the_seeds_reach_every_kind_of_event() {
    let wanted = [
        "a response cut by the client",
        "a request cut by the client",
        "a takeover",
        "a response closed early",
        "a resume at the end",
        "the same POST again",
        "a lost stream",
        "a visit to a finished stream",
        "the upstream failed",
        "the call was given up",
        "bounds",
        "bounds of bytes",
        "a batch",
        "a question answered",
        "an answer passed over",
        "a cancel",
        "another session",
        "the session's own stream",
        "a clock that jumped",
        "the upstream refused",
        "a server that restarted",
        "a session that was opened again",
        "a late refusal",
        "a drain",
        "a drain while a session was being opened again",
        "a handshake that was cut short",
        "the end of a session that was being opened again",
        "a question with another ID",
        "a late answer",
    ];
    let reached = Mutex::new(BTreeSet::new());
    let missing = || wanted.iter().filter(|wanted| !reached.lock().unwrap().contains(*wanted)).collect::<Vec<_>>();
    survey(0, SEEDS / 4, 1, |seed| {
        let report = simulate(seed, None);
        reached.lock().unwrap().extend(report.reached);
        missing().is_empty().then_some(())
    });
    assert!(missing().is_empty(), "not reached: {:?}", missing());
}

/// Seed 388 once: the refusal was sent a single time, and the server waited for ever.
#[test]
fn a_question_to_a_client_without_streams_is_refused_once_the_upstream_takes_connections() {
    let mut plan = Plan::draw(0);
    let second = Duration::from_secs(1);
    plan.config = mcp_resume::config::Config::for_upstream("http://upstream.test:9/mcp").unwrap();
    plan.jumps.clear();
    plan.refuses = Some((second / 2, second * 3));
    let client = plan.clients.remove(0);
    let mut call = client.calls[0].clone();
    call.script.form = Form::Stream(vec![Step::Ask(second), Step::Answer(second, vec![0])], Ending::End);
    call.script.requests = 1;
    call.script.before_head = Duration::ZERO;
    let faults = Vec::new();
    let calls = vec![Call { starts: Duration::ZERO, json_only: true, faults, cancels: None, patience: None, ..call }];
    plan.clients = vec![Client { version: "2025-11-25", calls, listens: None, ..client }];
    let report = simulate_plan(plan, None);
    assert_eq!(report.blames, Vec::<String>::new());
    assert!(report.reached.contains("the upstream refused"));
}

macro_rules! planted {
    ($($bug:ident within $seeds:literal $(at $first:literal)? => $test:ident;)+) => {$(
        #[test]
        fn $test() {
            let shows = |seed| simulate(seed, Some(Bug::$bug)).blames.into_iter().next();
            let first: Option<u64> = None$(.or(Some($first)))?;
            let known = first.and_then(|seed| Some((seed, shows(seed)?)));
            let Some((seed, fault)) = known.or_else(|| survey(0, $seeds, 1, shows).into_iter().next()) else {
                panic!("{:?} went unnoticed in {} seeds", Bug::$bug, $seeds);
            };
            println!("{:?} in seed {seed}: {fault}", Bug::$bug);
        }
    )+};
}

// Bugs that are planted in the proxy, and within how many seeds each has to be found: about twice
// what it takes. Where that is long, a seed that has shown the bug is tried first.
planted! {
    RepeatsTheCursor within 10 => a_replay_that_repeats_the_cursors_event_is_found;
    TrustsWhatWasWritten within 10 => a_resume_behind_events_that_were_lost_is_found;
    LosesTheWakeUp within 10 => a_reader_that_is_not_woken_is_found;
    LetsTwoRead within 20 => two_connections_that_read_one_stream_are_found;
    AdmitsAnyone within 20 => a_stream_given_to_another_session_is_found;
    ForgetsTheLastReader within 50 => a_stream_that_is_forgotten_too_early_is_found;
    KeepsForEver within 10 => a_stream_that_is_never_forgotten_is_found;
    LeavesThePrimeOut within 10 => a_response_without_an_id_is_found;
    EndsWithTheClient within 10 => a_call_that_ends_with_its_connection_is_found;
    RunsTwice within 200 at 39 => a_refused_call_that_is_sent_again_twice_is_found;
    DrainsPastCalls within 800 at 358 => a_drain_that_does_not_wait_for_calls_is_found;
    LeavesTheEnded within 500 at 235 => a_session_that_outlives_its_end_is_found;
    ReusesIds within 800 at 306 => an_answer_to_a_question_of_another_session_is_found;
    ForwardsEveryAnswer within 20 => an_answer_that_goes_upstream_twice_is_found;
}
