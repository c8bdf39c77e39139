//! The only reader of time.
//!
//! Time is tokio's, so that a paused runtime clock is the whole program's clock: tests and simulations move it by hand.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::OnceLock;
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::time::{Instant as TokioInstant, Sleep};

/// Returns the current time.
#[expect(clippy::disallowed_methods, reason = "the one place that may")]
pub fn now() -> Instant {
    TokioInstant::now().into_std()
}

/// Returns the time since 1970, for times that outlive the process. It is read from the system once and then moves with [`now`], so that a
/// change of the machine's clock ends no retention, and a paused clock moves this one too.
#[expect(clippy::disallowed_methods, reason = "the one place that may")]
pub fn wall() -> Duration {
    static BEGUN: OnceLock<(Duration, Instant)> = OnceLock::new();
    let (wall, begun) =
        *BEGUN.get_or_init(|| (SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(), Instant::now()));
    let now = now();
    // A paused clock may stand before the moment of the first reading here.
    (wall + now.saturating_duration_since(begun)).saturating_sub(begun.saturating_duration_since(now))
}

/// Returns the time of the system since 1970, for the log alone: it jumps with the machine's clock, and does not move with [`now`].
#[expect(clippy::disallowed_methods, reason = "the one place that may")]
pub fn system() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Returns the time since the machine was started, including suspended time: leases are measured by it. On other systems than Linux, and in tests
/// that move the clock, returns the same as [`wall`].
pub fn boot() -> Duration {
    #[cfg(all(target_os = "linux", not(test)))]
    {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        Duration::new(u64::try_from(now.tv_sec).unwrap_or(0), u32::try_from(now.tv_nsec).unwrap_or(0))
    }
    #[cfg(not(all(target_os = "linux", not(test))))]
    {
        wall()
    }
}

/// Returns the CPU time of this process, of user and system, or `None` if the system does not report it.
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

/// A timer that is set again and again, most often to a later time or to none before it fires. The runtime's timer is made at the first poll
/// that has to wait. It is moved only if it would fire too late; one that fires too early is set again then.
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

    /// Sets the time of the alarm, or unsets the alarm if `at` is `None`. Takes effect at the next poll.
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

/// Registers a timer with this thread's runtime that is due by `at` and wakes no task. A runtime wakes itself by a system call when a new timer is
/// due before all others; without the anchor, each of a thread's short calls would cause one.
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

#[cfg(test)]
mod tests {
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
}
