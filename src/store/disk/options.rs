//! Settings of a disk store, and the reasons why a directory cannot be opened.

use std::io;
use std::path::{Path, PathBuf};

use super::failure::Failure;

/// Durability of an event once a client has read it. Every level survives `kill -9`; they differ in
/// the losses of a power failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fsync {
    /// Survives a power failure and a crash of the system: each group of calls is synced before its
    /// responses.
    Always,
    /// Syncs 200 ms later, or as soon as the disk has finished a sync begun then. A power failure
    /// loses the calls since, the last ones first and each as a whole.
    Interval,
}

/// Location and guarantees of a store.
#[derive(Clone, Debug)]
pub struct Options {
    /// Directory of the store alone. Created if it does not exist.
    pub path: PathBuf,
    /// Durability in a power failure.
    pub fsync: Fsync,
    /// Limit in bytes of live streams and records. Beyond it new ones are refused. The directory
    /// takes up to about twice that, and 200 MiB.
    pub max_bytes: u64,
}

/// Error from opening a directory. In a damaged directory every file is left unchanged.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The operating system returned an error.
    #[error("{path}: {error}", path = .path.display())]
    Io {
        /// File or directory of the failed call.
        path: PathBuf,
        /// Error of the system.
        #[source]
        error: io::Error,
    },
    /// The directory is open in another store, in this process or another one.
    #[error("{path} is in use by another process", path = .path.display())]
    Locked {
        /// The directory.
        path: PathBuf,
    },
    /// The directory holds files of another program.
    #[error("{path} is not a store of this program and not empty: there is `{found}` in it", path = .path.display())]
    Foreign {
        /// The directory.
        path: PathBuf,
        /// Name of such a file.
        found: String,
    },
    /// The directory was written by another version.
    #[error("{path} has format {found}, and this version of the program knows format {known} alone", path = .path.display())]
    Format {
        /// The directory.
        path: PathBuf,
        /// Format of the directory.
        found: u32,
        /// Format of this version.
        known: u32,
    },
    /// The keys cannot be read.
    #[error("{path} is damaged: {problem}", path = .path.display())]
    Keys {
        /// The file.
        path: PathBuf,
        /// Description of the damage.
        problem: String,
    },
    /// The database is damaged, or its disk fails or is full.
    #[error("the database {path} cannot be opened: {problem}", path = .path.display())]
    Database {
        /// Directory of the database.
        path: PathBuf,
        /// Description of the damage.
        problem: String,
    },
}

impl OpenError {
    pub(super) fn at(path: &Path, error: io::Error) -> Self {
        Self::Io { path: path.into(), error }
    }

    pub(super) fn database(path: &Path, failure: Failure) -> Self {
        Self::Database { path: path.into(), problem: failure.problem }
    }
}

/// Sizes of memory and disk besides the live data.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// Size of a memtable. Each keyspace has one or two.
    pub(super) memtable: u64,
    /// Bytes of obsolete data on disk that start no compaction.
    pub(super) slack: u64,
}

impl Default for Sizes {
    fn default() -> Self {
        Self { memtable: 8 << 20, slack: 64 << 20 }
    }
}
