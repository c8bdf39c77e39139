//! Keys given by the operator to all replicas, in place of the key that each would make for itself.
//!
//! The file has one key a line, as 64 hexadecimal digits; `#` begins a comment, and empty lines are
//! ignored. The first key signs, and all keys are accepted. To rotate, add a new key last
//! everywhere, then move it to the front. Remove the old one once nothing that it signed is kept.
//! Invariant: no key is in an error or in `Debug`. Absent: making keys, and reading the file again.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use mcp_resume_protocol::ids::Keyring;

type Key = [u8; 32];

/// Most keys; each is tried on every event ID.
const KEYS_MAX: usize = 16;
/// Largest file, enough for the most keys with comments.
const FILE_MAX: u64 = 64 * 1024;
/// Label that separates the derived key from other uses of the same key.
const PRINCIPAL_LABEL: &[u8] = b"mcp-resume principals\0";

/// The keys cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read.
    #[error("the keys in {} cannot be read: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Cause of the failure.
        source: io::Error,
    },
    /// Other users can read or write the file. A reader of a key can forge the id of any stream.
    #[error("the keys in {} are open to all users of this machine: restrict the file (chmod o= FILE)", path.display())]
    Open {
        /// The file.
        path: PathBuf,
    },
    /// The file is no valid list of keys.
    #[error("the keys in {} cannot be used: {problem}", path.display())]
    Bad {
        /// The file.
        path: PathBuf,
        /// The problem and its place.
        problem: Problem,
    },
}

/// A problem with the text of a key file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// A line is no key.
    #[error("line {0} is no key, which is 64 hexadecimal digits (openssl rand -hex 32 makes one)")]
    NoKey(usize),
    /// There is no key.
    #[error("there is none")]
    Empty,
    /// There are too many keys.
    #[error("there are more than {KEYS_MAX}")]
    TooMany,
}

/// Keys, at least one.
#[derive(Clone, PartialEq, Eq)]
pub struct KeyFile {
    first: Key,
    others: Vec<Key>,
}

impl KeyFile {
    /// Reads a file.
    ///
    /// # Errors
    /// If the file cannot be read, is open to other users, or is no valid list of keys.
    pub fn load(path: &Path) -> Result<Self, Error> {
        let failed = |source| Error::Read { path: path.into(), source };
        let file = File::open(path).map_err(failed)?;
        if is_open_to_others(&file).map_err(failed)? {
            return Err(Error::Open { path: path.into() });
        }
        let mut text = String::new();
        file.take(FILE_MAX).read_to_string(&mut text).map_err(failed)?;
        Self::parse(&text).map_err(|problem| Error::Bad { path: path.into(), problem })
    }

    /// Parses the text of a file.
    ///
    /// # Errors
    /// If the text is no valid list of keys.
    pub fn parse(text: &str) -> Result<Self, Problem> {
        let mut keys = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let text = line.split('#').next().unwrap_or_default().trim();
            if !text.is_empty() {
                keys.push(key(text).ok_or(Problem::NoKey(index + 1))?);
            }
        }
        if keys.len() > KEYS_MAX {
            return Err(Problem::TooMany);
        }
        let mut keys = keys.into_iter();
        Ok(Self { first: keys.next().ok_or(Problem::Empty)?, others: keys.collect() })
    }

    /// Returns a keyring that signs with the first key, and accepts all keys and `stored`. The
    /// latter is the key of the store, which may have signed before there was a file.
    pub fn keyring(&self, stored: Option<Key>) -> Keyring {
        Keyring::new(self.first, self.others.iter().copied().chain(stored).collect())
    }

    /// Returns the key that distinguishes callers if no store has one. It is derived from the last
    /// key, which stays when a new one is put in front.
    pub fn principal_key(&self) -> Key {
        let last = self.others.last().unwrap_or(&self.first);
        let mac = <Hmac<Sha256> as KeyInit>::new_from_slice(last).expect("HMAC takes a key of any length");
        mac.chain_update(PRINCIPAL_LABEL).finalize().into_bytes().into()
    }
}

/// Masked.
impl fmt::Debug for KeyFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyFile({} keys)", 1 + self.others.len())
    }
}

fn key(text: &str) -> Option<Key> {
    let digits: Vec<u8> =
        text.chars().map(|digit| digit.to_digit(16).map(|value| value as u8)).collect::<Option<_>>()?;
    let (pairs, rest) = digits.as_chunks::<2>();
    let bytes: Vec<u8> = pairs.iter().map(|[high, low]| high << 4 | low).collect();
    if rest.is_empty() { bytes.try_into().ok() } else { None }
}

/// Returns true if other users may read or write the file.
#[cfg(unix)]
fn is_open_to_others(file: &File) -> io::Result<bool> {
    use std::os::unix::fs::PermissionsExt;
    const READ_OR_WRITTEN_BY_OTHERS: u32 = 0o006;
    Ok(file.metadata()?.permissions().mode() & READ_OR_WRITTEN_BY_OTHERS != 0)
}

#[cfg(not(unix))]
fn is_open_to_others(_: &File) -> io::Result<bool> {
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(byte: u8) -> String {
        format!("{byte:02x}").repeat(32)
    }

    #[test]
    fn each_line_is_a_key_and_comments_are_none() {
        let text = format!("# the newest\n{}\r\n\n  {} # since May\n", line(0xa1), line(2).to_uppercase());
        let keys = KeyFile::parse(&text).unwrap();
        assert_eq!((keys.first, keys.others.as_slice()), ([0xa1; 32], [[2; 32]].as_slice()));
        assert_eq!(KeyFile::parse(&line(9)).unwrap().others, Vec::<Key>::new());
    }

    #[test]
    fn what_is_no_key_is_refused_by_its_line() {
        let good = line(1);
        for (bad, problem) in [
            (String::new(), Problem::Empty),
            ("# nothing\n\n".to_owned(), Problem::Empty),
            (good[1..].to_owned(), Problem::NoKey(1)),
            (format!("{good}\n{good}0"), Problem::NoKey(2)),
            (format!("{good}\n{good}00"), Problem::NoKey(2)),
            (format!("{good} {good}"), Problem::NoKey(1)),
            (format!("\n{}", good.replace('0', "g")), Problem::NoKey(2)),
            (format!("0x{}", &good[2..]), Problem::NoKey(1)),
            (format!("{good}\n").repeat(KEYS_MAX + 1), Problem::TooMany),
        ] {
            assert_eq!(KeyFile::parse(&bad).unwrap_err(), problem, "{bad}");
        }
    }

    #[test]
    fn a_key_in_front_leaves_callers_who_they_are() {
        let parse = |lines: &[u8]| {
            let lines: Vec<String> = lines.iter().map(|byte| line(*byte)).collect();
            KeyFile::parse(&lines.join("\n")).unwrap().principal_key()
        };
        assert_eq!(parse(&[2, 1]), parse(&[1]));
        assert_ne!(parse(&[2]), parse(&[1]));
        assert_ne!(parse(&[1]), [1; 32], "it is no key that signs");
    }

    #[test]
    fn debug_shows_no_key() {
        assert_eq!(format!("{:?}", KeyFile::parse(&line(0xab)).unwrap()), "KeyFile(1 keys)");
    }
}
