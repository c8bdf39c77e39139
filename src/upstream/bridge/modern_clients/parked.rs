//! Calls that wait for the answers of their clients, each found by the state that its client got.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use super::ModernClients;
use super::call::{BridgedCall, Waiting};
use super::session::LegacySession;
use crate::protocol::dialect::resume_tokens::CallDigest;
use crate::{clock, random, sync};

/// Most calls of one session that wait.
const MAX_OF_SESSION: usize = 64;

/// The calls, by their states.
#[derive(Default)]
pub(super) struct ParkedCalls(Mutex<HashMap<String, Box<BridgedCall>>>);

impl ParkedCalls {
    /// Takes the call that waits under this state. It must be the same call of the same session.
    pub(super) fn take(
        &self,
        state: &str,
        session: &Arc<LegacySession>,
        digest: Option<&CallDigest>,
    ) -> Option<Box<BridgedCall>> {
        let mut parked = sync::lock(&self.0);
        let is_same = parked.get(state).is_some_and(|call| call.is_of(session) && call.digest() == digest);
        if is_same { parked.remove(state) } else { None }
    }
}

impl Waiting for ModernClients {
    fn park(self: Arc<Self>, call: Box<BridgedCall>) -> Result<String, Box<BridgedCall>> {
        let state: String = random::bytes::<16>().iter().map(|byte| format!("{byte:02x}")).collect();
        {
            let mut parked = sync::lock(&self.parked.0);
            if parked.values().filter(|other| call.is_beside(other)).count() >= MAX_OF_SESSION {
                return Err(call);
            }
            parked.insert(state.clone(), call);
        }
        let (max_wait, bridge, name) = (self.settings.max_wait, Arc::downgrade(&self), state.clone());
        tokio::spawn(async move {
            clock::sleep(max_wait).await;
            let given_up = bridge.upgrade().and_then(|bridge| sync::lock(&bridge.parked.0).remove(&name));
            drop(given_up);
        });
        Ok(state)
    }
}
