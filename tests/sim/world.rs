//! State shared by all parts of a run: the plan, the model, the clock, and the trace.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use mcp_resume::clock;
use tokio::sync::Notify;

use super::model::Model;
use super::plan::Plan;
use super::sessions::Sessions;

pub(crate) struct World {
    pub(crate) plan: Plan,
    model: Mutex<Model>,
    sessions: Mutex<Sessions>,
    /// The server was restarted.
    pub(crate) restarted: Notify,
    restarts: AtomicUsize,
    /// An answer of a client came upstream.
    pub(crate) answered: Notify,
    began: Instant,
    trace: Mutex<String>,
    blames: Mutex<Vec<String>>,
    reached: Mutex<BTreeSet<&'static str>>,
}

impl World {
    pub(crate) fn new(plan: Plan) -> Self {
        Self {
            plan,
            model: Mutex::new(Model::new(clock::now())),
            sessions: Mutex::default(),
            restarted: Notify::new(),
            restarts: AtomicUsize::new(0),
            answered: Notify::new(),
            began: clock::now(),
            trace: Mutex::default(),
            blames: Mutex::default(),
            reached: Mutex::default(),
        }
    }

    pub(crate) fn model(&self) -> MutexGuard<'_, Model> {
        self.model.lock().expect("nothing panics under it")
    }

    /// The server's sessions.
    pub(crate) fn sessions(&self) -> MutexGuard<'_, Sessions> {
        self.sessions.lock().expect("nothing panics under it")
    }

    /// Restarts the server: its connections end, and its sessions are gone.
    pub(crate) fn restart(&self) {
        let (lost, is_cut_short) = self.sessions().forget_all();
        self.model().lost.extend(lost);
        if is_cut_short {
            self.reach("a handshake that was cut short");
        }
        self.restarts.fetch_add(1, Ordering::Relaxed);
        self.restarted.notify_waiters();
    }

    /// Returns the number of restarts.
    pub(crate) fn restarts(&self) -> usize {
        self.restarts.load(Ordering::Relaxed)
    }

    pub(crate) fn elapsed(&self) -> Duration {
        clock::now() - self.began
    }

    pub(crate) fn now(&self) -> Instant {
        clock::now()
    }

    pub(crate) async fn sleep(&self, time: Duration) {
        clock::sleep(time).await;
    }

    /// Returns true if the upstream refuses connections now.
    pub(crate) fn refuses(&self) -> bool {
        let now = self.elapsed();
        self.plan.refuses.is_some_and(|(from, to)| from <= now && now < to)
    }

    /// Returns true once the proxy was asked to drain: new calls are refused, and in the end it is
    /// gone.
    pub(crate) fn is_draining(&self) -> bool {
        self.plan.drains.is_some_and(|at| at <= self.elapsed())
    }

    /// All the time by which the clock is moved.
    pub(crate) fn jumped(&self) -> Duration {
        self.plan.jumps.iter().map(|(_, by)| *by).sum()
    }

    /// The run has come to something that a simulation has to come to.
    pub(crate) fn reach(&self, what: &'static str) {
        self.reached.lock().expect("nothing panics under it").insert(what);
    }

    /// Traces that `who` received `bytes` now.
    pub(crate) fn trace(&self, who: &str, bytes: &[u8]) {
        let at = (clock::now() - self.began).as_micros();
        let mut trace = self.trace.lock().expect("nothing panics under it");
        writeln!(trace, "{at} {who} {}", bytes.escape_ascii()).expect("a String grows");
    }

    /// The run has shown a fault.
    pub(crate) fn blame(&self, fault: String) {
        self.trace("!", fault.as_bytes());
        self.blames.lock().expect("nothing panics under it").push(fault);
    }

    pub(crate) fn check<T>(&self, checked: Result<T, String>) -> Option<T> {
        checked.map_err(|fault| self.blame(fault)).ok()
    }

    pub(crate) fn is_blamed(&self) -> bool {
        !self.blames.lock().expect("nothing panics under it").is_empty()
    }

    pub(crate) fn report(&self) -> Report {
        let trace = std::mem::take(&mut *self.trace.lock().expect("nothing panics under it"));
        let blames = std::mem::take(&mut *self.blames.lock().expect("nothing panics under it"));
        let mut reached = std::mem::take(&mut *self.reached.lock().expect("nothing panics under it"));
        reached.extend(&self.model().reached);
        Report { trace, blames, reached }
    }
}

/// Result of a run.
pub(crate) struct Report {
    /// All received bytes, with their times.
    pub(crate) trace: String,
    pub(crate) blames: Vec<String>,
    pub(crate) reached: BTreeSet<&'static str>,
}
