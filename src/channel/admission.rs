//! The wait for room, until a server may be started.

use std::sync::Arc;

use super::Channels;
use super::metrics::EndReason;
use super::pending::{Failed, Pending};
use super::pool::Admission;
use crate::protocol::error::ErrorCode;
use crate::{clock, sync};

/// The right to start a server, until this is dropped.
pub(super) struct Admitted {
    pub(super) channels: Arc<Channels>,
    /// Number of the start in [`super::State::starting`].
    pub(super) number: u64,
}

impl Drop for Admitted {
    fn drop(&mut self) {
        sync::lock(&self.channels.state).starting.remove(&self.number);
        self.channels.room.notify_waiters();
    }
}

impl Channels {
    /// Waits until a server may be started for `pending`. Requests are served in their order, except those that wait for a server of their own
    /// caller to end.
    pub(super) async fn admit(self: &Arc<Self>, pending: Pending) -> Result<Admitted, Failed> {
        let mut pending = Some(pending);
        let mut turn = Some(self.turns.lock().await);
        loop {
            let mut room = std::pin::pin!(self.room.notified());
            room.as_mut().enable();
            match self.try_admit(&mut pending)? {
                Decision::Admitted(admitted) => return Ok(admitted),
                Decision::Wait(Admission::WaitUntil(until)) => {
                    let time = clock::sleep(until.saturating_duration_since(clock::now()));
                    // A start that succeeds ends the wait after those that failed.
                    tokio::select! { () = time => {}, () = room => {} }
                }
                Decision::Wait(Admission::WaitForOwn) => {
                    // Others need not wait for this caller's servers.
                    turn = None;
                    room.await;
                }
                Decision::Wait(_) => room.await,
            }
            if turn.is_none() {
                turn = Some(self.turns.lock().await);
            }
        }
    }

    fn try_admit(self: &Arc<Self>, pending: &mut Option<Pending>) -> Result<Decision, Failed> {
        let mut state = sync::lock(&self.state);
        let state = &mut *state;
        if state.is_over {
            return Err(Failed::of(ErrorCode::Draining, String::new()));
        }
        let wanted = pending.take_if(|pending| pending.is_wanted());
        // A client that has gone needs no server.
        let Some(wanted) = wanted else { return Err(Failed::of(ErrorCode::NoServer, String::new())) };
        let caller = wanted.caller.as_ref().map(|caller| caller.counted_as());
        let admission = match &self.settings.bounds {
            Some(bounds) => state.starts.admit(bounds, &state.occupants(), caller, clock::now()),
            None => Admission::Start,
        };
        match admission {
            Admission::Start => {}
            Admission::InPlaceOf(victim) => {
                if let Some(victim) = state.servers.get(&victim) {
                    victim.end(EndReason::Room);
                }
            }
            wait => {
                *pending = Some(wanted);
                return Ok(Decision::Wait(wait));
            }
        }
        state.next_start += 1;
        let number = state.next_start;
        state.starting.insert(number, wanted);
        Ok(Decision::Admitted(Admitted { channels: self.clone(), number }))
    }
}

enum Decision {
    Admitted(Admitted),
    Wait(Admission),
}
