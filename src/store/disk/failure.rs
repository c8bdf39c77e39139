//! Failures of the database, panics included.

use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;

/// Failure of the database. After a failed write it takes no more writes.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    /// True if there was no room.
    pub(super) is_full: bool,
    pub(super) problem: String,
}

impl From<fjall::Error> for Failure {
    fn from(error: fjall::Error) -> Self {
        let io = match &error {
            fjall::Error::Io(error) | fjall::Error::Storage(fjall::LsmError::Io(error)) => Some(error.kind()),
            _ => None,
        };
        let is_full = match &error {
            // An earlier flush or compaction has failed, and the database does not report the
            // cause. A lack of room is the likely cause, and forbids more writes. Another cause is
            // reported when the same work is tried again.
            fjall::Error::Poisoned => true,
            _ => matches!(io, Some(io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)),
        };
        let problem = match &error {
            fjall::Error::Io(error) => error.to_string(),
            fjall::Error::Poisoned => "a flush or a compaction failed".into(),
            fjall::Error::InvalidVersion(_) => "its file `version` is damaged, or says another version".into(),
            other => other.to_string(),
        };
        Self { is_full, problem }
    }
}

/// Returns the failure for a file that cannot be read.
pub(super) fn at(path: &Path, error: &io::Error) -> Failure {
    damaged(format!("{}: {error}", path.display()))
}

/// Returns the failure for damage.
pub(super) fn damaged(problem: impl Into<String>) -> Failure {
    Failure { is_full: false, problem: problem.into() }
}

/// Turns a panic of the database into a failure, so that the process continues.
pub(super) fn caught<T>(act: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    panic::catch_unwind(AssertUnwindSafe(act)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it panicked");
        Err(damaged(text))
    })
}
