//! State shared by all parts of a run: addresses, counts, failures.

use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::caller::Keeper;
use crate::checker::{Call, Ending};
use crate::http::Request;
use crate::rng::Rng;
use crate::upstream::Upstream;

/// Longest wait for an expected event. The run fails after it.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);
/// Ended calls that are looked at again and again.
const KEPT_MAX: usize = 300;
/// They are given up after so long; the proxies keep them for much longer.
pub(crate) const KEPT_FOR: Duration = Duration::from_secs(60);

/// `wait`, or a panic that says what did not happen.
pub(crate) async fn within<T>(what: &str, wait: impl Future<Output = T>) -> T {
    match tokio::time::timeout(LIMIT, wait).await {
        Ok(value) => value,
        Err(_) => panic!("waited {LIMIT:?} in vain: {what}"),
    }
}

/// `wait`, or nothing after `limit`.
pub(crate) async fn eventually(limit: Duration, wait: impl Future<Output = ()>) {
    let _ = tokio::time::timeout(limit, wait).await;
}

/// Outcomes that a run permits besides those that are always permitted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Allowed {
    /// Resumes are refused now and then (503): the store is away.
    pub(crate) refusals: bool,
    /// A session may be unknown to a process, which then promises less.
    pub(crate) forgotten_sessions: bool,
    /// A POST that was not answered may have run. In a drain it may not.
    pub(crate) unanswered: bool,
}

/// Counts of each kind of occurrence. A run in which nothing happened proves nothing.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) calls: AtomicUsize,
    pub(crate) answered: AtomicUsize,
    pub(crate) owner_died: AtomicUsize,
    pub(crate) resumed: AtomicUsize,
    pub(crate) by_token: AtomicUsize,
    pub(crate) by_key: AtomicUsize,
    pub(crate) replays: AtomicUsize,
    pub(crate) strangers: AtomicUsize,
    pub(crate) questions: AtomicUsize,
    pub(crate) unanswered: AtomicUsize,
    pub(crate) refused_calls: AtomicUsize,
    pub(crate) refused_resumes: AtomicUsize,
    pub(crate) sent_away: AtomicUsize,
    pub(crate) faults: AtomicUsize,
}

impl fmt::Display for Tally {
    /// Lists the counts that are not zero.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = [
            ("faults", &self.faults),
            ("calls", &self.calls),
            ("answered", &self.answered),
            ("owner died", &self.owner_died),
            ("resumed", &self.resumed),
            ("by token", &self.by_token),
            ("by key", &self.by_key),
            ("replays", &self.replays),
            ("strangers", &self.strangers),
            ("questions", &self.questions),
            ("unanswered", &self.unanswered),
            ("refused calls", &self.refused_calls),
            ("refused resumes", &self.refused_resumes),
            ("sent away", &self.sent_away),
        ];
        let happened = all.into_iter().map(|(what, counter)| (what, counted(counter))).filter(|(_, often)| *often > 0);
        let said: Vec<_> = happened.map(|(what, often)| format!("{often} {what}")).collect();
        f.write_str(&said.join(", "))
    }
}

pub(crate) fn count(what: &AtomicUsize) {
    what.fetch_add(1, Ordering::Relaxed);
}

pub(crate) fn counted(what: &AtomicUsize) -> usize {
    what.load(Ordering::Relaxed)
}

/// A call that ended, and what its caller was.
#[derive(Clone)]
pub(crate) struct Kept {
    pub(crate) call: Call,
    pub(crate) keeper: Keeper,
    pub(crate) ended_at: Instant,
}

/// The shared part of one run.
pub(crate) struct World {
    pub(crate) name: &'static str,
    pub(crate) allowed: Allowed,
    pub(crate) upstream: Arc<Upstream>,
    pub(crate) addrs: Vec<SocketAddr>,
    pub(crate) admins: Vec<SocketAddr>,
    pub(crate) tally: Tally,
    /// Number of times that a proxy process was about to be killed or frozen, and then was.
    deaths: AtomicU64,
    /// New events seen by any client.
    seen: AtomicUsize,
    saw: Notify,
    stopping: AtomicBool,
    kept: Mutex<Vec<Kept>>,
    /// Calls of which a proxy said that they had not run.
    never_ran: Mutex<Vec<u64>>,
    failures: Mutex<Vec<String>>,
    failed: Notify,
}

impl World {
    pub(crate) fn new(
        name: &'static str,
        allowed: Allowed,
        upstream: Arc<Upstream>,
        (addrs, admins): (Vec<SocketAddr>, Vec<SocketAddr>),
    ) -> World {
        World {
            name,
            allowed,
            upstream,
            addrs,
            admins,
            tally: Tally::default(),
            deaths: AtomicU64::new(0),
            seen: AtomicUsize::new(0),
            saw: Notify::new(),
            stopping: AtomicBool::new(false),
            kept: Mutex::default(),
            never_ran: Mutex::default(),
            failures: Mutex::default(),
            failed: Notify::new(),
        }
    }

    /// One of the proxies.
    pub(crate) fn somewhere(&self, rng: &mut Rng) -> SocketAddr {
        rng.pick(&self.addrs)
    }

    // ── what happened ────────────────────────────────────────────────────────────────────────────

