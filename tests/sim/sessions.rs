//! The sessions of the server: their names, what it has asked in each, and which it has forgotten.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::Value;

use super::model::Key;

/// Sessions of all clients.
#[derive(Default)]
pub(crate) struct Sessions {
    living: BTreeMap<String, Session>,
    /// Number of sessions that were opened, by client.
    opened: BTreeMap<usize, usize>,
    /// Clients that have sent `notifications/initialized`.
    initialized: BTreeSet<usize>,
    /// Name that each client knows.
    names: BTreeMap<usize, String>,
    /// Clients that have ended their sessions.
    ended: BTreeSet<usize>,
    /// Number of delays so far.
    delays: usize,
}

#[derive(Default)]
struct Session {
    client: usize,
    is_initialized: bool,
    /// Questions, whose IDs are their places.
    asked: Vec<(Key, String)>,
}

/// Returns the client of a session, or `None` if no session of the server has this name.
pub(crate) fn client_of(name: &str) -> Option<usize> {
    name.strip_prefix('s')?.split_once('.')?.0.parse().ok()
}

impl Sessions {
    /// Opens a session of a client, and returns its name.
    pub(crate) fn open(&mut self, client: usize) -> String {
        let opened = self.opened.entry(client).or_default();
        *opened += 1;
        let name = format!("s{client}.{opened}");
        self.living.insert(name.clone(), Session { client, ..Session::default() });
        name
    }

    /// Returns how many sessions were opened for a client.
    pub(crate) fn opened(&self, client: usize) -> usize {
        self.opened.get(&client).copied().unwrap_or(0)
    }

    /// Ends a session.
    pub(crate) fn end(&mut self, name: &str) {
        self.living.remove(name);
    }

    pub(crate) fn is_living(&self, name: &str) -> bool {
        self.living.contains_key(name)
    }

    /// Returns true if the session is not the newest of its client.
    pub(crate) fn is_older(&self, name: &str) -> bool {
        client_of(name).is_some_and(|client| name != format!("s{client}.{}", self.opened(client)))
    }

    /// Notes that a client has sent `notifications/initialized`.
    pub(crate) fn note_initialized(&mut self, client: usize) {
        self.initialized.insert(client);
    }

    /// Takes `notifications/initialized`.
    pub(crate) fn initialize(&mut self, name: &str) {
        if let Some(session) = self.living.get_mut(name) {
            session.is_initialized = true;
        }
    }

    /// Returns true for a session that the proxy has opened, as long as its handshake lacks what
    /// the client's own had.
    pub(crate) fn is_premature(&self, name: &str) -> bool {
        let is_lacking = |session: &Session| {
            let is_own = self.names.get(&session.client).is_none_or(|shown| shown == name);
            !session.is_initialized && !is_own && self.initialized.contains(&session.client)
        };
        self.living.get(name).is_some_and(is_lacking)
    }

    /// Asks a question in a session, and returns its ID: the first of each session is 0.
    pub(crate) fn ask(&mut self, name: &str, key: Key, ask: &str) -> usize {
        let asked = &mut self.living.entry(name.to_owned()).or_default().asked;
        asked.push((key, ask.to_owned()));
        asked.len() - 1
    }

    /// Returns the question with this ID in a session.
    pub(crate) fn asked(&self, name: &str, id: &Value) -> Option<(Key, String)> {
        self.living.get(name)?.asked.get(usize::try_from(id.as_u64()?).ok()?).cloned()
    }

    /// Forgets all sessions. Returns their questions, and whether a handshake of the proxy is cut
    /// short.
    pub(crate) fn forget_all(&mut self) -> (Vec<String>, bool) {
        let is_cut_short = self.living.keys().any(|name| self.is_premature(name));
        let forgotten = std::mem::take(&mut self.living);
        (forgotten.into_values().flat_map(|session| session.asked).map(|(_, ask)| ask).collect(), is_cut_short)
    }

    /// Returns whether the proxy has opened a session for a client, and has not completed its
    /// handshake.
    pub(crate) fn is_being_opened_again(&self, client: usize) -> bool {
        self.living.keys().any(|name| client_of(name) == Some(client) && self.is_premature(name))
    }

    /// Notes that a client knows its session to be over.
    pub(crate) fn note_end(&mut self, client: usize) {
        self.ended.insert(client);
    }

    /// Returns the living sessions of clients that have ended theirs. One that a later session has
    /// replaced does not count: it may live where the server refused a request in known words and
    /// its answer to the question was lost.
    pub(crate) fn outliving(&self) -> Vec<String> {
        let is_ended = |session: &&String| client_of(session).is_some_and(|client| self.ended.contains(&client));
        self.living.keys().filter(|session| is_ended(session) && !self.is_older(session)).cloned().collect()
    }

    /// Notes the name that a client was given.
    pub(crate) fn show(&mut self, client: usize, name: &str) {
        self.names.insert(client, name.to_owned());
    }

    /// Returns the name that a client was given.
    pub(crate) fn shown(&self, client: usize) -> Option<String> {
        self.names.get(&client).cloned()
    }

    /// Returns the next of these delays.
    pub(crate) fn next_delay(&mut self, delays: &[Duration]) -> Duration {
        self.delays += 1;
        delays[self.delays % delays.len()]
    }
}
