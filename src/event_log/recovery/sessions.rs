//! Sessions in the store: what `initialize` said is known to every process that has it, and after a restart.

use std::sync::Arc;
use std::time::Duration;

use tracing::{debug, warn};

use crate::event_log::identity::ownership::Binding;
use crate::event_log::identity::principal::Principal;
use crate::event_log::log::EventLog;
use crate::event_log::sessions::{Opened, Session};
use crate::protocol::headers::SessionId;
use crate::store::Error;

/// The record of a session stays so long after the session was last opened or looked up elsewhere. A client whose record is gone is served
/// as one whose `initialize` did not pass here.
const KEEP: Duration = Duration::from_secs(24 * 3600);
/// This replica is found by a session that has ended for so long: what was sent before its end may arrive after it.
const KEEP_ENDED: Duration = Duration::from_secs(60);

impl EventLog {
    /// Waits until a new reader here may have displaced one at another replica, of any stream.
    pub async fn has_displaced_readers(&self) {
        match &self.backing {
            Some(backing) => backing.displacing.notified().await,
            None => std::future::pending().await,
        }
    }

    /// Writes down what was agreed on in a session that has just been opened. Where the store cannot be reached, the session is known here
    /// alone, or, with [`OnUnreachable::Refuse`], this waits until it can: another replica would serve the session as another one.
    pub async fn save_session(&self, id: &SessionId, principal: &Principal, opened: &Opened) {
        let Some(backing) = &self.backing else { return };
        self.join_session(id).await;
        let record = serde_json::to_vec(opened).expect("a record has no maps with keys that are no text");
        let key = key(id, principal);
        backing.retry_until_available(|| backing.store.put(&key, &record, KEEP), "take the record of a session").await;
    }

    /// From now on other replicas find this one by the session: something of it lives here. Without the store as
    /// [`EventLog::save_session`].
    pub async fn join_session(&self, id: &SessionId) {
        let Some(backing) = &self.backing else { return };
        if let Some(shared) = &backing.shared {
            let group = session_group(id);
            backing.retry_until_available(|| shared.join(&group, KEEP), "be told where a session lives").await;
        }
    }

    /// The session, if another process has written it down. Where none has, that is known from now on.
    ///
    /// # Errors
    ///
    /// The store cannot be asked, and nobody is to be served without it. Where they are ([`OnUnreachable::Degrade`]), it is as if the
    /// store had nothing, this time.
    pub async fn load_session(&self, id: &SessionId, principal: &Principal) -> Result<Option<Arc<Session>>, Error> {
        let Some(backing) = &self.backing else { return Ok(None) };
        match backing.store.get(&key(id, principal)).wait().await {
            Ok(Some(record)) => match serde_json::from_slice(&record) {
                Ok(opened) => Ok(Some(self.sessions.restore(id, principal, opened))),
                Err(error) => {
                    warn!(%error, "the record of a session cannot be read");
                    Ok(None)
                }
            },
            // Whoever opened it may be about to write it down again.
            Ok(None) if backing.is_recovering() => Ok(None),
            Ok(None) => {
                self.sessions.find(id, principal).iter().for_each(|session| session.note_looked_up());
                Ok(None)
            }
            Err(error) => {
                debug!(%error, "the store could not be asked about a session");
                if backing.should_wait(&error) { Err(error) } else { Ok(None) }
            }
        }
    }

    /// Forgets the session of `binding`, which has ended elsewhere.
    pub async fn forget_session_of(&self, binding: &Binding) {
        if let Some(id) = &binding.session {
            drop(self.forget_session(id, &binding.principal).await);
        }
    }

    /// Forgets a session everywhere and hands out its record, so that its streams can be ended.
    pub async fn forget_session(&self, id: &SessionId, principal: &Principal) -> Option<Arc<Session>> {
        if let Some(backing) = &self.backing
            && let Err(error) = backing.store.remove(&key(id, principal)).wait().await
        {
            warn!(%error, "the store could not forget a session");
        }
        let session = self.sessions.remove(id, principal);
        if let Some(session) = &session {
            self.leave_session(id, session).await;
        }
        session
    }

    /// The session has ended: other replicas need not find this one by it any more.
    pub async fn leave_session(&self, id: &SessionId, session: &Session) {
        let Some(shared) = self.shared().filter(|_| session.is_found_by()) else { return };
        if let Err(error) = shared.join(&session_group(id), KEEP_ENDED).wait().await {
            debug!(%error, "the store could not be told that a session has ended here");
        }
    }
}

/// What a session is called where replicas say what they have to do with.
pub fn session_group(id: &SessionId) -> Vec<u8> {
    [b"session\0", id.as_str().as_bytes()].concat()
}

fn key(id: &SessionId, principal: &Principal) -> Vec<u8> {
    let whose = principal.digest().map_or(&[][..], |digest| digest);
    [b"session\0".as_slice(), whose, b"\0", id.as_str().as_bytes()].concat()
}
