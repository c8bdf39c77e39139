//! The parts that depend on the platform: signals to end, the end of the host, private files, and
//! the folders of files.

use std::fs::{DirBuilder, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{env, fs, io};

use crate::clock;

/// Interval of the looks at the clocks.
const LOOK: Duration = Duration::from_secs(5);
/// Shortest sleep that counts.
const SLEEP_MIN: Duration = Duration::from_secs(15);

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

/// Resolves once the machine has slept: `boot`, the time with sleep, has gone ahead of the time
/// without.
pub(super) async fn slept(boot: impl Fn() -> Duration) {
    let (mut awake, mut passed) = (clock::now(), boot());
    loop {
        clock::sleep(LOOK).await;
        let (awake_now, passed_now) = (clock::now(), boot());
        let ahead = passed_now.saturating_sub(passed).saturating_sub(awake_now.saturating_duration_since(awake));
        if ahead > SLEEP_MIN {
            return;
        }
        (awake, passed) = (awake_now, passed_now);
    }
}

/// Resolves when stdout has no reader any more: the host has ended, or was killed. Never for a
/// file. A thread waits for it, since a pipe that is not written to is no matter of the runtime.
#[cfg(unix)]
pub async fn reader_gone() {
    use rustix::event::{PollFd, PollFlags, poll};
    use rustix::io::Errno;

    const STACK: usize = 64 * 1024;
    let (gone, waiting) = tokio::sync::oneshot::channel();
    let watch = move || {
        let stdout = io::stdout();
        let mut polled = [PollFd::new(&stdout, PollFlags::empty())];
        while let Err(Errno::INTR) = poll(&mut polled, None) {}
        if polled[0].revents().intersects(PollFlags::ERR | PollFlags::HUP) {
            let _ = gone.send(());
        }
    };
    let thread = std::thread::Builder::new().name("stdout".to_owned()).stack_size(STACK).spawn(watch);
    if thread.is_err() || waiting.await.is_err() {
        std::future::pending().await
    }
}

/// Resolves when stdout has no reader any more. Not known on this platform.
#[cfg(not(unix))]
pub async fn reader_gone() {
    std::future::pending().await
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_sleep_is_known_by_a_clock_that_went_ahead() {
        let (began, asleep) = (clock::now(), Arc::new(AtomicU64::new(0)));
        let of_clock = asleep.clone();
        let boot = move || clock::now() - began + Duration::from_secs(of_clock.load(Ordering::Relaxed));
        let waiting = tokio::spawn(slept(boot));
        clock::sleep(Duration::from_secs(60)).await;
        assert!(!waiting.is_finished());
        // A short pause of the machine.
        asleep.store(15, Ordering::Relaxed);
        clock::sleep(Duration::from_secs(60)).await;
        assert!(!waiting.is_finished());
        asleep.store(31, Ordering::Relaxed);
        clock::sleep(LOOK).await;
        waiting.await.expect("no panic");
    }
}
