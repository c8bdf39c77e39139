//! Ownership of streams.

use std::ops::Deref;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::principal::{Principal, Subject};
use mcp_resume_protocol::headers::SessionId;

/// Hash of a session id for logs, in hexadecimal digits.
#[derive(Clone, Copy, Debug)]
pub struct SessionHash([u8; 8]);

impl SessionHash {
    /// Returns the hash of a session id.
    pub fn of(session: &SessionId) -> Self {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let hash = Sha256::digest(session.as_str());
        let digit = |at: usize| if at.is_multiple_of(2) { hash[at / 2] >> 4 } else { hash[at / 2] & 15 };
        Self(std::array::from_fn(|at| DIGITS[usize::from(digit(at))]))
    }
}

impl Deref for SessionHash {
    type Target = str;

    fn deref(&self) -> &str {
        str::from_utf8(&self.0).unwrap_or_default()
    }
}

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

    /// Returns true if a session or a credential distinguishes the caller from others.
    pub fn is_distinct(&self) -> bool {
        self.session.is_some() || !self.principal.is_anonymous()
    }

    /// Returns a hash of the session id for logs, which opens nothing, or `None` without a session.
    pub fn session_hash(&self) -> Option<SessionHash> {
        Some(SessionHash::of(self.session.as_ref()?))
    }

    /// Returns whether `caller` may have a stream of this owner: the same principal, and the same
    /// session if there is one.
    pub fn admits(&self, caller: &Binding) -> bool {
        self.principal == caller.principal && self.has_session_of(caller)
    }

    /// Returns whether the stream would be the caller's if the caller's token were genuine: another
    /// principal claimed the same subject.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_logged_by_the_beginning_of_its_hash() {
        let hash = |session: Option<&str>| {
            let session = session.and_then(SessionId::parse);
            Binding { principal: Principal::Anonymous, subject: None, session }.session_hash()
        };
        // The beginning of the SHA-256 of "abc".
        assert_eq!(hash(Some("abc")).as_deref(), Some("ba7816bf"));
        assert!(hash(None).is_none());
    }
}
