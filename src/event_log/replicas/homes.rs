//! Records of handshakes in the store, and the home of each session: the replica whose server has
//! it.
//!
//! Owned here: the writes of the records, fenced by the home in them, and the takeover of a session
//! without a living home. The home rewrites its record once in each lease, so that the
//! compare-and-set of a concurrent takeover fails. Invariants: of the replicas that take a session
//! over, one becomes its home. A replica that is not the home changes no record. A session that has
//! ended gets no record by a late write, since its end is a record as well. After a change, the
//! store may have the record before it for a moment. Absent: the records of this process
//! (`sessions/handshakes`), and the handshake with the server (`upstream/revival`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tracing::{debug, info, warn};

use crate::clock;
use crate::event_log::backing::{Backing, HomeTerm, STORE_RETRY_PAUSE};
use crate::event_log::replicas::leases::Leases;
use crate::event_log::sessions::handshakes::{Handshake, StoredHandshake, UpstreamName};
use crate::event_log::sessions::{Session, Sessions};
use crate::identity::Principal;
use crate::protocol::error::ErrorCode;
use crate::protocol::headers::SessionId;
use crate::protocol::ids::Owner;
use crate::store::Error;

/// Attempts at a write that other writes get in the way of. Each of those is a replica that took
/// the session over.
const ATTEMPTS_MAX: usize = 4;
/// Record of an ended session, and its lifetime: longer than the freeze of a replica that still has
/// the session's record.
const ENDED: &[u8] = b"ended";
const KEEP_ENDED: Duration = Duration::from_secs(3600);
/// Changes that are written at a time.
const WRITES_MAX: u32 = 16;
/// Interval between reads of the lease of a home that a balancer does not reach.
const HOME_POLL: Duration = Duration::from_millis(500);

/// Replica whose server has a session.
#[derive(Clone, Debug)]
pub enum Home {
    /// This one, with the record to open the session again.
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
    /// The session has ended.
    Ended,
    /// The session has this home now. The local record is gone.
    Displaced(Owner),
    /// The store does not take the record. It is written later.
    Failed,
}

/// Homes of the sessions, and the records of handshakes in the store.
pub struct Homes {
    backing: Option<Arc<Backing>>,
    leases: Arc<Leases>,
    sessions: Arc<Sessions>,
    here: Owner,
    /// A permit for each change that may be written at a time.
    writes: Arc<Semaphore>,
    /// True once the log has warned of names that the servers of several replicas give.
    pub(in crate::event_log) has_warned_of_names: AtomicBool,
}

impl Homes {
    /// Creates the homes as replica `here` sees them.
    pub(in crate::event_log) fn new(
        here: Owner,
        backing: Option<Arc<Backing>>,
        leases: Arc<Leases>,
        sessions: Arc<Sessions>,
    ) -> Self {
        let writes = Arc::new(Semaphore::new(WRITES_MAX as usize));
        Self { backing, leases, sessions, here, writes, has_warned_of_names: AtomicBool::new(false) }
    }

    /// Returns whether no request may be served after this failure of the store.
    pub fn should_wait_after(&self, error: &Error) -> bool {
        self.backing.as_ref().is_some_and(|backing| backing.should_wait(error))
    }

    /// Returns the present term, to be read before the store. `None` if no result of the store
    /// counts.
    pub fn present_term(&self) -> Option<HomeTerm> {
        self.backing.as_ref()?.home_term()
    }

    /// Returns whether the home of a session was read in the present term.
    pub fn knows_home(&self, session: &Session) -> bool {
        session.knows_home(self.present_term())
    }

