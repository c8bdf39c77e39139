//! Tools that only read, by the lists that this session has read.
//!
//! The annotation is the server's word about itself. It decides whether a call whose connection
//! broke is sent once more.

use std::collections::HashSet;
use std::sync::Mutex;

use serde::Deserialize;

use crate::sync;

/// Most names that are kept.
const MOST: usize = 4096;

/// Tools that only read.
#[derive(Default)]
pub(super) struct ReadOnlyTools(Mutex<HashSet<String>>);

#[derive(Deserialize)]
struct List {
    result: Page,
}

#[derive(Deserialize)]
struct Page {
    tools: Vec<Tool>,
}

#[derive(Deserialize)]
struct Tool {
    name: String,
    #[serde(default)]
    annotations: Option<Annotations>,
}

#[derive(Deserialize)]
struct Annotations {
    #[serde(default, rename = "readOnlyHint")]
    read_only: Option<bool>,
}

impl ReadOnlyTools {
    /// Reads a page of the list of tools. A tool that does not say it any more is forgotten.
    pub(super) fn read_list(&self, message: &[u8]) {
        let Ok(List { result: Page { tools } }) = serde_json::from_slice(message) else { return };
        let mut names = sync::lock(&self.0);
        for Tool { name, annotations } in tools {
            if annotations.and_then(|it| it.read_only) != Some(true) {
                names.remove(&name);
            } else if names.len() < MOST {
                names.insert(name);
            }
        }
    }

    /// Returns true if the tool only reads.
    pub(super) fn only_reads(&self, tool: &str) -> bool {
        sync::lock(&self.0).contains(tool)
    }
}
