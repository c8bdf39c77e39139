//! Stores that outlive the process, against processes that die.
//!
//! The binary runs as it is, under load, and is killed, frozen and drained at random moments; so is the Redis it uses. Whatever a
//! client ever saw has to stay what it was. `CRASH_SEED=N` repeats the decisions of a run (not its timing: these are real processes),
//! `CRASH_ROUNDS=N` makes each test that many rounds long, `CRASH_SECS=N` ends each after so long at the latest.

// A test's way to fail.
#![allow(clippy::unwrap_used, clippy::panic)]

mod caller;
mod http;
mod judge;
mod process;
#[path = "../sim/rng.rs"]
mod rng;
mod script;
#[allow(dead_code, reason = "shared with other tests, which use more of it")]
#[path = "../it/support/sse.rs"]
mod sse;
mod upstream;
#[path = "../it/support/wire.rs"]
mod wire;
mod world;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;

use process::{Appends, Redis, Replica};
use rng::Rng;
use upstream::Upstream;
use world::{Allowed, World, count, counted, within};

/// So many clients call at once.
const CALLERS: usize = 12;
const LEASE_SECS: u64 = 4;

// ── disk ──────────────────────────────────────────────────────────────────────────────────────────────────────────────────

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
    while run.goes_on(16) {
        run.blow(&[(80, Blow::Kill), (20, Blow::KillTwice)]).await;
    }
    run.end().await;
}

// ── Redis ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────

#[tokio::test]
async fn a_redis_survives_the_loss_of_replicas() {
    let mut run = Run::prepare("redis, replicas").await;
    run.begin_with_redis(
        Appends::Always,
        "degrade",
        Allowed { refusals: true, unanswered: true, ..Allowed::default() },
    )
    .await;
    while run.goes_on(8) {
        let blows = [(40, Blow::Kill), (10, Blow::KillTwice), (20, Blow::KillAll), (30, Blow::LeaveDead)];
        run.blow(&blows).await;
    }
    run.end().await;
}

#[tokio::test]
async fn a_replica_that_was_frozen_past_its_lease_serves_nothing_stale() {
    let mut run = Run::prepare("redis, frozen").await;
    run.begin_with_redis(
        Appends::Always,
        "degrade",
        Allowed { refusals: true, unanswered: true, ..Allowed::default() },
    )
    .await;
    while run.goes_on(3) {
        run.blow(&[(1, Blow::Freeze)]).await;
    }
    run.end().await;
}

#[tokio::test]
async fn a_redis_that_is_killed_loses_nothing_where_replicas_serve_on() {
    // What was begun without the store is known to its owner alone until the store is back.
    let allowed = Allowed { refusals: true, forgotten_sessions: true, ..Allowed::default() };
    redis_is_killed("redis killed, degrade", Appends::Everysec, "degrade", allowed, &[(1, Blow::KillRedis)]).await;
}

#[tokio::test]
async fn a_redis_that_is_killed_loses_nothing_where_replicas_wait() {
    let allowed = Allowed { refusals: true, ..Allowed::default() };
    redis_is_killed("redis killed, refuse", Appends::Always, "refuse", allowed, &[(1, Blow::KillRedis)]).await;
}

#[tokio::test]
async fn a_redis_and_its_replicas_may_die_together_where_replicas_wait() {
    let allowed = Allowed { refusals: true, unanswered: true, ..Allowed::default() };
    let blows = [(1, Blow::KillRedis), (1, Blow::KillRedisAndReplica), (1, Blow::Kill)];
    redis_is_killed("redis and replicas killed", Appends::Everysec, "refuse", allowed, &blows).await;
}

async fn redis_is_killed(
    name: &'static str,
    appends: Appends,
    on_unreachable: &str,
    allowed: Allowed,
    blows: &[(usize, Blow)],
) {
    let mut run = Run::prepare(name).await;
    run.begin_with_redis(appends, on_unreachable, allowed).await;
    while run.goes_on(4) {
        run.blow(blows).await;
    }
    run.end().await;
}

// ── drain ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────

#[tokio::test]
async fn a_drain_loses_no_call() {
    let mut run = Run::prepare("drain").await;
    // Nobody dies here: a call that ends with an error is lost, and so is one that ran and was not answered.
    run.begin_with_redis(Appends::Always, "degrade", Allowed::default()).await;
    while run.goes_on(3) {
        run.blow(&[(1, Blow::Drain)]).await;
    }
    run.end().await;
}

/// Something that happens to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Blow {
    /// SIGKILL, and started again.
    Kill,
    /// Once more while it starts.
    KillTwice,
    /// All replicas at once.
    KillAll,
    /// Started again only when the others have ended what it had.
    LeaveDead,
    /// SIGSTOP, and SIGCONT when the others have ended what it had.
    Freeze,
    /// SIGTERM, and started again.
    Drain,
    /// SIGKILL of Redis, and started again.
    KillRedis,
    /// Both.
    KillRedisAndReplica,
}

