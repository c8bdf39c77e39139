//! Memory of the message that arrives on a channel, from its first bytes on.
//!
//! The reader of a channel never waits, so a large message counts for its caller while it arrives.
//! Owned here: the choice of the quota. It is the quota of the call that the first bytes name, else
//! of the channel's calls. Absent: the memory itself ([`Held`]), and the counting of events in a
//! stream (`event_log/`).

use std::sync::Arc;

use super::core::Connection;
use super::held::{FREE, Held};
use super::state::State;
use super::types::Users;
use crate::channel::link::Memory;
use crate::channel::partial::PartialMemory;
use crate::protocol::error::ErrorCode;
use crate::protocol::excerpt::{EXCERPT, Excerpt, Kind};
use crate::sync;

/// Bytes that are reserved ahead of a growing message.
const STEP: usize = 1024 * 1024;

/// The message that arrives on a channel.
pub(super) struct Arriving {
    connection: Arc<Connection>,
    counted: usize,
    held: Held,
}

impl Arriving {
    pub(super) fn new(connection: Arc<Connection>) -> Self {
        Self { connection, counted: 0, held: Held::Nothing }
    }

    /// Takes the memory of the message that has arrived.
    pub(super) fn take(&mut self) -> Held {
        self.counted = 0;
        std::mem::take(&mut self.held)
    }
}

impl Memory for Arriving {
    fn hold(&mut self, partial: &[u8]) -> Result<(), ErrorCode> {
        if partial.len() <= self.counted.max(FREE) {
            return Ok(());
        }
        self.counted = partial.len() + STEP;
        if matches!(self.held, Held::Nothing) {
            let state = sync::lock(&self.connection.state);
            self.held = state.holder_of(partial, &self.connection.limits.unclaimed);
        }
        self.held.grow(self.counted)
    }
}

impl State {
    /// Returns the memory for a message with these first bytes.
    fn holder_of(&self, partial: &[u8], unclaimed: &Arc<PartialMemory>) -> Held {
        let named = match Excerpt::of_first(&partial[..partial.len().min(EXCERPT)]).kind() {
            Kind::Response(Some(id)) => self.routing.call_of(&id).and_then(|call| self.responses.get(&call)),
            Kind::Response(None) | Kind::Request(_) | Kind::Unknown(_) | Kind::Garbage => None,
        };
        let mut others = self.responses.values().filter(|response| response.stream.is_some());
        let is_of_one_caller = self.users != Users::Anonymous || self.responses.len() == 1;
        let response = named.or_else(|| others.next().filter(|_| is_of_one_caller));
        match response.and_then(|response| response.stream.as_ref()) {
            Some(stream) => Held::OfCaller(stream.quota().reserve(0)),
            None => Held::Unclaimed(unclaimed.share()),
        }
    }
}
