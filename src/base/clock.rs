//! The only reader of time.
//!
//! Time is tokio's, so that a paused runtime clock is the whole program's clock: tests and
//! simulations move it by hand.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Wake, Waker, ready};
use std::thread::LocalKey;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::time::{Instant as TokioInstant, Sleep};

/// Returns the current time.
#[expect(clippy::disallowed_methods, reason = "the one place that may")]
pub fn now() -> Instant {
    TokioInstant::now().into_std()
}

/// Returns the time since 1970 in milliseconds; see [`wall`].
pub fn wall_ms() -> u64 {
    u64::try_from(wall().as_millis()).unwrap_or(u64::MAX)
}

/// Returns the time since 1970, for times that outlive the process. It is read from the system once
/// and then moves with [`now`]. So a change of the machine's clock ends no retention, and a paused
/// clock moves this one too.
#[expect(clippy::disallowed_methods, reason = "the one place that may")]
pub fn wall() -> Duration {
    static BEGUN: OnceLock<(Duration, Instant)> = OnceLock::new();
    let (wall, begun) =
        *BEGUN.get_or_init(|| (SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(), Instant::now()));
    let now = now();
    // A paused clock may stand before the moment of the first reading here.
    (wall + now.saturating_duration_since(begun)).saturating_sub(begun.saturating_duration_since(now))
}

/// Returns the time of the system since 1970, for the log alone: it jumps with the machine's clock,
/// and does not move with [`now`].
#[expect(clippy::disallowed_methods, reason = "the one place that may")]
pub fn system() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Returns the time since the machine was started, including suspended time: leases are measured by
/// it. On other systems than Linux, and in tests that move the clock, returns the same as [`wall`].
pub fn boot() -> Duration {
    #[cfg(all(target_os = "linux", not(feature = "simulation")))]
    {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        Duration::new(u64::try_from(now.tv_sec).unwrap_or(0), u32::try_from(now.tv_nsec).unwrap_or(0))
    }
    #[cfg(not(all(target_os = "linux", not(feature = "simulation"))))]
    {
        wall()
    }
}

/// Returns the CPU time of this process, of user and system, or `None` if the system does not
/// report it.
pub fn cpu() -> Option<Duration> {
    #[cfg(target_os = "linux")]
    {
        let spent = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        Some(Duration::new(u64::try_from(spent.tv_sec).ok()?, u32::try_from(spent.tv_nsec).ok()?))
    }
    #[cfg(not(target_os = "linux"))]
    {
        None
    }
}

/// Sleeps for `time`, counted from the call of this function and not from the first poll.
pub fn sleep(time: Duration) -> impl Future<Output = ()> {
    sleep_until(now() + time)
}

/// Sleeps until `at`.
pub async fn sleep_until(at: Instant) {
    tokio::time::sleep_until(TokioInstant::from_std(at)).await;
}

/// A timer that is set again and again, most often to a later time or to none before it fires. The
/// runtime's timer is made at the first poll that has to wait. It is moved only if it would fire
/// too late. A timer that fires too early is set again then.
#[derive(Debug)]
pub struct Alarm {
    at: Option<Instant>,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Alarm {
    /// Creates an alarm that is not set.
    pub fn new() -> Self {
        Self { at: None, sleep: None }
    }

    /// Sets the time of the alarm, or unsets the alarm if `at` is `None`. Takes effect at the next
    /// poll.
    pub fn set(&mut self, at: Option<Instant>) {
        self.at = at;
    }

    /// Returns ready once when the time has come, and unsets the alarm.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(at) = self.at.map(TokioInstant::from_std) else { return Poll::Pending };
        let sleep = self.sleep.get_or_insert_with(|| {
            anchor(at);
            Box::pin(tokio::time::sleep_until(at))
        });
        if sleep.deadline() > at {
            sleep.as_mut().reset(at);
        }
        loop {
            ready!(sleep.as_mut().poll(cx));
            if sleep.deadline() >= at {
                self.at = None;
                return Poll::Ready(());
            }
            sleep.as_mut().reset(at);
        }
    }

    /// Waits for the time of the alarm. Cancel safe.
    pub async fn ring(&mut self) {
        poll_fn(|cx| self.poll(cx)).await;
    }
}

