//! One test: its processes, its duration, and the checks at its end.

use std::fs::File;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};

use crate::caller;
use crate::process::{Appends, Redis, Replica};
use crate::rng::Rng;
use crate::upstream::Upstream;
use crate::world::{self, Allowed, World, counted, within};

/// Clients that call at the same time.
const CALLERS: usize = 12;
pub(crate) const LEASE: Duration = Duration::from_secs(4);
/// Interval of progress reports; those of an hour-long run can be read in a minute.
const TELL: Duration = Duration::from_secs(60);

/// One test: its processes, its load, its rounds.
pub(crate) struct Run {
    pub(crate) name: &'static str,
    pub(crate) rng: Rng,
    seed: u64,
    pub(crate) directory: PathBuf,
    upstream: Option<(Arc<Upstream>, SocketAddr)>,
    world: Option<Arc<World>>,
    pub(crate) replicas: Vec<Replica>,
    pub(crate) redis: Option<Redis>,
    callers: Vec<JoinHandle<()>>,
    rounds: usize,
    began: Instant,
    /// Time of the last progress report.
    told: Instant,
    /// Each fault and its time, beside the logs of the processes.
    faults: File,
}

impl Run {
    pub(crate) async fn prepare(name: &'static str) -> Run {
        let seed = setting("CRASH_SEED").unwrap_or_else(|| any_seed(name));
        println!("{name}: CRASH_SEED={seed}");
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join("crash")
            .join(format!("{}-{seed}", name.replace([' ', ','], "-")));
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(&directory).expect("a directory");
        let faults = File::create(directory.join("faults.log")).expect("a log");
        let rng = Rng::new(seed);
        let upstream = Some(Upstream::start().await);
        let (replicas, callers) = (Vec::new(), Vec::new());
        let began = mcp_resume::clock::now();
        Run {
            name,
            rng,
            seed,
            directory,
            upstream,
            world: None,
            replicas,
            redis: None,
            callers,
            rounds: 0,
            began,
            told: began,
            faults,
        }
    }

    pub(crate) async fn begin_with_redis(&mut self, appends: Appends, on_unreachable: &str, allowed: Allowed) {
        let redis = Redis::start(&self.directory, appends).await;
        let settings = [
            ("STORE__KIND", "redis".to_owned()),
            ("STORE__URL", redis.url()),
            ("STORE__ON_UNREACHABLE", on_unreachable.to_owned()),
            ("REPLICA__LEASE_SECS", LEASE.as_secs().to_string()),
        ];
        self.redis = Some(redis);
        self.begin(2, &settings, allowed).await;
    }

    /// Starts so many replicas, and the load.
    pub(crate) async fn begin(&mut self, replicas: usize, settings: &[(&'static str, String)], allowed: Allowed) {
        let (upstream, addr) = self.upstream.take().expect("a run begins once");
        let mut settings = settings.to_vec();
        settings.extend([
            ("UPSTREAM__URL", format!("http://{addr}/mcp")),
            ("DELIVERY__RETRY_MS", "50".to_owned()),
            // Longer than a client here asks for anything; so short that a long run does not fill
            // the machine.
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
        let world = Arc::new(World::new(self.name, allowed, upstream, places));
        for number in 0..CALLERS {
            self.callers.push(tokio::spawn(caller::run(world.clone(), number, self.rng.fork())));
        }
        self.world = Some(world);
    }

    pub(crate) fn world(&self) -> Arc<World> {
        self.world.clone().expect("the run has begun")
    }

    /// Returns true if another round is due. `rounds` is the number if the environment sets none.
    pub(crate) fn should_continue(&mut self, rounds: usize) -> bool {
        let rounds = setting("CRASH_ROUNDS").map_or(rounds, |rounds| usize::try_from(rounds).expect("a number"));
        let is_late = setting("CRASH_SECS")
            .is_some_and(|limit| mcp_resume::clock::now() - self.began > Duration::from_secs(limit));
        let should_continue = self.rounds < rounds && !is_late && !self.world().has_failed();
        self.rounds += 1;
        should_continue
    }

    /// Writes down what happens next. Now and then it is said how far the run is, and looked
    /// whether all is well.
    pub(crate) fn note(&mut self, what: &str) {
        let mut at = String::new();
        SystemTime.format_time(&mut Writer::new(&mut at)).expect("room");
        writeln!(self.faults, "{at} {what}").expect("room");
        let now = mcp_resume::clock::now();
        if now - self.told >= TELL {
            self.told = now;
            self.print_summary();
            self.world().check_runs();
        }
    }

    fn print_summary(&self) {
        let so_far = (mcp_resume::clock::now() - self.began).as_secs();
        println!("{}: {so_far} s: {}", self.name, self.world().tally);
    }

    /// Lets the calls come to their end, and looks at everything once more.
    pub(crate) async fn end(mut self) {
        let world = self.world();
        // On a busy machine the rounds have few calls.
        let has_all = async {
            while !world.has_failed() && self.missing_kind().is_some() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        let _ = tokio::time::timeout(world::LIMIT, has_all).await;
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
        world.check();
        self.print_summary();
        if let Some(kind) = self.missing_kind() {
            panic!("{}: none of this kind: {kind}; {}", self.name, world.tally);
        }
        let _ = std::fs::remove_dir_all(&self.directory);
    }

    /// Returns a kind of event that has not happened yet, and must happen in each run.
    fn missing_kind(&self) -> Option<&'static str> {
        let world = self.world();
        let tally = &world.tally;
        let kinds = [
            ("answered calls", &tally.answered),
            ("resumes", &tally.resumed),
            ("resumes by token", &tally.by_token),
            ("replays", &tally.replays),
            ("server requests", &tally.questions),
            ("faults", &tally.faults),
        ];
        kinds.into_iter().find(|(_, counter)| counted(counter) == 0).map(|(kind, _)| kind)
    }
}

impl Drop for Run {
    /// Reports the seed of a failed run, with any cause of the failure.
    fn drop(&mut self) {
        if std::thread::panicking() {
            let (name, seed, logs) = (self.name, self.seed, self.directory.display());
            println!("{name}: failed. CRASH_SEED={seed} repeats its decisions; what befell whom, and the logs: {logs}");
        }
    }
}

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
