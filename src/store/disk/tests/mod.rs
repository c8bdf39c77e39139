//! Tests of the properties that the disk store alone has; the contract suite tests the common ones.

mod damage;
mod directory;
mod model;
mod space;
mod writing;

use std::fs;
use std::path::{Path, PathBuf};

use super::*;
use crate::contract;
use mcp_resume_base::random;

const KEEP: Duration = Duration::from_secs(3600);
/// Attempts, and the pauses between them, until the threads of a store that was dropped have ended.
const LOCKED_MAX: usize = 6000;
const LOCKED_STEP: Duration = Duration::from_millis(10);

/// A directory that is removed at the end of the test.
struct TemporaryDirectory(PathBuf);

impl TemporaryDirectory {
    fn new() -> Self {
        let name = format!("mcp-resume-disk-{:032x}", u128::from_be_bytes(random::bytes()));
        Self(std::env::temp_dir().join(name))
    }

    fn options(&self, fsync: Fsync) -> Options {
        Options { path: self.0.clone(), fsync, max_bytes: 1 << 30 }
    }

    fn open(&self) -> Arc<Disk> {
        self.opened().store
    }

    /// Opens the store. The threads of one that was dropped may hold its lock for a moment.
    fn opened(&self) -> Opened {
        let open = || Disk::open(self.options(Fsync::Always), "replica");
        for _ in 0..LOCKED_MAX {
            match open() {
                Err(OpenError::Locked { .. }) => std::thread::sleep(LOCKED_STEP),
                opened => return opened.unwrap(),
            }
        }
        open().unwrap()
    }

    /// Returns a copy of its present contents.
    fn copy(&self) -> Self {
        let copy = Self::new();
        copy_all(&self.0, &copy.0);
        copy
    }

    /// Returns the path of every file in it.
    fn files(&self) -> Vec<PathBuf> {
        let mut files = Vec::new();
        let mut directories = vec![self.0.clone()];
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() { directories.push(path) } else { files.push(path) }
            }
        }
        files.sort();
        files
    }

    /// Returns every file in it, with its contents.
    fn contents(&self) -> Vec<(PathBuf, Vec<u8>)> {
        self.files().into_iter().map(|file| (file.clone(), fs::read(file).unwrap())).collect()
    }
}

impl Drop for TemporaryDirectory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn copy_all(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let from = entry.unwrap().path();
        let to = to.join(from.file_name().unwrap());
        match from.is_dir() {
            true => copy_all(&from, &to),
            false => assert!(fs::copy(from, to).is_ok()),
        }
    }
}

/// A store in a directory of its own.
struct Fresh {
    // Closed before its directory is removed.
    store: Arc<Disk>,
    _directory: TemporaryDirectory,
}

impl Fresh {
    fn new(fsync: Fsync) -> Self {
        let directory = TemporaryDirectory::new();
        let store = Disk::open(directory.options(fsync), "replica").unwrap().store;
        Self { store, _directory: directory }
    }
}

impl contract::Fixture for Fresh {
    fn store(&self) -> Arc<dyn Store> {
        self.store.clone()
    }
}

mod always {
    use super::*;
    crate::contract::suite!(Fresh::new(Fsync::Always));
}

mod interval {
    use super::*;
    crate::contract::suite!(Fresh::new(Fsync::Interval));
}

fn name() -> StreamId {
    StreamId::from_bytes(random::bytes())
}

fn batch(after: u64, texts: &[&str]) -> Batch {
    let mut batch = Batch::starting_at(Seq(after + 1));
    for text in texts {
        batch.push(b"", text.as_bytes());
    }
    batch
}

fn events(after: u64, texts: &[&str]) -> Read {
    let bytes = batch(after, texts);
    Read::Events((after + 1..).map(Seq).zip(bytes.events().map(Bytes::copy_from_slice)).collect())
}

impl Disk {
    async fn made(&self, keep: Duration) -> StreamId {
        let stream = name();
        self.create(stream, b"about", Seq(0), keep).wait().await.unwrap();
        stream
    }

    async fn appended(&self, stream: StreamId, after: u64, texts: &[&str]) -> Appended {
        self.append(stream, WriterEpoch(0), Seq(after), &batch(after, texts), None).wait().await.unwrap()
    }

    async fn all(&self, stream: StreamId) -> Read {
        self.read(stream, Seq(0), usize::MAX).wait().await.unwrap()
    }

    /// Blocks the writer until the returned sender is dropped.
    fn hold(&self) -> mpsc::Sender<()> {
        let (go_on, held) = mpsc::channel();
        let call = Call { at: now(), bytes: 0, command: Command::Hold(held) };
        self.calls.as_ref().unwrap().send(call).unwrap();
        go_on
    }

    async fn clean(&self) {
        self.call(0, |reply| Command::Clean { reply }).wait().await.unwrap();
    }

    async fn fail(&self, full: bool) {
        self.call(0, |reply| Command::Fail { full, reply }).wait().await.unwrap();
    }
}
