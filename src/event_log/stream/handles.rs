//! Handles of a stream: the stream's part of its event IDs, and the secret of its resume token.

use std::sync::{Arc, OnceLock};

use crate::event_log::identity::Identity;
use crate::event_log::stream::state::Shared;
use crate::protocol::ids::{Handle, Owner, ResumeToken, Secret, StoreEpoch, StreamKind};
use crate::protocol::jsonrpc::RequestId;
use crate::protocol::stream::Policy;
use crate::random;

/// Origin of a stream, and what is made of it.
pub(super) struct Origin {
    pub(super) identity: Arc<Identity>,
    /// Replica that made the stream, and the epoch of the store's contents then.
    pub(super) made_by: (Owner, StoreEpoch),
    pub(super) handle: OnceLock<Handle>,
    pub(super) secret: OnceLock<Secret>,
}

/// Handles of one stream.
pub struct Handles<'a> {
    pub(super) origin: &'a Origin,
    pub(super) shared: &'a Shared,
}

impl<'a> Handles<'a> {
    /// Returns the stream's part of every event ID. Made at its first use, because a prompt JSON
    /// response needs none. Not to be called under the stream's lock.
    pub(super) fn own(&self) -> &'a Handle {
        self.origin.handle.get_or_init(|| {
            self.shared.with_machine(|machine| self.mint(machine.policy(), machine.owed_responses().ids()))
        })
    }

    /// Returns a handle for requests with these IDs. Takes no lock.
    pub(super) fn mint<'b>(
        &self,
        policy: &Policy,
        ids: impl ExactSizeIterator<Item = &'b RequestId> + Clone,
    ) -> Handle {
        let (owner, epoch) = self.origin.made_by;
        let (keys, id) = (&self.origin.identity.keys, self.shared.id);
        if policy.has_records() {
            return Handle::mint(keys, StreamKind::Task, owner, epoch, id, [].iter(), false);
        }
        Handle::mint(keys, policy.kind, owner, epoch, id, ids, self.shared.is_batch)
    }

    /// Returns the beginning of the event IDs of a poll with this ID, or `None` if the ID is too
    /// long for them.
    pub fn of_poll(&self, id: &RequestId) -> Option<Handle> {
        let (owner, epoch) = self.origin.made_by;
        Handle::mint_poll(&self.origin.identity.keys, owner, epoch, self.shared.id, id)
    }

    /// Returns the replica that made the stream, and writes it while its lease runs.
    pub(in crate::event_log) fn owner(&self) -> Owner {
        self.origin.made_by.0
    }

    /// Returns the resume token, made at its first use. The token opens the stream for its
    /// principal, so it must not be logged. Not to be called under the stream's lock.
    pub fn resume_token(&self) -> String {
        let secret = self.origin.secret.get_or_init(|| Secret::from_bytes(random::bytes()));
        ResumeToken::write(self.own(), secret)
    }

    /// Returns the secret of the resume token, or `None` if it was not made.
    pub(in crate::event_log) fn secret(&self) -> Option<&'a Secret> {
        self.origin.secret.get()
    }
}
