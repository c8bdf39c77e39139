//! Sessions in the store: what `initialize` said is known to every process that has it, and after a restart.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tracing::{debug, warn};

use super::sessions::{Opened, Session};
use super::{Binding, EventLog, Principal};
use crate::protocol::headers::SessionId;
use crate::store::Shared;

/// The record of a session stays so long after the session was last opened or looked up elsewhere. A client whose record is gone is served
/// as one whose `initialize` did not pass here.
const KEEP: Duration = Duration::from_secs(24 * 3600);

impl EventLog {
    /// Whether anything outlives this process.
    pub fn has_store(&self) -> bool {
        self.backing.is_some()
    }

    /// The store, where other replicas use it as well.
    pub fn shared(&self) -> Option<Arc<dyn Shared>> {
        self.backing.as_ref()?.shared.clone()
    }

    /// Waits until there is a new reader here, of any stream.
    pub async fn has_new_reader(&self) {
        match &self.backing {
            Some(backing) => backing.readers.notified().await,
            None => std::future::pending().await,
        }
    }

    /// The other replicas have heard of this one, which counts as living for them until that time of [`crate::clock::boot`].
    pub fn note_heard(&self, until: Duration) {
        if let Some(backing) = &self.backing {
            let until = u64::try_from(until.as_millis()).unwrap_or(u64::MAX);
            backing.heard_until.store(until, Ordering::Relaxed);
        }
    }

    /// Writes down what was agreed on in a session that has just been opened.
    pub async fn save_session(&self, id: &SessionId, principal: &Principal, opened: &Opened) {
        let Some(backing) = &self.backing else { return };
        self.join_session(id).await;
        let record = serde_json::to_vec(opened).expect("a record has no maps with keys that are no text");
        if let Err(error) = backing.store.put(&key(id, principal), &record, KEEP).wait().await {
            warn!(%error, "the store could not take the record of a session: it is known here alone");
        }
    }

    /// From now on other replicas find this one by the session: something of it lives here.
    pub async fn join_session(&self, id: &SessionId) {
        let shared = self.backing.as_ref().and_then(|backing| backing.shared.as_ref());
        if let Some(shared) = shared
            && let Err(error) = shared.join(&session_group(id), KEEP).wait().await
        {
            warn!(%error, "the store could not be told where a session lives");
        }
    }

    /// The session, if another process has written it down. Where none has, that is known from now on; where the store cannot be asked,
    /// it is as if it had nothing, this time.
    pub async fn recall_session(&self, id: &SessionId, principal: &Principal) -> Option<Arc<Session>> {
        let backing = self.backing.as_ref()?;
        match backing.store.get(&key(id, principal)).wait().await {
            Ok(Some(record)) => match serde_json::from_slice(&record) {
                Ok(opened) => Some(self.sessions.restore(id, principal, opened)),
                Err(error) => {
                    warn!(%error, "the record of a session cannot be read");
                    None
                }
            },
            Ok(None) => {
                self.sessions.find(id, principal).iter().for_each(|session| session.note_looked_up());
                None
            }
            Err(error) => {
                debug!(%error, "the store could not be asked about a session");
                None
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
        self.sessions.remove(id, principal)
    }
}

/// What a session is called where replicas say what they have to do with.
pub fn session_group(id: &SessionId) -> Vec<u8> {
    [b"session\0", id.as_str().as_bytes()].concat()
}

fn key(id: &SessionId, principal: &Principal) -> Vec<u8> {
    let whose: &[u8] = match principal {
        Principal::Anonymous => &[],
        Principal::Known(known) => known,
    };
    [b"session\0".as_slice(), whose, b"\0", id.as_str().as_bytes()].concat()
}
