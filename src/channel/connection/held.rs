//! Memory that a large message of the server holds until its last part is dropped. Usual messages
//! are not counted, and cost nothing.

use std::sync::Arc;

use bytes::Bytes;

use crate::channel::partial::PartialShare;
use crate::event_log::{Reservation, Stream};
use crate::protocol::error::ErrorCode;

/// Size up to which a message is not counted, in bytes.
pub(super) const FREE: usize = 64 * 1024;

/// Memory of a message. Dropping it frees the memory.
#[derive(Debug, Default)]
pub(super) enum Held {
    /// A usual message, which is not counted.
    #[default]
    Nothing,
    /// Memory in the quota of a caller.
    OfCaller(Reservation),
    /// Memory of a message that counts for no caller.
    Unclaimed(PartialShare),
}

/// A message that counts until the last part of it is dropped.
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
    /// Notes the size of a message.
    ///
    /// # Errors
    /// `ShareFull` or `ProxyFull` if there is no room for it.
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

    /// Keeps the memory for a message that has arrived, until the last part of it is dropped.
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

/// Returns a message for the response of a call, counted in the quota of its stream if it is large.
pub(super) fn counted(text: Bytes, stream: Option<&Arc<Stream>>) -> Bytes {
    match stream {
        Some(stream) if text.len() > FREE => {
            let held = Held::OfCaller(stream.quota().reserve(text.len()));
            Bytes::from_owner(Counted { text, _held: held })
        }
        Some(_) | None => text,
    }
}
