//! The wait for a turn and for room, until a server may be started.

use std::sync::Arc;

use super::metrics::EndReason;
use super::pending::{Failed, Pending, TakenOver};
use super::pool::{self, Admission, Bounds};
use super::table::{Channels, State};
use super::waiting::{Full, StartKind};
use crate::event_log::QuotaKey;
use crate::protocol::error::ErrorCode;
use crate::{clock, sync};

/// The right to start a server, until this is dropped.
pub(super) struct Admitted {
    pub(super) channels: Arc<Channels>,
    /// Number of the start in [`State::starting`].
    pub(super) number: u64,
}

impl Drop for Admitted {
    fn drop(&mut self) {
        sync::lock(&self.channels.state).starting.remove(&self.number);
        self.channels.room.notify_waiters();
    }
}

/// The wait for a start, until it begins or this is dropped.
struct Turn {
    channels: Arc<Channels>,
    caller: Option<QuotaKey>,
    /// Number of the start in [`State::waiting`].
    number: u64,
}

impl Drop for Turn {
    fn drop(&mut self) {
        sync::lock(&self.channels.state).waiting.remove(&self.caller, self.number);
        // Another start may be next.
        self.channels.room.notify_waiters();
    }
}

impl Channels {
    /// Waits until a server may be started for `pending`, or one is there for it already. Starts
    /// begin in the order of [`super::waiting`]; one that waits for a server of its own caller to
    /// end holds up no other.
    ///
    /// # Errors
    /// At once if too many starts wait, all servers are being ended, or no client wants the start
    /// any more.
    pub(super) async fn admit(self: &Arc<Self>, pending: Pending, kind: StartKind) -> Result<Entrance, Failed> {
        let (bounds, turn) = {
            let mut state = sync::lock(&self.state);
            let pending = match self.take_over(&mut state, pending) {
                Ok(taken_over) => return Ok(Entrance::TakenOver(taken_over)),
                Err(pending) => *pending,
            };
            let Some(bounds) = &self.settings.bounds else {
                return if state.is_over { Err(draining()) } else { Ok(self.begin(&mut state, pending)) };
            };
            (bounds, self.wait_for_turn(&mut state, pending, kind)?)
        };
        loop {
            let mut room = std::pin::pin!(self.room.notified());
            room.as_mut().enable();
            match self.try_admit(bounds, &turn)? {
                Decision::Entrance(entrance) => return Ok(entrance),
                Decision::Wait(Admission::WaitUntil(until)) => {
                    let time = clock::sleep(until.saturating_duration_since(clock::now()));
                    // A start that succeeds ends the wait after those that failed, and another
                    // start may be next.
                    tokio::select! { () = time => {}, () = room => {} }
                }
                Decision::Wait(_) => room.await,
            }
        }
    }

    fn wait_for_turn(self: &Arc<Self>, state: &mut State, pending: Pending, kind: StartKind) -> Result<Turn, Failed> {
        let caller = pending.caller.as_ref().map(|caller| caller.counted_as().clone());
        let number = state.waiting.add(caller.clone(), kind, Some(pending));
        let number = number.map_err(|Full| Failed::of(ErrorCode::NoServer, "too many starts wait".to_owned()))?;
        Ok(Turn { channels: self.clone(), caller, number })
    }

    fn try_admit(self: &Arc<Self>, bounds: &Bounds, turn: &Turn) -> Result<Decision, Failed> {
        let (now, mut state) = (clock::now(), sync::lock(&self.state));
        let state = &mut *state;
        if state.is_over {
            return Err(draining());
        }
        // A client that has gone needs no server.
        let waiting = state.waiting.get_mut(&turn.caller, turn.number);
        let Some(wanted) = waiting.and_then(|waiting| waiting.take_if(|pending| pending.is_wanted())) else {
            return Err(Failed::of(ErrorCode::NoServer, String::new()));
        };
        // Another request may have begun the start meanwhile. The turn, which is not needed then,
        // passes to another start.
        let wanted = match self.take_over(state, wanted) {
            Ok(taken_over) => return Ok(Decision::Entrance(Entrance::TakenOver(taken_over))),
            Err(wanted) => *wanted,
        };
        if let Some(waiting) = state.waiting.get_mut(&turn.caller, turn.number) {
            *waiting = Some(wanted);
        }
        let occupants = state.occupants();
        let may_begin = |caller: Option<&QuotaKey>, pending: &Option<Pending>| {
            pending.as_ref().is_some_and(Pending::is_wanted)
                && !pool::must_wait_for_own(bounds, &occupants, caller, now)
        };
        if state.waiting.next(may_begin) != Some(turn.number) {
            return Ok(Decision::Wait(Admission::WaitForEnd));
        }
        match state.starts.admit(bounds, &occupants, turn.caller.as_ref(), now) {
            Admission::Start => {}
            Admission::InPlaceOf(victim) => {
                if let Some(victim) = state.servers.get(&victim) {
                    victim.end(EndReason::Room);
                }
            }
            wait => return Ok(Decision::Wait(wait)),
        }
        match state.waiting.begin(&turn.caller, turn.number).flatten() {
            Some(pending) => Ok(Decision::Entrance(self.begin(state, pending))),
            None => Err(Failed::of(ErrorCode::NoServer, String::new())),
        }
    }

    fn begin(self: &Arc<Self>, state: &mut State, pending: Pending) -> Entrance {
        state.next_start += 1;
        let number = state.next_start;
        state.starting.insert(number, pending);
        Entrance::Start(Admitted { channels: self.clone(), number })
    }
}

/// Way of an `initialize` to a server.
pub(super) enum Entrance {
    /// A server is started for it.
    Start(Admitted),
    /// A start, or a server, was there for it.
    TakenOver(TakenOver),
}

enum Decision {
    Entrance(Entrance),
    Wait(Admission),
}

fn draining() -> Failed {
    Failed::of(ErrorCode::Draining, String::new())
}
