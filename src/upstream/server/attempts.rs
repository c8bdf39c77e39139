//! Attempts of waiting callers to connect to a server that accepts no connections.
//!
//! A single waiting caller tries, up to four times a second. Once a connection is accepted, all
//! others try as well. Absent: the reachability of the server ([`super::reach`]).

use std::pin::pin;
use std::time::Duration;

use tokio::sync::OwnedMutexGuard;

use super::reach::Reach;
use crate::backoff::Backoff;
use crate::clock;

/// Pauses of one call between its attempts. A process restarts within 0.2 to 2 s.
const PAUSES: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_millis(250));

/// Schedule of one caller's attempts.
pub(in crate::upstream) struct Attempts<'a> {
    reach: &'a Reach,
    /// Turn to try, held until this caller stops waiting: its request is sent, or its wait ends.
    turn: Option<OwnedMutexGuard<()>>,
    pauses: Backoff,
}

impl<'a> Attempts<'a> {
    /// Creates the schedule of a caller whose first attempt has failed.
    pub(in crate::upstream) fn new(reach: &'a Reach) -> Self {
        Self { reach, turn: None, pauses: PAUSES }
    }

    /// Waits for the time of the next attempt: a pause, and the turn to try or an accepted
    /// connection. Dropping the future loses nothing.
    pub(in crate::upstream) async fn next(&mut self) {
        clock::sleep(self.pauses.next_pause()).await;
        if self.turn.is_some() {
            return;
        }
        let mut accepted = pin!(self.reach.accepted());
        // Enabled before the check, so that no connection is missed in between.
        accepted.as_mut().enable();
        if self.reach.is_failing() {
            tokio::select! {
                // A simulated run must take the same branch each time if both are ready.
                biased;
                () = accepted => {}
                turn = self.reach.turn() => self.turn = Some(turn),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use super::*;

    fn reach() -> Arc<Reach> {
        Arc::new(Reach::new("server".to_owned(), Duration::from_secs(5)))
    }

    fn fail(reach: &Reach) {
        reach.record_failed(clock::now(), &io::Error::from(io::ErrorKind::ConnectionRefused));
    }

    /// Begins a caller that waits, tries up to `most` times, and counts its attempts.
    fn begin(reach: &Arc<Reach>, most: usize) -> tokio::task::JoinHandle<Vec<Duration>> {
        let (reach, began) = (reach.clone(), clock::now());
        tokio::spawn(async move {
            let mut attempts = Attempts::new(&reach);
            let mut times = Vec::new();
            while times.len() < most {
                attempts.next().await;
                times.push(clock::now() - began);
                if !reach.is_failing() {
                    break;
                }
            }
            times
        })
    }

    #[tokio::test(start_paused = true)]
    async fn one_of_many_callers_tries_until_a_connection_is_accepted() {
        let reach = reach();
        fail(&reach);
        let callers: Vec<_> = (0..1000).map(|_| begin(&reach, 1000)).collect();
        clock::sleep(Duration::from_secs(10)).await;
        assert_eq!(callers.iter().filter(|caller| caller.is_finished()).count(), 0);
        reach.record_accepted();
        let mut attempts = Vec::new();
        for caller in callers {
            attempts.push(caller.await.unwrap().len());
        }
        attempts.sort_unstable();
        let (most, others) = attempts.split_last().unwrap();
        assert!(others.iter().all(|attempts| *attempts == 1), "{others:?}");
        assert!((40..=42).contains(most), "{most}");
    }

    #[tokio::test(start_paused = true)]
    async fn the_turn_passes_to_the_next_caller() {
        let reach = reach();
        fail(&reach);
        let first = begin(&reach, 3);
        tokio::task::yield_now().await;
        let second = begin(&reach, 2);
        assert_eq!(first.await.unwrap().last(), Some(&Duration::from_millis(50 + 100 + 200)));
        assert_eq!(second.await.unwrap(), [Duration::from_millis(350), Duration::from_millis(450)]);
    }

    /// Models a server whose TLS handshakes fail.
    #[tokio::test(start_paused = true)]
    async fn a_caller_pauses_before_each_attempt() {
        let reach = reach();
        let caller = begin(&reach, 1);
        assert_eq!(caller.await.unwrap(), [Duration::from_millis(50)]);
    }
}
