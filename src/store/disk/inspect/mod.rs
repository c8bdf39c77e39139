//! Verification of a closed database before the database itself opens it. Nothing is changed.
//!
//! When it opens, the database deletes every keyspace without its file `current`, and every table
//! that no manifest lists. It cuts its journals, and only then finds damage. Everything that it
//! relies on is therefore verified here first:
//!
//! - the format mark, the lock and the journals ([`Journals`]);
//! - each keyspace ([`Keyspace`]): the manifest that `current` names, by its checksum, and every
//!   table in it, by its own;
//! - that the three keyspaces exist and belong to the store epoch, and that no journal ends before
//!   the data flushed from it.
//!
//! Data blocks in tables of `events` are left out on purpose. Damage there concerns single streams,
//! is found when they are read, and must not prevent the start. Absent: repairs.

mod keyspace;

use std::fs::{self, OpenOptions};
use std::io;
use std::path::Path;

use self::keyspace::{Depth, Keyspace};
use super::failure::{Failure, at, caught, damaged};
use super::journal::Journals;
use super::layout;
use super::layout::{EVENTS, KEYSPACES, STREAMS};
use super::options::Fsync;
use mcp_resume_protocol::ids::StoreEpoch;

/// Contents of the file `version` of the database.
const MARK: &[u8] = b"FJL\x03";
/// Keyspace with the names of the database's keyspaces.
const NAMES: u64 = 0;

/// Verifies the closed database at `path`, and returns its journals. Torn ends are not cut yet.
///
/// # Errors
/// The first damage found. Nothing in `path` has changed.
pub(super) fn inspect(path: &Path, epoch: StoreEpoch, fsync: Fsync) -> Result<Journals, Failure> {
    caught(|| {
        check_mark(path)?;
        check_lock(&path.join("lock"))?;
        let journals = Journals::inspect(path, fsync, layout::EPOCH_ROW)?;
        let keyspaces = inspect_keyspaces(&path.join("keyspaces"))?;
        let flushed = keyspaces.iter().filter_map(Keyspace::last_write).max();
        // A journal is synced before anything is flushed from it.
        if journals.last().zip(flushed).is_some_and(|(last, flushed)| last < flushed) {
            return Err(damaged("its journal has lost its end, or one of its journals is missing"));
        }
        let streams = keyspaces.iter().find(|keyspace| keyspace.name == STREAMS);
        let streams = streams.ok_or_else(|| damaged(format!("its keyspace `{STREAMS}` is missing")))?;
        check_epoch(streams, &journals, epoch)?;
        Ok(journals)
    })
}

fn check_mark(path: &Path) -> Result<(), Failure> {
    match fs::read(path.join("version")) {
        Ok(mark) if mark == MARK => Ok(()),
        Ok(_) => Err(damaged("its file `version` is damaged, or says another version")),
        // The database would create a new one from it.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(damaged("the file `version` is missing")),
        Err(error) => Err(fjall::Error::Io(error).into()),
    }
}

/// Opens the lock file in the way of the database.
fn check_lock(path: &Path) -> Result<(), Failure> {
    let lock = OpenOptions::new().read(true).write(true).open(path);
    lock.map(drop).map_err(|error| at(path, &error))
}

/// Verifies every keyspace except [`NAMES`].
fn inspect_keyspaces(path: &Path) -> Result<Vec<Keyspace>, Failure> {
    let names = Keyspace::inspect(path, NAMES, "names", Depth::Whole)?;
    let mut keyspaces = Vec::new();
    for entry in fs::read_dir(path).map_err(|error| at(path, &error))? {
        let entry = entry.map_err(|error| at(path, &error))?;
        if entry.file_type().is_ok_and(|kind| kind.is_file()) {
            continue;
        }
        let id = entry.file_name().to_str().and_then(|name| name.parse::<u64>().ok());
        let id = id.ok_or_else(|| damaged(format!("{} is no keyspace", entry.path().display())))?;
        if id == NAMES {
            continue;
        }
        let name = names.row(&[&[b'n'][..], &id.to_be_bytes()].concat())?;
        let name = name.and_then(|name| String::from_utf8(name).ok());
        let name = name.ok_or_else(|| damaged(format!("{} has no name", entry.path().display())))?;
        let depth = if name == EVENTS { Depth::Index } else { Depth::Whole };
        keyspaces.push(Keyspace::inspect(path, id, &name, depth)?);
    }
    match KEYSPACES.iter().find(|name| keyspaces.iter().all(|keyspace| keyspace.name != **name)) {
        Some(name) => Err(damaged(format!("its keyspace `{name}` is missing"))),
        None => Ok(keyspaces),
    }
}

fn check_epoch(streams: &Keyspace, journals: &Journals, epoch: StoreEpoch) -> Result<(), Failure> {
    let row = streams.row(layout::EPOCH_ROW)?;
    let row = row.as_deref().or_else(|| journals.found(streams.id).last());
    match row {
        Some(row) if *row == epoch.0.to_be_bytes() => Ok(()),
        Some(_) => Err(damaged("it belongs to other keys")),
        None => Err(damaged("its contents are not there")),
    }
}
