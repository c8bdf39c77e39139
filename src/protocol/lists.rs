//! Lists that a client has read in a session, as digests of their pages.
//!
//! Owned here: the lists whose changes a server may announce, the digest of a page, and the pages
//! that were read. With them the proxy can compare the lists after the session was opened again.
//! Invariant: at most [`PAGES_MAX`] pages of a session are kept; a list beyond that cannot be
//! compared. Absent: the reading of pages (`upstream/revival`).

use std::io;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

/// Most pages of a session.
const PAGES_MAX: usize = 64;
/// Size limit of a cursor, in bytes.
const CURSOR_MAX: usize = 256;
/// Size limit of a page, in bytes. A tree of the page takes many times its bytes.
pub const PAGE_MAX: usize = 1024 * 1024;
/// Approximate size of a page's record beside its cursor.
const PAGE_COST: usize = 64;

/// A list of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum List {
    /// Tools.
    Tools,
    /// Prompts.
    Prompts,
    /// Resources.
    Resources,
    /// Templates of resources. A change of resources announces a change of these too.
    Templates,
}

impl List {
    /// All lists.
    pub const ALL: [Self; 4] = [Self::Tools, Self::Prompts, Self::Resources, Self::Templates];

    /// Returns the method that reads a page.
    pub const fn method(self) -> &'static str {
        match self {
            Self::Tools => "tools/list",
            Self::Prompts => "prompts/list",
            Self::Resources => "resources/list",
            Self::Templates => "resources/templates/list",
        }
    }

    /// Returns the notification that announces a change.
    pub const fn notification(self) -> &'static str {
        match self {
            Self::Tools => "notifications/tools/list_changed",
            Self::Prompts => "notifications/prompts/list_changed",
            Self::Resources | Self::Templates => "notifications/resources/list_changed",
        }
    }
}

/// A page of a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Page {
    list: List,
    cursor: Option<Box<str>>,
}

impl Page {
    /// Returns the page that a request of this method reads, or `None` for any other method.
    pub fn of(method: &str, body: &[u8]) -> Option<Self> {
        let list = List::ALL.into_iter().find(|list| list.method() == method)?;
        let cursor: Option<String> = crate::jsonrpc::parsed_member(body, &["params", "cursor"]);
        Some(Self { list, cursor: cursor.map(Into::into) })
    }

    /// Returns the list.
    pub fn list(&self) -> List {
        self.list
    }

    /// Returns the request that reads the page under this ID.
    pub fn to_request(&self, id: &str) -> String {
        let mut request = serde_json::json!({ "jsonrpc": "2.0", "id": id, "method": self.list.method() });
        if let Some(cursor) = &self.cursor {
            request["params"] = serde_json::json!({ "cursor": cursor });
        }
        request.to_string()
    }
}

/// Digest of a page's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PageDigest([u8; 16]);

impl PageDigest {
    /// Returns the digest of the result in a response. Neither the order of members counts, nor
    /// `_meta`, nor the text of the next cursor. Returns `None` for any other message, and beyond
    /// [`PAGE_MAX`].
    pub fn of(message: &[u8]) -> Option<Self> {
        if message.len() > PAGE_MAX {
            return None;
        }
        let mut result: Map<String, Value> = crate::jsonrpc::parsed_member(message, &["result"])?;
        result.remove("_meta");
        if let Some(next) = result.get_mut("nextCursor") {
            *next = Value::Bool(next.is_string());
        }
        let mut hash = Hash(Sha256::new());
        // Maps of `serde_json` are in the order of their keys.
        serde_json::to_writer(&mut hash, &result).ok()?;
        let mut digest = [0; 16];
        digest.copy_from_slice(&hash.0.finalize()[..16]);
        Some(Self(digest))
    }
}

struct Hash(Sha256);

impl io::Write for Hash {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Pages that a client has read in a session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadLists {
    pages: Vec<(Page, PageDigest)>,
    /// Lists that were read, and cannot be compared.
    incomparable: Vec<List>,
}

impl ReadLists {
    /// Returns the lists of a session without known lists: they count as read.
    pub fn unknown() -> Self {
        Self { pages: Vec::new(), incomparable: List::ALL.into() }
    }

    /// Notes that the client has read a page. `None` stands for a page that cannot be compared. The
    /// first page of a list begins the list anew.
    pub fn note(&mut self, page: &Page, digest: Option<PageDigest>) {
        let list = page.list;
        if page.cursor.is_none() {
            self.incomparable.retain(|other| *other != list);
            self.pages.retain(|(other, _)| other.list != list || other == page);
        }
        if self.incomparable.contains(&list) {
            return;
        }
        let known = self.pages.iter().position(|(other, _)| other == page);
        let is_short = page.cursor.as_ref().is_none_or(|cursor| cursor.len() <= CURSOR_MAX);
        match (digest, known) {
            (Some(digest), Some(at)) => self.pages[at].1 = digest,
            (Some(digest), None) if is_short && self.pages.len() < PAGES_MAX => self.pages.push((page.clone(), digest)),
            (Some(_) | None, _) => self.give_up(list),
        }
    }

