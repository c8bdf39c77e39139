//! Inspection of the database's journals after a power failure, before the database reads them.
//! Absent: writes to a journal, which the database makes, apart from the cut of a torn end.
//!
//! The database refuses a journal whose last write is torn in an unlucky place, and silently drops
//! everything after damage in the middle. Here a torn end is cut off, which costs only calls
//! without a reply. Damage before intact writes is reported. A missing journal is reported too,
//! unless it is the oldest one. So is a journal without its end that another one follows: the
//! database syncs a journal before it begins the next one. A journal is a sequence of batches:
//!
//! ```text
//! 1 <items 4> <seqno 8>                                                       start
//! 2 <type 1> <compression 1> <keyspace 8> <key length 2> <value length 4> <stored length 4> <key> <value>
//! 3 <xxh3 of the items 8> F J L 3                                             end
//! ```
//!
//! with numbers in little-endian order; zeros follow the last one.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use tracing::warn;
use xxhash_rust::xxh3::xxh3_64;

use super::failure::{Failure, damaged};
use super::options::Fsync;

const START: u8 = 1;
const ITEM: u8 = 2;
const END: u8 = 3;
const START_BYTES: usize = 1 + 4 + 8;
const ITEM_BYTES: usize = 1 + 1 + 1 + 8 + 2 + 4 + 4;
const END_BYTES: usize = 1 + 8 + 4;
const TRAILER: &[u8] = b"FJL\x03";
/// Maximum distance of the numbers of two writes. The database counts flushes and compactions too,
/// which are fewer.
const MAX_STEP: u64 = 1 << 32;

/// Journals of a closed database, as found. [`Self::cut`] alone changes them.
pub(super) struct Journals {
    /// Journals with a torn end, and where it begins.
    torn: Vec<(PathBuf, usize)>,
    /// Number of the last write.
    last: Option<u64>,
    /// Rows with the wanted key: keyspace and value.
    found: Vec<(u64, Vec<u8>)>,
}

impl Journals {
    /// Reads the journals in `path`, and collects every row with the key `wanted`.
    ///
    /// With [`Fsync::Always`] no write follows a torn one, and intact writes after it are an error.
    /// With [`Fsync::Interval`] a power failure may leave such writes, and the torn one is the end.
    /// With either, a later journal begins only after the earlier one is synced.
    pub(super) fn inspect(path: &Path, fsync: Fsync, wanted: &[u8]) -> Result<Self, Failure> {
        let mut journals = Self { torn: Vec::new(), last: None, found: Vec::new() };
        // Reason why no write can follow the journals so far.
        let mut broken: Option<String> = None;
        for (number, path) in numbered(path)? {
            // The database opens them for writing.
            let mut file = OpenOptions::new().read(true).write(true).open(&path).map_err(failed)?;
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes).map_err(failed)?;
            let end = journals.read(&bytes, number, wanted)?;
            if end > 0
                && let Some(problem) = broken
            {
                return Err(damaged(problem));
            }
            if is_zero(&bytes[end..]) {
                if end == 0 {
                    broken.get_or_insert_with(|| format!("{number}.jnl has lost what was in it"));
                }
                continue;
            }
            if fsync == Fsync::Always && has_batch(&bytes[end..]) {
                let problem = format!("{number}.jnl is damaged at byte {end}, before writes that are intact");
                return Err(damaged(problem));
            }
            broken.get_or_insert_with(|| format!("{number}.jnl is damaged at byte {end}, and a later journal is not"));
            journals.torn.push((path, end));
        }
        Ok(journals)
    }

    /// Reads the intact writes at the beginning of a journal, and returns their end.
    fn read(&mut self, bytes: &[u8], number: u64, wanted: &[u8]) -> Result<usize, Failure> {
        let mut end = 0;
        while let Some(batch) = batch(&bytes[end..]) {
            // No checksum covers the number.
            if self.last.is_some_and(|last| batch.number <= last || batch.number - last > MAX_STEP) {
                return Err(damaged(format!("{number}.jnl is damaged at byte {end}: a write is out of order")));
            }
            self.last = Some(batch.number);
            let rows = batch.rows.iter().filter(|row| row.key == wanted);
            self.found.extend(rows.map(|row| (row.keyspace, row.value.to_vec())));
            end += batch.size;
        }
        if number == 0 && end == 0 {
            // The creation of the database wrote to it.
            return Err(damaged("0.jnl has lost what was in it"));
        }
        Ok(end)
    }

    /// Returns the number of the last write, or `None` without a write.
    pub(super) fn last(&self) -> Option<u64> {
        self.last
    }

    /// Returns the values of the rows found in one keyspace.
    pub(super) fn found(&self, keyspace: u64) -> impl Iterator<Item = &[u8]> {
        self.found.iter().filter(move |(id, _)| *id == keyspace).map(|(_, value)| &**value)
    }

    /// Truncates the journals before their torn ends.
    pub(super) fn cut(self) -> Result<(), Failure> {
        for (path, end) in self.torn {
            warn!(path = %path.display(), end, "a journal of the store ends in a torn write, which is cut off");
            let file = OpenOptions::new().write(true).open(&path).map_err(failed)?;
            file.set_len(end as u64).and_then(|()| file.sync_all()).map_err(failed)?;
        }
        Ok(())
    }
}

