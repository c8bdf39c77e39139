//! Resume tokens: a stream's handle, which finds it, and a secret, which opens it.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;

use super::{EventId, Handle};

/// The secret of a stream: 128 random bits from the caller, kept with the stream and in its record.
#[derive(Clone, Serialize, Deserialize)]
pub struct Secret([u8; 16]);

impl Secret {
    /// Creates a secret from these bits.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }
}

/// Masked: a secret opens a stream.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// A resume token as a client sent it: `<handle>~<secret>`, well-formed, not verified.
#[derive(Debug)]
pub struct ResumeToken {
    handle: EventId,
    secret: Secret,
}

impl ResumeToken {
    /// Writes the token of the stream with this handle.
    pub fn write(handle: &Handle, secret: &Secret) -> String {
        format!("{}~{}", handle.as_str(), URL_SAFE_NO_PAD.encode(secret.0))
    }

    /// Parses a token. Returns `None` if the format is not the proxy's.
    pub fn parse(text: &str) -> Option<Self> {
        let (handle, secret) = text.split_once('~')?;
        let secret = URL_SAFE_NO_PAD.decode(secret).ok()?.try_into().ok()?;
        Some(Self { handle: EventId::of_handle(handle)?, secret: Secret(secret) })
    }

    /// Returns the stream that the token claims to open, as the event ID before its first event.
    pub fn handle(&self) -> &EventId {
        &self.handle
    }

    /// Returns true if the token has this secret. The comparison takes constant time.
    pub fn is_opened_by(&self, secret: &Secret) -> bool {
        self.secret.0.ct_eq(&secret.0).into()
    }
}
