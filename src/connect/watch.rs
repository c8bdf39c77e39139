//! Files that a program is made of, and their changes.
//!
//! Owned here: the look at size and modification time of each file, at an interval, on a thread for
//! blocking work, and the quiet after a change. Folders of tools are left out. Links to folders are
//! not followed. Absent: what follows from a change (`reload.rs`).

use std::fs::{self, Metadata};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tracing::warn;

use crate::clock;

/// Interval between looks.
const INTERVAL: Duration = Duration::from_millis(500);
/// Time without a change after which a change counts.
const QUIET: Duration = Duration::from_millis(300);
/// Most files.
const MOST: usize = 10_000;
/// Names that are left out below a watched folder.
const LEFT_OUT: [&str; 3] = [".git", "__pycache__", "node_modules"];

/// Files and folders that are watched.
pub(super) struct Watched {
    paths: Arc<[PathBuf]>,
    /// Digest at the last change, or at the beginning.
    known: Option<u64>,
    has_warned: bool,
}

/// One look at all files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Look {
    digest: u64,
    files: usize,
}

impl Watched {
    pub(super) fn new(paths: Vec<PathBuf>) -> Self {
        Self { paths: paths.into(), known: None, has_warned: false }
    }

    /// Looks for the first time, so that later changes count.
    pub(super) async fn begin(&mut self) {
        self.known = Some(self.look().await);
    }

    /// Resolves when a file has changed, and nothing has changed for a moment since. No change is
    /// missed if the future is dropped.
    pub(super) async fn changed(&mut self) {
        loop {
            clock::sleep(INTERVAL).await;
            let mut seen = self.look().await;
            if Some(seen) == self.known {
                continue;
            }
            loop {
                clock::sleep(QUIET).await;
                let again = self.look().await;
                if again == seen {
                    break;
                }
                seen = again;
            }
            self.known = Some(seen);
            return;
        }
    }

    async fn look(&mut self) -> u64 {
        let paths = self.paths.clone();
        let looking = tokio::task::spawn_blocking(move || Look::at(&paths));
        // Fails at the end of the process alone.
        let Ok(look) = looking.await else { return self.known.unwrap_or_default() };
        if look.files >= MOST && !self.has_warned {
            self.has_warned = true;
            warn!(most = MOST, "--watch names more files than are watched: name the folder of the sources alone");
        }
        look.digest
    }
}

impl Look {
    fn at(paths: &[PathBuf]) -> Self {
        let mut look = Looking { hasher: DefaultHasher::new(), files: 0 };
        for path in paths {
            look.take(path);
        }
        Self { digest: look.hasher.finish(), files: look.files }
    }
}

struct Looking {
    hasher: DefaultHasher,
    files: usize,
}

impl Looking {
    /// Takes a file, or all files of a folder in the order of their names.
    fn take(&mut self, path: &Path) {
        match fs::metadata(path) {
            Ok(metadata) if metadata.is_dir() => self.take_folder(path.to_owned()),
            Ok(metadata) => self.take_file(path, &metadata),
            // Its removal is a change.
            Err(_) => path.hash(&mut self.hasher),
        }
    }

    fn take_folder(&mut self, folder: PathBuf) {
        let mut folders = vec![folder];
        while let Some(folder) = folders.pop() {
            let Ok(entries) = fs::read_dir(&folder) else { continue };
            let mut entries: Vec<_> = entries.flatten().take(MOST).collect();
            entries.sort_by_key(fs::DirEntry::file_name);
            for entry in entries {
                if self.files >= MOST {
                    return;
                }
                if LEFT_OUT.iter().any(|name| entry.file_name() == *name) {
                    continue;
                }
                let path = entry.path();
                match entry.file_type() {
                    Ok(kind) if kind.is_dir() => folders.push(path),
                    Ok(_) => {
                        if let Ok(metadata) = fs::metadata(&path)
                            && !metadata.is_dir()
                        {
                            self.take_file(&path, &metadata);
                        }
                    }
                    Err(_) => {}
                }
            }
        }
    }

    fn take_file(&mut self, path: &Path, metadata: &Metadata) {
        self.files += 1;
        path.hash(&mut self.hasher);
        metadata.len().hash(&mut self.hasher);
        metadata.modified().ok().hash(&mut self.hasher);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_of_files_are_seen_and_folders_of_tools_left_out() {
        let name = format!("mcp-resume-watch-{:016x}", u64::from_be_bytes(crate::random::bytes()));
        let folder = std::env::temp_dir().join(name);
        let write = |name: &str, text: &str| {
            let path = folder.join(name);
            fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            fs::write(path, text).expect("a file");
        };
        write("src/a.py", "1");
        let look = || Look::at(&[folder.clone(), folder.join("absent")]);
        let first = look();
        assert_eq!((look(), first.files), (first, 1));
        for left_out in ["node_modules/a.js", "src/__pycache__/a.pyc", ".git/index"] {
            write(left_out, "1");
            assert_eq!(look(), first, "{left_out}");
        }
        write("src/a.py", "12");
        let second = look();
        assert_ne!(second, first);
        write("src/b/c.py", "1");
        let third = look();
        assert_ne!(third, second);
        fs::remove_file(folder.join("src/b/c.py")).expect("a file");
        assert_eq!(look(), second);
        write("absent", "1");
        assert_ne!(look(), second);
        fs::remove_dir_all(&folder).expect("a folder");
    }
}
