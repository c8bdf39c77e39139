//! The connection: state that both tasks of a channel and its callers share.

use std::sync::Mutex;

use tokio::sync::Notify;

use super::state::State;
use crate::channel::limits::Limits;
use crate::protocol::channel::ids::Receiver;
use crate::sync;

/// One channel.
#[derive(Debug)]
pub(in crate::channel) struct Connection {
    pub(super) limits: Limits,
    pub(super) state: Mutex<State>,
    /// Abandoned responses. This lock is separate, because a response may be dropped under any
    /// other lock.
    pub(super) left: Mutex<Vec<Receiver>>,
    /// Notified of work for the writer.
    pub(super) work: Notify,
    /// Notified at the end.
    pub(super) ended: Notify,
}

impl Connection {
    /// Changes the state for a message of the server, and wakes the writer for messages that result
    /// from it.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = sync::lock(&self.state);
        let result = change(&mut state);
        if state.has_outgoing() {
            self.work.notify_one();
        }
        result
    }
}