/// One test: its processes, its load, its rounds.
struct Run {
    name: &'static str,
    rng: Rng,
    seed: u64,
    directory: PathBuf,
    upstream: Option<(Arc<Upstream>, std::net::SocketAddr)>,
    world: Option<Arc<World>>,
    replicas: Vec<Replica>,
    redis: Option<Redis>,
    callers: Vec<JoinHandle<()>>,
    rounds: usize,
    began: Instant,
}

impl Run {
    async fn prepare(name: &'static str) -> Run {
        let seed = setting("CRASH_SEED").unwrap_or_else(|| any_seed(name));
        println!("{name}: CRASH_SEED={seed}");
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join("crash")
            .join(format!("{}-{seed}", name.replace([' ', ','], "-")));
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(&directory).expect("a directory");
        let rng = Rng::new(seed);
        let upstream = Some(Upstream::start().await);
        let (replicas, callers) = (Vec::new(), Vec::new());
        let began = mcp_resume::clock::now();
        Run { name, rng, seed, directory, upstream, world: None, replicas, redis: None, callers, rounds: 0, began }
    }

    async fn begin_with_redis(&mut self, appends: Appends, on_unreachable: &str, allowed: Allowed) {
        let redis = Redis::start(&self.directory, appends).await;
        let settings = [
            ("STORE__KIND", "redis".to_owned()),
            ("STORE__URL", redis.url()),
            ("STORE__ON_UNREACHABLE", on_unreachable.to_owned()),
            ("REPLICA__LEASE_SECS", LEASE_SECS.to_string()),
        ];
        self.redis = Some(redis);
        self.begin(2, &settings, allowed).await;
    }

