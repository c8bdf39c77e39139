//! Memory of servers that were reached before: the handshake and the lists, for a start without the
//! server.
//!
//! Owned here: a file for each server, host and revision, below the user's cache. Its name is a
//! keyed hash, which does not show the URL. Results of calls and credentials are never kept.
//! `Authorization` and `Cookie` are no part of the name, since some are made anew at each start.
//! Errors of files are ignored: the memory saves a wait, and nothing depends on it. Files are
//! written on threads for blocking work. A record has one write at a time, so that its last state
//! stays.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use tokio::sync::watch;

use super::input::HostRequest;
use super::platform;
use crate::protocol::jsonrpc;
use crate::random;
use crate::sync;

/// Largest file, in bytes.
const FILE_MAX: usize = 4 * 1024 * 1024;
/// Name of the client in a request of a revision without sessions.
const CLIENT_OF_META: [&str; 4] = ["params", "_meta", "io.modelcontextprotocol/clientInfo", "name"];
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
#[derive(Default)]
pub(super) struct Record {
    path: Option<PathBuf>,
    answers: Mutex<Answers>,
    writing: watch::Sender<Writing>,
}

/// State of the file of a record.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
enum Writing {
    /// The file has all answers, as far as it could be written.
    #[default]
    Done,
    /// The file is being written.
    Running,
    /// The file is being written, and there is a later answer.
    Due,
}

/// Results by their methods, as JSON.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Answers(BTreeMap<String, String>);

impl Memory {
    pub(super) fn new(folder: Option<PathBuf>, server: Vec<String>) -> Self {
        Self { folder, server }
    }

    /// Returns the record for a host with this `initialize` or `server/discover`. Reads a file.
    pub(super) fn record(&self, request: &HostRequest) -> Record {
        let HostRequest { body, revision, .. } = request;
        let (revision, client) = match revision {
            Some(revision) => (format!("discover {revision}"), jsonrpc::string_member(body, &CLIENT_OF_META)),
            None => (jsonrpc::requested_version(body).unwrap_or_default(), jsonrpc::client_name(body)),
        };
        let client = client.unwrap_or_default();
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
        Record { path, answers: Mutex::new(answers), ..Record::default() }
    }
}

impl Record {
    /// Returns the remembered result of a method, as JSON.
    pub(super) fn result(&self, method: &str) -> Option<String> {
        sync::lock(&self.answers).0.get(method).cloned()
    }

    /// Keeps the result in a response to `request`, if that is a handshake or a whole list.
    pub(super) fn keep(self: &Arc<Self>, method: &str, request: &[u8], response: &[u8]) {
        if self.path.is_none() {
            return;
        }
        let is_page = jsonrpc::member(request, &["params", "cursor"]).is_some()
            || jsonrpc::member(response, &["result", "nextCursor"]).is_some();
        let Some(result) = jsonrpc::member(response, &["result"]).filter(|_| !is_page) else { return };
        let mut answers = sync::lock(&self.answers);
        if answers.0.get(method).is_some_and(|known| known == result) {
            return;
        }
        answers.0.insert(method.to_owned(), result.to_owned());
        drop(answers);
        self.save();
    }

    /// Resolves once the file has all answers.
    pub(super) async fn saved(&self) {
        let _ = self.writing.subscribe().wait_for(|writing| *writing == Writing::Done).await;
    }

    /// Writes the file on a thread for blocking work, unless such a thread writes it already.
    fn save(self: &Arc<Self>) {
        let mut is_first = false;
        self.writing.send_modify(|writing| {
            is_first = *writing == Writing::Done;
            *writing = if is_first { Writing::Running } else { Writing::Due };
        });
        if is_first {
            let record = self.clone();
            tokio::task::spawn_blocking(move || record.write());
        }
    }

    fn write(&self) {
        let mut is_done = false;
        while !is_done {
            let text = serde_json::to_vec(&*sync::lock(&self.answers)).unwrap_or_default();
            if let Some(path) = &self.path
                && !text.is_empty()
                && text.len() <= FILE_MAX
            {
                let _ = write(path, &text);
            }
            self.writing.send_modify(|writing| {
                is_done = *writing != Writing::Due;
                *writing = if is_done { Writing::Done } else { Writing::Running };
            });
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
    use bytes::Bytes;

    use super::*;
    use crate::protocol::jsonrpc::RequestId;

    const INITIALIZE: &[u8] = br#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","clientInfo":{"name":"a"}}}"#;
    const LIST: &[u8] = br#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;

    fn opening(body: &[u8]) -> HostRequest {
        let body = Bytes::copy_from_slice(body);
        HostRequest { id: RequestId::Number("0".into()), method: "initialize".into(), body, revision: None }
    }

    fn folder() -> PathBuf {
        std::env::temp_dir().join(format!("mcp-resume-memory-{}", hex(&random::bytes::<8>())))
    }

    #[tokio::test]
    async fn whole_results_are_remembered_for_the_same_server_and_host() {
        let folder = folder();
        let memory = |server: &str| Memory::new(Some(folder.clone()), vec![server.to_owned()]);
        let record = Arc::new(memory("https://a").record(&opening(INITIALIZE)));
        assert_eq!(record.result("tools/list"), None);
        record.keep("tools/list", LIST, br#"{"jsonrpc":"2.0","id":1,"result":{"tools":[],"nextCursor":"2"}}"#);
        assert_eq!(record.result("tools/list"), None, "a page");
        record.keep("tools/list", LIST, br#"{"jsonrpc":"2.0","id":1,"result":{"tools":[1]}}"#);
        record.saved().await;
        let again = memory("https://a").record(&opening(INITIALIZE));
        assert_eq!(again.result("tools/list").as_deref(), Some(r#"{"tools":[1]}"#));
        let other_host = String::from_utf8_lossy(INITIALIZE).replace("\"a\"", "\"b\"");
        assert_eq!(memory("https://a").record(&opening(other_host.as_bytes())).result("tools/list"), None);
        assert_eq!(memory("https://b").record(&opening(INITIALIZE)).result("tools/list"), None);
        let modern = HostRequest { revision: Some("2026-07-28".into()), ..opening(INITIALIZE) };
        assert_eq!(memory("https://a").record(&modern).result("tools/list"), None);
        fs::remove_dir_all(&folder).expect("a folder");
        let none = Arc::new(Memory::new(None, vec![]).record(&opening(INITIALIZE)));
        none.keep("tools/list", LIST, br#"{"result":{"tools":[]}}"#);
        assert_eq!(none.result("tools/list"), None);
    }

    #[tokio::test]
    async fn the_last_of_many_answers_stays() {
        let folder = folder();
        let memory = Memory::new(Some(folder.clone()), vec!["https://a".to_owned()]);
        let record = Arc::new(memory.record(&opening(INITIALIZE)));
        for n in 0..50 {
            record.keep("tools/list", LIST, format!(r#"{{"result":{{"tools":[{n}]}}}}"#).as_bytes());
            if n % 10 == 0 {
                tokio::task::yield_now().await;
            }
        }
        record.saved().await;
        let again = memory.record(&opening(INITIALIZE));
        assert_eq!(again.result("tools/list").as_deref(), Some(r#"{"tools":[49]}"#));
        let files = fs::read_dir(&folder).expect("a folder").count();
        assert_eq!(files, 2, "the key and the record");
        fs::remove_dir_all(&folder).expect("a folder");
    }
}
