//! Generation of the contents of a Redis: one record, which is lost together with everything else.

use std::time::Duration;

use ::redis::Value;
use ::redis::aio::ConnectionLike;

use super::command::{ask, cmd};
use super::failure::Failure;
use crate::Keys;
use mcp_resume_base::clock;
use mcp_resume_base::random;
use mcp_resume_protocol::ids::StoreEpoch;

/// Version of the layout of all stored data. Data of a later version is left alone.
pub(super) const VERSION: u32 = 1;

/// Interval between reads of an awaited record.
const READ_EVERY: Duration = Duration::from_millis(50);

/// Reason why the record cannot be used.
#[derive(Debug)]
pub(super) enum Unusable {
    /// A later version wrote it.
    Newer(u32),
    /// The record was written by another program.
    Foreign,
    /// The record could not be read.
    Failed(Failure),
}

impl From<Failure> for Unusable {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// Returns keys for new contents.
fn fresh() -> Keys {
    Keys { epoch: fresh_epoch(), signing: random::bytes(), principal: random::bytes() }
}

/// Returns the same keys with another epoch.
pub(super) fn renewed(keys: &Keys) -> Keys {
    Keys { epoch: fresh_epoch(), ..keys.clone() }
}

fn fresh_epoch() -> StoreEpoch {
    StoreEpoch(u32::from_be_bytes(random::bytes()))
}

/// Calls [`agree`] for a process that has no keys yet. If there is no record, replicas that know
/// the keys have `wait` to write it again first.
pub(super) async fn join(connection: &mut impl ConnectionLike, name: &[u8], wait: Duration) -> Result<Keys, Unusable> {
    let until = clock::now() + wait;
    while clock::now() < until {
        if let Some(keys) = read_record(connection, name).await? {
            return Ok(keys);
        }
        clock::sleep_until(until.min(clock::now() + READ_EVERY)).await;
    }
    agree(connection, name, fresh).await
}

/// Returns true if `record` belongs to the generation of `epoch`. An unreadable record counts as
/// such: it is reported elsewhere.
pub(super) fn is_of(record: &Value, epoch: StoreEpoch) -> bool {
    match record {
        Value::Nil => false,
        Value::BulkString(text) => read(text).map_or(true, |keys| keys.epoch == epoch),
        _ => true,
    }
}

/// Reads the record, or writes `mine` without one. Of several concurrent writers one wins, and all
/// get its keys.
pub(super) async fn agree(
    connection: &mut impl ConnectionLike,
    name: &[u8],
    mine: impl FnOnce() -> Keys,
) -> Result<Keys, Unusable> {
    if let Some(keys) = read_record(connection, name).await? {
        return Ok(keys);
    }
    ask(connection, &cmd(&[b"SET", name, write(&mine()).as_bytes(), b"NX"])).await?;
    match read_record(connection, name).await? {
        Some(keys) => Ok(keys),
        None => Err(Failure::lost("the record that was written is gone").into()),
    }
}

async fn read_record(connection: &mut impl ConnectionLike, name: &[u8]) -> Result<Option<Keys>, Unusable> {
    match ask(connection, &cmd(&[b"GET", name])).await? {
        Value::Nil => Ok(None),
        Value::BulkString(text) => read(&text).map(Some),
        _ => Err(Unusable::Foreign),
    }
}

fn write(keys: &Keys) -> String {
    format!("{VERSION}:{:08x}:{}:{}", keys.epoch.0, hex(&keys.signing), hex(&keys.principal))
}

fn read(text: &[u8]) -> Result<Keys, Unusable> {
    let text = std::str::from_utf8(text).map_err(|_| Unusable::Foreign)?;
    let (version, rest) = text.split_once(':').ok_or(Unusable::Foreign)?;
    match version.parse() {
        Ok(VERSION) => {}
        Ok(newer) if newer > VERSION => return Err(Unusable::Newer(newer)),
        _ => return Err(Unusable::Foreign),
    }
    let mut parts = rest.split(':');
    let mut part = || parts.next().unwrap_or_default();
    let epoch = unhex::<4>(part()).ok_or(Unusable::Foreign)?;
    let signing = unhex(part()).ok_or(Unusable::Foreign)?;
    let principal = unhex(part()).ok_or(Unusable::Foreign)?;
    Ok(Keys { epoch: StoreEpoch(u32::from_be_bytes(epoch)), signing, principal })
}

/// Returns two hexadecimal digits for each byte.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .flat_map(|byte| [byte >> 4, byte & 15])
        .map(|digit| char::from(b"0123456789abcdef"[digit as usize]))
        .collect()
}

fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits = text.as_bytes();
    if digits.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let digit = |at: usize| char::from(pair[at]).to_digit(16);
        *byte = (digit(0)? * 16 + digit(1)?) as u8;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written_and_no_other_text_is() {
        let keys = fresh();
        let text = write(&keys);
        let again = read(text.as_bytes()).unwrap();
        assert_eq!((again.epoch, again.signing, again.principal), (keys.epoch, keys.signing, keys.principal));
        assert!(matches!(read(text.replacen('1', "7", 1).as_bytes()), Err(Unusable::Newer(7))));
        for foreign in ["", "1", "0:1", &text[..text.len() - 1], "1:0000000g:00:00", "\u{fffd}"] {
            assert!(matches!(read(foreign.as_bytes()), Err(Unusable::Foreign)), "{foreign}");
        }
    }
}
