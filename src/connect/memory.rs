//! Memory of servers that were reached before: the handshake and the lists, for a start without the
//! server.
//!
//! Owned here: a file for each server, host and revision, below the user's cache. Its name is a
//! keyed hash, which does not show the URL. Results of calls and credentials are never kept.
//! `Authorization` and `Cookie` are no part of the name, since some are made anew at each start.
//! Errors of files are ignored: the memory saves a wait, and nothing depends on it.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;

use super::platform;
use crate::protocol::jsonrpc;
use crate::random;
use crate::sync;

/// Largest file, in bytes.
const FILE_MAX: usize = 4 * 1024 * 1024;
/// Name of the file with the key of all names.
const KEY: &str = "key";

/// Memory of one server, as far as the command line names it.
pub(super) struct Memory {
    /// Folder of the files, or `None` if nothing is remembered.
    folder: Option<PathBuf>,
    /// URL or command, and headers.
    server: Vec<String>,
}

/// Remembered answers of one server to one host.
pub(super) struct Record {
    path: Option<PathBuf>,
    answers: Mutex<Answers>,
}

/// Results by their methods, as JSON.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Answers(BTreeMap<String, String>);

impl Memory {
    pub(super) fn new(folder: Option<PathBuf>, server: Vec<String>) -> Self {
        Self { folder, server }
    }

    /// Returns the record for a host with this `initialize`.
    pub(super) fn record(&self, initialize: &[u8]) -> Record {
        let revision = jsonrpc::requested_version(initialize).unwrap_or_default();
        let client = jsonrpc::client_name(initialize).unwrap_or_default();
        let path = self.folder.as_deref().and_then(|folder| {
            let key = key_in(folder)?;
            let mut name = Hmac::<Sha256>::new_from_slice(&key).expect("HMAC takes a key of any length");
            for part in self.server.iter().chain([&revision, &client]) {
                name.update(&(part.len() as u64).to_be_bytes());
                name.update(part.as_bytes());
            }
            Some(folder.join(hex(&name.finalize().into_bytes())))
        });
        let answers = path.as_deref().and_then(read).unwrap_or_default();
        Record { path, answers: Mutex::new(answers) }
    }
}

impl Record {
    /// Returns the remembered result of a method, as JSON.
    pub(super) fn result(&self, method: &str) -> Option<String> {
        sync::lock(&self.answers).0.get(method).cloned()
    }

    /// Keeps the result in a response to `request`, if that is a handshake or a whole list.
    pub(super) fn keep(&self, method: &str, request: &[u8], response: &[u8]) {
        let Some(path) = &self.path else { return };
        let is_page = jsonrpc::member(request, &["params", "cursor"]).is_some()
            || jsonrpc::member(response, &["result", "nextCursor"]).is_some();
        let Some(result) = jsonrpc::member(response, &["result"]).filter(|_| !is_page) else { return };
        let mut answers = sync::lock(&self.answers);
        if answers.0.get(method).is_some_and(|known| known == result) {
            return;
        }
        answers.0.insert(method.to_owned(), result.to_owned());
        if let Ok(text) = serde_json::to_vec(&*answers)
            && text.len() <= FILE_MAX
        {
            let _ = write(path, &text);
        }
    }
}

fn read(path: &Path) -> Option<Answers> {
    let size = fs::metadata(path).ok()?.len();
    if size > FILE_MAX as u64 {
        return None;
    }
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

/// Returns the key in the folder, which is made with it.
fn key_in(folder: &Path) -> Option<Vec<u8>> {
    let path = folder.join(KEY);
    if let Ok(key) = fs::read(&path) {
        return Some(key).filter(|key| key.len() == 32);
    }
    platform::private_folder(folder).ok()?;
    write(&path, &random::bytes::<32>()).ok()?;
    // Another process may have been first.
    fs::read(&path).ok()
}

/// Writes a file as a whole, for its owner alone.
fn write(path: &Path, contents: &[u8]) -> std::io::Result<()> {
    let beside = path.with_extension(hex(&random::bytes::<8>()));
    let written = platform::private_file(&beside)
        .and_then(|mut file| file.write_all(contents))
        .and_then(|()| fs::rename(&beside, path));
    if written.is_err() {
        let _ = fs::remove_file(&beside);
    }
    written
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const INITIALIZE: &[u8] = br#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","clientInfo":{"name":"a"}}}"#;
    const LIST: &[u8] = br#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;

    #[test]
    fn whole_results_are_remembered_for_the_same_server_and_host() {
        let folder = std::env::temp_dir().join(format!("mcp-resume-memory-{}", hex(&random::bytes::<8>())));
        let memory = |server: &str| Memory::new(Some(folder.clone()), vec![server.to_owned()]);
        let record = memory("https://a").record(INITIALIZE);
        assert_eq!(record.result("tools/list"), None);
        record.keep("tools/list", LIST, br#"{"jsonrpc":"2.0","id":1,"result":{"tools":[],"nextCursor":"2"}}"#);
        assert_eq!(record.result("tools/list"), None, "a page");
        record.keep("tools/list", LIST, br#"{"jsonrpc":"2.0","id":1,"result":{"tools":[1]}}"#);
        let again = memory("https://a").record(INITIALIZE);
        assert_eq!(again.result("tools/list").as_deref(), Some(r#"{"tools":[1]}"#));
        let other_host = String::from_utf8_lossy(INITIALIZE).replace("\"a\"", "\"b\"");
        assert_eq!(memory("https://a").record(other_host.as_bytes()).result("tools/list"), None);
        assert_eq!(memory("https://b").record(INITIALIZE).result("tools/list"), None);
        fs::remove_dir_all(&folder).expect("a folder");
        let none = Memory::new(None, vec![]).record(INITIALIZE);
        none.keep("tools/list", LIST, br#"{"result":{"tools":[]}}"#);
        assert_eq!(none.result("tools/list"), None);
    }
}
