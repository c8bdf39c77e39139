//! Rate of the resumes of one quota, with a queue for those beyond it.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::clock;
use crate::sync;

/// Burst of resumes, as time at their rate: all clients of a site are cut together and resume
/// together.
const RESUME_BURST: Duration = Duration::from_secs(10);

/// Resumes of one quota, limited to a number per second.
#[derive(Default)]
pub(super) struct ResumeRate {
    /// Time when the admitted resumes are paid for: at most [`RESUME_BURST`] from now, plus
    /// one.
    paid_until: Mutex<Option<Instant>>,
    /// Queue of waiting resumes. A resume is counted only once it is admitted, so a caller that
    /// leaves owes nothing.
    queue: tokio::sync::Mutex<()>,
}

impl ResumeRate {
    /// Admits a resume at once, if none waits and the rate allows one more. Returns whether it was
    /// admitted and counted.
    pub(super) fn try_admit(&self, per_sec: u32) -> bool {
        self.queue.try_lock().is_ok() && self.count(per_sec, clock::now()).is_ok()
    }

    /// Waits until one more resume is admitted, in the order of arrival, and counts it. To drop the
    /// future gives up the place in the queue.
    pub(super) async fn admit(&self, per_sec: u32) {
        let _turn = self.queue.lock().await;
        while let Err(at) = self.count(per_sec, clock::now()) {
            clock::sleep_until(at).await;
        }
    }

    /// Counts a resume at `now`.
    ///
    /// # Errors
    /// Earliest time of the next count.
    fn count(&self, per_sec: u32, now: Instant) -> Result<(), Instant> {
        let cost = Duration::from_secs(1) / per_sec;
        let mut paid = sync::lock(&self.paid_until);
        let before = paid.map_or(now, |paid| paid.max(now));
        match before.checked_sub(RESUME_BURST).filter(|at| *at > now) {
            Some(at) => Err(at),
            None => {
                *paid = Some(before + cost);
                Ok(())
            }
        }
    }

    /// Returns whether forgetting the rate would make the next resumes cheaper.
    pub(super) fn owes_time(&self, now: Instant) -> bool {
        sync::lock(&self.paid_until).is_some_and(|paid| paid > now)
    }
}
