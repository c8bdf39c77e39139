//! The file of `balance.file`, which lists targets.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use mcp_resume_config::{Target, TargetError};

/// Longest file accepted.
const FILE_MAX: usize = 1024 * 1024;
/// Deadline of a read, for a file system that hangs.
const READ_TIMEOUT: Duration = Duration::from_secs(3);

/// The file yields no targets.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// The file cannot be read.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The file system does not respond.
    #[error("it could not be read within {READ_TIMEOUT:?}")]
    TimedOut,
    /// The file is too long.
    #[error("it is longer than {FILE_MAX} bytes")]
    TooLong,
    /// The file has no bytes, as during a rewrite.
    #[error("it is empty; a file without replicas needs a comment")]
    Empty,
    /// The file is not UTF-8.
    #[error("it is not UTF-8")]
    NotUtf8,
    /// A line is not a target.
    #[error("line {0} {1}")]
    Line(usize, TargetError),
}

/// The file, which is read repeatedly.
pub(super) struct TargetFile {
    path: PathBuf,
    /// A file system that hangs blocks only one thread.
    permit: Arc<Semaphore>,
}

impl TargetFile {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, permit: Arc::new(Semaphore::new(1)) }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the contents, through any links.
    pub(super) async fn read(&self) -> Result<Vec<u8>, Error> {
        timeout(READ_TIMEOUT, self.read_blocking()).await.unwrap_or(Err(Error::TimedOut))
    }

    async fn read_blocking(&self) -> Result<Vec<u8>, Error> {
        let permit = self.permit.clone().acquire_owned().await.map_err(io::Error::other)?;
        let path = self.path.clone();
        let reading = spawn_blocking(move || {
            let _permit = permit;
            read(&path)
        });
        reading.await.map_err(io::Error::other)?
    }
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    File::open(path)?.take(FILE_MAX as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > FILE_MAX { Err(Error::TooLong) } else { Ok(bytes) }
}

/// Parses targets, one a line. A `#` begins a comment.
pub(super) fn parse(bytes: &[u8]) -> Result<Vec<Target>, Error> {
    if bytes.is_empty() {
        return Err(Error::Empty);
    }
    let text = std::str::from_utf8(bytes).map_err(|_| Error::NotUtf8)?;
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    let targets = lines.enumerate().filter(|(_, line)| !line.is_empty());
    targets.map(|(index, line)| line.parse().map_err(|error| Error::Line(index + 1, error))).collect()
}
