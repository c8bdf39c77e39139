//! Cookies of sessions, for a load balancer with sticky cookies before the server.
//!
//! Owned here: the cookies of each session and caller, from the responses of the endpoint to its
//! later requests. A request with other credentials has no part in them. The session's record gets
//! the cookies of one caller, for a store. Absent: names and limits of the cookies
//! (`protocol::session_cookies`), and the records (`event_log`). After a refresh of its token a
//! caller gets new ones from the balancer.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, OnceLock};

use http::header::COOKIE;
use http::{HeaderMap, HeaderValue, Method, Response};
use sha2::{Digest, Sha256};

use super::request::Template;
use super::response_body::ResponseBody;
use crate::config;
use crate::event_log::{Handshake, KeptCookies};
use crate::protocol::headers::SessionId;
use crate::protocol::session_cookies::{Cookies, SetCookie, take};
use crate::sync;

/// Most bytes of all sessions together, with [`OVERHEAD`] for each. The least recently used go
/// first.
const MAX_BYTES: usize = 16 * 1024 * 1024;
/// Bytes of a session beside its cookies.
const OVERHEAD: usize = 256;

/// A session and its caller.
type Key = [u8; 32];

/// Returns the record of a session by the server's name for it, or `None` without a record.
pub(in crate::upstream) type RecordOf = Box<dyn Fn(&SessionId) -> Option<Arc<Handshake>> + Send + Sync>;

/// Cookies of all sessions.
pub(in crate::upstream) struct SessionCookies {
    config: config::SessionCookies,
    table: Mutex<Table>,
    /// Records of the sessions. Not set if sessions are not opened again.
    record_of: OnceLock<RecordOf>,
}

#[derive(Debug, Default)]
struct Table {
    sessions: HashMap<Key, Entry>,
    /// Sessions by the number of their last use.
    by_use: BTreeMap<u64, Key>,
    uses: u64,
    bytes: usize,
}

#[derive(Debug)]
struct Entry {
    cookies: Cookies,
    last_use: u64,
    /// True if the record of the session has the cookies. A new session has its record only after
    /// its first response.
    is_recorded: bool,
}

impl SessionCookies {
    /// Creates an empty table. Returns `None` if no cookie is configured.
    pub(super) fn new(config: &config::SessionCookies) -> Option<Arc<Self>> {
        if config.names.is_empty() {
            return None;
        }
        Some(Arc::new(Self { config: config.clone(), table: Mutex::default(), record_of: OnceLock::new() }))
    }

    /// Keeps cookies in these records as well. To be called once, before the first request.
    pub(in crate::upstream) fn keep_in(&self, record_of: RecordOf) {
        let _ = self.record_of.set(record_of);
    }

    /// Returns the request with the cookies of its session, or `None` if it has none to add.
    pub(super) fn added_to(&self, template: &Template) -> Option<Template> {
        let (session, key) = self.key_of(template)?;
        let is_recorded = sync::lock(&self.table).is_recorded(&key);
        match is_recorded {
            Some(true) => {}
            Some(false) => self.record(&session, key),
            None => self.recall(&session, key),
        }
        // A client may send several lines, and the server gets one (RFC 6265, section 5.4).
        let own = template.lines().to_map();
        let own: Vec<&[u8]> = own.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
        let cookie = sync::lock(&self.table).header(&key, Some(&own.join(&b"; "[..])))?;
        Some(template.clone().with(COOKIE, cookie))
    }

    /// Puts the cookies of a session into its record, if it has one.
    fn record(&self, session: &SessionId, key: Key) {
        let Some(record) = self.record_of(session) else { return };
        let text = sync::lock(&self.table).recorded_text(&key);
        if let Some(text) = text {
            record.note_cookies(KeptCookies { digest: key, text: text.into() });
        }
    }

    /// Takes the cookies of a session from its record, if that has any of this caller.
    fn recall(&self, session: &SessionId, key: Key) {
        let kept = self.record_of(session).and_then(|record| record.cookies());
        if let Some(kept) = kept.filter(|kept| kept.digest == key) {
            sync::lock(&self.table).restore(key, Cookies::from_text(&kept.text));
        }
    }

    fn record_of(&self, session: &SessionId) -> Option<Arc<Handshake>> {
        self.record_of.get().and_then(|record_of| record_of(session))
    }

    /// Takes the cookies out of the response to a request, and keeps them for its session.
    pub(super) fn take_from(&self, response: &mut Response<ResponseBody>, template: &Template) {
        let found = self.key_of(template);
        let changes = take(&self.config.names, response.headers_mut());
        if *template.method() == Method::DELETE && response.status().is_success() {
            if let Some((_, key)) = found {
                sync::lock(&self.table).remove(&key);
            }
        } else if !changes.is_empty()
            && let Some((session, key)) = found.or_else(|| self.opened(response.headers(), template))
        {
            let has_cookies = sync::lock(&self.table).apply(key, changes);
            if has_cookies {
                self.record(&session, key);
            } else if let Some(record) = self.record_of(&session) {
                // The response has ended the last cookie.
                record.note_cookies_end(&key);
            }
        }
    }

