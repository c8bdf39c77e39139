//! What everything in Redis is called. All of a stream has its ID as hash tag, so that it lies on one slot.

use std::hash::{DefaultHasher, Hash, Hasher};

use ::redis::Cmd;

use super::scripts::Script;
use crate::protocol::ids::{Owner, StreamId};

/// Names below one prefix.
#[derive(Clone)]
pub(super) struct Names {
    prefix: String,
}

impl Names {
    /// A prefix without braces: they would be the hash tag.
    pub(super) fn new(prefix: &str) -> Option<Self> {
        (!prefix.contains(['{', '}'])).then(|| Self { prefix: prefix.to_owned() })
    }

    /// The record of [`super::contents`].
    pub(super) fn contents(&self) -> String {
        format!("{}keys", self.prefix)
    }

    /// Written again and again, to see that writing works.
    pub(super) fn probe(&self, owner: Owner) -> String {
        format!("{}probe:{}", self.prefix, of(owner))
    }

    /// The streams of an owner that may be open.
    pub(super) fn index(&self, owner: Owner) -> String {
        format!("{}own:{}", self.prefix, of(owner))
    }

    /// What the channels of all owners begin with.
    pub(super) fn channels(&self) -> String {
        format!("{}wake:", self.prefix)
    }

    /// The channel of an owner.
    pub(super) fn channel(&self, owner: Owner) -> String {
        format!("{}wake:{}", self.prefix, of(owner))
    }

    /// A record of [`crate::store::Store::put`].
    pub(super) fn record(&self, key: &[u8]) -> Vec<u8> {
        [self.prefix.as_bytes(), b"rec:", key].concat()
    }

    /// A group of [`crate::store::Shared::join`].
    pub(super) fn group(&self, group: &[u8]) -> Vec<u8> {
        [self.prefix.as_bytes(), b"group:", group].concat()
    }

    /// Messages for an owner, and their senders' numbers.
    pub(super) fn mail(&self, owner: Owner) -> [String; 2] {
        ["q", "n"].map(|part| format!("{}{{mail:{}}}:{part}", self.prefix, of(owner)))
    }

    /// Leases, whose they are, and how often each owner was dismissed.
    pub(super) fn leases(&self) -> [String; 3] {
        ["z", "i", "d"].map(|part| format!("{}{{leases}}:{part}", self.prefix))
    }

    /// Meta and events of a stream, and who follows it.
    pub(super) fn stream(&self, stream: StreamId) -> [String; 3] {
        ["m", "e", "f"].map(|part| format!("{}{{{stream}}}:{part}", self.prefix))
    }

    /// A script on a stream, with what all of these begin with.
    pub(super) fn on(&self, script: &Script, stream: StreamId) -> Cmd {
        let mut cmd = script.call();
        for key in self.stream(stream) {
            cmd.arg(key);
        }
        cmd
    }
}

/// Eight digits.
pub(super) fn of(owner: Owner) -> String {
    format!("{:08x}", owner.0)
}

/// The owner of these digits.
pub(super) fn owner(text: &[u8]) -> Option<Owner> {
    u32::from_str_radix(std::str::from_utf8(text).ok()?, 16).ok().map(Owner)
}

/// What orders the calls about this.
pub(super) fn order(about: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    about.hash(&mut hasher);
    hasher.finish()
}
