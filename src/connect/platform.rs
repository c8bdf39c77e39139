//! The parts that depend on the platform: signals to end, private files, and the folder of files.

use std::fs::{DirBuilder, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::{env, io};

/// Resolves at the first signal to end the process.
#[cfg(unix)]
pub async fn stop_signal() {
    use tokio::signal::unix::{SignalKind, signal};
    let listen = |kind| signal(kind).ok();
    let (mut terminate, mut interrupt, mut hang_up) =
        (listen(SignalKind::terminate()), listen(SignalKind::interrupt()), listen(SignalKind::hangup()));
    let next = async |signal: &mut Option<tokio::signal::unix::Signal>| match signal {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    };
    tokio::select! {
        () = next(&mut terminate) => {}
        () = next(&mut interrupt) => {}
        () = next(&mut hang_up) => {}
    }
}

/// Resolves at the first signal to end the process.
#[cfg(not(unix))]
pub async fn stop_signal() {
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending().await
    }
}

/// Makes a folder, and those above it, for its owner alone.
#[cfg(unix)]
pub(super) fn private_folder(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Makes a folder, and those above it.
#[cfg(not(unix))]
pub(super) fn private_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).create(path)
}

/// Creates a file for its owner alone.
#[cfg(unix)]
pub(super) fn private_file(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

/// Creates a file.
#[cfg(not(unix))]
pub(super) fn private_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).open(path)
}

/// Returns the folder of the memory: below `MCP_RESUME_HOME`, else in the cache of the home. Hosts
/// hand over few variables, so that no other counts.
pub fn memory_folder() -> Option<PathBuf> {
    let absolute = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let own = absolute("MCP_RESUME_HOME").map(|home| home.join("cache"));
    own.or_else(|| absolute("HOME").map(|home| home.join(".cache").join("mcp-resume")))
}
