//! The wait for a turn and for room, before a server may be started.

use std::sync::Arc;

use super::metrics::EndReason;
use super::pending_start::{ExistingStart, PendingStart, StartFailure};
use super::pool::{self, Admission, Bounds};
use super::start_queue::{Full, StartKind};
use super::table::{Channels, State};
use crate::event_log::QuotaKey;
use crate::protocol::error::ErrorCode;
use crate::{clock, sync};

/// The right to start a server. Dropping it removes the pending start.
pub(super) struct StartPermit {
    pub(super) channels: Arc<Channels>,
    /// Number of the start in [`State::pending_starts`].
    pub(super) number: u64,
}

impl Drop for StartPermit {
    fn drop(&mut self) {
        sync::lock(&self.channels.state).pending_starts.remove(&self.number);
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
                return if state.is_draining { Err(draining()) } else { Ok(self.begin(&mut state, pending)) };
            };
            (bounds, self.enqueue_start(&mut state, pending, kind)?)
        };
        loop {
            let mut room = std::pin::pin!(self.room.notified());
            room.as_mut().enable();
            match self.try_admit(bounds, &queued)? {
                TurnDecision::Route(route) => return Ok(route),
                TurnDecision::Wait(Admission::WaitUntil(until)) => {
                    let time = clock::sleep(until.saturating_duration_since(clock::now()));
                    // A successful start ends the back-off after failed starts. Another start may
                    // be next as well.
                    tokio::select! { () = time => {}, () = room => {} }
                }
                TurnDecision::Wait(_) => room.await,
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
            return Err(draining());
        }
        // A client that has left needs no server.
        let entry = state.start_queue.get_mut(&queued.caller, queued.number);
        let Some(wanted) = entry.and_then(|entry| entry.take_if(|pending| pending.is_wanted())) else {
            return Err(StartFailure::of(ErrorCode::NoServer, String::new()));
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
        if state.start_queue.next(may_begin) != Some(queued.number) {
            return Ok(TurnDecision::Wait(Admission::WaitForEnd));
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
            None => Err(StartFailure::of(ErrorCode::NoServer, String::new())),
        }
    }

    fn begin(self: &Arc<Self>, state: &mut State, pending: PendingStart) -> StartRoute {
        state.next_start += 1;
        let number = state.next_start;
        state.pending_starts.insert(number, pending);
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

fn draining() -> StartFailure {
    StartFailure::of(ErrorCode::Draining, String::new())
}
