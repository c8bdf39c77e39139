//! Memory of a large message of the server, until its last part is dropped. Messages up to [`FREE`]
//! bytes are not counted, and cost nothing.

use std::sync::Arc;

use bytes::Bytes;

use crate::channel::partial::PartialShare;
use crate::event_log::{Reservation, Stream};
use crate::protocol::error::ErrorCode;

/// Largest size of an uncounted message, in bytes.
pub(super) const FREE: usize = 64 * 1024;

/// Memory of a message. Dropping it frees the memory.
#[derive(Debug, Default)]
pub(super) enum Held {
    /// A message that is not counted.
    #[default]
    Nothing,
    /// Memory in the quota of a caller.
    OfCaller(Reservation),
    /// Memory that counts for no caller.
    Unclaimed(PartialShare),
}

/// A message that counts until its last part is dropped.
struct Counted {
    text: Bytes,
    _held: Held,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.text
    }
}

impl Held {
    /// Reserves this many bytes for a message.
    ///
    /// # Errors
    /// `ShareFull` or `ProxyFull` if there is no room.
    pub(super) fn grow(&mut self, bytes: usize) -> Result<(), ErrorCode> {
        match self {
            Self::Nothing => Ok(()),
            Self::OfCaller(reservation) => reservation.grow(bytes),
            Self::Unclaimed(share) => match share.resize(bytes) {
                true => Ok(()),
                false => Err(ErrorCode::ProxyFull),
            },
        }
    }

    /// Binds the memory to a complete message, until its last part is dropped.
    pub(super) fn keep_for(mut self, text: Bytes) -> Bytes {
        match &mut self {
            Self::Nothing => return text,
            Self::OfCaller(reservation) => reservation.set(text.len()),
            Self::Unclaimed(share) => {
                share.resize(text.len());
            }
        }
        Bytes::from_owner(Counted { text, _held: self })
    }
}

/// Returns a message for a call's response, counted in the quota of its stream if it is large.
pub(super) fn counted(text: Bytes, stream: Option<&Arc<Stream>>) -> Bytes {
    match stream {
        Some(stream) if text.len() > FREE => {
            let held = Held::OfCaller(stream.quota().reserve(text.len()));
            Bytes::from_owner(Counted { text, _held: held })
        }
        Some(_) | None => text,
    }
}
