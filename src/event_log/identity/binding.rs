//! Ownership of streams.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::event_log::identity::principal::{Principal, Subject};
use crate::protocol::headers::SessionId;

/// Owner of a stream: only the same principal, in the same session if there is one, may have it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Binding {
    /// Principal that opened the stream.
    pub principal: Principal,
    /// Subject that the principal's token claimed. Grants nothing by itself.
    pub subject: Option<Subject>,
    /// Session of the stream, or `None` without one.
    pub session: Option<SessionId>,
}

impl Binding {
    /// Returns the id of the session, or an empty string without one.
    pub fn session_text(&self) -> &str {
        self.session.as_ref().map_or("", |session| session.as_str())
    }

    /// Returns a hash of the session id for logs, which opens nothing, or `None` without a session.
    pub fn session_hash(&self) -> Option<String> {
        let hash = Sha256::digest(self.session.as_ref()?.as_str());
        Some(hash.iter().take(4).map(|byte| format!("{byte:02x}")).collect())
    }

    /// Returns whether `caller` may have a stream of this owner: the same principal, and the same session if there is
    /// one.
    pub fn admits(&self, caller: &Binding) -> bool {
        self.principal == caller.principal && self.has_session_of(caller)
    }

    /// Returns whether the stream would be the caller's if the caller's token were genuine: another principal claimed
    /// the same subject.
    pub fn is_claimed_by(&self, caller: &Binding) -> bool {
        self.has_subject_of(caller) && self.principal != caller.principal && self.has_session_of(caller)
    }

    /// Returns whether both claim the same subject.
    pub fn has_subject_of(&self, caller: &Binding) -> bool {
        self.subject.is_some() && self.subject == caller.subject
    }

    fn has_session_of(&self, caller: &Binding) -> bool {
        self.session.is_none() || self.session == caller.session
    }
}
