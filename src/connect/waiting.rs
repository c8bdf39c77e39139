//! The wait of a request for the session: until the far side is there, and until it has answered
//! `initialized`.

use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;

use super::far::FarState;
use super::input::HostRequest;
use super::pipe::Pipe;
use crate::clock;
use crate::protocol::error::{ErrorCode, Failure};
use crate::protocol::jsonrpc::{self, response};

/// Longest wait of a request for the answer to `initialized`.
const INITIALIZED_WAIT: Duration = Duration::from_secs(10);
/// Progress of one interval. The server's own, which follows, is most often larger.
const STEP: f64 = 0.001;

impl Pipe {
    /// Waits until the request may be sent.
    ///
    /// # Errors
    /// The response, if the wait ends before.
    pub(super) async fn wait_for_far(&self, request: &HostRequest) -> Result<(), Bytes> {
        if request.revision.is_some() {
            let is_list = list_of(&request.method).is_some() && self.is_away.load(Ordering::Relaxed);
            let remembered = self.record().filter(|_| is_list).and_then(|record| record.result(&request.method));
            return remembered.map_or(Ok(()), |list| Err(response::result(&request.id, list).into()));
        }
        let is_absent = *self.far.state().borrow() == FarState::Absent;
        if let Some(member) = list_of(&request.method).filter(|_| is_absent) {
            let remembered = self.record().and_then(|record| record.result(&request.method));
            if let Some(list) = remembered {
                return Err(response::result(&request.id, list).into());
            }
            let empty = || Bytes::from(response::result(&request.id, format_args!(r#"{{"{member}":[]}}"#)));
            let until = self.lists_until().saturating_duration_since(clock::now());
            tokio::time::timeout(until, self.reached(request)).await.map_err(|_| empty())??;
        } else {
            let unreachable = || request.failed(Failure::before_run(ErrorCode::Unreachable));
            let late = || self.program.failure(&request.id).unwrap_or_else(unreachable);
            let reached = async {
                tokio::select! {
                    biased;
                    reached = self.reached(request) => reached,
                    error = self.program.failed(&request.id) => Err(error),
                }
            };
            let reached = self.with_progress(request, reached);
            tokio::time::timeout(self.settings.connect.wait, reached).await.map_err(|_| late())??;
        }
        let mut state = self.far.state();
        let is_ready = |state: &FarState| *state != FarState::Open;
        if tokio::time::timeout(INITIALIZED_WAIT, state.wait_for(is_ready)).await.is_err() {
            // Later requests need not wait: the host never says it, or the far side never answers.
            self.far.set_state(FarState::Ready);
        }
        Ok(())
    }

    /// Waits for the far side.
    async fn reached(&self, request: &HostRequest) -> Result<(), Bytes> {
        let mut state = self.far.state();
        let reached = state.wait_for(|state| *state != FarState::Absent).await.map(|state| state.clone());
        match reached {
            Ok(FarState::Refused(error)) => Err(response::error_object(&request.id, error).into()),
            Ok(FarState::Absent | FarState::Open | FarState::Ready) => Ok(()),
            Err(_) => Err(request.failed(Failure::before_run(ErrorCode::Unreachable))),
        }
    }

    /// Awaits `waiting`, and writes progress meanwhile if the request wants it. Behind this wait
    /// the core writes it.
    async fn with_progress<T>(&self, request: &HostRequest, waiting: impl Future<Output = T>) -> T {
        let beats = self.settings.progress.as_ref().filter(|beats| !beats.except.has(self.host()));
        let Some((beats, token)) = beats.zip(jsonrpc::progress_token(&request.body)) else { return waiting.await };
        let mut waiting = std::pin::pin!(waiting);
        let mut progress = 0.0;
        loop {
            tokio::select! {
                biased;
                reached = &mut waiting => return reached,
                () = clock::sleep(beats.after) => {}
            }
            progress += STEP;
            let params =
                format!(r#"{{"progressToken":{token},"progress":{progress},"message":"waiting for the server"}}"#);
            let message = format!(r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{params}}}"#);
            self.output.write(message.into()).await;
        }
    }
}

/// Returns the member of the result of a list, or `None` for any other method.
pub(super) fn list_of(method: &str) -> Option<&'static str> {
    match method {
        "tools/list" => Some("tools"),
        "prompts/list" => Some("prompts"),
        "resources/list" => Some("resources"),
        "resources/templates/list" => Some("resourceTemplates"),
        _ => None,
    }
}