/// Returns the journals by their numbers, which are consecutive: the database deletes the oldest
/// first.
fn numbered(path: &Path) -> Result<BTreeMap<u64, PathBuf>, Failure> {
    let mut journals = BTreeMap::new();
    for entry in fs::read_dir(path).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_none_or(|extension| !extension.eq_ignore_ascii_case("jnl")) {
            continue;
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        match name.strip_suffix(".jnl").and_then(|number| number.parse().ok()) {
            Some(number) if path.is_file() => journals.insert(number, path),
            Some(_) | None => return Err(damaged(format!("`{name}` is no journal"))),
        };
    }
    let Some((&first, _)) = journals.first_key_value() else {
        // The database would create a new one.
        return Err(damaged("its journal is missing"));
    };
    match (first..).zip(journals.keys()).find(|(expected, number)| expected != *number) {
        Some((missing, _)) => Err(damaged(format!("{missing}.jnl is missing"))),
        None => Ok(journals),
    }
}

fn failed(error: io::Error) -> Failure {
    fjall::Error::Io(error).into()
}

/// True if all bytes are zero. Most of a journal is zeros, preallocated.
fn is_zero(bytes: &[u8]) -> bool {
    const ZEROS: [u8; 4096] = [0; 4096];
    bytes.chunks(ZEROS.len()).all(|chunk| *chunk == ZEROS[..chunk.len()])
}

/// True if there is an intact batch anywhere.
fn has_batch(bytes: &[u8]) -> bool {
    memchr::memchr_iter(START, bytes).any(|at| batch(&bytes[at..]).is_some())
}

/// An intact batch.
struct Batch<'a> {
    /// Bytes in the journal.
    size: usize,
    /// Number of the write; higher than the numbers of all earlier batches.
    number: u64,
    rows: Vec<Row<'a>>,
}

struct Row<'a> {
    keyspace: u64,
    key: &'a [u8],
    value: &'a [u8],
}

/// Returns the intact batch that begins here.
fn batch(bytes: &[u8]) -> Option<Batch<'_>> {
    let (&[START], rest) = bytes.split_first_chunk()? else { return None };
    let (&count, rest) = rest.split_first_chunk()?;
    let (&number, _) = rest.split_first_chunk()?;
    let mut at = START_BYTES;
    let mut rows = Vec::new();
    for _ in 0..u32::from_le_bytes(count) {
        let row = row(bytes.get(at..)?)?;
        at += ITEM_BYTES + row.key.len() + row.value.len();
        rows.push(row);
    }
    let end = bytes.get(at..at + END_BYTES)?;
    let checksum = u64::from_le_bytes(end[1..9].try_into().ok()?);
    let is_intact = end[0] == END && end[9..] == *TRAILER && checksum == xxh3_64(&bytes[START_BYTES..at]);
    if !is_intact {
        return None;
    }
    Some(Batch { size: at + END_BYTES, number: u64::from_le_bytes(number), rows })
}

