//! The end of the session: owed responses are awaited for a moment, running calls are cancelled,
//! and the session is deleted.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::task::JoinSet;

use super::far::FarState;
use super::pipe::Pipe;
use super::running::Entry;
use crate::clock;
use crate::protocol::jsonrpc::RequestId;

/// Wait for owed responses after the end of stdin, or after the last response.
const RESPONSE_WAIT: Duration = Duration::from_secs(2);
/// Longest wait for owed responses.
const LONGEST_WAIT: Duration = Duration::from_secs(10);
/// Time for the cancels of running calls.
const CANCEL_TIME: Duration = Duration::from_millis(500);
/// Time for the end of the session at the far side.
const DELETE_TIME: Duration = Duration::from_secs(1);

/// Time for the file of the memory.
const WRITE_TIME: Duration = Duration::from_millis(500);

/// Cause of the end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Cause {
    /// The host has closed stdin: it may still read responses.
    EndOfInput,
    /// The host has closed stdout, or a signal ends the process.
    Stopped,
}

impl Pipe {
    /// Ends the session.
    pub(super) async fn finish(self: &Arc<Self>, cause: Cause) {
        if cause == Cause::EndOfInput {
            tokio::select! {
                () = self.wait_for_responses() => {}
                () = self.output.closed() => {}
            }
        }
        let requests = self.running.all();
        self.end_tasks().await;
        let mut cancels = JoinSet::new();
        for (id, entry) in requests {
            let pipe = self.clone();
            cancels.spawn(async move { pipe.cancel(&id, &entry).await });
        }
        let _ = tokio::time::timeout(CANCEL_TIME, async { while cancels.join_next().await.is_some() {} }).await;
        self.far.end(DELETE_TIME).await;
        if let Some(record) = self.record() {
            let _ = tokio::time::timeout(WRITE_TIME, record.saved()).await;
        }
    }

    /// Cancels a request that the host will not read any more.
    async fn cancel(&self, id: &RequestId, entry: &Entry) {
        if let Some(key) = entry.key() {
            self.cancel_by_key(id, &key).await;
        }
        if !entry.is_modern() && *self.far.state().borrow() == FarState::Ready {
            let params = format!(r#"{{"requestId":{}}}"#, id.to_json());
            let message = format!(r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{params}}}"#);
            drop(self.far.post(Bytes::from(message)).await);
        }
    }

    /// Waits for the responses that the host is still owed.
    async fn wait_for_responses(&self) {
        let began = clock::now();
        let mut changes = self.running.changes();
        let mut last = began;
        loop {
            let counts = *changes.borrow_and_update();
            if counts.running == 0 {
                return;
            }
            let until = (last + RESPONSE_WAIT).min(began + LONGEST_WAIT);
            tokio::select! {
                changed = changes.changed() => {
                    let answered = changes.borrow().answered > counts.answered;
                    if changed.is_err() {
                        return;
                    }
                    if answered {
                        last = clock::now();
                    }
                }
                () = clock::sleep_until(until) => return,
            }
        }
    }
}
