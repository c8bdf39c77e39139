//! The promise to join a request that is sent again, as this proxy gives it.
//!
//! Each response of the endpoint has it, for a caller whose `Idempotency-Key` counts: one with a
//! session or a credential. A promise of the server's own is removed, since the server knows
//! nothing of the calls here. Owned here: the time that is promised, and the headers of a client
//! that relies on it. Absent: what follows from them (`reliance.rs`), and the headers as text
//! (`protocol/promise.rs`).

use std::sync::Mutex;
use std::time::Duration;

use http::{HeaderMap, HeaderValue};

use crate::config::Config;
use crate::event_log::EventLog;
use crate::protocol::headers::names;
use crate::protocol::ids::StoreEpoch;
use crate::protocol::promise::{Promise, hold_of};
use crate::sync;

/// The promise of this process.
pub struct Promises {
    hold: Duration,
    /// The header as it was written last, and its epoch. A shared store may get another one.
    written: Mutex<Option<(StoreEpoch, HeaderValue)>>,
}

/// Headers of a client that relies on the promise.
pub(super) struct Reliance {
    /// Epoch of the promise, in a request that is sent again.
    pub(super) epoch: Option<HeaderValue>,
    /// Time that the call is kept without a reader.
    pub(super) hold: Option<Duration>,
}

impl Promises {
    /// Creates the promise that `config` can keep for each call.
    pub fn new(config: &Config) -> Self {
        let calls = std::iter::once(None).chain(config.tools.keys().map(|tool| Some(tool.as_str())));
        let holds = calls.map(|tool| config.call(tool)).map(|call| call.max_wait.unwrap_or(call.retention));
        Self { hold: holds.min().unwrap_or_default(), written: Mutex::default() }
    }

    /// Puts the promise into the head of a response. `is_distinct`: true if a session or a
    /// credential distinguishes the caller. A session that the response opens does, too.
    pub(super) fn put(&self, log: &EventLog, is_distinct: bool, response: &mut HeaderMap) {
        let value = if is_distinct || response.contains_key(names::MCP_SESSION_ID) { self.value(log) } else { None };
        match value {
            Some(value) => drop(response.insert(names::MCP_RESUME, value)),
            None => drop(response.remove(names::MCP_RESUME)),
        }
    }

    fn value(&self, log: &EventLog) -> Option<HeaderValue> {
        let epoch = log.epoch();
        let mut written = sync::lock(&self.written);
        match &*written {
            Some((of, value)) if *of == epoch => Some(value.clone()),
            _ => {
                let value = Promise { epoch: epoch.to_string(), hold: self.hold }.to_value()?;
                *written = Some((epoch, value.clone()));
                Some(value)
            }
        }
    }
}

impl Reliance {
    /// Takes the headers out of a request: they are for this proxy alone.
    pub(super) fn take(headers: &mut HeaderMap) -> Option<Box<Self>> {
        let epoch = headers.remove(names::MCP_RESUME_EPOCH);
        let hold = headers.remove(names::MCP_RESUME_HOLD).and_then(|value| hold_of(&value));
        Some(Box::new(Self { epoch, hold })).filter(|it| it.epoch.is_some() || it.hold.is_some())
    }
}
