//! Sessions that the proxy issues to clients of servers without sessions. The session ID is a
//! sealed record: every replica with the key can open it, and none has to store it.
//!
//! `mr1.` and base64url without padding of `'s' | flags 1 | revision 0..=64 | nonce 12 | mac 16`.
//! It holds no secret. As with every session ID, its bearer may use the session.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::Keyring;
use super::keyring::MAC_BYTES;
use crate::dialect::Declared;
use crate::headers::{ProtocolVersion, SessionId};
use crate::named_rules::NamedRules;

const PREFIX: &str = "mr1.";
/// First byte of the record. No handle begins with it, so neither is valid as the other under one
/// key.
const MARK: u8 = b's';
const NONCE_BYTES: usize = 12;
const RESUMABLE_REQUESTS: u8 = 1;
const RESUMABLE_STREAMS: u8 = 2;
const NO_BEATS: u8 = 4;
const TASKS: u8 = 8;
const BY_GET: u8 = 16;
const COUNTS_BREAKS: u8 = 32;

/// Contents of a session ID that the proxy issued.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IssuedSession {
    /// The revision that the client requested.
    pub version: ProtocolVersion,
    /// The dialects that the client declared.
    pub declared: Declared,
    /// Rules that the client's name has chosen.
    pub rules: NamedRules,
    /// True if the proxy offers the client tasks of 2025-11-25.
    pub has_tasks: bool,
}

impl IssuedSession {
    /// Returns the session ID. `nonce` makes it unique.
    pub fn seal(&self, keys: &Keyring, nonce: [u8; NONCE_BYTES]) -> Option<SessionId> {
        let Declared { resumable_requests, resumable_streams } = self.declared;
        let requests = if resumable_requests { RESUMABLE_REQUESTS } else { 0 };
        let streams = if resumable_streams { RESUMABLE_STREAMS } else { 0 };
        let NamedRules { has_no_beats, by_get, counts_breaks } = self.rules;
        let beats = if has_no_beats { NO_BEATS } else { 0 };
        let by_get = if by_get { BY_GET } else { 0 };
        let breaks = if counts_breaks { COUNTS_BREAKS } else { 0 };
        let tasks = if self.has_tasks { TASKS } else { 0 };
        let flags = requests | streams | beats | tasks | by_get | breaks;
        let mut bytes = vec![MARK, flags];
        bytes.extend_from_slice(self.version.as_str().as_bytes());
        bytes.extend_from_slice(&nonce);
        let mac = keys.sign(&bytes);
        bytes.extend_from_slice(&mac);
        SessionId::parse(&format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes)))
    }

    /// Returns true if a session ID has the form of the proxy's own IDs. The seal is not checked.
    pub fn is_claimed_by(id: &SessionId) -> bool {
        id.as_str().starts_with(PREFIX)
    }

    /// Returns the contents of a session ID, or `None` unless any of `keys` sealed it.
    pub fn open(id: &SessionId, keys: &Keyring) -> Option<Self> {
        let bytes = URL_SAFE_NO_PAD.decode(id.as_str().strip_prefix(PREFIX)?).ok()?;
        let (sealed, mac) = bytes.split_at_checked(bytes.len().checked_sub(MAC_BYTES)?)?;
        if !keys.accepts(sealed, mac) {
            return None;
        }
        let (&[mark, flags], rest) = sealed.split_first_chunk()?;
        let (version, _) = rest.split_at_checked(rest.len().checked_sub(NONCE_BYTES)?)?;
        let version = ProtocolVersion::parse(std::str::from_utf8(version).ok()?)?;
        let declared = Declared {
            resumable_requests: flags & RESUMABLE_REQUESTS != 0,
            resumable_streams: flags & RESUMABLE_STREAMS != 0,
        };
        let rules = NamedRules {
            has_no_beats: flags & NO_BEATS != 0,
            by_get: flags & BY_GET != 0,
            counts_breaks: flags & COUNTS_BREAKS != 0,
        };
        let has_tasks = flags & TASKS != 0;
        if mark == MARK { Some(Self { version, declared, rules, has_tasks }) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn issued() -> IssuedSession {
        let declared = Declared { resumable_requests: false, resumable_streams: true };
        let rules = NamedRules { has_no_beats: true, by_get: false, counts_breaks: true };
        IssuedSession { version: ProtocolVersion::DEFAULT, declared, rules, has_tasks: true }
    }

    #[test]
    fn each_rule_of_a_client_is_kept() {
        let keys = Keyring::new([1; 32], Vec::new());
        for rule in 0..3 {
            let rules = NamedRules { has_no_beats: rule == 0, by_get: rule == 1, counts_breaks: rule == 2 };
            let session = IssuedSession { rules, ..issued() };
            let id = session.seal(&keys, [9; 12]).unwrap();
            assert_eq!(IssuedSession::open(&id, &keys), Some(session));
        }
    }

    #[test]
    fn a_sealed_record_opens_with_its_key_alone() {
        let keys = Keyring::new([1; 32], Vec::new());
        let id = issued().seal(&keys, [9; 12]).unwrap();
        assert!(IssuedSession::is_claimed_by(&id));
        assert_eq!(IssuedSession::open(&id, &keys), Some(issued()));
        assert_ne!(id.as_str(), issued().seal(&keys, [8; 12]).unwrap().as_str());
        let rotated = Keyring::new([2; 32], vec![[1; 32]]);
        assert_eq!(IssuedSession::open(&id, &rotated), Some(issued()));
        assert_eq!(IssuedSession::open(&id, &Keyring::new([2; 32], Vec::new())), None);
    }

    #[test]
    fn one_changed_character_is_not_believed() {
        let keys = Keyring::new([1; 32], Vec::new());
        let text = issued().seal(&keys, [9; 12]).unwrap().as_str().to_owned();
        for at in PREFIX.len()..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
            let changed = SessionId::parse(std::str::from_utf8(&bytes).unwrap()).unwrap();
            assert_eq!(IssuedSession::open(&changed, &keys), None, "{at}");
        }
        for text in ["mr1.", "mr1.AAAA", "mr1.!!", "mr2.AAAA"] {
            assert_eq!(IssuedSession::open(&SessionId::parse(text).unwrap(), &keys), None);
        }
    }
}
