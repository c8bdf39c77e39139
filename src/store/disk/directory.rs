//! Directory of a disk store: its owner, its format, and its keys.
//!
//! ```text
//! lock      held while a process has the directory open
//! format    the mark of this program, and the version of the format
//! keys      the replica's name and the keys, readable by their owner alone
//! db        the database; under the name db.new until it is complete
//! ```
//!
//! The files are created in this order, each of them atomically: a directory with the mark and
//! without `db` has no contents yet. A refused directory is left unchanged.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tracing::warn;

use super::options::OpenError;
use crate::Keys;
use mcp_resume_base::random;
use mcp_resume_protocol::ids::StoreEpoch;

const LOCK: &str = "lock";
const FORMAT: &str = "format";
const KEYS: &str = "keys";
const DATABASE: &str = "db";
const UNFINISHED: &str = "db.new";
/// Name of a file until it is complete.
const UNWRITTEN: &str = "unwritten";
/// Directory that a file system creates in its root.
const LOST_AND_FOUND: &str = "lost+found";

const MARK: &str = "mcp-resume disk store, format ";
const VERSION: u32 = 1;

/// A locked directory, until dropped.
pub(super) struct Directory {
    path: PathBuf,
    /// Released when it is dropped.
    _lock: Option<File>,
}

/// Contents of the keys file.
#[derive(Serialize, Deserialize)]
struct KeysFile {
    name: String,
    epoch: u32,
    signing: String,
    principal: String,
    /// Checksum of the other fields, so that a damaged file is not mistaken for the keys of another
    /// store.
    sha256: String,
}

impl Directory {
    /// Creates the directory if it does not exist, checks its format, and locks it. If the lock
    /// file is missing, `look` decides first if one is created: a refused directory must not
    /// change.
    pub(super) fn open(path: &Path, look: impl FnOnce(&Self) -> Result<(), OpenError>) -> Result<Self, OpenError> {
        if !path.is_dir() {
            make_private(path).map_err(|error| OpenError::at(path, error))?;
        }
        let is_new = read_format(path)?;
        let unlocked = Self { path: path.into(), _lock: None };
        if !is_new && !path.join(LOCK).exists() {
            look(&unlocked)?;
        }
        let directory = Self { _lock: Some(lock(path)?), ..unlocked };
        if is_new {
            directory.write(FORMAT, format!("{MARK}{VERSION}\n").as_bytes())?;
        }
        Ok(directory)
    }

    /// Returns the path of the database.
    pub(super) fn database(&self) -> PathBuf {
        self.path.join(DATABASE)
    }

    /// Returns the name and the keys, or `None` if there are no contents yet.
    pub(super) fn keys(&self) -> Result<Option<(String, Keys)>, OpenError> {
        let there = |name: &str| self.path.join(name).try_exists().map_err(|error| OpenError::at(&self.path, error));
        match (there(KEYS)?, there(DATABASE)?) {
            (_, false) => Ok(None),
            (true, true) => self.read_keys().map(Some),
            (false, true) => Err(self.bad_keys("the file is missing, and there is a database that belongs to it")),
        }
    }

    /// Creates the contents: new keys, with the existing name or else `default_name`, and the
    /// database, which `fill` creates at the given path and closes.
    pub(super) fn make_contents(
        &self,
        default_name: &str,
        fill: impl FnOnce(&Path, &Keys) -> Result<(), OpenError>,
    ) -> Result<(String, Keys), OpenError> {
        let name = match self.read_keys() {
            Ok((name, _)) => {
                warn!(path = %self.path.display(), "there are keys without the database that they belong to: the store begins empty");
                name
            }
            Err(_) => default_name.into(),
        };
        let keys = Keys {
            epoch: StoreEpoch(u32::from_be_bytes(random::bytes())),
            signing: random::bytes(),
            principal: random::bytes(),
        };
        let text = serde_json::to_vec(&KeysFile::new(&name, &keys))
            .map_err(|error| OpenError::at(&self.path, io::Error::other(error)))?;
        self.write(KEYS, &text)?;
        let unfinished = self.path.join(UNFINISHED);
        let at = |error| OpenError::at(&unfinished, error);
        if unfinished.try_exists().map_err(at)? {
            fs::remove_dir_all(&unfinished).map_err(at)?;
        }
        make_private(&unfinished).map_err(at)?;
        fill(&unfinished, &keys)?;
        fs::rename(&unfinished, self.database()).map_err(at)?;
        sync_directory(&self.path).map_err(at)?;
        Ok((name, keys))
    }

