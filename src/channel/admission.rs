//! The wait for a turn and for room, before a server may be started.

use std::sync::Arc;
use std::time::Duration;

use tracing::info;

use super::metrics::EndReason;
use super::pending_start::{ExistingStart, PendingStart, StartFailure};
use super::pool::{self, Admission, Bounds};
use super::start_queue::{Full, StartKind};
use super::table::{Channels, State};
use crate::event_log::QuotaKey;
use crate::protocol::error::ErrorCode;
use crate::{clock, sync};

/// Shortest wait of a start that the log reports.
const LONG_WAIT: Duration = Duration::from_secs(1);

/// The right to start a server. Dropping it removes the pending start.
pub(super) struct StartPermit {
    pub(super) channels: Arc<Channels>,
    /// Number of the start in [`State::pending_starts`].
    pub(super) number: u64,
}

impl Drop for StartPermit {
    fn drop(&mut self) {
        let mut state = sync::lock(&self.channels.state);
        state.pending_starts.remove(&self.number);
        state.start_gate.end(self.number, false);
        drop(state);
        self.channels.room.notify_waiters();
    }
}

/// A place in the queue of starts. Dropping it leaves the queue.
struct QueuedStart {
    channels: Arc<Channels>,
    caller: Option<QuotaKey>,
    /// Number of the start in [`State::start_queue`].
    number: u64,
}

impl Drop for QueuedStart {
    fn drop(&mut self) {
        sync::lock(&self.channels.state).start_queue.remove(&self.caller, self.number);
        // Another start may be next.
        self.channels.room.notify_waiters();
    }
}

impl Channels {
    /// Waits until a server may be started for `pending`, or until an existing one can serve it.
    ///
    /// Starts begin in the order of [`super::start_queue`]. A start that waits for a server of its
    /// own caller to end delays no other caller.
    ///
    /// # Errors
    /// At once, if too many starts wait, all servers are being ended, or no client wants the start.
    pub(super) async fn admit(
        self: &Arc<Self>,
        pending: PendingStart,
        kind: StartKind,
    ) -> Result<StartRoute, StartFailure> {
        let (bounds, queued) = {
            let mut state = sync::lock(&self.state);
            let pending = match self.take_over(&mut state, pending) {
                Ok(existing) => return Ok(StartRoute::Existing(existing)),
                Err(pending) => *pending,
            };
            let Some(bounds) = &self.settings.bounds else {
                return if state.is_draining {
                    Err(ErrorCode::Draining.into())
                } else {
                    Ok(self.begin(&mut state, pending))
                };
            };
            (bounds, self.enqueue_start(&mut state, pending, kind)?)
        };
        let mut log_at = Some(clock::now() + LONG_WAIT);
        loop {
            let mut room = std::pin::pin!(self.room.notified());
            room.as_mut().enable();
            let wait = match self.try_admit(bounds, &queued)? {
                TurnDecision::Route(route) => return Ok(route),
                TurnDecision::Wait(wait) => wait,
            };
            if log_at.is_some_and(|at| at <= clock::now()) {
                info!(bound = wait.bound(), "a start of a server waits");
                log_at = None;
            }
            let until = if let Admission::WaitUntil(until, _) = wait { Some(until) } else { None };
            match [until, log_at].into_iter().flatten().min() {
                Some(until) => {
                    let time = clock::sleep(until.saturating_duration_since(clock::now()));
                    // A successful start ends the back-off after failed starts. Another start may
                    // be next as well.
                    tokio::select! { () = time => {}, () = room => {} }
                }
                None => room.await,
            }
        }
    }

    fn enqueue_start(
        self: &Arc<Self>,
        state: &mut State,
        pending: PendingStart,
        kind: StartKind,
    ) -> Result<QueuedStart, StartFailure> {
        let caller = pending.caller.as_ref().map(|caller| caller.counted_as().clone());
        let number = state.start_queue.add(caller.clone(), kind, Some(pending));
        let number = number.map_err(|Full| StartFailure::of(ErrorCode::NoServer, "too many starts wait".to_owned()))?;
        Ok(QueuedStart { channels: self.clone(), caller, number })
    }

    fn try_admit(self: &Arc<Self>, bounds: &Bounds, queued: &QueuedStart) -> Result<TurnDecision, StartFailure> {
        let (now, mut state) = (clock::now(), sync::lock(&self.state));
        let state = &mut *state;
        if state.is_draining {
            return Err(ErrorCode::Draining.into());
        }
        // A client that has left needs no server.
        let entry = state.start_queue.get_mut(&queued.caller, queued.number);
        let Some(wanted) = entry.and_then(|entry| entry.take_if(|pending| pending.is_wanted())) else {
            return Err(ErrorCode::NoServer.into());
        };
        // Another request may have begun the same start. The turn is then free for another start.
        let wanted = match self.take_over(state, wanted) {
            Ok(existing) => return Ok(TurnDecision::Route(StartRoute::Existing(existing))),
            Err(wanted) => *wanted,
        };
        if let Some(entry) = state.start_queue.get_mut(&queued.caller, queued.number) {
            *entry = Some(wanted);
        }
        let occupants = state.occupants();
        let may_begin = |caller: Option<&QuotaKey>, pending: &Option<PendingStart>| {
            pending.as_ref().is_some_and(PendingStart::is_wanted)
                && !pool::must_wait_for_own(bounds, &occupants, caller, now)
        };
        let at_gate = state.start_gate.wait(bounds, now);
        if state.start_queue.next(may_begin) != Some(queued.number) {
            // The first start of the queue waits for a bound of its own, or is about to begin.
            let caller = queued.caller.as_ref();
            let wait = at_gate.unwrap_or_else(|| state.start_rate.clone().admit(bounds, &occupants, caller, now));
            return Ok(TurnDecision::Wait(if let Admission::WaitUntil(_, _) = wait { Admission::Start } else { wait }));
        }
        if let Some(wait) = at_gate {
            return Ok(TurnDecision::Wait(wait));
        }
        match state.start_rate.admit(bounds, &occupants, queued.caller.as_ref(), now) {
            Admission::Start => {}
            Admission::InPlaceOf(victim) => {
                if let Some(victim) = state.servers.get(&victim) {
                    victim.end(EndReason::Room);
                }
            }
            wait => return Ok(TurnDecision::Wait(wait)),
        }
        match state.start_queue.begin(&queued.caller, queued.number).flatten() {
            Some(pending) => Ok(TurnDecision::Route(self.begin(state, pending))),
            None => Err(ErrorCode::NoServer.into()),
        }
    }

    fn begin(self: &Arc<Self>, state: &mut State, pending: PendingStart) -> StartRoute {
        state.next_start += 1;
        let number = state.next_start;
        state.pending_starts.insert(number, pending);
        state.start_gate.begin(number, clock::now());
        StartRoute::New(StartPermit { channels: self.clone(), number })
    }
}

/// The way of an `initialize` to its server.
pub(super) enum StartRoute {
    /// A new server.
    New(StartPermit),
    /// A start or a server that exists already.
    Existing(ExistingStart),
}

enum TurnDecision {
    Route(StartRoute),
    Wait(Admission),
}
