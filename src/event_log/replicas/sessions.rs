//! Sessions in the store: the result of `initialize` is known to every process that shares it, and
//! after a restart.
//!
//! Owned here: the records of sessions in the store, and the groups of the replicas that are
//! registered for them. Invariant: while a session is known here, what the store holds of it from
//! this replica is renewed. Absent: the records of this process (`sessions/mod.rs`).

use std::sync::Arc;
use std::time::Duration;

use tracing::{debug, warn};

use crate::clock;
use crate::event_log::backing::Backing;
use crate::event_log::replicas::homes::{Homes, Saved};
use crate::event_log::sessions::registration::REGISTRATION;
use crate::event_log::sessions::{Opened, Session, Sessions};
use crate::identity::Binding;
use crate::identity::Principal;
use crate::protocol::headers::SessionId;
use crate::protocol::ids::Owner;
use crate::store::{Coordination, Error};

/// Time that this replica stays registered for a session after its end, because messages from
/// before the end may arrive late.
const KEEP_ENDED: Duration = Duration::from_secs(60);
/// Interval of the checks for registrations to renew.
const CHECK_EVERY: Duration = Duration::from_secs(60);

/// Records of sessions in the store, and the registrations of this replica for them.
pub struct StoredSessions {
    backing: Option<Arc<Backing>>,
    sessions: Arc<Sessions>,
    homes: Arc<Homes>,
}

impl StoredSessions {
    /// Creates the records of `sessions` in the store.
    pub(in crate::event_log) fn new(backing: Option<Arc<Backing>>, sessions: Arc<Sessions>, homes: Arc<Homes>) -> Self {
        Self { backing, sessions, homes }
    }

    fn coordination(&self) -> Option<&Arc<dyn Coordination>> {
        self.backing.as_ref()?.coordination.as_ref()
    }

    /// Stores a session that was opened here, before its client can use it at any replica.
    pub async fn save_opened(&self, id: &SessionId, principal: &Principal, opened: &Opened) {
        if self.backing.is_none() {
            return;
        }
        if let Some(session) = self.sessions.find(id, principal).filter(|session| session.is_home()) {
            self.register(id, &session).await;
        }
        let ((), saved) = tokio::join!(self.save(id, principal, opened), self.homes.save(id));
        if saved == Saved::Failed {
            self.sessions.handshakes().changes().push(id.clone());
        }
    }