    /// To be told before a process is killed or frozen, and after.
    pub(crate) fn note_death(&self) {
        self.deaths.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn deaths(&self) -> u64 {
        self.deaths.load(Ordering::SeqCst)
    }

    pub(crate) fn note_seen(&self) {
        self.seen.fetch_add(1, Ordering::Relaxed);
        self.saw.notify_waiters();
    }

    /// Waits until so many more events were seen: the load is on.
    pub(crate) async fn more_is_seen(&self, events: usize) {
        let wanted = self.seen.load(Ordering::Relaxed) + events;
        let waiting = async {
            loop {
                let saw = self.saw.notified();
                tokio::pin!(saw);
                saw.as_mut().enable();
                if self.seen.load(Ordering::Relaxed) >= wanted || self.has_failed() {
                    return;
                }
                tokio::select! {
                    () = saw => {}
                    () = self.failed.notified() => return,
                }
            }
        };
        if tokio::time::timeout(LIMIT, waiting).await.is_err() {
            self.fail(format!("no client has seen {events} more events within {LIMIT:?}{}", self.streams().await));
        }
    }

    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst) || self.has_failed()
    }

    // ── what is kept ─────────────────────────────────────────────────────────────────────────────

    pub(crate) fn keep(&self, call: Call, keeper: Keeper) {
        count(match call.ended {
            Some(Ending::Answered) | None => &self.tally.answered,
            Some(Ending::OwnerDied) => &self.tally.owner_died,
        });
        let now = mcp_resume::clock::now();
        let mut kept = self.kept.lock().expect("no holder panics");
        kept.retain(|kept| now - kept.ended_at < KEPT_FOR);
        if kept.len() == KEPT_MAX {
            kept.remove(0);
        }
        kept.push(Kept { call, keeper, ended_at: now });
    }

    /// Some ended calls, up to `most`.
    pub(crate) fn some_kept(&self, rng: &mut Rng, most: usize) -> Vec<Kept> {
        let now = mcp_resume::clock::now();
        let mut kept = self.kept.lock().expect("no holder panics").clone();
        kept.retain(|kept| now - kept.ended_at < KEPT_FOR);
        while kept.len() > most {
            kept.swap_remove(rng.below(kept.len()));
        }
        kept
    }

    pub(crate) fn note_never_ran(&self, seed: u64) {
        self.never_ran.lock().expect("no holder panics").push(seed);
    }

    /// The tool ran once for a call at most, and never where a proxy said so.
    pub(crate) fn check_runs(&self) {
        for (seed, run) in self.upstream.runs() {
            if run.times > 1 {
                self.fail(format!("the tool of call {seed} ran {} times", run.times));
            }
        }
        for seed in self.never_ran.lock().expect("no holder panics").iter() {
            if self.upstream.run(*seed).times > 0 {
                self.fail(format!("call {seed} is said not to have run, and has"));
            }
        }
    }

    // ── what went wrong ──────────────────────────────────────────────────────────────────────────

    pub(crate) fn fail(&self, problem: String) {
        let mut failures = self.failures.lock().expect("no holder panics");
        if !failures.contains(&problem) {
            failures.push(problem);
        }
        drop(failures);
        self.failed.notify_waiters();
        self.saw.notify_waiters();
    }

    pub(crate) fn has_failed(&self) -> bool {
        !self.failures.lock().expect("no holder panics").is_empty()
    }

    /// Panics with everything that went wrong, if anything did.
    pub(crate) fn check(&self) {
        let failures = self.failures.lock().expect("no holder panics");
        if failures.is_empty() {
            return;
        }
        panic!("{}: {}\n{}", self.name, self.tally, failures.join("\n"));
    }

    /// Returns each proxy's list of streams, as its admin listener prints it.
    pub(crate) async fn streams(&self) -> String {
        let mut said = String::new();
        for admin in &self.admins {
            let page = self.page(*admin, "/streams").await;
            let page: serde_json::Value = serde_json::from_str(&page.unwrap_or_default()).unwrap_or_default();
            let is_open = |stream: &&serde_json::Value| {
                stream["state"] != "completed" && stream["state"] != "failed" && stream["state"] != "passed"
            };
            let open: Vec<_> = page["streams"].as_array().into_iter().flatten().filter(is_open).collect();
            said += &format!("\n  {admin}: open {}, {}", page["open"], serde_json::json!(open));
        }
        said
    }

    /// A page of an admin listener; `None` if it cannot be had.
    pub(crate) async fn page(&self, admin: SocketAddr, path: &str) -> Option<String> {
        const PATIENCE: Duration = Duration::from_secs(5);
        let response = Request::new("GET", path).send(admin, PATIENCE).await.ok()?;
        let is_good = response.status == 200;
        let page = response.whole(PATIENCE).await.filter(|_| is_good)?;
        String::from_utf8(page).ok()
    }

    /// The value of one sample without labels.
    pub(crate) async fn metric(&self, admin: SocketAddr, name: &str) -> Option<f64> {
        let page = self.page(admin, "/metrics").await?;
        page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
    }

    /// Waits until `is_so` of the sample.
    pub(crate) async fn metric_is(&self, admin: SocketAddr, name: &str, is_so: impl Fn(f64) -> bool) {
        let waiting = async {
            while !self.has_failed() && !self.metric(admin, name).await.is_some_and(&is_so) {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        if tokio::time::timeout(LIMIT, waiting).await.is_err() {
            self.fail(format!("{name} at {admin} did not become what it should{}", self.streams().await));
        }
    }

    /// Returns the number of running streams of a proxy.
    pub(crate) async fn open_at(&self, admin: SocketAddr) -> Option<u64> {
        let page = self.page(admin, "/streams").await?;
        serde_json::from_str::<serde_json::Value>(&page).ok()?["open"].as_u64()
    }
}
