//! Cookies of sessions, for a load balancer with sticky cookies before the server.
//!
//! Owned here: the cookies of each session and caller, from the responses of the endpoint to its
//! later requests. A request with other credentials has no part in them. Absent: names and limits
//! of the cookies (`protocol::session_cookies`). After a refresh of its token a caller gets new
//! ones from the balancer.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use http::header::COOKIE;
use http::{HeaderMap, Method, Response};
use sha2::{Digest, Sha256};

use super::request::Template;
use super::response_body::ResponseBody;
use crate::config;
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

/// Cookies of all sessions.
#[derive(Debug)]
pub(super) struct SessionCookies {
    config: config::SessionCookies,
    table: Mutex<Table>,
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
}

impl SessionCookies {
    /// Creates an empty table. Returns `None` if no cookie is configured.
    pub(super) fn new(config: &config::SessionCookies) -> Option<Arc<Self>> {
        if config.names.is_empty() {
            return None;
        }
        Some(Arc::new(Self { config: config.clone(), table: Mutex::default() }))
    }

    /// Returns the request with the cookies of its session, or `None` if it has none to add.
    pub(super) fn added_to(&self, template: &Template) -> Option<Template> {
        let key = self.key_of(template)?;
        let cookie = sync::lock(&self.table).header(&key, template.lines().get(&COOKIE))?;
        Some(template.clone().with(COOKIE, cookie))
    }

    /// Takes the cookies out of the response to a request, and keeps them for its session.
    pub(super) fn take_from(&self, response: &mut Response<ResponseBody>, template: &Template) {
        let key = self.key_of(template);
        let changes = take(&self.config.names, response.headers_mut());
        if *template.method() == Method::DELETE && response.status().is_success() {
            if let Some(key) = key {
                sync::lock(&self.table).remove(&key);
            }
        } else if !changes.is_empty()
            && let Some(key) = key.or_else(|| self.opened(response.headers(), template))
        {
            sync::lock(&self.table).apply(key, changes);
        }
    }

    /// Returns the key of the session that a request names.
    fn key_of(&self, template: &Template) -> Option<Key> {
        let session = std::str::from_utf8(template.session_name()?).ok()?;
        Some(self.key(session, template))
    }

    /// Returns the key of a session that a response opens.
    fn opened(&self, response: &HeaderMap, template: &Template) -> Option<Key> {
        SessionId::from_headers(response).map(|session| self.key(session.as_str(), template))
    }

    fn key(&self, session: &str, template: &Template) -> Key {
        let mut hash = Sha256::new();
        let mut add = |part: &[u8]| {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        };
        add(session.as_bytes());
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

    fn apply(&mut self, key: Key, changes: Vec<SetCookie>) {
        let mut cookies = self.remove(&key).unwrap_or_default();
        cookies.apply(changes);
        if cookies.is_empty() {
            return;
        }
        self.uses += 1;
        self.bytes += cookies.bytes() + OVERHEAD;
        self.by_use.insert(self.uses, key);
        self.sessions.insert(key, Entry { cookies, last_use: self.uses });
        while self.bytes > MAX_BYTES
            && let Some((_, oldest)) = self.by_use.first_key_value()
        {
            let oldest = *oldest;
            self.remove(&oldest);
        }
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
    use http::HeaderValue;
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
