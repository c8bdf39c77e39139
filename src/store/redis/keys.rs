//! Names of all keys and channels in Redis. All keys of a stream have its ID as hash tag, and so
//! lie on one slot.

use std::hash::{DefaultHasher, Hash, Hasher};

use ::redis::Cmd;

use super::scripts::Script;
use mcp_resume_protocol::ids::{Owner, StreamId};

/// Names of keys and channels with one prefix.
#[derive(Clone)]
pub(super) struct Names {
    prefix: String,
}

impl Names {
    /// Returns the names with `prefix`, or `None` if it has braces, which would be the hash tag.
    pub(super) fn new(prefix: &str) -> Option<Self> {
        if prefix.contains(['{', '}']) {
            return None;
        }
        Some(Self { prefix: prefix.to_owned() })
    }

    /// Returns the name of the record of [`super::generation`].
    pub(super) fn contents(&self) -> String {
        format!("{}keys", self.prefix)
    }

    /// Returns the key that each probe writes.
    pub(super) fn probe(&self, owner: Owner) -> String {
        format!("{}probe:{}", self.prefix, of(owner))
    }

    /// Returns the key of the index of an owner's streams that may be open.
    pub(super) fn index(&self, owner: Owner) -> String {
        format!("{}own:{}", self.prefix, of(owner))
    }

    /// Returns the prefix of all owners' channels.
    pub(super) fn channels(&self) -> String {
        format!("{}wake:", self.prefix)
    }

    /// Returns the channel of an owner.
    pub(super) fn channel(&self, owner: Owner) -> String {
        format!("{}wake:{}", self.prefix, of(owner))
    }

    /// Returns the key of a record of [`crate::Store::put`].
    pub(super) fn record(&self, key: &[u8]) -> Vec<u8> {
        [self.prefix.as_bytes(), b"rec:", key].concat()
    }

    /// Returns the key of a group of [`crate::Coordination::join`].
    pub(super) fn group(&self, group: &[u8]) -> Vec<u8> {
        [self.prefix.as_bytes(), b"group:", group].concat()
    }

    /// Returns the keys of the messages for an owner, and of their senders' last numbers.
    pub(super) fn mail(&self, owner: Owner) -> [String; 2] {
        ["q", "n"].map(|part| format!("{}{{mail:{}}}:{part}", self.prefix, of(owner)))
    }

    /// Returns the keys of the leases, of their holders, and of the number of dismissals of each
    /// owner.
    pub(super) fn leases(&self) -> [String; 3] {
        ["z", "i", "d"].map(|part| format!("{}{{leases}}:{part}", self.prefix))
    }

    /// Returns the keys of a stream: description and position, events, followers.
    pub(super) fn stream(&self, stream: StreamId) -> [String; 3] {
        ["m", "e", "f"].map(|part| format!("{}{{{stream}}}:{part}", self.prefix))
    }

    /// Returns the key of a stream's events. `generation` is the number of its renames.
    pub(super) fn events(&self, stream: StreamId, generation: &str) -> Vec<u8> {
        let generation = if generation == "0" { "" } else { generation };
        format!("{}{{{stream}}}:e{generation}", self.prefix).into_bytes()
    }

    /// Returns a call of a script on a stream, with its keys.
    pub(super) fn on(&self, script: &Script, stream: StreamId) -> Cmd {
        let mut cmd = script.call();
        for key in self.stream(stream) {
            cmd.arg(key);
        }
        cmd
    }

    /// Returns a call of a script that changes a stream, with its keys and first arguments.
    pub(super) fn change(&self, script: &Script, stream: StreamId) -> Cmd {
        let mut cmd = self.on(script, stream);
        cmd.arg(self.channels()).arg(&stream.as_bytes()[..]);
        cmd
    }
}

/// Order of calls. Calls of equal order take effect as they were made.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Order {
    Stream(StreamId),
    Other(u64),
}

impl From<StreamId> for Order {
    fn from(stream: StreamId) -> Self {
        Self::Stream(stream)
    }
}

/// Returns the owner as eight hexadecimal digits.
pub(super) fn of(owner: Owner) -> String {
    format!("{:08x}", owner.0)
}

/// Returns the owner with these digits, or `None` if they are malformed.
pub(super) fn owner(text: &[u8]) -> Option<Owner> {
    u32::from_str_radix(std::str::from_utf8(text).ok()?, 16).ok().map(Owner)
}

/// Returns the order of calls about a subject that is no stream.
pub(super) fn order(about: impl Hash) -> Order {
    let mut hasher = DefaultHasher::new();
    about.hash(&mut hasher);
    Order::Other(hasher.finish())
}