    /// Starts so many replicas, and the load.
    async fn begin(&mut self, replicas: usize, settings: &[(&'static str, String)], allowed: Allowed) {
        let (upstream, addr) = self.upstream.take().expect("a run begins once");
        let mut settings = settings.to_vec();
        settings.extend([
            ("UPSTREAM__URL", format!("http://{addr}/mcp")),
            ("DELIVERY__RETRY_MS", "50".to_owned()),
            // Longer than a client here asks for anything; so short that a long run does not fill the machine.
            ("STREAMS__MAX_WAIT_SECS", "150".to_owned()),
            ("STREAMS__RETENTION_SECS", "150".to_owned()),
            ("STREAMS__MAX_BYTES_PER_PRINCIPAL", "2000000000".to_owned()),
            ("STREAMS__MAX_BYTES_TOTAL", "8000000000".to_owned()),
            ("REPLICA__DRAIN_TIMEOUT_SECS", "60".to_owned()),
            ("LOG__LEVEL", std::env::var("CRASH_LOG").unwrap_or_else(|_| "info".to_owned())),
        ]);
        for number in 0..replicas {
            self.replicas.push(Replica::new(&format!("r{number}"), &self.directory, &settings));
        }
        for replica in &mut self.replicas {
            replica.start().await;
        }
        let places = self.replicas.iter().map(|replica| (replica.addr, replica.admin)).unzip();
        let world = Arc::new(World::new((self.name, self.seed), allowed, upstream, places, self.directory.clone()));
        for number in 0..CALLERS {
            self.callers.push(tokio::spawn(caller::run(world.clone(), number, self.rng.fork())));
        }
        self.world = Some(world);
    }

    fn world(&self) -> Arc<World> {
        self.world.clone().expect("the run has begun")
    }

    /// Whether there is another round, where `rounds` are to be made if nothing else was asked for.
    fn goes_on(&mut self, rounds: usize) -> bool {
        let rounds = setting("CRASH_ROUNDS").map_or(rounds, |rounds| usize::try_from(rounds).expect("a number"));
        let is_late = setting("CRASH_SECS")
            .is_some_and(|limit| mcp_resume::clock::now() - self.began > Duration::from_secs(limit));
        let goes_on = self.rounds < rounds && !is_late && !self.world().has_failed();
        self.rounds += 1;
        goes_on
    }

    /// One round: under load, at a random moment, one of `blows`, each as likely as its number says.
    async fn blow(&mut self, blows: &[(usize, Blow)]) {
        let world = self.world();
        let mut at = self.rng.below(blows.iter().map(|(weight, _)| weight).sum());
        let chosen = blows.iter().find(|(weight, _)| {
            let is_it = at < *weight;
            at = at.saturating_sub(*weight);
            is_it
        });
        let blow = chosen.expect("one of them").1;
        let which = self.rng.below(self.replicas.len());
        let (moment, pause) = (self.rng.millis(600), self.rng.millis(2500));
        let events = self.rng.below(50);
        world.more_is_seen(events).await;
        tokio::time::sleep(moment).await;
        count(&world.tally.blows);
        let so_far = mcp_resume::clock::now() - self.began;
        println!("{}: after {so_far:.1?}: {blow:?} of {which}; {:?}", self.name, world.tally);
        match blow {
            Blow::Kill => {
                world.note_death();
                self.replicas[which].kill().await;
                self.replicas[which].start().await;
            }
            Blow::KillTwice => {
                world.note_death();
                self.replicas[which].kill().await;
                drop(self.replicas[which].begin());
                tokio::time::sleep(pause / 10).await;
                world.note_death();
                self.replicas[which].kill().await;
                self.replicas[which].start().await;
            }
            Blow::KillAll => {
                world.note_death();
                for replica in &mut self.replicas {
                    replica.kill().await;
                }
                for replica in &mut self.replicas {
                    replica.start().await;
                }
            }
            Blow::LeaveDead => {
                let before = self.adopted_elsewhere(which).await;
                world.note_death();
                self.replicas[which].kill().await;
                self.more_is_adopted(which, before).await;
                self.replicas[which].start().await;
            }
            Blow::Freeze => {
                let before = self.adopted_elsewhere(which).await;
                world.note_death();
                self.replicas[which].freeze().await;
                self.more_is_adopted(which, before).await;
                tokio::time::sleep(pause / 5).await;
                self.replicas[which].thaw().await;
            }
            Blow::Drain => {
                let ended = self.replicas[which].drain().await;
                if !ended.success() {
                    world.fail(format!("a drained replica ended with {ended}"));
                }
                self.replicas[which].start().await;
            }
            Blow::KillRedis => self.restart_redis(pause).await,
            Blow::KillRedisAndReplica => {
                world.note_death();
                if pause.as_millis().is_multiple_of(2) {
                    self.replicas[which].kill().await;
                    self.restart_redis(pause).await;
                } else {
                    self.redis.as_mut().expect("a Redis").kill().await;
                    self.replicas[which].kill().await;
                    self.redis.as_mut().expect("a Redis").restart().await;
                }
                self.replicas[which].start().await;
            }
        }
        for mut kept in world.some_kept(&mut self.rng, 5) {
            let from = self.rng.pick(&kept.call.places());
            let told = caller::replay(&world, &mut self.rng, &kept.keeper, &mut kept.call, from).await;
            if let Err(problem) = told {
                let (seed, id) = (kept.call.script.seed, kept.call.id_of(0).unwrap_or_default());
                world.fail(format!("after {blow:?}: call {seed}, {id}: {problem}"));
            }
        }
    }

    /// Kills Redis for a while, and waits until the replicas use it again.
    async fn restart_redis(&mut self, pause: Duration) {
        let redis = self.redis.as_mut().expect("a Redis");
        redis.kill().await;
        tokio::time::sleep(pause).await;
        redis.restart().await;
        let world = self.world();
        for replica in self.replicas.iter().filter(|replica| replica.is_running()) {
            world.metric_is(replica.admin, "mcp_resume_store_ready", |ready| ready == 1.0).await;
        }
    }

    /// How many streams the others than `which` have taken over so far. Waits until there are some to be taken from it.
    async fn adopted_elsewhere(&self, which: usize) -> f64 {
        let world = self.world();
        let running = async {
            while !world.has_failed() && world.open_at(self.replicas[which].admin).await.is_none_or(|open| open == 0) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        within("a replica has calls", running).await;
        world.metric(self.replicas[1 - which].admin, ADOPTED).await.unwrap_or_default()
    }

    async fn more_is_adopted(&self, which: usize, before: f64) {
        self.world().metric_is(self.replicas[1 - which].admin, ADOPTED, |adopted| adopted > before).await;
    }

    /// Lets the calls come to their end, and looks at everything once more.
    async fn end(mut self) {
        let world = self.world();
        world.stop();
        for caller in std::mem::take(&mut self.callers) {
            within("a client comes to its end", caller).await.expect("no panic");
        }
        for mut kept in world.some_kept(&mut self.rng, 60) {
            let from = kept.call.places();
            for from in [from[0], self.rng.pick(&from)] {
                let told = caller::replay(&world, &mut self.rng, &kept.keeper, &mut kept.call, from).await;
                if let Err(problem) = told {
                    world.fail(format!("at the end: call {}: {problem}", kept.call.script.seed));
                }
            }
        }
        for replica in &self.replicas {
            let ended = async {
                while !world.has_failed() && world.open_at(replica.admin).await != Some(0) {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            };
            if tokio::time::timeout(world::LIMIT, ended).await.is_err() {
                world.fail(format!("streams stay open:{}", world.streams().await));
            }
        }
        world.check_runs();
        world.judge();
        println!("{}: {:?}", self.name, world.tally);
        let tally = &world.tally;
        let must_be =
            [&tally.answered, &tally.resumed, &tally.by_token, &tally.replays, &tally.questions, &tally.blows];
        for (number, counter) in must_be.into_iter().enumerate() {
            assert!(counted(counter) > 0, "{}: nothing of kind {number} has happened: {tally:?}", self.name);
        }
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// Streams that were ended for a process that is gone.
const ADOPTED: &str = "mcp_resume_streams_adopted_total";

/// Another one each time, for each test.
fn any_seed(name: &str) -> u64 {
    let now = mcp_resume::clock::wall().as_nanos() as u64;
    name.bytes().fold(Rng::new(now), |mut rng, byte| Rng::new(rng.next() ^ u64::from(byte))).next() >> 32
}

/// A number from the environment.
fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is no number: {text}")))
}