    /// Returns the replicas that are registered for a session, in no order, also for a session that
    /// no replica has opened. The result includes dead replicas and this one.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn members(&self, id: &SessionId) -> Result<Vec<Owner>, Error> {
        let Some(coordination) = self.coordination() else { return Ok(Vec::new()) };
        // Both requests are sent before the wait for one.
        let [opened, unopened] = [true, false].map(|is_opened| coordination.members(&group(id, is_opened)));
        let mut members = opened.wait().await?;
        for member in unopened.wait().await? {
            if !members.contains(&member) {
                members.push(member);
            }
        }
        Ok(members)
    }

    /// Stores the result of a session's `initialize`. With an unreachable store, the session is
    /// known here alone. With [`OnUnreachable::Refuse`](crate::config::OnUnreachable::Refuse) this
    /// waits instead, because another replica would serve the session as an unknown one.
    async fn save(&self, id: &SessionId, principal: &Principal, opened: &Opened) {
        let Some(backing) = &self.backing else { return };
        let record = serde_json::to_vec(opened).expect("a record has no maps with keys that are no text");
        let (key, keep) = (key(id, principal), REGISTRATION);
        backing.retry_until_available(|| backing.store.put(&key, &record, keep), "take the record of a session").await;
    }

    /// Registers this replica for the session in the store, so that other replicas find it. An
    /// unreachable store is handled as in [`Self::save_opened`]. Returns whether the
    /// store has the registration.
    pub async fn register(&self, id: &SessionId, session: &Session) -> bool {
        let Some(backing) = &self.backing else { return false };
        let Some(coordination) = &backing.coordination else { return false };
        let (term, began) = (backing.term(), clock::now());
        let (group, keep) = (group(id, session.opened().is_some()), session.registration_time());
        let join = || coordination.join(&group, keep);
        let is_registered = backing.retry_until_available(join, "record the replica of a session").await;
        if is_registered {
            session.note_registered(term, began);
        }
        is_registered
    }

    /// Writes to the store again what it holds of the session from this replica, unless the session
    /// has ended. A session that ends meanwhile leaves no record, and a session that is opened
    /// again has its new record. Returns false if the store refuses the write.
    pub(in crate::event_log) async fn rewrite(&self, id: &SessionId, session: &Arc<Session>) -> bool {
        let mut session = session.clone();
        if !self.sessions.has(id, &session) || session.has_ended() {
            return true;
        }
        loop {
            let is_registered = self.register(id, &session).await;
            if session.is_home()
                && let Some(opened) = session.opened()
            {
                self.save(id, session.principal(), opened).await;
            }
            if self.sessions.has(id, &session) && !session.has_ended() {
                return is_registered;
            }
            match self
                .sessions
                .find(id, session.principal())
                .filter(|present| !present.has_ended() && present.is_home())
            {
                // The record that was written is older.
                Some(present) => session = present,
                None if session.has_ended() => {
                    self.remove_from_store(id, &session).await;
                    return true;
                }
                // The record was evicted, and the session continues.
                None => return is_registered,
            }
        }
    }

    /// Renews the registrations of this replica and the records of the sessions that it opened,
    /// until dropped. They are renewed at half of their lifetimes while the sessions are known
    /// here, and at once after [`Sessions::note_renewal_due`]. One is renewed at a time, also if
    /// the lease is lost and acquired meanwhile. For one task.
    pub async fn keep_registrations(&self) {
        if self.coordination().is_none() {
            return std::future::pending().await;
        }
        loop {
            tokio::select! {
                biased;
                () = self.sessions.renewal_due() => {}
                () = clock::sleep(CHECK_EVERY) => {}
            }
            self.rewrite_due().await;
        }
    }

    /// Renews the registrations that are due. Begins again in each new term, since registrations of
    /// an earlier term do not count.
    async fn rewrite_due(&self) {
        let term = || self.backing.as_ref().and_then(|backing| backing.term());
        while let Some(present) = term() {
            let mut due = self.sessions.due_registrations(present).into_iter();
            loop {
                let Some((id, session)) = due.next() else { return };
                // If one cannot be written, neither can the others. They stay due.
                if !self.rewrite(&id, &session).await {
                    return;
                }
                if term() != Some(present) {
                    break;
                }
            }
        }
    }

    /// Loads the session from the store. Returns `None` if the store has no record, and remembers
    /// that.
    ///
    /// # Errors
    /// If the store fails and no request may be served without it. With
    /// [`OnUnreachable::Degrade`](crate::config::OnUnreachable::Degrade), an unreachable store
    /// counts as a store without the record, this time.
    pub async fn load(&self, id: &SessionId, principal: &Principal) -> Result<Option<Arc<Session>>, Error> {
        let Some(backing) = &self.backing else { return Ok(None) };
        match backing.store.get(&key(id, principal)).wait().await {
            Ok(Some(record)) => match serde_json::from_slice(&record) {
                Ok(opened) => Ok(Some(self.sessions.restore(id, principal, opened))),
                Err(error) => {
                    warn!(%error, "the record of a session cannot be read");
                    Ok(None)
                }
            },
            // The owner of the session may be about to rewrite the record.
            Ok(None) if backing.is_recovering() => Ok(None),
            Ok(None) => {
                if let Some(session) = self.sessions.find(id, principal) {
                    session.note_looked_up();
                }
                Ok(None)
            }
            Err(error) => {
                debug!(%error, "the store could not be asked about a session");
                if backing.should_wait(&error) { Err(error) } else { Ok(None) }
            }
        }
    }

    /// Forgets the session of `binding`, which has ended at another replica.
    pub async fn forget_of(&self, binding: &Binding) {
        if let Some(id) = &binding.session {
            self.forget(id, &binding.principal).await;
        }
    }

    /// Removes the record of a session from the store and here, and lets the registration of this
    /// replica expire. Returns the local record, so that its streams can be ended. Other replicas
    /// keep theirs: they are notified by the ingress.
    pub async fn forget(&self, id: &SessionId, principal: &Principal) -> Option<Arc<Session>> {
        // A renewal that is under way writes nothing from here on, or removes what it wrote.
        if let Some(session) = self.sessions.find(id, principal) {
            session.end();
        }
        self.remove_record(id, principal).await;
        let session = self.sessions.remove(id, principal);
        if let Some(session) = &session {
            self.unregister(id, session).await;
        }
        session
    }

    async fn remove_from_store(&self, id: &SessionId, session: &Session) {
        if session.is_home() {
            self.remove_record(id, session.principal()).await;
        }
        self.unregister(id, session).await;
    }

    async fn remove_record(&self, id: &SessionId, principal: &Principal) {
        if let Some(backing) = &self.backing
            && let Err(error) = backing.store.remove(&key(id, principal)).wait().await
        {
            warn!(%error, "the store could not forget a session");
        }
    }

    /// Lets the registration of this replica for a session that has ended expire soon.
    pub async fn unregister(&self, id: &SessionId, session: &Session) {
        if !session.is_registered() {
            return;
        }
        let Some(coordination) = self.coordination() else { return };
        let group = group(id, session.opened().is_some());
        if let Err(error) = coordination.join(&group, KEEP_ENDED).wait().await {
            debug!(%error, "the end of a session could not be noted in the store");
        }
    }
}

/// Returns the name of the group of replicas that are registered for a session. A session that no
/// replica is known to have opened has a group of its own. A registration there is shorter. It
/// would replace the registration of the same replica for the opened session, which its client may
/// use with another token.
fn group(id: &SessionId, is_opened: bool) -> Vec<u8> {
    let kind: &[u8] = if is_opened { b"session\0" } else { b"unopened\0" };
    [kind, id.as_str().as_bytes()].concat()
}

fn key(id: &SessionId, principal: &Principal) -> Vec<u8> {
    let whose = principal.digest().map_or(&[][..], |digest| digest);
    [b"session\0".as_slice(), whose, b"\0", id.as_str().as_bytes()].concat()
}