/// Registers a timer with this thread's runtime that is due by `at` and wakes no task. A runtime
/// wakes itself by a system call when a new timer is due before all others. Without the anchor,
/// each of a thread's short calls would cause such a system call.
fn anchor(at: TokioInstant) {
    thread_local! {
        static ANCHOR: RefCell<Option<Pin<Box<Sleep>>>> = const { RefCell::new(None) };
    }
    ANCHOR.with_borrow_mut(|anchor| {
        let holds = anchor.as_ref().is_some_and(|anchor| anchor.deadline() <= at && !anchor.is_elapsed());
        if !holds {
            let anchor = anchor.insert(Box::pin(tokio::time::sleep_until(at)));
            // The first poll registers the timer.
            let _ = anchor.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        }
    });
}

impl Default for Alarm {
    fn default() -> Self {
        Self::new()
    }
}

/// A wait of a moment. The waits of a thread share one timer of the runtime.
///
/// A runtime wakes itself by a system call when a new timer is due before all others. A separate
/// timer for each short wait would be such a timer. The shared timer is set for one wait and wakes
/// all waits that are not dropped. A wait that is not complete sets it again.
#[derive(Debug)]
pub struct ShortWait {
    until: Instant,
    timer: &'static LocalKey<RefCell<SharedTimer>>,
    /// Place among the waits of a thread, once it was polled.
    place: Option<(Arc<ShortWaits>, u64)>,
}

impl ShortWait {
    /// Begins a wait of this time.
    pub fn new(time: Duration) -> Self {
        Self { until: now() + time, timer: &SHARED_TIMER, place: None }
    }

    /// Begins a wait of at least this time, and of a tenth of a second more at most. Many may wait
    /// at once: their timer wakes them no oftener than that.
    pub fn coarse(time: Duration) -> Self {
        Self { until: now() + time, timer: &COARSE_TIMER, place: None }
    }

    /// Returns ready at the end of the wait.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let now = now();
        if now >= self.until {
            return Poll::Ready(());
        }
        self.leave();
        self.place = Some(self.timer.with_borrow_mut(|shared| shared.join(self.until, now, cx.waker())));
        Poll::Pending
    }

    fn leave(&mut self) {
        if let Some((waits, number)) = self.place.take() {
            let mut all = waits.lock();
            if let Ok(at) = all.binary_search_by_key(&number, |(number, _)| *number) {
                all.remove(at);
            }
        }
    }
}

impl Drop for ShortWait {
    fn drop(&mut self) {
        self.leave();
    }
}

thread_local! {
    static SHARED_TIMER: RefCell<SharedTimer> = RefCell::default();
    static COARSE_TIMER: RefCell<SharedTimer> = RefCell::new(SharedTimer { slack: SLACK, ..SharedTimer::default() });
}

/// Shortest time between two wake-ups of the coarse waits.
const SLACK: Duration = Duration::from_millis(100);

/// Timer that the short waits of a thread share.
#[derive(Default)]
struct SharedTimer {
    timer: Option<Pin<Box<Sleep>>>,
    /// Shortest time until the next wake-up.
    slack: Duration,
    waits: Arc<ShortWaits>,
    /// Number of the last wait.
    last: u64,
}

impl SharedTimer {
    /// Adds a wait from `now` that ends at `until`. Returns its place.
    fn join(&mut self, until: Instant, now: Instant, waker: &Waker) -> (Arc<ShortWaits>, u64) {
        self.last += 1;
        self.waits.lock().push_back((self.last, waker.clone()));
        let until = TokioInstant::from_std(until.max(now + self.slack));
        // The timer of a runtime that has ended has elapsed as well.
        let is_set = self.timer.as_ref().is_some_and(|timer| !timer.is_elapsed() && timer.deadline() <= until);
        if !is_set {
            let timer = self.timer.insert(Box::pin(tokio::time::sleep_until(until)));
            // The first poll registers the timer.
            let _ = timer.as_mut().poll(&mut Context::from_waker(&Waker::from(self.waits.clone())));
        }
        (self.waits.clone(), self.last)
    }
}

/// Short waits of a thread, by their numbers, each with the waker of its task.
#[derive(Debug, Default)]
struct ShortWaits(Mutex<VecDeque<(u64, Waker)>>);

