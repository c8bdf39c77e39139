//! What a power cut leaves of the database's journals, looked at before the database does.
//!
//! The database refuses a journal whose last write is torn in an unlucky place, and silently drops everything behind a damaged
//! place in the middle. Here a torn end is cut off, which costs what was not answered yet, and damage before intact writes is
//! told from it. A journal is a row of batches:
//!
//! ```text
//! 1 <items 4> <seqno 8>                                                       start
//! 2 <type 1> <compression 1> <keyspace 8> <key length 2> <value length 4> <stored length 4> <key> <value>
//! 3 <xxh3 of the items 8> F J L 3                                             end
//! ```
//!
//! with numbers in little endian; zeros follow the last one.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::Path;

use tracing::warn;
use xxhash_rust::xxh3::xxh3_64;

use super::Fsync;
use super::database::{Failure, damaged};

const START: u8 = 1;
const ITEM: u8 = 2;
const END: u8 = 3;
const START_BYTES: usize = 1 + 4 + 8;
const ITEM_BYTES: usize = 1 + 1 + 1 + 8 + 2 + 4 + 4;
const END_BYTES: usize = 1 + 8 + 4;
const TRAILER: &[u8] = b"FJL\x03";

/// Cuts torn ends off the journals of the closed database at `path`.
///
/// With [`Fsync::Always`] no write follows a torn one, and intact ones behind are an error. With [`Fsync::Interval`] a power cut
/// may leave that, and the torn one is the end.
pub(super) fn mend(path: &Path, fsync: Fsync) -> Result<(), Failure> {
    let mut torn = Vec::new();
    let mut is_there = false;
    for entry in fs::read_dir(path).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_none_or(|extension| extension != "jnl") {
            continue;
        }
        is_there = true;
        let bytes = fs::read(&path).map_err(failed)?;
        let end = intact(&bytes);
        if is_zero(&bytes[end..]) {
            continue;
        }
        if fsync == Fsync::Always && has_batch(&bytes[end..]) {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            return Err(damaged(format!("{name} is damaged at byte {end}, before writes that are intact")));
        }
        torn.push((path, end));
    }
    if !is_there {
        // One without would be given a new one.
        return Err(damaged("its journal is missing"));
    }
    // Nothing was changed before all of them were looked at.
    for (path, end) in torn {
        warn!(path = %path.display(), end, "a journal of the store ends in a torn write, which is cut off");
        let file = OpenOptions::new().write(true).open(&path).map_err(failed)?;
        file.set_len(end as u64).and_then(|()| file.sync_all()).map_err(failed)?;
    }
    Ok(())
}

fn failed(error: io::Error) -> Failure {
    fjall::Error::Io(error).into()
}

/// Most of a journal is zeros, kept for later.
fn is_zero(bytes: &[u8]) -> bool {
    const ZEROS: [u8; 4096] = [0; 4096];
    bytes.chunks(ZEROS.len()).all(|chunk| *chunk == ZEROS[..chunk.len()])
}

/// Where the intact batches at the beginning end.
fn intact(bytes: &[u8]) -> usize {
    let mut end = 0;
    while let Some(size) = batch(&bytes[end..]) {
        end += size;
    }
    end
}

/// Whether there is an intact batch anywhere.
fn has_batch(bytes: &[u8]) -> bool {
    memchr::memchr_iter(START, bytes).any(|at| batch(&bytes[at..]).is_some())
}

/// The size of the intact batch that begins here.
fn batch(bytes: &[u8]) -> Option<usize> {
    let count = match bytes.get(..START_BYTES)? {
        [START, count @ .., _, _, _, _, _, _, _, _] => u32::from_le_bytes(count.try_into().ok()?),
        _ => return None,
    };
    let mut at = START_BYTES;
    for _ in 0..count {
        let item = bytes.get(at..at + ITEM_BYTES)?;
        let key = u16::from_le_bytes(item[11..13].try_into().ok()?);
        let stored = u32::from_le_bytes(item[17..21].try_into().ok()?);
        if item[0] != ITEM {
            return None;
        }
        at = at.checked_add(ITEM_BYTES + usize::from(key))?.checked_add(stored as usize)?;
        if at > bytes.len() {
            return None;
        }
    }
    let end = bytes.get(at..at + END_BYTES)?;
    let checksum = u64::from_le_bytes(end[1..9].try_into().ok()?);
    let is_intact = end[0] == END && end[9..] == *TRAILER && checksum == xxh3_64(&bytes[START_BYTES..at]);
    is_intact.then_some(at + END_BYTES)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn arbitrary_bytes_hold_no_batch_and_are_read_without_a_panic(bytes: Vec<u8>, count in 0..3_u8) {
            let begun = [&[START, count, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, ITEM][..], &bytes].concat();
            prop_assert_eq!(intact(&bytes), 0);
            prop_assert_eq!(intact(&begun), 0);
            prop_assert!(!has_batch(&bytes));
        }
    }
}