    /// Returns the session that a request names, by the server's name, with its key.
    fn key_of(&self, template: &Template) -> Option<(SessionId, Key)> {
        let session = SessionId::parse(std::str::from_utf8(template.session_name()?).ok()?)?;
        let key = self.key(&session, template);
        Some((session, key))
    }

    /// Returns a session that a response opens, with its key.
    fn opened(&self, response: &HeaderMap, template: &Template) -> Option<(SessionId, Key)> {
        let session = SessionId::from_headers(response)?;
        let key = self.key(&session, template);
        Some((session, key))
    }

    fn key(&self, session: &SessionId, template: &Template) -> Key {
        let mut hash = Sha256::new();
        let mut add = |part: &[u8]| {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        };
        add(session.as_str().as_bytes());
        for name in &self.config.credentials {
            add(template.lines().get(name).unwrap_or_default());
        }
        hash.finalize().into()
    }
}

impl Table {
    fn header(&mut self, key: &Key, own: Option<&[u8]>) -> Option<http::HeaderValue> {
        self.uses += 1;
        let entry = self.sessions.get_mut(key)?;
        self.by_use.remove(&entry.last_use);
        entry.last_use = self.uses;
        self.by_use.insert(self.uses, *key);
        entry.cookies.header(own)
    }

    /// Returns whether the record of a session has its cookies, or `None` without cookies.
    fn is_recorded(&self, key: &Key) -> Option<bool> {
        self.sessions.get(key).map(|entry| entry.is_recorded)
    }

    /// Returns the cookies of a session for its record, and notes that the record has them.
    fn recorded_text(&mut self, key: &Key) -> Option<String> {
        let entry = self.sessions.get_mut(key)?;
        entry.is_recorded = true;
        entry.cookies.to_text()
    }

    /// Puts the cookies of a record into the table, unless a response was faster.
    fn restore(&mut self, key: Key, cookies: Cookies) {
        if !self.sessions.contains_key(&key) {
            self.put(key, cookies, true);
        }
    }

    /// Applies the changes of a response. Returns false if the session has no cookie then.
    fn apply(&mut self, key: Key, changes: Vec<SetCookie>) -> bool {
        let mut cookies = self.remove(&key).unwrap_or_default();
        cookies.apply(changes);
        self.put(key, cookies, false)
    }

    /// Puts cookies into the table. Returns false without a cookie.
    fn put(&mut self, key: Key, cookies: Cookies, is_recorded: bool) -> bool {
        if cookies.is_empty() {
            return false;
        }
        self.uses += 1;
        self.bytes += cookies.bytes() + OVERHEAD;
        self.by_use.insert(self.uses, key);
        self.sessions.insert(key, Entry { cookies, last_use: self.uses, is_recorded });
        while self.bytes > MAX_BYTES
            && let Some((_, oldest)) = self.by_use.first_key_value()
        {
            let oldest = *oldest;
            self.remove(&oldest);
        }
        true
    }

    fn remove(&mut self, key: &Key) -> Option<Cookies> {
        let entry = self.sessions.remove(key)?;
        self.by_use.remove(&entry.last_use);
        self.bytes -= entry.cookies.bytes() + OVERHEAD;
        Some(entry.cookies)
    }
}

#[cfg(test)]
mod tests {
    use http::header::SET_COOKIE;

    use super::*;

    fn set(value: &str) -> Vec<SetCookie> {
        let headers = [(SET_COOKIE, HeaderValue::from_str(value).unwrap())];
        take(&["S".parse().unwrap()], &mut HeaderMap::from_iter(headers))
    }

    #[test]
    fn the_session_that_is_unused_for_longest_makes_room() {
        let mut table = Table::default();
        let key = |n: usize| std::array::from_fn(|at| n.to_be_bytes().get(at).copied().unwrap_or_default());
        let value = format!("S={}", "x".repeat(3000));
        for n in 0..2 * MAX_BYTES / 3000 {
            table.apply(key(n), set(&value));
            assert!(table.bytes <= MAX_BYTES && table.header(&key(0), None).is_some(), "{n}");
        }
        assert!(table.header(&key(1), None).is_none() && table.sessions.len() == table.by_use.len());
        let keys: Vec<Key> = table.sessions.keys().copied().collect();
        for key in keys {
            table.apply(key, set("S=; Max-Age=0"));
        }
        assert_eq!((table.bytes, table.by_use.len(), table.sessions.len()), (0, 0, 0));
    }
}