impl ShortWaits {
    fn lock(&self) -> MutexGuard<'_, VecDeque<(u64, Waker)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for ShortWaits {
    fn wake(self: Arc<Self>) {
        let waits = std::mem::take(&mut *self.lock());
        for (_, waker) in waits {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_wall_clock_moves_with_the_paused_clock() {
        let begin = wall();
        tokio::time::advance(Duration::from_secs(3600)).await;
        assert_eq!(wall() - begin, Duration::from_secs(3600));
    }

    #[tokio::test(start_paused = true)]
    async fn an_alarm_rings_at_the_last_time_that_was_set() {
        let begin = now();
        let mut alarm = Alarm::new();
        alarm.set(Some(begin + Duration::from_secs(5)));
        alarm.set(Some(begin + Duration::from_secs(9)));
        alarm.ring().await;
        assert_eq!(now() - begin, Duration::from_secs(9));
        alarm.set(Some(now() + Duration::from_secs(7)));
        alarm.set(Some(now() + Duration::from_secs(2)));
        alarm.ring().await;
        assert_eq!(now() - begin, Duration::from_secs(11));
    }

    #[tokio::test(start_paused = true)]
    async fn an_unset_alarm_does_not_ring_until_it_is_set_again() {
        let begin = now();
        let mut alarm = Alarm::new();
        alarm.set(Some(begin + Duration::from_secs(1)));
        assert!(poll_fn(|cx| Poll::Ready(alarm.poll(cx).is_pending())).await);
        alarm.set(None);
        sleep_until(begin + Duration::from_secs(3)).await;
        assert!(poll_fn(|cx| Poll::Ready(alarm.poll(cx).is_pending())).await);
        alarm.set(Some(begin + Duration::from_secs(2)));
        alarm.ring().await;
        assert_eq!(now() - begin, Duration::from_secs(3));
    }

    #[tokio::test(start_paused = true)]
    async fn short_waits_of_a_thread_end_each_at_its_time() {
        let begin = now();
        let ends = (0..4u64).map(|wait| async move {
            // The last begins after the timer of the others.
            sleep(Duration::from_millis([0, 2, 4, 20][wait as usize])).await;
            let mut short = ShortWait::new(Duration::from_millis(5));
            poll_fn(|cx| short.poll(cx)).await;
            (now() - begin).as_millis()
        });
        let tasks: Vec<_> = ends.map(tokio::spawn).collect();
        let mut ended = Vec::new();
        for task in tasks {
            ended.push(task.await.expect("no panic"));
        }
        assert_eq!(ended, [5, 7, 9, 25]);
    }

    #[tokio::test(start_paused = true)]
    async fn coarse_waits_end_after_their_time_within_the_slack() {
        let waits = [0, 30, 60, 350, 420].map(|begin| async move {
            sleep(Duration::from_millis(begin)).await;
            let (begin, mut wait) = (now(), ShortWait::coarse(Duration::from_millis(400)));
            poll_fn(|cx| wait.poll(cx)).await;
            (now() - begin).as_millis()
        });
        let tasks: Vec<_> = waits.into_iter().map(tokio::spawn).collect();
        for task in tasks {
            let waited = task.await.expect("no panic");
            assert!((400..=400 + SLACK.as_millis()).contains(&waited), "{waited}");
        }
    }

    #[derive(Default)]
    struct Bell(AtomicUsize);

    impl Wake for Bell {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_short_wait_that_was_dropped_wakes_no_task() {
        let (dropped, kept) = (Arc::<Bell>::default(), Arc::<Bell>::default());
        let mut waits: Vec<ShortWait> = Vec::new();
        for bell in [&dropped, &kept] {
            let mut wait = ShortWait::new(Duration::from_millis(1));
            let waker = Waker::from(bell.clone());
            // Polled twice, it has one place.
            for _ in 0..2 {
                assert!(wait.poll(&mut Context::from_waker(&waker)).is_pending());
            }
            waits.push(wait);
        }
        drop(waits.remove(0));
        sleep(Duration::from_millis(2)).await;
        assert_eq!([dropped, kept].map(|bell| bell.0.load(Ordering::Relaxed)), [0, 1]);
    }
}
