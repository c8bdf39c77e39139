//! Records of handshakes in the store, and the home of each session: the replica whose server has it.
//!
//! Owned here: the writes of the records, which are fenced by the home and the generation in them, and the takeover of a session whose home is
//! gone. Invariants: of the replicas that take a session over, one becomes its home; a replica that is not the home changes no record.
//! After a change, the store may have the record before it for a moment. Absent: the records of this process
//! (`sessions/handshakes`), and the handshake with the server (`upstream/revival`).

use std::sync::Arc;

use bytes::Bytes;
use tracing::{debug, info, warn};

use crate::clock;
use crate::event_log::backing::{Backing, STORE_RETRY_PAUSE};
use crate::event_log::identity::principal::Principal;
use crate::event_log::log::EventLog;
use crate::event_log::sessions::handshakes::{Handshake, StoredHandshake, UpstreamName};
use crate::protocol::headers::SessionId;
use crate::protocol::ids::Owner;
use crate::store::Error;

/// Attempts at a write that other writes get in the way of. Each of those is a replica that took the session over.
const ATTEMPTS_MAX: usize = 4;

/// Replica whose server has a session.
#[derive(Clone, Debug)]
pub enum Home {
    /// This one, with the record by which the session can be opened again.
    Here(Arc<Handshake>),
    /// Another one, whose lease runs.
    Elsewhere(Owner),
    /// Another one, whose lease has expired. The session may be taken over.
    Gone(Owner),
    /// The session has no record.
    Unknown,
}

/// Outcome of the write of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Saved {
    /// The store has the record, or needs none.
    Ok,
    /// The session has this home now. The local record is gone.
    Displaced(Owner),
    /// The store does not take the record. It is written later.
    Failed,
}

impl EventLog {
    /// Returns whether no request may be served after this failure of the store.
    pub fn should_wait_after(&self, error: &Error) -> bool {
        self.backing.as_ref().is_some_and(|backing| backing.should_wait(error))
    }

