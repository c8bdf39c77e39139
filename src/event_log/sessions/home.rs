//! Home of a session as its record here knows it, so that not each request needs the store.

use crate::event_log::backing::HomeTerm;
use crate::event_log::sessions::session::{KnownHome, Session};
use crate::protocol::ids::Owner;

impl Session {
    /// Returns whether this replica was the home of the session at the last read of the store.
    pub fn has_home_here(&self) -> bool {
        matches!(self.lock().home, KnownHome::Here { .. })
    }

    /// Does as [`Self::has_home_here`], for a principal that the server has accepted in the
    /// session.
    pub fn is_accepted_here(&self) -> bool {
        matches!(self.lock().home, KnownHome::Here { is_accepted: true, .. })
    }

    /// Returns the other replica that was the home of the session at the last read of the store.
    pub fn remote_home(&self) -> Option<Owner> {
        match self.lock().home {
            KnownHome::Elsewhere(owner) => Some(owner),
            KnownHome::Unasked | KnownHome::Here { .. } | KnownHome::Unknown(_) => None,
        }
    }

    /// Returns whether the home was read in `term`.
    pub(in crate::event_log) fn knows_home(&self, term: Option<HomeTerm>) -> bool {
        match self.lock().home {
            KnownHome::Here { term: of, .. } | KnownHome::Unknown(of) => term.is_some() && of == term,
            KnownHome::Unasked | KnownHome::Elsewhere(_) => false,
        }
    }

    /// Notes that this replica is the home in `term`, and whether the server has accepted the
    /// principal of the record.
    pub fn note_home_here(&self, term: Option<HomeTerm>, is_accepted: bool) {
        self.lock().home = KnownHome::Here { term, is_accepted };
    }

    /// Notes that the store names another replica as the home.
    pub fn note_home_elsewhere(&self, owner: Owner) {
        self.lock().home = KnownHome::Elsewhere(owner);
    }

    /// Notes that the server here decides whether it has the session, in `term`.
    pub fn note_home_unknown(&self, term: Option<HomeTerm>) {
        self.lock().home = KnownHome::Unknown(term);
    }
}
