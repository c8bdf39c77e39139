//! The process table, as `/proc` has it.

use std::cell::Cell;
use std::fs;
use std::sync::atomic::{AtomicU32, Ordering};

use tokio::process::Command;

use crate::support::until;

static MARKS: AtomicU32 = AtomicU32::new(0);

/// A variable of the environment by which the processes of one test are known.
pub(crate) struct Mark(String);

impl Mark {
    pub(crate) fn new() -> Self {
        Self(format!("MARK={}-{}", std::process::id(), MARKS.fetch_add(1, Ordering::Relaxed)))
    }

    pub(crate) fn variable(&self) -> &str {
        &self.0
    }

    /// Returns the processes that have the mark and run.
    pub(crate) fn processes(&self) -> Vec<u32> {
        let has_mark = |pid: &u32| {
            // A process that has ended has no environment any more.
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.split(|&byte| byte == 0).any(|variable| variable == self.0.as_bytes())
        };
        all().filter(has_mark).collect()
    }

    /// Waits until this many children run, and returns the first process of each. While a process
    /// becomes another program (`exec`), the system shows no environment, so that the mark is not
    /// seen.
    pub(crate) async fn until_leaders<const COUNT: usize>(&self) -> [u32; COUNT] {
        let leaders = Cell::new([0; COUNT]);
        until(&format!("{COUNT} children run"), async || {
            self.leaders().try_into().map(|found| leaders.set(found)).is_ok()
        })
        .await;
        leaders.get()
    }

    /// Returns the processes that lead a group: the first of each child. One that becomes another
    /// program may be missing.
    pub(crate) fn leaders(&self) -> Vec<u32> {
        self.processes().into_iter().filter(|&pid| stat(pid).is_some_and(|stat| stat.group == pid)).collect()
    }
}

struct Stat {
    state: char,
    parent: u32,
    group: u32,
}

fn stat(pid: u32) -> Option<Stat> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = text.rsplit(") ").next()?.split(' ');
    let state = fields.next()?.chars().next()?;
    Some(Stat { state, parent: fields.next()?.parse().ok()?, group: fields.next()?.parse().ok()? })
}

fn all() -> impl Iterator<Item = u32> {
    fs::read_dir("/proc").expect("Linux").filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// Returns the children of a process that run and have this word on their command line.
pub(crate) fn children_of(parent: u32, word: &str) -> Vec<u32> {
    let is_child = |pid: &u32| stat(*pid).is_some_and(|stat| stat.parent == parent);
    let has_word = |pid: &u32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|&byte| byte == 0).any(|other| other == word.as_bytes())
    };
    all().filter(is_child).filter(has_word).collect()
}

/// Returns the children of a process that have ended and were not collected.
pub(crate) fn zombies_of(parent: u32) -> Vec<u32> {
    all().filter(|&pid| stat(pid).is_some_and(|stat| stat.parent == parent && stat.state == 'Z')).collect()
}

pub(crate) fn is_running(pid: u32) -> bool {
    stat(pid).is_some_and(|stat| stat.state != 'Z')
}

pub(crate) async fn kill(pid: u32) {
    let sent = Command::new("kill").args(["-KILL", &pid.to_string()]).status().await.expect("kill runs");
    assert!(sent.success());
}