    /// Writes that many bytes and removes them again, to find out if there is room.
    pub(super) fn probe(&self, bytes: usize) -> io::Result<()> {
        let path = self.path.join(UNWRITTEN);
        self.remove_unwritten()?;
        let mut file = new_private(&path)?;
        let written = file.write_all(&vec![1; bytes]).and_then(|()| file.sync_all());
        // Closed before it is removed, as some systems require.
        drop(file);
        self.remove_unwritten().and(written)
    }

    fn remove_unwritten(&self) -> io::Result<()> {
        match fs::remove_file(self.path.join(UNWRITTEN)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn read_keys(&self) -> Result<(String, Keys), OpenError> {
        let text = fs::read(self.path.join(KEYS)).map_err(|error| self.bad_keys(&error.to_string()))?;
        let file: KeysFile = serde_json::from_slice(&text).map_err(|error| self.bad_keys(&error.to_string()))?;
        file.keys().map(|keys| (file.name, keys)).ok_or_else(|| self.bad_keys("its checksum is wrong"))
    }

    fn bad_keys(&self, problem: &str) -> OpenError {
        OpenError::Keys { path: self.path.join(KEYS), problem: problem.into() }
    }

    /// Writes a file atomically: after a crash it exists as a whole or not at all.
    fn write(&self, name: &str, bytes: &[u8]) -> Result<(), OpenError> {
        let (unwritten, path) = (self.path.join(UNWRITTEN), self.path.join(name));
        let write = || {
            self.remove_unwritten()?;
            let mut file = new_private(&unwritten)?;
            file.write_all(bytes)?;
            file.sync_all()?;
            // Closed before it is renamed, as some systems require.
            drop(file);
            fs::rename(&unwritten, &path)?;
            sync_directory(&self.path)
        };
        write().map_err(|error| OpenError::at(&path, error))
    }
}

impl KeysFile {
    fn new(name: &str, keys: &Keys) -> Self {
        let mut file = Self {
            name: name.into(),
            epoch: keys.epoch.0,
            signing: STANDARD.encode(keys.signing),
            principal: STANDARD.encode(keys.principal),
            sha256: String::new(),
        };
        file.sha256 = file.checksum();
        file
    }

    fn keys(&self) -> Option<Keys> {
        let key = |text: &str| STANDARD.decode(text).ok()?.try_into().ok();
        let keys =
            Keys { epoch: StoreEpoch(self.epoch), signing: key(&self.signing)?, principal: key(&self.principal)? };
        if self.checksum() == self.sha256 { Some(keys) } else { None }
    }

    fn checksum(&self) -> String {
        let text = [&self.name, &*self.epoch.to_string(), &self.signing, &self.principal].join("\n");
        STANDARD.encode(Sha256::digest(text))
    }
}

/// Returns true if the directory has no format mark yet. An error means that it belongs to another
/// program or version.
fn read_format(path: &Path) -> Result<bool, OpenError> {
    let foreign = |what: &str| Err(OpenError::Foreign { path: path.into(), found: what.into() });
    match fs::read(path.join(FORMAT)) {
        Ok(text) => {
            let version = std::str::from_utf8(&text).ok().and_then(|text| text.strip_prefix(MARK));
            match version.and_then(|version| version.trim_end().parse::<u32>().ok()) {
                Some(VERSION) => Ok(false),
                Some(found) => Err(OpenError::Format { path: path.into(), found, known: VERSION }),
                None => foreign(FORMAT),
            }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            for entry in fs::read_dir(path).map_err(|error| OpenError::at(path, error))? {
                let entry = entry.map_err(|error| OpenError::at(path, error))?;
                let name = entry.file_name();
                let is_begun = name == UNWRITTEN || name == LOST_AND_FOUND;
                let is_lock = || name == LOCK && entry.metadata().is_ok_and(|file| file.is_file() && file.len() == 0);
                if !is_begun && !is_lock() {
                    return foreign(&name.to_string_lossy());
                }
            }
            Ok(true)
        }
        Err(error) => Err(OpenError::at(path, error)),
    }
}

fn lock(path: &Path) -> Result<File, OpenError> {
    let at = path.join(LOCK);
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(&at);
    let file = file.map_err(|error| OpenError::at(&at, error))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(OpenError::Locked { path: path.into() }),
        Err(TryLockError::Error(error)) => Err(OpenError::at(&at, error)),
    }
}

fn make_private(path: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}

fn new_private(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

/// Makes a rename durable. Systems other than Unix need no such call, and cannot open a directory.
fn sync_directory(path: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(path)?.sync_all() } else { Ok(()) }
}
