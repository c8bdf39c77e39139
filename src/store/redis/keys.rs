//! Names of all keys and channels in Redis. All keys of a stream have its ID as hash tag, so that they lie on one slot.

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

    /// The record of [`super::generation`].
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

    /// Returns the prefix of all owners' channels.
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

    /// A group of [`crate::store::Coordination::join`].
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

    /// The events of a stream, under the name that a generation gives them; 0 is the first.
    pub(super) fn events(&self, stream: StreamId, generation: &str) -> Vec<u8> {
        let generation = if generation == "0" { "" } else { generation };
        format!("{}{{{stream}}}:e{generation}", self.prefix).into_bytes()
    }

    /// A script on a stream, with what all of these begin with.
    pub(super) fn on(&self, script: &Script, stream: StreamId) -> Cmd {
        let mut cmd = script.call();
        for key in self.stream(stream) {
            cmd.arg(key);
        }
        cmd
    }

    /// A script that changes a stream, so far.
    pub(super) fn change(&self, script: &Script, stream: StreamId) -> Cmd {
        let mut cmd = self.on(script, stream);
        cmd.arg(self.channels()).arg(&stream.as_bytes()[..]);
        cmd
    }
}

/// Order of calls: those of equal order take effect as they were made.
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

/// Eight digits.
pub(super) fn of(owner: Owner) -> String {
    format!("{:08x}", owner.0)
}

/// The owner of these digits.
pub(super) fn owner(text: &[u8]) -> Option<Owner> {
    u32::from_str_radix(std::str::from_utf8(text).ok()?, 16).ok().map(Owner)
}

/// Returns the order of calls about a subject that is no stream.
pub(super) fn order(about: impl Hash) -> Order {
    let mut hasher = DefaultHasher::new();
    about.hash(&mut hasher);
    Order::Other(hasher.finish())
}
