//! Who a stream belongs to.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::event_log::identity::principal::{Principal, Subject};
use crate::protocol::headers::SessionId;

/// Who a stream belongs to: only the same principal, and the same session where there is one, may have it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Binding {
    /// Who opened it.
    pub principal: Principal,
    /// Whom that principal's token claimed to speak for. Grants nothing by itself.
    pub subject: Option<Subject>,
    /// In which session.
    pub session: Option<SessionId>,
}

impl Binding {
    /// The session's name, empty without one.
    pub fn session_text(&self) -> &str {
        self.session.as_ref().map_or("", |session| session.as_str())
    }

    /// A word for the session in logs: the same for the same session, and no name that opens it. `None` without one.
    pub fn session_hash(&self) -> Option<String> {
        let hash = Sha256::digest(self.session.as_ref()?.as_str());
        Some(hash.iter().take(4).map(|byte| format!("{byte:02x}")).collect())
    }

    /// Whether `caller` may have what belongs to this: the same principal, in the same session where it belongs to one.
    pub fn admits(&self, caller: &Binding) -> bool {
        self.principal == caller.principal && self.has_session_of(caller)
    }

    /// Whether it would be the caller's if the caller's token is what it claims to be: another principal claimed the same.
    pub fn is_claimed_by(&self, caller: &Binding) -> bool {
        self.has_subject_of(caller) && self.principal != caller.principal && self.has_session_of(caller)
    }

    /// Whether both claim to speak for the same.
    pub fn has_subject_of(&self, caller: &Binding) -> bool {
        self.subject.is_some() && self.subject == caller.subject
    }

    fn has_session_of(&self, caller: &Binding) -> bool {
        self.session.is_none() || self.session == caller.session
    }
}