    /// Returns the home of a session, and restores its record if that is this replica. The store is asked once in a term; a record that it
    /// lacks but this replica has is written again.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn session_home(&self, id: &SessionId) -> Result<Home, Error> {
        let present = self.sessions.handshakes().find(id);
        let Some(backing) = &self.backing else { return Ok(present.map_or(Home::Unknown, Home::Here)) };
        let term = backing.term();
        if let Some(present) = &present
            && present.is_confirmed(term)
        {
            return Ok(Home::Here(present.clone()));
        }
        let Some((_, stored)) = read(backing, id).await? else {
            let Some(present) = present else { return Ok(Home::Unknown) };
            self.save_handshake(id).await;
            return Ok(Home::Here(present));
        };
        if stored.home != self.owner() && backing.coordination.is_some() {
            return self.remote_home(backing, id, &stored).await;
        }
        let present = match present {
            Some(present) => present,
            None => self.sessions.handshakes().restore(id, Handshake::from_stored(stored)),
        };
        present.note_written(term);
        Ok(Home::Here(present))
    }

    /// Returns the home of a session that another replica has, and drops the record here.
    async fn remote_home(&self, backing: &Backing, id: &SessionId, stored: &StoredHandshake) -> Result<Home, Error> {
        if let Some(present) = self.sessions.handshakes().find(id) {
            self.leave_session(id, &present);
        }
        let is_gone = self.has_expired(backing, stored.home).await?;
        Ok(if is_gone { Home::Gone(stored.home) } else { Home::Elsewhere(stored.home) })
    }

    /// Makes this replica the home of a session whose home is gone. The session gets a name that no server has, so the server here refuses
    /// the next request, by which the session is opened again. Returns the present home. `principal` must be one of those who may cause the
    /// session to be opened again; for others nothing changes.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn take_over_session(&self, id: &SessionId, principal: &Principal) -> Result<Home, Error> {
        let Some(backing) = &self.backing else { return Ok(Home::Unknown) };
        for _ in 0..ATTEMPTS_MAX {
            let term = backing.term();
            let Some((before, mut stored)) = read(backing, id).await? else { return Ok(Home::Unknown) };
            if stored.home == self.owner() {
                return self.session_home(id).await;
            }
            if !stored.principals.contains(principal) {
                return Ok(Home::Unknown);
            }
            let gone = stored.home;
            if !self.has_expired(backing, gone).await? {
                return Ok(Home::Elsewhere(gone));
            }
            stored.home = self.owner();
            stored.generation.0 = stored.generation.0.saturating_add(1);
            stored.name = UpstreamName::lost();
            let after = stored.encode();
            if backing.store.replace(&key(id), &before, &after, stored.keep).wait().await? {
                info!(from = gone.0, "this replica takes a session over from one that is gone");
                let handshake = self.sessions.handshakes().restore(id, Handshake::from_stored(stored));
                handshake.note_written(term);
                return Ok(Home::Here(handshake));
            }
        }
        Err(Error::Unavailable("the record of a session changes all the time".into()))
    }

    /// Writes the record of a session to the store, or removes it there if the session is over or was evicted here. Changes nothing if the
    /// session has another home.
    pub async fn save_handshake(&self, id: &SessionId) -> Saved {
        let Some(backing) = &self.backing else { return Saved::Ok };
        match self.write_handshake(backing, id).await {
            Ok(saved) => saved,
            Err(error) => {
                backing.note_failure(&error);
                debug!(%error, "the store could not take the record of a handshake");
                Saved::Failed
            }
        }
    }

    async fn write_handshake(&self, backing: &Backing, id: &SessionId) -> Result<Saved, Error> {
        for _ in 0..ATTEMPTS_MAX {
            let term = backing.term();
            let present = self.sessions.handshakes().find(id);
            let Some(handshake) = present.filter(|handshake| !handshake.is_over()) else {
                return self.remove_handshake(backing, id).await;
            };
            let was_written = handshake.begin_write();
            let before = if was_written { read(backing, id).await? } else { None };
            let record = handshake.to_stored(self.owner());
            let (key, after, keep) = (key(id), record.encode(), record.keep);
            let is_written = match before {
                // New, or lost by the store.
                None => backing.store.put(&key, &after, keep).wait().await.map(|()| true)?,
                Some((_, there)) if there.home != self.owner() && there.generation >= record.generation => {
                    self.leave_session(id, &handshake);
                    return Ok(Saved::Displaced(there.home));
                }
                Some((before, _)) => backing.store.replace(&key, &before, &after, keep).wait().await?,
            };
            if is_written {
                handshake.note_written(term);
                return Ok(Saved::Ok);
            }
        }
        Ok(Saved::Failed)
    }

    /// Removes the record of a session that is over, if this replica is its home.
    async fn remove_handshake(&self, backing: &Backing, id: &SessionId) -> Result<Saved, Error> {
        match read(backing, id).await? {
            Some((there, stored)) if stored.home == self.owner() => {
                backing.store.expire_if_equal(&key(id), &there, None).wait().await?;
                Ok(Saved::Ok)
            }
            Some((_, stored)) => Ok(Saved::Displaced(stored.home)),
            None => Ok(Saved::Ok),
        }
    }

    /// Forgets the record of a session that has another home, and ends its standalone streams here: the server here has the session no longer.
    fn leave_session(&self, id: &SessionId, handshake: &Arc<Handshake>) {
        info!("a session has another home now");
        self.sessions.handshakes().leave(id, handshake);
        for stream in self.sessions.standalone_of(id, &handshake.principals()) {
            stream.lose_session();
        }
    }

    /// Writes the changes of records to the store, until dropped.
    pub async fn keep_handshakes(&self) {
        if self.backing.is_none() {
            return std::future::pending().await;
        }
        let handshakes = self.sessions.handshakes();
        handshakes.keep_changes();
        loop {
            let id = handshakes.next_change().await;
            if self.save_handshake(&id).await == Saved::Failed {
                handshakes.change_again(id);
                clock::sleep(STORE_RETRY_PAUSE).await;
            }
        }
    }

    /// Writes the changes that are not in the store yet, before this process ends. Gives up at the first failure.
    pub async fn flush_handshakes(&self) {
        while let Some(id) = self.sessions.handshakes().take_change() {
            if self.save_handshake(&id).await == Saved::Failed {
                return;
            }
        }
    }
}

/// Reads the record of a session, with its bytes. One that cannot be read counts as missing.
async fn read(backing: &Backing, id: &SessionId) -> Result<Option<(Bytes, StoredHandshake)>, Error> {
    let Some(bytes) = backing.store.get(&key(id)).wait().await? else { return Ok(None) };
    match StoredHandshake::decode(&bytes) {
        Ok(stored) => Ok(Some((bytes, stored))),
        Err(error) => {
            // The text of the error may quote the record.
            warn!(line = error.line(), column = error.column(), "the record of a handshake cannot be read");
            Ok(None)
        }
    }
}

fn key(id: &SessionId) -> Vec<u8> {
    [b"handshake\0".as_slice(), id.as_str().as_bytes()].concat()
}
