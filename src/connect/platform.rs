//! The parts that depend on the platform: signals to end, private files, and the folders of files.

use std::fs::{DirBuilder, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::{env, fs, io};

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

/// Opens the file of `--debug` for more lines, in the folder of the state. A file of `most` bytes
/// is begun anew. Returns its path with it, or `None` if it cannot be used.
pub fn debug_file(most: u64) -> Option<(PathBuf, File)> {
    let folder = state_folder()?;
    private_folder(&folder).ok()?;
    let path = folder.join("connect-debug.log");
    if fs::metadata(&path).is_ok_and(|file| file.len() >= most) {
        fs::remove_file(&path).ok()?;
    }
    let file = private_file(&path).or_else(|_| OpenOptions::new().append(true).open(&path)).ok()?;
    Some((path, file))
}

/// Creates a file for its owner alone, which grows at its end.
#[cfg(unix)]
pub(super) fn private_file(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    OpenOptions::new().append(true).create_new(true).mode(0o600).open(path)
}

/// Creates a file, which grows at its end.
#[cfg(not(unix))]
pub(super) fn private_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create_new(true).open(path)
}

/// Returns the folder of the memory: below `MCP_RESUME_HOME`, else in the cache of the home.
pub fn memory_folder() -> Option<PathBuf> {
    folder("cache", ".cache")
}

/// Returns the folder of files that a process leaves to the next one.
fn state_folder() -> Option<PathBuf> {
    folder("state", ".local/state")
}

/// Returns the place of the user's configuration.
pub fn config_file() -> Option<PathBuf> {
    folder("config", ".config").map(|folder| folder.join("connect.toml"))
}

/// Returns a folder below `MCP_RESUME_HOME`, else one of this program below the user's home. Hosts
/// hand over few variables, so that no other counts. Without `HOME` the user's record has the home.
fn folder(own: &str, of_user: &str) -> Option<PathBuf> {
    let is_usable = |path: &PathBuf| path.is_absolute();
    let home = env::var_os("MCP_RESUME_HOME").map(PathBuf::from).filter(is_usable);
    let of_home = || env::home_dir().filter(is_usable).map(|home| home.join(of_user).join("mcp-resume"));
    home.map(|home| home.join(own)).or_else(of_home)
}
