//! One keyspace of a closed database: a folder with a manifest and tables.
//!
//! ```text
//! current      <number of the manifest 8> <its xxh3 16> <kind of the checksum 1>
//! v<number>    the manifest, an archive of sections; `tables` has the tables of each level:
//!              <levels 1> { <runs 1> { <tables 4> { <id 8> <kind of the checksum 1> <xxh3 16> <added to its numbers 8> } } }
//! tables/<id>  a table: written once, whole
//! ```
//!
//! with numbers in little endian.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lsm_tree::{Cache, Checksum, Table};
use xxhash_rust::xxh3::{Xxh3Default, xxh3_128};

use crate::disk::failure::{Failure, at, damaged};

/// The only kind of checksum in use.
const XXH3: u8 = 0;
/// Cache for the blocks of the tables that are read here.
const CACHE_BYTES: u64 = 1 << 20;

/// Extent of the verification of tables.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Depth {
    /// The whole table.
    Whole,
    /// The table without its data blocks: the part that the database reads when it opens.
    Index,
}

/// A verified keyspace.
pub(super) struct Keyspace {
    pub(super) id: u64,
    pub(super) name: String,
    tables: Vec<Table>,
}

/// A table as listed in the manifest.
struct Listed {
    id: u64,
    checksum: u128,
    added: u64,
}

impl Keyspace {
    /// Verifies the keyspace in the folder `id` of `path`.
    pub(super) fn inspect(path: &Path, id: u64, name: &str, depth: Depth) -> Result<Self, Failure> {
        let path = path.join(id.to_string());
        let listed = manifest(&path)?;
        let folder = path.join("tables");
        check_names(&folder)?;
        let cache = Arc::new(Cache::with_capacity_bytes(CACHE_BYTES));
        let table = |listed: &Listed| listed.inspect(folder.join(listed.id.to_string()), id, &cache, depth);
        let tables = listed.iter().map(table).collect::<Result<Vec<_>, _>>()?;
        Ok(Self { id, name: name.into(), tables })
    }

    /// Returns the number of the last write in the tables.
    pub(super) fn last_write(&self) -> Option<u64> {
        self.tables.iter().map(Table::get_highest_seqno).max()
    }

    /// Returns the newest value of a row in the tables.
    pub(super) fn row(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Failure> {
        let mut newest: Option<(u64, Vec<u8>)> = None;
        for table in &self.tables {
            let key = lsm_tree::UserKey::from(key);
            for row in table.range(key.clone()..=key) {
                let row = row.map_err(fjall::Error::from)?;
                if newest.as_ref().is_none_or(|(number, _)| *number <= row.key.seqno) {
                    newest = Some((row.key.seqno, row.value.to_vec()));
                }
            }
        }
        Ok(newest.map(|(_, value)| value))
    }
}

impl Listed {
    fn inspect(&self, path: PathBuf, keyspace: u64, cache: &Arc<Cache>, depth: Depth) -> Result<Table, Failure> {
        if depth == Depth::Whole && checksum(&path).map_err(|error| at(&path, &error))? != self.checksum {
            return Err(damaged(format!("{} is damaged: its checksum is wrong", path.display())));
        }
        let (filter_too, index_too) = (false, true);
        let checksum = Checksum::from_raw(self.checksum);
        let table =
            Table::recover(path.clone(), checksum, self.added, keyspace, cache.clone(), None, filter_too, index_too);
        let table = table.map_err(|error| damaged(format!("{} is damaged: {error}", path.display())))?;
        if table.id() != self.id {
            return Err(damaged(format!("{} is another table", path.display())));
        }
        Ok(table)
    }
}

/// Returns the tables of the manifest that `current` names.
fn manifest(path: &Path) -> Result<Vec<Listed>, Failure> {
    let current = path.join("current");
    let text = fs::read(&current).map_err(|error| at(&current, &error))?;
    let mut rest = &text[..];
    let named = (|| Some((number(&mut rest)?, u128::from_le_bytes(take(&mut rest)?), take(&mut rest)?)))();
    let (manifest, checksum) = match named {
        Some((manifest, checksum, [XXH3])) if rest.is_empty() => (manifest, checksum),
        Some(_) | None => return Err(damaged(format!("{} is damaged", current.display()))),
    };
    if path.join("version").exists() {
        return Err(damaged(format!("{} is of another version", path.display())));
    }
    let manifest = path.join(format!("v{manifest}"));
    let bytes = fs::read(&manifest).map_err(|error| at(&manifest, &error))?;
    let wrong = |problem: &str| damaged(format!("{} is damaged: {problem}", manifest.display()));
    if xxh3_128(&bytes) != checksum {
        return Err(wrong("its checksum is wrong, or that of `current`"));
    }
    let archive = sfa::Reader::from_reader(&mut io::Cursor::new(&bytes)).map_err(|error| wrong(&error.to_string()))?;
    let section = archive.toc().section(b"tables").ok_or_else(|| wrong("it has no tables"))?;
    let (begin, size) = (section.pos() as usize, section.len() as usize);
    let tables = bytes.get(begin..).and_then(|rest| rest.get(..size)).and_then(listed);
    tables.ok_or_else(|| wrong("its tables cannot be read"))
}

fn listed(mut bytes: &[u8]) -> Option<Vec<Listed>> {
    let rest = &mut bytes;
    let mut tables = Vec::new();
    let [levels] = take(rest)?;
    for _ in 0..levels {
        let [runs] = take(rest)?;
        for _ in 0..runs {
            for _ in 0..u32::from_le_bytes(take(rest)?) {
                let (id, [XXH3]) = (number(rest)?, take(rest)?) else { return None };
                tables.push(Listed { id, checksum: u128::from_le_bytes(take(rest)?), added: number(rest)? });
            }
        }
    }
    Some(tables)
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, left) = rest.split_first_chunk()?;
    *rest = left;
    Some(*taken)
}

fn number(rest: &mut &[u8]) -> Option<u64> {
    take(rest).map(u64::from_le_bytes)
}

/// Reports file names that the database cannot open.
fn check_names(tables: &Path) -> Result<(), Failure> {
    for entry in fs::read_dir(tables).map_err(|error| at(tables, &error))? {
        let entry = entry.map_err(|error| at(tables, &error))?;
        let (name, path) = (entry.file_name(), entry.path());
        let name = name.to_string_lossy();
        let is_passed_over = name == ".DS_Store" || name.starts_with("._");
        if !is_passed_over && (name.parse::<u64>().is_err() || path.is_dir()) {
            return Err(damaged(format!("{} is no table", path.display())));
        }
    }
    Ok(())
}

/// Returns the checksum of a whole file.
fn checksum(path: &Path) -> io::Result<u128> {
    let mut file = File::open(path)?;
    let mut hasher = Xxh3Default::new();
    let mut piece = vec![0; 256 << 10];
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(hasher.digest128()),
            read => hasher.update(&piece[..read]),
        }
    }
}
