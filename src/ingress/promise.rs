//! The promise to join a request that is sent again, as this proxy gives and keeps it.
//!
//! Each response of the endpoint has it, for a caller whose `Idempotency-Key` counts: one with a
//! session or a credential. A promise of the server's own is removed, since the server knows
//! nothing of the calls here. Owned here: the time that is promised, the refusal of a repetition
//! from another epoch, the time that a call of 2026-07-28 is held, and its cancel by its key. Absent: the
//! search for the earlier call (`calls/remote_retry.rs`, `calls/mod.rs`), and the headers as text
//! (`protocol/promise.rs`).

use std::sync::Mutex;
use std::time::Duration;

use http::{HeaderMap, HeaderValue, Response, StatusCode};

use super::components::Components;
use super::context::RequestContext;
use super::refusals;
use crate::body::BoxBody;
use crate::config::Config;
use crate::event_log::{EventLog, Fingerprint};
use crate::protocol::classify;
use crate::protocol::error::{ErrorCode, Failure};
use crate::protocol::headers::{Era, Present, names};
use crate::protocol::ids::StoreEpoch;
use crate::protocol::jsonrpc::{Message, MethodName};
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
    epoch: Option<HeaderValue>,
    /// Time that the call is kept without a reader.
    hold: Option<Duration>,
}

impl Promises {
    /// Creates the promise that `config` can keep for each call.
    pub fn new(config: &Config) -> Self {
        let calls = std::iter::once(None).chain(config.tools.keys().map(|tool| Some(tool.as_str())));
        let holds = calls.map(|tool| config.call(tool)).map(|call| call.max_wait.unwrap_or(call.retention));
        Self { hold: holds.min().unwrap_or_default(), written: Mutex::default() }
    }

    /// Puts the promise into the head of a response. `is_distinct`: true if a session or a credential
    /// distinguishes the caller. A session that the response opens does, too.
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

impl RequestContext {
    /// Returns true for a request that its client has sent before, by its own word.
    pub(super) fn is_sent_again(&self) -> bool {
        self.reliance.as_ref().is_some_and(|reliance| reliance.epoch.is_some())
    }

    /// Returns true for a client that repairs its own connections: no rule for clients of its name
    /// is for it.
    pub(super) fn repairs_connections(&self) -> bool {
        self.reliance.as_ref().is_some_and(|reliance| reliance.hold.is_some())
    }
}

/// Admits a call, unless it is sent again and this proxy cannot know whether the first one ran.
///
/// # Errors
/// The response 412. Nothing of the call was run here.
pub(super) fn admit(
    components: &Components,
    context: &RequestContext,
    call: &classify::Call,
) -> Result<(), Box<Response<BoxBody>>> {
    let Some(epoch) = context.reliance.as_ref().and_then(|reliance| reliance.epoch.as_ref()) else { return Ok(()) };
    let is_keyed = context.binding.is_distinct() && context.facts.has(Present::IdempotencyKey);
    if is_keyed && epoch.as_bytes() == components.log.epoch().to_string().as_bytes() {
        return Ok(());
    }
    let mut response = refusals::fail_call(components, Failure::after_send(ErrorCode::OwnerDied), call);
    *response.status_mut() = StatusCode::PRECONDITION_FAILED;
    Err(Box::new(response))
}

/// Returns the time that the client wants its call to be kept without a reader, at most `max_wait`.
/// `None` for a request without a key, which could not be ended by it.
pub(super) fn hold(context: &RequestContext, key: Option<Fingerprint>, max_wait: Option<Duration>) -> Option<Duration> {
    let hold = context.reliance.as_ref()?.hold.filter(|_| key.is_some())?;
    Some(hold.min(max_wait.unwrap_or(Duration::MAX)))
}

/// Ends the call of 2026-07-28 that a POST cancels by its key. Returns false for every other POST.
/// A call that is unknown here has ended, or never began.
pub(super) fn cancel(components: &Components, context: &RequestContext, messages: &[Message]) -> bool {
    let is_cancel = |method: &MethodName| &**method == "notifications/cancelled";
    let [Message::Notification { method }] = messages else { return false };
    let is_modern = context.facts.version.as_ref().is_some_and(|version| version.era() == Era::Modern);
    let is_local = context.connection.receipts().are_local();
    if !is_cancel(method) || !is_modern || is_local || !context.binding.is_distinct() {
        return false;
    }
    let Some(key) = context.parts.headers.get(names::IDEMPOTENCY_KEY) else { return false };
    let call = Fingerprint::of_key(&context.binding, key.as_bytes());
    for stream in components.log.find_calls(&call) {
        stream.expire(ErrorCode::Abandoned);
    }
    true
}
