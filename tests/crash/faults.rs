//! Faults of the processes, and the checks right after each.

use std::time::Duration;

use crate::caller;
use crate::run::{LEASE, Run};
use crate::world::{count, eventually, within};

/// Streams that were ended for a process that is gone.
const ADOPTED: &str = "mcp_resume_streams_adopted_total";

/// Something that happens to a process.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
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

impl Run {
    /// One round: under load, at a random moment, one of `faults`, each as likely as its number
    /// says.
    pub(crate) async fn inject(&mut self, faults: &[(usize, Fault)]) {
        let world = self.world();
        let fault = self.choose(faults);
        let which = self.rng.below(self.replicas.len());
        let (moment, pause) = (self.rng.millis(600), self.rng.millis(2500));
        let events = self.rng.below(50);
        world.more_is_seen(events).await;
        tokio::time::sleep(moment).await;
        count(&world.tally.faults);
        self.note(&format!("{fault:?} of {which}"));
        self.inflict(fault, which, pause).await;
        self.ask_again(fault).await;
    }

    fn choose(&mut self, faults: &[(usize, Fault)]) -> Fault {
        let mut at = self.rng.below(faults.iter().map(|(weight, _)| weight).sum());
        let chosen = faults.iter().find(|(weight, _)| {
            let is_it = at < *weight;
            at = at.saturating_sub(*weight);
            is_it
        });
        chosen.expect("one of them").1
    }

    /// Does it to replica `which`, and returns when that serves again; what takes time in between
    /// takes some part of `pause`.
    async fn inflict(&mut self, fault: Fault, which: usize, pause: Duration) {
        match fault {
            Fault::Kill => {
                self.kill(which).await;
                self.replicas[which].start().await;
            }
            Fault::KillTwice => {
                self.kill(which).await;
                drop(self.replicas[which].begin());
                tokio::time::sleep(pause / 10).await;
                self.kill(which).await;
                self.replicas[which].start().await;
            }
            Fault::KillAll => self.kill_all().await,
            Fault::LeaveDead => {
                let before = self.adopted_elsewhere(which).await;
                self.kill(which).await;
                // In vain where what ran had just ended: there is nothing to be taken then.
                eventually(3 * LEASE, self.more_is_adopted(which, before)).await;
                self.replicas[which].start().await;
            }
            Fault::Freeze => self.freeze(which, pause / 5).await,
            Fault::Drain => self.drain(which).await,
            Fault::KillRedis => self.restart_redis(pause).await,
            Fault::KillRedisAndReplica => self.kill_redis_and(which, pause).await,
        }
    }

    /// A call may begin until the process has ended: to it the death comes then.
    async fn kill(&mut self, which: usize) {
        self.world().note_death();
        self.replicas[which].kill().await;
        self.world().note_death();
    }

    async fn kill_all(&mut self) {
        for which in 0..self.replicas.len() {
            self.kill(which).await;
        }
        for replica in &mut self.replicas {
            replica.start().await;
        }
    }

    async fn freeze(&mut self, which: usize, longer: Duration) {
        let before = self.adopted_elsewhere(which).await;
        self.world().note_death();
        self.replicas[which].freeze().await;
        self.world().note_death();
        // In vain where it was woken a moment ago and the store does not know it again yet.
        eventually(3 * LEASE, self.more_is_adopted(which, before)).await;
        tokio::time::sleep(longer).await;
        self.replicas[which].thaw().await;
    }

    async fn drain(&mut self, which: usize) {
        let ended = self.replicas[which].drain().await;
        if !ended.success() {
            self.world().fail(format!("a drained replica ended with {ended}"));
        }
        self.replicas[which].start().await;
    }

    /// The one first or the other.
    async fn kill_redis_and(&mut self, which: usize, pause: Duration) {
        if pause.as_millis().is_multiple_of(2) {
            self.kill(which).await;
            self.restart_redis(pause).await;
        } else {
            self.redis.as_mut().expect("a Redis").kill().await;
            self.kill(which).await;
            self.redis.as_mut().expect("a Redis").restart().await;
        }
        self.replicas[which].start().await;
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

    /// Waits until other replicas have adopted streams of `which`; returns the number adopted so
    /// far.
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

    /// Asks again for some of what has ended.
    async fn ask_again(&mut self, after: Fault) {
        let world = self.world();
        for mut kept in world.some_kept(&mut self.rng, 5) {
            let from = self.rng.pick(&kept.call.places());
            let told = caller::replay(&world, &mut self.rng, &kept.keeper, &mut kept.call, from).await;
            if let Err(problem) = told {
                let (seed, id) = (kept.call.script.seed, kept.call.id_of(0).unwrap_or_default());
                world.fail(format!("after {after:?}: call {seed}, {id}: {problem}"));
            }
        }
    }
}