    /// Returns the home of a session, and restores its record if that is this replica. Reads the
    /// store once in a lease.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn find(&self, id: &SessionId) -> Result<Home, Error> {
        let handshakes = self.sessions.handshakes();
        let present = handshakes.find(id);
        let Some(backing) = &self.backing else { return Ok(present.map_or(Home::Unknown, Home::Here)) };
        if let Some(present) = &present
            && present.is_confirmed(self.present_term())
        {
            return Ok(Home::Here(present.clone()));
        }
        let stored = match read(backing, id).await? {
            InStore::Record(_, stored) => Some(stored),
            InStore::Unreadable => return Ok(Home::Unknown),
            InStore::Nothing | InStore::Ended => None,
        };
        if let Some(stored) = &stored
            && stored.home != self.here
            && backing.coordination.is_some()
        {
            return self.remote_home(backing, id, stored).await;
        }
        let present = match (present, stored) {
            (Some(present), _) => present,
            (None, Some(stored)) => handshakes.restore(id, Handshake::from_stored(*stored)),
            (None, None) => return Ok(Home::Unknown),
        };
        match self.write(backing, id, None).await? {
            Saved::Ok => Ok(Home::Here(present)),
            Saved::Ended => Ok(Home::Unknown),
            Saved::Displaced(owner) => Ok(Home::Elsewhere(owner)),
            Saved::Failed => Err(always_changed()),
        }
    }

    /// Returns the home of a session that another replica has, and drops the record here.
    async fn remote_home(&self, backing: &Backing, id: &SessionId, stored: &StoredHandshake) -> Result<Home, Error> {
        if let Some(present) = self.sessions.handshakes().find(id)
            && let Saved::Ok = self.write(backing, id, None).await?
        {
            // After a loss the store had a record of before.
            return Ok(Home::Here(present));
        }
        let is_gone = self.leases.has_expired(backing, stored.home).await?;
        Ok(if is_gone { Home::Gone(stored.home) } else { Home::Elsewhere(stored.home) })
    }

    /// Waits until the lease of `home` has expired, for `limit` at most, if `principal` may take
    /// the session over then. Returns at once for any other home.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn await_end(
        &self,
        id: &SessionId,
        home: Owner,
        principal: &Principal,
        limit: Duration,
    ) -> Result<(), Error> {
        let Some(backing) = &self.backing else { return Ok(()) };
        let InStore::Record(_, stored) = read(backing, id).await? else { return Ok(()) };
        if stored.home != home || !stored.principals.contains(principal) {
            return Ok(());
        }
        let ending = async {
            while !self.leases.has_expired(backing, home).await? {
                clock::sleep(HOME_POLL).await;
            }
            Ok(())
        };
        tokio::time::timeout(limit, ending).await.unwrap_or(Ok(()))
    }

    /// Makes this replica the home of a session whose home is gone. The session gets a name that no
    /// server has. So the server here refuses the next request, and the refusal opens the session
    /// again. Returns the present home. Nothing changes for a `principal` that may not cause the
    /// session to be opened again.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn take_over(&self, id: &SessionId, principal: &Principal) -> Result<Home, Error> {
        let Some(backing) = &self.backing else { return Ok(Home::Unknown) };
        for _ in 0..ATTEMPTS_MAX {
            let term = self.present_term();
            let InStore::Record(before, mut stored) = read(backing, id).await? else { return Ok(Home::Unknown) };
            if stored.home == self.here {
                return self.find(id).await;
            }
            if !stored.principals.contains(principal) {
                return Ok(Home::Unknown);
            }
            let gone = stored.home;
            if !self.leases.has_expired(backing, gone).await? {
                return Ok(Home::Elsewhere(gone));
            }
            stored.move_to(self.here);
            let after = stored.encode();
            if backing.store.replace(&key(id), &before, &after, stored.keep).wait().await? {
                info!(from = gone.0, "this replica takes a session over from one that is gone");
                let handshake = self.sessions.handshakes().restore(id, Handshake::from_stored(*stored));
                handshake.note_written(term);
                return Ok(Home::Here(handshake));
            }
        }
        Err(always_changed())
    }

    /// Writes the record of a session to the store, or its end if the session has ended or was
    /// evicted here. Changes nothing if the session has another home.
    pub async fn save(&self, id: &SessionId) -> Saved {
        self.save_as(id, None).await
    }

    /// Does as [`Self::save`], with the server's name for the revived session.
    pub async fn save_revival(&self, id: &SessionId, name: Option<SessionId>) -> Saved {
        self.save_as(id, Some(&UpstreamName::Renamed(name))).await
    }

    async fn save_as(&self, id: &SessionId, name: Option<&UpstreamName>) -> Saved {
        let Some(backing) = &self.backing else { return Saved::Ok };
        self.write(backing, id, name).await.unwrap_or_else(|error| {
            backing.note_failure(&error);
            debug!(%error, "the store could not take the record of a handshake");
            Saved::Failed
        })
    }

    async fn write(&self, backing: &Backing, id: &SessionId, name: Option<&UpstreamName>) -> Result<Saved, Error> {
        let present = self.sessions.handshakes().find(id);
        // Of two writes the later has the later state.
        let _turn = match &present {
            Some(handshake) => Some(handshake.write_turn().await),
            None => None,
        };
        for _ in 0..ATTEMPTS_MAX {
            let term = self.present_term();
            let Some(handshake) = present.as_ref().filter(|handshake| !handshake.is_over()) else {
                return self.write_end(backing, id).await;
            };
            let before = if handshake.begin_write() { Some(read(backing, id).await?) } else { None };
            let record = handshake.to_stored(self.here, name);
            let (key, after, keep) = (key(id), record.encode(), record.keep);
            let is_written = match before {
                None => {
                    self.write_first(backing, &key, &after, keep).await?;
                    true
                }
                // The store has lost it.
                Some(InStore::Nothing) => backing.store.claim(&key, &after, keep).wait().await?.is_none(),
                Some(InStore::Unreadable) => return Ok(Saved::Ok),
                Some(InStore::Ended) => {
                    self.leave_session(id, handshake);
                    return Ok(Saved::Ended);
                }
                Some(InStore::Record(_, there)) if there.is_later_than(&record) => {
                    self.leave_session(id, handshake);
                    return Ok(Saved::Displaced(there.home));
                }
                Some(InStore::Record(before, _)) => backing.store.replace(&key, &before, &after, keep).wait().await?,
            };
            if is_written && !handshake.is_over() {
                handshake.note_written(term);
                return Ok(Saved::Ok);
            }
        }
        Ok(Saved::Failed)
    }

    /// Writes the record of a session that the server here has just opened, in place of the record
    /// of an earlier session of this name. Warns if the earlier one is at another replica that
    /// lives: their servers give the same names.
    async fn write_first(&self, backing: &Backing, key: &[u8], record: &[u8], keep: Duration) -> Result<(), Error> {
        let is_shared = backing.coordination.is_some();
        if is_shared && !self.has_warned_of_names.load(Ordering::Relaxed) {
            // Takes as long as a write alone, if there is no earlier record.
            let Some(there) = backing.store.claim(key, record, keep).wait().await? else { return Ok(()) };
            if let Ok(there) = StoredHandshake::decode(&there)
                && there.home != self.here
                && !self.leases.has_expired(backing, there.home).await?
                && !self.has_warned_of_names.swap(true, Ordering::Relaxed)
            {
                warn!(
                    replica = there.home.0,
                    "the server has opened a session under a name that another replica's server has given as well: both need \
                     replica.wrap_sessions"
                );
            }
        }
        backing.store.put(key, record, keep).wait().await
    }

    /// Writes the end of a session to its record, if this replica is its home.
    async fn write_end(&self, backing: &Backing, id: &SessionId) -> Result<Saved, Error> {
        for _ in 0..ATTEMPTS_MAX {
            match read(backing, id).await? {
                InStore::Nothing | InStore::Ended | InStore::Unreadable => return Ok(Saved::Ended),
                InStore::Record(_, stored) if stored.home != self.here => return Ok(Saved::Displaced(stored.home)),
                InStore::Record(before, _) => {
                    if backing.store.replace(&key(id), &before, ENDED, KEEP_ENDED).wait().await? {
                        return Ok(Saved::Ended);
                    }
                }
            }
        }
        Ok(Saved::Failed)
    }

    /// Forgets the record of a session that has ended or has another home, and ends its standalone
    /// streams here. Their clients reconnect, and are sent to the home.
    fn leave_session(&self, id: &SessionId, handshake: &Arc<Handshake>) {
        info!("a session has another home now, or is over");
        self.sessions.handshakes().leave(id, handshake);
        for stream in self.sessions.standalone_of(id, &handshake.principals()) {
            stream.expire(ErrorCode::Abandoned);
        }
    }

    /// Writes the changes of records to the store, until dropped.
    pub async fn keep_saved(self: &Arc<Self>) {
        if self.backing.is_none() {
            return std::future::pending().await;
        }
        let changes = self.sessions.handshakes().changes();
        let mut writes = JoinSet::new();
        loop {
            let write = Write { homes: self.clone(), id: Some(changes.next().await) };
            let turn = self.writes.clone().acquire_owned().await;
            writes.spawn(async move {
                let _turn = turn;
                write.run().await;
            });
            while writes.try_join_next().is_some() {}
        }
    }

    /// Writes the changes that are not in the store yet, and waits for all pending writes, before
    /// this process ends. Gives up at the first failure.
    pub async fn flush(&self) {
        let changes = self.sessions.handshakes().changes();
        loop {
            while let Some(id) = changes.take() {
                if self.save(&id).await == Saved::Failed {
                    return;
                }
            }
            drop(self.writes.acquire_many(WRITES_MAX).await);
            if changes.is_empty() {
                return;
            }
        }
    }
}

