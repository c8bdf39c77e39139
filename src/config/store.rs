//! The section `[store]`: the store of events.

use std::fmt;
use std::path::PathBuf;

pub use mcp_resume_store::disk::Fsync;

use super::KeyPair;

/// The store of events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Store {
    /// In memory alone.
    Memory,
    /// Also in a directory.
    Disk(DiskStore),
    /// Also in a Redis, for every replica that uses it.
    Redis(RedisStore),
}

/// Displays the kind and the directory, without a password.
impl fmt::Display for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("memory"),
            Self::Disk(disk) => write!(f, "disk:{}", disk.path.display()),
            Self::Redis(_) => f.write_str("redis"),
        }
    }
}

/// A directory that survives the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskStore {
    /// The directory.
    pub path: PathBuf,
    /// Durability of writes in a power failure.
    pub fsync: Fsync,
    /// Largest size of the directory, in bytes.
    pub max_bytes: u64,
}

/// A Redis, or a server with the same protocol.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisStore {
    /// URL with the address, the credentials and the database.
    pub url: String,
    /// Prefix of all keys.
    pub prefix: String,
    /// PEM file with the trusted authorities, or `None` for the system's.
    pub ca: Option<PathBuf>,
    /// The client certificate.
    pub identity: Option<KeyPair>,
    /// Behaviour while the Redis cannot be reached.
    pub on_unreachable: OnUnreachable,
}

/// Masked: the URL may hold a password.
impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

/// Behaviour while the store cannot be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnUnreachable {
    /// Memory takes the store's place; the store is brought up to date once it is back.
    Degrade,
    /// No call continues until the store is back.
    Refuse,
}