fn row(bytes: &[u8]) -> Option<Row<'_>> {
    let (head, rest) = bytes.split_at_checked(ITEM_BYTES)?;
    if head[0] != ITEM {
        return None;
    }
    let keyspace = u64::from_le_bytes(head[3..11].try_into().ok()?);
    let key = u16::from_le_bytes(head[11..13].try_into().ok()?);
    let stored = u32::from_le_bytes(head[17..21].try_into().ok()?);
    let (key, rest) = rest.split_at_checked(key.into())?;
    Some(Row { keyspace, key, value: rest.get(..stored as usize)? })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns a write of one row, in the form of a journal.
    fn written(number: u64, value: &[u8]) -> Vec<u8> {
        let mut item = vec![ITEM, 0, 0];
        item.extend_from_slice(&7_u64.to_le_bytes());
        item.extend_from_slice(&3_u16.to_le_bytes());
        item.extend_from_slice(&[value.len() as u32; 2].map(u32::to_le_bytes).concat());
        item.extend_from_slice(b"key");
        item.extend_from_slice(value);
        let start = [&[START][..], &1_u32.to_le_bytes(), &number.to_le_bytes()].concat();
        [&start[..], &item, &[END], &xxh3_64(&item).to_le_bytes(), TRAILER].concat()
    }

    /// A folder with these journals, removed at the end of the test.
    struct Folder(PathBuf);

    impl Folder {
        fn with(journals: &[(u64, Vec<u8>)]) -> Self {
            let name = format!("mcp-resume-journals-{:032x}", u128::from_be_bytes(mcp_resume_base::random::bytes()));
            let folder = Self(std::env::temp_dir().join(name));
            fs::create_dir_all(&folder.0).unwrap();
            for (number, bytes) in journals {
                fs::write(folder.0.join(format!("{number}.jnl")), bytes).unwrap();
            }
            folder
        }

        fn inspect(&self, fsync: Fsync) -> Result<Journals, Failure> {
            Journals::inspect(&self.0, fsync, b"key")
        }

        fn refusal(&self, fsync: Fsync) -> String {
            self.inspect(fsync).err().map(|failure| failure.problem).unwrap_or_default()
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn torn(bytes: &[u8]) -> Vec<u8> {
        [bytes, &written(9, b"torn")[..20]].concat()
    }

    #[test]
    fn journals_are_read_in_their_order_and_only_torn_ends_are_cut() {
        let zeros = [&written(5, b"c")[..], &[0; 9000]].concat();
        let folder = Folder::with(&[
            (2, torn(&written(6, b"d"))),
            (0, [written(1, b"a"), written(3, b"b")].concat()),
            (1, zeros),
            // A journal that was just begun.
            (3, vec![0; 5000]),
        ]);
        for fsync in [Fsync::Always, Fsync::Interval] {
            let journals = folder.inspect(fsync).unwrap();
            assert_eq!(journals.last(), Some(6));
            assert!(journals.found(7).eq([&b"a"[..], b"b", b"c", b"d"]));
            assert_eq!(journals.found(8).count(), 0);
        }
        folder.inspect(Fsync::Always).unwrap().cut().unwrap();
        let len = |number| fs::metadata(folder.0.join(format!("{number}.jnl"))).unwrap().len() as usize;
        let one = written(1, b"a").len();
        assert_eq!([0, 1, 2, 3].map(len), [2 * one, one + 9000, one, 5000]);
    }

    #[test]
    fn a_journal_that_lost_its_end_or_all_is_refused_where_a_later_one_has_writes() {
        let lost = [torn(&written(5, b"c")), torn(b""), Vec::new(), vec![0; 5000]];
        for (journal, between) in lost.into_iter().flat_map(|lost| [(lost.clone(), None), (lost, Some(Vec::new()))]) {
            let between_them: Vec<_> = between.into_iter().map(|empty| (3, empty)).collect();
            let last = 3 + between_them.len() as u64;
            let all = [&[(1, written(1, b"a")), (2, journal)][..], &between_them, &[(last, written(6, b"d"))]].concat();
            let folder = Folder::with(&all);
            for fsync in [Fsync::Always, Fsync::Interval] {
                let refusal = folder.refusal(fsync);
                assert!(refusal.starts_with("2.jnl "), "{refusal:?}");
            }
        }
    }

    #[test]
    fn a_write_that_does_not_follow_the_one_before_it_is_refused() {
        for later in [5, 4, 0, 5 + MAX_STEP + 1, u64::MAX] {
            let in_one = Folder::with(&[(0, [written(5, b"a"), written(later, b"b")].concat())]);
            let in_two = Folder::with(&[(0, written(5, b"a")), (1, written(later, b"b"))]);
            for folder in [in_one, in_two] {
                for fsync in [Fsync::Always, Fsync::Interval] {
                    let refusal = folder.refusal(fsync);
                    assert!(refusal.contains("out of order"), "{later}: {refusal:?}");
                }
            }
        }
        let far = Folder::with(&[(0, [written(5, b"a"), written(5 + MAX_STEP, b"b")].concat())]);
        assert_eq!(far.inspect(Fsync::Always).unwrap().last(), Some(5 + MAX_STEP));
    }

    #[test]
    fn the_first_journal_of_all_is_never_empty_and_a_later_one_may_be() {
        for nothing in [Vec::new(), vec![0; 5000]] {
            let folder = Folder::with(&[(0, nothing.clone())]);
            assert_eq!(folder.refusal(Fsync::Interval), "0.jnl has lost what was in it");
            let folder = Folder::with(&[(0, nothing.clone()), (1, written(5, b"a"))]);
            assert_eq!(folder.refusal(Fsync::Always), "0.jnl has lost what was in it");
            let folder = Folder::with(&[(3, written(5, b"a")), (4, nothing)]);
            assert_eq!(folder.inspect(Fsync::Always).unwrap().last(), Some(5));
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_hold_no_batch_and_are_read_without_a_panic(bytes: Vec<u8>, count in 0..3_u8) {
            let begun = [&[START, count, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, ITEM][..], &bytes].concat();
            prop_assert!(batch(&bytes).is_none());
            prop_assert!(batch(&begun).is_none());
            prop_assert!(!has_batch(&bytes));
        }
    }
}