    /// Makes all lists that were read incomparable.
    pub fn give_up_all(&mut self) {
        while let Some((page, _)) = self.pages.first() {
            self.give_up(page.list);
        }
    }

    fn give_up(&mut self, list: List) {
        self.pages.retain(|(page, _)| page.list != list);
        self.incomparable.push(list);
    }

    /// Returns the pages that can be compared.
    pub fn pages(&self) -> impl Iterator<Item = (&Page, PageDigest)> {
        self.pages.iter().map(|(page, digest)| (page, *digest))
    }

    /// Returns the lists that were read, and cannot be compared.
    pub fn incomparable(&self) -> impl Iterator<Item = List> {
        self.incomparable.iter().copied()
    }

    /// Returns true if the client has read no list.
    pub fn are_none(&self) -> bool {
        self.pages.is_empty() && self.incomparable.is_empty()
    }

    /// Returns the approximate size of the pages, in bytes.
    pub fn byte_len(&self) -> usize {
        let cursor_len = |page: &Page| page.cursor.as_ref().map_or(0, |cursor| cursor.len());
        self.pages.iter().map(|(page, _)| PAGE_COST + cursor_len(page)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(method: &str, cursor: Option<&str>) -> Page {
        let params = cursor.map_or_else(String::new, |cursor| format!(r#","params":{{"cursor":"{cursor}"}}"#));
        Page::of(method, format!(r#"{{"jsonrpc":"2.0","id":1{params}}}"#).as_bytes()).expect("a list")
    }

    fn digest(result: &str) -> Option<PageDigest> {
        PageDigest::of(format!(r#"{{"jsonrpc":"2.0","id":1,"result":{result}}}"#).as_bytes())
    }

    #[test]
    fn a_digest_is_that_of_the_content() {
        let first = digest(r#"{"tools":[{"name":"a","title":"A"}],"nextCursor":"x","_meta":{"n":1}}"#);
        assert!(first.is_some());
        assert_eq!(first, digest(r#"{ "nextCursor":"y", "tools":[{"title":"A","name":"a"}]}"#));
        for other in [
            r#"{"tools":[{"name":"a","title":"A"}]}"#,
            r#"{"tools":[{"name":"b","title":"A"}],"nextCursor":"x"}"#,
            r#"{"tools":[],"nextCursor":"x"}"#,
        ] {
            assert!(digest(other).is_some_and(|other| Some(other) != first), "{other}");
        }
        let long = format!(r#"{{"tools":["{}"]}}"#, "x".repeat(PAGE_MAX));
        assert_eq!((digest("[]"), digest(&long)), (None, None));
        assert_eq!(PageDigest::of(br#"{"jsonrpc":"2.0","id":1,"error":{}}"#), None);
        assert_eq!(PageDigest::of(b"x"), None);
    }

    #[test]
    fn a_page_is_requested_with_its_cursor() {
        let request = |page: Page| serde_json::from_str::<Value>(&page.to_request("i")).expect("JSON");
        let expected = serde_json::json!({"jsonrpc": "2.0", "id": "i", "method": "tools/list"});
        assert_eq!(request(page("tools/list", None)), expected);
        let second = request(page("resources/templates/list", Some("2")));
        assert_eq!(second["params"], serde_json::json!({"cursor": "2"}));
        assert_eq!(Page::of("tools/call", b"{}"), None);
    }

    #[test]
    fn the_first_page_begins_its_list_anew() {
        let mut lists = ReadLists::default();
        let (first, second, other) =
            (page("tools/list", None), page("tools/list", Some("2")), page("prompts/list", Some("2")));
        for page in [&first, &second, &other] {
            lists.note(page, digest("{}"));
        }
        lists.note(&first, digest(r#"{"tools":[]}"#));
        let pages: Vec<&Page> = lists.pages().map(|(page, _)| page).collect();
        assert_eq!(pages, [&first, &other]);
        assert_eq!(lists.pages().next().map(|(_, digest)| digest), digest(r#"{"tools":[]}"#));
    }

    #[test]
    fn a_list_beyond_the_limits_cannot_be_compared() {
        let mut lists = ReadLists::default();
        for number in 0..=PAGES_MAX {
            lists.note(&page("resources/list", Some(&number.to_string())), digest("{}"));
        }
        lists.note(&page("resources/list", Some("again")), digest("{}"));
        lists.note(&page("tools/list", None), None);
        lists.note(&page("prompts/list", Some(&"x".repeat(CURSOR_MAX + 1))), digest("{}"));
        assert_eq!(lists.pages().count(), 0);
        assert_eq!(lists.incomparable().collect::<Vec<_>>(), [List::Resources, List::Tools, List::Prompts]);
        lists.note(&page("tools/list", None), digest("{}"));
        assert_eq!((lists.pages().count(), lists.incomparable().count()), (1, 2));
        lists.give_up_all();
        assert_eq!((lists.pages().count(), lists.incomparable().count(), lists.byte_len()), (0, 3, 0));
        assert!(!lists.are_none() && !ReadLists::unknown().are_none() && ReadLists::default().are_none());
    }
}