/// The write of a change. Dropped before its end, it leaves the change to be written.
struct Write {
    homes: Arc<Homes>,
    /// `None` once the change is written.
    id: Option<SessionId>,
}

impl Write {
    async fn run(mut self) {
        let Some(id) = &self.id else { return };
        if self.homes.save(id).await == Saved::Failed {
            clock::sleep(STORE_RETRY_PAUSE).await;
        } else {
            self.id = None;
        }
    }
}

impl Drop for Write {
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            self.homes.sessions.handshakes().changes().push(id);
        }
    }
}

/// Contents of a store for one session.
enum InStore {
    Nothing,
    /// The session has ended.
    Ended,
    /// A record of a later version. It is left alone.
    Unreadable,
    /// A record, with its bytes.
    Record(Bytes, Box<StoredHandshake>),
}

async fn read(backing: &Backing, id: &SessionId) -> Result<InStore, Error> {
    let Some(bytes) = backing.store.get(&key(id)).wait().await? else { return Ok(InStore::Nothing) };
    if bytes == ENDED {
        return Ok(InStore::Ended);
    }
    match StoredHandshake::decode(&bytes) {
        Ok(stored) => Ok(InStore::Record(bytes, Box::new(stored))),
        Err(error) => {
            // The text of the error may quote the record.
            warn!(line = error.line(), column = error.column(), "the record of a handshake cannot be read");
            Ok(InStore::Unreadable)
        }
    }
}

fn always_changed() -> Error {
    Error::Unavailable("the record of a session changes all the time".into())
}

fn key(id: &SessionId) -> Vec<u8> {
    [b"handshake\0".as_slice(), id.as_str().as_bytes()].concat()
}
